//! The parts of Kubernetes' v1 objects that are read, as they come over the wire. Every list and object may be
//! `null`; what no field here takes ends up in `rest`, so that it can be named instead of ignored.

use super::bytes::Bytes;
use alloc::{collections::BTreeMap, string::String, vec::Vec};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// `null` is the default.
fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

macro_rules! wire {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $key:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
        pub struct $name {
            $($(#[$field_doc])* #[serde(default, rename = $key, deserialize_with = "nullable")] pub $field: $type,)*
            /// Everything else.
            #[serde(flatten)]
            pub rest: BTreeMap<String, Value>,
        }
    };
}

wire!(
    /// What `/create` is sent.
    PodData {
        /// The pod.
        pod: Pod = "pod",
        /// What its containers' volumes hold, init containers first.
        containers: Vec<ContainerData> = "container",
    }
);
wire!(
    /// ConfigMaps and Secrets of one container's volumes.
    ContainerData {
        /// The container.
        name: String = "name",
        /// ConfigMaps.
        config_maps: Vec<ConfigMap> = "configMaps",
        /// Projected and downward-API volumes, as ConfigMaps named after the volume.
        projected: Vec<ConfigMap> = "projectedvolumemaps",
        /// Secrets.
        secrets: Vec<Secret> = "secrets",
    }
);
wire!(
    /// Of a v1.ObjectMeta.
    Metadata {
        /// Name.
        name: String = "name",
        /// Namespace.
        namespace: String = "namespace",
        /// Identity.
        uid: String = "uid",
        /// Labels.
        labels: BTreeMap<String, String> = "labels",
        /// Annotations.
        annotations: BTreeMap<String, String> = "annotations",
        /// Set on a pod that is being deleted, in seconds.
        deletion_grace_seconds: Option<u64> = "deletionGracePeriodSeconds",
    }
);
wire!(
    /// A v1.ConfigMap.
    ConfigMap {
        /// Its metadata.
        metadata: Metadata = "metadata",
        /// Text by key.
        data: BTreeMap<String, String> = "data",
        /// Bytes by key.
        binary_data: BTreeMap<String, Bytes> = "binaryData",
    }
);
wire!(
    /// A v1.Secret.
    Secret {
        /// Its metadata.
        metadata: Metadata = "metadata",
        /// Bytes by key.
        data: BTreeMap<String, Bytes> = "data",
        /// Text by key; wins over `data`.
        string_data: BTreeMap<String, String> = "stringData",
    }
);
wire!(
    /// A v1.Pod.
    Pod {
        /// Its metadata.
        metadata: Metadata = "metadata",
        /// What it is.
        spec: PodSpec = "spec",
    }
);
wire!(
    /// A v1.PodSpec.
    PodSpec {
        /// Init containers, in order.
        init_containers: Vec<Container> = "initContainers",
        /// Containers.
        containers: Vec<Container> = "containers",
        /// Volumes.
        volumes: Vec<Volume> = "volumes",
        /// `Always` (also when empty), `OnFailure` or `Never`.
        restart_policy: String = "restartPolicy",
        /// Seconds between the request to end and the kill.
        grace_seconds: Option<u64> = "terminationGracePeriodSeconds",
        /// Host name inside.
        hostname: String = "hostname",
        /// Who is asked for names.
        dns_policy: String = "dnsPolicy",
        /// More of that.
        dns_config: DnsConfig = "dnsConfig",
        /// The node's name, for the downward API.
        node_name: String = "nodeName",
        /// For the downward API.
        service_account: String = "serviceAccountName",
        /// Defaults of the containers' security.
        security: Security = "securityContext",
    }
);
wire!(
    /// A v1.PodDNSConfig.
    DnsConfig {
        /// Addresses of servers.
        nameservers: Vec<String> = "nameservers",
        /// Domains to search.
        searches: Vec<String> = "searches",
        /// Options of the resolver.
        options: Vec<DnsOption> = "options",
    }
);
wire!(
    /// A v1.PodDNSConfigOption.
    DnsOption {
        /// Name.
        name: String = "name",
        /// Value, if it has one.
        value: String = "value",
    }
);
wire!(
    /// A v1.PodSecurityContext or v1.SecurityContext.
    Security {
        /// Numeric user.
        user: Option<u32> = "runAsUser",
        /// Numeric group.
        group: Option<u32> = "runAsGroup",
        /// Refuses root.
        non_root: Option<bool> = "runAsNonRoot",
        /// More groups.
        groups: Vec<u32> = "supplementalGroups",
        /// Group of volumes.
        fs_group: Option<u32> = "fsGroup",
        /// Whether the root is read-only.
        read_only_root: Option<bool> = "readOnlyRootFilesystem",
        /// Whether set-uid programs work.
        escalation: Option<bool> = "allowPrivilegeEscalation",
        /// All of the host.
        privileged: Option<bool> = "privileged",
        /// Capabilities.
        capabilities: Capabilities = "capabilities",
    }
);
wire!(
    /// A v1.Capabilities.
    Capabilities {
        /// More than the default.
        add: Vec<String> = "add",
        /// Less than the default; `ALL` is all of it.
        drop: Vec<String> = "drop",
    }
);
wire!(
    /// A v1.Container.
    Container {
        /// Name.
        name: String = "name",
        /// Image reference.
        image: String = "image",
        /// `Always`, `IfNotPresent` or `Never`.
        pull_policy: String = "imagePullPolicy",
        /// Entry point.
        command: Vec<String> = "command",
        /// Arguments.
        args: Vec<String> = "args",
        /// Working directory.
        working_dir: String = "workingDir",
        /// Environment.
        env: Vec<EnvVar> = "env",
        /// Whole objects as environment.
        env_from: Vec<EnvFrom> = "envFrom",
        /// Ports.
        ports: Vec<ContainerPort> = "ports",
        /// Volume mounts.
        mounts: Vec<VolumeMount> = "volumeMounts",
        /// Limits and requests.
        resources: Resources = "resources",
        /// Security.
        security: Security = "securityContext",
        /// `Always` makes an init container a sidecar.
        restart_policy: String = "restartPolicy",
    }
);
wire!(
    /// A v1.EnvVar.
    EnvVar {
        /// Name.
        name: String = "name",
        /// Value.
        value: String = "value",
        /// Where else the value comes from.
        from: Option<ValueFrom> = "valueFrom",
    }
);
wire!(
    /// A v1.EnvVarSource.
    ValueFrom {
        /// A field of the pod.
        field: Option<FieldRef> = "fieldRef",
        /// A key of a ConfigMap.
        config_map: Option<KeyRef> = "configMapKeyRef",
        /// A key of a Secret.
        secret: Option<KeyRef> = "secretKeyRef",
    }
);
wire!(
    /// A v1.ObjectFieldSelector.
    FieldRef {
        /// The field.
        path: String = "fieldPath",
    }
);
wire!(
    /// A key of an object.
    KeyRef {
        /// The object.
        name: String = "name",
        /// The key.
        key: String = "key",
        /// Whether it may be missing.
        optional: Option<bool> = "optional",
    }
);
wire!(
    /// A v1.EnvFromSource.
    EnvFrom {
        /// Before each name.
        prefix: String = "prefix",
        /// A ConfigMap.
        config_map: Option<KeyRef> = "configMapRef",
        /// A Secret.
        secret: Option<KeyRef> = "secretRef",
    }
);
wire!(
    /// A v1.ContainerPort.
    ContainerPort {
        /// In the pod.
        port: u16 = "containerPort",
        /// On the host; 0 is none.
        host_port: u16 = "hostPort",
        /// On which address of the host.
        host_ip: String = "hostIP",
        /// TCP (also when empty), UDP or SCTP.
        protocol: String = "protocol",
    }
);
wire!(
    /// A v1.VolumeMount.
    VolumeMount {
        /// The volume.
        name: String = "name",
        /// Where it goes.
        path: String = "mountPath",
        /// A part of it.
        sub_path: String = "subPath",
        /// Whether it may only be read.
        read_only: Option<bool> = "readOnly",
    }
);
wire!(
    /// A v1.ResourceRequirements.
    Resources {
        /// The most of each.
        limits: BTreeMap<String, Value> = "limits",
        /// The least of each; the scheduler's business.
        requests: BTreeMap<String, Value> = "requests",
    }
);
wire!(
    /// A v1.Volume.
    Volume {
        /// Name.
        name: String = "name",
        /// Empty at first.
        empty_dir: Option<EmptyDir> = "emptyDir",
        /// A path of the host.
        host_path: Option<HostPath> = "hostPath",
        /// A ConfigMap.
        config_map: Option<ObjectVolume> = "configMap",
        /// A Secret.
        secret: Option<ObjectVolume> = "secret",
        /// Several sources in one.
        projected: Option<Projected> = "projected",
        /// Fields of the pod.
        downward: Option<Projected> = "downwardAPI",
    }
);
wire!(
    /// A v1.EmptyDirVolumeSource.
    EmptyDir {
        /// `Memory`, or nothing.
        medium: String = "medium",
        /// The most it may hold.
        size_limit: Value = "sizeLimit",
    }
);
wire!(
    /// A v1.HostPathVolumeSource.
    HostPath {
        /// The path.
        path: String = "path",
        /// What it must be.
        kind: String = "type",
    }
);
wire!(
    /// A v1.ConfigMapVolumeSource or v1.SecretVolumeSource.
    ObjectVolume {
        /// The ConfigMap.
        name: String = "name",
        /// The Secret.
        secret_name: String = "secretName",
        /// Which keys go where; all of them under their own names when empty.
        items: Vec<Item> = "items",
        /// Mode of files; 0644 when absent.
        default_mode: Option<u32> = "defaultMode",
        /// Whether the object may be missing.
        optional: Option<bool> = "optional",
    }
);
wire!(
    /// A v1.KeyToPath.
    Item {
        /// The key.
        key: String = "key",
        /// Its file.
        path: String = "path",
        /// Its mode.
        mode: Option<u32> = "mode",
    }
);
wire!(
    /// A v1.ProjectedVolumeSource or v1.DownwardAPIVolumeSource.
    Projected {
        /// Mode of files; 0644 when absent.
        default_mode: Option<u32> = "defaultMode",
        /// Sources; the virtual kubelet has read them.
        sources: Value = "sources",
        /// Items of a downward volume; likewise.
        items: Value = "items",
    }
);

/// Reads what `/create` is sent: one object, or an array of exactly one.
///
/// # Errors
/// What is wrong with it, for a person.
pub fn pod_data(body: &[u8]) -> Result<PodData, String> {
    let value: Value =
        serde_json::from_slice(body).map_err(|error| alloc::format!("the body is no JSON: {error}"))?;
    let value = match value {
        Value::Array(mut list) => match (list.len(), list.pop()) {
            (1, Some(one)) => one,
            (count, _) => {
                return Err(alloc::format!(
                    "the array holds {count} pods; send one pod, as an object or an array of one"
                ));
            }
        },
        value => value,
    };
    serde_json::from_value(value).map_err(|error| alloc::format!("the body is no pod-data object: {error}"))
}

/// Reads a v1.Pod.
///
/// # Errors
/// What is wrong with it, for a person.
pub fn pod(body: &[u8]) -> Result<Pod, String> {
    serde_json::from_slice(body).map_err(|error| alloc::format!("the body is no v1.Pod: {error}"))
}

/// Reads what `/status` is sent: pods, or nothing.
///
/// # Errors
/// What is wrong with it, for a person.
pub fn pods(body: &[u8]) -> Result<Vec<Pod>, String> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Vec::new());
    }
    let read: Option<Vec<Pod>> = serde_json::from_slice(body)
        .map_err(|error| alloc::format!("the body is no array of v1.Pod: {error}"))?;
    Ok(read.unwrap_or_default())
}
