//! `/v1/pods`.

use super::{
    App,
    body::{Body, Query},
    problem::Problem,
    types::{PodDetails, PodView},
};
use crate::node::world::Node;
use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use holdfast_core::{
    driver,
    ops::find,
    ops::request::{PodRequest, RemoveRequest},
    record::{Records, SandboxKind},
};
use std::sync::Arc;

type Shared<N> = State<Arc<App<N>>>;

/// `GET /v1/pods`.
pub async fn list<N: Node>(State(app): Shared<N>) -> Json<Vec<PodView>> {
    let all = |records: &Records| -> Vec<PodView> {
        let pods = records.sandboxes.values().filter(|sandbox| sandbox.kind == SandboxKind::Pod);
        pods.map(|pod| PodView::new(records, pod)).collect()
    };
    Json(app.world.read(all).await)
}

/// `POST /v1/pods`.
pub async fn create<N: Node>(
    State(app): Shared<N>,
    Body(request): Body<PodRequest>,
) -> Result<(StatusCode, Json<PodView>), Problem> {
    let pod = app
        .operate(|app| async move { driver::create_pod(&*app.world, &app.session, &request).await })
        .await?;
    Ok((StatusCode::CREATED, Json(app.world.read(|records| PodView::new(records, &pod)).await)))
}

/// `GET /v1/pods/{name}`.
pub async fn inspect<N: Node>(
    State(app): Shared<N>,
    Path(reference): Path<String>,
) -> Result<Json<PodDetails>, Problem> {
    let details = |records: &Records| {
        find::pod(records, &reference)
            .map(|pod| PodDetails { view: PodView::new(records, pod), record: pod.clone() })
    };
    Ok(Json(app.world.read(details).await?))
}

/// `DELETE /v1/pods/{name}`.
pub async fn remove<N: Node>(
    State(app): Shared<N>,
    Path(reference): Path<String>,
    Query(request): Query<RemoveRequest>,
) -> Result<StatusCode, Problem> {
    app.operate(
        |app| async move { driver::remove_pod(&*app.world, &app.session, &reference, &request).await },
    )
    .await?;
    Ok(StatusCode::NO_CONTENT)
}
