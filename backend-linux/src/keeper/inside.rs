//! Commands that run in the pin's namespaces.

use super::namespace::Kind;
use crate::process::open_pidfd;
use holdfast_core::{
    error::{Class, KeeperError},
    id::ProcessRef,
};
use nix::sched::{CloneFlags, setns};
use std::ffi::OsStr;
use tokio::process::Command;

/// A command that will run in the user, net, cgroup and mount namespaces of `pin`.
///
/// The child enters them between fork and exec, where it is single-threaded, through a pidfd that was checked
/// to be of exactly this pin; setns(2). Its working directory is the root of the mount namespace, and paths in
/// its arguments are looked up there. It inherits no descriptor but standard input, output and error; one that it
/// is to have is handed over by a later `pre_exec`, which clears its CLOEXEC.
///
/// # Errors
/// `Transient` when the pin is dead: another takes its place.
pub fn command_inside(pin: &ProcessRef, program: impl AsRef<OsStr>) -> Result<Command, KeeperError> {
    let fail =
        |class, cause: String| KeeperError::new(class, "enter namespaces", format!("of pin ({pin})"), cause);
    let pidfd = open_pidfd(pin)
        .map_err(|error| fail(Class::Exhausted, error.to_string()))?
        .ok_or_else(|| fail(Class::Transient, "it is dead".to_owned()))?;
    let flags = Kind::ENTER_ORDER.iter().fold(CloneFlags::empty(), |flags, kind| flags | kind.clone_flag());
    let mut command = Command::new(program);
    let enter = move || {
        close_on_exec()?;
        setns(&pidfd, flags).map_err(std::io::Error::from)
    };
    // SAFETY: the closure runs in the forked child and makes two system calls: it neither allocates nor locks.
    unsafe { command.pre_exec(enter) };
    Ok(command)
}

/// Marks every descriptor but standard input, output and error to be closed by exec; close_range(2). For the
/// forked child: a descriptor that the daemon itself inherited, or that a library opened carelessly, would
/// otherwise live on in a process that outlives the daemon. Async-signal-safe.
///
/// # Errors
/// As close_range(2).
pub(crate) fn close_on_exec() -> std::io::Result<()> {
    // SAFETY: integers only.
    match unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
