//! `/v1/images`.

use super::{
    App,
    body::{BODY_DEADLINE, Query},
    problem::Problem,
    types::ImageView,
};
use crate::node::world::Node;
use axum::{
    Json,
    body::Body as HttpBody,
    extract::{Path, Request, State},
    http::{StatusCode, header},
};
use futures_util::StreamExt;
use holdfast_core::{
    error::{Refusal, WorldError},
    ops::{find, image},
    record::{ImageRecord, Records},
    world::Durability,
};
use serde::Deserialize;
use std::{
    path::{Path as FilePath, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::io::AsyncWriteExt;

type Shared<N> = State<Arc<App<N>>>;

/// The largest archive that is taken as a stream, in bytes.
const ARCHIVE_BYTES_MAX: u64 = 64 << 30;

/// The name to give to what is loaded.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadQuery {
    #[serde(default)]
    name: Option<String>,
}

/// A JSON body instead of the archive: where the archive lies.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadRequest {
    path: PathBuf,
    #[serde(default)]
    name: Option<String>,
}

/// A file that goes with its last user.
#[derive(Debug)]
struct Spool(PathBuf);

impl Drop for Spool {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.0.display(), %error, "spooled archive was not removed");
        }
    }
}

/// `GET /v1/images`.
pub async fn list<N: Node>(State(app): Shared<N>) -> Json<Vec<ImageView>> {
    Json(app.world.read(|records| records.images.values().map(ImageView::from).collect()).await)
}

/// `GET /v1/images/{name}`.
pub async fn inspect<N: Node>(
    State(app): Shared<N>,
    Path(reference): Path<String>,
) -> Result<Json<ImageRecord>, Problem> {
    Ok(Json(app.world.read(|records| find::image(records, &reference).cloned()).await?))
}

/// `POST /v1/images`: an archive, or JSON that says where one lies.
pub async fn load<N: Node>(
    State(app): Shared<N>,
    Query(query): Query<LoadQuery>,
    request: Request,
) -> Result<(StatusCode, Json<ImageView>), Problem> {
    let json = request
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"application/json"));
    let (path, name, spool) = if json {
        let body = axum::body::to_bytes(request.into_body(), super::BODY_BYTES_MAX);
        let body = tokio::time::timeout(BODY_DEADLINE, body)
            .await
            .map_err(|_| Problem::new(408, "timeout", "the body did not arrive in time"))?
            .map_err(|error| Problem::new(413, "too_large", error.to_string()))?;
        let request: LoadRequest =
            serde_json::from_slice(&body).map_err(|error| Problem::new(400, "invalid", error.to_string()))?;
        if !request.path.is_absolute() {
            return Err(Problem::new(
                400,
                "invalid",
                format!("path {} is not absolute", request.path.display()),
            ));
        }
        (request.path, request.name.or(query.name), None)
    } else {
        let spool = spool(&*app.world, request.into_body()).await?;
        (spool.0.clone(), query.name, Some(spool))
    };
    let loading = tokio::spawn(async move {
        let loaded = load_file(&*app.world, &path, name.as_deref()).await;
        drop(spool);
        loaded
    });
    let image =
        loading.await.map_err(|error| Problem::internal(format!("the load did not end: {error}")))??;
    Ok((StatusCode::CREATED, Json(ImageView::from(&image))))
}

/// Writes an archive that arrives as a stream to a file of its own.
async fn spool<N: Node>(world: &N, body: HttpBody) -> Result<Spool, Problem> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let spool = Spool(world.paths().state.join(format!("load-{}-{number}.tar", std::process::id())));
    let failed = |error: &dyn std::fmt::Display| {
        Problem::new(507, "exhausted", format!("write {}: {error}", spool.0.display()))
    };
    let mut file = tokio::fs::File::create(&spool.0).await.map_err(|error| failed(&error))?;
    let mut stream = body.into_data_stream();
    let mut total: u64 = 0;
    loop {
        let next = tokio::time::timeout(BODY_DEADLINE, stream.next())
            .await
            .map_err(|_| Problem::new(408, "timeout", "the archive stopped arriving"))?;
        let Some(chunk) = next else { break };
        let chunk =
            chunk.map_err(|error| Problem::new(400, "invalid", format!("the archive broke off: {error}")))?;
        total = total.saturating_add(chunk.len() as u64);
        if total > ARCHIVE_BYTES_MAX {
            return Err(Problem::new(
                413,
                "too_large",
                format!("the archive is larger than {} GiB", ARCHIVE_BYTES_MAX >> 30),
            ));
        }
        file.write_all(&chunk).await.map_err(|error| failed(&error))?;
    }
    file.flush().await.map_err(|error| failed(&error))?;
    Ok(spool)
}

async fn load_file<N: Node>(world: &N, path: &FilePath, name: Option<&str>) -> Result<ImageRecord, Problem> {
    let loaded =
        world.load_image(path, name).await.map_err(|error| Problem::from(WorldError::from(error)))?;
    let decided = world
        .transact(Durability::Power, |records: &Records| Ok::<_, Refusal>(image::plan_load(records, loaded)))
        .await?;
    Ok(decided?)
}

/// `DELETE /v1/images/{name}`.
pub async fn remove<N: Node>(
    State(app): Shared<N>,
    Path(reference): Path<String>,
) -> Result<StatusCode, Problem> {
    let id = app.world.read(|records| find::image(records, &reference).map(|image| image.id.clone())).await?;
    let removed = tokio::spawn(async move {
        // The record first: without it nothing can be started from layers that are half gone.
        let decide = |records: &Records| image::plan_remove(records, &id);
        let layers = app.world.transact(Durability::Power, decide).await??;
        let removed = app.world.remove_layers(&layers).await;
        removed.map_err(|error| Problem::from(WorldError::from(error)))
    });
    removed.await.map_err(|error| Problem::internal(format!("the removal did not end: {error}")))??;
    Ok(StatusCode::NO_CONTENT)
}
