//! Fields that this build does not act on: told, and refused where leaving them out would be wrong.

use super::kube::{Container, PodData, Security};
use alloc::{collections::BTreeMap, format, string::String, vec::Vec};
use serde_json::Value;

/// The scheduler's, the API server's or the virtual kubelet's business; nothing for a node to do.
const POD_NOT_OURS: &[&str] = &[
    "affinity",
    "automountServiceAccountToken",
    "enableServiceLinks",
    "nodeSelector",
    "overhead",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "schedulerName",
    "schedulingGates",
    "serviceAccount",
    "tolerations",
    "topologySpreadConstraints",
];
/// What a container of this node cannot be given, and must not run without.
const POD_REFUSED: &[&str] =
    &["ephemeralContainers", "hostIPC", "hostNetwork", "hostPID", "resourceClaims", "shareProcessNamespace"];
const CONTAINER_NOT_OURS: &[&str] = &["terminationMessagePath", "terminationMessagePolicy"];
const CONTAINER_REFUSED: &[&str] = &["volumeDevices"];
const SECURITY_REFUSED: &[&str] = &["seLinuxOptions", "windowsOptions"];
const MOUNT_REFUSED: &[&str] = &["subPathExpr"];

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::String(text) => !text.is_empty(),
        Value::Bool(true) | Value::Number(_) => true,
    }
}

struct Told<'a> {
    faults: &'a mut Vec<String>,
    notes: &'a mut Vec<String>,
}

impl Told<'_> {
    fn rest(&mut self, at: &str, rest: &BTreeMap<String, Value>, not_ours: &[&str], refused: &[&str]) {
        for (key, _) in rest.iter().filter(|(_, value)| is_set(value)) {
            if refused.contains(&key.as_str()) {
                self.faults.push(format!("{at}.{key} is not supported"));
            } else if !not_ours.contains(&key.as_str()) {
                self.notes.push(format!("{at}.{key} is not supported and left out"));
            }
        }
    }

    fn security(&mut self, at: &str, security: &Security) {
        self.rest(at, &security.rest, &["fsGroupChangePolicy", "seccompProfile"], SECURITY_REFUSED);
        let profile = security.rest.get("seccompProfile").and_then(|profile| profile.get("type"));
        match profile.and_then(Value::as_str) {
            None | Some("Unconfined") => {}
            Some("Localhost") => self.faults.push(format!("{at}.seccompProfile: Localhost is not supported")),
            Some(kind) => self.notes.push(format!("{at}.seccompProfile {kind} is not applied")),
        }
        if security.privileged == Some(true) {
            self.faults.push(format!("{at}.privileged: a rootless node has no privilege to give"));
        }
        if security.fs_group.is_some() {
            self.notes.push(format!("{at}.fsGroup: volumes keep their group; the processes are in it"));
        }
    }

    fn container(&mut self, at: &str, container: &Container) {
        self.rest(at, &container.rest, CONTAINER_NOT_OURS, CONTAINER_REFUSED);
        self.security(&format!("{at}.securityContext"), &container.security);
        for mount in &container.mounts {
            let at = format!("{at}.volumeMounts[{}]", mount.path);
            self.rest(&at, &mount.rest, &[], MOUNT_REFUSED);
        }
        for name in container.resources.limits.keys() {
            if !matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
                self.faults.push(format!("{at}.resources.limits[{name}]: this node has none to give"));
            }
        }
        if container.resources.limits.contains_key("ephemeral-storage") {
            self.notes.push(format!("{at}.resources.limits[ephemeral-storage] is not enforced"));
        }
        if !container.restart_policy.is_empty() {
            self.faults.push(format!("{at}.restartPolicy: containers have the pod's"));
        }
    }
}

/// Names every field that is set and not acted on.
pub(super) fn collect(data: &PodData, faults: &mut Vec<String>, notes: &mut Vec<String>) {
    let spec = &data.pod.spec;
    let mut told = Told { faults, notes };
    told.rest("spec", &spec.rest, POD_NOT_OURS, POD_REFUSED);
    told.security("spec.securityContext", &spec.security);
    for (what, list) in [("initContainers", &spec.init_containers), ("containers", &spec.containers)] {
        for container in list {
            told.container(&format!("spec.{what}[{}]", container.name), container);
        }
    }
}
