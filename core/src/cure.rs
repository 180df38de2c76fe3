//! The cures, mildest first.

use core::fmt;
use serde::{Deserialize, Serialize};

/// What was done to a workload so that it is whole again, mildest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cure {
    /// Nothing: it ran on, and so did its network.
    Untouched,
    /// Its router lost its pin and got a new one; the workload and its links ran on.
    Adopted,
    /// It ran on; its links were made anew with the same addresses.
    Replugged,
    /// Its processes had ended and were started again with the same addresses.
    Restarted,
}

impl Cure {
    /// Whether every process of the workload ran on.
    pub fn keeps_processes(self) -> bool {
        self < Self::Restarted
    }
}

impl fmt::Display for Cure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Untouched => "untouched",
            Self::Adopted => "adopted",
            Self::Replugged => "replugged",
            Self::Restarted => "restarted",
        })
    }
}
