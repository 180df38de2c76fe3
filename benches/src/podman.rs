//! The same commands with podman, in the same run, as the same user, on the same image.

use anyhow::{Context, Result, bail};
use holdfast_benches::sample::Sample;
use holdfast_chaos::{
    command,
    identity::Identity,
    image,
    node::{COMMAND_DEADLINE, Node, PATH},
};
use std::{path::Path, process::Command, sync::Arc, time::Instant};

/// Times of whole commands.
#[derive(Clone, Debug, Default)]
pub struct Commands {
    /// `run -d` on the default network.
    pub run: Sample,
    /// `exec … true`.
    pub exec: Sample,
    /// `restart`, with no wait for the old process.
    pub restart: Sample,
}

struct Podman<'a> {
    node: &'a Node,
    runtime: &'static str,
}

impl Podman<'_> {
    fn run(&self, line: &str) -> Result<()> {
        let scratch = self.node.scratch.path();
        let mut command = Command::new("podman");
        command.env_clear().env("PATH", PATH).env("HOME", scratch).env("XDG_RUNTIME_DIR", &self.node.runtime);
        command.args(["--runtime", self.runtime, "--cgroup-manager", "cgroupfs", "--events-backend", "none"]);
        command.arg("--root").arg(scratch.join("podman")).arg("--runroot").arg(scratch.join("podman-run"));
        command.args(line.split(' ')).current_dir("/");
        command::run(&mut command, COMMAND_DEADLINE)?.success(&format!("podman {line}")).map(drop)
    }
}

/// Measures podman.
///
/// # Errors
/// Says what is missing or does not work.
pub fn measure(identity: &Arc<Identity>, runs: u32) -> Result<Commands> {
    if !Path::new("/usr/bin/podman").exists() {
        bail!("it is not installed");
    }
    // Directories of its own; no node is started in them.
    let node = Node::new(Arc::clone(identity))?;
    let archive = node.scratch.path().join("busybox.tar");
    image::write_archive(&archive)?;
    let mut failure = None;
    for runtime in ["crun", "runc"] {
        let podman = Podman { node: &node, runtime };
        let result = times(&podman, &archive, runs);
        // Its storage is owned by subordinate ids: only it can remove that.
        let _ = podman.run("system reset --force");
        match result {
            Ok(times) => return Ok(times),
            Err(error) => {
                failure.get_or_insert(error);
            }
        }
    }
    Err(failure.context("no runtime was tried")?)
}

fn times(podman: &Podman<'_>, archive: &Path, runs: u32) -> Result<Commands> {
    podman.run(&format!("load --input {}", archive.display()))?;
    let mut times = Commands::default();
    for number in 0..runs {
        let timed = |sample: &mut Sample, line: &str| -> Result<()> {
            let started = Instant::now();
            podman.run(line)?;
            sample.add(started.elapsed());
            Ok(())
        };
        timed(&mut times.run, &format!("run -d --name b{number} {} {}", image::NAME, image::PAUSE[0]))?;
        timed(&mut times.exec, &format!("exec b{number} true"))?;
        timed(&mut times.restart, &format!("restart --time 0 b{number}"))?;
        podman.run(&format!("rm --force --time 0 b{number}"))?;
    }
    Ok(times)
}
