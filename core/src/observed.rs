//! What the node looks like, read once and never changed: every decision of a pass is taken from one of these.

use crate::{
    id::{BootId, ContainerId, NetworkId, ProcessRef, SandboxId, Slot},
    record::{NamespaceId, NamespaceIds, PortRecord},
    spec::Protocol,
    time::Mono,
};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};
use core::net::IpAddr;
use serde::{Deserialize, Serialize};

/// Something alive through which namespaces can be entered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keeper {
    /// The pin.
    Pin(ProcessRef),
    /// The daemon's own file descriptors (kept over its restarts by the service manager, where there is one).
    Descriptors,
    /// The control.
    Control(ProcessRef),
    /// A container's monitor, which lives in the node's namespaces.
    Monitor(ContainerId, ProcessRef),
    /// The uplink helper: its open tap leads to the router's netns, nothing else.
    Uplink(ProcessRef),
    /// A container's own process: leads to the user namespace, never to the router.
    Workload(ContainerId, ProcessRef),
}

/// A keeper and what it leads to, found by looking (and compared with the recorded namespaces).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperObserved {
    /// Which.
    pub keeper: Keeper,
    /// Leads to the node's user namespace.
    pub user: bool,
    /// Leads to the router's network namespace.
    pub net: bool,
    /// Leads to the node's mount namespace.
    pub mount: bool,
}

/// What answered on the control's socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlObserved {
    /// Nothing listens.
    #[default]
    Absent,
    /// It answered the handshake, speaks this build's protocol and lives in the router.
    Answering(ProcessRef),
    /// It answered, but is another build, or lives in another router: to be replaced.
    Foreign(ProcessRef, String),
    /// Something accepted or holds the socket and does not answer in time.
    Silent(Option<ProcessRef>),
}

/// The uplink helper.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UplinkObserved {
    /// None runs.
    #[default]
    Absent,
    /// It answers on its API socket and serves the router.
    Serving {
        /// The helper.
        process: ProcessRef,
        /// What it really forwards. The helper does not know the sandbox's port: `target_port` is 0 here, and
        /// ports are compared by host address, host port, protocol and router port.
        ports: BTreeSet<PortRecord>,
    },
    /// It runs and does not answer, or serves another namespace: to be replaced.
    Broken(ProcessRef, String),
}

/// What of the host the node must keep clear of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostObserved {
    /// Destinations of the host's routes as (address, prefix length), its default routes included.
    pub routes: BTreeSet<(IpAddr, u8)>,
    /// Ports that some process of the host listens on, at whatever address.
    pub bound: BTreeSet<(Protocol, u16)>,
    /// The first port that this user may bind: ip(7), `ip_unprivileged_port_start`.
    pub unprivileged_port_first: u16,
}

/// What is alive of the processes and namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeepersObserved {
    /// The living pin, in the recorded namespaces.
    pub pin: Option<ProcessRef>,
    /// Every other way into the namespaces, in no order.
    pub keepers: Vec<KeeperObserved>,
    /// The control.
    pub control: ControlObserved,
}

/// What the router holds; asked of the control, hence only where one answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterObserved {
    /// The namespaces the control lives in.
    pub namespaces: NamespaceIds,
    /// Networks whose bridge is up with its addresses.
    pub networks: BTreeMap<NetworkId, BridgeObserved>,
    /// Links plugged into a bridge: slot → bridge's network index.
    pub plugged: BTreeMap<Slot, PlugObserved>,
    /// Bound sandboxes and the network namespace that is bound.
    pub sandboxes: BTreeMap<SandboxId, NamespaceId>,
    /// What the kernel's rule sets hold.
    pub ruleset: RulesetObserved,
    /// How the services are that the control gives workloads.
    #[serde(default)]
    pub services: Vec<ServiceObserved>,
}

/// A service of the node as the control runs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceObserved {
    /// Name: `dns`.
    pub name: String,
    /// What it cannot do, and why; `None` while it does everything.
    pub fault: Option<String>,
    /// What it does, in a few words.
    pub detail: String,
    /// What it did since the control started, by name.
    pub counters: BTreeMap<String, u64>,
}

impl ServiceObserved {
    /// One that does not work.
    pub fn faulty(name: &str, cause: &str) -> Self {
        Self {
            name: String::from(name),
            fault: Some(String::from(cause)),
            detail: String::from("does not serve"),
            counters: BTreeMap::new(),
        }
    }
}

/// A bridge in the router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgeObserved {
    /// The network's index.
    pub index: u16,
    /// Up and running with gateway addresses and isolation settings as planned.
    pub complete: bool,
}

/// The host end of an attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlugObserved {
    /// Index of the network whose bridge it is a port of; `None` if it is no port.
    pub network_index: Option<u16>,
    /// Up, and isolated as planned.
    pub complete: bool,
    /// The network namespace of the other end, where the kernel tells.
    pub peer: Option<NamespaceId>,
    /// Whether the default routes inside lead here, as it was last plugged; `None` where nothing tells.
    #[serde(default)]
    pub default_route: Option<bool>,
}

/// Whether the kernel's rules are what was last asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulesetObserved {
    /// The base chains and sets exist exactly once, in this build's version.
    pub base: bool,
    /// Digest of the elements, comparable with [`crate::ruleset::Ruleset::digest`].
    pub digest: u64,
}

/// A container as its files, its monitor and its process show it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerObserved {
    /// The living first process.
    pub init: Option<ProcessRef>,
    /// The network namespace of `init`.
    pub netns: Option<NamespaceId>,
    /// The living monitor.
    pub monitor: Option<ProcessRef>,
    /// How the recorded incarnation ended, if anything tells.
    pub exit: Option<ExitObserved>,
    /// Runtime state, mounts or files of a start exist, so there is something to delete.
    pub remains: bool,
    /// What the records said when it was looked at. Filled in by the driver, not by a backend: a container
    /// that was started since then must not be mistaken for a dead one.
    #[serde(default)]
    pub basis: Option<Basis>,
}

/// The part of a container's record that an observation of it depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Basis {
    /// The recorded start.
    pub incarnation: u32,
    /// Its recorded first process.
    pub init: Option<ProcessRef>,
}

/// Evidence of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitObserved {
    /// Exit code, 128 + signal for a death by signal; `None` when it ended and nobody could read how.
    pub code: Option<i32>,
}

/// The whole observation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// When it was made.
    pub at: Mono,
    /// The running boot.
    pub boot_id: BootId,
    /// Processes and namespaces.
    pub keepers: KeepersObserved,
    /// The uplink helper.
    pub uplink: UplinkObserved,
    /// The router, if a control answers.
    pub router: Option<RouterObserved>,
    /// Containers by identity; every recorded one has an entry.
    pub containers: BTreeMap<ContainerId, ContainerObserved>,
}
