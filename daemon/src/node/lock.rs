//! One daemon per node: a lock that the kernel takes back when its holder dies, however it dies.

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use std::{
    fmt,
    fs::File,
    io::{self, Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Another daemon has the node.
#[derive(Debug)]
pub struct Held {
    path: PathBuf,
    pid: String,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "another daemon (pid {}) serves this node: it holds {}; use it, or end it with SIGTERM",
            self.pid,
            self.path.display()
        )
    }
}

impl std::error::Error for Held {}

/// Takes the node's lock.
///
/// # Errors
/// [`Held`] when another daemon has it; I/O errors.
pub fn acquire(path: &Path) -> anyhow::Result<Flock<File>> {
    if std::fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        crate::node::stale::clear(path)?;
    }
    let file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
        .open(path)
        .map_err(|error| io::Error::new(error.kind(), format!("open {}: {error}", path.display())))?;
    let mut lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(mut file, errno)| {
        let mut pid = String::new();
        let _ = Read::by_ref(&mut file).take(32).read_to_string(&mut pid);
        match errno {
            Errno::EWOULDBLOCK => {
                anyhow::Error::new(Held { path: path.to_owned(), pid: pid.trim().to_owned() })
            }
            errno => anyhow::anyhow!("lock {}: {errno}", path.display()),
        }
    })?;
    // The pid is for people; the lock is what counts.
    let _ =
        lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| writeln!(lock, "{}", std::process::id()));
    Ok(lock)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_second_is_told_who_has_it_and_a_stale_file_is_no_lock() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("daemon.lock");
        std::fs::write(&path, "4711\n").unwrap();
        let first = acquire(&path).unwrap();
        let error = acquire(&path).unwrap_err();
        let held = error.downcast_ref::<Held>().unwrap();
        assert_eq!(held.pid, std::process::id().to_string());
        assert!(error.to_string().contains("daemon.lock"), "{error}");
        drop(first);
        acquire(&path).unwrap();
    }

    #[test]
    fn a_directory_at_its_path_is_moved_aside() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("daemon.lock");
        std::fs::create_dir_all(path.join("somebody's")).unwrap();
        acquire(&path).unwrap();
        assert!(path.is_file());
    }
}
