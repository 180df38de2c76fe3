//! Connections: each a task of its own, so that a silent client delays nobody.

use super::{
    Drift, Envelope, FrameError, Pong, Request, Response,
    frame::{read_body, read_frame, read_length, write_frame},
    hello::{ClientHello, MAGIC, PROTOCOL_VERSION, Role, ServerHello, build_id, peer},
    snapshot::SnapshotFile,
    worker::Job,
};
use crate::process::ProcessWatch;
use holdfast_core::{
    error::{Class, RouterError},
    id::ProcessRef,
    record::NamespaceIds,
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{Semaphore, mpsc, oneshot, watch},
    time::timeout,
};

/// How long a client may take for its hello, which it sends at once: silent ones must not fill the places for
/// longer than a client that is not waits.
const HELLO_DEADLINE: Duration = Duration::from_secs(1);
/// How long a connection may be idle; a client that comes back later connects again.
pub(super) const IDLE_DEADLINE: Duration = Duration::from_secs(120);
/// How long one frame may take in either direction.
const FRAME_DEADLINE: Duration = Duration::from_secs(10);
/// The most connections; more wait in the socket's backlog.
const CONNECTIONS_MAX: usize = 128;
/// The longest deadline that a client may ask for.
const DEADLINE_MAX: Duration = Duration::from_secs(300);
/// Pause after a failed accept (EMFILE and the like), so that it is no busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// What all connections share.
pub(super) struct Shared {
    pub process: ProcessRef,
    pub namespaces: NamespaceIds,
    pub snapshots: Arc<SnapshotFile>,
    pub jobs: mpsc::Sender<Job>,
    pub daemon: Mutex<DaemonSeen>,
    pub drift: watch::Receiver<Drift>,
}

/// What is known of the daemon.
#[derive(Debug, Default)]
pub(super) struct DaemonSeen {
    process: Option<ProcessRef>,
    gone_since: Option<Instant>,
}

/// Accepts for ever.
pub(super) async fn serve(listener: UnixListener, shared: Arc<Shared>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // Closed by nobody, so it cannot fail; were it closed, there would be nothing left to do.
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let shared = shared.clone();
        tokio::spawn(async move {
            if let Err(error) = converse(stream, &shared).await {
                tracing::debug!(%error, "connection ended");
            }
            drop(permit);
        });
    }
}

async fn converse(mut stream: UnixStream, shared: &Arc<Shared>) -> Result<(), FrameError> {
    let (uid, process) = peer(&stream)?;
    if uid != nix::unistd::getuid().as_raw() {
        tracing::warn!(uid, "a connection of another user was refused");
        return Ok(());
    }
    let hello = timeout(HELLO_DEADLINE, read_frame::<ClientHello>(&mut stream)).await.map_err(late)??;
    let Some(hello) = hello else { return Ok(()) };
    let answer = ServerHello {
        magic: MAGIC.to_owned(),
        protocol: PROTOCOL_VERSION,
        build: build_id().to_owned(),
        process: shared.process.clone(),
        namespaces: shared.namespaces,
    };
    timeout(FRAME_DEADLINE, write_frame(&mut stream, &answer)).await.map_err(late)??;
    if hello.magic != MAGIC || hello.protocol != PROTOCOL_VERSION {
        return Ok(());
    }
    if let (Role::Daemon, Some(process)) = (hello.role, process) {
        watch_daemon(shared, process);
    }
    loop {
        let Some(length) = timeout(IDLE_DEADLINE, read_length(&mut stream)).await.map_err(late)?? else {
            return Ok(());
        };
        let read = timeout(FRAME_DEADLINE, read_body::<Envelope>(&mut stream, length)).await.map_err(late)?;
        let response = match read {
            Ok(envelope) => answer_request(envelope, shared).await,
            Err(FrameError::Malformed(error)) => {
                Response::Failed(RouterError::new(Class::Corrupt, "understand", "a request", error))
            }
            Err(error) => return Err(error),
        };
        timeout(FRAME_DEADLINE, write_frame(&mut stream, &response)).await.map_err(late)??;
    }
}

fn late(_: tokio::time::error::Elapsed) -> FrameError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

async fn answer_request(envelope: Envelope, shared: &Shared) -> Response {
    let waiting = || shared.jobs.max_capacity() - shared.jobs.capacity();
    match envelope.request {
        Request::Ping => Response::Pong(Pong {
            process: shared.process.clone(),
            waiting: waiting(),
            snapshot_generation: shared.snapshots.generation(),
            daemon_gone_for_ms: daemon_gone_for_ms(shared),
        }),
        Request::GetSnapshot => Response::Snapshot(shared.snapshots.current()),
        Request::AwaitDrift { seen } => {
            let mut drift = shared.drift.clone();
            let deadline = Duration::from_millis(envelope.deadline_ms).min(DEADLINE_MAX);
            // When the time is up the answer is what there is.
            let _ = timeout(deadline, drift.wait_for(|drift| drift.count != seen)).await;
            let told = drift.borrow().clone();
            Response::Drift(told)
        }
        request => {
            let (action, subject) = request.describe();
            let deadline = Instant::now() + Duration::from_millis(envelope.deadline_ms).min(DEADLINE_MAX);
            let (reply, answer) = oneshot::channel();
            match shared.jobs.try_send(Job { request, deadline, reply }) {
                Ok(()) => answer.await.unwrap_or_else(|_| {
                    Response::Failed(RouterError::new(
                        Class::Unknown,
                        action,
                        subject,
                        "the worker of the control ended",
                    ))
                }),
                Err(mpsc::error::TrySendError::Full(_)) => Response::Busy { waiting: waiting() },
                Err(mpsc::error::TrySendError::Closed(_)) => Response::Failed(
                    RouterError::new(
                        Class::Transient,
                        action,
                        subject,
                        "the worker of the control has ended",
                    )
                    .with_remedy("the daemon replaces this control"),
                ),
            }
        }
    }
}

fn daemon_gone_for_ms(shared: &Shared) -> Option<u64> {
    let daemon = shared.daemon.lock().unwrap_or_else(PoisonError::into_inner);
    daemon.gone_since.map(|since| u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX))
}

/// Remembers the daemon and notices its end; one watch per daemon, however often it connects.
fn watch_daemon(shared: &Arc<Shared>, process: ProcessRef) {
    {
        let mut daemon = shared.daemon.lock().unwrap_or_else(PoisonError::into_inner);
        if daemon.process.as_ref() == Some(&process) {
            return;
        }
        *daemon = DaemonSeen { process: Some(process.clone()), gone_since: None };
    }
    let watch = match ProcessWatch::open(&process) {
        Ok(watch) => watch,
        Err(error) => return tracing::warn!(%process, %error, "the daemon cannot be watched"),
    };
    let shared = shared.clone();
    tokio::spawn(async move {
        let ended = match watch {
            Some(watch) => watch.exited().await,
            None => Ok(()),
        };
        if let Err(error) = ended {
            return tracing::warn!(%error, "the daemon cannot be watched any more");
        }
        let mut daemon = shared.daemon.lock().unwrap_or_else(PoisonError::into_inner);
        if daemon.process.as_ref() == Some(&process) {
            daemon.gone_since = Some(Instant::now());
            tracing::info!(%process, "the daemon is gone; the snapshot is served on");
        }
    });
}
