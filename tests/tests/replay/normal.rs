//! One form of what is observed and recorded, in which model and node can be compared: processes by their role and
//! how many had it before, identities by names, times not at all.

use holdfast_core::{
    id::{ProcessRef, SandboxId},
    observed::{ContainerObserved, ControlObserved, Keeper, Observed, RouterObserved, UplinkObserved},
    record::{AttachmentRecord, NamespaceId, PortRecord, Records, RunState},
    ruleset::Ruleset,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv6Addr},
};

/// Which processes had which role, in the order in which they were first seen.
#[derive(Debug, Default)]
pub struct Ordinals(BTreeMap<String, Vec<ProcessRef>>);

impl Ordinals {
    fn name(&mut self, role: &str, process: &ProcessRef) -> String {
        let known = self.0.entry(role.to_owned()).or_default();
        let at = known.iter().position(|it| it == process).unwrap_or_else(|| {
            known.push(process.clone());
            known.len() - 1
        });
        format!("{role}#{}", at + 1)
    }

    fn maybe(&mut self, role: &str, process: Option<&ProcessRef>) -> String {
        process.map_or_else(|| "-".to_owned(), |process| self.name(role, process))
    }
}

/// Fields and their values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Normal(BTreeMap<String, String>);

impl Normal {
    /// Of an observation and the records it was made with.
    pub fn of(observed: &Observed, records: &Records, ordinals: &mut Ordinals) -> Self {
        let mut normal = Self::default();
        normal.processes(observed, records, ordinals);
        if let Some(router) = &observed.router {
            normal.router(router, observed, records);
        }
        for (id, seen) in &observed.containers {
            let name = name_of(records.containers.get(id).map(|record| &record.name));
            normal.container(&name, seen, observed, ordinals);
        }
        normal.records(records, ordinals);
        normal
    }

    /// Adds whether packets of one sandbox reached an address of another.
    pub fn reached(&mut self, (from, to, at): (&str, &str, IpAddr), reached: bool, allowed: bool) {
        let value = format!("reached {reached}, allowed {allowed}");
        self.put(format!("{from} → {to} at {}", address(at)), value);
    }

    /// Every field that differs, with both values.
    pub fn differing(model: &Self, node: &Self) -> Vec<String> {
        let fields: BTreeSet<&String> = model.0.keys().chain(node.0.keys()).collect();
        let value = |of: &Self, field: &str| of.0.get(field).map_or("(absent)", String::as_str).to_owned();
        let differs = |field: &&&String| model.0.get(**field) != node.0.get(**field);
        fields
            .iter()
            .filter(differs)
            .map(|field| format!("    {field}: model {}, node {}", value(model, field), value(node, field)))
            .collect()
    }

    fn put(&mut self, field: impl Into<String>, value: impl Into<String>) {
        self.0.insert(field.into(), value.into());
    }

    fn processes(&mut self, observed: &Observed, records: &Records, ordinals: &mut Ordinals) {
        self.put("pin", ordinals.maybe("pin", observed.keepers.pin.as_ref()));
        for found in &observed.keepers.keepers {
            let of = |id| name_of(records.containers.get(id).map(|record| &record.name));
            let name = match &found.keeper {
                Keeper::Pin(process) => ordinals.name("pin", process),
                Keeper::Descriptors => "descriptors".to_owned(),
                Keeper::Control(process) => ordinals.name("control", process),
                Keeper::Uplink(process) => ordinals.name("uplink", process),
                Keeper::Monitor(id, process) => ordinals.name(&format!("monitor of {}", of(id)), process),
                Keeper::Workload(id, process) => ordinals.name(&format!("init of {}", of(id)), process),
            };
            let leads = [("user", found.user), ("net", found.net), ("mount", found.mount)];
            let leads: Vec<&str> = leads.iter().filter(|(_, leads)| *leads).map(|(to, _)| *to).collect();
            self.put(format!("keeper {name}"), leads.join(" "));
        }
        let control = match &observed.keepers.control {
            ControlObserved::Absent => "absent".to_owned(),
            ControlObserved::Answering(process) => ordinals.name("control", process),
            ControlObserved::Foreign(..) => "foreign".to_owned(),
            ControlObserved::Silent(_) => "silent".to_owned(),
        };
        self.put("control", control);
        let uplink = match &observed.uplink {
            UplinkObserved::Absent => "absent".to_owned(),
            UplinkObserved::Broken(process, _) => format!("broken {}", ordinals.name("uplink", process)),
            UplinkObserved::Serving { process, ports } => {
                for PortRecord { spec, router_port } in ports {
                    let port = format!("{} {}:{}", spec.protocol, spec.host_address, spec.host_port);
                    self.put(format!("forwarded {port}"), router_port.to_string());
                }
                ordinals.name("uplink", process)
            }
        };
        self.put("uplink", uplink);
    }

