//! Kubernetes pods, as an interLink virtual kubelet offloads them: what of a pod becomes what of a node, what is
//! done next for it, and what its status is. All of it pure; [`crate::driver::interlink`] runs it.
//!
//! A pod is a *higher* operation over sandboxes and containers. Its record says what is wanted and how far it is;
//! [`next::next`] looks at the records and names one action; the operations below are journaled by themselves.
//! So a kill at any place needs no journal of its own here: whoever comes next looks again.

pub mod bytes;
mod dns;
pub mod env;
pub mod files;
pub mod kube;
pub mod logs;
pub mod next;
pub mod ping;
pub mod quantity;
pub mod record;
pub mod retry;
pub mod status;
pub mod timestamp;
pub mod translate;
mod unsupported;

/// The annotation in which the virtual kubelet keeps what a create answered as `PodJID`.
pub const JOB_ID_ANNOTATION: &str = "JobID";
