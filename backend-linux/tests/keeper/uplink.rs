use crate::node::{Node, descriptors, hints, on_runtime, own_zombies, until};
use holdfast_core::{
    error::Class,
    id::ProcessRef,
    observed::UplinkObserved,
    record::PortRecord,
    spec::{PortSpec, Protocol},
    world::{Keepers, PinStarted, Uplink},
};
use holdfast_linux::uplink::{GUEST_ADDRESS, LinuxUplink, UplinkConfig};
use std::{
    net::{Ipv4Addr, TcpListener},
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::{io::AsyncReadExt, process::Child};

fn uplink(node: &Node) -> LinuxUplink {
    LinuxUplink::new(node.paths.clone(), UplinkConfig::default(), node.keepers.held().clone())
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn port(host_port: u16, router_port: u16, protocol: Protocol) -> PortRecord {
    let spec = PortSpec { host_address: Ipv4Addr::LOCALHOST, host_port, target_port: 80, protocol };
    PortRecord { spec, router_port }
}

fn seen(port: PortRecord) -> PortRecord {
    PortRecord { spec: PortSpec { target_port: 0, ..port.spec }, ..port }
}

async fn start(node: &Node, uplink: &LinuxUplink, pin: &PinStarted) -> ProcessRef {
    let helper = uplink.start_uplink(&pin.process).await.unwrap();
    node.note(&helper);
    helper
}

/// Something that answers in the router on its address on the tap.
async fn answer_inside(node: &Node, pin: &ProcessRef, router_port: u16, word: &str) -> Child {
    let mut command = node.keepers.command_inside(pin, "/proc/self/exe").unwrap();
    command.args(["answer", &format!("{GUEST_ADDRESS}:{router_port}"), word]);
    let child = command.stdin(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    let table = format!("/proc/{}/net/tcp", pin.pid);
    let entry = format!(":{router_port:04X} 00000000:0000 0A");
    until("it listens inside", || std::fs::read_to_string(&table).unwrap().contains(&entry)).await;
    child
}

/// The body of `answer ADDRESS WORD`: says the word to everyone who connects.
pub fn answer(arguments: &[std::ffi::OsString]) -> ! {
    use std::io::Write;
    let listener = TcpListener::bind(arguments[0].to_str().unwrap()).unwrap();
    for stream in listener.incoming() {
        let _ = stream.unwrap().write_all(arguments[1].as_encoded_bytes());
    }
    std::process::exit(0)
}

async fn ask(host_port: u16) -> String {
    let mut stream = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, host_port)).await.unwrap();
    let mut word = String::new();
    tokio::time::timeout(Duration::from_secs(5), stream.read_to_string(&mut word)).await.unwrap().unwrap();
    word.trim().to_owned()
}

async fn serving(uplink: &LinuxUplink, helper: &ProcessRef) -> Vec<PortRecord> {
    match uplink.observe_uplink(Some(helper)).await.unwrap() {
        UplinkObserved::Serving { process, ports } => {
            assert_eq!(&process, helper);
            ports.into_iter().collect()
        }
        other => panic!("{other:?}"),
    }
}

pub fn publishes_for_real() {
    on_runtime(async {
        let node = Node::new();
        let pin = node.create().await;
        let uplink = uplink(&node);
        assert_eq!(uplink.observe_uplink(None).await.unwrap(), UplinkObserved::Absent);
        let helper = start(&node, &uplink, &pin).await;
        for (number, target) in descriptors(&helper) {
            let target = target.to_string_lossy();
            let expected = ["/dev/null", "/dev/net/tun", "pipe:", "socket:", "anon_inode:"];
            let known =
                expected.iter().any(|start| target.starts_with(start)) || target.ends_with("uplink.log");
            assert!(known, "{number} is {target}");
        }
        let port_a = port(free_port(), 40001, Protocol::Tcp);
        let _server = answer_inside(&node, &pin.process, port_a.router_port, "hello").await;
        uplink.publish(&port_a).await.unwrap();
        assert_eq!(ask(port_a.spec.host_port).await, "hello");
        uplink.publish(&port_a).await.unwrap();
        let port_b = port(free_port(), 40002, Protocol::Udp);
        uplink.publish(&port_b).await.unwrap();
        assert_eq!(
            serving(&uplink, &helper).await,
            [seen(port_a), seen(port_b)]
                .into_iter()
                .collect::<std::collections::BTreeSet<_>>()
                .into_iter()
                .collect::<Vec<_>>()
        );
        // The same host port for another router port replaces the forward.
        let moved = PortRecord { router_port: 40003, ..port_a };
        let _other = answer_inside(&node, &pin.process, moved.router_port, "moved").await;
        uplink.publish(&moved).await.unwrap();
        assert_eq!(ask(moved.spec.host_port).await, "moved");
        // An older record of the port does not take the newer one away.
        uplink.unpublish(&port_a).await.unwrap();
        assert_eq!(ask(moved.spec.host_port).await, "moved");
        uplink.unpublish(&moved).await.unwrap();
        uplink.unpublish(&moved).await.unwrap();
        assert!(tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, moved.spec.host_port)).await.is_err());
        assert_eq!(serving(&uplink, &helper).await, [seen(port_b)]);
        // Not recorded, and found all the same: by the socket's peer.
        assert!(
            matches!(uplink.observe_uplink(None).await.unwrap(), UplinkObserved::Serving { process, .. } if process == helper)
        );
    });
}

