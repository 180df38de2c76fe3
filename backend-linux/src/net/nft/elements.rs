//! Elements as the kernel holds them: keys and data in registers' layout, each field padded to 4 bytes.

use holdfast_core::{id::Slot, ruleset::Element, spec::Protocol};
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

const fn inet(name: &'static CStr, key: (u32, u32), data: Option<(u32, u32)>) -> SetSpec {
    SetSpec { table: ProtoFamily::Inet, name, key, data, host_order: false }
}

const fn bridge(name: &'static CStr, key: (u32, u32)) -> SetSpec {
    SetSpec { table: ProtoFamily::Bridge, name, key, data: None, host_order: true }
}

/// All sets; [`Raw::set`] is an index here.
pub(crate) static SETS: [SetSpec; 10] = [
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
];

/// One element in the kernel's form; `data` is empty where the set is no map.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Raw {
    pub set: usize,
    pub key: Vec<u8>,
    pub data: Vec<u8>,
}

fn raw(set: usize, key: impl IntoIterator<Item = Vec<u8>>, data: Vec<u8>) -> Raw {
    Raw { set, key: key.into_iter().flatten().collect(), data }
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
    }
}

/// The element a kernel's form stands for; `None` for one that Holdfast never makes.
pub(crate) fn decode(raw: &Raw) -> Option<Element> {
    let key = Fields(&raw.key);
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
    fn every_element_reads_back_and_fits_its_set() {
        let v4: Ipv4Addr = "10.89.3.4".parse().unwrap();
        let v6: Ipv6Addr = "fd12::3:4".parse().unwrap();
        let mac = [2, 1, 2, 3, 4, 5];
        let slot = Slot(u32::MAX);
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
        ];
        for element in all {
            let raw = encode(&element);
            let spec = &SETS[raw.set];
            assert_eq!(raw.key.len(), spec.key.1 as usize, "{element:?}");
            assert_eq!(raw.data.len(), spec.data.map_or(0, |data| data.1 as usize), "{element:?}");
            assert_eq!(decode(&raw), Some(element));
            let mut foreign = raw.clone();
            foreign.key.push(0);
            assert_eq!(decode(&foreign), None);
        }
        assert_eq!(digest(&all.iter().map(encode).collect()), holdfast_core::ruleset::digest(all.iter()));
    }
}
