//! `/v1/ping`, `/v1/status`, `/v1/up`, `/v1/down`.

use super::{
    App,
    body::Body,
    problem::Problem,
    types::{DownRequest, Pong, UpReport},
};
use crate::node::{notify, world::Node};
use axum::{Json, extract::State};
use holdfast_core::{
    driver::{self, BringUpReport, DownReport},
    error::RefusalCode,
    ops::request::RequestError,
    status::{self, ProcessStatus, StatusReport},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

type Shared<N> = State<Arc<App<N>>>;

/// `GET /v1/ping`.
pub async fn ping<N: Node>(State(app): Shared<N>) -> Json<Pong> {
    Json(Pong {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        generation: app.session.daemon_generation,
        supervised: notify::supervised(),
    })
}

/// `GET /v1/status`.
pub async fn status<N: Node>(State(app): Shared<N>) -> Result<Json<StatusReport>, Problem> {
    let mut report = status::report(&*app.world, &app.session).await?;
    // Core leaves this one out: only the daemon knows that it is the one that answers.
    let process = holdfast_linux::process::own_process().ok();
    report.processes.insert(
        0,
        ProcessStatus { role: "daemon".to_owned(), state: "running".to_owned(), process, in_pin: None },
    );
    Ok(Json(report))
}

/// `POST /v1/up`: answers when a bring-up that began after the request has ended.
pub async fn up<N: Node>(State(app): Shared<N>) -> Result<Json<UpReport>, Problem> {
    match app.supervisor.up().await {
        Some(told) => {
            let clone = |report: &Arc<BringUpReport>| BringUpReport::clone(report);
            let before = told.before.iter().map(clone).collect();
            Ok(Json(UpReport { report: clone(&told.report), before }))
        }
        None => Err(Problem::new(503, "busy", "the daemon is ending")),
    }
}

/// `POST /v1/down`.
pub async fn down<N: Node>(
    State(app): Shared<N>,
    Body(request): Body<DownRequest>,
) -> Result<Json<DownReport>, Problem> {
    let report = app.operate(|app| async move { take_down(&app, request.keep_workloads).await }).await?;
    if request.end_daemon && !notify::supervised() {
        app.supervisor.end();
    }
    Ok(Json(report))
}

/// How long `down` waits for what is under way, a bring-up above all.
const DOWN_PATIENCE: Duration = Duration::from_secs(60);
const DOWN_POLL: Duration = Duration::from_millis(20);

async fn take_down<N: Node>(app: &App<N>, keep_workloads: bool) -> Result<DownReport, RequestError> {
    let deadline = Instant::now() + DOWN_PATIENCE;
    loop {
        let result = driver::take_down(&*app.world, &app.session, keep_workloads).await;
        match result {
            Err(RequestError::Refused(refusal))
                if refusal.code == RefusalCode::Busy && Instant::now() < deadline =>
            {
                tokio::time::sleep(DOWN_POLL).await;
            }
            result => return result,
        }
    }
}
