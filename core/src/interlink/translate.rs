//! A v1.Pod and the objects that came with it, turned into what the node makes: checked whole, before anything
//! is accepted. What is wrong is told all at once; what is not done as asked is noted.

use super::{
    dns,
    env::{environment, expand},
    files::{self, Objects},
    kube::{self, Container, Pod, PodData},
    quantity,
    record::{
        ContainerProgress, ContainerWanted, Driver, EnvValue, Limits, MountWanted, PodRecord, PodRestart,
        PodUid, Progress, PullPolicy,
    },
    unsupported,
};
use crate::{
    error::{Refusal, RefusalCode},
    name,
    spec::{PortSpec, Protocol, Security},
    time::Wall,
};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::net::Ipv4Addr;

/// Grace of a pod that names none, in seconds: v1.PodSpec `terminationGracePeriodSeconds`.
const GRACE_SECONDS_DEFAULT: u64 = 30;
/// The most containers of a pod, init containers included.
const CONTAINERS_MAX: usize = 64;
/// The longest grace that is taken, in seconds: a day.
const GRACE_SECONDS_MAX: u64 = 86_400;

/// What is done with a limit that the node cannot enforce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnenforcedLimit {
    /// The pod runs without, and says so.
    #[default]
    Note,
    /// The pod is refused.
    Refuse,
}

/// What the node can do for pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// Whether cgroup controllers hold containers to their limits.
    pub limits: bool,
    /// What is done with limits otherwise.
    pub unenforced: UnenforcedLimit,
}

/// Reads `metadata.uid`.
///
/// # Errors
/// `Invalid` when it is missing or no identity.
pub fn uid(pod: &Pod) -> Result<PodUid, Refusal> {
    let uid = &pod.metadata.uid;
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if uid.is_empty() || uid.len() > 128 || !uid.bytes().all(fine) {
        let detail = format!("pod {:?} has no usable metadata.uid: {uid:?}", pod.metadata.name);
        return Err(Refusal::new(RefusalCode::Invalid, detail));
    }
    Ok(PodUid::from_raw(uid))
}

/// The record of a new pod.
///
/// # Errors
/// `Invalid`, naming every field that is wrong or not supported.
pub fn translate(
    data: &PodData,
    jid: String,
    wall: Wall,
    abilities: Abilities,
) -> Result<PodRecord, Refusal> {
    let pod = &data.pod;
    let uid = uid(pod)?;
    let (mut faults, mut notes) = (Vec::new(), Vec::new());
    unsupported::collect(data, &mut faults, &mut notes);
    let objects = Objects::of(data);
    let volumes = files::volumes(data, &objects, &mut faults, &mut notes);
    let mut containers: Vec<ContainerWanted> = Vec::new();
    let spec = &pod.spec;
    if spec.containers.is_empty() {
        faults.push(String::from("spec.containers: a pod has at least one"));
    }
    if spec.containers.len() + spec.init_containers.len() > CONTAINERS_MAX {
        faults.push(format!("a pod has at most {CONTAINERS_MAX} containers"));
    }
    for (what, list) in [("initContainers", &spec.init_containers), ("containers", &spec.containers)] {
        for one in list {
            let at = format!("spec.{what}[{}]", one.name);
            if let Err(refusal) = name::check("container", &one.name) {
                faults.push(format!("{at}: {refusal}"));
            }
            if containers.iter().any(|other| other.name == one.name) {
                faults.push(format!("{at}: two containers have this name"));
            }
            let init = what == "initContainers";
            containers.push(container(&at, pod, one, init, &objects, abilities, &mut faults, &mut notes));
        }
    }
    for wanted in &containers {
        for mount in
            wanted.mounts.iter().filter(|mount| volumes.iter().all(|volume| volume.name != mount.volume))
        {
            faults.push(format!("container {} mounts {:?}, which is no volume", wanted.name, mount.volume));
        }
    }
    let record = PodRecord {
        uid,
        jid,
        namespace: tenant(pod, &mut faults),
        name: pod.metadata.name.clone(),
        driver: Driver::Native,
        hostname: hostname(pod),
        dns: dns::dns(spec, &mut faults),
        ports: ports(pod, &mut faults),
        labels: pod.metadata.labels.clone(),
        restart: restart(&spec.restart_policy, &mut faults),
        grace_ms: grace_ms(spec.grace_seconds),
        progress: Progress {
            containers: containers.iter().map(|_| ContainerProgress::default()).collect(),
            ..Progress::default()
        },
        containers,
        volumes,
        notes,
        claims: Vec::new(),
        created: wall,
    };
    if faults.is_empty() {
        return Ok(record);
    }
    let whose = format!("{}/{}", record.namespace, record.name);
    let detail = format!("pod {whose} cannot run on this node: {}", faults.join("; "));
    Err(Refusal::new(RefusalCode::Invalid, detail))
}

