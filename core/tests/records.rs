//! Records as stored: what an older build wrote is read, what a newer one wrote is refused, what nobody wrote
//! is corrupt, and none is read as empty.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use holdfast_core::{
    cure::Cure,
    driver::node_from,
    id::{ContainerId, ImageId, OperationId},
    interlink::{
        kube,
        record::{Claim, ContainerProgress, Deletion, Failure, PodRecord, PodUid, Retry, Tombstone},
        translate::{Abilities, translate},
    },
    journal::{OperationKind, OperationRecord, Phase, Resume, Subject},
    plan::Step,
    record::{Change, DecodeError, EndRecord, ImageRecord, Kind, Records, RunState, decode, encode},
    spec::{BindMount, PortSpec, Protocol, RestartPolicy},
    time::Mono,
};
use std::path::PathBuf;
use support::*;

/// One record of each kind, every field set to something that is not its default.
fn samples() -> Vec<(&'static str, Change)> {
    let mut records = node();
    let mut wanted = request("web");
    wanted.tenant = Some("blue".into());
    wanted.env = vec![("A".into(), "b \"c\"\n".into())];
    wanted.mounts =
        vec![BindMount { source: "/srv".into(), target: "/data".into(), read_only: true, beneath: None }];
    wanted.ports = vec![PortSpec {
        host_address: address("127.0.0.1"),
        host_port: 8080,
        target_port: 80,
        protocol: Protocol::Tcp,
    }];
    wanted.restart = RestartPolicy::OnFailure { retries_max: Some(3) };
    wanted.user = Some((1000, 100));
    wanted.labels.insert("app".into(), "web".into());
    wanted.aliases = vec!["www".into()];
    wanted.dns = holdfast_core::spec::DnsSpec {
        service: holdfast_core::spec::NameService::Host,
        servers: vec!["192.0.2.53".parse().unwrap()],
        search: Some(vec!["a.example".into()]),
        search_also: vec!["b.example".into()],
        options: vec!["ndots:2".into()],
    };
    let id = add_container(&mut records, &wanted, 1);
    let mut container = records.containers[&id].clone();
    container.started = Some(WALL);
    container.spec.security.capabilities_drop = vec!["ALL".into()];
    container.last_end =
        Some(EndRecord { exit_code: Some(3), started: Some(WALL), at: WALL, before: Some(WALL) });
    let mut waiting = container.clone();
    waiting.state = RunState::Waiting { exit_code: None, not_before: Mono(7), boot_id: boot() };
    let mut sandbox = records.sandboxes[&container.sandbox].clone();
    sandbox.last_cure = Some(Cure::Replugged);
    let mut node_record = records.node.clone().unwrap();
    node_record.cures.insert("replugged".into(), 4);
    let mut network = records.networks.values().next().unwrap().clone();
    network.routed.insert(holdfast_core::id::NetworkId::from_raw("net-other"));
    network.prefix6 = 72;
    network.spec.internal = true;
    network.spec.isolate = true;
    network.spec.gateway6 = Some("fd00::1".parse().unwrap());
    network.spec.range4 = Some((address("10.89.0.128"), 25));
    network.spec.tenant = Some(holdfast_core::id::Tenant::from_raw("blue"));
    node_record.policy_classes.insert("{\"inside\":true}".into());
    let policy = holdfast_core::policy::PolicyRecord {
        id: holdfast_core::id::PolicyId::from_raw("pol-1"),
        name: "open".into(),
        document: Some("blue.db".into()),
        action: holdfast_core::policy::PolicyAction::AllowIngress,
        from: vec![holdfast_core::policy::Peer {
            labels: vec![holdfast_core::policy::LabelTerm::In("app".into(), vec!["web".into()])],
            cidr: Some(("10.0.0.0".parse().unwrap(), 8)),
            except: vec![("10.1.0.0".parse().unwrap(), 16)],
            ..Default::default()
        }],
        to: vec![],
        ports: vec![holdfast_core::policy::PortMatch {
            protocol: Some(holdfast_core::policy::PolicyProtocol::Tcp),
            ports: Some((80, 81)),
        }],
        summary: "a -> b".into(),
        created: WALL,
    };
    let operation = OperationRecord {
        id: OperationId::from_raw("op-1"),
        kind: OperationKind::StopContainer,
        subjects: vec![Subject::Container(id.clone()), Subject::Node],
        name: "web".into(),
        steps: vec![
            Step::StopContainer { id: id.clone(), incarnation: 1, signal: 15, grace_ms: 10_000 },
            Step::Detach(slot(1)),
        ],
        phase: Phase::Forward { done: 1 },
        resume: Resume::Finish,
        on_done: vec![Change::RemoveContainer(ContainerId::from_raw("abc"))],
        on_undone: vec![],
        daemon_generation: 3,
        started: WALL,
    };
    let image = ImageRecord {
        id: ImageId::from_raw("0123"),
        names: vec!["busybox:latest".into()],
        layers: vec!["aa".into(), "bb".into()],
        entrypoint: vec!["/bin/sh".into()],
        command: vec!["-c".into()],
        env: vec![("PATH".into(), "/bin".into())],
        working_dir: "/work".into(),
        user: (1, 2),
        size_bytes: 12,
        loaded: WALL,
    };
    vec![
        ("node", Change::Node(node_record)),
        ("network", Change::Network(network)),
        ("sandbox", Change::Sandbox(sandbox)),
        ("container", Change::Container(container)),
        ("container-waiting", Change::Container(waiting)),
        ("image", Change::Image(image)),
        ("operation", Change::Operation(operation)),
        ("policy", Change::Policy(policy)),
        ("offloaded", Change::Offloaded(offloaded())),
        (
            "tombstone",
            Change::Tombstone(Tombstone {
                uid: PodUid::from_raw("0b1c-2d"),
                jid: "0123456789ab".into(),
                namespace: "lab".into(),
                name: "web".into(),
                logs: vec!["main".into()],
                expires: Mono(9),
                boot_id: boot(),
                deleted: WALL,
            }),
        ),
    ]
}

