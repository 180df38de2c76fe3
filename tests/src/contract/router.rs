//! The router: idempotence, error classes, isolation.

use super::{ensure, said, setup::*};
use futures_util::future::join_all;
use holdfast_core::{
    error::{Class, RouterError},
    observed::RulesetObserved,
    ruleset::{Element, Ruleset, digest},
    world::{Probe, World},
};
use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    pin::Pin,
};

fn class<T>(result: Result<T, RouterError>) -> Option<Class> {
    result.err().map(|error| error.class)
}

pub async fn no_control<W: World>(world: &W) -> Result<(), String> {
    world.create_namespaces().await.map_err(said("create namespaces"))?;
    let (closed, network, sandbox) = (Ruleset::default(), network(), sandbox(1, None));
    // At the same time: each may wait for a control that is about to be started.
    let asked: [Pin<Box<dyn Future<Output = Option<Class>> + '_>>; 5] = [
        Box::pin(async { class(world.observe_router().await) }),
        Box::pin(async { class(world.ensure_ruleset(&closed).await) }),
        Box::pin(async { class(world.ensure_network(&network).await) }),
        Box::pin(async { class(world.ensure_sandbox(&sandbox).await) }),
        Box::pin(async { class(world.detach(link(1).slot).await) }),
    ];
    let classes = join_all(asked).await;
    ensure(classes.iter().all(|class| *class == Some(Class::Transient)), || {
        format!("the classes were {classes:?}")
    })
}

async fn rules_are<W: World>(world: &W, elements: &BTreeSet<Element>) -> Result<(), String> {
    let found = observe(world).await?.ruleset;
    let wanted = RulesetObserved { base: true, digest: digest(elements.iter()) };
    ensure(found == wanted, || format!("the rules are {found:?}, wanted {wanted:?}"))
}

pub async fn rules<W: World>(world: &W) -> Result<(), String> {
    Node::up(world).await?;
    let mut wanted = elements(1, 1);
    for _ in 0..2 {
        world.ensure_ruleset(&Ruleset { elements: wanted.clone() }).await.map_err(said("ensure ruleset"))?;
        rules_are(world, &wanted).await?;
    }
    for _ in 0..2 {
        world.add_elements(&elements(2, 1)).await.map_err(said("add elements"))?;
    }
    wanted.extend(elements(2, 1));
    rules_are(world, &wanted).await?;
    // Another group for the same address replaces the first.
    let address = link(1).ipv4;
    world
        .add_elements(&BTreeSet::from([Element::Group4(address, 9)]))
        .await
        .map_err(said("replace element"))?;
    wanted.remove(&Element::Group4(address, 1));
    wanted.insert(Element::Group4(address, 9));
    rules_are(world, &wanted).await?;
    for _ in 0..2 {
        world.remove_elements(&elements(2, 1)).await.map_err(said("remove elements"))?;
    }
    wanted.retain(|element| !elements(2, 1).contains(element));
    rules_are(world, &wanted).await?;
    world.ensure_ruleset(&Ruleset::default()).await.map_err(said("ensure an empty ruleset"))?;
    rules_are(world, &BTreeSet::new()).await
}

pub async fn networks<W: World>(world: &W) -> Result<(), String> {
    Node::up(world).await?;
    let plan = network();
    for _ in 0..2 {
        world.ensure_network(&plan).await.map_err(said("ensure network"))?;
    }
    let found = observe(world).await?.networks;
    ensure(found.get(&plan.id).is_some_and(|bridge| bridge.complete && bridge.index == plan.index), || {
        format!("the bridges are {found:?}")
    })?;
    for _ in 0..2 {
        world.remove_network(&plan).await.map_err(said("remove network"))?;
    }
    let found = observe(world).await?.networks;
    ensure(found.is_empty(), || format!("the bridges are {found:?}"))
}

