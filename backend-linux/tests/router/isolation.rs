//! Isolation, by crossing.

use crate::{
    node::{Node, Workload, elements, sandbox, tool, v4, v6, workload},
    packets::{dial, ping, probe, tcp, udp},
};
use holdfast_core::{id::SandboxId, ruleset::Element, spec::Protocol};
use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    time::Duration,
};

fn assert_reach(node: &Node, from: &Workload, to: &Workload, expected: bool) {
    for (source, address) in from.addresses().into_iter().zip(to.addresses()) {
        let what = format!("{} to {} ({address})", from.id(), to.id());
        assert_eq!(tcp(node, from, to, address, expected), expected, "TCP {what}");
        assert_eq!(udp(node, from, source, to, address, expected), expected, "UDP {what}");
        // The probe speaks ICMP too, so that it alone is enough where nothing may be answered.
        assert!(!expected || ping(node, from, address, true), "ICMP {what}");
        assert_eq!(probe(node, from, to, address, expected), expected, "probe {what}");
    }
}

pub fn members_reach_each_other() {
    let mut node = Node::new();
    let (one, two) = (node.start(1, 1, 7), node.start(2, 1, 7));
    assert_reach(&node, &one, &two, true);
    assert_reach(&node, &two, &one, true);
}

pub fn others_do_not() {
    let mut node = Node::new();
    let one = node.start(1, 1, 7);
    let same_bridge = node.start(2, 1, 8);
    let other_network = node.start(3, 2, 9);
    for other in [&same_bridge, &other_network] {
        assert_reach(&node, &one, other, false);
        assert_reach(&node, other, &one, false);
    }
    // Plugged before any element: closed from the first packet on.
    let early = workload(4, 1, 7);
    let plan = sandbox(early.id());
    node.runtime.block_on(node.hands.ensure_sandbox(&plan)).unwrap();
    node.attach(&early);
    assert_reach(&node, &early, &one, false);
    node.runtime.block_on(node.hands.add_elements(&elements(&early))).unwrap();
    assert_reach(&node, &early, &one, true);
}

pub fn revoked_at_once() {
    let mut node = Node::new();
    let (one, two) = (node.start(1, 1, 7), node.start(2, 1, 7));
    let address = IpAddr::V4(two.plan.ipv4);
    let receiver = node.within(two.id(), || UdpSocket::bind((address, 0)).unwrap());
    receiver.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let sender = node.within(one.id(), || UdpSocket::bind((one.plan.ipv4, 0)).unwrap());
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    let mut bytes = [0; 8];
    sender.send(b"first").unwrap();
    let (_, peer) = receiver.recv_from(&mut bytes).unwrap();
    receiver.send_to(b"reply", peer).unwrap();
    // A tracked, answered flow must not outlive the element that allowed it.
    let membership = BTreeSet::from([Element::Member4(7, two.plan.ipv4)]);
    node.runtime.block_on(node.hands.remove_elements(&membership)).unwrap();
    sender.send(b"second").unwrap();
    assert!(receiver.recv_from(&mut bytes).is_err(), "a tracked flow passed after it was revoked");
    node.runtime.block_on(node.hands.add_elements(&membership)).unwrap();
    sender.send(b"third").unwrap();
    assert_eq!(receiver.recv_from(&mut bytes).unwrap().0, 5);
}

pub fn sources_cannot_be_forged() {
    let mut node = Node::new();
    let (victim, target) = (node.start(1, 1, 7), node.start(2, 1, 7));
    let forger = node.start(3, 1, 8);
    for (address, length, receiver) in [
        (victim.addresses()[0], 32, target.addresses()[0]),
        (victim.addresses()[1], 128, target.addresses()[1]),
    ] {
        let nodad = if address.is_ipv6() { "nodad" } else { "" };
        node.tool_within(forger.id(), &format!("ip address add {address}/{length} dev eth0 {nodad}"));
        assert!(!udp(&node, &forger, address, &target, receiver, false), "{address} was forged");
        // The same packet passes once the port may send it, so it was this rule that stopped it.
        let (slot, mac) = (forger.plan.slot, forger.plan.mac);
        let allowed = BTreeSet::from([match address {
            IpAddr::V4(address) => Element::Source4(slot, mac, address),
            IpAddr::V6(address) => Element::Source6(slot, mac, address),
        }]);
        node.runtime.block_on(node.hands.add_elements(&allowed)).unwrap();
        assert!(udp(&node, &forger, address, &target, receiver, true), "{address} with permission");
        node.runtime.block_on(node.hands.remove_elements(&allowed)).unwrap();
        assert!(!udp(&node, &forger, address, &target, receiver, false), "{address} after permission");
    }
    // Another MAC address, its own IP address.
    let peer = node.start(4, 1, 8);
    assert!(udp(&node, &forger, forger.plan.ipv4.into(), &peer, peer.plan.ipv4.into(), true));
    node.tool_within(forger.id(), "ip link set eth0 address 02:00:00:00:00:99");
    assert!(!udp(&node, &forger, forger.plan.ipv4.into(), &peer, peer.plan.ipv4.into(), false));
}

