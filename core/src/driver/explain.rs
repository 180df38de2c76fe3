//! What decides of a flow, and how often each rule has.

use super::verify::reaches;
use crate::{
    error::{OperationError, Refusal, RefusalCode, RouterError},
    id::PolicyId,
    ops::{find, request::RequestError},
    policy::{Decision, Flow, decide, element_rules},
    record::{Records, SandboxRecord},
    ruleset::Counter,
    world::World,
};
use alloc::{boxed::Box, collections::BTreeMap, format, string::String, vec::Vec};
use core::net::IpAddr;
use serde::{Deserialize, Serialize};

/// One flow, explained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// Who sends, as it was named.
    pub from: String,
    /// The receiver's address.
    pub to: IpAddr,
    /// Whether it passes, and what decides.
    pub decision: Decision,
}

enum End<'a> {
    Workload(&'a SandboxRecord),
    Address(IpAddr),
}

/// A workload by name (a pod's member stands for its pod), or an address.
fn end<'a>(records: &'a Records, text: &str) -> Result<End<'a>, Refusal> {
    if let Ok(address) = text.parse() {
        return Ok(End::Address(address));
    }
    let member = find::container(records, text).ok().and_then(|it| records.sandboxes.get(&it.sandbox));
    member.map_or_else(|| find::workload(records, text), Ok).map(End::Workload)
}

/// `network why`: each of the receiver's addresses, for a flow from the address that the sender would use.
///
/// # Errors
/// `NotFound` and `Invalid` for names.
pub fn explain(records: &Records, from: &str, to: &str, flow: Flow) -> Result<Vec<Explained>, Refusal> {
    let targets: Vec<IpAddr> = match end(records, to)? {
        End::Address(address) => alloc::vec![address],
        End::Workload(sandbox) => {
            sandbox.attachments.iter().flat_map(|own| [IpAddr::V4(own.ipv4), IpAddr::V6(own.ipv6)]).collect()
        }
    };
    if targets.is_empty() {
        let detail = format!("{to} is on no network: nothing reaches it");
        return Err(Refusal::new(RefusalCode::WrongState, detail));
    }
    let source = end(records, from)?;
    let one = |target: IpAddr| {
        // ICMP has another number in each family.
        let protocol = if flow.protocol == 1 && target.is_ipv6() { 58 } else { flow.protocol };
        let flow = Flow { protocol, ..flow };
        let decision = match source {
            End::Workload(sandbox) => reaches(records, sandbox, target, flow),
            End::Address(address) => decide(records, address, target, flow),
        };
        Explained { from: String::from(from), to: target, decision }
    };
    Ok(targets.into_iter().map(one).collect())
}

/// How often each rule has decided, since its verdicts are there.
///
/// # Errors
/// When the control does not answer.
pub async fn policy_counters<W: World>(world: &W) -> Result<BTreeMap<PolicyId, Counter>, RequestError> {
    let counted = world.count_verdicts().await.map_err(|cause: RouterError| {
        RequestError::Failed(OperationError {
            cause: Box::new(cause.into()),
            step: String::from("count verdicts"),
            undo_failures: Vec::new(),
        })
    })?;
    let rules = world.read(element_rules).await;
    let mut sums: BTreeMap<PolicyId, Counter> = BTreeMap::new();
    for (element, counter) in counted {
        let Some(rule) = rules.get(&element) else { continue };
        let sum = sums.entry(rule.clone()).or_default();
        sum.packets = sum.packets.saturating_add(counter.packets);
        sum.bytes = sum.bytes.saturating_add(counter.bytes);
    }
    Ok(sums)
}
