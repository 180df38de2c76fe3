//! What the virtual kubelet is told the node has.

use alloc::{format, string::String, vec::Vec};
use serde::Serialize;

/// The answer to a ping. `taints` is not in it: an empty list would clear the node's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ping {
    /// Always `ok`.
    pub status: &'static str,
    /// What there is.
    pub resources: Resources,
}

/// Quantities, as strings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Resources {
    /// CPUs.
    pub cpu: String,
    /// Memory.
    pub memory: String,
    /// Pods.
    pub pods: String,
    /// Devices.
    pub accelerators: Vec<Accelerator>,
}

/// Devices of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Accelerator {
    /// As Kubernetes names it.
    pub resource_type: String,
    /// How many are there.
    pub available: String,
}

/// What a node has, and what its configuration says instead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// CPUs of the machine.
    pub cpus: u64,
    /// Memory of the machine, in bytes.
    pub memory_bytes: u64,
    /// The most pods.
    pub pods_max: u64,
    /// Overrides of cpu, memory and pods.
    pub told: [Option<String>; 3],
}

/// The answer to a ping.
pub fn ping(capacity: &Capacity) -> Ping {
    let [cpu, memory, pods] = capacity.told.clone();
    Ping {
        status: "ok",
        resources: Resources {
            cpu: cpu.unwrap_or_else(|| format!("{}", capacity.cpus)),
            memory: memory.unwrap_or_else(|| format!("{}Mi", capacity.memory_bytes >> 20)),
            pods: pods.unwrap_or_else(|| format!("{}", capacity.pods_max)),
            accelerators: Vec::new(),
        },
    }
}
