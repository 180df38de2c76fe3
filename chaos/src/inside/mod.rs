//! What the harness runs inside a workload's network: a child of itself, `holdfast-chaos inside …`, that enters
//! the namespaces before it has a second thread (setns(2) into a user namespace demands that).
//!
//! A helper is asked on standard input, one word a line, and answers with one line of JSON; it ends when
//! standard input does, so that none outlives the harness.

mod ping;
mod stream;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use nix::sched::{CloneFlags, setns};
use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    net::{Ipv4Addr, SocketAddrV4},
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::Command,
};

/// `NS_GET_USERNS` of ioctl_nsfs(2): `_IO(0xb7, 1)`.
const NS_GET_USERNS: libc::c_ulong = 0xb701;

/// What a helper does.
#[derive(Clone, Debug, Subcommand)]
pub enum Task {
    /// Sends echo requests at a fixed rate and counts answers
    Ping {
        /// Whom to ping
        to: Ipv4Addr,
        /// Microseconds between two requests
        #[arg(long, default_value_t = 10_000)]
        interval_us: u64,
    },
    /// Accepts one connection and exchanges sequenced numbers both ways
    Listen {
        /// Where to listen
        at: SocketAddrV4,
        /// Milliseconds between two numbers
        #[arg(long, default_value_t = 10)]
        interval_ms: u64,
    },
    /// Connects and exchanges sequenced numbers both ways
    Connect {
        /// Where to connect
        to: SocketAddrV4,
        /// Milliseconds between two numbers
        #[arg(long, default_value_t = 10)]
        interval_ms: u64,
    },
    /// Runs a command
    Exec {
        /// Command and arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<String>,
    },
}

/// What a pinger counted since it was last marked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PingReport {
    /// Requests that left, or that the kernel refused to send.
    pub sent: u64,
    /// Requests that were answered.
    pub received: u64,
    /// Requests that were not answered within a second.
    pub lost: u64,
    /// The longest run of lost requests, as a time.
    pub outage_ms: f64,
    /// How long the last requests have gone unanswered, as a time: zero when the path works.
    pub silence_ms: f64,
    /// Median round trip.
    pub rtt_us: f64,
}

/// Where an end of a stream is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamReport {
    /// Numbers handed to the kernel.
    pub sent: u64,
    /// Numbers received, each exactly one more than the one before.
    pub received: u64,
    /// Why the stream is over, or wrong; `None` while it is neither.
    pub fault: Option<String>,
}

/// Enters the network of process `pid`, with all capabilities over it, then does the task.
///
/// # Errors
/// When the namespaces cannot be entered or the task cannot be done.
pub fn run(pid: u32, task: &Task) -> Result<()> {
    enter(pid).with_context(|| format!("enter the network of pid {pid}"))?;
    match task {
        Task::Ping { to, interval_us } => ping::run(*to, *interval_us),
        Task::Listen { at, interval_ms } => stream::listen(*at, *interval_ms),
        Task::Connect { to, interval_ms } => stream::connect(*to, *interval_ms),
        Task::Exec { command } => {
            let (program, arguments) = command.split_first().context("no command")?;
            Err(Command::new(program).args(arguments).exec()).context(program.clone())
        }
    }
}

/// The owner of the network namespace is entered first: it alone gives the right to enter the network, and it
/// need not be the process's own user namespace.
fn enter(pid: u32) -> Result<()> {
    let net = File::open(format!("/proc/{pid}/ns/net"))?;
    // SAFETY: NS_GET_USERNS takes no argument and returns a new descriptor or -1: ioctl_nsfs(2).
    let raw = unsafe { libc::ioctl(net.as_raw_fd(), NS_GET_USERNS) };
    if raw < 0 {
        bail!("NS_GET_USERNS: {}", std::io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, and nobody else owns it.
    let user = unsafe { OwnedFd::from_raw_fd(raw) };
    setns(user.as_fd(), CloneFlags::CLONE_NEWUSER).context("setns user")?;
    setns(net.as_fd(), CloneFlags::CLONE_NEWNET).context("setns net")?;
    Ok(())
}

/// Prints one answer.
fn answer(value: &impl Serialize) -> Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, value)?;
    out.write_all(b"\n")?;
    out.flush()?;
    Ok(())
}
