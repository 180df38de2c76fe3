//! What the node remembers. Everything needed to rebuild a resource is in its record before the resource
//! exists.

mod codec;

pub use codec::{DecodeError, Encoded, Kind, decode, encode};

use crate::{
    cure::Cure,
    id::{
        BootId, ContainerId, ImageId, NetworkId, OperationId, PolicyId, ProcessRef, SandboxId, Slot, Tenant,
    },
    interlink::record::{PodRecord, PodUid, Tombstone},
    join::BySandbox,
    journal::OperationRecord,
    policy::PolicyRecord,
    spec::{ContainerSpec, NetworkSpec, PortSpec, SandboxSpec},
    time::{Mono, Wall},
};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};
use core::net::{Ipv4Addr, Ipv6Addr};
use serde::{Deserialize, Serialize};

/// Kernel identity of one namespace: inode and device of its nsfs file. The kernel reuses inodes, so an
/// identity counts only beside a living process or descriptor that was recorded with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NamespaceId(pub u64);

/// The three namespaces that make the node's inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceIds {
    /// User namespace: owns the others and all workloads.
    pub user: NamespaceId,
    /// The router's network namespace.
    pub net: NamespaceId,
    /// Mount namespace with the binds of all sandboxes.
    pub mount: NamespaceId,
}

/// The node itself: one record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The unique local IPv6 prefix (RFC 4193), /48; each network takes a /64 of it.
    pub ula_prefix: Ipv6Addr,
    /// Rises with each router that is built; never falls.
    pub router_generation: u64,
    /// Rises with each start of a daemon; never falls. Tells whose operations are orphans.
    pub daemon_generation: u64,
    /// The next attachment's slot.
    pub slot_next: u32,
    /// The next isolation group.
    pub group_next: u32,
    /// The next network's index (bridge name, IPv6 subnet).
    pub network_next: u16,
    /// The namespaces that were built last.
    pub namespaces: Option<NamespaceIds>,
    /// The pin that was started last.
    pub pin: Option<ProcessRef>,
    /// The control that was started last.
    pub control: Option<ProcessRef>,
    /// The uplink helper that was started last.
    pub uplink: Option<ProcessRef>,
    /// Whether the user took the node down and wants it to stay so until `up`.
    pub down: bool,
    /// Cures so far, by name, over all workloads; and `repaired`, how often what others had changed was put right.
    pub cures: BTreeMap<String, u64>,
    /// Classes that addresses of workloads are or were in, since policies changed: [`crate::policy`].
    #[serde(default)]
    pub policy_classes: BTreeSet<String>,
}

/// A network: one bridge, one IPv4 and one IPv6 subnet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkRecord {
    /// Identity.
    pub id: NetworkId,
    /// Name, unique on the node.
    pub name: String,
    /// What the user asked for.
    pub spec: NetworkSpec,
    /// Unique among networks ever made; names the bridge `hfbr<index>`.
    pub index: u16,
    /// IPv4 subnet address.
    pub subnet4: Ipv4Addr,
    /// IPv4 prefix length.
    pub prefix4: u8,
    /// The bridge's IPv4 address.
    pub gateway4: Ipv4Addr,
    /// IPv6 subnet address.
    pub subnet6: Ipv6Addr,
    /// IPv6 prefix length.
    #[serde(default = "prefix6_default")]
    pub prefix6: u8,
    /// The bridge's IPv6 address.
    pub gateway6: Ipv6Addr,
    /// The isolation group of each tenant that has used the network, or one it is routed to.
    pub groups: BTreeMap<Tenant, u32>,
    /// Networks that its workloads reach, tenant by tenant; each names the other.
    #[serde(default)]
    pub routed: BTreeSet<NetworkId>,
    /// When it was created.
    pub created: Wall,
}

/// Every network's before networks could name their own.
fn prefix6_default() -> u8 {
    64
}

/// One interface of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachmentRecord {
    /// The network it is plugged into.
    pub network: NetworkId,
    /// Names the link and its index in the router.
    pub slot: Slot,
    /// Isolation group: same group, same tenant on the same network.
    pub group: u32,
    /// IPv4 address, kept for as long as the sandbox exists.
    pub ipv4: Ipv4Addr,
    /// IPv6 address, likewise.
    pub ipv6: Ipv6Addr,
    /// MAC address, likewise.
    pub mac: [u8; 6],
    /// Name inside the sandbox: eth0, eth1, ….
    pub link_name: String,
    /// Interface index inside the sandbox, kept so that sockets bound to the device survive a replug.
    pub ifindex: u32,
    /// Has the default routes, and is where published ports lead. One of a sandbox's; where none is marked, the
    /// first.
    #[serde(default)]
    pub primary: bool,
}

/// A published port with the router's port that stands for it between helper and rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PortRecord {
    /// What the user asked for (host port resolved when 0 was asked).
    pub spec: PortSpec,
    /// Port on the router's uplink address, unique on the node for its protocol.
    pub router_port: u16,
}

