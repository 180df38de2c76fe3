//! Objects by name, identity or the beginning of an identity; what is ambiguous is refused.

use super::not_found;
use crate::{
    error::{Refusal, RefusalCode},
    record::{ContainerRecord, ImageRecord, NetworkRecord, Records, SandboxKind, SandboxRecord},
};
use alloc::{format, vec::Vec};

/// The shortest beginning of an identity that counts.
const PREFIX_MIN: usize = 3;

fn one<'a, T>(
    what: &str,
    list: &str,
    wanted: &str,
    all: impl Iterator<Item = &'a T> + Clone,
    name: impl Fn(&T) -> bool,
    id: impl Fn(&T) -> &str,
) -> Result<&'a T, Refusal> {
    if let Some(found) = all.clone().find(|item| name(item) || id(item) == wanted) {
        return Ok(found);
    }
    let begins: Vec<&T> =
        all.filter(|item| wanted.len() >= PREFIX_MIN && id(item).starts_with(wanted)).collect();
    match begins.as_slice() {
        [found] => Ok(found),
        [] => Err(not_found(what, wanted, list)),
        several => Err(Refusal::new(
            RefusalCode::Invalid,
            format!(
                "{wanted:?} is the beginning of {} {what}s; give more of the identity or the name",
                several.len()
            ),
        )),
    }
}

/// A container.
///
/// # Errors
/// `NotFound`, or `Invalid` when ambiguous.
pub fn container<'a>(records: &'a Records, wanted: &str) -> Result<&'a ContainerRecord, Refusal> {
    let all = records.containers.values();
    one("container", "ps -a", wanted, all, |it| it.name == wanted, |it| it.id.as_str())
}

/// A pod.
///
/// # Errors
/// `NotFound`, or `Invalid` when ambiguous.
pub fn pod<'a>(records: &'a Records, wanted: &str) -> Result<&'a SandboxRecord, Refusal> {
    let all = records.sandboxes.values().filter(|sandbox| sandbox.kind == SandboxKind::Pod);
    one("pod", "pod ls", wanted, all, |it| it.name == wanted, |it| it.id.as_str())
}

/// A network.
///
/// # Errors
/// `NotFound`, or `Invalid` when ambiguous.
pub fn network<'a>(records: &'a Records, wanted: &str) -> Result<&'a NetworkRecord, Refusal> {
    let all = records.networks.values();
    one("network", "network ls", wanted, all, |it| it.name == wanted, |it| it.id.as_str())
}

/// An image, by reference with or without its tag, or by identity.
///
/// # Errors
/// `NotFound`, or `Invalid` when ambiguous.
pub fn image<'a>(records: &'a Records, wanted: &str) -> Result<&'a ImageRecord, Refusal> {
    let wanted = wanted.strip_prefix("sha256:").unwrap_or(wanted);
    let latest = format!("{wanted}:latest");
    let named = |it: &ImageRecord| it.names.iter().any(|name| name == wanted || *name == latest);
    one("image", "image ls", wanted, records.images.values(), named, |it| it.id.as_str())
}

/// A container's own sandbox, or a pod, by the name of either.
///
/// # Errors
/// `NotFound`; `Invalid` when ambiguous, and for a member of a pod, naming the pod.
pub fn workload<'a>(records: &'a Records, wanted: &str) -> Result<&'a SandboxRecord, Refusal> {
    let missing = match pod(records, wanted) {
        Ok(pod) => return Ok(pod),
        Err(refusal) if refusal.code != RefusalCode::NotFound => return Err(refusal),
        Err(refusal) => refusal,
    };
    let container = match container(records, wanted) {
        Ok(container) => container,
        Err(refusal) if refusal.code != RefusalCode::NotFound => return Err(refusal),
        Err(_) => {
            let detail = missing.detail.replace("no pod", "no container and no pod");
            return Err(Refusal::new(RefusalCode::NotFound, detail));
        }
    };
    match records.sandboxes.get(&container.sandbox) {
        Some(sandbox) if sandbox.kind == SandboxKind::Container => Ok(sandbox),
        Some(pod) => {
            let detail = format!(
                "{} is a member of pod {}, whose network it shares; name the pod",
                container.name, pod.name
            );
            Err(Refusal::new(RefusalCode::Invalid, detail))
        }
        None => Err(not_found("sandbox of container", wanted, "status")),
    }
}
