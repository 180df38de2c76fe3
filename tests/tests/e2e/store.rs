//! The store: records that cannot be read, a damaged database, a full disk.

use crate::{
    runner::Context,
    support::{IMAGE, pause, stage, status, text, whole},
};
use anyhow::{Context as _, Result, bail, ensure};
use holdfast_chaos::{
    node::Node,
    poll,
    privileged::Prepared,
    process::Process,
    stage::{HEAL_DEADLINE, Stage},
};
use std::{fs::File, io::Write, time::Duration};

/// Ends the daemon, changes its database, and lets the next command start another.
fn with_database(
    node: &Node,
    change: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<()>,
) -> Result<()> {
    let daemon = whole(node)?.daemon;
    daemon.signal(libc::SIGTERM)?;
    daemon.await_death(Duration::from_secs(10))?;
    let connection = rusqlite::Connection::open(node.root.join("holdfast.db"))?;
    change(&connection)?;
    connection.close().map_err(|(_, error)| error)?;
    Ok(())
}

pub fn corrupt_and_newer_records(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    let mut ids = Vec::new();
    for name in ["good", "corrupt", "newer"] {
        pause(node, name, "")?;
        ids.push(text(&node.json(&format!("inspect {name}"))?, "/id").to_owned());
    }
    let inits: Vec<Process> = ["good", "corrupt", "newer"]
        .iter()
        .map(|name| node.await_running(name, HEAL_DEADLINE)?.running())
        .collect::<Result<_>>()?;
    let mut saved = Vec::new();
    with_database(node, |database| {
        for id in &ids[1..] {
            let row = database.query_row(
                "SELECT version, body FROM records WHERE kind = 'container' AND id = ?1",
                [id],
                |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)),
            )?;
            saved.push(row);
        }
        database
            .execute("UPDATE records SET body = '{\"half' WHERE kind = 'container' AND id = ?1", [&ids[1]])?;
        database
            .execute("UPDATE records SET version = 9999 WHERE kind = 'container' AND id = ?1", [&ids[2]])?;
        Ok(())
    })?;
    let told = status(node)?;
    let quarantined = told["quarantined"].as_array().context("no quarantine")?;
    for id in &ids[1..] {
        ensure!(
            quarantined.iter().any(|one| text(one, "/id") == id),
            "{id} is not reported: {quarantined:?}"
        );
    }
    ensure!(text(&told, "/state") == "degraded", "{}", told["state"]);
    let degraded = told["degraded"].to_string();
    ensure!(degraded.contains(&ids[1]) && degraded.contains(&ids[2]), "{degraded}");
    ensure!(node.container("good")?.init == Some(inits[0]), "the good one was touched");
    pause(node, "later", "").context("the node no longer serves")?;
    ensure!(node.sh("exec good echo served")? == "served\n", "the node no longer serves");
    node.sh("rm --force later")?;
    for init in &inits {
        ensure!(init.is_alive(), "a workload died because its record cannot be read");
    }
    // The records as they were: the containers are the node's again, on the processes they had.
    with_database(node, |database| {
        for (id, (version, body)) in ids[1..].iter().zip(&saved) {
            database.execute(
                "INSERT OR REPLACE INTO records (kind, id, version, body) VALUES ('container', ?1, ?2, ?3)",
                rusqlite::params![id, version, body],
            )?;
        }
        Ok(())
    })?;
    for (name, init) in ["good", "corrupt", "newer"].iter().zip(&inits) {
        ensure!(
            node.container(name)?.init == Some(*init),
            "{name} after the repair: {:?}",
            node.container(name)?
        );
    }
    stage.finish()
}

pub fn damaged_database(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    node.down()?;
    for name in ["holdfast.db-wal", "holdfast.db-shm"] {
        // Absent after a clean end.
        let _ = std::fs::remove_file(node.root.join(name));
    }
    std::fs::write(node.root.join("holdfast.db"), vec![0x55; 64 << 10])?;
    node.up().context("a damaged database must not keep the node down")?;
    let told = status(node)?;
    ensure!(!told["quarantined"].as_array().context("none")?.is_empty(), "nothing is told of it: {told}");
    let aside: Vec<String> = std::fs::read_dir(&node.root)?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| {
            name.starts_with("holdfast.db")
                && !["holdfast.db", "holdfast.db-wal", "holdfast.db-shm"].contains(&name.as_str())
        })
        .collect();
    ensure!(!aside.is_empty(), "the damaged file was not kept");
    node.sh(&format!("image load {}", node.scratch.path().join("busybox.tar").display()))?;
    pause(node, "new", "")?;
    stage.finish()
}

/// Writes until the disk is full.
fn fill(path: &std::path::Path) -> Result<()> {
    let mut file = File::options().create(true).append(true).open(path)?;
    for size in [1 << 20, 4096, 1] {
        let block = vec![0_u8; size];
        loop {
            match file.write(&block) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

pub fn full_disk(context: &Context) -> Result<()> {
    let Prepared::SmallDisk(disk) = &context.prepared else { bail!("no small disk was prepared") };
    let stage = Stage::in_root(&context.identity, disk.clone())?;
    let node = &stage.node;
    for name in ["stays", "stops"] {
        pause(node, name, "")?;
    }
    let stays = node.await_running("stays", HEAL_DEADLINE)?;
    let filler = disk.join("filler");
    fill(&filler)?;
    for line in [
        format!("run -d --name never {IMAGE} pause"),
        "pod create never".to_owned(),
        "network create never".to_owned(),
    ] {
        let said = node.refused(&line)?.to_lowercase();
        ensure!(said.contains("space") || said.contains("full"), "{line}: {said}");
    }
    status(node)?;
    node.sh("stop --time 1 stops")?;
    node.sh("rm stops")?;
    ensure!(node.names("ps --all")? == ["stays"], "{:?}", node.names("ps --all")?);
    ensure!(node.container("stays")?.init == stays.init, "a full disk restarted a workload");
    std::fs::remove_file(&filler)?;
    poll::until("creates to work again", HEAL_DEADLINE, || {
        Ok(node.try_cli(&["pod", "create", "later"])?.status.success().then_some(()))
    })?;
    stage.finish()
}
