//! Bringing the node up is one decision between five cases, and for each workload the mildest cure; both from
//! one observation, taken before anything is touched.

mod case;
mod sandbox;
mod settle;

pub use case::{Case, decide};
pub use sandbox::{Work, wants_plug};

use sandbox::Member;

use crate::{
    cure::Cure,
    id::{ContainerId, NetworkId, SandboxId, Slot},
    join::{BySandbox, Cursor},
    journal::Subject,
    observed::{ControlObserved, Observed, RouterObserved, UplinkObserved},
    plan::Step,
    record::{Change, ContainerRecord, PortRecord, Records},
    ruleset::Ruleset,
    steps,
    time::{Mono, Wall},
};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};

/// What one pass does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BringUpPlan {
    /// Which of the five cases it is.
    pub case: Case,
    /// Steps that every workload stands on, in order. While they run nothing else begins.
    pub node: Vec<Step>,
    /// One item per sandbox that needs something, each independent of the others.
    pub work: Vec<Work>,
    /// What the observation says of containers that the records did not know.
    pub settle: Vec<Change>,
    /// The cure of every sandbox that is to be plugged.
    pub cures: BTreeMap<SandboxId, Cure>,
    /// Sandboxes with a member that is to run, does not, and is not started by this pass; each with the cause.
    pub unwhole: BTreeMap<SandboxId, String>,
    /// A look from inside the router is needed to know the rest.
    pub look_again: bool,
    /// The earliest restart that a back-off holds back.
    pub next_due: Option<Mono>,
}

impl BringUpPlan {
    /// Whether there is nothing to do, now.
    pub fn is_idle(&self) -> bool {
        self.node.is_empty() && self.work.is_empty() && self.settle.is_empty() && !self.look_again
    }
}

/// Decides a whole pass.
///
/// `busy` are the subjects of open operations: what they hold is left alone. `random` picks nothing here; the
/// function is pure: same observation, same records, same plan.
pub fn plan_bring_up(
    observed: &Observed,
    records: &Records,
    wall: Wall,
    busy: &BTreeSet<Subject>,
) -> BringUpPlan {
    let (case, mut node) = decide(observed);
    let settled = settle::settle(observed, records, wall, busy);
    let blank = RouterObserved::default();
    // A router that is about to be made is known to be empty; one that was not looked at is not known at all.
    let router = match (case, &observed.router) {
        (Case::Replug | Case::Rebuild, _) => Some(&blank),
        (_, Some(router)) => Some(router),
        (_, None) => None,
    };
    let view = View {
        observed,
        records,
        settled: &settled.containers,
        busy,
        router: router.unwrap_or(&blank),
        members: sandbox::members_of(observed, records),
        case,
    };
    let mut work = Vec::new();
    let mut cures = BTreeMap::new();
    let mut unwhole = BTreeMap::new();
    if router.is_some() {
        node.extend(view.router_steps());
    }
    if !(mutant!(UplinkNotLookedAt) && case == Case::Nothing) {
        node.extend(view.uplink_steps(router.is_some()));
    }
    let mut walk = view.members.walk();
    let mut bound = Cursor::new(&view.router.sandboxes);
    for sandbox in records.sandboxes.values() {
        let members = walk.of(&sandbox.id);
        if let Some(cause) = members.iter().find_map(|member| view.held_back(member)) {
            unwhole.insert(sandbox.id.clone(), cause);
        }
        if router.is_none() {
            // Not known yet what it needs; what it has already survived is.
            if view.wants_plug(sandbox, members) {
                cures.insert(sandbox.id.clone(), view.survived());
            }
            continue;
        }
        let (cure, item) = view.plan_sandbox(sandbox, members, bound.at(&sandbox.id).copied());
        if let Some(cure) = cure {
            cures.insert(sandbox.id.clone(), cure);
        }
        work.extend(item);
    }
    let next_due = settled.next_due;
    let mut settle: Vec<Change> = settled.containers.into_values().map(Change::Container).collect();
    settle.extend(work.iter().flat_map(|item| item.intent.iter().cloned()));
    BringUpPlan { case, node, work, settle, cures, unwhole, look_again: router.is_none(), next_due }
}

/// One observation beside the records, with what it settled.
struct View<'a> {
    observed: &'a Observed,
    records: &'a Records,
    settled: &'a BTreeMap<ContainerId, ContainerRecord>,
    busy: &'a BTreeSet<Subject>,
    router: &'a RouterObserved,
    members: BySandbox<'a, Member<'a>>,
    case: Case,
}

