//! Networks: subnets, addresses, attachments and routes, decided over records and what the host has.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use holdfast_core::{
    alloc_address::Wanted,
    driver::may_reach,
    error::RefusalCode,
    invariant::check_records,
    observed::HostObserved,
    ops::{
        Admission, Stamp, connect, container, network, pod,
        request::{ConnectRequest, DisconnectRequest, NetworkRequest, PodRequest, RunRequest},
        route,
    },
    plan::{Step, undo_of},
    record::{Change, Records, SandboxRecord},
    ruleset::{Element, Ruleset, sandbox_elements},
    spec::{NetworkSpec, PortSpec, Protocol},
};
use std::{collections::BTreeSet, net::IpAddr};
use support::*;

/// [`carry`] with the admission first, so that it may be made from the same records.
fn done<T>(admission: Admission<T>, records: &mut Records) -> Vec<Step> {
    carry(records, admission)
}

fn create(records: &mut Records, name: &str, spec: NetworkSpec, seed: u8) -> Result<(), RefusalCode> {
    create_on(records, name, spec, &stamp(seed))
}

fn create_on(records: &mut Records, name: &str, spec: NetworkSpec, stamp: &Stamp) -> Result<(), RefusalCode> {
    let request = NetworkRequest { name: name.into(), spec };
    let admission = network::create(records, &request, stamp).map_err(|refusal| refusal.code)?;
    done(admission, records);
    assert_eq!(check_records(records), []);
    Ok(())
}

fn subnet(text: &str) -> Option<(std::net::Ipv4Addr, u8)> {
    let (address, prefix) = text.split_once('/').unwrap();
    Some((address.parse().unwrap(), prefix.parse().unwrap()))
}

fn subnet6(text: &str) -> Option<(std::net::Ipv6Addr, u8)> {
    let (address, prefix) = text.split_once('/').unwrap();
    Some((address.parse().unwrap(), prefix.parse().unwrap()))
}

fn sandbox<'a>(records: &'a Records, name: &str) -> &'a SandboxRecord {
    records.sandboxes.values().find(|sandbox| sandbox.name == name).unwrap()
}

fn run(records: &mut Records, request: &RunRequest, seed: u8) -> Result<(), RefusalCode> {
    let admission = container::run(records, request, &stamp(seed)).map_err(|refusal| refusal.code)?;
    done(admission, records);
    assert_eq!(check_records(records), []);
    Ok(())
}

#[test]
fn a_subnet_is_disjoint_from_everything_the_host_has() {
    let mut records = node();
    let host = HostObserved {
        routes: [
            ("0.0.0.0", 0),
            ("0.0.0.0", 1),
            ("128.0.0.0", 1),
            ("10.89.1.0", 24),
            ("192.168.7.0", 24),
            ("2001:db8::", 32),
            ("::", 0),
        ]
        .map(|(address, prefix)| (address.parse().unwrap(), prefix))
        .into(),
        ..HostObserved::default()
    };
    let on_host = |seed| Stamp { host: host.clone(), ..stamp(seed) };
    // 10.89.0.0/24 is the default network's, 10.89.1.0/24 the host's.
    create_on(&mut records, "free", NetworkSpec::default(), &on_host(1)).unwrap();
    assert_eq!(records.networks.values().find(|it| it.name == "free").unwrap().subnet4, address("10.89.2.0"));
    for taken in ["192.168.0.0/16", "172.17.0.0/24", "172.31.255.0/24", "10.89.0.0/16", "10.0.2.0/28"] {
        let spec = NetworkSpec { subnet4: subnet(taken), ..NetworkSpec::default() };
        assert_eq!(create_on(&mut records, "n", spec, &on_host(2)), Err(RefusalCode::Taken), "{taken}");
    }
    let spec = NetworkSpec { subnet6: subnet6("2001:db8:1::/64"), ..NetworkSpec::default() };
    assert_eq!(create_on(&mut records, "n", spec, &on_host(2)), Err(RefusalCode::Taken));
    let spec = NetworkSpec { subnet4: subnet("192.168.8.0/24"), ..NetworkSpec::default() };
    create_on(&mut records, "named", spec, &on_host(3)).unwrap();
    // A host whose own network covers the first pool gets the second.
    let wide = HostObserved { routes: [("10.0.0.0".parse().unwrap(), 8)].into(), ..HostObserved::default() };
    create_on(&mut records, "second", NetworkSpec::default(), &Stamp { host: wide, ..stamp(4) }).unwrap();
    assert_eq!(
        records.networks.values().find(|it| it.name == "second").unwrap().subnet4,
        address("172.16.0.0")
    );
}

