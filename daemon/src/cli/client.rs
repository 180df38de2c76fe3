//! HTTP over the daemon's socket.

use super::spawn;
use crate::api::problem::Problem;
use anyhow::{Context, bail};
use axum::body::Body;
use holdfast_linux::paths::Paths;
use http_body_util::BodyExt;
use hyper::{Method, Request, Response, StatusCode, body::Incoming, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::net::UnixStream;

/// The longest answer that is not a stream, in bytes.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// How long the daemon may take to answer a ping.
const PING_DEADLINE: Duration = Duration::from_secs(2);

/// How long an operation may take, beyond what the user asked it to wait.
pub const OPERATION_DEADLINE: Duration = Duration::from_secs(120);

/// The daemon of one node.
#[derive(Debug)]
pub struct Client {
    paths: Paths,
    /// The root that the user named: a daemon that is started is told the same.
    root: Option<PathBuf>,
}

impl Client {
    /// The daemon with these paths.
    pub fn new(paths: Paths, root: Option<&Path>) -> anyhow::Result<Self> {
        let root = root.map(std::path::absolute).transpose().context("find the root")?;
        Ok(Self { paths, root })
    }

    /// A request of JSON; the daemon is started if none answers.
    ///
    /// # Errors
    /// The daemon's problem; no daemon and none that could be started; no answer before the deadline.
    pub async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<&impl Serialize>,
        deadline: Duration,
    ) -> anyhow::Result<T> {
        let bytes = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
        // What changes nothing, or nothing more the second time, can be asked of the next daemon as well.
        let repeatable = method == Method::GET || path == ["up"];
        let mut request =
            Request::builder().method(method).uri(uri(path, query)).header(header::HOST, "holdfast");
        if !bytes.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(bytes)?;
        let answer = async {
            let response = self.send_to_next(request, if repeatable { RETRIES_MAX } else { 0 }).await?;
            http_body_util::Limited::new(response.into_body(), ANSWER_BYTES_MAX)
                .collect()
                .await
                .map_err(|error| anyhow::anyhow!("the daemon's answer broke off: {error}"))
        };
        let Ok(answer) = tokio::time::timeout(deadline, answer).await else {
            bail!(
                "the daemon did not answer within {} s; `holdfast status` tells what came of it",
                deadline.as_secs()
            );
        };
        let bytes = answer?.to_bytes();
        let text: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
        serde_json::from_slice(text)
            .context("the daemon's answer is not what this build understands; is it another version?")
    }

    /// A request whose answer is a stream or an upgrade; the daemon is started if none answers.
    ///
    /// # Errors
    /// As [`Self::json`], without a deadline for the body.
    pub async fn send(&self, request: Request<Body>) -> anyhow::Result<Response<Incoming>> {
        let stream = self.connect().await?;
        exchange(stream, request).await
    }

    /// Sends a request, again when the daemon dies over it: a killed daemon's socket takes connections until the
    /// last of its threads is gone, and the next connection starts another daemon.
    async fn send_to_next(
        &self,
        request: Request<Vec<u8>>,
        mut retries: u32,
    ) -> anyhow::Result<Response<Incoming>> {
        loop {
            match self.send(request.clone().map(Body::from)).await {
                Err(error) if retries > 0 && error.is::<hyper::Error>() => {
                    retries -= 1;
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                result => return result,
            }
        }
    }

    /// Waits until nobody listens any more; whether that came before the deadline.
    pub async fn ended(&self, deadline: Duration) -> bool {
        let gone = async {
            while UnixStream::connect(self.paths.daemon_socket()).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(deadline, gone).await.is_ok()
    }

    async fn connect(&self) -> anyhow::Result<UnixStream> {
        let path = self.paths.daemon_socket();
        match UnixStream::connect(&path).await {
            Ok(stream) => Ok(stream),
            Err(error)
                if matches!(
                    error.kind(),
                    // A regular file or a directory there is as stale as a socket that nobody listens on.
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) || error.raw_os_error() == Some(libc::ENOTSOCK) =>
            {
                spawn::start(&self.paths, self.root.as_deref()).await
            }
            Err(error) => Err(error).with_context(|| format!("connect to {}", path.display())),
        }
    }
}

/// How often a request that can be repeated is sent again when the daemon dies over it, and how soon.
const RETRIES_MAX: u32 = 50;
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Whether a daemon answers at the socket.
pub async fn answers(paths: &Paths) -> bool {
    let ping = async {
        let stream = UnixStream::connect(paths.daemon_socket()).await.ok()?;
        let request = Request::get("/v1/ping").header(header::HOST, "holdfast").body(Body::empty()).ok()?;
        exchange(stream, request).await.ok()
    };
    tokio::time::timeout(PING_DEADLINE, ping).await.is_ok_and(|answer| answer.is_some())
}

async fn exchange(stream: UnixStream, request: Request<Body>) -> anyhow::Result<Response<Incoming>> {
    let (mut sender, connection) = http1::handshake::<_, Body>(TokioIo::new(stream)).await?;
    tokio::spawn(connection.with_upgrades());
    let response =
        sender.send_request(request).await.context("the daemon ended before it answered; try again")?;
    let status = response.status();
    if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
        return Ok(response);
    }
    let body = http_body_util::Limited::new(response.into_body(), 1 << 20).collect().await;
    let bytes = body.map(|body| body.to_bytes()).unwrap_or_default();
    match serde_json::from_slice::<Problem>(&bytes) {
        Ok(problem) => Err(problem.into()),
        Err(_) => bail!("the daemon answered {status}: {}", String::from_utf8_lossy(&bytes)),
    }
}

/// `/v1/…` of path segments and a query, each escaped.
pub fn uri(path: &[&str], query: &[(&str, String)]) -> String {
    let mut uri = "/v1".to_owned();
    for segment in path {
        uri.push('/');
        escape(segment, &mut uri);
    }
    for (index, (key, value)) in query.iter().enumerate() {
        uri.push(if index == 0 { '?' } else { '&' });
        uri.push_str(key);
        uri.push('=');
        escape(value, &mut uri);
    }
    uri
}

/// Percent-encodes all but RFC 3986's unreserved characters.
fn escape(text: &str, into: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            into.push(char::from(byte));
        } else {
            into.push_str(&format!("%{byte:02X}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_queries_are_escaped() {
        let query = [("name", "a b&c".to_owned()), ("all", "true".to_owned())];
        assert_eq!(uri(&["images", "reg/x:1"], &query), "/v1/images/reg%2Fx%3A1?name=a%20b%26c&all=true");
        assert_eq!(uri(&["containers", "..", "ü"], &[]), "/v1/containers/../%C3%BC");
    }
}
