//! The body of the subcommand `control`.

use super::{
    Drift, Hands, drift,
    server::{DaemonSeen, Shared, serve},
    snapshot::SnapshotFile,
    worker,
};
use crate::{
    keeper::{namespace::own_namespaces, stale},
    net::RouterHands,
    paths::Paths,
    process::own_process,
    service::{self, Board, Service},
};
use holdfast_core::error::RouterError;
use nix::fcntl::{Flock, FlockArg};
use std::{
    fs::File,
    future::Future,
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    net::UnixListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// How often the own log is looked at.
const LOG_CHECK_PERIOD: Duration = Duration::from_secs(60);

/// See [`control_main_with`]; the hands are the router's real ones.
pub fn control_main(paths: Paths) -> i32 {
    let open = |paths: Paths| async move {
        let mut hands = RouterHands::open(&paths).await?;
        hands.ensure_inside().await?;
        Ok(hands)
    };
    control(paths, open, service::all())
}

/// Runs a control whose worker has the hands that `open` opens, until SIGTERM; returns the process's exit
/// status. It serves workloads nothing. The caller has set up logging to standard error, and started no thread.
pub fn control_main_with<H, F, O>(paths: Paths, open: O) -> i32
where
    H: Hands,
    F: Future<Output = Result<H, RouterError>>,
    O: FnOnce(Paths) -> F + Send + 'static,
{
    control(paths, open, Vec::new())
}

fn control<H, F, O>(paths: Paths, open: O, services: Vec<Service>) -> i32
where
    H: Hands,
    F: Future<Output = Result<H, RouterError>>,
    O: FnOnce(Paths) -> F + Send + 'static,
{
    // SAFETY: ignoring a signal runs no code. A logout must not end the control.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    let result = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(run(paths, open, services)));
    match result {
        Ok(()) => 0,
        Err(cause) => {
            // Goes to the log even where nobody has set up tracing.
            eprintln!("holdfast control: {cause}");
            1
        }
    }
}

async fn run<H, F, O>(paths: Paths, open: O, services: Vec<Service>) -> Result<(), String>
where
    H: Hands,
    F: Future<Output = Result<H, RouterError>>,
    O: FnOnce(Paths) -> F + Send + 'static,
{
    let _lock = lock(&paths.runtime.join("control.lock"))?;
    let text = |what: &str, error: io::Error| format!("{what}: {error}");
    let process = own_process().map_err(|error| text("own process", error))?;
    let namespaces = own_namespaces().map_err(|error| text("own namespaces", error))?;
    let snapshots = SnapshotFile::load(paths.control_snapshot()).map_err(|error| text("snapshot", error))?;
    let snapshots = Arc::new(snapshots);
    let socket = paths.control_socket();
    let board = Board::default();
    let own_paths = paths.clone();
    let worker = worker::start(move || open(own_paths), snapshots.clone(), board.clone())
        .await
        .map_err(|error| error.to_string())?;
    let services = service::start(services, paths, snapshots.subscribe(), board)
        .map_err(|error| text("services", error))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| text("SIGTERM", error))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| text("SIGINT", error))?;
    let (listener, inode) =
        listen(&socket).map_err(|error| text(&format!("listen on {}", socket.display()), error))?;
    tracing::info!(
        pid = process.pid,
        net = namespaces.net.0,
        generation = snapshots.generation(),
        "control serves"
    );
    let daemon = Mutex::new(DaemonSeen::default());
    let (told, drift) = watch::channel(Drift::default());
    let shared =
        Arc::new(Shared { process, namespaces, snapshots, jobs: worker.jobs.clone(), daemon, drift });
    tokio::select! {
        () = serve(listener, shared) => {}
        () = bound_log() => {}
        () = drift::count(told) => {}
        cause = worker.failed() => return Err(cause.to_owned()),
        cause = services.failed() => return Err(cause.to_owned()),
        _ = terminate.recv() => tracing::info!("SIGTERM: the control ends"),
        _ = interrupt.recv() => tracing::info!("SIGINT: the control ends"),
    }
    if std::fs::symlink_metadata(&socket).is_ok_and(|metadata| metadata.ino() == inode) {
        // Nobody listens any more; a file that stays is stale, which does no harm.
        let _ = std::fs::remove_file(&socket);
    }
    Ok(())
}

/// Whoever holds the lock is the control; flock(2) ends with the process.
fn lock(path: &Path) -> Result<Flock<File>, String> {
    let refuse = |cause: String| format!("lock {}: {cause}", path.display());
    if std::fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        stale::clear_path(path).map_err(|error| refuse(error.to_string()))?;
    }
    let file = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    let file = file.map_err(|error| refuse(error.to_string()))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| match error {
        nix::errno::Errno::EWOULDBLOCK => refuse("another control of this node runs".to_owned()),
        error => refuse(error.to_string()),
    })
}

/// Listens on `path`, whatever lay there; returns the socket's inode too. The socket appears under its name
/// only when it is complete: bound, listening and 0600.
fn listen(path: &Path) -> io::Result<(UnixListener, u64)> {
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    let new = PathBuf::from(new);
    stale::clear_path(&new)?;
    let listener = UnixListener::bind(&new)?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600))?;
    if std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir()) {
        stale::clear_path(path)?;
    }
    std::fs::rename(&new, path)?;
    let inode = std::fs::symlink_metadata(path)?.ino();
    Ok((listener, inode))
}

/// Cuts the own log when it has grown too large. It was opened for appending, so what comes next goes to its
/// new end.
async fn bound_log() {
    let mut period = tokio::time::interval(LOG_CHECK_PERIOD);
    loop {
        period.tick().await;
        // SAFETY: an all-zero stat is valid, and fstat only writes to it.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: standard error is open for the life of the process; fstat and ftruncate take it as a number.
        unsafe {
            let is_file = libc::fstat(2, &raw mut stat) == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFREG;
            if is_file && u64::try_from(stat.st_size).is_ok_and(|size| size > stale::LOG_BYTES_MAX) {
                libc::ftruncate(2, 0);
            }
        }
    }
}
