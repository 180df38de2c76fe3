//! Processes as `/proc` shows them: proc_pid_stat(5), proc_pid_status(5), namespaces(7).

use anyhow::{Context, Result, bail};
use std::{
    collections::BTreeMap,
    fmt, fs, io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    time::{Duration, Instant},
};

/// One process for as long as it lives, and never another that got its number later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// The number; reused by the kernel.
    pub pid: u32,
    /// Clock ticks between boot and its start.
    pub start_ticks: u64,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.pid)
    }
}

/// What `/proc/PID/stat` says.
#[derive(Clone, Debug)]
pub struct Stat {
    /// Name of the executable, at most 15 bytes.
    pub comm: String,
    /// State letter: `R`, `S`, `Z`, ….
    pub state: char,
    /// Parent.
    pub parent: u32,
    /// Clock ticks between boot and its start.
    pub start_ticks: u64,
}

/// Reads `/proc/PID/stat`; `None` when there is no such process.
pub fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, parentheses and blanks included: it ends at the last parenthesis.
    let (head, tail) = text.rsplit_once(')')?;
    let comm = head.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = tail.split_whitespace().collect();
    Some(Stat {
        comm,
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        start_ticks: fields.get(19)?.parse().ok()?,
    })
}

/// All process numbers at this moment.
pub fn all() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The argument vector, joined by blanks; empty for a zombie.
pub fn command_line(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim_end_matches('\0').replace('\0', " ")
}

/// The real user of a process.
pub fn uid(pid: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
}

/// The inode of one of its namespaces (`net`, `user`, `mnt`, …); `None` when it may not be seen.
pub fn namespace(pid: u32, kind: &str) -> Option<u64> {
    let link = fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()?;
    link.to_str()?.split_once('[')?.1.trim_end_matches(']').parse().ok()
}

/// Memory resident in RAM, in KiB.
pub fn resident_kib(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.split_whitespace().next()?.parse().ok()
}

/// What each open descriptor leads to.
pub fn descriptors(pid: u32) -> BTreeMap<u32, String> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return BTreeMap::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            Some((number, fs::read_link(entry.path()).ok()?.display().to_string()))
        })
        .collect()
}

/// Dead children that `parent` has not waited for.
pub fn zombies_of(parent: u32) -> Vec<u32> {
    all()
        .into_iter()
        .filter(|pid| stat(*pid).is_some_and(|stat| stat.parent == parent && stat.state == 'Z'))
        .collect()
}

impl Process {
    /// The process that has this number now, unless it is dead already.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = stat(pid)?;
        (!matches!(stat.state, 'Z' | 'X')).then_some(Self { pid, start_ticks: stat.start_ticks })
    }

    /// Whether it lives: a zombie does not, and neither does another process of its number.
    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Sends a signal to exactly this process. A dead one is no error.
    ///
    /// # Errors
    /// Everything the kernel says but "no such process".
    pub fn signal(self, signal: i32) -> Result<()> {
        // SAFETY: pidfd_open(2) takes a pid and flags and returns a new descriptor or -1; no memory is involved.
        let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, self.pid, 0) };
        if raw < 0 {
            return no_such_process_is_fine(io::Error::last_os_error()).context("pidfd_open");
        }
        // SAFETY: the kernel has just returned this descriptor, and nobody else owns it.
        let pidfd = unsafe { OwnedFd::from_raw_fd(raw as i32) };
        if Self::of(self.pid) != Some(self) {
            return Ok(());
        }
        // SAFETY: pidfd_send_signal(2) with a null siginfo behaves like kill(2); the descriptor is alive.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                pidfd.as_raw_fd(),
                signal,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        if sent < 0 {
            return no_such_process_is_fine(io::Error::last_os_error())
                .with_context(|| format!("signal {signal} to pid {}", self.pid));
        }
        Ok(())
    }

    /// Waits until it is dead.
    ///
    /// # Errors
    /// When it lives on past the deadline.
    pub fn await_death(self, deadline: Duration) -> Result<()> {
        let started = Instant::now();
        while self.is_alive() {
            if started.elapsed() > deadline {
                bail!("pid {} ({}) lives on", self.pid, command_line(self.pid));
            }
            crate::poll::rest(Duration::from_micros(200));
        }
        Ok(())
    }
}

/// SIGKILL to all of them as one blow: stopped first, so that none can react to another's death.
///
/// # Errors
/// When a signal is refused or one of them does not die.
pub fn kill_all(victims: &[Process]) -> Result<()> {
    for victim in victims {
        victim.signal(libc::SIGSTOP)?;
    }
    for victim in victims {
        victim.signal(libc::SIGKILL)?;
    }
    victims.iter().try_for_each(|victim| victim.await_death(Duration::from_secs(5)))
}

fn no_such_process_is_fine(error: io::Error) -> Result<()> {
    if error.raw_os_error() == Some(libc::ESRCH) { Ok(()) } else { Err(error.into()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use std::process::Command;

    #[test]
    fn a_killed_child_is_dead_although_it_is_a_zombie() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        assert!(process.is_alive());
        assert_eq!(stat(process.pid).unwrap().parent, std::process::id());
        kill_all(&[process]).unwrap();
        assert!(!process.is_alive());
        assert!(zombies_of(std::process::id()).contains(&process.pid));
        child.wait().unwrap();
        process.signal(libc::SIGKILL).expect("a dead process is no error");
    }

    #[test]
    fn another_start_time_is_another_process() {
        let me = Process::of(std::process::id()).unwrap();
        assert!(me.is_alive());
        assert!(!Process { start_ticks: me.start_ticks + 1, ..me }.is_alive());
    }
}
