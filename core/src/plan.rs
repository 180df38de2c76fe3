//! A plan is a list of steps. Each step is idempotent, and each has its exact undo.

use crate::{
    id::{ContainerId, NetworkId, ProcessRef, SandboxId, Slot},
    observed::Keeper,
    record::PortRecord,
    ruleset::{Element, Ruleset},
    spec::{BindMount, RootSource, Security},
};
use alloc::{boxed::Box, collections::BTreeSet, format, string::String, vec::Vec};
use core::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};
use serde::{Deserialize, Serialize};

/// How a new pin gets into existing namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptSource {
    /// Leads to the user namespace.
    pub user: Keeper,
    /// Leads to the router's network namespace.
    pub net: Keeper,
    /// Leads to the mount namespace; `None` when only a new one is left.
    pub mount: Option<Keeper>,
}

/// A bridge with its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkPlan {
    /// The network.
    pub id: NetworkId,
    /// The bridge is `hfbr<index>` and its MAC is derived from the index.
    pub index: u16,
    /// The bridge's IPv4 address and prefix length.
    pub gateway4: (Ipv4Addr, u8),
    /// The bridge's IPv6 address and prefix length.
    pub gateway6: (Ipv6Addr, u8),
    /// MTU in bytes.
    pub mtu_bytes: u32,
}

/// Namespaces (net, ipc, uts) bound in the node's mount namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxPlan {
    /// The sandbox.
    pub id: SandboxId,
    /// Host name in its uts namespace.
    pub hostname: String,
    /// A living member whose namespaces are bound; `None` makes new namespaces.
    pub rebind: Option<ProcessRef>,
}

/// A veth between a sandbox and a bridge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachmentPlan {
    /// The sandbox, bound.
    pub sandbox: SandboxId,
    /// Slot: host end's name and index.
    pub slot: Slot,
    /// The bridge's network index.
    pub network_index: u16,
    /// Name inside.
    pub link_name: String,
    /// Interface index inside.
    pub ifindex: u32,
    /// MAC inside.
    pub mac: [u8; 6],
    /// Address inside, with a prefix of 32.
    pub ipv4: Ipv4Addr,
    /// Address inside, with a prefix of 128.
    pub ipv6: Ipv6Addr,
    /// On-link IPv4 gateway; the default route if `default_route`.
    pub gateway4: Ipv4Addr,
    /// On-link IPv6 gateway, likewise.
    pub gateway6: Ipv6Addr,
    /// The network's IPv4 subnet, routed through the gateway.
    pub subnet4: (Ipv4Addr, u8),
    /// The network's IPv6 subnet, routed through the gateway.
    pub subnet6: (Ipv6Addr, u8),
    /// Whether the default routes lead here.
    pub default_route: bool,
    /// MTU in bytes.
    pub mtu_bytes: u32,
}

/// An overlay root file system in the node's mount namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootfsPlan {
    /// The container.
    pub id: ContainerId,
    /// The lower layers.
    pub root: RootSource,
    /// For [`RootSource::Image`], its layer directories, lowest first.
    pub layers: Vec<String>,
}

/// One start of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerPlan {
    /// The container.
    pub id: ContainerId,
    /// Its name, for log lines and the monitor.
    pub name: String,
    /// This start's number; names the directory of its files.
    pub incarnation: u32,
    /// The sandbox whose namespaces it joins.
    pub sandbox: SandboxId,
    /// The root file system, mounted if it is not.
    pub rootfs: RootfsPlan,
    /// Argument vector.
    pub argv: Vec<String>,
    /// Environment.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub working_dir: String,
    /// User and group.
    pub user: (u32, u32),
    /// Bind mounts.
    pub mounts: Vec<BindMount>,
    /// Host name, for /etc/hostname.
    pub hostname: String,
    /// Lines of /etc/hosts: the sandbox's own names and addresses.
    pub hosts: Vec<(String, String)>,
    /// What /etc/resolv.conf says.
    #[serde(default)]
    pub resolver: Box<ResolverPlan>,
    /// What it may do less, or more, than others.
    #[serde(default, skip_serializing_if = "Security::is_default")]
    pub security: Security,
}

