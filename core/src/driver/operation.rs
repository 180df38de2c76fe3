//! Runs a journaled operation: forwards, or back in exact reverse.

use super::{
    perform::{Fact, changes_of, name_of, perform},
    session::Session,
};
use crate::{
    error::{OperationError, StoreError, WorldError},
    id::OperationId,
    journal::{OperationRecord, Phase, Resume, Resumed, Subject},
    plan::{Step, undo_of},
    record::{Change, ContainerRecord, Records},
    time::Span,
    world::{Durability, World},
};
use alloc::{boxed::Box, format, string::String, vec::Vec};
use core::convert::Infallible;

/// Changes that no one can refuse.
pub(super) async fn commit<W: World>(
    world: &W,
    durability: Durability,
    decide: impl FnOnce(&Records) -> Vec<Change> + Send,
) -> Result<(), StoreError> {
    match world.transact(durability, |records| Ok::<_, Infallible>((decide(records), ()))).await? {
        Ok(()) => Ok(()),
        Err(never) => match never {},
    }
}

/// Runs an accepted operation to its end. When it comes back, the journal no longer holds the operation, unless
/// an undo failed: then it stays, is reported, and every bring-up tries again.
pub(super) async fn run<W: World>(world: &W, operation: &OperationRecord) -> Result<(), OperationError> {
    match forward(world, operation, 0).await {
        Ok(()) => Ok(()),
        Err((cause, step, done)) => {
            tracing::warn!(operation = %operation.kind, name = %operation.name, step = %step, cause = %cause, "failed");
            let undo_failures = match operation.resume {
                // The failing step may have had half its effect: its undo is part of the way back.
                Resume::Undo if mutant!(UnknownHadNoEffect) => backward(world, operation, done).await,
                Resume::Undo => backward(world, operation, done + 1).await,
                Resume::Finish if operation.kind.stays_until_done() => orphan(world, operation, None).await,
                Resume::Finish | Resume::Replan => give_up(world, operation, done).await,
            };
            Err(OperationError { cause: Box::new(cause), step, undo_failures })
        }
    }
}

/// Finishes or undoes an operation whose daemon died.
pub(super) async fn resume<W: World>(world: &W, operation: &OperationRecord) -> Resumed {
    let steps = u32::try_from(operation.steps.len()).unwrap_or(u32::MAX);
    let (steps_done, back) = match operation.phase {
        Phase::Forward { done } => (done, None),
        Phase::Backward { left } => (left, Some(left)),
    };
    let mut how = operation.resume;
    let failures = match (operation.resume, back) {
        (Resume::Replan, _) if mutant!(OldPlanCarriedOut) => {
            forward(world, operation, 0).await.err().map(|(_, step, _)| step).into_iter().collect()
        }
        (Resume::Replan, _) => close(world, operation, &[]).await,
        // Every step was done and recorded; only the end was not written down.
        (Resume::Undo, None) if steps_done == steps => {
            how = Resume::Finish;
            close(world, operation, &operation.on_done).await
        }
        (Resume::Undo, None) if mutant!(KilledStepHadNoEffect) => {
            backward(world, operation, steps_done).await
        }
        (Resume::Undo, None) => backward(world, operation, (steps_done + 1).min(steps)).await,
        (Resume::Undo, Some(left)) => backward(world, operation, left).await,
        (Resume::Finish, _) => {
            match forward(world, operation, steps_done + u32::from(mutant!(FinishSkipsStep))).await {
                Ok(()) => Vec::new(),
                Err((cause, step, done)) => {
                    let mut failures = alloc::vec![format!("{step} failed: {cause}")];
                    failures.extend(if operation.kind.stays_until_done() {
                        orphan(world, operation, None).await
                    } else {
                        give_up(world, operation, done).await
                    });
                    failures
                }
            }
        }
    };
    Resumed { kind: operation.kind, name: operation.name.clone(), how, steps_done, steps, failures }
}

