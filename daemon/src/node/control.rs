//! The process `control`: the protocol's server with the router's hands.

use holdfast_core::{
    error::RouterError,
    id::{SandboxId, Slot},
    observed::RouterObserved,
    plan::{AttachmentPlan, NetworkPlan, SandboxPlan},
    ruleset::{Element, Ruleset},
    world::Probe,
};
use holdfast_linux::{
    net::RouterHands,
    paths::Paths,
    protocol::{Hands, control_main_with},
};
use std::{collections::BTreeSet, ffi::OsString, path::PathBuf, process::ExitCode};

/// Runs the control; `arguments` are the node's directories, as the daemon gives them.
pub fn main(arguments: &[OsString]) -> ExitCode {
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).map(PathBuf::from)
    };
    let (Some(state), Some(runtime)) = (value("--state"), value("--runtime")) else {
        eprintln!("holdfast control: it is started by the daemon: --state and --runtime name the node");
        return ExitCode::from(2);
    };
    // To stderr, which the daemon has made the control's own log; nothing else may start a thread here.
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).finish();
    if tracing::subscriber::set_global_default(subscriber).is_err() {
        eprintln!("holdfast control: logging is set up already");
    }
    let code = control_main_with(Paths { state, runtime }, |paths| async move {
        let mut hands = RouterHands::open(&paths).await?;
        hands.ensure_inside().await?;
        Ok(Worker(hands))
    });
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// The router's hands, as the protocol's worker calls them.
struct Worker(RouterHands);

impl Hands for Worker {
    async fn observe_router(&mut self) -> Result<RouterObserved, RouterError> {
        self.0.observe_router().await
    }

    async fn ensure_ruleset(&mut self, ruleset: &Ruleset) -> Result<(), RouterError> {
        self.0.ensure_ruleset(ruleset).await
    }

    async fn add_elements(&mut self, elements: &BTreeSet<Element>) -> Result<(), RouterError> {
        self.0.add_elements(elements).await
    }

    async fn remove_elements(&mut self, elements: &BTreeSet<Element>) -> Result<(), RouterError> {
        self.0.remove_elements(elements).await
    }

    async fn ensure_network(&mut self, plan: &NetworkPlan) -> Result<(), RouterError> {
        self.0.ensure_network(plan).await
    }

    async fn remove_network(&mut self, plan: &NetworkPlan) -> Result<(), RouterError> {
        self.0.remove_network(plan).await
    }

    async fn ensure_sandbox(&mut self, plan: &SandboxPlan) -> Result<(), RouterError> {
        self.0.ensure_sandbox(plan).await
    }

    async fn remove_sandbox(&mut self, id: &SandboxId) -> Result<(), RouterError> {
        self.0.remove_sandbox(id).await
    }

    async fn attach(&mut self, plan: &AttachmentPlan) -> Result<(), RouterError> {
        self.0.attach(plan).await
    }

    async fn detach(&mut self, slot: Slot) -> Result<(), RouterError> {
        self.0.detach(slot).await
    }

    async fn probe(&mut self, probe: &Probe) -> Result<bool, RouterError> {
        self.0.probe(probe).await
    }
}
