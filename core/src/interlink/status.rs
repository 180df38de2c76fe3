//! The status of a pod, as the virtual kubelet must be told it: every container always, init containers in order,
//! nothing that would make it believe a pod done that is not, or alive that is lost.
//!
//! The records are the cache: what the node's watches of processes see is written down within milliseconds, so that a
//! status looks at memory and starts nothing.

use super::{
    JOB_ID_ANNOTATION, kube,
    next::{Found, image, is_allowed},
    record::{ContainerWanted, Failure, PodRecord, PodUid, PullPolicy},
    timestamp,
};
use crate::{
    record::{ContainerRecord, EndRecord, Records, RunState},
    time::Wall,
};
use alloc::{format, string::String, vec::Vec};
use serde::Serialize;

/// What a kubelet tells of a container that ended and left no code: `ContainerStatusUnknown`.
const EXIT_UNKNOWN: i32 = 137;
/// What a runtime tells of a container that could not be started: `StartError`.
const EXIT_NOT_STARTED: i32 = 128;

/// The status of one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodStatus {
    /// Name.
    pub name: String,
    /// Identity.
    #[serde(rename = "UID")]
    pub uid: String,
    /// Namespace.
    pub namespace: String,
    /// What the create answered.
    #[serde(rename = "JID")]
    pub jid: String,
    /// Containers, in the order of the spec.
    pub containers: Vec<ContainerStatus>,
    /// Init containers, likewise.
    #[serde(rename = "initContainers")]
    pub init_containers: Vec<ContainerStatus>,
}

/// A v1.ContainerStatus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStatus {
    /// Name.
    pub name: String,
    /// Now.
    pub state: State,
    /// Before its last restart.
    pub last_state: State,
    /// Whether it serves.
    pub ready: bool,
    /// Whether it runs.
    pub started: bool,
    /// Restarts.
    pub restart_count: u32,
    /// Image reference.
    pub image: String,
    /// Image identity.
    #[serde(rename = "imageID")]
    pub image_id: String,
    /// The node's container.
    #[serde(rename = "containerID")]
    pub container_id: String,
}

/// A v1.ContainerState.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// It has not run, or is to run again.
    Waiting {
        /// One word.
        reason: String,
        /// For a person.
        message: String,
    },
    /// It runs and serves.
    #[serde(rename_all = "camelCase")]
    Running {
        /// Since when; RFC 3339.
        started_at: String,
    },
    /// It has ended.
    #[serde(rename_all = "camelCase")]
    Terminated {
        /// Never 0 unless it really was.
        exit_code: i32,
        /// One word.
        reason: String,
        /// For a person.
        message: String,
        /// RFC 3339.
        #[serde(skip_serializing_if = "Option::is_none")]
        started_at: Option<String>,
        /// RFC 3339.
        finished_at: String,
    },
    /// Nothing to tell; only ever before a first restart.
    #[serde(untagged)]
    None {},
}

impl State {
    fn waiting(reason: &str, message: impl Into<String>) -> Self {
        Self::Waiting { reason: String::from(reason), message: message.into() }
    }

    fn terminated(
        exit_code: i32,
        reason: &str,
        message: impl Into<String>,
        started: Option<Wall>,
        at: Wall,
    ) -> Self {
        Self::Terminated {
            exit_code,
            reason: String::from(reason),
            message: message.into(),
            started_at: started.map(timestamp::format),
            finished_at: timestamp::format(at),
        }
    }

    fn exit_code(&self) -> Option<i32> {
        match self {
            Self::Terminated { exit_code, .. } => Some(*exit_code),
            _ => None,
        }
    }
}

/// The status of the pods that were asked for. One that nobody here ever heard of is left out: its create may be on
/// its way. One that was answered for once and is on no record any more is lost, and is told as ended.
pub fn of_asked(records: &Records, asked: &[kube::Pod], wall: Wall) -> Vec<PodStatus> {
    asked.iter().filter_map(|pod| of_one(records, pod, wall)).collect()
}

fn of_one(records: &Records, asked: &kube::Pod, wall: Wall) -> Option<PodStatus> {
    let uid = PodUid::from_raw(&*asked.metadata.uid);
    if let Some(pod) = records.offloaded.get(&uid) {
        return Some(of(records, pod));
    }
    if let Some(grave) = records.tombstones.get(&uid) {
        return Some(gone(asked, &grave.jid, "Deleted", "the pod was deleted", grave.deleted));
    }
    let unreadable = records.quarantined.iter().find(|it| it.kind == "offloaded" && it.id == uid.as_str());
    if let Some(record) = unreadable {
        let message = format!("the node's record of this pod cannot be read: {}", record.cause);
        return Some(gone(asked, "", "RecordUnreadable", &message, wall));
    }
    let jid = asked.metadata.annotations.get(JOB_ID_ANNOTATION)?;
    let message = "the node has no record of this pod any more: its state was lost or replaced; delete it and make it anew";
    Some(gone(asked, jid, "PodLost", message, wall))
}

