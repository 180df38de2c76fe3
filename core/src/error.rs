//! One error type per capability, each classified. Policy reads the class and nothing else.

use alloc::{boxed::Box, string::String, vec::Vec};
use core::fmt;
use serde::{Deserialize, Serialize};

/// What policy may know of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// May succeed when tried again later; had no effect.
    Transient,
    /// Contradicts something that exists; had no effect.
    Conflict,
    /// The subject does not exist.
    Missing,
    /// The caller or the node may not do this.
    Denied,
    /// Stored or received data cannot be understood.
    Corrupt,
    /// A finite resource (disk, addresses, ports, pids) is used up.
    Exhausted,
    /// The effect may or may not have happened: observe again, never blindly retry.
    Unknown,
    /// Trying again cannot help.
    Fatal,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Transient => "transient",
            Self::Conflict => "conflict",
            Self::Missing => "missing",
            Self::Denied => "denied",
            Self::Corrupt => "corrupt",
            Self::Exhausted => "exhausted",
            Self::Unknown => "unknown outcome",
            Self::Fatal => "fatal",
        })
    }
}

macro_rules! capability_error {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $name {
            /// What policy decides by.
            pub class: Class,
            /// What was being done, in the field's words, for instance `create veth`.
            pub action: String,
            /// What it was done to.
            pub subject: String,
            /// What went wrong; never empty.
            pub cause: String,
            /// What a person can do about it; empty where nothing but trying again helps.
            pub remedy: String,
        }

        impl $name {
            /// An error without a remedy.
            pub fn new(
                class: Class,
                action: impl Into<String>,
                subject: impl Into<String>,
                cause: impl fmt::Display,
            ) -> Self {
                Self {
                    class,
                    action: action.into(),
                    subject: subject.into(),
                    cause: alloc::format!("{cause}"),
                    remedy: String::new(),
                }
            }

            /// The same error with the remedy a person can apply.
            pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
                self.remedy = remedy.into();
                self
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} {}: {}", self.action, self.subject, self.cause)?;
                if !self.remedy.is_empty() {
                    write!(f, " ({})", self.remedy)?;
                }
                Ok(())
            }
        }

        impl core::error::Error for $name {}
    };
}

capability_error!(
    /// Namespaces, pin, control: [`crate::world::Keepers`].
    KeeperError
);
capability_error!(
    /// Links, addresses, rules, sandboxes in the router: [`crate::world::Router`].
    RouterError
);
capability_error!(
    /// The uplink helper and its published ports: [`crate::world::Uplink`].
    UplinkError
);
capability_error!(
    /// The OCI runtime and its monitors: [`crate::world::Containers`].
    ContainerError
);
capability_error!(
    /// The records: [`crate::world::Store`].
    StoreError
);
capability_error!(
    /// Volumes and kept logs of offloaded pods: [`crate::world::PodFiles`].
    VolumeError
);

/// An error of any capability, as drivers carry it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "capability", rename_all = "snake_case")]
pub enum WorldError {
    /// See [`KeeperError`].
    Keeper(KeeperError),
    /// See [`RouterError`].
    Router(RouterError),
    /// See [`UplinkError`].
    Uplink(UplinkError),
    /// See [`ContainerError`].
    Container(ContainerError),
    /// See [`StoreError`].
    Store(StoreError),
    /// See [`VolumeError`].
    Volume(VolumeError),
}

impl WorldError {
    /// The class that policy decides by.
    pub fn class(&self) -> Class {
        match self {
            Self::Keeper(error) => error.class,
            Self::Router(error) => error.class,
            Self::Uplink(error) => error.class,
            Self::Container(error) => error.class,
            Self::Store(error) => error.class,
            Self::Volume(error) => error.class,
        }
    }

    /// What a person can do about it; empty where nothing but trying again helps.
    pub fn remedy(&self) -> &str {
        match self {
            Self::Keeper(error) => &error.remedy,
            Self::Router(error) => &error.remedy,
            Self::Uplink(error) => &error.remedy,
            Self::Container(error) => &error.remedy,
            Self::Store(error) => &error.remedy,
            Self::Volume(error) => &error.remedy,
        }
    }
}

impl fmt::Display for WorldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keeper(error) => error.fmt(f),
            Self::Router(error) => error.fmt(f),
            Self::Uplink(error) => error.fmt(f),
            Self::Container(error) => error.fmt(f),
            Self::Store(error) => error.fmt(f),
            Self::Volume(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for WorldError {}

macro_rules! into_world_error {
    ($($from:ident => $variant:ident),*) => { $(
        impl From<$from> for WorldError {
            fn from(error: $from) -> Self {
                Self::$variant(error)
            }
        }
    )* };
}
into_world_error!(KeeperError => Keeper, RouterError => Router, UplinkError => Uplink,
    ContainerError => Container, StoreError => Store, VolumeError => Volume);

/// Why an operation did not succeed: what failed first, and every undo that failed after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationError {
    /// The first failure.
    pub cause: Box<WorldError>,
    /// The step in which it happened, as the plan prints it.
    pub step: String,
    /// Undos that failed as well, in the order they were tried; what they name may have leaked.
    pub undo_failures: Vec<String>,
}

impl fmt::Display for OperationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {}", self.step, self.cause)?;
        for failure in &self.undo_failures {
            write!(f, "; undo failed: {failure}")?;
        }
        Ok(())
    }
}

impl core::error::Error for OperationError {}

/// A request that the node refuses before it touches anything. The code is stable API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Stable, machine-readable reason.
    pub code: RefusalCode,
    /// The sentence a person reads: names the thing and the remedy.
    pub detail: String,
}

impl Refusal {
    /// A refusal with its sentence.
    pub fn new(code: RefusalCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl core::error::Error for Refusal {}

/// Stable reasons of a [`Refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// A name, value or combination is not valid.
    Invalid,
    /// No such object.
    NotFound,
    /// An object of that name exists.
    NameInUse,
    /// The object is used by others.
    InUse,
    /// The object is not in a state in which this makes sense.
    WrongState,
    /// Addresses, subnets or ports are used up.
    Exhausted,
    /// An address or port is taken.
    Taken,
    /// Another operation on the same object did not finish in time.
    Busy,
}
