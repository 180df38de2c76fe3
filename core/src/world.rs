//! The seam: everything core asks of a node, as small capability traits.
//!
//! Every call is semantic and idempotent, and bounded by a deadline that the implementation keeps: a call
//! whose outcome it cannot know fails with [`crate::error::Class::Unknown`].
//! `ensure_*`, `attach`, `add_*` succeed when the thing is already as asked; `remove_*`, `detach`,
//! `unpublish` succeed when it is already gone.

use crate::{
    error::{ContainerError, KeeperError, RouterError, StoreError, UplinkError, VolumeError},
    id::{ContainerId, ProcessRef, SandboxId, Slot},
    interlink::{next::PodPlace, record::VolumeWanted},
    observed::{
        ContainerObserved, ExitObserved, HostObserved, Keeper, KeepersObserved, RouterObserved,
        UplinkObserved,
    },
    plan::{AdoptSource, AttachmentPlan, ContainerPlan, NetworkPlan, SandboxPlan},
    record::{Change, NamespaceIds, PortRecord, Records},
    ruleset::{Counter, Element, Ruleset},
    time::{Mono, Span, Wall},
    zone::Zone,
};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};
use core::{future::Future, net::IpAddr};
use serde::{Deserialize, Serialize};

/// Time.
pub trait Clock {
    /// Monotonic time of this boot.
    fn now(&self) -> Mono;
    /// Wall time, for people.
    fn wall(&self) -> Wall;
    /// Comes back after `span`.
    fn sleep(&self, span: Span) -> impl Future<Output = ()> + Send;
}

/// Randomness.
pub trait Entropy {
    /// Fills `bytes` with random bytes.
    fn fill(&self, bytes: &mut [u8]);
}

/// A pin that was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinStarted {
    /// The pin.
    pub process: ProcessRef,
    /// The namespaces it holds.
    pub namespaces: NamespaceIds,
}

/// What the records know of processes, so that an observation looks at these and nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperHints {
    /// Recorded namespaces; without them nothing can be a keeper.
    pub namespaces: Option<NamespaceIds>,
    /// Recorded pin.
    pub pin: Option<ProcessRef>,
    /// Recorded control.
    pub control: Option<ProcessRef>,
    /// Recorded uplink helper.
    pub uplink: Option<ProcessRef>,
    /// Recorded (init, monitor) of each container thought to run.
    pub containers: BTreeMap<ContainerId, (ProcessRef, ProcessRef)>,
}

/// Pin, control and the namespaces they hold.
///
/// A node has one pin: starting one ends any other of this node that still lives, which can only be one that a
/// daemon was killed before it could record.
pub trait Keepers {
    /// The running boot.
    fn boot_id(&self) -> crate::id::BootId;
    /// Looks at pin, control and every other way into the namespaces. Costs little while the pin lives: other
    /// keepers are looked for only where it does not.
    fn observe_keepers(
        &self,
        hints: &KeeperHints,
    ) -> impl Future<Output = Result<KeepersObserved, KeeperError>> + Send;
    /// Starts a pin in new user, net and mount namespaces, with the user's subordinate ids mapped.
    fn create_namespaces(&self) -> impl Future<Output = Result<PinStarted, KeeperError>> + Send;
    /// Starts a pin in existing namespaces.
    fn adopt_namespaces(
        &self,
        source: &AdoptSource,
        hints: &KeeperHints,
    ) -> impl Future<Output = Result<PinStarted, KeeperError>> + Send;
    /// Starts a pin in the user namespace that `keeper` leads to, with new net and mount namespaces.
    fn enter_user_namespace(
        &self,
        keeper: &Keeper,
    ) -> impl Future<Output = Result<PinStarted, KeeperError>> + Send;
    /// Ends exactly this process: SIGTERM, then SIGKILL; comes back when it is dead. A dead one is a success.
    fn stop_process(&self, process: &ProcessRef) -> impl Future<Output = Result<(), KeeperError>> + Send;
    /// Starts a control in the pin's namespaces and comes back when it answers. One that serves there already is
    /// what was asked for.
    fn start_control(&self, pin: &ProcessRef)
    -> impl Future<Output = Result<ProcessRef, KeeperError>> + Send;
}

/// What a probe asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// TCP at a port of the kernel's choice, and an echo: either answer will do.
    #[default]
    Any,
    /// An ICMP or ICMPv6 echo.
    Icmp,
    /// TCP at this port: the prober listens there, unless somebody does already.
    Tcp(u16),
}

