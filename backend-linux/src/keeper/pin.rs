//! The pin: a process that makes or enters the namespaces and sleeps.
//!
//! It runs before any runtime and any thread exists, reads its arguments, tells the daemon that it is ready, and
//! from then on does nothing: it has no descriptor, no thread, no signal that ends it but SIGKILL, and no code
//! that a later version could have to agree with.

use super::{namespace::Kind, pin_channel, pin_memory};
use nix::{
    mount::MsFlags,
    sched::{setns, unshare},
};
use std::{
    ffi::OsString,
    io,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

/// What `ps` and `/proc/PID/comm` show.
const PROCESS_NAME: &std::ffi::CStr = c"holdfast-pin";

/// The body of the subcommand `pin`; `arguments` are what follows it. Standard input is the socket that the
/// daemon holds the other end of. Never returns: it sleeps, or exits with a status other than 0 after it
/// reported why.
pub fn pin_main(arguments: &[OsString]) -> ! {
    // SAFETY: the descriptors are the process's own; only standard input and error are used after this.
    unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
    // SAFETY: descriptor 0 is open for as long as `channel` is used: it is closed by `sleep` alone.
    let channel = match unsafe { BorrowedFd::borrow_raw(0) }.try_clone_to_owned() {
        Ok(fd) => UnixStream::from(fd),
        Err(_) => exit(2),
    };
    match prepare(arguments, &channel) {
        Ok(()) => sleep(channel),
        Err(error) => {
            // The daemon may be gone; there is nobody else to tell.
            let _ = pin_channel::send_failure(&channel, &error.to_string());
            exit(1)
        }
    }
}

/// Ends at once: nothing of a pin needs a destructor, and no handler that a library left may run.
fn exit(code: i32) -> ! {
    // SAFETY: takes no memory and does not come back; _exit(2).
    unsafe { libc::_exit(code) }
}

fn kinds(arguments: &[OsString], name: &str) -> io::Result<Vec<Kind>> {
    let value = arguments.iter().position(|argument| argument == name).and_then(|at| arguments.get(at + 1));
    let Some(value) = value else { return Ok(Vec::new()) };
    let value = value.to_str().unwrap_or_default();
    value
        .split(',')
        .filter(|kind| !kind.is_empty())
        .map(|kind| {
            Kind::from_file_name(kind)
                .ok_or_else(|| io::Error::other(format!("{name}: no namespace is called {kind:?}")))
        })
        .collect()
}

fn prepare(arguments: &[OsString], channel: &UnixStream) -> io::Result<()> {
    let join = kinds(arguments, "--join")?;
    let create = kinds(arguments, "--unshare")?;
    if join.is_empty() && create.is_empty() {
        return Err(io::Error::other(
            "pin is started by the daemon: --join or --unshare names its namespaces",
        ));
    }
    ignore_signals();
    enter(&join, &pin_channel::receive_descriptors(channel, join.len())?)?;
    make(&create, channel)?;
    name_process();
    nix::unistd::chdir("/")?;
    // Fails where the process leads a group already; then it leads a session of its own as well.
    let _ = nix::unistd::setsid();
    pin_channel::send_ready(channel)?;
    // Without this a daemon that dies between start and answer would leave a pin that nobody knows.
    pin_channel::await_go(channel)
}

fn enter(kinds: &[Kind], descriptors: &[OwnedFd]) -> io::Result<()> {
    for (kind, descriptor) in kinds.iter().zip(descriptors) {
        setns(descriptor, kind.clone_flag())
            .map_err(|error| io::Error::other(format!("setns {}: {error}", kind.file_name())))?;
    }
    Ok(())
}

fn make(kinds: &[Kind], channel: &UnixStream) -> io::Result<()> {
    let create = |kind: Kind| {
        unshare(kind.clone_flag())
            .map_err(|error| io::Error::other(format!("unshare {}: {error}", kind.file_name())))
    };
    if kinds.contains(&Kind::User) {
        create(Kind::User)?;
        pin_channel::ask_for_map(channel)?;
    }
    for kind in kinds.iter().filter(|kind| **kind != Kind::User) {
        create(*kind)?;
    }
    if kinds.contains(&Kind::Mount) {
        // What is mounted inside must never show outside, and the host's later mounts must not hide ours.
        let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        nix::mount::mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)
            .map_err(|error| io::Error::other(format!("make mounts private: {error}")))?;
    }
    Ok(())
}

/// The last real-time signal; signal(7).
const SIGNAL_MAX: i32 = 64;

/// Every signal that can be: a logout (SIGHUP, SIGTERM), a terminal, a limit, a stray kill.
fn ignore_signals() {
    for number in 1..=SIGNAL_MAX {
        // SAFETY: ignoring runs no code. SIGKILL, SIGSTOP and the C library's own signals are refused, as they
        // have to be.
        unsafe { libc::signal(number, libc::SIG_IGN) };
    }
}

fn name_process() {
    // For people only: nothing decides by the name.
    let _ = nix::sys::prctl::set_name(PROCESS_NAME);
    // The daemon reads /proc/PID/ns, which needs a dumpable process; proc(5).
    let _ = nix::sys::prctl::set_dumpable(true);
}

fn sleep(channel: UnixStream) -> ! {
    let ranges = pin_memory::droppable_ranges();
    drop(channel);
    // SAFETY: no descriptor is used any more.
    unsafe { libc::syscall(libc::SYS_close_range, 0u32, u32::MAX, 0u32) };
    pin_memory::drop_ranges(&ranges);
    loop {
        // SAFETY: takes nothing; comes back only for a handled signal, of which there is none.
        unsafe { libc::pause() };
    }
}
