//! Kubernetes' NetworkPolicy, `networking.k8s.io/v1`: what it says in rules of ours, or a refusal of what cannot be
//! said. Nothing in a document is ever left out.
//! Source: <https://kubernetes.io/docs/reference/kubernetes-api/policy-resources/network-policy-v1/>.

use super::{LabelTerm, Peer, PolicyAction, PolicyProtocol, PortMatch};
use crate::{
    error::{Refusal, RefusalCode},
    id::Tenant,
};
use alloc::{collections::BTreeMap, format, string::String, vec::Vec};
use core::net::IpAddr;
use serde::Deserialize;
use serde_json::Value;

/// The label that every namespace has in Kubernetes, with its own name.
const NAMESPACE_LABEL: &str = "kubernetes.io/metadata.name";

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Document {
    api_version: String,
    kind: String,
    metadata: Metadata,
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    #[serde(default)]
    namespace: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    pod_selector: Selector,
    #[serde(default)]
    policy_types: Option<Vec<String>>,
    #[serde(default)]
    ingress: Option<Vec<Ingress>>,
    #[serde(default)]
    egress: Option<Vec<Egress>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Selector {
    #[serde(default)]
    match_labels: BTreeMap<String, String>,
    #[serde(default)]
    match_expressions: Vec<Expression>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Expression {
    key: String,
    operator: String,
    #[serde(default)]
    values: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ingress {
    #[serde(default)]
    from: Vec<End>,
    #[serde(default)]
    ports: Vec<Port>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Egress {
    #[serde(default)]
    to: Vec<End>,
    #[serde(default)]
    ports: Vec<Port>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct End {
    pod_selector: Option<Selector>,
    namespace_selector: Option<Selector>,
    ip_block: Option<Block>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Block {
    cidr: String,
    #[serde(default)]
    except: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Port {
    #[serde(default)]
    protocol: Option<String>,
    #[serde(default)]
    port: Option<Value>,
    #[serde(default)]
    end_port: Option<u16>,
}

/// A rule that is part of a document.
pub struct Translated {
    /// What it does.
    pub action: PolicyAction,
    /// Who sends.
    pub from: Vec<Peer>,
    /// Who receives.
    pub to: Vec<Peer>,
    /// What.
    pub ports: Vec<PortMatch>,
}

fn invalid(detail: impl Into<String>) -> Refusal {
    Refusal::new(RefusalCode::Invalid, detail)
}

/// The document's name, as `NAMESPACE.NAME`, and its rules.
///
/// # Errors
/// `Invalid` naming what is not a NetworkPolicy or what this node cannot do.
pub fn translate(document: &Value) -> Result<(String, Vec<Translated>), Refusal> {
    let document = Document::deserialize(document)
        .map_err(|error| invalid(format!("the document is no NetworkPolicy: {error}")))?;
    if document.api_version != "networking.k8s.io/v1" || document.kind != "NetworkPolicy" {
        let detail = format!(
            "{} {} is not understood; give networking.k8s.io/v1 NetworkPolicy",
            document.api_version, document.kind
        );
        return Err(invalid(detail));
    }
    let namespace = document.metadata.namespace.as_deref().unwrap_or(Tenant::DEFAULT);
    let tenant = Tenant::from_raw(namespace);
    let spec = document.spec;
    let own = alloc::vec![Peer { tenant: Some(tenant.clone()), ..labelled(&spec.pod_selector)? }];
    let types = spec.policy_types.unwrap_or_else(|| {
        let egress = spec.egress.is_some().then(|| String::from("Egress"));
        core::iter::once(String::from("Ingress")).chain(egress).collect()
    });
    if let Some(other) = types.iter().find(|it| !matches!(it.as_str(), "Ingress" | "Egress")) {
        return Err(invalid(format!("policyTypes: {other:?} is neither Ingress nor Egress")));
    }
    let has = |what: &str| types.iter().any(|it| it == what);
    let mut rules = Vec::new();
    let close = |action, from, to| Translated { action, from, to, ports: Vec::new() };
    if has("Ingress") {
        rules.push(close(PolicyAction::CloseIngress, Vec::new(), own.clone()));
        for rule in spec.ingress.unwrap_or_default() {
            let (from, ports) = (ends(&rule.from, &tenant)?, ports(&rule.ports)?);
            rules.push(Translated { action: PolicyAction::AllowIngress, from, to: own.clone(), ports });
        }
    }
    if has("Egress") {
        rules.push(close(PolicyAction::CloseEgress, own.clone(), Vec::new()));
        for rule in spec.egress.unwrap_or_default() {
            let (to, ports) = (ends(&rule.to, &tenant)?, ports(&rule.ports)?);
            rules.push(Translated { action: PolicyAction::AllowEgress, from: own.clone(), to, ports });
        }
    }
    Ok((format!("{namespace}.{}", document.metadata.name), rules))
}

fn labelled(selector: &Selector) -> Result<Peer, Refusal> {
    let equal = |(key, value): (&String, &String)| LabelTerm::In(key.clone(), alloc::vec![value.clone()]);
    let mut labels: Vec<LabelTerm> = selector.match_labels.iter().map(equal).collect();
    for Expression { key, operator, values } in &selector.match_expressions {
        labels.push(match (operator.as_str(), values.is_empty()) {
            ("In", false) => LabelTerm::In(key.clone(), values.clone()),
            ("NotIn", false) => LabelTerm::NotIn(key.clone(), values.clone()),
            ("Exists", true) => LabelTerm::Exists(key.clone()),
            ("DoesNotExist", true) => LabelTerm::Absent(key.clone()),
            _ => {
                return Err(invalid(format!(
                    "matchExpressions: {key} {operator} {values:?} is not understood"
                )));
            }
        });
    }
    Ok(Peer { labels, inside: true, ..Peer::default() })
}

/// The tenants that a namespace selector picks; `None` is all.
fn tenants(selector: &Selector) -> Result<Option<Vec<Tenant>>, Refusal> {
    let mut picked: Option<Vec<Tenant>> = None;
    let mut pick = |names: &[String]| {
        picked = Some(match picked.take() {
            None => names.iter().map(|name| Tenant::from_raw(name.clone())).collect(),
            Some(before) => {
                before.into_iter().filter(|it| names.iter().any(|name| name == it.as_str())).collect()
            }
        });
    };
    let refuse = |key: &str| {
        invalid(format!(
            "namespaceSelector: namespaces here have one label, {NAMESPACE_LABEL}, and not {key:?}"
        ))
    };
    for (key, value) in &selector.match_labels {
        match key.as_str() {
            NAMESPACE_LABEL => pick(core::slice::from_ref(value)),
            other => return Err(refuse(other)),
        }
    }
    for Expression { key, operator, values } in &selector.match_expressions {
        match (key.as_str(), operator.as_str()) {
            (NAMESPACE_LABEL, "In") => pick(values),
            (NAMESPACE_LABEL, "Exists") => {}
            (NAMESPACE_LABEL, operator) => {
                return Err(invalid(format!(
                    "namespaceSelector: operator {operator} is not understood here; use In"
                )));
            }
            (other, _) => return Err(refuse(other)),
        }
    }
    Ok(picked)
}

fn ends(ends: &[End], own: &Tenant) -> Result<Vec<Peer>, Refusal> {
    let mut peers = Vec::new();
    for end in ends {
        match (&end.pod_selector, &end.namespace_selector, &end.ip_block) {
            (None, None, Some(block)) => {
                let except: Result<_, Refusal> = block.except.iter().map(|it| cidr(it)).collect();
                peers.push(Peer { cidr: Some(cidr(&block.cidr)?), except: except?, ..Peer::default() });
            }
            (pods, None, None) if pods.is_some() => {
                let pods = pods.as_ref().map_or_else(|| Ok(Peer::default()), labelled)?;
                peers.push(Peer { tenant: Some(own.clone()), ..pods });
            }
            (pods, Some(namespaces), None) => {
                let everywhere = || Ok(Peer { inside: true, ..Peer::default() });
                let pods = pods.as_ref().map_or_else(everywhere, labelled)?;
                match tenants(namespaces)? {
                    None => peers.push(pods),
                    Some(tenants) if tenants.is_empty() => {
                        return Err(invalid("namespaceSelector: it picks no namespace at all"));
                    }
                    Some(tenants) => peers.extend(
                        tenants.into_iter().map(|tenant| Peer { tenant: Some(tenant), ..pods.clone() }),
                    ),
                }
            }
            (None, None, None) => {
                return Err(invalid("an empty peer means nothing; leave `from` or `to` out for all"));
            }
            _ => return Err(invalid("ipBlock stands alone: no podSelector or namespaceSelector beside it")),
        }
    }
    Ok(peers)
}

/// `ADDRESS/PREFIX` of a network, its host bits cleared as Kubernetes does.
fn cidr(text: &str) -> Result<(IpAddr, u8), Refusal> {
    super::parse_cidr(text).ok_or_else(|| invalid(format!("ipBlock: {text:?} is no ADDRESS/PREFIX")))
}

fn ports(ports: &[Port]) -> Result<Vec<PortMatch>, Refusal> {
    let one = |port: &Port| {
        let protocol = match port.protocol.as_deref().unwrap_or("TCP") {
            "TCP" => PolicyProtocol::Tcp,
            "UDP" => PolicyProtocol::Udp,
            other => return Err(invalid(format!("ports: protocol {other:?} is neither TCP nor UDP"))),
        };
        let first = match &port.port {
            None => None,
            Some(Value::Number(number)) => {
                let number = number.as_u64().and_then(|it| u16::try_from(it).ok()).filter(|it| *it > 0);
                Some(number.ok_or_else(|| invalid("ports: a port is a number from 1 to 65535"))?)
            }
            Some(named) => {
                return Err(invalid(format!(
                    "ports: {named} is a name; containers here name no ports, give numbers"
                )));
            }
        };
        let ports = match (first, port.end_port) {
            (None, None) => None,
            (None, Some(_)) => return Err(invalid("ports: endPort needs a port")),
            (Some(first), last) => match last.unwrap_or(first) {
                last if last >= first => Some((first, last)),
                last => return Err(invalid(format!("ports: endPort {last} is below port {first}"))),
            },
        };
        Ok(PortMatch { protocol: Some(protocol), ports })
    };
    ports.iter().map(one).collect()
}
