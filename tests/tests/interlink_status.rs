//! The status of a pod in every combination of states that its containers can be in, read by the virtual kubelet's
//! rules: it must never be misread.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use holdfast_core::{
    id::{BootId, ContainerId, ImageId, ProcessRef, SandboxId, Tenant},
    interlink::{
        kube,
        logs::{LogRequest, Place, select},
        record::{Deletion, Failure, PodRecord, Retry},
        status,
        translate::{Abilities, translate},
    },
    record::{Change, ContainerRecord, Desired, ImageRecord, Records, RunState, SandboxKind, SandboxRecord},
    spec::{ContainerSpec, RootSource, SandboxSpec},
    time::{Mono, Wall},
};
use holdfast_tests::virtual_kubelet::{Phase, Watched};
use serde_json::{Value, json};

const WALL: Wall = Wall(1_796_113_800_000);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    Absent,
    Retried,
    Hopeless,
    Created,
    Running,
    Again(Option<i32>),
    Exited(Option<i32>),
    Unstartable,
    Lost,
}

const ALL: [Is; 12] = [
    Is::Absent,
    Is::Retried,
    Is::Hopeless,
    Is::Created,
    Is::Running,
    Is::Again(Some(1)),
    Is::Again(None),
    Is::Exited(Some(0)),
    Is::Exited(Some(7)),
    Is::Exited(None),
    Is::Unstartable,
    Is::Lost,
];

fn pod() -> Value {
    let container = |name: &str| json!({"name": name, "image": "i", "imagePullPolicy": "Never"});
    json!({"metadata": {"name": "p", "namespace": "n", "uid": "u", "annotations": {"JobID": "j"}}, "spec": {
        "initContainers": [container("i0"), container("i1")], "containers": [container("a0"), container("a1")]}})
}

fn boot() -> BootId {
    BootId::from_raw("b")
}

fn container(index: usize, state: RunState) -> ContainerRecord {
    ContainerRecord {
        id: ContainerId::from_raw(format!("c{index}")),
        name: format!("c{index}"),
        sandbox: SandboxId::from_raw("s"),
        spec: ContainerSpec {
            root: RootSource::Image(ImageId::from_raw("i")),
            root_name: "i".into(),
            argv: vec!["x".into()],
            env: vec![],
            working_dir: "/".into(),
            uid: 0,
            gid: 0,
            mounts: vec![],
            restart: Default::default(),
            stop_signal: 15,
            stop_grace_ms: 1,
            labels: Default::default(),
            remove_on_exit: false,
            security: Default::default(),
        },
        desired: Desired::Running,
        state,
        incarnation: 1,
        restarts: 0,
        failures_in_row: 0,
        created: WALL,
        started: Some(WALL),
        last_end: None,
    }
}

fn base() -> (Records, PodRecord) {
    let mut records = Records::default();
    records.apply(Change::Image(ImageRecord {
        id: ImageId::from_raw("i"),
        names: vec!["i".into()],
        layers: vec![],
        entrypoint: vec![],
        command: vec![],
        env: vec![],
        working_dir: "/".into(),
        user: (0, 0),
        size_bytes: 1,
        loaded: WALL,
    }));
    records.apply(Change::Sandbox(SandboxRecord {
        id: SandboxId::from_raw("s"),
        name: "s".into(),
        kind: SandboxKind::Pod,
        tenant: Tenant::from_raw("n"),
        spec: SandboxSpec::default(),
        attachments: vec![],
        ports: vec![],
        last_cure: None,
        created: WALL,
    }));
    let data =
        kube::pod_data(&serde_json::to_vec(&json!({"pod": pod(), "container": null})).unwrap()).unwrap();
    let mut pod = translate(&data, "j".into(), WALL, Abilities::default()).unwrap();
    pod.progress.prepared = true;
    pod.progress.sandbox = Some(SandboxId::from_raw("s"));
    (records, pod)
}

fn put(records: &mut Records, pod: &mut PodRecord, index: usize, is: Is) {
    let failure = |reason: &str| Failure { reason: reason.into(), message: "m".into(), at: WALL };
    let process = ProcessRef { pid: 7, start_time_ticks: 1, boot_id: boot() };
    let id = ContainerId::from_raw(format!("c{index}"));
    let progress = &mut pod.progress.containers[index];
    *progress = Default::default();
    let state = match is {
        Is::Absent => None,
        Is::Retried => {
            progress.retry =
                Some(Retry { attempts: 1, message: "m".into(), not_before: Mono(1), boot_id: boot() });
            None
        }
        Is::Hopeless => {
            progress.failed = Some(failure("StartError"));
            None
        }
        Is::Lost => {
            progress.id = Some(id.clone());
            progress.failed = Some(failure("ContainerLost"));
            None
        }
        Is::Created => Some(RunState::Created),
        Is::Running => Some(RunState::Running {
            init: process.clone(),
            monitor: process,
            since: WALL,
            since_mono: Mono(1),
        }),
        Is::Again(exit_code) => Some(RunState::Waiting { exit_code, not_before: Mono(1), boot_id: boot() }),
        Is::Exited(exit_code) => Some(RunState::Exited { exit_code, at: WALL }),
        Is::Unstartable => Some(RunState::Failed { cause: "m".into(), at: WALL }),
    };
    match state {
        Some(state) => {
            progress.id = Some(id);
            records.apply(Change::Container(container(index, state)));
        }
        None => records.apply(Change::RemoveContainer(id)),
    }
}

