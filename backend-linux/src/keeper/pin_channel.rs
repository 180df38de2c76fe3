//! The few bytes that pass between the daemon and a pin while it starts.
//!
//! Both ends are the same executable file: the daemon starts a pin from its own image. After `go` nothing is
//! ever said again.

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use std::{
    io::{self, IoSlice, IoSliceMut, Read, Write},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
};

/// The pin made a user namespace and waits for its ids to be mapped.
pub const ASK_FOR_MAP: u8 = b'm';
/// The ids are mapped.
pub const MAPPED: u8 = b'd';
/// The pin is in its namespaces.
pub const READY: u8 = b'r';
/// The daemon knows the pin: it may sleep.
pub const GO: u8 = b'g';
/// The pin failed; the reason follows up to the end of the stream.
pub const FAILED: u8 = b'e';
/// Carries descriptors.
const DESCRIPTORS: u8 = b'f';

/// The most descriptors passed: one of each kind.
const DESCRIPTORS_MAX: usize = 4;

/// Sends namespaces to the pin; nothing when there are none.
pub fn send_descriptors(channel: &UnixStream, descriptors: &[RawFd]) -> io::Result<()> {
    if descriptors.is_empty() {
        return Ok(());
    }
    let control = [ControlMessage::ScmRights(descriptors)];
    sendmsg::<()>(channel.as_raw_fd(), &[IoSlice::new(&[DESCRIPTORS])], &control, MsgFlags::empty(), None)?;
    Ok(())
}

pub(super) fn receive_descriptors(channel: &UnixStream, count: usize) -> io::Result<Vec<OwnedFd>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let mut byte = [0u8];
    let mut buffer = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!([RawFd; DESCRIPTORS_MAX]);
    let message =
        recvmsg::<()>(channel.as_raw_fd(), &mut buffer, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = control {
            // SAFETY: the kernel just installed these descriptors for this message, and nothing else owns them.
            descriptors.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    if descriptors.len() == count {
        Ok(descriptors)
    } else {
        Err(io::Error::other(format!(
            "{count} namespaces were to be joined, {} descriptors came",
            descriptors.len()
        )))
    }
}

fn expect_byte(mut channel: &UnixStream, wanted: u8, what: &str) -> io::Result<()> {
    let mut byte = [0u8];
    channel
        .read_exact(&mut byte)
        .map_err(|error| io::Error::other(format!("{what}: the daemon went away ({error})")))?;
    if byte[0] == wanted {
        Ok(())
    } else {
        Err(io::Error::other(format!("{what}: the daemon said {}", byte[0])))
    }
}

pub(super) fn ask_for_map(mut channel: &UnixStream) -> io::Result<()> {
    channel.write_all(&[ASK_FOR_MAP])?;
    expect_byte(channel, MAPPED, "wait for the ids to be mapped")
}

pub(super) fn send_ready(mut channel: &UnixStream) -> io::Result<()> {
    channel.write_all(&[READY])
}

pub(super) fn await_go(channel: &UnixStream) -> io::Result<()> {
    expect_byte(channel, GO, "wait to be known")
}

pub(super) fn send_failure(mut channel: &UnixStream, cause: &str) -> io::Result<()> {
    channel.write_all(&[FAILED])?;
    channel.write_all(cause.as_bytes())
}
