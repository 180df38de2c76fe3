//! Faults as data: what strikes, where, and on which side of a call's effect.

use holdfast_core::{error::Class, spec::Protocol};
use serde::{Deserialize, Serialize};
use std::{fmt, net::Ipv4Addr};

/// All faults of a run, drawn up front.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultPlan {
    /// The faults; each strikes once.
    pub faults: Vec<Fault>,
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// At which point of the run.
    pub at: At,
    /// On which side of the call's effect; of no meaning for [`At::Time`], [`FaultKind::Fail`],
    /// [`FaultKind::Unknown`] and [`FaultKind::Delay`].
    #[serde(default)]
    pub side: Side,
    /// What happens.
    pub kind: FaultKind,
}

/// A point of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum At {
    /// The World call of this number, counted over the whole run from 0.
    Call {
        /// Its number.
        nth: u64,
    },
    /// The `nth` call of this name (from 0), on any subject or only on one.
    Named {
        /// The method, such as `router.attach`.
        call: String,
        /// Only calls whose subject holds this text; empty is any.
        #[serde(default)]
        subject: String,
        /// Which of them, from 0.
        nth: u64,
    },
    /// A call of one daemon.
    Incarnation {
        /// Number of the daemon, from 1.
        daemon: u32,
        /// Number of the call among that daemon's, from 0.
        call: u64,
    },
    /// A virtual time since the begin of the run, in milliseconds.
    Time {
        /// The time.
        at_ms: u64,
    },
}

/// A side of a call's effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The effect has not happened.
    #[default]
    Before,
    /// The effect has happened, its answer has not been heard.
    After,
}

/// Who is killed (SIGKILL), in the order listed: a monitor that is listed before its container's process
/// writes no exit file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Victim {
    /// The daemon.
    Daemon,
    /// The pin.
    Pin,
    /// The control.
    Control,
    /// The uplink helper.
    Uplink,
    /// Every container's monitor.
    Monitors,
    /// Every container's first process.
    Inits,
    /// The monitor of the container of this name.
    Monitor(String),
    /// The first process of the container of this name.
    Init(String),
}

impl Victim {
    /// Every process of the node but the workloads' own.
    pub const KEEPERS: [Self; 5] = [Self::Daemon, Self::Pin, Self::Control, Self::Uplink, Self::Monitors];
    /// Every process of the node.
    pub const EVERYTHING: [Self; 6] =
        [Self::Daemon, Self::Pin, Self::Control, Self::Uplink, Self::Monitors, Self::Inits];
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FaultKind {
    /// Processes are killed.
    Kill {
        /// Which, in this order.
        who: Vec<Victim>,
    },
    /// Processes are killed, and a stranger gets each one's number at once.
    KillAndReusePid {
        /// Which, in this order.
        who: Vec<Victim>,
    },
    /// The call fails with this class and has no effect.
    Fail(Class),
    /// The call's outcome cannot be known.
    Unknown {
        /// Whether its effect happened.
        applied: bool,
    },
    /// The call takes longer.
    Delay {
        /// By how much.
        by_ms: u64,
    },
    /// A container's process ends by itself.
    Exit {
        /// The container's name.
        container: String,
        /// Its exit code.
        code: i32,
    },
    /// The control stops answering, and holds its socket.
    WedgeControl,
    /// The uplink helper stops answering.
    WedgeUplink,
    /// The control turns out to be another build.
    ForeignControl,
    /// Somebody flushes the router's rules.
    FlushRules,
    /// A stranger takes a port of the host, unless it is bound.
    TakeHostPort {
        /// Address.
        address: Ipv4Addr,
        /// Port.
        port: u16,
        /// Protocol.
        protocol: Protocol,
    },
    /// The disk refuses every transaction that adds a record.
    DiskFull,
    /// The disk has room again.
    DiskFree,
    /// Power is lost: only what was synced to disk is left, under another boot id.
    PowerLoss,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.side {
            Side::Before => "before",
            Side::After => "after",
        };
        write!(f, "{:?} {side} {:?}", self.kind, self.at)
    }
}

impl FaultPlan {
    /// A plan of one fault.
    pub fn one(at: At, side: Side, kind: FaultKind) -> Self {
        Self { faults: vec![Fault { at, side, kind }] }
    }

    /// The same plan with its call numbers counted from call `base`.
    pub fn counted_from(&self, base: u64) -> Self {
        let mut plan = self.clone();
        for fault in &mut plan.faults {
            if let At::Call { nth } = &mut fault.at {
                *nth = nth.saturating_add(base);
            }
        }
        plan
    }

    /// A kill of `who` at call `nth`.
    pub fn kill(nth: u64, side: Side, who: &[Victim]) -> Self {
        Self::one(At::Call { nth }, side, FaultKind::Kill { who: who.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn plans_are_data_and_unknown_fields_are_refused() {
        let plan = FaultPlan::kill(3, Side::After, &[Victim::Daemon, Victim::Monitor("web".into())]);
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<FaultPlan>(&text).unwrap(), plan);
        for wrong in [
            r#"{"faults":[],"extra":1}"#,
            r#"{"faults":[{"at":{"call":{"nth":1,"extra":1}},"kind":"power_loss"}]}"#,
            r#"{"faults":[{"at":{"call":{"nth":1}},"kind":{"delay":{"by_ms":1,"extra":1}}}]}"#,
        ] {
            assert!(serde_json::from_str::<FaultPlan>(wrong).is_err(), "{wrong}");
        }
    }
}
