//! The base: tables, sets, chains and rules that are the same on every node and never change.
//!
//! Its version is a digest of everything in it and stands in a comment on every rule, so that the base of
//! another build, or one that somebody took a rule out of, shows when it is read back.

use super::{
    elements::{SETS, SetSpec, ifname},
    expression::{
        Compare::{AtLeast, AtMost, Equal, NotEqual},
        End::{self, Accept, Drop, Jump},
        Expr::{
            self, Compare, Ct, DestinationNat, DestinationType, DestinationTypeAtLink, Map, Mask, Masquerade,
            Member, Meta, NoMember, Payload, SetMark, Verdict, Verdicts,
        },
        Header::{Link, Network, Transport},
    },
    transaction::{TABLE, Transaction},
};
use crate::net::{UPLINK_LINK, netlink::Attributes};
use nftnl::{
    Chain, ChainType, Hook, MsgType, Policy, ProtoFamily, Rule, Table,
    nftnl_sys::{self as sys},
    set::{Set, SetKey},
};
use std::{
    ffi::{CStr, CString},
    sync::LazyLock,
};

/// Where a chain hangs.
#[derive(Debug)]
struct Base {
    kind: ChainType,
    hook: Hook,
    priority: i32,
    policy: Policy,
}

#[derive(Debug)]
struct ChainSpec {
    name: &'static CStr,
    base: Option<Base>,
    rules: Vec<Vec<Expr>>,
}

/// Where slirp4netns shows the host's loopback: slirp4netns(1), the second address of its subnet.
const HOST_LOOPBACK: std::net::Ipv4Addr = std::net::Ipv4Addr::new(10, 0, 2, 2);
/// A table with its chains; its sets are those of [`SETS`] in its family.
#[derive(Debug)]
pub(crate) struct TableSpec {
    pub family: ProtoFamily,
    pub label: &'static str,
    chains: Vec<ChainSpec>,
    expected: Expected,
}

/// Kinds of messages that ask for a dump, and what it must say.
type Expected = [(libc::c_int, Vec<String>); 3];

// Registers of a rule are counted in 4 bytes; 0 is scratch for a match that is over before the key is built.
const IPV4: u8 = libc::NFPROTO_IPV4 as u8;
const IPV6: u8 = libc::NFPROTO_IPV6 as u8;
const ICMP: u8 = libc::IPPROTO_ICMP as u8;
const ICMPV6: u8 = libc::IPPROTO_ICMPV6 as u8;
const TCP: u8 = libc::IPPROTO_TCP as u8;
const UDP: u8 = libc::IPPROTO_UDP as u8;
/// Ports of the node's services: RFC 1035, RFC 2131.
const PORT_DNS: u16 = 53;
const PORT_DHCP: u16 = 67;
const ETHER_IPV4: u16 = 0x0800;
const ETHER_ARP: u16 = 0x0806;
const ETHER_IPV6: u16 = 0x86dd;
/// Connection states as bits: enum ip_conntrack_info in linux/netfilter/nf_conntrack_common.h.
const STATE_INVALID: u32 = 1;
const STATE_ESTABLISHED: u32 = 2;
const STATE_RELATED: u32 = 4;
/// The type of an address of this network namespace: linux/rtnetlink.h.
const RTN_LOCAL: u32 = 2;
/// IPS_DST_NAT.
const STATUS_DESTINATION_NAT: u32 = 1 << 5;
/// IP_CT_DIR_REPLY.
const DIRECTION_REPLY: u8 = 1;

fn byte(key: libc::c_int, value: u8) -> Vec<Expr> {
    vec![Meta(key, 0), Compare(Equal, 0, vec![value])]
}

fn family(value: u8) -> Vec<Expr> {
    byte(libc::NFT_META_NFPROTO, value)
}

fn ether_type(value: u16) -> Vec<Expr> {
    vec![Meta(libc::NFT_META_PROTOCOL, 0), Compare(Equal, 0, value.to_be_bytes().to_vec())]
}

