//! What survives which death, and who leads where.

use super::{Killer, ensure, said, setup::*};
use holdfast_core::{
    id::ProcessRef,
    observed::{ControlObserved, Keeper},
    plan::AdoptSource,
    world::{KeeperHints, World},
};

pub async fn pin_is_seen<W: World>(world: &W) -> Result<(), String> {
    let node = Node::up(world).await?;
    let observed = world.observe_keepers(&node.hints()).await.map_err(said("observe"))?;
    ensure(observed.pin.as_ref() == Some(&node.pin), || format!("saw {observed:?}"))?;
    ensure(observed.control == ControlObserved::Answering(node.control.clone()), || {
        format!("saw {observed:?}")
    })?;
    let blind = world.observe_keepers(&KeeperHints::default()).await.map_err(said("observe"))?;
    ensure(blind.pin.is_none(), || format!("without hints {blind:?} was seen"))?;
    // The number of a living process beside another start time is another process.
    let mut stale = node.hints();
    stale.pin = Some(ProcessRef { start_time_ticks: node.pin.start_time_ticks + 1, ..node.pin.clone() });
    let observed = world.observe_keepers(&stale).await.map_err(said("observe"))?;
    ensure(observed.pin.is_none(), || format!("a recycled pid read as the living pin {:?}", observed.pin))
}

pub async fn one_pin<W: World>(world: &W) -> Result<(), String> {
    let first = world.create_namespaces().await.map_err(said("create namespaces"))?;
    let second = world.create_namespaces().await.map_err(said("create namespaces again"))?;
    let hints = |started: &holdfast_core::world::PinStarted| KeeperHints {
        namespaces: Some(started.namespaces),
        pin: Some(started.process.clone()),
        ..KeeperHints::default()
    };
    let observed = world.observe_keepers(&hints(&second)).await.map_err(said("observe"))?;
    ensure(observed.pin.as_ref() == Some(&second.process), || {
        format!("the second pin reads as {observed:?}")
    })?;
    let observed = world.observe_keepers(&hints(&first)).await.map_err(said("observe"))?;
    ensure(observed.pin.is_none(), || format!("the first pin lives on: {observed:?}"))
}

pub async fn control_dies<W: World>(world: &W, kill: &dyn Killer) -> Result<(), String> {
    let node = Node::up(world).await?;
    plug(world, 1).await?;
    let before = observe(world).await?;
    kill.kill(&node.control);
    let observed = world.observe_keepers(&node.hints()).await.map_err(said("observe"))?;
    ensure(observed.pin.as_ref() == Some(&node.pin), || {
        format!("the pin died with its control: {observed:?}")
    })?;
    ensure(observed.control == ControlObserved::Absent, || {
        format!("a dead control reads as {:?}", observed.control)
    })?;
    let next = world.start_control(&node.pin).await.map_err(said("start control again"))?;
    ensure(next != node.control, || "the dead control was returned".to_owned())?;
    let after = observe(world).await?;
    ensure(before == after, || format!("the router was {before:?} and is {after:?}"))
}

/// Adopts through `keeper` and checks that it is the same inside, with links and rules untouched.
async fn adopt<W: World>(world: &W, node: &Node, hints: &KeeperHints, keeper: Keeper) -> Result<(), String> {
    let source = AdoptSource { user: keeper.clone(), net: keeper.clone(), mount: Some(keeper) };
    let adopted = world.adopt_namespaces(&source, hints).await.map_err(said("adopt"))?;
    ensure(adopted.namespaces == node.namespaces, || {
        format!("adopted {:?} in place of {:?}", adopted.namespaces, node.namespaces)
    })?;
    ensure(adopted.process != node.pin, || "the dead pin was returned".to_owned())?;
    world.start_control(&adopted.process).await.map_err(said("start control"))?;
    let router = observe(world).await?;
    ensure(router.plugged.len() == 1 && router.sandboxes.len() == 1 && router.ruleset.base, || {
        format!("the adopted router holds {router:?}")
    })
}

pub async fn control_leads_everywhere<W: World>(world: &W, kill: &dyn Killer) -> Result<(), String> {
    let node = Node::up(world).await?;
    plug(world, 1).await?;
    kill.kill(&node.pin);
    let observed = world.observe_keepers(&node.hints()).await.map_err(said("observe"))?;
    ensure(observed.pin.is_none(), || format!("the dead pin reads as {:?}", observed.pin))?;
    let keeper = Keeper::Control(node.control.clone());
    ensure(leads(&observed, &keeper)? == (true, true, true), || format!("saw {observed:?}"))?;
    adopt(world, &node, &node.hints(), keeper).await
}

