//! What is done next for a pod: one action out of its record and the records below, and nothing else. Asked again
//! after each action, after each change of the records and after a restart of the daemon.

use super::{
    dns,
    record::{
        ContainerWanted, EnvValue, Failure, MountWanted, PodRecord, PodRestart, VolumeSource, VolumeWanted,
    },
    retry::is_due,
};
use crate::{
    id::{BootId, ContainerId, SandboxId},
    journal::Subject,
    ops::{
        find,
        request::{PodRequest, RootRequest, RunRequest},
    },
    record::{ContainerRecord, ImageRecord, Records, RunState, SandboxKind, SandboxRecord},
    spec::{BindMount, RestartPolicy},
    time::{Mono, Wall},
};
use alloc::{boxed::Box, format, string::String, vec::Vec};
use core::net::IpAddr;

/// Where a pod's files are, told by the backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPlace {
    /// Absolute directory of the pod's volumes; each is a directory of its name in it.
    pub volumes: String,
}

/// One thing to do for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write its volumes.
    WriteVolumes(Vec<VolumeWanted>),
    /// Make its sandbox.
    CreateSandbox(Box<PodRequest>),
    /// Its sandbox is there, and only the record does not say so yet.
    AdoptSandbox(SandboxId),
    /// Start a container.
    Run(usize, Box<RunRequest>),
    /// A container is there, and only the record does not say so yet.
    AdoptContainer(usize, ContainerId),
    /// A container is gone, and nobody here removed it.
    LoseContainer(usize, Failure),
    /// Nothing more can come of it.
    Fail(Failure),
    /// End these containers side by side, by name, each within so many milliseconds.
    Stop(Vec<String>, u64),
    /// Keep the logs of these containers, then remove the sandbox of this name with everything in it.
    RemoveSandbox(String, Vec<(ContainerId, String)>),
    /// Nothing of it is left but files: remove these and leave a tombstone.
    Bury,
}

/// What is next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing, until the records change.
    Idle,
    /// Nothing, until the records change or this time has come.
    At(Mono),
    /// This, now.
    Act(Action),
}

/// `text` as a label of at most `max` bytes: RFC 1123.
pub fn as_label(text: &str, max: usize) -> String {
    let fine = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let mapped: String = text.chars().map(fine).collect();
    let cut = mapped.trim_start_matches('-');
    let cut = cut.get(..cut.len().min(max)).unwrap_or(cut).trim_end_matches('-');
    String::from(if cut.is_empty() { "pod" } else { cut })
}

/// A name on the node: unique by the job's identity, readable by the rest.
pub(super) fn label(name: &str, jid: &str) -> String {
    format!("{jid}-{}", as_label(name, crate::name::NAME_BYTES_MAX - 13))
}

/// What is next for a pod.
pub fn next(
    records: &Records,
    pod: &PodRecord,
    place: &PodPlace,
    now: Mono,
    wall: Wall,
    boot_id: &BootId,
) -> Next {
    let found = Found::of(records, pod);
    if found.is_busy(records) {
        // Whatever runs on it ends, or a bring-up undoes it; either changes the records.
        return Next::Idle;
    }
    if pod.progress.deleting.is_some() {
        return removal(pod, &found);
    }
    if pod.progress.failed.is_some() {
        let running = found.running();
        return if running.is_empty() { Next::Idle } else { Next::Act(Action::Stop(running, pod.grace_ms)) };
    }
    if let Some(retry) = pod.progress.retry.as_ref().filter(|retry| !is_due(retry, now, boot_id)) {
        return Next::At(retry.not_before);
    }
    if !pod.progress.prepared {
        return Next::Act(Action::WriteVolumes(pod.volumes.clone()));
    }
    let sandbox = match (&pod.progress.sandbox, found.sandbox) {
        (Some(_), Some(sandbox)) => sandbox,
        (None, Some(sandbox)) => return Next::Act(Action::AdoptSandbox(sandbox.id.clone())),
        (None, None) => return Next::Act(Action::CreateSandbox(Box::new(sandbox_request(pod)))),
        // A record that cannot be read may come back, with a newer build.
        (Some(_), None) if !records.quarantined.is_empty() => return Next::Idle,
        (Some(_), None) => {
            let message =
                "its sandbox was removed from the node, not by Kubernetes; delete the pod and make it anew";
            return Next::Act(Action::Fail(failure("SandboxLost", message, wall)));
        }
    };
    containers(records, pod, place, &found, sandbox, now, wall, boot_id)
}

