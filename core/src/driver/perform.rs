//! One step, done, and what the records say afterwards.

use crate::{
    error::{Class, KeeperError, WorldError},
    id::ProcessRef,
    observed::ExitObserved,
    plan::Step,
    record::{Change, Desired, Records, RunState},
    spec::RestartPolicy,
    time::{Mono, Span, Wall},
    world::{KeeperHints, PinStarted, Started, World},
};
use alloc::{format, vec::Vec};

/// What a step brought to light.
pub(super) enum Fact {
    /// Nothing that the plan did not say already.
    Done,
    /// A pin in namespaces; new ones where the router was built anew.
    Pin { started: PinStarted, new_router: bool },
    /// A control.
    Control(ProcessRef),
    /// An uplink helper.
    Uplink(ProcessRef),
    /// A container runs.
    Started(Started),
    /// A container ended.
    Ended(ExitObserved),
}

/// Does one step.
pub(super) async fn perform<W: World>(world: &W, step: &Step) -> Result<Fact, WorldError> {
    tracing::debug!(step = %step, "perform");
    match step {
        Step::CreateNamespaces => {
            let started = world.create_namespaces().await?;
            Ok(Fact::Pin { started, new_router: true })
        }
        Step::AdoptNamespaces(source) => {
            let hints = hints(world).await;
            let started = world.adopt_namespaces(source, &hints).await?;
            Ok(Fact::Pin { started, new_router: false })
        }
        Step::EnterUserNamespace(keeper) => {
            let started = world.enter_user_namespace(keeper).await?;
            Ok(Fact::Pin { started, new_router: true })
        }
        Step::StopControl(process) | Step::StopUplink(process) | Step::StopPin(process) => {
            world.stop_process(process).await?;
            Ok(Fact::Done)
        }
        Step::StartControl => Ok(Fact::Control(world.start_control(&pin(world).await?).await?)),
        Step::StartUplink => Ok(Fact::Uplink(world.start_uplink(&pin(world).await?).await?)),
        Step::Publish(port) if mutant!(PublishNotLookedAt) => {
            drop(world.publish(port).await);
            Ok(Fact::Done)
        }
        Step::Publish(port) => done(world.publish(port).await),
        Step::Unpublish(port) => done(world.unpublish(port).await),
        Step::StartContainer(plan) => {
            let pin = pin(world).await?;
            Ok(Fact::Started(world.start_container(plan, &pin).await?))
        }
        Step::StopContainer { id, incarnation, signal, grace_ms } => {
            let pin = pin(world).await.ok();
            let grace = Span::from_ms(*grace_ms);
            let exit = world.stop_container(id, *incarnation, *signal, grace, pin.as_ref()).await?;
            Ok(Fact::Ended(exit))
        }
        Step::CleanContainer(id, incarnation) => {
            let pin = pin(world).await.ok();
            done(world.clean_container(id, *incarnation, pin.as_ref()).await)
        }
        Step::RemoveFiles(id) => {
            let pin = pin(world).await.ok();
            done(world.remove_files(id, pin.as_ref()).await)
        }
        _ => perform_in_router(world, step).await,
    }
}

async fn perform_in_router<W: World>(world: &W, step: &Step) -> Result<Fact, WorldError> {
    match step {
        Step::EnsureRuleset(ruleset) => done(world.ensure_ruleset(ruleset).await),
        Step::AddElements(elements) | Step::EnsureElements(elements) => {
            done(world.add_elements(elements).await)
        }
        Step::RemoveElements(elements) => done(world.remove_elements(elements).await),
        Step::EnsureNetwork(plan) => done(world.ensure_network(plan).await),
        Step::RemoveNetwork(plan) => done(world.remove_network(plan).await),
        Step::EnsureSandbox(plan) => done(world.ensure_sandbox(plan).await),
        Step::RemoveSandbox(id) => done(world.remove_sandbox(id).await),
        Step::Attach(plan) => done(world.attach(plan).await),
        Step::Detach(slot) => done(world.detach(*slot).await),
        // `perform` handles every other step itself.
        _ => Ok(Fact::Done),
    }
}

