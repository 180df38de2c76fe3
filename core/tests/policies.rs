//! Policies: what a rule comes to, for one flow and as elements; what is refused.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use holdfast_core::{
    error::RefusalCode,
    invariant::check_records,
    ops::{
        Admission, container, network, policy,
        request::{NetworkRequest, PolicyRequest, PolicyTarget, RunRequest},
    },
    plan::Step,
    policy::{Flow, PolicyAction, PolicyProtocol, PortMatch, Reason, by_elements, decide, element_rules},
    record::Records,
    ruleset::{Element, Ruleset},
    spec::NetworkSpec,
};
use std::{collections::BTreeSet, net::IpAddr};
use support::*;

fn done<T>(admission: Admission<T>, records: &mut Records) -> Vec<Step> {
    carry(records, admission)
}

/// Two tenants, two networks: web and db of blue, other of green, far of blue on another network.
fn town() -> Records {
    let mut records = node();
    let lan = NetworkRequest { name: "lan".into(), spec: NetworkSpec::default() };
    done(network::create(&records, &lan, &stamp(1)).unwrap(), &mut records);
    for (number, (name, tenant, on, app)) in [
        ("web", "blue", "default", "web"),
        ("db", "blue", "default", "db"),
        ("other", "green", "default", "web"),
        ("far", "blue", "lan", "far"),
    ]
    .into_iter()
    .enumerate()
    {
        run(&mut records, name, tenant, on, app, 10 + number as u8);
    }
    records
}

fn run(records: &mut Records, name: &str, tenant: &str, on: &str, app: &str, seed: u8) -> Vec<Step> {
    let request = RunRequest {
        tenant: Some(tenant.into()),
        networks: vec![on.into()],
        labels: [("app".to_string(), app.to_string())].into(),
        ..request(name)
    };
    let steps = done(container::run(records, &request, &stamp(seed)).unwrap(), records);
    assert_eq!(check_records(records), []);
    steps
}

fn rule(action: PolicyAction, from: &[&str], to: &[&str]) -> PolicyRequest {
    let all = |ends: &[&str]| ends.iter().map(|end| end.to_string()).collect();
    PolicyRequest { name: None, action, from: all(from), to: all(to), ports: vec![] }
}

fn tcp(first: u16, last: u16) -> PortMatch {
    PortMatch { protocol: Some(PolicyProtocol::Tcp), ports: Some((first, last)) }
}

fn add(records: &mut Records, name: &str, request: PolicyRequest, seed: u8) {
    let request = PolicyRequest { name: Some(name.into()), ..request };
    done(policy::create(records, &request, &stamp(seed)).unwrap(), records);
    agree(records);
}

fn addresses(records: &Records, name: &str) -> [IpAddr; 2] {
    let own = &records.sandboxes.values().find(|it| it.name == name).unwrap().attachments[0];
    [own.ipv4.into(), own.ipv6.into()]
}

fn outside() -> [IpAddr; 4] {
    ["1.1.1.1", "8.8.8.8", "2001:db8::1", "10.0.2.2"].map(|it| it.parse().unwrap())
}

const FLOWS: [Flow; 8] = [
    Flow { protocol: 6, port: 80 },
    Flow { protocol: 6, port: 81 },
    Flow { protocol: 6, port: 5432 },
    Flow { protocol: 6, port: 65_535 },
    Flow { protocol: 17, port: 80 },
    Flow { protocol: 17, port: 53 },
    Flow { protocol: 1, port: 0 },
    Flow { protocol: 132, port: 80 },
];

