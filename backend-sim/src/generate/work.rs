//! What is asked of the node. A lane's names are its own, so that what is told in one lane is not contradicted by
//! another; networks, addresses, slots and the locks of the node they share.

use super::{between, weighted};
use crate::{
    history::{Action, request},
    profile::Profile,
    random::Stream,
    scenarios,
};
use holdfast_core::{
    ops::request::{NetworkRequest, PodRequest, RunRequest},
    spec::{NetworkSpec, RestartPolicy},
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A kind of action, as profiles weigh it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionKind {
    /// A container of its own.
    Run,
    /// A member of a pod.
    RunInPod,
    /// A container is stopped.
    Stop,
    /// A container is started.
    Start,
    /// A container is restarted.
    Restart,
    /// A container is removed.
    Remove,
    /// A pod.
    CreatePod,
    /// A pod is removed, with its members.
    RemovePod,
    /// A network.
    CreateNetwork,
    /// A network is removed.
    RemoveNetwork,
    /// A bring-up beside everything else.
    BringUp,
    /// The node goes down.
    TakeDown,
    /// The node comes up.
    Up,
}

/// What a lane has asked for so far; whether it got it is another matter.
#[derive(Default)]
struct Asked {
    /// Containers, each with its pod.
    containers: BTreeMap<String, Option<String>>,
    pods: BTreeSet<String>,
    networks: BTreeSet<String>,
}

/// The actions of a lane, mostly in an order that makes sense, now and then not: a refusal must be one.
pub(super) fn draw_lane(work: &mut Stream, profile: &Profile, lane: u32) -> Vec<Action> {
    let weights: Vec<(ActionKind, u32)> =
        profile.actions.iter().map(|(kind, weight)| (*kind, *weight)).collect();
    let count = between(work, profile.actions_count) as usize;
    let mut asked = Asked::default();
    let mut actions = Vec::new();
    while actions.len() < count {
        let sensible = !work.chance(10);
        let Some(kind) = weighted(work, &weights) else { break };
        let action =
            asked.draw(work, lane, kind, sensible).or_else(|| asked.draw(work, lane, ActionKind::Run, true));
        let Some(action) = action else { break };
        asked.note(&action);
        actions.push(action);
        // The same once more, as somebody does who heard no answer.
        if work.chance(5) {
            actions.extend(actions.last().cloned());
        }
    }
    actions
}

impl Asked {
    fn draw(&self, work: &mut Stream, lane: u32, kind: ActionKind, sensible: bool) -> Option<Action> {
        let own = |of: &str| format!("{of}{lane}");
        let container = |work: &mut Stream| match sensible {
            true => pick(work, self.containers.keys()),
            false => pick(work, [own("a"), own("m"), own("nosuch")].iter()),
        };
        Some(match kind {
            ActionKind::Run => {
                let name = work.pick(&["a", "b", "c"]).map(|of| own(of))?;
                self.run(work, lane, &name)
            }
            ActionKind::RunInPod => {
                let pod = if sensible { pick(work, self.pods.iter())? } else { own("pod") };
                let name = work.pick(&["m", "n", "o"]).map(|of| own(of))?;
                Action::Run(Box::new(RunRequest { pod: Some(pod), restart: policy(work), ..request(&name) }))
            }
            ActionKind::Stop => Action::Stop(container(work)?),
            ActionKind::Start => Action::Start(container(work)?),
            ActionKind::Restart => Action::Restart(container(work)?),
            ActionKind::Remove => Action::Remove(container(work)?),
            ActionKind::CreatePod => Action::CreatePod(PodRequest {
                name: own("pod"),
                tenant: tenant(work),
                networks: self.networks_of(work),
                ports: if work.chance(40) { vec![scenarios::port(19_500 + lane as u16)] } else { Vec::new() },
                ..PodRequest::default()
            }),
            ActionKind::RemovePod => {
                Action::RemovePod(if sensible { pick(work, self.pods.iter())? } else { own("pod") })
            }
            ActionKind::CreateNetwork => Action::CreateNetwork(NetworkRequest {
                name: own("net"),
                spec: NetworkSpec { internal: work.chance(30), ..NetworkSpec::default() },
            }),
            ActionKind::RemoveNetwork => {
                Action::RemoveNetwork(if sensible { pick(work, self.networks.iter())? } else { own("net") })
            }
            ActionKind::BringUp => Action::BringUp,
            ActionKind::TakeDown => Action::TakeDown,
            ActionKind::Up => Action::Up,
        })
    }

    fn run(&self, work: &mut Stream, lane: u32, name: &str) -> Action {
        let port = 19_000 + lane as u16 * 10 + work.below(3) as u16;
        Action::Run(Box::new(RunRequest {
            tenant: tenant(work),
            networks: self.networks_of(work),
            ports: if work.chance(40) { vec![scenarios::port(port)] } else { Vec::new() },
            restart: policy(work),
            stop_grace_ms: if work.chance(30) { Some(work.below(3_000)) } else { None },
            ..request(name)
        }))
    }

    /// Mostly the default network; else one, or two, of the node's and the lane's.
    fn networks_of(&self, work: &mut Stream) -> Vec<String> {
        let mut names = Vec::new();
        if work.chance(20) {
            names.push("back".to_owned());
        }
        if work.chance(40) {
            names.extend(pick(work, self.networks.iter()));
        }
        names
    }

    fn note(&mut self, action: &Action) {
        match action {
            Action::Run(request) => {
                self.containers.insert(request.name.clone().unwrap_or_default(), request.pod.clone());
            }
            Action::Remove(name) => drop(self.containers.remove(name)),
            Action::CreatePod(request) => drop(self.pods.insert(request.name.clone())),
            Action::RemovePod(name) => {
                self.pods.remove(name);
                self.containers.retain(|_, pod| pod.as_ref() != Some(name));
            }
            Action::CreateNetwork(request) => drop(self.networks.insert(request.name.clone())),
            Action::RemoveNetwork(name) => drop(self.networks.remove(name)),
            _ => {}
        }
    }
}

fn pick<'a>(work: &mut Stream, names: impl Iterator<Item = &'a String>) -> Option<String> {
    let names: Vec<&String> = names.collect();
    work.pick(&names).map(|name| (*name).clone())
}

fn tenant(work: &mut Stream) -> Option<String> {
    work.pick(&[None, Some("blue"), Some("green")]).copied().flatten().map(str::to_owned)
}

fn policy(work: &mut Stream) -> RestartPolicy {
    let policies = [RestartPolicy::No, RestartPolicy::Always, RestartPolicy::UnlessStopped];
    work.pick(&policies).copied().unwrap_or_default()
}