/// A grace, bounded, in milliseconds.
pub fn grace_ms(seconds: Option<u64>) -> u64 {
    seconds.unwrap_or(GRACE_SECONDS_DEFAULT).min(GRACE_SECONDS_MAX) * 1_000
}

fn tenant(pod: &Pod, faults: &mut Vec<String>) -> String {
    let namespace = if pod.metadata.namespace.is_empty() { "default" } else { &pod.metadata.namespace };
    if let Err(refusal) = name::check("namespace", namespace) {
        faults.push(format!("metadata.namespace: {refusal}"));
    }
    if pod.metadata.name.is_empty() {
        faults.push(String::from("metadata.name is empty"));
    }
    namespace.to_string()
}

/// `spec.hostname`, else the pod's name, as much of it as a label holds: what a kubelet does.
fn hostname(pod: &Pod) -> String {
    let wanted = if pod.spec.hostname.is_empty() { &pod.metadata.name } else { &pod.spec.hostname };
    super::next::as_label(wanted, name::NAME_BYTES_MAX)
}

fn restart(policy: &str, faults: &mut Vec<String>) -> PodRestart {
    match policy {
        "" | "Always" => PodRestart::Always,
        "OnFailure" => PodRestart::OnFailure,
        "Never" => PodRestart::Never,
        other => {
            faults.push(format!("spec.restartPolicy: {other:?} is not known"));
            PodRestart::Never
        }
    }
}

fn ports(pod: &Pod, faults: &mut Vec<String>) -> Vec<PortSpec> {
    let mut ports: Vec<PortSpec> = Vec::new();
    for container in &pod.spec.containers {
        for port in container.ports.iter().filter(|port| port.host_port != 0) {
            let at = format!("spec.containers[{}].ports[{}]", container.name, port.port);
            let protocol = match port.protocol.as_str() {
                "" | "TCP" => Protocol::Tcp,
                "UDP" => Protocol::Udp,
                other => {
                    faults.push(format!("{at}.protocol: {other} is not supported"));
                    continue;
                }
            };
            let address =
                if port.host_ip.is_empty() { Ok(Ipv4Addr::UNSPECIFIED) } else { port.host_ip.parse() };
            let Ok(host_address) = address else {
                faults.push(format!("{at}.hostIP: {:?} is no IPv4 address", port.host_ip));
                continue;
            };
            if port.port == 0 {
                faults.push(format!("{at}.containerPort is missing"));
                continue;
            }
            let spec = PortSpec { host_address, host_port: port.host_port, target_port: port.port, protocol };
            if !ports.contains(&spec) {
                ports.push(spec);
            }
        }
    }
    ports
}

fn pull_policy(
    at: &str,
    container: &Container,
    faults: &mut Vec<String>,
    notes: &mut Vec<String>,
) -> PullPolicy {
    let latest = !container.image.rsplit('/').next().unwrap_or_default().contains(':')
        || container.image.ends_with(":latest");
    match container.pull_policy.as_str() {
        "Never" => PullPolicy::Never,
        "IfNotPresent" => PullPolicy::IfNotPresent,
        "Always" => {
            notes
                .push(format!("{at}.imagePullPolicy Always: the image of the node's store is used as it is"));
            PullPolicy::Always
        }
        // The API server fills it in; a pod made by hand gets what it would fill in.
        "" if latest => PullPolicy::Always,
        "" => PullPolicy::IfNotPresent,
        other => {
            faults.push(format!("{at}.imagePullPolicy: {other:?} is not known"));
            PullPolicy::Never
        }
    }
}

