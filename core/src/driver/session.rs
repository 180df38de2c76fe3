//! One life of a daemon.

use crate::{
    alloc_address,
    error::WorldError,
    id::{self, NetworkId},
    journal::OperationRecord,
    observed::HostObserved,
    ops::network,
    plan::Step,
    record::{Change, NetworkRecord, NodeRecord, Records, SandboxRecord},
    world::{Durability, World},
};
use alloc::{collections::BTreeMap, vec::Vec};
use core::{convert::Infallible, net::Ipv6Addr};

/// One life of a daemon: operations of another life are orphans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Rises with each start of a daemon.
    pub daemon_generation: u64,
}

/// Begins a daemon's life: makes the node's record and the default network at the first, counts the life.
///
/// # Errors
/// [`crate::error::StoreError`] when that cannot be written down: a node that cannot remember must not act.
pub async fn open_session<W: World>(world: &W) -> Result<Session, WorldError> {
    let mut random = [0_u8; 11];
    world.fill(&mut random);
    let wall = world.wall();
    // A host that cannot be looked at is no reason not to begin: the default network's subnet is checked by nobody
    // else, and chosen from a pool that is rarely used.
    let host = match world.observe_host().await {
        Ok(host) => host,
        Err(error) => {
            tracing::warn!(error = %error, "the host's networks are not known");
            HostObserved::default()
        }
    };
    let opened = world
        .transact(Durability::Power, |records: &Records| {
            let mut changes = Vec::new();
            let mut node = records.node.clone().unwrap_or_else(|| node_from(records, random));
            node.daemon_generation += u64::from(!mutant!(DaemonGenerationNotRaised));
            let generation = node.daemon_generation;
            if records.networks.values().all(|network| network.name != network::DEFAULT_NETWORK) {
                let [.., a, b, c, d, e, f] = random;
                let id = NetworkId::from_raw(id::new_id([a, b, c, d, e, f]));
                // Taken from the pool like any other; without a free subnet the node works without it.
                if let Ok(record) = network::default_record(records, &mut node, &host, id, wall) {
                    changes.push(Change::Network(record));
                }
            }
            changes.push(Change::Node(node));
            Ok::<_, Infallible>((changes, Session { daemon_generation: generation }))
        })
        .await?;
    match opened {
        Ok(session) => Ok(session),
        Err(never) => match never {},
    }
}

/// The record of a node that has none: at the first start, or when it could not be read. Whatever other records
/// still hold is never handed out again, and their operations stay those of another life.
pub fn node_from(records: &Records, random: [u8; 11]) -> NodeRecord {
    let [a, b, c, d, e, ..] = random;
    let mut held = Held::default();
    for network in records.networks.values() {
        held.network(network);
    }
    for sandbox in records.sandboxes.values() {
        held.sandbox(sandbox);
    }
    for operation in records.operations.values() {
        held.operation(operation);
    }
    // A /64 of the old prefix is in use: every network of the node lies in one /48; RFC 4193.
    let prefix = held.subnet6.map(|subnet| Ipv6Addr::from_bits(subnet.to_bits() & (u128::MAX << 80)));
    let next = |highest: Option<u32>| highest.map_or(1, |highest| highest.saturating_add(1));
    NodeRecord {
        ula_prefix: prefix.unwrap_or_else(|| alloc_address::ula_prefix([a, b, c, d, e])),
        router_generation: 0,
        daemon_generation: held.generation,
        slot_next: next(held.slot),
        group_next: next(held.group),
        network_next: held.index.map_or(0, |index| index.saturating_add(1)),
        namespaces: None,
        pin: None,
        control: None,
        uplink: None,
        down: false,
        cures: BTreeMap::new(),
        policy_classes: Default::default(),
    }
}

/// The highest number of each counter that is in use.
#[derive(Default)]
struct Held {
    slot: Option<u32>,
    group: Option<u32>,
    index: Option<u16>,
    generation: u64,
    subnet6: Option<Ipv6Addr>,
}

impl Held {
    fn network(&mut self, network: &NetworkRecord) {
        self.index = self.index.max(Some(network.index));
        self.group = self.group.max(network.groups.values().max().copied());
        // One that the user named tells nothing of the node's own prefix.
        self.subnet6 = self.subnet6.or(network.spec.subnet6.is_none().then_some(network.subnet6));
    }

    fn sandbox(&mut self, sandbox: &SandboxRecord) {
        for attachment in &sandbox.attachments {
            self.slot = self.slot.max(Some(attachment.slot.0));
            self.group = self.group.max(Some(attachment.group));
        }
    }

    /// What an open operation removes or makes may still be in the kernel, whatever the records say of it.
    fn operation(&mut self, operation: &OperationRecord) {
        self.generation = self.generation.max(operation.daemon_generation);
        for step in &operation.steps {
            match step {
                Step::Attach(plan) => self.slot = self.slot.max(Some(plan.slot.0)),
                Step::Detach(slot) => self.slot = self.slot.max(Some(slot.0)),
                Step::EnsureNetwork(plan) | Step::RemoveNetwork(plan) => {
                    self.index = self.index.max(Some(plan.index));
                }
                _ => {}
            }
        }
        for change in operation.on_done.iter().chain(&operation.on_undone) {
            match change {
                Change::Network(network) => self.network(network),
                Change::Sandbox(sandbox) => self.sandbox(sandbox),
                _ => {}
            }
        }
    }
}
