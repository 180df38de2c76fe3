//! What the API answers; the command line reads the same types.

use holdfast_core::{
    cure::Cure,
    driver::BringUpReport,
    record::{
        AttachmentRecord, ContainerRecord, ImageRecord, NetworkRecord, Records, RunState, SandboxKind,
        SandboxRecord,
    },
    spec::PortSpec,
    time::Wall,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
};

/// `GET /v1/ping`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pong {
    /// The daemon's version.
    pub version: String,
    /// Its pid.
    pub pid: u32,
    /// Its generation.
    pub generation: u64,
    /// Whether it runs under a service manager, which restarts it.
    pub supervised: bool,
}

/// `POST /v1/down`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DownRequest {
    /// Leave containers running.
    #[serde(default)]
    pub keep_workloads: bool,
    /// End the daemon too, unless a service manager would only start it again.
    #[serde(default)]
    pub end_daemon: bool,
}

/// `POST /v1/up`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UpReport {
    /// The bring-up that began after the request.
    #[serde(flatten)]
    pub report: BringUpReport,
    /// Bring-ups before it that did something and that nobody was told of yet, oldest first: what the daemon did
    /// when it was started for this very request, above all.
    #[serde(default)]
    pub before: Vec<BringUpReport>,
}

/// One interface.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AddressView {
    /// Network name.
    pub network: String,
    /// Name inside.
    pub link: String,
    /// IPv4 address.
    pub ipv4: Ipv4Addr,
    /// IPv6 address.
    pub ipv6: Ipv6Addr,
    /// MAC address.
    pub mac: String,
}

impl AddressView {
    fn new(records: &Records, attachment: &AttachmentRecord) -> Self {
        Self {
            network: network_name(records, attachment),
            link: attachment.link_name.clone(),
            ipv4: attachment.ipv4,
            ipv6: attachment.ipv6,
            mac: attachment.mac.map(|byte| format!("{byte:02x}")).join(":"),
        }
    }

    /// All of a workload.
    pub fn all(records: &Records, sandbox: Option<&SandboxRecord>) -> Vec<Self> {
        sandbox
            .map_or(&[][..], |sandbox| &sandbox.attachments)
            .iter()
            .map(|one| Self::new(records, one))
            .collect()
    }
}

fn network_name(records: &Records, attachment: &AttachmentRecord) -> String {
    records
        .networks
        .get(&attachment.network)
        .map_or_else(|| attachment.network.to_string(), |network| network.name.clone())
}

/// A container in a list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ContainerView {
    /// Identity.
    pub id: String,
    /// Name.
    pub name: String,
    /// What the user called its root.
    pub image: String,
    /// Argument vector.
    pub command: Vec<String>,
    /// Its pod.
    pub pod: Option<String>,
    /// Its tenant.
    pub tenant: String,
    /// `created`, `running`, `waiting`, `exited` or `failed`.
    pub state: String,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cause: String,
    /// Exit code of its last end, where it is known.
    pub exit_code: Option<i32>,
    /// Pid of its first process.
    pub pid: Option<u32>,
    /// Restarts that nobody asked for.
    pub restarts: u32,
    /// Addresses.
    pub addresses: Vec<AddressView>,
    /// Published ports.
    pub ports: Vec<PortSpec>,
    /// The last cure of its sandbox.
    pub last_cure: Option<Cure>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// When it was created.
    pub created: Wall,
    /// When it got into its state, where that is known.
    pub since: Option<Wall>,
}

