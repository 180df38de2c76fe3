//! Records and observations for the tests of planners.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use holdfast_core::ops::{
    Admission, Stamp, container, network, pod,
    request::{PodRequest, RootRequest, RunRequest},
};
use holdfast_core::{
    alloc_address,
    id::{BootId, ContainerId, NetworkId, ProcessRef, SandboxId, Slot},
    observed::{
        Basis, BridgeObserved, ContainerObserved, ControlObserved, Keeper, KeeperObserved, KeepersObserved,
        Observed, PlugObserved, RouterObserved, RulesetObserved, UplinkObserved,
    },
    record::{Change, ContainerRecord, NamespaceId, NamespaceIds, Records, RunState, SandboxRecord},
    ruleset::Ruleset,
    time::{Mono, Wall},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

pub const WALL: Wall = Wall(1_700_000_000_000);
pub const NOW: Mono = Mono(50_000_000_000);

pub fn boot() -> BootId {
    BootId::from_raw("boot-1")
}

pub fn process(pid: u32) -> ProcessRef {
    ProcessRef { pid, start_time_ticks: u64::from(pid) * 10, boot_id: boot() }
}

pub fn stamp(seed: u8) -> Stamp {
    let mut random = [0_u8; 32];
    for (number, byte) in (0_u8..).zip(random.iter_mut()) {
        *byte = seed.wrapping_mul(31).wrapping_add(number.wrapping_mul(7));
    }
    Stamp { host: Default::default(), random, wall: WALL, daemon_generation: 1 }
}

pub fn namespaces() -> NamespaceIds {
    NamespaceIds { user: NamespaceId(1), net: NamespaceId(2), mount: NamespaceId(3) }
}

/// A node that was brought up, with the default network.
pub fn node() -> Records {
    let mut records = Records::default();
    let mut node = holdfast_core::record::NodeRecord {
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
        NetworkId::from_raw("net-default"),
        WALL,
    )
    .unwrap();
    records.apply(Change::Node(node));
    records.apply(Change::Network(default));
    records
}

pub fn request(name: &str) -> RunRequest {
    RunRequest {
        root: RootRequest::Rootfs("/srv/root".into()),
        name: Some(name.into()),
        pod: None,
        tenant: None,
        networks: vec![],
        addresses: Default::default(),
        ports: vec![],
        command: vec!["sleep".into(), "1".into()],
        entrypoint: None,
        env: vec![],
        mounts: vec![],
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

/// Applies what an admission begins with and ends with; gives back its steps.
pub fn carry<T>(records: &mut Records, admission: Admission<T>) -> Vec<holdfast_core::plan::Step> {
    match admission {
        Admission::AlreadySo(_) => vec![],
        Admission::Run { operation, changes, .. } => {
            for change in changes.into_iter().chain(operation.on_done.clone()) {
                records.apply(change);
            }
            operation.steps
        }
    }
}

/// A container that runs, with init 100·n and monitor 100·n + 1.
pub fn add_container(records: &mut Records, request: &RunRequest, seed: u8) -> ContainerId {
    let admission = container::run(records, request, &stamp(seed)).unwrap();
    let id = match &admission {
        Admission::Run { about, .. } => about.clone(),
        Admission::AlreadySo(id) => id.clone(),
    };
    carry(records, admission);
    set_running(records, &id, u32::from(seed) * 100);
    id
}

pub fn set_running(records: &mut Records, id: &ContainerId, pid: u32) {
    let mut record = records.containers[id].clone();
    record.state =
        RunState::Running { init: process(pid), monitor: process(pid + 1), since: WALL, since_mono: Mono(1) };
    records.apply(Change::Container(record));
}

pub fn add_pod(records: &mut Records, name: &str, tenant: &str, seed: u8) -> SandboxId {
    let request = PodRequest { name: name.into(), tenant: Some(tenant.into()), ..PodRequest::default() };
    let admission = pod::create(records, &request, &stamp(seed)).unwrap();
    let id = match &admission {
        Admission::Run { about, .. } => about.clone(),
        Admission::AlreadySo(id) => id.clone(),
    };
    carry(records, admission);
    id
}

/// The netns inode that a sandbox has in these tests.
pub fn netns_of(sandbox: &SandboxRecord) -> NamespaceId {
    NamespaceId(1_000 + u64::from(sandbox.attachments.first().map_or(0, |own| own.slot.0)))
}

/// The router as the records want it.
pub fn whole_router(records: &Records) -> RouterObserved {
    let mut plugged = BTreeMap::new();
    let mut sandboxes = BTreeMap::new();
    for sandbox in records.sandboxes.values() {
        let netns = netns_of(sandbox);
        sandboxes.insert(sandbox.id.clone(), netns);
        for own in &sandbox.attachments {
            let index = records.networks[&own.network].index;
            plugged.insert(
                own.slot,
                PlugObserved {
                    network_index: Some(index),
                    complete: true,
                    peer: Some(netns),
                    default_route: None,
                },
            );
        }
    }
    RouterObserved {
        namespaces: namespaces(),
        networks: records
            .networks
            .values()
            .map(|network| (network.id.clone(), BridgeObserved { index: network.index, complete: true }))
            .collect(),
        plugged,
        sandboxes,
        ruleset: RulesetObserved { base: true, digest: Ruleset::desired(records).digest() },
        services: vec![],
    }
}

/// A node on which everything is as recorded.
pub fn whole(records: &Records) -> Observed {
    let ports = records.sandboxes.values().flat_map(|sandbox| sandbox.ports.iter().copied()).collect();
    let containers =
        records.containers.values().map(|container| (container.id.clone(), alive(records, container)));
    Observed {
        at: NOW,
        boot_id: boot(),
        keepers: KeepersObserved {
            pin: Some(process(10)),
            keepers: vec![],
            control: ControlObserved::Answering(process(11)),
        },
        uplink: UplinkObserved::Serving { process: process(12), ports },
        router: Some(whole_router(records)),
        containers: containers.collect(),
    }
}

fn alive(records: &Records, container: &ContainerRecord) -> ContainerObserved {
    let running = container.running();
    ContainerObserved {
        init: running.map(|(init, _)| init.clone()),
        netns: running.map(|_| netns_of(&records.sandboxes[&container.sandbox])),
        monitor: running.map(|(_, monitor)| monitor.clone()),
        exit: None,
        remains: running.is_some(),
        basis: Some(Basis {
            incarnation: container.incarnation,
            init: running.map(|(init, _)| init.clone()),
        }),
    }
}

/// Everything dead: what a reboot or a kill of everything leaves.
pub fn nothing_alive(records: &Records) -> Observed {
    let mut observed = whole(records);
    observed.keepers = KeepersObserved::default();
    observed.uplink = UplinkObserved::Absent;
    observed.router = None;
    for seen in observed.containers.values_mut() {
        (seen.init, seen.netns, seen.monitor) = (None, None, None);
    }
    observed
}

pub fn keeper(keeper: Keeper, user: bool, net: bool, mount: bool) -> KeeperObserved {
    KeeperObserved { keeper, user, net, mount }
}

pub fn none_busy() -> BTreeSet<holdfast_core::journal::Subject> {
    BTreeSet::new()
}

pub fn steps_text(steps: &[holdfast_core::plan::Step]) -> String {
    steps.iter().map(|step| format!("{step}\n")).collect()
}

pub fn address(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

pub fn slot(number: u32) -> Slot {
    Slot(number)
}
