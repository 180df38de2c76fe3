//! Classes of addresses: those that answer to the same ends of policies.

use super::Peer;
use crate::record::{Change, Records};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The ends that an address answers to, by their text.
pub type Signature = BTreeSet<String>;

/// The text of a signature, as the node's record keeps it.
fn join(signature: &Signature) -> String {
    signature.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
}

fn split(text: &str) -> Signature {
    text.lines().map(String::from).collect()
}

/// Every end that a policy names, by its text.
fn peers(records: &Records) -> BTreeMap<String, &Peer> {
    records.policies.values().flat_map(|policy| policy.peers()).map(|peer| (peer.text(), peer)).collect()
}

/// The numbers of all classes, and which addresses are in which.
pub struct Classes<'a> {
    peers: BTreeMap<String, &'a Peer>,
    numbers: BTreeMap<Signature, u32>,
    /// Segments of addresses outside: first, last, and their class.
    pub outside: Vec<(IpAddr, IpAddr, Signature)>,
}

impl<'a> Classes<'a> {
    /// `None` where there is no policy: then no address needs a class.
    pub fn of(records: &'a Records) -> Option<Self> {
        if records.policies.is_empty() {
            return None;
        }
        let peers = peers(records);
        let outside = outside(&peers);
        let known = records.node.iter().flat_map(|node| &node.policy_classes).map(|text| {
            // An end that no policy names any more tells nothing apart.
            split(text).into_iter().filter(|peer| peers.contains_key(peer)).collect()
        });
        let all: BTreeSet<Signature> =
            known.chain(outside.iter().map(|(_, _, signature)| signature.clone())).collect();
        Some(Self { numbers: number(all), peers, outside })
    }

    /// The class number of a signature; 0, which no address has, for one that is not known.
    pub fn number(&self, signature: &Signature) -> u32 {
        self.numbers.get(signature).copied().unwrap_or(0)
    }

    /// Every class.
    pub fn all(&self) -> impl Iterator<Item = (&Signature, u32)> {
        self.numbers.iter().map(|(signature, number)| (signature, *number))
    }

    /// Which ends an address of a workload answers to.
    pub fn inside(
        &self,
        sandbox: &crate::record::SandboxRecord,
        own: &crate::record::AttachmentRecord,
        address: IpAddr,
    ) -> Signature {
        let matching = self.peers.iter().filter(|(_, peer)| peer.matches(sandbox, own, address));
        matching.map(|(text, _)| text.clone()).collect()
    }

    /// Which ends an address outside the node answers to.
    pub fn outside_of(&self, address: IpAddr) -> Signature {
        let matching = self.peers.iter().filter(|(_, peer)| peer.matches_outside(address));
        matching.map(|(text, _)| text.clone()).collect()
    }
}

/// A number of its own for each signature: by digest, so that a class keeps its number while others come and go,
/// and the next free one where two digests meet.
fn number(all: BTreeSet<Signature>) -> BTreeMap<Signature, u32> {
    let mut taken = BTreeSet::from([0]);
    let mut numbers = BTreeMap::new();
    for signature in all {
        let digest = crate::ruleset::digest_of(join(&signature).as_bytes());
        let mut number = (digest ^ (digest >> 32)) as u32;
        while !taken.insert(number) {
            number = number.wrapping_add(1);
        }
        numbers.insert(signature, number);
    }
    numbers
}

/// All addresses outside, cut where an end begins or stops to be met.
fn outside(peers: &BTreeMap<String, &Peer>) -> Vec<(IpAddr, IpAddr, Signature)> {
    let mut segments = Vec::new();
    for v4 in [true, false] {
        let mut starts: BTreeSet<u128> = BTreeSet::from([0]);
        for (address, prefix) in peers.values().flat_map(|peer| peer.cidr.iter().chain(&peer.except)) {
            let (first, bits) = match address {
                IpAddr::V4(address) if v4 => (u128::from(u32::from(*address)), 32),
                IpAddr::V6(address) if !v4 => (u128::from(*address), 128),
                _ => continue,
            };
            let size = 1_u128.checked_shl(bits - u32::from(*prefix).min(bits)).unwrap_or(0);
            starts.insert(first);
            starts.extend(
                first.checked_add(size).filter(|next| size > 0 && (!v4 || *next <= u128::from(u32::MAX))),
            );
        }
        let address = |number: u128| match v4 {
            true => IpAddr::V4(Ipv4Addr::from(number as u32)),
            false => IpAddr::V6(Ipv6Addr::from(number)),
        };
        let last = if v4 { u128::from(u32::MAX) } else { u128::MAX };
        let ends = starts.iter().skip(1).map(|next| next - 1).chain([last]);
        for (start, end) in starts.iter().zip(ends) {
            let first = address(*start);
            let matching = peers.iter().filter(|(_, peer)| peer.matches_outside(first));
            segments.push((first, address(end), matching.map(|(text, _)| text.clone()).collect()));
        }
    }
    segments
}

/// The node's record with the classes that the workloads on record need, if it lacks any. One that is not needed
/// any more stays until policies change: its verdicts speak of nobody.
pub fn note_classes(records: &Records, afresh: bool) -> Option<Change> {
    let node = records.node.as_ref()?;
    let mut wanted = BTreeSet::new();
    if let Some(classes) = Classes::of(records) {
        for sandbox in records.sandboxes.values() {
            for own in &sandbox.attachments {
                for address in [IpAddr::V4(own.ipv4), IpAddr::V6(own.ipv6)] {
                    wanted.insert(join(&classes.inside(sandbox, own, address)));
                }
            }
        }
        if !afresh {
            wanted.extend(node.policy_classes.iter().cloned());
        }
    }
    (wanted != node.policy_classes).then(|| {
        let mut next = node.clone();
        next.policy_classes = wanted;
        Change::Node(next)
    })
}
