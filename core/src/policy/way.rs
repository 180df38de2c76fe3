//! Whether anything at all passes between two classes of addresses: what a name is worth telling for.

use super::{Flow, Signature, decide::Pair, decide::Verdict};
use crate::record::Records;
use alloc::collections::BTreeSet;

/// What the rules leave open between two ends, over all protocols and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A rule lets something through.
    Open,
    /// Rules stop everything.
    Closed,
    /// Rules are silent about something, which isolation decides.
    AsIsolated,
}

/// A protocol number that no rule names (reserved by IANA): stands for all of these.
const UNNAMED_PROTOCOL: u8 = 255;

/// What the rules say of the way between two workloads' addresses, by the ends that they answer to.
pub fn way(records: &Records, from: &Signature, to: &Signature) -> Way {
    let pair = Pair::of(records, from, to, true);
    let mut protocols = BTreeSet::from([1, 6, 17, 58, UNNAMED_PROTOCOL]);
    // What rules say changes at the ends of the ranges that they name, and nowhere else.
    let mut ports = BTreeSet::from([0]);
    for named in pair.rules.iter().flat_map(|rule| &rule.ports) {
        protocols.extend(named.protocol.into_iter().flat_map(|protocol| protocol.numbers()));
        if let Some((first, last)) = named.ports {
            ports.insert(first);
            ports.extend(last.checked_add(1));
        }
    }
    let mut way = Way::Closed;
    for protocol in protocols {
        for port in &ports {
            match pair.decide(Flow { protocol, port: *port }) {
                Verdict::Accept(_) => return Way::Open,
                Verdict::Silent => way = Way::AsIsolated,
                Verdict::Drop(_) => {}
            }
        }
    }
    way
}

/// Whether the rules keep a workload's address from this flow to every address outside the node.
pub fn keeps_inside(records: &Records, classes: &super::Classes<'_>, from: &Signature, flow: Flow) -> bool {
    classes
        .outside
        .iter()
        .all(|(_, _, to)| matches!(Pair::of(records, from, to, false).decide(flow), Verdict::Drop(_)))
}
