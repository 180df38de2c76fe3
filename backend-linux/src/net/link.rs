//! The rtnetlink messages of Holdfast's links: how each object looks on the wire.

use super::route::Request;
use holdfast_core::{id::Slot, plan::AttachmentPlan};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressHeaderFlags, AddressMessage},
    link::{
        InfoBridge, InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoPortKind, InfoVeth, LinkAttribute,
        LinkFlags, LinkInfo, LinkMessage,
    },
    neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState},
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType},
};
use std::{
    net::IpAddr,
    os::fd::{AsRawFd, BorrowedFd},
};

/// Link group of every veth's host end on the bridge of network index 0; the group of another network is this
/// plus its index. All links of a network can be deleted by its group in one request.
const GROUP_BASE: u32 = 0x4846_0000;
/// Interface index of the bridge of network index 0. `u16` indexes end below the host ends of slots, which
/// start at 100,000.
const BRIDGE_IFINDEX_BASE: u32 = 20_000;
/// The main routing table: rtnetlink(7).
const RT_TABLE_MAIN: u8 = 254;

/// Name of a network's bridge.
pub(crate) fn bridge_name(index: u16) -> String {
    format!("hfbr{index}")
}

/// Interface index of a network's bridge.
pub(crate) fn bridge_ifindex(index: u16) -> u32 {
    BRIDGE_IFINDEX_BASE + u32::from(index)
}

/// Whether an index is that of a bridge of ours.
pub(crate) fn is_bridge_ifindex(index: u32) -> bool {
    (BRIDGE_IFINDEX_BASE..=BRIDGE_IFINDEX_BASE + u32::from(u16::MAX)).contains(&index)
}

/// Whether a name is that of a bridge or of the router's end of a plug.
pub(crate) fn is_ours(name: &str) -> bool {
    ["hfbr", "hfv"].iter().any(|prefix| name.starts_with(prefix))
}

/// MAC address of a network's bridge: locally administered and fixed, so that no port's coming or going
/// changes it and a workload's neighbour entry for its gateway stays right over every rebuild.
pub fn bridge_mac(index: u16) -> [u8; 6] {
    let [high, low] = index.to_be_bytes();
    [0xfe, b'h', b'b', b'r', high, low]
}

/// MAC address of a veth's host end.
fn host_mac(slot: Slot) -> [u8; 6] {
    let [a, b, c, d] = slot.0.to_be_bytes();
    [0xfa, b'h', a, b, c, d]
}

/// Link group of a network's veths.
pub(crate) fn group(network_index: u16) -> u32 {
    GROUP_BASE + u32::from(network_index)
}

fn link(index: u32, attributes: Vec<LinkAttribute>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes = attributes;
    message
}

fn up(message: &mut LinkMessage) {
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
}

/// A bridge that does not delay its ports. Its MTU is set afterwards: one given at creation is not remembered
/// as asked for, and gone with the last port (br_mtu_auto_adjust() in net/bridge/br_if.c).
pub(crate) fn new_bridge(index: u16) -> Request {
    let message = link(
        bridge_ifindex(index),
        vec![
            LinkAttribute::IfName(bridge_name(index)),
            LinkAttribute::Address(bridge_mac(index).to_vec()),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Bridge),
                LinkInfo::Data(InfoData::Bridge(vec![
                    InfoBridge::ForwardDelay(0),
                    // Without a querier on the segment snooping would time groups out and cut IPv6 off.
                    InfoBridge::MulticastSnooping(false),
                    // Ports are isolated: there is no forwarded frame to filter a second time.
                    InfoBridge::NfCallIpTables(false),
                    InfoBridge::NfCallIp6Tables(false),
                    InfoBridge::NfCallArpTables(false),
                ])),
            ]),
        ],
    );
    (RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
}

/// Sets a link up, with MTU and alias.
pub(crate) fn set_link(index: u32, mtu_bytes: Option<u32>, alias: Option<String>) -> Request {
    let attributes =
        mtu_bytes.map(LinkAttribute::Mtu).into_iter().chain(alias.map(LinkAttribute::IfAlias)).collect();
    let mut message = link(index, attributes);
    up(&mut message);
    (RouteNetlinkMessage::SetLink(message), 0)
}

