//! Records and observations of a node with any number of workloads: one of each kind is admitted as a user's
//! would be, the others are copies with identities, slots and addresses of their own.

use holdfast_core::{
    alloc_address,
    error::Refusal,
    id::{BootId, ContainerId, NetworkId, ProcessRef, SandboxId, Slot},
    observed::{
        Basis, BridgeObserved, ContainerObserved, ControlObserved, KeepersObserved, Observed, PlugObserved,
        RouterObserved, RulesetObserved, UplinkObserved,
    },
    ops::{
        Admission, Stamp, container, network,
        request::{RootRequest, RunRequest},
    },
    record::{Change, NamespaceId, NamespaceIds, NodeRecord, Records, RunState},
    ruleset::Ruleset,
    time::{Mono, Wall},
};
use std::{collections::BTreeMap, net::Ipv4Addr};

/// Wall time of the fixture.
pub const WALL: Wall = Wall(1_700_000_000_000);

/// Workloads of one network.
const PER_NETWORK: u32 = 200;

/// A process of the fixture.
pub fn process(pid: u32) -> ProcessRef {
    ProcessRef { pid, start_time_ticks: u64::from(pid), boot_id: BootId::from_raw("boot") }
}

fn namespaces() -> NamespaceIds {
    NamespaceIds { user: NamespaceId(1), net: NamespaceId(2), mount: NamespaceId(3) }
}

/// What an admission may use.
pub fn stamp() -> Stamp {
    Stamp {
        host: Default::default(),
        random: *b"0123456789abcdef0123456789abcdef",
        wall: WALL,
        daemon_generation: 1,
    }
}

/// A request for a container on the default network.
pub fn request(name: &str) -> RunRequest {
    RunRequest {
        root: RootRequest::Rootfs("/srv/root".to_owned()),
        name: Some(name.to_owned()),
        pod: None,
        tenant: None,
        networks: Vec::new(),
        addresses: Default::default(),
        ports: Vec::new(),
        command: vec!["/bin/server".to_owned(), "--quiet".to_owned()],
        entrypoint: None,
        env: vec![("PATH".to_owned(), "/bin".to_owned())],
        mounts: Vec::new(),
        working_dir: None,
        user: None,
        hostname: None,
        restart: Default::default(),
        stop_signal: None,
        stop_grace_ms: None,
        security: Default::default(),
        aliases: Vec::new(),
        dns: Default::default(),
        labels: BTreeMap::new(),
        remove_on_exit: false,
    }
}

/// A node with `count` running containers.
///
/// # Errors
/// When core refuses the first one.
pub fn records(count: u32) -> Result<Records, Refusal> {
    let mut records = Records::default();
    let mut node = NodeRecord {
        ula_prefix: alloc_address::ula_prefix([1, 2, 3, 4, 5]),
        router_generation: 1,
        daemon_generation: 1,
        slot_next: 1,
        group_next: 1,
        network_next: 0,
        namespaces: Some(namespaces()),
        pin: Some(process(10)),
        control: Some(process(11)),
        uplink: Some(process(12)),
        down: false,
        cures: BTreeMap::new(),
        policy_classes: Default::default(),
    };
    let default = network::default_record(
        &records,
        &mut node,
        &Default::default(),
        NetworkId::from_raw("network-0"),
        WALL,
    )?;
    records.apply(Change::Node(node));
    records.apply(Change::Network(default));
    let id = match container::run(&records, &request("first"), &stamp())? {
        Admission::AlreadySo(id) => id,
        Admission::Run { about, operation, changes, .. } => {
            for change in changes.into_iter().chain(operation.on_done) {
                records.apply(change);
            }
            about
        }
    };
    let container = records.containers[&id].clone();
    let sandbox = records.sandboxes[&container.sandbox].clone();
    let first_network = records.networks[&sandbox.attachments[0].network].clone();
    records.apply(Change::RemoveContainer(container.id.clone()));
    records.apply(Change::RemoveSandbox(sandbox.id.clone()));
    for number in 0..count {
        let network_number = number / PER_NETWORK;
        let subnet4 = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 100, 0, 0)) + (network_number << 8));
        let mut network = first_network.clone();
        network.id = NetworkId::from_raw(format!("network-{network_number}"));
        if !records.networks.contains_key(&network.id) || number == 0 {
            network.name = format!("network-{network_number}");
            network.index = network_number as u16;
            network.groups.values_mut().for_each(|group| *group = network_number + 1);
            (network.subnet4, network.prefix4) = (subnet4, 24);
            network.gateway4 = Ipv4Addr::from(u32::from(subnet4) + 1);
            let ula = alloc_address::ula_prefix([1, 2, 3, 4, 5]);
            (network.subnet6, network.prefix6) = (alloc_address::address6(ula, 0), 64);
            network.subnet6 =
                std::net::Ipv6Addr::from(u128::from(network.subnet6) | u128::from(network.index) << 64);
            network.gateway6 = alloc_address::address6(network.subnet6, 1);
            records.apply(Change::Network(network.clone()));
        }
        let (mut sandbox, mut container) = (sandbox.clone(), container.clone());
        sandbox.id = SandboxId::from_raw(format!("s{number:011x}"));
        sandbox.name = format!("workload-{number}");
        for attachment in &mut sandbox.attachments {
            let offset = number % PER_NETWORK + 2;
            attachment.network = network.id.clone();
            attachment.group = network_number + 1;
            attachment.slot = Slot(number + 1);
            attachment.ipv4 = Ipv4Addr::from(u32::from(subnet4) + offset);
            attachment.ipv6 = alloc_address::address6(records.networks[&network.id].subnet6, offset);
            attachment.mac[2..].copy_from_slice(&number.to_be_bytes());
        }
        container.id = ContainerId::from_raw(format!("c{number:011x}"));
        container.name.clone_from(&sandbox.name);
        container.sandbox = sandbox.id.clone();
        container.state = RunState::Running {
            init: process(1_000 + 2 * number),
            monitor: process(1_001 + 2 * number),
            since: WALL,
            since_mono: Mono(1),
        };
        records.apply(Change::Sandbox(sandbox));
        records.apply(Change::Container(container));
    }
    if let Some(node) = &mut records.node {
        node.slot_next = count + 1;
        node.network_next = (count / PER_NETWORK + 1) as u16;
        node.group_next = count / PER_NETWORK + 2;
    }
    Ok(records)
}

