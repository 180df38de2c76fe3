//! Namespaces as descriptors: what they are, who owns them, and what leads to them.

use crate::process::{is_alive, open_pidfd};
use holdfast_core::{
    id::ProcessRef,
    record::{NamespaceId, NamespaceIds},
};
use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::fs::MetadataExt,
    },
    path::Path,
};

/// The kinds of namespace that make the node's inside, by the name of their file in `/proc/PID/ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `user`.
    User,
    /// `net`.
    Net,
    /// `mnt`.
    Mount,
    /// `cgroup`.
    Cgroup,
}

impl Kind {
    /// All of them, in the order in which they have to be entered: the user namespace gives the right to the
    /// rest, and the mount namespace is last because it takes `/proc` away.
    pub const ENTER_ORDER: [Self; 4] = [Self::User, Self::Net, Self::Cgroup, Self::Mount];

    /// The file's name in `/proc/PID/ns`; namespaces(7).
    pub fn file_name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Net => "net",
            Self::Mount => "mnt",
            Self::Cgroup => "cgroup",
        }
    }

    /// The flag of setns(2) and unshare(2).
    pub fn clone_flag(self) -> nix::sched::CloneFlags {
        use nix::sched::CloneFlags;
        match self {
            Self::User => CloneFlags::CLONE_NEWUSER,
            Self::Net => CloneFlags::CLONE_NEWNET,
            Self::Mount => CloneFlags::CLONE_NEWNS,
            Self::Cgroup => CloneFlags::CLONE_NEWCGROUP,
        }
    }

    /// The kind of this file name.
    pub fn from_file_name(name: &str) -> Option<Self> {
        Self::ENTER_ORDER.into_iter().find(|kind| kind.file_name() == name)
    }
}

/// The identity of the namespace behind a descriptor: the inode of its nsfs file.
///
/// # Errors
/// As fstat(2).
pub fn namespace_id(fd: &impl AsRawFd) -> io::Result<NamespaceId> {
    // SAFETY: an all-zero stat is valid, and fstat only writes to it.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a descriptor and a writable structure that outlives the call.
    if unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(NamespaceId(stat.st_ino))
}

fn namespace_file(pid: u32, kind: Kind) -> String {
    format!("/proc/{pid}/ns/{}", kind.file_name())
}