/// A veth: the host end up in the bridge, the other end made inside the sandbox's namespace and left down, so
/// that no frame passes before the port is isolated.
pub(crate) fn new_veth(plan: &AttachmentPlan, netns: BorrowedFd<'_>) -> Request {
    let peer = link(
        plan.ifindex,
        vec![
            LinkAttribute::IfName(plan.link_name.clone()),
            LinkAttribute::Address(plan.mac.to_vec()),
            LinkAttribute::Mtu(plan.mtu_bytes),
            LinkAttribute::NetNsFd(netns.as_raw_fd()),
        ],
    );
    let mut host = link(
        plan.slot.host_ifindex(),
        vec![
            LinkAttribute::IfName(plan.slot.host_link_name()),
            LinkAttribute::Address(host_mac(plan.slot).to_vec()),
            LinkAttribute::Mtu(plan.mtu_bytes),
            LinkAttribute::Controller(bridge_ifindex(plan.network_index)),
            LinkAttribute::Group(group(plan.network_index)),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
            ]),
        ],
    );
    up(&mut host);
    (RouteNetlinkMessage::NewLink(host), NLM_F_CREATE | NLM_F_EXCL)
}

/// Bridge port settings: isolated from the other ports, and nothing learnt from what it sends. They take
/// effect only in a NEWLINK after the master is set.
pub(crate) fn set_port(index: u32) -> Request {
    let message = link(
        index,
        vec![LinkAttribute::LinkInfo(vec![
            LinkInfo::PortKind(InfoPortKind::Bridge),
            LinkInfo::PortData(InfoPortData::BridgePort(vec![
                InfoBridgePort::Isolated(true),
                // With a static forwarding entry per port nothing needs learning, a frame cannot move another
                // port's address, and nothing meant for one workload is flooded to the others.
                InfoBridgePort::Learning(false),
                InfoBridgePort::UnicastFlood(false),
                InfoBridgePort::Guard(true),
            ])),
        ])],
    );
    (RouteNetlinkMessage::NewLink(message), 0)
}

/// Whether a dumped link is a port with the settings of [`set_port`].
pub(crate) fn is_isolated(attributes: &[LinkAttribute]) -> bool {
    let has = |wanted: &InfoBridgePort| {
        attributes.iter().any(|attribute| match attribute {
            LinkAttribute::LinkInfo(infos) => infos.iter().any(|info| match info {
                LinkInfo::PortData(InfoPortData::BridgePort(port)) => port.contains(wanted),
                _ => false,
            }),
            _ => false,
        })
    };
    [InfoBridgePort::Isolated(true), InfoBridgePort::Learning(false), InfoBridgePort::UnicastFlood(false)]
        .iter()
        .all(has)
}

/// Asks for a link by index.
pub(crate) fn get_link(index: u32) -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetLink(link(index, Vec::new()))
}

/// Asks for a link by name.
pub(crate) fn get_link_named(name: &str) -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetLink(link(0, vec![LinkAttribute::IfName(name.to_owned())]))
}

/// Deletes a link; a veth's other end goes with it.
pub(crate) fn delete_link(index: u32) -> Request {
    (RouteNetlinkMessage::DelLink(link(index, Vec::new())), 0)
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn address_message(index: u32, address: IpAddr, prefix_length: u8) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family(address);
    message.header.prefix_len = prefix_length;
    message.header.index = index;
    message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
    message
}

/// An address, usable at once: no duplicate address detection, addresses are the allocator's.
pub(crate) fn set_address(index: u32, address: IpAddr, prefix_length: u8) -> Request {
    let mut message = address_message(index, address, prefix_length);
    if address.is_ipv6() {
        message.header.flags = AddressHeaderFlags::Nodad;
    }
    (RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE)
}

/// Deletes an address.
pub(crate) fn delete_address(index: u32, address: IpAddr, prefix_length: u8) -> Request {
    (RouteNetlinkMessage::DelAddress(address_message(index, address, prefix_length)), 0)
}

/// A route; on-link without a gateway.
pub(crate) fn set_route(index: u32, to: (IpAddr, u8), gateway: Option<IpAddr>) -> Request {
    let mut message = RouteMessage::default();
    message.header.address_family = family(to.0);
    message.header.destination_prefix_length = to.1;
    message.header.table = RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::Static;
    message.header.scope =
        if gateway.is_none() && to.0.is_ipv4() { RouteScope::Link } else { RouteScope::Universe };
    message.header.kind = RouteType::Unicast;
    message.attributes.push(RouteAttribute::Oif(index));
    if to.1 > 0 {
        message.attributes.push(RouteAttribute::Destination(RouteAddress::from(to.0)));
    }
    if let Some(gateway) = gateway {
        message.attributes.push(RouteAttribute::Gateway(RouteAddress::from(gateway)));
    }
    (RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_REPLACE)
}

/// Deletes a route through a link, whatever its gateway.
pub(crate) fn delete_route(index: u32, to: (IpAddr, u8)) -> Request {
    let (message, _) = set_route(index, to, None);
    let RouteNetlinkMessage::NewRoute(mut message) = message else { return (message, 0) };
    // Scope "nowhere" matches any: fib_table_delete() in net/ipv4/fib_trie.c.
    message.header.scope = RouteScope::NoWhere;
    message.header.protocol = RouteProtocol::Unspec;
    (RouteNetlinkMessage::DelRoute(message), 0)
}

