//! From the errors of the kernel and of the OCI tools to the classes that policy reads.

use holdfast_core::error::{Class, ContainerError};
use std::{fmt, io};

/// The class of an error number; errno(3).
pub(crate) fn class_of(error: &io::Error) -> Class {
    match error.raw_os_error() {
        Some(
            libc::ENOSPC
            | libc::EDQUOT
            | libc::EMFILE
            | libc::ENFILE
            | libc::ENOMEM
            | libc::EAGAIN
            | libc::EFBIG,
        ) => Class::Exhausted,
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => Class::Denied,
        Some(libc::ENOENT | libc::ENOTDIR) => Class::Missing,
        Some(libc::EBUSY | libc::EINTR) => Class::Transient,
        _ => match error.kind() {
            io::ErrorKind::NotFound => Class::Missing,
            io::ErrorKind::PermissionDenied => Class::Denied,
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof => {
                Class::Corrupt
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Class::Exhausted,
            _ => Class::Fatal,
        },
    }
}

/// The class of what an OCI tool said: it has nothing but text (crun reports `strerror(errno)` at the end).
pub(crate) fn class_of_text(text: &str) -> Class {
    let has = |needle: &str| text.contains(needle);
    if has("not found in $PATH") || has("No such file or directory") || has("Not a directory") {
        Class::Missing
    } else if has("Permission denied") || has("Operation not permitted") || has("Read-only file system") {
        Class::Denied
    } else if has("No space left")
        || has("Cannot allocate memory")
        || has("temporarily unavailable")
        || has("Too many open files")
    {
        Class::Exhausted
    } else {
        Class::Fatal
    }
}

/// An error about `subject`.
pub(crate) fn fail(
    class: Class,
    action: &str,
    subject: impl Into<String>,
    cause: impl fmt::Display,
) -> ContainerError {
    ContainerError::new(class, action, subject, cause)
}

/// An I/O error about `subject`, classified by its number.
pub(crate) fn io_fail(action: &str, subject: impl Into<String>, error: io::Error) -> ContainerError {
    let fault = ContainerError::new(class_of(&error), action, subject, &error);
    match fault.class {
        Class::Exhausted if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) => {
            fault.with_remedy("free some disk space, for instance with `holdfast rm` or `holdfast image rm`")
        }
        _ => fault,
    }
}
