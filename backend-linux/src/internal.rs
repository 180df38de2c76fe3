//! The processes that a program which opens a [`crate::world::LinuxWorld`] starts of itself.

use crate::{container::internal_main, keeper::pin_main, paths::Paths, protocol::control_main};
use std::{ffi::OsString, path::PathBuf, process::ExitCode};

/// Runs the process that this one was started to be; `None` for everything else. Must be called first of all: a
/// pin and the helpers between the namespaces must be alone in their process and enter namespaces before any
/// thread exists. `prepare_log` sets up what a control logs with, to stderr, without starting a thread.
pub fn dispatch(prepare_log: fn()) -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let name = arguments.next()?;
    let rest: Vec<OsString> = arguments.collect();
    match name.to_str()? {
        "pin" => pin_main(&rest),
        "control" => Some(control(&rest, prepare_log)),
        "internal" => Some(internal_main(&rest)),
        _ => None,
    }
}

/// Runs the control; `arguments` are the node's directories.
fn control(arguments: &[OsString], prepare_log: fn()) -> ExitCode {
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).map(PathBuf::from)
    };
    let (Some(state), Some(runtime)) = (value("--state"), value("--runtime")) else {
        eprintln!("control: it is started by the daemon: --state and --runtime name the node");
        return ExitCode::from(2);
    };
    prepare_log();
    ExitCode::from(u8::try_from(control_main(Paths { state, runtime })).unwrap_or(1))
}
