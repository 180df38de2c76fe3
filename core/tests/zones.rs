//! Names: who is called what, and that nobody is told a name that they cannot reach, or kept from one that they can.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use holdfast_core::{
    ops::{
        Admission, container, network, pod, policy,
        request::{NetworkRequest, PodRequest, PolicyRequest, RemoveRequest, RunRequest, StopRequest},
        route,
    },
    policy::{Flow, PolicyAction, PolicyProtocol, PortMatch, decide},
    record::{Records, RunState},
    spec::NetworkSpec,
    zone::{Found, Index, Zone},
};
use std::net::IpAddr;
use support::*;

fn done<T>(admission: Admission<T>, records: &mut Records) {
    carry(records, admission);
}

fn lan(records: &mut Records, name: &str, spec: NetworkSpec, seed: u8) {
    let request = NetworkRequest { name: name.into(), spec };
    carry(records, network::create(records, &request, &stamp(seed)).unwrap());
}

fn add(records: &mut Records, name: &str, tenant: &str, on: &[&str], seed: u8) {
    let request = RunRequest {
        tenant: Some(tenant.into()),
        networks: on.iter().map(|name| name.to_string()).collect(),
        labels: [("app".to_string(), name.to_string())].into(),
        ..request(name)
    };
    add_container(records, &request, seed);
}

/// `web`, `db` of blue and `other` of green on `default`; `far` of blue on `lan`; `both` of blue on both; `in` of blue
/// on `closed`, which has no way out.
fn town() -> Records {
    let mut records = node();
    lan(&mut records, "lan", NetworkSpec::default(), 1);
    lan(&mut records, "closed", NetworkSpec { internal: true, ..NetworkSpec::default() }, 2);
    for (seed, (name, tenant, on)) in [
        ("web", "blue", &["default"][..]),
        ("db", "blue", &["default"]),
        ("other", "green", &["default"]),
        ("far", "blue", &["lan"]),
        ("both", "blue", &["lan", "default"]),
        ("in", "blue", &["closed"]),
    ]
    .into_iter()
    .enumerate()
    {
        add(&mut records, name, tenant, on, 10 + seed as u8);
    }
    records
}

fn addresses(records: &Records, name: &str) -> Vec<IpAddr> {
    let sandbox = records.sandboxes.values().find(|it| it.name == name).unwrap();
    sandbox.attachments.iter().flat_map(|own| [IpAddr::V4(own.ipv4), IpAddr::V6(own.ipv6)]).collect()
}

/// What `asker` is told of a name, asking from its first address.
fn told(records: &Records, asker: &str, name: &str) -> Found {
    let index = Index::new(Zone::of(records));
    let view = index.view(addresses(records, asker)[0]).expect("it may ask").clone();
    index.look_up(&view, name)
}

/// Every name is told to exactly those who can reach an address of it by anything at all.
#[track_caller]
fn agrees(records: &Records) {
    let index = Index::new(Zone::of(records));
    let flows: Vec<Flow> = [(6, 1), (6, 80), (6, 443), (17, 53), (17, 80), (1, 0), (58, 0), (255, 0)]
        .into_iter()
        .map(|(protocol, port)| Flow { protocol, port })
        .collect();
    for one in records.sandboxes.values() {
        let own = addresses(records, &one.name);
        let view = index.view(own[0]).unwrap().clone();
        for other in records.sandboxes.values().filter(|other| other.id != one.id) {
            let reached: Vec<IpAddr> = addresses(records, &other.name)
                .into_iter()
                .filter(|to| {
                    own.iter()
                        .filter(|from| from.is_ipv4() == to.is_ipv4())
                        .any(|from| flows.iter().any(|flow| decide(records, *from, *to, *flow).allowed))
                })
                .collect();
            let mut told = match index.look_up(&view, &other.name) {
                Found::Addresses(addresses) => addresses,
                Found::Nothing => vec![],
                found => panic!("{found:?}"),
            };
            told.sort();
            let mut reached = reached;
            reached.sort();
            assert_eq!(told, reached, "{} asks for {}", one.name, other.name);
        }
    }
}

