//! Attachments: the veth between a sandbox and a bridge, with everything inside that makes it a network.

use super::{
    bridge::{addresses_of, remove_link, remove_unlike},
    error::{errno, netlink},
    link::{self, LinkView},
    netns,
    route::{Request, Route},
    sandbox,
};
use crate::paths::Paths;
use holdfast_core::{
    error::{Class, RouterError},
    id::Slot,
    plan::AttachmentPlan,
};
use netlink_packet_route::{
    RouteNetlinkMessage,
    nsid::{NsidAttribute, NsidMessage},
};
use nix::errno::Errno;
use std::{
    collections::BTreeMap,
    net::IpAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

/// Plugs a sandbox in. A plug that is already as planned stays, and so does every packet on it; one that is
/// not is replaced.
pub(crate) fn attach(
    paths: &Paths,
    route: &mut Route,
    remembered: &mut Remembered,
    plan: &AttachmentPlan,
) -> Result<(), RouterError> {
    let namespace = sandbox::open(paths, &plan.sandbox)?;
    let mut inside = netns::within(namespace.as_fd(), plan.sandbox.as_str(), || {
        Route::open().map_err(|error| errno("open netlink in sandbox", plan.sandbox.as_str(), error))
    })?;
    if plugged(route, &mut inside, namespace.as_fd(), plan)?.is_none() {
        match create(route, &namespace, plan) {
            Err(error) if error.class == Class::Conflict => {
                remove_remains(route, &mut inside, remembered, plan)?;
                create(route, &namespace, plan)?;
            }
            result => result?,
        }
    }
    remembered.insert(plan.slot, Neighbours::of(plan));
    apply(route, "plug", plan, outside_settings(plan))?;
    apply(&mut inside, "configure", plan, inside_settings(plan))?;
    if !plan.default_route {
        remove_default_routes(&mut inside, plan)?;
    }
    // What it says of the routes inside is true from here on.
    let alias = Neighbours::of(plan).write(plan.default_route);
    apply(route, "plug", plan, vec![link::set_link(plan.slot.host_ifindex(), None, Some(alias))])?;
    verify(route, &mut inside, namespace.as_fd(), plan)
}

/// Unplugs a slot; an absent one is a success.
pub(crate) fn detach(route: &mut Route, remembered: &mut Remembered, slot: Slot) -> Result<(), RouterError> {
    let name = slot.host_link_name();
    remove_neighbours(route, remembered.get(&slot), slot)?;
    remove_link(route, slot.host_ifindex(), &name)?;
    remove_unlike(route, &name, |_| false)?;
    remembered.remove(&slot);
    Ok(())
}

/// The neighbours of plugs this process made: a veth that went with its sandbox has no alias left to read.
/// After a restart of the process such neighbours stay until their address is used again or the bridge goes;
/// they let nothing through, for the rules do not know them.
pub(crate) type Remembered = BTreeMap<Slot, Neighbours>;

/// Removes a slot's permanent neighbours, which are the bridge's and would outlive the link.
fn remove_neighbours(
    route: &mut Route,
    remembered: Option<&Neighbours>,
    slot: Slot,
) -> Result<(), RouterError> {
    let wrap = |error| netlink("look at", slot.host_link_name(), &error);
    let found = route.get(link::get_link(slot.host_ifindex())).map_err(wrap)?.and_then(LinkView::of);
    let read = found.and_then(|plugged| Neighbours::read(&plugged.alias));
    let Some(neighbours) = read.as_ref().or(remembered) else { return Ok(()) };
    let requests = neighbours
        .addresses
        .iter()
        .map(|address| link::delete_neighbour(neighbours.bridge_index, *address, neighbours.mac))
        .collect();
    for outcome in route.batch(requests).map_err(wrap)? {
        match outcome {
            Err(error) if !error.is_missing() => {
                return Err(netlink("delete neighbour of", slot.host_link_name(), &error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Last word of the alias of a plug that the default routes lead to.
const ROUTED: &str = "default";
/// Of one that they do not.
const UNROUTED: &str = "specific";

/// Whether the default routes inside lead to a plug, by its alias; `None` while it is being made.
pub(crate) fn has_default_route(alias: &str) -> Option<bool> {
    match alias.rsplit_once(' ')?.1 {
        ROUTED => Some(true),
        UNROUTED => Some(false),
        _ => None,
    }
}

/// What a host end's alias remembers: the neighbours that belong to it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Neighbours {
    bridge_index: u32,
    mac: [u8; 6],
    addresses: [IpAddr; 2],
}

impl Neighbours {
    fn of(plan: &AttachmentPlan) -> Self {
        Self {
            bridge_index: link::bridge_ifindex(plan.network_index),
            mac: plan.mac,
            addresses: [plan.ipv4.into(), plan.ipv6.into()],
        }
    }

    fn write(&self, default_route: bool) -> String {
        let word = if default_route { ROUTED } else { UNROUTED };
        format!("{} {word}", self.write_unrouted())
    }

    /// Without a word on the routes inside.
    fn write_unrouted(&self) -> String {
        let mac = self.mac.map(|byte| format!("{byte:02x}")).join(":");
        format!("holdfast {} {mac} {} {}", self.bridge_index, self.addresses[0], self.addresses[1])
    }

    fn read(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.split(' ').collect();
        let ["holdfast", bridge_index, mac, first, second, ref rest @ ..] = fields[..] else { return None };
        if !matches!(rest, [] | [ROUTED | UNROUTED]) {
            return None;
        }
        let mut bytes = [0; 6];
        let mut parts = mac.split(':');
        for byte in &mut bytes {
            *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
        }
        Some(Self {
            bridge_index: bridge_index.parse().ok()?,
            mac: bytes,
            addresses: [first.parse().ok()?, second.parse().ok()?],
        })
    }
}

fn create(route: &mut Route, namespace: &OwnedFd, plan: &AttachmentPlan) -> Result<(), RouterError> {
    let name = plan.slot.host_link_name();
    let (message, flags) = link::new_veth(plan, namespace.as_fd());
    let Err(error) = route.request(message, flags) else { return Ok(()) };
    // A controller that does not exist is EINVAL (do_set_master() in net/core/rtnetlink.c), as much else is.
    let bridge = link::bridge_name(plan.network_index);
    if look(route, link::bridge_ifindex(plan.network_index), plan)?.is_none() {
        let cause = format!("bridge {bridge} does not exist");
        return Err(RouterError::new(Class::Missing, "create veth", name, cause)
            .with_remedy(format!("bridge {bridge} must exist first")));
    }
    let wrapped = netlink("create veth", name, &error);
    Err(match error.errno {
        // A name that is taken is EEXIST, an index is EBUSY (dev_index_reserve() in net/core/dev.c).
        Errno::EBUSY => RouterError { class: Class::Conflict, ..wrapped },
        _ => wrapped,
    })
}

fn outside_settings(plan: &AttachmentPlan) -> Vec<Request> {
    let port = plan.slot.host_ifindex();
    let bridge = link::bridge_ifindex(plan.network_index);
    vec![
        link::set_port(port),
        link::set_link(port, None, Some(Neighbours::of(plan).write_unrouted())),
        link::set_forwarding(port, plan.mac),
        link::set_neighbour(bridge, plan.ipv4.into(), plan.mac),
        link::set_neighbour(bridge, plan.ipv6.into(), plan.mac),
    ]
}

fn inside_settings(plan: &AttachmentPlan) -> Vec<Request> {
    let index = plan.ifindex;
    let (gateway4, gateway6) = (IpAddr::V4(plan.gateway4), IpAddr::V6(plan.gateway6));
    let gateway_mac = link::bridge_mac(plan.network_index);
    let mut requests = vec![
        link::set_address(index, plan.ipv4.into(), 32),
        link::set_address(index, plan.ipv6.into(), 128),
        link::set_link(index, None, None),
        link::set_neighbour(index, gateway4, gateway_mac),
        link::set_neighbour(index, gateway6, gateway_mac),
        link::set_route(index, (gateway4, 32), None),
        link::set_route(index, (gateway6, 128), None),
        link::set_route(index, (plan.subnet4.0.into(), plan.subnet4.1), Some(gateway4)),
        link::set_route(index, (plan.subnet6.0.into(), plan.subnet6.1), Some(gateway6)),
    ];
    if plan.default_route {
        requests.push(link::set_route(
            index,
            (IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0),
            Some(gateway4),
        ));
        requests.push(link::set_route(
            index,
            (IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED), 0),
            Some(gateway6),
        ));
    }
    requests
}

/// Takes default routes from a link that had them; a link without is as asked.
fn remove_default_routes(inside: &mut Route, plan: &AttachmentPlan) -> Result<(), RouterError> {
    let everywhere =
        [(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0), (IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED), 0)];
    let requests = everywhere.map(|to| link::delete_route(plan.ifindex, to)).into();
    let wrap = |error| netlink("delete the default route of", plan.link_name.as_str(), &error);
    for outcome in inside.batch(requests).map_err(wrap)? {
        match outcome {
            Err(error) if !error.is_missing() => return Err(wrap(error)),
            _ => {}
        }
    }
    Ok(())
}

fn apply(
    route: &mut Route,
    action: &str,
    plan: &AttachmentPlan,
    requests: Vec<Request>,
) -> Result<(), RouterError> {
    let subject = || format!("{} of sandbox {}", plan.link_name, plan.sandbox);
    let kinds: Vec<String> = requests.iter().map(|(message, _)| describe(message)).collect();
    let outcomes = route.batch(requests).map_err(|error| netlink(action, subject(), &error))?;
    for (outcome, kind) in outcomes.into_iter().zip(kinds) {
        outcome.map_err(|error| netlink(&format!("{action} ({kind})"), subject(), &error))?;
    }
    Ok(())
}

fn describe(message: &RouteNetlinkMessage) -> String {
    match message {
        RouteNetlinkMessage::NewLink(_) => "isolate port".to_owned(),
        RouteNetlinkMessage::SetLink(_) => "set up link".to_owned(),
        RouteNetlinkMessage::NewAddress(_) => "add address".to_owned(),
        RouteNetlinkMessage::NewRoute(_) => "add route".to_owned(),
        RouteNetlinkMessage::NewNeighbour(_) => "add neighbour".to_owned(),
        _ => "request".to_owned(),
    }
}

/// The id by which the namespace of `route` knows another one; `None` when it knows it not at all.
pub(crate) fn namespace_id(route: &mut Route, namespace: BorrowedFd<'_>) -> Option<i32> {
    let mut message = NsidMessage::default();
    message.attributes = vec![NsidAttribute::Fd(u32::try_from(namespace.as_raw_fd()).ok()?)];
    match route.get(RouteNetlinkMessage::GetNsId(message)) {
        Ok(Some(RouteNetlinkMessage::NewNsId(found))) => {
            found.attributes.iter().find_map(|attribute| match attribute {
                NsidAttribute::Id(id) if *id >= 0 => Some(*id),
                _ => None,
            })
        }
        _ => None,
    }
}

fn look(route: &mut Route, index: u32, plan: &AttachmentPlan) -> Result<Option<LinkView>, RouterError> {
    let found = route.get(link::get_link(index)).map_err(|error| {
        netlink("look at", format!("{} of sandbox {}", plan.link_name, plan.sandbox), &error)
    })?;
    Ok(found.and_then(LinkView::of))
}

/// A plug whose two ends are the planned ones.
struct Plugged {
    isolated: bool,
    up: bool,
    /// Usable planned addresses.
    usable: usize,
}

/// Looks at both ends; `None` unless they are there, belong together, and hold no address of another plan.
fn plugged(
    route: &mut Route,
    inside: &mut Route,
    namespace: BorrowedFd<'_>,
    plan: &AttachmentPlan,
) -> Result<Option<Plugged>, RouterError> {
    let Some(host) = look(route, plan.slot.host_ifindex(), plan)? else { return Ok(None) };
    let Some(peer) = look(inside, plan.ifindex, plan)? else { return Ok(None) };
    let host_right = host.name == plan.slot.host_link_name()
        && host.up
        && host.mtu_bytes == plan.mtu_bytes
        && host.master == Some(link::bridge_ifindex(plan.network_index))
        && host.group == link::group(plan.network_index)
        && host.peer_index == Some(plan.ifindex)
        && host.peer_namespace.is_some()
        && host.peer_namespace == namespace_id(route, namespace);
    let peer_right = peer.name == plan.link_name
        && peer.mac == plan.mac
        && peer.mtu_bytes == plan.mtu_bytes
        && peer.peer_index == Some(plan.slot.host_ifindex());
    if !host_right || !peer_right {
        return Ok(None);
    }
    let addresses = addresses_of(inside, plan.ifindex)
        .map_err(|error| netlink("list addresses of", plan.link_name.as_str(), &error))?;
    let planned: [IpAddr; 2] = [plan.ipv4.into(), plan.ipv6.into()];
    if addresses.iter().any(|found| !planned.contains(&found.address)) {
        return Ok(None);
    }
    let usable = addresses.iter().filter(|found| found.usable).count();
    Ok(Some(Plugged { isolated: host.isolated, up: peer.up, usable }))
}

fn verify(
    route: &mut Route,
    inside: &mut Route,
    namespace: BorrowedFd<'_>,
    plan: &AttachmentPlan,
) -> Result<(), RouterError> {
    let cause = match plugged(route, inside, namespace, plan)? {
        Some(Plugged { isolated: true, up: true, usable: 2 }) => return Ok(()),
        Some(Plugged { isolated, up, usable }) => {
            format!("read back: isolated {isolated}, up {up}, usable addresses {usable} of 2")
        }
        None => "read back: the ends are not as planned".to_owned(),
    };
    let subject = format!("{} of sandbox {}", plan.link_name, plan.sandbox);
    Err(RouterError::new(Class::Transient, "plug", subject, cause))
}

/// Removes whatever holds a name or an index that the plan needs, on both sides.
fn remove_remains(
    route: &mut Route,
    inside: &mut Route,
    remembered: &mut Remembered,
    plan: &AttachmentPlan,
) -> Result<(), RouterError> {
    detach(route, remembered, plan.slot)?;
    if let Some(found) = look(inside, plan.ifindex, plan)? {
        remove_link(inside, plan.ifindex, &found.name)?;
    }
    remove_unlike(inside, &plan.link_name, |_| false)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Neighbours, has_default_route};

    #[test]
    fn the_alias_of_a_plug_reads_back() {
        let neighbours = Neighbours {
            bridge_index: 20_007,
            mac: [2, 0xab, 0, 1, 2, 0xff],
            addresses: ["10.89.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
        };
        for (alias, routed) in [
            (neighbours.write(true), Some(true)),
            (neighbours.write(false), Some(false)),
            (neighbours.write_unrouted(), None),
        ] {
            assert_eq!(has_default_route(&alias), routed, "{alias}");
            assert_eq!(Neighbours::read(&alias).as_ref(), Some(&neighbours));
        }
        for foreign in ["", "holdfast 1 02:00 10.0.0.1 ::1", "holdfast x 02:00:00:00:00:00 10.0.0.1 ::1"] {
            assert_eq!(Neighbours::read(foreign), None, "{foreign}");
        }
    }
}
