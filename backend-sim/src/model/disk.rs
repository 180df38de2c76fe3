//! The disk: what was committed, what was synced, and what fits.

use holdfast_core::{
    error::Class,
    record::{Change, Records, decode, encode},
    world::Durability,
};
use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::id::ContainerId;

/// Transactions of which one goes through the codec.
const CODEC_EVERY: u64 = 4;

/// The disk.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    records: Records,
    /// Committed and not yet synced.
    unsynced: Vec<Change>,
    durable: Records,
    /// Rises with every change that is more than a mark of an operation's progress.
    pub structure: u64,
    commits: u64,
    /// Refuses transactions that add a record.
    pub full: bool,
    /// Files of containers.
    pub containers: BTreeMap<ContainerId, ContainerFiles>,
    /// Files of offloaded pods, by the job's identity.
    pub pods: BTreeMap<String, PodFiles>,
}

/// The files of an offloaded pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFiles {
    /// Its volumes.
    pub volumes: BTreeSet<String>,
    /// Kept logs.
    pub logs: BTreeSet<String>,
}

/// The files of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerFiles {
    /// Exit files by start. Nobody syncs them: they are lost with the power.
    pub exits: BTreeMap<u32, i32>,
    /// Directories of starts.
    pub starts: std::collections::BTreeSet<u32>,
}

impl Disk {
    /// The records as a living daemon reads them.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// A daemon opens its store: what is not stored begins anew.
    pub fn open(&mut self) {
        self.records.revision = 0;
    }

    /// Commits a transaction. Changes go through the codec, as on a real disk.
    ///
    /// # Errors
    /// The class and the cause.
    pub fn commit(&mut self, durability: Durability, changes: Vec<Change>) -> Result<(), (Class, String)> {
        if self.full && changes.iter().any(|change| self.adds(change)) {
            return Err((Class::Exhausted, "no space left on device".to_owned()));
        }
        let marks = changes.iter().all(|change| self.marks(change));
        self.structure += u64::from(!marks);
        // Through the codec goes every so many-th transaction: all of them would be a fifth of what a run costs,
        // and there are many runs.
        self.commits += u64::from(!marks);
        let sampled = !marks && self.commits.is_multiple_of(CODEC_EVERY);
        for change in changes.iter().filter(|_| sampled) {
            let encoded = encode(change);
            let Some(body) = encoded.body else { continue };
            match decode(encoded.kind, encoded.kind.version(), &body) {
                Ok(read) if &read == change => {}
                Ok(read) => {
                    return Err((Class::Corrupt, format!("{change:?} was read back as {read:?}")));
                }
                Err(error) => return Err((Class::Corrupt, format!("{change:?} {error}"))),
            }
        }
        for change in &changes {
            self.records.apply(change.clone());
        }
        self.unsynced.extend(changes);
        if durability == Durability::Power {
            // A sync of the log takes everything before it along.
            self.unsynced.drain(..).for_each(|change| self.durable.apply(change));
        }
        Ok(())
    }

    /// Whether a change says nothing but how far an operation has come.
    fn marks(&self, change: &Change) -> bool {
        let Change::Operation(record) = change else { return false };
        self.records.operations.get(&record.id).is_some_and(|known| {
            known.daemon_generation == record.daemon_generation && known.steps.len() == record.steps.len()
        })
    }

    /// A reserve is kept for the journal, so that what is there can be stopped and removed on a full disk.
    fn adds(&self, change: &Change) -> bool {
        match change {
            Change::Network(record) => !self.records.networks.contains_key(&record.id),
            Change::Sandbox(record) => !self.records.sandboxes.contains_key(&record.id),
            Change::Container(record) => !self.records.containers.contains_key(&record.id),
            Change::Offloaded(record) => !self.records.offloaded.contains_key(&record.uid),
            Change::Image(record) => !self.records.images.contains_key(&record.id),
            Change::Operation(record) => {
                !self.records.operations.contains_key(&record.id)
                    && record.on_done.iter().any(|change| self.adds(change))
            }
            _ => false,
        }
    }

    /// Loses what was not synced.
    pub fn lose_power(&mut self) {
        self.unsynced.clear();
        self.records = self.durable.clone();
        for files in self.containers.values_mut() {
            files.exits.clear();
        }
    }
}