/// A pod with every kind of volume, translated as it is on a node.
fn offloaded() -> PodRecord {
    let text = include_bytes!("interlink/full.json");
    let data = kube::pod_data(text).unwrap();
    let mut pod = translate(&data, "0123456789ab".into(), WALL, Abilities::default()).unwrap();
    pod.dns.options = vec!["ndots:2".into()];
    pod.progress.sandbox = Some(holdfast_core::id::SandboxId::from_raw("5"));
    let retry = Retry { attempts: 2, message: "m".into(), not_before: Mono(5), boot_id: boot() };
    let failure = Failure { reason: "R".into(), message: "m".into(), at: WALL };
    pod.progress.deleting = Some(Deletion { grace_ms: 5, asked: WALL });
    pod.progress.retry = Some(retry.clone());
    pod.progress.failed = Some(failure.clone());
    pod.progress.containers[0] =
        ContainerProgress { id: Some(ContainerId::from_raw("c")), retry: Some(retry), failed: Some(failure) };
    pod.claims = vec![Claim { resource: "r".into(), id: "i".into(), container: "main".into() }];
    pod
}

fn golden(version: u32, name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("golden/{name}.v{version}.json"))
}

/// A changed field without a new version would be lost by, or strange to, the build that wrote the old one.
#[test]
fn the_current_version_is_what_its_golden_file_says() {
    for (name, change) in samples() {
        let encoded = encode(&change);
        let path = golden(encoded.kind.version(), name);
        let body = encoded.body.unwrap();
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, format!("{body}\n")).unwrap();
        }
        let written =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(
            body,
            written.trim_end(),
            "{name}: raise its version, add an upgrade, keep the old golden file"
        );
    }
}

#[test]
fn every_version_that_ever_shipped_is_read() {
    let mut read = 0;
    for (name, current) in samples() {
        let kind = encode(&current).kind;
        for version in 1..=kind.version() {
            let body = std::fs::read_to_string(golden(version, name)).unwrap();
            let change =
                decode(kind, version, &body).unwrap_or_else(|error| panic!("{name} v{version}: {error}"));
            if version == kind.version() {
                assert_eq!(change, current, "{name}");
            }
            read += 1;
        }
    }
    assert!(read >= samples().len());
}

