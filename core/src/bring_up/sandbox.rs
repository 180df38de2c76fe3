//! What one sandbox needs, and the mildest cure that gives it.

use super::{Case, View, settle};
use crate::{
    cure::Cure,
    id::{ProcessRef, SandboxId, Slot},
    join::{BySandbox, Cursor},
    journal::Subject,
    observed::{ContainerObserved, Observed},
    plan::Step,
    record::{Change, ContainerRecord, Desired, NamespaceId, Records, RunState, SandboxKind, SandboxRecord},
    steps,
};
use alloc::{format, string::String, vec::Vec};

/// The steps of one sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The name people know it by.
    pub name: String,
    /// Its steps, in order.
    pub steps: Vec<Step>,
    /// What they amount to.
    pub cure: Cure,
    /// What is written down before the first of them.
    pub intent: Vec<Change>,
}

/// Whether a sandbox is to exist and be plugged: a pod always, a single container's while it is to run.
pub fn wants_plug(sandbox: &SandboxRecord, members: &[&ContainerRecord]) -> bool {
    wants(sandbox, members.iter().copied())
}

/// See [`wants_plug`].
pub(super) fn wants<'a>(
    sandbox: &SandboxRecord,
    mut members: impl Iterator<Item = &'a ContainerRecord>,
) -> bool {
    sandbox.kind == SandboxKind::Pod || members.any(ContainerRecord::wants_to_run)
}

/// A member as it is recorded, beside what was seen of it.
pub(super) struct Member<'a> {
    pub(super) record: &'a ContainerRecord,
    seen: Option<&'a ContainerObserved>,
}

/// Every member beside what was seen of it.
pub(super) fn members_of<'a>(observed: &'a Observed, records: &'a Records) -> BySandbox<'a, Member<'a>> {
    let mut seen = Cursor::new(&observed.containers);
    let members = records.containers.values().map(move |record| Member { record, seen: seen.at(&record.id) });
    BySandbox::new(members, |member| &member.record.sandbox)
}

/// A member as the observation left it.
struct Current<'a> {
    record: &'a ContainerRecord,
    seen: &'a ContainerObserved,
}

