//! What the worker does the work with.

use crate::net::RouterHands;
use holdfast_core::{
    error::RouterError,
    id::{SandboxId, Slot},
    observed::RouterObserved,
    plan::{AttachmentPlan, NetworkPlan, SandboxPlan},
    ruleset::{Counter, Element, Ruleset},
    world::Probe,
};
use std::collections::BTreeSet;

/// Core's `Router` as the one worker of a control does it: serialized, hence `&mut self`, and on one thread,
/// hence without `Send`.
#[allow(async_fn_in_trait)]
pub trait Hands {
    /// See [`holdfast_core::world::Router::observe_router`].
    async fn observe_router(&mut self) -> Result<RouterObserved, RouterError>;
    /// See [`holdfast_core::world::Router::ensure_ruleset`].
    async fn ensure_ruleset(&mut self, ruleset: &Ruleset) -> Result<(), RouterError>;
    /// See [`holdfast_core::world::Router::add_elements`].
    async fn add_elements(&mut self, elements: &BTreeSet<Element>) -> Result<(), RouterError>;
    /// See [`holdfast_core::world::Router::remove_elements`].
    async fn remove_elements(&mut self, elements: &BTreeSet<Element>) -> Result<(), RouterError>;
    /// See [`holdfast_core::world::Router::count_verdicts`].
    async fn count_verdicts(&mut self) -> Result<Vec<(Element, Counter)>, RouterError>;
    /// See [`holdfast_core::world::Router::ensure_network`].
    async fn ensure_network(&mut self, plan: &NetworkPlan) -> Result<(), RouterError>;
    /// See [`holdfast_core::world::Router::remove_network`].
    async fn remove_network(&mut self, plan: &NetworkPlan) -> Result<(), RouterError>;
    /// See [`holdfast_core::world::Router::ensure_sandbox`].
    async fn ensure_sandbox(&mut self, plan: &SandboxPlan) -> Result<(), RouterError>;
    /// See [`holdfast_core::world::Router::remove_sandbox`].
    async fn remove_sandbox(&mut self, id: &SandboxId) -> Result<(), RouterError>;
    /// See [`holdfast_core::world::Router::attach`].
    async fn attach(&mut self, plan: &AttachmentPlan) -> Result<(), RouterError>;
    /// See [`holdfast_core::world::Router::detach`].
    async fn detach(&mut self, slot: Slot) -> Result<(), RouterError>;
    /// See [`holdfast_core::world::Router::probe`].
    async fn probe(&mut self, probe: &Probe) -> Result<bool, RouterError>;
}

impl Hands for RouterHands {
    async fn observe_router(&mut self) -> Result<RouterObserved, RouterError> {
        Self::observe_router(self).await
    }
    async fn ensure_ruleset(&mut self, ruleset: &Ruleset) -> Result<(), RouterError> {
        Self::ensure_ruleset(self, ruleset).await
    }
    async fn add_elements(&mut self, elements: &BTreeSet<Element>) -> Result<(), RouterError> {
        Self::add_elements(self, elements).await
    }
    async fn remove_elements(&mut self, elements: &BTreeSet<Element>) -> Result<(), RouterError> {
        Self::remove_elements(self, elements).await
    }
    async fn count_verdicts(&mut self) -> Result<Vec<(Element, Counter)>, RouterError> {
        Self::count_verdicts(self).await
    }
    async fn ensure_network(&mut self, plan: &NetworkPlan) -> Result<(), RouterError> {
        Self::ensure_network(self, plan).await
    }
    async fn remove_network(&mut self, plan: &NetworkPlan) -> Result<(), RouterError> {
        Self::remove_network(self, plan).await
    }
    async fn ensure_sandbox(&mut self, plan: &SandboxPlan) -> Result<(), RouterError> {
        Self::ensure_sandbox(self, plan).await
    }
    async fn remove_sandbox(&mut self, id: &SandboxId) -> Result<(), RouterError> {
        Self::remove_sandbox(self, id).await
    }
    async fn attach(&mut self, plan: &AttachmentPlan) -> Result<(), RouterError> {
        Self::attach(self, plan).await
    }
    async fn detach(&mut self, slot: Slot) -> Result<(), RouterError> {
        Self::detach(self, slot).await
    }
    async fn probe(&mut self, probe: &Probe) -> Result<bool, RouterError> {
        Self::probe(self, probe).await
    }
}