#[test]
fn a_newer_record_is_refused_and_names_the_remedy() {
    for (_, change) in samples() {
        let encoded = encode(&change);
        let known = encoded.kind.version();
        let error = decode(encoded.kind, known + 1, &encoded.body.unwrap()).unwrap_err();
        assert_eq!(error, DecodeError::Newer { version: known + 1, known });
        assert!(error.to_string().contains("run the newer build"), "{error}");
    }
}

#[test]
fn a_corrupt_record_is_never_read_as_empty() {
    for kind in Kind::ALL {
        for body in ["", "{", "{}", "[]", "null", "0", "\u{0}\u{0}", r#"{"id":"x"}"#] {
            assert!(matches!(decode(kind, 1, body), Err(DecodeError::Corrupt(_))), "{kind:?} {body:?}");
        }
        assert!(matches!(decode(kind, 0, "{}"), Err(DecodeError::Corrupt(_))), "{kind:?} version 0");
    }
}

#[test]
fn a_torn_record_is_corrupt_at_every_length() {
    for (name, change) in samples() {
        let encoded = encode(&change);
        let body = encoded.body.unwrap();
        for length in (0..body.len()).filter(|length| body.is_char_boundary(*length)) {
            assert!(decode(encoded.kind, 1, &body[..length]).is_err(), "{name} cut at {length}");
        }
    }
}

#[test]
fn applying_what_was_stored_gives_the_same_records() {
    let mut before = Records::default();
    let mut after = Records::default();
    for (_, change) in samples() {
        let encoded = encode(&change);
        after.apply(decode(encoded.kind, encoded.kind.version(), &encoded.body.unwrap()).unwrap());
        before.apply(change);
    }
    assert_eq!(before, after);
}

#[test]
fn a_lost_node_record_hands_nothing_out_again() {
    let mut records = node();
    add_container(&mut records, &request("one"), 1);
    let network = holdfast_core::ops::request::NetworkRequest { name: "back".into(), ..Default::default() };
    let admission = holdfast_core::ops::network::create(&records, &network, &stamp(2)).unwrap();
    carry(&mut records, admission);
    let mut wanted = request("two");
    (wanted.tenant, wanted.networks) = (Some("blue".into()), vec!["default".into(), "back".into()]);
    add_container(&mut records, &wanted, 3);
    let lost = records.node.take().unwrap();
    let found = node_from(&records, [9; 11]);
    assert_eq!(
        (found.slot_next, found.group_next, found.network_next, found.ula_prefix),
        (lost.slot_next, lost.group_next, lost.network_next, lost.ula_prefix)
    );
    // What an open operation still removes counts too, and so does the life that began it.
    let mut operation = match samples().into_iter().find(|(name, _)| *name == "operation") {
        Some((_, Change::Operation(operation))) => operation,
        _ => panic!("an operation is among the samples"),
    };
    operation.steps = vec![Step::Detach(slot(40)), Step::RemoveNetwork(plan_of(&records, "back", 17))];
    operation.daemon_generation = 6;
    records.apply(Change::Operation(operation));
    let found = node_from(&records, [9; 11]);
    assert_eq!((found.slot_next, found.network_next, found.daemon_generation), (41, 18, 6));
    records.apply(Change::Node(found));
    add_container(&mut records, &request("three"), 5);
    assert_eq!(holdfast_core::invariant::check_records(&records), vec![]);
    // The very first start.
    let first = node_from(&Records::default(), [9; 11]);
    assert_eq!(
        (first.slot_next, first.group_next, first.network_next, first.daemon_generation),
        (1, 1, 0, 0)
    );
}

fn plan_of(records: &Records, name: &str, index: u16) -> holdfast_core::plan::NetworkPlan {
    let network = records.networks.values().find(|network| network.name == name).unwrap();
    holdfast_core::plan::NetworkPlan {
        id: network.id.clone(),
        index,
        gateway4: (network.gateway4, network.prefix4),
        gateway6: (network.gateway6, network.prefix6),
        mtu_bytes: 1500,
    }
}