/// Who owns a sandbox's namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxKind {
    /// Made for one container and gone with it.
    Container,
    /// A pod: members come and go, only the pod's removal destroys it.
    Pod,
}

/// Namespaces (net, ipc, uts) shared by one or more containers, and their network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxRecord {
    /// Identity.
    pub id: SandboxId,
    /// The pod's or the container's name.
    pub name: String,
    /// Pod or single container.
    pub kind: SandboxKind,
    /// The tenant.
    pub tenant: Tenant,
    /// What the user asked for.
    pub spec: SandboxSpec,
    /// Interfaces, in order.
    pub attachments: Vec<AttachmentRecord>,
    /// Published ports.
    pub ports: Vec<PortRecord>,
    /// The last cure that was not "untouched".
    pub last_cure: Option<Cure>,
    /// When it was created.
    pub created: Wall,
}

impl SandboxRecord {
    /// The interface with the default routes and the published ports.
    pub fn primary(&self) -> Option<&AttachmentRecord> {
        primary(&self.attachments)
    }
}

/// See [`AttachmentRecord::primary`].
pub fn primary(attachments: &[AttachmentRecord]) -> Option<&AttachmentRecord> {
    attachments.iter().find(|own| own.primary).or(attachments.first())
}

/// Whether the user wants a container to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Desired {
    /// It is to run, subject to its restart policy.
    Running,
    /// It is not to run.
    Stopped,
}

/// What is known of a container's process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Never started.
    Created,
    /// Started, and not known to have ended.
    Running {
        /// The container's first process, by its host pid.
        init: ProcessRef,
        /// Its monitor (conmon).
        monitor: ProcessRef,
        /// When it started, for people.
        since: Wall,
        /// When it started, on the clock of `init`'s boot.
        since_mono: Mono,
    },
    /// Ended; to be started again not before a time of this boot.
    Waiting {
        /// Exit code; `None` when nobody could read it.
        exit_code: Option<i32>,
        /// Start again at this time of `boot_id`, at once in another boot.
        not_before: Mono,
        /// The boot whose clock `not_before` is on.
        boot_id: BootId,
    },
    /// Ended for good.
    Exited {
        /// Exit code (128 + signal for a death by signal); `None` when nobody could read it.
        exit_code: Option<i32>,
        /// When the end was noticed.
        at: Wall,
    },
    /// Could not be started.
    Failed {
        /// Why.
        cause: String,
        /// When.
        at: Wall,
    },
}

/// One container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRecord {
    /// Identity.
    pub id: ContainerId,
    /// Name, unique among containers of the node.
    pub name: String,
    /// The sandbox it lives in.
    pub sandbox: SandboxId,
    /// What the user asked for.
    pub spec: ContainerSpec,
    /// Whether it is to run.
    pub desired: Desired,
    /// What is known of its process.
    pub state: RunState,
    /// Rises with each start; names the directory of that start's files. Never falls.
    pub incarnation: u32,
    /// Starts that nobody asked for: by restart policy or by recovery.
    pub restarts: u32,
    /// Failures in a row, for the restart back-off and `on-failure:N`.
    pub failures_in_row: u32,
    /// When it was created.
    pub created: Wall,
    /// When its last start was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Wall>,
    /// Its last end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_end: Option<EndRecord>,
}

/// The end of one start of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndRecord {
    /// Exit code; `None` when nobody could read it.
    pub exit_code: Option<i32>,
    /// When that start was.
    pub started: Option<Wall>,
    /// When the end was noticed.
    pub at: Wall,
    /// When the end before it was noticed: what was written in between is this start's.
    pub before: Option<Wall>,
}

impl ContainerRecord {
    /// The record with the end of its running start noted; what becomes of it is for the caller to say.
    #[must_use]
    pub fn ended(&self, exit_code: Option<i32>, wall: Wall) -> Self {
        let mut next = self.clone();
        if self.running().is_some() {
            let before = self.last_end.map(|end| end.at);
            next.last_end = Some(EndRecord { exit_code, started: self.started, at: wall, before });
        }
        next
    }

    /// The first process and its monitor, if it is not known to have ended.
    pub fn running(&self) -> Option<(&ProcessRef, &ProcessRef)> {
        match &self.state {
            RunState::Running { init, monitor, .. } => Some((init, monitor)),
            _ => None,
        }
    }

    /// Whether it is to run and has not ended for good.
    pub fn wants_to_run(&self) -> bool {
        self.desired == Desired::Running
            && !matches!(self.state, RunState::Exited { .. } | RunState::Failed { .. })
    }
}

/// A loaded image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// Identity.
    pub id: ImageId,
    /// References such as `busybox:latest` that name it.
    pub names: Vec<String>,
    /// Layer directories below the image store, lowest first.
    pub layers: Vec<String>,
    /// Default entry point.
    pub entrypoint: Vec<String>,
    /// Default command.
    pub command: Vec<String>,
    /// Default environment.
    pub env: Vec<(String, String)>,
    /// Default working directory.
    pub working_dir: String,
    /// Default numeric user and group.
    pub user: (u32, u32),
    /// Size of all layers, in bytes.
    pub size_bytes: u64,
    /// When it was loaded.
    pub loaded: Wall,
}