    fn router(&mut self, router: &RouterObserved, observed: &Observed, records: &Records) {
        let recorded = records.node.as_ref().and_then(|node| node.namespaces);
        let same = if recorded == Some(router.namespaces) { "as recorded" } else { "other than recorded" };
        self.put("router's namespaces", same);
        for (id, bridge) in &router.networks {
            let name = name_of(records.networks.get(id).map(|record| &record.name));
            self.put(format!("bridge of {name}"), format!("{}, complete {}", bridge.index, bridge.complete));
        }
        let bound = |namespace: Option<NamespaceId>| {
            let of = router.sandboxes.iter().find(|(_, found)| Some(**found) == namespace);
            of.map_or_else(|| "nobody".to_owned(), |(id, _)| sandbox_name(records, id))
        };
        for (slot, plug) in &router.plugged {
            let value = format!(
                "network {:?}, complete {}, of {}",
                plug.network_index,
                plug.complete,
                bound(plug.peer)
            );
            self.put(format!("plug {}", slot.0), value);
        }
        for (id, namespace) in &router.sandboxes {
            let inside = observed.containers.iter().filter(|(_, seen)| seen.netns == Some(*namespace));
            let mut inside: Vec<String> =
                inside.map(|(id, _)| name_of(records.containers.get(id).map(|it| &it.name))).collect();
            inside.sort();
            self.put(format!("bind of {}", sandbox_name(records, id)), format!("holds {inside:?}"));
        }
        let rules = match router.ruleset.digest {
            digest if digest == Ruleset::desired(records).digest() => "as recorded",
            0 => "none",
            _ => "other than recorded",
        };
        self.put("rules", format!("base {}, elements {rules}", router.ruleset.base));
    }

    fn container(
        &mut self,
        name: &str,
        seen: &ContainerObserved,
        observed: &Observed,
        ordinals: &mut Ordinals,
    ) {
        let router = observed.router.as_ref().zip(seen.netns);
        let bound = router.map(|(router, own)| router.sandboxes.values().any(|bound| *bound == own));
        let init = ordinals.maybe(&format!("init of {name}"), seen.init.as_ref());
        let monitor = ordinals.maybe(&format!("monitor of {name}"), seen.monitor.as_ref());
        let exit = seen.exit.map(|exit| exit.code);
        self.put(format!("seen {name}: processes"), format!("{init}, {monitor}, in a bind {bound:?}"));
        self.put(format!("seen {name}: end"), format!("{exit:?}, remains {}", seen.remains));
    }

    fn records(&mut self, records: &Records, ordinals: &mut Ordinals) {
        if let Some(node) = &records.node {
            self.put("record pin", ordinals.maybe("pin", node.pin.as_ref()));
            self.put("record control", ordinals.maybe("control", node.control.as_ref()));
            self.put("record uplink", ordinals.maybe("uplink", node.uplink.as_ref()));
            self.put("record generations", format!("{} {}", node.router_generation, node.daemon_generation));
            let next = (node.slot_next, node.group_next, node.network_next);
            self.put("record counters", format!("{next:?}"));
            // Not adoptions: a sandbox that is adopted and then restarted is counted as either or as both, depending on
            // whether a back-off ends during one bring-up or between two. The last cure of each is compared.
            let harsh: BTreeMap<_, _> = node.cures.iter().filter(|(cure, _)| *cure != "adopted").collect();
            self.put("record cures", format!("{harsh:?}"));
        }
        for network in records.networks.values() {
            let subnet = format!("{}/{} {}", network.subnet4, network.prefix4, network.gateway4);
            let value = format!("{} {subnet} groups {:?}", network.index, network.groups);
            self.put(format!("record network {}", network.name), value);
        }
        for sandbox in records.sandboxes.values() {
            let links: Vec<String> =
                sandbox.attachments.iter().map(|link| attachment(records, link)).collect();
            let ports: Vec<String> =
                sandbox.ports.iter().map(|port| format!("{} by {}", port.spec, port.router_port)).collect();
            let value = format!(
                "{:?} of {}, links {links:?}, ports {ports:?}, last cure {:?}",
                sandbox.kind, sandbox.tenant, sandbox.last_cure
            );
            self.put(format!("record sandbox {}", sandbox.name), value);
        }
        for container in records.containers.values() {
            let name = &container.name;
            let state = match &container.state {
                RunState::Created => "created".to_owned(),
                RunState::Running { init, monitor, .. } => {
                    let init = ordinals.name(&format!("init of {name}"), init);
                    format!("running {init} {}", ordinals.name(&format!("monitor of {name}"), monitor))
                }
                RunState::Waiting { exit_code, .. } => format!("waiting after {exit_code:?}"),
                RunState::Exited { exit_code, .. } => format!("exited {exit_code:?}"),
                RunState::Failed { .. } => "failed".to_owned(),
            };
            let counts = (container.incarnation, container.restarts, container.failures_in_row);
            let of = sandbox_name(records, &container.sandbox);
            let value = format!("{state}, to be {:?}, counts {counts:?}, in {of}", container.desired);
            self.put(format!("record container {name}"), value);
        }
        for operation in records.operations.values() {
            self.put(format!("record operation {} {}", operation.kind, operation.name), "open");
        }
    }
}

fn name_of(name: Option<&String>) -> String {
    name.cloned().unwrap_or_else(|| "(unknown)".to_owned())
}

fn sandbox_name(records: &Records, id: &SandboxId) -> String {
    name_of(records.sandboxes.get(id).map(|record| &record.name))
}

/// IPv6 addresses without the node's own random prefix; RFC 4193.
fn address(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX >> 48)).to_string(),
    }
}

fn attachment(records: &Records, link: &AttachmentRecord) -> String {
    let network = name_of(records.networks.get(&link.network).map(|record| &record.name));
    let mac = link.mac.map(|byte| format!("{byte:02x}")).join(":");
    let (ipv4, ipv6) = (address(link.ipv4.into()), address(link.ipv6.into()));
    let AttachmentRecord { slot, group, link_name, ifindex, .. } = link;
    format!("{link_name}@{ifindex} on {network} slot {} group {group} {ipv4} {ipv6} {mac}", slot.0)
}
