//! Network namespaces: entered by threads of their own, so that the caller never stands in the wrong one.

use super::error::errno;
use holdfast_core::{error::RouterError, record::NamespaceId};
use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    sched::{CloneFlags, setns},
    sys::{
        stat::{Mode, stat},
        statfs::{FsType, statfs},
    },
};
use std::{
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

/// File system type of namespace files: NSFS_MAGIC in linux/magic.h.
const NSFS_MAGIC: FsType = FsType(0x6e73_6673);

/// The namespace bound on `path`; `None` when nothing is bound there. A plain file left by a killed start is
/// nothing: the file system's type tells, existence does not.
pub(crate) fn bound(path: &Path) -> Result<Option<NamespaceId>, Errno> {
    match statfs(path) {
        Ok(found) if found.filesystem_type() == NSFS_MAGIC => Ok(Some(NamespaceId(stat(path)?.st_ino))),
        Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The namespace a file of `/proc/PID/ns` names.
pub(crate) fn identity(path: &Path) -> Result<NamespaceId, Errno> {
    stat(path).map(|found| NamespaceId(found.st_ino))
}

/// Opens a namespace file and makes sure that it is one.
pub(crate) fn open_namespace(path: &Path) -> Result<OwnedFd, Errno> {
    let fd = open(path, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    if nix::sys::statfs::fstatfs(&fd)?.filesystem_type() != NSFS_MAGIC {
        return Err(Errno::ENOENT);
    }
    Ok(fd)
}

/// Runs `work` on a thread of its own in the namespace.
pub(crate) fn within<T: Send>(
    namespace: impl AsFd + Send,
    subject: &str,
    work: impl FnOnce() -> Result<T, RouterError> + Send,
) -> Result<T, RouterError> {
    on_thread(subject, || {
        setns(namespace, CloneFlags::CLONE_NEWNET)
            .map_err(|error| errno("enter the network namespace of", subject, error))?;
        work()
    })
}

/// Runs `work` on a thread of its own, which ends with it: what it does to its namespaces ends there too.
pub(crate) fn on_thread<T: Send>(
    subject: &str,
    work: impl FnOnce() -> Result<T, RouterError> + Send,
) -> Result<T, RouterError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("netns".to_owned())
            .spawn_scoped(scope, work)
            .map_err(|error| super::error::io("start a thread for", subject, &error))?;
        thread.join().unwrap_or_else(|_| {
            Err(RouterError::new(
                holdfast_core::error::Class::Fatal,
                "work in the namespace of",
                subject,
                "the thread panicked",
            ))
        })
    })
}
