//! Admissions: what a request becomes, what is refused, and that every start is made from the same spec.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use holdfast_core::{
    bring_up::plan_bring_up,
    error::RefusalCode,
    invariant::check_records,
    ops::{
        Admission, blocker, container, network, pod,
        request::{NetworkRequest, PodRequest, RemoveRequest, RootRequest, RunRequest, StopRequest},
    },
    plan::{ContainerPlan, ResolverPlan, Step, undo_of},
    record::{Change, ImageRecord, Records},
    spec::{
        BindMount, ContainerSpec, DnsSpec, NetworkSpec, PortSpec, Protocol, RestartPolicy, RootSource,
        SandboxSpec, Security,
    },
};
use std::net::IpAddr;
use support::*;

fn image(records: &mut Records) {
    records.apply(Change::Image(ImageRecord {
        id: holdfast_core::id::ImageId::from_raw("feedc0de"),
        names: vec!["tool:latest".into()],
        layers: vec!["low".into(), "high".into()],
        entrypoint: vec!["/entry".into()],
        command: vec!["default".into()],
        env: vec![("PATH".into(), "/image/bin".into()), ("LANG".into(), "C".into())],
        working_dir: "/image".into(),
        user: (5, 6),
        size_bytes: 1,
        loaded: WALL,
    }));
}

/// Every field of a request set to something that is not its default.
fn full_request() -> RunRequest {
    RunRequest {
        root: RootRequest::Image("tool".into()),
        name: Some("full".into()),
        pod: None,
        tenant: Some("blue".into()),
        networks: vec!["default".into()],
        addresses: Default::default(),
        ports: vec![port(8080)],
        command: vec!["a b".into(), "\"quoted\"".into(), String::new(), "line\nbreak".into()],
        entrypoint: Some(vec!["/own".into()]),
        env: vec![("LANG".into(), "de".into()), ("EMPTY".into(), String::new())],
        mounts: vec![BindMount {
            source: "/srv".into(),
            target: "/data".into(),
            read_only: true,
            beneath: None,
        }],
        working_dir: Some("/elsewhere".into()),
        user: Some((1000, 1001)),
        hostname: Some("host-name".into()),
        restart: RestartPolicy::OnFailure { retries_max: Some(2) },
        stop_signal: Some(2),
        stop_grace_ms: Some(1234),
        labels: [("k".to_string(), "v".to_string())].into(),
        remove_on_exit: false,
        security: Security { read_only_root: true, groups: vec![7], ..Security::default() },
        aliases: vec!["other".into()],
        dns: DnsSpec {
            servers: vec!["192.0.2.53".parse().unwrap()],
            search: Some(vec!["a.example".into()]),
            search_also: vec!["b.example".into()],
            options: vec!["ndots:2".into()],
            ..DnsSpec::default()
        },
    }
}

fn port(host_port: u16) -> PortSpec {
    PortSpec { host_address: address("127.0.0.1"), host_port, target_port: 80, protocol: Protocol::Tcp }
}

fn container_plan(steps: &[Step]) -> ContainerPlan {
    let plan = steps.iter().find_map(|step| match step {
        Step::StartContainer(plan) => Some(plan.clone()),
        _ => None,
    });
    plan.unwrap()
}

fn stop_of(steps: &[Step]) -> (u32, u64) {
    let stop = steps.iter().find_map(|step| match step {
        Step::StopContainer { signal, grace_ms, .. } => Some((*signal, *grace_ms)),
        _ => None,
    });
    stop.unwrap()
}

fn steps_of<T>(admission: Result<Admission<T>, holdfast_core::error::Refusal>) -> Vec<Step> {
    match admission.unwrap() {
        Admission::Run { operation, .. } => operation.steps,
        Admission::AlreadySo(_) => vec![],
    }
}

