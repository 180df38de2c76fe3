//! Services that the control gives workloads, at the addresses of the bridges.
//!
//! They run on a thread of their own in the router's namespaces, from the snapshot that the control serves: a daemon
//! that is away, and a worker that is busy, delay no answer. To add one: write a function from [`Ground`] that runs
//! for ever, name it in [`all`], keep its sockets with a [`Listeners`], say how it is with [`Ground::report`], and
//! let its packets in where `net/nft/base.rs` lists the node's own services.

mod board;
mod listeners;
pub(crate) mod socket;

pub(crate) use board::Board;
pub(crate) use listeners::Listeners;

use crate::paths::Paths;
use holdfast_core::{observed::ServiceObserved, world::Snapshot};
use std::{future::Future, pin::Pin, sync::Arc, time::Duration};
use tokio::sync::{oneshot, watch};

/// Wait before a service that ended or panicked is started again; doubles up to the most.
const RESTART_FIRST: Duration = Duration::from_millis(100);
/// The longest such wait.
const RESTART_MAX: Duration = Duration::from_secs(5);

/// What a service stands on.
#[derive(Clone, Debug)]
pub(crate) struct Ground {
    /// The node's directories.
    pub paths: Paths,
    /// What the control serves now; changes as soon as the daemon has handed another one over, before the daemon is
    /// told so.
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    board: Board,
}

impl Ground {
    /// A ground for tests.
    #[cfg(test)]
    pub fn new(paths: Paths, snapshots: watch::Receiver<Arc<Snapshot>>) -> Self {
        Self { paths, snapshots, board: Board::default() }
    }

    /// Says how a service is: `holdfast status` shows it.
    pub fn report(&self, state: ServiceObserved) {
        self.board.set(state);
    }
}

/// A service: what runs as long as the control does.
#[derive(Clone, Copy)]
pub(crate) struct Service {
    /// Its name, for people.
    pub name: &'static str,
    /// Starts it. It may use [`tokio::task::spawn_local`].
    pub run: fn(Ground) -> Pin<Box<dyn Future<Output = ()>>>,
}

/// Every service of a node.
pub(crate) fn all() -> Vec<Service> {
    vec![crate::dns::SERVICE]
}

/// The running services.
#[derive(Debug)]
pub(crate) struct Running {
    ended: oneshot::Receiver<()>,
}

impl Running {
    /// Comes back, with the reason, when the services' thread is gone: only another control helps.
    pub async fn failed(self) -> &'static str {
        // Nothing is ever sent: the sender goes when the thread does.
        let _ = self.ended.await;
        "the thread of the services ended"
    }
}

/// Starts the thread of the services, in the namespaces of the calling one.
///
/// # Errors
/// When the thread cannot be made.
pub(crate) fn start(
    services: Vec<Service>,
    paths: Paths,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    board: Board,
) -> std::io::Result<Running> {
    let (alive, ended) = oneshot::channel::<()>();
    let ground = Ground { paths, snapshots, board };
    std::thread::Builder::new().name("services".to_owned()).spawn(move || {
        let _alive = alive;
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return tracing::error!(%error, "no runtime for the services"),
        };
        let tasks = tokio::task::LocalSet::new();
        tasks.block_on(&runtime, async move {
            for service in services {
                tokio::task::spawn_local(keep(service, ground.clone()));
            }
            // The services end with the process.
            std::future::pending::<()>().await;
        });
    })?;
    Ok(Running { ended })
}

/// Runs a service again and again: one that panics takes no other with it.
async fn keep(service: Service, ground: Ground) {
    let mut wait = RESTART_FIRST;
    loop {
        let began = tokio::time::Instant::now();
        let ended = tokio::task::spawn_local((service.run)(ground.clone())).await;
        let cause = match ended {
            Ok(()) => "it ended".to_owned(),
            Err(error) => error.to_string(),
        };
        tracing::error!(service = service.name, cause, "the service is started again");
        ground.report(ServiceObserved::faulty(service.name, &cause));
        if began.elapsed() > RESTART_MAX {
            wait = RESTART_FIRST;
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(RESTART_MAX);
    }
}
