//! Drivers run plans. They have no choices left: what to do was decided, what went wrong is decided elsewhere.

mod bring_up;
mod expire;
mod explain;
pub mod interlink;
mod listening;
mod operation;
mod perform;
mod report;
mod request;
mod session;
mod take_down;
mod verify;

pub use bring_up::{PASSES_MAX, bring_up, observe};
pub use explain::{Explained, explain, policy_counters};
pub use listening::{PortState, ports};
pub use report::{BringUpReport, Trigger};
pub use request::{
    add_route, apply_policy, connect_network, create_network, create_pod, create_policy, disconnect_network,
    prune_networks, remove_container, remove_network, remove_pod, remove_policy, remove_route,
    restart_container, run_container, start_container, stop_container,
};
pub use session::{Session, node_from, open_session};
pub use take_down::{DownReport, take_down};
pub use verify::{ProbeResult, VerifyReport, may_reach, reaches, verify_networks};