/// What is decided for a flow is what the elements do to it, for every pair and flow.
fn agree(records: &Records) {
    let elements = Ruleset::desired(records).elements;
    let names: Vec<&str> = records.sandboxes.values().map(|it| it.name.as_str()).collect();
    let mut ends: Vec<IpAddr> = names.iter().flat_map(|name| addresses(records, name)).collect();
    ends.extend(outside());
    for from in &ends {
        for to in ends.iter().filter(|to| *to != from && to.is_ipv4() == from.is_ipv4()) {
            for flow in FLOWS {
                let flow =
                    if from.is_ipv6() && flow.protocol == 1 { Flow { protocol: 58, ..flow } } else { flow };
                let decision = decide(records, *from, *to, flow);
                let by_rule = matches!(decision.reason, Reason::Rule(_) | Reason::Default(_));
                let by_elements = by_elements(&elements, *from, *to, flow);
                assert_eq!(
                    by_elements,
                    by_rule.then_some(decision.allowed),
                    "{from} to {to} {flow:?}: {decision:?}"
                );
            }
        }
    }
    // No two verdicts speak of one flow: the kernel refuses overlapping ones.
    let verdicts: Vec<_> = elements
        .iter()
        .filter_map(|it| match it {
            Element::Verdict(key, _) => Some(key),
            _ => None,
        })
        .collect();
    for (number, one) in verdicts.iter().enumerate() {
        assert!(verdicts[number + 1..].iter().all(|other| !one.overlaps(other)), "{one:?}");
    }
    assert_eq!(
        elements.iter().filter(|it| matches!(it, Element::Verdict(..))).count(),
        element_rules(records).len(),
        "every verdict has its rule"
    );
}

fn reach(records: &Records, from: &str, to: &str, protocol: u8, port: u16) -> bool {
    let flow = Flow { protocol, port };
    let four = decide(records, addresses(records, from)[0], addresses(records, to)[0], flow).allowed;
    let six = decide(records, addresses(records, from)[1], addresses(records, to)[1], flow).allowed;
    assert_eq!(four, six, "{from} to {to}: families differ");
    four
}

#[test]
fn rules_open_and_close_what_they_name_and_nothing_else() {
    let mut records = town();
    agree(&records);
    assert!(!Ruleset::desired(&records).elements.iter().any(|it| matches!(it, Element::Class4(..))));
    assert!(reach(&records, "web", "db", 6, 80) && !reach(&records, "other", "db", 6, 80));
    // Across tenants, one port.
    let opened = PolicyRequest {
        ports: vec![tcp(80, 80)],
        ..rule(PolicyAction::Allow, &["other"], &["label:app=db"])
    };
    add(&mut records, "open", opened, 20);
    assert!(reach(&records, "other", "db", 6, 80) && !reach(&records, "other", "db", 6, 81));
    assert!(!reach(&records, "db", "other", 6, 80), "an answer is no question");
    assert!(!reach(&records, "other", "web", 6, 80) && reach(&records, "web", "db", 6, 81));
    // A deny beats it, for a range.
    let closed =
        PolicyRequest { ports: vec![tcp(70, 90)], ..rule(PolicyAction::Deny, &["any"], &["workload:db"]) };
    add(&mut records, "shut", closed, 21);
    assert!(!reach(&records, "other", "db", 6, 80) && !reach(&records, "web", "db", 6, 80));
    assert!(reach(&records, "web", "db", 6, 91));
    let why = decide(&records, addresses(&records, "web")[0], addresses(&records, "db")[0], FLOWS[0]);
    assert_eq!(why.reason, Reason::Rule("shut".into()));
    // Removing a rule removes that rule only.
    done(policy::remove(&records, &PolicyTarget { name: "shut".into() }, &stamp(22)).unwrap(), &mut records);
    agree(&records);
    assert!(reach(&records, "other", "db", 6, 80) && reach(&records, "web", "db", 6, 80));
    // A default, and what it lets in.
    add(&mut records, "quiet", rule(PolicyAction::CloseIngress, &[], &["label:app=db"]), 23);
    assert!(reach(&records, "other", "db", 6, 80), "what an allow lets in stays");
    assert!(!reach(&records, "web", "db", 6, 80) && reach(&records, "db", "web", 6, 80));
    let why = decide(&records, addresses(&records, "web")[0], addresses(&records, "db")[0], FLOWS[0]);
    assert_eq!(why.reason, Reason::Default("quiet".into()));
    // The way out, by CIDR; and a workload that comes later is under the rules at once.
    add(&mut records, "fenced", rule(PolicyAction::Deny, &["namespace:blue"], &["cidr:8.0.0.0/8"]), 24);
    let out = |records: &Records, name: &str, to: &str| {
        decide(records, addresses(records, name)[0], to.parse().unwrap(), FLOWS[0]).allowed
    };
    assert!(
        !out(&records, "web", "8.8.8.8")
            && out(&records, "web", "1.1.1.1")
            && out(&records, "other", "8.8.8.8")
    );
    let steps = run(&mut records, "late", "blue", "default", "late", 30);
    agree(&records);
    assert!(!out(&records, "late", "8.8.8.8"));
    let ensured = steps.iter().position(|step| matches!(step, Step::EnsureElements(_)));
    let added = steps.iter().position(|step| matches!(step, Step::AddElements(_)));
    assert!(ensured < added && ensured.is_some(), "verdicts before the address is in its class");
    for name in ["open", "quiet", "fenced"] {
        done(
            policy::remove(&records, &PolicyTarget { name: name.into() }, &stamp(40)).unwrap(),
            &mut records,
        );
        agree(&records);
    }
    assert!(
        !Ruleset::desired(&records)
            .elements
            .iter()
            .any(|it| matches!(it, Element::Class4(..) | Element::Verdict(..)))
    );
    assert_eq!(records.node.as_ref().unwrap().policy_classes, BTreeSet::new());
}