/// Runs the steps from number `from` on. On failure: the cause, the step's name and how many steps are done.
async fn forward<W: World>(
    world: &W,
    operation: &OperationRecord,
    from: u32,
) -> Result<(), (WorldError, String, u32)> {
    // A bring-up in between may have put elements back that were removed: the records still spoke for them.
    for (number, step) in (0_u32..).zip(&operation.steps).take(from as usize) {
        if matches!(step, Step::RemoveElements(_)) {
            perform(world, step).await.map_err(|cause| (cause, name_of(step), number))?;
        }
    }
    for (number, step) in (0_u32..).zip(&operation.steps).skip(from as usize) {
        let failed = |cause: WorldError| (cause, name_of(step), number);
        after_repair(world, step).await;
        let fact = perform(world, step).await.map_err(failed)?;
        let (now, wall) = (world.now(), world.wall());
        let id = operation.id.clone();
        commit(world, Durability::Process, |records| {
            let mut changes = changes_of(records, step, &fact, now, wall);
            if mutant!(JournalAfterEffect) {
                changes.push(Change::Operation(operation.clone()));
            }
            changes.extend(mark(records, &id, Phase::Forward { done: number + 1 }));
            changes
        })
        .await
        .map_err(|error| failed(error.into()))?;
    }
    let failures = close(world, operation, &operation.on_done).await;
    match failures.into_iter().next() {
        None => Ok(()),
        Some(failure) => {
            let steps = u32::try_from(operation.steps.len()).unwrap_or(u32::MAX);
            let cause =
                StoreError::new(crate::error::Class::Unknown, "complete", operation.name.clone(), failure);
            Err((cause.into(), String::from("write down the end"), steps))
        }
    }
}

/// Undoes the first `count` steps in exact reverse, through failures, and reports every one.
async fn backward<W: World>(world: &W, operation: &OperationRecord, count: u32) -> Vec<String> {
    let mut failures = Vec::new();
    let count = count.min(u32::try_from(operation.steps.len()).unwrap_or(u32::MAX));
    let id = operation.id.clone();
    // Said first, so that a kill from here on leads further back and never forwards again.
    let said = commit(world, Durability::Process, |records| {
        mark(records, &id, Phase::Backward { left: count }).into_iter().collect()
    });
    if let Err(error) = said.await {
        failures.push(format!("{error}"));
    }
    // A bring-up in between may have put in the elements of a step that was never reached: the records spoke for
    // them then.
    let unreached = operation.steps.iter().skip(count as usize);
    let unreached = unreached.filter(|step| matches!(step, Step::AddElements(_))).filter_map(Step::undo);
    for step in unreached.chain(undo_of(&operation.steps, count as usize)) {
        after_repair(world, &step).await;
        if let Err(error) = run_step(world, &step).await {
            tracing::error!(operation = %operation.kind, name = %operation.name, step = %step, error = %error, "undo failed");
            failures.push(format!("{step}: {error}"));
            if mutant!(UndoStopsAtFailure) {
                break;
            }
        }
    }
    if mutant!(UndoFailureForgotten) {
        failures.extend(close(world, operation, &operation.on_undone).await);
        return failures;
    }
    if failures.is_empty() {
        return close(world, operation, &operation.on_undone).await;
    }
    // What could not be undone stays on record, so that nothing it holds is handed out again.
    failures.extend(orphan(world, operation, Some(Phase::Backward { left: count })).await);
    failures
}

/// Leaves an operation in the journal for the next bring-up, in another phase or in the one it is recorded in.
async fn orphan<W: World>(world: &W, operation: &OperationRecord, phase: Option<Phase>) -> Vec<String> {
    let kept = commit(world, Durability::Power, |records| {
        let kept = records.operations.get(&operation.id).cloned();
        kept.into_iter()
            .map(|mut kept| {
                kept.phase = phase.unwrap_or(kept.phase);
                kept.daemon_generation = 0;
                Change::Operation(kept)
            })
            .collect()
    });
    kept.await.err().map(|error| format!("{error}")).into_iter().collect()
}

