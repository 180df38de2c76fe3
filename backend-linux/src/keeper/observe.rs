//! Looks at pin and control, and at every other way in where the pin is dead.

use super::{LinuxKeepers, namespace::namespaces_of};
use crate::{
    process::is_alive,
    protocol::{self, GreetError, Greeting, Role},
};
use holdfast_core::{
    error::KeeperError,
    id::ProcessRef,
    observed::{ControlObserved, KeepersObserved},
    world::KeeperHints,
};
use std::time::Duration;

/// How long a control may take to answer. It answers in under a millisecond, whatever its worker does; the rest
/// is for a machine that is busy with something else.
const CONTROL_DEADLINE: Duration = Duration::from_secs(2);

impl LinuxKeepers {
    pub(super) async fn observe(&self, hints: &KeeperHints) -> Result<KeepersObserved, KeeperError> {
        self.held.note_recorded(hints.namespaces);
        let pin = self.living_pin(hints);
        let keepers = match (&pin, &hints.namespaces) {
            (None, Some(recorded)) => self.sources(&self.paths.router_netns()).enumerate(hints, recorded),
            _ => Vec::new(),
        };
        let control = self.observe_control(hints).await;
        Ok(KeepersObserved { pin, keepers, control })
    }

    fn living_pin(&self, hints: &KeeperHints) -> Option<ProcessRef> {
        let (pin, recorded) = (hints.pin.as_ref()?, hints.namespaces?);
        match namespaces_of(pin) {
            Ok(Some(ids)) if ids == recorded => {}
            Ok(Some(ids)) => {
                tracing::warn!(%pin, ?ids, ?recorded, "the recorded pin is in other namespaces: not counted");
                return None;
            }
            Ok(None) => return None,
            Err(error) => {
                tracing::warn!(%pin, %error, "the recorded pin cannot be looked at: not counted");
                return None;
            }
        }
        if let Err(error) = self.held.hold(pin, recorded) {
            // It is alive; the daemon only is no second keeper now.
            tracing::warn!(%pin, %error, "the pin's namespaces cannot be held");
        }
        Some(pin.clone())
    }

    async fn observe_control(&self, hints: &KeeperHints) -> ControlObserved {
        let socket = self.paths.control_socket();
        match protocol::greet(&socket, Role::Daemon, CONTROL_DEADLINE).await {
            Ok((_, greeting)) => judge(greeting, hints),
            Err(GreetError::Absent(_)) => match hints.control.as_ref().filter(|control| is_alive(control)) {
                Some(control) => ControlObserved::Silent(Some(control.clone())),
                None => ControlObserved::Absent,
            },
            Err(GreetError::Silent(peer)) => {
                ControlObserved::Silent(peer.or_else(|| hints.control.clone()).filter(is_alive))
            }
            Err(GreetError::Foreign(Some(peer), cause)) => ControlObserved::Foreign(peer, cause),
            Err(GreetError::Foreign(None, cause)) => {
                tracing::warn!(socket = %socket.display(), cause, "who holds the control's socket cannot be told");
                ControlObserved::Silent(hints.control.clone().filter(is_alive))
            }
        }
    }
}

fn judge(greeting: Greeting, hints: &KeeperHints) -> ControlObserved {
    let process = greeting.process;
    match hints.namespaces {
        None => ControlObserved::Foreign(process, "no router is recorded".to_owned()),
        Some(recorded) if recorded.net != greeting.namespaces.net => ControlObserved::Foreign(
            process,
            format!("it lives in router {}, recorded is {}", greeting.namespaces.net.0, recorded.net.0),
        ),
        Some(recorded) if recorded.mount != greeting.namespaces.mount => ControlObserved::Foreign(
            process,
            format!(
                "it lives in mount namespace {}, recorded is {}",
                greeting.namespaces.mount.0, recorded.mount.0
            ),
        ),
        Some(_) => ControlObserved::Answering(process),
    }
}
