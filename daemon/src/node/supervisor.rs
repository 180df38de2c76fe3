//! Brings the node up: at the start, when asked, when a watched process dies, when core says that something is
//! due, and on a slow timer. One bring-up at a time; whatever happens during one makes for one more.

use super::{
    untold::Untold,
    watch::{Watches, wanted},
    world::Node,
};
use holdfast_core::{
    driver::{self, BringUpReport, Session, Trigger},
    time::{Mono, Span},
};
use holdfast_linux::protocol::without_waiting;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
    time::Instant,
};

/// How often the node is looked at although nothing happened, give or take a fifth.
const PERIOD: Duration = Duration::from_secs(30);

/// Wait after a bring-up that failed; doubles up to the period.
const RETRY_FIRST: Duration = Duration::from_millis(500);

/// Commits come in bursts: the watches follow them after so long.
const SETTLE: Duration = Duration::from_millis(5);

/// Requests that may wait for the next bring-up.
const REQUESTS_LEN_MAX: usize = 256;

/// What somebody who asked is told.
#[derive(Clone, Debug)]
pub struct Told {
    /// The bring-up that began after they had asked.
    pub report: Arc<BringUpReport>,
    /// Bring-ups before it that did something and that nobody was told of, oldest first.
    pub before: Vec<Arc<BringUpReport>>,
}

type Answer = oneshot::Sender<Told>;

/// Notices that may wait; one more says nothing new.
const NOTICES_LEN_MAX: usize = 1;

/// Asks the supervisor.
#[derive(Clone, Debug)]
pub struct SupervisorHandle {
    requests: mpsc::Sender<Answer>,
    drifts: mpsc::Sender<String>,
    end: Arc<watch::Sender<bool>>,
}

impl SupervisorHandle {
    /// Brings the node up and comes back with the report of a bring-up that began after the call, and with what
    /// nobody was told yet; `None` when the daemon ends before that.
    pub async fn up(&self) -> Option<Told> {
        let (answer, report) = oneshot::channel();
        self.requests.send(answer).await.ok()?;
        report.await.ok()
    }

    /// Has the node looked at because somebody else changed it.
    pub fn drifted(&self, what: String) {
        // Full: a bring-up for an earlier notice has not begun, and will see this change too.
        let _ = self.drifts.try_send(what);
    }

    /// Tells the daemon to end.
    pub fn end(&self) {
        self.end.send_replace(true);
    }

    /// Turns true when the daemon is to end.
    pub fn ended(&self) -> watch::Receiver<bool> {
        self.end.subscribe()
    }
}

/// The loop.
#[derive(Debug)]
pub struct Supervisor<N> {
    world: Arc<N>,
    session: Session,
    requests: mpsc::Receiver<Answer>,
    drifts: mpsc::Receiver<String>,
    end: watch::Receiver<bool>,
    watches: Watches,
    /// Why the next bring-up is due; the first reason stays.
    pending: Option<Trigger>,
    /// Who waits for the next bring-up.
    waiting: Vec<Answer>,
    /// Who waits for the running one.
    served: Vec<Answer>,
    /// What nobody waited for.
    untold: Untold,
    running: Option<JoinHandle<BringUpReport>>,
    /// When the node is looked at again.
    next: Instant,
    /// Wait after the next failure.
    retry: Duration,
}

impl<N: Node> Supervisor<N> {
    /// A supervisor that begins with a bring-up.
    pub fn new(world: Arc<N>, session: Session) -> (SupervisorHandle, Self) {
        let (sender, requests) = mpsc::channel(REQUESTS_LEN_MAX);
        let (drift_sender, drifts) = mpsc::channel(NOTICES_LEN_MAX);
        let (end, ended) = watch::channel(false);
        let supervisor = Self {
            world,
            session,
            requests,
            drifts,
            end: ended,
            watches: Watches::new(),
            pending: Some(Trigger::Start),
            waiting: Vec::new(),
            served: Vec::new(),
            untold: Untold::default(),
            running: None,
            next: Instant::now() + PERIOD,
            retry: RETRY_FIRST,
        };
        (SupervisorHandle { requests: sender, drifts: drift_sender, end: Arc::new(end) }, supervisor)
    }

