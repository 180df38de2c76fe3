//! Connection tracking: flows of an address that has no owner any more are forgotten, so that its next owner
//! inherits none (ctnetlink: net/netfilter/nf_conntrack_netlink.c).
//!
//! There is no crate for these messages that is worth a dependency: two requests, a handful of attributes.

use super::{
    error::{NetlinkError, netlink},
    netlink::{Attributes, DUMP_ATTEMPTS, NetlinkSocket, Next, error_of},
};
use holdfast_core::{error::RouterError, ruleset::Element};
use nix::{errno::Errno, sys::socket::SockProtocol};
use std::{collections::BTreeSet, net::IpAddr};

const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP_INTR: u16 = 16;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLA_F_NESTED: u16 = 0x8000;
/// NFNL_SUBSYS_CTNETLINK of linux/netfilter/nfnetlink.h.
const SUBSYSTEM: u16 = 1;
// enum cntl_msg_types and the attributes of linux/netfilter/nfnetlink_conntrack.h.
const MSG_GET: u16 = 1;
const MSG_DELETE: u16 = 2;
const TUPLE_ORIG: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ID: u16 = 12;
const FILTER: u16 = 25;
const FILTER_ORIG_FLAGS: u16 = 1;
const FILTER_REPLY_FLAGS: u16 = 2;
/// CTA_FILTER_FLAG(CTA_IP_SRC).
const FILTER_IP_SRC: u32 = 1;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
const PROTO_NUM: u16 = 1;
const PROTO_SRC_PORT: u16 = 2;
/// `struct nfgenmsg`.
const NFGENMSG_BYTES: usize = 4;
/// For more addresses than this the whole table is listed once, instead of twice for each in the kernel.
const FILTERED_MAX: usize = 4;
/// The most flows that one call forgets; an address with more is beyond what one workload can have open.
const FLOWS_MAX: usize = 1 << 20;

/// Whose flows are forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Whose {
    /// Every one from or to an address.
    Address(IpAddr),
    /// Those that a published port led to (address, protocol number, port).
    Port(IpAddr, u8, u16),
}

impl Whose {
    fn of(element: &Element) -> Option<Self> {
        match *element {
            Element::Group4(address, _) => Some(Self::Address(address.into())),
            Element::Group6(address, _) => Some(Self::Address(address.into())),
            Element::Forward4(protocol, _, address, port) | Element::Hairpin4(protocol, _, address, port) => {
                Some(Self::Port(address.into(), protocol.number(), port))
            }
            _ => None,
        }
    }

    fn address(self) -> IpAddr {
        match self {
            Self::Address(address) | Self::Port(address, ..) => address,
        }
    }

