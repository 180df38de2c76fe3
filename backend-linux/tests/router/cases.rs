//! Idempotence, replacement, read-back, replug, removal.

use crate::{
    node::{MTU_BYTES, Node, Workload, elements, network, sandbox, tool, v4, v6, workload},
    packets::tcp,
};
use holdfast_core::{
    error::Class,
    id::{BootId, ProcessRef},
    plan::SandboxPlan,
    ruleset::{Element, Ruleset},
    spec::Protocol,
};
use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{IpAddr, TcpListener, TcpStream},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

fn mounts() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().map(|line| line.split(' ').skip(3).collect::<Vec<_>>().join(" ")).collect()
}

/// The number of the last commit to the rules.
fn generation() -> String {
    tool("nft -a list ruleset")
}

pub fn base_is_idempotent() {
    let mut node = Node::new();
    let marker = node.paths.inside().join("marker");
    std::fs::write(&marker, "").unwrap();
    let (mounted, rules) = (mounts(), generation());
    node.runtime.block_on(node.hands.ensure_inside()).unwrap();
    node.runtime.block_on(node.hands.ensure_ruleset(&Ruleset::default())).unwrap();
    for index in [1, 2] {
        node.runtime.block_on(node.hands.ensure_network(&network(index))).unwrap();
    }
    assert!(marker.exists(), "a second tmpfs hides the first");
    assert_eq!(mounts(), mounted);
    assert_eq!(generation(), rules, "the rules were written again");
    let observed = node.observe();
    assert!(observed.ruleset.base);
    assert_eq!(observed.ruleset.digest, Ruleset::default().digest());
    assert_eq!(observed.networks.len(), 2);
    assert!(observed.networks.values().all(|bridge| bridge.complete), "{observed:?}");
    assert!(tool("stat -f -c %T /sys/fs/cgroup").contains("cgroup2"));
    // Another process's hands find all of it too.
    let mut again = node.runtime.block_on(holdfast_linux::net::RouterHands::open(&node.paths)).unwrap();
    assert_eq!(node.runtime.block_on(again.observe_router()).unwrap(), observed);
    // A gateway that somebody took away shows, and comes back.
    tool("ip address flush dev hfbr1");
    assert!(!node.observe().networks[&network(1).id].complete);
    node.runtime.block_on(node.hands.ensure_network(&network(1))).unwrap();
    assert_eq!(node.observe(), observed);
}

pub fn foreign_base_is_replaced() {
    let mut node = Node::new();
    let one = node.start(1, 1, 7);
    let ruleset = Ruleset { elements: elements(&one) };
    let good = generation_without_handles();
    for damage in [
        "nft flush chain inet holdfast input",
        "nft add rule inet holdfast forward accept",
        "nft delete table bridge holdfast",
        "nft add chain inet holdfast forward { policy accept ; }",
        "nft add chain inet holdfast more",
    ] {
        tool(damage);
        assert!(!node.observe().ruleset.base, "{damage} was not seen");
        node.runtime.block_on(node.hands.ensure_ruleset(&ruleset)).unwrap();
        let observed = node.observe().ruleset;
        assert!(observed.base, "{damage}");
        assert_eq!(observed.digest, ruleset.digest());
        assert_eq!(generation_without_handles(), good, "{damage}");
    }
}

fn generation_without_handles() -> String {
    let rules = tool("nft list ruleset");
    assert!(rules.contains("policy drop"), "{rules}");
    rules
}

pub fn elements_read_back() {
    let mut node = Node::new();
    let (address4, address6) = (v4(1, 9), v6(1, 9));
    let one = elements(&workload(8, 1, 70_000));
    let mut all = one.clone();
    all.extend([
        Element::Egress4(address4),
        Element::Egress6(address6),
        Element::Forward4(Protocol::Tcp, 20_000, address4, 80),
        Element::Forward4(Protocol::Udp, 20_000, address4, 81),
    ]);
    let digest = |elements: &BTreeSet<Element>| Ruleset { elements: elements.clone() }.digest();
    node.runtime.block_on(node.hands.add_elements(&all)).unwrap();
    node.runtime.block_on(node.hands.add_elements(&all)).unwrap();
    assert_eq!(node.observe().ruleset.digest, digest(&all));
    // The same key with another target is replaced, and its old form removes nothing.
    let moved = BTreeSet::from([Element::Forward4(Protocol::Tcp, 20_000, address4, 8080)]);
    node.runtime.block_on(node.hands.add_elements(&moved)).unwrap();
    let old = Element::Forward4(Protocol::Tcp, 20_000, address4, 80);
    node.runtime.block_on(node.hands.remove_elements(&BTreeSet::from([old]))).unwrap();
    all.remove(&old);
    all.extend(moved);
    assert_eq!(node.observe().ruleset.digest, digest(&all));
    node.runtime.block_on(node.hands.remove_elements(&one)).unwrap();
    node.runtime.block_on(node.hands.remove_elements(&one)).unwrap();
    all.retain(|element| !one.contains(element));
    assert_eq!(node.observe().ruleset.digest, digest(&all));
    // An element that somebody put there shows, and goes.
    tool("nft add element inet holdfast egress4 { 192.0.2.1 }");
    assert_ne!(node.observe().ruleset.digest, digest(&all));
    tool("nft add element bridge holdfast source4 { eth7 . 02:00:00:00:00:01 . 192.0.2.1 }");
    node.runtime.block_on(node.hands.ensure_ruleset(&Ruleset { elements: all.clone() })).unwrap();
    assert_eq!(node.observe().ruleset.digest, digest(&all));
}

