//! The socket: who may connect, how many, how long a silent client is borne.

use super::{problem::Problem, streams::OnUpgradeSlot};
use crate::node::supervisor::until_ended;
use axum::{Router, response::IntoResponse};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use nix::unistd::{Uid, getuid};
use std::{io, os::unix::fs::PermissionsExt, path::Path, sync::Arc, time::Duration};
use tokio::{
    io::AsyncWriteExt,
    net::{UnixListener, UnixStream},
    sync::{Semaphore, watch},
};

/// Connections served at once; one more is told so. Streams (`logs -f`, `exec`, `wait`) hold one each.
const CONNECTIONS_MAX: usize = 1024;

/// How long the head of a request may take, and an idle connection stay.
const HEADER_DEADLINE: Duration = Duration::from_secs(10);

/// How long a refused client may take to be told.
const REFUSE_DEADLINE: Duration = Duration::from_secs(1);

/// Listens at `path`, for this user alone. Whatever lies there is stale: the caller holds the node's lock.
///
/// # Errors
/// I/O errors.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    crate::node::stale::clear(path)?;
    let listener = UnixListener::bind(path)?;
    // The directory is 0700 already; this says the same of the socket itself.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves until `end` says so; connections that are being served go on.
pub async fn serve(listener: UnixListener, router: Router, mut end: watch::Receiver<bool>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = until_ended(&mut end) => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: they come back when connections end.
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        if let Err(problem) = admit(&stream) {
            tokio::spawn(refuse(stream, problem));
            continue;
        }
        match Arc::clone(&slots).try_acquire_owned() {
            Ok(slot) => {
                let router = router.clone();
                tokio::spawn(async move {
                    connection(stream, router).await;
                    drop(slot);
                });
            }
            Err(_) => {
                let detail = format!("{CONNECTIONS_MAX} connections are open; try again");
                tokio::spawn(refuse(stream, Problem::new(503, "busy", detail)));
            }
        }
    }
}

/// Only this node's user, and root, may ask it anything.
fn admit(stream: &UnixStream) -> Result<(), Problem> {
    let peer = stream
        .peer_cred()
        .map_err(|error| Problem::new(403, "denied", format!("who connects is unknown: {error}")))?;
    if peer.uid() == getuid().as_raw() || Uid::from_raw(peer.uid()).is_root() {
        return Ok(());
    }
    Err(Problem::new(
        403,
        "denied",
        format!("this node belongs to uid {}, not to uid {}", getuid(), peer.uid()),
    ))
}

/// Answers without reading a request, within a deadline.
async fn refuse(mut stream: UnixStream, problem: Problem) {
    let status = problem.status;
    let (_, body) = problem.into_response().into_parts();
    let body = axum::body::to_bytes(body, 64 << 10).await.unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {status} Refused\r\ncontent-type: {}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        super::problem::MEDIA_TYPE,
        body.len()
    );
    let answer = async {
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&body).await?;
        stream.shutdown().await
    };
    let _ = tokio::time::timeout(REFUSE_DEADLINE, answer).await;
}

async fn connection(stream: UnixStream, router: Router) {
    // The upgrade hangs on hyper's request and would be lost when the body is read: it is put where the
    // handler that wants it finds it.
    let service = tower_service(router);
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_DEADLINE)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "connection ended early");
    }
}

fn tower_service(
    router: Router,
) -> impl hyper::service::Service<
    hyper::Request<hyper::body::Incoming>,
    Response = axum::response::Response,
    Error = std::convert::Infallible,
    Future: Send,
> {
    let inner = TowerToHyperService::new(router);
    hyper::service::service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        if request.headers().contains_key(hyper::header::UPGRADE) {
            let upgrade = hyper::upgrade::on(&mut request);
            request.extensions_mut().insert(OnUpgradeSlot::new(upgrade));
        }
        hyper::service::Service::call(&inner, request)
    })
}
