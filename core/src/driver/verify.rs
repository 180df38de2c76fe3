//! Proves isolation by trying: real packets between pairs of sandboxes, compared with what the records allow.

use super::session::Session;
use crate::{
    alloc_address::contains,
    bring_up::wants_plug,
    id::SandboxId,
    policy::{Decision, Flow, PolicyProtocol, PortMatch, Reason, decide},
    record::{AttachmentRecord, Records, SandboxRecord},
    world::{Ask, Probe, World},
};
use alloc::{
    collections::BTreeSet,
    format,
    string::{String, ToString},
    vec::Vec,
};
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
    /// What was asked.
    #[serde(default)]
    pub what: String,
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

/// Whether the records let an echo request pass from a sandbox to an address: by policy, or by both ends being on
/// one network, or on two that are routed to one another, for one tenant. Everything else is closed.
pub fn may_reach(records: &Records, from: &SandboxRecord, address: IpAddr) -> bool {
    reaches(records, from, address, flow_of(address, Ask::Icmp)).allowed
}

/// What the records say of a flow from the address that a sandbox's routing table picks for it.
pub fn reaches(records: &Records, from: &SandboxRecord, address: IpAddr, flow: Flow) -> Decision {
    let on = |own: &&AttachmentRecord| {
        records.networks.get(&own.network).is_some_and(|network| {
            contains((network.subnet4.into(), network.prefix4), address)
                || contains((network.subnet6.into(), network.prefix6), address)
        })
    };
    let own = from.attachments.iter().find(on).or(from.primary());
    let source = own.map(|own| if address.is_ipv4() { IpAddr::V4(own.ipv4) } else { IpAddr::V6(own.ipv6) });
    match source {
        Some(source) => decide(records, source, address, flow),
        None => Decision { allowed: false, reason: Reason::Nobody },
    }
}

/// Any TCP port that no rule names.
const OTHER_PORT: u16 = 41_000;
/// The most ports that a pair is asked at.
const PORTS_MAX: usize = 4;

fn flow_of(address: IpAddr, ask: Ask) -> Flow {
    match ask {
        Ask::Tcp(port) => Flow { protocol: 6, port },
        Ask::Icmp | Ask::Any => Flow { protocol: if address.is_ipv4() { 1 } else { 58 }, port: 0 },
    }
}

/// What each pair is asked: without policies one question tells all, with them each port may differ.
fn asks(records: &Records) -> Vec<Ask> {
    if records.policies.is_empty() {
        return alloc::vec![Ask::Any];
    }
    let tcp = |it: &&PortMatch| it.protocol.is_none_or(|protocol| protocol == PolicyProtocol::Tcp);
    let named = records.policies.values().flat_map(|rule| &rule.ports).filter(tcp);
    let ports: BTreeSet<u16> = named.filter_map(|it| it.ports).map(|(first, _)| first).collect();
    let ports = ports.into_iter().take(PORTS_MAX).chain([OTHER_PORT]);
    core::iter::once(Ask::Icmp).chain(ports.map(Ask::Tcp)).collect()
}

struct Pair {
    names: (String, String),
    ids: (SandboxId, SandboxId),
    address: IpAddr,
}

/// Probes a sample of pairs, or all.
pub async fn verify_networks<W: World>(world: &W, _session: &Session, all: bool) -> VerifyReport {
    let (pairs, asks) = world.read(|records| (pairs(records), asks(records))).await;
    let mut report = VerifyReport { results: Vec::new(), pairs: pairs.len() };
    // A sample spread evenly over all pairs, the same each time: a difference is found again.
    let stride = if all { 1 } else { pairs.len().div_ceil(SAMPLE_MAX).max(1) };
    let mut questions: Vec<(&Pair, Ask)> = Vec::new();
    for pair in pairs.iter().step_by(stride) {
        questions.extend(asks.iter().map(|ask| (pair, *ask)));
    }
    for (pair, ask) in questions {
        let told = |records: &Records| {
            let from = records.sandboxes.get(&pair.ids.0)?;
            Some(reaches(records, from, pair.address, flow_of(pair.address, ask)).allowed)
        };
        // One that was removed meanwhile is no pair any more.
        let Some(allowed) = world.read(told).await else { continue };
        let probe = Probe {
            from: pair.ids.0.clone(),
            to: pair.ids.1.clone(),
            address: pair.address,
            timeout_ms: if allowed { REACH_TIMEOUT_MS } else { SILENCE_TIMEOUT_MS },
            ask,
        };
        let (reached, cause) = match world.probe(&probe).await {
            Ok(reached) => (Some(reached), String::new()),
            Err(error) => (None, error.to_string()),
        };
        report.results.push(ProbeResult {
            from: pair.names.0.clone(),
            to: pair.names.1.clone(),
            address: pair.address,
            what: match ask {
                Ask::Any => String::from("any"),
                Ask::Icmp => String::from("icmp"),
                Ask::Tcp(port) => format!("tcp/{port}"),
            },
            allowed,
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
                    });
                }
            }
        }
    }
    pairs
}