fn done<E: Into<WorldError>>(result: Result<(), E>) -> Result<Fact, WorldError> {
    result.map(|()| Fact::Done).map_err(Into::into)
}

async fn pin<W: World>(world: &W) -> Result<ProcessRef, WorldError> {
    world
        .read(|records| records.node.as_ref().and_then(|node| node.pin.clone()))
        .await
        .ok_or_else(|| KeeperError::new(Class::Missing, "find", "the pin", "the node is not up").into())
}

/// What the records know of processes.
pub(super) async fn hints<W: World>(world: &W) -> KeeperHints {
    world
        .read(|records| {
            let node = records.node.as_ref();
            KeeperHints {
                namespaces: node.and_then(|node| node.namespaces),
                pin: node.and_then(|node| node.pin.clone()),
                control: node.and_then(|node| node.control.clone()),
                uplink: node.and_then(|node| node.uplink.clone()),
                containers: records
                    .containers
                    .values()
                    .filter_map(|container| {
                        let (init, monitor) = container.running()?;
                        Some((container.id.clone(), (init.clone(), monitor.clone())))
                    })
                    .collect(),
            }
        })
        .await
}

/// What the records say once a step's effect is there. Pure, so that replaying a journal says the same.
pub(super) fn changes_of(records: &Records, step: &Step, fact: &Fact, now: Mono, wall: Wall) -> Vec<Change> {
    match (step, fact) {
        (_, Fact::Pin { started, new_router }) => node_change(records, |node| {
            node.pin = Some(started.process.clone());
            node.namespaces = Some(started.namespaces);
            node.router_generation += u64::from(*new_router && !mutant!(RouterGenerationNotRaised));
        }),
        (_, Fact::Control(process)) => node_change(records, |node| node.control = Some(process.clone())),
        (_, Fact::Uplink(process)) => node_change(records, |node| node.uplink = Some(process.clone())),
        (Step::StartContainer(plan), Fact::Started(started)) => {
            let Some(record) = records.containers.get(&plan.id) else { return Vec::new() };
            let mut next = record.clone();
            next.incarnation = plan.incarnation;
            next.started = Some(wall);
            next.state = RunState::Running {
                init: started.init.clone(),
                monitor: started.monitor.clone(),
                since: wall,
                since_mono: now,
            };
            alloc::vec![Change::Container(next)]
        }
        (Step::StopContainer { id, incarnation, .. }, Fact::Ended(exit)) => {
            match records.containers.get(id).filter(|record| record.incarnation == *incarnation) {
                // Ended for good already: what was read then is the truth, this is only the clean-up.
                Some(record) if !matches!(record.state, RunState::Exited { .. }) => {
                    let mut next = record.ended(exit.code, wall);
                    next.failures_in_row = 0;
                    let once = record.spec.restart == RestartPolicy::Once;
                    next.state = if record.desired == Desired::Running && !once {
                        // Stopped with the node, not by the user: it comes back with the node.
                        let boot_id = record.running().map(|(init, _)| init.boot_id.clone());
                        boot_id.map_or(RunState::Created, |boot_id| RunState::Waiting {
                            exit_code: exit.code,
                            not_before: Mono(0),
                            boot_id,
                        })
                    } else {
                        RunState::Exited { exit_code: exit.code, at: wall }
                    };
                    alloc::vec![Change::Container(next)]
                }
                _ => Vec::new(),
            }
        }
        (Step::StopPin(_), _) => node_change(records, |node| {
            node.pin = None;
            node.control = None;
            node.uplink = None;
        }),
        _ => Vec::new(),
    }
}

fn node_change(records: &Records, change: impl FnOnce(&mut crate::record::NodeRecord)) -> Vec<Change> {
    let Some(node) = &records.node else { return Vec::new() };
    let mut next = node.clone();
    change(&mut next);
    alloc::vec![Change::Node(next)]
}

/// A step as an error names it.
pub(super) fn name_of(step: &Step) -> alloc::string::String {
    format!("{step}")
}
