//! A further process in a running container: `crun exec` with the session's own pipes or terminal.

use super::{
    LinuxContainers,
    fault::{class_of_text, fail, io_fail},
    joined::Inside,
    spec::{self, ProcessPlan},
};
use holdfast_core::{
    error::{Class, ContainerError},
    id::{ContainerId, ProcessRef},
};
use std::{
    io::{self, IoSliceMut},
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    path::{Path, PathBuf},
    pin::Pin,
    process::Stdio,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf, unix::AsyncFd},
    net::UnixListener,
    process::{Child, ChildStderr, ChildStdin, ChildStdout},
    sync::{mpsc, oneshot},
};

/// How long crun may take to hand over the terminal.
const TERMINAL_DEADLINE: Duration = Duration::from_secs(10);
/// How long a killed session may take to end.
const KILL_DEADLINE: Duration = Duration::from_secs(15);
/// Names tried for a session's directory; a name is taken only by what a killed daemon of the same pid left.
const NAMES_TRIED_MAX: u64 = 10_000;

/// What to run in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecSpec {
    /// Argument vector, exact, never through a shell.
    pub argv: Vec<String>,
    /// Environment; a later entry of a name wins. `PATH` gets a default.
    pub env: Vec<(String, String)>,
    /// Absolute working directory in the container.
    pub working_dir: String,
    /// Numeric user and group in the container.
    pub user: (u32, u32),
    /// A terminal of (rows, columns) in place of pipes.
    pub tty: Option<(u16, u16)>,
    /// Whether stdin is a pipe; otherwise it is empty. With a terminal there is always an input.
    pub stdin: bool,
    /// What it may do less, or more, than others: as its container.
    pub security: holdfast_core::spec::Security,
}

/// A running exec. Dropping it kills the process.
#[derive(Debug)]
pub struct ExecSession {
    /// Its stdin, where one was asked for and there is no terminal. Dropping it is the end of the input.
    pub stdin: Option<ChildStdin>,
    /// Its stdout, without a terminal.
    pub stdout: Option<ChildStdout>,
    /// Its stderr, without a terminal.
    pub stderr: Option<ChildStderr>,
    /// Its terminal.
    pub terminal: Option<Terminal>,
    exit: oneshot::Receiver<Result<i32, ContainerError>>,
    kill: mpsc::Sender<()>,
    subject: String,
}

impl ExecSession {
    /// The exit code, 128 + signal for a death by signal. Take the streams out first, and read them meanwhile: the
    /// process waits for a full pipe to be read. Cancel-safe.
    ///
    /// # Errors
    /// What crun said where the process could not be started (`Missing` for a command that is not there).
    pub async fn wait(&mut self) -> Result<i32, ContainerError> {
        (&mut self.exit).await.unwrap_or_else(|_| {
            Err(fail(Class::Unknown, "exec in", &self.subject, "its exit code was taken already"))
        })
    }

    /// Kills the process and everything it started that did not detach itself into the container; [`Self::wait`] tells
    /// when it is gone.
    pub fn kill(&self) {
        // Full means that it is being killed already, closed that it is dead.
        let _ = self.kill.try_send(());
    }
}

