//! `/getLogs`: text, streamed as it is written.

use super::{
    Plugin,
    handlers::{refused, session},
};
use crate::node::world::Node;
use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use holdfast_core::interlink::logs::{LogRequest, NoLog, Place, Window, select};
use holdfast_linux::container::logs::LogEntry;
use std::{collections::VecDeque, convert::Infallible, sync::Arc};
use tokio::sync::mpsc;
use tracing::Instrument;

/// Pieces read ahead of the client.
const PIECES_MAX: usize = 64;
/// The most lines that are held to find the last ones of a part of a log.
const TAIL_LINES_MAX: u64 = 100_000;

/// `GET /getLogs`.
pub async fn get<N: Node>(State(plugin): State<Arc<Plugin<N>>>, headers: HeaderMap, body: Bytes) -> Response {
    let span = tracing::info_span!("GetLogs", session = session(&headers));
    async move {
        let request: LogRequest = match serde_json::from_slice(&body) {
            Ok(request) => request,
            Err(error) => {
                return refused(
                    StatusCode::UNPROCESSABLE_ENTITY,
                    format!("the body is no log request: {error}"),
                );
            }
        };
        let wall = plugin.world.wall();
        let selected = plugin.world.read(|records| select(records, &request, wall)).await;
        let (place, window) = match selected {
            Ok(selected) => selected,
            Err(NoLog::Invalid(detail)) => return refused(StatusCode::BAD_REQUEST, detail),
            Err(NoLog::NotFound(detail)) => return refused(StatusCode::NOT_FOUND, detail),
        };
        let (sender, pieces) = mpsc::channel(PIECES_MAX);
        tokio::spawn(send(plugin, request, place, window, sender).in_current_span());
        let body = stream::unfold(pieces, |mut pieces| async move {
            pieces.recv().await.map(|piece: Vec<u8>| (Ok::<_, Infallible>(Bytes::from(piece)), pieces))
        });
        ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], Body::from_stream(body)).into_response()
    }
    .instrument(span)
    .await
}

/// Sends the part of the log that is asked for, until its end or until nobody listens.
async fn send<N: Node>(
    plugin: Arc<Plugin<N>>,
    request: LogRequest,
    mut place: Place,
    mut window: Window,
    sender: mpsc::Sender<Vec<u8>>,
) {
    if matches!(place, Place::NotStarted(..)) {
        if !window.follow {
            return;
        }
        match started(&plugin, &request, &sender).await {
            Some(found) => (place, window) = found,
            None => return,
        }
    }
    let Some(mut entries) = plugin.world.pod_log(&place, &window).await else { return };
    let mut out = Output { sender, left: window.bytes, timestamps: window.timestamps };
    let until_ns = window.until_ms.map(|ms| ms.saturating_mul(1_000_000));
    let held = window.tail.filter(|_| until_ns.is_some()).map(|tail| tail.min(TAIL_LINES_MAX));
    let mut last: VecDeque<LogEntry> = VecDeque::new();
    loop {
        let entry = tokio::select! {
            entry = entries.recv() => entry,
            () = out.sender.closed() => return,
        };
        let Some(entry) = entry else { break };
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                tracing::warn!(%error, "log ends early");
                let _ = out.sender.send(format!("\n[holdfast: {error}]\n").into_bytes()).await;
                return;
            }
        };
        if until_ns.is_some_and(|until| entry.time_ns >= until) {
            break;
        }
        match held {
            Some(held) => {
                last.push_back(entry);
                if last.len() as u64 > held {
                    last.pop_front();
                }
            }
            None if !out.entry(&entry).await => return,
            None => {}
        }
    }
    for entry in last {
        if !out.entry(&entry).await {
            return;
        }
    }
}

/// Waits until the container has started; `None` when it never will, or nobody listens any more.
async fn started<N: Node>(
    plugin: &Plugin<N>,
    request: &LogRequest,
    sender: &mpsc::Sender<Vec<u8>>,
) -> Option<(Place, Window)> {
    let mut changes = plugin.world.changes();
    loop {
        changes.borrow_and_update();
        let wall = plugin.world.wall();
        let found = plugin
            .world
            .read(|records| {
                let uid = holdfast_core::interlink::record::PodUid::from_raw(&*request.pod_uid);
                let pod = records.offloaded.get(&uid)?;
                let over = pod.progress.failed.is_some() || pod.progress.deleting.is_some();
                Some((select(records, request, wall).ok()?, over))
            })
            .await;
        match found {
            Some(((Place::NotStarted(..), _), false)) => {}
            Some(((Place::NotStarted(..), _), true)) | None => return None,
            Some((found, _)) => return Some(found),
        }
        tokio::select! {
            changed = changes.changed() => changed.ok()?,
            () = sender.closed() => return None,
        }
    }
}

struct Output {
    sender: mpsc::Sender<Vec<u8>>,
    left: Option<u64>,
    timestamps: bool,
}

impl Output {
    /// `false` when nothing more is to be sent.
    async fn entry(&mut self, entry: &LogEntry) -> bool {
        let mut piece = Vec::with_capacity(entry.bytes.len() + entry.time.len() + 2);
        if self.timestamps {
            piece.extend_from_slice(entry.time.as_bytes());
            piece.push(b' ');
        }
        piece.extend_from_slice(&entry.bytes);
        if entry.whole {
            piece.push(b'\n');
        }
        if let Some(left) = &mut self.left {
            piece.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= piece.len() as u64;
        }
        let full = self.left == Some(0);
        self.sender.send(piece).await.is_ok() && !full
    }
}
