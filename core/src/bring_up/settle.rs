//! What an observation tells of containers that the records do not know yet: starts that were not recorded,
//! and ends that nobody was there to see.

use super::case::Case;
use crate::{
    id::ContainerId,
    join::Cursor,
    journal::Subject,
    observed::{ContainerObserved, Observed},
    record::{ContainerRecord, Desired, Records, RunState},
    restart,
    spec::RestartPolicy,
    time::{Mono, Span, Wall},
};
use alloc::collections::{BTreeMap, BTreeSet};

/// The containers whose records change, and the earliest restart that is held back.
#[derive(Default)]
pub(super) struct Settled {
    pub(super) containers: BTreeMap<ContainerId, ContainerRecord>,
    pub(super) next_due: Option<Mono>,
}

fn sooner(next_due: &mut Option<Mono>, at: Mono) {
    *next_due = Some(next_due.map_or(at, |due| due.min(at)));
}

/// How soon a container is looked at again whose process has ended and whose monitor has not yet said how.
const WITNESS_WAIT: Span = Span::from_ms(50);

/// SIGKILL and SIGTERM as exit codes: what a container ends with when the node goes down around it.
const KILLED: i32 = 128 + 9;
const TERMINATED: i32 = 128 + 15;

pub(super) fn settle(
    observed: &Observed,
    records: &Records,
    wall: Wall,
    busy: &BTreeSet<Subject>,
) -> Settled {
    let (case, _) = super::decide(observed);
    let down = records.node.as_ref().is_some_and(|node| node.down) && !mutant!(DownIsOwnEnd);
    let around = Around { case, down };
    let mut settled = Settled::default();
    let mut seen_of = Cursor::new(&observed.containers);
    for container in records.containers.values() {
        let Some(seen) = seen_of.at(&container.id).filter(|seen| is_current(container, seen)) else {
            continue;
        };
        if !busy.is_empty()
            && (busy.contains(&Subject::Container(container.id.clone()))
                || busy.contains(&Subject::Sandbox(container.sandbox.clone())))
        {
            continue;
        }
        if let Some(next) = next_record(observed, around, container, seen, wall) {
            settled.containers.insert(container.id.clone(), next);
        }
        let effective = settled.containers.get(&container.id).unwrap_or(container);
        if effective.running().is_some() && seen.init.is_none() {
            sooner(&mut settled.next_due, observed.at.after(WITNESS_WAIT));
        }
        if let RunState::Waiting { not_before, boot_id, .. } = &effective.state
            && effective.desired == Desired::Running
            && boot_id == &observed.boot_id
            && *not_before > observed.at
        {
            sooner(&mut settled.next_due, *not_before);
        }
    }
    settled
}

/// Whether the observation was made of the start that the record speaks of.
pub(super) fn is_current(container: &ContainerRecord, seen: &ContainerObserved) -> bool {
    mutant!(StaleLookBelieved)
        || seen.basis.as_ref().is_none_or(|basis| {
            basis.incarnation == container.incarnation
                && basis.init.as_ref() == container.running().map(|(init, _)| init)
        })
}

fn next_record(
    observed: &Observed,
    around: Around,
    container: &ContainerRecord,
    seen: &ContainerObserved,
    wall: Wall,
) -> Option<ContainerRecord> {
    let orphaned = mutant!(MonitorDeathIsDeath) && seen.monitor.is_none();
    if let Some(init) = seen.init.as_ref().filter(|_| !orphaned) {
        // It lives. If the record says otherwise, its start was never written down.
        let known = container.running().is_some_and(|(recorded, _)| recorded == init);
        let monitor = seen.monitor.clone().unwrap_or_else(|| init.clone());
        return (!known).then(|| ContainerRecord {
            state: RunState::Running { init: init.clone(), monitor, since: wall, since_mono: observed.at },
            started: Some(wall),
            ..container.clone()
        });
    }
    container.running()?;
    let code = seen.exit.and_then(|exit| exit.code);
    if code.is_none() && seen.monitor.is_some() {
        // The witness lives and has not spoken yet.
        return None;
    }
    if container.desired == Desired::Stopped {
        let state = RunState::Exited { exit_code: code, at: wall };
        return Some(ContainerRecord { state, ..container.ended(code, wall) });
    }
    match code {
        Some(code) if !died_with_the_node(observed, around, container, code) => {
            Some(restart::after_exit(container, Some(code), observed.at, wall, &observed.boot_id))
        }
        exit_code if mutant!(NodeDeathIsOwnEnd) => {
            Some(restart::after_exit(container, exit_code, observed.at, wall, &observed.boot_id))
        }
        // No end of its own that anybody saw: it died with the node, or after its monitor. It is lost, and the
        // cure for that is a restart at once, whatever the policy for ends of its own says.
        exit_code => {
            let boot_id = observed.boot_id.clone();
            let state = match container.spec.restart {
                RestartPolicy::Once => RunState::Exited { exit_code, at: wall },
                _ => RunState::Waiting { exit_code, not_before: Mono(0), boot_id },
            };
            Some(ContainerRecord { state, ..container.ended(exit_code, wall) })
        }
    }
}

/// What happened to the node around a container.
#[derive(Clone, Copy)]
struct Around {
    case: Case,
    /// It was taken down, and is not up again yet.
    down: bool,
}

/// A signal that ended it while everything else ended too, or in another boot, was not meant for it; nor was one
/// that ended it with a node that was taken down, if whoever did so came to nothing before it was written down.
fn died_with_the_node(observed: &Observed, around: Around, container: &ContainerRecord, code: i32) -> bool {
    let another_boot = container.running().is_some_and(|(init, _)| init.boot_id != observed.boot_id);
    let together = around.case == Case::Rebuild || another_boot || around.down;
    let asked = i32::try_from(container.spec.stop_signal).is_ok_and(|signal| code == 128 + signal);
    together && (matches!(code, KILLED | TERMINATED) || around.down && asked)
}