    fn matches(self, flow: &Flow) -> bool {
        match self {
            // The reply's source is who really answers, whatever the question was sent to.
            Self::Address(address) => [flow.orig.source, flow.reply.source].contains(&Some(address)),
            Self::Port(address, protocol, port) => {
                flow.reply
                    == Tuple { destination: flow.reply.destination, ..Tuple::of(address, protocol, port) }
                    && flow.orig.destination != Some(address)
            }
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tuple {
    source: Option<IpAddr>,
    destination: Option<IpAddr>,
    protocol: Option<u8>,
    source_port: Option<u16>,
}

impl Tuple {
    fn of(source: IpAddr, protocol: u8, port: u16) -> Self {
        Self { source: Some(source), destination: None, protocol: Some(protocol), source_port: Some(port) }
    }

    fn read(nest: &[u8]) -> Self {
        let mut tuple = Self::default();
        for (kind, value) in Attributes(nest) {
            match kind {
                TUPLE_IP => {
                    for (kind, value) in Attributes(value) {
                        let address = address(value);
                        // CTA_IP_V4_SRC 1, V4_DST 2, V6_SRC 3, V6_DST 4.
                        match kind {
                            1 | 3 => tuple.source = address,
                            2 | 4 => tuple.destination = address,
                            _ => {}
                        }
                    }
                }
                TUPLE_PROTO => {
                    for (kind, value) in Attributes(value) {
                        match kind {
                            PROTO_NUM => tuple.protocol = value.first().copied(),
                            PROTO_SRC_PORT => {
                                tuple.source_port = value.try_into().ok().map(u16::from_be_bytes)
                            }
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        tuple
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

/// One tracked flow, with what names it to the kernel.
#[derive(Clone, Debug)]
struct Flow {
    orig: Tuple,
    reply: Tuple,
    orig_bytes: Vec<u8>,
    id: Vec<u8>,
}

impl Flow {
    fn read(attributes: &[u8]) -> Option<Self> {
        let part = |wanted| Attributes(attributes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
        let orig = part(TUPLE_ORIG)?;
        Some(Self {
            orig: Tuple::read(orig),
            reply: Tuple::read(part(TUPLE_REPLY)?),
            orig_bytes: orig.to_vec(),
            id: part(ID)?.to_vec(),
        })
    }
}

/// The flows that the router's network namespace tracks.
pub(crate) struct Conntrack {
    socket: NetlinkSocket,
}

impl Conntrack {
    /// Opens a socket in the caller's network namespace.
    pub fn open() -> Result<Self, Errno> {
        Ok(Self { socket: NetlinkSocket::open(SockProtocol::NetlinkNetFilter, 0)? })
    }

    /// Forgets the flows of addresses and ports that these elements spoke for.
    pub fn forget(&mut self, elements: &BTreeSet<Element>) -> Result<(), RouterError> {
        let whose: BTreeSet<Whose> = elements.iter().filter_map(Whose::of).collect();
        for v4 in [true, false] {
            let whose: Vec<Whose> =
                whose.iter().filter(|one| one.address().is_ipv4() == v4).copied().collect();
            if !whose.is_empty() {
                self.forget_of(v4, &whose)?;
            }
        }
        Ok(())
    }

    fn forget_of(&mut self, v4: bool, whose: &[Whose]) -> Result<(), RouterError> {
        let wrap = |action: &str, error: &NetlinkError| netlink(action, "tracked connections", error);
        let addresses: BTreeSet<IpAddr> = whose.iter().map(|one| one.address()).collect();
        let mut flows = Vec::new();
        if addresses.len() <= FILTERED_MAX {
            for (address, tuple) in addresses.iter().flat_map(|one| [(*one, TUPLE_ORIG), (*one, TUPLE_REPLY)])
            {
                let filter = filter(address, tuple);
                flows.extend(self.list(v4, &filter, whose).map_err(|error| wrap("list", &error))?);
            }
        } else {
            flows = self.list(v4, &[], whose).map_err(|error| wrap("list", &error))?;
        }
        for flow in flows {
            self.delete(v4, &flow).map_err(|error| wrap("forget", &error))?;
        }
        Ok(())
    }

    /// Flows that match, of those the kernel lists for a filter; the filter only saves copying.
    fn list(&mut self, v4: bool, filter: &[u8], whose: &[Whose]) -> Result<Vec<Flow>, NetlinkError> {
        for _ in 0..DUMP_ATTEMPTS {
            let sequence = self.socket.next_sequence();
            self.socket.send(&request(MSG_GET, v4, NLM_F_REQUEST | NLM_F_DUMP, sequence, filter))?;
            let (mut flows, mut interrupted) = (Vec::new(), false);
            self.socket.receive(|message| {
                if message.sequence != sequence {
                    return Ok(Next::More);
                }
                interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
                match message.kind {
                    NLMSG_ERROR | NLMSG_DONE => error_of(message).map(|()| Next::Done),
                    _ => {
                        let attributes = message.payload().get(NFGENMSG_BYTES..).unwrap_or_default();
                        let flow = Flow::read(attributes);
                        let wanted = |flow: &Flow| whose.iter().any(|one| one.matches(flow));
                        if flows.len() < FLOWS_MAX {
                            flows.extend(flow.filter(wanted));
                        }
                        Ok(Next::More)
                    }
                }
            })?;
            if !interrupted {
                return Ok(flows);
            }
        }
        Err(Errno::EBUSY.into())
    }

    /// Deletes exactly this flow: not another that has its tuple by now.
    fn delete(&mut self, v4: bool, flow: &Flow) -> Result<(), NetlinkError> {
        let mut attributes = Vec::new();
        attribute(&mut attributes, TUPLE_ORIG | NLA_F_NESTED, &flow.orig_bytes);
        attribute(&mut attributes, ID, &flow.id);
        let sequence = self.socket.next_sequence();
        self.socket.send(&request(MSG_DELETE, v4, NLM_F_REQUEST | NLM_F_ACK, sequence, &attributes))?;
        let mut outcome = Ok(());
        self.socket.receive(|message| {
            if message.sequence != sequence || message.kind != NLMSG_ERROR {
                return Ok(Next::More);
            }
            outcome = error_of(message);
            Ok(Next::Done)
        })?;
        match outcome {
            // It ended by itself.
            Err(error) if error.is_missing() => Ok(()),
            outcome => outcome,
        }
    }
}

/// Asks for flows whose tuple of this direction has the address as its source.
fn filter(address: IpAddr, tuple: u16) -> Vec<u8> {
    let mut ip = Vec::new();
    match address {
        IpAddr::V4(address) => attribute(&mut ip, 1, &address.octets()),
        IpAddr::V6(address) => attribute(&mut ip, 3, &address.octets()),
    }
    let mut nest = Vec::new();
    attribute(&mut nest, TUPLE_IP | NLA_F_NESTED, &ip);
    let (orig, reply) = if tuple == TUPLE_ORIG { (FILTER_IP_SRC, 0) } else { (0, FILTER_IP_SRC) };
    let mut flags = Vec::new();
    attribute(&mut flags, FILTER_ORIG_FLAGS, &orig.to_ne_bytes());
    attribute(&mut flags, FILTER_REPLY_FLAGS, &reply.to_ne_bytes());
    let mut attributes = Vec::new();
    attribute(&mut attributes, tuple | NLA_F_NESTED, &nest);
    attribute(&mut attributes, FILTER | NLA_F_NESTED, &flags);
    attributes
}

fn attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

fn request(kind: u16, v4: bool, flags: u16, sequence: u32, attributes: &[u8]) -> Vec<u8> {
    let family = if v4 { libc::AF_INET } else { libc::AF_INET6 };
    let mut bytes = Vec::with_capacity(20 + attributes.len());
    bytes.extend(((20 + attributes.len()) as u32).to_ne_bytes());
    bytes.extend((SUBSYSTEM << 8 | kind).to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0_u32.to_ne_bytes());
    // struct nfgenmsg: family, version 0, resource id 0.
    bytes.extend([family as u8, 0, 0, 0]);
    bytes.extend_from_slice(attributes);
    bytes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use holdfast_core::spec::Protocol;

    fn flow(orig: (&str, &str), reply: (&str, u16)) -> Flow {
        let ip = |text: &str| Some(text.parse().unwrap());
        let orig =
            Tuple { source: ip(orig.0), destination: ip(orig.1), protocol: Some(17), source_port: Some(9) };
        let reply = Tuple {
            source: ip(reply.0),
            destination: orig.source,
            protocol: Some(17),
            source_port: Some(reply.1),
        };
        Flow { orig, reply, orig_bytes: Vec::new(), id: Vec::new() }
    }

    #[test]
    fn flows_of_an_address_are_its_own_in_either_role() {
        let whose = Whose::of(&Element::Group4("10.0.0.2".parse().unwrap(), 1)).unwrap();
        assert!(whose.matches(&flow(("10.0.0.2", "9.9.9.9"), ("9.9.9.9", 53))));
        assert!(whose.matches(&flow(("10.0.0.3", "10.0.0.1"), ("10.0.0.2", 53))));
        assert!(!whose.matches(&flow(("10.0.0.3", "10.0.0.4"), ("10.0.0.4", 53))));
    }

    #[test]
    fn flows_of_a_published_port_are_those_that_were_led_there() {
        let element = Element::Forward4(Protocol::Udp, 20_000, "10.0.0.2".parse().unwrap(), 53);
        let whose = Whose::of(&element).unwrap();
        assert!(whose.matches(&flow(("10.0.2.2", "10.0.2.100"), ("10.0.0.2", 53))));
        assert!(!whose.matches(&flow(("10.0.2.2", "10.0.2.100"), ("10.0.0.2", 54))));
        // Straight to it: that is no business of the published port.
        assert!(!whose.matches(&flow(("10.0.0.3", "10.0.0.2"), ("10.0.0.2", 53))));
    }

    #[test]
    fn malformed_flows_are_none() {
        assert!(Flow::read(&[]).is_none());
        assert!(Flow::read(&[8, 0, 1, 0, 1, 2, 3, 4]).is_none());
        assert_eq!(Tuple::read(&[5, 0, 1, 0, 9]), Tuple::default());
    }
}
