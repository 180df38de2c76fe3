//! Bridges: one per network.

use super::{
    error::netlink,
    link::{self, AddressView, LinkView},
    route::Route,
    sysctl,
};
use holdfast_core::{
    error::{Class, RouterError},
    id::NetworkId,
    plan::NetworkPlan,
};
use std::net::IpAddr;

/// What a bridge's alias says it should be: a later observation compares with it, without any memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Alias {
    pub id: NetworkId,
    pub gateways: [(IpAddr, u8); 2],
    pub mtu_bytes: u32,
}

const ALIAS_PREFIX: &str = "holdfast";

impl Alias {
    fn of(plan: &NetworkPlan) -> Self {
        Self { id: plan.id.clone(), gateways: gateways(plan), mtu_bytes: plan.mtu_bytes }
    }

    fn write(&self) -> String {
        let [(a4, p4), (a6, p6)] = self.gateways;
        format!("{ALIAS_PREFIX} {} {a4}/{p4} {a6}/{p6} {}", self.id, self.mtu_bytes)
    }

    /// Reads an alias; `None` when the link is not Holdfast's.
    pub fn read(text: &str) -> Option<Self> {
        let mut fields = text.split(' ');
        if fields.next() != Some(ALIAS_PREFIX) {
            return None;
        }
        let id = NetworkId::from_raw(fields.next()?);
        let mut gateway = || {
            let (address, prefix_length) = fields.next()?.split_once('/')?;
            Some((address.parse().ok()?, prefix_length.parse().ok()?))
        };
        let gateways = [gateway()?, gateway()?];
        let mtu_bytes = fields.next()?.parse().ok()?;
        fields.next().is_none().then_some(Self { id, gateways, mtu_bytes })
    }
}

fn gateways(plan: &NetworkPlan) -> [(IpAddr, u8); 2] {
    [(plan.gateway4.0.into(), plan.gateway4.1), (plan.gateway6.0.into(), plan.gateway6.1)]
}

/// Network index of a bridge by its name.
pub(crate) fn index_of(name: &str) -> Option<u16> {
    let index = name.strip_prefix("hfbr")?.parse().ok()?;
    (link::bridge_name(index) == name).then_some(index)
}

/// Whether a bridge is what its alias says; `addresses` are all of the router's.
pub(crate) fn is_complete(bridge: &LinkView, index: u16, alias: &Alias, addresses: &[AddressView]) -> bool {
    is_ours(bridge, index)
        && bridge.up
        && bridge.mtu_bytes == alias.mtu_bytes
        && alias.gateways.iter().all(|(address, prefix_length)| {
            addresses.iter().any(|found| {
                found.index == bridge.index
                    && found.address == *address
                    && found.prefix_length == *prefix_length
                    && found.usable
            })
        })
}

fn is_ours(bridge: &LinkView, index: u16) -> bool {
    bridge.is_bridge
        && bridge.index == link::bridge_ifindex(index)
        && bridge.name == link::bridge_name(index)
        && bridge.mac == link::bridge_mac(index)
}

/// Makes or completes a bridge.
pub(crate) fn ensure(route: &mut Route, plan: &NetworkPlan) -> Result<(), RouterError> {
    let name = link::bridge_name(plan.index);
    let index = link::bridge_ifindex(plan.index);
    let wrap = |action: &str, error| netlink(action, &name, &error);
    remove_unlike(route, &name, |found| is_ours(found, plan.index))?;
    let found = route.get(link::get_link(index)).map_err(|error| wrap("look at", error))?;
    if found.is_none() {
        let (message, flags) = link::new_bridge(plan.index);
        route.request(message, flags).map_err(|error| wrap("create bridge", error))?;
    }
    sysctl::set_all(&sysctl::router_interface(&name))?;
    let addresses = addresses_of(route, index).map_err(|error| wrap("list addresses of", error))?;
    let wanted = gateways(plan);
    let mut requests: Vec<_> = addresses
        .iter()
        .filter(|found| !wanted.contains(&(found.address, found.prefix_length)))
        .map(|found| link::delete_address(index, found.address, found.prefix_length))
        .collect();
    requests.extend(wanted.iter().map(|(address, length)| link::set_address(index, *address, *length)));
    let alias = Alias::of(plan);
    requests.push(link::set_link(index, Some(plan.mtu_bytes), Some(alias.write())));
    for outcome in route.batch(requests).map_err(|error| wrap("set up", error))? {
        outcome.map_err(|error| wrap("set up", error))?;
    }
    verify(route, plan, &alias)
}