#[test]
fn both_families_gateways_and_ranges_are_honoured_or_refused() {
    let mut records = node();
    let spec = NetworkSpec {
        subnet4: subnet("10.70.0.0/24"),
        subnet6: subnet6("fd77:1::/96"),
        gateway4: Some(address("10.70.0.254")),
        gateway6: Some("fd77:1::ff".parse().unwrap()),
        range4: subnet("10.70.0.128/30"),
        range6: subnet6("fd77:1::8000/113"),
        ..NetworkSpec::default()
    };
    for (change, what) in [
        (NetworkSpec { gateway4: Some(address("10.70.1.1")), ..spec.clone() }, "gateway outside"),
        (NetworkSpec { gateway4: Some(address("10.70.0.255")), ..spec.clone() }, "broadcast"),
        (NetworkSpec { gateway6: Some("fd77:1::".parse().unwrap()), ..spec.clone() }, "anycast"),
        (NetworkSpec { range4: subnet("10.70.1.0/28"), ..spec.clone() }, "range outside"),
        (NetworkSpec { range4: subnet("10.70.0.0/23"), ..spec.clone() }, "range wider"),
        (NetworkSpec { range4: subnet("10.70.0.129/30"), ..spec.clone() }, "host bits"),
        (NetworkSpec { subnet6: subnet6("fd77:1::1/96"), ..spec.clone() }, "host bits"),
        (NetworkSpec { subnet6: subnet6("fe80::/64"), ..spec.clone() }, "link-local"),
        (NetworkSpec { subnet6: subnet6("fd77:1::/124"), ..spec.clone() }, "prefix"),
    ] {
        assert_eq!(create(&mut records, "lan", change, 1), Err(RefusalCode::Invalid), "{what}");
    }
    create(&mut records, "lan", spec, 1).unwrap();
    let on_lan = |name: &str| RunRequest { networks: vec!["lan".into()], ..request(name) };
    // .128 to .131: the range's own ends are addresses like others, for it is no subnet.
    for (number, name) in (0_u8..).zip(["a", "b", "c", "d"]) {
        run(&mut records, &on_lan(name), 10 + number).unwrap();
        let own = &sandbox(&records, name).attachments[0];
        assert_eq!(own.ipv4, address(&format!("10.70.0.{}", 128 + number)));
        assert!(own.ipv6.to_string().starts_with("fd77:1::8"), "{}", own.ipv6);
    }
    assert_eq!(run(&mut records, &on_lan("late"), 20), Err(RefusalCode::Exhausted));
}

