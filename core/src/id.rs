//! Newtypes for every identity. None converts into another, and none is built from a truncated name.

use alloc::{borrow::ToOwned, format, string::String};
use core::fmt;
use serde::{Deserialize, Serialize};

macro_rules! string_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Wraps an identity that [`new_id`] made or a record holds.
            pub fn from_raw(raw: impl Into<String>) -> Self {
                Self(raw.into())
            }

            /// The identity as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

string_id!(
    /// A container: 12 hexadecimal digits.
    ContainerId
);
string_id!(
    /// A sandbox: the namespaces (net, ipc, uts) that one container or the members of one pod share.
    SandboxId
);
string_id!(
    /// A network: one bridge in the router's network namespace.
    NetworkId
);
string_id!(
    /// A loaded image: the hexadecimal sha256 of its configuration.
    ImageId
);
string_id!(
    /// A rule of a policy.
    PolicyId
);
string_id!(
    /// A journaled operation.
    OperationId
);
string_id!(
    /// The kernel's boot id, `/proc/sys/kernel/random/boot_id`: a pid means nothing across two of them.
    BootId
);

/// Makes a 12-digit hexadecimal identity out of 6 random bytes.
pub fn new_id(random: [u8; 6]) -> String {
    random.iter().fold(String::with_capacity(12), |mut text, byte| {
        text.push_str(&format!("{byte:02x}"));
        text
    })
}

/// One process for as long as it lives, and never another that got its number later.
///
/// Source: proc_pid_stat(5) field 22 (`starttime`) and proc_sys_kernel(5) `random/boot_id`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessRef {
    /// The number; reused by the kernel.
    pub pid: u32,
    /// Clock ticks between boot and the start of the process.
    pub start_time_ticks: u64,
    /// The boot in which it was seen.
    pub boot_id: BootId,
}

impl fmt::Display for ProcessRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {}", self.pid)
    }
}

/// A number that no two attachments of one node ever share while both exist; the names and interface
/// indexes of links are derived from it, so that nothing is truncated into a 15-byte interface name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Slot(pub u32);

impl Slot {
    /// Interface index of the host end of the slot's veth in the router.
    ///
    /// Indexes below are left to the kernel (lo, tap, …) and to bridges.
    pub fn host_ifindex(self) -> u32 {
        100_000 + self.0
    }

    /// Name of the host end in the router, at most 15 bytes for every `u32`.
    pub fn host_link_name(self) -> String {
        format!("hfv{}", self.0)
    }
}

/// The tenant of a workload: what `--namespace` names. Tenants cannot reach one another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tenant(String);

impl Tenant {
    /// The tenant of a workload that names none.
    pub const DEFAULT: &'static str = "default";

    /// Wraps a name that [`crate::name::check`] accepted or a record holds.
    pub fn from_raw(raw: impl Into<String>) -> Self {
        Self(raw.into())
    }

    /// The tenant's name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Self(Self::DEFAULT.to_owned())
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
