//! The control's protocol: typed messages in frames on a unix socket, between processes of one user.
//!
//! A connection begins with a hello each way, whose form never changes; then requests and responses follow one
//! another. A build talks to its own build only: the daemon replaces a control of another one.

mod client;
mod control;
mod drift;
mod frame;
mod hands;
mod hello;
mod server;
mod snapshot;
mod worker;

pub use client::{ControlClient, without_waiting};
pub use control::{control_main, control_main_with};
pub use drift::Drift;
pub use frame::{FRAME_BYTES_MAX, FrameError, read_frame, write_frame};
pub use hands::Hands;
pub use hello::{GreetError, Greeting, PROTOCOL_VERSION, Role, build_id, greet};

use holdfast_core::{
    error::RouterError,
    id::{ProcessRef, SandboxId, Slot},
    observed::RouterObserved,
    plan::{AttachmentPlan, NetworkPlan, SandboxPlan},
    ruleset::{Counter, Element, Ruleset},
    world::{Probe, Snapshot},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A request with the time it may take.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Envelope {
    /// How long the caller waits, in milliseconds from the arrival on, queueing included.
    pub deadline_ms: u64,
    /// What it wants.
    pub request: Request,
}

/// What can be asked of a control.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Whether it lives; answered while the worker is busy.
    Ping,
    /// The snapshot it serves; answered while the worker is busy.
    GetSnapshot,
    /// What others have changed, once it is another count than `seen`, or when the time is up; answered while the worker
    /// is busy.
    AwaitDrift {
        /// The count of the last answer.
        seen: u64,
    },
    /// See [`holdfast_core::world::Router::hand_snapshot`].
    HandSnapshot(Snapshot),
    /// See [`holdfast_core::world::Router::observe_router`].
    ObserveRouter,
    /// See [`holdfast_core::world::Router::ensure_ruleset`].
    EnsureRuleset(Ruleset),
    /// See [`holdfast_core::world::Router::add_elements`].
    AddElements(BTreeSet<Element>),
    /// See [`holdfast_core::world::Router::remove_elements`].
    RemoveElements(BTreeSet<Element>),
    /// See [`holdfast_core::world::Router::count_verdicts`].
    CountVerdicts,
    /// See [`holdfast_core::world::Router::ensure_network`].
    EnsureNetwork(NetworkPlan),
    /// See [`holdfast_core::world::Router::remove_network`].
    RemoveNetwork(NetworkPlan),
    /// See [`holdfast_core::world::Router::ensure_sandbox`].
    EnsureSandbox(SandboxPlan),
    /// See [`holdfast_core::world::Router::remove_sandbox`].
    RemoveSandbox(SandboxId),
    /// See [`holdfast_core::world::Router::attach`].
    Attach(AttachmentPlan),
    /// See [`holdfast_core::world::Router::detach`].
    Detach(Slot),
    /// See [`holdfast_core::world::Router::probe`].
    Probe(Probe),
}

impl Request {
    /// What is done, and to what, for errors and logs.
    pub fn describe(&self) -> (&'static str, String) {
        match self {
            Self::Ping => ("ping", "control".to_owned()),
            Self::GetSnapshot => ("read", "snapshot".to_owned()),
            Self::AwaitDrift { .. } => ("await", "changes by others".to_owned()),
            Self::HandSnapshot(snapshot) => ("hand over", format!("snapshot {}", snapshot.generation)),
            Self::ObserveRouter => ("observe", "router".to_owned()),
            Self::EnsureRuleset(ruleset) => {
                ("ensure", format!("ruleset of {} elements", ruleset.elements.len()))
            }
            Self::AddElements(elements) => ("add", format!("{} elements", elements.len())),
            Self::RemoveElements(elements) => ("remove", format!("{} elements", elements.len())),
            Self::CountVerdicts => ("count", "verdicts".to_owned()),
            Self::EnsureNetwork(plan) => ("ensure", format!("network {}", plan.id)),
            Self::RemoveNetwork(plan) => ("remove", format!("network {}", plan.id)),
            Self::EnsureSandbox(plan) => ("ensure", format!("sandbox {}", plan.id)),
            Self::RemoveSandbox(id) => ("remove", format!("sandbox {id}")),
            Self::Attach(plan) => ("attach", format!("{} of sandbox {}", plan.link_name, plan.sandbox)),
            Self::Detach(slot) => ("detach", format!("slot {}", slot.0)),
            Self::Probe(probe) => ("probe", format!("{} from {}", probe.address, probe.from)),
        }
    }
}

/// What a control answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// To [`Request::Ping`].
    Pong(Pong),
    /// To [`Request::GetSnapshot`].
    Snapshot(Snapshot),
    /// To [`Request::AwaitDrift`].
    Drift(Drift),
    /// To [`Request::ObserveRouter`].
    Router(RouterObserved),
    /// Done, and read back.
    Done,
    /// To [`Request::CountVerdicts`].
    Verdicts(Vec<(Element, Counter)>),
    /// To [`Request::Probe`]: whether it was answered.
    Probed(bool),
    /// The queue is full, or there are too many connections: nothing was done.
    Busy {
        /// How many wait.
        waiting: usize,
    },
    /// It failed.
    Failed(RouterError),
}

/// How a control is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pong {
    /// The control.
    pub process: ProcessRef,
    /// Requests that wait for the worker.
    pub waiting: usize,
    /// Generation of the snapshot it serves.
    pub snapshot_generation: u64,
    /// For how long no daemon has been there, in milliseconds; `None` while one is, or none ever was.
    pub daemon_gone_for_ms: Option<u64>,
}
