//! The one serialized worker: a thread of its own, so that a long netlink call delays no handshake and no ping.

use super::{Hands, Request, Response, snapshot::SnapshotFile};
use crate::service::Board;
use holdfast_core::error::{Class, RouterError};
use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, oneshot};

/// How many requests may wait. More are told that the control is busy.
pub(super) const QUEUE_MAX: usize = 64;

/// How far beyond its deadline a request may hold the worker: a call that never comes back holds it for ever,
/// and only another process helps.
const OVERDUE_MAX: Duration = Duration::from_secs(5);
/// How often that is looked at.
const WATCH_PERIOD: Duration = Duration::from_millis(500);

/// The running worker.
pub(super) struct Worker {
    pub jobs: mpsc::Sender<Job>,
    current: Current,
}

/// The deadline of the request that is being carried out.
type Current = Arc<Mutex<Option<Instant>>>;

impl Worker {
    /// Comes back, with the reason, when the worker can work no more: it ended, or is stuck in a call.
    pub async fn failed(&self) -> &'static str {
        let mut period = tokio::time::interval(WATCH_PERIOD);
        loop {
            tokio::select! {
                () = self.jobs.closed() => return "the worker ended",
                _ = period.tick() => {}
            }
            let current = *self.current.lock().unwrap_or_else(PoisonError::into_inner);
            if current.is_some_and(|deadline| deadline.elapsed() > OVERDUE_MAX) {
                return "the worker is stuck in a request long past its deadline";
            }
        }
    }
}

/// One request on its way to the worker.
pub(super) struct Job {
    pub request: Request,
    pub deadline: Instant,
    pub reply: oneshot::Sender<Response>,
}

/// Starts the worker; comes back when its hands are open.
pub(super) async fn start<H, F, O>(
    open: O,
    snapshots: Arc<SnapshotFile>,
    board: Board,
) -> Result<Worker, RouterError>
where
    H: Hands,
    F: Future<Output = Result<H, RouterError>>,
    O: FnOnce() -> F + Send + 'static,
{
    let (jobs, queue) = mpsc::channel(QUEUE_MAX);
    let (opened, wait) = oneshot::channel();
    let current = Current::default();
    let seen = current.clone();
    let fail = |cause: String| RouterError::new(Class::Fatal, "start", "worker of the control", cause);
    std::thread::Builder::new()
        .name("worker".to_owned())
        .spawn(move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => {
                    let error = RouterError::new(Class::Exhausted, "start", "worker of the control", error);
                    return drop(opened.send(Err(error)));
                }
            };
            let tasks = tokio::task::LocalSet::new();
            tasks.block_on(&runtime, async move {
                match open().await {
                    Ok(hands) => {
                        // The receiver is gone only if the control is ending.
                        let _ = opened.send(Ok(()));
                        work(hands, queue, &snapshots, &board, &seen).await;
                    }
                    Err(error) => drop(opened.send(Err(error))),
                }
            });
        })
        .map_err(|error| fail(error.to_string()))?;
    wait.await.map_err(|_| fail("it ended while it opened its hands".to_owned()))??;
    Ok(Worker { jobs, current })
}

async fn work<H: Hands>(
    mut hands: H,
    mut queue: mpsc::Receiver<Job>,
    snapshots: &SnapshotFile,
    board: &Board,
    current: &Current,
) {
    let note = |deadline| *current.lock().unwrap_or_else(PoisonError::into_inner) = deadline;
    while let Some(job) = queue.recv().await {
        let (action, subject) = job.request.describe();
        note(Some(job.deadline.max(Instant::now())));
        let left = job.deadline.saturating_duration_since(Instant::now());
        let response = if left.is_zero() {
            Response::Failed(RouterError::new(
                Class::Transient,
                action,
                subject,
                "its deadline passed while it waited for others",
            ))
        } else {
            match tokio::time::timeout(left, carry_out(&mut hands, job.request, snapshots, board)).await {
                Ok(response) => response,
                Err(_) => {
                    tracing::warn!(action, subject, "not done in time");
                    Response::Failed(RouterError::new(
                        Class::Unknown,
                        action,
                        subject,
                        "not done within its deadline",
                    ))
                }
            }
        };
        note(None);
        // The caller may have gone; the effect stays, and will be observed.
        let _ = job.reply.send(response);
    }
}

async fn carry_out<H: Hands>(
    hands: &mut H,
    request: Request,
    snapshots: &SnapshotFile,
    board: &Board,
) -> Response {
    let done = match request {
        Request::ObserveRouter => {
            let observed = hands.observe_router().await;
            return response(observed.map(|mut observed| {
                observed.services = board.all();
                Response::Router(observed)
            }));
        }
        Request::CountVerdicts => return response(hands.count_verdicts().await.map(Response::Verdicts)),
        Request::Probe(probe) => return response(hands.probe(&probe).await.map(Response::Probed)),
        Request::HandSnapshot(snapshot) => snapshots.replace(snapshot),
        Request::EnsureRuleset(ruleset) => hands.ensure_ruleset(&ruleset).await,
        Request::AddElements(elements) => hands.add_elements(&elements).await,
        Request::RemoveElements(elements) => hands.remove_elements(&elements).await,
        Request::EnsureNetwork(plan) => hands.ensure_network(&plan).await,
        Request::RemoveNetwork(plan) => hands.remove_network(&plan).await,
        Request::EnsureSandbox(plan) => hands.ensure_sandbox(&plan).await,
        Request::RemoveSandbox(id) => hands.remove_sandbox(&id).await,
        Request::Attach(plan) => hands.attach(&plan).await,
        Request::Detach(slot) => hands.detach(slot).await,
        // Answered by the connection, never queued.
        Request::Ping | Request::GetSnapshot | Request::AwaitDrift { .. } => Ok(()),
    };
    response(done.map(|()| Response::Done))
}

fn response(result: Result<Response, RouterError>) -> Response {
    result.unwrap_or_else(|error| {
        tracing::warn!(%error, class = %error.class, "request failed");
        Response::Failed(error)
    })
}
