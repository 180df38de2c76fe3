//! The firewall: base chains that never change, and sets whose elements are the policy.
//!
//! A packet between workloads is accepted by membership alone, looked up for every packet: taking an element
//! away cuts at once what it allowed, and a rebuilt router needs no memory of a stream to let it go on.
//! Connection tracking decides only at the uplink.

mod base;
mod elements;
mod expression;
mod transaction;

use super::{
    error::{NetlinkError, netlink},
    netlink::{Attributes, DUMP_ATTEMPTS, Message, NetlinkSocket, Next, error_of},
};
use elements::{Raw, SETS, SetSpec};
use holdfast_core::{
    error::{Class, RouterError},
    observed::RulesetObserved,
    ruleset::{Counter, Element, Ruleset},
};
use nix::{errno::Errno, sys::socket::SockProtocol};
use std::collections::{BTreeMap, BTreeSet};
use transaction::{Change, Transaction, get_request};

/// How often a change is read back that does not show: a set that has just grown is rehashed by a worker, and a dump of
/// several datagrams under it misses elements without being marked as interrupted (seen once, 6,000 elements of 6.18;
/// nft_rhash_walk() in net/netfilter/nft_set_hash.c skips by count).
const READ_BACKS: u32 = 4;

/// Asked for as send buffer, and the most of it that one transaction uses, in bytes. The kernel checks a
/// transaction as a whole, so a larger one would hold its lock for long.
const TRANSACTION_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Up to this many elements are looked up one by one; for more, whole sets are listed.
const LOOKUPS_MAX: usize = 64;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP_INTR: u16 = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
const NFTA_SET_ELEM_KEY: u16 = 1;
const NFTA_SET_ELEM_DATA: u16 = 2;
const NFTA_SET_ELEM_EXPR: u16 = 7;
const NFTA_SET_ELEM_KEY_END: u16 = 10;
const NFTA_SET_ELEM_EXPRESSIONS: u16 = 11;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_COUNTER_BYTES: u16 = 1;
const NFTA_COUNTER_PACKETS: u16 = 2;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;
/// `struct nfgenmsg`.
const NFGENMSG_BYTES: usize = 4;

/// Data by set and key; empty data in sets that are no maps.
type Held = BTreeMap<(usize, Vec<u8>), Vec<u8>>;

/// The tables `inet holdfast` and `bridge holdfast` of one network namespace.
pub(crate) struct Firewall {
    socket: NetlinkSocket,
}

impl Firewall {
    /// Opens a socket in the caller's network namespace.
    pub fn open() -> Result<Self, Errno> {
        Ok(Self { socket: NetlinkSocket::open(SockProtocol::NetlinkNetFilter, TRANSACTION_BYTES_MAX)? })
    }

    /// Looks whether the base is in place, and digests the elements.
    pub fn observe(&mut self) -> Result<RulesetObserved, RouterError> {
        let base = self.has_base()?;
        let held = if base { self.dump_all()? } else { BTreeSet::new() };
        Ok(RulesetObserved { base, digest: elements::digest(&held) })
    }

    /// Base chains and exactly these elements, then a look whether it is so. Tells what was removed.
    pub fn ensure(&mut self, ruleset: &Ruleset) -> Result<BTreeSet<Element>, RouterError> {
        let wanted: BTreeSet<Raw> = ruleset.elements.iter().map(elements::encode).collect();
        let mut held = BTreeSet::new();
        if self.has_base()? {
            held = self.dump_all()?;
        } else {
            self.install_base()?;
        }
        let gone = held.difference(&wanted).filter_map(elements::decode).collect();
        let changes = difference(&held, &wanted);
        self.commit(&changes)?;
        let base = self.has_base()?;
        for _ in 0..READ_BACKS {
            held = self.dump_all()?;
            if base && elements::digest(&held) == ruleset.digest() && held == wanted {
                return Ok(gone);
            }
        }
        Err(RouterError::new(
            Class::Transient,
            "put in place",
            "the ruleset",
            format!("read back base {base}, {} elements of {}", held.len(), wanted.len()),
        )
        .with_remedy("something else changes the tables named holdfast"))
    }

