//! Offloaded pods under kills: the daemon dies before and after every call of a create, of a pod's life and of its
//! delete; the next one makes of it one pod, or none, and leaves nothing behind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use holdfast_core::{
    driver::{self, Session, Trigger, interlink as pods},
    id::ImageId,
    interlink::{kube, record::PodUid, status, translate::Abilities},
    ops::request::RequestError,
    record::{Change, ImageRecord, RunState},
    time::{Span, Wall},
    world::{Clock, Durability, Store},
};
use holdfast_sim::{
    Config, Sim, SimWorld, check,
    executor::{self, End},
    fault::{FaultKind, FaultPlan, Side, Victim},
    history::request,
};
use serde_json::{Value, json};

const KEEP: Span = Span::from_secs(60);
const UID: &str = "0b1c";

fn pod(uid: &str) -> Value {
    let container = |name: &str| {
        json!({"name": name, "image": "tool:1", "imagePullPolicy": "Never", "command": ["/x"],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}]})
    };
    json!({"metadata": {"name": "web", "namespace": "lab", "uid": uid}, "spec": {
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
        "initContainers": [container("first"), container("second")],
        "containers": [container("main"), container("side")],
        "volumes": [{"name": "data", "emptyDir": {}}]}})
}

struct Life {
    sim: Sim,
    world: SimWorld,
    session: Session,
}

/// `None`: the daemon was killed.
fn done<T>(end: End<T>) -> Option<T> {
    match end {
        End::Done(mut results) => results.pop(),
        End::Killed(_) => None,
        End::Violated(violation) => panic!("{violation}"),
        end => panic!("{end}"),
    }
}

impl Life {
    fn start(sim: &Sim) -> Self {
        let world = sim.start_daemon();
        let session = done(executor::block_on(sim, driver::open_session(&world))).unwrap().unwrap();
        let life = Self { sim: sim.clone(), world, session };
        life.settle();
        life
    }

    fn settle(&self) {
        for _ in 0..4 {
            let report = done(executor::block_on(
                &self.sim,
                driver::bring_up(&self.world, &self.session, Trigger::Timer),
            ));
            if report.unwrap().converged {
                return;
            }
        }
        panic!("no bring-up converges: {}", self.sim.trace().tail(40));
    }

    fn create(&self, uid: &str) -> Option<Result<pods::Accepted, RequestError>> {
        let body = serde_json::to_vec(&json!([{"pod": pod(uid), "container": null}])).unwrap();
        let data = kube::pod_data(&body).unwrap();
        done(executor::block_on(&self.sim, pods::accept(&self.world, &data, Abilities::default())))
    }

    fn delete(&self, uid: &str) -> Option<Result<PodUid, RequestError>> {
        let pod: kube::Pod = serde_json::from_value(pod(uid)).unwrap();
        done(executor::block_on(&self.sim, pods::delete(&self.world, &pod, KEEP)))
    }

    /// Works on every pod until nothing is due.
    fn work(&self) -> Option<()> {
        done(executor::block_on(&self.sim, async {
            for _ in 0..200 {
                let due = pods::due(&self.world, &Default::default()).await;
                if due.pods.is_empty() {
                    match due.at {
                        None => return,
                        Some(at) => self.world.sleep(at.since(self.world.now())).await,
                    }
                }
                for uid in due.pods {
                    if let pods::Advanced::At(at) =
                        pods::advance(&self.world, &self.session, &uid, KEEP).await.unwrap()
                    {
                        self.world.sleep(at.since(self.world.now())).await;
                    }
                }
            }
            panic!("it never comes to rest");
        }))
    }

    /// Ends a running container of the pod by itself.
    fn exit(&self, container: &str, code: i32) {
        let name = self.sim.with_node(|node| {
            let all = node.disk.records().containers.values();
            let one = all.filter(|it| it.running().is_some()).find(|it| it.name.ends_with(container));
            one.map(|it| it.name.clone())
        });
        if let Some(container) = name {
            self.sim.strike(&FaultKind::Exit { container, code });
        }
    }

