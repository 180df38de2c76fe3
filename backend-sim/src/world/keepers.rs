//! Pin, control and the namespaces they hold.

use super::{Refused, SimWorld, at_once};
use crate::model::{Content, Inside, Mounts, Node, Ns, Process, Role, Router};
use holdfast_core::{
    error::{Class, KeeperError},
    id::{BootId, ProcessRef},
    observed::{ControlObserved, Keeper, KeeperObserved, KeepersObserved},
    plan::AdoptSource,
    record::NamespaceIds,
    time::Span,
    world::{KeeperHints, Keepers, PinStarted, Snapshot},
};

impl Keepers for SimWorld {
    fn boot_id(&self) -> BootId {
        self.sim.lock().node.boot_id()
    }

    async fn observe_keepers(&self, hints: &KeeperHints) -> Result<KeepersObserved, KeeperError> {
        self.step("keepers.observe", String::new(), at_once, |node| Ok(observe(node, hints))).await
    }

    async fn create_namespaces(&self) -> Result<PinStarted, KeeperError> {
        self.step("keepers.create", String::new(), at_once, |node| {
            let user = node.namespaces.make(None, Content::User);
            let net = node.namespaces.make(Some(user), Content::Router(Router::default()));
            let mount = new_mounts(node, user, net);
            start_pin(node, user, net, mount)
        })
        .await
    }

    async fn adopt_namespaces(
        &self,
        source: &AdoptSource,
        hints: &KeeperHints,
    ) -> Result<PinStarted, KeeperError> {
        self.step("keepers.adopt", source.net.to_string(), at_once, |node| {
            let user = led(node, &source.user, |inside| inside.user)?;
            let net = led(node, &source.net, |inside| inside.net)?;
            let mount = match &source.mount {
                Some(keeper) => led(node, keeper, |inside| inside.mount)?,
                None => new_mounts(node, user, net),
            };
            let found = (node.namespaces.inode(user), node.namespaces.inode(net));
            let recorded = hints.namespaces.as_ref().map(|ids| (Some(ids.user), Some(ids.net)));
            if recorded.is_some_and(|recorded| recorded != found) {
                return Err((
                    Class::Missing,
                    "the keeper leads to other namespaces than recorded".to_owned(),
                ));
            }
            start_pin(node, user, net, mount)
        })
        .await
    }

    async fn enter_user_namespace(&self, keeper: &Keeper) -> Result<PinStarted, KeeperError> {
        self.step("keepers.enter", keeper.to_string(), at_once, |node| {
            let user = led(node, keeper, |inside| inside.user)?;
            let net = node.namespaces.make(Some(user), Content::Router(Router::default()));
            let mount = new_mounts(node, user, net);
            start_pin(node, user, net, mount)
        })
        .await
    }

    async fn stop_process(&self, process: &ProcessRef) -> Result<(), KeeperError> {
        self.step("keepers.stop", process.to_string(), at_once, |node| {
            node.end_asked(process, None, crate::model::KILLED);
            Ok(())
        })
        .await
    }

    async fn start_control(&self, pin: &ProcessRef) -> Result<ProcessRef, KeeperError> {
        let takes = |node: &Node| match node.control().map(|control| &control.role) {
            Some(Role::Control { wedged: true, .. }) => Span::from_secs(5),
            _ => Span(0),
        };
        self.step("keepers.start_control", pin.to_string(), takes, |node| start_control(node, pin)).await
    }
}

fn observe(node: &mut Node, hints: &KeeperHints) -> KeepersObserved {
    let mut observed = KeepersObserved { control: observe_control(node, hints), ..Default::default() };
    let Some(ids) = hints.namespaces else { return observed };
    let leads = |inside: Inside| {
        let is = |ns: Option<Ns>, id| ns.and_then(|ns| node.namespaces.inode(ns)) == Some(id);
        (is(inside.user, ids.user), is(inside.net, ids.net), is(inside.mount, ids.mount))
    };
    observed.pin = hints.pin.clone().filter(|pin| leads(node.inside_of(pin)) == (true, true, true));
    if let Some(pin) = &observed.pin {
        hold_descriptors(node, &pin.clone());
        return observed;
    }
    let mut keepers = vec![(Keeper::Descriptors, node.descriptors())];
    keepers.extend(hints.control.iter().map(|it| (Keeper::Control(it.clone()), node.inside_of(it))));
    keepers.extend(hints.uplink.iter().map(|it| (Keeper::Uplink(it.clone()), node.inside_of(it))));
    for (container, (init, monitor)) in &hints.containers {
        keepers.push((Keeper::Monitor(container.clone(), monitor.clone()), node.inside_of(monitor)));
        keepers.push((Keeper::Workload(container.clone(), init.clone()), node.inside_of(init)));
    }
    observed.keepers = keepers
        .into_iter()
        .map(|(keeper, inside)| (keeper, leads(inside)))
        .filter(|(_, leads)| *leads != (false, false, false))
        .map(|(keeper, (user, net, mount))| KeeperObserved { keeper, user, net, mount })
        .collect();
    observed
}

