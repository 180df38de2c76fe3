//! The end of exactly one process.

use super::{ProcessWatch, stat::is_alive};
use holdfast_core::id::ProcessRef;
use std::{io, time::Duration};

/// Ends a process: SIGTERM, a wait of `grace`, then SIGKILL and a wait of `kill_wait`. A process that ignores
/// SIGTERM, as a pin does, is not waited for: it gets SIGKILL at once. Returns whether it is dead; one that is
/// dead already, or that another has the pid of, is.
///
/// # Errors
/// When the kernel refuses the signal, or a descriptor.
pub async fn stop(process: &ProcessRef, grace: Duration, kill_wait: Duration) -> io::Result<bool> {
    let Some(watch) = ProcessWatch::open(process)? else { return Ok(true) };
    if !ignores(process.pid, libc::SIGTERM) {
        if !watch.signal(libc::SIGTERM)? {
            return Ok(true);
        }
        if let Ok(result) = tokio::time::timeout(grace, watch.exited()).await {
            return result.map(|()| true);
        }
    }
    if !watch.signal(libc::SIGKILL)? {
        return Ok(true);
    }
    match tokio::time::timeout(kill_wait, watch.exited()).await {
        Ok(result) => result.map(|()| true),
        Err(_) => Ok(!is_alive(process)),
    }
}

/// Whether the process ignores a signal: `SigIgn` of proc_pid_status(5), a hexadecimal mask.
fn ignores(pid: u32, signal: i32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return false };
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
