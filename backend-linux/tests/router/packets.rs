//! Packets by hand: what arrives, arrives.

use crate::node::{Node, Workload};
use holdfast_core::world::Probe;
use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::Duration,
};

/// How long an answer may take where one is expected.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long is waited where none is.
const IMPATIENCE: Duration = Duration::from_millis(300);

fn wait(expected: bool) -> Duration {
    if expected { PATIENCE } else { IMPATIENCE }
}

/// Whether bytes come back over TCP.
pub fn tcp(node: &Node, from: &Workload, to: &Workload, address: IpAddr, expected: bool) -> bool {
    let listener = node.within(to.id(), || TcpListener::bind((address, 0)).unwrap());
    let target = listener.local_addr().unwrap();
    let echo = std::thread::spawn(move || {
        // Ends with the connection, or with the listener that the case's process takes along.
        let Ok((mut stream, _)) = listener.accept() else { return };
        let mut bytes = [0; 4];
        if stream.read_exact(&mut bytes).is_ok() {
            let _ = stream.write_all(&bytes);
        }
    });
    let reached = node.within(from.id(), || dial(target, wait(expected)));
    if reached {
        echo.join().unwrap();
    }
    reached
}

pub fn dial(target: SocketAddr, timeout: Duration) -> bool {
    let Ok(mut stream) = TcpStream::connect_timeout(&target, timeout) else { return false };
    stream.set_read_timeout(Some(timeout)).unwrap();
    let mut bytes = [0; 4];
    stream.write_all(b"ping").is_ok() && stream.read_exact(&mut bytes).is_ok() && &bytes == b"ping"
}

/// Whether a datagram sent from `source` arrives.
pub fn udp(
    node: &Node,
    from: &Workload,
    source: IpAddr,
    to: &Workload,
    address: IpAddr,
    expected: bool,
) -> bool {
    let receiver = node.within(to.id(), || UdpSocket::bind((address, 0)).unwrap());
    receiver.set_read_timeout(Some(wait(expected))).unwrap();
    let target = receiver.local_addr().unwrap();
    let sender = node.within(from.id(), || UdpSocket::bind((source, 0)).unwrap());
    sender.send_to(b"ping", target).unwrap();
    let mut bytes = [0; 16];
    match receiver.recv_from(&mut bytes) {
        Ok((length, sender)) => {
            assert_eq!((&bytes[..length], sender.ip()), (&b"ping"[..], source));
            true
        }
        Err(_) => false,
    }
}

/// The product's own probe: TCP and ICMP echo.
pub fn probe(node: &Node, from: &Workload, to: &Workload, address: IpAddr, expected: bool) -> bool {
    let probe = Probe {
        from: from.id().clone(),
        to: to.id().clone(),
        address,
        timeout_ms: u64::try_from(wait(expected).as_millis()).unwrap(),
        ask: Default::default(),
    };
    node.wait(node.hands.probe(&probe)).unwrap()
}

/// Whether ICMP echo is answered, by the ping of busybox.
pub fn ping(node: &Node, from: &Workload, address: IpAddr, expected: bool) -> bool {
    let seconds = if expected { "3" } else { "1" };
    let command = if address.is_ipv4() { "ping" } else { "ping6" };
    node.within(from.id(), || {
        let output = std::process::Command::new("busybox")
            .args([command, "-c", "1", "-W", seconds, &address.to_string()])
            .output()
            .unwrap();
        output.status.success()
    })
}