fn neighbour_message(index: u32, address: IpAddr, mac: [u8; 6]) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family(address);
    message.header.ifindex = index;
    message.header.state = NeighbourState::Permanent;
    message.attributes = vec![
        NeighbourAttribute::Destination(address.into()),
        NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
    ];
    message
}

/// A permanent neighbour: needs no resolution, and no packet changes it.
pub(crate) fn set_neighbour(index: u32, address: IpAddr, mac: [u8; 6]) -> Request {
    (RouteNetlinkMessage::NewNeighbour(neighbour_message(index, address, mac)), NLM_F_CREATE | NLM_F_REPLACE)
}

/// Deletes a neighbour.
pub(crate) fn delete_neighbour(index: u32, address: IpAddr, mac: [u8; 6]) -> Request {
    (RouteNetlinkMessage::DelNeighbour(neighbour_message(index, address, mac)), 0)
}

/// The static forwarding entry of a port.
pub(crate) fn set_forwarding(port_index: u32, mac: [u8; 6]) -> Request {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.header.ifindex = port_index;
    // NUD_NOARP: static, as opposed to permanent, which means local to the bridge (bridge(8)).
    message.header.state = NeighbourState::Noarp;
    message.header.flags = NeighbourFlags::Controller;
    message.attributes = vec![NeighbourAttribute::LinkLayerAddress(mac.to_vec())];
    (RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
}

/// A dumped link, as far as Holdfast looks at it.
#[derive(Debug, Default)]
pub(crate) struct LinkView {
    pub index: u32,
    pub up: bool,
    pub name: String,
    pub mac: Vec<u8>,
    pub mtu_bytes: u32,
    pub master: Option<u32>,
    /// Index of the other end, in its namespace.
    pub peer_index: Option<u32>,
    /// Id of the other end's namespace in this one; `None` when it is this one.
    pub peer_namespace: Option<i32>,
    pub group: u32,
    pub alias: String,
    pub is_bridge: bool,
    pub isolated: bool,
}

impl LinkView {
    /// Reads a NEWLINK.
    pub fn of(message: RouteNetlinkMessage) -> Option<Self> {
        let RouteNetlinkMessage::NewLink(message) = message else { return None };
        let mut view = Self {
            index: message.header.index,
            up: message.header.flags.contains(LinkFlags::Up),
            isolated: is_isolated(&message.attributes),
            ..Self::default()
        };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => view.name = name,
                LinkAttribute::Address(mac) => view.mac = mac,
                LinkAttribute::Mtu(bytes) => view.mtu_bytes = bytes,
                LinkAttribute::Controller(index) => view.master = Some(index),
                LinkAttribute::Link(index) => view.peer_index = Some(index),
                LinkAttribute::LinkNetNsId(id) => view.peer_namespace = Some(id),
                LinkAttribute::Group(group) => view.group = group,
                LinkAttribute::IfAlias(alias) => view.alias = alias,
                LinkAttribute::LinkInfo(infos) => {
                    view.is_bridge = infos.contains(&LinkInfo::Kind(InfoKind::Bridge));
                }
                _ => {}
            }
        }
        Some(view)
    }
}

/// A dumped address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AddressView {
    pub index: u32,
    pub address: IpAddr,
    pub prefix_length: u8,
    /// Usable: neither tentative nor a duplicate.
    pub usable: bool,
}

impl AddressView {
    /// Reads a NEWADDR; link-local IPv6 addresses are the kernel's own and not looked at.
    pub fn of(message: &RouteNetlinkMessage) -> Option<Self> {
        let RouteNetlinkMessage::NewAddress(message) = message else { return None };
        let pick = |local: bool| {
            message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Local(address) if local => Some(*address),
                AddressAttribute::Address(address) if !local => Some(*address),
                _ => None,
            })
        };
        let address = pick(true).or_else(|| pick(false))?;
        if matches!(address, IpAddr::V6(address) if address.is_unicast_link_local()) {
            return None;
        }
        let flags = message.header.flags;
        Some(Self {
            index: message.header.index,
            address,
            prefix_length: message.header.prefix_len,
            usable: !flags.intersects(AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed),
        })
    }
}

/// Asks for all links.
pub(crate) fn dump_links() -> RouteNetlinkMessage {
    get_link(0)
}

/// Asks for all addresses of both families.
pub(crate) fn dump_addresses() -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetAddress(AddressMessage::default())
}