/// The longest that elements wait for a repair of the node; what it then puts back, the next pass takes out.
const REPAIR_WAIT: Span = Span::from_secs(15);
/// How often it is looked whether the repair has ended.
const REPAIR_POLL: Span = Span::from_ms(5);

/// Elements are removed after a repair of the node that was planned before, not under it: its ruleset still
/// speaks for them. One that is planned later does not.
async fn after_repair<W: World>(world: &W, step: &Step) {
    if !matches!(step, Step::RemoveElements(_)) || mutant!(RepairNotAwaited) {
        return;
    }
    let deadline = world.now().after(REPAIR_WAIT);
    let repairing = |records: &Records| {
        let current = records.node.as_ref().map(|node| node.daemon_generation);
        let mut own = records.operations.values().filter(|open| Some(open.daemon_generation) == current);
        own.any(|open| open.subjects.contains(&Subject::Node))
    };
    while world.read(repairing).await && world.now() < deadline {
        world.sleep(REPAIR_POLL).await;
    }
}

/// Does one step and writes down what it brought to light; for steps that no operation counts.
pub(super) async fn run_step<W: World>(world: &W, step: &Step) -> Result<(), WorldError> {
    let fact = perform(world, step).await?;
    let (now, wall) = (world.now(), world.wall());
    let durability = match &fact {
        // A generation that was told never falls, not even with the power.
        Fact::Pin { new_router: true, .. } => Durability::Power,
        _ => Durability::Process,
    };
    commit(world, durability, |records| changes_of(records, step, &fact, now, wall)).await?;
    Ok(())
}

/// Ends an operation that is neither finished nor taken back. A start that failed may have been made all the same:
/// its number is taken, so that whatever it left is found and cleaned.
async fn give_up<W: World>(world: &W, operation: &OperationRecord, done: u32) -> Vec<String> {
    let mut changes = operation.on_undone.clone();
    if let Some(Step::StartContainer(plan)) = operation.steps.get(done as usize) {
        let numbered = world.read(|records| {
            let record = records.containers.get(&plan.id).filter(|it| it.incarnation < plan.incarnation)?;
            Some(Change::Container(ContainerRecord { incarnation: plan.incarnation, ..record.clone() }))
        });
        changes.extend(numbered.await);
    }
    close(world, operation, &changes).await
}

/// Ends an operation together with its last changes.
pub(super) async fn close<W: World>(
    world: &W,
    operation: &OperationRecord,
    changes: &[Change],
) -> Vec<String> {
    // A repair is found again by looking: its end need not outlive a loss of power.
    let durability = match operation.resume {
        Resume::Replan => Durability::Process,
        Resume::Undo | Resume::Finish if mutant!(EndNotDurable) => Durability::Process,
        Resume::Undo | Resume::Finish => Durability::Power,
    };
    let closed = commit(world, durability, |_| {
        let mut all = changes.to_vec();
        all.push(Change::RemoveOperation(operation.id.clone()));
        all
    });
    match closed.await {
        Ok(()) => Vec::new(),
        Err(error) => alloc::vec![format!("write down the end of {}: {error}", operation.name)],
    }
}

fn mark(records: &Records, id: &OperationId, phase: Phase) -> Option<Change> {
    let mut operation = records.operations.get(id)?.clone();
    operation.phase = phase;
    Some(Change::Operation(operation))
}

/// The operations of daemons that are gone.
pub(super) async fn orphans<W: World>(world: &W, session: &Session) -> Vec<OperationRecord> {
    let own = session.daemon_generation;
    world
        .read(|records| {
            let orphans = records.operations.values().filter(|operation| operation.daemon_generation != own);
            orphans.cloned().collect()
        })
        .await
}
