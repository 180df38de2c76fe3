//! Streams: `logs` as a chunked body of frames, `exec` as frames both ways after an HTTP upgrade.

use super::{
    App,
    body::{Body, Query},
    frame::{self, Frame},
    problem::Problem,
    types::{ExecRequest, LogsQuery},
};
use crate::node::world::{ExecStreams, Node};
use axum::{
    body::Body as HttpBody,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use holdfast_core::{
    error::{Refusal, RefusalCode, WorldError},
    ops::find,
    record::{ContainerRecord, Records},
};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::{convert::Infallible, sync::Arc, time::Duration};

type Shared<N> = State<Arc<App<N>>>;

/// How long a client may take between its request and the upgraded connection.
const UPGRADE_DEADLINE: Duration = Duration::from_secs(10);

async fn record<N: Node>(app: &App<N>, reference: &str) -> Result<ContainerRecord, Problem> {
    Ok(app.world.read(|records: &Records| find::container(records, reference).cloned()).await?)
}

/// `GET /v1/containers/{name}/logs`.
pub async fn logs<N: Node>(
    State(app): Shared<N>,
    Path(reference): Path<String>,
    Query(query): Query<LogsQuery>,
) -> Result<Response, Problem> {
    let container = record(&app, &reference).await?;
    let frames = app.world.logs(&container, query).await.map_err(WorldError::from)?;
    let body = stream::unfold(frames, |mut frames| async move {
        frames.recv().await.map(|frame| (Ok::<_, Infallible>(frame.encode()), frames))
    });
    Ok(([(header::CONTENT_TYPE, "application/vnd.holdfast.frames")], HttpBody::from_stream(body))
        .into_response())
}

/// `POST /v1/containers/{name}/exec`.
pub async fn exec<N: Node>(
    State(app): Shared<N>,
    Path(reference): Path<String>,
    headers: HeaderMap,
    upgrade: Option<axum::Extension<OnUpgradeSlot>>,
    Body(request): Body<ExecRequest>,
) -> Result<Response, Problem> {
    let asked = headers.get(header::UPGRADE).is_some_and(|value| value == frame::PROTOCOL);
    let upgrade = upgrade.and_then(|axum::Extension(slot)| slot.take());
    let (true, Some(upgrade)) = (asked, upgrade) else {
        let detail = format!("exec needs the headers Connection: upgrade and Upgrade: {}", frame::PROTOCOL);
        return Err(Problem::new(426, "upgrade_required", detail));
    };
    if request.command.is_empty() {
        return Err(Refusal::new(RefusalCode::Invalid, "the command is empty").into());
    }
    let container = record(&app, &reference).await?;
    if container.running().is_none() {
        let detail = format!("container {} does not run; start it first", container.name);
        return Err(Refusal::new(RefusalCode::WrongState, detail).into());
    }
    let streams = app.world.exec(&container, request).await.map_err(WorldError::from)?;
    tokio::spawn(async move {
        match tokio::time::timeout(UPGRADE_DEADLINE, upgrade).await {
            Ok(Ok(connection)) => serve_exec(TokioIo::new(connection), streams).await,
            Ok(Err(error)) => tracing::debug!(%error, "exec: the client did not upgrade"),
            Err(_) => tracing::debug!("exec: the client did not upgrade in time"),
        }
    });
    Ok((
        StatusCode::SWITCHING_PROTOCOLS,
        [(header::CONNECTION, "upgrade"), (header::UPGRADE, frame::PROTOCOL)],
    )
        .into_response())
}

/// Passes frames until the process has ended or the client is gone.
async fn serve_exec(connection: TokioIo<hyper::upgrade::Upgraded>, mut streams: ExecStreams) {
    let (mut from_client, mut to_client) = tokio::io::split(connection);
    let input = streams.input;
    // A client never closes one direction alone: the end of its frames is the end of the client, also of one
    // whose command is silent.
    let mut reader = tokio::spawn(async move {
        while let Ok(Some(frame)) = Frame::read(&mut from_client).await {
            if input.send(frame).await.is_err() {
                // The process reads no more; the client is still watched.
                while let Ok(Some(_)) = Frame::read(&mut from_client).await {}
                return;
            }
        }
    });
    loop {
        let frame = tokio::select! {
            frame = streams.output.recv() => frame,
            _ = &mut reader => break,
        };
        let Some(frame) = frame else { break };
        let last = matches!(frame, Frame::Exit(_) | Frame::Failed(_));
        if frame.write(&mut to_client).await.is_err() || last {
            break;
        }
    }
    reader.abort();
    let _ = tokio::io::AsyncWriteExt::shutdown(&mut to_client).await;
}

/// The upgrade of a connection, to be taken once; an extension has to be `Clone`.
#[derive(Clone, Debug)]
pub struct OnUpgradeSlot(Arc<std::sync::Mutex<Option<OnUpgrade>>>);

impl OnUpgradeSlot {
    /// Holds an upgrade.
    pub fn new(upgrade: OnUpgrade) -> Self {
        Self(Arc::new(std::sync::Mutex::new(Some(upgrade))))
    }

    fn take(&self) -> Option<OnUpgrade> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    }
}
