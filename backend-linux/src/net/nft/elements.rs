//! Elements as the kernel holds them: keys and data in registers' layout, each field padded to 4 bytes.

use holdfast_core::{
    id::Slot,
    ruleset::{Element, VerdictKey},
    spec::Protocol,
};
use nftnl::ProtoFamily;
use std::{
    collections::BTreeSet,
    ffi::CStr,
    net::{Ipv4Addr, Ipv6Addr},
};

/// Data types as the `nft` tool numbers them: `enum datatypes` in nftables' datatype.h. A concatenation shifts
/// its fields by 6 bits each. The kernel only looks at lengths.
const IPV4: u32 = 7;
const IPV6: u32 = 8;
const ETHER: u32 = 9;
const PROTOCOL: u32 = 12;
const SERVICE: u32 = 13;
const MARK: u32 = 19;
const IFNAME: u32 = 41;

/// IFNAMSIZ: what `meta iifname` loads, NUL-padded.
pub(crate) const IFNAME_BYTES: usize = 16;

/// A named set or map.
#[derive(Debug)]
pub(crate) struct SetSpec {
    pub table: ProtoFamily,
    pub name: &'static CStr,
    /// Type and length in bytes.
    pub key: (u32, u32),
    /// Type and length in bytes of what a map yields.
    pub data: Option<(u32, u32)>,
    /// Whether the key's first field is in the host's byte order, for whoever prints it.
    pub host_order: bool,
    /// Lengths in bytes of the key's fields, where elements are ranges of each; empty where they are exact.
    pub ranges: &'static [u8],
    /// Whether a map yields verdicts.
    pub verdict: bool,
}

impl SetSpec {
    /// How much of a key is never a range: elements that differ there cannot overlap.
    pub fn exact_bytes(&self) -> usize {
        match self.ranges.len() {
            0 => self.key.1 as usize,
            2 => 4,
            _ => 8,
        }
    }
}

const GROUP4: usize = 0;
const MEMBER4: usize = 1;
const EGRESS4: usize = 2;
const GROUP6: usize = 3;
const MEMBER6: usize = 4;
const EGRESS6: usize = 5;
const FORWARD4: usize = 6;
const SOURCE4: usize = 7;
const SOURCE6: usize = 8;
const HAIRPIN4: usize = 9;
const CLASS4: usize = 10;
const CLASS6: usize = 11;
const OUTSIDE4: usize = 12;
const OUTSIDE6: usize = 13;
const POLICY: usize = 14;
const BORDER: usize = 15;

/// `enum nft_data_types`: what a verdict map yields.
const NFT_DATA_VERDICT: u32 = 0xffff_ff00;
/// `struct nft_verdict`'s code, as a map's data.
const VERDICT_BYTES: u32 = 16;

const fn inet(name: &'static CStr, key: (u32, u32), data: Option<(u32, u32)>) -> SetSpec {
    SetSpec { table: ProtoFamily::Inet, name, key, data, host_order: false, ranges: &[], verdict: false }
}

const fn bridge(name: &'static CStr, key: (u32, u32)) -> SetSpec {
    SetSpec {
        table: ProtoFamily::Bridge,
        name,
        key,
        data: None,
        host_order: true,
        ranges: &[],
        verdict: false,
    }
}

/// Classes of addresses outside: family, then a range of addresses.
const fn outside(name: &'static CStr, address: (u32, u32), ranges: &'static [u8]) -> SetSpec {
    let key = (PROTOCOL << 6 | address.0, 4 + address.1);
    SetSpec { ranges, ..inet(name, key, Some((MARK, 4))) }
}

/// Verdicts: class and class, ranges of protocols and ports.
const fn verdicts(name: &'static CStr) -> SetSpec {
    let key = (MARK << 18 | MARK << 12 | PROTOCOL << 6 | SERVICE, 16);
    SetSpec {
        ranges: &[4, 4, 1, 2],
        verdict: true,
        ..inet(name, key, Some((NFT_DATA_VERDICT, VERDICT_BYTES)))
    }
}