fn icmp_type(protocol: u8, least: u8, most: u8) -> Vec<Expr> {
    let mut exprs = byte(libc::NFT_META_L4PROTO, protocol);
    exprs.push(Payload(Transport, 0, 1, 0));
    if least == most {
        exprs.push(Compare(Equal, 0, vec![least]));
    } else {
        exprs.push(Compare(AtLeast, 0, vec![least]));
        exprs.push(Compare(AtMost, 0, vec![most]));
    }
    exprs
}

/// A link whose name starts so.
fn link_prefix(prefix: &str) -> Vec<Expr> {
    vec![Meta(libc::NFT_META_IIFNAME, 0), Compare(Equal, 0, prefix.as_bytes().to_vec())]
}

fn from_uplink() -> Vec<Expr> {
    vec![Meta(libc::NFT_META_IIFNAME, 0), Compare(Equal, 0, ifname(UPLINK_LINK))]
}

fn to_uplink() -> Vec<Expr> {
    vec![Meta(libc::NFT_META_OIFNAME, 0), Compare(Equal, 0, ifname(UPLINK_LINK))]
}

fn from_bridge() -> Vec<Expr> {
    link_prefix("hfbr")
}

fn tracked(key: libc::c_int, bits: u32) -> Vec<Expr> {
    vec![Ct(key, 0), Mask(0, bits.to_ne_bytes()), Compare(NotEqual, 0, vec![0; 4])]
}

fn state(bits: u32) -> Vec<Expr> {
    tracked(libc::NFT_CT_STATE, bits)
}

fn rule(parts: impl IntoIterator<Item = Vec<Expr>>, end: End) -> Vec<Expr> {
    parts.into_iter().flatten().chain([Verdict(end)]).collect()
}

/// The source's group, through the packet's mark: straight from register to register it would work as well,
/// but the `nft` tool (1.0.6) aborts on listing such a rule.
fn group(map: &'static CStr) -> Vec<Expr> {
    vec![Map(map, 0, 0), SetMark(0), Meta(libc::NFT_META_MARK, 0)]
}

/// Source and destination are of one group.
fn member4() -> Vec<Expr> {
    let group = group(c"group4");
    let destination = vec![Payload(Network, 16, 4, 1), Member(c"member4", 0)];
    [vec![Payload(Network, 12, 4, 0)], group, destination].concat()
}

fn member6() -> Vec<Expr> {
    let group = group(c"group6");
    let destination = vec![Payload(Network, 24, 16, 1), Member(c"member6", 0)];
    [vec![Payload(Network, 8, 16, 0)], group, destination].concat()
}

fn filter(hook: Hook, priority: i32, policy: Policy) -> Option<Base> {
    Some(Base { kind: ChainType::Filter, hook, priority, policy })
}

fn nat(hook: Hook, priority: i32) -> Option<Base> {
    Some(Base { kind: ChainType::Nat, hook, priority, policy: Policy::Accept })
}

/// An end of a flow: where its address is in the network header, and how its class is looked up.
#[derive(Clone, Copy)]
enum End4or6 {
    Workload,
    Outside,
}

/// Loads the class of the address at `offset` into register `to`, by the mark as [`group`] does. Registers from 4
/// on are scratch.
fn class(v4: bool, end: End4or6, offset: u32, to: u32) -> Vec<Expr> {
    let length = if v4 { 4 } else { 16 };
    let look_up = match (end, v4) {
        (End4or6::Workload, true) => vec![Payload(Network, offset, length, 4), Map(c"class4", 4, 4)],
        (End4or6::Workload, false) => vec![Payload(Network, offset, length, 4), Map(c"class6", 4, 4)],
        (End4or6::Outside, _) => vec![
            Meta(libc::NFT_META_NFPROTO, 4),
            Payload(Network, offset, length, 5),
            Map(if v4 { c"outside4" } else { c"outside6" }, 4, 4),
        ],
    };
    [look_up, vec![SetMark(4), Meta(libc::NFT_META_MARK, to)]].concat()
}