#[test]
fn a_workload_adds_its_classes_alone_where_its_class_is_known() {
    let mut records = town();
    add(&mut records, "open", rule(PolicyAction::Allow, &["label:app=web"], &["label:app=db"]), 20);
    run(&mut records, "web2", "blue", "default", "web", 30);
    let before = Ruleset::desired(&records).elements;
    run(&mut records, "web3", "blue", "default", "web", 31);
    let after = Ruleset::desired(&records).elements;
    let added: Vec<&Element> = after.difference(&before).collect();
    assert!(added.iter().all(|it| !matches!(it, Element::Verdict(..) | Element::Outside4(..))), "{added:?}");
    assert_eq!(added.iter().filter(|it| matches!(it, Element::Class4(..) | Element::Class6(..))).count(), 2);
}

#[test]
fn names_that_mean_two_things_are_refused() {
    let mut records = town();
    run(&mut records, "lan", "lan", "default", "x", 30);
    for (end, code, word) in [
        ("lan", RefusalCode::Invalid, "network:lan or namespace:lan or workload:lan"),
        ("blue", RefusalCode::Invalid, "namespace:blue"),
        ("nobody", RefusalCode::NotFound, "nobody"),
        ("network:nobody", RefusalCode::NotFound, "nobody"),
        ("cidr:10.0.0.0/33", RefusalCode::Invalid, "10.0.0.0/33"),
    ] {
        let refusal =
            policy::create(&records, &rule(PolicyAction::Deny, &[end], &[]), &stamp(31)).unwrap_err();
        assert_eq!(refusal.code, code, "{end}: {refusal}");
        assert!(refusal.detail.contains(word), "{end}: {refusal}");
    }
    let ports = PolicyRequest {
        ports: vec![PortMatch { protocol: None, ports: Some((80, 80)) }],
        ..rule(PolicyAction::Deny, &[], &["web"])
    };
    assert_eq!(policy::create(&records, &ports, &stamp(32)).unwrap_err().code, RefusalCode::Invalid);
    add(&mut records, "twice", rule(PolicyAction::Deny, &[], &["web"]), 33);
    let again = PolicyRequest { name: Some("twice".into()), ..rule(PolicyAction::Deny, &[], &["web"]) };
    assert_eq!(policy::create(&records, &again, &stamp(34)).unwrap_err().code, RefusalCode::NameInUse);
}

fn document(spec: serde_json::Value) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": { "name": "db", "namespace": "blue" },
        "spec": spec,
    })
}