/// All sets; [`Raw::set`] is an index here.
pub(crate) static SETS: [SetSpec; 16] = [
    inet(c"group4", (IPV4, 4), Some((MARK, 4))),
    inet(c"member4", (MARK << 6 | IPV4, 8), None),
    inet(c"egress4", (IPV4, 4), None),
    inet(c"group6", (IPV6, 16), Some((MARK, 4))),
    inet(c"member6", (MARK << 6 | IPV6, 20), None),
    inet(c"egress6", (IPV6, 16), None),
    inet(c"forward4", (PROTOCOL << 6 | SERVICE, 8), Some((IPV4 << 6 | SERVICE, 8))),
    bridge(c"source4", (IFNAME << 12 | ETHER << 6 | IPV4, 28)),
    bridge(c"source6", (IFNAME << 12 | ETHER << 6 | IPV6, 40)),
    inet(c"hairpin4", (PROTOCOL << 6 | SERVICE, 8), Some((IPV4 << 6 | SERVICE, 8))),
    inet(c"class4", (IPV4, 4), Some((MARK, 4))),
    inet(c"class6", (IPV6, 16), Some((MARK, 4))),
    outside(c"outside4", (IPV4, 4), &[1, 4]),
    outside(c"outside6", (IPV6, 16), &[1, 16]),
    verdicts(c"policy"),
    verdicts(c"border"),
];

/// One element in the kernel's form; `data` is empty where the set is no map.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Raw {
    pub set: usize,
    pub key: Vec<u8>,
    /// The last key of a range; empty where elements are exact.
    pub key_end: Vec<u8>,
    pub data: Vec<u8>,
}

impl Raw {
    /// Whether some key is in both.
    pub fn overlaps(&self, other: &Self) -> bool {
        let spec = &SETS[self.set];
        let mut at = 0;
        let within = |field: &u8| {
            let here = at..at + usize::from(*field);
            at += usize::from(field.next_multiple_of(4));
            let part = |bytes: &'_ Vec<u8>| bytes.get(here.clone()).map(<[u8]>::to_vec);
            part(&self.key) <= part(&other.key_end) && part(&other.key) <= part(&self.key_end)
        };
        self.set == other.set && !spec.ranges.is_empty() && spec.ranges.iter().all(within)
    }
}

fn raw(set: usize, key: impl IntoIterator<Item = Vec<u8>>, data: Vec<u8>) -> Raw {
    Raw { set, key: key.into_iter().flatten().collect(), key_end: Vec::new(), data }
}

/// NFPROTO_IPV4 and NFPROTO_IPV6 as the first field of a key.
const FAMILY4: [u8; 4] = [2, 0, 0, 0];
const FAMILY6: [u8; 4] = [10, 0, 0, 0];

fn outside_of(set: usize, family: [u8; 4], first: &[u8], last: &[u8], class: u32) -> Raw {
    let key = |address: &[u8]| [&family, address].concat();
    Raw { set, key: key(first), key_end: key(last), data: class.to_ne_bytes().to_vec() }
}

fn verdict(key: &VerdictKey, accept: bool) -> Raw {
    let end = |protocol: u8, port: u16| {
        let classes = [key.from.to_ne_bytes(), key.to.to_ne_bytes()].concat();
        [classes, vec![protocol, 0, 0, 0], service(port)].concat()
    };
    let code = if accept { libc::NF_ACCEPT } else { libc::NF_DROP };
    Raw {
        set: if key.within { POLICY } else { BORDER },
        key: end(key.protocols.0, key.ports.0),
        key_end: end(key.protocols.1, key.ports.1),
        data: code.to_be_bytes().to_vec(),
    }
}

/// A link name as `meta iifname` loads it.
pub(crate) fn ifname(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(IFNAME_BYTES, 0);
    bytes
}

fn ether(mac: [u8; 6]) -> Vec<u8> {
    let mut bytes = mac.to_vec();
    bytes.resize(8, 0);
    bytes
}

fn service(port: u16) -> Vec<u8> {
    let [high, low] = port.to_be_bytes();
    vec![high, low, 0, 0]
}

fn forward(set: usize, protocol: Protocol, from: u16, address: Ipv4Addr, to: u16) -> Raw {
    let key = [vec![protocol.number(), 0, 0, 0], service(from)];
    raw(set, key, [address.octets().to_vec(), service(to)].concat())
}