/// A probe between two sandboxes, sent from inside the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// Sends.
    pub from: SandboxId,
    /// Answers, if the packet gets there: the prober listens in it.
    pub to: SandboxId,
    /// The address of `to` that is tried.
    pub address: IpAddr,
    /// How long an answer may take, in milliseconds.
    pub timeout_ms: u64,
    /// What is asked.
    #[serde(default)]
    pub ask: Ask,
}

/// The router: links, rules and sandboxes. Asked of the control.
pub trait Router {
    /// What the router holds.
    fn observe_router(&self) -> impl Future<Output = Result<RouterObserved, RouterError>> + Send;
    /// Base chains plus exactly these elements, atomically as seen by packets, then read back and compared.
    fn ensure_ruleset(&self, ruleset: &Ruleset) -> impl Future<Output = Result<(), RouterError>> + Send;
    /// Adds elements in one transaction. An element of the same key with another target is replaced.
    fn add_elements(
        &self,
        elements: &BTreeSet<Element>,
    ) -> impl Future<Output = Result<(), RouterError>> + Send;
    /// Removes elements in one transaction; absent ones are no error. What conntrack remembers of an address or a
    /// port that the elements spoke for is forgotten with them: its next owner inherits no flow of the last.
    fn remove_elements(
        &self,
        elements: &BTreeSet<Element>,
    ) -> impl Future<Output = Result<(), RouterError>> + Send;
    /// How often each verdict was given since it is there; elements without a count are left out.
    fn count_verdicts(&self) -> impl Future<Output = Result<Vec<(Element, Counter)>, RouterError>> + Send;
    /// A bridge with fixed MAC, addresses, and sysctls as the design demands.
    fn ensure_network(&self, plan: &NetworkPlan) -> impl Future<Output = Result<(), RouterError>> + Send;
    /// Removes the bridge.
    fn remove_network(&self, plan: &NetworkPlan) -> impl Future<Output = Result<(), RouterError>> + Send;
    /// Binds new namespaces, or a living member's.
    fn ensure_sandbox(&self, plan: &SandboxPlan) -> impl Future<Output = Result<(), RouterError>> + Send;
    /// Unbinds them.
    fn remove_sandbox(&self, id: &SandboxId) -> impl Future<Output = Result<(), RouterError>> + Send;
    /// Makes and plugs the veth. One that is there but not as planned is replaced, and a link inside that has its
    /// name or its index is of an earlier life and makes room.
    fn attach(&self, plan: &AttachmentPlan) -> impl Future<Output = Result<(), RouterError>> + Send;
    /// Removes the veth.
    fn detach(&self, slot: Slot) -> impl Future<Output = Result<(), RouterError>> + Send;
    /// Sends real packets; `true` when they were answered.
    fn probe(&self, probe: &Probe) -> impl Future<Output = Result<bool, RouterError>> + Send;
    /// Hands the control what it serves while the daemon is away.
    fn hand_snapshot(&self, snapshot: &Snapshot) -> impl Future<Output = Result<(), RouterError>> + Send;
}

/// What the control keeps in a file and serves: no decision is taken from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Rises with each snapshot handed; an older one never replaces a newer.
    pub generation: u64,
    /// Names of the live workloads, and who sees them.
    #[serde(default)]
    pub zone: Zone,
    /// Prefixes of the networks, by bridge index.
    pub prefixes: Vec<PrefixEntry>,
    /// The policy: all elements.
    pub ruleset: Ruleset,
}

/// A network's prefixes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixEntry {
    /// Bridge index.
    pub index: u16,
    /// Network name.
    pub name: String,
    /// Gateways with prefix lengths.
    pub gateways: Vec<(IpAddr, u8)>,
}

/// The way out of the node, and the ports into it.
pub trait Uplink {
    /// Looks at the recorded helper.
    fn observe_uplink(
        &self,
        hint: Option<&ProcessRef>,
    ) -> impl Future<Output = Result<UplinkObserved, UplinkError>> + Send;
    /// What of the host networks and ports must keep clear of: its routes, its ports.
    fn observe_host(&self) -> impl Future<Output = Result<HostObserved, UplinkError>> + Send;
    /// Starts the helper in the router of `pin` and comes back when its tap is up. One that serves it already is
    /// what was asked for.
    fn start_uplink(&self, pin: &ProcessRef) -> impl Future<Output = Result<ProcessRef, UplinkError>> + Send;
    /// Binds the host's port and comes back when it really is bound. One that the helper itself leads to another
    /// router port is led anew: its record is gone.
    fn publish(&self, port: &PortRecord) -> impl Future<Output = Result<(), UplinkError>> + Send;
    /// Unbinds it.
    fn unpublish(&self, port: &PortRecord) -> impl Future<Output = Result<(), UplinkError>> + Send;
}

