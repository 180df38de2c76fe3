//! Works on pods: a task for each that has something to be done, none for the others. A task that panics fails its
//! pod alone.

use crate::node::{supervisor::until_ended, world::Node};
use holdfast_core::{
    driver::{
        Session,
        interlink::{self as driver, Advanced, Due},
    },
    interlink::record::PodUid,
    time::{Mono, Span},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::watch,
    task::{Id, JoinError, JoinSet},
    time::Instant,
};

/// Pods that are worked on at once.
const TASKS_MAX: usize = 32;
/// Commits come in bursts: what is due is looked at after so long.
const SETTLE: Duration = Duration::from_millis(2);
/// The longest time without a look.
const PERIOD: Duration = Duration::from_secs(30);
/// Wait before a pod is worked on again whose progress could not be written down, or whose task panicked.
const FAULT_WAIT: Duration = Duration::from_secs(2);
/// Actions of one pod in a row, after which another look decides.
const ACTIONS_MAX: usize = 1_000;
/// How long work in flight may take when the daemon is to end.
const DRAIN_DEADLINE: Duration = Duration::from_secs(8);

/// What is worked on, and by what; a node, or a test's.
pub trait Work: Send + Sync + 'static {
    /// Looks what is due.
    fn due(&self, skip: &BTreeSet<PodUid>) -> impl Future<Output = Due> + Send;
    /// Works on one pod until nothing is to be done for it; gives when there is something again, if time alone tells.
    fn work(&self, uid: &PodUid) -> impl Future<Output = Option<Instant>> + Send;
    /// Fails a pod.
    fn give_up(&self, uid: &PodUid, message: String) -> impl Future<Output = ()> + Send;
    /// Forgets deleted pods whose time has come.
    fn reap(&self) -> impl Future<Output = Option<Instant>> + Send;
    /// Changes whenever something may be due.
    fn changes(&self) -> watch::Receiver<u64>;
    /// A time of the node's as one of the runtime's.
    fn instant(&self, at: Mono) -> Instant;
}

/// A node's pods.
#[derive(Debug)]
pub struct Pods<N> {
    /// The node.
    pub world: Arc<N>,
    /// This daemon's life.
    pub session: Session,
    /// How long deleted pods are remembered.
    pub keep: Span,
}

impl<N: Node> Work for Pods<N> {
    async fn due(&self, skip: &BTreeSet<PodUid>) -> Due {
        driver::due(&*self.world, skip).await
    }

    async fn work(&self, uid: &PodUid) -> Option<Instant> {
        for _ in 0..ACTIONS_MAX {
            match driver::advance(&*self.world, &self.session, uid, self.keep).await {
                Ok(Advanced::Acted) => {}
                Ok(Advanced::Idle) => return None,
                Ok(Advanced::At(due)) => return Some(self.instant(due)),
                Err(error) => {
                    tracing::error!(%uid, %error, "what was done for a pod could not be written down");
                    return Some(Instant::now() + FAULT_WAIT);
                }
            }
        }
        None
    }

    async fn give_up(&self, uid: &PodUid, message: String) {
        if let Err(error) = driver::give_up(&*self.world, uid, message).await {
            tracing::error!(%uid, %error, "that a pod has failed could not be written down");
        }
    }

    async fn reap(&self) -> Option<Instant> {
        match driver::reap(&*self.world, self.keep).await {
            Ok(due) => due.map(|due| self.instant(due)),
            Err(error) => {
                tracing::error!(%error, "deleted pods could not be forgotten");
                Some(Instant::now() + FAULT_WAIT)
            }
        }
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.world.changes()
    }

    fn instant(&self, at: Mono) -> Instant {
        Instant::now() + Duration::from_nanos(at.since(self.world.now()).0)
    }
}

struct Running {
    tasks: JoinSet<Option<Instant>>,
    uids: BTreeMap<Id, PodUid>,
    /// Pods that wait for a time that no record tells.
    held: BTreeMap<PodUid, Instant>,
}

/// Works until the daemon ends.
pub async fn run<W: Work>(work: Arc<W>, mut end: watch::Receiver<bool>) {
    let mut changes = work.changes();
    let mut running = Running { tasks: JoinSet::new(), uids: BTreeMap::new(), held: BTreeMap::new() };
    let mut reap_at = Instant::now();
    loop {
        changes.borrow_and_update();
        if Instant::now() >= reap_at {
            let due = work.reap().await;
            reap_at = due.unwrap_or_else(|| Instant::now() + PERIOD).min(Instant::now() + PERIOD);
        }
        let next = running.start_due(&work).await.min(reap_at);
        tokio::select! {
            () = until_ended(&mut end) => break,
            Some(ended) = running.tasks.join_next_with_id(), if !running.tasks.is_empty() => {
                running.ended(&work, ended).await;
            }
            changed = changes.changed() => {
                if changed.is_err() {
                    break;
                }
                tokio::time::sleep(SETTLE).await;
                // A pod was deleted, perhaps: its tombstone has a time.
                reap_at = reap_at.min(Instant::now() + Duration::from_secs(1));
            }
            () = tokio::time::sleep_until(next) => {}
        }
    }
    // What is cut off is journaled, and finished or undone by the next daemon.
    let drained = async { while running.tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_DEADLINE, drained).await.is_err() {
        tracing::warn!("work on pods did not end in time; the next daemon goes on with it");
    }
}