#[test]
fn every_field_of_a_spec_reaches_every_kind_of_start() {
    let mut records = node();
    image(&mut records);
    let admission = container::run(&records, &full_request(), &stamp(1)).unwrap();
    let run = container_plan(&carry(&mut records, admission));
    let id = records.containers.keys().next().unwrap().clone();
    set_running(&mut records, &id, 100);

    // A field that is added to the spec does not compile here until it says where it goes.
    let ContainerSpec {
        root,
        root_name,
        argv,
        env,
        working_dir,
        uid,
        gid,
        mounts,
        restart,
        stop_signal,
        stop_grace_ms,
        labels,
        remove_on_exit,
        security,
    } = records.containers[&id].spec.clone();
    assert_eq!(root, RootSource::Image(holdfast_core::id::ImageId::from_raw("feedc0de")));
    assert_eq!(
        (run.rootfs.root.clone(), run.rootfs.layers.clone()),
        (root, vec!["low".to_string(), "high".to_string()])
    );
    assert_eq!(root_name, "tool:latest");
    assert_eq!(argv, ["/own", "a b", "\"quoted\"", "", "line\nbreak"]);
    assert_eq!(run.argv, argv);
    let expected = [("PATH", "/image/bin"), ("LANG", "de"), ("EMPTY", "")];
    assert_eq!(env, expected.map(|(name, value)| (name.to_string(), value.to_string())));
    assert_eq!(run.env, env);
    assert_eq!((run.working_dir.as_str(), working_dir.as_str()), ("/elsewhere", "/elsewhere"));
    assert_eq!((run.user, (uid, gid)), ((1000, 1001), (1000, 1001)));
    assert_eq!(run.mounts, mounts);
    assert!(mounts[0].read_only);
    assert_eq!(run.security, security);
    assert!(security.read_only_root && security.groups == [7]);
    assert_eq!(restart, RestartPolicy::OnFailure { retries_max: Some(2) });
    assert_eq!(labels["k"], "v");
    assert!(!remove_on_exit);
    let sandbox = records.sandboxes.values().next().unwrap();
    let SandboxSpec { networks, ports, hostname, labels, aliases, dns } = sandbox.spec.clone();
    assert_eq!((networks.len(), ports.len(), labels.len(), hostname.as_str()), (1, 1, 1, "host-name"));
    assert_eq!(aliases, ["other"]);
    let network = records.networks.values().next().unwrap();
    let ResolverPlan { servers, search, options, host_servers, host_search } = *run.resolver.clone();
    assert_eq!(servers, [IpAddr::V4(network.gateway4), IpAddr::V6(network.gateway6)]);
    assert_eq!(
        (search.as_slice(), options),
        (&["a.example".to_string(), "b.example".into()][..], dns.options)
    );
    assert!(!host_servers && !host_search);
    assert_eq!(holdfast_core::zone::Zone::of(&records).views[0].servers, dns.servers, "the node asks them");
    assert_eq!(run.hostname, "host-name");
    assert!(run.hosts.iter().all(|(_, name)| name == "host-name") && run.hosts.len() == 2);

    let stop = container::stop(&records, "full", &StopRequest::default(), &stamp(2));
    assert_eq!(stop_of(&steps_of(stop)), (stop_signal, stop_grace_ms));
    assert_eq!((stop_signal, stop_grace_ms), (2, 1234));

    // Restart, recovery and start after a stop are made from the same record: only the number differs.
    let restart = container::restart(&records, "full", &StopRequest::default(), &stamp(3));
    let recovered = plan_bring_up(&nothing_alive(&records), &records, WALL, &none_busy());
    let mut stopped = records.clone();
    let admission = container::stop(&stopped, "full", &StopRequest::default(), &stamp(4)).unwrap();
    carry(&mut stopped, admission);
    let mut record = stopped.containers[&id].clone();
    record.state = holdfast_core::record::RunState::Exited { exit_code: Some(0), at: WALL };
    stopped.apply(Change::Container(record));
    let started = container::start(&stopped, "full", &stamp(5));
    for (name, steps) in [
        ("restart", steps_of(restart)),
        ("recovery", recovered.work[0].steps.clone()),
        ("start", steps_of(started)),
    ] {
        let plan = container_plan(&steps);
        assert_eq!(ContainerPlan { incarnation: run.incarnation, ..plan.clone() }, run, "{name}");
        assert_eq!(plan.incarnation, run.incarnation + 1, "{name}");
    }
}

#[test]
fn an_image_fills_what_the_request_leaves_out() {
    let mut records = node();
    image(&mut records);
    let resolve = |change: &dyn Fn(&mut RunRequest)| {
        let mut wanted = request("x");
        wanted.root = RootRequest::Image("tool".into());
        wanted.command.clear();
        change(&mut wanted);
        holdfast_core::ops::resolve::spec(&records, &wanted).unwrap()
    };
    assert_eq!(resolve(&|_| {}).argv, ["/entry", "default"]);
    assert_eq!(resolve(&|wanted| wanted.command = vec!["own".into()]).argv, ["/entry", "own"]);
    assert_eq!(resolve(&|wanted| wanted.entrypoint = Some(vec!["/e".into()])).argv, ["/e"]);
    assert_eq!(resolve(&|_| {}).working_dir, "/image");
    assert_eq!((resolve(&|_| {}).uid, resolve(&|_| {}).gid), (5, 6));
}

