//! pidfds: the only handle of a process that never comes to mean another one.

use super::stat::is_alive;
use holdfast_core::id::ProcessRef;
use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
};
use tokio::io::{Interest, unix::AsyncFd};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// It called exit.
    Exited(i32),
    /// A signal ended it.
    Signaled(i32),
}

impl ExitStatus {
    /// The code a shell would show: 128 + signal for a death by signal.
    pub fn code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Signaled(signal) => 128 + signal,
        }
    }

    fn from_wait_status(status: i32) -> Option<Self> {
        if libc::WIFEXITED(status) {
            Some(Self::Exited(libc::WEXITSTATUS(status)))
        } else if libc::WIFSIGNALED(status) {
            Some(Self::Signaled(libc::WTERMSIG(status)))
        } else {
            None
        }
    }
}

/// Opens a pidfd of exactly this process; `None` when it is dead. pidfd_open(2); the descriptor is CLOEXEC.
///
/// # Errors
/// When the kernel refuses a descriptor (EMFILE, …).
pub fn open_pidfd(process: &ProcessRef) -> io::Result<Option<OwnedFd>> {
    let Ok(pid) = libc::pid_t::try_from(process.pid) else { return Ok(None) };
    // SAFETY: pidfd_open takes two integers and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        let error = io::Error::last_os_error();
        // ESRCH: nobody has the pid. EINVAL: a thread has it (or it is 0).
        return match error.raw_os_error() {
            Some(libc::ESRCH | libc::EINVAL | libc::ENOENT) => Ok(None),
            _ => Err(error),
        };
    }
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // The pid may have been reused before the open, not after it: what is looked at now is what the pidfd is of.
    Ok(is_alive(process).then_some(fd))
}

/// Sends a signal through a pidfd; `false` when the process is gone. pidfd_send_signal(2).
///
/// # Errors
/// When the kernel refuses (EPERM, …).
pub fn signal(pidfd: &impl AsRawFd, number: i32) -> io::Result<bool> {
    // SAFETY: a descriptor, an integer, no siginfo and no flags.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            number,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    if result == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ESRCH) { Ok(false) } else { Err(error) }
}

/// Comes back when the process is dead; at once if it already is.
///
/// # Errors
/// As [`ProcessWatch::open`].
pub async fn exited(process: &ProcessRef) -> io::Result<()> {
    match ProcessWatch::open(process)? {
        Some(watch) => watch.exited().await,
        None => Ok(()),
    }
}

/// A process being watched: its end is noticed when it happens, not at a poll.
#[derive(Debug)]
pub struct ProcessWatch {
    process: ProcessRef,
    fd: AsyncFd<OwnedFd>,
}

impl ProcessWatch {
    /// Starts to watch; `None` when the process is dead already. Needs a tokio runtime with I/O.
    ///
    /// # Errors
    /// As [`open_pidfd`], and when the runtime cannot register the descriptor.
    pub fn open(process: &ProcessRef) -> io::Result<Option<Self>> {
        let Some(fd) = open_pidfd(process)? else { return Ok(None) };
        // SAFETY: an `OwnedFd` keeps its descriptor open and the same for as long as it is owned.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }
            .map_err(|error| error.into_parts().1)?;
        Ok(Some(Self { process: process.clone(), fd }))
    }

    /// The process.
    pub fn process(&self) -> &ProcessRef {
        &self.process
    }

    /// Comes back when the process has ended (its last thread is gone). May be called again.
    ///
    /// # Errors
    /// When the runtime's poller fails.
    pub async fn exited(&self) -> io::Result<()> {
        self.fd.readable().await?.retain_ready();
        Ok(())
    }

    /// Sends a signal to exactly this process; `false` when it is gone.
    ///
    /// # Errors
    /// As [`signal`].
    pub fn signal(&self, number: i32) -> io::Result<bool> {
        signal(self.fd.get_ref(), number)
    }

    /// How it ended, where anything tells: as a child's parent before it is reaped (waitid(2), without reaping
    /// it), as anybody after it is reaped (`PIDFD_GET_INFO` with `PIDFD_INFO_EXIT`, Linux 6.15).
    pub fn exit_status(&self) -> Option<ExitStatus> {
        exit_info(self.fd.get_ref()).or_else(|| peek_child(self.fd.get_ref()))
    }
}

/// `struct pidfd_info` of include/uapi/linux/pidfd.h, its first published size (64 bytes).
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup_id: u64,
    pid: u32,
    tgid: u32,
    parent_pid: u32,
    real_uid: u32,
    real_gid: u32,
    effective_uid: u32,
    effective_gid: u32,
    saved_uid: u32,
    saved_gid: u32,
    fs_uid: u32,
    fs_gid: u32,
    exit_code: i32,
}

/// `PIDFD_INFO_EXIT`: include/uapi/linux/pidfd.h.
const PIDFD_INFO_EXIT: u64 = 1 << 3;
/// `PIDFS_IOCTL_MAGIC`: include/uapi/linux/pidfd.h.
const PIDFS_IOCTL_MAGIC: u8 = 0xff;

mod ioctl {
    use super::{PIDFS_IOCTL_MAGIC, PidfdInfo};
    nix::ioctl_readwrite!(pidfd_get_info, PIDFS_IOCTL_MAGIC, 11, PidfdInfo);
}

fn exit_info(pidfd: &OwnedFd) -> Option<ExitStatus> {
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
    // SAFETY: `info` is the structure whose size the request number carries, and outlives the call.
    let answered = unsafe { ioctl::pidfd_get_info(pidfd.as_raw_fd(), &raw mut info) }.is_ok();
    (answered && info.mask & PIDFD_INFO_EXIT != 0)
        .then(|| ExitStatus::from_wait_status(info.exit_code))
        .flatten()
}

fn peek_child(pidfd: &OwnedFd) -> Option<ExitStatus> {
    // SAFETY: an all-zero siginfo_t is valid.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let id = libc::id_t::try_from(pidfd.as_raw_fd()).ok()?;
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` is writable and outlives the call.
    if unsafe { libc::waitid(libc::P_PIDFD, id, &raw mut info, flags) } != 0 {
        return None;
    }
    // SAFETY: waitid filled the fields of SIGCHLD, or left zeroes.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    if pid == 0 {
        return None;
    }
    match info.si_code {
        libc::CLD_EXITED => Some(ExitStatus::Exited(status)),
        libc::CLD_KILLED | libc::CLD_DUMPED => Some(ExitStatus::Signaled(status)),
        _ => None,
    }
}
