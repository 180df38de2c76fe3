//! Policies: stored before they are applied; a bring-up applies what a failure left half done.

use super::{Admission, Stamp, find, not_found, require_up};
use crate::{
    error::{Refusal, RefusalCode},
    id::PolicyId,
    journal::{OperationKind, Resume, Subject},
    name,
    ops::request::{PolicyRequest, PolicyTarget},
    plan::Step,
    policy::{LabelTerm, Peer, PolicyRecord, note_classes, parse_cidr, translate},
    record::{Change, Records},
    ruleset::{Element, Ruleset},
};
use alloc::{boxed::Box, collections::BTreeSet, format, string::String, vec::Vec};

/// The most rules of a node.
const POLICIES_MAX: usize = 1_000;
/// The most verdicts that they may come to.
const ELEMENTS_MAX: usize = 50_000;

/// An end as a user writes it: `any`, `inside`, `label:KEY[=VALUE]`, `namespace:NAME`, `network:NAME`,
/// `workload:NAME`, `cidr:A/P`, several of them with commas for all at once; or a bare workload's name or CIDR.
///
/// # Errors
/// `NotFound`, or `Invalid` for what means two things.
pub fn peer(records: &Records, text: &str) -> Result<Peer, Refusal> {
    let mut peer = Peer::default();
    for term in text.split(',') {
        match term.split_once(':').filter(|(kind, _)| KINDS.contains(kind)) {
            None if term == "any" => {}
            None if term == "inside" => peer.inside = true,
            None => bare(records, term, &mut peer)?,
            Some(("label", label)) => peer.labels.push(match label.split_once('=') {
                Some((key, value)) => LabelTerm::In(key.into(), alloc::vec![value.into()]),
                None => LabelTerm::Exists(label.into()),
            }),
            Some(("namespace", tenant)) => {
                name::check("namespace", tenant)?;
                peer.tenant = Some(crate::id::Tenant::from_raw(tenant));
            }
            Some(("network", network)) => peer.network = Some(find::network(records, network)?.id.clone()),
            Some(("workload", workload)) => {
                peer.workload = Some(find::workload(records, workload)?.id.clone());
            }
            Some((_, cidr)) => {
                peer.cidr = Some(parse_cidr(cidr).ok_or_else(|| {
                    Refusal::new(RefusalCode::Invalid, format!("{cidr:?} is no ADDRESS/PREFIX"))
                })?);
            }
        }
    }
    Ok(peer)
}

const KINDS: [&str; 5] = ["label", "namespace", "network", "workload", "cidr"];

/// A name without its kind: one that could be several things is refused.
fn bare(records: &Records, term: &str, peer: &mut Peer) -> Result<(), Refusal> {
    if let Some(cidr) = parse_cidr(term) {
        peer.cidr = Some(cidr);
        return Ok(());
    }
    let network = records.networks.values().any(|it| it.name == term);
    let tenant = records.sandboxes.values().any(|it| it.tenant.as_str() == term);
    let workload = find::workload(records, term);
    let kinds: Vec<&str> = [(network, "network"), (tenant, "namespace"), (workload.is_ok(), "workload")]
        .into_iter()
        .filter_map(|(is, kind)| is.then_some(kind))
        .collect();
    match kinds.as_slice() {
        ["workload"] => {
            peer.workload = Some(workload?.id.clone());
            Ok(())
        }
        [] => workload.map(drop),
        kinds => {
            let forms = kinds.iter().map(|kind| format!("{kind}:{term}")).collect::<Vec<_>>().join(" or ");
            let detail = format!("{term:?} is the name of more than a workload; write {forms}");
            Err(Refusal::new(RefusalCode::Invalid, detail))
        }
    }
}

fn sides(records: &Records, ends: &[String]) -> Result<Vec<Peer>, Refusal> {
    let ends = ends.iter().filter(|end| *end != "any");
    ends.map(|end| peer(records, end)).collect()
}

/// `policy allow`, `policy deny`, `policy default`.
///
/// # Errors
/// A [`Refusal`] naming what is wrong.
pub fn create(
    records: &Records,
    request: &PolicyRequest,
    stamp: &Stamp,
) -> Result<Admission<Vec<PolicyId>>, Refusal> {
    require_up(records)?;
    let id = PolicyId::from_raw(stamp.id(0));
    let name = request.name.clone().unwrap_or_else(|| format!("p-{id}"));
    name::check("policy", &name)?;
    if let Some((first, last)) =
        request.ports.iter().find_map(|it| it.ports.filter(|(a, b)| a > b || *a == 0))
    {
        let detail = format!("ports {first}-{last} are no range; give the lower one first, from 1 on");
        return Err(Refusal::new(RefusalCode::Invalid, detail));
    }
    let icmp = |it: &&crate::policy::PortMatch| {
        it.ports.is_some()
            && !matches!(
                it.protocol,
                Some(crate::policy::PolicyProtocol::Tcp | crate::policy::PolicyProtocol::Udp)
            )
    };
    if request.ports.iter().any(|it| icmp(&it)) {
        let detail = "ports belong to tcp or udp; name the protocol with --proto";
        return Err(Refusal::new(RefusalCode::Invalid, detail));
    }
    let all = |ends: &[String]| if ends.is_empty() { String::from("any") } else { ends.join(" or ") };
    let record = PolicyRecord {
        id: id.clone(),
        name: name.clone(),
        document: None,
        action: request.action,
        from: sides(records, &request.from)?,
        to: sides(records, &request.to)?,
        ports: request.ports.clone(),
        summary: format!("{} -> {}", all(&request.from), all(&request.to)),
        created: stamp.wall,
    };
    if records.policies.values().any(|it| it.name == name) {
        let detail = format!("a policy called {name:?} exists; remove it or choose another name");
        return Err(Refusal::new(RefusalCode::NameInUse, detail));
    }
    change(records, OperationKind::AddPolicy, &name, alloc::vec![record], Vec::new(), stamp)
}

