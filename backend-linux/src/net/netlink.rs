//! A netlink socket with deadlines: netlink(7).
//!
//! The kernel carries a request out while it is being sent, so there is nothing to wait for and a blocking
//! socket is the fastest: several requests are sent as one datagram and their answers read back afterwards.

use super::error::NetlinkError;
use nix::{
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, getsockname, recv,
            send, setsockopt, socket,
            sockopt::{RcvBuf, ReceiveTimeout, SendTimeout, SndBuf},
        },
        time::TimeVal,
    },
};
use std::{
    collections::BTreeMap,
    os::fd::{AsRawFd, OwnedFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// An answer that takes longer than this, in seconds, is given up.
const DEADLINE_S: i64 = 5;
/// The kernel fills datagrams of a dump up to 32 KiB: netlink_dump() in net/netlink/af_netlink.c.
const RECEIVE_BYTES: usize = 64 * 1024;
/// Answers and dumps queue here; the kernel clamps to net.core.rmem_max.
const RECEIVE_BUFFER_BYTES: usize = 4 * 1024 * 1024;
/// Kept free of the send buffer, in bytes.
const SEND_MARGIN_BYTES: usize = 1024;
/// Dumps that were interrupted by a change are repeated this often.
pub(crate) const DUMP_ATTEMPTS: u32 = 8;

const HEADER_BYTES: usize = 16;
const NLMSGERR_ATTR_MSG: u16 = 1;

/// One message of an answer.
pub(crate) struct Message<'a> {
    /// Message type.
    pub kind: u16,
    /// Message flags.
    pub flags: u16,
    /// Sequence number of the request.
    pub sequence: u32,
    /// Of an answer: the port it goes to. Of a notification: the port of who asked for the change, 0 for the kernel.
    pub port: u32,
    /// Header and payload.
    pub bytes: &'a [u8],
}

impl Message<'_> {
    /// What follows the header.
    pub fn payload(&self) -> &[u8] {
        &self.bytes[HEADER_BYTES..]
    }
}

/// What a callback wants next.
pub(crate) enum Next {
    /// Another message.
    More,
    /// Nothing: the exchange is complete.
    Done,
}

/// One socket in the network namespace in which it was opened, whoever uses it later.
pub(crate) struct NetlinkSocket {
    fd: OwnedFd,
    port: u32,
    sequence: u32,
    receive: Vec<u8>,
    /// What one datagram may hold, in bytes, as the kernel reports it.
    pub send_bytes_max: usize,
}

impl NetlinkSocket {
    /// Opens a socket in the caller's network namespace; asks for `send_bytes` of send buffer.
    pub fn open(protocol: SockProtocol, send_bytes: usize) -> Result<Self, Errno> {
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        let deadline = TimeVal::new(DEADLINE_S, 0);
        setsockopt(&fd, ReceiveTimeout, &deadline)?;
        setsockopt(&fd, SendTimeout, &deadline)?;
        setsockopt(&fd, RcvBuf, &RECEIVE_BUFFER_BYTES)?;
        if send_bytes > 0 {
            setsockopt(&fd, SndBuf, &send_bytes)?;
        }
        for option in [libc::NETLINK_CAP_ACK, libc::NETLINK_EXT_ACK] {
            enable(&fd, option)?;
        }
        // The kernel clamps silently to net.core.wmem_max, so what counts is what it says now; a datagram longer
        // than that less 32 bytes is EMSGSIZE: netlink_sendmsg() in net/netlink/af_netlink.c.
        let granted = nix::sys::socket::getsockopt(&fd, SndBuf)?;
        let send_bytes_max = granted.saturating_sub(SEND_MARGIN_BYTES);
        let port = getsockname::<NetlinkAddr>(fd.as_raw_fd())?.pid();
        *own_ports().entry(port).or_default() += 1;
        Ok(Self { fd, port, sequence: 0, receive: vec![0; RECEIVE_BYTES], send_bytes_max })
    }

    /// The port that the kernel gave it.
    #[cfg(test)]
    pub fn port(&self) -> u32 {
        self.port
    }

    /// The next sequence number; never 0, which the kernel uses for notifications, and never so high that
    /// the numbers of one transaction could wrap.
    pub fn next_sequence(&mut self) -> u32 {
        self.sequence = if self.sequence < u32::MAX / 2 { self.sequence + 1 } else { 1 };
        self.sequence
    }

    /// Takes note that numbers up to this one are used.
    pub fn skip_to(&mut self, sequence: u32) {
        self.sequence = self.sequence.max(sequence);
    }