fn limits(
    at: &str,
    container: &Container,
    abilities: Abilities,
    faults: &mut Vec<String>,
    notes: &mut Vec<String>,
) -> Limits {
    let mut limits = Limits::default();
    for (name, value) in &container.resources.limits {
        let text = value.as_str().map_or_else(|| value.to_string(), String::from);
        let read = match name.as_str() {
            "cpu" => quantity::milli(&text).map(|milli| limits.cpu_milli = Some(milli)),
            "memory" => quantity::units(&text).map(|bytes| limits.memory_bytes = Some(bytes)),
            _ => continue,
        };
        if read.is_none() {
            faults.push(format!("{at}.resources.limits[{name}]: {text:?} is no quantity"));
        } else if !abilities.limits {
            let told = format!(
                "{at}.resources.limits[{name}]={text} cannot be enforced: this node delegates no cgroup controller"
            );
            match abilities.unenforced {
                UnenforcedLimit::Note => notes.push(told),
                UnenforcedLimit::Refuse => faults.push(told),
            }
        }
    }
    limits
}

#[allow(clippy::too_many_arguments, reason = "one call; a struct of these would only name them twice")]
fn container(
    at: &str,
    pod: &Pod,
    container: &Container,
    init: bool,
    objects: &Objects<'_>,
    abilities: Abilities,
    faults: &mut Vec<String>,
    notes: &mut Vec<String>,
) -> ContainerWanted {
    if container.image.is_empty() {
        faults.push(format!("{at}.image is empty"));
    }
    let env = environment(at, pod, container, objects, faults);
    let lookup = |name: &str| {
        env.iter().find(|(known, _)| known == name).and_then(|(_, value)| match value {
            EnvValue::Text(text) => Some(text.clone()),
            EnvValue::PodIp => None,
        })
    };
    let words = |list: &[String]| list.iter().map(|word| expand(word, lookup)).collect::<Vec<_>>();
    let (command, args) = (words(&container.command), words(&container.args));
    if command.iter().chain(&args).any(|word| word.contains('\0')) {
        faults.push(format!("{at}.command: no argument can hold a NUL byte"));
    }
    let own = &container.security;
    let of_pod = &pod.spec.security;
    let mut groups = of_pod.groups.clone();
    groups.extend(of_pod.fs_group);
    ContainerWanted {
        name: container.name.clone(),
        init,
        image: container.image.clone(),
        pull: pull_policy(at, container, faults, notes),
        command,
        args,
        env,
        working_dir: container.working_dir.clone(),
        uid: own.user.or(of_pod.user),
        gid: own.group.or(of_pod.group),
        non_root: own.non_root.or(of_pod.non_root).unwrap_or(false),
        security: Security {
            read_only_root: own.read_only_root.unwrap_or(false),
            no_new_privileges: own.escalation == Some(false),
            capabilities_add: capabilities(&own.capabilities.add),
            capabilities_drop: capabilities(&own.capabilities.drop),
            groups,
        },
        mounts: container.mounts.iter().filter_map(|mount| mounted(at, mount, faults)).collect(),
        limits: limits(at, container, abilities, faults, notes),
    }
}

/// `NET_ADMIN`, `CAP_NET_ADMIN` and `net_admin` are one.
fn capabilities(list: &[String]) -> Vec<String> {
    list.iter().map(|name| name.to_ascii_uppercase().trim_start_matches("CAP_").to_string()).collect()
}

fn mounted(at: &str, mount: &kube::VolumeMount, faults: &mut Vec<String>) -> Option<MountWanted> {
    let at = format!("{at}.volumeMounts[{}]", mount.name);
    if !mount.path.starts_with('/') || mount.path.contains('\0') {
        faults.push(format!("{at}.mountPath: {:?} is no absolute path", mount.path));
        return None;
    }
    if !mount.sub_path.is_empty() && !files::is_relative(&mount.sub_path) {
        faults.push(format!("{at}.subPath: {:?} is no relative path without `..`", mount.sub_path));
        return None;
    }
    Some(MountWanted {
        volume: mount.name.clone(),
        sub_path: mount.sub_path.clone(),
        target: mount.path.clone(),
        read_only: mount.read_only.unwrap_or(false),
    })
}
