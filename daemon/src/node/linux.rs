//! The node on this machine: the parts of `holdfast-linux`, wired.

use super::{
    exec,
    world::{Composed, ExecStreams, Node},
};
use crate::api::{
    frame::Frame,
    problem::Problem,
    types::{ExecRequest, LogsQuery},
};
use anyhow::Context;
use holdfast_core::{
    error::{Class, ContainerError, WorldError},
    id::ProcessRef,
    record::{ContainerRecord, ImageRecord},
    world::{Clock, Store},
};
use holdfast_linux::{
    container::{
        LinuxContainers, Tools,
        exec::ExecSpec,
        logs::{LogEntry, LogOptions, LogStream},
    },
    image::{ImageLimits, LinuxImages},
    keeper::{HeldNamespaces, LinuxKeepers},
    paths::Paths,
    protocol::{ControlClient, Role},
    store::SqliteStore,
    uplink::{LinuxUplink, UplinkConfig},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::sync::{mpsc, watch};

/// This very build, also after the file was replaced by an upgrade: proc_pid_exe(5).
const OWN_EXE: &str = "/proc/self/exe";

/// Frames of a log read ahead of the client.
const LOG_FRAMES_MAX: usize = 64;

/// The node on this machine.
pub type LinuxNode = Composed<LinuxKeepers, ControlClient, LinuxUplink, LinuxContainers>;

/// Descriptors of the namespaces that the service manager kept; to be taken over once, before any thread.
pub fn held_namespaces() -> Arc<HeldNamespaces> {
    Arc::new(HeldNamespaces::from_service_manager())
}

/// Opens the store and wires the parts. `held` is from [`held_namespaces`].
///
/// # Errors
/// As [`SqliteStore::open`]; the boot id cannot be read.
pub fn open(paths: &Paths, held: Arc<HeldNamespaces>) -> anyhow::Result<LinuxNode> {
    let store = SqliteStore::open(&paths.database())?;
    let tools = Tools::find(PathBuf::from(OWN_EXE));
    Ok(Composed {
        paths: paths.clone(),
        store,
        keepers: LinuxKeepers::new(paths.clone(), OWN_EXE, Arc::clone(&held)).context("read the boot id")?,
        router: ControlClient::new(paths, Role::Daemon),
        uplink: LinuxUplink::new(paths.clone(), UplinkConfig::default(), held),
        containers: LinuxContainers::new(paths.clone(), tools.clone()),
        images: LinuxImages::new(paths.clone(), tools, ImageLimits::default()),
    })
}

impl LinuxNode {
    /// The recorded pin; whoever enters through it finds out whether it lives.
    async fn pin(&self) -> Option<ProcessRef> {
        self.store.read(|records| records.node.as_ref().and_then(|node| node.pin.clone())).await
    }
}

impl Node for LinuxNode {
    fn paths(&self) -> &Paths {
        &self.paths
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.store.changes()
    }

    async fn logs(
        &self,
        container: &ContainerRecord,
        query: LogsQuery,
    ) -> Result<mpsc::Receiver<Frame>, ContainerError> {
        let options = LogOptions {
            tail: query.tail.map(|lines| usize::try_from(lines).unwrap_or(usize::MAX)),
            since_ns: query.since_ms.map(|ms| ms.saturating_mul(1_000_000)),
            // The monitor writes the output: when it is dead nothing more comes. One that does not run has
            // nothing to follow.
            follow: query.follow && container.running().is_some(),
            follow_until: container.running().map(|(_, monitor)| monitor.clone()),
        };
        let mut entries = self.containers.logs(&container.id, options);
        let (sender, frames) = mpsc::channel(LOG_FRAMES_MAX);
        tokio::spawn(async move {
            while let Some(entry) = entries.recv().await {
                let sent = match entry {
                    Ok(entry) => send_entry(&sender, entry, query.timestamps).await,
                    Err(error) => sender.send(failed(error)).await,
                };
                if sent.is_err() {
                    return;
                }
            }
        });
        Ok(frames)
    }

    async fn exec(
        &self,
        container: &ContainerRecord,
        request: ExecRequest,
    ) -> Result<ExecStreams, ContainerError> {
        let missing = || {
            ContainerError::new(Class::Missing, "exec in", container.name.clone(), "the node has no pin")
                .with_remedy("run `holdfast up`")
        };
        let pin = self.pin().await.ok_or_else(missing)?;
        let spec = ExecSpec {
            argv: request.command,
            env: container.spec.env.iter().cloned().chain(request.env).collect(),
            working_dir: request.working_dir.unwrap_or_else(|| container.spec.working_dir.clone()),
            user: request.user.unwrap_or((container.spec.uid, container.spec.gid)),
            tty: request.tty.then(|| request.size.unwrap_or((24, 80))),
            stdin: request.interactive,
        };
        Ok(exec::attend(self.containers.exec(&container.id, &pin, &spec).await?))
    }

    async fn load_image(&self, archive: &Path, name: Option<&str>) -> Result<ImageRecord, ContainerError> {
        let pin = self.pin().await;
        let loaded = self.images.load(archive, name, pin.as_ref()).await?;
        for warning in &loaded.warnings {
            tracing::warn!(image = %loaded.id, warning, "image loaded with a warning");
        }
        Ok(ImageRecord {
            id: loaded.id,
            names: loaded.names,
            layers: loaded.layers,
            entrypoint: loaded.entrypoint,
            command: loaded.command,
            env: loaded.env,
            working_dir: loaded.working_dir,
            user: loaded.user,
            size_bytes: loaded.size_bytes,
            loaded: self.wall(),
        })
    }

    async fn remove_layers(&self, layers: &[String]) -> Result<(), ContainerError> {
        self.images.remove_layers(layers, self.pin().await.as_ref()).await
    }
}

/// An error as the last frame of a stream.
pub fn failed(error: ContainerError) -> Frame {
    let problem = Problem::from(WorldError::from(error));
    // Strings and a number: serialising them cannot fail.
    Frame::Failed(serde_json::to_vec(&problem).unwrap_or_default())
}

/// Sends an entry in frames of at most the largest payload.
async fn send_entry(
    sender: &mpsc::Sender<Frame>,
    entry: LogEntry,
    timestamps: bool,
) -> Result<(), mpsc::error::SendError<Frame>> {
    let mut bytes = Vec::with_capacity(entry.bytes.len() + entry.time.len() + 2);
    if timestamps {
        bytes.extend_from_slice(entry.time.as_bytes());
        bytes.push(b' ');
    }
    bytes.extend_from_slice(&entry.bytes);
    if entry.whole {
        bytes.push(b'\n');
    }
    for chunk in bytes.chunks(crate::api::frame::PAYLOAD_BYTES_MAX) {
        let frame = match entry.stream {
            LogStream::Stdout => Frame::Stdout(chunk.to_vec()),
            LogStream::Stderr => Frame::Stderr(chunk.to_vec()),
        };
        sender.send(frame).await?;
    }
    Ok(())
}
