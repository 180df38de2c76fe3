//! Ports of the host: whether one can be had, and whether it really is bound.

use crate::net::host::unprivileged_port_first;
use holdfast_core::{
    error::{Class, UplinkError},
    spec::{PortSpec, Protocol},
};
use std::{
    io,
    net::{SocketAddrV4, TcpListener, UdpSocket},
};

/// Tries to bind the port, and lets go of it at once.
fn try_bind(spec: &PortSpec) -> io::Result<()> {
    let address = SocketAddrV4::new(spec.host_address, spec.host_port);
    match spec.protocol {
        // The library sets SO_REUSEADDR: connections of an earlier listener that linger are no hindrance.
        Protocol::Tcp => TcpListener::bind(address).map(drop),
        Protocol::Udp => UdpSocket::bind(address).map(drop),
    }
}

/// Whether something really holds the port.
pub fn is_bound(spec: &PortSpec) -> bool {
    try_bind(spec).is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

/// Refuses a port that the helper will not get, with the reason that the helper would not give.
///
/// # Errors
/// `Conflict` for a port that another has, or an address that is not the host's; `Denied` for a privileged one.
pub fn check_free(spec: &PortSpec) -> Result<(), UplinkError> {
    let Err(error) = try_bind(spec) else { return Ok(()) };
    let fail = |class, cause: String| Err(UplinkError::new(class, "publish", spec.to_string(), cause));
    let name = format!("{}:{}/{}", spec.host_address, spec.host_port, spec.protocol);
    match error.kind() {
        io::ErrorKind::AddrInUse => fail(Class::Conflict, format!("{name} is taken by another process"))
            .map_err(|error| {
                error.with_remedy(format!(
                    "choose another host port, or end what `ss -lnp 'sport = :{}'` shows",
                    spec.host_port
                ))
            }),
        io::ErrorKind::PermissionDenied => fail(Class::Denied, format!("this user may not bind {name}"))
            .map_err(|error| {
                error.with_remedy(format!(
                "choose a port from {} on, or lower it with `sysctl net.ipv4.ip_unprivileged_port_start={}`",
                unprivileged_port_first(),
                spec.host_port
            ))
            }),
        io::ErrorKind::AddrNotAvailable => {
            fail(Class::Conflict, format!("{} is no address of this host", spec.host_address)).map_err(
                |error| error.with_remedy("publish on 0.0.0.0 or on an address that `ip address` shows"),
            )
        }
        _ => fail(Class::Transient, error.to_string()),
    }
}
