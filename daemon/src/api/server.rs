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
        if let Some(problem) = refusal(&stream) {
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

/// Why a client is not served: only this node's user, and root, may ask it anything.
fn refusal(stream: &UnixStream) -> Option<Problem> {
    let detail = match stream.peer_cred() {
        Ok(peer) if peer.uid() == getuid().as_raw() || Uid::from_raw(peer.uid()).is_root() => return None,
        Ok(peer) => format!("this node belongs to uid {}, not to uid {}", getuid(), peer.uid()),
        Err(error) => format!("who connects is unknown: {error}"),
    };
    Some(Problem::new(403, "denied", detail))
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::api::body::{Body, Query};
    use axum::routing::{get, post};
    use holdfast_core::ops::request::{NetworkRequest, RemoveRequest};
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    use tokio::io::AsyncReadExt;

    struct Server {
        _directory: tempfile::TempDir,
        path: std::path::PathBuf,
        end: watch::Sender<bool>,
    }

    fn server() -> Server {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("daemon.sock");
        // A stale directory at the socket's path.
        std::fs::create_dir_all(path.join("inside")).unwrap();
        let router = Router::new()
            .route("/make", post(|Body(request): Body<NetworkRequest>| async move { request.name }))
            .route(
                "/query",
                get(|Query(request): Query<RemoveRequest>| async move { request.force.to_string() }),
            )
            .layer(axum::extract::DefaultBodyLimit::max(1 << 20));
        let (end, ended) = watch::channel(false);
        tokio::spawn(serve(listen(&path).unwrap(), router, ended));
        Server { _directory: directory, path, end }
    }

    async fn ask(path: &Path, request: &str) -> String {
        let mut stream = UnixStream::connect(path).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    fn request(body: &str) -> String {
        let length = body.len();
        format!(
            "POST /make HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        )
    }

    #[tokio::test]
    async fn the_socket_is_this_users_alone_and_replaces_what_was_stale() {
        let server = server();
        let metadata = server.path.symlink_metadata().unwrap();
        assert!(metadata.file_type().is_socket());
        assert_eq!(metadata.mode() & 0o777, 0o600);
    }

    #[tokio::test]
    async fn bodies_are_taken_or_refused_with_a_problem() {
        let server = server();
        let made = ask(&server.path, &request(r#"{"name":"net"}"#)).await;
        assert!(made.starts_with("HTTP/1.1 200") && made.ends_with("net"), "{made}");
        for (body, why) in [
            (r#"{"name":"net","color":"red"}"#, "unknown field `color`"),
            (r#"{"name":7}"#, "invalid type"),
            ("{", "EOF"),
            ("", "missing field `name`"),
        ] {
            let refused = ask(&server.path, &request(body)).await;
            assert!(refused.starts_with("HTTP/1.1 400"), "{body}: {refused}");
            assert!(
                refused.contains("application/problem+json") && refused.contains(why),
                "{body}: {refused}"
            );
        }
        let large = ask(&server.path, &request(&" ".repeat((1 << 20) + 1))).await;
        assert!(large.starts_with("HTTP/1.1 413") && large.contains("too_large"), "{large}");
    }

    #[tokio::test]
    async fn queries_are_taken_or_refused() {
        let server = server();
        let get = |query: &str| format!("GET /query{query} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        assert!(ask(&server.path, &get("?force=true")).await.ends_with("true"));
        assert!(ask(&server.path, &get("")).await.ends_with("false"));
        let refused = ask(&server.path, &get("?froce=true")).await;
        assert!(refused.starts_with("HTTP/1.1 400") && refused.contains("froce"), "{refused}");
    }

    #[tokio::test]
    async fn a_silent_client_keeps_nobody_waiting() {
        let server = server();
        let mut silent = Vec::new();
        for _ in 0..50 {
            silent.push(UnixStream::connect(&server.path).await.unwrap());
        }
        let request = request(r#"{"name":"n"}"#);
        let answer = tokio::time::timeout(Duration::from_secs(5), ask(&server.path, &request)).await;
        assert!(answer.unwrap().starts_with("HTTP/1.1 200"));
        server.end.send_replace(true);
    }
}
