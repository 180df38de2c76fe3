//! What many cases need.

use anyhow::{Context as _, Result, ensure};
use holdfast_chaos::{
    command::{self, Output},
    image,
    node::{COMMAND_DEADLINE, Node, Processes},
    stage::{HEAL_DEADLINE, Stage},
};
use std::{
    io::Write,
    process::{Command, Stdio},
};

/// The busybox image of the stage.
pub const IMAGE: &str = image::NAME;

/// A node that is up, with the image loaded.
pub fn stage(context: &crate::runner::Context) -> Result<Stage> {
    Stage::empty(&context.identity)
}

/// The node's processes, once it is whole.
pub fn whole(node: &Node) -> Result<Processes> {
    node.await_processes("the node to be whole", HEAL_DEADLINE, |_| true)
}

/// Starts a container that does nothing and ends at once when asked to; `options` go before the image.
pub fn pause(node: &Node, name: &str, options: &str) -> Result<()> {
    node.sh(&format!("run -d --name {name} {options} {IMAGE} {}", image::PAUSE[0])).map(drop)
}

/// Starts a container that serves a page on port 80, v4 and v6.
pub fn serve(node: &Node, name: &str, options: &str) -> Result<()> {
    node.sh(&format!("run -d --name {name} {options} {IMAGE} httpd -f -p 80 -h /www")).map(drop)
}

/// Runs a command that must end with `code`.
pub fn ends_with<S: AsRef<str>>(node: &Node, code: i32, arguments: &[S]) -> Result<Output> {
    let output = node.try_cli(arguments)?;
    let words: Vec<&str> = arguments.iter().map(AsRef::as_ref).collect();
    ensure!(
        output.status.code() == Some(code),
        "holdfast {words:?} ended with {} and not {code}: {}{}",
        output.status,
        output.stdout,
        output.stderr
    );
    Ok(output)
}

/// A string field of a JSON object.
pub fn text<'a>(value: &'a serde_json::Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(serde_json::Value::as_str).unwrap_or_default()
}

/// Runs a command of the node with this on its standard input.
pub fn with_input(node: &Node, arguments: &[&str], input: &[u8]) -> Result<Output> {
    let mut command = node.command(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = std::time::Instant::now();
    let mut child = command.spawn()?;
    let mut stdin = child.stdin.take().context("no standard input")?;
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output()?;
    writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
    Ok(Output {
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        elapsed: started.elapsed(),
    })
}

/// Runs a command of the node from another binary: another build over the same state.
pub fn by_binary(node: &Node, binary: &std::path::Path, arguments: &[&str]) -> Result<Output> {
    let template = node.command(arguments);
    let mut command = Command::new(binary);
    command.env_clear().args(template.get_args()).current_dir("/");
    for (key, value) in template.get_envs() {
        if let Some(value) = value {
            command.env(key, value);
        }
    }
    command::run(&mut command, COMMAND_DEADLINE)
}

/// This program where everybody can run it.
pub fn own_copy(node: &Node) -> Result<std::path::PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let copy = node.scratch.path().join("e2e");
    if !copy.exists() {
        std::fs::copy("/proc/self/exe", &copy)?;
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(copy)
}

/// `status` as JSON, also of a node that is not whole: it says so with its exit code.
pub fn status(node: &Node) -> Result<serde_json::Value> {
    let output = node.try_cli(&["--format", "json", "status"])?;
    serde_json::from_str(&output.stdout).with_context(|| format!("status printed {output:?}"))
}