impl<'a> View<'a> {
    pub(super) fn wants_plug(&'a self, sandbox: &SandboxRecord, members: &[Member<'a>]) -> bool {
        wants(sandbox, members.iter().map(|member| self.effective(member.record)))
    }

    /// Why a member that is to run does not, if this pass does not start it either.
    pub(super) fn held_back(&'a self, member: &Member<'a>) -> Option<String> {
        let record = self.effective(member.record);
        let alive = member.seen.is_some_and(|seen| seen.init.is_some());
        if alive || record.desired == Desired::Stopped {
            return None;
        }
        let ended =
            |code: &Option<i32>| code.map_or(String::from("ended"), |code| format!("ended with {code}"));
        match &record.state {
            RunState::Failed { cause, .. } => Some(format!("{} cannot be started: {cause}", record.name)),
            RunState::Waiting { exit_code, .. } if !self.is_due(record) => {
                Some(format!("{} {} and waits for its next start", record.name, ended(exit_code)))
            }
            _ => None,
        }
    }

    /// The cure of a sandbox that is to be plugged, and its work, if any.
    pub(super) fn plan_sandbox(
        &'a self,
        sandbox: &'a SandboxRecord,
        members: &[Member<'a>],
        bound: Option<NamespaceId>,
    ) -> (Option<Cure>, Option<Work>) {
        let wanted = self.wants_plug(sandbox, members);
        let held = self.is_held(sandbox, members);
        let seen: Option<Vec<Current<'a>>> = members.iter().map(|member| self.current(member)).collect();
        let Some(members) = seen.filter(|_| !held) else {
            // An operation works on it, or began and ended since the observation: nothing is known of it.
            return (wanted.then(|| self.survived()), None);
        };
        if wanted { self.repair(sandbox, &members, bound) } else { (None, self.tear_down(sandbox, &members)) }
    }

    fn is_held(&self, sandbox: &SandboxRecord, members: &[Member<'a>]) -> bool {
        !self.busy.is_empty()
            && (self.is_busy(&Subject::Sandbox(sandbox.id.clone()))
                || members.iter().any(|member| self.is_busy(&Subject::Container(member.record.id.clone()))))
    }

    fn current(&'a self, member: &Member<'a>) -> Option<Current<'a>> {
        let Member { record, seen } = *member;
        let seen = seen?;
        settle::is_current(record, seen).then(|| Current { record: self.effective(record), seen })
    }

    fn repair(
        &'a self,
        sandbox: &'a SandboxRecord,
        members: &[Current<'a>],
        bound: Option<NamespaceId>,
    ) -> (Option<Cure>, Option<Work>) {
        let living: Option<(&ProcessRef, Option<NamespaceId>)> =
            members.iter().find_map(|member| Some((member.seen.init.as_ref()?, member.seen.netns)));
        let netns = living.and_then(|(_, netns)| netns);
        let mut cure = self.survived();
        let mut steps = Vec::new();
        if bound.is_none_or(|bound| netns.is_some_and(|netns| netns != bound)) {
            cure = cure.max(match &living {
                // Only the bind is lost, and with it nothing that a packet could notice.
                Some(_) if self.all_plugged(sandbox, netns) => cure,
                None if members.iter().any(|member| member.record.wants_to_run()) => Cure::Restarted,
                Some(_) | None => Cure::Replugged,
            });
            let rebind = living.filter(|_| !mutant!(RebindIgnored)).map(|(init, _)| init.clone());
            steps.extend(steps::sandbox_up(self.records, sandbox, rebind));
        } else {
            // Looked at before a plan is made: on most passes there is none to make.
            if !self.all_plugged(sandbox, bound) {
                for plan in steps::attachment_plans(self.records, sandbox) {
                    if !self.is_plugged(plan.slot, plan.network_index, bound) {
                        cure = cure.max(Cure::Replugged);
                        steps.push(Step::Attach(plan));
                    } else if !self.is_routed(plan.slot, plan.default_route) {
                        // Half a disconnect: the link stays, its routes are put right.
                        steps.push(Step::Attach(plan));
                    }
                }
            }
            steps.extend(
                sandbox.ports.iter().filter(|port| !self.forwarded(port)).copied().map(Step::Publish),
            );
        }
        let mut intent = Vec::new();
        for member in members {
            let started = self.member_steps(sandbox, member, &mut steps, &mut intent);
            if started {
                cure = cure.max(Cure::Restarted);
            }
        }
        let work = (!steps.is_empty()).then(|| Work {
            sandbox: sandbox.id.clone(),
            name: sandbox.name.clone(),
            steps,
            cure,
            intent,
        });
        (Some(cure), work)
    }

    fn all_plugged(&self, sandbox: &SandboxRecord, netns: Option<NamespaceId>) -> bool {
        let primary = sandbox.primary().map(|primary| primary.slot);
        sandbox.attachments.iter().all(|own| {
            // Without its network's record (quarantined) there is nothing it could be plugged into.
            let network = self.records.networks.get(&own.network);
            network.is_none_or(|network| {
                self.is_plugged(own.slot, network.index, netns)
                    && self.is_routed(own.slot, Some(own.slot) == primary)
            })
        })
    }

    fn is_routed(&self, slot: Slot, default_route: bool) -> bool {
        let told = self.router.plugged.get(&slot).and_then(|plug| plug.default_route);
        told.is_none_or(|told| told == default_route)
    }

    fn is_plugged(&self, slot: Slot, network_index: u16, netns: Option<NamespaceId>) -> bool {
        self.router.plugged.get(&slot).is_some_and(|plug| {
            plug.complete
                && plug.network_index == Some(network_index)
                && plug.peer.is_none_or(|peer| Some(peer) == netns)
        })
    }

    /// Adds what one member needs; `true` when it is started.
    fn member_steps(
        &self,
        sandbox: &SandboxRecord,
        member: &Current<'_>,
        steps: &mut Vec<Step>,
        intent: &mut Vec<Change>,
    ) -> bool {
        let Current { record, seen } = member;
        if seen.init.is_some() {
            let harsh = mutant!(HarsherCure) && self.case == Case::Replug;
            if record.desired == Desired::Stopped || harsh {
                // The user stopped it, and whoever did so died before it had ended.
                steps.push(steps::stop_step(record, record.spec.stop_grace_ms));
            }
            return false;
        }
        if record.running().is_some() {
            // It has ended and its monitor has not said how yet: settled by the next look.
            return false;
        }
        if !self.is_due(record) {
            if seen.remains {
                steps.push(Step::CleanContainer(record.id.clone(), record.incarnation));
            }
            return false;
        }
        if record.incarnation > 0 {
            steps.push(Step::CleanContainer(record.id.clone(), record.incarnation));
        }
        let mut next = (*record).clone();
        next.incarnation += 1;
        next.restarts = next.restarts.saturating_add(1);
        steps.push(Step::StartContainer(steps::container_plan(self.records, sandbox, &next)));
        intent.push(Change::Container(next));
        true
    }

    /// Whether a member that does not live is to be started now.
    fn is_due(&self, record: &ContainerRecord) -> bool {
        (record.wants_to_run() || mutant!(StoppedComesBack))
            && match &record.state {
                RunState::Waiting { not_before, boot_id, .. } => {
                    boot_id != &self.observed.boot_id || *not_before <= self.observed.at
                }
                RunState::Created => true,
                RunState::Exited { .. } if mutant!(StoppedComesBack) => true,
                RunState::Running { .. } | RunState::Exited { .. } | RunState::Failed { .. } => false,
            }
    }

    /// A single container that is not to run leaves nothing but its record and its files.
    fn tear_down(&'a self, sandbox: &'a SandboxRecord, members: &[Current<'a>]) -> Option<Work> {
        let mut steps = Vec::new();
        for Current { record, seen } in members {
            if seen.init.is_some() {
                steps.push(steps::stop_step(record, record.spec.stop_grace_ms));
            } else if seen.remains {
                steps.push(Step::CleanContainer(record.id.clone(), record.incarnation));
            }
        }
        let plugged =
            sandbox.attachments.iter().any(|attachment| self.router.plugged.contains_key(&attachment.slot));
        let published = sandbox.ports.iter().any(|port| self.forwarded(port));
        if plugged || published || self.router.sandboxes.contains_key(&sandbox.id) {
            steps.extend(steps::sandbox_down(self.records, sandbox));
        }
        (!steps.is_empty()).then(|| Work {
            sandbox: sandbox.id.clone(),
            name: sandbox.name.clone(),
            steps,
            cure: Cure::Untouched,
            intent: Vec::new(),
        })
    }
}
