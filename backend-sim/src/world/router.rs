//! The router, through the hands of the control.

use super::{Refused, SimWorld};
use crate::model::{Bridge, Content, Mounts, Node, Ns, Role, Router as Stack, Veth};
use holdfast_core::{
    error::{Class, RouterError},
    id::{SandboxId, Slot},
    observed::{BridgeObserved, PlugObserved, RouterObserved, RulesetObserved},
    plan::{AttachmentPlan, NetworkPlan, SandboxPlan},
    ruleset::{Counter, Element, Ruleset, digest},
    time::Span,
    world::{Probe, Router, Snapshot},
};
use std::collections::BTreeSet;

/// How long a caller waits for a control that does not answer.
const DEADLINE: Span = Span::from_secs(5);

/// Where the control lives.
#[derive(Clone, Copy)]
struct Seat {
    user: Ns,
    net: Ns,
    mount: Ns,
}

impl SimWorld {
    async fn ask<T: Send>(
        &self,
        call: &'static str,
        subject: String,
        effect: impl FnOnce(&mut Node, Seat) -> Result<T, Refused> + Send,
    ) -> Result<T, RouterError> {
        let takes = |node: &Node| match node.control().map(|control| &control.role) {
            Some(Role::Control { wedged: true, .. }) => DEADLINE,
            _ => Span(0),
        };
        self.step(call, subject, takes, |node| {
            let seat = seat(node)?;
            effect(node, seat)
        })
        .await
    }
}

fn seat(node: &Node) -> Result<Seat, Refused> {
    let absent = || (Class::Transient, "no control answers".to_owned());
    let control = node.control().ok_or_else(absent)?;
    match control.role {
        Role::Control { wedged: true, .. } => {
            return Err((Class::Unknown, "the control did not answer in time".to_owned()));
        }
        Role::Control { foreign: true, .. } => {
            return Err((Class::Transient, "the control is another build".to_owned()));
        }
        _ => {}
    }
    let inside = node.inside_of(&control.reference);
    match (inside.user, inside.net, inside.mount) {
        (Some(user), Some(net), Some(mount)) => Ok(Seat { user, net, mount }),
        _ => Err(absent()),
    }
}

fn stack(node: &mut Node, seat: Seat) -> Result<&mut Stack, Refused> {
    node.namespaces.router_mut(seat.net).ok_or_else(|| (Class::Transient, "the router is gone".to_owned()))
}

fn mounts(node: &mut Node, seat: Seat) -> Result<&mut Mounts, Refused> {
    let gone = || (Class::Transient, "the mount namespace is gone".to_owned());
    node.namespaces.mounts_mut(seat.mount).ok_or_else(gone)
}

impl Router for SimWorld {
    async fn observe_router(&self) -> Result<RouterObserved, RouterError> {
        self.ask("router.observe", String::new(), observe).await
    }

    async fn ensure_ruleset(&self, ruleset: &Ruleset) -> Result<(), RouterError> {
        let subject = format!("{} elements", ruleset.elements.len());
        self.ask("router.ensure_ruleset", subject, |node, seat| {
            let stack = stack(node, seat)?;
            stack.base = true;
            stack.elements = ruleset.elements.clone();
            Ok(())
        })
        .await
    }

    async fn add_elements(&self, elements: &BTreeSet<Element>) -> Result<(), RouterError> {
        self.ask("router.add_elements", format!("{} elements", elements.len()), |node, seat| {
            let stack = stack(node, seat)?;
            if !stack.base {
                return Err((Class::Missing, "the base chains are not there".to_owned()));
            }
            for element in elements {
                stack.elements.retain(|there| !same_key(there, element));
                stack.elements.insert(*element);
            }
            Ok(())
        })
        .await
    }

    async fn remove_elements(&self, elements: &BTreeSet<Element>) -> Result<(), RouterError> {
        self.ask("router.remove_elements", format!("{} elements", elements.len()), |node, seat| {
            stack(node, seat)?.elements.retain(|element| !elements.contains(element));
            Ok(())
        })
        .await
    }

