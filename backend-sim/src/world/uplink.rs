//! The uplink helper and the ports of the host.

use super::{Refused, SimWorld, at_once};
use crate::model::{Content, Node, Process, Role};
use holdfast_core::{
    error::{Class, UplinkError},
    id::ProcessRef,
    observed::{HostObserved, UplinkObserved},
    record::PortRecord,
    world::Uplink,
};
use std::collections::BTreeSet;

/// Below, a port needs CAP_NET_BIND_SERVICE (ip(7), ip_unprivileged_port_start).
const UNPRIVILEGED_PORT_FIRST: u16 = 1_024;

impl Uplink for SimWorld {
    async fn observe_uplink(&self, hint: Option<&ProcessRef>) -> Result<UplinkObserved, UplinkError> {
        self.step("uplink.observe", String::new(), at_once, |node| Ok(observe(node, hint))).await
    }

    async fn observe_host(&self) -> Result<HostObserved, UplinkError> {
        // Nothing of it is simulated but the limit: routes and foreign ports are data of core's own tests.
        let host =
            HostObserved { unprivileged_port_first: UNPRIVILEGED_PORT_FIRST, ..HostObserved::default() };
        self.step("uplink.observe_host", String::new(), at_once, |_| Ok(host)).await
    }

    async fn start_uplink(&self, pin: &ProcessRef) -> Result<ProcessRef, UplinkError> {
        self.step("uplink.start", pin.to_string(), at_once, |node| start(node, pin)).await
    }

    async fn publish(&self, port: &PortRecord) -> Result<(), UplinkError> {
        self.step("uplink.publish", port.spec.to_string(), at_once, |node| publish(node, port)).await
    }

    async fn unpublish(&self, port: &PortRecord) -> Result<(), UplinkError> {
        self.step("uplink.unpublish", port.spec.to_string(), at_once, |node| {
            match ports(node) {
                // A forward of the same port to another port of the router is another record's by now.
                Ok(ports) => ports.retain(|bound| bound != port),
                // Without a helper nothing is bound; one that hangs has it bound still.
                Err((Class::Transient, _)) => {}
                Err(hangs) => return Err(hangs),
            }
            Ok(())
        })
        .await
    }
}

fn observe(node: &Node, hint: Option<&ProcessRef>) -> UplinkObserved {
    let recorded = hint.and_then(|hint| node.processes.get(hint));
    let Some(Process { reference, role: Role::Uplink { wedged, ports }, holds, .. }) =
        node.uplink().or(recorded)
    else {
        return UplinkObserved::Absent;
    };
    let broken = |cause: &str| UplinkObserved::Broken(reference.clone(), cause.to_owned());
    if *wedged || node.uplink_socket.as_ref() != Some(reference) {
        return broken("does not answer");
    }
    let control = node.control().and_then(|control| node.inside_of(&control.reference).net);
    if control.is_some_and(|router| !holds.contains(&router)) {
        return broken("serves another router");
    }
    UplinkObserved::Serving { process: reference.clone(), ports: ports.clone() }
}

fn start(node: &mut Node, pin: &ProcessRef) -> Result<ProcessRef, Refused> {
    let Some(member) = node.processes.get(pin).map(|process| process.member.clone()) else {
        return Err((Class::Transient, "the pin is dead".to_owned()));
    };
    let router = node.namespaces.find(&member, |content| matches!(content, Content::Router(_)));
    let router = router.ok_or_else(|| (Class::Missing, "the pin is in no router".to_owned()))?;
    if let Some(other) = node.uplink() {
        return match other.role {
            Role::Uplink { wedged: false, .. } if other.holds.contains(&router) => {
                Ok(other.reference.clone())
            }
            _ => Err((Class::Conflict, format!("{} holds the helper's socket", other.reference))),
        };
    }
    let role = Role::Uplink { wedged: false, ports: BTreeSet::new() };
    let uplink = node.spawn(role, &[], &[router]);
    node.uplink_socket = Some(uplink.clone());
    Ok(uplink)
}

fn ports(node: &mut Node) -> Result<&mut BTreeSet<PortRecord>, Refused> {
    let uplink = node.uplink_socket.clone();
    match uplink.and_then(|uplink| node.processes.get_mut(&uplink)).map(|process| &mut process.role) {
        Some(Role::Uplink { wedged: false, ports }) => Ok(ports),
        Some(_) => Err((Class::Unknown, "the uplink helper did not answer in time".to_owned())),
        None => Err((Class::Transient, "no uplink helper runs".to_owned())),
    }
}

fn publish(node: &mut Node, port: &PortRecord) -> Result<(), Refused> {
    if ports(node)?.contains(port) {
        return Ok(());
    }
    let spec = port.spec;
    if spec.host_port < UNPRIVILEGED_PORT_FIRST {
        return Err((Class::Denied, format!("port {} is privileged", spec.host_port)));
    }
    // The helper's own, led elsewhere: its record is gone, so it is led anew.
    ports(node)?.retain(|bound| bound.spec != spec);
    if node.port_bound(spec.protocol, spec.host_port, spec.host_address) {
        return Err((Class::Conflict, "the port is taken".to_owned()));
    }
    ports(node)?.insert(*port);
    Ok(())
}