/// The kernel's form. A group is a number in the host's byte order, like a mark.
pub(crate) fn encode(element: &Element) -> Raw {
    let group = |group: u32| group.to_ne_bytes().to_vec();
    let v4 = |address: Ipv4Addr| address.octets().to_vec();
    let v6 = |address: Ipv6Addr| address.octets().to_vec();
    let port = |slot: Slot| ifname(&slot.host_link_name());
    match *element {
        Element::Group4(address, of) => raw(GROUP4, [v4(address)], group(of)),
        Element::Member4(of, address) => raw(MEMBER4, [group(of), v4(address)], Vec::new()),
        Element::Egress4(address) => raw(EGRESS4, [v4(address)], Vec::new()),
        Element::Source4(slot, mac, address) => {
            raw(SOURCE4, [port(slot), ether(mac), v4(address)], Vec::new())
        }
        Element::Group6(address, of) => raw(GROUP6, [v6(address)], group(of)),
        Element::Member6(of, address) => raw(MEMBER6, [group(of), v6(address)], Vec::new()),
        Element::Egress6(address) => raw(EGRESS6, [v6(address)], Vec::new()),
        Element::Source6(slot, mac, address) => {
            raw(SOURCE6, [port(slot), ether(mac), v6(address)], Vec::new())
        }
        Element::Forward4(protocol, from, address, to) => forward(FORWARD4, protocol, from, address, to),
        Element::Hairpin4(protocol, from, address, to) => forward(HAIRPIN4, protocol, from, address, to),
        Element::Class4(address, class) => raw(CLASS4, [v4(address)], group(class)),
        Element::Class6(address, class) => raw(CLASS6, [v6(address)], group(class)),
        Element::Outside4(first, last, class) => {
            outside_of(OUTSIDE4, FAMILY4, &first.octets(), &last.octets(), class)
        }
        Element::Outside6(first, last, class) => {
            outside_of(OUTSIDE6, FAMILY6, &first.octets(), &last.octets(), class)
        }
        Element::Verdict(key, accept) => verdict(&key, accept),
    }
}

/// The element a kernel's form stands for; `None` for one that Holdfast never makes.
pub(crate) fn decode(raw: &Raw) -> Option<Element> {
    let key = Fields(&raw.key);
    let end = Fields(&raw.key_end);
    let data = Fields(&raw.data);
    let element = match raw.set {
        GROUP4 => Element::Group4(key.v4(0)?, data.number(0)?),
        MEMBER4 => Element::Member4(key.number(0)?, key.v4(4)?),
        EGRESS4 => Element::Egress4(key.v4(0)?),
        GROUP6 => Element::Group6(key.v6(0)?, data.number(0)?),
        MEMBER6 => Element::Member6(key.number(0)?, key.v6(4)?),
        EGRESS6 => Element::Egress6(key.v6(0)?),
        FORWARD4 => Element::Forward4(key.protocol(0)?, key.port(4)?, data.v4(0)?, data.port(4)?),
        HAIRPIN4 => Element::Hairpin4(key.protocol(0)?, key.port(4)?, data.v4(0)?, data.port(4)?),
        CLASS4 => Element::Class4(key.v4(0)?, data.number(0)?),
        CLASS6 => Element::Class6(key.v6(0)?, data.number(0)?),
        OUTSIDE4 => Element::Outside4(key.v4(4)?, end.v4(4)?, data.number(0)?),
        OUTSIDE6 => Element::Outside6(key.v6(4)?, end.v6(4)?, data.number(0)?),
        POLICY | BORDER => {
            let [first] = key.bytes(8)?;
            let [last] = end.bytes(8)?;
            let key = VerdictKey {
                within: raw.set == POLICY,
                from: key.number(0)?,
                to: key.number(4)?,
                protocols: (first, last),
                ports: (key.port(12)?, end.port(12)?),
            };
            Element::Verdict(key, data.bytes(0).map(i32::from_be_bytes)? == libc::NF_ACCEPT)
        }
        SOURCE4 => Element::Source4(key.slot(0)?, key.bytes(16)?, key.v4(24)?),
        SOURCE6 => Element::Source6(key.slot(0)?, key.bytes(16)?, key.v6(24)?),
        _ => return None,
    };
    // Anything left over, or padded otherwise, is not this element.
    (encode(&element) == *raw).then_some(element)
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..at + N)?.try_into().ok()
    }

    fn number(&self, at: usize) -> Option<u32> {
        self.bytes(at).map(u32::from_ne_bytes)
    }

    fn v4(&self, at: usize) -> Option<Ipv4Addr> {
        self.bytes::<4>(at).map(Ipv4Addr::from)
    }

    fn v6(&self, at: usize) -> Option<Ipv6Addr> {
        self.bytes::<16>(at).map(Ipv6Addr::from)
    }

    fn port(&self, at: usize) -> Option<u16> {
        self.bytes(at).map(u16::from_be_bytes)
    }

    fn protocol(&self, at: usize) -> Option<Protocol> {
        let [number] = self.bytes(at)?;
        [Protocol::Tcp, Protocol::Udp].into_iter().find(|protocol| protocol.number() == number)
    }

    fn slot(&self, at: usize) -> Option<Slot> {
        let bytes: [u8; IFNAME_BYTES] = self.bytes(at)?;
        let name = CStr::from_bytes_until_nul(&bytes).ok()?.to_str().ok()?;
        name.strip_prefix("hfv")?.parse().ok().map(Slot)
    }
}