/// What policies say of a flow, evaluated for each packet as for the flow's first: an answer is let through exactly
/// while the question would be.
fn policies() -> Vec<Vec<Expr>> {
    use End4or6::{Outside, Workload};
    let direction = |reply: bool| {
        vec![Ct(libc::NFT_CT_DIRECTION, 0), Compare(Equal, 0, vec![u8::from(reply) * DIRECTION_REPLY])]
    };
    let mut rules = Vec::new();
    for v4 in [true, false] {
        let (source, destination) = if v4 { (12, 16) } else { (8, 24) };
        for reply in [false, true] {
            // Of the flow: who began sends its questions and receives its answers.
            let (from, to) = if reply { (destination, source) } else { (source, destination) };
            let port = if reply { 0 } else { 2 };
            let (to_outside, from_outside) =
                if reply { (from_uplink(), to_uplink()) } else { (to_uplink(), from_uplink()) };
            for (link, ends, map) in [
                (from_bridge(), (Workload, Workload), c"policy"),
                (to_outside, (Workload, Outside), c"border"),
                (from_outside, (Outside, Workload), c"border"),
            ] {
                let parts = [
                    link,
                    family(if v4 { IPV4 } else { IPV6 }),
                    direction(reply),
                    class(v4, ends.0, from, 0),
                    class(v4, ends.1, to, 1),
                    vec![Meta(libc::NFT_META_L4PROTO, 2), Payload(Transport, port, 2, 3), Verdicts(map, 0)],
                ];
                rules.push(parts.into_iter().flatten().collect());
            }
        }
    }
    rules
}

fn forward() -> Vec<Vec<Expr>> {
    let mut rules = policies();
    rules.extend(isolation());
    rules
}

fn isolation() -> Vec<Vec<Expr>> {
    vec![
        rule([from_bridge(), family(IPV4), member4()], Accept),
        rule([from_bridge(), family(IPV6), member6()], Accept),
        rule([state(STATE_INVALID)], Drop),
        // A published port of this node, asked of the router, and its answers: open to whoever reaches the host.
        rule([from_bridge(), tracked(libc::NFT_CT_STATUS, STATUS_DESTINATION_NAT)], Accept),
        rule([from_uplink(), state(STATE_ESTABLISHED | STATE_RELATED)], Accept),
        rule([from_uplink(), tracked(libc::NFT_CT_STATUS, STATUS_DESTINATION_NAT)], Accept),
        // Answers to what came in through the uplink; what a workload starts itself needs egress.
        rule(
            [
                to_uplink(),
                state(STATE_ESTABLISHED | STATE_RELATED),
                vec![Ct(libc::NFT_CT_DIRECTION, 0), Compare(Equal, 0, vec![DIRECTION_REPLY])],
            ],
            Accept,
        ),
        // slirp4netns's name for the host's loopback: nobody's business. Its own `--disable-host-loopback` would also
        // drop every UDP answer to a client on the host's loopback.
        rule(
            [
                to_uplink(),
                family(IPV4),
                vec![Payload(Network, 16, 4, 0), Compare(Equal, 0, HOST_LOOPBACK.octets().to_vec())],
            ],
            Drop,
        ),
        rule([to_uplink(), family(IPV4), vec![Payload(Network, 12, 4, 0), Member(c"egress4", 0)]], Accept),
        rule([to_uplink(), family(IPV6), vec![Payload(Network, 8, 16, 0), Member(c"egress6", 0)]], Accept),
    ]
}

