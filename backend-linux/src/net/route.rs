//! rtnetlink(7) requests: several at once, each with its own answer.

use super::{
    error::NetlinkError,
    netlink::{DUMP_ATTEMPTS, NetlinkSocket, Next, error_of},
};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use nix::{errno::Errno, sys::socket::SockProtocol};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Requests in one datagram: their answers (36 bytes and more, with bookkeeping below 1 KiB) fit the receive
/// buffer at the kernel's default limit of 208 KiB.
const BATCH_MAX: usize = 64;

/// A request and its flags beside `NLM_F_REQUEST | NLM_F_ACK`.
pub(crate) type Request = (RouteNetlinkMessage, u16);

/// An rtnetlink socket.
pub(crate) struct Route {
    socket: NetlinkSocket,
}

impl Route {
    /// Opens a socket in the caller's network namespace.
    pub fn open() -> Result<Self, Errno> {
        Ok(Self { socket: NetlinkSocket::open(SockProtocol::NetlinkRoute, 0)? })
    }

    /// Sends the requests in order and returns each one's outcome. A failed one does not stop the later ones.
    ///
    /// # Errors
    /// When the answers could not be read: the outcome is not known then.
    pub fn batch(&mut self, requests: Vec<Request>) -> Result<Vec<Result<(), NetlinkError>>, NetlinkError> {
        let mut outcomes = Vec::with_capacity(requests.len());
        let mut requests = requests.into_iter().peekable();
        while requests.peek().is_some() {
            let chunk: Vec<Request> = requests.by_ref().take(BATCH_MAX).collect();
            outcomes.extend(self.exchange(chunk)?);
        }
        Ok(outcomes)
    }

    fn exchange(&mut self, requests: Vec<Request>) -> Result<Vec<Result<(), NetlinkError>>, NetlinkError> {
        let count = requests.len();
        let mut bytes = Vec::with_capacity(count * 128);
        let mut first = 0;
        for (index, (message, flags)) in requests.into_iter().enumerate() {
            let sequence = self.socket.next_sequence();
            if index == 0 {
                first = sequence;
            }
            append(&mut bytes, message, NLM_F_REQUEST | NLM_F_ACK | flags, sequence);
        }
        self.socket.send(&bytes)?;
        let mut outcomes: Vec<Option<Result<(), NetlinkError>>> = vec![None; count];
        let mut open = count;
        self.socket.receive(|message| {
            // Anything else is a late answer to a request that was given up.
            let index = message.sequence.wrapping_sub(first) as usize;
            if message.kind == NLMSG_ERROR && index < count && outcomes[index].is_none() {
                outcomes[index] = Some(error_of(message));
                open -= 1;
            }
            Ok(if open == 0 { Next::Done } else { Next::More })
        })?;
        Ok(outcomes.into_iter().flatten().collect())
    }

    /// Sends one request.
    pub fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> Result<(), NetlinkError> {
        self.batch(vec![(message, flags)])?.pop().unwrap_or(Err(Errno::EBADMSG.into()))
    }

    /// Asks for one object; `None` when there is none.
    pub fn get(&mut self, message: RouteNetlinkMessage) -> Result<Option<RouteNetlinkMessage>, NetlinkError> {
        let sequence = self.socket.next_sequence();
        let mut bytes = Vec::with_capacity(128);
        append(&mut bytes, message, NLM_F_REQUEST | NLM_F_ACK, sequence);
        self.socket.send(&bytes)?;
        let mut found = None;
        let mut outcome = Ok(());
        self.socket.receive(|message| {
            if message.sequence != sequence {
                return Ok(Next::More);
            }
            if message.kind == NLMSG_ERROR {
                outcome = error_of(message);
                return Ok(Next::Done);
            }
            found = parse(message.bytes);
            Ok(Next::More)
        })?;
        match outcome {
            Ok(()) => Ok(found),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Asks for all objects of a kind, again when a change came between.
    pub fn dump(&mut self, message: &RouteNetlinkMessage) -> Result<Vec<RouteNetlinkMessage>, NetlinkError> {
        for _ in 0..DUMP_ATTEMPTS {
            let sequence = self.socket.next_sequence();
            let mut bytes = Vec::with_capacity(128);
            append(&mut bytes, message.clone(), NLM_F_REQUEST | NLM_F_DUMP, sequence);
            self.socket.send(&bytes)?;
            let mut found = Vec::new();
            let mut interrupted = false;
            self.socket.receive(|message| {
                if message.sequence != sequence {
                    return Ok(Next::More);
                }
                interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
                match message.kind {
                    NLMSG_DONE => {
                        // Carries the dump's own outcome, laid out like an error's first field.
                        error_of(message)?;
                        return Ok(Next::Done);
                    }
                    NLMSG_ERROR => error_of(message)?,
                    _ => found.extend(parse(message.bytes)),
                }
                Ok(Next::More)
            })?;
            if !interrupted {
                return Ok(found);
            }
        }
        Err(NetlinkError {
            errno: Errno::EBUSY,
            message: format!("changed during each of {DUMP_ATTEMPTS} dumps"),
        })
    }
}

fn append(bytes: &mut Vec<u8>, message: RouteNetlinkMessage, flags: u16, sequence: u32) {
    let mut message = NetlinkMessage::from(message);
    message.header.flags = flags;
    message.header.sequence_number = sequence;
    message.finalize();
    let at = bytes.len();
    bytes.resize(at + message.buffer_len().next_multiple_of(4), 0);
    message.serialize(&mut bytes[at..]);
}

fn parse(bytes: &[u8]) -> Option<RouteNetlinkMessage> {
    match NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes) {
        Ok(message) => match message.payload {
            NetlinkPayload::InnerMessage(inner) => Some(inner),
            _ => None,
        },
        Err(error) => {
            // An attribute newer than the parser: the object is then as good as unseen, which shows as
            // incomplete and never as complete.
            tracing::warn!(%error, "cannot read a netlink message");
            None
        }
    }
}
