//! The node on this machine: core's `World`, put together from its parts.

use crate::{
    container::{LinuxContainers, Tools},
    image::{ImageLimits, LinuxImages},
    keeper::{HeldNamespaces, LinuxKeepers},
    paths::Paths,
    pods::LinuxPodFiles,
    protocol::{ControlClient, Role},
    store::SqliteStore,
    uplink::{LinuxUplink, UplinkConfig},
};
use holdfast_core::{
    error::{Class, ContainerError, KeeperError, RouterError, StoreError, UplinkError, VolumeError},
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
        Probe, Router, Snapshot, Started, Store, Uplink,
    },
};
use nix::time::{ClockId, clock_gettime};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// This very build, also after the file was replaced by an upgrade: proc_pid_exe(5).
const OWN_EXE: &str = "/proc/self/exe";

/// A `World` of parts. Which program it is opened by decides what runs as pin and control: the program itself,
/// whose `main` must begin with [`crate::internal::dispatch`].
#[derive(Debug)]
pub struct LinuxWorld {
    /// Directories.
    pub paths: Paths,
    /// Records.
    pub store: SqliteStore,
    /// Pin and control.
    pub keepers: LinuxKeepers,
    /// The control, by its protocol.
    pub router: ControlClient,
    /// The uplink helper.
    pub uplink: LinuxUplink,
    /// Containers.
    pub containers: LinuxContainers,
    /// Images.
    pub images: LinuxImages,
    /// Files of offloaded pods.
    pub pods: LinuxPodFiles,
}

impl LinuxWorld {
    /// Opens the store and wires the parts. `held` are the descriptors of the namespaces that the service manager
    /// kept, or none.
    ///
    /// # Errors
    /// As [`SqliteStore::open`]; `Fatal` when the boot id cannot be read.
    pub fn open(paths: &Paths, held: HeldNamespaces) -> Result<Self, StoreError> {
        let held = Arc::new(held);
        let store = SqliteStore::open(&paths.database())?;
        let tools = Tools::find(PathBuf::from(OWN_EXE));
        let keepers = LinuxKeepers::new(paths.clone(), OWN_EXE, Arc::clone(&held))
            .map_err(|error| StoreError::new(Class::Fatal, "read", "boot id", error))?;
        Ok(Self {
            paths: paths.clone(),
            store,
            keepers,
            router: ControlClient::new(paths, Role::Daemon),
            uplink: LinuxUplink::new(paths.clone(), UplinkConfig::default(), held),
            containers: LinuxContainers::new(paths.clone(), tools.clone()),
            images: LinuxImages::new(paths.clone(), tools.clone(), ImageLimits::default()),
            pods: LinuxPodFiles::new(paths.clone(), tools),
        })
    }

    /// The recorded pin; whoever enters through it finds out whether it lives.
    pub async fn recorded_pin(&self) -> Option<ProcessRef> {
        self.store.read(|records| records.node.as_ref().and_then(|node| node.pin.clone())).await
    }
}

