//! What two scenarios need root for, done before the switch to the node's user, in a mount namespace of their
//! own, so that it ends with the scenario.

use crate::identity::Identity;
use anyhow::{Context, Result};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    unistd::Uid,
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Where the kernel tells the boot: proc_sys_kernel(5).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What a scenario needs done by root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preparation {
    /// Nothing.
    None,
    /// A tmpfs of this many bytes.
    SmallDisk(u64),
    /// A boot id that the scenario can change.
    BootId,
}

/// What was prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// Nothing was asked for.
    Nothing,
    /// The mount point of the tmpfs.
    SmallDisk(PathBuf),
    /// The file that every process of the scenario reads as its boot id.
    BootId(PathBuf),
    /// It could not be done; says what is missing.
    Missing(String),
}

/// Prepares it in `scratch`.
pub fn prepare(preparation: Preparation, identity: &Identity, scratch: &Path) -> Prepared {
    let result = match preparation {
        Preparation::None => return Prepared::Nothing,
        _ if !Uid::effective().is_root() => {
            return Prepared::Missing("root, to mount for the scenario: run `make chaos` as root".to_owned());
        }
        Preparation::SmallDisk(bytes) => small_disk(bytes, identity, scratch).map(Prepared::SmallDisk),
        Preparation::BootId => boot_id(identity, scratch).map(Prepared::BootId),
    };
    result.unwrap_or_else(|error| Prepared::Missing(format!("the right to mount: {error:#}")))
}

fn own_mounts() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("unshare mount namespace")?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).context("make mounts private")
}

fn small_disk(bytes: u64, identity: &Identity, scratch: &Path) -> Result<PathBuf> {
    own_mounts()?;
    let at = scratch.join("disk");
    fs::create_dir(&at)?;
    let options = format!("size={bytes},mode=0700,uid={}", identity.uid);
    mount(Some("tmpfs"), &at, Some("tmpfs"), MsFlags::MS_NOSUID, Some(options.as_str()))
        .context("mount tmpfs")?;
    Ok(at)
}

fn boot_id(identity: &Identity, scratch: &Path) -> Result<PathBuf> {
    own_mounts()?;
    let none = None::<&str>;
    // A container may mount its own /proc only where one without anything mounted over it is in sight:
    // mount_too_revealing() in fs/namespace.c.
    let proc = scratch.join("proc");
    fs::create_dir(&proc)?;
    mount(Some("proc"), &proc, Some("proc"), MsFlags::empty(), none).context("mount proc")?;
    let file = scratch.join("boot_id");
    // Not a copy: that would copy its mode, which nobody may write.
    fs::write(&file, fs::read(BOOT_ID)?)?;
    std::os::unix::fs::chown(&file, Some(identity.uid), None)?;
    mount(Some(&file), BOOT_ID, none, MsFlags::MS_BIND, none).context("bind over the boot id")?;
    Ok(file)
}
