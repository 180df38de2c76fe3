//! `image`.

use super::{Context, args::Image, client, output, time};
use crate::api::types::ImageView;
use anyhow::Context as _;
use axum::body::Body;
use futures_util::stream;
use http_body_util::BodyExt;
use hyper::{Method, Request, header};
use std::path::Path;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes of the archive in one chunk.
const CHUNK_BYTES: usize = 256 << 10;

/// Runs a subcommand.
pub async fn dispatch(context: &Context, image: Image) -> anyhow::Result<u8> {
    match image {
        Image::Load { file, name } => load(context, &file, name).await,
        Image::Ls => list(context).await,
        Image::Rm { images } => output::remove(context, "images", &images, false).await,
    }
}

/// Sends the archive itself: this process may read what the daemon cannot, and the other way round.
async fn load(context: &Context, file: &Path, name: Option<String>) -> anyhow::Result<u8> {
    let source: Box<dyn AsyncRead + Send + Unpin> = if file == Path::new("-") {
        Box::new(tokio::io::stdin())
    } else {
        Box::new(tokio::fs::File::open(file).await.with_context(|| format!("open {}", file.display()))?)
    };
    let body = stream::try_unfold(source, |mut source| async move {
        let mut chunk = vec![0; CHUNK_BYTES];
        let length = source.read(&mut chunk).await?;
        chunk.truncate(length);
        Ok::<_, std::io::Error>((length > 0).then_some((chunk, source)))
    });
    let query: Vec<(&str, String)> = name.map(|name| ("name", name)).into_iter().collect();
    let request = Request::builder()
        .method(Method::POST)
        .uri(client::uri(&["images"], &query))
        .header(header::HOST, "holdfast")
        .header(header::CONTENT_TYPE, "application/x-tar")
        .body(Body::from_stream(body))?;
    let response = context.client.send(request).await?;
    let bytes = response.into_body().collect().await.context("the daemon's answer broke off")?.to_bytes();
    let image: ImageView = serde_json::from_slice(&bytes).context("understand the daemon's answer")?;
    output::made(context.format, &image, image.names.first().unwrap_or(&image.id))
}

async fn list(context: &Context) -> anyhow::Result<u8> {
    let images: Vec<ImageView> = output::get(context, &["images"], &[]).await?;
    let name = |image: &ImageView| image.names.join(", ");
    if context.format == super::Format::Name {
        images.iter().for_each(|image| outln!("{}", image.names.first().unwrap_or(&image.id)));
        return Ok(0);
    }
    output::list(
        context.format,
        &images,
        |image| &image.id,
        &["ID", "NAMES", "LAYERS", "SIZE", "LOADED"],
        |image| {
            vec![
                image.id.chars().take(12).collect(),
                name(image),
                image.layers.to_string(),
                format!("{:.1} MiB", image.size_bytes as f64 / f64::from(1 << 20)),
                time::age(image.loaded),
            ]
        },
    )
}