impl ContainerView {
    /// As recorded.
    pub fn new(records: &Records, container: &ContainerRecord) -> Self {
        let sandbox = records.sandboxes.get(&container.sandbox);
        let (state, exit_code, pid, since, cause) = match &container.state {
            RunState::Created => ("created", None, None, None, String::new()),
            RunState::Running { init, since, .. } => {
                ("running", None, Some(init.pid), Some(*since), String::new())
            }
            RunState::Waiting { exit_code, .. } => ("waiting", *exit_code, None, None, String::new()),
            RunState::Exited { exit_code, at } => ("exited", *exit_code, None, Some(*at), String::new()),
            RunState::Failed { cause, at } => ("failed", None, None, Some(*at), cause.clone()),
        };
        Self {
            id: container.id.to_string(),
            name: container.name.clone(),
            image: container.spec.root_name.clone(),
            command: container.spec.argv.clone(),
            pod: sandbox
                .filter(|sandbox| sandbox.kind == SandboxKind::Pod)
                .map(|sandbox| sandbox.name.clone()),
            tenant: sandbox.map(|sandbox| sandbox.tenant.to_string()).unwrap_or_default(),
            state: state.to_owned(),
            cause,
            exit_code,
            pid,
            restarts: container.restarts,
            addresses: AddressView::all(records, sandbox),
            ports: sandbox
                .map(|sandbox| sandbox.ports.iter().map(|port| port.spec).collect())
                .unwrap_or_default(),
            last_cure: sandbox.and_then(|sandbox| sandbox.last_cure),
            labels: container.spec.labels.clone(),
            created: container.created,
            since,
        }
    }

    /// Whether a process of it runs, or will run again by itself.
    pub fn active(&self) -> bool {
        matches!(self.state.as_str(), "running" | "waiting")
    }
}

/// `GET /v1/containers/{name}`: the view, and the records whole.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ContainerDetails {
    /// The view.
    #[serde(flatten)]
    pub view: ContainerView,
    /// The record.
    pub record: ContainerRecord,
    /// Its sandbox's record.
    pub sandbox: Option<SandboxRecord>,
}

/// `GET /v1/containers/{name}/wait`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Waited {
    /// Exit code; `None` when nobody could read it, or it never ran.
    pub exit_code: Option<i32>,
    /// Why it failed to start.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cause: String,
}

/// A pod.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PodView {
    /// Identity.
    pub id: String,
    /// Name.
    pub name: String,
    /// Tenant.
    pub tenant: String,
    /// Members' names with their states.
    pub members: BTreeMap<String, String>,
    /// Addresses.
    pub addresses: Vec<AddressView>,
    /// Published ports.
    pub ports: Vec<PortSpec>,
    /// Its last cure.
    pub last_cure: Option<Cure>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// When it was created.
    pub created: Wall,
}

impl PodView {
    /// As recorded.
    pub fn new(records: &Records, pod: &SandboxRecord) -> Self {
        Self {
            id: pod.id.to_string(),
            name: pod.name.clone(),
            tenant: pod.tenant.to_string(),
            members: records
                .members(&pod.id)
                .map(|member| (member.name.clone(), ContainerView::new(records, member).state))
                .collect(),
            addresses: AddressView::all(records, Some(pod)),
            ports: pod.ports.iter().map(|port| port.spec).collect(),
            last_cure: pod.last_cure,
            labels: pod.spec.labels.clone(),
            created: pod.created,
        }
    }
}

/// `GET /v1/pods/{name}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PodDetails {
    /// The view.
    #[serde(flatten)]
    pub view: PodView,
    /// The record.
    pub record: SandboxRecord,
}

/// A network.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NetworkView {
    /// Identity.
    pub id: String,
    /// Name.
    pub name: String,
    /// Bridge in the router.
    pub bridge: String,
    /// IPv4 subnet as `address/prefix`.
    pub subnet4: String,
    /// IPv4 gateway.
    pub gateway4: Ipv4Addr,
    /// IPv6 subnet as `address/prefix`.
    pub subnet6: String,
    /// IPv6 gateway.
    pub gateway6: Ipv6Addr,
    /// Without a way out.
    pub internal: bool,
    /// Never routed.
    #[serde(default)]
    pub isolate: bool,
    /// The only tenant that may use it.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Names of the networks it is routed to.
    #[serde(default)]
    pub routed: Vec<String>,
    /// Pods and containers plugged into it, with their IPv4 addresses.
    pub plugged: BTreeMap<String, Ipv4Addr>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// When it was created.
    pub created: Wall,
}