pub fn gateway_answers_ping_only() {
    let mut node = Node::new();
    let one = node.start(1, 1, 7);
    for gateway in [IpAddr::V4(v4(1, 1)), IpAddr::V6(v6(1, 1))] {
        assert!(ping(&node, &one, gateway, true), "{gateway} is silent");
        let listener = TcpListener::bind((gateway, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = SocketAddr::new(gateway, port);
        listener.set_nonblocking(true).unwrap();
        assert!(!node.within(one.id(), || dial(target, Duration::from_millis(300))), "{gateway} accepted");
        assert!(listener.accept().is_err(), "{gateway} saw a connection");
    }
}

/// An outside world behind a link of the uplink's name.
fn outside(node: &mut Node) -> Workload {
    let mut outside = workload(99, 1, 0);
    outside.plan.sandbox = SandboxId::from_raw("outside");
    let plan = sandbox(outside.id());
    node.runtime.block_on(node.hands.ensure_sandbox(&plan)).unwrap();
    tool("ip link add hftap0 type veth peer name out0");
    tool(&format!("ip link set out0 netns {}", node.netns(outside.id()).display()));
    tool("ip address add 10.0.2.100/24 dev hftap0");
    tool("ip link set hftap0 up");
    tool("ip route add default via 10.0.2.2");
    node.tool_within(outside.id(), "ip address add 10.0.2.2/24 dev out0");
    node.tool_within(outside.id(), "ip address add 10.0.2.9/24 dev out0");
    node.tool_within(outside.id(), "ip link set out0 up");
    // So that a packet with an internal target arrives at the router at all.
    node.tool_within(outside.id(), "ip route add 10.89.0.0/16 via 10.0.2.100");
    outside.plan.ipv4 = Ipv4Addr::new(10, 0, 2, 9);
    outside
}

pub fn uplink_is_governed() {
    let mut node = Node::new();
    let one = node.start(1, 1, 7);
    let outside = outside(&mut node);
    let world = IpAddr::V4(outside.plan.ipv4);
    assert!(!tcp(&node, &one, &outside, world, false), "out without egress");
    assert!(!tcp(&node, &outside, &one, one.plan.ipv4.into(), false), "in without a port");

    let egress = BTreeSet::from([Element::Egress4(one.plan.ipv4)]);
    node.runtime.block_on(node.hands.add_elements(&egress)).unwrap();
    let seen = node.within(outside.id(), || TcpListener::bind((world, 0)).unwrap());
    let target = seen.local_addr().unwrap();
    let stream =
        node.within(one.id(), || std::net::TcpStream::connect_timeout(&target, Duration::from_secs(3)));
    stream.expect("out with egress");
    assert_eq!(seen.accept().unwrap().1.ip(), IpAddr::from([10, 0, 2, 100]), "masqueraded");
    let loopback = IpAddr::from([10, 0, 2, 2]);
    assert!(!tcp(&node, &one, &outside, loopback, false), "the host's loopback with egress");
    assert!(!tcp(&node, &outside, &one, one.plan.ipv4.into(), false), "in with egress, without a port");
    node.runtime.block_on(node.hands.remove_elements(&egress)).unwrap();
    assert!(!tcp(&node, &one, &outside, world, false), "out after egress was taken away");

    // A published port works without egress: answers are no egress.
    let port = BTreeSet::from([Element::Forward4(Protocol::Tcp, 20_001, one.plan.ipv4, 8080)]);
    let listener = node.within(one.id(), || TcpListener::bind((one.plan.ipv4, 8080)).unwrap());
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut bytes = [0; 4];
            if std::io::Read::read_exact(&mut stream, &mut bytes).is_ok() {
                let _ = std::io::Write::write_all(&mut stream, &bytes);
            }
        }
    });
    let published = SocketAddr::from(([10, 0, 2, 100], 20_001));
    let try_port =
        |node: &Node, wait| node.within(outside.id(), || dial(published, Duration::from_millis(wait)));
    assert!(!try_port(&node, 300), "a port before it is published");
    node.runtime.block_on(node.hands.add_elements(&port)).unwrap();
    assert!(try_port(&node, 3000), "a published port");
    node.runtime.block_on(node.hands.remove_elements(&port)).unwrap();
    assert!(!try_port(&node, 300), "a port after it was withdrawn");
}
