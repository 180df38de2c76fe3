//! Children that act inside the node's namespaces: they join the pin's, or, where no pin is left, a new user
//! namespace with the same ids, between fork and exec, because setns(2) into a user namespace is refused to a
//! process with threads.

use super::fault::{fail, io_fail};
use crate::keeper::{
    idmap::map_ids,
    namespace::{Kind, open_namespace},
};
use holdfast_core::{
    error::{Class, ContainerError},
    id::ProcessRef,
};
use std::{
    ffi::OsStr,
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};
use tokio::{
    io::AsyncReadExt,
    process::{Child, Command},
};

/// The most that is kept of what a tool says.
const OUTPUT_BYTES_MAX: u64 = 64 * 1024;
/// How long the ids of a new user namespace may take to be mapped.
const MAP_DEADLINE: Duration = Duration::from_secs(15);
/// The environment of every tool.
const TOOL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Where a child acts.
#[derive(Debug)]
pub(crate) enum Inside {
    /// In the namespaces of the pin, by descriptors in the order in which they are entered.
    Pin(Vec<(OwnedFd, libc::c_int)>),
    /// In a new user and mount namespace, in which the same ids mean the same.
    Mapped,
}

impl Inside {
    /// The namespaces of exactly this pin; a new user namespace without one.
    ///
    /// # Errors
    /// `Transient` when the pin is dead (another takes its place), `Denied` when procfs does not let its namespaces be opened.
    pub(crate) fn of(pin: Option<&ProcessRef>) -> Result<Self, ContainerError> {
        let Some(pin) = pin else { return Ok(Self::Mapped) };
        let mut fds = Vec::with_capacity(Kind::ENTER_ORDER.len());
        for kind in Kind::ENTER_ORDER {
            let fd = open_namespace(pin, kind)
                .map_err(|error| io_fail("open a namespace of", format!("the pin ({pin})"), error))?
                .ok_or_else(|| {
                    fail(
                        Class::Transient,
                        "enter the namespaces of",
                        format!("the pin ({pin})"),
                        "it is dead",
                    )
                })?;
            fds.push((fd, kind.clone_flag().bits()));
        }
        Ok(Self::Pin(fds))
    }

    /// A command with a clean environment, no stdin, and only those descriptors that are named.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>, inherited: &[RawFd]) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", TOOL_PATH).current_dir("/").stdin(Stdio::null());
        let inherited = inherited.to_vec();
        let namespaces: Vec<(RawFd, libc::c_int)> = match self {
            Self::Pin(fds) => fds.iter().map(|(fd, flag)| (fd.as_raw_fd(), *flag)).collect(),
            Self::Mapped => Vec::new(),
        };
        // SAFETY: between fork and exec only async-signal-safe calls (setns, fcntl, umask) on memory allocated before;
        // the descriptors stay open because `self` outlives the spawn (see `spawn`).
        unsafe {
            command.pre_exec(move || {
                for (fd, flag) in &namespaces {
                    if libc::setns(*fd, *flag) != 0 {
                        return Err(io::Error::last_os_error());
                    }
                }
                for fd in &inherited {
                    if libc::fcntl(*fd, libc::F_SETFD, 0) != 0 {
                        return Err(io::Error::last_os_error());
                    }
                }
                libc::umask(0o022);
                Ok(())
            });
        }
        command
    }

    /// Starts a command made by [`Self::command`].
    ///
    /// # Errors
    /// What fork, setns or exec said, named after the program.
    pub(crate) async fn spawn(&self, mut command: Command) -> Result<Child, ContainerError> {
        let program = command.as_std().get_program().to_string_lossy().into_owned();
        let started = match self {
            Self::Pin(_) => command.spawn(),
            Self::Mapped => spawn_mapped(command).await?,
        };
        started.map_err(|error| {
            let fault = io_fail("run", &program, error);
            match fault.class {
                Class::Missing => fault
                    .with_remedy("install it, or correct its path; `holdfast doctor` lists what is needed"),
                _ => fault,
            }
        })
    }

    /// Runs a command to its end and returns how it ended and what it said on stdout and stderr.
    ///
    /// # Errors
    /// As [`Self::spawn`]; `Unknown` when it was not done in time and was killed.
    pub(crate) async fn run(&self, mut command: Command, deadline: Duration) -> Result<Ran, ContainerError> {
        let program = command.as_std().get_program().to_string_lossy().into_owned();
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = self.spawn(command).await?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let work = async {
            let (status, stdout, stderr) = tokio::join!(child.wait(), read_some(out), read_some(err));
            status.map(|status| Ran { status, stdout, stderr })
        };
        match tokio::time::timeout(deadline, work).await {
            Ok(ran) => ran.map_err(|error| io_fail("wait for", &program, error)),
            Err(_) => {
                // Killed and reaped here, so that it cannot act later.
                let _ = child.kill().await;
                Err(fail(Class::Unknown, "run", program, format!("not done after {} s", deadline.as_secs())))
            }
        }
    }

    /// Runs one of this binary's hidden subcommands; see [`super::internal_main`].
    ///
    /// # Errors
    /// As [`Self::run`], and what the subcommand reports.
    pub(crate) async fn internal(
        &self,
        exe: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        stdin: Option<OwnedFd>,
        subject: &str,
        deadline: Duration,
    ) -> Result<Vec<u8>, ContainerError> {
        let mut command = self.command(exe, &[]);
        command.arg("internal").args(arguments);
        if let Some(fd) = stdin {
            command.stdin(Stdio::from(fd));
        }
        let ran = self.run(command, deadline).await?;
        if ran.status.success() {
            return Ok(ran.stdout);
        }
        Err(super::internal::reported(&ran.stderr, subject)
            .unwrap_or_else(|| fail(Class::Fatal, "act inside for", subject, ran.said())))
    }
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ran {
    /// Exit status.
    pub(crate) status: ExitStatus,
    /// What it printed, bounded.
    pub(crate) stdout: Vec<u8>,
    /// What it complained of, bounded.
    pub(crate) stderr: Vec<u8>,
}