    /// Adds elements in one transaction.
    pub fn add(&mut self, elements: &BTreeSet<Element>) -> Result<(), RouterError> {
        let wanted: BTreeSet<Raw> = elements.iter().map(elements::encode).collect();
        // Only a map's key can be taken by another target: adding what is there changes nothing in a set.
        let keyed: BTreeSet<Raw> =
            wanted.iter().filter(|raw| SETS[raw.set].data.is_some()).cloned().collect();
        let (ranged, keyed): (BTreeSet<Raw>, BTreeSet<Raw>) =
            keyed.into_iter().partition(|raw| !SETS[raw.set].ranges.is_empty());
        let held = self.held_of(&keyed)?;
        let mut changes = self.replacing(&ranged)?;
        for raw in wanted.difference(&ranged).cloned().collect::<Vec<_>>() {
            let key = (raw.set, raw.key.clone());
            match held.get(&key) {
                Some(data) if *data == raw.data => continue,
                Some(_) => changes.push(Change::Remove(raw.clone())),
                None => {}
            }
            changes.push(Change::Add(raw));
        }
        self.commit_whole(&changes)
    }

    /// Changes that put ranges in place of whatever overlaps with them.
    fn replacing(&mut self, wanted: &BTreeSet<Raw>) -> Result<Vec<Change>, RouterError> {
        let mut changes = Vec::new();
        let sets: BTreeSet<usize> = wanted.iter().map(|raw| raw.set).collect();
        for set in sets {
            let exact = SETS[set].exact_bytes();
            let held = self.dump_set(set)?;
            let mut near: BTreeMap<&[u8], Vec<&Raw>> = BTreeMap::new();
            for raw in &held {
                near.entry(&raw.key[..exact.min(raw.key.len())]).or_default().push(raw);
            }
            let mut gone = BTreeSet::new();
            for raw in wanted.iter().filter(|raw| raw.set == set && !held.contains(*raw)) {
                let near =
                    near.get(&raw.key[..exact.min(raw.key.len())]).map(Vec::as_slice).unwrap_or_default();
                gone.extend(near.iter().filter(|other| other.overlaps(raw)).map(|other| (*other).clone()));
                changes.push(Change::Add(raw.clone()));
            }
            changes.extend(gone.into_iter().map(Change::Remove));
        }
        Ok(changes)
    }

    /// Removes elements in one transaction. A key that holds another target is another element and stays.
    pub fn remove(&mut self, elements: &BTreeSet<Element>) -> Result<(), RouterError> {
        let unwanted: BTreeSet<Raw> = elements.iter().map(elements::encode).collect();
        let held = self.held_of(&unwanted)?;
        let changes: Vec<Change> = unwanted
            .into_iter()
            .filter(|raw| held.get(&(raw.set, raw.id())) == Some(&raw.data))
            .map(Change::Remove)
            .collect();
        self.commit_whole(&changes)
    }

    /// What the kernel holds under the keys of `wanted`.
    fn held_of(&mut self, wanted: &BTreeSet<Raw>) -> Result<Held, RouterError> {
        let mut held = BTreeMap::new();
        let exact = wanted.iter().all(|raw| SETS[raw.set].ranges.is_empty());
        if wanted.len() <= LOOKUPS_MAX && exact {
            for raw in wanted {
                held.extend(self.lookup(raw)?.map(|found| ((found.set, found.key), found.data)));
            }
            return Ok(held);
        }
        let sets: BTreeSet<usize> = wanted.iter().map(|raw| raw.set).collect();
        for set in sets {
            held.extend(self.dump_set(set)?.into_iter().map(|found| ((found.set, found.id()), found.data)));
        }
        Ok(held)
    }

