//! What this program does as somebody else: another user at the node's socket, or a client inside a workload's
//! network.

use anyhow::{Context as _, Result};
use holdfast_chaos::traffic::http_get;
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    process::ExitCode,
    time::Duration,
};

/// Connects to `socket` and asks for the node's status; prints what came back, or the error.
pub fn connect(socket: &str) -> Result<ExitCode> {
    println!("uid {}", nix::unistd::getuid());
    let mut stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(error) => {
            println!("connect: {:?}", error.kind());
            return Ok(ExitCode::SUCCESS);
        }
    };
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    // A server that has refused already may have closed: what it said is still there to be read.
    let _ = stream.write_all(b"GET /v1/status HTTP/1.1\r\nhost: holdfast\r\nconnection: close\r\n\r\n");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    println!("answer: {}", String::from_utf8_lossy(&answer));
    Ok(ExitCode::SUCCESS)
}

/// Asks for the page at `address`, for so many milliseconds; succeeds if it comes.
pub fn fetch(address: &str, deadline_ms: &str) -> Result<ExitCode> {
    let address: std::net::SocketAddr = address.parse().context("an address and a port")?;
    let got = http_get(address, Duration::from_millis(deadline_ms.parse()?));
    println!("{got:?}");
    Ok(if got.is_ok_and(|page| page == "held fast\n") { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Answers each datagram at `address` with itself, until none has come for a while.
pub fn echo(address: &str) -> Result<ExitCode> {
    let socket = std::net::UdpSocket::bind(address).context("bind")?;
    println!("bound");
    socket.set_read_timeout(Some(Duration::from_secs(8)))?;
    let mut bytes = [0; 2048];
    while let Ok((length, from)) = socket.recv_from(&mut bytes) {
        socket.send_to(&bytes[..length], from)?;
    }
    Ok(ExitCode::SUCCESS)
}
