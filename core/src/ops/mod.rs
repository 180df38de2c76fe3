//! Operations: what a user can ask for, decided into journaled plans.
//!
//! An admission is a pure function from records and request to an operation and the changes that begin it.
//! Open operations are the locks: one that works on what another works on is not admitted yet.

pub mod connect;
pub mod container;
pub mod find;
pub mod image;
pub mod network;
pub mod pod;
pub mod policy;
pub mod request;
pub mod resolve;
pub mod route;

use crate::{
    error::{Refusal, RefusalCode},
    id::{self, OperationId},
    journal::{OperationKind, OperationRecord, Phase, Resume, Subject},
    observed::HostObserved,
    plan::Step,
    record::{Change, Records},
    ruleset::Ruleset,
    time::Wall,
    world::{PrefixEntry, Snapshot},
    zone::Zone,
};
use alloc::{collections::BTreeSet, format, string::String, vec::Vec};
use core::net::IpAddr;

/// What an admission may use besides records and request.
#[derive(Clone, Debug)]
pub struct Stamp {
    /// What of the host must be kept clear of; empty for requests that take nothing of it.
    pub host: HostObserved,
    /// Fresh random bytes.
    pub random: [u8; 32],
    /// Now, for people.
    pub wall: Wall,
    /// The daemon that admits.
    pub daemon_generation: u64,
}

impl Stamp {
    /// The `number`th fresh identity, of five.
    pub fn id(&self, number: usize) -> String {
        let mut bytes = [0_u8; 6];
        for (byte, random) in bytes.iter_mut().zip(self.random.iter().skip(number * 6)) {
            *byte = *random;
        }
        id::new_id(bytes)
    }

    /// A stream of 16-bit numbers.
    pub fn numbers(&self) -> impl FnMut() -> u16 {
        let [a, b, c, d, e, f, g, h, ..] = self.random;
        let mut state = u64::from_be_bytes([a, b, c, d, e, f, g, h]) | 1;
        move || {
            // xorshift64: https://www.jstatsoft.org/article/view/v008i14
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u16
        }
    }

    /// An operation at its beginning.
    pub fn operation(
        &self,
        kind: OperationKind,
        name: &str,
        subjects: Vec<Subject>,
        steps: Vec<Step>,
    ) -> OperationRecord {
        OperationRecord {
            id: OperationId::from_raw(self.id(4)),
            kind,
            subjects,
            name: String::from(name),
            steps,
            phase: Phase::Forward { done: 0 },
            resume: Resume::Undo,
            on_done: Vec::new(),
            on_undone: Vec::new(),
            daemon_generation: self.daemon_generation,
            started: self.wall,
        }
    }
}

/// An admitted request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission<T> {
    /// It is so already.
    AlreadySo(T),
    /// To be run.
    Run {
        /// The operation, whole.
        operation: alloc::boxed::Box<OperationRecord>,
        /// Changes that begin it, besides writing the operation down.
        changes: Vec<Change>,
        /// What it uses and must not change under it.
        uses: Vec<Subject>,
        /// What the caller learns of it.
        about: T,
    },
}

/// What open operations work on.
pub fn busy_subjects(records: &Records) -> BTreeSet<Subject> {
    records.operations.values().flat_map(|operation| operation.subjects.iter().cloned()).collect()
}

/// The open operation that stands in the way, if any.
pub fn blocker<'a>(
    records: &'a Records,
    subjects: &[Subject],
    uses: &[Subject],
) -> Option<&'a OperationRecord> {
    records.operations.values().find(|open| {
        open.subjects
            .iter()
            .any(|subject| *subject == Subject::Node || subjects.contains(subject) || uses.contains(subject))
    })
}

/// Refuses everything but `up` on a node that the user took down.
pub(crate) fn require_up(records: &Records) -> Result<(), Refusal> {
    match &records.node {
        Some(node) if !node.down => Ok(()),
        _ => Err(Refusal::new(RefusalCode::WrongState, "the node is down; bring it up with `holdfast up`")),
    }
}

/// What the control serves while the daemon is away.
pub fn snapshot(records: &Records, daemon_generation: u64) -> Snapshot {
    let prefixes = records.networks.values().map(|network| PrefixEntry {
        index: network.index,
        name: network.name.clone(),
        gateways: alloc::vec![
            (IpAddr::V4(network.gateway4), network.prefix4),
            (IpAddr::V6(network.gateway6), network.prefix6)
        ],
    });
    Snapshot {
        // Within one daemon's life the revision rises with each change; between lives the generation does.
        generation: if mutant!(SnapshotGenerationFalls) {
            records.revision
        } else {
            (daemon_generation << 32) | (records.revision & 0xffff_ffff)
        },
        zone: Zone::of(records),
        prefixes: prefixes.collect(),
        ruleset: Ruleset::desired(records),
    }
}

/// "no such …", with what there is.
pub(crate) fn not_found(what: &str, name: &str, list: &str) -> Refusal {
    Refusal::new(
        RefusalCode::NotFound,
        format!("no {what} is called {name:?}; `holdfast {list}` lists what there is"),
    )
}