/// Every container ended with 0 by its own record.
fn all_well(states: &[Is]) -> bool {
    states.iter().all(|is| *is == Is::Exited(Some(0)))
}

#[test]
fn no_combination_of_states_is_misread() {
    let asked: Vec<kube::Pod> = vec![serde_json::from_value(pod()).unwrap()];
    let (mut records, mut record) = base();
    let (mut seen, mut phases) = (0, std::collections::BTreeMap::new());
    for kind in 0..3 {
        record.progress.failed =
            (kind == 1).then(|| Failure { reason: "R".into(), message: "m".into(), at: WALL });
        record.progress.deleting = (kind == 2).then_some(Deletion { grace_ms: 1, asked: WALL });
        for (i0, i1) in ALL.iter().flat_map(|a| ALL.iter().map(move |b| (*a, *b))) {
            put(&mut records, &mut record, 0, i0);
            put(&mut records, &mut record, 1, i1);
            for (a0, a1) in ALL.iter().flat_map(|a| ALL.iter().map(move |b| (*a, *b))) {
                put(&mut records, &mut record, 2, a0);
                put(&mut records, &mut record, 3, a1);
                records.apply(Change::Offloaded(record.clone()));
                let answer = serde_json::to_value(status::of_asked(&records, &asked, WALL)).unwrap();
                let mut watched = Watched::new(&pod());
                let context =
                    || format!("pod {kind}, inits {i0:?} {i1:?}, containers {a0:?} {a1:?}: {answer}");
                let phase = watched.take(&answer).unwrap_or_else(|fault| panic!("{fault}\n{}", context()));
                if phase == Phase::Succeeded {
                    assert!(all_well(&[a0, a1]), "not done: {}", context());
                }
                if phase == Phase::Running {
                    assert!([a0, a1].contains(&Is::Running), "nothing runs: {}", context());
                }
                let failed = |is: Is| {
                    matches!(is, Is::Hopeless | Is::Exited(Some(7)) | Is::Exited(None) | Is::Unstartable)
                };
                if failed(i0) || i0 == Is::Exited(Some(0)) && failed(i1) {
                    let later = if failed(i0) && matches!(i0, Is::Hopeless) {
                        [i1, a0, a1].iter().any(|is| !matches!(is, Is::Absent | Is::Retried | Is::Hopeless))
                    } else {
                        false
                    };
                    let passed = matches!(i1, Is::Hopeless)
                        && [a0, a1].iter().any(|is| !matches!(is, Is::Absent | Is::Retried | Is::Hopeless));
                    assert!(
                        later || passed || phase == Phase::Failed,
                        "an init failure is no end: {}",
                        context()
                    );
                }
                if kind == 1 && [i0, i1, a0, a1].iter().all(|is| *is == Is::Absent) {
                    assert_eq!(phase, Phase::Failed, "{}", context());
                }
                seen += 1;
                *phases.entry(format!("{phase:?}")).or_insert(0) += 1;
            }
        }
    }
    assert_eq!(seen, 3 * 12_usize.pow(4));
    assert_eq!(phases.len(), 4, "{phases:?}");
}

#[test]
fn a_pod_that_is_gone_is_told_as_ended_and_an_unknown_one_is_left_out() {
    let mut asked: kube::Pod = serde_json::from_value(pod()).unwrap();
    let records = Records::default();
    let told = |asked: &kube::Pod| {
        serde_json::to_value(status::of_asked(&records, std::slice::from_ref(asked), WALL)).unwrap()
    };
    let mut watched = Watched::new(&pod());
    assert_eq!(
        watched.take(&told(&asked)),
        Ok(Phase::Failed),
        "answered for once, and on no record any more"
    );
    asked.metadata.annotations.clear();
    assert_eq!(told(&asked), json!([]), "its create may be on its way");
}

#[test]
fn the_log_of_a_container_that_is_just_removed_is_the_kept_one() {
    let (mut records, mut record) = base();
    let request = LogRequest { pod_uid: "u".into(), container_name: "a0".into(), ..LogRequest::default() };
    for (is, kept) in [(Is::Absent, false), (Is::Lost, true)] {
        put(&mut records, &mut record, 2, is);
        record.progress.deleting = Some(Deletion { grace_ms: 1, asked: WALL });
        records.apply(Change::Offloaded(record.clone()));
        let (place, window) = select(&records, &request, WALL).expect("it is on record");
        assert_eq!(matches!(place, Place::Kept(..)), kept, "{is:?}: {place:?}");
        assert!(!window.follow);
    }
}