/// A resolv.conf(5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResolverPlan {
    /// Name servers, in order.
    pub servers: Vec<IpAddr>,
    /// Domains that are searched, in order.
    pub search: Vec<String>,
    /// Options.
    pub options: Vec<String>,
    /// Whether the host's own name servers come after these.
    pub host_servers: bool,
    /// Whether the domains that the host searches come after these.
    pub host_search: bool,
}

impl Default for ResolverPlan {
    /// The host's: what builds before there was a name service wrote.
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            search: Vec::new(),
            options: Vec::new(),
            host_servers: true,
            host_search: true,
        }
    }
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Starts a pin in new user, net and mount namespaces.
    CreateNamespaces,
    /// Starts a pin in existing namespaces.
    AdoptNamespaces(AdoptSource),
    /// Starts a pin in a living user namespace with new net and mount namespaces.
    EnterUserNamespace(Keeper),
    /// Ends a control that is silent or another build.
    StopControl(ProcessRef),
    /// Starts a control in the pin's namespaces and waits until it answers.
    StartControl,
    /// Ends the pin; only when the node is taken down.
    StopPin(ProcessRef),
    /// Ends an uplink helper that does not serve.
    StopUplink(ProcessRef),
    /// Starts the uplink helper and waits until it is ready.
    StartUplink,
    /// Puts base chains and all elements in place, in one transaction per chunk, and reads them back.
    EnsureRuleset(Ruleset),
    /// Adds elements.
    AddElements(BTreeSet<Element>),
    /// Adds elements that belong to policies and not to the operation: its undo leaves them.
    EnsureElements(BTreeSet<Element>),
    /// Removes elements.
    RemoveElements(BTreeSet<Element>),
    /// Makes or completes a bridge.
    EnsureNetwork(NetworkPlan),
    /// Removes a bridge.
    RemoveNetwork(NetworkPlan),
    /// Makes or rebinds a sandbox's namespaces.
    EnsureSandbox(SandboxPlan),
    /// Unbinds a sandbox's namespaces; they end with their last process.
    RemoveSandbox(SandboxId),
    /// Plugs a sandbox into a network.
    Attach(AttachmentPlan),
    /// Unplugs it.
    Detach(Slot),
    /// Binds a port of the host and forwards it.
    Publish(PortRecord),
    /// Unbinds it.
    Unpublish(PortRecord),
    /// Says that a container's files may exist from here on; the start makes them, the undo removes them.
    ClaimFiles(ContainerId),
    /// Starts a container.
    StartContainer(ContainerPlan),
    /// Ends a container: signal, grace, kill; then deletes its runtime state and mounts.
    StopContainer {
        /// The container.
        id: ContainerId,
        /// The start to end.
        incarnation: u32,
        /// Signal number sent first.
        signal: u32,
        /// Wait before SIGKILL, in milliseconds.
        grace_ms: u64,
    },
    /// Deletes what a dead start left (runtime state, mounts, monitor), never a living process.
    CleanContainer(ContainerId, u32),
    /// Removes every file of a container.
    RemoveFiles(ContainerId),
}

/// SIGKILL; the undo of a start does not wait.
const SIGKILL: u32 = 9;

impl Step {
    /// The step that takes this one's effect back; `None` where there is nothing to take back, because the
    /// step removes, or because what it makes belongs to the node and not to the operation.
    pub fn undo(&self) -> Option<Self> {
        match self {
            Self::AddElements(elements) => Some(Self::RemoveElements(elements.clone())),
            Self::EnsureNetwork(plan) => Some(Self::RemoveNetwork(plan.clone())),
            Self::EnsureSandbox(plan) => Some(Self::RemoveSandbox(plan.id.clone())),
            Self::Attach(plan) => Some(Self::Detach(plan.slot)),
            Self::Publish(port) => Some(Self::Unpublish(*port)),
            Self::ClaimFiles(id) => Some(Self::RemoveFiles(id.clone())),
            Self::StartContainer(plan) => Some(Self::StopContainer {
                id: plan.id.clone(),
                incarnation: plan.incarnation,
                signal: SIGKILL,
                grace_ms: 0,
            }),
            Self::CreateNamespaces
            | Self::AdoptNamespaces(_)
            | Self::EnterUserNamespace(_)
            | Self::StopControl(_)
            | Self::StartControl
            | Self::StopPin(_)
            | Self::StopUplink(_)
            | Self::StartUplink
            | Self::EnsureRuleset(_)
            | Self::EnsureElements(_)
            | Self::RemoveElements(_)
            | Self::RemoveNetwork(_)
            | Self::RemoveSandbox(_)
            | Self::Detach(_)
            | Self::Unpublish(_)
            | Self::StopContainer { .. }
            | Self::CleanContainer(..)
            | Self::RemoveFiles(_) => None,
        }
    }
}