/// A node on which everything is as recorded.
pub fn whole(records: &Records) -> Observed {
    let netns = |number: u32| NamespaceId(1_000 + u64::from(number));
    let mut router = RouterObserved {
        namespaces: namespaces(),
        networks: BTreeMap::new(),
        plugged: BTreeMap::new(),
        sandboxes: BTreeMap::new(),
        ruleset: RulesetObserved { base: true, digest: Ruleset::desired(records).digest() },
        services: Vec::new(),
    };
    for network in records.networks.values() {
        let bridge = BridgeObserved { index: network.index, complete: true };
        router.networks.insert(network.id.clone(), bridge);
    }
    for sandbox in records.sandboxes.values() {
        for attachment in &sandbox.attachments {
            let peer = netns(attachment.slot.0);
            let index = records.networks[&attachment.network].index;
            let plug = PlugObserved {
                network_index: Some(index),
                complete: true,
                peer: Some(peer),
                default_route: None,
            };
            router.plugged.insert(attachment.slot, plug);
            router.sandboxes.insert(sandbox.id.clone(), peer);
        }
    }
    let containers = records.containers.values().map(|container| {
        let running = container.running();
        let slot = records.sandboxes[&container.sandbox].attachments[0].slot;
        let seen = ContainerObserved {
            init: running.map(|(init, _)| init.clone()),
            netns: running.map(|_| netns(slot.0)),
            monitor: running.map(|(_, monitor)| monitor.clone()),
            exit: None,
            remains: true,
            basis: Some(Basis {
                incarnation: container.incarnation,
                init: running.map(|(init, _)| init.clone()),
            }),
        };
        (container.id.clone(), seen)
    });
    Observed {
        at: Mono(50_000_000_000),
        boot_id: BootId::from_raw("boot"),
        keepers: KeepersObserved {
            pin: Some(process(10)),
            keepers: Vec::new(),
            control: ControlObserved::Answering(process(11)),
        },
        uplink: UplinkObserved::Serving { process: process(12), ports: Default::default() },
        router: Some(router),
        containers: containers.collect(),
    }
}

/// The same with every process dead.
pub fn dead(records: &Records) -> Observed {
    let mut observed = whole(records);
    observed.keepers = KeepersObserved::default();
    observed.uplink = UplinkObserved::Absent;
    observed.router = None;
    for seen in observed.containers.values_mut() {
        (seen.init, seen.netns, seen.monitor) = (None, None, None);
    }
    observed
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use holdfast_core::{
        bring_up::{Case, plan_bring_up},
        invariant,
    };

    /// A benchmark of a pass that is not the one it claims to be measures nothing.
    #[test]
    fn a_whole_node_needs_nothing_and_a_dead_one_everything() {
        let records = records(450).unwrap();
        assert_eq!(records.containers.len(), 450);
        assert_eq!(invariant::check_records(&records), []);
        let idle = plan_bring_up(&whole(&records), &records, WALL, &Default::default());
        assert!(idle.is_idle(), "{:?} {:?}", idle.node, idle.work.first());
        let rebuild = plan_bring_up(&dead(&records), &records, WALL, &Default::default());
        assert_eq!((rebuild.case, rebuild.work.len()), (Case::Rebuild, 450));
    }
}