#[test]
fn names_are_told_to_whoever_can_reach_them() {
    let mut records = town();
    agrees(&records);
    assert_eq!(told(&records, "web", "db"), Found::Addresses(addresses(&records, "db")));
    assert_eq!(told(&records, "web", "other"), Found::Nothing, "another tenant's");
    assert_eq!(told(&records, "web", "far"), Found::Nothing, "on another network");
    let both = addresses(&records, "both");
    assert_eq!(
        told(&records, "far", "both"),
        Found::Addresses(both[..2].to_vec()),
        "only what is on its network"
    );
    assert_eq!(told(&records, "both", "far"), Found::Addresses(addresses(&records, "far")));
    done(route::add(&records, "default", "lan", &stamp(3)).unwrap(), &mut records);
    agrees(&records);
    assert_eq!(told(&records, "web", "far"), Found::Addresses(addresses(&records, "far")), "routed");
    assert_eq!(
        told(&records, "web", "both"),
        Found::Addresses([&both[2..], &both[..2]].concat()),
        "near ones first"
    );
}

#[test]
fn names_follow_policies() {
    let tcp = |port| PortMatch { protocol: Some(PolicyProtocol::Tcp), ports: Some((port, port)) };
    type Rule<'a> = (&'a str, PolicyAction, &'a [&'a str], &'a [&'a str], Vec<PortMatch>);
    let rules: [Rule<'_>; 6] = [
        ("a", PolicyAction::Deny, &["web"], &["db"], vec![]),
        ("b", PolicyAction::Deny, &["db"], &["web"], vec![tcp(80)]),
        ("c", PolicyAction::Allow, &["other"], &["web"], vec![tcp(443)]),
        ("d", PolicyAction::CloseIngress, &[], &["both"], vec![]),
        ("e", PolicyAction::Allow, &["web"], &["both"], vec![tcp(80)]),
        ("f", PolicyAction::CloseEgress, &["far"], &[], vec![]),
    ];
    let mut records = town();
    for (seed, (name, action, from, to, ports)) in rules.into_iter().enumerate() {
        let all = |ends: &[&str]| ends.iter().map(|end| format!("workload:{end}")).collect();
        let request = PolicyRequest { name: Some(name.into()), action, from: all(from), to: all(to), ports };
        let admitted = policy::create(&records, &request, &stamp(30 + seed as u8)).unwrap();
        carry(&mut records, admitted);
        agrees(&records);
    }
    assert_eq!(told(&records, "web", "db"), Found::Nothing);
    assert!(matches!(told(&records, "db", "web"), Found::Addresses(_)), "one port is closed, others are not");
    assert!(matches!(told(&records, "other", "web"), Found::Addresses(_)), "another tenant's, by a rule");
    assert_eq!(told(&records, "web", "other"), Found::Nothing, "the way back is none");
    assert_eq!(told(&records, "db", "both"), Found::Nothing);
    // What may not ask outside by itself is not told either.
    let zone = Zone::of(&records);
    let forwards = |name: &str| zone.views[zone.askers[&addresses(&records, name)[0]] as usize].forwards;
    assert_eq!(["web", "far", "in", "both"].map(forwards), [true, false, false, true]);
}

#[test]
fn forms_of_names() {
    let records = town();
    let db = Found::Addresses(addresses(&records, "db"));
    for name in ["db", "DB", "db.default", "db.holdfast.internal", "db.default.holdfast.internal"] {
        assert_eq!(told(&records, "web", name), db, "{name}");
    }
    for (name, found) in [
        ("holdfast.internal", Found::Empty),
        ("default.holdfast.internal", Found::Empty),
        ("lan.holdfast.internal", Found::Nothing),
        ("db.lan.holdfast.internal", Found::Nothing),
        ("x.db.default.holdfast.internal", Found::Nothing),
        ("nobody", Found::Nothing),
        ("nobody.default", Found::ForeignFirst),
        ("db.lan", Found::Foreign),
        ("example.org", Found::Foreign),
        ("xholdfast.internal", Found::Foreign),
        ("internal", Found::Nothing),
        ("", Found::Nothing),
        ("1.1.1.1.in-addr.arpa", Found::Foreign),
    ] {
        assert_eq!(told(&records, "web", name), found, "{name}");
    }
    let reverse = |name: &str| {
        let IpAddr::V4(address) = addresses(&records, name)[0] else { panic!() };
        let [a, b, c, d] = address.octets();
        format!("{d}.{c}.{b}.{a}.in-addr.arpa")
    };
    assert_eq!(told(&records, "web", &reverse("db")), Found::Name("db.default.holdfast.internal".into()));
    assert_eq!(told(&records, "web", &reverse("other")), Found::Nothing);
}

