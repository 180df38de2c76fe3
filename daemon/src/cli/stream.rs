//! `logs` and `exec`: frames to and from this process's own streams.

use super::{Context, EXIT_REFUSED, args, client, containers, parse, terminal, time};
use crate::api::{
    frame::{Frame, PROTOCOL},
    problem::Problem,
    types::ExecRequest,
};
use anyhow::Context as _;
use axum::body::Body;
use futures_util::TryStreamExt;
use http_body_util::BodyExt;
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use std::{
    io::{self, Read, Write},
    pin::Pin,
    task::{Poll, ready},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

/// Bytes of standard input in one frame.
const STDIN_BYTES: usize = 16 << 10;

/// Frames of standard input that may wait for the connection.
const STDIN_FRAMES_MAX: usize = 8;

/// Writes a frame's output; whether a reader is still there.
fn write_out(frame: &Frame) -> io::Result<bool> {
    let written = match frame {
        Frame::Stdout(bytes) => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(bytes).and_then(|()| stdout.flush())
        }
        Frame::Stderr(bytes) => io::stderr().lock().write_all(bytes),
        _ => Ok(()),
    };
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        other => other.map(|()| true),
    }
}

fn failed(body: &[u8]) -> anyhow::Error {
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => problem.into(),
        Err(_) => anyhow::anyhow!("{}", String::from_utf8_lossy(body)),
    }
}

/// `logs`, and what `run` shows.
pub async fn logs(
    context: &Context,
    container: &str,
    follow: bool,
    tail: Option<u64>,
    since: Option<&str>,
    timestamps: bool,
) -> anyhow::Result<u8> {
    let mut query = vec![("follow", follow.to_string()), ("timestamps", timestamps.to_string())];
    query.extend(tail.map(|lines| ("tail", lines.to_string())));
    if let Some(since) = since {
        query
            .push(("since_ms", parse::since(since, time::now_ms()).map_err(anyhow::Error::msg)?.to_string()));
    }
    let request = Request::builder()
        .method(Method::GET)
        .uri(client::uri(&["containers", container, "logs"], &query))
        .header(header::HOST, "holdfast")
        .body(Body::empty())?;
    let response = context.client.send(request).await?;
    let stream = response.into_body().into_data_stream().map_err(io::Error::other);
    let mut frames = BodyReader { stream: Box::pin(stream), rest: axum::body::Bytes::new() };
    while let Some(frame) = Frame::read(&mut frames).await.context("the output broke off")? {
        if let Frame::Failed(body) = &frame {
            return Err(failed(body));
        }
        if !write_out(&frame)? {
            break;
        }
    }
    Ok(0)
}

/// A body as something to read from.
struct BodyReader<S> {
    stream: Pin<Box<S>>,
    rest: axum::body::Bytes,
}

impl<S: futures_util::Stream<Item = io::Result<axum::body::Bytes>>> AsyncRead for BodyReader<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.rest.is_empty() {
            match ready!(self.stream.as_mut().poll_next(context)) {
                Some(Ok(bytes)) => self.rest = bytes,
                Some(Err(error)) => return Poll::Ready(Err(error)),
                None => return Poll::Ready(Ok(())),
            }
        }
        let length = self.rest.len().min(buffer.remaining());
        let bytes = self.rest.split_to(length);
        buffer.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

/// `exec`: its exit code is this command's.
pub async fn exec(context: &Context, exec: args::Exec) -> anyhow::Result<u8> {
    let request = ExecRequest {
        command: exec.command,
        env: exec.env,
        working_dir: exec.workdir,
        user: exec.user,
        tty: exec.tty,
        interactive: exec.interactive,
        size: exec.tty.then(terminal::size).flatten(),
    };
    let http = Request::builder()
        .method(Method::POST)
        .uri(client::uri(&["containers", &exec.container, "exec"], &[]))
        .header(header::HOST, "holdfast")
        .header(header::CONNECTION, "upgrade")
        .header(header::UPGRADE, PROTOCOL)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(serde_json::to_vec(&request)?))?;
    let response = match context.client.send(http).await {
        Ok(response) => response,
        Err(error) => {
            eprintln!("holdfast: {error:#}");
            return Ok(containers::code_of(&error));
        }
    };
    let connection =
        hyper::upgrade::on(response).await.context("the daemon did not upgrade the connection")?;
    let (mut from_daemon, to_daemon) = tokio::io::split(TokioIo::new(connection));
    let raw = if request.tty && request.interactive { terminal::Raw::enter()? } else { None };
    let input = tokio::spawn(send_input(to_daemon, request.interactive, request.tty));
    let ended = receive(&mut from_daemon).await;
    input.abort();
    drop(raw);
    match ended {
        Ok(code) => Ok(code),
        Err(error) => {
            eprintln!("holdfast: {error:#}");
            Ok(containers::code_of(&error))
        }
    }
}

async fn receive(from_daemon: &mut (impl AsyncRead + Unpin)) -> anyhow::Result<u8> {
    loop {
        match Frame::read(from_daemon).await.context("the connection broke off; the command may still run")? {
            Some(Frame::Exit(code)) => return Ok(u8::try_from(code & 0xff).unwrap_or(EXIT_REFUSED)),
            Some(Frame::Failed(body)) => return Err(failed(&body)),
            Some(frame) => {
                if !write_out(&frame)? {
                    return Ok(EXIT_REFUSED);
                }
            }
            None => anyhow::bail!("the daemon ended before the command did; the command may still run"),
        }
    }
}

/// Sends standard input and the terminal's size until the connection ends.
async fn send_input(mut to_daemon: impl AsyncWrite + Unpin, interactive: bool, tty: bool) -> io::Result<()> {
    let (sender, mut input) = mpsc::channel(STDIN_FRAMES_MAX);
    if interactive {
        // A thread of its own: a read of a terminal cannot be taken back, and ends with this process.
        std::thread::spawn(move || read_stdin(&sender));
    } else {
        drop(sender);
    }
    let mut resized = signal(SignalKind::window_change())?;
    let mut open = true;
    loop {
        let frame = tokio::select! {
            frame = input.recv(), if open => {
                open = frame.is_some();
                frame.unwrap_or(Frame::StdinEnd)
            }
            Some(()) = resized.recv(), if tty => match terminal::size() {
                Some((rows, columns)) => Frame::Resize(rows, columns),
                None => continue,
            },
            else => return Ok(()),
        };
        frame.write(&mut to_daemon).await?;
        if !open && !tty {
            // The other half still brings the output: only this direction is over.
            return Ok(());
        }
    }
}

fn read_stdin(sender: &mpsc::Sender<Frame>) {
    let mut buffer = vec![0; STDIN_BYTES];
    loop {
        match io::stdin().lock().read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => {
                if sender.blocking_send(Frame::Stdin(buffer[..length].to_vec())).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
