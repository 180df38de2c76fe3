//! Starts a pin and knows it before it may sleep.

use super::{
    namespace::{Kind, namespace_kind, namespaces_of},
    pin_channel,
};
use crate::process::{process_ref, reap_in_background};
use holdfast_core::{
    error::{Class, KeeperError},
    world::PinStarted,
};
use std::{
    ffi::OsStr,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream as StdUnixStream,
    },
    path::Path,
    process::Stdio,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    process::{Child, Command},
};

/// How long a pin may take to be ready. It takes about 3 ms; the ids are mapped by two tools with deadlines of
/// their own.
const READY_DEADLINE: Duration = Duration::from_secs(15);
/// The longest reason a failing pin may give, in bytes.
const CAUSE_BYTES_MAX: u64 = 4096;

/// What a new pin is to hold.
#[derive(Debug, Default)]
pub struct PinRequest {
    /// Namespaces to enter; their order is decided here.
    pub join: Vec<OwnedFd>,
    /// Namespaces to make.
    pub create: Vec<Kind>,
}

impl PinRequest {
    fn describe(&self) -> String {
        let join: Vec<_> = self.join.iter().filter_map(namespace_kind).map(Kind::file_name).collect();
        let create: Vec<_> = self.create.iter().map(|kind| kind.file_name()).collect();
        format!("pin (joins [{}], makes [{}])", join.join(","), create.join(","))
    }
}

fn names(kinds: &[Kind]) -> String {
    kinds.iter().map(|kind| kind.file_name()).collect::<Vec<_>>().join(",")
}

/// Starts a pin and comes back when it is in its namespaces. A pin that fails, or is late, is killed.
///
/// # Errors
/// `Denied` or `Fatal` with what the pin said; `Transient` when the process could not be started.
pub async fn start_pin(exe: &Path, state: &Path, request: PinRequest) -> Result<PinStarted, KeeperError> {
    let subject = request.describe();
    let fail = |class, cause: String| KeeperError::new(class, "start", subject.clone(), cause);
    let (ours, theirs) = StdUnixStream::pair().map_err(|error| fail(Class::Exhausted, error.to_string()))?;
    let mut descriptors = request.join;
    descriptors.sort_by_key(|fd| Kind::ENTER_ORDER.iter().position(|kind| namespace_kind(fd) == Some(*kind)));
    let joined: Vec<Kind> = descriptors.iter().filter_map(namespace_kind).collect();
    if joined.len() != descriptors.len() {
        return Err(fail(Class::Fatal, "a descriptor is of no namespace".to_owned()));
    }
    let mut command = Command::new(exe);
    command.arg0("holdfast").arg("pin").args([OsStr::new("--state"), state.as_os_str()]);
    command.args(["--join", &names(&joined), "--unshare", &names(&request.create)]);
    // It outlives everything: it keeps nothing of the daemon's environment.
    command.env_clear().current_dir("/");
    command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().map_err(|error| fail(spawn_class(&error), error.to_string()));
    drop(command);
    let mut child = child?;
    let raw: Vec<_> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let sent = pin_channel::send_descriptors(&ours, &raw)
        .and_then(|()| ours.set_nonblocking(true))
        .and_then(|()| UnixStream::from_std(ours));
    let result = match sent {
        Ok(channel) => {
            match tokio::time::timeout(READY_DEADLINE, converse(&child, channel, &subject)).await {
                Ok(result) => result,
                Err(_) => {
                    Err(fail(Class::Transient, format!("not ready after {} s", READY_DEADLINE.as_secs())))
                }
            }
        }
        Err(error) => Err(fail(Class::Transient, error.to_string())),
    };
    if result.is_err() {
        // It ignores everything else; dead already is fine too.
        let _ = child.start_kill();
    }
    reap_in_background(child);
    result
}

fn spawn_class(error: &std::io::Error) -> Class {
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE) => Class::Exhausted,
        _ => Class::Fatal,
    }
}

async fn converse(child: &Child, mut channel: UnixStream, subject: &str) -> Result<PinStarted, KeeperError> {
    let fail = |class, cause: String| KeeperError::new(class, "start", subject, cause);
    let pid = child.id().ok_or_else(|| fail(Class::Transient, "it ended at once".to_owned()))?;
    loop {
        let said = channel.read_u8().await;
        match said {
            Ok(pin_channel::ASK_FOR_MAP) => {
                super::idmap::map_ids(pid).await?;
                write(&mut channel, pin_channel::MAPPED)
                    .await
                    .map_err(|error| fail(Class::Transient, error.to_string()))?;
            }
            Ok(pin_channel::READY) => break,
            Ok(pin_channel::FAILED) => {
                let mut cause = String::new();
                // What can be read of the reason is the reason.
                let _ = channel.take(CAUSE_BYTES_MAX).read_to_string(&mut cause).await;
                return Err(classify_failure(fail(Class::Fatal, cause)));
            }
            Ok(byte) => return Err(fail(Class::Fatal, format!("it said {byte}: is it another build?"))),
            Err(error) => {
                return Err(fail(Class::Transient, format!("it ended before it was ready ({error})")));
            }
        }
    }
    let found = process_ref(pid)
        .and_then(|process| match process {
            None => Ok(None),
            Some(process) => {
                Ok(namespaces_of(&process)?.map(|namespaces| PinStarted { process, namespaces }))
            }
        })
        .map_err(|error| fail(Class::Fatal, error.to_string()))?;
    let started = found.ok_or_else(|| fail(Class::Transient, "it died when it was ready".to_owned()))?;
    write(&mut channel, pin_channel::GO).await.map_err(|error| fail(Class::Transient, error.to_string()))?;
    // What it does from here on, dropping its memory and descriptors, nobody has to wait for.
    Ok(started)
}

async fn write(channel: &mut UnixStream, byte: u8) -> std::io::Result<()> {
    channel.write_all(&[byte]).await
}

fn classify_failure(mut error: KeeperError) -> KeeperError {
    if error.cause.contains("unshare user") {
        error.class = Class::Denied;
        return error.with_remedy(
            "allow unprivileged user namespaces: sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns",
        );
    }
    if error.cause.contains("EPERM") {
        error.class = Class::Denied;
    } else if error.cause.contains("ENOSPC") {
        error.class = Class::Exhausted;
        return error.with_remedy("raise the limits below /proc/sys/user/max_*_namespaces");
    }
    error
}