impl LinuxContainers {
    /// Runs a process in a running container.
    ///
    /// # Errors
    /// `Missing` when the container does not run or the pin is dead; I/O errors.
    pub async fn exec(
        &self,
        id: &ContainerId,
        pin: &ProcessRef,
        exec: &ExecSpec,
    ) -> Result<ExecSession, ContainerError> {
        let directory = SessionDirectory::create(&self.paths.runtime)
            .map_err(|error| io_fail("exec in", id.as_str(), error))?;
        let plan = ProcessPlan {
            argv: &exec.argv,
            env: &exec.env,
            working_dir: &exec.working_dir,
            user: exec.user,
            terminal: exec.tty.is_some(),
            security: &exec.security,
        };
        let process =
            spec::process(&plan).map_err(|error| fail(Class::Fatal, "exec in", id.as_str(), error))?;
        serde_json::to_vec(&process)
            .map_err(io::Error::from)
            .and_then(|text| std::fs::write(directory.file("process.json"), text))
            .map_err(|error| io_fail("exec in", id.as_str(), error))?;
        let listener = exec
            .tty
            .is_some()
            .then(|| UnixListener::bind(directory.file("tty")))
            .transpose()
            .map_err(|error| io_fail("listen for the terminal of", id.as_str(), error))?;
        let mut child = self.spawn_exec(id, pin, exec, &directory).await?;
        let streams = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (kill, killed) = mpsc::channel(1);
        let (tell, mut exit) = oneshot::channel();
        tokio::spawn(attend(child, directory, killed, tell, id.to_string()));
        let terminal = match (listener, exec.tty) {
            (Some(listener), Some(size)) => Some(tokio::select! {
                terminal = receive_terminal(&listener, size) => {
                    terminal.map_err(|error| io_fail("get the terminal of", id.as_str(), error))?
                }
                ended = &mut exit => {
                    let cause = match ended {
                        Ok(Err(error)) => return Err(error),
                        Ok(Ok(code)) => format!("crun ended with {code} before it handed over a terminal"),
                        Err(_) => "crun ended before it handed over a terminal".to_owned(),
                    };
                    return Err(fail(Class::Fatal, "exec in", id.as_str(), cause));
                }
            }),
            _ => None,
        };
        let (stdin, stdout, stderr) = streams;
        Ok(ExecSession { stdin, stdout, stderr, terminal, exit, kill, subject: id.to_string() })
    }

    async fn spawn_exec(
        &self,
        id: &ContainerId,
        pin: &ProcessRef,
        exec: &ExecSpec,
        directory: &SessionDirectory,
    ) -> Result<Child, ContainerError> {
        let inside = Inside::of(Some(pin))?;
        let mut command = inside.command(&self.tools.exe, &[]);
        command.args(["internal", "supervise"]).arg(&self.tools.crun).args(self.crun_options());
        command.arg("--log").arg(directory.file("log")).arg("exec");
        command
            .arg("--process")
            .arg(directory.file("process.json"))
            .arg("--pid-file")
            .arg(directory.file("pid"));
        if exec.tty.is_some() {
            command.arg("--tty").arg("--console-socket").arg(directory.file("tty"));
            command.stdout(Stdio::null()).stderr(Stdio::null());
        } else {
            command.stdin(if exec.stdin { Stdio::piped() } else { Stdio::null() });
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        command.arg(id.as_str());
        inside.spawn(command).await
    }
}

/// Waits for a session's supervisor, ends it when that is asked for or when the session is dropped, and tells how the
/// process ended. Owns the child: nothing stays a zombie.
async fn attend(
    mut child: Child,
    directory: SessionDirectory,
    mut killed: mpsc::Receiver<()>,
    tell: oneshot::Sender<Result<i32, ContainerError>>,
    subject: String,
) {
    let status = tokio::select! {
        status = child.wait() => status,
        // A message, or the sender is gone with its session.
        _ = killed.recv() => end(&mut child).await,
    };
    let result = match status {
        Err(error) => Err(io_fail("wait for the exec in", &subject, error)),
        Ok(status) => match (directory.file("pid").exists(), status.code()) {
            (true, Some(code)) => Ok(code),
            (true, None) => Ok(128 + libc::SIGKILL),
            (false, code) => {
                let log = std::fs::read_to_string(directory.file("log")).unwrap_or_default();
                let said = match log.trim() {
                    "" => format!("crun ended with {code:?} and said nothing"),
                    said => said.to_owned(),
                };
                Err(fail(class_of_text(&said), "exec in", &subject, said))
            }
        },
    };
    // The session may be gone: then nobody asks.
    let _ = tell.send(result);
}

/// SIGTERM makes the supervisor kill everything below it.
async fn end(child: &mut Child) -> io::Result<std::process::ExitStatus> {
    if let Some(pid) = child.id() {
        // Not reaped yet, so the pid is still the child's.
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid.cast_signed()),
            nix::sys::signal::Signal::SIGTERM,
        );
    }
    match tokio::time::timeout(KILL_DEADLINE, child.wait()).await {
        Ok(status) => status,
        Err(_) => {
            child.start_kill()?;
            child.wait().await
        }
    }
}

