//! Processes: a number that is reused, a start time that is not, and the namespaces they keep.

use super::namespace::Ns;
use holdfast_core::{
    id::{BootId, ContainerId, ProcessRef},
    record::PortRecord,
    time::Mono,
    world::Snapshot,
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// What a process is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Role {
    /// A daemon of this number.
    Daemon(u32),
    /// The service manager, which keeps descriptors for the daemon.
    Manager,
    /// A pin: it sleeps.
    Pin,
    /// A control.
    Control {
        /// Holds its socket and answers nothing.
        wedged: bool,
        /// Is another build.
        foreign: bool,
        /// What it serves.
        snapshot: Snapshot,
    },
    /// An uplink helper.
    Uplink {
        /// Answers nothing.
        wedged: bool,
        /// What it forwards.
        ports: BTreeSet<PortRecord>,
    },
    /// A container's monitor.
    Monitor {
        /// The container.
        container: ContainerId,
        /// The start it watches.
        incarnation: u32,
    },
    /// A container's first process.
    Init {
        /// The container.
        container: ContainerId,
        /// The start it is.
        incarnation: u32,
        /// Ignores everything but SIGKILL.
        stubborn: bool,
    },
    /// Somebody else's.
    Stranger,
}

/// A living process. A dead one is not in the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Number, start time, boot.
    pub reference: ProcessRef,
    /// What it is.
    pub role: Role,
    /// Namespaces it is a member of; host namespaces are not modelled.
    pub member: BTreeSet<Ns>,
    /// Namespaces it holds a descriptor of (an nsfs file, or a tap's).
    pub holds: BTreeSet<Ns>,
}

/// Living processes by number.
#[derive(Clone, Debug, Serialize)]
pub struct Processes {
    table: BTreeMap<u32, Process>,
    next_pid: u32,
    last_start_ticks: u64,
}

/// Numbers wrap early, so that reuse is met in long runs.
const PID_MAX: u32 = 4_096;
/// Below are processes of the system.
const PID_MIN: u32 = 300;
/// Nanoseconds of a clock tick (USER_HZ is 100).
const TICK_NS: u64 = 10_000_000;

impl Default for Processes {
    fn default() -> Self {
        Self { table: BTreeMap::new(), next_pid: PID_MIN, last_start_ticks: 0 }
    }
}

impl Processes {
    /// Starts a process under the next free number.
    pub fn spawn(&mut self, boot: &BootId, now: Mono, role: Role, member: &[Ns], holds: &[Ns]) -> ProcessRef {
        while self.table.contains_key(&self.next_pid) {
            self.next_pid = if self.next_pid >= PID_MAX { PID_MIN } else { self.next_pid + 1 };
        }
        let pid = self.next_pid;
        self.next_pid = if pid >= PID_MAX { PID_MIN } else { pid + 1 };
        self.spawn_as(pid, boot, now, role, member, holds)
    }

    /// Starts a process under a number that is free.
    pub fn spawn_as(
        &mut self,
        pid: u32,
        boot: &BootId,
        now: Mono,
        role: Role,
        member: &[Ns],
        holds: &[Ns],
    ) -> ProcessRef {
        // Two processes of one number never share a tick: the kernel takes longer than that to reuse one.
        self.last_start_ticks = (now.0 / TICK_NS).max(self.last_start_ticks + 1);
        let reference = ProcessRef { pid, start_time_ticks: self.last_start_ticks, boot_id: boot.clone() };
        let process = Process {
            reference: reference.clone(),
            role,
            member: member.iter().copied().collect(),
            holds: holds.iter().copied().collect(),
        };
        self.table.insert(pid, process);
        reference
    }

    /// Exactly this process, if it lives.
    pub fn get(&self, reference: &ProcessRef) -> Option<&Process> {
        self.table.get(&reference.pid).filter(|process| &process.reference == reference)
    }

    /// Exactly this process, if it lives.
    pub fn get_mut(&mut self, reference: &ProcessRef) -> Option<&mut Process> {
        self.table.get_mut(&reference.pid).filter(|process| &process.reference == reference)
    }

    /// Takes a process out of the table.
    pub fn remove(&mut self, reference: &ProcessRef) -> Option<Process> {
        self.get(reference)?;
        self.table.remove(&reference.pid)
    }

    /// All of them, by number.
    pub fn iter(&self) -> impl Iterator<Item = &Process> {
        self.table.values()
    }

    /// The ones of which `is` holds.
    pub fn find(&self, is: impl Fn(&Role) -> bool) -> Vec<ProcessRef> {
        self.iter().filter(|process| is(&process.role)).map(|process| process.reference.clone()).collect()
    }
}