/// What a workload may ask of the node itself, all at the bridge it came in by; nothing else of the node answers it.
/// DNS at the gateway's addresses. (DHCP belongs here: UDP to port 67, from the unspecified address too.)
fn services() -> Vec<Vec<Expr>> {
    [UDP, TCP]
        .map(|protocol| rule([from_bridge(), own_gateway(), to_port(protocol, PORT_DNS)], Accept))
        .into()
}

/// To an address of the bridge that the packet came in by: its network's gateway, not another's.
fn own_gateway() -> Vec<Expr> {
    vec![DestinationTypeAtLink(0), Compare(Equal, 0, RTN_LOCAL.to_ne_bytes().to_vec())]
}

fn to_port(protocol: u8, port: u16) -> Vec<Expr> {
    let mut exprs = byte(libc::NFT_META_L4PROTO, protocol);
    exprs.extend([Payload(Transport, 2, 2, 0), Compare(Equal, 0, port.to_be_bytes().to_vec())]);
    exprs
}

fn input() -> Vec<Vec<Expr>> {
    let loopback = vec![Meta(libc::NFT_META_IIFNAME, 0), Compare(Equal, 0, ifname("lo"))];
    let mut rules = vec![
        rule([loopback], Accept),
        rule([state(STATE_ESTABLISHED | STATE_RELATED)], Accept),
        rule([from_bridge(), family(IPV4), icmp_type(ICMP, 8, 8)], Accept),
        rule([from_bridge(), family(IPV6), icmp_type(ICMPV6, 128, 128)], Accept),
        // Router solicitation, neighbour solicitation and advertisement: RFC 4861.
        rule([from_bridge(), family(IPV6), icmp_type(ICMPV6, 133, 133)], Accept),
        rule([from_bridge(), family(IPV6), icmp_type(ICMPV6, 135, 136)], Accept),
    ];
    rules.extend(services());
    rules
}

fn output() -> Vec<Vec<Expr>> {
    vec![
        // A redirect would send a workload straight to a neighbour behind an isolated port.
        rule([family(IPV6), icmp_type(ICMPV6, 137, 137)], Drop),
        rule([family(IPV4), icmp_type(ICMP, 5, 5)], Drop),
    ]
}

/// Protocol and destination port, looked up in a map that yields where they lead.
fn lead(map: &'static CStr) -> Vec<Expr> {
    vec![Meta(libc::NFT_META_L4PROTO, 0), Payload(Transport, 2, 2, 1), Map(map, 0, 0), DestinationNat(0, 1)]
}

fn destination_nat() -> Vec<Vec<Expr>> {
    let local = vec![DestinationType(0), Compare(Equal, 0, RTN_LOCAL.to_ne_bytes().to_vec())];
    let chain = |parts: Vec<Vec<Expr>>| parts.into_iter().flatten().collect();
    let mut rules = vec![chain(vec![from_uplink(), family(IPV4), lead(c"forward4")])];
    // A published port of the same number must not take the place of a service of the node at its gateway.
    for (protocol, port) in [(UDP, PORT_DNS), (TCP, PORT_DNS), (UDP, PORT_DHCP)] {
        rules.push(rule([from_bridge(), own_gateway(), to_port(protocol, port)], Accept));
    }
    rules.extend([
        // A workload that asks the router for a published port of its own node.
        chain(vec![from_bridge(), family(IPV4), local, lead(c"hairpin4")]),
    ]);
    rules
}

fn masquerade() -> Vec<Vec<Expr>> {
    vec![
        to_uplink().into_iter().chain([Masquerade]).collect(),
        // Answers of a published port that a workload asked the router for come back through the router, from a
        // neighbour and from itself.
        [from_bridge(), family(IPV4), tracked(libc::NFT_CT_STATUS, STATUS_DESTINATION_NAT), vec![Masquerade]]
            .into_iter()
            .flatten()
            .collect(),
    ]
}

/// Link name and source MAC address in the first six registers of a key.
fn port_and_mac() -> Vec<Expr> {
    vec![Meta(libc::NFT_META_IIFNAME, 0), Payload(Link, 6, 6, 4)]
}