#[test]
fn declared_addresses_are_honoured_or_refused() {
    let mut records = node();
    let network = records.networks.values().next().unwrap().clone();
    let fixed = |ipv4: &str| Wanted { ipv4: Some(address(ipv4)), ..Wanted::default() };
    let with = |name: &str, wanted| RunRequest {
        addresses: [("default".to_string(), wanted)].into(),
        ..request(name)
    };
    let ipv6 = holdfast_core::alloc_address::address6(network.subnet6, 0x4242);
    let mac = [0x02, 0x42, 1, 2, 3, 4];
    let all = Wanted { ipv4: Some(address("10.89.0.77")), ipv6: Some(ipv6), mac: Some(mac) };
    run(&mut records, &with("fixed", all), 1).unwrap();
    let own = &sandbox(&records, "fixed").attachments[0];
    assert_eq!((own.ipv4, own.ipv6, own.mac), (address("10.89.0.77"), ipv6, mac));
    for (wanted, code) in [
        (fixed("10.89.0.77"), RefusalCode::Taken),
        (fixed("10.89.0.1"), RefusalCode::Taken),
        (fixed("10.89.0.0"), RefusalCode::Invalid),
        (fixed("10.89.0.255"), RefusalCode::Invalid),
        (fixed("10.90.0.5"), RefusalCode::Invalid),
        (Wanted { ipv6: Some(ipv6), ..Wanted::default() }, RefusalCode::Taken),
        (Wanted { ipv6: Some(network.gateway6), ..Wanted::default() }, RefusalCode::Taken),
        (Wanted { ipv6: Some("fd00::1".parse().unwrap()), ..Wanted::default() }, RefusalCode::Invalid),
        (Wanted { mac: Some(mac), ..Wanted::default() }, RefusalCode::Taken),
        (Wanted { mac: Some([1, 2, 3, 4, 5, 6]), ..Wanted::default() }, RefusalCode::Invalid),
        (Wanted { mac: Some([0; 6]), ..Wanted::default() }, RefusalCode::Invalid),
        (Wanted { mac: Some([2, 0x68, 0, 0, 0, 9]), ..Wanted::default() }, RefusalCode::Invalid),
    ] {
        assert_eq!(run(&mut records, &with("other", wanted), 2), Err(code), "{wanted:?}");
    }
    // On a network that is not asked for.
    create(&mut records, "lan", NetworkSpec::default(), 3).unwrap();
    let stray = RunRequest { addresses: [("lan".to_string(), all)].into(), ..request("stray") };
    assert_eq!(run(&mut records, &stray, 4), Err(RefusalCode::Invalid));
    // The free ones go around the declared ones: IPv6 too, where its IPv4 twin is another's.
    let low6 = holdfast_core::alloc_address::address6(network.subnet6, 2);
    run(&mut records, &with("low", Wanted { ipv6: Some(low6), ..Wanted::default() }), 5).unwrap();
    run(&mut records, &request("plain"), 6).unwrap();
}

#[test]
fn a_tenants_network_is_for_its_workloads_alone() {
    let mut records = node();
    let tenant = Some(holdfast_core::id::Tenant::from_raw("blue"));
    create(&mut records, "lan", NetworkSpec { tenant, ..NetworkSpec::default() }, 1).unwrap();
    let on_lan = |name: &str, tenant: &str| RunRequest {
        networks: vec!["lan".into()],
        tenant: Some(tenant.into()),
        ..request(name)
    };
    assert_eq!(run(&mut records, &on_lan("a", "green"), 2), Err(RefusalCode::Invalid));
    run(&mut records, &on_lan("b", "blue"), 3).unwrap();
}

#[test]
fn the_primary_interface_is_the_first_with_a_way_out() {
    let mut records = node();
    create(&mut records, "inner", NetworkSpec { internal: true, ..NetworkSpec::default() }, 1).unwrap();
    let both = RunRequest {
        networks: vec!["inner".into(), "default".into()],
        ports: vec![port(8080)],
        ..request("both")
    };
    run(&mut records, &both, 2).unwrap();
    let own = sandbox(&records, "both");
    assert_eq!(own.primary().unwrap().link_name, "eth1");
    let plans = holdfast_core::steps::attachment_plans(&records, own);
    assert_eq!(plans.iter().map(|plan| plan.default_route).collect::<Vec<_>>(), [false, true]);
    let leads_to = own.attachments[1].ipv4;
    assert!(
        sandbox_elements(&records, own)
            .iter()
            .any(|element| matches!(element, Element::Forward4(Protocol::Tcp, _, to, 80) if *to == leads_to))
    );
}

fn port(host_port: u16) -> PortSpec {
    PortSpec { host_address: address("0.0.0.0"), host_port, target_port: 80, protocol: Protocol::Tcp }
}