#[allow(clippy::too_many_arguments, reason = "the second half of `next`, with what the first found")]
fn containers(
    records: &Records,
    pod: &PodRecord,
    place: &PodPlace,
    found: &Found<'_>,
    sandbox: &SandboxRecord,
    now: Mono,
    wall: Wall,
    boot_id: &BootId,
) -> Next {
    let mut due: Option<Mono> = None;
    for (index, wanted) in pod.containers.iter().enumerate() {
        let Some(progress) = pod.progress.containers.get(index) else { continue };
        // An init container that something after it has been started for is done, whatever became of it since.
        let passed = wanted.init
            && pod.progress.containers.iter().skip(index + 1).any(|progress| progress.id.is_some());
        if passed {
            continue;
        }
        if let Some(failure) = &progress.failed {
            if wanted.init {
                let message = format!("init container {} cannot run: {}", wanted.name, failure.message);
                return Next::Act(Action::Fail(self::failure("InitContainerFailed", message, wall)));
            }
            continue;
        }
        match (found.container(index), &progress.id) {
            (Some(container), Some(_)) => {
                if !wanted.init {
                    continue;
                }
                match &container.state {
                    RunState::Exited { exit_code: Some(0), .. } => continue,
                    RunState::Exited { exit_code, .. } => {
                        return Next::Act(Action::Fail(init_failed(wanted, *exit_code, wall)));
                    }
                    RunState::Failed { cause, .. } => {
                        let message = format!("init container {} cannot be started: {cause}", wanted.name);
                        return Next::Act(Action::Fail(failure("InitContainerFailed", message, wall)));
                    }
                    RunState::Created | RunState::Running { .. } | RunState::Waiting { .. } => {
                        return at(due);
                    }
                }
            }
            (Some(container), None) => {
                return Next::Act(Action::AdoptContainer(index, container.id.clone()));
            }
            (None, Some(_)) if !records.quarantined.is_empty() => return at(due),
            (None, Some(_)) => {
                let message =
                    "it was removed from the node, not by Kubernetes; delete the pod and make it anew";
                return Next::Act(Action::LoseContainer(index, failure("ContainerLost", message, wall)));
            }
            (None, None) => {}
        }
        if let Some(retry) = progress.retry.as_ref().filter(|retry| !is_due(retry, now, boot_id)) {
            due = Some(due.map_or(retry.not_before, |due| due.min(retry.not_before)));
        } else if let Some(image) = image(records, &wanted.image)
            && is_allowed(wanted, image)
        {
            let request = run_request(pod, wanted, image, sandbox, place);
            return Next::Act(Action::Run(index, Box::new(request)));
        }
        // Its image is missing, or it waits: the other containers do not, the init containers after it do.
        if wanted.init {
            return at(due);
        }
    }
    at(due)
}

fn at(due: Option<Mono>) -> Next {
    due.map_or(Next::Idle, Next::At)
}

fn failure(reason: &str, message: impl Into<String>, at: Wall) -> Failure {
    Failure { reason: String::from(reason), message: message.into(), at }
}

fn init_failed(wanted: &ContainerWanted, code: Option<i32>, wall: Wall) -> Failure {
    let how = match code {
        Some(code) => format!("ended with {code}"),
        None => String::from("ended, and nobody could read how"),
    };
    failure("InitContainerFailed", format!("init container {} {how}", wanted.name), wall)
}

/// Order of the end: processes with their grace, then the sandbox with what is in it, then files.
fn removal(pod: &PodRecord, found: &Found<'_>) -> Next {
    let grace_ms = pod.progress.deleting.as_ref().map_or(pod.grace_ms, |deletion| deletion.grace_ms);
    let running = found.running();
    if !running.is_empty() {
        return Next::Act(Action::Stop(running, grace_ms));
    }
    match found.sandbox {
        Some(sandbox) => {
            let logs = pod.containers.iter().enumerate().filter_map(|(index, wanted)| {
                Some((found.container(index)?.id.clone(), wanted.name.clone()))
            });
            Next::Act(Action::RemoveSandbox(sandbox.name.clone(), logs.collect()))
        }
        None => Next::Act(Action::Bury),
    }
}

/// What of a pod is on the node, by its records.
pub(super) struct Found<'a> {
    pub(super) sandbox: Option<&'a SandboxRecord>,
    containers: Vec<Option<&'a ContainerRecord>>,
}

impl<'a> Found<'a> {
    pub(super) fn of(records: &'a Records, pod: &PodRecord) -> Self {
        // By identity where it is known; by name only while something was just made.
        let sandbox = match &pod.progress.sandbox {
            Some(id) => records.sandboxes.get(id),
            None => {
                let name = pod.sandbox_name();
                records.sandboxes.values().find(|it| it.kind == SandboxKind::Pod && it.name == name)
            }
        };
        let containers = pod.containers.iter().enumerate().map(|(index, wanted)| {
            let known = pod.progress.containers.get(index).and_then(|progress| progress.id.as_ref());
            match (known, sandbox) {
                (Some(id), _) => records.containers.get(id),
                (None, Some(sandbox)) => {
                    let name = pod.container_name(wanted);
                    records.containers.values().find(|it| it.sandbox == sandbox.id && it.name == name)
                }
                (None, None) => None,
            }
        });
        Self { sandbox, containers: containers.collect() }
    }

