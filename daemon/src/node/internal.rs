//! The subcommands that are no commands: processes that must be alone and enter namespaces before any thread
//! exists. They are started by the daemon; their arguments are between it and the backend.

use std::{ffi::OsString, process::ExitCode};

/// Runs the process this one was started to be; `None` for every command of the command line.
pub fn dispatch() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let name = arguments.next()?;
    let rest: Vec<OsString> = arguments.collect();
    match name.to_str()? {
        "pin" => holdfast_linux::keeper::pin_main(&rest),
        "control" => Some(super::control::main(&rest)),
        "internal" => Some(holdfast_linux::container::internal_main(&rest)),
        _ => None,
    }
}