fn connect_to(
    records: &Records,
    network: &str,
    workload: &str,
    seed: u8,
) -> Admission<holdfast_core::id::SandboxId> {
    let request = ConnectRequest { workload: workload.into(), addresses: Wanted::default() };
    connect::connect(records, network, &request, &stamp(seed)).unwrap()
}

fn disconnect_from(
    records: &Records,
    network: &str,
    workload: &str,
    seed: u8,
) -> Result<Admission<holdfast_core::id::SandboxId>, RefusalCode> {
    let request = DisconnectRequest { workload: workload.into() };
    connect::disconnect(records, network, &request, &stamp(seed)).map_err(|refusal| refusal.code)
}

#[test]
fn connect_and_disconnect_change_what_they_say_and_nothing_else() {
    let mut records = node();
    create(&mut records, "lan", NetworkSpec::default(), 1).unwrap();
    let web = RunRequest { ports: vec![port(8080)], ..request("web") };
    run(&mut records, &web, 2).unwrap();
    let before = sandbox(&records, "web").clone();
    let admission = connect_to(&records, "lan", "web", 3);
    let Admission::Run { operation, .. } = &admission else { panic!("it is not so yet") };
    let undo = undo_of(&operation.steps, operation.steps.len());
    assert!(
        undo.iter().all(|step| !matches!(step, Step::Detach(slot) if *slot == before.attachments[0].slot))
    );
    assert_eq!(operation.on_undone, [Change::Sandbox(before.clone())]);
    let text = steps_text(&done(admission, &mut records));
    assert!(text.contains("add 7 elements") || text.contains("add 8 elements"), "{text}");
    assert!(text.contains("eth1") && !text.contains("eth0"), "{text}");
    assert_eq!(check_records(&records), []);
    let web = sandbox(&records, "web");
    assert_eq!(web.primary().unwrap().slot, before.attachments[0].slot, "the default routes stay");
    assert!(matches!(connect_to(&records, "lan", "web", 4), Admission::AlreadySo(_)));
    // Disconnecting the primary one moves ports and default routes.
    let second = web.attachments[1].clone();
    let steps = done(disconnect_from(&records, "default", "web", 5).unwrap(), &mut records);
    let text = steps_text(&steps);
    let moved = steps.iter().position(|step| matches!(step, Step::AddElements(_)));
    let detach = steps.iter().position(|step| matches!(step, Step::Detach(_)));
    let silence = steps.iter().position(|step| matches!(step, Step::RemoveElements(_)));
    assert!(moved < detach && detach < silence && moved.is_some(), "{text}");
    let id = sandbox(&records, "web").id.clone();
    let reroute = done(connect::reroute(&records, &id, &stamp(8)).unwrap(), &mut records);
    assert!(
        matches!(reroute.as_slice(), [Step::Attach(plan)] if plan.default_route && plan.slot == second.slot)
    );
    let web = sandbox(&records, "web");
    assert_eq!(web.attachments.len(), 1);
    assert_eq!(web.primary().unwrap().slot, second.slot);
    assert_eq!(web.spec.networks, std::slice::from_ref(&second.network));
    let moved = sandbox_elements(&records, web);
    assert!(moved.iter().any(|it| matches!(it, Element::Forward4(_, _, to, 80) if *to == second.ipv4)));
    assert_eq!(disconnect_from(&records, "lan", "web", 6).unwrap_err(), RefusalCode::WrongState);
    // The lowest free name is taken again.
    done(connect_to(&records, "default", "web", 7), &mut records);
    assert_eq!(sandbox(&records, "web").attachments[1].link_name, "eth0");
    assert_eq!(check_records(&records), []);
}