fn verify(route: &mut Route, plan: &NetworkPlan, alias: &Alias) -> Result<(), RouterError> {
    let name = link::bridge_name(plan.index);
    let index = link::bridge_ifindex(plan.index);
    let wrap = |error| netlink("read back", &name, &error);
    let addresses = addresses_of(route, index).map_err(wrap)?;
    let found = route.get(link::get_link(index)).map_err(wrap)?.and_then(LinkView::of);
    match found {
        Some(found)
            if Alias::read(&found.alias).as_ref() == Some(alias)
                && is_complete(&found, plan.index, alias, &addresses) =>
        {
            Ok(())
        }
        found => Err(RouterError::new(
            Class::Transient,
            "set up bridge",
            &name,
            format!("read back {found:?} with {addresses:?}"),
        )),
    }
}

/// The addresses of one link, link-local ones left out.
pub(crate) fn addresses_of(
    route: &mut Route,
    index: u32,
) -> Result<Vec<AddressView>, super::error::NetlinkError> {
    let dump = route.dump(&link::dump_addresses())?;
    Ok(dump.iter().filter_map(AddressView::of).filter(|found| found.index == index).collect())
}

/// Deletes the link of this name unless `keep` accepts it.
pub(crate) fn remove_unlike(
    route: &mut Route,
    name: &str,
    keep: impl FnOnce(&LinkView) -> bool,
) -> Result<(), RouterError> {
    let wrap = |action: &str, error| netlink(action, name, &error);
    let found = route.get(link::get_link_named(name)).map_err(|error| wrap("look at", error))?;
    match found.and_then(LinkView::of) {
        Some(found) if !keep(&found) => remove_link(route, found.index, name),
        _ => Ok(()),
    }
}

/// Deletes a link; an absent one is a success.
pub(crate) fn remove_link(route: &mut Route, index: u32, name: &str) -> Result<(), RouterError> {
    let (message, flags) = link::delete_link(index);
    match route.request(message, flags) {
        Err(error) if !error.is_missing() => Err(netlink("delete", name, &error)),
        _ => Ok(()),
    }
}

/// Removes a bridge; an absent one is a success.
pub(crate) fn remove(route: &mut Route, plan: &NetworkPlan) -> Result<(), RouterError> {
    remove_unlike(route, &link::bridge_name(plan.index), |_| false)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_alias_reads_back() {
        let plan = NetworkPlan {
            id: NetworkId::from_raw("0123456789ab"),
            index: 7,
            gateway4: ("10.89.0.1".parse().unwrap(), 24),
            gateway6: ("fd00::1".parse().unwrap(), 64),
            mtu_bytes: 65520,
        };
        let alias = Alias::of(&plan);
        assert_eq!(Alias::read(&alias.write()), Some(alias));
        for foreign in
            ["", "holdfast", "holdfast a 10.0.0.1 fd00::1/64 1500", "holdfast a 1.1.1.1/24 ::/64 1 2"]
        {
            assert_eq!(Alias::read(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_bridge_name_has_one_form() {
        assert_eq!(index_of("hfbr12"), Some(12));
        for foreign in ["hfbr", "hfbr012", "hfbr+1", "hfbr70000", "br0"] {
            assert_eq!(index_of(foreign), None, "{foreign}");
        }
    }
}
