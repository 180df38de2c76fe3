//! The ground everything stands on: mounts of the node's mount namespace, and the router's own settings.

use super::{
    error::{errno, io, netlink},
    link, netns,
    route::Route,
    sysctl,
};
use crate::paths::Paths;
use holdfast_core::error::RouterError;
use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::statfs::{CGROUP2_SUPER_MAGIC, statfs},
};
use std::{
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, OpenOptionsExt},
    },
    path::Path,
};

const CGROUP: &str = "/sys/fs/cgroup";
const NONE: Option<&str> = None;

/// Makes the base, or leaves it as it is.
pub(crate) fn ensure(paths: &Paths, route: &mut Route) -> Result<(), RouterError> {
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)
        .map_err(|error| errno("make private", "/", error))?;
    ensure_tmpfs(&paths.inside())?;
    bind_namespace(Path::new("/proc/self/ns/net"), &paths.router_netns())?;
    ensure_cgroup2()?;
    sysctl::set_all(&sysctl::router())?;
    loopback_up(route)
}

/// Sets the loopback link up in the namespace of `route`; its index is 1 in every namespace.
pub(crate) fn loopback_up(route: &mut Route) -> Result<(), RouterError> {
    let (message, flags) = link::set_link(1, None, None);
    route.request(message, flags).map_err(|error| netlink("set up", "lo", &error))
}

/// Creates a directory and its parents for this user alone.
pub(crate) fn create_directory(path: &Path) -> Result<(), RouterError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| io("create directory", path.display().to_string(), &error))
}

fn ensure_tmpfs(path: &Path) -> Result<(), RouterError> {
    let subject = path.display().to_string();
    create_directory(path)?;
    let table =
        std::fs::read("/proc/self/mountinfo").map_err(|error| io("read", "/proc/self/mountinfo", &error))?;
    // A second tmpfs over the first would hide every sandbox bound there, so the mount table decides: neither
    // the directory's existence nor its file system, which may be its parent's.
    if is_tmpfs_mount(&table, path) {
        return Ok(());
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("holdfast"), path, Some("tmpfs"), flags, Some("mode=0700"))
        .map_err(|error| errno("mount tmpfs on", &subject, error))?;
    mount(NONE, path, NONE, MsFlags::MS_PRIVATE, NONE).map_err(|error| errno("make private", &subject, error))
}

/// Whether the topmost mount on `path` is a tmpfs: proc_pid_mountinfo(5).
fn is_tmpfs_mount(table: &[u8], path: &Path) -> bool {
    let wanted = path.as_os_str().as_bytes();
    table
        .split(|byte| *byte == b'\n')
        .filter_map(|line| {
            let mut fields = line.split(|byte| *byte == b' ');
            let mount_point = fields.nth(4)?;
            let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
            (unescape(mount_point) == wanted).then_some(kind)
        })
        .next_back()
        .is_some_and(|kind| kind == b"tmpfs")
}

/// Undoes the octal escapes of blanks and backslashes.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = (*first == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { tail.get(3..).unwrap_or_default() } else { tail };
    }
    bytes
}

/// Binds a namespace file on `target`, in place of any other one bound there; a no-op when it is that one.
pub(crate) fn bind_namespace(source: &Path, target: &Path) -> Result<(), RouterError> {
    let subject = target.display().to_string();
    let wanted =
        netns::identity(source).map_err(|error| errno("look at", source.display().to_string(), error))?;
    if netns::bound(target).map_err(|error| errno("look at", &subject, error))? == Some(wanted) {
        return Ok(());
    }
    unbind(target)?;
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(target)
        .map_err(|error| io("create", &subject, &error))?;
    mount(Some(source), target, NONE, MsFlags::MS_BIND, NONE)
        .map_err(|error| errno("bind a namespace on", &subject, error))?;
    match netns::bound(target) {
        Ok(Some(found)) if found == wanted => Ok(()),
        Ok(_) => Err(errno("bind a namespace on", subject, Errno::EBUSY)),
        Err(error) => Err(errno("look at", subject, error)),
    }
}

/// Unmounts every namespace bound on `target`.
pub(crate) fn unbind(target: &Path) -> Result<(), RouterError> {
    let subject = || target.display().to_string();
    // A bind over a bind is possible where two controls raced; more than a few is something else's doing.
    for _ in 0..8 {
        if netns::bound(target).map_err(|error| errno("look at", subject(), error))?.is_none() {
            return Ok(());
        }
        umount2(target, MntFlags::MNT_DETACH).map_err(|error| errno("unmount", subject(), error))?;
    }
    Err(errno("unmount", subject(), Errno::EBUSY))
}

/// A pure cgroup v2 hierarchy where the runtime looks for one; on a hybrid host it sees only v1 there and
/// refuses to work.
fn ensure_cgroup2() -> Result<(), RouterError> {
    let found = statfs(CGROUP).map_err(|error| errno("look at", CGROUP, error))?;
    if found.filesystem_type() == CGROUP2_SUPER_MAGIC {
        return Ok(());
    }
    mount(Some("none"), CGROUP, Some("cgroup2"), MsFlags::empty(), NONE)
        .map_err(|error| errno("mount cgroup2 on", CGROUP, error))
}

#[cfg(test)]
mod tests {
    use super::{is_tmpfs_mount, unescape};
    use std::path::Path;

    #[test]
    fn the_topmost_mount_decides() {
        let table = b"36 35 98:0 / /run rw - tmpfs tmpfs rw\n\
            37 36 98:1 / /run/in\\040side rw shared:1 - tmpfs holdfast rw\n\
            38 36 98:2 / /mnt rw - tmpfs t rw\n39 38 98:3 / /mnt rw master:1 - overlay o rw\n";
        assert!(is_tmpfs_mount(table, Path::new("/run")));
        assert!(is_tmpfs_mount(table, Path::new("/run/in side")));
        assert!(!is_tmpfs_mount(table, Path::new("/run/inside")));
        assert!(!is_tmpfs_mount(table, Path::new("/mnt")));
    }

    #[test]
    fn escapes_are_undone() {
        assert_eq!(unescape(br"/a\040b\134c\"), br"/a b\c\");
    }
}