    fn lookup(&mut self, raw: &Raw) -> Result<Option<Raw>, RouterError> {
        let spec = &SETS[raw.set];
        let sequence = self.socket.next_sequence();
        let request = transaction::lookup_request(spec, &raw.key, sequence, NLM_F_ACK);
        let mut found = None;
        let result = self.exchange(&request, sequence, |message| {
            found = read_elements(raw.set, message).into_iter().find(|element| element.key == raw.key);
        });
        match result {
            Ok(_) => Ok(found),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(netlink("look an element up in", spec.label(), &error)),
        }
    }

    /// Sends a request and hands over each message of the answer; `true` when a change came between.
    fn exchange(
        &mut self,
        request: &[u8],
        sequence: u32,
        mut on_message: impl FnMut(&Message<'_>),
    ) -> Result<bool, NetlinkError> {
        let mut interrupted = false;
        self.socket.send(request)?;
        self.socket.receive(|message| {
            if message.sequence != sequence {
                return Ok(Next::More);
            }
            interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
            match message.kind {
                NLMSG_ERROR | NLMSG_DONE => error_of(message).map(|()| Next::Done),
                _ => {
                    on_message(message);
                    Ok(Next::More)
                }
            }
        })?;
        Ok(interrupted)
    }

    /// Dumps objects of one table; the callback gets type and attributes. An absent table has none.
    fn dump(
        &mut self,
        kind: libc::c_int,
        family: u8,
        attributes: &[u8],
        mut on_object: impl FnMut(&Message<'_>),
        mut reset: impl FnMut(),
    ) -> Result<(), NetlinkError> {
        for _ in 0..DUMP_ATTEMPTS {
            reset();
            let sequence = self.socket.next_sequence();
            let request = get_request(kind, family, NLM_F_DUMP, sequence, attributes);
            match self.exchange(&request, sequence, &mut on_object) {
                Ok(false) => return Ok(()),
                Ok(true) => {}
                Err(error) if error.is_missing() => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Err(NetlinkError {
            errno: Errno::EBUSY,
            message: format!("changed during each of {DUMP_ATTEMPTS} dumps"),
        })
    }

    fn dump_set(&mut self, set: usize) -> Result<BTreeSet<Raw>, RouterError> {
        let spec = &SETS[set];
        let found = std::cell::RefCell::new(BTreeSet::new());
        let attributes = transaction::element_list_attributes(spec);
        self.dump(
            libc::NFT_MSG_GETSETELEM,
            spec.family(),
            &attributes,
            |message| found.borrow_mut().extend(read_elements(set, message)),
            || found.borrow_mut().clear(),
        )
        .map_err(|error| netlink("list elements of", spec.label(), &error))?;
        Ok(found.into_inner())
    }

    /// How often each verdict was given: elements with packets and bytes.
    pub fn counters(&mut self) -> Result<Vec<(Element, Counter)>, RouterError> {
        let mut counters = Vec::new();
        if !self.has_base()? {
            return Ok(counters);
        }
        for (set, spec) in SETS.iter().enumerate().filter(|(_, spec)| spec.verdict) {
            let found = std::cell::RefCell::new(Vec::new());
            let attributes = transaction::element_list_attributes(spec);
            self.dump(
                libc::NFT_MSG_GETSETELEM,
                spec.family(),
                &attributes,
                |message| found.borrow_mut().extend(read_counters(set, message)),
                || found.borrow_mut().clear(),
            )
            .map_err(|error| netlink("list elements of", spec.label(), &error))?;
            counters.append(&mut found.into_inner());
        }
        Ok(counters)
    }

    fn dump_all(&mut self) -> Result<BTreeSet<Raw>, RouterError> {
        let mut all = BTreeSet::new();
        for set in 0..SETS.len() {
            all.append(&mut self.dump_set(set)?);
        }
        Ok(all)
    }

    /// Whether every table, set, chain and rule of this build is there, once and in order, and nothing else.
    fn has_base(&mut self) -> Result<bool, RouterError> {
        for table in base::tables() {
            let wrap = |error| netlink("look at", format!("table {} holdfast", table.label), &error);
            for &(kind, ref expected) in table.expected() {
                let found = std::cell::RefCell::new(Vec::new());
                let attributes = transaction::table_attributes();
                self.dump(
                    kind,
                    table.family as u8,
                    &attributes,
                    |message| {
                        let attributes = message.payload().get(NFGENMSG_BYTES..).unwrap_or_default();
                        found.borrow_mut().extend(base::describe(kind, attributes));
                    },
                    || found.borrow_mut().clear(),
                )
                .map_err(wrap)?;
                let mut found = found.into_inner();
                if kind != libc::NFT_MSG_GETRULE {
                    // The kernel lists sets and chains in no promised order; of rules the order is the meaning.
                    found.sort();
                }
                if found != *expected {
                    tracing::debug!(table = table.label, ?found, ?expected, "base differs");
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Puts the base in place of whatever tables of its name hold, in one transaction: between the old and
    /// the new there is no moment without.
    fn install_base(&mut self) -> Result<(), RouterError> {
        let mut transaction = Transaction::new(&mut self.socket);
        for table in base::tables() {
            table.write(&mut transaction).map_err(|cause| {
                RouterError::new(Class::Fatal, "encode", format!("table {} holdfast", table.label), cause)
            })?;
        }
        self.send(transaction)
    }

    /// Applies changes in as many transactions as their size asks for.
    fn commit(&mut self, changes: &[Change]) -> Result<(), RouterError> {
        let limit = self.socket.send_bytes_max.min(TRANSACTION_BYTES_MAX);
        let mut rest = changes;
        let (ranged, others): (Vec<Change>, Vec<Change>) =
            changes.iter().cloned().partition(|change| !SETS[change.raw().set].ranges.is_empty());
        if transaction::fitting(changes, limit) < changes.len() && !ranged.is_empty() {
            // What takes an overlapping range's place belongs into its transaction.
            self.commit_whole(&ranged)?;
            rest = &others;
        }
        while !rest.is_empty() {
            let mut count = transaction::fitting(rest, limit);
            // A key's removal and its new target belong together.
            if let (Some(Change::Remove(_)), Some(Change::Add(_))) = (rest.get(count - 1), rest.get(count))
                && count > 1
            {
                count -= 1;
            }
            let (now, later) = rest.split_at(count);
            self.commit_whole(now)?;
            rest = later;
        }
        Ok(())
    }

    /// Applies changes in one transaction.
    fn commit_whole(&mut self, changes: &[Change]) -> Result<(), RouterError> {
        if changes.is_empty() {
            return Ok(());
        }
        let mut transaction = Transaction::new(&mut self.socket);
        transaction.change(changes);
        self.send(transaction)
    }

    fn send(&mut self, transaction: Transaction) -> Result<(), RouterError> {
        let commit = transaction.finish(&mut self.socket);
        let wrap = |error: NetlinkError| {
            let wrapped = netlink("change", "the ruleset", &error);
            match error.errno {
                Errno::ENOENT => wrapped.with_remedy("the base must be in place first: `holdfast up`"),
                _ => wrapped,
            }
        };
        self.socket.send(&commit.bytes).map_err(|error| wrap(error.into()))?;
        let mut outcome = Ok(());
        self.socket
            .receive(|message| {
                if message.kind != NLMSG_ERROR || !commit.sequences.contains(&message.sequence) {
                    return Ok(Next::More);
                }
                let result = error_of(message);
                // The first error says why; an error of the begin message is the only answer there is.
                let last = message.sequence == commit.acknowledged
                    || (message.sequence == *commit.sequences.start() && result.is_err());
                if outcome.is_ok() {
                    outcome = result;
                }
                Ok(if last { Next::Done } else { Next::More })
            })
            .map_err(wrap)?;
        outcome.map_err(wrap)
    }
}

/// Removals and additions that lead from one to the other, key by key, a removal before its replacement.
fn difference(held: &BTreeSet<Raw>, wanted: &BTreeSet<Raw>) -> Vec<Change> {
    let mut changes: BTreeMap<(usize, Vec<u8>), [Option<Change>; 2]> = BTreeMap::new();
    for raw in held.difference(wanted) {
        changes.entry((raw.set, raw.id())).or_default()[0] = Some(Change::Remove(raw.clone()));
    }
    for raw in wanted.difference(held) {
        changes.entry((raw.set, raw.id())).or_default()[1] = Some(Change::Add(raw.clone()));
    }
    changes.into_values().flatten().flatten().collect()
}

/// The elements of one message of a dump or a look-up.
fn read_elements(set: usize, message: &Message<'_>) -> Vec<Raw> {
    let value = |nest: &[u8]| {
        Attributes(nest).find(|(kind, _)| *kind == NFTA_DATA_VALUE).map(|(_, value)| value.to_vec())
    };
    Attributes(message.payload().get(NFGENMSG_BYTES..).unwrap_or_default())
        .filter(|(kind, _)| *kind == NFTA_SET_ELEM_LIST_ELEMENTS)
        .flat_map(|(_, list)| Attributes(list))
        .filter_map(|(_, element)| {
            let part = |wanted| {
                Attributes(element).find(|(kind, _)| *kind == wanted).and_then(|(_, nest)| value(nest))
            };
            let verdict = || {
                let nest = |inside: &'_ [u8], wanted: u16| {
                    Attributes(inside).find(|(kind, _)| *kind == wanted).map(|(_, value)| value.to_vec())
                };
                let data = nest(element, NFTA_SET_ELEM_DATA)?;
                nest(&nest(&data, NFTA_DATA_VERDICT)?, NFTA_VERDICT_CODE)
            };
            let data = if SETS[set].verdict { verdict() } else { part(NFTA_SET_ELEM_DATA) };
            let key_end = part(NFTA_SET_ELEM_KEY_END).filter(|_| !SETS[set].ranges.is_empty());
            Some(Raw {
                set,
                key: part(NFTA_SET_ELEM_KEY)?,
                key_end: key_end.unwrap_or_default(),
                data: data.unwrap_or_default(),
            })
        })
        .collect()
}

/// The counters of one message's elements.
fn read_counters(set: usize, message: &Message<'_>) -> Vec<(Element, Counter)> {
    let find = |inside: &[u8], wanted: u16| {
        Attributes(inside).find(|(kind, _)| *kind == wanted).map(|(_, value)| value.to_vec())
    };
    let number = |inside: &[u8], wanted: u16| {
        find(inside, wanted).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes)
    };
    let lists = Attributes(message.payload().get(NFGENMSG_BYTES..).unwrap_or_default())
        .filter(|(kind, _)| *kind == NFTA_SET_ELEM_LIST_ELEMENTS)
        .flat_map(|(_, list)| Attributes(list).map(|(_, element)| element.to_vec()).collect::<Vec<_>>());
    let elements = read_elements(set, message);
    lists
        .zip(elements)
        .filter_map(|(bytes, raw)| {
            // One expression stands alone, several in a list: of ours there is one.
            let expression = find(&bytes, NFTA_SET_ELEM_EXPR).or_else(|| {
                let list = find(&bytes, NFTA_SET_ELEM_EXPRESSIONS)?;
                Attributes(&list).next().map(|(_, value)| value.to_vec())
            })?;
            let data = find(&expression, NFTA_EXPR_DATA)?;
            let counter = Counter {
                packets: number(&data, NFTA_COUNTER_PACKETS)?,
                bytes: number(&data, NFTA_COUNTER_BYTES)?,
            };
            Some((elements::decode(&raw)?, counter))
        })
        .collect()
}

impl Raw {
    /// What tells it from others of its set.
    fn id(&self) -> Vec<u8> {
        [self.key.as_slice(), &self.key_end].concat()
    }
}

impl SetSpec {
    fn label(&self) -> String {
        format!("set {}", self.name.to_string_lossy())
    }

    fn family(&self) -> u8 {
        self.table as u8
    }
}
