//! How containers end, and what their end takes with it.

use super::{
    Killer, ensure,
    runtime::{SIGTERM, look},
    said,
    setup::*,
};
use holdfast_core::{error::Class, time::Span, world::World};

pub async fn unbound_while_running<W: World>(world: &W, kill: &dyn Killer) -> Result<(), String> {
    let (_, started) = running(world, kill).await?;
    let before = look(world, 1, &started).await?;
    world.remove_sandbox(&sandbox_id(1)).await.map_err(said("remove sandbox"))?;
    let after = look(world, 1, &started).await?;
    ensure(after.init.as_ref() == Some(&started.init) && after.netns == before.netns, || {
        format!("it was {before:?} and is {after:?}")
    })?;
    let router = observe(world).await?;
    ensure(router.sandboxes.is_empty() && router.plugged.len() == 1, || format!("the router is {router:?}"))?;
    let rebound = sandbox(1, Some(started.init.clone()));
    world.ensure_sandbox(&rebound).await.map_err(said("bind it again through its process"))?;
    let router = observe(world).await?;
    ensure(router.sandboxes.get(&sandbox_id(1)).copied() == after.netns, || {
        format!("bound is {:?}, it is in {:?}", router.sandboxes, after.netns)
    })
}

pub async fn stop_handled<W: World>(world: &W, kill: &dyn Killer) -> Result<(), String> {
    let node = Node::up(world).await?;
    plug(world, 1).await?;
    let started =
        world.start_container(&handling(1, kill), &node.pin).await.map_err(said("start container"))?;
    kill.await_ready(&started.init);
    let refused = world.remove_files(&container_id(), Some(&node.pin)).await.err().map(|error| error.class);
    ensure(refused == Some(Class::Conflict), || {
        format!("removing files of a living container: {refused:?}")
    })?;
    let grace = Span::from_secs(20);
    let began = world.now();
    let exit = world
        .stop_container(&container_id(), 1, SIGTERM, grace, Some(&node.pin))
        .await
        .map_err(said("stop container"))?;
    let took = world.now().since(began);
    ensure(exit.code == Some(128 + 15) && took < grace, || format!("it ended as {exit:?} in {took}"))?;
    let again = world
        .stop_container(&container_id(), 1, SIGTERM, grace, Some(&node.pin))
        .await
        .map_err(said("stop container again"))?;
    let seen = look(world, 1, &started).await?;
    ensure(again == exit && seen.exit == Some(exit) && !seen.remains, || {
        format!("asked twice it ended as {exit:?} and {again:?}, and reads as {seen:?}")
    })?;
    world.clean_container(&container_id(), 1, Some(&node.pin)).await.map_err(said("clean container"))?;
    let seen = look(world, 2, &started).await?;
    ensure(seen.exit.is_none_or(|exit| exit.code.is_none()), || format!("the next start reads as {seen:?}"))
}

pub async fn stop_ignored<W: World>(world: &W, kill: &dyn Killer) -> Result<(), String> {
    let (node, _) = running(world, kill).await?;
    let grace = Span::from_ms(400);
    let began = world.now();
    let exit = world
        .stop_container(&container_id(), 1, SIGTERM, grace, Some(&node.pin))
        .await
        .map_err(said("stop container"))?;
    let took = world.now().since(began);
    ensure(exit.code == Some(128 + 9) && took >= grace && took < Span::from_secs(10), || {
        format!("it ended as {exit:?} in {took}")
    })
}