#[test]
fn only_who_lives_has_a_name() {
    let mut records = node();
    let pod_id = add_pod(&mut records, "duo", "default", 1);
    let web = RunRequest { aliases: vec!["www".into()], ..request("web") };
    let id = add_container(&mut records, &web, 2);
    for name in ["web", "www", "duo"] {
        assert!(matches!(told(&records, "duo", name), Found::Addresses(_)), "{name}");
    }
    // It waits for its next start, at the same address.
    let mut waiting = records.containers[&id].clone();
    waiting.state =
        RunState::Waiting { exit_code: Some(1), not_before: holdfast_core::time::Mono(0), boot_id: boot() };
    records.apply(holdfast_core::record::Change::Container(waiting));
    assert!(matches!(told(&records, "duo", "web"), Found::Addresses(_)));
    done(container::stop(&records, "web", &StopRequest::default(), &stamp(3)).unwrap(), &mut records);
    for name in ["web", "www"] {
        assert_eq!(told(&records, "duo", name), Found::Nothing, "{name}");
    }
    let member = RunRequest { pod: Some("duo".into()), ..request("left") };
    add_container(&mut records, &member, 4);
    let pod = records.sandboxes[&pod_id].clone();
    let own = addresses(&records, "duo");
    assert_eq!(told(&records, "duo", "left"), Found::Addresses(own.clone()));
    done(container::stop(&records, "left", &StopRequest::default(), &stamp(5)).unwrap(), &mut records);
    assert_eq!(told(&records, "duo", "duo"), Found::Nothing, "nobody in it answers");
    assert!(Zone::of(&records).askers.contains_key(&own[0]), "{}", pod.name);
    done(pod::remove(&records, "duo", &RemoveRequest { force: true }, &stamp(6)).unwrap(), &mut records);
    let zone = Zone::of(&records);
    assert!(zone.hosts.is_empty() && !zone.askers.contains_key(&own[0]));
}

#[test]
fn what_is_asked_for_of_names_is_checked() {
    let records = node();
    let refused = |change: fn(&mut RunRequest)| {
        let mut wanted = request("web");
        change(&mut wanted);
        container::run(&records, &wanted, &stamp(1)).unwrap_err().detail
    };
    for (change, part) in [
        ((|it| it.aliases = vec!["a b".into()]) as fn(&mut RunRequest), "alias"),
        (|it| it.aliases = vec!["a".into(); 33], "aliases"),
        (|it| it.dns.servers = vec!["127.0.0.1".parse().unwrap()], "127.0.0.1"),
        (|it| it.dns.servers = vec!["1.1.1.1".parse().unwrap(); 4], "4 name servers"),
        (|it| it.dns.search = Some(vec!["a..b".into()]), "a..b"),
        (|it| it.dns.search_also = vec!["a b".into()], "a b"),
        (|it| it.dns.search = Some(vec!["a".into(); 33]), "32"),
        (|it| it.dns.options = vec!["a\nnameserver 6.6.6.6".into()], "option"),
        (|it| it.dns.service = holdfast_core::spec::NameService::Own, "at least one"),
    ] {
        let detail = refused(change);
        assert!(detail.contains(part), "{detail}");
    }
    let mut records = records;
    let pod = PodRequest { name: "duo".into(), aliases: vec!["two".into()], ..PodRequest::default() };
    done(pod::create(&records, &pod, &stamp(2)).unwrap(), &mut records);
    for change in [(|it| it.aliases = vec!["a".into()]) as fn(&mut RunRequest), |it| {
        it.dns.options = vec!["rotate".into()]
    }] {
        let mut member = RunRequest { pod: Some("duo".into()), ..request("left") };
        change(&mut member);
        let detail = container::run(&records, &member, &stamp(3)).unwrap_err().detail;
        assert!(detail.contains("belongs to the pod"), "{detail}");
    }
}
