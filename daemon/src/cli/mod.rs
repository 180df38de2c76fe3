//! The command line: a plain client of the API.

/// `print!` that ends this process as a filter ends when its reader has gone, where `print!` panics.
macro_rules! out {
    ($($arguments:tt)*) => { $crate::cli::output::write(format_args!($($arguments)*)) };
}

/// [`out!`] with the end of a line.
macro_rules! outln {
    ($($arguments:tt)*) => { $crate::cli::output::write(format_args!("{}\n", format_args!($($arguments)*))) };
}

pub(crate) use outln;

pub mod args;
mod client;
mod containers;
mod images;
mod networks;
mod node;
pub mod output;
mod parse;
mod pods;
mod policies;
mod spawn;
mod stream;
mod table;
mod terminal;
pub mod time;

use args::{Cli, Command, Format};
use clap::CommandFactory;
use client::Client;
use holdfast_linux::paths::Paths;
use std::process::ExitCode;

/// Exit code when this program, not a container's command, failed; as in podman.
pub const EXIT_REFUSED: u8 = 125;
/// A container's command could not be executed.
const EXIT_NOT_EXECUTABLE: u8 = 126;
/// A container's command was not found.
const EXIT_NOT_FOUND: u8 = 127;

/// What every command has.
#[derive(Debug)]
pub struct Context {
    client: Client,
    format: Format,
}

/// Runs a command.
pub fn run(arguments: Cli) -> ExitCode {
    let paths = match Paths::resolve(arguments.root.as_deref()) {
        Ok(paths) => paths,
        Err(error) => return fail(&error),
    };
    match arguments.command {
        Command::Daemon { detached } => return crate::node::main(&paths, detached),
        Command::Doctor => return crate::doctor::run(&paths, arguments.format),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "holdfast", &mut script);
            out!("{}", String::from_utf8_lossy(&script));
            return ExitCode::SUCCESS;
        }
        Command::Version => {
            outln!("holdfast {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    let result = runtime.block_on(async {
        let client = Client::new(paths, arguments.root.as_deref())?;
        dispatch(&Context { client, format: arguments.format }, arguments.command).await
    });
    // A read of standard input that nobody will ever answer must not keep the process.
    runtime.shutdown_background();
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => fail(&error),
    }
}

fn fail(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("holdfast: {error:#}");
    ExitCode::from(EXIT_REFUSED)
}

async fn dispatch(context: &Context, command: Command) -> anyhow::Result<u8> {
    match command {
        Command::Up => node::up(context).await,
        Command::Down { keep_workloads } => node::down(context, keep_workloads).await,
        Command::Status => node::status(context).await,
        Command::Run(run) => containers::run(context, *run).await,
        Command::Ps { all, quiet, namespace, label } => {
            containers::list(context, all, quiet, namespace, &label).await
        }
        Command::Inspect { container } => output::inspect(context, &["containers", &container]).await,
        Command::Logs { container, follow, tail, since, timestamps } => {
            stream::logs(context, &container, follow, tail, since.as_deref(), timestamps).await
        }
        Command::Exec(exec) => stream::exec(context, exec).await,
        Command::Stop { containers, time } => containers::each(context, &containers, "stop", time).await,
        Command::Start { containers } => containers::each(context, &containers, "start", None).await,
        Command::Restart { containers, time } => {
            containers::each(context, &containers, "restart", time).await
        }
        Command::Rm { containers, force } => output::remove(context, "containers", &containers, force).await,
        Command::Wait { containers } => containers::wait(context, &containers).await,
        Command::Pod(pod) => pods::dispatch(context, pod).await,
        Command::Network(network) => networks::dispatch(context, network).await,
        Command::Policy(policy) => policies::dispatch(context, policy).await,
        Command::Port { workload } => networks::ports(context, &workload).await,
        Command::Image(image) => images::dispatch(context, image).await,
        // Handled before the runtime existed.
        Command::Daemon { .. } | Command::Doctor | Command::Completions { .. } | Command::Version => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_follows_the_image_is_the_command() {
        let line =
            ["holdfast", "run", "-d", "--name", "web", "-p", "8080:80", "busybox", "sh", "-c", "echo -d"];
        let Command::Run(run) = Cli::try_parse_from(line).unwrap().command else { panic!("run") };
        assert!(run.detach);
        assert_eq!(run.image.as_deref(), Some("busybox"));
        assert_eq!(run.command, ["sh", "-c", "echo -d"]);
        let line = ["holdfast", "run", "--rootfs", "/srv/root", "/bin/sh", "-c", "true"];
        let Command::Run(run) = Cli::try_parse_from(line).unwrap().command else { panic!("run") };
        assert_eq!(run.image.as_deref(), Some("/bin/sh"));
        assert_eq!(run.command, ["-c", "true"]);
    }

    #[test]
    fn an_option_that_does_not_exist_is_never_an_image() {
        for line in [["--privileged", "busybox"], ["--rootfs=/srv/root", "--tty"], ["-z", "busybox"]] {
            let error = Cli::try_parse_from(["holdfast", "run"].iter().chain(&line)).unwrap_err();
            assert_eq!(error.kind(), clap::error::ErrorKind::UnknownArgument, "{line:?}");
        }
    }

    #[test]
    fn a_pod_member_has_the_pods_network() {
        let line = ["holdfast", "run", "--pod", "p", "--network", "n", "busybox"];
        assert!(Cli::try_parse_from(line).is_err());
    }
}
