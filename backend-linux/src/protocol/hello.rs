//! The hello: who is there, of which build, in which namespaces. Its form never changes; fields may be added.

use super::frame::{FrameError, read_frame, write_frame};
use crate::process::process_ref;
use holdfast_core::{id::ProcessRef, record::NamespaceIds};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde::{Deserialize, Serialize};
use std::{io, os::unix::fs::MetadataExt, path::Path, sync::OnceLock, time::Duration};
use tokio::net::UnixStream;

/// Says that the other side is a control at all.
pub(super) const MAGIC: &str = "holdfast-control";
/// Rises with every change of the messages.
pub const PROTOCOL_VERSION: u32 = 1;

/// Who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The daemon: the control notices when it dies.
    Daemon,
    /// Anything else of the same user.
    Tool,
}

/// The first frame of a connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ClientHello {
    pub magic: String,
    pub protocol: u32,
    pub build: String,
    pub role: Role,
}

/// The answer to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ServerHello {
    pub magic: String,
    pub protocol: u32,
    pub build: String,
    pub process: ProcessRef,
    pub namespaces: NamespaceIds,
}

/// A control that answered, of this build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The control, by the kernel's word and its own.
    pub process: ProcessRef,
    /// The namespaces it lives in.
    pub namespaces: NamespaceIds,
}

/// Why there is no greeting.
#[derive(Clone, Debug, thiserror::Error)]
pub enum GreetError {
    /// Nothing listens there.
    #[error("nothing listens: {0}")]
    Absent(String),
    /// Something accepted, or holds the socket, and did not answer in time.
    #[error("no answer in time")]
    Silent(Option<ProcessRef>),
    /// Something answered that is no control of this build.
    #[error("{1}")]
    Foreign(Option<ProcessRef>, String),
}

/// This build: version, size and time of the running executable. A rebuilt program is another build although
/// its version is the same.
pub fn build_id() -> &'static str {
    static BUILD: OnceLock<String> = OnceLock::new();
    BUILD.get_or_init(|| {
        let version = env!("CARGO_PKG_VERSION");
        match std::fs::metadata("/proc/self/exe") {
            Ok(file) => format!("{version}-{}-{}.{:09}", file.size(), file.mtime(), file.mtime_nsec()),
            Err(_) => version.to_owned(),
        }
    })
}

/// The uid and pid that the kernel knows of the other side: unix(7), `SO_PEERCRED`.
pub(super) fn peer(stream: &UnixStream) -> io::Result<(u32, Option<ProcessRef>)> {
    let credentials = getsockopt(stream, PeerCredentials)?;
    let process = u32::try_from(credentials.pid()).ok().map(process_ref).transpose()?.flatten();
    Ok((credentials.uid(), process))
}

/// Connects and exchanges hellos.
///
/// # Errors
/// See [`GreetError`].
pub async fn greet(
    socket: &Path,
    role: Role,
    deadline: Duration,
) -> Result<(UnixStream, Greeting), GreetError> {
    let mut known = None;
    let conversation = async {
        loop {
            match converse(socket, role, &mut known).await {
                // It ended the connection: it is going down, and the next try finds nobody or its successor.
                Err(GreetError::Silent(_)) => tokio::time::sleep(BACKLOG_RETRY).await,
                other => return other,
            }
        }
    };
    match tokio::time::timeout(deadline, conversation).await {
        Ok(result) => result,
        Err(_) => Err(GreetError::Silent(known)),
    }
}

/// Between two tries to get into a full backlog, or after a connection that was ended.
const BACKLOG_RETRY: Duration = Duration::from_millis(5);

async fn connect(socket: &Path) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(socket).await {
            // A full backlog: something holds the socket and does not accept. The caller's deadline bounds this.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(BACKLOG_RETRY).await
            }
            other => return other,
        }
    }
}

async fn converse(
    socket: &Path,
    role: Role,
    known: &mut Option<ProcessRef>,
) -> Result<(UnixStream, Greeting), GreetError> {
    let mut stream = connect(socket).await.map_err(|error| GreetError::Absent(error.to_string()))?;
    let foreign = |process: Option<ProcessRef>, cause: String| GreetError::Foreign(process, cause);
    let (uid, process) = peer(&stream).map_err(|error| foreign(None, error.to_string()))?;
    known.clone_from(&process);
    if uid != nix::unistd::getuid().as_raw() {
        return Err(foreign(process, format!("{} is served by uid {uid}", socket.display())));
    }
    let hello = ClientHello {
        magic: MAGIC.to_owned(),
        protocol: PROTOCOL_VERSION,
        build: build_id().to_owned(),
        role,
    };
    let answer = match write_frame(&mut stream, &hello).await {
        Ok(()) => read_frame::<ServerHello>(&mut stream).await,
        Err(error) => Err(error),
    };
    match answer {
        Ok(Some(answer)) => judge(answer, process, role).map(|greeting| (stream, greeting)),
        // It ended the connection: it is going down, or refuses everybody. If it lives it is silent.
        Ok(None) | Err(FrameError::Io(_)) => Err(GreetError::Silent(process)),
        Err(error) => Err(foreign(process, error.to_string())),
    }
}

fn judge(answer: ServerHello, peer: Option<ProcessRef>, role: Role) -> Result<Greeting, GreetError> {
    let wrong = |cause: String| Err(GreetError::Foreign(peer.clone(), cause));
    if answer.magic != MAGIC {
        return wrong("it is no control".to_owned());
    }
    if answer.protocol != PROTOCOL_VERSION {
        return wrong(format!("it speaks protocol {}, this build {PROTOCOL_VERSION}", answer.protocol));
    }
    if role == Role::Daemon && answer.build != build_id() {
        return wrong(format!("it is build {}, this is {}", answer.build, build_id()));
    }
    if peer.as_ref() != Some(&answer.process) {
        return wrong(format!("it says that it is {}, the kernel says otherwise", answer.process));
    }
    Ok(Greeting { process: answer.process, namespaces: answer.namespaces })
}
