//! Hands for a control under test: they do to a file what real ones do to the kernel, and can be slow.

use holdfast_core::{
    error::{Class, RouterError},
    id::{NetworkId, SandboxId, Slot},
    observed::{BridgeObserved, RouterObserved},
    plan::{AttachmentPlan, NetworkPlan, SandboxPlan},
    ruleset::{Counter, Element, Ruleset},
    world::Probe,
};
use holdfast_linux::{keeper::namespace::own_namespaces, paths::Paths, protocol::Hands};
use std::{collections::BTreeSet, ffi::OsString, path::PathBuf, time::Duration};

pub fn control(arguments: &[OsString]) -> i32 {
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name).unwrap();
        PathBuf::from(&arguments[at + 1])
    };
    let paths = Paths { state: value("--state"), runtime: value("--runtime") };
    if paths.state.join("real").exists() {
        return holdfast_linux::protocol::control_main(paths);
    }
    holdfast_linux::protocol::control_main_with(paths, |paths| async move {
        if paths.state.join("refuse").exists() {
            return Err(RouterError::new(Class::Denied, "open", "netlink", "the test said so"));
        }
        Ok(FileHands { networks: paths.state.join("networks") })
    })
}

pub struct FileHands {
    networks: PathBuf,
}

impl Hands for FileHands {
    async fn observe_router(&mut self) -> Result<RouterObserved, RouterError> {
        let mut observed =
            RouterObserved { namespaces: own_namespaces().unwrap(), ..RouterObserved::default() };
        for name in std::fs::read_to_string(&self.networks).unwrap_or_default().lines() {
            observed.networks.insert(NetworkId::from_raw(name), BridgeObserved { index: 1, complete: true });
        }
        Ok(observed)
    }
    async fn ensure_ruleset(&mut self, _: &Ruleset) -> Result<(), RouterError> {
        Ok(())
    }
    async fn add_elements(&mut self, _: &BTreeSet<Element>) -> Result<(), RouterError> {
        Ok(())
    }
    async fn remove_elements(&mut self, _: &BTreeSet<Element>) -> Result<(), RouterError> {
        Err(RouterError::new(Class::Exhausted, "remove", "elements", "the test said so"))
    }
    async fn count_verdicts(&mut self) -> Result<Vec<(Element, Counter)>, RouterError> {
        Ok(Vec::new())
    }
    async fn ensure_network(&mut self, plan: &NetworkPlan) -> Result<(), RouterError> {
        std::fs::write(&self.networks, format!("{}\n", plan.id)).unwrap();
        Ok(())
    }
    async fn remove_network(&mut self, _: &NetworkPlan) -> Result<(), RouterError> {
        Ok(())
    }
    async fn ensure_sandbox(&mut self, _: &SandboxPlan) -> Result<(), RouterError> {
        Ok(())
    }
    async fn remove_sandbox(&mut self, _: &SandboxId) -> Result<(), RouterError> {
        Ok(())
    }
    async fn attach(&mut self, _: &AttachmentPlan) -> Result<(), RouterError> {
        Ok(())
    }
    /// Panics for the largest slot; else blocks its thread for so many milliseconds, as a synchronous netlink call would.
    async fn detach(&mut self, slot: Slot) -> Result<(), RouterError> {
        assert_ne!(slot.0, u32::MAX, "the test wants a panic");
        // Says that this very request is under way, so that a test need not guess when it is.
        std::fs::write(self.networks.with_file_name(format!("detaching-{}", slot.0)), b"").unwrap();
        std::thread::sleep(Duration::from_millis(u64::from(slot.0)));
        Ok(())
    }
    async fn probe(&mut self, probe: &Probe) -> Result<bool, RouterError> {
        Ok(probe.timeout_ms > 0)
    }
}
