//! How kernel errors become [`RouterError`]s.

use holdfast_core::error::{Class, RouterError};
use nix::errno::Errno;
use std::{fmt, io};

/// An error of a netlink request: the errno, and the kernel's own words where it has some (extended ACK).
#[derive(Clone, Debug)]
pub(crate) struct NetlinkError {
    pub errno: Errno,
    pub message: String,
}

impl From<Errno> for NetlinkError {
    fn from(errno: Errno) -> Self {
        Self { errno, message: String::new() }
    }
}

impl fmt::Display for NetlinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.errno)?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

impl NetlinkError {
    /// Whether the subject is gone or was never there.
    pub fn is_missing(&self) -> bool {
        class_of(self.errno) == Class::Missing
    }
}

/// The class of an errno, as calls on links, rules and namespaces use it.
pub(crate) fn class_of(errno: Errno) -> Class {
    match errno {
        Errno::EEXIST | Errno::EADDRINUSE | Errno::ENOTEMPTY => Class::Conflict,
        Errno::ENOENT | Errno::ENODEV | Errno::ESRCH | Errno::ENXIO | Errno::EADDRNOTAVAIL => Class::Missing,
        Errno::EPERM | Errno::EACCES | Errno::EROFS => Class::Denied,
        Errno::ENOMEM | Errno::ENOBUFS | Errno::ENOSPC | Errno::EMFILE | Errno::ENFILE | Errno::EMSGSIZE => {
            Class::Exhausted
        }
        // A receive deadline that passed: the request was sent, its outcome was not seen.
        Errno::EAGAIN | Errno::ETIMEDOUT => Class::Unknown,
        Errno::EBUSY | Errno::EINTR => Class::Transient,
        Errno::EBADMSG | Errno::EPROTO => Class::Corrupt,
        _ => Class::Fatal,
    }
}

/// An error about `subject` out of a netlink error.
pub(crate) fn netlink(action: &str, subject: impl Into<String>, error: &NetlinkError) -> RouterError {
    remedied(RouterError::new(class_of(error.errno), action, subject, error))
}

/// An error about `subject` out of an errno.
pub(crate) fn errno(action: &str, subject: impl Into<String>, error: Errno) -> RouterError {
    remedied(RouterError::new(class_of(error), action, subject, error))
}

/// An error about `subject` out of an I/O error.
pub(crate) fn io(action: &str, subject: impl Into<String>, error: &io::Error) -> RouterError {
    let class = error.raw_os_error().map_or(Class::Fatal, |raw| class_of(Errno::from_raw(raw)));
    remedied(RouterError::new(class, action, subject, error))
}

fn remedied(error: RouterError) -> RouterError {
    match error.class {
        Class::Denied => error
            .with_remedy("the control must run inside the node's user and network namespaces; `holdfast doctor` checks them"),
        Class::Exhausted => error.with_remedy("raise net.core.wmem_max and the limits on open files, or free memory"),
        _ => error,
    }
}
