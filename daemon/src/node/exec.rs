//! A command in a container, between its pipes or terminal and the frames of the API.

use super::{linux::failed, world::ExecStreams};
use crate::api::frame::Frame;
use holdfast_linux::container::exec::{ExecSession, Terminal};
use std::io;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::mpsc,
};

/// Frames that may wait in each direction.
const FRAMES_MAX: usize = 16;

/// Bytes of output in one frame.
const OUTPUT_BYTES: usize = 32 << 10;

/// Takes a session over: its output goes into frames, frames become its input. When the client is gone, the
/// process is killed; when the process is gone, its code is the last frame.
pub fn attend(mut session: ExecSession) -> ExecStreams {
    let (input, from_client) = mpsc::channel(FRAMES_MAX);
    let (to_client, output) = mpsc::channel(FRAMES_MAX);
    tokio::spawn(async move {
        let moved = match session.terminal.take() {
            Some(terminal) => Moved::terminal(terminal, from_client, &to_client),
            None => Moved::pipes(&mut session, from_client, &to_client),
        };
        let code = tokio::select! {
            code = session.wait() => code,
            () = to_client.closed() => {
                session.kill();
                session.wait().await
            }
        };
        // What was written before the end comes before the end; a process that inherited the output and lives
        // on does not keep the client.
        moved.drain().await;
        let last = match code {
            Ok(code) => Frame::Exit(code),
            Err(error) => failed(error),
        };
        // The client may be gone.
        let _ = to_client.send(last).await;
    });
    ExecStreams { input, output }
}

/// How long output may still come after the process has ended.
const DRAIN_DEADLINE: std::time::Duration = std::time::Duration::from_secs(1);

/// The tasks that move bytes.
struct Moved {
    outputs: Vec<tokio::task::JoinHandle<()>>,
    input: tokio::task::JoinHandle<()>,
}

impl Moved {
    fn pipes(
        session: &mut ExecSession,
        from_client: mpsc::Receiver<Frame>,
        to_client: &mpsc::Sender<Frame>,
    ) -> Self {
        let stdout =
            session.stdout.take().map(|pipe| tokio::spawn(output(pipe, to_client.clone(), Frame::Stdout)));
        let stderr =
            session.stderr.take().map(|pipe| tokio::spawn(output(pipe, to_client.clone(), Frame::Stderr)));
        let stdin = session.stdin.take();
        let input = tokio::spawn(async move {
            if let Some(mut stdin) = stdin {
                // A process that has closed its input reads no more: not an error.
                let _ = pipe_input(&mut stdin, from_client).await;
            }
        });
        Self { outputs: stdout.into_iter().chain(stderr).collect(), input }
    }

    fn terminal(
        terminal: Terminal,
        from_client: mpsc::Receiver<Frame>,
        to_client: &mpsc::Sender<Frame>,
    ) -> Self {
        let (sizes, resizes) = mpsc::channel(1);
        let (keys, typed) = mpsc::channel(FRAMES_MAX);
        let input = tokio::spawn(split_input(from_client, keys, sizes));
        Self {
            outputs: vec![tokio::spawn(terminal_loop(terminal, typed, resizes, to_client.clone()))],
            input,
        }
    }

    async fn drain(self) {
        for mut output in self.outputs {
            if tokio::time::timeout(DRAIN_DEADLINE, &mut output).await.is_err() {
                output.abort();
            }
        }
        self.input.abort();
    }
}

async fn output(
    mut pipe: impl AsyncRead + Unpin,
    to_client: mpsc::Sender<Frame>,
    frame: fn(Vec<u8>) -> Frame,
) {
    let mut buffer = vec![0; OUTPUT_BYTES];
    while let Ok(length @ 1..) = pipe.read(&mut buffer).await {
        if to_client.send(frame(buffer[..length].to_vec())).await.is_err() {
            return;
        }
    }
}

async fn pipe_input(
    stdin: &mut (impl AsyncWrite + Unpin),
    mut from_client: mpsc::Receiver<Frame>,
) -> io::Result<()> {
    while let Some(frame) = from_client.recv().await {
        match frame {
            Frame::Stdin(bytes) => {
                stdin.write_all(&bytes).await?;
                stdin.flush().await?;
            }
            Frame::StdinEnd => break,
            _ => {}
        }
    }
    Ok(())
}

async fn split_input(
    mut from_client: mpsc::Receiver<Frame>,
    keys: mpsc::Sender<Vec<u8>>,
    sizes: mpsc::Sender<(u16, u16)>,
) {
    while let Some(frame) = from_client.recv().await {
        let sent = match frame {
            Frame::Stdin(bytes) => keys.send(bytes).await.is_ok(),
            // What a terminal's user would type.
            Frame::StdinEnd => keys.send(vec![4]).await.is_ok(),
            Frame::Resize(rows, columns) => sizes.send((rows, columns)).await.is_ok(),
            _ => true,
        };
        if !sent {
            return;
        }
    }
}

/// One task has the terminal: it reads, writes and resizes in turn.
async fn terminal_loop(
    terminal: Terminal,
    mut typed: mpsc::Receiver<Vec<u8>>,
    mut resizes: mpsc::Receiver<(u16, u16)>,
    to_client: mpsc::Sender<Frame>,
) {
    let (mut reader, mut writer) = tokio::io::split(terminal);
    let mut buffer = vec![0; OUTPUT_BYTES];
    let mut pending: Vec<u8> = Vec::new();
    loop {
        tokio::select! {
            read = reader.read(&mut buffer) => match read {
                Ok(length @ 1..) => {
                    if to_client.send(Frame::Stdout(buffer[..length].to_vec())).await.is_err() {
                        return;
                    }
                }
                _ => return,
            },
            written = writer.write(&pending), if !pending.is_empty() => match written {
                Ok(length @ 1..) => drop(pending.drain(..length)),
                _ => return,
            },
            Some(bytes) = typed.recv(), if pending.is_empty() => pending = bytes,
            Some((rows, columns)) = resizes.recv() => {
                let terminal = reader.unsplit(writer);
                if let Err(error) = terminal.resize(rows, columns) {
                    tracing::debug!(%error, "terminal was not resized");
                }
                (reader, writer) = tokio::io::split(terminal);
            }
        }
    }
}
