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
/// its arguments are looked up there. It inherits no descriptor but standard input, output and error.
///
/// # Errors
/// `Missing` when the pin is dead.
pub fn command_inside(pin: &ProcessRef, program: impl AsRef<OsStr>) -> Result<Command, KeeperError> {
    let fail =
        |class, cause: String| KeeperError::new(class, "enter namespaces", format!("of pin ({pin})"), cause);
    let pidfd = open_pidfd(pin)
        .map_err(|error| fail(Class::Exhausted, error.to_string()))?
        .ok_or_else(|| fail(Class::Missing, "it is dead".to_owned()))?;
    let flags = Kind::ENTER_ORDER.iter().fold(CloneFlags::empty(), |flags, kind| flags | kind.clone_flag());
    let mut command = Command::new(program);
    // SAFETY: the closure runs in the forked child and makes one system call: it neither allocates nor locks.
    unsafe { command.pre_exec(move || setns(&pidfd, flags).map_err(std::io::Error::from)) };
    Ok(command)
}