#[test]
fn bad_requests_are_refused_with_the_thing_and_the_remedy() {
    let mut records = node();
    image(&mut records);
    add_container(&mut records, &request("taken"), 1);
    add_pod(&mut records, "duo", "blue", 2);
    type Case = (&'static str, fn(&mut RunRequest), RefusalCode, &'static str);
    let cases: &[Case] = &[
        ("name in use", |it| it.name = Some("taken".into()), RefusalCode::NameInUse, "taken"),
        ("name of a pod", |it| it.name = Some("duo".into()), RefusalCode::NameInUse, "duo"),
        ("bad name", |it| it.name = Some("No Good".into()), RefusalCode::Invalid, "No Good"),
        ("bad tenant", |it| it.tenant = Some("a,b".into()), RefusalCode::Invalid, "a,b"),
        ("no image", |it| it.root = RootRequest::Image("nope".into()), RefusalCode::NotFound, "nope"),
        ("relative root", |it| it.root = RootRequest::Rootfs("root".into()), RefusalCode::Invalid, "root"),
        ("no network", |it| it.networks = vec!["nope".into()], RefusalCode::NotFound, "nope"),
        (
            "network twice",
            |it| it.networks = vec!["default".into(), "default".into()],
            RefusalCode::Invalid,
            "default",
        ),
        ("no pod", |it| it.pod = Some("nope".into()), RefusalCode::NotFound, "nope"),
        (
            "tenant against pod",
            |it| (it.pod, it.tenant) = (Some("duo".into()), Some("red".into())),
            RefusalCode::Invalid,
            "blue",
        ),
        (
            "port with pod",
            |it| (it.pod, it.ports) = (Some("duo".into()), vec![port(1)]),
            RefusalCode::Invalid,
            "pod create",
        ),
        (
            "network with pod",
            |it| (it.pod, it.networks) = (Some("duo".into()), vec!["default".into()]),
            RefusalCode::Invalid,
            "pod create",
        ),
        ("no command", |it| it.command.clear(), RefusalCode::Invalid, "/srv/root"),
        ("NUL", |it| it.command = vec!["a\0b".into()], RefusalCode::Invalid, "NUL"),
        ("bad variable", |it| it.env = vec![("A=B".into(), String::new())], RefusalCode::Invalid, "A=B"),
        (
            "relative mount",
            |it| {
                it.mounts = vec![BindMount {
                    source: "x".into(),
                    target: "/x".into(),
                    read_only: false,
                    beneath: None,
                }]
            },
            RefusalCode::Invalid,
            "\"x\"",
        ),
        ("no such signal", |it| it.stop_signal = Some(65), RefusalCode::Invalid, "65"),
        (
            "port 0 inside",
            |it| it.ports = vec![PortSpec { target_port: 0, ..port(9) }],
            RefusalCode::Invalid,
            "0",
        ),
        ("port twice", |it| it.ports = vec![port(9), port(9)], RefusalCode::Taken, "9"),
    ];
    for (what, change, code, names) in cases {
        let mut wanted = request("fresh");
        change(&mut wanted);
        let refusal = container::run(&records, &wanted, &stamp(9)).expect_err(what);
        assert_eq!(refusal.code, *code, "{what}: {refusal}");
        assert!(refusal.detail.contains(names), "{what}: {refusal}");
    }
}

#[test]
fn undo_is_the_exact_reverse_and_leaves_nothing() {
    let mut records = node();
    image(&mut records);
    let Admission::Run { operation, changes, .. } =
        container::run(&records, &full_request(), &stamp(1)).unwrap()
    else {
        panic!("already so")
    };
    let undo = undo_of(&operation.steps, operation.steps.len());
    insta::assert_snapshot!(format!("{}---\n{}", steps_text(&operation.steps), steps_text(&undo)));
    let before = records.clone();
    for change in changes.into_iter().chain(operation.on_undone.clone()) {
        records.apply(change);
    }
    assert_eq!(records.containers, before.containers);
    assert_eq!(records.sandboxes, before.sandboxes);
    // Counters go on: what was handed out once is never handed out again by accident.
    assert!(records.node.unwrap().slot_next > before.node.unwrap().slot_next);
}

