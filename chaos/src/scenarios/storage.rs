//! The store cannot be written.

use super::Context;
use crate::{
    image,
    node::Role,
    poll,
    privileged::Prepared,
    process::{self, Process},
    report::Outcome,
    stage::{HEAL_DEADLINE, Stage, check_untouched},
};
use anyhow::{Result, bail, ensure};
use std::{
    fs::File,
    io::{ErrorKind, Write},
    os::unix::process::CommandExt,
    time::Duration,
};

fn run_line(name: &str) -> String {
    format!("run -d --name {name} --network blue {} {}", image::NAME, image::PAUSE[0])
}

pub fn write_failure(context: &Context) -> Result<Outcome> {
    let stage = Stage::populated(&context.identity)?;
    let before = stage.workloads()?;
    let mut traffic = stage.traffic()?;
    // A daemon that gets EFBIG, and not SIGXFSZ, for a write beyond its limit: setrlimit(2).
    let old = stage.node.await_processes("the node to be whole", HEAL_DEADLINE, |_| true)?;
    process::kill_all(&[old.get(Role::Daemon)])?;
    let mut status = stage.node.command(&["status"]);
    // SAFETY: signal(2) is async-signal-safe, and nothing else happens between fork and exec.
    unsafe {
        status.pre_exec(|| {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            Ok(())
        });
    }
    crate::command::run(&mut status, HEAL_DEADLINE)?.success("holdfast status")?;
    let now = stage.node.await_processes("a new daemon", HEAL_DEADLINE, |now| now.daemon != old.daemon)?;
    limit_file_size(now.daemon, Some(0))?;
    let said = stage.node.refused(&run_line("never"))?;
    ensure!(stage.node.status().is_ok(), "status does not work while nothing can be written");
    check_untouched(&before, &stage.workloads()?)?;
    limit_file_size(now.daemon, None)?;
    ensure!(!stage.node.has_container("never")?, "a refused container exists");
    stage.node.sh(&run_line("later"))?;
    stage.node.await_running("later", HEAL_DEADLINE)?;
    let again = stage.node.await_processes("the node to be whole", HEAL_DEADLINE, |_| true)?;
    ensure!(again == now, "the failing writes changed {now} into {again}");
    let ping = traffic.ping.report()?;
    ensure!(ping.lost == 0, "{} pings lost", ping.lost);
    drop(traffic);
    stage.finish()?;
    Ok(Outcome::Pass(format!("refused with {:?}", first_line(&said))))
}

fn first_line(text: &str) -> &str {
    text.trim().lines().next().unwrap_or_default()
}

/// Sets the soft limit for the size of files that a process may write; `None` lifts it: prlimit(2).
fn limit_file_size(process: Process, bytes: Option<u64>) -> Result<()> {
    let limit =
        libc::rlimit { rlim_cur: bytes.unwrap_or(libc::RLIM_INFINITY), rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the new limit lives over the call, and the old one is not asked for.
    let result = unsafe {
        libc::prlimit(process.pid as libc::pid_t, libc::RLIMIT_FSIZE, &raw const limit, std::ptr::null_mut())
    };
    ensure!(result == 0, "prlimit of pid {process}: {}", std::io::Error::last_os_error());
    Ok(())
}

pub fn disk_full(context: &Context) -> Result<Outcome> {
    let Prepared::SmallDisk(disk) = &context.prepared else { bail!("no small disk was prepared") };
    let stage = Stage::in_root(&context.identity, disk.clone())?;
    let node = &stage.node;
    node.sh("network create blue")?;
    for name in ["stays", "stops"] {
        node.sh(&run_line(name))?;
    }
    let stays = node.await_running("stays", HEAL_DEADLINE)?;
    let filler = disk.join("filler");
    fill(&filler)?;
    let mut refused = None;
    // A create needs little: a few may fit into what the filler left over. They must become refusals.
    for index in 0..50 {
        let output = node.try_cli(&run_line(&format!("never{index}")).split(' ').collect::<Vec<_>>())?;
        if !output.status.success() {
            refused = Some((format!("never{index}"), output.stderr));
            break;
        }
        fill(&filler)?;
    }
    let Some((never, said)) = refused else { bail!("50 containers were created on a full disk") };
    ensure!(!said.trim().is_empty(), "refused without a word");
    node.status()?;
    node.sh("stop --time 1 stops")?;
    node.sh("rm stops")?;
    ensure!(!node.has_container("stops")?, "rm on a full disk left the container");
    ensure!(
        node.container("stays")?.init == stays.init,
        "a workload was restarted because the disk was full"
    );
    // Killed with a full disk, the daemon comes back and serves.
    let processes = node.await_processes("the node to be whole", HEAL_DEADLINE, |_| true)?;
    process::kill_all(&[processes.daemon])?;
    node.await_processes("a new daemon on a full disk", HEAL_DEADLINE, |now| now.daemon != processes.daemon)?;
    std::fs::remove_file(&filler)?;
    ensure!(!node.has_container(&never)?, "a refused container exists");
    poll::until("creates to work again", HEAL_DEADLINE, || {
        Ok(node.try_cli(&run_line("later").split(' ').collect::<Vec<_>>())?.status.success().then_some(()))
    })?;
    stage.finish()?;
    Ok(Outcome::Pass(format!("refused with {:?}", first_line(&said))))
}

/// Writes until the disk is full, appending.
fn fill(path: &std::path::Path) -> Result<()> {
    let mut file = File::options().create(true).append(true).open(path)?;
    let started = std::time::Instant::now();
    for size in [1 << 20, 4096, 1] {
        let block = vec![0_u8; size];
        loop {
            match file.write(&block) {
                Ok(_) => ensure!(started.elapsed() < Duration::from_secs(30), "the small disk is not small"),
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}
