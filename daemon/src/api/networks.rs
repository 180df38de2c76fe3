//! `/v1/networks`.

use super::{
    App,
    body::Body,
    problem::Problem,
    types::{AddressView, NetworkDetails, NetworkView, VerifyRequest},
};
use crate::node::world::Node;
use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use holdfast_core::{
    driver::{self, PortState, VerifyReport},
    ops::find,
    ops::request::{ConnectRequest, DisconnectRequest, NetworkRequest},
    record::Records,
};
use std::sync::Arc;

type Shared<N> = State<Arc<App<N>>>;

/// `GET /v1/networks`.
pub async fn list<N: Node>(State(app): Shared<N>) -> Json<Vec<NetworkView>> {
    let all = |records: &Records| -> Vec<NetworkView> {
        records.networks.values().map(|network| NetworkView::new(records, network)).collect()
    };
    Json(app.world.read(all).await)
}

/// `POST /v1/networks`.
pub async fn create<N: Node>(
    State(app): Shared<N>,
    Body(request): Body<NetworkRequest>,
) -> Result<(StatusCode, Json<NetworkView>), Problem> {
    let network = app
        .operate(|app| async move { driver::create_network(&*app.world, &app.session, &request).await })
        .await?;
    Ok((StatusCode::CREATED, Json(app.world.read(|records| NetworkView::new(records, &network)).await)))
}

/// `GET /v1/networks/{name}`.
pub async fn inspect<N: Node>(
    State(app): Shared<N>,
    Path(reference): Path<String>,
) -> Result<Json<NetworkDetails>, Problem> {
    let details = |records: &Records| {
        find::network(records, &reference).map(|network| NetworkDetails {
            view: NetworkView::new(records, network),
            record: network.clone(),
        })
    };
    Ok(Json(app.world.read(details).await?))
}

/// `DELETE /v1/networks/{name}`.
pub async fn remove<N: Node>(
    State(app): Shared<N>,
    Path(reference): Path<String>,
) -> Result<StatusCode, Problem> {
    app.operate(|app| async move { driver::remove_network(&*app.world, &app.session, &reference).await })
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /v1/networks/prune`: the names of those that were removed.
pub async fn prune<N: Node>(State(app): Shared<N>) -> Result<Json<Vec<String>>, Problem> {
    app.operate(|app| async move { driver::prune_networks(&*app.world, &app.session).await }).await.map(Json)
}

/// `POST /v1/networks/{name}/connect`: where the workload is plugged in then.
pub async fn connect<N: Node>(
    State(app): Shared<N>,
    Path(network): Path<String>,
    Body(request): Body<ConnectRequest>,
) -> Result<Json<Vec<AddressView>>, Problem> {
    let sandbox = app
        .operate(
            |app| async move { driver::connect_network(&*app.world, &app.session, &network, &request).await },
        )
        .await?;
    Ok(Json(app.world.read(|records| AddressView::all(records, Some(&sandbox))).await))
}

/// `POST /v1/networks/{name}/disconnect`: where the workload is plugged in then.
pub async fn disconnect<N: Node>(
    State(app): Shared<N>,
    Path(network): Path<String>,
    Body(request): Body<DisconnectRequest>,
) -> Result<Json<Vec<AddressView>>, Problem> {
    let sandbox = app
        .operate(|app| async move {
            driver::disconnect_network(&*app.world, &app.session, &network, &request).await
        })
        .await?;
    Ok(Json(app.world.read(|records| AddressView::all(records, Some(&sandbox))).await))
}

/// `PUT /v1/networks/{name}/routes/{other}`.
pub async fn add_route<N: Node>(
    State(app): Shared<N>,
    Path((one, other)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    app.operate(|app| async move { driver::add_route(&*app.world, &app.session, &one, &other).await })
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `DELETE /v1/networks/{name}/routes/{other}`.
pub async fn remove_route<N: Node>(
    State(app): Shared<N>,
    Path((one, other)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    app.operate(|app| async move { driver::remove_route(&*app.world, &app.session, &one, &other).await })
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `GET /v1/ports/{name}`: published ports of a container or a pod, as the uplink really has them.
pub async fn ports<N: Node>(
    State(app): Shared<N>,
    Path(workload): Path<String>,
) -> Result<Json<Vec<PortState>>, Problem> {
    Ok(Json(driver::ports(&*app.world, &workload).await?))
}

/// `POST /v1/networks/verify`.
pub async fn verify<N: Node>(
    State(app): Shared<N>,
    Body(request): Body<VerifyRequest>,
) -> Result<Json<VerifyReport>, Problem> {
    let report =
        tokio::spawn(async move { driver::verify_networks(&*app.world, &app.session, request.all).await });
    report
        .await
        .map(Json)
        .map_err(|error| Problem::internal(format!("the verification did not end: {error}")))
}