#[test]
fn only_the_owner_of_a_sandbox_destroys_it() {
    let mut records = node();
    let duo = add_pod(&mut records, "duo", "blue", 1);
    for (name, seed) in [("left", 2), ("right", 3)] {
        let mut member = request(name);
        member.pod = Some("duo".into());
        add_container(&mut records, &member, seed);
    }
    let force = RemoveRequest { force: true };
    let touching = [
        ("stop", steps_of(container::stop(&records, "left", &StopRequest::default(), &stamp(4)))),
        ("restart", steps_of(container::restart(&records, "left", &StopRequest::default(), &stamp(5)))),
        ("rm", steps_of(container::remove(&records, "left", &force, &stamp(6)))),
    ];
    for (what, steps) in touching {
        let shared =
            |step: &Step| matches!(step, Step::RemoveSandbox(_) | Step::Detach(_) | Step::EnsureSandbox(_));
        assert!(!steps.iter().any(shared), "{what}: {}", steps_text(&steps));
    }
    let refusal = pod::remove(&records, "duo", &RemoveRequest::default(), &stamp(7)).unwrap_err();
    assert!(refusal.detail.contains("left, right") || refusal.detail.contains("right, left"), "{refusal}");
    let removal = steps_of(pod::remove(&records, "duo", &force, &stamp(8)));
    assert!(pod::destroys_sandbox(&removal, &duo), "{}", steps_text(&removal));
}

#[test]
fn operations_on_one_object_wait_for_each_other_and_others_do_not() {
    let mut records = node();
    add_container(&mut records, &request("one"), 1);
    add_container(&mut records, &request("two"), 2);
    let admission = container::stop(&records, "one", &StopRequest::default(), &stamp(3)).unwrap();
    let Admission::Run { operation, .. } = admission else { panic!("already so") };
    records.apply(Change::Operation((*operation).clone()));
    let of = |name: &str, seed| match container::stop(&records, name, &StopRequest::default(), &stamp(seed))
        .unwrap()
    {
        Admission::Run { operation, uses, .. } => (operation.subjects, uses),
        Admission::AlreadySo(_) => panic!("already so"),
    };
    let (subjects, uses) = of("one", 4);
    assert_eq!(blocker(&records, &subjects, &uses).map(|open| &open.id), Some(&operation.id));
    let (subjects, uses) = of("two", 5);
    assert!(blocker(&records, &subjects, &uses).is_none());
    // A member in the making keeps its pod's removal waiting.
    let mut records = node();
    add_pod(&mut records, "duo", "blue", 1);
    let mut member = request("left");
    member.pod = Some("duo".into());
    let Admission::Run { operation, changes, .. } = container::run(&records, &member, &stamp(2)).unwrap()
    else {
        panic!("already so")
    };
    for change in changes {
        records.apply(change);
    }
    records.apply(Change::Operation(*operation));
    let Admission::Run { operation, uses, .. } =
        pod::remove(&records, "duo", &RemoveRequest { force: true }, &stamp(3)).unwrap()
    else {
        panic!("already so")
    };
    assert!(blocker(&records, &operation.subjects, &uses).is_some());
}

#[test]
fn many_workloads_share_nothing() {
    let mut records = node();
    for tenant in 0..3_u8 {
        for number in 0..80_u8 {
            let mut wanted = request(&format!("w-{tenant}-{number}"));
            wanted.tenant = Some(format!("t{tenant}"));
            wanted.ports = vec![PortSpec { host_port: 0, ..port(0) }];
            let admission = container::run(&records, &wanted, &unique(tenant, number)).unwrap();
            carry(&mut records, admission);
        }
    }
    assert_eq!(records.sandboxes.len(), 240);
    assert_eq!(check_records(&records), []);
}

fn unique(a: u8, b: u8) -> holdfast_core::ops::Stamp {
    let mut stamp = stamp(a);
    for (number, byte) in (0_u8..).zip(stamp.random.iter_mut()) {
        *byte = a.wrapping_mul(97) ^ b.wrapping_mul(13).wrapping_add(number.wrapping_mul(29)) ^ (b >> 2);
    }
    stamp.random[6] = a;
    stamp.random[7] = b;
    stamp.random[0] = a;
    stamp.random[1] = b;
    stamp
}