/// `policy apply`: a document's rules take the place of those it had.
///
/// # Errors
/// `Invalid` naming what the document says that this node cannot do.
pub fn apply(
    records: &Records,
    document: &serde_json::Value,
    stamp: &Stamp,
) -> Result<Admission<Vec<PolicyId>>, Refusal> {
    require_up(records)?;
    let (name, rules) = translate(document)?;
    let gone: Vec<PolicyId> = records
        .policies
        .values()
        .filter(|it| it.document.as_deref() == Some(name.as_str()))
        .map(|it| it.id.clone())
        .collect();
    let rules = rules.into_iter().enumerate().map(|(number, rule)| PolicyRecord {
        id: PolicyId::from_raw(format!("{}-{number}", stamp.id(0))),
        name: format!("{name}-{number}"),
        document: Some(name.clone()),
        action: rule.action,
        from: rule.from,
        to: rule.to,
        ports: rule.ports,
        summary: name.clone(),
        created: stamp.wall,
    });
    change(records, OperationKind::AddPolicy, &name, rules.collect(), gone, stamp)
}

/// `policy rm`: that rule only, or all rules of a document.
///
/// # Errors
/// `NotFound`; `Invalid` for one rule of a document.
pub fn remove(
    records: &Records,
    target: &PolicyTarget,
    stamp: &Stamp,
) -> Result<Admission<Vec<PolicyId>>, Refusal> {
    require_up(records)?;
    let wanted = target.name.as_str();
    let of_document = |it: &&PolicyRecord| it.document.as_deref() == Some(wanted);
    let mut gone: Vec<&PolicyRecord> = records.policies.values().filter(of_document).collect();
    if gone.is_empty() {
        let named = records.policies.values().find(|it| it.name == wanted || it.id.as_str() == wanted);
        let named = named.ok_or_else(|| not_found("policy", wanted, "policy ls"))?;
        if let Some(document) = &named.document {
            let detail = format!("{wanted} is part of document {document}; remove that, or apply it anew");
            return Err(Refusal::new(RefusalCode::Invalid, detail));
        }
        gone.push(named);
    }
    let gone = gone.into_iter().map(|it| it.id.clone()).collect();
    change(records, OperationKind::RemovePolicy, wanted, Vec::new(), gone, stamp)
}

fn change(
    records: &Records,
    kind: OperationKind,
    name: &str,
    new: Vec<PolicyRecord>,
    gone: Vec<PolicyId>,
    stamp: &Stamp,
) -> Result<Admission<Vec<PolicyId>>, Refusal> {
    let ids = if new.is_empty() { gone.clone() } else { new.iter().map(|it| it.id.clone()).collect() };
    let mut changes: Vec<Change> = gone.into_iter().map(Change::RemovePolicy).collect();
    changes.extend(new.into_iter().map(Change::Policy));
    let mut after = records.clone();
    changes.iter().cloned().for_each(|change| after.apply(change));
    if after.policies.len() > POLICIES_MAX {
        let detail = format!("a node has at most {POLICIES_MAX} rules; remove some");
        return Err(Refusal::new(RefusalCode::Exhausted, detail));
    }
    if let Some(node) = note_classes(&after, true) {
        after.apply(node.clone());
        changes.push(node);
    }
    if crate::policy::elements(&after).len() > ELEMENTS_MAX {
        let detail = format!(
            "the rules come to more than {ELEMENTS_MAX} verdicts between classes of workloads; name fewer ends"
        );
        return Err(Refusal::new(RefusalCode::Exhausted, detail));
    }
    let (before, wanted) = (Ruleset::desired(records).elements, Ruleset::desired(&after).elements);
    let added: BTreeSet<Element> = wanted.difference(&before).copied().collect();
    let removed: BTreeSet<Element> = before.difference(&wanted).copied().collect();
    let steps = alloc::vec![Step::AddElements(added), Step::RemoveElements(removed)];
    let mut operation = stamp.operation(kind, name, alloc::vec![Subject::Policy], steps);
    operation.resume = Resume::Finish;
    // Whatever is planned for a workload has its classes in it: it ends before they change.
    let uses = records.sandboxes.keys().cloned().map(Subject::Sandbox).collect();
    Ok(Admission::Run { operation: Box::new(operation), changes, uses, about: ids })
}