    /// Sends one datagram.
    pub fn send(&self, bytes: &[u8]) -> Result<(), Errno> {
        loop {
            match send(self.fd.as_raw_fd(), bytes, MsgFlags::empty()) {
                Ok(sent) if sent == bytes.len() => return Ok(()),
                Ok(_) => return Err(Errno::EMSGSIZE),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Hands every message that arrives to `on_message` until it says [`Next::Done`].
    ///
    /// # Errors
    /// EAGAIN when the deadline passes, ENOBUFS when answers were lost, and what `on_message` returns.
    pub fn receive(
        &mut self,
        mut on_message: impl FnMut(&Message<'_>) -> Result<Next, NetlinkError>,
    ) -> Result<(), NetlinkError> {
        loop {
            let length = match recv(self.fd.as_raw_fd(), &mut self.receive, MsgFlags::MSG_TRUNC) {
                Ok(length) if length > self.receive.len() => return Err(Errno::EMSGSIZE.into()),
                Ok(length) => length,
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let mut rest = &self.receive[..length];
            while let Some((message, tail)) = split_message(rest) {
                rest = tail;
                if let Next::Done = on_message(&message)? {
                    return Ok(());
                }
            }
        }
    }
}

impl Drop for NetlinkSocket {
    fn drop(&mut self) {
        let mut ports = own_ports();
        if let Some(sockets) = ports.get_mut(&self.port) {
            *sockets -= 1;
            if *sockets == 0 {
                ports.remove(&self.port);
            }
        }
    }
}

/// Ports of this process's sockets, and how many have each: a port is unique in one network namespace and for one
/// protocol, and the first socket of a process gets its pid in each: netlink_autobind() in net/netlink/af_netlink.c.
static OWN_PORTS: Mutex<BTreeMap<u32, usize>> = Mutex::new(BTreeMap::new());

fn own_ports() -> MutexGuard<'static, BTreeMap<u32, usize>> {
    OWN_PORTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a change was asked for on a socket of this process.
pub(crate) fn is_own_port(port: u32) -> bool {
    own_ports().contains_key(&port)
}

fn enable(fd: &OwnedFd, option: libc::c_int) -> Result<(), Errno> {
    set_option(fd, option, 1)
}

/// Sets an option of SOL_NETLINK, netlink(7).
pub(crate) fn set_option(fd: &OwnedFd, option: libc::c_int, on: libc::c_int) -> Result<(), Errno> {
    // SAFETY: the descriptor is open, and the value is a c_int that lives over the call, of the size given.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_NETLINK,
            option,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    Errno::result(result).map(drop)
}

/// Splits the first message off; `None` at the end, or where the rest is no whole message.
pub(crate) fn split_message(bytes: &[u8]) -> Option<(Message<'_>, &[u8])> {
    let header = bytes.get(..HEADER_BYTES)?;
    let u32_at = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let u16_at = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let length = usize::try_from(u32_at(0)).ok()?;
    if length < HEADER_BYTES {
        return None;
    }
    let message = Message {
        kind: u16_at(4),
        flags: u16_at(6),
        sequence: u32_at(8),
        port: u32_at(12),
        bytes: bytes.get(..length)?,
    };
    Some((message, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// Reads NLMSG_ERROR: `Ok` for an ACK.
pub(crate) fn error_of(message: &Message<'_>) -> Result<(), NetlinkError> {
    let payload = message.payload();
    let Some(code) = payload.get(..4).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes) else {
        return Err(Errno::EBADMSG.into());
    };
    if code == 0 {
        return Ok(());
    }
    let errno = Errno::from_raw(code.saturating_neg());
    // With NETLINK_CAP_ACK the request's payload is left out: the attributes follow its header at once.
    let attributes = payload.get(4 + HEADER_BYTES..).unwrap_or_default();
    let text = Attributes(attributes)
        .find(|(kind, _)| *kind == NLMSGERR_ATTR_MSG)
        .map(|(_, value)| String::from_utf8_lossy(value).trim_end_matches('\0').to_owned())
        .unwrap_or_default();
    Err(NetlinkError { errno, message: text })
}

/// Walks netlink attributes: (type without flags, value).
pub(crate) struct Attributes<'a>(pub &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let header = self.0.get(..4)?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & 0x3fff;
        let value = self.0.get(4..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn malformed_datagrams_end_the_walk() {
        assert!(split_message(&[]).is_none());
        assert!(split_message(&[0; 16]).is_none());
        let mut long = [0_u8; 16];
        long[0] = 200;
        assert!(split_message(&long).is_none());
        assert_eq!(Attributes(&[2, 0, 1, 0]).count(), 0);
        assert_eq!(Attributes(&[9, 0, 1, 0, 1, 2, 3, 4]).count(), 0);
        let pairs: Vec<_> = Attributes(&[5, 0, 7, 0, 42, 0, 0, 0, 4, 0, 8, 0]).collect();
        assert_eq!(pairs, [(7, &[42_u8][..]), (8, &[][..])]);
    }

    #[test]
    fn an_error_carries_the_kernels_words() {
        let mut bytes = vec![0_u8; 16];
        bytes.extend((-17_i32).to_ne_bytes());
        bytes.extend([0; 16]);
        bytes.extend([7, 0, 1, 0, b'h', b'i', 0, 0]);
        let length = u32::try_from(bytes.len()).unwrap();
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        let (message, _) = split_message(&bytes).unwrap();
        let error = error_of(&message).unwrap_err();
        assert_eq!((error.errno, error.message.as_str()), (Errno::EEXIST, "hi"));
    }
}
