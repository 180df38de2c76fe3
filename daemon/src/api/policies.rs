//! `/v1/policies`, and what they decide.

use super::{
    App,
    body::{Body, Query},
    problem::Problem,
};
use crate::node::world::Node;
use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use holdfast_core::{
    driver::{self, Explained},
    ops::request::{PolicyRequest, PolicyTarget},
    policy::{Flow, PolicyRecord},
    record::Records,
    ruleset::Counter,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};

type Shared<N> = State<Arc<App<N>>>;

/// A rule, and how often it has decided.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PolicyView {
    /// The record.
    #[serde(flatten)]
    pub record: PolicyRecord,
    /// Packets and bytes that it decided on; `None` where nobody asked.
    pub counter: Option<Counter>,
}

/// `GET /v1/policies`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoliciesQuery {
    /// With counters.
    #[serde(default)]
    pub stats: bool,
}

/// `GET /v1/why`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WhyQuery {
    /// Workload or address.
    pub from: String,
    /// Workload or address.
    pub to: String,
    /// IANA protocol number.
    pub protocol: u8,
    /// Port at the receiver.
    #[serde(default)]
    pub port: u16,
}

/// `GET /v1/policies`.
pub async fn list<N: Node>(
    State(app): Shared<N>,
    Query(query): Query<PoliciesQuery>,
) -> Result<Json<Vec<PolicyView>>, Problem> {
    let counters = match query.stats {
        true => Some(driver::policy_counters(&*app.world).await?),
        false => None,
    };
    let all = |records: &Records| -> Vec<PolicyView> {
        let counted = |record: &PolicyRecord| {
            counters
                .as_ref()
                .map(|counters: &BTreeMap<_, Counter>| counters.get(&record.id).copied().unwrap_or_default())
        };
        let records = records.policies.values();
        records.map(|record| PolicyView { counter: counted(record), record: record.clone() }).collect()
    };
    Ok(Json(app.world.read(all).await))
}

async fn views<N: Node>(app: &App<N>, ids: Vec<holdfast_core::id::PolicyId>) -> Vec<PolicyView> {
    let made = |records: &Records| {
        let found = ids.iter().filter_map(|id| records.policies.get(id).cloned());
        found.map(|record| PolicyView { record, counter: None }).collect()
    };
    app.world.read(made).await
}

/// `POST /v1/policies`.
pub async fn create<N: Node>(
    State(app): Shared<N>,
    Body(request): Body<PolicyRequest>,
) -> Result<(StatusCode, Json<Vec<PolicyView>>), Problem> {
    let ids = app
        .operate(|app| async move { driver::create_policy(&*app.world, &app.session, &request).await })
        .await?;
    Ok((StatusCode::CREATED, Json(views(&app, ids).await)))
}

/// `POST /v1/policies/apply`: a NetworkPolicy as JSON.
pub async fn apply<N: Node>(
    State(app): Shared<N>,
    Body(document): Body<serde_json::Value>,
) -> Result<(StatusCode, Json<Vec<PolicyView>>), Problem> {
    let ids = app
        .operate(|app| async move { driver::apply_policy(&*app.world, &app.session, &document).await })
        .await?;
    Ok((StatusCode::CREATED, Json(views(&app, ids).await)))
}

/// `DELETE /v1/policies/{name}`.
pub async fn remove<N: Node>(State(app): Shared<N>, Path(name): Path<String>) -> Result<StatusCode, Problem> {
    let target = PolicyTarget { name };
    app.operate(|app| async move { driver::remove_policy(&*app.world, &app.session, &target).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `GET /v1/why`.
pub async fn why<N: Node>(
    State(app): Shared<N>,
    Query(query): Query<WhyQuery>,
) -> Result<Json<Vec<Explained>>, Problem> {
    let flow = Flow { protocol: query.protocol, port: query.port };
    let explained = |records: &Records| driver::explain(records, &query.from, &query.to, flow);
    Ok(Json(app.world.read(explained).await?))
}
