//! No zombies: every child is waited for by whoever started it, and orphans by whoever inherits them.

use super::stat::read_stat;
use std::{collections::BTreeMap, time::Duration};
use tokio::process::Child;

/// Waits for a child that outlives the call that started it (pin, control, uplink helper), so that it never
/// stays a zombie. Waits for this child alone: it takes no other wait's status. Needs a tokio runtime.
pub fn reap_in_background(mut child: Child) {
    tokio::spawn(async move {
        let pid = child.id();
        match child.wait().await {
            Ok(status) => tracing::debug!(pid, %status, "child reaped"),
            Err(error) => tracing::warn!(pid, %error, "child could not be waited for"),
        }
    });
}

/// How often orphans are looked for.
const SCAN_PERIOD: Duration = Duration::from_secs(5);
/// A zombie seen in so many scans is nobody's: a child with a waiter is gone within milliseconds.
const SCANS_BEFORE_REAP: u8 = 3;

/// Reaps processes that this one did not start but inherited: as pid 1 of a pid namespace, or as a child
/// subreaper, it becomes the parent of every orphan below it. Comes back at once where this process is neither;
/// otherwise never. A child that somebody here waits for is left to its waiter.
pub async fn adopt_orphans() {
    if !inherits_orphans() {
        return;
    }
    let mut seen: BTreeMap<(u32, u64), u8> = BTreeMap::new();
    let mut period = tokio::time::interval(SCAN_PERIOD);
    loop {
        period.tick().await;
        let zombies = own_zombies();
        seen.retain(|key, _| zombies.contains(key));
        for key in zombies {
            let scans = seen.entry(key).or_insert(0);
            *scans += 1;
            if *scans >= SCANS_BEFORE_REAP {
                reap(key.0);
            }
        }
    }
}

fn inherits_orphans() -> bool {
    std::process::id() == 1 || nix::sys::prctl::get_child_subreaper().unwrap_or(false)
}

/// (pid, start time) of zombies whose parent is this process.
fn own_zombies() -> Vec<(u32, u64)> {
    let own = std::process::id();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, read_stat(pid).ok()??)))
        .filter(|(_, stat)| stat.parent == own && stat.state == b'Z')
        .map(|(pid, stat)| (pid, stat.start_time_ticks))
        .collect()
}

fn reap(pid: u32) {
    let Ok(pid) = i32::try_from(pid) else { return };
    let flags = Some(nix::sys::wait::WaitPidFlag::WNOHANG);
    match nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), flags) {
        Ok(status) => tracing::debug!(pid, ?status, "orphan reaped"),
        Err(error) => tracing::debug!(pid, %error, "orphan was reaped by another"),
    }
}
