//! What is remembered of a pod: everything that is needed to make it, before anything of it exists, and how far it
//! has come.

use super::bytes::Bytes;
use crate::{
    id::{BootId, ContainerId, SandboxId},
    spec::{DnsSpec, PortSpec, Security},
    time::{Mono, Wall},
};
use alloc::{collections::BTreeMap, string::String, vec::Vec};
use core::fmt;
use serde::{Deserialize, Serialize};

/// The identity of a Kubernetes pod: `metadata.uid`. Names are reused, uids are not.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodUid(String);

impl PodUid {
    /// Wraps a uid that [`super::translate::uid`] accepted or a record holds.
    pub fn from_raw(raw: impl Into<String>) -> Self {
        Self(raw.into())
    }

    /// The uid as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PodUid({})", self.0)
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a pod's containers run in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Driver {
    /// A pod of this node.
    #[default]
    Native,
}

/// When containers that ended are started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PodRestart {
    /// Always; init containers until they succeed.
    Always,
    /// Until they succeed.
    OnFailure,
    /// Never, whatever became of them.
    Never,
}

/// Whether an image that is not on the node may be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PullPolicy {
    /// Look for a newer one each time.
    Always,
    /// When it is missing.
    IfNotPresent,
    /// Never.
    Never,
}

/// The value of a variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnvValue {
    /// Exactly this.
    Text(String),
    /// The pod's IPv4 address, known once it has one.
    PodIp,
}

/// A volume, or a part of one, in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountWanted {
    /// The volume.
    pub volume: String,
    /// A relative path in it; empty is all of it.
    pub sub_path: String,
    /// Absolute path in the container.
    pub target: String,
    /// Whether the container may only read.
    pub read_only: bool,
}

/// The most a container may use. Enforced where the node can; where it cannot, the pod says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Thousandths of a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_milli: Option<u64>,
    /// Bytes of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// One container, everything built from its own spec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerWanted {
    /// Its name in the pod.
    pub name: String,
    /// Whether it runs before the others, to its end.
    pub init: bool,
    /// Image reference.
    pub image: String,
    /// Whether the image may be fetched.
    pub pull: PullPolicy,
    /// Entry point; empty is the image's.
    pub command: Vec<String>,
    /// Arguments; empty is the image's.
    pub args: Vec<String>,
    /// Environment, in order.
    pub env: Vec<(String, EnvValue)>,
    /// Working directory; empty is the image's.
    pub working_dir: String,
    /// Numeric user; `None` is the image's.
    pub uid: Option<u32>,
    /// Numeric group; `None` is the image's, or root's where the user is given.
    pub gid: Option<u32>,
    /// Refuses to run as root.
    pub non_root: bool,
    /// The rest of its security.
    pub security: Security,
    /// Mounts.
    pub mounts: Vec<MountWanted>,
    /// Limits.
    pub limits: Limits,
}

/// A file of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeFile {
    /// Relative path, checked.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// Its bytes.
    pub content: Bytes,
}

/// What a host path must be. <https://kubernetes.io/docs/concepts/storage/volumes/#hostpath-volume-types>
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostPathKind {
    /// Whatever is there.
    Any,
    /// A directory that exists.
    Directory,
    /// A directory, made (0755) when nothing is there.
    DirectoryOrCreate,
    /// A file that exists.
    File,
    /// A file, made (0644, empty) when nothing is there.
    FileOrCreate,
    /// A unix socket that exists.
    Socket,
    /// A character device that exists.
    CharDevice,
    /// A block device that exists.
    BlockDevice,
}

/// What a volume holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeSource {
    /// Nothing at first; everybody may write.
    Empty,
    /// Files: a ConfigMap, a Secret, a projected or downward volume.
    Files(Vec<VolumeFile>),
    /// A path of the host.
    Host {
        /// Absolute.
        path: String,
        /// What it must be.
        kind: HostPathKind,
    },
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeWanted {
    /// Name.
    pub name: String,
    /// What it holds.
    pub source: VolumeSource,
}

/// Something of the node's that a pod has for itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The kind of thing, as Kubernetes names it.
    pub resource: String,
    /// Which.
    pub id: String,
    /// The container that uses it.
    pub container: String,
}

/// What failed, and when it is tried again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// Failures so far.
    pub attempts: u32,
    /// What failed last.
    pub message: String,
    /// Not before this time of `boot_id`; at once in another boot.
    pub not_before: Mono,
    /// The boot whose clock that is.
    pub boot_id: BootId,
}

/// An end that is not a container's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// One word, as Kubernetes' reasons are.
    pub reason: String,
    /// The cause, for a person.
    pub message: String,
    /// When.
    pub at: Wall,
}

/// How far a container is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerProgress {
    /// The node's container, once it was started.
    pub id: Option<ContainerId>,
    /// It could not be started, and is tried again.
    pub retry: Option<Retry>,
    /// It could not be started, and is not tried again; or it is gone for good.
    pub failed: Option<Failure>,
}

/// That a pod is to go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deletion {
    /// How long its containers may take, in milliseconds.
    pub grace_ms: u64,
    /// When it was asked for.
    pub asked: Wall,
}

/// How far a pod is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Its volumes are on disk; what they hold is not in the record any more.
    pub prepared: bool,
    /// The node's sandbox, once it was made.
    pub sandbox: Option<SandboxId>,
    /// What the pod as a whole waits for.
    pub retry: Option<Retry>,
    /// It has failed for good: nothing more is started.
    pub failed: Option<Failure>,
    /// It is to go.
    pub deleting: Option<Deletion>,
    /// Its containers, as in [`PodRecord::containers`].
    pub containers: Vec<ContainerProgress>,
}

/// One pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRecord {
    /// Identity.
    pub uid: PodUid,
    /// What the create answered: 12 hexadecimal digits, the beginning of every name on the node.
    pub jid: String,
    /// Kubernetes' namespace; the tenant.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// What it runs in.
    pub driver: Driver,
    /// Host name inside.
    pub hostname: String,
    /// How its names are looked up.
    #[serde(default, skip_serializing_if = "DnsSpec::is_default")]
    pub dns: DnsSpec,
    /// Host ports.
    pub ports: Vec<PortSpec>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// When containers are started again.
    pub restart: PodRestart,
    /// How long a container may take to end, in milliseconds.
    pub grace_ms: u64,
    /// Containers, init containers first, each in order.
    pub containers: Vec<ContainerWanted>,
    /// Volumes.
    pub volumes: Vec<VolumeWanted>,
    /// What is not done as asked, for a person.
    pub notes: Vec<String>,
    /// Devices it has for itself.
    pub claims: Vec<Claim>,
    /// How far it is.
    pub progress: Progress,
    /// When it was accepted.
    pub created: Wall,
}

impl PodRecord {
    /// The name of its sandbox, unique on the node.
    pub fn sandbox_name(&self) -> String {
        super::next::label(&self.name, &self.jid)
    }

    /// The name of one of its containers, unique on the node.
    pub fn container_name(&self, container: &ContainerWanted) -> String {
        super::next::label(&container.name, &self.jid)
    }
}

/// A pod that is gone, or that a delete came for before its create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    /// Identity.
    pub uid: PodUid,
    /// What its create had answered; empty if there was none.
    pub jid: String,
    /// Kubernetes' namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Containers whose logs are kept.
    pub logs: Vec<String>,
    /// Forgotten at this time of `boot_id`; in another boot it is stamped anew.
    pub expires: Mono,
    /// The boot whose clock that is.
    pub boot_id: BootId,
    /// When it was deleted.
    pub deleted: Wall,
}
