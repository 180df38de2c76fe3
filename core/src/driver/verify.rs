//! Proves isolation by trying: real packets between pairs of sandboxes, compared with what the records allow.

use super::session::Session;
use crate::{
    bring_up::wants_plug,
    id::SandboxId,
    record::{AttachmentRecord, Records, SandboxRecord},
    world::{Probe, World},
};
use alloc::{string::String, string::ToString, vec::Vec};
use core::net::IpAddr;
use serde::{Deserialize, Serialize};

/// The most pairs probed without `--all`.
const SAMPLE_MAX: usize = 64;
/// How long a packet that should arrive may take, in milliseconds.
const REACH_TIMEOUT_MS: u64 = 1_000;
/// How long one that should not is waited for, in milliseconds.
const SILENCE_TIMEOUT_MS: u64 = 200;

/// One pair, tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeResult {
    /// Sender.
    pub from: String,
    /// Receiver.
    pub to: String,
    /// The address tried.
    pub address: IpAddr,
    /// What the records allow.
    pub allowed: bool,
    /// Whether packets were answered; `None` when it could not be tried.
    pub reached: Option<bool>,
    /// Why it could not be tried.
    pub cause: String,
}

/// All pairs that were tried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyReport {
    /// Results, pair by pair.
    pub results: Vec<ProbeResult>,
    /// Pairs that exist.
    pub pairs: usize,
}

impl VerifyReport {
    /// Results that differ from what the records allow, or that could not be had.
    pub fn differing(&self) -> impl Iterator<Item = &ProbeResult> {
        self.results.iter().filter(|result| result.reached != Some(result.allowed))
    }
}

/// Whether the records let a packet pass from one sandbox to an address of another: both ends on one network, or
/// on two that are routed to one another, for one tenant. Everything else is closed.
pub fn may_reach(records: &Records, from: &SandboxRecord, address: IpAddr) -> bool {
    let is = |own: &AttachmentRecord| IpAddr::V4(own.ipv4) == address || IpAddr::V6(own.ipv6) == address;
    let mut owners = records
        .sandboxes
        .values()
        .filter(|sandbox| sandbox.tenant == from.tenant)
        .flat_map(|sandbox| sandbox.attachments.iter().filter(|own| is(own)));
    let Some(target) = owners.next() else { return false };
    let routed = records.networks.get(&target.network).map(|network| &network.routed);
    from.attachments
        .iter()
        .any(|own| own.group == target.group || routed.is_some_and(|routed| routed.contains(&own.network)))
}

struct Pair {
    names: (String, String),
    ids: (SandboxId, SandboxId),
    address: IpAddr,
    allowed: bool,
}

/// Probes a sample of pairs, or all.
pub async fn verify_networks<W: World>(world: &W, _session: &Session, all: bool) -> VerifyReport {
    let pairs = world.read(pairs).await;
    let mut report = VerifyReport { results: Vec::new(), pairs: pairs.len() };
    // A sample spread evenly over all pairs, the same each time: a difference is found again.
    let stride = if all { 1 } else { pairs.len().div_ceil(SAMPLE_MAX).max(1) };
    for pair in pairs.into_iter().step_by(stride) {
        let probe = Probe {
            from: pair.ids.0,
            to: pair.ids.1,
            address: pair.address,
            timeout_ms: if pair.allowed { REACH_TIMEOUT_MS } else { SILENCE_TIMEOUT_MS },
        };
        let (reached, cause) = match world.probe(&probe).await {
            Ok(reached) => (Some(reached), String::new()),
            Err(error) => (None, error.to_string()),
        };
        report.results.push(ProbeResult {
            from: pair.names.0,
            to: pair.names.1,
            address: pair.address,
            allowed: pair.allowed,
            reached,
            cause,
        });
    }
    report
}

fn pairs(records: &Records) -> Vec<Pair> {
    let members = records.members_by_sandbox();
    let plugged: Vec<&SandboxRecord> =
        records.sandboxes.values().filter(|sandbox| wants_plug(sandbox, members.of(&sandbox.id))).collect();
    let mut pairs = Vec::new();
    for from in &plugged {
        for to in plugged.iter().filter(|to| to.id != from.id) {
            for attachment in &to.attachments {
                for address in [IpAddr::V4(attachment.ipv4), IpAddr::V6(attachment.ipv6)] {
                    pairs.push(Pair {
                        names: (from.name.clone(), to.name.clone()),
                        ids: (from.id.clone(), to.id.clone()),
                        address,
                        allowed: may_reach(records, from, address),
                    });
                }
            }
        }
    }
    pairs
}
