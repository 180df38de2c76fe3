//! The snapshot that a control serves, and the file in which it outlives the control.

use crate::keeper::stale;
use holdfast_core::{
    error::{Class, RouterError},
    world::Snapshot,
};
use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::watch;

/// The snapshot in memory and in its file; the file changes first.
#[derive(Debug)]
pub(super) struct SnapshotFile {
    path: PathBuf,
    /// Held while the file is written: one change at a time. Readers do not wait for it.
    writing: Mutex<()>,
    current: watch::Sender<Arc<Snapshot>>,
}

impl SnapshotFile {
    /// Reads the file. One that cannot be understood is moved aside and reported: the daemon hands a new one.
    pub fn load(path: PathBuf) -> io::Result<Self> {
        let current = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| error.to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Snapshot::default()),
            Err(error) => Err(error.to_string()),
        };
        let current = match current {
            Ok(snapshot) => snapshot,
            Err(cause) => {
                let aside = stale::aside(&path)?;
                tracing::warn!(path = %path.display(), moved_to = %aside.display(), cause, "the snapshot cannot be read");
                std::fs::rename(&path, aside)?;
                Snapshot::default()
            }
        };
        Ok(Self { path, writing: Mutex::new(()), current: watch::Sender::new(Arc::new(current)) })
    }

    pub fn current(&self) -> Snapshot {
        Snapshot::clone(&self.current.borrow())
    }

    pub fn generation(&self) -> u64 {
        self.current.borrow().generation
    }

    /// What is served, and each next one as soon as it is.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.current.subscribe()
    }

    /// Replaces it, unless it is older than what is served.
    pub fn replace(&self, snapshot: Snapshot) -> Result<(), RouterError> {
        let subject = || format!("snapshot {}", snapshot.generation);
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let current = Arc::clone(&self.current.borrow());
        if snapshot.generation < current.generation {
            let cause = format!("generation {} is served, and generations never fall", current.generation);
            return Err(RouterError::new(Class::Conflict, "hand over", subject(), cause).with_remedy(
                format!("if the records were restored from a copy, remove {}", self.path.display()),
            ));
        }
        if snapshot == *current {
            return Ok(());
        }
        write(&self.path, &snapshot).map_err(|error| {
            let class = match error.raw_os_error() {
                Some(libc::ENOSPC | libc::EDQUOT) => Class::Exhausted,
                _ => Class::Fatal,
            };
            RouterError::new(class, "write", self.path.display().to_string(), error)
        })?;
        self.current.send_replace(Arc::new(snapshot));
        Ok(())
    }
}

/// Whole or not at all: a new file, synced, takes the old one's name, and the directory is synced.
fn write(path: &Path, snapshot: &Snapshot) -> io::Result<()> {
    let bytes = serde_json::to_vec(snapshot)?;
    let new = path.with_extension("snapshot.new");
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_snapshot_outlives_its_control_and_generations_never_fall() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.snapshot");
        let file = SnapshotFile::load(path.clone()).unwrap();
        assert_eq!(file.generation(), 0);
        file.replace(Snapshot { generation: 7, ..Snapshot::default() }).unwrap();
        let older = file.replace(Snapshot { generation: 6, ..Snapshot::default() });
        assert_eq!(older.unwrap_err().class, Class::Conflict);
        assert_eq!(SnapshotFile::load(path.clone()).unwrap().generation(), 7);
        std::fs::write(&path, b"{").unwrap();
        assert_eq!(SnapshotFile::load(path).unwrap().generation(), 0);
        assert!(directory.path().join("control.snapshot.aside.0").exists());
    }
}