fn observe_control(node: &Node, hints: &KeeperHints) -> ControlObserved {
    let Some(Process { reference, role: Role::Control { wedged, foreign, .. }, .. }) = node.control() else {
        return ControlObserved::Absent;
    };
    let net = node.visible(node.inside_of(reference)).map(|ids| ids.net);
    if *wedged {
        ControlObserved::Silent(Some(reference.clone()))
    } else if *foreign {
        ControlObserved::Foreign(reference.clone(), "another build".to_owned())
    } else if hints.namespaces.map(|ids| ids.net) != net {
        ControlObserved::Foreign(reference.clone(), "lives in another router".to_owned())
    } else {
        ControlObserved::Answering(reference.clone())
    }
}

/// What a keeper leads to, as it is now.
fn led(node: &Node, keeper: &Keeper, which: impl Fn(Inside) -> Option<Ns>) -> Result<Ns, Refused> {
    let inside = match keeper {
        Keeper::Descriptors => node.descriptors(),
        Keeper::Pin(process)
        | Keeper::Control(process)
        | Keeper::Monitor(_, process)
        | Keeper::Uplink(process)
        | Keeper::Workload(_, process) => node.inside_of(process),
    };
    which(inside).ok_or_else(|| (Class::Missing, format!("{keeper} leads there no longer")))
}

fn new_mounts(node: &mut Node, user: Ns, net: Ns) -> Ns {
    node.namespaces.make(Some(user), Content::Mount(Mounts { router: Some(net), ..Mounts::default() }))
}

fn start_pin(node: &mut Node, user: Ns, net: Ns, mount: Ns) -> Result<PinStarted, Refused> {
    // A pin whose start was never recorded must not be left behind: a node has one.
    let others = node.processes.find(|role| matches!(role, Role::Pin));
    let process = node.spawn(Role::Pin, &[user, net, mount], &[]);
    others.iter().for_each(|other| node.kill(other, crate::model::KILLED));
    hold_descriptors(node, &process);
    let inside = Inside { user: Some(user), net: Some(net), mount: Some(mount) };
    let namespaces: NamespaceIds =
        node.visible(inside).ok_or_else(|| (Class::Missing, "the namespaces are gone".to_owned()))?;
    Ok(PinStarted { process, namespaces })
}

/// The daemon takes descriptors of a pin's namespaces whenever it sees one, in place of those it had.
fn hold_descriptors(node: &mut Node, pin: &ProcessRef) {
    let Some(member) = node.processes.get(pin).map(|process| process.member.clone()) else { return };
    for daemon in node.processes.find(|role| matches!(role, Role::Daemon(_))) {
        if let Some(daemon) = node.processes.get_mut(&daemon) {
            daemon.holds = member.clone();
        }
    }
}

fn start_control(node: &mut Node, pin: &ProcessRef) -> Result<ProcessRef, Refused> {
    let Some(member) = node.processes.get(pin).map(|process| process.member.clone()) else {
        return Err((Class::Transient, "the pin is dead".to_owned()));
    };
    if let Some(Process { reference, role, member: of, .. }) = node.control() {
        return match role {
            Role::Control { wedged: false, foreign: false, .. } if *of == member => Ok(reference.clone()),
            _ => Err((Class::Conflict, format!("{reference} holds the control's socket"))),
        };
    }
    let member: Vec<Ns> = member.into_iter().collect();
    let role = Role::Control { wedged: false, foreign: false, snapshot: Snapshot::default() };
    let control = node.spawn(role, &member, &[]);
    node.control_socket = Some(control.clone());
    Ok(control)
}