impl Clock for LinuxWorld {
    fn now(&self) -> Mono {
        // CLOCK_BOOTTIME has existed since Linux 2.6.39: reading it cannot fail.
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
        Mono(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
    }

    fn wall(&self) -> Wall {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Wall(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    async fn sleep(&self, span: Span) {
        tokio::time::sleep(Duration::from_nanos(span.0)).await;
    }
}

impl Entropy for LinuxWorld {
    fn fill(&self, bytes: &mut [u8]) {
        let mut filled = 0;
        while filled < bytes.len() {
            let rest = &mut bytes[filled..];
            // SAFETY: pointer and length are of one slice that is writable during the call.
            let read = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
            // getrandom(2): without flags it fails with EINTR alone (or on a kernel older than 3.17).
            filled += usize::try_from(read).unwrap_or(0);
        }
    }
}

impl Keepers for LinuxWorld {
    fn boot_id(&self) -> BootId {
        self.keepers.boot_id()
    }

    async fn observe_keepers(&self, hints: &KeeperHints) -> Result<KeepersObserved, KeeperError> {
        self.keepers.observe_keepers(hints).await
    }

    async fn create_namespaces(&self) -> Result<PinStarted, KeeperError> {
        self.keepers.create_namespaces().await
    }

    async fn adopt_namespaces(
        &self,
        source: &AdoptSource,
        hints: &KeeperHints,
    ) -> Result<PinStarted, KeeperError> {
        self.keepers.adopt_namespaces(source, hints).await
    }

    async fn enter_user_namespace(&self, keeper: &Keeper) -> Result<PinStarted, KeeperError> {
        self.keepers.enter_user_namespace(keeper).await
    }

    async fn stop_process(&self, process: &ProcessRef) -> Result<(), KeeperError> {
        self.keepers.stop_process(process).await
    }

    async fn start_control(&self, pin: &ProcessRef) -> Result<ProcessRef, KeeperError> {
        self.keepers.start_control(pin).await
    }
}

impl Router for LinuxWorld {
    async fn observe_router(&self) -> Result<RouterObserved, RouterError> {
        self.router.observe_router().await
    }

    async fn ensure_ruleset(&self, ruleset: &Ruleset) -> Result<(), RouterError> {
        self.router.ensure_ruleset(ruleset).await
    }

    async fn add_elements(&self, elements: &BTreeSet<Element>) -> Result<(), RouterError> {
        self.router.add_elements(elements).await
    }

    async fn remove_elements(&self, elements: &BTreeSet<Element>) -> Result<(), RouterError> {
        self.router.remove_elements(elements).await
    }

    async fn count_verdicts(&self) -> Result<Vec<(Element, Counter)>, RouterError> {
        self.router.count_verdicts().await
    }

    async fn ensure_network(&self, plan: &NetworkPlan) -> Result<(), RouterError> {
        self.router.ensure_network(plan).await
    }

    async fn remove_network(&self, plan: &NetworkPlan) -> Result<(), RouterError> {
        self.router.remove_network(plan).await
    }

    async fn ensure_sandbox(&self, plan: &SandboxPlan) -> Result<(), RouterError> {
        self.router.ensure_sandbox(plan).await
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RouterError> {
        self.router.remove_sandbox(id).await
    }

    async fn attach(&self, plan: &AttachmentPlan) -> Result<(), RouterError> {
        self.router.attach(plan).await
    }

    async fn detach(&self, slot: Slot) -> Result<(), RouterError> {
        self.router.detach(slot).await
    }

    async fn probe(&self, probe: &Probe) -> Result<bool, RouterError> {
        self.router.probe(probe).await
    }

    async fn hand_snapshot(&self, snapshot: &Snapshot) -> Result<(), RouterError> {
        self.router.hand_snapshot(snapshot).await
    }
}

impl Uplink for LinuxWorld {
    async fn observe_uplink(&self, hint: Option<&ProcessRef>) -> Result<UplinkObserved, UplinkError> {
        self.uplink.observe_uplink(hint).await
    }

    async fn observe_host(&self) -> Result<HostObserved, UplinkError> {
        self.uplink.observe_host().await
    }

    async fn start_uplink(&self, pin: &ProcessRef) -> Result<ProcessRef, UplinkError> {
        self.uplink.start_uplink(pin).await
    }

    async fn publish(&self, port: &PortRecord) -> Result<(), UplinkError> {
        self.uplink.publish(port).await
    }

    async fn unpublish(&self, port: &PortRecord) -> Result<(), UplinkError> {
        self.uplink.unpublish(port).await
    }
}

impl Containers for LinuxWorld {
    async fn observe_containers(
        &self,
        hints: &[ContainerHint],
    ) -> Result<BTreeMap<ContainerId, ContainerObserved>, ContainerError> {
        self.containers.observe_containers(hints).await
    }

    async fn start_container(
        &self,
        plan: &ContainerPlan,
        pin: &ProcessRef,
    ) -> Result<Started, ContainerError> {
        self.containers.start_container(plan, pin).await
    }

    async fn stop_container(
        &self,
        id: &ContainerId,
        incarnation: u32,
        signal: u32,
        grace: Span,
        pin: Option<&ProcessRef>,
    ) -> Result<ExitObserved, ContainerError> {
        self.containers.stop_container(id, incarnation, signal, grace, pin).await
    }

    async fn clean_container(
        &self,
        id: &ContainerId,
        incarnation: u32,
        pin: Option<&ProcessRef>,
    ) -> Result<(), ContainerError> {
        self.containers.clean_container(id, incarnation, pin).await
    }

    async fn remove_files(&self, id: &ContainerId, pin: Option<&ProcessRef>) -> Result<(), ContainerError> {
        self.containers.remove_files(id, pin).await
    }
}

impl PodFiles for LinuxWorld {
    fn pod_place(&self, jid: &str) -> PodPlace {
        self.pods.place(jid)
    }

    async fn write_volumes(&self, jid: &str, volumes: &[VolumeWanted]) -> Result<(), VolumeError> {
        self.pods.write_volumes(jid, volumes).await
    }

    async fn keep_logs(&self, jid: &str, logs: &[(ContainerId, String)]) -> Result<(), VolumeError> {
        self.pods.keep_logs(jid, logs).await
    }

    async fn remove_volumes(&self, jid: &str) -> Result<(), VolumeError> {
        self.pods.remove_volumes(jid).await
    }

    async fn remove_pod_files(&self, jid: &str) -> Result<(), VolumeError> {
        self.pods.remove_pod_files(jid).await
    }
}

impl Store for LinuxWorld {
    async fn read<T: Send>(&self, read: impl FnOnce(&Records) -> T + Send) -> T {
        self.store.read(read).await
    }

    async fn transact<T: Send, E: Send>(
        &self,
        durability: Durability,
        decide: impl FnOnce(&Records) -> Result<(Vec<Change>, T), E> + Send,
    ) -> Result<Result<T, E>, StoreError> {
        self.store.transact(durability, decide).await
    }
}
