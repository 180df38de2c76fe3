//! The OCI runtime and its monitors.

use super::{Refused, SimWorld, at_once};
use crate::model::{Content, KILLED, Node, Role, RuntimeState};
use holdfast_core::{
    error::{Class, ContainerError},
    id::{ContainerId, ProcessRef},
    observed::{ContainerObserved, ExitObserved},
    plan::ContainerPlan,
    time::Span,
    world::{ContainerHint, Containers, Started},
};
use std::collections::BTreeMap;

/// SIGKILL, which nothing ignores.
const SIGKILL: u32 = 9;

impl Containers for SimWorld {
    async fn observe_containers(
        &self,
        hints: &[ContainerHint],
    ) -> Result<BTreeMap<ContainerId, ContainerObserved>, ContainerError> {
        self.step("containers.observe", format!("{} containers", hints.len()), at_once, |node| {
            Ok(hints.iter().map(|hint| (hint.id.clone(), observe(node, hint))).collect())
        })
        .await
    }

    async fn start_container(
        &self,
        plan: &ContainerPlan,
        pin: &ProcessRef,
    ) -> Result<Started, ContainerError> {
        self.step("containers.start", plan.name.clone(), at_once, |node| start(node, plan, pin)).await
    }

    async fn stop_container(
        &self,
        id: &ContainerId,
        incarnation: u32,
        signal: u32,
        grace: Span,
        pin: Option<&ProcessRef>,
    ) -> Result<ExitObserved, ContainerError> {
        let takes = |node: &Node| if ignores(node, id, incarnation, signal) { grace } else { Span(0) };
        self.step("containers.stop", id.to_string(), takes, |node| {
            let signal = if ignores(node, id, incarnation, signal) { SIGKILL } else { signal };
            let code = 128 + i32::try_from(signal).unwrap_or(0);
            if let Some((init, start)) = node.init_of(id).map(|(init, start)| (init.clone(), start))
                && start == incarnation
            {
                node.end_asked(&init, Some(id), code);
            }
            let exit = exit_code(node, id, incarnation);
            clean(node, id, incarnation, pin)?;
            Ok(ExitObserved { code: exit })
        })
        .await
    }

    async fn clean_container(
        &self,
        id: &ContainerId,
        incarnation: u32,
        pin: Option<&ProcessRef>,
    ) -> Result<(), ContainerError> {
        self.step("containers.clean", id.to_string(), at_once, |node| {
            if node.init_of(id).is_some_and(|(_, start)| start <= incarnation) {
                return Err((Class::Conflict, "its process lives".to_owned()));
            }
            clean(node, id, incarnation, pin)?;
            if let Some(files) = node.disk.containers.get_mut(id).filter(|_| pin.is_some()) {
                files.exits.retain(|start, _| *start > incarnation);
            }
            Ok(())
        })
        .await
    }

    async fn remove_files(&self, id: &ContainerId, pin: Option<&ProcessRef>) -> Result<(), ContainerError> {
        self.step("containers.remove_files", id.to_string(), at_once, |node| {
            if node.init_of(id).is_some() {
                return Err((Class::Conflict, "its process lives".to_owned()));
            }
            if node.disk.containers.contains_key(id)
                && pin.is_some_and(|pin| node.inside_of(pin).mount.is_none())
            {
                return Err((Class::Transient, "the pin is dead, the root cannot be unmounted".to_owned()));
            }
            node.disk.containers.remove(id);
            Ok(())
        })
        .await
    }
}

fn ignores(node: &Node, id: &ContainerId, incarnation: u32, signal: u32) -> bool {
    let init = node.init_of(id).filter(|(_, start)| *start == incarnation);
    let role = init.and_then(|(init, _)| node.processes.get(init)).map(|process| &process.role);
    signal != SIGKILL && matches!(role, Some(Role::Init { stubborn: true, .. }))
}

fn exit_code(node: &Node, id: &ContainerId, incarnation: u32) -> Option<i32> {
    node.disk.containers.get(id)?.exits.get(&incarnation).copied()
}