pub async fn descriptors_lead_everywhere<W: World>(world: &W, kill: &dyn Killer) -> Result<(), String> {
    let node = Node::up(world).await?;
    plug(world, 1).await?;
    kill.kill(&node.pin);
    kill.kill(&node.control);
    let observed = world.observe_keepers(&node.hints()).await.map_err(said("observe"))?;
    ensure(leads(&observed, &Keeper::Descriptors)? == (true, true, true), || format!("saw {observed:?}"))?;
    adopt(world, &node, &node.hints(), Keeper::Descriptors).await
}

pub async fn monitor_and_workload<W: World>(world: &W, kill: &dyn Killer) -> Result<(), String> {
    let (node, started) = running(world, kill).await?;
    let mut hints = node.hints();
    hints.containers.insert(container_id(), (started.init.clone(), started.monitor.clone()));
    kill.kill(&node.pin);
    kill.kill(&node.control);
    let observed = world.observe_keepers(&hints).await.map_err(said("observe"))?;
    let workload = Keeper::Workload(container_id(), started.init);
    let found = leads(&observed, &workload)?;
    ensure(found == (true, false, false), || format!("a workload leads to {found:?}"))?;
    let monitor = Keeper::Monitor(container_id(), started.monitor);
    let found = leads(&observed, &monitor)?;
    ensure(found == (true, true, true), || format!("a monitor leads to {found:?}"))?;
    adopt(world, &node, &hints, monitor).await
}

pub async fn uplink_leads_to_the_router<W: World>(world: &W, kill: &dyn Killer) -> Result<(), String> {
    let node = Node::up(world).await?;
    let uplink = world.start_uplink(&node.pin).await.map_err(said("start uplink"))?;
    let hints = KeeperHints { uplink: Some(uplink.clone()), ..node.hints() };
    kill.kill(&node.pin);
    let observed = world.observe_keepers(&hints).await.map_err(said("observe"))?;
    let (_, net, mount) = leads(&observed, &Keeper::Uplink(uplink))?;
    ensure(net && !mount, || format!("an uplink helper leads to net {net}, mount {mount}"))
}

pub async fn replug<W: World>(world: &W, kill: &dyn Killer) -> Result<(), String> {
    let (node, started) = running(world, kill).await?;
    kill.kill(&node.pin);
    kill.kill(&node.control);
    kill.kill(&started.monitor);
    let keeper = Keeper::Workload(container_id(), started.init.clone());
    let entered = world.enter_user_namespace(&keeper).await.map_err(said("enter"))?;
    ensure(entered.namespaces.user == node.namespaces.user, || "it is another user namespace".to_owned())?;
    world.start_control(&entered.process).await.map_err(said("start control"))?;
    let router = observe(world).await?;
    ensure(router.plugged.is_empty() && router.sandboxes.is_empty() && !router.ruleset.base, || {
        format!("a new router holds {router:?}")
    })?;
    world
        .ensure_ruleset(&holdfast_core::ruleset::Ruleset { elements: elements(1, 1) })
        .await
        .map_err(said("rules"))?;
    world.ensure_network(&network()).await.map_err(said("ensure network"))?;
    world.ensure_sandbox(&sandbox(1, Some(started.init.clone()))).await.map_err(said("rebind"))?;
    world.attach(&link(1)).await.map_err(said("attach to the running workload"))?;
    let router = observe(world).await?;
    ensure(router.plugged.len() == 1, || format!("it is plugged as {:?}", router.plugged))?;
    let hint = holdfast_core::world::ContainerHint {
        id: container_id(),
        incarnation: 1,
        running: Some((started.init.clone(), started.monitor)),
    };
    let seen = world.observe_containers(&[hint]).await.map_err(said("observe containers"))?;
    let seen = seen.get(&container_id()).cloned().unwrap_or_default();
    ensure(seen.init.as_ref() == Some(&started.init), || {
        format!("the workload did not live through it: {seen:?}")
    })?;
    ensure(seen.netns.is_some() && router.sandboxes.get(&sandbox_id(1)).copied() == seen.netns, || {
        format!("the bind is {:?}, the workload is in {:?}", router.sandboxes, seen.netns)
    })
}

pub async fn stop_process<W: World>(world: &W) -> Result<(), String> {
    let node = Node::up(world).await?;
    let other = ProcessRef { start_time_ticks: node.control.start_time_ticks + 1, ..node.control.clone() };
    world.stop_process(&other).await.map_err(said("stop a process that is gone"))?;
    let observed = world.observe_keepers(&node.hints()).await.map_err(said("observe"))?;
    ensure(observed.control == ControlObserved::Answering(node.control.clone()), || {
        "a stranger was ended in place of a dead process".to_owned()
    })?;
    for _ in 0..2 {
        world.stop_process(&node.control).await.map_err(said("stop control"))?;
    }
    let observed = world.observe_keepers(&node.hints()).await.map_err(said("observe"))?;
    ensure(observed.control == ControlObserved::Absent, || format!("it reads as {:?}", observed.control))
}
