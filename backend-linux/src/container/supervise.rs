//! The parent of one `crun exec`: it inherits what crun leaves behind, so that nothing stays a zombie in the
//! container (a container with an unreaped process cannot end), and it kills all of it when it is told to end.

use crate::process::read_stat;
use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use std::{
    ffi::OsString,
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

/// Exit code when the supervisor itself fails; crun exec's own failures are told by its log.
const FAILED: u8 = 125;
/// How long what was killed may take to die.
const KILL_DEADLINE: Duration = Duration::from_secs(10);
/// When it is looked again although no child ended: one may have been born between the look and the kill.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// How deep the tree below is followed: supervisor, crun, its helper, the process.
const DEPTH_MAX: usize = 8;

/// Runs a command as its only child until nothing is left below; SIGTERM kills everything below.
pub(crate) fn supervise(command: &[OsString]) -> ExitCode {
    match run(command) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("supervise: {error}");
            ExitCode::from(FAILED)
        }
    }
}

fn run(command: &[OsString]) -> std::io::Result<u8> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(std::io::Error::other("nothing to run"));
    };
    nix::sys::prctl::set_child_subreaper(true)?;
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGCHLD);
    signals.add(Signal::SIGTERM);
    signals.thread_block()?;
    let mut child = Command::new(program);
    // SAFETY: sigprocmask is async-signal-safe, and the set is plain memory on the stack of the child.
    unsafe {
        child.args(arguments).pre_exec(move || Ok(signals.thread_unblock()?));
    }
    #[allow(clippy::zombie_processes, reason = "reap() waits for every child, this one too")]
    let main = Pid::from_raw(child.spawn()?.id().cast_signed());
    let mut code = None;
    while !reap(main, &mut code) {
        if signals.wait()? == Signal::SIGTERM {
            return Ok(kill_all(main, code));
        }
        if code.is_some() {
            // crun is gone: what is left are its orphans, and without it nobody is served by them.
            return Ok(kill_all(main, code));
        }
    }
    Ok(code.unwrap_or(FAILED))
}

/// Reaps what is dead; whether no child is left.
fn reap(main: Pid, code: &mut Option<u8>) -> bool {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, status)) if pid == main => {
                *code = Some(u8::try_from(status).unwrap_or(FAILED))
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == main => {
                *code = Some(u8::try_from(128 + signal as i32).unwrap_or(FAILED));
            }
            Ok(WaitStatus::StillAlive) => return false,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return true,
        }
    }
}

/// Kills everything below and reaps it, until nothing is left or time is up.
fn kill_all(main: Pid, mut code: Option<u8>) -> u8 {
    let started = Instant::now();
    while !reap(main, &mut code) && started.elapsed() < KILL_DEADLINE {
        for pid in descendants() {
            let _ = kill(pid, Signal::SIGKILL);
        }
        await_child(LOOK_AGAIN);
    }
    code.unwrap_or(128 + Signal::SIGKILL as u8)
}

/// Comes back when a child has ended, or after `timeout`. SIGCHLD must be blocked; sigtimedwait(2).
fn await_child(timeout: Duration) {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGCHLD);
    let timeout = nix::sys::time::TimeSpec::from_duration(timeout);
    // SAFETY: both structures outlive the call, and no information about the signal is asked for. Whatever it
    // gives (a signal, nothing in time, an interruption), the caller looks again until its own deadline.
    unsafe { libc::sigtimedwait(signals.as_ref(), std::ptr::null_mut(), timeout.as_ref()) };
}

/// Everything below this process, deepest first, so that no parent can start a replacement. By a walk of `/proc`:
/// `/proc/PID/task/TID/children` is not in every kernel.
fn descendants() -> Vec<Pid> {
    let parents: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, read_stat(pid).ok()??.parent)))
        .collect();
    let mut all = vec![std::process::id()];
    let mut from = 0;
    for _ in 0..DEPTH_MAX {
        let until = all.len();
        let children: Vec<u32> = parents
            .iter()
            .filter(|(_, parent)| all[from..until].contains(parent))
            .map(|(pid, _)| *pid)
            .collect();
        all.extend(children);
        from = until;
    }
    all.drain(1..).rev().map(|pid| Pid::from_raw(pid.cast_signed())).collect()
}
