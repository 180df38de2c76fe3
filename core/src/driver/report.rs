//! What a bring-up did, as it is told: to the user, to the log, to the API.

use crate::{
    bring_up::Case,
    cure::Cure,
    journal::Resumed,
    time::{Mono, Span},
};
use alloc::{collections::BTreeMap, string::String, vec::Vec};
use core::fmt;
use serde::{Deserialize, Serialize};

/// Why a bring-up runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// The daemon started.
    Start,
    /// The user asked; also ends a `down`.
    Up,
    /// A watched process ended.
    Death {
        /// Which.
        who: String,
    },
    /// Somebody else changed the router.
    Drift {
        /// How it was noticed.
        what: String,
    },
    /// The slow timer.
    Timer,
    /// Something was asked for that needs the node.
    Request,
}

/// What a bring-up did; true, or it says what it does not know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BringUpReport {
    /// Why it ran.
    pub trigger: Trigger,
    /// The case that the first observation showed.
    pub case: Case,
    /// Passes run; the last one found nothing to do, if `converged`.
    pub passes: u32,
    /// The last look found everything as recorded.
    pub converged: bool,
    /// The harshest cure that each sandbox got, by name.
    pub cures: BTreeMap<String, Cure>,
    /// Sandboxes that got a cure and were found whole by the last look.
    pub recovered: Vec<String>,
    /// Sandboxes that are not whole, each with the cause.
    pub failed: BTreeMap<String, String>,
    /// Operations whose daemon had died.
    pub resumed: Vec<Resumed>,
    /// Everything else that went wrong.
    pub errors: Vec<String>,
    /// When it began.
    pub began: Mono,
    /// How long it took.
    pub took: Span,
    /// The earliest restart that a back-off holds back.
    pub next_due: Option<Mono>,
    /// The node was taken down by the user and stays so.
    pub down: bool,
}

impl BringUpReport {
    /// Whether it put right what somebody else had changed, and proved it.
    pub fn is_repair(&self) -> bool {
        let drifted = matches!(self.trigger, Trigger::Drift { .. }) && self.case == Case::Nothing;
        drifted && self.converged && self.passes > 1
    }

    /// Whether it found anything to do, or went wrong; a look that found everything as recorded has one pass.
    pub fn is_eventful(&self) -> bool {
        self.passes > 1 || !(self.failed.is_empty() && self.resumed.is_empty() && self.errors.is_empty())
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("when the daemon started"),
            Self::Up => f.write_str("when it was asked"),
            Self::Death { who } => write!(f, "when the {who} had ended"),
            Self::Drift { what } => write!(f, "because {what}"),
            Self::Timer => f.write_str("when it looked by itself"),
            Self::Request => f.write_str("for a request"),
        }
    }
}

impl fmt::Display for BringUpReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.down {
            return f.write_str("the node is down; `holdfast up` brings it up");
        }
        let state = if self.converged { "up" } else { "not whole" };
        write!(f, "{state} (case {}, {} passes, {})", self.case, self.passes, self.took)?;
        for cure in [Cure::Adopted, Cure::Replugged, Cure::Restarted] {
            let names = self.recovered.iter().filter(|name| self.cures.get(*name) == Some(&cure));
            let count = names.count();
            if count > 0 {
                write!(f, ", {cure} {count}")?;
            }
        }
        for (name, cause) in &self.failed {
            write!(f, "\n  {name} is not whole: {cause}")?;
        }
        for resumed in &self.resumed {
            write!(f, "\n  {resumed}")?;
        }
        for error in &self.errors {
            write!(f, "\n  {error}")?;
        }
        Ok(())
    }
}