impl<'a> View<'a> {
    /// The record as the observation left it.
    fn effective(&self, container: &'a ContainerRecord) -> &'a ContainerRecord
    where
        Self: 'a,
    {
        self.settled.get(&container.id).unwrap_or(container)
    }

    fn is_busy(&self, subject: &Subject) -> bool {
        !self.busy.is_empty() && self.busy.contains(subject) && !mutant!(BusyIgnored)
    }

    /// The cure of a sandbox that needs nothing of its own.
    fn survived(&self) -> Cure {
        match self.case {
            Case::Adopt => Cure::Adopted,
            _ => Cure::Untouched,
        }
    }

    fn desired_digest(&self) -> u64 {
        let mut walk = self.members.walk();
        Ruleset::desired_digest(self.records, |sandbox| {
            sandbox::wants(sandbox, walk.of(&sandbox.id).iter().map(|member| member.record))
        })
    }

    /// Rules before bridges before leftovers.
    fn router_steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let ruleset = &self.router.ruleset;
        let late = mutant!(LinksBeforeRules) && matches!(self.case, Case::Replug | Case::Rebuild);
        if (!ruleset.base || ruleset.digest != self.desired_digest()) && !late {
            steps.push(Step::EnsureRuleset(Ruleset::desired(self.records)));
        }
        for network in self.records.networks.values() {
            let complete = self
                .router
                .networks
                .get(&network.id)
                .is_some_and(|bridge| bridge.complete && bridge.index == network.index);
            if !complete && !self.is_busy(&Subject::Network(network.id.clone())) {
                steps.push(Step::EnsureNetwork(steps::network_plan(network)));
            }
        }
        steps.extend(self.leftovers());
        steps
    }

    /// What the router holds and no record speaks of: remains of what was removed while nobody could reach it.
    fn leftovers(&self) -> Vec<Step> {
        let slots: BTreeSet<Slot> = self
            .records
            .sandboxes
            .values()
            .flat_map(|sandbox| sandbox.attachments.iter().map(|attachment| attachment.slot))
            .collect();
        let detach =
            self.router.plugged.keys().filter(|slot| !slots.contains(slot)).map(|slot| Step::Detach(*slot));
        let mut recorded = Cursor::new(&self.records.sandboxes);
        let sandboxes = self
            .router
            .sandboxes
            .keys()
            .filter(move |id| recorded.at(id).is_none())
            .map(|id| Step::RemoveSandbox(id.clone()));
        let indexes: BTreeSet<u16> = self.records.networks.values().map(|network| network.index).collect();
        let networks = self
            .router
            .networks
            .iter()
            .filter(|(_, bridge)| !indexes.contains(&bridge.index))
            .map(|(id, bridge)| Step::RemoveNetwork(removal(id, bridge.index)));
        detach.chain(sandboxes).chain(networks).collect()
    }

    /// A helper that does not serve this router is replaced; ports that nobody asked for are taken back.
    fn uplink_steps(&self, router_known: bool) -> Vec<Step> {
        let new_router = matches!(self.case, Case::Replug | Case::Rebuild);
        match &self.observed.uplink {
            UplinkObserved::Absent => alloc::vec![Step::StartUplink],
            UplinkObserved::Broken(process, _) => {
                alloc::vec![Step::StopUplink(process.clone()), Step::StartUplink]
            }
            UplinkObserved::Serving { process, .. } if new_router => {
                alloc::vec![Step::StopUplink(process.clone()), Step::StartUplink]
            }
            UplinkObserved::Serving { ports, .. } if router_known => {
                let wanted: BTreeSet<_> = self
                    .records
                    .sandboxes
                    .values()
                    .flat_map(|sandbox| sandbox.ports.iter().map(port_key))
                    .collect();
                let extra = ports.iter().filter(|port| !wanted.contains(&port_key(port)));
                extra.copied().map(Step::Unpublish).collect()
            }
            UplinkObserved::Serving { .. } => Vec::new(),
        }
    }

    /// Ports that the helper really forwards; none if it is about to be replaced.
    fn forwarded(&self, port: &PortRecord) -> bool {
        if mutant!(PortsNotReplayed) {
            return true;
        }
        match &self.observed.uplink {
            UplinkObserved::Serving { ports, .. } if !matches!(self.case, Case::Replug | Case::Rebuild) => {
                ports.iter().any(|forwarded| port_key(forwarded) == port_key(port))
            }
            _ => false,
        }
    }
}

/// What a helper knows of a port: it forwards to the router's port and never learns the container's.
fn port_key(port: &PortRecord) -> (core::net::Ipv4Addr, u16, crate::spec::Protocol, u16) {
    (port.spec.host_address, port.spec.host_port, port.spec.protocol, port.router_port)
}

fn removal(id: &NetworkId, index: u16) -> crate::plan::NetworkPlan {
    use core::net::{Ipv4Addr, Ipv6Addr};
    crate::plan::NetworkPlan {
        id: id.clone(),
        index,
        gateway4: (Ipv4Addr::UNSPECIFIED, 0),
        gateway6: (Ipv6Addr::UNSPECIFIED, 0),
        mtu_bytes: 0,
    }
}

/// Whether the control must be started anew, and which process has to go first.
fn control_steps(control: &ControlObserved) -> Vec<Step> {
    match control {
        ControlObserved::Answering(_) => Vec::new(),
        ControlObserved::Absent | ControlObserved::Silent(None) => alloc::vec![Step::StartControl],
        ControlObserved::Foreign(..) if mutant!(ForeignControlKept) => Vec::new(),
        ControlObserved::Foreign(process, _) | ControlObserved::Silent(Some(process)) => {
            alloc::vec![Step::StopControl(process.clone()), Step::StartControl]
        }
    }
}