/// Every container of a pod that is no more, by the spec that came with the question.
fn gone(asked: &kube::Pod, jid: &str, reason: &str, message: &str, at: Wall) -> PodStatus {
    let ended = |container: &kube::Container| ContainerStatus {
        name: container.name.clone(),
        state: State::terminated(EXIT_UNKNOWN, reason, message, None, at),
        last_state: State::None {},
        ready: false,
        started: false,
        restart_count: 0,
        image: container.image.clone(),
        image_id: String::new(),
        container_id: String::new(),
    };
    PodStatus {
        name: asked.metadata.name.clone(),
        uid: asked.metadata.uid.clone(),
        namespace: asked.metadata.namespace.clone(),
        jid: String::from(jid),
        containers: asked.spec.containers.iter().map(ended).collect(),
        init_containers: asked.spec.init_containers.iter().map(ended).collect(),
    }
}

/// The status of a pod on record.
pub fn of(records: &Records, pod: &PodRecord) -> PodStatus {
    let found = Found::of(records, pod);
    let mut states: Vec<State> = pod
        .containers
        .iter()
        .enumerate()
        .map(|(index, wanted)| state(records, pod, &found, index, wanted))
        .collect();
    in_order(pod, &found, &mut states);
    let mut status = PodStatus {
        name: pod.name.clone(),
        uid: String::from(pod.uid.as_str()),
        namespace: pod.namespace.clone(),
        jid: pod.jid.clone(),
        containers: Vec::new(),
        init_containers: Vec::new(),
    };
    for ((index, wanted), state) in pod.containers.iter().enumerate().zip(states) {
        let one = container_status(found.container(index), pod, wanted, state);
        if wanted.init { status.init_containers.push(one) } else { status.containers.push(one) }
    }
    status
}

fn container_status(
    container: Option<&ContainerRecord>,
    pod: &PodRecord,
    wanted: &ContainerWanted,
    state: State,
) -> ContainerStatus {
    let running = matches!(state, State::Running { .. });
    let last_state = match (&state, container.and_then(|it| it.last_end)) {
        (State::Running { .. } | State::Waiting { .. }, Some(end)) => of_end(&end),
        _ => State::None {},
    };
    let image_id = container.map(|it| match &it.spec.root {
        crate::spec::RootSource::Image(id) => format!("sha256:{id}"),
        crate::spec::RootSource::Directory(_) => String::new(),
    });
    ContainerStatus {
        name: wanted.name.clone(),
        ready: running || state.exit_code() == Some(0) && wanted.init,
        started: running,
        state: with_notes(state, pod),
        last_state,
        restart_count: container.map_or(0, |it| it.restarts),
        image: wanted.image.clone(),
        image_id: image_id.unwrap_or_default(),
        container_id: container.map(|it| format!("holdfast://{}", it.id)).unwrap_or_default(),
    }
}

/// What is not done as asked is said wherever a message can be.
fn with_notes(mut state: State, pod: &PodRecord) -> State {
    if let State::Waiting { message, .. } | State::Terminated { message, .. } = &mut state
        && !pod.notes.is_empty()
    {
        if !message.is_empty() {
            message.push_str("; ");
        }
        message.push_str("note: ");
        message.push_str(&pod.notes.join("; "));
    }
    state
}

fn of_end(end: &EndRecord) -> State {
    match end.exit_code {
        Some(0) => State::terminated(0, "Completed", "", end.started, end.at),
        Some(code) => State::terminated(code, "Error", signal_of(code), end.started, end.at),
        None => {
            let message = "it ended and nobody could read how: its monitor had died, or the node went down";
            State::terminated(EXIT_UNKNOWN, "ContainerStatusUnknown", message, end.started, end.at)
        }
    }
}

fn signal_of(code: i32) -> String {
    if (129..=192).contains(&code) { format!("ended by signal {}", code - 128) } else { String::new() }
}

fn of_failure(failure: &Failure, exit_code: i32) -> State {
    State::terminated(exit_code, &failure.reason, failure.message.clone(), None, failure.at)
}

