//! Containers, ports and records.

use super::{Killer, ensure, forwarded, said, setup::*};
use holdfast_core::{
    error::{Class, UplinkError},
    observed::{ContainerObserved, UplinkObserved},
    record::{Change, ImageRecord, PortRecord},
    spec::{PortSpec, Protocol},
    time::{Span, Wall},
    world::{ContainerHint, Durability, Started, World},
};
use std::net::Ipv4Addr;

pub const SIGTERM: u32 = 15;

pub async fn look<W: World>(
    world: &W,
    incarnation: u32,
    started: &Started,
) -> Result<ContainerObserved, String> {
    let running = Some((started.init.clone(), started.monitor.clone()));
    let hint = ContainerHint { id: container_id(), incarnation, running };
    let seen = world.observe_containers(&[hint]).await.map_err(said("observe containers"))?;
    seen.get(&container_id()).cloned().ok_or_else(|| "a hinted container has no entry".to_owned())
}

/// Looks until it is as wanted: a monitor takes a moment to write an exit file.
async fn look_until<W: World>(
    world: &W,
    incarnation: u32,
    started: &Started,
    wanted: impl Fn(&ContainerObserved) -> bool,
) -> Result<ContainerObserved, String> {
    let until = world.now().after(Span::from_secs(5));
    loop {
        let seen = look(world, incarnation, started).await?;
        if wanted(&seen) {
            return Ok(seen);
        }
        ensure(world.now() < until, || format!("after 5 s it reads as {seen:?}"))?;
        world.sleep(Span::from_ms(10)).await;
    }
}

fn class_of(result: Result<(), UplinkError>) -> Option<Class> {
    result.err().map(|error| error.class)
}

pub async fn ports<W: World>(world: &W, kill: &dyn Killer) -> Result<(), String> {
    let node = Node::up(world).await?;
    let spec = PortSpec {
        host_address: Ipv4Addr::LOCALHOST,
        host_port: kill.free_port(),
        target_port: 80,
        protocol: Protocol::Tcp,
    };
    let port = PortRecord { spec, router_port: 20_001 };
    let found = class_of(world.publish(&port).await);
    ensure(found == Some(Class::Transient), || format!("publish without a helper: {found:?}"))?;
    world.unpublish(&port).await.map_err(said("unpublish without a helper"))?;
    let uplink = world.start_uplink(&node.pin).await.map_err(said("start uplink"))?;
    for _ in 0..2 {
        world.publish(&port).await.map_err(said("publish"))?;
    }
    let observed = world.observe_uplink(Some(&uplink)).await.map_err(said("observe uplink"))?;
    ensure(forwarded(&observed) == [(spec.host_port, 20_001)], || format!("it is {observed:?}"))?;
    let wider =
        PortRecord { spec: PortSpec { host_address: Ipv4Addr::UNSPECIFIED, ..spec }, router_port: 20_009 };
    let found = class_of(world.publish(&wider).await);
    ensure(found == Some(Class::Conflict), || format!("publish on a taken port: {found:?}"))?;
    // The same port led elsewhere: the record that had it is gone, and its end is no business of the new one's.
    let other = PortRecord { spec, router_port: 20_002 };
    world.publish(&other).await.map_err(said("publish a port anew"))?;
    world.unpublish(&port).await.map_err(said("unpublish what was led anew"))?;
    let observed = world.observe_uplink(Some(&uplink)).await.map_err(said("observe uplink"))?;
    ensure(forwarded(&observed) == [(spec.host_port, 20_002)], || format!("led anew it is {observed:?}"))?;
    for _ in 0..2 {
        world.unpublish(&other).await.map_err(said("unpublish"))?;
    }
    let observed = world.observe_uplink(Some(&uplink)).await.map_err(said("observe uplink"))?;
    ensure(forwarded(&observed).is_empty(), || format!("given back it is {observed:?}"))?;
    world.publish(&wider).await.map_err(said("publish on a port that was given back"))?;
    kill.kill(&uplink);
    let observed = world.observe_uplink(Some(&uplink)).await.map_err(said("observe uplink"))?;
    ensure(observed == UplinkObserved::Absent, || format!("a dead helper reads as {observed:?}"))?;
    let next = world.start_uplink(&node.pin).await.map_err(said("start uplink again"))?;
    let observed = world.observe_uplink(Some(&next)).await.map_err(said("observe uplink"))?;
    ensure(next != uplink && forwarded(&observed).is_empty(), || format!("a new helper is {observed:?}"))?;
    world.publish(&port).await.map_err(said("publish with a new helper"))
}

