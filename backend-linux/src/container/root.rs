//! The root of a container, from inside: overlay mounts, and the removal of what subordinate ids own.

use super::internal::Report;
use holdfast_core::error::Class;
use nix::{
    mount::{MntFlags, MsFlags, mount as mount_call, umount2},
    sys::statfs::{OVERLAYFS_SUPER_MAGIC, statfs},
};
use std::{
    fs::File,
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::Path,
};

/// mount(2) reads at most a page of options, and each lower layer takes "/proc/self/fd/NNN:".
const LAYERS_MAX: usize = 200;
/// Mounts stacked on one mount point are taken off one by one; there is one unless something is very wrong.
const STACKED_MOUNTS_MAX: usize = 16;

/// Whether an overlay is mounted at exactly `target` (not whether one shows through from below).
fn is_mounted(target: &Path) -> io::Result<bool> {
    let parent = target.parent().unwrap_or(target);
    let (own, above) = (std::fs::metadata(target)?, std::fs::metadata(parent)?);
    Ok(own.dev() != above.dev() && statfs(target)?.filesystem_type() == OVERLAYFS_SUPER_MAGIC)
}

/// Mounts an overlay of `lower` (lowest first) under `upper` at `target`. Mounted already is a success.
///
/// The directories are named to the kernel as descriptors, `/proc/self/fd/N`: colons, commas and backslashes in their
/// paths mean nothing then, and any number of layers fits into the page that mount(2) reads.
/// `userxattr`: in a user namespace overlayfs keeps its marks in `user.overlay.*`; Documentation/filesystems/overlayfs.rst.
pub(crate) fn mount(target: &Path, upper: &Path, work: &Path, lower: &[&Path]) -> Result<(), Report> {
    let at = |action: &str, path: &Path| {
        let action = format!("{action} {}", path.display());
        move |error: io::Error| Report::io(action, &error)
    };
    if lower.len() > LAYERS_MAX {
        return Err(Report::new(
            Class::Fatal,
            "mount the root",
            format!("{} layers, at most {LAYERS_MAX} can be stacked", lower.len()),
        ));
    }
    for directory in [target, upper, work] {
        std::fs::create_dir_all(directory).map_err(at("create", directory))?;
    }
    if is_mounted(target).map_err(at("look at", target))? {
        return Ok(());
    }
    let open = |path: &Path| {
        File::options()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
            .open(path)
            .map_err(at("open directory", path))
    };
    let (upper, work) = (open(upper)?, open(work)?);
    let lower = lower.iter().rev().map(|path| open(path)).collect::<Result<Vec<_>, _>>()?;
    let name = |file: &File| format!("/proc/self/fd/{}", file.as_raw_fd());
    let layers = lower.iter().map(name).collect::<Vec<_>>().join(":");
    let options = format!("lowerdir={layers},upperdir={},workdir={},userxattr", name(&upper), name(&work));
    mount_call(Some("overlay"), target, Some("overlay"), MsFlags::empty(), Some(options.as_str()))
        .map_err(|error| Report::io(format!("mount an overlay at {}", target.display()), &error.into()))?;
    if is_mounted(target).map_err(at("look at", target))? {
        return Ok(());
    }
    Err(Report::new(Class::Fatal, "mount the root", "mount(2) succeeded, and nothing is mounted"))
}

/// Unmounts whatever is mounted at `target` and removes the mount point. Absent is a success.
pub(crate) fn unmount(target: &Path) -> Result<(), Report> {
    let report =
        |action: &str, error: &io::Error| Report::io(format!("{action} {}", target.display()), error);
    for _ in 0..STACKED_MOUNTS_MAX {
        match umount2(target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            // Not a mount point, or not there.
            Err(nix::Error::EINVAL | nix::Error::ENOENT) => break,
            Err(error) => return Err(report("unmount", &error.into())),
        }
    }
    match std::fs::remove_dir(target) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(report("remove the mount point", &error)),
    }
}

/// Removes a tree, whoever owns what is in it, never following a symbolic link. Absent is a success.
pub(crate) fn remove_tree(tree: &Path) -> Result<(), Report> {
    let gone = match std::fs::symlink_metadata(tree) {
        Ok(metadata) if metadata.is_dir() => std::fs::remove_dir_all(tree),
        Ok(_) => std::fs::remove_file(tree),
        Err(error) => Err(error),
    };
    match gone {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Report::io(format!("remove {}", tree.display()), &error)),
    }
}
