//! Drivers run plans. They have no choices left: what to do was decided, what went wrong is decided elsewhere.

mod bring_up;
mod expire;
mod operation;
mod perform;
mod report;
mod request;
mod session;
mod take_down;
mod verify;

pub use bring_up::{PASSES_MAX, bring_up, observe};
pub use report::{BringUpReport, Trigger};
pub use request::{
    create_network, create_pod, remove_container, remove_network, remove_pod, restart_container,
    run_container, start_container, stop_container,
};
pub use session::{Session, node_from, open_session};
pub use take_down::{DownReport, take_down};
pub use verify::{ProbeResult, VerifyReport, may_reach, verify_networks};