/// What a workload may send: from its own port, with its own MAC address, as one of its own addresses.
fn port() -> Vec<Vec<Expr>> {
    let v6 = || ether_type(ETHER_IPV6);
    let link_local = || {
        vec![
            Payload(Network, 8, 4, 0),
            Mask(0, [0xff, 0xc0, 0, 0]),
            Compare(Equal, 0, vec![0xfe, 0x80, 0, 0]),
        ]
    };
    let unspecified = || vec![Payload(Network, 8, 16, 0), Compare(Equal, 0, vec![0; 16])];
    vec![
        rule(
            [ether_type(ETHER_IPV4), port_and_mac(), vec![Payload(Network, 12, 4, 6), Member(c"source4", 0)]],
            Accept,
        ),
        // A neighbour advertisement speaks for its target, whatever address it is sent from.
        rule(
            [
                v6(),
                icmp_type(ICMPV6, 136, 136),
                port_and_mac(),
                vec![Payload(Transport, 8, 16, 6), NoMember(c"source6", 0)],
            ],
            Drop,
        ),
        rule([v6(), port_and_mac(), vec![Payload(Network, 8, 16, 6), Member(c"source6", 0)]], Accept),
        rule([v6(), link_local(), icmp_type(ICMPV6, 133, 133)], Accept),
        rule([v6(), link_local(), icmp_type(ICMPV6, 135, 136)], Accept),
        // Duplicate address detection: RFC 4862.
        rule([v6(), unspecified(), icmp_type(ICMPV6, 135, 135)], Accept),
        // An ARP packet names its sender twice; both must be right.
        rule(
            [
                ether_type(ETHER_ARP),
                port_and_mac(),
                vec![Payload(Network, 14, 4, 6), Member(c"source4", 0), Payload(Network, 8, 6, 4)],
                vec![Member(c"source4", 0)],
            ],
            Accept,
        ),
        rule([], Drop),
    ]
}

/// Both tables. They are compared at every look at the router, and made once.
pub(crate) fn tables() -> &'static [TableSpec; 2] {
    static TABLES: LazyLock<[TableSpec; 2]> = LazyLock::new(make_tables);
    &TABLES
}

fn make_tables() -> [TableSpec; 2] {
    let chain = |name, base, rules| ChainSpec { name, base, rules };
    [
        TableSpec::new(
            ProtoFamily::Inet,
            "inet",
            vec![
                chain(c"forward", filter(Hook::Forward, 0, Policy::Drop), forward()),
                chain(c"input", filter(Hook::In, 0, Policy::Drop), input()),
                chain(c"output", filter(Hook::Out, 0, Policy::Accept), output()),
                chain(c"prerouting", nat(Hook::PreRouting, -100), destination_nat()),
                chain(c"postrouting", nat(Hook::PostRouting, 100), masquerade()),
            ],
        ),
        TableSpec::new(
            ProtoFamily::Bridge,
            "bridge",
            vec![
                chain(c"port", None, port()),
                chain(
                    c"prerouting",
                    filter(Hook::PreRouting, -300, Policy::Accept),
                    vec![rule([link_prefix("hfv")], Jump(c"port"))],
                ),
            ],
        ),
    ]
}

impl TableSpec {
    fn new(family: ProtoFamily, label: &'static str, chains: Vec<ChainSpec>) -> Self {
        let mut table = Self { family, label, chains, expected: Expected::default() };
        table.expected = table.describe();
        table
    }

