//! (in progress)
use crate::record::{ContainerRecord, SandboxKind, SandboxRecord};

/// Whether a sandbox is to exist and be plugged: a pod always, a single container's while it is to run.
pub fn wants_plug(sandbox: &SandboxRecord, members: &[&ContainerRecord]) -> bool {
    sandbox.kind == SandboxKind::Pod || members.iter().any(|member| member.wants_to_run())
}