pub fn thousand_members() {
    let mut node = Node::new();
    let all: BTreeSet<Element> =
        (1..=1000).flat_map(|number| elements(&workload(number, 1, u32::from(number)))).collect();
    let ruleset = Ruleset { elements: all };
    let start = Instant::now();
    node.runtime.block_on(node.hands.ensure_ruleset(&ruleset)).unwrap();
    println!("{} elements in {} ms", ruleset.elements.len(), start.elapsed().as_millis());
    let start = Instant::now();
    assert_eq!(node.observe().ruleset.digest, ruleset.digest());
    println!("observed in {} ms", start.elapsed().as_millis());
    // Every group changes at once, then everything goes.
    let moved: BTreeSet<Element> =
        (1..=1000).flat_map(|number| elements(&workload(number, 1, 5000 + u32::from(number)))).collect();
    node.runtime.block_on(node.hands.ensure_ruleset(&Ruleset { elements: moved.clone() })).unwrap();
    node.runtime.block_on(node.hands.remove_elements(&moved)).unwrap();
    assert_eq!(node.observe().ruleset.digest, Ruleset::default().digest());
    node.runtime.block_on(node.hands.add_elements(&moved)).unwrap();
    assert_eq!(node.observe().ruleset.digest, Ruleset { elements: moved }.digest());
}

pub fn attach_is_idempotent() {
    let mut node = Node::new();
    let one = node.start(1, 1, 7);
    // A replaced link would not keep it.
    tool("ip link set hfv1 txqueuelen 777");
    node.attach(&one);
    assert!(tool("ip link show hfv1").contains("qlen 777"), "the link was replaced");
    // What is missing around a right link comes back without replacing it.
    node.tool_within(one.id(), "ip route del default");
    tool("bridge link set dev hfv1 isolated off");
    assert!(!node.observe().plugged[&one.plan.slot].complete);
    node.attach(&one);
    assert!(tool("ip link show hfv1").contains("qlen 777"), "the link was replaced");
    assert!(node.tool_within(one.id(), "ip route").contains("default via 10.89.1.1"));
    let observed = node.observe();
    let plug = &observed.plugged[&one.plan.slot];
    assert!(plug.complete);
    assert_eq!(plug.network_index, Some(1));
    assert_eq!(plug.peer, Some(observed.sandboxes[one.id()]));
}

fn facts(node: &Node, workload: &Workload) -> String {
    let id = workload.id();
    [
        tool("ip -o link show hfv1").replace("qlen 777", "qlen 1000"),
        node.tool_within(id, "ip -o address show dev eth0"),
        node.tool_within(id, "ip -o link show dev eth0"),
        node.tool_within(id, "ip route"),
        node.tool_within(id, "ip -6 route"),
        node.tool_within(id, "ip neighbour"),
    ]
    .concat()
    .lines()
    .filter(|line| !line.contains("inet6 fe80") && !line.contains("fe80::/64"))
    .collect::<Vec<_>>()
    .join("\n")
}

