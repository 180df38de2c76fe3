//! One look at everything the router holds.

use super::{
    attach::{self, namespace_id},
    bridge::{self, Alias},
    error::{errno, netlink},
    link::{self, AddressView, LinkView},
    netns,
    nft::Firewall,
    route::Route,
    sandbox,
};
use crate::paths::Paths;
use holdfast_core::{
    error::RouterError,
    id::{SandboxId, Slot},
    observed::{BridgeObserved, PlugObserved, RouterObserved},
    record::{NamespaceId, NamespaceIds},
};
use std::{collections::BTreeMap, os::fd::AsFd, path::Path};

/// Looks at links, addresses, sandboxes and rules.
pub(crate) fn observe(
    paths: &Paths,
    route: &mut Route,
    firewall: &mut Firewall,
) -> Result<RouterObserved, RouterError> {
    let links: Vec<LinkView> = route
        .dump(&link::dump_links())
        .map_err(|error| netlink("list", "links", &error))?
        .into_iter()
        .filter_map(LinkView::of)
        .collect();
    let addresses: Vec<AddressView> = route
        .dump(&link::dump_addresses())
        .map_err(|error| netlink("list", "addresses", &error))?
        .iter()
        .filter_map(AddressView::of)
        .collect();
    let sandboxes = sandbox::observe(paths)?;
    let peers = peers(paths, route, &sandboxes);
    let mut observed = RouterObserved {
        namespaces: namespaces()?,
        sandboxes,
        ruleset: firewall.observe()?,
        ..RouterObserved::default()
    };
    for found in &links {
        if let Some(index) = bridge::index_of(&found.name)
            && let Some(alias) = Alias::read(&found.alias)
        {
            let complete = bridge::is_complete(found, index, &alias, &addresses);
            observed.networks.insert(alias.id, BridgeObserved { index, complete });
        }
        if let Some(slot) = slot_of(found) {
            observed.plugged.insert(slot, plug(found, &links, &peers));
        }
    }
    Ok(observed)
}

fn plug(found: &LinkView, links: &[LinkView], peers: &BTreeMap<i32, NamespaceId>) -> PlugObserved {
    let network_index = found
        .master
        .and_then(|master| links.iter().find(|link| link.index == master))
        .and_then(|master| bridge::index_of(&master.name));
    PlugObserved {
        network_index,
        complete: network_index.is_some() && found.up && found.isolated,
        peer: found.peer_namespace.and_then(|id| peers.get(&id).copied()),
        default_route: attach::has_default_route(&found.alias),
    }
}

/// The slot whose host end a link is; `None` for every other link.
fn slot_of(found: &LinkView) -> Option<Slot> {
    let slot = Slot(found.name.strip_prefix("hfv")?.parse().ok()?);
    (slot.host_link_name() == found.name && found.peer_index.is_some()).then_some(slot)
}

/// Namespace of each sandbox by the id that the router's namespace gave it. A sandbox that the router has no
/// link to has none.
fn peers(
    paths: &Paths,
    route: &mut Route,
    sandboxes: &BTreeMap<SandboxId, NamespaceId>,
) -> BTreeMap<i32, NamespaceId> {
    sandboxes
        .iter()
        .filter_map(|(id, namespace)| {
            let fd = sandbox::open(paths, id).ok()?;
            Some((namespace_id(route, fd.as_fd())?, *namespace))
        })
        .collect()
}

/// The namespaces the calling process lives in.
pub(crate) fn namespaces() -> Result<NamespaceIds, RouterError> {
    let identity = |kind: &str| {
        let path = Path::new("/proc/thread-self/ns").join(kind);
        netns::identity(&path).map_err(|error| errno("look at", path.display().to_string(), error))
    };
    Ok(NamespaceIds { user: identity("user")?, net: identity("net")?, mount: identity("mnt")? })
}