/// Digest comparable with [`holdfast_core::ruleset::Ruleset::digest`]. One that Holdfast never made counts too,
/// so that its presence shows.
pub(crate) fn digest(held: &BTreeSet<Raw>) -> u64 {
    let mut known = Vec::with_capacity(held.len());
    let mut unknown: u64 = 0;
    for raw in held {
        match decode(raw) {
            Some(element) => known.push(element),
            None => unknown += 1,
        }
    }
    holdfast_core::ruleset::digest(known.iter()).wrapping_add(unknown)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ranges_overlap_where_every_field_does() {
        let key = |protocols, ports| {
            encode(&Element::Verdict(VerdictKey { within: true, from: 1, to: 2, protocols, ports }, true))
        };
        assert!(key((6, 6), (80, 90)).overlaps(&key((0, 255), (90, 100))));
        assert!(!key((6, 6), (80, 90)).overlaps(&key((6, 6), (91, 100))));
        assert!(!key((6, 6), (80, 90)).overlaps(&key((17, 17), (80, 90))));
        // In the order of addresses and ports, which is that of their bytes.
        assert!(!key((6, 6), (255, 255)).overlaps(&key((6, 6), (256, 512))));
        let exact = encode(&Element::Egress4(Ipv4Addr::LOCALHOST));
        assert!(!exact.overlaps(&exact));
    }

    #[test]
    fn every_element_reads_back_and_fits_its_set() {
        let v4: Ipv4Addr = "10.89.3.4".parse().unwrap();
        let v6: Ipv6Addr = "fd12::3:4".parse().unwrap();
        let mac = [2, 1, 2, 3, 4, 5];
        let slot = Slot(u32::MAX);
        let key = VerdictKey { within: true, from: 7, to: u32::MAX, protocols: (0, 255), ports: (80, 90) };
        let all = [
            Element::Group4(v4, 77),
            Element::Member4(77, v4),
            Element::Egress4(v4),
            Element::Source4(slot, mac, v4),
            Element::Group6(v6, 77),
            Element::Member6(77, v6),
            Element::Egress6(v6),
            Element::Source6(slot, mac, v6),
            Element::Forward4(Protocol::Udp, 20_001, v4, 53),
            Element::Hairpin4(Protocol::Tcp, 8080, v4, 80),
            Element::Class4(v4, 99),
            Element::Class6(v6, 99),
            Element::Outside4(v4, Ipv4Addr::BROADCAST, 99),
            Element::Outside6(v6, Ipv6Addr::from(u128::MAX), 99),
            Element::Verdict(key, true),
            Element::Verdict(VerdictKey { within: false, ..key }, false),
        ];
        for element in all {
            let raw = encode(&element);
            let spec = &SETS[raw.set];
            assert_eq!(raw.key.len(), spec.key.1 as usize, "{element:?}");
            let data_bytes = if spec.verdict { 4 } else { spec.data.map_or(0, |data| data.1 as usize) };
            assert_eq!(raw.data.len(), data_bytes, "{element:?}");
            assert_eq!(raw.key_end.len(), if spec.ranges.is_empty() { 0 } else { raw.key.len() });
            let fields: usize = spec.ranges.iter().map(|it| usize::from(it.next_multiple_of(4))).sum();
            assert!(spec.ranges.is_empty() || fields == raw.key.len(), "{element:?}");
            assert_eq!(decode(&raw), Some(element));
            let mut foreign = raw.clone();
            foreign.key.push(0);
            assert_eq!(decode(&foreign), None);
        }
        assert_eq!(digest(&all.iter().map(encode).collect()), holdfast_core::ruleset::digest(all.iter()));
    }
}
