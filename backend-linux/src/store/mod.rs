//! The records in SQLite.
//!
//! One thread owns the connection, so that the runtime never waits for a disk. A transaction is decided under
//! the writer's turn, committed by that thread, and only then applied to the copy in memory that every read
//! is answered from: what a reader sees is what is on disk. The turn travels with the job, so a caller that
//! goes away half-way neither loses the commit nor lets another transaction in between.

mod database;
mod error;
#[cfg(test)]
mod tests;

use database::Database;
use holdfast_core::{
    error::{Class, StoreError},
    record::{Change, Records},
    world::{Durability, Store},
};
use std::{
    path::Path,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, mpsc},
    thread::JoinHandle,
};
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot, watch};

/// Transactions that may wait for the thread; each holds the writer's turn, so more than one never does.
const QUEUE_LEN_MAX: usize = 1;

/// One commit on its way to the thread.
struct Job {
    durability: Durability,
    changes: Vec<Change>,
    /// Keeps other transactions out until the changes are applied.
    turn: OwnedMutexGuard<()>,
    reply: oneshot::Sender<Result<(), StoreError>>,
}

/// The store of a node.
#[derive(Debug)]
pub struct SqliteStore {
    records: Arc<RwLock<Records>>,
    turn: Arc<Mutex<()>>,
    /// `None` only while the store is being dropped.
    jobs: Option<mpsc::SyncSender<Job>>,
    changed: watch::Receiver<u64>,
    thread: Option<JoinHandle<()>>,
}

impl SqliteStore {
    /// Opens the database at `path`, makes one where there is none, and reads every record.
    ///
    /// A file that is no database, or fails its integrity check, is moved aside (`<path>.corrupt-<ms>`) and
    /// stays in [`Records::quarantined`] until a person has removed it. Records that cannot be understood are
    /// quarantined one by one and stay where they are.
    ///
    /// # Errors
    /// Another process has the database open ([`Class::Conflict`]); a newer build wrote it
    /// ([`Class::Denied`]); the disk is full; I/O errors.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let (database, records) = Database::open(path)?;
        let records = Arc::new(RwLock::new(records));
        let (jobs, queue) = mpsc::sync_channel(QUEUE_LEN_MAX);
        let (notify, changed) = watch::channel(0);
        let shared = Arc::clone(&records);
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || serve(database, &queue, &shared, &notify))
            .map_err(|error| StoreError::new(Class::Exhausted, "start", "the store's thread", error))?;
        Ok(Self { records, turn: Arc::default(), jobs: Some(jobs), changed, thread: Some(thread) })
    }

    /// Counts commits: changes whenever the records may have.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.clone()
    }

    fn records(&self) -> RwLockReadGuard<'_, Records> {
        // Only `Records::apply` runs under the write lock, and it cannot leave a change half done.
        self.records.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        // Closing the queue ends the thread after the job it has; then the database's lock is free.
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the store's thread panicked");
        }
    }
}

/// The thread: commits, applies, gives the turn back, answers.
fn serve(
    mut database: Database,
    queue: &mpsc::Receiver<Job>,
    records: &RwLock<Records>,
    notify: &watch::Sender<u64>,
) {
    while let Ok(Job { durability, changes, turn, reply }) = queue.recv() {
        let committed = {
            let known = records.read().unwrap_or_else(PoisonError::into_inner);
            database.commit(durability, &changes, &known)
        };
        if committed.is_ok() {
            let mut records = records.write().unwrap_or_else(PoisonError::into_inner);
            for change in changes {
                records.apply(change);
            }
        }
        drop(turn);
        notify.send_modify(|count| *count = count.wrapping_add(1));
        // A caller that has gone away does not want to know.
        let _ = reply.send(committed);
    }
}

impl Store for SqliteStore {
    async fn read<T: Send>(&self, read: impl FnOnce(&Records) -> T + Send) -> T {
        read(&self.records())
    }

    async fn transact<T: Send, E: Send>(
        &self,
        durability: Durability,
        decide: impl FnOnce(&Records) -> Result<(Vec<Change>, T), E> + Send,
    ) -> Result<Result<T, E>, StoreError> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let decided = decide(&self.records());
        let (changes, value) = match decided {
            Ok(decided) => decided,
            Err(refused) => return Ok(Err(refused)),
        };
        if changes.is_empty() {
            return Ok(Ok(value));
        }
        let gone = || {
            StoreError::new(Class::Fatal, "commit", "records", "the store's thread has ended")
                .with_remedy("restart the daemon")
        };
        let (reply, committed) = oneshot::channel();
        let jobs = self.jobs.as_ref().ok_or_else(gone)?;
        // The queue is empty: whoever put a job in it held the turn.
        jobs.try_send(Job { durability, changes, turn, reply }).map_err(|_| gone())?;
        committed.await.map_err(|_| gone())??;
        Ok(Ok(value))
    }
}