#[test]
fn addresses_run_out_with_a_clear_error_and_come_back() {
    let mut records = node();
    let tiny = NetworkRequest {
        name: "tiny".into(),
        spec: NetworkSpec { subnet4: Some((address("10.99.0.0"), 29)), ..NetworkSpec::default() },
    };
    let admission = network::create(&records, &tiny, &stamp(1)).unwrap();
    carry(&mut records, admission);
    let on_tiny = |name: &str| RunRequest { networks: vec!["tiny".into()], ..request(name) };
    for number in 0..5_u8 {
        let admission =
            container::run(&records, &on_tiny(&format!("w{number}")), &unique(1, number)).unwrap();
        carry(&mut records, admission);
    }
    let refusal = container::run(&records, &on_tiny("late"), &unique(1, 9)).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Exhausted);
    assert!(refusal.detail.contains("tiny") && refusal.detail.contains("10.99.0.0/29"), "{refusal}");
    let admission =
        container::remove(&records, "w2", &RemoveRequest { force: true }, &unique(1, 10)).unwrap();
    carry(&mut records, admission);
    let admission = container::run(&records, &on_tiny("late"), &unique(1, 11)).unwrap();
    carry(&mut records, admission);
    assert_eq!(check_records(&records), []);
}

#[test]
fn subnets_are_honoured_or_refused() {
    let mut records = node();
    let create = |records: &Records, name: &str, subnet: Option<(&str, u8)>| {
        let spec = NetworkSpec { subnet4: subnet.map(|(a, b)| (address(a), b)), ..NetworkSpec::default() };
        network::create(records, &NetworkRequest { name: name.into(), spec }, &stamp(7))
    };
    for (subnet, code, names) in [
        (("10.89.0.0", 24), RefusalCode::Taken, "default"),
        (("10.0.0.0", 8), RefusalCode::Taken, "uplink"),
        (("10.89.0.128", 25), RefusalCode::Taken, "default"),
        (("10.50.0.1", 24), RefusalCode::Invalid, "10.50.0.0/24"),
        (("10.50.0.0", 31), RefusalCode::Invalid, "30"),
        (("127.0.0.0", 8), RefusalCode::Invalid, "127.0.0.0"),
    ] {
        let refusal = create(&records, "n", Some(subnet)).unwrap_err();
        assert_eq!(refusal.code, code, "{subnet:?}: {refusal}");
        assert!(refusal.detail.contains(names), "{subnet:?}: {refusal}");
    }
    // Two pools of 256, of which the default network has one.
    for (half, number) in (0..255).map(|number| (3, number)).chain((0..=255).map(|number| (4, number))) {
        let admission = network::create(
            &records,
            &NetworkRequest { name: format!("n{half}-{number}"), spec: NetworkSpec::default() },
            &unique(half, number),
        );
        carry(&mut records, admission.unwrap());
    }
    assert_eq!(check_records(&records), []);
    let refusal = create(&records, "more", None).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Exhausted, "{refusal}");
}

#[test]
fn a_network_in_use_stays_and_names_its_users() {
    let mut records = node();
    let create = PodRequest { name: "duo".into(), networks: vec!["lan".into()], ..PodRequest::default() };
    let lan = NetworkRequest { name: "lan".into(), spec: NetworkSpec::default() };
    let admission = network::create(&records, &lan, &stamp(1)).unwrap();
    carry(&mut records, admission);
    let admission = pod::create(&records, &create, &stamp(2)).unwrap();
    carry(&mut records, admission);
    let refusal = network::remove(&records, "lan", &stamp(3)).unwrap_err();
    assert_eq!((refusal.code, refusal.detail.contains("duo")), (RefusalCode::InUse, true), "{refusal}");
    let refusal = network::remove(&records, "default", &stamp(4)).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::InUse);
    let admission = pod::remove(&records, "duo", &RemoveRequest::default(), &stamp(5)).unwrap();
    carry(&mut records, admission);
    let admission = network::remove(&records, "lan", &stamp(6)).unwrap();
    carry(&mut records, admission);
    assert_eq!(records.networks.len(), 1);
}

