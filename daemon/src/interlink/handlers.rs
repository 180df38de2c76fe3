//! `/create`, `/delete`, `/status`, `/system-info`. What goes wrong is told as text: a person reads it in the pod.

use super::Plugin;
use crate::node::world::Node;
use axum::{
    Json,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use holdfast_core::{
    driver::interlink as driver,
    error::{Class, RefusalCode},
    interlink::{
        kube,
        ping::{Capacity, ping},
        status,
        translate::Abilities,
    },
    ops::request::RequestError,
};
use serde_json::json;
use std::sync::Arc;
use tracing::Instrument;

type Shared<N> = State<Arc<Plugin<N>>>;

/// Ties our log to the API server's.
const SESSION_HEADER: &str = "InterLink-Http-Session";
/// A kubelet's default.
const PODS_MAX: u64 = 110;

/// The session of a request, for spans.
pub fn session(headers: &HeaderMap) -> String {
    headers.get(SESSION_HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

/// An error as the API server forwards it.
pub fn refused(status: StatusCode, detail: impl Into<String>) -> Response {
    let detail = detail.into();
    tracing::warn!(status = status.as_u16(), detail, "refused");
    (status, detail).into_response()
}

fn problem(error: &RequestError) -> Response {
    let status = match error {
        RequestError::Refused(refusal) => match refusal.code {
            RefusalCode::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            RefusalCode::NotFound => StatusCode::NOT_FOUND,
            RefusalCode::Exhausted => StatusCode::INSUFFICIENT_STORAGE,
            _ => StatusCode::CONFLICT,
        },
        RequestError::Store(error) if error.class == Class::Exhausted => StatusCode::INSUFFICIENT_STORAGE,
        RequestError::Store(_) | RequestError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    refused(status, error.to_string())
}

/// `POST /create`: answers once the pod is written down.
pub async fn create<N: Node>(State(plugin): Shared<N>, headers: HeaderMap, body: Bytes) -> Response {
    let span = tracing::info_span!("Create", session = session(&headers));
    async move {
        let data = match kube::pod_data(&body) {
            Ok(data) => data,
            Err(detail) => return refused(StatusCode::UNPROCESSABLE_ENTITY, detail),
        };
        // No controller is delegated to a login session as a rule, and none is used by this build.
        let abilities = Abilities { limits: false, unenforced: plugin.config.limits };
        let world = Arc::clone(&plugin.world);
        // To its end also when the caller hangs up: half a commit is none.
        let accepted = tokio::spawn(async move { driver::accept(&*world, &data, abilities).await }.in_current_span());
        match accepted.await {
            Ok(Ok(accepted)) => {
                tracing::info!(uid = %accepted.uid, jid = accepted.jid, repeated = accepted.repeated, "pod accepted");
                for note in &accepted.notes {
                    tracing::warn!(uid = %accepted.uid, note, "not done as asked");
                }
                Json(json!({"PodUID": accepted.uid.as_str(), "PodJID": accepted.jid})).into_response()
            }
            Ok(Err(error)) => problem(&error),
            Err(error) => refused(StatusCode::INTERNAL_SERVER_ERROR, format!("the create did not end: {error}")),
        }
    }
    .instrument(span)
    .await
}

/// `POST /delete`: answers once it is written down that the pod is to go.
pub async fn delete<N: Node>(State(plugin): Shared<N>, headers: HeaderMap, body: Bytes) -> Response {
    let span = tracing::info_span!("Delete", session = session(&headers));
    async move {
        let pod = match kube::pod(&body) {
            Ok(pod) => pod,
            Err(detail) => return refused(StatusCode::UNPROCESSABLE_ENTITY, detail),
        };
        let (world, keep) = (Arc::clone(&plugin.world), plugin.config.keep);
        let deleted =
            tokio::spawn(async move { driver::delete(&*world, &pod, keep).await }.in_current_span());
        match deleted.await {
            Ok(Ok(uid)) => {
                tracing::info!(%uid, "pod is to go");
                (StatusCode::OK, format!("pod {uid} is deleted")).into_response()
            }
            Ok(Err(error)) => problem(&error),
            Err(error) => {
                refused(StatusCode::INTERNAL_SERVER_ERROR, format!("the delete did not end: {error}"))
            }
        }
    }
    .instrument(span)
    .await
}

/// `GET /status`: from the records; for no pods it is the ping.
pub async fn status<N: Node>(State(plugin): Shared<N>, headers: HeaderMap, body: Bytes) -> Response {
    let span = tracing::info_span!("Status", session = session(&headers));
    async move {
        let asked = match kube::pods(&body) {
            Ok(asked) => asked,
            Err(detail) => return refused(StatusCode::UNPROCESSABLE_ENTITY, detail),
        };
        let wall = plugin.world.wall();
        if asked.is_empty() {
            let down = plugin.world.read(|records| records.node.as_ref().is_none_or(|node| node.down)).await;
            if down {
                return refused(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "the node is down; bring it up with `holdfast up`",
                );
            }
            return Json(ping(&capacity(&plugin.config.told))).into_response();
        }
        Json(plugin.world.read(|records| status::of_asked(records, &asked, wall)).await).into_response()
    }
    .instrument(span)
    .await
}

fn capacity(told: &[Option<String>; 3]) -> Capacity {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = memory.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    Capacity {
        cpus: u64::try_from(cpus).unwrap_or(1),
        memory_bytes: kib.unwrap_or(0) << 10,
        pods_max: PODS_MAX,
        told: told.clone(),
    }
}

/// `GET /system-info`.
pub async fn system_info<N: Node>(State(plugin): Shared<N>) -> Response {
    let counts = plugin.world.read(|records| (records.offloaded.len(), records.tombstones.len())).await;
    Json(json!({
        "plugin": "holdfast",
        "version": env!("CARGO_PKG_VERSION"),
        "drivers": ["native"],
        "pods": counts.0,
        "deletedPodsRemembered": counts.1,
        "resources": ping(&capacity(&plugin.config.told)).resources,
    }))
    .into_response()
}
