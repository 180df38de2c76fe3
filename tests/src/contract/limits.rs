//! Limits: of a transaction, of names, of how much happens at once, of patience.

use super::{Killer, ensure, said, setup::*};
use futures_util::future::join_all;
use holdfast_core::{
    error::Class,
    id::{SandboxId, Slot},
    name::NAME_BYTES_MAX,
    observed::{ControlObserved, UplinkObserved},
    plan::{AttachmentPlan, ContainerPlan, SandboxPlan},
    record::PortRecord,
    ruleset::{Element, Ruleset, digest},
    spec::{PortSpec, Protocol},
    time::Span,
    world::{KeeperHints, World},
};
use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, Ipv6Addr},
};

/// Elements of the large set; a transaction of an unprivileged socket holds about 4,000 of them.
const ELEMENTS: u32 = 6_000;
/// Sandboxes at the same time.
const SANDBOXES: u16 = 64;
/// Longer than any wait inside the node.
const PATIENCE: Span = Span::from_secs(45);

fn numbered(number: u32) -> [Element; 3] {
    let address = Ipv4Addr::from(0x0a00_0000 | number);
    let [.., a, b, c] = number.to_be_bytes();
    [
        Element::Group4(address, number / 7 + 1),
        Element::Member4(number / 7 + 1, address),
        Element::Source4(Slot(number), [2, 0, 0, a, b, c], address),
    ]
}

async fn rules_are<W: World>(world: &W, elements: &BTreeSet<Element>, when: &str) -> Result<(), String> {
    let found = observe(world).await?.ruleset;
    ensure(found.base && found.digest == digest(elements.iter()), || {
        format!("{when}: of {} elements the kernel shows {found:?}", elements.len())
    })
}

pub async fn many_elements<W: World>(world: &W) -> Result<(), String> {
    Node::up(world).await?;
    let mut elements: BTreeSet<Element> = (1..=ELEMENTS / 3).flat_map(numbered).collect();
    for when in ["put", "put again"] {
        world.ensure_ruleset(&Ruleset { elements: elements.clone() }).await.map_err(said(when))?;
        rules_are(world, &elements, when).await?;
    }
    let more: BTreeSet<Element> = (ELEMENTS..ELEMENTS + 1_000).flat_map(numbered).collect();
    world.add_elements(&more).await.map_err(said("add elements"))?;
    elements.extend(&more);
    rules_are(world, &elements, "added").await?;
    let fewer: BTreeSet<Element> = (1..=1_000).flat_map(numbered).collect();
    world.remove_elements(&fewer).await.map_err(said("remove elements"))?;
    elements.retain(|element| !fewer.contains(element));
    rules_are(world, &elements, "removed").await?;
    // From many to others: what is not asked for goes.
    let other: BTreeSet<Element> = (500..2_500).flat_map(numbered).collect();
    world.ensure_ruleset(&Ruleset { elements: other.clone() }).await.map_err(said("put others"))?;
    rules_are(world, &other, "put others").await
}

fn of_many(number: u16) -> (SandboxPlan, AttachmentPlan) {
    let id = SandboxId::from_raw(format!("0000000d{number:04x}"));
    let plan = AttachmentPlan {
        sandbox: id.clone(),
        slot: Slot(100 + u32::from(number)),
        mac: [2, 0, 0, 0, 1, number as u8],
        ipv4: Ipv4Addr::new(10, 90, 7, 100 + number as u8),
        ipv6: Ipv6Addr::new(0xfd00, 0x90, 0, 7, 0, 0, 1, number),
        ..link(1)
    };
    (SandboxPlan { id, hostname: format!("many-{number}"), rebind: None }, plan)
}

pub async fn many_sandboxes<W: World>(world: &W) -> Result<(), String> {
    Node::up(world).await?;
    world.ensure_network(&network()).await.map_err(said("ensure network"))?;
    let plans: Vec<_> = (0..SANDBOXES).map(of_many).collect();
    let plugged = join_all(plans.iter().map(async |(sandbox, link)| {
        world.ensure_sandbox(sandbox).await.map_err(said("ensure sandbox"))?;
        world.attach(link).await.map_err(said("attach"))
    }));
    plugged.await.into_iter().collect::<Result<Vec<()>, String>>()?;
    let router = observe(world).await?;
    let binds: BTreeSet<_> = router.sandboxes.values().collect();
    ensure(binds.len() == usize::from(SANDBOXES), || format!("{} sandboxes are bound", binds.len()))?;
    let whole = plans.iter().all(|(sandbox, link)| {
        router.plugged.get(&link.slot).is_some_and(|plug| {
            plug.complete && plug.peer.is_some() && plug.peer == router.sandboxes.get(&sandbox.id).copied()
        })
    });
    ensure(whole && router.plugged.len() == plans.len(), || format!("the links are {:?}", router.plugged))?;
    let unplugged = join_all(plans.iter().map(async |(sandbox, link)| {
        world.detach(link.slot).await.map_err(said("detach"))?;
        world.remove_sandbox(&sandbox.id).await.map_err(said("remove sandbox"))
    }));
    unplugged.await.into_iter().collect::<Result<Vec<()>, String>>()?;
    let router = observe(world).await?;
    ensure(router.sandboxes.is_empty() && router.plugged.is_empty(), || format!("left is {router:?}"))
}

