//! Core's traits over the model.

mod containers;
mod keepers;
mod pod_files;
mod router;
mod store;
mod uplink;

use crate::{Sim, model::Node, sim::Verdict};
use holdfast_core::{
    error::{Class, ContainerError, KeeperError, RouterError, StoreError, UplinkError, VolumeError},
    time::{Mono, Span, Wall},
    world::{Clock, Entropy},
};
use std::future::{Future, pending};

/// The node as one daemon sees it. A call of a dead daemon never comes back.
#[derive(Clone)]
pub struct SimWorld {
    pub(crate) sim: Sim,
    pub(crate) incarnation: u32,
}

/// How an error of a capability is made.
pub(crate) trait Capability: std::fmt::Display {
    fn of(class: Class, action: &str, subject: &str, cause: String) -> Self;
    fn class(&self) -> Class;
}

macro_rules! capability {
    ($($name:ident),*) => { $(
        impl Capability for $name {
            fn of(class: Class, action: &str, subject: &str, cause: String) -> Self {
                Self::new(class, action, subject, cause)
            }
            fn class(&self) -> Class {
                self.class
            }
        }
    )* };
}
capability!(KeeperError, RouterError, UplinkError, ContainerError, StoreError, VolumeError);

/// Why an effect did not happen: the class and the cause; call and subject are added at the step point.
pub(crate) type Refused = (Class, String);

impl SimWorld {
    /// One World call: the step point at which faults strike.
    ///
    /// `takes` says how long the call takes besides its latency; `effect` is the effect, all or nothing.
    pub(crate) async fn step<T: Send, E: Capability + Send>(
        &self,
        call: &'static str,
        subject: String,
        takes: impl FnOnce(&Node) -> Span + Send,
        effect: impl FnOnce(&mut Node) -> Result<T, Refused> + Send,
    ) -> Result<T, E> {
        let begun = {
            let mut state = self.sim.lock();
            state.begin(self.incarnation, call, &subject).map(|mut begun| {
                begun.takes = Span(begun.takes.0.saturating_add(takes(&state.node).0));
                begun
            })
        };
        let Some(begun) = begun else { return pending().await };
        if begun.takes.0 > 0 {
            self.sim.sleep(begun.takes).await;
        }
        let result = {
            let mut state = self.sim.lock();
            if state.caller_lives(self.incarnation) {
                let result = match begun.verdict() {
                    Verdict::Effect => state.effect(call, effect),
                    Verdict::Fail(class) => Err((class, "a fault was injected".to_owned())),
                    Verdict::EffectThenUnknown => {
                        let _ = state.effect(call, effect);
                        Err((Class::Unknown, "no answer came in time".to_owned()))
                    }
                };
                let result = result.map_err(|(class, cause)| E::of(class, call, &subject, cause));
                let outcome = result
                    .as_ref()
                    .err()
                    .map_or_else(|| "ok".to_owned(), |error| format!("{}: {error}", error.class()));
                state.end(self.incarnation, &begun, outcome).map(|()| result)
            } else {
                None
            }
        };
        match result {
            Some(result) => result,
            None => pending().await,
        }
    }
}

/// A call that takes nothing but its latency.
pub(crate) fn at_once(_: &Node) -> Span {
    Span(0)
}

impl Clock for SimWorld {
    fn now(&self) -> Mono {
        self.sim.lock().node.now()
    }

    fn wall(&self) -> Wall {
        self.sim.lock().node.wall()
    }

    fn sleep(&self, span: Span) -> impl Future<Output = ()> + Send {
        self.sim.sleep(span)
    }
}

impl Entropy for SimWorld {
    fn fill(&self, bytes: &mut [u8]) {
        let mut state = self.sim.lock();
        for chunk in bytes.chunks_mut(8) {
            let random = state.streams.entropy.next().to_le_bytes();
            chunk.iter_mut().zip(random).for_each(|(byte, random)| *byte = random);
        }
    }
}
