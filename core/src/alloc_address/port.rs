//! Published ports.

use crate::{
    error::{Refusal, RefusalCode},
    observed::HostObserved,
    record::{PortRecord, Records},
    spec::{PortSpec, Protocol},
};
use alloc::{collections::BTreeSet, format};

/// The most ports of one workload.
const PORTS_MAX: usize = 4_096;
/// First port on the router's uplink address that stands for a published port.
const ROUTER_PORT_MIN: u16 = 20_000;
/// Last one.
const ROUTER_PORT_MAX: u16 = 59_999;

/// Whether two published ports want the same thing of the host.
pub fn ports_collide(a: &PortSpec, b: &PortSpec) -> bool {
    a.protocol == b.protocol
        && a.host_port == b.host_port
        && (a.host_address == b.host_address
            || a.host_address.is_unspecified()
            || b.host_address.is_unspecified())
}

/// Gives each wanted port its port on the router.
///
/// # Errors
/// `Invalid` for port 0 inside or a host port that this user may not bind, `Taken` naming the owner, `Exhausted`
/// when the router has no port left.
pub fn ports(
    records: &Records,
    host: &HostObserved,
    wanted: &[PortSpec],
    random: &mut dyn FnMut() -> u16,
) -> Result<alloc::vec::Vec<PortRecord>, Refusal> {
    let held: alloc::vec::Vec<(&str, &PortRecord)> = records
        .sandboxes
        .values()
        .flat_map(|sandbox| sandbox.ports.iter().map(|port| (sandbox.name.as_str(), port)))
        .collect();
    let mut granted: alloc::vec::Vec<PortRecord> = alloc::vec::Vec::new();
    if wanted.len() > PORTS_MAX {
        let detail = format!("{} ports at once; publish at most {PORTS_MAX}", wanted.len());
        return Err(Refusal::new(RefusalCode::Invalid, detail));
    }
    for spec in wanted {
        let mut spec = *spec;
        if spec.target_port == 0 {
            return Err(Refusal::new(
                RefusalCode::Invalid,
                format!("port {spec}: the container's port cannot be 0"),
            ));
        }
        let owner = |spec: &PortSpec, granted: &[PortRecord]| {
            held.iter()
                .find(|(_, port)| ports_collide(&port.spec, spec))
                .map(|(name, _)| alloc::string::String::from(*name))
                .or_else(|| {
                    granted.iter().any(|port| ports_collide(&port.spec, spec)).then(|| "this request".into())
                })
        };
        if spec.host_port == 0 {
            spec.host_port = (0..64)
                .map(|_| 32_768 + random() % 28_000)
                .filter(|port| !host.bound.contains(&(spec.protocol, *port)))
                .find(|port| owner(&PortSpec { host_port: *port, ..spec }, &granted).is_none())
                .ok_or_else(|| {
                    Refusal::new(
                        RefusalCode::Exhausted,
                        format!("no free host port found for {spec}; name one"),
                    )
                })?;
        }
        if spec.host_port < host.unprivileged_port_first {
            let detail = format!(
                "port {}/{} is below {}, the first that this user may bind; choose a higher one, or lower it \
                 with `sysctl net.ipv4.ip_unprivileged_port_start={}`",
                spec.host_port, spec.protocol, host.unprivileged_port_first, spec.host_port
            );
            return Err(Refusal::new(RefusalCode::Invalid, detail));
        }
        if let Some(owner) = owner(&spec, &granted) {
            let detail = format!(
                "port {}:{}/{} is published by {owner}; choose another",
                spec.host_address, spec.host_port, spec.protocol
            );
            return Err(Refusal::new(RefusalCode::Taken, detail));
        }
        let router_port = router_port(spec.protocol, &held, &granted).ok_or_else(|| {
            Refusal::new(RefusalCode::Exhausted, "every router port is in use; unpublish a port first")
        })?;
        granted.push(PortRecord { spec, router_port });
    }
    Ok(granted)
}

fn router_port(protocol: Protocol, held: &[(&str, &PortRecord)], granted: &[PortRecord]) -> Option<u16> {
    let taken: BTreeSet<u16> = held
        .iter()
        .map(|(_, port)| *port)
        .chain(granted)
        .filter(|port| port.spec.protocol == protocol)
        .map(|port| port.router_port)
        .collect();
    (ROUTER_PORT_MIN..=ROUTER_PORT_MAX).find(|port| !taken.contains(port))
}
