//! The interLink plugin API: `/create`, `/delete`, `/status`, `/getLogs`, as a virtual kubelet's API server calls it.
//! Answers come from the records; work is done by [`manager`], which has no access to any answer.

mod config;
mod handlers;
mod logs;
pub mod manager;
mod transport;

pub use config::Config;

use crate::node::world::Node;
use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::{StatusCode, Uri},
    routing::{get, post},
};
use std::sync::Arc;
use tokio::sync::watch;

/// The largest body, in bytes: a pod with all its ConfigMaps and Secrets, in base64.
const BODY_BYTES_MAX: usize = 32 << 20;

/// What every handler has.
#[derive(Debug)]
pub struct Plugin<N> {
    /// The node.
    pub world: Arc<N>,
    /// Configuration.
    pub config: Config,
}

/// Every route. The paths are the contract's.
pub fn router<N: Node>(plugin: Arc<Plugin<N>>) -> Router {
    Router::new()
        .route("/create", post(handlers::create::<N>))
        .route("/delete", post(handlers::delete::<N>))
        .route("/status", get(handlers::status::<N>))
        .route("/getLogs", get(logs::get::<N>))
        .route("/system-info", get(handlers::system_info::<N>))
        .fallback(|uri: Uri| async move {
            (
                StatusCode::NOT_FOUND,
                format!("the interLink plugin of Holdfast has no endpoint {}", uri.path()),
            )
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(plugin)
}

/// Serves the API wherever it is configured, until the daemon ends. What cannot be listened on is told in the log and
/// left out: the node's own API and its workloads do not depend on it.
pub async fn serve<N: Node>(plugin: Arc<Plugin<N>>, ended: watch::Receiver<bool>) {
    let router = router(Arc::clone(&plugin));
    let mut serving = tokio::task::JoinSet::new();
    for listener in transport::listeners(plugin.world.paths(), &plugin.config).await {
        serving.spawn(listener.serve(router.clone(), ended.clone()));
    }
    while serving.join_next().await.is_some() {}
}