/// All records. The daemon holds one, the store keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// The node; `None` before the first bring-up.
    pub node: Option<NodeRecord>,
    /// Networks.
    pub networks: BTreeMap<NetworkId, NetworkRecord>,
    /// Sandboxes.
    pub sandboxes: BTreeMap<SandboxId, SandboxRecord>,
    /// Containers.
    pub containers: BTreeMap<ContainerId, ContainerRecord>,
    /// Images.
    pub images: BTreeMap<ImageId, ImageRecord>,
    /// Rules of policies.
    pub policies: BTreeMap<PolicyId, PolicyRecord>,
    /// Open operations.
    pub operations: BTreeMap<OperationId, OperationRecord>,
    /// Pods that were offloaded to this node.
    pub offloaded: BTreeMap<PodUid, PodRecord>,
    /// Offloaded pods that are gone, or that a delete came for before their create.
    pub tombstones: BTreeMap<PodUid, Tombstone>,
    /// Records that could not be read: reported, kept, never treated as absent.
    pub quarantined: Vec<Quarantined>,
    /// Counts the changes applied since this value was made; not stored.
    pub revision: u64,
}

/// A stored record that could not be understood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantined {
    /// Its kind, as stored.
    pub kind: String,
    /// Its identity, as stored.
    pub id: String,
    /// Why it could not be read.
    pub cause: String,
}

/// One change of the records. A transaction is a list of them, applied and stored together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Writes the node record.
    Node(NodeRecord),
    /// Writes a network.
    Network(NetworkRecord),
    /// Writes a sandbox.
    Sandbox(SandboxRecord),
    /// Writes a container.
    Container(ContainerRecord),
    /// Writes an image.
    Image(ImageRecord),
    /// Writes a rule.
    Policy(PolicyRecord),
    /// Writes an operation.
    Operation(OperationRecord),
    /// Writes an offloaded pod.
    Offloaded(PodRecord),
    /// Writes a tombstone.
    Tombstone(Tombstone),
    /// Removes a network.
    RemoveNetwork(NetworkId),
    /// Removes a sandbox.
    RemoveSandbox(SandboxId),
    /// Removes a container.
    RemoveContainer(ContainerId),
    /// Removes an image.
    RemoveImage(ImageId),
    /// Removes a rule.
    RemovePolicy(PolicyId),
    /// Removes an operation.
    RemoveOperation(OperationId),
    /// Removes an offloaded pod.
    RemoveOffloaded(PodUid),
    /// Removes a tombstone.
    RemoveTombstone(PodUid),
}

impl Records {
    /// Applies one change.
    pub fn apply(&mut self, change: Change) {
        self.revision += 1;
        match change {
            Change::Node(record) => self.node = Some(record),
            Change::Network(record) => drop(self.networks.insert(record.id.clone(), record)),
            Change::Sandbox(record) => drop(self.sandboxes.insert(record.id.clone(), record)),
            Change::Container(record) => drop(self.containers.insert(record.id.clone(), record)),
            Change::Image(record) => drop(self.images.insert(record.id.clone(), record)),
            Change::Policy(record) => drop(self.policies.insert(record.id.clone(), record)),
            Change::RemovePolicy(id) => drop(self.policies.remove(&id)),
            Change::Operation(record) => drop(self.operations.insert(record.id.clone(), record)),
            Change::Offloaded(record) => drop(self.offloaded.insert(record.uid.clone(), record)),
            Change::Tombstone(record) => drop(self.tombstones.insert(record.uid.clone(), record)),
            Change::RemoveOffloaded(uid) => drop(self.offloaded.remove(&uid)),
            Change::RemoveTombstone(uid) => drop(self.tombstones.remove(&uid)),
            Change::RemoveNetwork(id) => drop(self.networks.remove(&id)),
            Change::RemoveSandbox(id) => drop(self.sandboxes.remove(&id)),
            Change::RemoveContainer(id) => drop(self.containers.remove(&id)),
            Change::RemoveImage(id) => drop(self.images.remove(&id)),
            Change::RemoveOperation(id) => drop(self.operations.remove(&id)),
        }
    }

    /// The members of a sandbox, in the order of their identities.
    pub fn members<'a>(&'a self, sandbox: &'a SandboxId) -> impl Iterator<Item = &'a ContainerRecord> + 'a {
        self.containers.values().filter(move |container| &container.sandbox == sandbox)
    }

    /// Members of every sandbox in one walk: linear where [`Self::members`] per sandbox would be quadratic.
    pub fn members_by_sandbox(&self) -> BySandbox<'_, &ContainerRecord> {
        BySandbox::new(self.containers.values(), |container| &container.sandbox)
    }
}
