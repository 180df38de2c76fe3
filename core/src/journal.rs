//! The journal: every operation is written down whole before its first step, so that after a kill at any
//! step the next start finishes it or undoes it, and says which.
//!
//! Begin and end are durable over power loss. Progress marks are durable over a kill only: after power loss
//! no step's effect on the kernel exists any more, and steps on disk are idempotent.

use crate::{
    id::{ContainerId, NetworkId, OperationId, SandboxId},
    plan::Step,
    record::Change,
    time::Wall,
};
use alloc::{string::String, vec::Vec};
use core::fmt;
use serde::{Deserialize, Serialize};

/// What an operation does; names it for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// Brings up what all workloads stand on.
    BringUp,
    /// Takes the node down.
    TakeDown,
    /// Brings one workload back.
    Recover,
    /// Creates and starts a container.
    RunContainer,
    /// Starts a stopped container.
    StartContainer,
    /// Stops a container.
    StopContainer,
    /// Stops and starts a container in its sandbox.
    RestartContainer,
    /// Removes a container.
    RemoveContainer,
    /// Creates a pod's sandbox.
    CreatePod,
    /// Removes a pod and its members.
    RemovePod,
    /// Creates a network.
    CreateNetwork,
    /// Removes a network.
    RemoveNetwork,
    /// Plugs a container or a pod into one more network.
    Connect,
    /// Unplugs it from one.
    Disconnect,
    /// Leads default routes to the interface that is the primary one.
    Reroute,
    /// Routes two networks to one another.
    AddRoute,
    /// Takes that back.
    RemoveRoute,
    /// Adds rules, or puts a document's in place of its old ones.
    AddPolicy,
    /// Removes rules.
    RemovePolicy,
}

impl OperationKind {
    /// Whether one that ends something and fails half way stays open until a bring-up has finished it: what it has
    /// moved already is on no record before it is done.
    pub fn stays_until_done(self) -> bool {
        matches!(self, Self::Disconnect | Self::AddPolicy | Self::RemovePolicy)
    }
}

impl fmt::Display for OperationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BringUp => "bring up",
            Self::TakeDown => "take down",
            Self::Recover => "recover",
            Self::RunContainer => "run container",
            Self::StartContainer => "start container",
            Self::StopContainer => "stop container",
            Self::RestartContainer => "restart container",
            Self::RemoveContainer => "remove container",
            Self::CreatePod => "create pod",
            Self::RemovePod => "remove pod",
            Self::CreateNetwork => "create network",
            Self::RemoveNetwork => "remove network",
            Self::Connect => "connect",
            Self::Disconnect => "disconnect",
            Self::Reroute => "reroute",
            Self::AddRoute => "route",
            Self::RemoveRoute => "remove route",
            Self::AddPolicy => "add policy",
            Self::RemovePolicy => "remove policy",
        })
    }
}

/// The objects an operation works on; two operations on one object never run at once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// The node: pin, control, rules. While it is worked on, nothing else begins.
    Node,
    /// A sandbox with all its members.
    Sandbox(SandboxId),
    /// One container.
    Container(ContainerId),
    /// A network.
    Network(NetworkId),
    /// The rules of all policies.
    Policy,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str("node"),
            Self::Sandbox(id) => write!(f, "sandbox {id}"),
            Self::Container(id) => write!(f, "container {id}"),
            Self::Network(id) => write!(f, "network {id}"),
            Self::Policy => f.write_str("policies"),
        }
    }
}

/// What to do with an operation whose daemon died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resume {
    /// Nobody was told that it succeeded: take it back. The choice for everything that makes something.
    Undo,
    /// Half of it cannot be taken back: finish it. The choice for everything that ends something.
    Finish,
    /// It was a repair, planned from what was seen then: forget the plan and look again.
    Replan,
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Running forwards; so many steps are done.
    Forward {
        /// Steps whose effect is recorded.
        done: u32,
    },
    /// Undoing, from the step of this number downwards.
    Backward {
        /// Steps that still may have an effect.
        left: u32,
    },
}

/// An open operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationRecord {
    /// Identity.
    pub id: OperationId,
    /// What it does.
    pub kind: OperationKind,
    /// What it works on, the first being what it is about.
    pub subjects: Vec<Subject>,
    /// The name that people know the first subject by.
    pub name: String,
    /// The whole plan.
    pub steps: Vec<Step>,
    /// How far it is.
    pub phase: Phase,
    /// What the next start does with it.
    pub resume: Resume,
    /// Changes of the records that complete it.
    pub on_done: Vec<Change>,
    /// Changes of the records that complete its undo.
    pub on_undone: Vec<Change>,
    /// The daemon that runs it; of an older one, it is an orphan.
    pub daemon_generation: u64,
    /// When it was accepted.
    pub started: Wall,
}

/// What became of an orphan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// What it did.
    pub kind: OperationKind,
    /// What it was about.
    pub name: String,
    /// Finished or undone.
    pub how: Resume,
    /// How many steps had been recorded when its daemon died.
    pub steps_done: u32,
    /// How many steps it has.
    pub steps: u32,
    /// What failed on the way; empty when all went well.
    pub failures: Vec<String>,
}

impl fmt::Display for Resumed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.how {
            Resume::Undo => "undone",
            Resume::Finish => "finished",
            Resume::Replan => "planned again",
        };
        write!(
            f,
            "{} {} was interrupted after step {} of {}: {how}",
            self.kind, self.name, self.steps_done, self.steps
        )
    }
}