#[test]
fn the_beginning_of_an_identity_counts_unless_it_is_ambiguous() {
    let mut records = node();
    for (name, number) in [("a", 1), ("b", 1)] {
        let mut stamp = unique(5, number);
        stamp.random[6..12].copy_from_slice(&[0xab, 0xcd, name.as_bytes()[0], 0, 0, 0]);
        stamp.random[0] = name.as_bytes()[0];
        let admission = container::run(&records, &request(name), &stamp).unwrap();
        carry(&mut records, admission);
    }
    let find = |wanted: &str| holdfast_core::ops::find::container(&records, wanted).map(|it| it.name.clone());
    assert_eq!(find("abcd61").unwrap(), "a");
    assert_eq!(find("b").unwrap(), "b");
    assert_eq!(find("abcd").unwrap_err().code, RefusalCode::Invalid);
    assert_eq!(find("ab").unwrap_err().code, RefusalCode::NotFound);
    assert_eq!(find("").unwrap_err().code, RefusalCode::NotFound);
}

#[test]
fn a_container_that_goes_with_its_end_is_found_when_it_has_ended_and_has_no_restart_policy() {
    let mut records = node();
    let brief = RunRequest { remove_on_exit: true, ..request("brief") };
    let looped = RunRequest { restart: RestartPolicy::Always, ..brief.clone() };
    let refusal = container::run(&records, &looped, &stamp(1)).unwrap_err();
    assert_eq!((refusal.code, refusal.detail.contains("--rm")), (RefusalCode::Invalid, true), "{refusal}");

    add_container(&mut records, &brief, 1);
    assert_eq!(container::expired(&records), []);
    let mut ended = records.containers.values().next().unwrap().clone();
    ended.state = holdfast_core::record::RunState::Exited { exit_code: Some(0), at: WALL };
    records.apply(Change::Container(ended.clone()));
    assert_eq!(container::expired(&records), [(ended.id.clone(), "brief".to_string())]);
    ended.spec.remove_on_exit = false;
    records.apply(Change::Container(ended));
    assert_eq!(container::expired(&records), []);
}

#[test]
fn each_broken_invariant_is_named() {
    let mut records = node();
    let mut wanted = request("one");
    wanted.ports = vec![port(8080)];
    add_container(&mut records, &wanted, 1);
    wanted.name = Some("two".into());
    wanted.ports = vec![port(9090)];
    add_container(&mut records, &wanted, 2);
    assert_eq!(check_records(&records), []);
    let ids: Vec<_> = records.sandboxes.keys().cloned().collect();
    let first = records.sandboxes[&ids[0]].clone();
    type Break = fn(&mut holdfast_core::record::SandboxRecord, &holdfast_core::record::SandboxRecord);
    let breaks: &[(&str, Break)] = &[
        ("one_owner_per_address", |it, other| it.attachments[0].ipv4 = other.attachments[0].ipv4),
        ("one_owner_per_slot", |it, other| it.attachments[0].slot = other.attachments[0].slot),
        ("one_owner_per_slot", |it, _| it.attachments[0].slot = slot(1_000)),
        ("one_owner_per_port", |it, other| it.ports[0].spec.host_port = other.ports[0].spec.host_port),
        ("one_owner_per_port", |it, other| it.ports[0].router_port = other.ports[0].router_port),
        ("one_owner_per_name", |it, other| it.name = other.name.clone()),
        ("addresses_lie_in_their_network", |it, _| it.attachments[0].ipv4 = address("192.168.0.9")),
        ("groups_do_not_mix", |it, _| it.tenant = holdfast_core::id::Tenant::from_raw("red")),
    ];
    for (invariant, change) in breaks {
        let mut broken = records.clone();
        let mut second = broken.sandboxes[&ids[1]].clone();
        change(&mut second, &first);
        broken.apply(Change::Sandbox(second));
        let found = check_records(&broken);
        assert!(found.iter().any(|violation| violation.invariant == *invariant), "{invariant}: {found:?}");
    }
    let mut broken = records.clone();
    broken.apply(Change::RemoveSandbox(ids[0].clone()));
    assert_eq!(check_records(&broken)[0].invariant, "members_have_a_sandbox");
    let mut network = records.networks.values().next().unwrap().clone();
    network.id = holdfast_core::id::NetworkId::from_raw("copy");
    network.name = "copy".into();
    records.apply(Change::Network(network));
    assert!(check_records(&records).iter().any(|violation| violation.invariant == "one_owner_per_subnet"));
}