impl Running {
    /// Starts a task for each pod that is due; says when to look again.
    async fn start_due<W: Work>(&mut self, work: &Arc<W>) -> Instant {
        let now = Instant::now();
        self.held.retain(|_, until| *until > now);
        let skip: BTreeSet<PodUid> = self.uids.values().chain(self.held.keys()).cloned().collect();
        let due = work.due(&skip).await;
        for uid in due.pods {
            if self.tasks.len() >= TASKS_MAX {
                break;
            }
            let (work, own) = (Arc::clone(work), uid.clone());
            let task = self.tasks.spawn(async move { work.work(&own).await });
            self.uids.insert(task.id(), uid);
        }
        let held = self.held.values().copied();
        let timed = due.at.map(|at| work.instant(at));
        held.chain(timed).min().unwrap_or(now + PERIOD).min(now + PERIOD)
    }

    async fn ended<W: Work>(&mut self, work: &Arc<W>, ended: Result<(Id, Option<Instant>), JoinError>) {
        let (id, again, fault) = match ended {
            Ok((id, again)) => (id, again, None),
            Err(error) => (error.id(), Some(Instant::now() + FAULT_WAIT), Some(error)),
        };
        let Some(uid) = self.uids.remove(&id) else { return };
        if let Some(fault) = fault {
            tracing::error!(%uid, %fault, "the task of a pod did not end by itself; the pod has failed");
            work.give_up(&uid, format!("a fault of Holdfast itself: {fault}; please report it")).await;
        }
        if let Some(again) = again {
            self.held.insert(uid, again);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use std::sync::Mutex;

    struct Fake {
        todo: Mutex<BTreeSet<PodUid>>,
        done: Mutex<Vec<PodUid>>,
        failed: Mutex<Vec<(PodUid, String)>>,
        changed: watch::Sender<u64>,
    }

    impl Work for Fake {
        async fn due(&self, skip: &BTreeSet<PodUid>) -> Due {
            let todo = self.todo.lock().unwrap();
            Due { pods: todo.iter().filter(|uid| !skip.contains(uid)).cloned().collect(), at: None }
        }

        async fn work(&self, uid: &PodUid) -> Option<Instant> {
            assert!(uid.as_str() != "bad", "on purpose");
            self.todo.lock().unwrap().remove(uid);
            self.done.lock().unwrap().push(uid.clone());
            self.changed.send_modify(|count| *count += 1);
            None
        }

        async fn give_up(&self, uid: &PodUid, message: String) {
            self.todo.lock().unwrap().remove(uid);
            self.failed.lock().unwrap().push((uid.clone(), message));
        }

        async fn reap(&self) -> Option<Instant> {
            None
        }

        fn changes(&self) -> watch::Receiver<u64> {
            self.changed.subscribe()
        }

        fn instant(&self, _: Mono) -> Instant {
            Instant::now()
        }
    }

    #[tokio::test]
    async fn a_panic_fails_one_pod_and_touches_no_other() {
        let uid = |text: &str| PodUid::from_raw(text);
        let fake = Arc::new(Fake {
            todo: Mutex::new(["bad", "good"].map(uid).into()),
            done: Mutex::default(),
            failed: Mutex::default(),
            changed: watch::channel(0).0,
        });
        let (end, ended) = watch::channel(false);
        let running = tokio::spawn(run(Arc::clone(&fake), ended));
        let settled = async {
            while !fake.todo.lock().unwrap().is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), settled).await.unwrap();
        fake.todo.lock().unwrap().insert(uid("later"));
        fake.changed.send_modify(|count| *count += 1);
        let later = async {
            while fake.done.lock().unwrap().len() < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), later).await.unwrap();
        assert_eq!(*fake.done.lock().unwrap(), [uid("good"), uid("later")]);
        let failed = fake.failed.lock().unwrap().clone();
        assert_eq!(failed.len(), 1);
        assert!(failed[0].0 == uid("bad") && failed[0].1.contains("fault of Holdfast"), "{failed:?}");
        end.send_replace(true);
        tokio::time::timeout(Duration::from_secs(10), running).await.unwrap().unwrap();
    }
}
