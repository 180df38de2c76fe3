//! How an offloaded pod's names are looked up: `dnsPolicy` and `dnsConfig` of a v1.PodSpec.
//!
//! `ClusterFirst` is the node's name service: it knows the pods that are here, and asks the host's servers for the
//! rest; the cluster's own service is not within an offloaded pod's reach. Where `dnsConfig` names servers, the node
//! asks those for this pod in place of the host's: of servers that are listed side by side a resolver asks the second
//! only when the first is silent, and the node's is not.

use super::kube::PodSpec;
use crate::{
    ops::resolve,
    spec::{DnsSpec, NameService},
};
use alloc::{format, string::String, vec::Vec};

/// What the pod asks for; what is wrong is told.
pub(super) fn dns(spec: &PodSpec, faults: &mut Vec<String>) -> DnsSpec {
    let service = match spec.dns_policy.as_str() {
        "" | "ClusterFirst" | "ClusterFirstWithHostNet" => NameService::Node,
        "Default" => NameService::Host,
        "None" => NameService::Own,
        other => {
            faults.push(format!("spec.dnsPolicy: {other:?} is not known"));
            NameService::Node
        }
    };
    let config = &spec.dns_config;
    let mut servers = Vec::new();
    for text in &config.nameservers {
        match text.parse() {
            Ok(server) => servers.push(server),
            Err(_) => faults.push(format!("spec.dnsConfig.nameservers: {text:?} is no address")),
        }
    }
    let option = |name: &String, value: &String| match value.is_empty() {
        true => name.clone(),
        false => format!("{name}:{value}"),
    };
    let dns = DnsSpec {
        service,
        servers,
        search: None,
        search_also: config.searches.clone(),
        options: config.options.iter().map(|one| option(&one.name, &one.value)).collect(),
    };
    if let Err(refusal) = resolve::names(&[], &dns) {
        faults.push(format!("spec.dnsConfig: {}", refusal.detail));
    }
    dns
}

/// A name that a pod answers to besides that of its sandbox, which tells pods of one name apart: its host name.
pub(super) fn aliases(hostname: &str) -> Vec<String> {
    let usable = crate::name::check("host", hostname).is_ok();
    usable.then(|| String::from(hostname)).into_iter().collect()
}