pub async fn sandboxes<W: World>(world: &W) -> Result<(), String> {
    Node::up(world).await?;
    world.ensure_sandbox(&sandbox(1, None)).await.map_err(said("ensure sandbox"))?;
    let first = observe(world).await?.sandboxes;
    ensure(first.len() == 1, || format!("the sandboxes are {first:?}"))?;
    world.ensure_sandbox(&sandbox(1, None)).await.map_err(said("ensure sandbox again"))?;
    let second = observe(world).await?.sandboxes;
    ensure(first == second, || format!("the sandboxes were {first:?} and are {second:?}"))?;
    for _ in 0..2 {
        world.remove_sandbox(&sandbox_id(1)).await.map_err(said("remove sandbox"))?;
    }
    let found = observe(world).await?.sandboxes;
    ensure(found.is_empty(), || format!("the sandboxes are {found:?}"))
}

pub async fn links<W: World>(world: &W) -> Result<(), String> {
    Node::up(world).await?;
    world.ensure_network(&network()).await.map_err(said("ensure network"))?;
    let found = class(world.attach(&link(1)).await);
    ensure(found == Some(Class::Missing), || format!("attach without a sandbox: {found:?}"))?;
    world.ensure_sandbox(&sandbox(1, None)).await.map_err(said("ensure sandbox"))?;
    let nowhere = holdfast_core::plan::AttachmentPlan { network_index: 99, ..link(1) };
    let found = class(world.attach(&nowhere).await);
    ensure(found == Some(Class::Missing), || format!("attach without a bridge: {found:?}"))?;
    for _ in 0..2 {
        world.attach(&link(1)).await.map_err(said("attach"))?;
        let plugged = observe(world).await?.plugged;
        let complete = plugged
            .get(&link(1).slot)
            .is_some_and(|plug| plug.complete && plug.network_index == Some(network().index));
        ensure(complete && plugged.len() == 1, || format!("the links are {plugged:?}"))?;
    }
    for _ in 0..2 {
        world.detach(link(1).slot).await.map_err(said("detach"))?;
    }
    let plugged = observe(world).await?.plugged;
    ensure(plugged.is_empty(), || format!("the links are {plugged:?}"))
}

/// How long is waited for a packet that should come, and for one that should not, in milliseconds.
const REACH_TIMEOUT_MS: u64 = 1_000;
const SILENCE_TIMEOUT_MS: u64 = 250;

async fn reaches<W: World>(world: &W, from: u8, to: u8, timeout_ms: u64) -> Result<(bool, bool), String> {
    let to_link = link(to);
    let mut found = Vec::new();
    for address in [IpAddr::V4(to_link.ipv4), IpAddr::V6(to_link.ipv6)] {
        let (from, to) = (sandbox_id(from), sandbox_id(to));
        let probe = Probe { from, to, address, timeout_ms, ask: Default::default() };
        found.push(world.probe(&probe).await.map_err(said("probe"))?);
    }
    Ok((found.first() == Some(&true), found.get(1) == Some(&true)))
}

async fn expect<W: World>(world: &W, from: u8, to: u8, reached: bool, when: &str) -> Result<(), String> {
    let timeout_ms = if reached { REACH_TIMEOUT_MS } else { SILENCE_TIMEOUT_MS };
    let found = reaches(world, from, to, timeout_ms).await?;
    ensure(found == (reached, reached), || format!("{when}: {from} → {to} over v4 and v6: {found:?}"))
}

pub async fn isolation<W: World>(world: &W) -> Result<(), String> {
    Node::up(world).await?;
    for number in 1..=3 {
        plug(world, number).await?;
    }
    expect(world, 1, 2, false, "before any rule").await?;
    for (number, group) in [(1, 1), (2, 1), (3, 2)] {
        world.add_elements(&elements(number, group)).await.map_err(said("add elements"))?;
    }
    for (from, to) in [(1, 2), (2, 1)] {
        expect(world, from, to, true, "in one group").await?;
    }
    for (from, to) in [(1, 3), (3, 1), (2, 3), (3, 2)] {
        expect(world, from, to, false, "across groups").await?;
    }
    world.remove_elements(&elements(2, 1)).await.map_err(said("remove elements"))?;
    expect(world, 1, 2, false, "after the rules are gone").await?;
    let absent = Probe {
        from: sandbox_id(9),
        to: sandbox_id(1),
        address: IpAddr::V4(Ipv4Addr::new(10, 90, 7, 11)),
        timeout_ms: 100,
        ask: Default::default(),
    };
    let found = class(world.probe(&absent).await);
    ensure(found == Some(Class::Missing), || format!("a probe from a sandbox that is not there: {found:?}"))
}
