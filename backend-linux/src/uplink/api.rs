//! slirp4netns's API: one JSON request and one answer per connection; slirp4netns(1), "API SOCKET".

use crate::process::process_ref;
use holdfast_core::{id::ProcessRef, spec::Protocol};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde::{Deserialize, Serialize};
use std::{
    io,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

/// How often a helper is asked again whose backlog is full.
const BACKLOG_POLL: Duration = Duration::from_millis(2);
/// How long one request may take; it takes well under a millisecond.
const API_DEADLINE: Duration = Duration::from_secs(2);
/// The largest answer, in bytes: some 10,000 forwarded ports.
const ANSWER_BYTES_MAX: u64 = 2 << 20;

/// A forwarded port, as the helper lists it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Forward {
    /// Its number at the helper.
    pub id: u64,
    /// `tcp` or `udp`.
    pub proto: Protocol,
    /// Address on the host.
    pub host_addr: Ipv4Addr,
    /// Port on the host.
    pub host_port: u16,
    /// Address in the router.
    pub guest_addr: Ipv4Addr,
    /// Port in the router.
    pub guest_port: u16,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// Nothing listens, or the connection failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// No answer in time.
    #[error("no answer after {} s", API_DEADLINE.as_secs())]
    Late,
    /// The helper refused.
    #[error("{0}")]
    Refused(String),
    /// The answer is not what the manual says.
    #[error("the answer cannot be understood: {0}")]
    Malformed(String),
}

impl ApiError {
    /// Whether the request had no effect for certain.
    pub fn had_no_effect(&self) -> bool {
        match self {
            Self::Refused(_) => true,
            Self::Io(error) => {
                matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
            }
            Self::Late | Self::Malformed(_) => false,
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "execute", content = "arguments")]
enum Command {
    #[serde(rename = "add_hostfwd")]
    Add { proto: Protocol, host_addr: Ipv4Addr, host_port: u16, guest_addr: Ipv4Addr, guest_port: u16 },
    #[serde(rename = "list_hostfwd")]
    List {},
    #[serde(rename = "remove_hostfwd")]
    Remove { id: u64 },
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    desc: String,
}

#[derive(Deserialize)]
struct Entries {
    #[serde(default)]
    entries: Vec<Forward>,
}

/// The API of the helper that listens on a socket.
#[derive(Clone, Debug)]
pub struct Api {
    socket: PathBuf,
}

impl Api {
    /// The API behind `socket`.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// All forwarded ports, and the process that answered.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn list(&self) -> Result<(Vec<Forward>, Option<ProcessRef>), ApiError> {
        let (entries, process) = self.call::<Entries>(&Command::List {}).await?;
        Ok((entries.entries, process))
    }

    /// Forwards a port of the host.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn add(
        &self,
        proto: Protocol,
        host: (Ipv4Addr, u16),
        guest: (Ipv4Addr, u16),
    ) -> Result<(), ApiError> {
        let (host_addr, host_port) = host;
        let (guest_addr, guest_port) = guest;
        let command = Command::Add { proto, host_addr, host_port, guest_addr, guest_port };
        self.call::<serde_json::Value>(&command).await.map(drop)
    }

    /// Ends a forward by its number.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn remove(&self, id: u64) -> Result<(), ApiError> {
        self.call::<serde_json::Value>(&Command::Remove { id }).await.map(drop)
    }

    async fn call<T: for<'de> Deserialize<'de>>(
        &self,
        command: &Command,
    ) -> Result<(T, Option<ProcessRef>), ApiError> {
        tokio::time::timeout(API_DEADLINE, self.converse(command)).await.map_err(|_| ApiError::Late)?
    }

    /// Connects; waits while the helper's backlog is full, for which connect(2) says EAGAIN on a unix socket. The
    /// deadline of the whole call bounds it.
    async fn connect(&self) -> io::Result<UnixStream> {
        loop {
            match UnixStream::connect(&self.socket).await {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(BACKLOG_POLL).await
                }
                connected => return connected,
            }
        }
    }

    async fn converse<T: for<'de> Deserialize<'de>>(
        &self,
        command: &Command,
    ) -> Result<(T, Option<ProcessRef>), ApiError> {
        let mut stream = self.connect().await?;
        let credentials = getsockopt(&stream, PeerCredentials).map_err(io::Error::from)?;
        if credentials.uid() != nix::unistd::getuid().as_raw() {
            return Err(ApiError::Malformed(format!("uid {} serves the socket", credentials.uid())));
        }
        let process = u32::try_from(credentials.pid()).ok().map(process_ref).transpose()?.flatten();
        let request = serde_json::to_vec(command).map_err(|error| ApiError::Malformed(error.to_string()))?;
        stream.write_all(&request).await?;
        stream.shutdown().await?;
        let mut bytes = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes).await?;
        let text =
            || String::from_utf8_lossy(bytes.get(..bytes.len().min(200)).unwrap_or_default()).into_owned();
        let answer = serde_json::from_slice(&bytes)
            .map_err(|error| ApiError::Malformed(format!("{error}: {:?}", text())))?;
        let value = outcome(answer)?;
        let value = serde_json::from_value(value)
            .map_err(|error| ApiError::Malformed(format!("{error}: {:?}", text())))?;
        Ok((value, process))
    }
}

/// What an answer says. The manual promises `return` or `error`; version 1.2 lists ports without the former.
fn outcome(mut answer: serde_json::Value) -> Result<serde_json::Value, ApiError> {
    if let Some(refusal) = answer.get_mut("error").map(serde_json::Value::take) {
        let refusal: Refusal =
            serde_json::from_value(refusal).map_err(|error| ApiError::Malformed(error.to_string()))?;
        return Err(ApiError::Refused(refusal.desc));
    }
    if let Some(value) = answer.get_mut("return").map(serde_json::Value::take) {
        return Ok(value);
    }
    if answer.get("entries").is_some() {
        return Ok(answer);
    }
    // An empty answer is no success.
    Err(ApiError::Malformed(format!("neither a return value nor an error: {answer:.200}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn an_answer_is_a_value_or_a_refusal_and_silence_is_neither() {
        assert_eq!(outcome(json!({"return": {"id": 1}})).unwrap(), json!({"id": 1}));
        assert_eq!(outcome(json!({"entries": []})).unwrap(), json!({"entries": []}));
        assert!(
            matches!(outcome(json!({"error": {"desc": "no"}})), Err(ApiError::Refused(cause)) if cause == "no")
        );
        assert!(matches!(outcome(json!({})), Err(ApiError::Malformed(_))));
        assert!(matches!(outcome(json!({"return": null, "error": {}})), Err(ApiError::Refused(_))));
    }
}
