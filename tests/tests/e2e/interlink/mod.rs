//! Offloaded pods, as a virtual kubelet has them made.

mod client;
mod conformance;
mod life;
mod logs;

pub use conformance::{conformance, host_ports, refused};
pub use life::{create_then_kill, delete_first, image_missing, plugin_restart};
pub use logs::logs;
