//! Clients and files that mean no good, and commands that are given twice.

use super::Context;
use crate::{
    census::Census,
    image, poll, process,
    report::Outcome,
    stage::{HEAL_DEADLINE, Stage, check_untouched},
};
use anyhow::{Context as _, Result, ensure};
use std::{
    fs,
    os::unix::{fs::FileTypeExt, net::UnixStream},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

pub fn idempotent_up(context: &Context) -> Result<Outcome> {
    let stage = Stage::populated(&context.identity)?;
    let before = stage.workloads()?;
    let mut traffic = stage.traffic()?;
    let processes = stage.node.await_processes("the node to be whole", HEAL_DEADLINE, |_| true)?;
    let census = Census::take(&context.identity, processes.control)?;
    for _ in 0..5 {
        let again = stage.node.up()?;
        ensure!(again == processes, "`up` on a whole node changed {processes} into {again}");
    }
    let after = Census::take(&context.identity, processes.control)?;
    ensure!(after == census, "`up` on a whole node added {:?}", after.added_since(&census));
    let said = stage.node.refused("daemon")?;
    ensure!(
        said.contains(&processes.daemon.pid.to_string()),
        "a second daemon is not told of the first, pid {}: {said:?}",
        processes.daemon.pid
    );
    let ping = traffic.ping.report()?;
    ensure!(ping.lost == 0, "{} of {} pings lost", ping.lost, ping.sent);
    traffic.stream.finish(HEAL_DEADLINE)?;
    check_untouched(&before, &stage.workloads()?)?;
    stage.finish()?;
    Ok(Outcome::Pass(format!("nothing changed, {} pings, none lost", ping.sent)))
}

pub fn control_wedge(context: &Context) -> Result<Outcome> {
    const CLIENTS: usize = 24;
    /// A command beside silent clients: longer than any sane answer, shorter than a wedge.
    const PATIENCE: Duration = Duration::from_secs(8);
    let stage = Stage::populated(&context.identity)?;
    let processes = stage.node.await_processes("the node to be whole", HEAL_DEADLINE, |_| true)?;
    let sockets: Vec<PathBuf> =
        paths(&stage, |path| path.metadata().is_ok_and(|metadata| metadata.file_type().is_socket()))?
            .into_iter()
            // The helper's own socket is not ours to answer; conmon's are its own too.
            .filter(|path| {
                path.file_name().is_some_and(|name| name == "daemon.sock" || name == "control.sock")
            })
            .collect();
    ensure!(sockets.len() == 2, "expected daemon.sock and control.sock, found {sockets:?}");
    let mut silent = Vec::new();
    for socket in &sockets {
        for _ in 0..CLIENTS {
            // A refusal is a fine answer to a crowd.
            silent.extend(UnixStream::connect(socket));
        }
    }
    let started = Instant::now();
    stage.node.status()?;
    stage.node.sh(&format!("run -d --name late --network blue {} {}", image::NAME, image::PAUSE[0]))?;
    stage.node.sh("rm --force late")?;
    let took = started.elapsed();
    ensure!(took < PATIENCE, "beside {} silent clients status, run and rm took {took:?}", silent.len());
    let now = stage.node.await_processes("the node to be whole", HEAL_DEADLINE, |_| true)?;
    ensure!(now == processes, "silent clients changed {processes} into {now}");
    let clients = silent.len();
    drop(silent);
    stage.finish()?;
    Ok(Outcome::Pass(format!(
        "{clients} silent clients; status, run and rm took {:.0} ms",
        took.as_secs_f64() * 1e3
    )))
}

pub fn stale_files(context: &Context) -> Result<Outcome> {
    let stage = Stage::empty(&context.identity)?;
    let files = paths(&stage, |path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        [".sock", ".lock", ".pid", ".snapshot"].iter().any(|end| name.ends_with(end))
    })?;
    ensure!(files.len() >= 2, "the node has no socket or lock to squat on: {files:?}");
    let mut tried = 0;
    for file in &files {
        for squatter in [Squatter::Socket, Squatter::Rubbish, Squatter::Directory] {
            stage.node.down()?;
            squatter.take(file)?;
            stage.node.up().with_context(|| format!("{squatter:?} at {}", file.display()))?;
            tried += 1;
        }
    }
    // Killed, not taken down: what it left behind is stale in earnest.
    let processes = stage.node.await_processes("the node to be whole", HEAL_DEADLINE, |_| true)?;
    process::kill_all(&processes.all())?;
    stage.node.up()?;
    // What is not the node's own it moves aside and does not delete: it is the squatter's, and goes with it.
    let aside =
        paths(&stage, |path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(".aside")))?;
    aside.iter().try_for_each(|path| Squatter::leave(path))?;
    stage.finish()?;
    Ok(Outcome::Pass(format!("{tried} squatters on {} paths", files.len())))
}

#[derive(Clone, Copy, Debug)]
enum Squatter {
    /// A socket nobody listens on.
    Socket,
    /// A file that says it is process 1.
    Rubbish,
    /// A directory with something in it.
    Directory,
}

impl Squatter {
    fn take(self, path: &Path) -> Result<()> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        Self::leave(path)?;
        match self {
            Self::Socket => drop(std::os::unix::net::UnixListener::bind(path)?),
            Self::Rubbish => fs::write(path, "1\n")?,
            Self::Directory => {
                fs::create_dir(path)?;
                fs::write(path.join("in the way"), "")?;
            }
        }
        Ok(())
    }
}

impl Squatter {
    /// Takes away whatever is at the path.
    fn leave(path: &Path) -> Result<()> {
        match fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path)?,
            Ok(_) => fs::remove_file(path)?,
            Err(_) => {}
        }
        Ok(())
    }
}

/// Paths directly below the node's runtime directory that `wanted` takes, once there are some.
fn paths(stage: &Stage, wanted: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>> {
    let directory = poll::until("the node's runtime directory", HEAL_DEADLINE, || Ok(stage.node.sockets()))?;
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if wanted(&path) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