pub fn stale_links_are_replaced() {
    let mut node = Node::new();
    let (one, two) = (node.start(1, 1, 7), node.start(2, 1, 7));
    let good = facts(&node, &one);
    assert!(good.contains(&format!("mtu {MTU_BYTES}")), "{good}");
    let damages: [(&str, Option<&str>); 7] = [
        ("ip link set hfv1 nomaster", None),
        ("ip link set hfv1 down", None),
        ("ip link del hfv1", None),
        ("ip link set hfv1 name other", None),
        ("true", Some("ip address add 10.89.1.77/32 dev eth0")),
        ("true", Some("ip link set eth0 address 02:00:00:00:00:77")),
        ("true", Some("ip link del eth0")),
    ];
    for (outside, inside) in damages {
        tool(outside);
        if let Some(inside) = inside {
            node.tool_within(one.id(), inside);
        }
        node.attach(&one);
        assert_eq!(facts(&node, &one), good, "after {outside} {inside:?}");
        assert!(tcp(&node, &two, &one, one.plan.ipv4.into(), true), "after {outside} {inside:?}");
    }
    // Strangers under the names and the indexes that are needed.
    tool("ip link del hfv1");
    tool("ip link add hfv1 type bridge");
    node.tool_within(one.id(), "ip link add eth0 type veth peer name other");
    node.attach(&one);
    assert_eq!(facts(&node, &one), good, "after strangers");
    // The plug of a sandbox that was made anew is not the old one's.
    node.runtime.block_on(node.hands.remove_sandbox(one.id())).unwrap();
    let fresh = sandbox(one.id());
    node.runtime.block_on(node.hands.ensure_sandbox(&fresh)).unwrap();
    node.attach(&one);
    assert!(tcp(&node, &two, &one, one.plan.ipv6.into(), true), "after a new sandbox");
    // A bridge that is a stranger, too.
    tool("ip link del hfbr1");
    tool("ip link add hfbr1 type veth peer name other");
    node.runtime.block_on(node.hands.ensure_network(&network(1))).unwrap();
    node.attach(&one);
    node.attach(&two);
    assert!(tcp(&node, &two, &one, one.plan.ipv4.into(), true), "after a new bridge");
}

pub fn replug_keeps_the_stream() {
    let mut node = Node::new();
    let (one, two) = (node.start(1, 1, 7), node.start(2, 1, 7));
    let before = facts(&node, &one);
    let address = IpAddr::V4(two.plan.ipv4);
    let listener = node.within(two.id(), || TcpListener::bind((address, 0)).unwrap());
    let target = listener.local_addr().unwrap();
    let mut client = node.within(one.id(), || TcpStream::connect(target).unwrap());
    let (mut server, _) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    }
    let mut bytes = [0; 4];
    client.write_all(b"one.").unwrap();
    server.read_exact(&mut bytes).unwrap();
    // The whole router goes: links, bridge, rules, tracked connections. What is sent meanwhile waits.
    tool("ip link del hfv1");
    tool("ip link del hfv2");
    tool("ip link del hfbr1");
    tool("nft flush ruleset");
    client.write_all(b"two.").unwrap();
    server.write_all(b"back").unwrap();
    let start = Instant::now();
    let mut all = elements(&one);
    all.extend(elements(&two));
    node.runtime.block_on(node.hands.ensure_ruleset(&Ruleset { elements: all })).unwrap();
    node.runtime.block_on(node.hands.ensure_network(&network(1))).unwrap();
    node.attach(&one);
    node.attach(&two);
    let replugged = start.elapsed();
    client.write_all(b"tri.").unwrap();
    let mut received = [0; 8];
    server.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"two.tri.");
    client.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"back");
    println!("replugged in {replugged:?}, stream went on after {:?}", start.elapsed());
    assert_eq!(facts(&node, &one), before);
}

fn process(pid: u32) -> ProcessRef {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    ProcessRef {
        pid,
        start_time_ticks: fields[19].parse().unwrap(),
        boot_id: BootId::from_raw(std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim()),
    }
}

pub fn sandbox_rebinds_from_a_member() {
    let mut node = Node::new();
    let one = node.start(1, 1, 7);
    let namespace = node.observe().sandboxes[one.id()];
    let files = ["net", "ipc", "uts"]
        .map(|kind| std::fs::File::open(node.paths.sandbox(one.id().as_str()).join(kind)).unwrap());
    let mut command = Command::new("sleep");
    command.arg("60").stdin(Stdio::null());
    // SAFETY: setns(2) is async-signal-safe, and nothing else runs between fork and exec.
    unsafe {
        command.pre_exec(move || {
            for file in &files {
                nix::sched::setns(file, nix::sched::CloneFlags::empty())?;
            }
            Ok(())
        });
    }
    let mut member = command.spawn().unwrap();
    let host_name = tool(&format!("nsenter -u -t {} hostname", member.id()));
    assert_eq!(host_name.trim(), "host-box1");
    let living = process(member.id());
    node.runtime.block_on(node.hands.remove_sandbox(one.id())).unwrap();
    assert!(node.observe().sandboxes.is_empty());
    let rebind = |process: &ProcessRef| SandboxPlan { rebind: Some(process.clone()), ..sandbox(one.id()) };
    for _ in 0..2 {
        node.runtime.block_on(node.hands.ensure_sandbox(&rebind(&living))).unwrap();
        assert_eq!(node.observe().sandboxes[one.id()], namespace);
    }
    // Bound, but to others: the member's replace them.
    node.runtime.block_on(node.hands.remove_sandbox(one.id())).unwrap();
    node.runtime.block_on(node.hands.ensure_sandbox(&sandbox(one.id()))).unwrap();
    assert_ne!(node.observe().sandboxes[one.id()], namespace);
    node.runtime.block_on(node.hands.ensure_sandbox(&rebind(&living))).unwrap();
    assert_eq!(node.observe().sandboxes[one.id()], namespace);
    // Its plug lived on all the while.
    let observed = node.observe();
    assert_eq!(observed.plugged[&one.plan.slot].peer, Some(namespace));
    let recycled = ProcessRef { start_time_ticks: living.start_time_ticks + 1, ..living.clone() };
    let error = node.runtime.block_on(node.hands.ensure_sandbox(&rebind(&recycled))).unwrap_err();
    assert_eq!(error.class, Class::Missing, "{error}");
    member.kill().unwrap();
    let error = loop {
        // A zombie until it is reaped: dead either way.
        match node.runtime.block_on(node.hands.ensure_sandbox(&rebind(&living))) {
            Ok(()) => std::thread::yield_now(),
            Err(error) if error.class == Class::Missing => break error,
            Err(error) => assert_eq!(error.class, Class::Denied, "{error}"),
        }
    };
    assert!(error.cause.contains("ended") || error.cause.contains("gone"), "{error}");
    member.wait().unwrap();
}

