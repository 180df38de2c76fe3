//! What commands have in common.

use super::{Context, EXIT_REFUSED, args::Format, client::OPERATION_DEADLINE, table};
use hyper::Method;
use serde::{Serialize, de::DeserializeOwned};
use std::io::Write;

/// Writes to standard output. When its reader has gone, this process ends by SIGPIPE, as a shell expects of a
/// filter; only then, for a daemon that hangs up is an error to be told.
pub fn write(text: std::fmt::Arguments<'_>) {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_fmt(text).and_then(|()| stdout.flush());
    match written {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => end_by_sigpipe(),
        Err(error) => eprintln!("holdfast: write to standard output: {error}"),
    }
}

fn end_by_sigpipe() {
    // SAFETY: the default action replaces no handler of this program, and raise takes plain numbers.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::raise(libc::SIGPIPE);
    }
}

/// A `GET`.
pub async fn get<T: DeserializeOwned>(
    context: &Context,
    path: &[&str],
    query: &[(&str, String)],
) -> anyhow::Result<T> {
    context.client.json(Method::GET, path, query, None::<&()>, OPERATION_DEADLINE).await
}

/// A `POST`.
pub async fn post<T: DeserializeOwned>(
    context: &Context,
    path: &[&str],
    body: &impl Serialize,
) -> anyhow::Result<T> {
    context.client.json(Method::POST, path, &[], Some(body), OPERATION_DEADLINE).await
}

/// Prints JSON, indented.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    outln!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Prints a list in the format that was asked for.
pub fn list<T: Serialize>(
    format: Format,
    items: &[T],
    name: impl Fn(&T) -> &str,
    headings: &[&str],
    row: impl Fn(&T) -> Vec<String>,
) -> anyhow::Result<u8> {
    match format {
        Format::Json => json(&items)?,
        Format::Name => items.iter().for_each(|item| outln!("{}", name(item))),
        Format::Table => out!("{}", table::render(headings, &items.iter().map(row).collect::<Vec<_>>())),
    }
    Ok(0)
}

/// Prints what the API tells of one object.
pub async fn inspect(context: &Context, path: &[&str]) -> anyhow::Result<u8> {
    let value: serde_json::Value = get(context, path, &[]).await?;
    match (context.format, value.get("name").and_then(serde_json::Value::as_str)) {
        (Format::Name, Some(name)) => outln!("{name}"),
        _ => json(&value)?,
    }
    Ok(0)
}

/// Prints the name of a thing that was made, or all of it as JSON.
pub fn made(format: Format, value: &impl Serialize, name: &str) -> anyhow::Result<u8> {
    match format {
        Format::Json => json(value)?,
        Format::Table | Format::Name => outln!("{name}"),
    }
    Ok(0)
}

/// Removes objects one by one; one that cannot be removed does not keep the others.
pub async fn remove(context: &Context, kind: &str, names: &[String], force: bool) -> anyhow::Result<u8> {
    let query: Vec<(&str, String)> = if force { vec![("force", "true".to_owned())] } else { Vec::new() };
    let mut code = 0;
    for name in names {
        let removed: anyhow::Result<()> =
            context.client.json(Method::DELETE, &[kind, name], &query, None::<&()>, OPERATION_DEADLINE).await;
        match removed {
            Ok(()) => outln!("{name}"),
            Err(error) => {
                eprintln!("holdfast: {error:#}");
                code = EXIT_REFUSED;
            }
        }
    }
    Ok(code)
}
