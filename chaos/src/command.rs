//! Running a command with a deadline and bounded output.

use anyhow::{Context, Result, bail};
use std::{
    io::{self, Read},
    os::fd::{AsFd, FromRawFd, OwnedFd},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, sync_channel},
    time::{Duration, Instant},
};

/// The most that is kept of each output stream, in bytes.
const OUTPUT_BYTES_MAX: u64 = 16 << 20;

/// How long an output stream may stay open after its process ended: whoever holds it then inherited it.
const INHERITED_OUTPUT_GRACE: Duration = Duration::from_secs(2);

/// How a command ended and what it said.
#[derive(Clone, Debug)]
pub struct Output {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// How long it took.
    pub elapsed: Duration,
}

impl Output {
    /// The output, if it succeeded.
    ///
    /// # Errors
    /// Names the command, its status and what it said.
    pub fn success(self, what: &str) -> Result<String> {
        if self.status.success() {
            return Ok(self.stdout);
        }
        let said = if self.stderr.trim().is_empty() { self.stdout.trim() } else { self.stderr.trim() };
        bail!("{what}: {}: {said}", self.status)
    }
}

/// Runs a command to its end.
///
/// # Errors
/// When it cannot be started, does not end in time (it is killed), or leaves its output open to a descendant.
pub fn run(command: &mut Command, deadline: Duration) -> Result<Output> {
    let what = describe(command);
    let started = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("start {what}"))?;
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let status = wait(&mut child, deadline).with_context(|| what.clone())?;
    let elapsed = started.elapsed();
    let stdout = receive(&stdout).with_context(|| format!("{what}: standard output"))?;
    let stderr = receive(&stderr).with_context(|| format!("{what}: standard error"))?;
    Ok(Output { status, stdout, stderr, elapsed })
}

/// Waits for a child; kills it when the deadline has passed.
///
/// # Errors
/// When the deadline has passed, and when the kernel refuses to wait.
pub fn wait(child: &mut Child, deadline: Duration) -> Result<ExitStatus> {
    if let Some(status) = child.try_wait()? {
        return Ok(status);
    }
    // SAFETY: pidfd_open(2) takes a pid and flags and returns a new descriptor or -1; no memory is involved.
    let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) };
    if raw < 0 {
        return Err(io::Error::last_os_error()).context("pidfd_open");
    }
    // SAFETY: the kernel has just returned this descriptor, and nobody else owns it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(raw as i32) };
    let until = Instant::now() + deadline;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = nix::poll::PollTimeout::try_from(left).unwrap_or(nix::poll::PollTimeout::MAX);
        let mut fds = [nix::poll::PollFd::new(pidfd.as_fd(), nix::poll::PollFlags::POLLIN)];
        match nix::poll::poll(&mut fds, timeout) {
            Ok(0) if left.is_zero() => {
                child.kill()?;
                child.wait()?;
                bail!("did not end within {:.1} s and was killed", deadline.as_secs_f64());
            }
            Ok(0) | Err(nix::errno::Errno::EINTR) => {}
            Ok(_) => return Ok(child.wait()?),
            Err(errno) => return Err(errno).context("poll"),
        }
    }
}

/// The command as a person would type it, without its environment.
pub fn describe(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let mut text = program.file_name().unwrap_or(command.get_program()).to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

fn collect(stream: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = sync_channel(1);
    if let Some(stream) = stream {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // What arrived before a read error is all there is to say about it.
            let _ = stream.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
            // The receiver is gone when the command timed out: nobody wants the text then.
            let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
        });
    }
    receiver
}

fn receive(stream: &Receiver<String>) -> Result<String> {
    stream
        .recv_timeout(INHERITED_OUTPUT_GRACE)
        .context("still open after the command ended: a process that it left behind has inherited it")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn a_command_that_hangs_is_killed_at_its_deadline() {
        let started = Instant::now();
        let error = run(Command::new("sleep").arg("60"), Duration::from_millis(50)).unwrap_err();
        assert!(format!("{error:#}").contains("sleep 60: did not end within"), "{error:#}");
        assert!(started.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn output_that_a_descendant_holds_open_is_an_error() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 5 & echo said"]);
        let error = run(&mut command, Duration::from_secs(5)).unwrap_err();
        assert!(format!("{error:#}").contains("inherited"), "{error:#}");
    }

    #[test]
    fn a_failure_tells_what_was_said() {
        let output =
            run(Command::new("sh").args(["-c", "echo no >&2; exit 3"]), Duration::from_secs(5)).unwrap();
        let error = output.success("try").unwrap_err();
        assert_eq!(error.to_string(), "try: exit status: 3: no");
    }
}
