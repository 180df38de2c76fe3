//! Error classes, and what is asked for twice.

use super::{Killer, ensure, runtime::look, said, setup::*};
use holdfast_core::{
    error::Class,
    id::{ContainerId, Slot},
    observed::{Keeper, PlugObserved},
    plan::{AdoptSource, AttachmentPlan, ContainerPlan},
    record::PortRecord,
    ruleset::{Element, Ruleset},
    spec::{PortSpec, Protocol},
    time::Span,
    world::{Snapshot, World},
};
use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, Ipv6Addr},
};

const SIGKILL: u32 = 9;

/// The class of any capability's error.
macro_rules! class {
    ($result:expr) => {
        $result.err().map(|error| error.class)
    };
}

fn is(what: &str, found: Option<Class>, wanted: Class) -> Result<(), String> {
    ensure(found == Some(wanted), || format!("{what}: {found:?} and not {wanted:?}"))
}

pub async fn started_once<W: World>(world: &W) -> Result<(), String> {
    let node = Node::up(world).await?;
    let control = world.start_control(&node.pin).await.map_err(said("start control again"))?;
    ensure(control == node.control, || format!("there are two controls: {control} and {}", node.control))?;
    let first = world.start_uplink(&node.pin).await.map_err(said("start uplink"))?;
    let second = world.start_uplink(&node.pin).await.map_err(said("start uplink again"))?;
    ensure(first == second, || format!("there are two helpers: {first} and {second}"))
}

pub async fn dead_pin<W: World>(world: &W, kill: &dyn Killer) -> Result<(), String> {
    let (node, started) = running(world, kill).await?;
    let pin = Some(&node.pin);
    kill.kill(&node.pin);
    let absent = ContainerId::from_raw("0000000000c9");
    let plan = ContainerPlan { id: absent.clone(), ..container(1, kill) };
    is("start a container", class!(world.start_container(&plan, &node.pin).await), Class::Transient)?;
    is("start an uplink", class!(world.start_uplink(&node.pin).await), Class::Transient)?;
    // What is gone already is a success whatever became of the pin.
    world
        .stop_container(&absent, 1, SIGKILL, Span(0), pin)
        .await
        .map_err(said("stop a container that never was"))?;
    world.clean_container(&absent, 1, pin).await.map_err(said("clean a container that never was"))?;
    world.remove_files(&absent, pin).await.map_err(said("remove files that never were"))?;
    // What has a root that is mounted beyond the pin is ended, and stays to be cleaned.
    let stopped = world.stop_container(&container_id(), 1, SIGKILL, Span(0), pin).await;
    is("stop a container", class!(stopped), Class::Transient)?;
    let seen = look(world, 1, &started).await?;
    ensure(seen.init.is_none() && seen.remains, || format!("it reads as {seen:?}"))?;
    is("clean it", class!(world.clean_container(&container_id(), 1, pin).await), Class::Transient)?;
    is("remove its files", class!(world.remove_files(&container_id(), pin).await), Class::Transient)?;
    world.clean_container(&container_id(), 1, None).await.map_err(said("clean it without a pin"))?;
    world.remove_files(&container_id(), None).await.map_err(said("remove its files without a pin"))?;
    kill.kill(&node.control);
    is("start a control", class!(world.start_control(&node.pin).await), Class::Transient)?;
    for keeper in [Keeper::Control(node.control.clone()), Keeper::Pin(node.pin.clone())] {
        let source = AdoptSource { user: keeper.clone(), net: keeper.clone(), mount: Some(keeper.clone()) };
        let adopted = world.adopt_namespaces(&source, &node.hints()).await;
        is(&format!("adopt through a dead {keeper}"), class!(adopted), Class::Missing)?;
        let entered = world.enter_user_namespace(&keeper).await;
        is(&format!("enter through a dead {keeper}"), class!(entered), Class::Missing)?;
    }
    Ok(())
}

pub async fn absent_sandbox<W: World>(world: &W, kill: &dyn Killer) -> Result<(), String> {
    let node = Node::up(world).await?;
    world.ensure_network(&network()).await.map_err(said("ensure network"))?;
    let started = world.start_container(&container(1, kill), &node.pin).await;
    is("start a container in a sandbox that is not bound", class!(started), Class::Missing)?;
    is("attach a sandbox that is not bound", class!(world.attach(&link(1)).await), Class::Missing)?;
    let mut dead = node.control.clone();
    dead.start_time_ticks += 1;
    let bound = world.ensure_sandbox(&sandbox(1, Some(dead))).await;
    is("rebind a sandbox from a dead process", class!(bound), Class::Missing)?;
    world.remove_sandbox(&sandbox_id(1)).await.map_err(said("remove a sandbox that is not bound"))?;
    world.detach(link(1).slot).await.map_err(said("detach a slot that is free"))?;
    world.remove_network(&network()).await.map_err(said("remove network"))?;
    let router = observe(world).await?;
    ensure(router.sandboxes.is_empty() && router.plugged.is_empty(), || format!("the router is {router:?}"))
}