/// The namespaces of a process; `None` when it is dead.
///
/// # Errors
/// When procfs refuses to show them (EACCES for a process that is not dumpable, or another user's).
pub fn namespaces_of(process: &ProcessRef) -> io::Result<Option<NamespaceIds>> {
    if !is_alive(process) {
        return Ok(None);
    }
    let read =
        |kind| std::fs::metadata(namespace_file(process.pid, kind)).map(|meta| NamespaceId(meta.ino()));
    let ids = read(Kind::User)
        .and_then(|user| Ok(NamespaceIds { user, net: read(Kind::Net)?, mount: read(Kind::Mount)? }));
    match ids {
        // Looked at again, so that nothing was read of a process that took over the pid meanwhile.
        Ok(ids) => Ok(is_alive(process).then_some(ids)),
        Err(_) if !is_alive(process) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The namespaces this process is in.
///
/// # Errors
/// When procfs cannot be read.
pub fn own_namespaces() -> io::Result<NamespaceIds> {
    let read = |kind: Kind| {
        std::fs::metadata(format!("/proc/self/ns/{}", kind.file_name())).map(|meta| NamespaceId(meta.ino()))
    };
    Ok(NamespaceIds { user: read(Kind::User)?, net: read(Kind::Net)?, mount: read(Kind::Mount)? })
}

/// Opens a namespace of exactly this process; `None` when it is dead.
///
/// # Errors
/// As [`namespaces_of`].
pub fn open_namespace(process: &ProcessRef, kind: Kind) -> io::Result<Option<OwnedFd>> {
    open_of(process, Path::new(&namespace_file(process.pid, kind)))
}

/// Opens the namespace that is bound at `path` as the process sees it; `None` when the process is dead or
/// nothing is bound there.
///
/// # Errors
/// As [`namespaces_of`].
pub fn open_bound_namespace(process: &ProcessRef, path: &Path) -> io::Result<Option<OwnedFd>> {
    let inside = path.strip_prefix("/").unwrap_or(path);
    let seen = Path::new("/proc").join(process.pid.to_string()).join("root").join(inside);
    let fd = match open_of(process, &seen) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        other => other?,
    };
    // A plain file is what is left of a bind that is gone.
    Ok(fd.filter(|fd| namespace_kind(fd).is_some()))
}

fn open_of(process: &ProcessRef, path: &Path) -> io::Result<Option<OwnedFd>> {
    if !is_alive(process) {
        return Ok(None);
    }
    let opened = File::open(path).map(OwnedFd::from);
    if !is_alive(process) {
        return Ok(None);
    }
    opened.map(Some)
}

mod ioctl {
    // include/uapi/linux/nsfs.h
    const NSIO: u8 = 0xb7;
    nix::ioctl_none!(ns_get_userns, NSIO, 1);
    nix::ioctl_none!(ns_get_parent, NSIO, 2);
    nix::ioctl_none!(ns_get_nstype, NSIO, 3);
    // include/uapi/linux/if_tun.h
    nix::ioctl_none!(tun_get_netns, b'T', 227);
}

fn owned(result: nix::Result<RawFd>) -> io::Result<OwnedFd> {
    let fd = result.map_err(io::Error::from)?;
    // SAFETY: these requests return a new descriptor (CLOEXEC) that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The kind of namespace behind a descriptor; `None` if it is none of the node's kinds.
pub fn namespace_kind(fd: &impl AsRawFd) -> Option<Kind> {
    // SAFETY: the request takes no argument.
    let flag = unsafe { ioctl::ns_get_nstype(fd.as_raw_fd()) }.ok()?;
    Kind::ENTER_ORDER.into_iter().find(|kind| kind.clone_flag().bits() == flag)
}

/// The user namespace that owns a namespace; ioctl_nsfs(2).
///
/// # Errors
/// EPERM when it is not below the caller's own user namespace.
pub fn owning_user_namespace(fd: &impl AsFd) -> io::Result<OwnedFd> {
    // SAFETY: the request takes no argument and returns a descriptor.
    owned(unsafe { ioctl::ns_get_userns(fd.as_fd().as_raw_fd()) })
}

/// The longest chain of user namespaces: the kernel allows 32 levels; user_namespaces(7).
const USER_NAMESPACE_LEVELS_MAX: usize = 33;

/// The user namespace directly below the caller's own that `fd` is, or is nested in: the node's own, where `fd`
/// is of a workload that made a user namespace for itself. `None` when `fd` is not below the caller's.
///
/// # Errors
/// When the namespace cannot be examined.
pub fn node_user_namespace(fd: OwnedFd) -> io::Result<Option<OwnedFd>> {
    let own = own_namespaces()?.user;
    let mut current = fd;
    if namespace_id(&current)? == own {
        return Ok(None);
    }
    for _ in 0..USER_NAMESPACE_LEVELS_MAX {
        // SAFETY: the request takes no argument and returns a descriptor.
        let parent = match owned(unsafe { ioctl::ns_get_parent(current.as_raw_fd()) }) {
            Ok(parent) => parent,
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => return Ok(None),
            Err(error) => return Err(error),
        };
        if namespace_id(&parent)? == own {
            return Ok(Some(current));
        }
        current = parent;
    }
    Ok(None)
}

/// The network namespace that an open tap of `process` lives in; `None` when it is dead or has no tap open.
/// pidfd_getfd(2) and `TUNGETDEVNETNS` of include/uapi/linux/if_tun.h.
///
/// # Errors
/// EPERM where the kernel (Yama) forbids to look into the process.
pub fn tap_network_namespace(process: &ProcessRef) -> io::Result<Option<OwnedFd>> {
    let Some(pidfd) = open_pidfd(process)? else { return Ok(None) };
    let entries = match std::fs::read_dir(format!("/proc/{}/fd", process.pid)) {
        Ok(entries) => entries,
        Err(_) if !is_alive(process) => return Ok(None),
        Err(error) => return Err(error),
    };
    for entry in entries.flatten() {
        let is_tun = std::fs::read_link(entry.path()).is_ok_and(|target| target == Path::new("/dev/net/tun"));
        let number = entry.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok());
        let Some(number) = number.filter(|_| is_tun) else { continue };
        // SAFETY: three integers; the result is a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), number, 0) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            // EBADF: closed meanwhile; ESRCH: the process died.
            match error.raw_os_error() {
                Some(libc::EBADF | libc::ESRCH) => continue,
                _ => return Err(error),
            }
        }
        // SAFETY: the kernel just returned this descriptor (CLOEXEC), and nothing else owns it.
        let tap = unsafe { OwnedFd::from_raw_fd(RawFd::try_from(fd).map_err(io::Error::other)?) };
        // SAFETY: the request takes no argument and returns a descriptor.
        match owned(unsafe { ioctl::tun_get_netns(tap.as_raw_fd()) }) {
            Ok(netns) => return Ok(Some(netns)),
            // EBADFD: opened, and not attached to a device.
            Err(error) if error.raw_os_error() == Some(libc::EBADFD) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