    /// The whole life of the pod, over as many daemons as it takes; `kill` strikes once.
    fn through(mut self, plan: FaultPlan) -> u64 {
        let base = self.sim.calls();
        self.sim.arm(plan.counted_from(base));
        let mut told = false;
        for _ in 0..4 {
            let lived = (|| {
                if !told {
                    self.create(UID)?.unwrap();
                    told = true;
                }
                self.work()?;
                for init in ["-first", "-second"] {
                    self.exit(init, 0);
                    done(executor::block_on(
                        &self.sim,
                        driver::bring_up(&self.world, &self.session, Trigger::Timer),
                    ))?;
                    self.work()?;
                }
                Some(())
            })();
            if lived.is_some() {
                break;
            }
            self = Self::start(&self.sim);
        }
        self.check_runs();
        let mut calls = self.sim.calls() - base;
        for _ in 0..4 {
            let from = self.sim.calls();
            let lived = (|| {
                self.delete(UID)?.unwrap();
                self.work()
            })();
            calls += self.sim.calls() - from;
            if lived.is_some() {
                break;
            }
            self = Self::start(&self.sim);
        }
        self.sim.disarm();
        self.check_gone();
        calls
    }

    fn check_runs(&self) {
        self.sim.with_node(|node| {
            let records = node.disk.records();
            let record = &records.offloaded[&PodUid::from_raw(UID)];
            let members: Vec<_> = records
                .containers
                .values()
                .filter(|it| it.name.starts_with(&record.jid))
                .map(|it| (it.name.split_once('-').unwrap().1.to_owned(), it.state.clone()))
                .collect();
            assert_eq!(members.len(), 4, "{members:?}: {record:?}");
            for (name, state) in &members {
                match name.as_str() {
                    "main" | "side" => assert!(matches!(state, RunState::Running { .. }), "{name} {state:?}"),
                    _ => assert!(
                        matches!(state, RunState::Exited { exit_code: Some(0), .. }),
                        "{name} {state:?}"
                    ),
                }
            }
            let asked: Vec<kube::Pod> = vec![serde_json::from_value(pod(UID)).unwrap()];
            let told = serde_json::to_value(status::of_asked(records, &asked, Wall(1))).unwrap();
            for container in told[0]["containers"].as_array().unwrap() {
                assert!(container["state"]["running"].is_object(), "{told}");
            }
            assert!(node.disk.pods[&record.jid].volumes.contains("data"));
        });
    }

    fn check_gone(&self) {
        self.settle();
        self.sim.with_node(|node| {
            let records = node.disk.records();
            assert!(records.offloaded.is_empty(), "{:?}", records.offloaded);
            assert_eq!(records.containers.len(), 1, "only the bystander: {:?}", records.containers.keys());
            assert_eq!(records.sandboxes.len(), 1);
            assert!(node.disk.pods.values().all(|files| files.volumes.is_empty()), "{:?}", node.disk.pods);
            check::converged(node).unwrap();
            let bystander = records.containers.values().next().unwrap();
            assert_eq!((bystander.restarts, bystander.incarnation), (0, 1), "the bystander was touched");
        });
        let late = self.create(UID).unwrap().expect_err("a late create makes nothing");
        assert!(late.to_string().contains("deleted"), "{late}");
        // Deleted pods are forgotten, with their logs.
        done(executor::block_on(&self.sim, async {
            self.world.sleep(KEEP).await;
            self.world.sleep(KEEP).await;
            pods::reap(&self.world, KEEP).await.unwrap();
            pods::reap(&self.world, KEEP).await.unwrap();
        }))
        .unwrap();
        self.sim.with_node(|node| {
            assert!(
                node.disk.records().tombstones.is_empty() && node.disk.pods.is_empty(),
                "{:?}",
                node.disk.pods
            );
        });
    }
}

