//! Frames: a length of four bytes, big-endian, and so many bytes of JSON.

use serde::{Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The largest frame, in bytes: a ruleset of 100,000 elements fits.
pub const FRAME_BYTES_MAX: u32 = 16 << 20;

/// Why a frame could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The connection failed or ended within a frame.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The other side announced, or this side wanted to send, more than may be.
    #[error("a frame of {0} bytes is larger than {FRAME_BYTES_MAX}")]
    TooLarge(u64),
    /// The bytes are no such message.
    #[error("not a message: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// Reads one message; `None` when the other side ended the connection between two.
///
/// Memory grows as bytes arrive, not by what the length announces.
///
/// # Errors
/// See [`FrameError`].
pub async fn read_frame<T: DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
) -> Result<Option<T>, FrameError> {
    match read_length(from).await? {
        Some(length) => read_body(from, length).await.map(Some),
        None => Ok(None),
    }
}

/// Reads the length; `None` when the connection ended before it.
pub(super) async fn read_length(from: &mut (impl AsyncRead + Unpin)) -> Result<Option<u32>, FrameError> {
    let mut length = [0u8; 4];
    if from.read(&mut length[..1]).await? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut length[1..]).await?;
    let length = u32::from_be_bytes(length);
    if length > FRAME_BYTES_MAX {
        return Err(FrameError::TooLarge(u64::from(length)));
    }
    Ok(Some(length))
}

/// Reads what the length announced.
pub(super) async fn read_body<T: DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
    length: u32,
) -> Result<T, FrameError> {
    let mut body = Vec::new();
    if from.take(u64::from(length)).read_to_end(&mut body).await? != length as usize {
        return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
    }
    Ok(serde_json::from_slice(&body)?)
}

/// Writes one message.
///
/// # Errors
/// See [`FrameError`]; nothing was sent when it is too large.
pub async fn write_frame(
    to: &mut (impl AsyncWrite + Unpin),
    message: &impl Serialize,
) -> Result<(), FrameError> {
    let mut bytes = vec![0u8; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let length = bytes.len() - 4;
    match u32::try_from(length) {
        Ok(length) if length <= FRAME_BYTES_MAX => bytes[..4].copy_from_slice(&length.to_be_bytes()),
        _ => return Err(FrameError::TooLarge(length as u64)),
    }
    to.write_all(&bytes).await?;
    Ok(to.flush().await?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_frame_comes_back_and_bad_ones_are_told_apart() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, &"hello").await.unwrap();
        assert_eq!(read_frame::<String>(&mut bytes.as_slice()).await.unwrap().unwrap(), "hello");
        assert!(read_frame::<String>(&mut [].as_slice()).await.unwrap().is_none());
        let torn = &bytes[..bytes.len() - 1];
        assert!(matches!(read_frame::<String>(&mut &*torn).await, Err(FrameError::Io(_))));
        let huge = u32::MAX.to_be_bytes();
        assert!(matches!(read_frame::<String>(&mut huge.as_slice()).await, Err(FrameError::TooLarge(_))));
        let garbage = [0, 0, 0, 2, b'{', b'{'];
        assert!(matches!(read_frame::<String>(&mut garbage.as_slice()).await, Err(FrameError::Malformed(_))));
    }
}