pub fn refuses_taken_and_privileged_ports() {
    on_runtime(async {
        let node = Node::new();
        let pin = node.create().await;
        let uplink = uplink(&node);
        start(&node, &uplink, &pin).await;
        let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = port(stranger.local_addr().unwrap().port(), 40001, Protocol::Tcp);
        let error = uplink.publish(&taken).await.unwrap_err();
        assert_eq!(error.class, Class::Conflict);
        assert!(
            error.cause.contains(&taken.spec.host_port.to_string()) && !error.remedy.is_empty(),
            "{error}"
        );
        drop(stranger);
        uplink.publish(&taken).await.unwrap();
        let error = uplink.publish(&port(80, 40002, Protocol::Tcp)).await.unwrap_err();
        assert_eq!(error.class, Class::Denied);
        assert!(error.remedy.contains("ip_unprivileged_port_start"), "{error}");
        let mut elsewhere = port(free_port(), 40003, Protocol::Tcp);
        elsewhere.spec.host_address = Ipv4Addr::new(192, 0, 2, 1);
        assert_eq!(uplink.publish(&elsewhere).await.unwrap_err().class, Class::Conflict);
    });
}

pub fn killed_and_restarted() {
    on_runtime(async {
        let node = Node::new();
        let pin = node.create().await;
        let uplink = uplink(&node);
        let helper = start(&node, &uplink, &pin).await;
        let published = port(free_port(), 40001, Protocol::Tcp);
        let _server = answer_inside(&node, &pin.process, published.router_port, "hello").await;
        uplink.publish(&published).await.unwrap();
        assert_eq!(ask(published.spec.host_port).await, "hello");
        node.kill(&helper).await;
        assert_eq!(uplink.observe_uplink(Some(&helper)).await.unwrap(), UplinkObserved::Absent);
        let error = uplink.publish(&published).await.unwrap_err();
        assert_eq!(error.class, Class::Transient, "{error}");
        uplink.unpublish(&published).await.unwrap();
        let started = Instant::now();
        let helper = start(&node, &uplink, &pin).await;
        println!("  uplink started: {:?}", started.elapsed());
        assert!(serving(&uplink, &helper).await.is_empty(), "a new helper forwards nothing yet");
        uplink.publish(&published).await.unwrap();
        assert_eq!(ask(published.spec.host_port).await, "hello");
        node.keepers.stop_process(&helper).await.unwrap();
        until("helpers are reaped", || own_zombies().is_empty()).await;
    });
}

pub fn of_another_router_is_broken() {
    on_runtime(async {
        let node = Node::new();
        let pin = node.create().await;
        let uplink = uplink(&node);
        let helper = start(&node, &uplink, &pin).await;
        let mut elsewhere = hints(&pin);
        elsewhere.namespaces.as_mut().unwrap().net.0 += 1;
        node.keepers.observe_keepers(&elsewhere).await.unwrap();
        let observed = uplink.observe_uplink(Some(&helper)).await.unwrap();
        assert!(matches!(observed, UplinkObserved::Broken(process, _) if process == helper));
        node.keepers.observe_keepers(&hints(&pin)).await.unwrap();
        assert!(serving(&uplink, &helper).await.is_empty());
        // Alive, and its API gone.
        std::fs::remove_file(node.paths.uplink_socket()).unwrap();
        let observed = uplink.observe_uplink(Some(&helper)).await.unwrap();
        assert!(matches!(observed, UplinkObserved::Broken(process, _) if process == helper));
    });
}