impl NetworkView {
    /// As recorded.
    pub fn new(records: &Records, network: &NetworkRecord) -> Self {
        let plugged = records.sandboxes.values().flat_map(|sandbox| {
            let here = sandbox.attachments.iter().filter(|attachment| attachment.network == network.id);
            here.map(|attachment| (sandbox.name.clone(), attachment.ipv4))
        });
        Self {
            id: network.id.to_string(),
            name: network.name.clone(),
            bridge: format!("hfbr{}", network.index),
            subnet4: format!("{}/{}", network.subnet4, network.prefix4),
            gateway4: network.gateway4,
            subnet6: format!("{}/{}", network.subnet6, network.prefix6),
            gateway6: network.gateway6,
            internal: network.spec.internal,
            isolate: network.spec.isolate,
            tenant: network.spec.tenant.as_ref().map(ToString::to_string),
            routed: network
                .routed
                .iter()
                .filter_map(|peer| Some(records.networks.get(peer)?.name.clone()))
                .collect(),
            plugged: plugged.collect(),
            labels: network.spec.labels.clone(),
            created: network.created,
        }
    }
}

/// `GET /v1/networks/{name}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NetworkDetails {
    /// The view.
    #[serde(flatten)]
    pub view: NetworkView,
    /// The record.
    pub record: NetworkRecord,
}

/// `POST /v1/networks/verify`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerifyRequest {
    /// Every pair, not a sample.
    #[serde(default)]
    pub all: bool,
}

/// An image.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ImageView {
    /// Identity.
    pub id: String,
    /// References.
    pub names: Vec<String>,
    /// Number of layers.
    pub layers: usize,
    /// Size of all layers, in bytes.
    pub size_bytes: u64,
    /// When it was loaded.
    pub loaded: Wall,
}

impl From<&ImageRecord> for ImageView {
    fn from(image: &ImageRecord) -> Self {
        Self {
            id: image.id.to_string(),
            names: image.names.clone(),
            layers: image.layers.len(),
            size_bytes: image.size_bytes,
            loaded: image.loaded,
        }
    }
}

/// `GET /v1/containers`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// Also those that do not run.
    #[serde(default)]
    pub all: bool,
    /// Only names that hold this.
    #[serde(default)]
    pub name: Option<String>,
    /// Only those of this tenant.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Only those with these labels: `key` or `key=value`, separated by commas.
    #[serde(default)]
    pub label: Option<String>,
}

impl ListQuery {
    /// Whether a container is asked for.
    pub fn takes(&self, view: &ContainerView) -> bool {
        (self.all || view.active())
            && self.name.as_deref().is_none_or(|name| view.name.contains(name))
            && self.tenant.as_deref().is_none_or(|tenant| view.tenant == tenant)
            && self.label.iter().flat_map(|labels| labels.split(',')).all(|label| {
                match label.split_once('=') {
                    Some((key, value)) => view.labels.get(key).is_some_and(|is| is == value),
                    None => view.labels.contains_key(label),
                }
            })
    }
}

/// `GET /v1/containers/{name}/logs`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogsQuery {
    /// Go on until the container ends.
    #[serde(default)]
    pub follow: bool,
    /// Only the last lines.
    #[serde(default)]
    pub tail: Option<u64>,
    /// Only what is not older, in milliseconds since 1970.
    #[serde(default)]
    pub since_ms: Option<u64>,
    /// Begin each line with its time.
    #[serde(default)]
    pub timestamps: bool,
}

/// `POST /v1/containers/{name}/exec`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// Argument vector; never through a shell.
    pub command: Vec<String>,
    /// Environment, after the container's own.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// Working directory; `None` is the container's.
    #[serde(default)]
    pub working_dir: Option<String>,
    /// Numeric user and group; `None` is the container's.
    #[serde(default)]
    pub user: Option<(u32, u32)>,
    /// Give it a terminal.
    #[serde(default)]
    pub tty: bool,
    /// Pass standard input on; without it, it reads end of file.
    #[serde(default)]
    pub interactive: bool,
    /// Rows and columns of the terminal.
    #[serde(default)]
    pub size: Option<(u16, u16)>,
}
