//! Transactions: one datagram from begin to end, so that all of it takes effect or nothing
//! (nfnetlink_rcv_batch() in net/netfilter/nfnetlink.c).
//!
//! Only the last message asks for an ACK: one ACK per message would overflow the receive buffer and make a
//! commit that succeeded look like a failure.

use super::{
    NLM_F_ACK,
    elements::{Raw, SETS, SetSpec},
};
use crate::net::netlink::NetlinkSocket;
use nftnl::{MsgType, NlMsg, nft_nlmsg_maxsize};
use std::{ffi::CStr, ops::RangeInclusive};

/// Name of Holdfast's tables.
pub(crate) const TABLE: &CStr = c"holdfast";

const NLM_F_REQUEST: u16 = 1;
const NLM_F_CREATE: u16 = 0x400;
const NLA_F_NESTED: u16 = 0x8000;
const NFTA_TABLE_NAME: u16 = 1;
const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
const NFTA_SET_ELEM_LIST_SET: u16 = 2;
const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_SET_ELEM_KEY: u16 = 1;
const NFTA_SET_ELEM_DATA: u16 = 2;
const NFTA_SET_ELEM_KEY_END: u16 = 10;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;
/// A netlink attribute's length is 16 bits; a list of elements is one attribute.
const LIST_BYTES_MAX: usize = 60_000;
/// Begin, end, and a message's own head, in bytes: more than they take.
const MESSAGE_BYTES: usize = 96;

/// One change of an element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    Add(Raw),
    Remove(Raw),
}

impl Change {
    pub fn raw(&self) -> &Raw {
        match self {
            Self::Add(raw) | Self::Remove(raw) => raw,
        }
    }

    fn bytes(&self) -> usize {
        element(self.raw()).len()
    }
}

/// How many of the changes, from the first on and at least one, fit a transaction of `limit` bytes.
pub(crate) fn fitting(changes: &[Change], limit: usize) -> usize {
    // Sets and their messages take turns at worst: each kind of change of each set is a message of its own,
    // and one more for every full list.
    let overhead = MESSAGE_BYTES * (2 + 2 * SETS.len());
    let mut bytes = overhead;
    let mut count = 0;
    for change in changes {
        bytes += change.bytes();
        if bytes + (bytes / LIST_BYTES_MAX) * MESSAGE_BYTES > limit && count > 0 {
            break;
        }
        count += 1;
    }
    count
}

/// A finished transaction.
pub(crate) struct Commit {
    pub bytes: Vec<u8>,
    /// All its sequence numbers, that of the begin message first.
    pub sequences: RangeInclusive<u32>,
    /// The message that is acknowledged once the commit is done.
    pub acknowledged: u32,
}

/// A transaction being written.
pub(crate) struct Transaction {
    bytes: Vec<u8>,
    first: u32,
    last: u32,
    last_at: usize,
}

impl Transaction {
    /// Begins one.
    pub fn new(socket: &mut NetlinkSocket) -> Self {
        let first = socket.next_sequence();
        let mut this = Self { bytes: Vec::with_capacity(4096), first, last: first, last_at: 0 };
        let begin = message(
            libc::NFNL_MSG_BATCH_BEGIN as u16,
            0,
            NLM_F_REQUEST,
            first,
            libc::NFNL_SUBSYS_NFTABLES as u16,
            &[],
        );
        this.bytes.extend(begin);
        this
    }

    fn next(&mut self) -> u32 {
        self.last += 1;
        self.last_at = self.bytes.len();
        self.last
    }

    /// Adds an object of libnftnl.
    pub fn add(&mut self, object: &impl NlMsg, kind: MsgType) {
        let sequence = self.next();
        let mut buffer = vec![0_u8; nft_nlmsg_maxsize() as usize];
        // SAFETY: the buffer holds nft_nlmsg_maxsize() bytes, which is what the trait asks for.
        unsafe { object.write(buffer.as_mut_ptr().cast(), sequence, kind) };
        let length = u32::from_ne_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]) as usize;
        let flags = u16::from_ne_bytes([buffer[6], buffer[7]]) & !NLM_F_ACK;
        buffer[6..8].copy_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&buffer[..length.next_multiple_of(4)]);
    }

    /// Adds changes of elements: removals before additions, so that a key can change its target.
    pub fn change(&mut self, changes: &[Change]) {
        let pick = |add: bool| {
            let mut picked: Vec<&Raw> = changes
                .iter()
                .filter(|change| matches!(change, Change::Add(_)) == add)
                .map(Change::raw)
                .collect();
            picked.sort_unstable();
            picked
        };
        self.elements(libc::NFT_MSG_DELSETELEM, 0, &pick(false));
        self.elements(libc::NFT_MSG_NEWSETELEM, NLM_F_CREATE, &pick(true));
    }

    fn elements(&mut self, kind: libc::c_int, flags: u16, elements: &[&Raw]) {
        for of_set in elements.chunk_by(|one, other| one.set == other.set) {
            let mut list = Vec::new();
            let spec = &SETS[of_set[0].set];
            for raw in of_set {
                if list.len() > LIST_BYTES_MAX {
                    self.element_message(kind, flags, spec, &list);
                    list.clear();
                }
                list.extend(element(raw));
            }
            self.element_message(kind, flags, spec, &list);
        }
    }

    fn element_message(&mut self, kind: libc::c_int, flags: u16, spec: &SetSpec, list: &[u8]) {
        let sequence = self.next();
        let mut attributes = element_list_attributes(spec);
        attribute(&mut attributes, NFTA_SET_ELEM_LIST_ELEMENTS | NLA_F_NESTED, list);
        self.bytes.extend(request(kind, spec.table as u8, NLM_F_REQUEST | flags, sequence, &attributes));
    }

    /// Ends it.
    pub fn finish(mut self, socket: &mut NetlinkSocket) -> Commit {
        let acknowledged = self.last;
        if let Some(flags) = self.bytes.get_mut(self.last_at + 6..self.last_at + 8) {
            let with_ack = u16::from_ne_bytes([flags[0], flags[1]]) | NLM_F_ACK;
            flags.copy_from_slice(&with_ack.to_ne_bytes());
        }
        let end = self.next();
        let bytes = message(
            libc::NFNL_MSG_BATCH_END as u16,
            0,
            NLM_F_REQUEST,
            end,
            libc::NFNL_SUBSYS_NFTABLES as u16,
            &[],
        );
        self.bytes.extend(bytes);
        socket.skip_to(end);
        Commit { bytes: self.bytes, sequences: self.first..=end, acknowledged }
    }
}

