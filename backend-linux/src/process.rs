//! Processes: one identity for as long as it lives, a wait for its end that polls nothing, and its end.
//!
//! The only evidence used is the kernel's: `/proc/PID/stat`, pidfds and the boot id. A zombie is dead.

mod pidfd;
mod reap;
mod stat;
mod stop;

pub use pidfd::{ExitStatus, ProcessWatch, exited, open_pidfd, signal};
pub use reap::{adopt_orphans, reap_in_background};
pub use stat::{Stat, boot_id, is_alive, own_process, process_ref, read_stat};
pub use stop::stop;