    fn sets(&self) -> impl Iterator<Item = &'static SetSpec> {
        SETS.iter().filter(move |set| set.table == self.family)
    }

    /// FNV-1a over the whole table's text.
    fn version(&self) -> u64 {
        let Self { family, label, chains, expected: _ } = self;
        let sets: Vec<_> = self.sets().collect();
        format!("{family:?}{label:?}{chains:?}{sets:?}")
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            })
    }

    fn comment(version: u64, chain: &ChainSpec, number: usize) -> String {
        format!("{version:016x} {} {number}", chain.name.to_string_lossy())
    }

    /// Writes the table anew: adding it first makes its deletion succeed whether it was there or not.
    pub fn write(&self, transaction: &mut Transaction) -> Result<(), String> {
        let table = Table::new(TABLE, self.family);
        transaction.add(&table, MsgType::Add);
        transaction.add(&table, MsgType::Del);
        transaction.add(&table, MsgType::Add);
        for (id, spec) in (1..).zip(self.sets()) {
            transaction.add(&new_set(spec, id, &table), MsgType::Add);
        }
        let version = self.version();
        for spec in &self.chains {
            let mut chain = Chain::new(spec.name, &table);
            if let Some(base) = &spec.base {
                chain.set_type(base.kind);
                chain.set_hook(base.hook, base.priority);
                chain.set_policy(base.policy);
            }
            transaction.add(&chain, MsgType::Add);
            for (number, exprs) in spec.rules.iter().enumerate() {
                let mut rule = Rule::new(&chain);
                for expr in exprs {
                    rule.add_expr(expr);
                }
                let comment =
                    CString::new(Self::comment(version, spec, number)).map_err(|error| error.to_string())?;
                rule.set_comment(comment)?;
                transaction.add(&rule, MsgType::Add);
            }
        }
        Ok(())
    }

    /// What dumps of its sets, chains and rules must say; all but the rules sorted.
    pub fn expected(&self) -> &Expected {
        &self.expected
    }

    fn describe(&self) -> Expected {
        let version = self.version();
        let mut sets: Vec<String> = self
            .sets()
            .map(|set| {
                // A verdict map is told with the size of the kernel's own `struct nft_verdict`.
                let data = set.data.map_or(0, |data| data.1);
                describe_set(&set.name.to_string_lossy(), set.key.1, data)
            })
            .collect();
        let mut chains: Vec<String> = self
            .chains
            .iter()
            .map(|chain| {
                let base = chain.base.as_ref();
                let hook = base.map(|base| (base.hook as u32, base.priority, base.policy as u32));
                describe_chain(&chain.name.to_string_lossy(), hook)
            })
            .collect();
        let rules = self
            .chains
            .iter()
            .flat_map(|chain| (0..chain.rules.len()).map(move |number| Self::comment(version, chain, number)))
            .collect();
        sets.sort();
        chains.sort();
        [(libc::NFT_MSG_GETSET, sets), (libc::NFT_MSG_GETCHAIN, chains), (libc::NFT_MSG_GETRULE, rules)]
    }
}

/// A key whose type and length are set afterwards: the crate knows single addresses only.
struct AnyKey;

impl SetKey for AnyKey {
    const TYPE: u32 = 0;
    const LEN: u32 = 0;

    fn data(&self) -> Box<[u8]> {
        Box::default()
    }
}