pub async fn long_name<W: World>(world: &W, kill: &dyn Killer) -> Result<(), String> {
    let node = Node::up(world).await?;
    world.ensure_network(&network()).await.map_err(said("ensure network"))?;
    let name = "n".repeat(NAME_BYTES_MAX);
    for number in 1..=2 {
        let plan = SandboxPlan { hostname: name.clone(), ..sandbox(number, None) };
        world.ensure_sandbox(&plan).await.map_err(said("ensure sandbox"))?;
        world.attach(&link(number)).await.map_err(said("attach"))?;
    }
    let bound = observe(world).await?.sandboxes;
    ensure(bound.get(&sandbox_id(1)) != bound.get(&sandbox_id(2)), || {
        format!("two sandboxes of one name are one: {bound:?}")
    })?;
    let argv = vec!["/bin/sh".to_owned(), "-c".to_owned(), format!("[ $(hostname) = {name} ] && exit 7")];
    let plan = ContainerPlan { name: name.clone(), hostname: name.clone(), argv, ..container(1, kill) };
    world.start_container(&plan, &node.pin).await.map(drop).map_err(said("start container"))
}

fn hints(node: &Node) -> KeeperHints {
    node.hints()
}

pub async fn frozen_control<W: World>(world: &W, kill: &dyn Killer) -> Result<(), String> {
    let node = Node::up(world).await?;
    plug(world, 1).await?;
    world.ensure_sandbox(&sandbox(2, None)).await.map_err(said("ensure sandbox"))?;
    kill.freeze(&node.control);
    let began = world.now();
    let asked = join_all([2, 2, 1].map(|number| {
        let link = link(number);
        async move { world.attach(&link).await.err().map(|error| error.class) }
    }))
    .await;
    let took = world.now().since(began);
    let honest = |class: &Option<Class>| matches!(class, Some(Class::Transient | Class::Unknown));
    ensure(asked.iter().all(honest) && took < PATIENCE, || {
        format!("a control that does not answer gave {asked:?} after {took}")
    })?;
    let observed = world.observe_keepers(&hints(&node)).await.map_err(said("observe"))?;
    ensure(matches!(observed.control, ControlObserved::Silent(_)), || {
        format!("a control that does not answer reads as {:?}", observed.control)
    })?;
    kill.thaw(&node.control);
    for _ in 0..2 {
        world.attach(&link(2)).await.map_err(said("attach again"))?;
    }
    let router = observe(world).await?;
    let whole = [1, 2].iter().all(|number| {
        router.plugged.get(&link(*number).slot).is_some_and(|plug| {
            plug.complete && plug.peer == router.sandboxes.get(&sandbox_id(*number)).copied()
        })
    });
    ensure(whole && router.plugged.len() == 2 && router.sandboxes.len() == 2, || {
        format!("after it answers again there is {router:?}")
    })
}

pub async fn frozen_uplink<W: World>(world: &W, kill: &dyn Killer) -> Result<(), String> {
    let node = Node::up(world).await?;
    let uplink = world.start_uplink(&node.pin).await.map_err(said("start uplink"))?;
    let spec = PortSpec {
        host_address: Ipv4Addr::LOCALHOST,
        host_port: kill.free_port(),
        target_port: 80,
        protocol: Protocol::Tcp,
    };
    kill.freeze(&uplink);
    let began = world.now();
    let observed = world.observe_uplink(Some(&uplink)).await.map_err(said("observe uplink"))?;
    let published = world.publish(&PortRecord { spec, router_port: 20_001 }).await.err().map(|it| it.class);
    let took = world.now().since(began);
    ensure(matches!(&observed, UplinkObserved::Broken(process, _) if *process == uplink), || {
        format!("a helper that does not answer reads as {observed:?}")
    })?;
    ensure(matches!(published, Some(Class::Transient | Class::Unknown)) && took < PATIENCE, || {
        format!("publish at a helper that does not answer: {published:?} after {took}")
    })?;
    // Ended and replaced, as a bring-up would: frozen is no way to stay.
    world.stop_process(&uplink).await.map_err(said("stop a frozen helper"))?;
    let next = world.start_uplink(&node.pin).await.map_err(said("start uplink again"))?;
    ensure(next != uplink, || "the frozen helper was returned".to_owned())
}