fn remains() -> String {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let links = tool("ip -o link");
    let links: Vec<&str> = links.lines().map(|line| line.split(" mtu").next().unwrap()).collect();
    [
        format!("{descriptors}"),
        format!("{links:?}"),
        tool("ip neighbour"),
        tool("ip netns list-id"),
        mounts().join("\n"),
    ]
    .join("\n")
}

pub fn removal_leaves_nothing() {
    let mut node = Node::new();
    let base = node.observe();
    // Descriptors of the standard streams and the sockets are open from here on.
    let before = remains();
    let workloads: Vec<Workload> = (1..=5).map(|number| node.start(number, 1, 7)).collect();
    assert_ne!(remains(), before);
    for workload in &workloads[1..] {
        node.stop(workload);
        node.stop(workload);
    }
    // One whose namespaces end first takes its link along by itself.
    let first = &workloads[0];
    node.runtime.block_on(node.hands.remove_sandbox(first.id())).unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while node.observe().plugged.contains_key(&first.plan.slot) {
        assert!(Instant::now() < deadline, "the link outlives its sandbox");
        std::thread::sleep(Duration::from_millis(10));
    }
    node.stop(first);
    assert_eq!(node.observe(), base);
    // The kernel takes namespaces apart in the background.
    while remains() != before {
        assert!(Instant::now() < deadline, "{}\n--- before:\n{before}", remains());
        std::thread::sleep(Duration::from_millis(10));
    }
    for index in [1, 2] {
        node.runtime.block_on(node.hands.remove_network(&network(index))).unwrap();
        node.runtime.block_on(node.hands.remove_network(&network(index))).unwrap();
    }
    assert!(node.observe().networks.is_empty());
}

/// Medians and 99th percentiles of each column, in microseconds.
fn report(what: &str, mut times: Vec<Duration>) -> Duration {
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!("{what}: p50 {} us, p99 {} us", at(50).as_micros(), at(99).as_micros());
    at(50)
}

pub fn attach_is_fast() {
    let mut node = Node::new();
    let mut columns: [Vec<Duration>; 5] = Default::default();
    for number in 1..=100 {
        let workload = workload(number, 1, 7);
        let start = Instant::now();
        node.runtime.block_on(node.hands.ensure_sandbox(&sandbox(workload.id()))).unwrap();
        let made = start.elapsed();
        node.runtime.block_on(node.hands.add_elements(&elements(&workload))).unwrap();
        let allowed = start.elapsed();
        node.attach(&workload);
        let plugged = start.elapsed();
        node.attach(&workload);
        let again = start.elapsed();
        let times = [made, allowed - made, plugged - allowed, plugged, again - plugged];
        columns.iter_mut().zip(times).for_each(|(column, time)| column.push(time));
    }
    let [sandboxes, rules, links, whole, again] = columns;
    report("ensure_sandbox", sandboxes);
    report("add_elements", rules);
    report("attach", links);
    let median = report("one workload in all", whole);
    report("attach over an attached one", again);
    let start = Instant::now();
    let observed = node.observe();
    println!("observe of 100: {} us", start.elapsed().as_micros());
    assert!(observed.plugged.len() == 100 && observed.plugged.values().all(|plug| plug.complete));
    // Below 2 ms on a quiet machine; the bound leaves room for a busy one and a debug build.
    assert!(median < Duration::from_millis(40), "p50 {median:?}");
}
