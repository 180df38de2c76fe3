//! What the daemon needs of a node besides its `World`.

use crate::api::{
    frame::Frame,
    types::{ExecRequest, LogsQuery},
};
use holdfast_core::{
    error::{ContainerError, RouterError},
    interlink::logs as pod_logs,
    record::{ContainerRecord, ImageRecord},
    world::World,
};
use holdfast_linux::{container::logs::LogEntry, paths::Paths, protocol::Drift};
use std::path::Path;
use tokio::sync::{mpsc, watch};

/// A node: a `World`, and the streams that no decision depends on.
pub trait Node: World {
    /// Its directories.
    fn paths(&self) -> &Paths;
    /// Changes whenever the records may have.
    fn changes(&self) -> watch::Receiver<u64>;
    /// Waits until somebody else has changed the router since the answer `seen`, a minute at most.
    fn await_drift(&self, seen: u64) -> impl Future<Output = Result<Drift, RouterError>> + Send;
    /// The output of a container: [`Frame::Stdout`] and [`Frame::Stderr`].
    fn logs(
        &self,
        container: &ContainerRecord,
        query: LogsQuery,
    ) -> impl Future<Output = Result<mpsc::Receiver<Frame>, ContainerError>> + Send;
    /// Runs a command in a running container.
    fn exec(
        &self,
        container: &ContainerRecord,
        request: ExecRequest,
    ) -> impl Future<Output = Result<ExecStreams, ContainerError>> + Send;
    /// The log of a container of an offloaded pod, or one that was kept; `None` for one that has not started.
    fn pod_log(
        &self,
        place: &pod_logs::Place,
        window: &pod_logs::Window,
    ) -> impl Future<Output = Option<mpsc::Receiver<Result<LogEntry, ContainerError>>>> + Send;
    /// Unpacks an archive; records nothing.
    fn load_image(
        &self,
        archive: &Path,
        name: Option<&str>,
    ) -> impl Future<Output = Result<ImageRecord, ContainerError>> + Send;
    /// Deletes layers that no record names any more.
    fn remove_layers(&self, layers: &[String]) -> impl Future<Output = Result<(), ContainerError>> + Send;
}

/// A command that runs in a container.
#[derive(Debug)]
pub struct ExecStreams {
    /// [`Frame::Stdin`], [`Frame::StdinEnd`], [`Frame::Resize`]; closed when nobody is there any more.
    pub input: mpsc::Sender<Frame>,
    /// Output, and at last [`Frame::Exit`] or [`Frame::Failed`].
    pub output: mpsc::Receiver<Frame>,
}