/// A container by itself.
fn state(
    records: &Records,
    pod: &PodRecord,
    found: &Found<'_>,
    index: usize,
    wanted: &ContainerWanted,
) -> State {
    let progress = pod.progress.containers.get(index);
    if let Some(container) = found.container(index) {
        return of_container(container);
    }
    if let Some(failure) = progress.and_then(|progress| progress.failed.as_ref()) {
        let code = if failure.reason == "StartError" { EXIT_NOT_STARTED } else { EXIT_UNKNOWN };
        return of_failure(failure, code);
    }
    if let Some(failure) = &pod.progress.failed {
        return of_failure(failure, EXIT_NOT_STARTED);
    }
    if let Some(deletion) = &pod.progress.deleting {
        return State::terminated(EXIT_UNKNOWN, "Deleted", "the pod was deleted", None, deletion.asked);
    }
    if let Some(retry) = progress.and_then(|progress| progress.retry.as_ref()) {
        return State::waiting(
            "RunContainerError",
            format!("{} (tried {} times)", retry.message, retry.attempts),
        );
    }
    if let Some(retry) = &pod.progress.retry {
        let message = format!("{} (tried {} times)", retry.message, retry.attempts);
        return State::waiting("ContainerCreating", message);
    }
    match image(records, &wanted.image) {
        None => missing_image(wanted),
        Some(image) if !is_allowed(wanted, image) => {
            let message = "runAsNonRoot is set and it would run as root; set runAsUser";
            State::waiting("CreateContainerConfigError", message)
        }
        Some(_) => State::waiting("ContainerCreating", ""),
    }
}

fn missing_image(wanted: &ContainerWanted) -> State {
    let image = &wanted.image;
    let remedy =
        format!("load it with `holdfast image load --name {image} ARCHIVE`; the pod goes on by itself then");
    match wanted.pull {
        PullPolicy::Never => {
            let message = format!("image {image} is not on the node and imagePullPolicy is Never; {remedy}");
            State::waiting("ErrImageNeverPull", message)
        }
        PullPolicy::Always | PullPolicy::IfNotPresent => {
            let message =
                format!("image {image} is not on the node, and this node pulls from no registry; {remedy}");
            State::waiting("ErrImagePull", message)
        }
    }
}

fn of_container(container: &ContainerRecord) -> State {
    match &container.state {
        RunState::Created => State::waiting("ContainerCreating", ""),
        RunState::Running { since, .. } => {
            State::Running { started_at: timestamp::format(container.started.unwrap_or(*since)) }
        }
        RunState::Waiting { exit_code, .. } => {
            let how =
                exit_code.map_or(String::from("and nobody could read how"), |code| format!("with {code}"));
            State::waiting("CrashLoopBackOff", format!("it ended {how} and is started again"))
        }
        RunState::Exited { exit_code, at } => {
            let started = container.last_end.map_or(container.started, |end| end.started);
            of_end(&EndRecord { exit_code: *exit_code, started, at: *at, before: None })
        }
        RunState::Failed { cause, at } => {
            State::terminated(EXIT_NOT_STARTED, "StartError", cause.clone(), container.started, *at)
        }
    }
}

/// Makes the whole consistent with the order in which things run: what the virtual kubelet concludes from a picture
/// that cannot be is a pod pending for ever, or worse.
fn in_order(pod: &PodRecord, found: &Found<'_>, states: &mut [State]) {
    let started = |index: usize| {
        let known = pod.progress.containers.get(index).is_some_and(|progress| progress.id.is_some());
        known || found.container(index).is_some()
    };
    let mut open = false;
    let mut broken: Option<Failure> = None;
    for (index, wanted) in pod.containers.iter().enumerate() {
        let later_started = (index + 1..pod.containers.len()).any(started);
        let Some(state) = states.get_mut(index) else { continue };
        if let Some(failure) = &broken {
            if state.exit_code().is_none_or(|code| code == 0) {
                *state = of_failure(failure, EXIT_NOT_STARTED);
            }
            continue;
        }
        if open {
            // Something before it has not ended: whatever this is, it does not run in the order of the spec.
            if !matches!(state, State::Waiting { .. }) {
                *state = State::waiting("PodInitializing", "");
            } else if let State::Waiting { reason, .. } = state
                && !wanted.init
                && reason == "ContainerCreating"
            {
                *reason = String::from("PodInitializing");
            }
            continue;
        }
        if !wanted.init {
            continue;
        }
        match state.exit_code() {
            Some(0) => {}
            // The next was started only because this one had ended with 0, whatever became of its record since.
            _ if later_started && found.container(index).is_none() => {
                *state = State::terminated(0, "Completed", "", None, pod.created);
            }
            Some(code) => {
                let message =
                    format!("init container {} ended with {code}: nothing after it is started", wanted.name);
                let at = pod.progress.failed.as_ref().map_or(pod.created, |failure| failure.at);
                broken = Some(Failure { reason: String::from("InitContainerFailed"), message, at });
            }
            None => open = true,
        }
    }
}
