//! Core's `Router` as a client of the control.

use super::{
    Drift, Envelope, FrameError, Pong, Request, Response,
    frame::{read_frame, write_frame},
    hello::{GreetError, Role, greet},
};
use crate::paths::Paths;
use holdfast_core::{
    error::{Class, RouterError},
    id::{SandboxId, Slot},
    observed::RouterObserved,
    plan::{AttachmentPlan, NetworkPlan, SandboxPlan},
    ruleset::{Counter, Element, Ruleset},
    world::{Probe, Router, Snapshot},
};
use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::{net::UnixStream, sync::Semaphore};

/// How long a control that is absent is waited for: the daemon restarts a dead one within milliseconds.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// How long a request may take at the control, queueing included.
const REQUEST_DEADLINE: Duration = Duration::from_secs(30);
/// How long a wait for changes by others lasts.
const DRIFT_WAIT: Duration = Duration::from_secs(20);
/// How much longer than the control the client waits for the answer.
const ANSWER_MARGIN: Duration = Duration::from_secs(2);
/// How long one frame may take to be written.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);
/// Between two tries to connect, and after a busy answer.
const RETRY_PERIOD: Duration = Duration::from_millis(5);
/// An idle connection older than this is not used again; the control ends it after a longer time.
const REUSE_WITHIN: Duration = Duration::from_secs(60);
/// The most requests at the same time; others wait here, within their deadline.
const CONCURRENT_MAX: usize = 32;
/// The most idle connections kept.
const IDLE_MAX: usize = 8;

tokio::task_local! {
    /// Set where nobody else would start a control: see [`without_waiting`].
    static STARTS_CONTROLS: ();
}

/// Runs `future`, in which a request to a control that is absent fails at once. For the bring-up, which starts
/// controls itself: one that dies under it would else be waited for by the only one who can replace it.
pub async fn without_waiting<F: Future>(future: F) -> F::Output {
    STARTS_CONTROLS.scope((), future).await
}

/// A client of one node's control, for many callers at the same time.
///
/// While no control listens, a request waits for one to be started, 5 s at most (not in [`without_waiting`]), and
/// fails as `Transient`: it had no effect. Where a connection is lost after a request was sent, nobody knows whether it was carried
/// out. Every request is idempotent, so it is sent once more to a control that answers the handshake; if that
/// too is lost the outcome is `Unknown`. A control of another build is `Conflict`: the daemon replaces it.
#[derive(Debug)]
pub struct ControlClient {
    socket: PathBuf,
    role: Role,
    idle: Mutex<Vec<(UnixStream, Instant)>>,
    permits: Semaphore,
}

enum Lost {
    /// The request did not go out whole, or the connection was one that the control had closed before.
    Before(String),
    /// It went out.
    After(String),
    /// The answer did not come in time, or cannot be understood.
    Hopeless(Class, String),
}

impl ControlClient {
    /// A client; connects when it is used.
    pub fn new(paths: &Paths, role: Role) -> Self {
        Self {
            socket: paths.control_socket(),
            role,
            idle: Mutex::new(Vec::new()),
            permits: Semaphore::new(CONCURRENT_MAX),
        }
    }

    /// How the control is.
    ///
    /// # Errors
    /// As every request; see [`ControlClient`].
    pub async fn ping(&self) -> Result<Pong, RouterError> {
        match self.call(Request::Ping).await? {
            Response::Pong(pong) => Ok(pong),
            other => Err(unexpected("ping", &other)),
        }
    }

    /// The snapshot that the control serves.
    ///
    /// # Errors
    /// As every request; see [`ControlClient`].
    pub async fn snapshot(&self) -> Result<Snapshot, RouterError> {
        match self.call(Request::GetSnapshot).await? {
            Response::Snapshot(snapshot) => Ok(snapshot),
            other => Err(unexpected("read snapshot", &other)),
        }
    }

    /// Waits until others have changed the router since the answer `seen`, and says so; comes back with the same count
    /// after some time without. A control that has begun anew counts from 0.
    ///
    /// # Errors
    /// As every request; see [`ControlClient`].
    pub async fn await_drift(&self, seen: u64) -> Result<Drift, RouterError> {
        match self.call_within(Request::AwaitDrift { seen }, DRIFT_WAIT).await? {
            Response::Drift(drift) => Ok(drift),
            other => Err(unexpected("await changes", &other)),
        }
    }