/// One element in its list.
fn element(raw: &Raw) -> Vec<u8> {
    let nest = |kind: u16, value: &[u8]| {
        let mut inner = Vec::with_capacity(value.len() + 4);
        attribute(&mut inner, NFTA_DATA_VALUE, value);
        let mut outer = Vec::with_capacity(inner.len() + 4);
        attribute(&mut outer, kind | NLA_F_NESTED, &inner);
        outer
    };
    let mut parts = nest(NFTA_SET_ELEM_KEY, &raw.key);
    if !raw.key_end.is_empty() {
        parts.extend(nest(NFTA_SET_ELEM_KEY_END, &raw.key_end));
    }
    if !raw.data.is_empty() && SETS[raw.set].verdict {
        let mut code = Vec::new();
        attribute(&mut code, NFTA_VERDICT_CODE, &raw.data);
        let mut verdict = Vec::new();
        attribute(&mut verdict, NFTA_DATA_VERDICT | NLA_F_NESTED, &code);
        attribute(&mut parts, NFTA_SET_ELEM_DATA | NLA_F_NESTED, &verdict);
    } else if !raw.data.is_empty() {
        parts.extend(nest(NFTA_SET_ELEM_DATA, &raw.data));
    }
    let mut bytes = Vec::with_capacity(parts.len() + 4);
    attribute(&mut bytes, NFTA_LIST_ELEM | NLA_F_NESTED, &parts);
    bytes
}

/// Appends an attribute. Values are far below its 16-bit length, lists kept below it by their writer.
fn attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

fn message(kind: u16, family: u8, flags: u16, sequence: u32, resource: u16, attributes: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(20 + attributes.len());
    bytes.extend(((20 + attributes.len()) as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0_u32.to_ne_bytes());
    // struct nfgenmsg: family, version 0, resource id in network order.
    bytes.extend([family, 0]);
    bytes.extend(resource.to_be_bytes());
    bytes.extend_from_slice(attributes);
    bytes
}

fn request(kind: libc::c_int, family: u8, flags: u16, sequence: u32, attributes: &[u8]) -> Vec<u8> {
    let kind = (libc::NFNL_SUBSYS_NFTABLES as u16) << 8 | kind as u16;
    message(kind, family, flags, sequence, 0, attributes)
}

/// A request outside a transaction.
pub(crate) fn get_request(
    kind: libc::c_int,
    family: u8,
    flags: u16,
    sequence: u32,
    attributes: &[u8],
) -> Vec<u8> {
    request(kind, family, NLM_F_REQUEST | flags, sequence, attributes)
}

/// Asks for the element of one key.
pub(crate) fn lookup_request(spec: &SetSpec, key: &[u8], sequence: u32, flags: u16) -> Vec<u8> {
    let mut attributes = element_list_attributes(spec);
    let list = element(&Raw { set: 0, key: key.to_vec(), key_end: Vec::new(), data: Vec::new() });
    attribute(&mut attributes, NFTA_SET_ELEM_LIST_ELEMENTS | NLA_F_NESTED, &list);
    get_request(libc::NFT_MSG_GETSETELEM, spec.table as u8, flags, sequence, &attributes)
}

/// Names table and set.
pub(crate) fn element_list_attributes(spec: &SetSpec) -> Vec<u8> {
    let mut attributes = Vec::with_capacity(64);
    attribute(&mut attributes, NFTA_SET_ELEM_LIST_TABLE, TABLE.to_bytes_with_nul());
    attribute(&mut attributes, NFTA_SET_ELEM_LIST_SET, spec.name.to_bytes_with_nul());
    attributes
}

/// Names the table; the attribute has the same number for chains, sets and rules.
pub(crate) fn table_attributes() -> Vec<u8> {
    let mut attributes = Vec::with_capacity(16);
    attribute(&mut attributes, NFTA_TABLE_NAME, TABLE.to_bytes_with_nul());
    attributes
}
