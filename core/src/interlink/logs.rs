//! Which part of which log a request asks for.

use super::{
    record::{PodRecord, PodUid},
    timestamp,
};
use crate::{id::ContainerId, record::Records, time::Wall};
use alloc::{format, string::String, vec::Vec};
use serde::Deserialize;

/// The log request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct LogRequest {
    /// Namespace.
    pub namespace: String,
    /// Identity.
    #[serde(rename = "PodUID")]
    pub pod_uid: String,
    /// Pod name.
    pub pod_name: String,
    /// Container.
    pub container_name: String,
    /// Options.
    pub opts: LogOptions,
}

/// Options of a log request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct LogOptions {
    /// Only the last lines; 0 is all, since an unset one is sent as 0.
    pub tail: i64,
    /// Only so many bytes; 0 is all. The virtual kubelet sends it as `Bytes`.
    #[serde(alias = "LimitBytes")]
    pub bytes: i64,
    /// Each line begins with its time.
    pub timestamps: bool,
    /// Goes on with what is written later.
    pub follow: bool,
    /// Of the start before the last.
    pub previous: bool,
    /// Only what is not older; 0 is all.
    pub since_seconds: i64,
    /// Likewise; Go's zero time is all.
    pub since_time: Option<String>,
}

/// Which part of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Not before, in milliseconds since 1970.
    pub since_ms: Option<u64>,
    /// Before, likewise.
    pub until_ms: Option<u64>,
    /// Only the last lines.
    pub tail: Option<u64>,
    /// Only so many bytes.
    pub bytes: Option<u64>,
    /// Lines begin with their time.
    pub timestamps: bool,
    /// Goes on.
    pub follow: bool,
}

/// Where a log is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A container of the node.
    Container(ContainerId),
    /// Kept after the pod's end: job and container.
    Kept(String, String),
    /// It has not started: empty so far.
    NotStarted(PodUid, String),
}

/// Why there is no such log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoLog {
    /// The request makes no sense; for a person.
    Invalid(String),
    /// No such pod or container; for a person.
    NotFound(String),
}

/// Where the log is that a request asks for, and which part of it.
///
/// # Errors
/// [`NoLog`].
pub fn select(records: &Records, request: &LogRequest, wall: Wall) -> Result<(Place, Window), NoLog> {
    let window = window(&request.opts, wall)?;
    let uid = PodUid::from_raw(&*request.pod_uid);
    let name = &request.container_name;
    if let Some(pod) = records.offloaded.get(&uid) {
        return of_pod(records, pod, request, window);
    }
    if let Some(grave) = records.tombstones.get(&uid) {
        if grave.logs.contains(name) && !request.opts.previous {
            let follow = Window { follow: false, ..window };
            return Ok((Place::Kept(grave.jid.clone(), name.clone()), follow));
        }
        return Err(NoLog::NotFound(format!(
            "pod {} was deleted and left no log of container {name:?}",
            request.pod_name
        )));
    }
    Err(NoLog::NotFound(format!("this node has no pod {} ({:?})", request.pod_name, request.pod_uid)))
}

fn of_pod(
    records: &Records,
    pod: &PodRecord,
    request: &LogRequest,
    mut window: Window,
) -> Result<(Place, Window), NoLog> {
    let name = &request.container_name;
    let Some(index) = pod.containers.iter().position(|wanted| &wanted.name == name) else {
        let all: Vec<&str> = pod.containers.iter().map(|wanted| wanted.name.as_str()).collect();
        let detail = format!("pod {} has no container {name:?}; it has {}", pod.name, all.join(", "));
        return Err(NoLog::NotFound(detail));
    };
    let id = pod.progress.containers.get(index).and_then(|progress| progress.id.as_ref());
    let container = id.and_then(|id| records.containers.get(id));
    let Some(container) = container else {
        if request.opts.previous {
            return Err(NoLog::Invalid(format!(
                "previous terminated container {name:?} in pod {:?} not found",
                pod.name
            )));
        }
        if id.is_some() {
            // It ran and its container is removed: its pod is on its way out, and what it wrote is kept.
            let window = Window { follow: false, ..window };
            return Ok((Place::Kept(pod.jid.clone(), name.clone()), window));
        }
        return Ok((Place::NotStarted(pod.uid.clone(), name.clone()), window));
    };
    // The log is over all starts. The times of their ends part it; one millisecond later, for these are rounded down
    // and nothing starts again that soon.
    let part = |at: Option<Wall>| at.map(|at| at.0.saturating_add(1));
    let ran_before = container.incarnation > 1 || container.restarts > 0;
    let (from, until) = match (request.opts.previous, container.last_end, container.running().is_some()) {
        (true, Some(end), true) => (part(end.before), part(Some(end.at))),
        (true, Some(end), false) if end.before.is_some() => (None, part(end.before)),
        (true, ..) => {
            let detail = format!("previous terminated container {name:?} in pod {:?} not found", pod.name);
            return Err(NoLog::Invalid(detail));
        }
        (false, Some(end), true) => (part(Some(end.at)), None),
        (false, Some(end), false) if ran_before => (part(end.before), None),
        (false, ..) => (None, None),
    };
    window.since_ms = window.since_ms.max(from);
    window.until_ms = until;
    window.follow &= !request.opts.previous;
    Ok((Place::Container(container.id.clone()), window))
}

fn window(options: &LogOptions, wall: Wall) -> Result<Window, NoLog> {
    let positive = |number: i64| u64::try_from(number).ok().filter(|number| *number > 0);
    let mut since_ms =
        positive(options.since_seconds).map(|seconds| wall.0.saturating_sub(seconds.saturating_mul(1_000)));
    if let Some(text) = options.since_time.as_deref().filter(|text| !text.is_empty()) {
        let time = timestamp::parse(text)
            .ok_or_else(|| NoLog::Invalid(format!("SinceTime {text:?} is no RFC 3339 time")))?;
        if time.0 > 0 {
            since_ms = since_ms.max(Some(time.0));
        }
    }
    Ok(Window {
        since_ms,
        until_ms: None,
        tail: positive(options.tail),
        bytes: positive(options.bytes),
        timestamps: options.timestamps,
        follow: options.follow,
    })
}
