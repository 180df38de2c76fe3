//! `/v1/containers`.

use super::{
    App,
    body::{Body, Query},
    problem::Problem,
    types::{ContainerDetails, ContainerView, ListQuery, Waited},
};
use crate::node::world::Node;
use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use holdfast_core::{
    driver,
    error::{Refusal, RefusalCode},
    ops::find,
    ops::request::{RemoveRequest, RunRequest, StopRequest},
    record::{ContainerRecord, Records, RunState},
};
use std::sync::Arc;

type Shared<N> = State<Arc<App<N>>>;

async fn view<N: Node>(app: &App<N>, container: &ContainerRecord) -> Json<ContainerView> {
    Json(app.world.read(|records| ContainerView::new(records, container)).await)
}

/// `GET /v1/containers`.
pub async fn list<N: Node>(
    State(app): Shared<N>,
    Query(query): Query<ListQuery>,
) -> Json<Vec<ContainerView>> {
    let all = |records: &Records| -> Vec<ContainerView> {
        records
            .containers
            .values()
            .map(|one| ContainerView::new(records, one))
            .filter(|view| query.takes(view))
            .collect()
    };
    Json(app.world.read(all).await)
}

/// `POST /v1/containers`.
pub async fn run<N: Node>(
    State(app): Shared<N>,
    Body(request): Body<RunRequest>,
) -> Result<(StatusCode, Json<ContainerView>), Problem> {
    let container = app
        .operate(|app| async move { driver::run_container(&*app.world, &app.session, &request).await })
        .await?;
    Ok((StatusCode::CREATED, view(&app, &container).await))
}

/// `GET /v1/containers/{name}`.
pub async fn inspect<N: Node>(
    State(app): Shared<N>,
    Path(reference): Path<String>,
) -> Result<Json<ContainerDetails>, Problem> {
    let details = |records: &Records| {
        find::container(records, &reference).map(|container| ContainerDetails {
            view: ContainerView::new(records, container),
            record: container.clone(),
            sandbox: records.sandboxes.get(&container.sandbox).cloned(),
        })
    };
    Ok(Json(app.world.read(details).await?))
}

/// `POST /v1/containers/{name}/start`.
pub async fn start<N: Node>(
    State(app): Shared<N>,
    Path(reference): Path<String>,
) -> Result<Json<ContainerView>, Problem> {
    let container = app
        .operate(|app| async move { driver::start_container(&*app.world, &app.session, &reference).await })
        .await?;
    Ok(view(&app, &container).await)
}

/// `POST /v1/containers/{name}/stop`.
pub async fn stop<N: Node>(
    State(app): Shared<N>,
    Path(reference): Path<String>,
    Body(request): Body<StopRequest>,
) -> Result<Json<ContainerView>, Problem> {
    let container = app
        .operate(|app| async move {
            driver::stop_container(&*app.world, &app.session, &reference, &request).await
        })
        .await?;
    Ok(view(&app, &container).await)
}

/// `POST /v1/containers/{name}/restart`.
pub async fn restart<N: Node>(
    State(app): Shared<N>,
    Path(reference): Path<String>,
    Body(request): Body<StopRequest>,
) -> Result<Json<ContainerView>, Problem> {
    let container = app
        .operate(|app| async move {
            driver::restart_container(&*app.world, &app.session, &reference, &request).await
        })
        .await?;
    Ok(view(&app, &container).await)
}

/// `DELETE /v1/containers/{name}`.
pub async fn remove<N: Node>(
    State(app): Shared<N>,
    Path(reference): Path<String>,
    Query(request): Query<RemoveRequest>,
) -> Result<StatusCode, Problem> {
    app.operate(|app| async move {
        driver::remove_container(&*app.world, &app.session, &reference, &request).await
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Whether a container has ended for now; `None` while it runs or is about to be started again.
fn ended(container: &ContainerRecord) -> Option<Waited> {
    let waited = |exit_code, cause: &str| Some(Waited { exit_code, cause: cause.to_owned() });
    match &container.state {
        RunState::Running { .. } | RunState::Waiting { .. } => None,
        RunState::Created if container.wants_to_run() => None,
        RunState::Created => waited(None, ""),
        RunState::Exited { exit_code, .. } => waited(*exit_code, ""),
        RunState::Failed { cause, .. } => waited(None, cause),
    }
}

/// `GET /v1/containers/{name}/wait`: answers when the container has ended and will not be started again by
/// its policy.
pub async fn wait<N: Node>(
    State(app): Shared<N>,
    Path(reference): Path<String>,
) -> Result<Json<Waited>, Problem> {
    // The identity, for the name could be another container's by then.
    let id = app.world.read(|records| find::container(records, &reference).map(|one| one.id.clone())).await?;
    let mut changes = app.world.changes();
    loop {
        changes.borrow_and_update();
        match app.world.read(|records| records.containers.get(&id).map(ended)).await {
            Some(Some(waited)) => return Ok(Json(waited)),
            Some(None) => {}
            None => {
                let gone = format!("container {reference:?} was removed");
                return Err(Refusal::new(RefusalCode::NotFound, gone).into());
            }
        }
        if changes.changed().await.is_err() {
            return Err(Problem::internal("the store has ended"));
        }
    }
}