#[test]
fn a_pods_member_is_told_to_name_the_pod_and_a_stopped_workload_has_no_steps() {
    let mut records = node();
    create(&mut records, "lan", NetworkSpec::default(), 1).unwrap();
    add_pod(&mut records, "duo", "blue", 2);
    run(&mut records, &RunRequest { pod: Some("duo".into()), ..request("left") }, 3).unwrap();
    let wanted = ConnectRequest { workload: "left".into(), addresses: Wanted::default() };
    let refusal = connect::connect(&records, "lan", &wanted, &stamp(4)).unwrap_err();
    assert!(refusal.code == RefusalCode::Invalid && refusal.detail.contains("duo"), "{refusal}");
    done(connect_to(&records, "lan", "duo", 5), &mut records);
    assert_eq!(sandbox(&records, "duo").attachments.len(), 2);
    run(&mut records, &request("idle"), 6).unwrap();
    let id = records.containers.values().find(|it| it.name == "idle").unwrap().id.clone();
    let mut idle = records.containers[&id].clone();
    idle.desired = holdfast_core::record::Desired::Stopped;
    records.apply(Change::Container(idle));
    assert_eq!(done(connect_to(&records, "lan", "idle", 7), &mut records), []);
    assert_eq!(done(disconnect_from(&records, "default", "idle", 8).unwrap(), &mut records), []);
    assert_eq!(sandbox(&records, "idle").attachments.len(), 1);
}

#[test]
fn an_address_is_taken_until_its_disconnect_is_done() {
    let mut records = node();
    create(&mut records, "lan", NetworkSpec::default(), 1).unwrap();
    run(&mut records, &request("web"), 2).unwrap();
    done(connect_to(&records, "lan", "web", 3), &mut records);
    let own = sandbox(&records, "web").attachments[0].clone();
    let Admission::Run { operation, changes, .. } = disconnect_from(&records, "default", "web", 4).unwrap()
    else {
        panic!("it is connected")
    };
    let mut during = records.clone();
    changes.into_iter().for_each(|change| during.apply(change));
    during.apply(Change::Operation((*operation).clone()));
    // A repair of the rules in between speaks for what stays, and not for what goes.
    let desired = Ruleset::desired(&during).elements;
    assert!(!desired.iter().any(|it| matches!(it, Element::Group4(address, _) if *address == own.ipv4)));
    assert!(desired.iter().any(|it| matches!(it, Element::Group4(..))));
    let wanted = Wanted { ipv4: Some(own.ipv4), ..Wanted::default() };
    let thief = RunRequest { addresses: [("default".to_string(), wanted)].into(), ..request("thief") };
    let refusal = container::run(&during, &thief, &stamp(5)).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Taken);
}

