//! Starts slirp4netns in the router of a pin.

use super::{Api, MTU_BYTES, TAP_NAME, UplinkConfig, serves_another};
use crate::{
    keeper::{close_on_exec, namespace::namespaces_of, stale},
    paths::Paths,
    process::{ProcessWatch, process_ref, reap_in_background},
};
use holdfast_core::{
    error::{Class, UplinkError},
    id::ProcessRef,
};
use std::{
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tokio::{io::AsyncReadExt, net::unix::pipe, process::Command};

/// How long the helper may take until its tap is up; it takes 3 to 5 ms.
const READY_DEADLINE: Duration = Duration::from_secs(5);
/// Between two looks at an API that does not answer yet.
const API_POLL: Duration = Duration::from_millis(2);
/// `PR_SET_PTRACER_ANY` of include/uapi/linux/prctl.h.
const ANY_TRACER: libc::c_ulong = libc::c_ulong::MAX;

fn log_path(paths: &Paths) -> PathBuf {
    paths.runtime.join("uplink.log")
}

/// Cuts the helper's log when it has grown too large; the helper appends to it.
pub(super) fn bound_log(paths: &Paths) {
    let path = log_path(paths);
    let too_large = std::fs::metadata(&path).is_ok_and(|log| log.len() > stale::LOG_BYTES_MAX);
    if !too_large {
        return;
    }
    if let Err(error) = std::fs::File::options().write(true).truncate(true).open(&path) {
        tracing::warn!(path = %path.display(), %error, "a log that is too large cannot be cut");
    }
}

pub(super) async fn start(
    paths: &Paths,
    config: &UplinkConfig,
    api: &Api,
    pin: &ProcessRef,
) -> Result<ProcessRef, UplinkError> {
    let fail = |class, cause: String| UplinkError::new(class, "start", "slirp4netns", cause);
    let namespaces = namespaces_of(pin)
        .map_err(|error| fail(Class::Denied, format!("pin ({pin}): {error}")))?
        .ok_or_else(|| fail(Class::Transient, format!("pin ({pin}) is dead")))?;
    // One that answers and serves this router is what was asked for; a second would find the tap busy.
    if let Ok((_, Some(serving))) = api.list().await
        && serves_another(&serving, Some(namespaces.net)).is_none()
    {
        return Ok(serving);
    }
    let io = |error: std::io::Error| fail(Class::Transient, error.to_string());
    stale::clear_path(api.socket()).map_err(io)?;
    let log_path = log_path(paths);
    let log = stale::open_log(&log_path).map_err(io)?;
    let (ready, ready_sender) =
        nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC | nix::fcntl::OFlag::O_NONBLOCK)
            .map_err(|error| fail(Class::Exhausted, error.to_string()))?;
    let ready = pipe::Receiver::from_owned_fd(ready).map_err(io)?;
    let mut command = command(config, api.socket(), pin, &ready_sender);
    command.stdout(Stdio::from(log.try_clone().map_err(io)?)).stderr(Stdio::from(log));
    hand_ready_descriptor(&mut command, ready_sender);
    let mut child = command.spawn().map_err(|error| {
        fail(Class::Denied, format!("{}: {error}", config.program.display()))
            .with_remedy("install the package slirp4netns")
    })?;
    // Its copy of the pipe's writing end: without this the pipe never ends when the helper does.
    drop(command);
    let process = child.id().map(process_ref).and_then(Result::ok).flatten();
    let result = match &process {
        Some(process) => await_ready(process, ready, api).await,
        None => Err("it ended at once".to_owned()),
    };
    let result = result.and_then(|()| match process {
        Some(process) => match serves_another(&process, Some(namespaces.net)) {
            None => Ok(process),
            Some(cause) => Err(cause),
        },
        None => Err("it ended at once".to_owned()),
    });
    if result.is_err() {
        // One that nobody knows of must not live on.
        let _ = child.start_kill();
    }
    reap_in_background(child);
    result.map_err(|cause| {
        fail(Class::Transient, format!("{cause}{}", stale::log_tail(&log_path)))
            .with_remedy(format!("see {}; is /dev/net/tun open to this user?", log_path.display()))
    })
}

fn command(config: &UplinkConfig, socket: &Path, pin: &ProcessRef, ready: &OwnedFd) -> Command {
    let mut command = Command::new(&config.program);
    command.arg("--configure").arg(format!("--mtu={MTU_BYTES}"));
    command.arg("--api-socket").arg(socket).arg(format!("--ready-fd={}", ready.as_raw_fd()));
    command.arg(format!("--userns-path=/proc/{}/ns/user", pin.pid)).arg("--netns-type=path");
    command.arg(format!("/proc/{}/ns/net", pin.pid)).arg(TAP_NAME);
    command.stdin(Stdio::null()).current_dir("/");
    command
}

fn hand_ready_descriptor(command: &mut Command, sender: OwnedFd) {
    let setup = move || {
        nix::unistd::setsid()?;
        close_on_exec()?;
        // SAFETY: integers only. Where Yama restricts ptrace(2) this lets a later daemon find the router through
        // the helper's tap; elsewhere it is refused, which is as well.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, ANY_TRACER, 0, 0, 0) };
        // Under its own number: any fixed one may be in use here, by the standard library too.
        // SAFETY: integers only; the descriptor is the closure's own.
        let result = unsafe { libc::fcntl(sender.as_raw_fd(), libc::F_SETFD, 0) };
        if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: the closure runs in the forked child and makes system calls only: it neither allocates nor locks.
    unsafe { command.pre_exec(setup) };
}

async fn await_ready(process: &ProcessRef, mut ready: pipe::Receiver, api: &Api) -> Result<(), String> {
    let watch = ProcessWatch::open(process).map_err(|error| error.to_string())?.ok_or("it ended at once")?;
    let serving = async {
        let mut byte = [0u8];
        match ready.read(&mut byte).await {
            Ok(1) => {}
            Ok(_) => std::future::pending().await,
            Err(error) => return Err(error.to_string()),
        }
        loop {
            match api.list().await {
                Ok(_) => break,
                // Not bound yet.
                Err(error) if error.had_no_effect() => tokio::time::sleep(API_POLL).await,
                Err(error) => return Err(format!("its API: {error}")),
            }
        }
        Ok(())
    };
    tokio::select! {
        biased;
        result = serving => result,
        _ = watch.exited() => Err(match watch.exit_status() {
            Some(status) => format!("it ended with status {}", status.code()),
            None => "it ended".to_owned(),
        }),
        () = tokio::time::sleep(READY_DEADLINE) => Err(format!("not ready after {} s", READY_DEADLINE.as_secs())),
    }
}