fn new_set<'a>(spec: &SetSpec, id: u32, table: &'a Table) -> Set<'a, AnyKey> {
    let set = Set::<AnyKey>::new_named(spec.name, id, table, spec.table);
    let raw = set.as_ptr().as_ptr();
    // SAFETY: the set is live and not shared, the attributes are numbers (libnftnl's set.h).
    unsafe {
        sys::nftnl_set_set_u32(raw, sys::NFTNL_SET_KEY_TYPE as u16, spec.key.0);
        sys::nftnl_set_set_u32(raw, sys::NFTNL_SET_KEY_LEN as u16, spec.key.1);
        if let Some((kind, length)) = spec.data {
            let ranges =
                if spec.ranges.is_empty() { 0 } else { libc::NFT_SET_INTERVAL as u32 | NFT_SET_CONCAT };
            let flags = libc::NFT_SET_MAP.cast_unsigned() | ranges;
            sys::nftnl_set_set_u32(raw, sys::NFTNL_SET_FLAGS as u16, flags);
            sys::nftnl_set_set_u32(raw, sys::NFTNL_SET_DATA_TYPE as u16, kind);
            if !spec.verdict {
                sys::nftnl_set_set_u32(raw, sys::NFTNL_SET_DATA_LEN as u16, length);
            }
        }
    }
    if !spec.ranges.is_empty() {
        // SAFETY: as above; libnftnl copies the bytes, one per field.
        unsafe {
            sys::nftnl_set_set_data(
                raw,
                sys::NFTNL_SET_DESC_CONCAT as u16,
                spec.ranges.as_ptr().cast(),
                spec.ranges.len() as u32,
            );
        }
    }
    if spec.verdict {
        // SAFETY: the name is NUL-terminated. The set takes the expression over and frees it.
        unsafe {
            let counter = sys::nftnl_expr_alloc(c"counter".as_ptr());
            if !counter.is_null() {
                sys::nftnl_set_add_expr(raw, counter);
            }
        }
    }
    if spec.host_order {
        // NFTNL_UDATA_SET_KEYBYTEORDER (0), length 4, host order (1): for whoever lists the set with `nft`.
        let mut user_data = vec![0_u8, 4];
        user_data.extend(1_u32.to_ne_bytes());
        // SAFETY: as above; libnftnl copies the bytes.
        unsafe {
            sys::nftnl_set_set_data(
                raw,
                sys::NFTNL_SET_USERDATA as u16,
                user_data.as_ptr().cast(),
                user_data.len() as u32,
            );
        }
    }
    set
}

/// `NFT_SET_CONCAT` of linux/netfilter/nf_tables.h.
const NFT_SET_CONCAT: u32 = 0x80;

fn describe_set(name: &str, key_bytes: u32, data_bytes: u32) -> String {
    format!("{name} {key_bytes} {data_bytes}")
}

fn describe_chain(name: &str, base: Option<(u32, i32, u32)>) -> String {
    format!("{name} {base:?}")
}

/// One dumped object in the form of [`TableSpec::expected`].
pub(crate) fn describe(kind: libc::c_int, attributes: &[u8]) -> Option<String> {
    match kind {
        libc::NFT_MSG_GETSET => read_set(attributes),
        libc::NFT_MSG_GETCHAIN => read_chain(attributes),
        _ => Some(read_rule(attributes)),
    }
}

fn value(attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    Attributes(attributes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

fn number(attributes: &[u8], wanted: u16) -> Option<u32> {
    value(attributes, wanted)?.try_into().ok().map(u32::from_be_bytes)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

/// NFTA_SET_NAME, NFTA_SET_KEY_LEN, NFTA_SET_DATA_LEN.
fn read_set(attributes: &[u8]) -> Option<String> {
    let name = text(value(attributes, 2)?);
    Some(describe_set(&name, number(attributes, 5)?, number(attributes, 7).unwrap_or(0)))
}

/// NFTA_CHAIN_NAME, NFTA_CHAIN_HOOK (NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY), NFTA_CHAIN_POLICY.
fn read_chain(attributes: &[u8]) -> Option<String> {
    let name = text(value(attributes, 3)?);
    let hook = value(attributes, 4)
        .and_then(|hook| Some((number(hook, 1)?, number(hook, 2)?.cast_signed(), number(attributes, 5)?)));
    Some(describe_chain(&name, hook))
}

/// The comment in NFTA_RULE_USERDATA, a (type 0, length, text) triple; a rule without is a foreign one.
fn read_rule(attributes: &[u8]) -> String {
    match value(attributes, 7) {
        Some([0, length, comment @ ..]) if comment.len() >= usize::from(*length) => {
            text(&comment[..usize::from(*length)])
        }
        _ => "a rule without comment".to_owned(),
    }
}
