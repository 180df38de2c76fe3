//! The process `control`: its arguments and its log.

use holdfast_linux::{paths::Paths, protocol::control_main};
use std::{ffi::OsString, path::PathBuf, process::ExitCode};

/// Runs the control; `arguments` are the node's directories, as the daemon gives them.
pub fn main(arguments: &[OsString]) -> ExitCode {
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).map(PathBuf::from)
    };
    let (Some(state), Some(runtime)) = (value("--state"), value("--runtime")) else {
        eprintln!("holdfast control: it is started by the daemon: --state and --runtime name the node");
        return ExitCode::from(2);
    };
    // To stderr, which the daemon has made the control's own log; nothing else may start a thread here.
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).finish();
    if tracing::subscriber::set_global_default(subscriber).is_err() {
        eprintln!("holdfast control: logging is set up already");
    }
    let code = control_main(Paths { state, runtime });
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
