//! What happened, call by call, with a digest that is the same in every process.

use holdfast_core::time::Mono;
use serde::{Deserialize, Serialize};
use std::fmt;

/// FNV-1a, 64 bits: stable over processes and builds, unlike the standard library's hashers.
pub fn fnv(bytes: &[u8]) -> u64 {
    fnv_on(0xcbf2_9ce4_8422_2325, bytes)
}

fn fnv_on(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// One World call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRecord {
    /// Number over the whole run, from 0.
    pub nth: u64,
    /// Number of the daemon that called, from 1.
    pub incarnation: u32,
    /// Virtual time of the begin, in nanoseconds since the begin of the run.
    pub at_ns: u64,
    /// The method, such as `router.attach`.
    pub call: String,
    /// What it was called on.
    pub subject: String,
    /// Faults that struck at it.
    pub faults: Vec<String>,
    /// `ok`, the error, or empty while it never came back.
    pub outcome: String,
}

impl fmt::Display for CallRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nth, incarnation, at_ns, call, subject, faults, outcome } = self;
        let outcome = if outcome.is_empty() { "(never came back)" } else { outcome };
        write!(f, "#{nth:<4} d{incarnation} {:>9} us  {call} {subject} → {outcome}", at_ns / 1_000)?;
        faults.iter().try_for_each(|fault| write!(f, "\n        ⚡ {fault}"))
    }
}

/// The calls of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    calls: Vec<CallRecord>,
}

impl Trace {
    /// Begins a call and says its number.
    pub(crate) fn begin(&mut self, incarnation: u32, at: Mono, call: &str, subject: String) -> u64 {
        let nth = self.calls.len() as u64;
        self.calls.push(CallRecord {
            nth,
            incarnation,
            at_ns: at.0,
            call: call.to_owned(),
            subject,
            faults: Vec::new(),
            outcome: String::new(),
        });
        nth
    }

    /// The record of call `nth`.
    pub(crate) fn call_mut(&mut self, nth: u64) -> Option<&mut CallRecord> {
        self.calls.get_mut(usize::try_from(nth).ok()?)
    }

    /// All calls.
    pub fn calls(&self) -> &[CallRecord] {
        &self.calls
    }

    /// How many calls were begun.
    pub fn len(&self) -> u64 {
        self.calls.len() as u64
    }

    /// Whether no call was begun.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Digest of everything in it.
    pub fn hash(&self) -> u64 {
        let mut hash = fnv(&[]);
        for call in &self.calls {
            let CallRecord { nth: _, incarnation, at_ns, call, subject, faults, outcome } = call;
            hash = fnv_on(hash, &incarnation.to_le_bytes());
            hash = fnv_on(hash, &at_ns.to_le_bytes());
            for text in [call, subject, outcome].into_iter().chain(faults) {
                hash = fnv_on(fnv_on(hash, text.as_bytes()), &[0]);
            }
        }
        hash
    }

    /// The last `count` calls, a line each.
    pub fn tail(&self, count: usize) -> String {
        let skip = self.calls.len().saturating_sub(count);
        self.calls.iter().skip(skip).map(|call| format!("{call}\n")).collect()
    }
}
