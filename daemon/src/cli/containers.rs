//! `run`, `ps`, `stop`, `start`, `restart`, `wait`.

use super::{
    Context, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_REFUSED, args, client::OPERATION_DEADLINE, networks,
    output, parse, stream, time,
};
use crate::api::{
    problem::Problem,
    types::{ContainerView, Waited},
};
use anyhow::{Context as _, bail};
use holdfast_core::{
    ops::request::{RootRequest, RunRequest, StopRequest},
    spec::RestartPolicy,
};
use hyper::Method;
use std::time::Duration;

/// Longer than anybody waits for a container: the daemon ends, or the user.
const WAIT_DEADLINE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The request of a command line.
fn request(run: args::Run) -> anyhow::Result<RunRequest> {
    let mut env = Vec::new();
    for file in &run.env_file {
        let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        env.extend(parse::env_file(&text).map_err(|error| anyhow::anyhow!("{}: {error}", file.display()))?);
    }
    env.extend(run.env);
    if run.rm && run.restart != RestartPolicy::No {
        // In the foreground core never hears of --rm.
        bail!("--rm and --restart {} contradict each other: leave one of them out", run.restart);
    }
    let mut command = run.command;
    let root = match (run.rootfs, run.image) {
        (Some(directory), first) => {
            command.splice(0..0, first);
            RootRequest::Rootfs(parse::absolute(&directory).map_err(anyhow::Error::msg)?)
        }
        (None, Some(image)) => RootRequest::Image(image),
        (None, None) => bail!("name an image, or a directory with --rootfs"),
    };
    let (networks, addresses) = networks::plugs(run.network, run.addresses)?;
    let (aliases, dns) = run.names.spec();
    Ok(RunRequest {
        root,
        name: run.name,
        pod: run.pod,
        tenant: run.namespace,
        networks,
        addresses,
        ports: parse::all_ports(run.publish),
        command,
        entrypoint: run.entrypoint.map(|program| vec![program]),
        env,
        mounts: run.volume,
        working_dir: run.workdir,
        user: run.user,
        hostname: run.hostname,
        restart: run.restart,
        stop_signal: run.stop_signal,
        stop_grace_ms: run.stop_timeout.map(|seconds| u64::from(seconds) * 1_000),
        security: Default::default(),
        aliases,
        dns,
        labels: run.label.into_iter().collect(),
        // In the foreground this command does it, once it has read how the container ended.
        remove_on_exit: run.rm && run.detach,
    })
}

/// The exit code of a command that the runtime could not execute, as in podman.
pub fn code_of(error: &anyhow::Error) -> u8 {
    let Some(problem) = error.downcast_ref::<Problem>() else { return EXIT_REFUSED };
    let detail = problem.detail.to_ascii_lowercase();
    if detail.contains("executable file") && detail.contains("not found") {
        EXIT_NOT_FOUND
    } else if detail.contains("exec") && detail.contains("permission denied") {
        EXIT_NOT_EXECUTABLE
    } else {
        EXIT_REFUSED
    }
}

/// `run`: with -d the identity is printed; otherwise the output, and its exit code is this command's.
pub async fn run(context: &Context, run: args::Run) -> anyhow::Result<u8> {
    let (detach, remove) = (run.detach, run.rm);
    let request = match request(run) {
        Ok(request) => request,
        Err(error) => {
            eprintln!("holdfast: {error:#}");
            return Ok(EXIT_REFUSED);
        }
    };
    let started: anyhow::Result<ContainerView> = output::post(context, &["containers"], &request).await;
    let container = match started {
        Ok(container) => container,
        Err(error) => {
            eprintln!("holdfast: {error:#}");
            return Ok(code_of(&error));
        }
    };
    if detach {
        return output::made(context.format, &container, &container.id);
    }
    stream::logs(context, &container.id, true, None, None, false).await?;
    let code = exit_code(&waited(context, &container.id).await?);
    if remove {
        // Not by force: one that was started again meanwhile is somebody's.
        let path = ["containers", container.id.as_str()];
        context.client.json::<()>(Method::DELETE, &path, &[], None::<&()>, OPERATION_DEADLINE).await?;
    }
    Ok(code)
}

async fn waited(context: &Context, container: &str) -> anyhow::Result<Waited> {
    let path = ["containers", container, "wait"];
    context.client.json(Method::GET, &path, &[], None::<&()>, WAIT_DEADLINE).await
}

/// A code as a process can have it; an end that nobody could read is no success.
fn exit_code(waited: &Waited) -> u8 {
    waited.exit_code.map_or(EXIT_REFUSED, |code| u8::try_from(code & 0xff).unwrap_or(EXIT_REFUSED))
}

/// `wait`.
pub async fn wait(context: &Context, containers: &[String]) -> anyhow::Result<u8> {
    for container in containers {
        let waited = waited(context, container).await?;
        match waited.exit_code {
            Some(code) => outln!("{code}"),
            None => outln!("-1"),
        }
    }
    Ok(0)
}

/// `stop`, `start`, `restart`, one by one; one that fails does not keep the others.
pub async fn each(
    context: &Context,
    containers: &[String],
    what: &str,
    time: Option<u32>,
) -> anyhow::Result<u8> {
    let request = StopRequest { grace_ms: time.map(|seconds| u64::from(seconds) * 1_000) };
    // Without -t the container's own grace counts, which only the daemon knows.
    let grace = Duration::from_secs(time.map_or(3_600, u64::from));
    let mut code = 0;
    for container in containers {
        let path = ["containers", container.as_str(), what];
        let deadline = if what == "start" { OPERATION_DEADLINE } else { OPERATION_DEADLINE + grace };
        let done: anyhow::Result<ContainerView> = context
            .client
            .json(Method::POST, &path, &[], (what != "start").then_some(&request), deadline)
            .await;
        match done {
            Ok(_) => outln!("{container}"),
            Err(error) => {
                eprintln!("holdfast: {error:#}");
                code = EXIT_REFUSED;
            }
        }
    }
    Ok(code)
}

