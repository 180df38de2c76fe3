//! The daemon: one per node.

mod drift;
mod exec;
mod linux;
mod lock;
mod log;
pub mod notify;
pub mod stale;
pub mod supervisor;
mod untold;
mod watch;
pub mod world;

use crate::{
    api::{self, App},
    interlink,
};
use anyhow::Context;
use holdfast_core::{driver, error::Class};
use holdfast_linux::{keeper::HeldNamespaces, paths::Paths, world::LinuxWorld};
use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};
use supervisor::Supervisor;
use tokio::signal::unix::{SignalKind, signal};

/// Exit code of a daemon that found another on its node.
pub const EXIT_LOCKED: u8 = 3;

/// How long operations in flight may take when the daemon is asked to end; what is cut off is journaled.
const DRAIN_DEADLINE: Duration = Duration::from_secs(10);

/// The daemon's log.
pub fn log_path(paths: &Paths) -> PathBuf {
    paths.state.join("daemon.log")
}

/// What a control logs with: stderr, which the daemon has made the control's own log. It starts no thread.
pub fn log_of_control() {
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).finish();
    if tracing::subscriber::set_global_default(subscriber).is_err() {
        eprintln!("holdfast control: logging is set up already");
    }
}

/// Runs the daemon until it is told to end.
pub fn main(paths: &Paths, detached: bool) -> ExitCode {
    match run(paths, detached) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let locked = error.downcast_ref::<lock::Held>().is_some()
                || error
                    .downcast_ref::<holdfast_core::error::StoreError>()
                    .is_some_and(|e| e.class == Class::Conflict);
            // Started detached, stderr is the log, which whoever started it shows.
            eprintln!("holdfast: {error:#}");
            ExitCode::from(if locked { EXIT_LOCKED } else { crate::cli::EXIT_REFUSED })
        }
    }
}

fn run(paths: &Paths, detached: bool) -> anyhow::Result<()> {
    paths.create().context("make the node's directories")?;
    // Before the log: a second daemon must not rotate the first one's.
    let _lock = lock::acquire(&paths.daemon_lock())?;
    log::install(&log_path(paths), detached)?;
    // Taken over once, before any thread.
    let held = HeldNamespaces::from_service_manager();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(4)
        .thread_name("daemon")
        .build()
        .context("start the runtime")?;
    let result = runtime.block_on(serve(paths, held));
    // A blocking call that hangs in the kernel is no reason to stay.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

async fn serve(paths: &Paths, held: HeldNamespaces) -> anyhow::Result<()> {
    // Registered before anything is served: from here on no signal of the login session ends it unasked.
    let mut terminate = signal(SignalKind::terminate()).context("watch SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("watch SIGINT")?;
    let _ignored = signal(SignalKind::hangup()).context("watch SIGHUP")?;
    raise_descriptor_limit();

    let listener = api::server::listen(&paths.daemon_socket())
        .with_context(|| format!("listen at {}", paths.daemon_socket().display()))?;
    let world = Arc::new(LinuxWorld::open(paths, held)?);
    let session = driver::open_session(&*world).await.context("begin a session")?;
    tracing::info!(
        pid = std::process::id(),
        generation = session.daemon_generation,
        version = env!("CARGO_PKG_VERSION"),
        state = %paths.state.display(),
        "daemon started"
    );
    tokio::spawn(holdfast_linux::process::adopt_orphans());

    let (handle, supervisor) = Supervisor::new(Arc::clone(&world), session);
    let (config, warnings) = interlink::Config::load(paths).unwrap_or_else(|error| {
        // A mistake in it must not keep a node from its workloads.
        tracing::error!(
            error = format!("{error:#}"),
            "interLink configuration is not used; the defaults are"
        );
        (interlink::Config::default(), Vec::new())
    });
    for warning in &warnings {
        tracing::warn!(warning, "interLink configuration");
    }
    let pods = interlink::manager::Pods { world: Arc::clone(&world), session, keep: config.keep };
    let plugin = Arc::new(interlink::Plugin { world: Arc::clone(&world), config });
    let offering = tokio::spawn(interlink::serve(plugin, handle.ended()));
    let working = tokio::spawn(interlink::manager::run(Arc::new(pods), handle.ended()));
    let app = Arc::new(App { world: Arc::clone(&world), session, supervisor: handle.clone() });
    let serving = tokio::spawn(api::server::serve(listener, api::router(app), handle.ended()));
    let supervising = tokio::spawn(supervisor.run());
    tokio::spawn(drift::run(Arc::clone(&world), handle.clone()));
    notify::send("READY=1");

    let mut ended = handle.ended();
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: ending; workloads stay"),
        _ = interrupt.recv() => tracing::info!("SIGINT: ending; workloads stay"),
        () = supervisor::until_ended(&mut ended) => tracing::info!("the node is down: ending"),
    }
    notify::send("STOPPING=1");
    handle.end();
    // Nothing new is accepted any more; what runs is finished, or else finished by the next daemon.
    if tokio::time::timeout(DRAIN_DEADLINE, supervising).await.is_err() {
        tracing::warn!("a bring-up did not end in time; the next daemon goes on with it");
    }
    let _ = serving.await;
    let _ = offering.await;
    let _ = working.await;
    let _ = std::fs::remove_file(paths.interlink_socket());
    let _ = std::fs::remove_file(paths.daemon_socket());
    tracing::info!("daemon ended");
    Ok(())
}

/// Two descriptors per container: the default of 1,024 would be enough for a few hundred.
fn raise_descriptor_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard.min(1 << 20), hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the descriptor limit stays as it is");
    }
}