pub async fn foreign_port<W: World>(world: &W, kill: &dyn Killer) -> Result<(), String> {
    let node = Node::up(world).await?;
    let uplink = world.start_uplink(&node.pin).await.map_err(said("start uplink"))?;
    let port = |host_port| PortRecord {
        spec: PortSpec {
            host_address: Ipv4Addr::LOCALHOST,
            host_port,
            target_port: 80,
            protocol: Protocol::Tcp,
        },
        router_port: 20_001,
    };
    let taken = port(kill.free_port());
    kill.take_port(taken.spec.host_port);
    is("publish on a stranger's port", class!(world.publish(&taken).await), Class::Conflict)?;
    is("publish on a privileged port", class!(world.publish(&port(80)).await), Class::Denied)?;
    world.unpublish(&taken).await.map_err(said("unpublish what was never published"))?;
    let observed = world.observe_uplink(Some(&uplink)).await.map_err(said("observe uplink"))?;
    ensure(super::forwarded(&observed).is_empty(), || format!("a refusal left {observed:?}"))?;
    let free = port(kill.free_port());
    world.publish(&free).await.map_err(said("publish after refusals"))
}

pub async fn link_makes_room<W: World>(world: &W) -> Result<(), String> {
    Node::up(world).await?;
    plug(world, 1).await?;
    let slots = async |wanted: &[u32], when: &str| {
        let plugged = observe(world).await?.plugged;
        let found: Vec<u32> = plugged.keys().map(|slot| slot.0).collect();
        ensure(found == wanted && plugged.values().all(|plug| plug.complete), || {
            format!("{when} the links are {plugged:?}")
        })
    };
    let other = AttachmentPlan { sandbox: sandbox_id(1), ..link(2) };
    let beside = AttachmentPlan { link_name: "eth1".to_owned(), ..other.clone() };
    world.attach(&beside).await.map_err(said("attach a second link"))?;
    slots(&[1, 2], "beside one another").await?;
    let moved = AttachmentPlan {
        ipv4: Ipv4Addr::new(10, 90, 7, 99),
        ipv6: Ipv6Addr::new(0xfd00, 0x90, 0, 7, 0, 0, 0, 99),
        ..link(1)
    };
    world.attach(&moved).await.map_err(said("attach the same slot with another address"))?;
    slots(&[1, 2], "after a change of address").await?;
    let same_name = AttachmentPlan { sandbox: sandbox_id(1), ..link(3) };
    world.attach(&same_name).await.map_err(said("attach a second eth0"))?;
    slots(&[2, 3], "after a second eth0").await?;
    let same_index =
        AttachmentPlan { slot: Slot(4), link_name: "eth2".to_owned(), ..AttachmentPlan::clone(&beside) };
    world.attach(&same_index).await.map_err(said("attach a second link of one index"))?;
    slots(&[3, 4], "after a second link of one index").await
}

pub async fn bridge_removed<W: World>(world: &W) -> Result<(), String> {
    Node::up(world).await?;
    plug(world, 1).await?;
    let plug_of = async || -> Result<Option<PlugObserved>, String> {
        Ok(observe(world).await?.plugged.get(&link(1).slot).cloned())
    };
    world.remove_network(&network()).await.map_err(said("remove network"))?;
    let plug = plug_of().await?;
    ensure(plug.as_ref().is_some_and(|plug| plug.network_index.is_none() && !plug.complete), || {
        format!("without its bridge the link is {plug:?}")
    })?;
    world.ensure_network(&network()).await.map_err(said("ensure network again"))?;
    let plug = plug_of().await?;
    ensure(plug.as_ref().is_some_and(|plug| plug.network_index.is_none() && !plug.complete), || {
        format!("beside a new bridge the link is {plug:?}")
    })?;
    world.attach(&link(1)).await.map_err(said("attach again"))?;
    let plug = plug_of().await?;
    let index = Some(network().index);
    ensure(plug.as_ref().is_some_and(|plug| plug.network_index == index && plug.complete), || {
        format!("attached again the link is {plug:?}")
    })
}

pub async fn no_base<W: World>(world: &W) -> Result<(), String> {
    let started = world.create_namespaces().await.map_err(said("create namespaces"))?;
    world.start_control(&started.process).await.map_err(said("start control"))?;
    let elements: BTreeSet<Element> = elements(1, 1);
    is("add elements without base chains", class!(world.add_elements(&elements).await), Class::Missing)?;
    world.remove_elements(&elements).await.map_err(said("remove elements without base chains"))?;
    let found = observe(world).await?.ruleset;
    ensure(!found.base && found.digest == 0, || format!("before any rule there is {found:?}"))?;
    world.ensure_ruleset(&Ruleset::default()).await.map_err(said("ensure ruleset"))?;
    world.add_elements(&elements).await.map_err(said("add elements"))
}

pub async fn snapshot_order<W: World>(world: &W) -> Result<(), String> {
    Node::up(world).await?;
    let of = |generation| Snapshot { generation, ..Snapshot::default() };
    for generation in [2, 2, 3] {
        world.hand_snapshot(&of(generation)).await.map_err(said("hand a snapshot"))?;
    }
    is("hand an older snapshot", class!(world.hand_snapshot(&of(2)).await), Class::Conflict)?;
    world.hand_snapshot(&of(3)).await.map_err(said("hand the same generation"))
}
