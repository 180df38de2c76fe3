//! What each keeper leads to. Every way in is opened and compared with the recorded identity before it counts.

use super::{
    HeldNamespaces,
    namespace::{
        Kind, namespace_id, node_user_namespace, open_bound_namespace, open_namespace, owning_user_namespace,
        tap_network_namespace,
    },
};
use holdfast_core::{
    id::ProcessRef,
    observed::{Keeper, KeeperObserved},
    record::{NamespaceId, NamespaceIds},
    world::KeeperHints,
};
use std::{io, os::fd::OwnedFd, path::Path};

/// Where ways in are looked for.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// The daemon's own descriptors.
    pub held: &'a HeldNamespaces,
    /// Where the router's network namespace is bound in the node's mount namespace.
    pub router_netns: &'a Path,
}

impl Sources<'_> {
    /// Opens the recorded namespace of a kind through a keeper; `None` when the keeper does not lead there (any
    /// more).
    ///
    /// # Errors
    /// When the kernel does not let the keeper be looked at.
    pub fn open(&self, keeper: &Keeper, kind: Kind, recorded: &NamespaceIds) -> io::Result<Option<OwnedFd>> {
        let Some(wanted) = wanted(kind, recorded) else { return self.open_any(keeper, kind, recorded) };
        let is_it = |fd: &OwnedFd| namespace_id(fd).is_ok_and(|id| id == wanted);
        if let Some(fd) = self.open_any(keeper, kind, recorded)?.filter(is_it) {
            return Ok(Some(fd));
        }
        match (keeper, kind) {
            (Keeper::Pin(process) | Keeper::Control(process) | Keeper::Monitor(_, process), Kind::Net) => {
                Ok(open_bound_namespace(process, self.router_netns)?.filter(is_it))
            }
            _ => Ok(None),
        }
    }

    fn open_any(&self, keeper: &Keeper, kind: Kind, recorded: &NamespaceIds) -> io::Result<Option<OwnedFd>> {
        match (keeper, kind) {
            (Keeper::Pin(process) | Keeper::Control(process) | Keeper::Monitor(_, process), _) => {
                open_namespace(process, kind)
            }
            (Keeper::Descriptors, _) => Ok(self.held.open(kind, recorded)),
            (Keeper::Uplink(process), Kind::Net) => tap_network_namespace(process),
            (Keeper::Uplink(process), Kind::User) => {
                tap_network_namespace(process)?.map(|net| owning_user_namespace(&net)).transpose()
            }
            (Keeper::Workload(_, process), Kind::User) => open_node_user(process),
            (Keeper::Uplink(_) | Keeper::Workload(..), _) => Ok(None),
        }
    }

    /// Opens the node's user namespace through a keeper, whichever is recorded.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_user(&self, keeper: &Keeper) -> io::Result<Option<OwnedFd>> {
        match keeper {
            Keeper::Descriptors => Ok(self.held.recorded().and_then(|ids| self.held.open(Kind::User, &ids))),
            _ => match self.open_any(keeper, Kind::User, &NamespaceIds::default())? {
                Some(fd) => node_user_namespace(fd),
                None => Ok(None),
            },
        }
    }

    /// Every keeper of the hints that leads to at least one recorded namespace, without the pin.
    pub fn enumerate(&self, hints: &KeeperHints, recorded: &NamespaceIds) -> Vec<KeeperObserved> {
        let mut keepers = vec![Keeper::Descriptors];
        keepers.extend(hints.control.clone().map(Keeper::Control));
        keepers.extend(hints.uplink.clone().map(Keeper::Uplink));
        for (container, (init, monitor)) in &hints.containers {
            keepers.push(Keeper::Monitor(container.clone(), monitor.clone()));
            keepers.push(Keeper::Workload(container.clone(), init.clone()));
        }
        keepers.into_iter().filter_map(|keeper| self.look(keeper, recorded)).collect()
    }

    fn look(&self, keeper: Keeper, recorded: &NamespaceIds) -> Option<KeeperObserved> {
        let leads = |kind| match self.open(&keeper, kind, recorded) {
            Ok(fd) => fd.is_some(),
            Err(error) => {
                tracing::warn!(%keeper, namespace = kind.file_name(), %error, "keeper cannot be looked at");
                false
            }
        };
        let (user, net, mount) = (leads(Kind::User), leads(Kind::Net), leads(Kind::Mount));
        (user || net || mount).then_some(KeeperObserved { keeper, user, net, mount })
    }
}

fn wanted(kind: Kind, recorded: &NamespaceIds) -> Option<NamespaceId> {
    match kind {
        Kind::User => Some(recorded.user),
        Kind::Net => Some(recorded.net),
        Kind::Mount => Some(recorded.mount),
        // Not recorded: one that is lost costs nothing but the view of the cgroup tree.
        Kind::Cgroup => None,
    }
}

fn open_node_user(process: &ProcessRef) -> io::Result<Option<OwnedFd>> {
    match open_namespace(process, Kind::User)? {
        Some(fd) => node_user_namespace(fd),
        None => Ok(None),
    }
}
