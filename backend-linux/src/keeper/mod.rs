//! Pin, control and the namespaces they hold: core's `Keepers` on a real node.

mod control;
pub mod held;
pub(crate) mod idmap;
mod inside;
pub mod namespace;
mod observe;
mod pin;
mod pin_channel;
mod pin_memory;
mod source;
mod spawn;
pub(crate) mod stale;
mod stray;

pub use held::HeldNamespaces;
pub(crate) use inside::close_on_exec;
pub use inside::command_inside;
pub use pin::pin_main;
pub use source::Sources;

use crate::{
    paths::Paths,
    process::{boot_id, stop},
};
use holdfast_core::{
    error::{Class, KeeperError},
    id::{BootId, ProcessRef},
    observed::{Keeper, KeepersObserved},
    plan::AdoptSource,
    record::NamespaceIds,
    world::{KeeperHints, Keepers, PinStarted},
};
use namespace::Kind;
use spawn::{PinRequest, start_pin};
use std::{
    ffi::OsStr,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// How long a pin that was never recorded may take to die of SIGKILL.
const STRAY_WAIT: Duration = Duration::from_secs(1);

/// How long a process may take to end by itself after SIGTERM.
const STOP_GRACE: Duration = Duration::from_secs(2);
/// How long the kernel may take to end a process after SIGKILL.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// Core's `Keepers` with real processes.
#[derive(Debug)]
pub struct LinuxKeepers {
    paths: Paths,
    exe: PathBuf,
    held: Arc<HeldNamespaces>,
    boot_id: BootId,
}

impl LinuxKeepers {
    /// `exe` is the program whose subcommands `pin` and `control` are started. `/proc/self/exe` is the right one
    /// for a daemon: it is this very build even after the file was replaced by an upgrade.
    ///
    /// # Errors
    /// When the boot id cannot be read.
    pub fn new(paths: Paths, exe: impl Into<PathBuf>, held: Arc<HeldNamespaces>) -> std::io::Result<Self> {
        Ok(Self { paths, exe: exe.into(), held, boot_id: boot_id()? })
    }

    /// The daemon's own descriptors of the namespaces.
    pub fn held(&self) -> &Arc<HeldNamespaces> {
        &self.held
    }

    /// See [`command_inside`].
    ///
    /// # Errors
    /// `Transient` when the pin is dead: another takes its place.
    pub fn command_inside(
        &self,
        pin: &ProcessRef,
        program: impl AsRef<OsStr>,
    ) -> Result<tokio::process::Command, KeeperError> {
        command_inside(pin, program)
    }

    /// Living pins of this state root other than `known`: what a daemon left that was killed between the start of
    /// a pin and its record. Found by their command line.
    pub fn stray_pins(&self, known: Option<&ProcessRef>) -> Vec<ProcessRef> {
        stray::pins(&self.paths.state).into_iter().filter(|pin| Some(pin) != known).collect()
    }

    fn exe(&self) -> &Path {
        &self.exe
    }

    async fn start(&self, request: PinRequest) -> Result<PinStarted, KeeperError> {
        let started = start_pin(self.exe(), &self.paths.state, request).await?;
        if let Err(error) = self.held.hold(&started.process, started.namespaces) {
            return Err(KeeperError::new(
                Class::Transient,
                "hold namespaces",
                format!("of pin ({})", started.process),
                error,
            ));
        }
        tracing::info!(pid = started.process.pid, net = started.namespaces.net.0, "pin started");
        self.end_strays(&started.process).await;
        Ok(started)
    }

    /// A node has one pin. A pin is started only where the recorded one is dead, so any other that lives is one that
    /// a killed daemon never wrote down; left alone it would outlive even `down`.
    async fn end_strays(&self, pin: &ProcessRef) {
        for stray in self.stray_pins(Some(pin)) {
            match stop(&stray, Duration::ZERO, STRAY_WAIT).await {
                Ok(true) => tracing::info!(pid = stray.pid, "ended a pin that was never recorded"),
                Ok(false) => tracing::error!(pid = stray.pid, "a pin that was never recorded does not end"),
                Err(error) => {
                    tracing::error!(pid = stray.pid, %error, "a pin that was never recorded is left")
                }
            }
        }
    }

    fn open(&self, keeper: &Keeper, kind: Kind, recorded: &NamespaceIds) -> Result<OwnedFd, KeeperError> {
        let subject = || format!("{} namespace of {keeper}", kind.file_name());
        match self.sources(&self.paths.router_netns()).open(keeper, kind, recorded) {
            Ok(Some(fd)) => Ok(fd),
            Ok(None) => Err(KeeperError::new(Class::Missing, "enter", subject(), "it leads there no more")),
            Err(error) => Err(KeeperError::new(Class::Denied, "enter", subject(), error)),
        }
    }

    fn sources<'a>(&'a self, router_netns: &'a Path) -> Sources<'a> {
        Sources { held: &self.held, router_netns }
    }

    /// The cgroup namespace is worth joining, not worth failing for: a new one does as well.
    fn join_cgroup(&self, request: &mut PinRequest, keeper: &Keeper, recorded: &NamespaceIds) {
        match self.sources(&self.paths.router_netns()).open(keeper, Kind::Cgroup, recorded) {
            Ok(Some(fd)) => request.join.push(fd),
            Ok(None) | Err(_) => request.create.push(Kind::Cgroup),
        }
    }
}

impl Keepers for LinuxKeepers {
    fn boot_id(&self) -> BootId {
        self.boot_id.clone()
    }

    async fn observe_keepers(&self, hints: &KeeperHints) -> Result<KeepersObserved, KeeperError> {
        self.observe(hints).await
    }

    async fn create_namespaces(&self) -> Result<PinStarted, KeeperError> {
        let create = vec![Kind::User, Kind::Net, Kind::Cgroup, Kind::Mount];
        self.start(PinRequest { join: Vec::new(), create }).await
    }

    async fn adopt_namespaces(
        &self,
        source: &AdoptSource,
        hints: &KeeperHints,
    ) -> Result<PinStarted, KeeperError> {
        let Some(recorded) = hints.namespaces else {
            return Err(KeeperError::new(Class::Missing, "adopt", "namespaces", "none are recorded"));
        };
        let mut request = PinRequest::default();
        request.join.push(self.open(&source.user, Kind::User, &recorded)?);
        request.join.push(self.open(&source.net, Kind::Net, &recorded)?);
        match &source.mount {
            Some(keeper) => request.join.push(self.open(keeper, Kind::Mount, &recorded)?),
            None => request.create.push(Kind::Mount),
        }
        self.join_cgroup(&mut request, source.mount.as_ref().unwrap_or(&source.user), &recorded);
        self.start(request).await
    }

    async fn enter_user_namespace(&self, keeper: &Keeper) -> Result<PinStarted, KeeperError> {
        let subject = || format!("user namespace of {keeper}");
        let user = match self.sources(&self.paths.router_netns()).open_user(keeper) {
            Ok(Some(fd)) => fd,
            Ok(None) => {
                return Err(KeeperError::new(Class::Missing, "enter", subject(), "it leads there no more"));
            }
            Err(error) => return Err(KeeperError::new(Class::Denied, "enter", subject(), error)),
        };
        self.start(PinRequest { join: vec![user], create: vec![Kind::Net, Kind::Cgroup, Kind::Mount] }).await
    }

    async fn stop_process(&self, process: &ProcessRef) -> Result<(), KeeperError> {
        let fail = |class, cause: String| KeeperError::new(class, "stop", process.to_string(), cause);
        match stop(process, STOP_GRACE, KILL_WAIT).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(fail(Class::Unknown, format!("alive {} s after SIGKILL", KILL_WAIT.as_secs()))
                .with_remedy("look at its state: `D` in ps means that it waits for a device or file system")),
            Err(error) => Err(fail(Class::Denied, error.to_string())),
        }
    }

    async fn start_control(&self, pin: &ProcessRef) -> Result<ProcessRef, KeeperError> {
        self.spawn_control(pin).await
    }
}