#[test]
fn routed_networks_reach_one_another_tenant_by_tenant() {
    let mut records = node();
    for (name, seed) in [("a", 1), ("b", 2), ("c", 3)] {
        create(&mut records, name, NetworkSpec::default(), seed).unwrap();
    }
    create(&mut records, "lone", NetworkSpec { isolate: true, ..NetworkSpec::default() }, 4).unwrap();
    let on = |name: &str, network: &str, tenant: &str| RunRequest {
        networks: vec![network.into()],
        tenant: Some(tenant.into()),
        ..request(name)
    };
    run(&mut records, &on("a1", "a", "blue"), 10).unwrap();
    done(route::add(&records, "a", "b", &stamp(20)).unwrap(), &mut records);
    assert_eq!(check_records(&records), []);
    run(&mut records, &on("b1", "b", "blue"), 11).unwrap();
    run(&mut records, &on("b2", "b", "green"), 12).unwrap();
    done(route::add(&records, "b", "c", &stamp(21)).unwrap(), &mut records);
    assert_eq!(check_records(&records), []);
    run(&mut records, &on("c1", "c", "blue"), 13).unwrap();
    let reach = |records: &Records, from: &str, to: &str| {
        let address = IpAddr::V4(sandbox(records, to).attachments[0].ipv4);
        let told = may_reach(records, sandbox(records, from), address);
        let elements = Ruleset::desired(records).elements;
        let source = sandbox(records, from).attachments[0].ipv4;
        let by_rules = elements.iter().any(|it| matches!(it, Element::Group4(of, group)
            if *of == source && elements.contains(&Element::Member4(*group, sandbox(records, to).attachments[0].ipv4))));
        assert_eq!(told, by_rules, "{from} to {to}");
        told
    };
    for (from, to, may) in [
        ("a1", "b1", true),
        ("b1", "a1", true),
        ("a1", "b2", false),
        ("b2", "a1", false),
        ("b1", "c1", true),
        // Routes are not handed on.
        ("a1", "c1", false),
    ] {
        assert_eq!(reach(&records, from, to), may, "{from} to {to}");
    }
    let refusal = network::remove(&records, "a", &stamp(30)).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::InUse);
    assert_eq!(route::add(&records, "a", "lone", &stamp(31)).unwrap_err().code, RefusalCode::Invalid);
    assert!(matches!(route::add(&records, "b", "a", &stamp(32)), Ok(Admission::AlreadySo(()))));
    let before = Ruleset::desired(&records).elements;
    let steps = done(route::remove(&records, "b", "a", &stamp(33)).unwrap(), &mut records);
    let gone: BTreeSet<Element> = before.difference(&Ruleset::desired(&records).elements).copied().collect();
    assert_eq!(steps, [Step::RemoveElements(gone)]);
    assert!(!reach(&records, "a1", "b1") && reach(&records, "b1", "c1"));
    assert_eq!(route::remove(&records, "b", "a", &stamp(34)).unwrap_err().code, RefusalCode::NotFound);
}

#[test]
fn prune_takes_what_nobody_uses() {
    let mut records = node();
    for (name, seed) in [("used", 1), ("idle", 2), ("one", 3), ("other", 4)] {
        create(&mut records, name, NetworkSpec::default(), seed).unwrap();
    }
    let pod = PodRequest { name: "p".into(), networks: vec!["used".into()], ..PodRequest::default() };
    done(pod::create(&records, &pod, &stamp(5)).unwrap(), &mut records);
    done(route::add(&records, "one", "other", &stamp(6)).unwrap(), &mut records);
    let names: Vec<&str> =
        network::unused(&records).iter().map(|id| records.networks[id].name.as_str()).collect();
    assert_eq!(names, ["idle"]);
}

#[test]
fn ports_keep_clear_of_what_the_host_has_bound_and_of_privileged_ones() {
    let mut records = node();
    let host = HostObserved {
        bound: (32_768..60_768)
            .map(|port| (Protocol::Tcp, port))
            .filter(|(_, port)| *port != 40_000)
            .collect(),
        unprivileged_port_first: 1024,
        ..HostObserved::default()
    };
    let stamp = |seed| Stamp { host: host.clone(), ..stamp(seed) };
    let low = RunRequest { ports: vec![port(80)], ..request("low") };
    let refusal = container::run(&records, &low, &stamp(1)).unwrap_err();
    assert!(refusal.detail.contains("ip_unprivileged_port_start=80"), "{refusal}");
    // Every TCP port it could draw is another's: UDP is not.
    let udp = RunRequest { ports: vec![PortSpec { protocol: Protocol::Udp, ..port(0) }], ..request("udp") };
    done(container::run(&records, &udp, &stamp(2)).unwrap(), &mut records);
    assert_ne!(sandbox(&records, "udp").ports[0].spec.host_port, 0);
    // One port on two addresses is two ports.
    let on = |name: &str, host_address: &str| RunRequest {
        ports: vec![PortSpec { host_address: address(host_address), ..port(8080) }],
        ..request(name)
    };
    done(container::run(&records, &on("one", "127.0.0.1"), &stamp(3)).unwrap(), &mut records);
    done(container::run(&records, &on("two", "127.0.0.2"), &stamp(4)).unwrap(), &mut records);
    let refusal = container::run(&records, &on("all", "0.0.0.0"), &stamp(5)).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Taken);
    assert_eq!(check_records(&records), []);
}
