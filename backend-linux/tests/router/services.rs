//! The node's own services: at a workload's own gateway, and nowhere else.

use crate::node::{Node, Workload, v4, v6};
use holdfast_core::{ruleset::Element, spec::Protocol};
use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(3);
const IMPATIENCE: Duration = Duration::from_millis(300);

/// Answers over UDP and TCP with these words, until the case's process ends.
fn serve(at: SocketAddr, words: &'static [u8]) {
    let socket = UdpSocket::bind(at).unwrap();
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while let Ok((_, from)) = socket.recv_from(&mut bytes) {
            let _ = socket.send_to(words, from);
        }
    });
    let listener = TcpListener::bind(at).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(words);
        }
    });
}

fn asked_udp(node: &Node, from: &Workload, source: IpAddr, target: SocketAddr, wait: Duration) -> Vec<u8> {
    node.within(from.id(), || {
        let socket = UdpSocket::bind((source, 0)).unwrap();
        socket.set_read_timeout(Some(wait)).unwrap();
        let mut bytes = [0; 64];
        let sent = socket.send_to(b"who", target);
        match sent.and_then(|_| socket.recv(&mut bytes)) {
            Ok(length) => bytes[..length].to_vec(),
            Err(_) => Vec::new(),
        }
    })
}

fn asked_tcp(node: &Node, from: &Workload, target: SocketAddr, wait: Duration) -> Vec<u8> {
    node.within(from.id(), || {
        let Ok(mut stream) = TcpStream::connect_timeout(&target, wait) else { return Vec::new() };
        stream.set_read_timeout(Some(wait)).unwrap();
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        bytes
    })
}

pub fn answer_at_the_own_gateway_alone() {
    let mut node = Node::new();
    let one = node.start(1, 1, 7);
    let far = node.start(2, 2, 7);
    let gateways = [IpAddr::V4(v4(1, 1)), IpAddr::V6(v6(1, 1))];
    for gateway in gateways {
        serve(SocketAddr::new(gateway, 53), b"node");
        serve(SocketAddr::new(gateway, 54), b"else");
    }
    for (gateway, own) in gateways.into_iter().zip(one.addresses()) {
        let dns = SocketAddr::new(gateway, 53);
        assert_eq!(asked_udp(&node, &one, own, dns, PATIENCE), b"node", "{dns}");
        assert_eq!(asked_tcp(&node, &one, dns, PATIENCE), b"node", "{dns}");
        let other = SocketAddr::new(gateway, 54);
        assert_eq!(asked_udp(&node, &one, own, other, IMPATIENCE), b"", "{other}");
        assert_eq!(asked_tcp(&node, &one, other, IMPATIENCE), b"", "{other}");
    }
    // Another network's gateway is another's.
    for (gateway, own) in gateways.into_iter().zip(far.addresses()) {
        let dns = SocketAddr::new(gateway, 53);
        assert_eq!(asked_udp(&node, &far, own, dns, IMPATIENCE), b"", "{dns} from another network");
        assert_eq!(asked_tcp(&node, &far, dns, IMPATIENCE), b"", "{dns} from another network");
    }
    // A forged source gets no answer, and asks for none in another's name.
    node.tool_within(one.id(), "ip address add 10.89.1.77/32 dev eth0");
    let forged = IpAddr::V4(v4(1, 77));
    assert_eq!(asked_udp(&node, &one, forged, SocketAddr::new(gateways[0], 53), IMPATIENCE), b"");
}

pub fn a_published_port_takes_no_services_place() {
    let mut node = Node::new();
    let one = node.start(1, 1, 7);
    let web = node.start(2, 1, 7);
    let gateway = IpAddr::V4(v4(1, 1));
    for port in [53, 67] {
        serve(SocketAddr::new(gateway, port), b"node");
    }
    for port in [53, 67, 8053] {
        node.within(web.id(), || serve((web.plan.ipv4, port).into(), b"web"));
    }
    let published = |protocol, port| Element::Hairpin4(protocol, port, web.plan.ipv4, port);
    let all: BTreeSet<Element> = [Protocol::Udp, Protocol::Tcp]
        .into_iter()
        .flat_map(|protocol| [53, 67, 8053].map(|port| published(protocol, port)))
        .collect();
    node.runtime.block_on(node.hands.add_elements(&all)).unwrap();
    let own = one.plan.ipv4.into();
    let at = |port| SocketAddr::new(gateway, port);
    assert_eq!(asked_udp(&node, &one, own, at(8053), PATIENCE), b"web", "hairpin works at all");
    assert_eq!(asked_tcp(&node, &one, at(8053), PATIENCE), b"web");
    assert_eq!(asked_udp(&node, &one, own, at(53), PATIENCE), b"node", "DNS is the node's");
    assert_eq!(asked_tcp(&node, &one, at(53), PATIENCE), b"node");
    assert_ne!(asked_udp(&node, &one, own, at(67), IMPATIENCE), b"web", "DHCP is nobody else's");
    // At another address of the node the published port is reached as any other is.
    assert_eq!(asked_udp(&node, &one, own, SocketAddr::new(v4(2, 1).into(), 53), PATIENCE), b"web");
}