/// The files of one session; gone with it.
#[derive(Debug)]
struct SessionDirectory(PathBuf);

impl SessionDirectory {
    /// A new directory below the runtime directory, short enough for the terminal's socket.
    fn create(runtime: &Path) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        for _ in 0..NAMES_TRIED_MAX {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = runtime.join(format!("exec-{}-{number}", std::process::id()));
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("no free name for the session's directory"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for SessionDirectory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "files of an exec could not be removed");
        }
    }
}

/// The master end of an exec's terminal. Reads end (0 bytes) when the last process has closed it.
#[derive(Debug)]
pub struct Terminal(AsyncFd<OwnedFd>);

nix::ioctl_write_ptr_bad!(set_window_size, libc::TIOCSWINSZ, libc::winsize);

impl Terminal {
    /// Sets its size; ioctl_tty(2). The foreground process gets SIGWINCH.
    ///
    /// # Errors
    /// As ioctl(2).
    pub fn resize(&self, rows: u16, columns: u16) -> io::Result<()> {
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the descriptor is open, and `size` is the structure of this request and outlives the call.
        unsafe { set_window_size(self.0.get_ref().as_raw_fd(), &raw const size) }?;
        Ok(())
    }
}

impl AsyncRead for Terminal {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(context))?;
            let unfilled = buffer.initialize_unfilled();
            match guard.try_io(|fd| Ok(nix::unistd::read(fd, unfilled)?)) {
                Ok(Ok(count)) => {
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                // EIO: no process has the other end open; tty(4).
                Ok(Err(error)) if error.raw_os_error() == Some(libc::EIO) => return Poll::Ready(Ok(())),
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => {}
            }
        }
    }
}

impl AsyncWrite for Terminal {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_write_ready(context))?;
            if let Ok(result) = guard.try_io(|fd| Ok(nix::unistd::write(fd, bytes)?)) {
                return Poll::Ready(result);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// crun connects to the console socket and sends the master's descriptor.
async fn receive_terminal(listener: &UnixListener, size: (u16, u16)) -> io::Result<Terminal> {
    let receive = async {
        let (stream, _) = listener.accept().await?;
        loop {
            stream.readable().await?;
            match stream.try_io(tokio::io::Interest::READABLE, || receive_descriptor(stream.as_raw_fd())) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return received,
            }
        }
    };
    let fd = tokio::time::timeout(TERMINAL_DEADLINE, receive)
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let flags = nix::fcntl::OFlag::from_bits_retain(nix::fcntl::fcntl(&fd, nix::fcntl::FcntlArg::F_GETFL)?);
    nix::fcntl::fcntl(&fd, nix::fcntl::FcntlArg::F_SETFL(flags | nix::fcntl::OFlag::O_NONBLOCK))?;
    // SAFETY: an OwnedFd stays the same open descriptor until it is dropped, and Terminal never takes it out.
    let terminal = Terminal(unsafe { AsyncFd::register(fd) }.map_err(io::Error::from)?);
    terminal.resize(size.0, size.1)?;
    Ok(terminal)
}

fn receive_descriptor(socket: RawFd) -> io::Result<OwnedFd> {
    use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
    let mut name = [0u8; 4096];
    let mut space = nix::cmsg_space!([RawFd; 1]);
    let mut vector = [IoSliceMut::new(&mut name)];
    let message = recvmsg::<()>(socket, &mut vector, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = control
            && let Some(fd) = fds.first()
        {
            // SAFETY: the kernel just made this descriptor for this message, and nothing else owns it.
            return Ok(unsafe { OwnedFd::from_raw_fd(*fd) });
        }
    }
    Err(io::Error::other("crun sent no descriptor"))
}