/// What an observation of a container starts from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerHint {
    /// The container.
    pub id: ContainerId,
    /// Its recorded incarnation: an exit of an earlier one is no evidence about this one.
    pub incarnation: u32,
    /// Recorded (init, monitor), if it is thought to run.
    pub running: Option<(ProcessRef, ProcessRef)>,
}

/// A container that was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// Its first process.
    pub init: ProcessRef,
    /// Its monitor.
    pub monitor: ProcessRef,
}

/// The OCI runtime and its monitors.
pub trait Containers {
    /// Looks at processes, runtime state and exit files; spawns nothing.
    fn observe_containers(
        &self,
        hints: &[ContainerHint],
    ) -> impl Future<Output = Result<BTreeMap<ContainerId, ContainerObserved>, ContainerError>> + Send;
    /// Mounts the root, then starts the container under a monitor; comes back when its process runs. If this
    /// incarnation runs already, it is what was asked for.
    fn start_container(
        &self,
        plan: &ContainerPlan,
        pin: &ProcessRef,
    ) -> impl Future<Output = Result<Started, ContainerError>> + Send;
    /// Ends a start: signal, grace, SIGKILL; then deletes its runtime state and unmounts its root. How it ended is
    /// kept until the start is cleaned, so that an end asked for twice is told twice.
    fn stop_container(
        &self,
        id: &ContainerId,
        incarnation: u32,
        signal: u32,
        grace: Span,
        pin: Option<&ProcessRef>,
    ) -> impl Future<Output = Result<ExitObserved, ContainerError>> + Send;
    /// Deletes what a dead start left, and every start before it: one that was interrupted may never have been
    /// cleaned. Refuses with `Conflict` while a process of any of them lives.
    fn clean_container(
        &self,
        id: &ContainerId,
        incarnation: u32,
        pin: Option<&ProcessRef>,
    ) -> impl Future<Output = Result<(), ContainerError>> + Send;
    /// Removes every file of a container.
    fn remove_files(
        &self,
        id: &ContainerId,
        pin: Option<&ProcessRef>,
    ) -> impl Future<Output = Result<(), ContainerError>> + Send;
}

/// How much a commit must outlive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Loss of power.
    Power,
    /// The kill of every process of the node, but not loss of power.
    Process,
}

/// The records.
pub trait Store {
    /// Reads the records.
    fn read<T: Send>(&self, read: impl FnOnce(&Records) -> T + Send) -> impl Future<Output = T> + Send;
    /// Decides on the records and commits the changes, as one: no other transaction comes between. When `decide`
    /// refuses, or the commit fails, nothing has changed.
    fn transact<T: Send, E: Send>(
        &self,
        durability: Durability,
        decide: impl FnOnce(&Records) -> Result<(Vec<Change>, T), E> + Send,
    ) -> impl Future<Output = Result<Result<T, E>, StoreError>> + Send;
}

/// Files of offloaded pods, by the job's identity: volumes, and logs that are kept after the pod's end.
pub trait PodFiles {
    /// Where a pod's volumes are, whether they exist or not.
    fn pod_place(&self, jid: &str) -> PodPlace;
    /// Writes volumes, exact bytes and modes, durable when it comes back; makes empty ones; looks at host paths and
    /// makes those that are to be made. What is there of an earlier try is written again, what an empty volume holds
    /// stays.
    fn write_volumes(
        &self,
        jid: &str,
        volumes: &[VolumeWanted],
    ) -> impl Future<Output = Result<(), VolumeError>> + Send;
    /// Keeps the logs of these containers under these names, for as long as the pod's files are.
    fn keep_logs(
        &self,
        jid: &str,
        logs: &[(ContainerId, String)],
    ) -> impl Future<Output = Result<(), VolumeError>> + Send;
    /// Removes a pod's volumes with whatever containers wrote there; never what a host path leads to.
    fn remove_volumes(&self, jid: &str) -> impl Future<Output = Result<(), VolumeError>> + Send;
    /// Removes everything of a pod, kept logs too.
    fn remove_pod_files(&self, jid: &str) -> impl Future<Output = Result<(), VolumeError>> + Send;
}

/// A whole node.
pub trait World:
    Clock + Entropy + Keepers + Router + Uplink + Containers + PodFiles + Store + Send + Sync + 'static
{
}

impl<T> World for T where
    T: Clock + Entropy + Keepers + Router + Uplink + Containers + PodFiles + Store + Send + Sync + 'static
{
}
