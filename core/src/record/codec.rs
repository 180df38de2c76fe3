//! Records as stored: a kind, an identity, a version and JSON.
//!
//! A record of an older version is upgraded through a chain, one version at a time; of a newer one it is
//! refused; one that does not parse is corrupt. None of these is ever read as empty.

use super::{Change, ContainerRecord, ImageRecord, NetworkRecord, NodeRecord, SandboxRecord};
use crate::{
    interlink::record::{PodRecord, Tombstone},
    journal::OperationRecord,
    policy::PolicyRecord,
};
use alloc::{
    borrow::ToOwned,
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// The kinds of stored records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// [`NodeRecord`]; its identity is always `node`.
    Node,
    /// [`NetworkRecord`].
    Network,
    /// [`SandboxRecord`].
    Sandbox,
    /// [`ContainerRecord`].
    Container,
    /// [`ImageRecord`].
    Image,
    /// [`OperationRecord`].
    Operation,
    /// [`PolicyRecord`].
    Policy,
    /// [`PodRecord`].
    Offloaded,
    /// [`Tombstone`].
    Tombstone,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 9] = [
        Self::Node,
        Self::Network,
        Self::Sandbox,
        Self::Container,
        Self::Image,
        Self::Operation,
        Self::Policy,
        Self::Offloaded,
        Self::Tombstone,
    ];

    /// As stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Network => "network",
            Self::Sandbox => "sandbox",
            Self::Container => "container",
            Self::Image => "image",
            Self::Operation => "operation",
            Self::Policy => "policy",
            Self::Offloaded => "offloaded",
            Self::Tombstone => "tombstone",
        }
    }

    /// Reads what [`Self::as_str`] wrote.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }

    /// The version this build writes.
    pub fn version(self) -> u32 {
        // One upgrade per older version, so the chain's length and the version cannot disagree.
        1 + u32::try_from(upgrades(self).len()).unwrap_or(u32::MAX - 1)
    }
}

/// Upgrades a record of one version to the next.
type Upgrade = fn(&mut Value);

/// The chain for a kind: entry `n` turns version `n + 1` into `n + 2`. Every version that ever shipped has a
/// golden file in `core/golden` that a test walks through the chain.
fn upgrades(kind: Kind) -> &'static [Upgrade] {
    match kind {
        // Subnets, gateways and ranges of both families, routes; the primary interface; classes of policies; a
        // container that goes with its end. Absent, they are what they were.
        Kind::Node | Kind::Network => &[as_it_was],
        // Then what a container may do more or less than others, and the times of its start and end.
        Kind::Container => &[as_it_was, as_it_was],
        // Then how names are looked up, and other names.
        Kind::Sandbox => &[as_it_was, as_it_was],
        Kind::Operation => &[as_it_was, as_it_was, as_it_was],
        Kind::Offloaded => &[as_it_was],
        Kind::Image | Kind::Policy | Kind::Tombstone => &[],
    }
}

/// An upgrade by defaults alone: an absent field says what builds before it did.
fn as_it_was(_: &mut Value) {}

/// A record as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Kind.
    pub kind: Kind,
    /// Identity within the kind.
    pub id: String,
    /// The body; `None` removes the record.
    pub body: Option<String>,
}

/// Why a stored record was not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// Written by a newer build: this one would lose fields.
    Newer {
        /// Its version.
        version: u32,
        /// The newest this build reads.
        known: u32,
    },
    /// Not what any build wrote.
    Corrupt(String),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newer { version, known } => {
                write!(
                    f,
                    "has version {version}, newer than {known}, the newest this build reads; run the newer build"
                )
            }
            Self::Corrupt(cause) => write!(f, "is corrupt: {cause}"),
        }
    }
}

impl core::error::Error for DecodeError {}

/// Encodes a change for the store.
pub fn encode(change: &Change) -> Encoded {
    fn body(kind: Kind, id: &str, record: &impl Serialize) -> Encoded {
        // Records hold only strings, numbers, sequences and string-keyed maps: serialising them cannot fail.
        let body = serde_json::to_string(record).unwrap_or_default();
        Encoded { kind, id: id.to_owned(), body: Some(body) }
    }
    fn removal(kind: Kind, id: &str) -> Encoded {
        Encoded { kind, id: id.to_owned(), body: None }
    }
    match change {
        Change::Node(record) => body(Kind::Node, "node", record),
        Change::Network(record) => body(Kind::Network, record.id.as_str(), record),
        Change::Sandbox(record) => body(Kind::Sandbox, record.id.as_str(), record),
        Change::Container(record) => body(Kind::Container, record.id.as_str(), record),
        Change::Image(record) => body(Kind::Image, record.id.as_str(), record),
        Change::Policy(record) => body(Kind::Policy, record.id.as_str(), record),
        Change::RemovePolicy(id) => removal(Kind::Policy, id.as_str()),
        Change::Operation(record) => body(Kind::Operation, record.id.as_str(), record),
        Change::Offloaded(record) => body(Kind::Offloaded, record.uid.as_str(), record),
        Change::Tombstone(record) => body(Kind::Tombstone, record.uid.as_str(), record),
        Change::RemoveOffloaded(uid) => removal(Kind::Offloaded, uid.as_str()),
        Change::RemoveTombstone(uid) => removal(Kind::Tombstone, uid.as_str()),
        Change::RemoveNetwork(id) => removal(Kind::Network, id.as_str()),
        Change::RemoveSandbox(id) => removal(Kind::Sandbox, id.as_str()),
        Change::RemoveContainer(id) => removal(Kind::Container, id.as_str()),
        Change::RemoveImage(id) => removal(Kind::Image, id.as_str()),
        Change::RemoveOperation(id) => removal(Kind::Operation, id.as_str()),
    }
}

/// Decodes a stored record into the change that puts it into [`super::Records`].
///
/// # Errors
/// [`DecodeError`] for a newer version, an unknown version or a body that does not parse.
pub fn decode(kind: Kind, version: u32, body: &str) -> Result<Change, DecodeError> {
    let known = kind.version();
    if version > known {
        return Err(DecodeError::Newer { version, known });
    }
    let mut value: Value =
        serde_json::from_str(body).map_err(|error| DecodeError::Corrupt(error.to_string()))?;
    let done = version.checked_sub(1).ok_or_else(|| DecodeError::Corrupt("version 0".to_owned()))?;
    let steps: Vec<&Upgrade> = upgrades(kind).iter().skip(done as usize).collect();
    for upgrade in steps {
        upgrade(&mut value);
    }
    fn read<T: DeserializeOwned>(value: Value) -> Result<T, DecodeError> {
        serde_json::from_value(value).map_err(|error| DecodeError::Corrupt(format!("{error}")))
    }
    Ok(match kind {
        Kind::Node => Change::Node(read::<NodeRecord>(value)?),
        Kind::Network => Change::Network(read::<NetworkRecord>(value)?),
        Kind::Sandbox => Change::Sandbox(read::<SandboxRecord>(value)?),
        Kind::Container => Change::Container(read::<ContainerRecord>(value)?),
        Kind::Image => Change::Image(read::<ImageRecord>(value)?),
        Kind::Policy => Change::Policy(read::<PolicyRecord>(value)?),
        Kind::Operation => Change::Operation(read::<OperationRecord>(value)?),
        Kind::Offloaded => Change::Offloaded(read::<PodRecord>(value)?),
        Kind::Tombstone => Change::Tombstone(read::<Tombstone>(value)?),
    })
}
