//! Frames of a stream: one byte kind, four bytes length (big endian), payload. Used both ways by `exec`
//! (after an HTTP upgrade) and one way by `logs`.

use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The protocol named in the `Upgrade` header.
pub const PROTOCOL: &str = "holdfast-frames/1";

/// The largest payload, in bytes: what one frame may make the other side hold.
pub const PAYLOAD_BYTES_MAX: usize = 64 << 10;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// To the process's standard input.
    Stdin(Vec<u8>),
    /// From its standard output (and, on a terminal, everything).
    Stdout(Vec<u8>),
    /// From its standard error.
    Stderr(Vec<u8>),
    /// Standard input has ended.
    StdinEnd,
    /// The terminal's new rows and columns.
    Resize(u16, u16),
    /// It ended with this code; the last frame.
    Exit(i32),
    /// It went wrong, a problem as JSON; the last frame.
    Failed(Vec<u8>),
}

impl Frame {
    fn parts(&self) -> (u8, std::borrow::Cow<'_, [u8]>) {
        match self {
            Self::Stdin(bytes) => (0, bytes.into()),
            Self::Stdout(bytes) => (1, bytes.into()),
            Self::Stderr(bytes) => (2, bytes.into()),
            Self::StdinEnd => (3, (&[]).into()),
            Self::Resize(rows, columns) => (4, [rows.to_be_bytes(), columns.to_be_bytes()].concat().into()),
            Self::Exit(code) => (5, code.to_be_bytes().to_vec().into()),
            Self::Failed(bytes) => (6, bytes.into()),
        }
    }

    /// As sent.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, payload) = self.parts();
        // Payloads are cut to the limit before they become frames.
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(5 + payload.len());
        bytes.push(kind);
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&payload);
        bytes
    }

    fn decode(kind: u8, payload: Vec<u8>) -> io::Result<Self> {
        let invalid = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("frame kind {kind} with {} bytes", payload.len()),
            )
        };
        Ok(match kind {
            0 => Self::Stdin(payload),
            1 => Self::Stdout(payload),
            2 => Self::Stderr(payload),
            3 if payload.is_empty() => Self::StdinEnd,
            4 => match payload.as_slice() {
                &[a, b, c, d] => Self::Resize(u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])),
                _ => return Err(invalid()),
            },
            5 => Self::Exit(i32::from_be_bytes(payload.as_slice().try_into().map_err(|_| invalid())?)),
            6 => Self::Failed(payload),
            _ => return Err(invalid()),
        })
    }

    /// Reads one frame; `None` at a clean end.
    ///
    /// # Errors
    /// An end inside a frame, an unknown kind, a payload over the limit.
    pub async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Self>> {
        let mut header = [0; 5];
        if from.read(&mut header[..1]).await? == 0 {
            return Ok(None);
        }
        from.read_exact(&mut header[1..]).await?;
        let [kind, length @ ..] = header;
        let length = u32::from_be_bytes(length) as usize;
        if length > PAYLOAD_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("frame of {length} bytes")));
        }
        let mut payload = vec![0; length];
        from.read_exact(&mut payload).await?;
        Self::decode(kind, payload).map(Some)
    }

    /// Writes one frame.
    ///
    /// # Errors
    /// I/O errors.
    pub async fn write(&self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        to.write_all(&self.encode()).await?;
        to.flush().await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn frames_arrive_as_sent_and_torn_ones_are_refused() {
        let frames = [
            Frame::Stdin(b"in".to_vec()),
            Frame::Stdout(vec![0; PAYLOAD_BYTES_MAX]),
            Frame::Stderr(Vec::new()),
            Frame::StdinEnd,
            Frame::Resize(40, 100),
            Frame::Exit(-1),
            Frame::Failed(b"{}".to_vec()),
        ];
        let mut bytes = Vec::new();
        for frame in &frames {
            frame.write(&mut bytes).await.unwrap();
        }
        let mut stream = bytes.as_slice();
        for frame in &frames {
            assert_eq!(Frame::read(&mut stream).await.unwrap().as_ref(), Some(frame));
        }
        assert_eq!(Frame::read(&mut stream).await.unwrap(), None);
        for torn in
            [&[1, 0][..], &[1, 0, 0, 0, 9, 1], &[9, 0, 0, 0, 0], &[4, 0, 0, 0, 1, 1], &[1, 255, 0, 0, 0]]
        {
            assert!(Frame::read(&mut &torn[..]).await.is_err(), "{torn:?}");
        }
    }
}