    /// Sends a request and comes back with the answer, which is neither `Busy` nor `Failed`.
    ///
    /// # Errors
    /// See [`ControlClient`].
    pub async fn call(&self, request: Request) -> Result<Response, RouterError> {
        self.call_within(request, REQUEST_DEADLINE).await
    }

    async fn call_within(&self, request: Request, span: Duration) -> Result<Response, RouterError> {
        let (action, subject) = request.describe();
        let fail = |class, cause: String| RouterError::new(class, action, subject.clone(), cause);
        let deadline = Instant::now() + span;
        let waited = tokio::time::timeout_at(deadline.into(), self.permits.acquire()).await;
        let Ok(Ok(_permit)) = waited else {
            return Err(fail(
                Class::Transient,
                "other requests to the control did not end in time".to_owned(),
            ));
        };
        let mut sent_before = false;
        loop {
            let (stream, fresh) = self.connection(deadline).await.map_err(|(class, cause)| {
                // Once sent, an error that says "no effect" would be a lie.
                let class = if sent_before { Class::Unknown } else { class };
                fail(class, cause)
                    .with_remedy("holdfast status says how the control is; its log is control.log")
            })?;
            let left = deadline.saturating_duration_since(Instant::now());
            match self.exchange(stream, &request, left).await {
                Ok(Response::Busy { waiting }) => {
                    if left < RETRY_PERIOD * 2 {
                        return Err(fail(
                            Class::Transient,
                            format!("the control is busy: {waiting} requests wait"),
                        ));
                    }
                    tokio::time::sleep(RETRY_PERIOD).await;
                }
                Ok(Response::Failed(error)) => return Err(error),
                Ok(response) => return Ok(response),
                Err(Lost::Hopeless(class, cause)) => return Err(fail(class, cause)),
                Err(Lost::Before(cause)) if left.is_zero() => return Err(fail(Class::Transient, cause)),
                Err(Lost::Before(_)) => {}
                // A kept connection may have died with an earlier control.
                Err(Lost::After(_)) if !fresh && !left.is_zero() => sent_before = true,
                Err(Lost::After(cause)) => {
                    if sent_before || left.is_zero() {
                        return Err(fail(
                            Class::Unknown,
                            format!("the connection to the control was lost: {cause}"),
                        ));
                    }
                    sent_before = true;
                }
            }
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<(UnixStream, Instant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An idle connection, or a new one (`true`).
    async fn connection(&self, deadline: Instant) -> Result<(UnixStream, bool), (Class, String)> {
        while let Some((stream, since)) = { self.idle().pop() } {
            if since.elapsed() < REUSE_WITHIN && is_quiet(&stream) {
                return Ok((stream, false));
            }
        }
        let give_up = deadline.min(Instant::now() + CONNECT_DEADLINE);
        loop {
            let left = give_up.saturating_duration_since(Instant::now());
            let error = match greet(&self.socket, self.role, left).await {
                Ok((stream, _)) => return Ok((stream, true)),
                Err(GreetError::Foreign(peer, cause)) => {
                    let who = peer.map_or_else(String::new, |peer| format!(" ({peer})"));
                    return Err((
                        Class::Conflict,
                        format!("the control{who} at {}: {cause}", self.socket.display()),
                    ));
                }
                Err(error) => error,
            };
            let absent = matches!(error, GreetError::Absent(_));
            let in_vain = absent && STARTS_CONTROLS.try_with(|()| ()).is_ok();
            if in_vain || give_up.saturating_duration_since(Instant::now()) <= RETRY_PERIOD {
                return Err((Class::Transient, format!("control at {}: {error}", self.socket.display())));
            }
            tokio::time::sleep(RETRY_PERIOD).await;
        }
    }

    async fn exchange(
        &self,
        mut stream: UnixStream,
        request: &Request,
        left: Duration,
    ) -> Result<Response, Lost> {
        let deadline_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        let envelope = Envelope { deadline_ms, request: request.clone() };
        match tokio::time::timeout(WRITE_DEADLINE, write_frame(&mut stream, &envelope)).await {
            Ok(Ok(())) => {}
            Ok(Err(FrameError::Io(error))) => return Err(Lost::Before(error.to_string())),
            Ok(Err(error)) => return Err(Lost::Hopeless(Class::Fatal, error.to_string())),
            // Not whole, so it will never be carried out.
            Err(_) => {
                return Err(Lost::Hopeless(
                    Class::Transient,
                    "the control did not take the request".to_owned(),
                ));
            }
        }
        let answer = tokio::time::timeout(left + ANSWER_MARGIN, read_frame::<Response>(&mut stream)).await;
        match answer {
            Err(_) => Err(Lost::Hopeless(Class::Unknown, "the control did not answer in time".to_owned())),
            Ok(Ok(Some(response))) => {
                let mut idle = self.idle();
                if idle.len() < IDLE_MAX {
                    idle.push((stream, Instant::now()));
                }
                Ok(response)
            }
            Ok(Ok(None)) => Err(Lost::After("it was closed".to_owned())),
            Ok(Err(FrameError::Io(error))) => Err(Lost::After(error.to_string())),
            Ok(Err(error)) => Err(Lost::Hopeless(Class::Corrupt, format!("the control's answer: {error}"))),
        }
    }

    async fn done(&self, request: Request) -> Result<(), RouterError> {
        match self.call(request).await? {
            Response::Done => Ok(()),
            other => Err(unexpected("carry out a request", &other)),
        }
    }
}

/// Whether an idle connection is still open: nothing to read, no end.
fn is_quiet(stream: &UnixStream) -> bool {
    let mut byte = [0u8];
    matches!(stream.try_read(&mut byte), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

fn unexpected(action: &str, response: &Response) -> RouterError {
    RouterError::new(
        Class::Corrupt,
        action,
        "control",
        format!("it answered something else: {response:.80?}"),
    )
}

impl Router for ControlClient {
    async fn observe_router(&self) -> Result<RouterObserved, RouterError> {
        match self.call(Request::ObserveRouter).await? {
            Response::Router(observed) => Ok(observed),
            other => Err(unexpected("observe router", &other)),
        }
    }

    async fn ensure_ruleset(&self, ruleset: &Ruleset) -> Result<(), RouterError> {
        self.done(Request::EnsureRuleset(ruleset.clone())).await
    }

    async fn add_elements(&self, elements: &BTreeSet<Element>) -> Result<(), RouterError> {
        self.done(Request::AddElements(elements.clone())).await
    }

    async fn remove_elements(&self, elements: &BTreeSet<Element>) -> Result<(), RouterError> {
        self.done(Request::RemoveElements(elements.clone())).await
    }

    async fn count_verdicts(&self) -> Result<Vec<(Element, Counter)>, RouterError> {
        match self.call(Request::CountVerdicts).await? {
            Response::Verdicts(counters) => Ok(counters),
            other => Err(unexpected("count verdicts", &other)),
        }
    }

    async fn ensure_network(&self, plan: &NetworkPlan) -> Result<(), RouterError> {
        self.done(Request::EnsureNetwork(plan.clone())).await
    }

    async fn remove_network(&self, plan: &NetworkPlan) -> Result<(), RouterError> {
        self.done(Request::RemoveNetwork(plan.clone())).await
    }

    async fn ensure_sandbox(&self, plan: &SandboxPlan) -> Result<(), RouterError> {
        self.done(Request::EnsureSandbox(plan.clone())).await
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RouterError> {
        self.done(Request::RemoveSandbox(id.clone())).await
    }

    async fn attach(&self, plan: &AttachmentPlan) -> Result<(), RouterError> {
        self.done(Request::Attach(plan.clone())).await
    }

    async fn detach(&self, slot: Slot) -> Result<(), RouterError> {
        self.done(Request::Detach(slot)).await
    }

    async fn probe(&self, probe: &Probe) -> Result<bool, RouterError> {
        match self.call(Request::Probe(probe.clone())).await? {
            Response::Probed(answered) => Ok(answered),
            other => Err(unexpected("probe", &other)),
        }
    }

    async fn hand_snapshot(&self, snapshot: &Snapshot) -> Result<(), RouterError> {
        self.done(Request::HandSnapshot(snapshot.clone())).await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn who_starts_controls_does_not_wait_for_one() {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths { state: directory.path().to_owned(), runtime: directory.path().to_owned() };
        let client = ControlClient::new(&paths, Role::Daemon);
        let error = without_waiting(client.ping()).await.unwrap_err();
        assert_eq!(error.class, Class::Transient, "{error}");
        // Everybody else still waits: a control that comes late is found.
        let patient = tokio::time::timeout(Duration::from_millis(100), client.ping()).await;
        assert!(patient.is_err(), "{patient:?}");
    }
}
