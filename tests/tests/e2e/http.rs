//! The node's API spoken by hand, so that bad requests can be sent too.

use anyhow::{Context as _, Result};
use holdfast_chaos::node::Node;
use serde_json::Value;
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    time::Duration,
};

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status; 0 when the connection was closed without an answer.
    pub status: u16,
    /// Media type.
    pub media_type: String,
    /// The body, `Null` where it is no JSON.
    pub body: Value,
}

/// Where the node listens.
pub fn socket(node: &Node) -> Result<PathBuf> {
    Ok(node.sockets().context("the node has no runtime directory")?.join("daemon.sock"))
}

/// One request with a body.
pub fn request(node: &Node, method: &str, path: &str, body: &[u8]) -> Result<Answer> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: holdfast\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    exchange(node, &[head.as_bytes(), body].concat(), false)
}

/// Whatever bytes, and nothing after them.
pub fn raw(node: &Node, bytes: &[u8]) -> Result<Answer> {
    exchange(node, bytes, true)
}

/// A client that closes its half has gone, for the server: it need not answer.
fn exchange(node: &Node, bytes: &[u8], close: bool) -> Result<Answer> {
    let mut stream = UnixStream::connect(socket(node)?)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.set_write_timeout(Some(Duration::from_secs(20)))?;
    // A server may refuse before it has read everything, and close: its answer counts.
    let _ = stream.write_all(bytes);
    if close {
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => return Err(error).context("read the answer"),
        }
    }
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    let media_type = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-type"))
        .map(|(_, value)| value.trim().to_owned())
        .unwrap_or_default();
    Ok(Answer { status, media_type, body: serde_json::from_str(body).unwrap_or(Value::Null) })
}