/// A node with an image and a bystander.
fn node() -> Life {
    let life = Life::start(&Sim::new(Config::default(), FaultPlan::default()));
    let image = ImageRecord {
        id: ImageId::from_raw("feedc0de"),
        names: vec!["tool:1".into()],
        layers: vec![],
        entrypoint: vec![],
        command: vec![],
        env: vec![],
        working_dir: "/".into(),
        user: (0, 0),
        size_bytes: 1,
        loaded: Wall(1),
    };
    let written = executor::block_on(&life.sim, async {
        life.world
            .transact(Durability::Power, |_| Ok::<_, ()>((vec![Change::Image(image)], ())))
            .await
            .unwrap()
            .unwrap();
        driver::run_container(&life.world, &life.session, &request("bystander")).await.map(drop)
    });
    done(written).unwrap().unwrap();
    life
}

fn sweep(who: &[Victim]) {
    let calls = node().through(FaultPlan::default());
    assert!(calls > 30, "a pod's life is {calls} calls");
    let mut runs = 0;
    for (nth, side) in (0..calls).flat_map(|nth| [(nth, Side::Before), (nth, Side::After)]) {
        let plan = FaultPlan::kill(nth, side, who);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| node().through(plan)));
        assert!(outcome.is_ok(), "killed {side:?} call {nth}");
        runs += 1;
    }
    println!("{runs} kills");
}

#[test]
fn a_daemon_killed_at_any_call_leaves_one_pod_or_none() {
    sweep(&[Victim::Daemon]);
}

#[test]
fn a_daemon_and_its_control_killed_at_any_call() {
    sweep(&[Victim::Daemon, Victim::Control]);
}

#[test]
fn repeats_are_one_pod_and_a_delete_that_came_first_wins() {
    let life = node();
    let first = life.create(UID).unwrap().unwrap();
    life.work().unwrap();
    let again = life.create(UID).unwrap().unwrap();
    assert_eq!((&first.jid, again.repeated), (&again.jid, true));
    life.work().unwrap();
    assert_eq!(life.sim.with_node(|node| node.disk.records().offloaded.len()), 1);
    life.delete("never-seen").unwrap().unwrap();
    life.delete("never-seen").unwrap().unwrap();
    let late = life.create("never-seen").unwrap().expect_err("it was deleted");
    assert!(late.to_string().contains("deleted"), "{late}");
}

#[test]
fn a_failed_init_container_ends_the_pod_and_starts_nothing() {
    let life = node();
    life.create(UID).unwrap().unwrap();
    life.work().unwrap();
    life.exit("-first", 9);
    life.settle();
    life.work().unwrap();
    life.sim.with_node(|node| {
        let records = node.disk.records();
        let pod = &records.offloaded[&PodUid::from_raw(UID)];
        let failure = pod.progress.failed.as_ref().expect("it has failed");
        assert!(failure.message.contains("first ended with 9"), "{failure:?}");
        assert_eq!(records.containers.values().filter(|it| it.name.starts_with(&pod.jid)).count(), 1);
    });
    life.delete(UID).unwrap().unwrap();
    life.work().unwrap();
    life.check_gone();
}

#[test]
fn a_sandbox_that_somebody_removed_is_lost_and_told() {
    let life = node();
    life.create(UID).unwrap().unwrap();
    life.work().unwrap();
    let name = life.sim.with_node(|node| {
        let records = node.disk.records();
        records.sandboxes.values().find(|it| it.name.ends_with("-web")).unwrap().name.clone()
    });
    let force = holdfast_core::ops::request::RemoveRequest { force: true };
    done(executor::block_on(&life.sim, driver::remove_pod(&life.world, &life.session, &name, &force)))
        .unwrap()
        .unwrap();
    life.work().unwrap();
    life.sim.with_node(|node| {
        let asked: Vec<kube::Pod> = vec![serde_json::from_value(pod(UID)).unwrap()];
        let told = serde_json::to_value(status::of_asked(node.disk.records(), &asked, Wall(1))).unwrap();
        for container in told[0]["containers"].as_array().unwrap() {
            let ended = &container["state"]["terminated"];
            assert!(
                ended["exitCode"] != 0 && ended["message"].as_str().unwrap().contains("removed"),
                "{told}"
            );
        }
    });
    life.delete(UID).unwrap().unwrap();
    life.work().unwrap();
    life.check_gone();
}