    /// Runs until the daemon is to end, and until a bring-up that runs then has ended.
    pub async fn run(mut self) {
        let mut changes = self.world.changes();
        let mut end = self.end.clone();
        self.follow().await;
        loop {
            self.start_pending();
            tokio::select! {
                () = until_ended(&mut end) => break,
                ended = finished(&mut self.running) => self.finish(ended).await,
                Some(answer) = self.requests.recv() => {
                    self.waiting.push(answer);
                    self.pending = Some(Trigger::Up);
                }
                Some(what) = self.drifts.recv() => {
                    self.pending.get_or_insert(Trigger::Drift { what });
                }
                process = self.watches.death() => self.died(&process).await,
                changed = changes.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    tokio::time::sleep(SETTLE).await;
                    changes.borrow_and_update();
                    self.follow().await;
                }
                () = tokio::time::sleep_until(self.next), if self.running.is_none() => {
                    self.pending.get_or_insert(Trigger::Timer);
                }
            }
        }
        if let Some(running) = self.running.take() {
            let _ = running.await;
        }
    }

    fn start_pending(&mut self) {
        if self.running.is_some() {
            return;
        }
        let Some(trigger) = self.pending.take() else { return };
        self.served.append(&mut self.waiting);
        let (world, session) = (Arc::clone(&self.world), self.session);
        self.running =
            Some(tokio::spawn(without_waiting(
                async move { driver::bring_up(&*world, &session, trigger).await },
            )));
    }

    async fn died(&mut self, process: &holdfast_core::id::ProcessRef) {
        // The records may have let go of it since, or the node is going down: then somebody ended it on purpose.
        let who = self
            .world
            .read(|records| {
                let down = records.node.as_ref().is_some_and(|node| node.down);
                wanted(records).remove(process).filter(|_| !down)
            })
            .await;
        if let Some(who) = who {
            tracing::info!(pid = process.pid, who, "process died");
            self.pending.get_or_insert(Trigger::Death { who });
        }
    }

    /// Watches what the records name.
    async fn follow(&mut self) {
        let wanted = self.world.read(wanted).await;
        self.watches.set(wanted.keys());
    }

    async fn finish(&mut self, ended: Result<BringUpReport, tokio::task::JoinError>) {
        self.running = None;
        self.follow().await;
        let failed = match ended {
            Ok(report) => {
                let due = report.next_due;
                let failed = !report.errors.is_empty();
                if failed {
                    tracing::warn!(%report, "bring-up left something degraded");
                } else {
                    tracing::debug!(%report, "bring-up");
                }
                self.tell(Arc::new(report));
                self.next = Instant::now() + self.until(due).min(self.period());
                failed
            }
            Err(error) => {
                tracing::error!(%error, "bring-up did not end");
                self.served.clear();
                true
            }
        };
        if failed {
            self.next = self.next.min(Instant::now() + self.retry);
            self.retry = (self.retry * 2).min(PERIOD);
        } else {
            self.retry = RETRY_FIRST;
        }
    }

    /// Answers who waits. A client that hung up was not told.
    fn tell(&mut self, report: Arc<BringUpReport>) {
        let told = Told { report: Arc::clone(&report), before: self.untold.all() };
        let mut heard = false;
        for answer in self.served.drain(..) {
            heard |= answer.send(told.clone()).is_ok();
        }
        if heard {
            self.untold.told();
        } else {
            self.untold.keep(report);
        }
    }

    fn until(&self, due: Option<Mono>) -> Duration {
        let Some(due) = due else { return PERIOD * 2 };
        let Span(nanoseconds) = due.since(self.world.now());
        Duration::from_nanos(nanoseconds)
    }

    /// The period with jitter, so that nodes started together do not work in step.
    fn period(&self) -> Duration {
        let mut random = [0; 1];
        self.world.fill(&mut random);
        PERIOD.mul_f64(0.8 + 0.4 * f64::from(random[0]) / 255.0)
    }
}

/// Comes back when the daemon is to end.
pub async fn until_ended(end: &mut watch::Receiver<bool>) {
    // An error says that every handle is gone, and with it the daemon. The guard that success returns must not
    // live over an await.
    let _ = end.wait_for(|end| *end).await.is_ok();
}

/// The running bring-up's end; never, when none runs.
async fn finished(
    running: &mut Option<JoinHandle<BringUpReport>>,
) -> Result<BringUpReport, tokio::task::JoinError> {
    match running {
        Some(handle) => handle.await,
        None => std::future::pending().await,
    }
}