impl Ran {
    /// Its complaint, or its status where it said nothing.
    pub(crate) fn said(&self) -> String {
        let text = String::from_utf8_lossy(&self.stderr);
        match text.trim() {
            "" => self.status.to_string(),
            text => text.to_owned(),
        }
    }
}

/// Reads up to a bound, then reads on and forgets, so that the writer never blocks.
async fn read_some(pipe: Option<impl tokio::io::AsyncRead + Unpin>) -> Vec<u8> {
    let mut kept = Vec::new();
    let Some(mut pipe) = pipe else { return kept };
    let _ = (&mut pipe).take(OUTPUT_BYTES_MAX).read_to_end(&mut kept).await;
    let _ = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await;
    kept
}

/// Starts a command in a new user and mount namespace: the child unshares, says its pid, and waits until its ids are
/// mapped before it execs, so that it execs as root of the namespace.
async fn spawn_mapped(mut command: Command) -> Result<io::Result<Child>, ContainerError> {
    let pipe = || {
        nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)
            .map_err(|error| io_fail("make", "a pipe", error.into()))
    };
    let ((ready_read, ready_write), (go_read, go_write)) = (pipe()?, pipe()?);
    let (ready, go, go_parent) = (ready_write.as_raw_fd(), go_read.as_raw_fd(), go_write.as_raw_fd());
    // SAFETY: only async-signal-safe calls (unshare, getpid, write, read, close) on plain integers.
    unsafe {
        command.pre_exec(move || {
            // This copy of the other end would keep the read below from ever seeing that the parent is gone.
            libc::close(go_parent);
            if libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) != 0 {
                return Err(io::Error::last_os_error());
            }
            let pid = libc::getpid().to_ne_bytes();
            let mut byte = 0u8;
            if libc::write(ready, pid.as_ptr().cast(), pid.len()) != pid.len().cast_signed()
                || libc::read(go, (&raw mut byte).cast(), 1) != 1
            {
                return Err(io::Error::from_raw_os_error(libc::EPIPE));
            }
            Ok(())
        });
    }
    // spawn() comes back after the exec, and the exec waits for the mapping.
    let spawning = tokio::task::spawn_blocking(move || {
        let child = command.spawn();
        drop((ready_write, go_read));
        child
    });
    let mapped = tokio::time::timeout(MAP_DEADLINE, async {
        let mut ready = tokio::net::unix::pipe::Receiver::from_owned_fd(ready_read)
            .map_err(|error| io_fail("watch", "a pipe", error))?;
        let mut pid = [0u8; 4];
        match ready.read_exact(&mut pid).await {
            Ok(_) => map_ids(u32::from_ne_bytes(pid)).await.map_err(|error| ContainerError {
                class: error.class,
                action: error.action,
                subject: error.subject,
                cause: error.cause,
                remedy: error.remedy,
            }),
            // The child failed before; spawn() says how.
            Err(_) => Ok(()),
        }
    })
    .await
    .unwrap_or_else(|_| {
        Err(fail(Class::Transient, "map the ids of", "a new user namespace", "not done in time"))
    });
    if mapped.is_ok() {
        let _ = nix::unistd::write(&go_write, b"g");
    }
    drop(go_write);
    let child = spawning.await.map_err(|error| fail(Class::Fatal, "start", "a child", error))?;
    mapped.map(|()| child)
}