#[test]
fn a_network_policy_document_says_what_it_says_in_kubernetes() {
    let mut records = town();
    let spec = serde_json::json!({
        "podSelector": { "matchLabels": { "app": "db" } },
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{
            "from": [
                { "podSelector": { "matchExpressions": [{ "key": "app", "operator": "In", "values": ["far", "x"] }] } },
                { "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "green" } },
                  "podSelector": { "matchLabels": { "app": "web" } } },
            ],
            "ports": [{ "protocol": "TCP", "port": 5432 }, { "port": 80, "endPort": 81 }],
        }],
        "egress": [{ "to": [{ "ipBlock": { "cidr": "0.0.0.0/0", "except": ["8.0.0.0/8"] } }] }],
    });
    done(policy::apply(&records, &document(spec.clone()), &stamp(20)).unwrap(), &mut records);
    agree(&records);
    assert!(reach(&records, "other", "db", 6, 5432) && reach(&records, "other", "db", 6, 81));
    assert!(!reach(&records, "other", "db", 6, 82) && !reach(&records, "other", "db", 17, 80));
    assert!(!reach(&records, "web", "db", 6, 80), "not among its peers");
    assert!(
        reach(&records, "web", "far", 6, 80) == reach(&town(), "web", "far", 6, 80),
        "others are as they were"
    );
    let out =
        |to: &str| decide(&records, addresses(&records, "db")[0], to.parse().unwrap(), FLOWS[0]).allowed;
    assert!(out("1.1.1.1") && !out("8.8.8.8"));
    // Egress to anywhere opens nobody's ingress: another tenant's stays shut.
    assert!(!reach(&records, "db", "other", 6, 80));
    // Applied again, it takes its own place.
    let count = records.policies.len();
    done(policy::apply(&records, &document(spec), &stamp(21)).unwrap(), &mut records);
    assert_eq!(records.policies.len(), count);
    let part = records.policies.values().next().unwrap().name.clone();
    assert_eq!(
        policy::remove(&records, &PolicyTarget { name: part }, &stamp(22)).unwrap_err().code,
        RefusalCode::Invalid
    );
    done(
        policy::remove(&records, &PolicyTarget { name: "blue.db".into() }, &stamp(23)).unwrap(),
        &mut records,
    );
    assert!(records.policies.is_empty() && reach(&records, "web", "db", 6, 80));
}

#[test]
fn what_a_document_says_and_we_cannot_do_is_refused() {
    let records = town();
    for (spec, word) in [
        (serde_json::json!({ "podSelector": {}, "policyTypes": ["Both"] }), "Both"),
        (serde_json::json!({ "podSelector": {}, "ingress": [{ "ports": [{ "port": "http" }] }] }), "http"),
        (
            serde_json::json!({ "podSelector": {}, "ingress": [{ "ports": [{ "protocol": "SCTP" }] }] }),
            "SCTP",
        ),
        (
            serde_json::json!({ "podSelector": {}, "ingress": [{ "from": [{ "ipBlock": { "cidr": "x" } }] }] }),
            "\"x\"",
        ),
        (serde_json::json!({ "podSelector": {}, "ingress": [{ "from": [{}] }] }), "empty peer"),
        (
            serde_json::json!({ "podSelector": {}, "ingress": [{ "from": [{ "namespaceSelector": { "matchLabels": { "a": "b" } } }] }] }),
            "kubernetes.io/metadata.name",
        ),
        (serde_json::json!({ "podSelector": {}, "unknown": 1 }), "unknown"),
    ] {
        let refusal = policy::apply(&records, &document(spec), &stamp(20)).unwrap_err();
        assert!(refusal.code == RefusalCode::Invalid && refusal.detail.contains(word), "{refusal}");
    }
    let pod =
        serde_json::json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "x" }, "spec": {} });
    assert_eq!(policy::apply(&records, &pod, &stamp(20)).unwrap_err().code, RefusalCode::Invalid);
}
