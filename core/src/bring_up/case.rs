//! Which of the five cases it is.

use super::control_steps;
use crate::{
    observed::{ControlObserved, Keeper, KeeperObserved, Observed},
    plan::{AdoptSource, Step},
};
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

/// The five cases, mildest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Case {
    /// The pin lives and the control answers.
    Nothing,
    /// The pin lives, the control does not answer.
    Control,
    /// The pin is dead, its router is reachable through a keeper.
    Adopt,
    /// The router is gone, a workload lives.
    Replug,
    /// Nothing lives.
    Rebuild,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing",
            Self::Control => "control",
            Self::Adopt => "adopt",
            Self::Replug => "replug",
            Self::Rebuild => "rebuild",
        })
    }
}

/// Decides the case and the steps for pin and control.
pub fn decide(observed: &Observed) -> (Case, Vec<Step>) {
    let keepers = &observed.keepers;
    if keepers.pin.is_some() {
        let case = match keepers.control {
            ControlObserved::Answering(_) => Case::Nothing,
            _ => Case::Control,
        };
        return (case, control_steps(&keepers.control));
    }
    if let Some(source) = adopt_source(&keepers.keepers) {
        let mut steps = alloc::vec![Step::AdoptNamespaces(source)];
        steps.extend(control_steps(&keepers.control));
        return (Case::Adopt, steps);
    }
    // The old router is gone, and with it the use of whatever control is left.
    let mut steps = Vec::new();
    let living = living_workload(observed);
    let case = if living.is_some() { Case::Replug } else { Case::Rebuild };
    steps.push(living.map_or(Step::CreateNamespaces, Step::EnterUserNamespace));
    match &keepers.control {
        ControlObserved::Answering(process)
        | ControlObserved::Foreign(process, _)
        | ControlObserved::Silent(Some(process)) => steps.push(Step::StopControl(process.clone())),
        ControlObserved::Absent | ControlObserved::Silent(None) => {}
    }
    steps.push(Step::StartControl);
    (case, steps)
}

/// The best way into a living router: one keeper for all three namespaces where there is one, else the user
/// and network namespaces from whoever has them.
fn adopt_source(keepers: &[KeeperObserved]) -> Option<AdoptSource> {
    let best = |leads: fn(&KeeperObserved) -> bool| {
        keepers.iter().filter(|keeper| leads(keeper)).min_by_key(|keeper| rank(&keeper.keeper))
    };
    if let Some(whole) = best(|keeper| keeper.user && keeper.net && keeper.mount) {
        let keeper = &whole.keeper;
        return Some(AdoptSource { user: keeper.clone(), net: keeper.clone(), mount: Some(keeper.clone()) });
    }
    let net = best(|keeper| keeper.net || mutant!(KeeperTakenUnseen))?;
    let user = best(|keeper| keeper.user)?;
    let mount = best(|keeper| keeper.mount).map(|keeper| keeper.keeper.clone());
    Some(AdoptSource { user: user.keeper.clone(), net: net.keeper.clone(), mount })
}

/// A workload's process always leads to the user namespace; the observation of keepers may or may not list it.
fn living_workload(observed: &Observed) -> Option<Keeper> {
    let listed = observed.keepers.keepers.iter().filter(|keeper| keeper.user).map(|keeper| &keeper.keeper);
    listed.min_by_key(|keeper| rank(keeper)).cloned().or_else(|| {
        observed
            .containers
            .iter()
            .find_map(|(id, container)| Some(Keeper::Workload(id.clone(), container.init.clone()?)))
    })
}

/// Own descriptors cost nothing to use; a workload is entered last.
fn rank(keeper: &Keeper) -> u8 {
    match keeper {
        Keeper::Pin(_) => 0,
        Keeper::Descriptors => 1,
        Keeper::Control(_) => 2,
        Keeper::Monitor(..) => 3,
        Keeper::Uplink(_) => 4,
        Keeper::Workload(..) => 5,
    }
}
