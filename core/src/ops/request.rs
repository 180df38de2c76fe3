//! What a user can ask for, as the API carries it.

use crate::{
    alloc_address::Wanted,
    error::{OperationError, Refusal, StoreError},
    policy::{PolicyAction, PortMatch},
    spec::{BindMount, DnsSpec, NetworkSpec, PortSpec, RestartPolicy, Security},
};
use alloc::{collections::BTreeMap, string::String, vec::Vec};
use core::fmt;
use serde::{Deserialize, Serialize};

/// Where the root of a new container comes from, as the user names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RootRequest {
    /// An absolute host directory.
    Rootfs(String),
    /// An image by reference (`busybox`, `busybox:latest`) or identity.
    Image(String),
}

/// `holdfast run`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// Root file system.
    pub root: RootRequest,
    /// Name; `None` gets one.
    #[serde(default)]
    pub name: Option<String>,
    /// Pod to join.
    #[serde(default)]
    pub pod: Option<String>,
    /// Tenant (`--namespace`); with a pod, the pod's.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Networks by name; empty is the default network; not with a pod.
    #[serde(default)]
    pub networks: Vec<String>,
    /// Declared addresses, by a name in `networks` (or of the default network).
    #[serde(default)]
    pub addresses: BTreeMap<String, Wanted>,
    /// Published ports; not with a pod.
    #[serde(default)]
    pub ports: Vec<PortSpec>,
    /// Command and arguments; empty takes the image's.
    #[serde(default)]
    pub command: Vec<String>,
    /// Replaces the image's entry point.
    #[serde(default)]
    pub entrypoint: Option<Vec<String>>,
    /// Environment.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// Bind mounts.
    #[serde(default)]
    pub mounts: Vec<BindMount>,
    /// Working directory; `None` takes the image's.
    #[serde(default)]
    pub working_dir: Option<String>,
    /// Numeric user and group; `None` takes the image's.
    #[serde(default)]
    pub user: Option<(u32, u32)>,
    /// Host name; `None` takes the name; not with a pod.
    #[serde(default)]
    pub hostname: Option<String>,
    /// Restart policy.
    #[serde(default)]
    pub restart: RestartPolicy,
    /// Signal number that asks it to end; `None` is SIGTERM.
    #[serde(default)]
    pub stop_signal: Option<u32>,
    /// Wait before it is killed, in milliseconds; `None` is 10 s.
    #[serde(default)]
    pub stop_grace_ms: Option<u64>,
    /// Labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Removes it when it has ended; not with a restart policy.
    #[serde(default)]
    pub remove_on_exit: bool,
    /// What it may do less, or more, than others.
    #[serde(default, skip_serializing_if = "Security::is_default")]
    pub security: Security,
    /// Names that it answers to besides its own; not with a pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// How its names are looked up; not with a pod.
    #[serde(default, skip_serializing_if = "DnsSpec::is_default")]
    pub dns: DnsSpec,
}

/// `holdfast pod create`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PodRequest {
    /// Name.
    pub name: String,
    /// Tenant (`--namespace`).
    #[serde(default)]
    pub tenant: Option<String>,
    /// Networks by name; empty is the default network.
    #[serde(default)]
    pub networks: Vec<String>,
    /// Declared addresses, by a name in `networks` (or of the default network).
    #[serde(default)]
    pub addresses: BTreeMap<String, Wanted>,
    /// Published ports.
    #[serde(default)]
    pub ports: Vec<PortSpec>,
    /// Host name; `None` takes the name.
    #[serde(default)]
    pub hostname: Option<String>,
    /// Labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Names that it answers to besides its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// How its names are looked up.
    #[serde(default, skip_serializing_if = "DnsSpec::is_default")]
    pub dns: DnsSpec,
}

/// `holdfast network create`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkRequest {
    /// Name.
    pub name: String,
    /// The rest.
    #[serde(default)]
    pub spec: NetworkSpec,
}

/// `holdfast network connect`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectRequest {
    /// A container that is no pod's member, or a pod.
    pub workload: String,
    /// Declared addresses.
    #[serde(default)]
    pub addresses: Wanted,
}

/// `holdfast network disconnect`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DisconnectRequest {
    /// A container that is no pod's member, or a pod.
    pub workload: String,
}

/// `holdfast policy allow`, `deny`, `default`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyRequest {
    /// Name; `None` gets one.
    #[serde(default)]
    pub name: Option<String>,
    /// What it does.
    pub action: PolicyAction,
    /// Who sends, any of them: see [`crate::ops::policy::peer`]; empty is anybody.
    #[serde(default)]
    pub from: Vec<String>,
    /// Who receives, likewise.
    #[serde(default)]
    pub to: Vec<String>,
    /// What, any of them; empty is everything.
    #[serde(default)]
    pub ports: Vec<PortMatch>,
}

/// `holdfast policy rm`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyTarget {
    /// A rule by name or identity, or a document.
    pub name: String,
}

/// `holdfast stop`, `holdfast restart`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopRequest {
    /// Overrides the container's grace, in milliseconds.
    #[serde(default)]
    pub grace_ms: Option<u64>,
}

/// `holdfast rm`, `holdfast pod rm`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveRequest {
    /// Also when it runs: it is killed.
    #[serde(default)]
    pub force: bool,
}

/// Why a request did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "error", rename_all = "snake_case")]
pub enum RequestError {
    /// Refused before anything was touched.
    Refused(Refusal),
    /// Tried, failed and taken back.
    Failed(OperationError),
    /// Could not be written down, so it was not tried.
    Store(StoreError),
}

impl From<Refusal> for RequestError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<StoreError> for RequestError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Failed(error) => error.fmt(f),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for RequestError {}