/// The undo of the first `done` steps, in exact reverse.
pub fn undo_of(steps: &[Step], done: usize) -> Vec<Step> {
    if mutant!(UndoNotReversed) {
        return steps.iter().take(done).filter_map(Step::undo).collect();
    }
    steps.iter().take(done).rev().filter_map(Step::undo).collect()
}

impl fmt::Display for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pin(process) => write!(f, "pin ({process})"),
            Self::Descriptors => f.write_str("the daemon's descriptors"),
            Self::Control(process) => write!(f, "control ({process})"),
            Self::Monitor(container, process) => write!(f, "monitor of {container} ({process})"),
            Self::Uplink(process) => write!(f, "uplink ({process})"),
            Self::Workload(container, process) => write!(f, "container {container} ({process})"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreateNamespaces => f.write_str("create namespaces"),
            Self::AdoptNamespaces(source) => {
                let mount = source.mount.as_ref().map_or(String::from("new"), |keeper| format!("{keeper}"));
                write!(
                    f,
                    "adopt namespaces: user of {}, net of {}, mount of {mount}",
                    source.user, source.net
                )
            }
            Self::EnterUserNamespace(keeper) => write!(f, "build a router in the user namespace of {keeper}"),
            Self::StopControl(process) => write!(f, "stop control ({process})"),
            Self::StartControl => f.write_str("start control"),
            Self::StopPin(process) => write!(f, "stop pin ({process})"),
            Self::StopUplink(process) => write!(f, "stop uplink ({process})"),
            Self::StartUplink => f.write_str("start uplink"),
            Self::EnsureRuleset(ruleset) => {
                write!(f, "ensure ruleset of {} elements", ruleset.elements.len())
            }
            Self::AddElements(elements) => write!(f, "add {} elements", elements.len()),
            Self::EnsureElements(elements) => write!(f, "ensure {} elements of policies", elements.len()),
            Self::RemoveElements(elements) => write!(f, "remove {} elements", elements.len()),
            Self::EnsureNetwork(plan) => {
                write!(f, "ensure network {} (hfbr{}, {})", plan.id, plan.index, plan.gateway4.0)
            }
            Self::RemoveNetwork(plan) => write!(f, "remove network {} (hfbr{})", plan.id, plan.index),
            Self::EnsureSandbox(plan) => match &plan.rebind {
                None => write!(f, "create sandbox {}", plan.id),
                Some(process) => write!(f, "rebind sandbox {} from {process}", plan.id),
            },
            Self::RemoveSandbox(id) => write!(f, "remove sandbox {id}"),
            Self::Attach(plan) => write!(
                f,
                "attach {} {} to hfbr{} as {} {}",
                plan.sandbox, plan.link_name, plan.network_index, plan.ipv4, plan.ipv6
            ),
            Self::Detach(slot) => write!(f, "detach slot {}", slot.0),
            Self::Publish(port) => write!(f, "publish {}", port.spec),
            Self::Unpublish(port) => write!(f, "unpublish {}", port.spec),
            Self::ClaimFiles(id) => write!(f, "claim files of container {id}"),
            Self::StartContainer(plan) => {
                write!(f, "start container {} (incarnation {})", plan.id, plan.incarnation)
            }
            Self::StopContainer { id, incarnation, signal, grace_ms } => {
                write!(
                    f,
                    "stop container {id} (incarnation {incarnation}, signal {signal}, grace {grace_ms} ms)"
                )
            }
            Self::CleanContainer(id, incarnation) => {
                write!(f, "clean container {id} (incarnation {incarnation})")
            }
            Self::RemoveFiles(id) => write!(f, "remove files of container {id}"),
        }
    }
}
