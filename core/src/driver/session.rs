//! One life of a daemon.

use crate::{
    alloc_address,
    error::WorldError,
    id::{self, NetworkId},
    ops::network,
    record::{Change, NodeRecord, Records},
    world::{Durability, World},
};
use alloc::{collections::BTreeMap, vec::Vec};
use core::convert::Infallible;

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
    let opened = world
        .transact(Durability::Power, |records: &Records| {
            let mut changes = Vec::new();
            let mut node = records.node.clone().unwrap_or_else(|| first_node(random));
            node.daemon_generation += 1;
            let generation = node.daemon_generation;
            if records.networks.values().all(|network| network.name != network::DEFAULT_NETWORK) {
                let [.., a, b, c, d, e, f] = random;
                let id = NetworkId::from_raw(id::new_id([a, b, c, d, e, f]));
                // Taken from the pool like any other; without a free subnet the node works without it.
                if let Ok(record) = network::default_record(records, &mut node, id, wall) {
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

fn first_node(random: [u8; 11]) -> NodeRecord {
    let [a, b, c, d, e, ..] = random;
    NodeRecord {
        ula_prefix: alloc_address::ula_prefix([a, b, c, d, e]),
        router_generation: 0,
        daemon_generation: 0,
        slot_next: 1,
        group_next: 1,
        network_next: 0,
        namespaces: None,
        pin: None,
        control: None,
        uplink: None,
        down: false,
        cures: BTreeMap::new(),
    }
}
