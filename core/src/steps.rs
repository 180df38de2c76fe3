//! The steps of a sandbox and of a container, made in one place from their records: create, start, restart and
//! recovery cannot differ.

use crate::{
    id::{ProcessRef, SandboxId},
    plan::{AttachmentPlan, ContainerPlan, NetworkPlan, ResolverPlan, RootfsPlan, SandboxPlan, Step},
    record::{AttachmentRecord, ContainerRecord, NetworkRecord, Records, SandboxRecord},
    ruleset,
    spec::{DnsSpec, NameService, RootSource},
    zone::zone_of,
};
use alloc::{boxed::Box, format, string::String, vec::Vec};
use core::net::IpAddr;

/// MTU of links whose network names none, in bytes: slirp4netns's tap takes packets of this size.
pub const MTU_BYTES_DEFAULT: u32 = 1500;

/// The bridge of a network.
pub fn network_plan(network: &NetworkRecord) -> NetworkPlan {
    NetworkPlan {
        id: network.id.clone(),
        index: network.index,
        gateway4: (network.gateway4, network.prefix4),
        gateway6: (network.gateway6, network.prefix6),
        mtu_bytes: network.spec.mtu_bytes.unwrap_or(MTU_BYTES_DEFAULT),
    }
}

/// The namespaces of a sandbox, new or from a living member.
pub fn sandbox_plan(sandbox: &SandboxRecord, rebind: Option<ProcessRef>) -> SandboxPlan {
    SandboxPlan { id: sandbox.id.clone(), hostname: sandbox.spec.hostname.clone(), rebind }
}

/// One link of a sandbox; `None` when its network's record is missing (quarantined).
pub fn attachment_plan(
    records: &Records,
    sandbox: &SandboxId,
    attachment: &AttachmentRecord,
    default_route: bool,
) -> Option<AttachmentPlan> {
    let network = records.networks.get(&attachment.network)?;
    Some(AttachmentPlan {
        sandbox: sandbox.clone(),
        slot: attachment.slot,
        network_index: network.index,
        link_name: attachment.link_name.clone(),
        ifindex: attachment.ifindex,
        mac: attachment.mac,
        ipv4: attachment.ipv4,
        ipv6: attachment.ipv6,
        gateway4: network.gateway4,
        gateway6: network.gateway6,
        subnet4: (network.subnet4, network.prefix4),
        subnet6: (network.subnet6, network.prefix6),
        default_route,
        mtu_bytes: network.spec.mtu_bytes.unwrap_or(MTU_BYTES_DEFAULT),
    })
}

/// All links of a sandbox, in order; the primary one has the default routes.
pub fn attachment_plans(records: &Records, sandbox: &SandboxRecord) -> Vec<AttachmentPlan> {
    let primary = sandbox.primary().map(|primary| primary.slot);
    let plan = |own: &AttachmentRecord| attachment_plan(records, &sandbox.id, own, Some(own.slot) == primary);
    sandbox.attachments.iter().filter_map(plan).collect()
}

/// Brings a sandbox up. Rules come before links, so that no packet meets a missing rule; ports come last, so
/// that nothing is published that leads nowhere.
pub fn sandbox_up(records: &Records, sandbox: &SandboxRecord, rebind: Option<ProcessRef>) -> Vec<Step> {
    let mut steps = Vec::new();
    steps.push(Step::AddElements(ruleset::sandbox_elements(records, sandbox)));
    steps.push(Step::EnsureSandbox(sandbox_plan(sandbox, rebind)));
    steps.extend(attachment_plans(records, sandbox).into_iter().map(Step::Attach));
    if mutant!(LinksBeforeRules) {
        steps.rotate_left(1);
    }
    steps.extend(sandbox.ports.iter().copied().map(Step::Publish));
    steps
}

/// Takes a sandbox down: the exact reverse of bringing it up.
pub fn sandbox_down(records: &Records, sandbox: &SandboxRecord) -> Vec<Step> {
    let up = sandbox_up(records, sandbox, None);
    crate::plan::undo_of(&up, up.len())
}

/// One start of a container, everything from its record.
pub fn container_plan(
    records: &Records,
    sandbox: &SandboxRecord,
    container: &ContainerRecord,
) -> ContainerPlan {
    let spec = &container.spec;
    let layers = match &spec.root {
        RootSource::Directory(_) => Vec::new(),
        RootSource::Image(image) => {
            records.images.get(image).map(|image| image.layers.clone()).unwrap_or_default()
        }
    };
    let mut hosts: Vec<(String, String)> = Vec::new();
    for attachment in &sandbox.attachments {
        hosts.push((format!("{}", attachment.ipv4), sandbox.spec.hostname.clone()));
        hosts.push((format!("{}", attachment.ipv6), sandbox.spec.hostname.clone()));
    }
    ContainerPlan {
        id: container.id.clone(),
        name: container.name.clone(),
        incarnation: container.incarnation,
        sandbox: if mutant!(PodForgottenAtRestart) && container.incarnation > 1 {
            SandboxId::from_raw(container.id.as_str())
        } else {
            sandbox.id.clone()
        },
        rootfs: RootfsPlan { id: container.id.clone(), root: spec.root.clone(), layers },
        argv: spec.argv.clone(),
        env: if mutant!(SpecForgottenAtRestart) && container.incarnation > 1 {
            Vec::new()
        } else {
            spec.env.clone()
        },
        working_dir: spec.working_dir.clone(),
        user: (spec.uid, spec.gid),
        mounts: spec.mounts.clone(),
        hostname: sandbox.spec.hostname.clone(),
        hosts,
        resolver: Box::new(resolver_plan(records, sandbox)),
        security: spec.security.clone(),
    }
}

/// How a sandbox's names are looked up.
fn resolver_plan(records: &Records, sandbox: &SandboxRecord) -> ResolverPlan {
    let DnsSpec { service, servers, search, search_also, options } = &sandbox.spec.dns;
    let options = options.clone();
    let network = |own: &AttachmentRecord| records.networks.get(&own.network);
    let primary = sandbox.primary();
    let gateways = primary.and_then(network).map(|it| [IpAddr::V4(it.gateway4), IpAddr::V6(it.gateway6)]);
    let declared = || {
        let mut search: Vec<String> = search.iter().flatten().cloned().collect();
        search.extend(search_also.iter().cloned());
        search
    };
    match (service, gateways) {
        (NameService::Node, Some(gateways)) => {
            let mut domains = match search {
                Some(search) => search.clone(),
                None => {
                    let others =
                        sandbox.attachments.iter().filter(|own| Some(own.slot) != primary.map(|it| it.slot));
                    primary
                        .into_iter()
                        .chain(others)
                        .filter_map(network)
                        .map(|it| zone_of(&it.name))
                        .collect()
                }
            };
            domains.extend(search_also.iter().cloned());
            let host_search = search.is_none();
            ResolverPlan {
                servers: gateways.to_vec(),
                search: domains,
                options,
                host_servers: false,
                host_search,
            }
        }
        (NameService::Node | NameService::Host, _) => ResolverPlan {
            servers: servers.clone(),
            search: declared(),
            options,
            host_servers: true,
            host_search: search.is_none(),
        },
        (NameService::Own, _) => ResolverPlan {
            servers: servers.clone(),
            search: declared(),
            options,
            host_servers: false,
            host_search: false,
        },
    }
}

/// Ends a container's recorded start with the given grace.
pub fn stop_step(container: &ContainerRecord, grace_ms: u64) -> Step {
    Step::StopContainer {
        id: container.id.clone(),
        incarnation: container.incarnation,
        signal: container.spec.stop_signal,
        grace_ms,
    }
}