/// `ps`.
pub async fn list(
    context: &Context,
    all: bool,
    quiet: bool,
    namespace: Option<String>,
    labels: &[String],
) -> anyhow::Result<u8> {
    let mut query = vec![("all", all.to_string())];
    query.extend(namespace.map(|tenant| ("tenant", tenant)));
    if !labels.is_empty() {
        query.push(("label", labels.join(",")));
    }
    let containers: Vec<ContainerView> = output::get(context, &["containers"], &query).await?;
    if quiet {
        containers.iter().for_each(|container| outln!("{}", container.id));
        return Ok(0);
    }
    let headings =
        ["ID", "NAME", "IMAGE", "COMMAND", "STATUS", "RESTARTS", "TENANT", "POD", "ADDRESS", "PORTS"];
    output::list(
        context.format,
        &containers,
        |container| &container.name,
        &headings,
        |container| {
            vec![
                container.id.clone(),
                container.name.clone(),
                container.image.clone(),
                short(&container.command.join(" "), 24),
                status(container),
                container.restarts.to_string(),
                container.tenant.clone(),
                container.pod.clone().unwrap_or_default(),
                container
                    .addresses
                    .iter()
                    .map(|address| address.ipv4.to_string())
                    .collect::<Vec<_>>()
                    .join(","),
                container.ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
            ]
        },
    )
}

fn status(container: &ContainerView) -> String {
    let age = container.since.map(time::age).unwrap_or_default();
    let code = container.exit_code.map_or_else(|| "?".to_owned(), |code| code.to_string());
    match container.state.as_str() {
        "running" => format!("up, since {age}"),
        "waiting" => format!("restarting, ended with {code}"),
        "exited" => format!("exited ({code}) {age}"),
        "failed" => format!("failed: {}", short(&container.cause, 40)),
        state => state.to_owned(),
    }
}

fn short(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    text.chars().take(chars_max - 1).chain(std::iter::once('…')).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;

    fn parsed(line: &[&str]) -> anyhow::Result<RunRequest> {
        let cli = args::Cli::try_parse_from([&["holdfast", "run"], line].concat())?;
        let args::Command::Run(run) = cli.command else { bail!("not run") };
        request(*run)
    }

    #[test]
    fn every_option_arrives_in_the_request() {
        let line = [
            "--name",
            "web",
            "--network",
            "a",
            "--network",
            "b",
            "--namespace",
            "t",
            "-p",
            "80:80",
            "-v",
            "/a:/b:ro",
            "-e",
            "K=V",
            "--restart",
            "always",
            "-w",
            "/w",
            "-u",
            "1:2",
            "--hostname",
            "h",
            "--entrypoint",
            "/e",
            "--label",
            "l=v",
            "--stop-signal",
            "HUP",
            "--stop-timeout",
            "3",
            "--network-alias",
            "www",
            "--dns",
            "192.0.2.53",
            "--dns-search",
            "a.example",
            "--dns-option",
            "ndots:2",
            "image:1",
            "-c",
            "x",
        ];
        let request = parsed(&line).unwrap();
        let expected = serde_json::json!({
            "root": {"image": "image:1"}, "name": "web", "pod": null, "tenant": "t", "networks": ["a", "b"],
            "ports": [{"host_address": "0.0.0.0", "host_port": 80, "target_port": 80, "protocol": "tcp"}],
            "command": ["-c", "x"], "entrypoint": ["/e"], "env": [["K", "V"]],
            "mounts": [{"source": "/a", "target": "/b", "read_only": true}], "working_dir": "/w", "user": [1, 2],
            "hostname": "h", "restart": "always", "stop_signal": 1, "stop_grace_ms": 3000, "labels": {"l": "v"},
            "remove_on_exit": false, "addresses": {}, "aliases": ["www"],
            "dns": {"service": "node", "servers": ["192.0.2.53"], "search": ["a.example"], "search_also": [],
                "options": ["ndots:2"]},
        });
        assert_eq!(serde_json::to_value(request).unwrap(), expected);
    }

    #[test]
    fn rootfs_takes_every_argument_as_the_command() {
        let request = parsed(&["--rootfs", "/srv/r", "sh", "-c", "x"]).unwrap();
        assert_eq!((request.root, request.command.len()), (RootRequest::Rootfs("/srv/r".to_owned()), 3));
        let brief = |line: &[&str]| parsed(line).unwrap().remove_on_exit;
        assert!(
            brief(&["-d", "--rm", "image:1"]) && !brief(&["--rm", "image:1"]) && !brief(&["-d", "image:1"])
        );
        assert_eq!(parsed(&["--dns-search", ".", "image:1"]).unwrap().dns.search, Some(vec![]));
        assert!(parsed(&[]).unwrap_err().to_string().contains("--rootfs"));
    }

    #[test]
    fn exit_codes_are_never_a_success_by_accident() {
        let code = |code| exit_code(&Waited { exit_code: code, cause: String::new() });
        assert_eq!(
            (code(Some(0)), code(Some(7)), code(Some(137)), code(None), code(Some(-1))),
            (0, 7, 137, 125, 255)
        );
    }
}
