//! Images and root directories.

use crate::{
    runner::Context,
    support::{IMAGE, ends_with, stage, with_input},
};
use anyhow::{Context as _, Result, ensure};
use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::Path,
};

/// A root file system with busybox and little else.
fn make_root(at: &Path) -> Result<()> {
    for directory in ["bin", "proc", "sys", "dev", "etc", "tmp"] {
        fs::create_dir_all(at.join(directory))?;
    }
    fs::copy("/bin/busybox", at.join("bin/busybox"))?;
    fs::set_permissions(at.join("bin/busybox"), fs::Permissions::from_mode(0o755))?;
    std::os::unix::fs::symlink("busybox", at.join("bin/sh"))?;
    fs::write(at.join("etc/mark"), "from the root\n")?;
    Ok(())
}

pub fn load_list_remove(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    let names = || -> Result<Vec<String>> {
        let images = node.json("image ls")?;
        let list = images.as_array().context("image ls lists nothing")?;
        Ok(list
            .iter()
            .flat_map(|image| image["names"].as_array().cloned().unwrap_or_default())
            .map(|name| name.as_str().unwrap_or_default().to_owned())
            .collect())
    };
    ensure!(names()? == [IMAGE], "the docker-archive is listed as {:?}", names()?);
    let root = node.scratch.path().join("root");
    make_root(&root)?;
    let archive = node.scratch.path().join("root.tar");
    let mut tar = tar::Builder::new(File::create(&archive)?);
    tar.follow_symlinks(false);
    tar.append_dir_all(".", &root)?;
    tar.into_inner()?;
    node.sh(&format!("image load --name plain:1 {}", archive.display()))?;
    let output =
        ends_with(node, 0, &["run", "--name", "user", "plain:1", "/bin/busybox", "cat", "/etc/mark"])?;
    ensure!(output.stdout == "from the root\n", "{output:?}");
    let said = node.refused("image rm plain:1")?;
    ensure!(said.contains("user") || said.contains("plain"), "{said}");
    node.sh("rm user")?;
    node.sh("image rm plain:1")?;
    ensure!(names()? == [IMAGE], "image rm left {:?}", names()?);
    // From standard input, twice: the same image is one.
    let bytes = fs::read(&archive)?;
    for _ in 0..2 {
        let output = with_input(node, &["image", "load", "--name", "plain:2", "-"], &bytes)?;
        ensure!(output.status.success(), "{output:?}");
    }
    ensure!(names()?.len() == 2, "{:?}", names()?);
    node.sh("image rm plain:2")?;
    for (what, bytes) in [
        ("rubbish", vec![7_u8; 4096]),
        ("cut", bytes[..bytes.len() / 2].to_vec()),
        ("text", b"hello, this is no archive\n".to_vec()),
    ] {
        let file = node.scratch.path().join(what);
        fs::write(&file, bytes)?;
        let said = node.refused(&format!("image load --name bad {}", file.display()))?;
        ensure!(!said.contains("panicked"), "{said}");
    }
    ensure!(names()? == [IMAGE], "a refused image is listed: {:?}", names()?);
    let said = node.refused(&format!("image load {}", node.scratch.path().join("none.tar").display()))?;
    ensure!(said.contains("none.tar"), "{said}");
    stage.finish()
}

pub fn rootfs_directory(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    let root = node.scratch.path().join("root");
    make_root(&root)?;
    let directory = root.display().to_string();
    let script =
        "/bin/busybox cat /etc/mark; echo mine > /etc/mark; echo new > /new; /bin/busybox cat /etc/mark";
    let output =
        ends_with(node, 0, &["run", "--name", "dir", "--rootfs", &directory, "/bin/sh", "-c", script])?;
    ensure!(output.stdout == "from the root\nmine\n", "{output:?}");
    ensure!(fs::read_to_string(root.join("etc/mark"))? == "from the root\n", "the directory was written");
    ensure!(!root.join("new").exists(), "the directory was written");
    // What a container wrote is its own and stays over its restarts.
    node.sh("start dir")?;
    node.sh("wait dir")?;
    ensure!(node.sh("logs --tail 2 dir")? == "mine\nmine\n", "{}", node.sh("logs dir")?);
    node.sh("rm dir")?;
    let said = node.refused("run --rootfs /no/such/root /bin/sh")?;
    ensure!(said.contains("/no/such/root"), "{said}");
    ensure!(node.names("ps --all")?.is_empty(), "a refused run left a container");
    stage.finish()
}
