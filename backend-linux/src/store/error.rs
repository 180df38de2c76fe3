//! SQLite's errors in the store's terms.

use holdfast_core::error::{Class, StoreError};
use nix::errno::Errno;
use rusqlite::{Connection, ErrorCode, ffi};
use std::{io, path::Path};

/// What a person does about a full disk.
pub const FREE_SPACE: &str = "free space on that file system, then try again; stop and rm go on working";

/// Classifies an error of SQLite.
///
/// An I/O error at a commit is [`Class::Unknown`]: frames may have reached the disk although the sync failed
/// (<https://www.sqlite.org/rescode.html#ioerr_fsync>).
pub fn from_sqlite(
    connection: Option<&Connection>,
    action: &str,
    path: &Path,
    error: &rusqlite::Error,
) -> StoreError {
    let (class, remedy) = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => (Class::Exhausted, FREE_SPACE),
        Some(ErrorCode::SystemIoFailure) if connection.is_some_and(disk_is_full) => {
            (Class::Exhausted, FREE_SPACE)
        }
        Some(ErrorCode::SystemIoFailure) => {
            (Class::Unknown, "look at the kernel's log for errors of that disk")
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
            (Class::Denied, "make the file and its directory writable for this user")
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            (Class::Corrupt, "restart the daemon: it moves the file aside and says so")
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (Class::Conflict, "end the other program that has the database open")
        }
        Some(ErrorCode::OutOfMemory) => (Class::Exhausted, "free memory"),
        _ => (Class::Fatal, ""),
    };
    StoreError::new(class, action, path.display().to_string(), error).with_remedy(remedy)
}

/// Classifies an I/O error of a file beside the database.
pub fn from_io(action: &str, path: &Path, error: &io::Error) -> StoreError {
    let (class, remedy) = match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOSPC | Errno::EDQUOT) => (Class::Exhausted, FREE_SPACE),
        Some(Errno::EACCES | Errno::EPERM | Errno::EROFS) => {
            (Class::Denied, "make the file and its directory writable for this user")
        }
        _ => (Class::Fatal, ""),
    };
    StoreError::new(class, action, path.display().to_string(), error).with_remedy(remedy)
}

/// Whether the last system call that failed said that there is no space: SQLite reports a quota, and a full
/// disk met by anything but `write`, as a plain I/O error.
fn disk_is_full(connection: &Connection) -> bool {
    // SAFETY: the handle is of an open connection that this thread owns; the call reads one integer of it.
    let errno = unsafe { ffi::sqlite3_system_errno(connection.handle()) };
    matches!(Errno::from_raw(errno), Errno::ENOSPC | Errno::EDQUOT)
}
