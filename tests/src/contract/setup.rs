//! A node for a case: pin, control, a network, sandboxes, containers.

use super::{Killer, ensure, said};
use holdfast_core::{
    id::{ContainerId, NetworkId, ProcessRef, SandboxId, Slot},
    observed::{Keeper, KeepersObserved, RouterObserved},
    plan::{AttachmentPlan, ContainerPlan, NetworkPlan, RootfsPlan, SandboxPlan},
    record::NamespaceIds,
    ruleset::{Element, Ruleset},
    world::{KeeperHints, Started, World},
};
use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, Ipv6Addr},
};

/// What a case has brought up.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its pin.
    pub pin: ProcessRef,
    /// Its control.
    pub control: ProcessRef,
    /// Its namespaces.
    pub namespaces: NamespaceIds,
}

impl Node {
    /// Pin, control and closed rules.
    pub async fn up<W: World>(world: &W) -> Result<Self, String> {
        let started = world.create_namespaces().await.map_err(said("create namespaces"))?;
        let control = world.start_control(&started.process).await.map_err(said("start control"))?;
        world.ensure_ruleset(&Ruleset::default()).await.map_err(said("ensure ruleset"))?;
        Ok(Self { pin: started.process, control, namespaces: started.namespaces })
    }

    /// What the records would know of it.
    pub fn hints(&self) -> KeeperHints {
        KeeperHints {
            namespaces: Some(self.namespaces),
            pin: Some(self.pin.clone()),
            control: Some(self.control.clone()),
            ..KeeperHints::default()
        }
    }
}

/// The network of every case.
pub fn network() -> NetworkPlan {
    NetworkPlan {
        id: NetworkId::from_raw("00000000000a"),
        index: 7,
        gateway4: (Ipv4Addr::new(10, 90, 7, 1), 24),
        gateway6: (Ipv6Addr::new(0xfd00, 0x90, 0, 7, 0, 0, 0, 1), 64),
        mtu_bytes: 1500,
    }
}

/// The sandbox of a number.
pub fn sandbox_id(number: u8) -> SandboxId {
    SandboxId::from_raw(format!("0000000000b{number:x}"))
}

/// Its plan.
pub fn sandbox(number: u8, rebind: Option<ProcessRef>) -> SandboxPlan {
    SandboxPlan { id: sandbox_id(number), hostname: format!("case-{number}"), rebind }
}

/// Its link.
pub fn link(number: u8) -> AttachmentPlan {
    let network = network();
    AttachmentPlan {
        sandbox: sandbox_id(number),
        slot: Slot(u32::from(number)),
        network_index: network.index,
        link_name: "eth0".to_owned(),
        ifindex: 1_000 + u32::from(number),
        mac: [0x02, 0, 0, 0, 0, number],
        ipv4: Ipv4Addr::new(10, 90, 7, 10 + number),
        ipv6: Ipv6Addr::new(0xfd00, 0x90, 0, 7, 0, 0, 0, 10 + u16::from(number)),
        gateway4: network.gateway4.0,
        gateway6: network.gateway6.0,
        subnet4: (Ipv4Addr::new(10, 90, 7, 0), 24),
        subnet6: (Ipv6Addr::new(0xfd00, 0x90, 0, 7, 0, 0, 0, 0), 64),
        default_route: true,
        mtu_bytes: 1500,
    }
}

/// The elements that put a sandbox into a group.
pub fn elements(number: u8, group: u32) -> BTreeSet<Element> {
    let AttachmentPlan { slot, mac, ipv4, ipv6, .. } = link(number);
    BTreeSet::from([
        Element::Group4(ipv4, group),
        Element::Member4(group, ipv4),
        Element::Source4(slot, mac, ipv4),
        Element::Group6(ipv6, group),
        Element::Member6(group, ipv6),
        Element::Source6(slot, mac, ipv6),
    ])
}

/// A bound and plugged sandbox that no rule speaks for.
pub async fn plug<W: World>(world: &W, number: u8) -> Result<(), String> {
    world.ensure_network(&network()).await.map_err(said("ensure network"))?;
    world.ensure_sandbox(&sandbox(number, None)).await.map_err(said("ensure sandbox"))?;
    world.attach(&link(number)).await.map_err(said("attach"))
}

/// The container of every case.
pub fn container_id() -> ContainerId {
    ContainerId::from_raw("0000000000c1")
}

/// The name of a container that ignores every signal but SIGKILL, as `/bin/sleep` does as process 1.
pub const STUBBORN: &str = "stubborn";

/// A start of it in sandbox 1.
pub fn container(incarnation: u32, kill: &dyn Killer) -> ContainerPlan {
    ContainerPlan {
        id: container_id(),
        name: STUBBORN.to_owned(),
        incarnation,
        sandbox: sandbox_id(1),
        rootfs: RootfsPlan { id: container_id(), root: kill.root(), layers: Vec::new() },
        argv: vec!["/bin/sleep".to_owned(), "1000".to_owned()],
        env: vec![("PATH".to_owned(), "/bin".to_owned())],
        working_dir: "/".to_owned(),
        user: (0, 0),
        mounts: Vec::new(),
        hostname: "case-1".to_owned(),
        hosts: Vec::new(),
        resolver: Default::default(),
        security: Default::default(),
    }
}

/// The same with a process that handles its signals.
pub fn handling(incarnation: u32, kill: &dyn Killer) -> ContainerPlan {
    ContainerPlan {
        name: "case".to_owned(),
        argv: vec!["/bin/hold".to_owned()],
        ..container(incarnation, kill)
    }
}

/// A node whose sandbox 1 is plugged and runs the container.
pub async fn running<W: World>(world: &W, kill: &dyn Killer) -> Result<(Node, Started), String> {
    let node = Node::up(world).await?;
    plug(world, 1).await?;
    let started =
        world.start_container(&container(1, kill), &node.pin).await.map_err(said("start container"))?;
    Ok((node, started))
}

/// Looks at the router.
pub async fn observe<W: World>(world: &W) -> Result<RouterObserved, String> {
    world.observe_router().await.map_err(said("observe router"))
}

/// What a keeper is said to lead to: user, net, mount.
pub fn leads(observed: &KeepersObserved, keeper: &Keeper) -> Result<(bool, bool, bool), String> {
    let found = observed.keepers.iter().find(|found| &found.keeper == keeper);
    ensure(found.is_some(), || format!("{keeper} is not among {:?}", observed.keepers))?;
    Ok(found.map(|found| (found.user, found.net, found.mount)).unwrap_or_default())
}