fn observe(node: &Node, hint: &ContainerHint) -> ContainerObserved {
    let state = node.runtime.get(&hint.id);
    let of_hint = state.filter(|state| state.incarnation == hint.incarnation);
    let alive = |process: &ProcessRef| node.processes.get(process).is_some();
    // The runtime's state names a start that the records do not know of yet; either counts while it lives.
    let known = of_hint.map(|state| (&state.init, &state.monitor));
    let known = known.or(hint.running.as_ref().map(|(init, monitor)| (init, monitor)));
    let init = known.map(|(init, _)| init.clone()).filter(alive);
    let netns = init.as_ref().and_then(|init| {
        let member = &node.processes.get(init)?.member;
        node.namespaces.inode(node.namespaces.find(member, |content| matches!(content, Content::Sandbox(_)))?)
    });
    let ended = known.is_some() && init.is_none();
    let code = exit_code(node, &hint.id, hint.incarnation);
    let files = node.disk.containers.get(&hint.id);
    ContainerObserved {
        netns,
        monitor: known.map(|(_, monitor)| monitor.clone()).filter(alive),
        exit: (init.is_none() && (ended || code.is_some())).then_some(ExitObserved { code }),
        remains: state.is_some() || files.is_some_and(|files| !files.starts.is_empty()),
        init,
        basis: None,
    }
}

fn start(node: &mut Node, plan: &ContainerPlan, pin: &ProcessRef) -> Result<Started, Refused> {
    if let Some(state) = node.runtime.get(&plan.id) {
        let lives = node.processes.get(&state.init).is_some();
        if lives && state.incarnation == plan.incarnation {
            return Ok(Started { init: state.init.clone(), monitor: state.monitor.clone() });
        }
        let what = if lives { "runs" } else { "has left its state" };
        return Err((Class::Conflict, format!("start {} of it {what}", state.incarnation)));
    }
    let inside = node.inside_of(pin);
    let (Some(user), Some(net), Some(mount)) = (inside.user, inside.net, inside.mount) else {
        return Err((Class::Transient, "the pin is dead".to_owned()));
    };
    let missing = || (Class::Missing, format!("sandbox {} is not bound", plan.sandbox));
    let mounts = node.namespaces.mounts_mut(mount).ok_or_else(missing)?;
    let sandbox = mounts.sandboxes.get(&plan.sandbox).copied().ok_or_else(missing)?;
    mounts.roots.insert(plan.id.clone());
    let files = node.disk.containers.entry(plan.id.clone()).or_default();
    files.starts.insert(plan.incarnation);
    files.exits.remove(&plan.incarnation);
    let (container, incarnation) = (plan.id.clone(), plan.incarnation);
    let monitor =
        node.spawn(Role::Monitor { container: container.clone(), incarnation }, &[user, net, mount], &[]);
    // After pivot_root it is in a mount namespace of its own, without the node's binds: no keeper.
    let stubborn = node.stubborn.contains(&plan.name);
    let init = node.spawn(Role::Init { container, incarnation, stubborn }, &[user, sandbox], &[]);
    let state = RuntimeState {
        incarnation,
        init: init.clone(),
        monitor: monitor.clone(),
        sandbox: plan.sandbox.clone(),
        plan: Box::new(plan.clone()),
    };
    node.runtime.insert(plan.id.clone(), state);
    Ok(Started { init, monitor })
}

/// Deletes runtime state, mount and monitor of a dead start and of those before it; how they ended is kept, so that
/// an end that is asked for twice is told twice. With a dead pin the mount cannot be reached, and the state stays so
/// that somebody comes back for it. Without a pin nobody knows whether the mount is gone (descriptors may keep it):
/// the files stay, which says that something remains.
fn clean(
    node: &mut Node,
    id: &ContainerId,
    incarnation: u32,
    pin: Option<&ProcessRef>,
) -> Result<(), Refused> {
    if let Some(state) = node.runtime.get(id).filter(|state| state.incarnation <= incarnation).cloned() {
        node.kill(&state.monitor, KILLED);
        if let Some(pin) = pin {
            unmount(node, id, pin)?;
        }
        node.runtime.remove(id);
    }
    let Some(pin) = pin else { return Ok(()) };
    if node
        .disk
        .containers
        .get(id)
        .is_some_and(|files| files.starts.iter().any(|start| *start <= incarnation))
        && !node.runtime.contains_key(id)
    {
        unmount(node, id, pin)?;
    }
    if let Some(files) = node.disk.containers.get_mut(id) {
        files.starts.retain(|start| *start > incarnation);
    }
    Ok(())
}

fn unmount(node: &mut Node, id: &ContainerId, pin: &ProcessRef) -> Result<(), Refused> {
    let dead = || (Class::Transient, "the pin is dead, the root cannot be unmounted".to_owned());
    let mount = node.inside_of(pin).mount.ok_or_else(dead)?;
    if let Some(mounts) = node.namespaces.mounts_mut(mount) {
        mounts.roots.remove(id);
    }
    Ok(())
}
