//! Starts the daemon when none answers.

use super::client;
use crate::node::{EXIT_LOCKED, log_path};
use anyhow::{Context, bail};
use holdfast_linux::paths::Paths;
use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    os::unix::{fs::OpenOptionsExt, process::CommandExt},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tokio::net::UnixStream;

/// How long a daemon may take from its start until it answers.
const START_DEADLINE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);
/// How much of the log's end an error shows, in bytes.
const LOG_TAIL_BYTES: u64 = 2048;

/// Starts a daemon and connects to it. Another command may do the same at the same time: one daemon wins.
///
/// # Errors
/// No daemon answers before the deadline; the error shows the end of its log.
pub async fn start(paths: &Paths, root: Option<&Path>) -> anyhow::Result<UnixStream> {
    paths.create().context("make the node's directories")?;
    let log = log_path(paths);
    let log_begin = std::fs::metadata(&log).map_or(0, |metadata| metadata.len());
    let deadline = Instant::now() + START_DEADLINE;
    let mut child = spawn(root, &log)?;
    loop {
        if client::answers(paths).await
            && let Ok(stream) = UnixStream::connect(paths.daemon_socket()).await
        {
            return Ok(stream);
        }
        if let Some(status) = child.try_wait().context("look at the daemon")? {
            // The one that has the node may just be ending: then the next try gets it.
            if status.code() != Some(i32::from(EXIT_LOCKED)) {
                bail!("the daemon ended at its start ({status}){}", tail(&log, log_begin));
            }
            if Instant::now() < deadline {
                tokio::time::sleep(POLL * 20).await;
                child = spawn(root, &log)?;
            }
        }
        if Instant::now() >= deadline {
            bail!(
                "no daemon answers at {} within {} s; see {}{}",
                paths.daemon_socket().display(),
                START_DEADLINE.as_secs(),
                log.display(),
                tail(&log, log_begin)
            );
        }
        tokio::time::sleep(POLL).await;
    }
}

/// A daemon in a session of its own, with nothing of this process but the environment.
fn spawn(root: Option<&Path>, log: &Path) -> anyhow::Result<Child> {
    let exe = std::env::current_exe().context("find this program")?;
    let output = File::options()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(log)
        .with_context(|| format!("open {}", log.display()))?;
    let mut command = Command::new(exe);
    if let Some(root) = root {
        command.arg("--root").arg(root);
    }
    command.args(["daemon", "--detached"]).current_dir("/").stdin(Stdio::null());
    command.stdout(output.try_clone()?).stderr(output);
    // SAFETY: between fork and exec only setsid and close_range are called, both async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid()?;
            // Marked, not closed: the standard library reports a failed exec through one of them. A caller may
            // have left anything open: it must not live as long as the daemon.
            if libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    command.spawn().context("start the daemon")
}

fn tail(log: &Path, begin: u64) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(begin.min(length).max(length.saturating_sub(LOG_TAIL_BYTES))))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    match read() {
        Ok(text) if !text.is_empty() => format!(":\n{text}"),
        _ => String::new(),
    }
}
