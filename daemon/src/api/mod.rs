//! The HTTP API on the node's socket: `/v1/…`, JSON, errors as `application/problem+json`.

mod body;
mod containers;
pub mod frame;
mod images;
mod networks;
mod node;
mod pods;
pub mod policies;
pub mod problem;
pub mod server;
mod streams;
pub mod types;

use crate::node::{supervisor::SupervisorHandle, world::Node};
use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::{Method, Uri},
    routing::{delete, get, post, put},
};
use holdfast_core::{driver::Session, ops::request::RequestError};
use problem::Problem;
use std::sync::Arc;

/// The largest JSON body, in bytes; an image is a stream and has its own limit.
const BODY_BYTES_MAX: usize = 1 << 20;

/// What every handler has.
#[derive(Debug)]
pub struct App<N> {
    /// The node.
    pub world: Arc<N>,
    /// This daemon's session.
    pub session: Session,
    /// Brings the node up.
    pub supervisor: SupervisorHandle,
}

impl<N: Node> App<N> {
    /// Runs an operation to its end, also when the client hangs up: half an operation helps nobody.
    async fn operate<T, F>(self: &Arc<Self>, operation: impl FnOnce(Arc<Self>) -> F) -> Result<T, Problem>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, RequestError>> + Send + 'static,
    {
        match tokio::spawn(operation(Arc::clone(self))).await {
            Ok(result) => result.map_err(Problem::from),
            Err(error) => Err(Problem::internal(format!("the operation did not end: {error}"))),
        }
    }
}

/// Every route.
pub fn router<N: Node>(app: Arc<App<N>>) -> Router {
    Router::new()
        .route("/v1/ping", get(node::ping::<N>))
        .route("/v1/status", get(node::status::<N>))
        .route("/v1/up", post(node::up::<N>))
        .route("/v1/down", post(node::down::<N>))
        .route("/v1/containers", get(containers::list::<N>).post(containers::run::<N>))
        .route("/v1/containers/{name}", get(containers::inspect::<N>).delete(containers::remove::<N>))
        .route("/v1/containers/{name}/start", post(containers::start::<N>))
        .route("/v1/containers/{name}/stop", post(containers::stop::<N>))
        .route("/v1/containers/{name}/restart", post(containers::restart::<N>))
        .route("/v1/containers/{name}/wait", get(containers::wait::<N>))
        .route("/v1/containers/{name}/logs", get(streams::logs::<N>))
        .route("/v1/containers/{name}/exec", post(streams::exec::<N>))
        .route("/v1/pods", get(pods::list::<N>).post(pods::create::<N>))
        .route("/v1/pods/{name}", get(pods::inspect::<N>).delete(pods::remove::<N>))
        .route("/v1/networks", get(networks::list::<N>).post(networks::create::<N>))
        .route("/v1/networks/verify", post(networks::verify::<N>))
        .route("/v1/networks/prune", post(networks::prune::<N>))
        .route("/v1/networks/{name}/connect", post(networks::connect::<N>))
        .route("/v1/networks/{name}/disconnect", post(networks::disconnect::<N>))
        .route(
            "/v1/networks/{name}/routes/{other}",
            put(networks::add_route::<N>).delete(networks::remove_route::<N>),
        )
        .route("/v1/policies", get(policies::list::<N>).post(policies::create::<N>))
        .route("/v1/policies/apply", post(policies::apply::<N>))
        .route("/v1/policies/{name}", delete(policies::remove::<N>))
        .route("/v1/why", get(policies::why::<N>))
        .route("/v1/ports/{name}", get(networks::ports::<N>))
        .route("/v1/networks/{name}", get(networks::inspect::<N>).delete(networks::remove::<N>))
        .route("/v1/images", get(images::list::<N>).post(images::load::<N>))
        // A reference such as `registry/busybox:latest` holds slashes.
        .route("/v1/images/{*name}", get(images::inspect::<N>).delete(images::remove::<N>))
        .method_not_allowed_fallback(|method: Method, uri: Uri| async move {
            Problem::new(405, "method_not_allowed", format!("{method} does nothing on {}", uri.path()))
        })
        .fallback(|uri: Uri| async move {
            Problem::new(404, "no_such_endpoint", format!("this build has no endpoint {}", uri.path()))
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(app)
}