    pub(super) fn container(&self, index: usize) -> Option<&'a ContainerRecord> {
        self.containers.get(index).copied().flatten()
    }

    /// Names of containers that run or would run again.
    fn running(&self) -> Vec<String> {
        let running = |it: &&ContainerRecord| it.running().is_some() || it.wants_to_run();
        self.containers.iter().flatten().copied().filter(running).map(|it| it.name.clone()).collect()
    }

    fn is_busy(&self, records: &Records) -> bool {
        let own = |subject: &Subject| match subject {
            Subject::Sandbox(id) => self.sandbox.is_some_and(|sandbox| &sandbox.id == id),
            Subject::Container(id) => self.containers.iter().flatten().any(|container| &container.id == id),
            Subject::Node | Subject::Network(_) | Subject::Policy => false,
        };
        records.operations.values().any(|open| open.subjects.iter().any(own))
    }
}

/// The image by the names that a registry's reference has on a node.
pub(super) fn image<'a>(records: &'a Records, reference: &str) -> Option<&'a ImageRecord> {
    let short = reference.strip_prefix("docker.io/").unwrap_or(reference);
    let short = short.strip_prefix("library/").unwrap_or(short);
    // An image that was loaded under a bare name has no tag.
    let bare = short.strip_suffix(":latest").unwrap_or(short);
    [reference, short, bare].into_iter().find_map(|name| find::image(records, name).ok())
}

/// User and group that a container runs as.
pub(super) fn user(wanted: &ContainerWanted, image: &ImageRecord) -> (u32, u32) {
    let (uid, gid) = image.user;
    match (wanted.uid, wanted.gid) {
        (None, None) => (uid, gid),
        (None, Some(gid)) => (uid, gid),
        (Some(uid), gid) => (uid, gid.unwrap_or(0)),
    }
}

/// Whether `runAsNonRoot` lets it run.
pub(super) fn is_allowed(wanted: &ContainerWanted, image: &ImageRecord) -> bool {
    !wanted.non_root || user(wanted, image).0 != 0
}

fn sandbox_request(pod: &PodRecord) -> PodRequest {
    PodRequest {
        name: pod.sandbox_name(),
        tenant: Some(pod.namespace.clone()),
        networks: Vec::new(),
        addresses: Default::default(),
        ports: pod.ports.clone(),
        hostname: Some(pod.hostname.clone()),
        labels: pod.labels.clone(),
        aliases: dns::aliases(&pod.hostname),
        dns: pod.dns.clone(),
    }
}

fn run_request(
    pod: &PodRecord,
    wanted: &ContainerWanted,
    image: &ImageRecord,
    sandbox: &SandboxRecord,
    place: &PodPlace,
) -> RunRequest {
    let ip = sandbox.primary().map(|own| format!("{}", IpAddr::V4(own.ipv4))).unwrap_or_default();
    let env = wanted.env.iter().map(|(name, value)| match value {
        EnvValue::Text(text) => (name.clone(), text.clone()),
        EnvValue::PodIp => (name.clone(), ip.clone()),
    });
    RunRequest {
        root: RootRequest::Image(String::from(image.id.as_str())),
        name: Some(pod.container_name(wanted)),
        pod: Some(String::from(sandbox.id.as_str())),
        tenant: None,
        networks: Vec::new(),
        addresses: Default::default(),
        ports: Vec::new(),
        command: wanted.args.clone(),
        entrypoint: (!wanted.command.is_empty()).then(|| wanted.command.clone()),
        env: env.collect(),
        mounts: wanted.mounts.iter().filter_map(|mount| bind(pod, mount, place)).collect(),
        working_dir: (!wanted.working_dir.is_empty()).then(|| wanted.working_dir.clone()),
        user: Some(user(wanted, image)),
        hostname: None,
        restart: match (pod.restart, wanted.init) {
            (PodRestart::Never, _) => RestartPolicy::Once,
            (PodRestart::OnFailure, _) | (PodRestart::Always, true) => {
                RestartPolicy::OnFailure { retries_max: None }
            }
            (PodRestart::Always, false) => RestartPolicy::Always,
        },
        stop_signal: None,
        stop_grace_ms: Some(pod.grace_ms),
        labels: pod.labels.clone(),
        remove_on_exit: false,
        security: wanted.security.clone(),
        aliases: Vec::new(),
        dns: Default::default(),
    }
}

/// A mount of a volume; what is made of files is read-only, as with every kubelet.
fn bind(pod: &PodRecord, mount: &MountWanted, place: &PodPlace) -> Option<BindMount> {
    let volume = pod.volumes.iter().find(|volume| volume.name == mount.volume)?;
    let own = format!("{}/{}", place.volumes, volume.name);
    let (root, files) = match &volume.source {
        VolumeSource::Empty => (own, false),
        VolumeSource::Files(_) => (own, true),
        VolumeSource::Host { path, .. } => (path.clone(), false),
    };
    let source = if mount.sub_path.is_empty() { root.clone() } else { format!("{root}/{}", mount.sub_path) };
    let beneath = (!mount.sub_path.is_empty()).then_some(root);
    Some(BindMount { source, target: mount.target.clone(), read_only: mount.read_only || files, beneath })
}
