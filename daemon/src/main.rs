//! `holdfast`: one binary that is the command line, the daemon, the pin and the control.
//!
//! Nothing here decides anything about the node: requests go to `holdfast-core`'s drivers, and what they need
//! of the kernel is `holdfast-linux`'s.

mod api;
mod cli;
mod doctor;
mod interlink;
mod node;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    // The pin and the helpers between the namespaces must be alone in their process and enter namespaces
    // before any thread exists: they are looked at before clap, the runtime or a log is.
    if let Some(code) = holdfast_linux::internal::dispatch(node::log_of_control) {
        return code;
    }
    match cli::args::Cli::try_parse() {
        Ok(arguments) => cli::run(arguments),
        Err(error) => {
            // A usage error ends like any other refusal; help and version are none.
            let failed = error.use_stderr();
            let _ = error.print();
            if failed { ExitCode::from(cli::EXIT_REFUSED) } else { ExitCode::SUCCESS }
        }
    }
}
