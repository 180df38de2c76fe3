//! What a user asked for, complete: create stores these, and start, restart and recovery read nothing else.

use crate::id::{ImageId, NetworkId, Tenant};
use alloc::{collections::BTreeMap, string::String, vec::Vec};
use core::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};
use serde::{Deserialize, Serialize};

/// Where a container's root filesystem comes from. It is always the lower layer of an overlay: never written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RootSource {
    /// A directory on the host, absolute.
    Directory(String),
    /// A loaded image.
    Image(ImageId),
}

/// A bind mount of a host path into a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BindMount {
    /// Absolute path on the host.
    pub source: String,
    /// Absolute path in the container.
    pub target: String,
    /// Whether the container may only read.
    pub read_only: bool,
    /// A directory that `source` must lie below without a symbolic link on the way, looked at before each start:
    /// whoever may write there must not lead a mount elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beneath: Option<String>,
}

/// What a container may do less, or more, than others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Security {
    /// Its root cannot be written.
    pub read_only_root: bool,
    /// No program gives it more than it has: prctl(2), `PR_SET_NO_NEW_PRIVS`.
    pub no_new_privileges: bool,
    /// Capabilities besides the default, without `CAP_`.
    pub capabilities_add: Vec<String>,
    /// Capabilities taken from the default, without `CAP_`; `ALL` is every one.
    pub capabilities_drop: Vec<String>,
    /// Groups besides its own.
    pub groups: Vec<u32>,
}

impl Security {
    /// Whether nothing is asked for.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// When a container that ended by itself is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestartPolicy {
    /// Never.
    #[default]
    No,
    /// When the exit code is not 0 (or cannot be known), at most so many times; `None` is without limit.
    OnFailure {
        /// The most restarts.
        retries_max: Option<u32>,
    },
    /// Whatever the exit code.
    Always,
    /// Like always; a container that the user stopped stays stopped over a restart of the node.
    UnlessStopped,
    /// Never, and not even when it is lost with the node: what it did once it must not do twice.
    Once,
}

impl fmt::Display for RestartPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::No => f.write_str("no"),
            Self::OnFailure { retries_max: None } => f.write_str("on-failure"),
            Self::OnFailure { retries_max: Some(retries) } => write!(f, "on-failure:{retries}"),
            Self::Always => f.write_str("always"),
            Self::UnlessStopped => f.write_str("unless-stopped"),
            Self::Once => f.write_str("once"),
        }
    }
}

/// Everything needed to start a container, again and again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerSpec {
    /// The root filesystem.
    pub root: RootSource,
    /// What the user called the root (image reference or directory), for people.
    pub root_name: String,
    /// The whole argument vector, image defaults resolved; never through a shell; never empty.
    pub argv: Vec<String>,
    /// Environment in order, image defaults first; a later entry of the same name wins.
    pub env: Vec<(String, String)>,
    /// Absolute working directory.
    pub working_dir: String,
    /// Numeric user in the container.
    pub uid: u32,
    /// Numeric group in the container.
    pub gid: u32,
    /// Bind mounts, in order.
    pub mounts: Vec<BindMount>,
    /// When to start it again after it ended by itself.
    pub restart: RestartPolicy,
    /// Signal number that asks it to end.
    pub stop_signal: u32,
    /// How long it may take to end before it is killed, in milliseconds.
    pub stop_grace_ms: u64,
    /// Labels, for people and selectors.
    pub labels: BTreeMap<String, String>,
    /// Whether its end, its own or a stop, removes it (`run -d --rm`).
    #[serde(default)]
    pub remove_on_exit: bool,
    /// What it may do less, or more, than others.
    #[serde(default, skip_serializing_if = "Security::is_default")]
    pub security: Security,
}

/// Transport protocol of a published port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// The IANA protocol number.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// A port of the host that leads to a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortSpec {
    /// Address on the host; 0.0.0.0 is every address.
    pub host_address: Ipv4Addr,
    /// Port on the host.
    pub host_port: u16,
    /// Port in the sandbox.
    pub target_port: u16,
    /// TCP or UDP.
    pub protocol: Protocol,
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}->{}/{}", self.host_address, self.host_port, self.target_port, self.protocol)
    }
}

/// What a user may say of a network. What is left out is chosen; what is said is honoured or refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkSpec {
    /// IPv4 subnet as (address, prefix length); `None` takes a free one.
    #[serde(default)]
    pub subnet4: Option<(Ipv4Addr, u8)>,
    /// IPv6 subnet; `None` takes a /64 of the node's unique local prefix.
    #[serde(default)]
    pub subnet6: Option<(Ipv6Addr, u8)>,
    /// The bridge's IPv4 address; `None` is the subnet's first.
    #[serde(default)]
    pub gateway4: Option<Ipv4Addr>,
    /// The bridge's IPv6 address; `None` is the subnet's first.
    #[serde(default)]
    pub gateway6: Option<Ipv6Addr>,
    /// Where IPv4 addresses that nobody declares come from; `None` is the whole subnet.
    #[serde(default)]
    pub range4: Option<(Ipv4Addr, u8)>,
    /// Likewise for IPv6.
    #[serde(default)]
    pub range6: Option<(Ipv6Addr, u8)>,
    /// Without a way out through the uplink.
    #[serde(default)]
    pub internal: bool,
    /// Never routed to another network.
    #[serde(default)]
    pub isolate: bool,
    /// The only tenant whose workloads may be plugged in; `None` is any.
    #[serde(default)]
    pub tenant: Option<Tenant>,
    /// Largest packet of the links, in bytes; `None` is the default.
    #[serde(default)]
    pub mtu_bytes: Option<u32>,
    /// Labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// What a pod is made from, besides its members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxSpec {
    /// Networks in the order of the interfaces eth0, eth1, ….
    pub networks: Vec<NetworkId>,
    /// Published ports.
    pub ports: Vec<PortSpec>,
    /// Host name inside.
    pub hostname: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Names that it answers to besides its own and its members'.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// How its names are looked up.
    #[serde(default, skip_serializing_if = "DnsSpec::is_default")]
    pub dns: DnsSpec,
}

/// Who is asked for the names that a workload looks up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NameService {
    /// The node, at the network's gateway: it knows the workloads, and asks others for the rest.
    #[default]
    Node,
    /// The servers that the host asks, and not the node.
    Host,
    /// The servers of the spec alone, and not the node.
    Own,
}

/// How a workload's names are looked up: its resolv.conf(5).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DnsSpec {
    /// Who is asked.
    pub service: NameService,
    /// Servers: with [`NameService::Node`], whom the node asks for this workload in place of its own.
    pub servers: Vec<IpAddr>,
    /// Domains searched in place of the networks' zones and the host's; `None` leaves those, empty is none.
    pub search: Option<Vec<String>>,
    /// Domains searched after those, and before the host's.
    pub search_also: Vec<String>,
    /// Options of the resolver, such as `ndots:2`.
    pub options: Vec<String>,
}

impl DnsSpec {
    /// Whether nothing is asked for.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
