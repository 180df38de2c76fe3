//! Where the API listens: the node's own socket, a configured one, a TCP port of the loopback interface.

use super::Config;
use crate::{api::server, node::supervisor::until_ended};
use anyhow::{Context, bail};
use axum::Router;
use holdfast_linux::paths::Paths;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, UnixListener, UnixStream},
    sync::{Semaphore, watch},
};

/// TCP connections served at once.
const CONNECTIONS_MAX: usize = 256;
/// How long the head of a request may take, and an idle connection stay.
const HEADER_DEADLINE: Duration = Duration::from_secs(30);

/// Something that listens.
pub enum Listener {
    /// A unix socket.
    Unix(UnixListener),
    /// A TCP port.
    Tcp(TcpListener),
}

/// Listens wherever it is configured; what cannot be is told.
pub async fn listeners(paths: &Paths, config: &Config) -> Vec<Listener> {
    let mut listeners = Vec::new();
    let mut add = |what: String, listener: anyhow::Result<Listener>| match listener {
        Ok(listener) => {
            tracing::info!(at = %what, "interLink plugin listens");
            listeners.push(listener);
        }
        Err(error) => {
            tracing::error!(at = %what, error = format!("{error:#}"), "interLink plugin does not listen")
        }
    };
    let own = paths.interlink_socket();
    add(own.display().to_string(), server::listen(&own).map(Listener::Unix).map_err(Into::into));
    if let Some(path) = config.socket.as_deref().filter(|path| *path != own) {
        add(path.display().to_string(), foreign(path).await);
    }
    if let Some(port) = config.port {
        let address = SocketAddr::new(config.address, port);
        let listener = TcpListener::bind(address).await.with_context(|| format!("listen at {address}"));
        add(address.to_string(), listener.map(Listener::Tcp));
    }
    listeners
}

/// A socket at a path that is not the node's: a stale one is replaced, anything else is left alone.
async fn foreign(path: &Path) -> anyhow::Result<Listener> {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            bail!("{} is there and no socket; remove it", path.display())
        }
        Ok(_) => {
            if UnixStream::connect(path).await.is_ok() {
                bail!("another process listens at {}; end it, or name another Socket", path.display());
            }
            std::fs::remove_file(path).with_context(|| format!("remove the stale {}", path.display()))?;
        }
        Err(_) => {}
    }
    Ok(Listener::Unix(server::listen(path).with_context(|| format!("listen at {}", path.display()))?))
}

impl Listener {
    /// Serves until `end` says so.
    pub async fn serve(self, router: Router, end: watch::Receiver<bool>) {
        match self {
            Self::Unix(listener) => server::serve(listener, router, end).await,
            Self::Tcp(listener) => serve_tcp(listener, router, end).await,
        }
    }
}

async fn serve_tcp(listener: TcpListener, router: Router, mut end: watch::Receiver<bool>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = until_ended(&mut end) => return,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        // One more waits in the kernel's queue until a connection ends.
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let router = router.clone();
        tokio::spawn(async move {
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_DEADLINE)
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
                .await;
            if let Err(error) = served {
                tracing::debug!(%error, "connection ended early");
            }
            drop(slot);
        });
    }
}