pub async fn starts_once<W: World>(world: &W, kill: &dyn Killer) -> Result<(), String> {
    let (node, started) = running(world, kill).await?;
    let again = world.start_container(&container(1, kill), &node.pin).await.map_err(said("start again"))?;
    ensure(again == started, || format!("a start asked for twice was {started:?} and {again:?}"))?;
    let seen = look(world, 1, &started).await?;
    let router = observe(world).await?;
    ensure(
        seen.init.as_ref() == Some(&started.init) && seen.monitor.as_ref() == Some(&started.monitor),
        || format!("it reads as {seen:?}"),
    )?;
    ensure(seen.netns.is_some() && seen.netns == router.sandboxes.get(&sandbox_id(1)).copied(), || {
        format!("it is in {:?}, bound is {:?}", seen.netns, router.sandboxes)
    })?;
    let refused =
        world.clean_container(&container_id(), 1, Some(&node.pin)).await.err().map(|error| error.class);
    ensure(refused == Some(Class::Conflict), || format!("cleaning a living container: {refused:?}"))?;
    let second = world.start_container(&container(2, kill), &node.pin).await.err().map(|error| error.class);
    ensure(second == Some(Class::Conflict), || format!("a second start beside a living one: {second:?}"))?;
    for _ in 0..2 {
        world
            .stop_container(&container_id(), 1, SIGTERM, Span::from_ms(300), Some(&node.pin))
            .await
            .map_err(said("stop container"))?;
        let seen = look(world, 1, &started).await?;
        ensure(seen.init.is_none() && !seen.remains, || format!("after its end it reads as {seen:?}"))?;
    }
    let next = world.start_container(&container(2, kill), &node.pin).await.map_err(said("start again"))?;
    ensure(next.init != started.init, || "the dead start was returned".to_owned())?;
    world
        .stop_container(&container_id(), 2, 9, Span(0), Some(&node.pin))
        .await
        .map_err(said("stop container"))?;
    for _ in 0..2 {
        world.remove_files(&container_id(), Some(&node.pin)).await.map_err(said("remove files"))?;
    }
    Ok(())
}

pub async fn monitor_dies<W: World>(world: &W, kill: &dyn Killer) -> Result<(), String> {
    let (_, started) = running(world, kill).await?;
    kill.kill(&started.monitor);
    let seen = look(world, 1, &started).await?;
    ensure(
        seen.init.as_ref() == Some(&started.init) && seen.monitor.is_none() && seen.exit.is_none(),
        || format!("it reads as {seen:?}"),
    )?;
    kill.kill(&started.init);
    let seen = look_until(world, 1, &started, |seen| seen.exit.is_some()).await?;
    ensure(seen.init.is_none() && seen.exit.is_some_and(|exit| exit.code.is_none()), || {
        format!("nobody was there to see its end, and it reads as {seen:?}")
    })
}

pub async fn init_dies<W: World>(world: &W, kill: &dyn Killer) -> Result<(), String> {
    let (node, started) = running(world, kill).await?;
    kill.kill(&started.init);
    let seen =
        look_until(world, 1, &started, |seen| seen.exit.is_some_and(|exit| exit.code.is_some())).await?;
    ensure(seen.exit.and_then(|exit| exit.code) == Some(128 + 9), || format!("it reads as {seen:?}"))?;
    ensure(seen.init.is_none() && seen.remains, || format!("it reads as {seen:?}"))?;
    for _ in 0..2 {
        world.clean_container(&container_id(), 1, Some(&node.pin)).await.map_err(said("clean container"))?;
    }
    let next = world.start_container(&container(2, kill), &node.pin).await.map_err(said("start again"))?;
    let seen = look(world, 2, &next).await?;
    ensure(seen.exit.is_none() && seen.init.as_ref() == Some(&next.init), || {
        format!("the next start reads as {seen:?}")
    })
}

pub async fn store<W: World>(world: &W) -> Result<(), String> {
    let image = ImageRecord {
        id: holdfast_core::id::ImageId::from_raw("ab".repeat(32)),
        names: vec!["case:latest".to_owned()],
        layers: Vec::new(),
        entrypoint: Vec::new(),
        command: Vec::new(),
        env: vec![("A".to_owned(), "ü \"quoted\"".to_owned())],
        working_dir: "/".to_owned(),
        user: (0, 0),
        size_bytes: u64::MAX,
        loaded: Wall(1),
    };
    for durability in [Durability::Process, Durability::Power] {
        let refused = world
            .transact(durability, |_| Err::<(Vec<Change>, ()), _>("no"))
            .await
            .map_err(said("a transaction that refuses"))?;
        ensure(refused == Err("no"), || format!("it said {refused:?}"))?;
    }
    ensure(world.read(|records| records.images.is_empty()).await, || {
        "a refusal changed the records".to_owned()
    })?;
    let change = Change::Image(image.clone());
    let done = world
        .transact(Durability::Power, move |records| Ok::<_, ()>((vec![change], records.images.len())))
        .await
        .map_err(said("a transaction"))?;
    ensure(done == Ok(0), || format!("it decided on {done:?}"))?;
    let read = world.read(|records| records.images.get(&image.id).cloned()).await;
    ensure(read.as_ref() == Some(&image), || format!("read back {read:?}"))?;
    let removal = Change::RemoveImage(image.id.clone());
    world
        .transact(Durability::Power, move |_| Ok::<_, ()>((vec![removal], ())))
        .await
        .map_err(said("a removal"))?
        .map_err(|()| "the removal refused".to_owned())?;
    ensure(world.read(|records| records.images.is_empty()).await, || "the removal changed nothing".to_owned())
}

/// A clean-up that was interrupted is made up for by the next start's.
pub async fn earlier_start<W: World>(world: &W, kill: &dyn Killer) -> Result<(), String> {
    let (node, started) = running(world, kill).await?;
    kill.kill(&started.init);
    look_until(world, 1, &started, |seen| seen.exit.is_some()).await?;
    world.clean_container(&container_id(), 2, Some(&node.pin)).await.map_err(said("clean a later start"))?;
    let seen = look(world, 1, &started).await?;
    ensure(!seen.remains, || format!("it reads as {seen:?}"))?;
    world.start_container(&container(3, kill), &node.pin).await.map(drop).map_err(said("start after it"))
}
