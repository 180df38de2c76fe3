//! The streams of the node on this machine.

use super::{
    exec,
    world::{ExecStreams, Node},
};
use crate::api::{
    frame::Frame,
    problem::Problem,
    types::{ExecRequest, LogsQuery},
};
use holdfast_core::{
    error::{Class, ContainerError, RouterError, WorldError},
    interlink::logs::{Place, Window},
    record::{ContainerRecord, ImageRecord},
    world::{Clock, Store},
};
use holdfast_linux::{
    container::{
        exec::ExecSpec,
        logs::{LogEntry, LogOptions, LogStream, logs_of},
    },
    paths::Paths,
    protocol::Drift,
    world::LinuxWorld,
};
use std::path::Path;
use tokio::sync::{mpsc, watch};

/// Frames of a log read ahead of the client.
const LOG_FRAMES_MAX: usize = 64;

impl Node for LinuxWorld {
    fn paths(&self) -> &Paths {
        &self.paths
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.store.changes()
    }

    async fn await_drift(&self, seen: u64) -> Result<Drift, RouterError> {
        self.router.await_drift(seen).await
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

    async fn pod_log(
        &self,
        place: &Place,
        window: &Window,
    ) -> Option<mpsc::Receiver<Result<LogEntry, ContainerError>>> {
        let mut options = LogOptions {
            // The last lines of a part that ends before the log does are counted by whoever reads it.
            tail: window
                .tail
                .filter(|_| window.until_ms.is_none())
                .map(|lines| usize::try_from(lines).unwrap_or(usize::MAX)),
            since_ns: window.since_ms.map(|ms| ms.saturating_mul(1_000_000)),
            follow: window.follow,
            follow_until: None,
        };
        match place {
            Place::Container(id) => {
                let monitor = self
                    .store
                    .read(|records| {
                        let container = records.containers.get(id)?;
                        container.running().map(|(_, monitor)| monitor.clone())
                    })
                    .await;
                options.follow &= monitor.is_some();
                options.follow_until = monitor;
                Some(self.containers.logs(id, options))
            }
            Place::Kept(jid, name) => {
                options.follow = false;
                Some(logs_of(self.pods.kept_log(jid, name), name, options))
            }
            Place::NotStarted(..) => None,
        }
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
        let pin = self.recorded_pin().await.ok_or_else(missing)?;
        let spec = ExecSpec {
            argv: request.command,
            env: container.spec.env.iter().cloned().chain(request.env).collect(),
            working_dir: request.working_dir.unwrap_or_else(|| container.spec.working_dir.clone()),
            user: request.user.unwrap_or((container.spec.uid, container.spec.gid)),
            tty: request.tty.then(|| request.size.unwrap_or((24, 80))),
            stdin: request.interactive,
            security: container.spec.security.clone(),
        };
        Ok(exec::attend(self.containers.exec(&container.id, &pin, &spec).await?))
    }

    async fn load_image(&self, archive: &Path, name: Option<&str>) -> Result<ImageRecord, ContainerError> {
        let pin = self.recorded_pin().await;
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
        self.images.remove_layers(layers, self.recorded_pin().await.as_ref()).await
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
