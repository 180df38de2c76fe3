//! A `World` that remembers what was started through it: what a case made, it must be possible to take away again
//! by the World's own calls, and then nothing may be left.

use holdfast_core::{
    error::{ContainerError, KeeperError, RouterError, StoreError, UplinkError, VolumeError},
    id::{BootId, ContainerId, ProcessRef, SandboxId, Slot},
    interlink::{next::PodPlace, record::VolumeWanted},
    observed::{
        ContainerObserved, ExitObserved, HostObserved, Keeper, KeepersObserved, RouterObserved,
        UplinkObserved,
    },
    plan::{AdoptSource, AttachmentPlan, ContainerPlan, NetworkPlan, SandboxPlan},
    record::{Change, PortRecord, Records},
    ruleset::{Counter, Element, Ruleset},
    time::{Mono, Span, Wall},
    world::{
        Clock, ContainerHint, Containers, Durability, Entropy, KeeperHints, Keepers, PinStarted, PodFiles,
        Probe, Router, Snapshot, Started, Store, Uplink, World,
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
};

/// SIGKILL.
const SIGKILL: u32 = 9;

#[derive(Debug, Default)]
struct Made {
    /// Pins, controls and helpers, in the order of their start.
    processes: Vec<ProcessRef>,
    /// The last pin.
    pin: Option<ProcessRef>,
    /// Containers with their highest start.
    containers: BTreeMap<ContainerId, u32>,
}

/// See the module.
#[derive(Debug)]
pub struct Recording<W> {
    world: W,
    made: Mutex<Made>,
}

impl<W: World> Recording<W> {
    /// Remembers from now on.
    pub fn new(world: W) -> Self {
        Self { world, made: Mutex::default() }
    }

    fn made(&self) -> std::sync::MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn started(&self, process: &ProcessRef, pin: bool) {
        let mut made = self.made();
        made.processes.push(process.clone());
        if pin {
            made.pin = Some(process.clone());
        }
    }

    fn pinned(&self, result: Result<PinStarted, KeeperError>) -> Result<PinStarted, KeeperError> {
        result.inspect(|started| self.started(&started.process, true))
    }

    /// Takes everything away: containers with their files, then the processes, the last first.
    ///
    /// # Errors
    /// What could not be taken away.
    pub async fn end(&self) -> Result<(), String> {
        let Made { processes, pin, containers } = std::mem::take(&mut *self.made());
        for (id, incarnation) in containers {
            let stopped = self.world.stop_container(&id, incarnation, SIGKILL, Span(0), pin.as_ref()).await;
            stopped.map(drop).map_err(|error| format!("stop container {id}: {error}"))?;
            let removed = self.world.remove_files(&id, pin.as_ref()).await;
            removed.map_err(|error| format!("remove files of {id}: {error}"))?;
        }
        for process in processes.iter().rev() {
            self.world.stop_process(process).await.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

impl<W: World> Clock for Recording<W> {
    fn now(&self) -> Mono {
        self.world.now()
    }
    fn wall(&self) -> Wall {
        self.world.wall()
    }
    async fn sleep(&self, span: Span) {
        self.world.sleep(span).await;
    }
}

impl<W: World> Entropy for Recording<W> {
    fn fill(&self, bytes: &mut [u8]) {
        self.world.fill(bytes);
    }
}

impl<W: World> Keepers for Recording<W> {
    fn boot_id(&self) -> BootId {
        self.world.boot_id()
    }
    async fn observe_keepers(&self, hints: &KeeperHints) -> Result<KeepersObserved, KeeperError> {
        self.world.observe_keepers(hints).await
    }
    async fn create_namespaces(&self) -> Result<PinStarted, KeeperError> {
        self.pinned(self.world.create_namespaces().await)
    }
    async fn adopt_namespaces(
        &self,
        source: &AdoptSource,
        hints: &KeeperHints,
    ) -> Result<PinStarted, KeeperError> {
        self.pinned(self.world.adopt_namespaces(source, hints).await)
    }
    async fn enter_user_namespace(&self, keeper: &Keeper) -> Result<PinStarted, KeeperError> {
        self.pinned(self.world.enter_user_namespace(keeper).await)
    }
    async fn stop_process(&self, process: &ProcessRef) -> Result<(), KeeperError> {
        self.world.stop_process(process).await
    }
    async fn start_control(&self, pin: &ProcessRef) -> Result<ProcessRef, KeeperError> {
        self.world.start_control(pin).await.inspect(|process| self.started(process, false))
    }
}

impl<W: World> Router for Recording<W> {
    async fn observe_router(&self) -> Result<RouterObserved, RouterError> {
        self.world.observe_router().await
    }
    async fn ensure_ruleset(&self, ruleset: &Ruleset) -> Result<(), RouterError> {
        self.world.ensure_ruleset(ruleset).await
    }
    async fn add_elements(&self, elements: &BTreeSet<Element>) -> Result<(), RouterError> {
        self.world.add_elements(elements).await
    }
    async fn remove_elements(&self, elements: &BTreeSet<Element>) -> Result<(), RouterError> {
        self.world.remove_elements(elements).await
    }
    async fn count_verdicts(&self) -> Result<Vec<(Element, Counter)>, RouterError> {
        self.world.count_verdicts().await
    }
    async fn ensure_network(&self, plan: &NetworkPlan) -> Result<(), RouterError> {
        self.world.ensure_network(plan).await
    }
    async fn remove_network(&self, plan: &NetworkPlan) -> Result<(), RouterError> {
        self.world.remove_network(plan).await
    }
    async fn ensure_sandbox(&self, plan: &SandboxPlan) -> Result<(), RouterError> {
        self.world.ensure_sandbox(plan).await
    }
    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RouterError> {
        self.world.remove_sandbox(id).await
    }
    async fn attach(&self, plan: &AttachmentPlan) -> Result<(), RouterError> {
        self.world.attach(plan).await
    }
    async fn detach(&self, slot: Slot) -> Result<(), RouterError> {
        self.world.detach(slot).await
    }
    async fn probe(&self, probe: &Probe) -> Result<bool, RouterError> {
        self.world.probe(probe).await
    }
    async fn hand_snapshot(&self, snapshot: &Snapshot) -> Result<(), RouterError> {
        self.world.hand_snapshot(snapshot).await
    }
}

impl<W: World> Uplink for Recording<W> {
    async fn observe_uplink(&self, hint: Option<&ProcessRef>) -> Result<UplinkObserved, UplinkError> {
        self.world.observe_uplink(hint).await
    }
    async fn observe_host(&self) -> Result<HostObserved, UplinkError> {
        self.world.observe_host().await
    }
    async fn start_uplink(&self, pin: &ProcessRef) -> Result<ProcessRef, UplinkError> {
        self.world.start_uplink(pin).await.inspect(|process| self.started(process, false))
    }
    async fn publish(&self, port: &PortRecord) -> Result<(), UplinkError> {
        self.world.publish(port).await
    }
    async fn unpublish(&self, port: &PortRecord) -> Result<(), UplinkError> {
        self.world.unpublish(port).await
    }
}

impl<W: World> Containers for Recording<W> {
    async fn observe_containers(
        &self,
        hints: &[ContainerHint],
    ) -> Result<BTreeMap<ContainerId, ContainerObserved>, ContainerError> {
        self.world.observe_containers(hints).await
    }
    async fn start_container(
        &self,
        plan: &ContainerPlan,
        pin: &ProcessRef,
    ) -> Result<Started, ContainerError> {
        {
            // Also a start that fails may leave something.
            let mut made = self.made();
            let highest = made.containers.entry(plan.id.clone()).or_default();
            *highest = (*highest).max(plan.incarnation);
        }
        self.world.start_container(plan, pin).await
    }
    async fn stop_container(
        &self,
        id: &ContainerId,
        incarnation: u32,
        signal: u32,
        grace: Span,
        pin: Option<&ProcessRef>,
    ) -> Result<ExitObserved, ContainerError> {
        self.world.stop_container(id, incarnation, signal, grace, pin).await
    }
    async fn clean_container(
        &self,
        id: &ContainerId,
        incarnation: u32,
        pin: Option<&ProcessRef>,
    ) -> Result<(), ContainerError> {
        self.world.clean_container(id, incarnation, pin).await
    }
    async fn remove_files(&self, id: &ContainerId, pin: Option<&ProcessRef>) -> Result<(), ContainerError> {
        self.world.remove_files(id, pin).await
    }
}

impl<W: World> PodFiles for Recording<W> {
    fn pod_place(&self, jid: &str) -> PodPlace {
        self.world.pod_place(jid)
    }
    async fn write_volumes(&self, jid: &str, volumes: &[VolumeWanted]) -> Result<(), VolumeError> {
        self.world.write_volumes(jid, volumes).await
    }
    async fn keep_logs(&self, jid: &str, logs: &[(ContainerId, String)]) -> Result<(), VolumeError> {
        self.world.keep_logs(jid, logs).await
    }
    async fn remove_volumes(&self, jid: &str) -> Result<(), VolumeError> {
        self.world.remove_volumes(jid).await
    }
    async fn remove_pod_files(&self, jid: &str) -> Result<(), VolumeError> {
        self.world.remove_pod_files(jid).await
    }
}

impl<W: World> Store for Recording<W> {
    async fn read<T: Send>(&self, read: impl FnOnce(&Records) -> T + Send) -> T {
        self.world.read(read).await
    }
    async fn transact<T: Send, E: Send>(
        &self,
        durability: Durability,
        decide: impl FnOnce(&Records) -> Result<(Vec<Change>, T), E> + Send,
    ) -> Result<Result<T, E>, StoreError> {
        self.world.transact(durability, decide).await
    }
}