    async fn count_verdicts(&self) -> Result<Vec<(Element, Counter)>, RouterError> {
        // Packets are not simulated one by one: nothing has been counted.
        self.ask("router.count_verdicts", String::new(), |_, _| Ok(Vec::new())).await
    }

    async fn ensure_network(&self, plan: &NetworkPlan) -> Result<(), RouterError> {
        self.ask("router.ensure_network", plan.id.to_string(), |node, seat| {
            let bridge = Bridge { id: plan.id.clone(), plan: plan.clone() };
            stack(node, seat)?.bridges.insert(plan.index, bridge);
            Ok(())
        })
        .await
    }

    async fn remove_network(&self, plan: &NetworkPlan) -> Result<(), RouterError> {
        self.ask("router.remove_network", plan.id.to_string(), |node, seat| {
            stack(node, seat)?.bridges.remove(&plan.index);
            let ports = node
                .veths
                .iter_mut()
                .filter(|((router, _), veth)| *router == seat.net && veth.plan.network_index == plan.index);
            ports.for_each(|(_, veth)| veth.port = false);
            Ok(())
        })
        .await
    }

    async fn ensure_sandbox(&self, plan: &SandboxPlan) -> Result<(), RouterError> {
        self.ask("router.ensure_sandbox", plan.id.to_string(), |node, seat| ensure_sandbox(node, seat, plan))
            .await
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RouterError> {
        self.ask("router.remove_sandbox", id.to_string(), |node, seat| {
            mounts(node, seat)?.sandboxes.remove(id);
            Ok(())
        })
        .await
    }

    async fn attach(&self, plan: &AttachmentPlan) -> Result<(), RouterError> {
        let subject = format!("{} slot {}", plan.sandbox, plan.slot.0);
        self.ask("router.attach", subject, |node, seat| attach(node, seat, plan)).await
    }

    async fn detach(&self, slot: Slot) -> Result<(), RouterError> {
        self.ask("router.detach", format!("slot {}", slot.0), |node, seat| {
            node.veths.remove(&(seat.net, slot));
            Ok(())
        })
        .await
    }

    async fn probe(&self, probe: &Probe) -> Result<bool, RouterError> {
        self.ask("router.probe", format!("{} → {}", probe.from, probe.address), |node, seat| {
            let mounts = mounts(node, seat)?;
            let bound = |id: &SandboxId| mounts.sandboxes.get(id).copied();
            match (bound(&probe.from), bound(&probe.to)) {
                (Some(from), Some(to)) => Ok(node.can_reach(from, to, probe.address)),
                _ => Err((Class::Missing, "a sandbox is not bound".to_owned())),
            }
        })
        .await
    }

    async fn hand_snapshot(&self, snapshot: &Snapshot) -> Result<(), RouterError> {
        self.ask("router.hand_snapshot", format!("generation {}", snapshot.generation), |node, _| {
            let control = node.control_socket.clone();
            let control = control.and_then(|control| node.processes.get_mut(&control));
            if let Some(Role::Control { snapshot: kept, .. }) = control.map(|process| &mut process.role) {
                if snapshot.generation < kept.generation {
                    let cause = format!("generation {} is served already", kept.generation);
                    return Err((Class::Conflict, cause));
                }
                *kept = snapshot.clone();
            }
            Ok(())
        })
        .await
    }
}

fn observe(node: &mut Node, seat: Seat) -> Result<RouterObserved, Refused> {
    let inside = crate::model::Inside { user: Some(seat.user), net: Some(seat.net), mount: Some(seat.mount) };
    let namespaces =
        node.visible(inside).ok_or_else(|| (Class::Transient, "the router is gone".to_owned()))?;
    let bound = mounts(node, seat)?.sandboxes.clone();
    let stack = stack(node, seat)?.clone();
    let plugged =
        node.veths.iter().filter(|((router, _), _)| *router == seat.net).map(|((_, slot), veth)| {
            let plug = PlugObserved {
                network_index: veth.port.then_some(veth.plan.network_index),
                complete: veth.port,
                peer: node.namespaces.inode(veth.inside),
                default_route: Some(veth.plan.default_route),
            };
            (*slot, plug)
        });
    Ok(RouterObserved {
        namespaces,
        networks: stack
            .bridges
            .values()
            .map(|bridge| (bridge.id.clone(), BridgeObserved { index: bridge.plan.index, complete: true }))
            .collect(),
        plugged: plugged.collect(),
        sandboxes: bound.into_iter().filter_map(|(id, ns)| Some((id, node.namespaces.inode(ns)?))).collect(),
        ruleset: RulesetObserved { base: stack.base, digest: digest(stack.elements.iter()) },
        services: Vec::new(),
    })
}

/// Map entries of one key exclude each other; a set's element is its own key.
fn same_key(one: &Element, other: &Element) -> bool {
    match (one, other) {
        (Element::Group4(a, _), Element::Group4(b, _)) => a == b,
        (Element::Group6(a, _), Element::Group6(b, _)) => a == b,
        (Element::Forward4(protocol, port, ..), Element::Forward4(of, number, ..)) => {
            (protocol, port) == (of, number)
        }
        (Element::Class4(a, _), Element::Class4(b, _)) => a == b,
        (Element::Class6(a, _), Element::Class6(b, _)) => a == b,
        // A range takes the place of those it overlaps with.
        (Element::Outside4(a, b, _), Element::Outside4(c, d, _)) => a <= d && c <= b,
        (Element::Outside6(a, b, _), Element::Outside6(c, d, _)) => a <= d && c <= b,
        (Element::Verdict(a, _), Element::Verdict(b, _)) => a.overlaps(b),
        (Element::Hairpin4(protocol, port, ..), Element::Hairpin4(of, number, ..)) => {
            (protocol, port) == (of, number)
        }
        _ => one == other,
    }
}

fn ensure_sandbox(node: &mut Node, seat: Seat, plan: &SandboxPlan) -> Result<(), Refused> {
    let bound = mounts(node, seat)?.sandboxes.get(&plan.id).copied();
    let net = match &plan.rebind {
        None if bound.is_some() => return Ok(()),
        None => node.namespaces.make(Some(seat.user), Content::Sandbox(plan.id.clone())),
        Some(member) => {
            let process =
                node.processes.get(member).ok_or_else(|| (Class::Missing, format!("{member} is dead")))?;
            let member_of = process.member.clone();
            node.namespaces
                .find(&member_of, |content| matches!(content, Content::Sandbox(_)))
                .ok_or_else(|| (Class::Missing, format!("{member} is in no sandbox")))?
        }
    };
    mounts(node, seat)?.sandboxes.insert(plan.id.clone(), net);
    Ok(())
}

fn attach(node: &mut Node, seat: Seat, plan: &AttachmentPlan) -> Result<(), Refused> {
    let inside = mounts(node, seat)?.sandboxes.get(&plan.sandbox).copied();
    let inside = inside.ok_or_else(|| (Class::Missing, format!("sandbox {} is not bound", plan.sandbox)))?;
    if !stack(node, seat)?.bridges.contains_key(&plan.network_index) {
        return Err((Class::Missing, format!("bridge hfbr{} does not exist", plan.network_index)));
    }
    let key = (seat.net, plan.slot);
    // A link inside that has the name or the index is of an earlier life, and makes room.
    node.veths.retain(|_, veth| {
        veth.inside != inside || (veth.plan.link_name != plan.link_name && veth.plan.ifindex != plan.ifindex)
    });
    node.veths.insert(key, Veth { inside, plan: plan.clone(), port: true });
    Ok(())
}
