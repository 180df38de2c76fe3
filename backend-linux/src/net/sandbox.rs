//! Sandboxes: the net, ipc and uts namespaces of a workload, kept by binds in the node's mount namespace.

use super::{
    base::{bind_namespace, create_directory, loopback_up, unbind},
    error::{errno, io},
    netns,
    route::Route,
    sysctl,
};
use crate::paths::Paths;
use holdfast_core::{
    error::{Class, RouterError},
    id::{ProcessRef, SandboxId},
    plan::SandboxPlan,
    record::NamespaceId,
};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use std::{
    collections::BTreeMap,
    io::ErrorKind,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

/// Bound in this order: `net` comes last, so that its bind says the whole sandbox is there.
const KINDS: [&str; 3] = ["uts", "ipc", "net"];

/// Binds new namespaces, or a living member's.
pub(crate) fn ensure(paths: &Paths, plan: &SandboxPlan) -> Result<(), RouterError> {
    let directory = paths.sandbox(plan.id.as_str());
    match &plan.rebind {
        Some(process) => rebind(&directory, &plan.id, process),
        None if is_complete(&directory)? => Ok(()),
        None => {
            // What is bound of an incomplete one was left by a killed start: no process has ever joined it.
            for kind in KINDS {
                unbind(&directory.join(kind))?;
            }
            create(&directory, plan)
        }
    }
}

fn is_complete(directory: &Path) -> Result<bool, RouterError> {
    for kind in KINDS {
        let path = directory.join(kind);
        let found =
            netns::bound(&path).map_err(|error| errno("look at", path.display().to_string(), error))?;
        if found.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn create(directory: &Path, plan: &SandboxPlan) -> Result<(), RouterError> {
    create_directory(directory)?;
    let groups = sysctl::mapped_groups();
    let subject = plan.id.as_str();
    netns::on_thread(subject, || {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS)
            .map_err(|error| errno("create namespaces of", subject, error))?;
        nix::unistd::sethostname(&plan.hostname)
            .map_err(|error| errno("set the host name of", subject, error))?;
        sysctl::set_all(&sysctl::sandbox(groups))?;
        let mut route = Route::open().map_err(|error| errno("open netlink in", subject, error))?;
        loopback_up(&mut route)?;
        for kind in KINDS {
            bind_namespace(&Path::new("/proc/thread-self/ns").join(kind), &directory.join(kind))?;
        }
        Ok(())
    })
}

fn rebind(directory: &Path, id: &SandboxId, process: &ProcessRef) -> Result<(), RouterError> {
    check_alive(id, process)?;
    let namespaces = PathBuf::from(format!("/proc/{}/ns", process.pid));
    let mut open: Vec<(&str, OwnedFd)> = Vec::with_capacity(KINDS.len());
    for kind in KINDS {
        let path = namespaces.join(kind);
        let fd = netns::open_namespace(&path).map_err(|error| match error {
            // The links of a process that is on its way out lead nowhere before its state says so.
            Errno::ENOENT | Errno::ESRCH => RouterError::new(
                Class::Missing,
                "rebind sandbox",
                id.as_str(),
                format!("{process} has ended"),
            ),
            error => errno("open", path.display().to_string(), error),
        })?;
        open.push((kind, fd));
    }
    // Descriptors opened between two looks at the same living process are its namespaces, not a successor's.
    check_alive(id, process)?;
    create_directory(directory)?;
    for (kind, fd) in open {
        bind_namespace(&PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd())), &directory.join(kind))?;
    }
    Ok(())
}

fn check_alive(id: &SandboxId, process: &ProcessRef) -> Result<(), RouterError> {
    let dead = |cause: String| RouterError::new(Class::Missing, "rebind sandbox", id.as_str(), cause);
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_err(|error| io("read", "the boot id", &error))?;
    if boot.trim() != process.boot_id.as_str() {
        return Err(dead(format!("{process} was seen in another boot")));
    }
    let stat = match std::fs::read(format!("/proc/{}/stat", process.pid)) {
        Ok(stat) => stat,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(dead(format!("{process} is gone"))),
        Err(error) => return Err(io("read the state of", process.to_string(), &error)),
    };
    match state_and_start(&stat) {
        Some((state, start)) if start == process.start_time_ticks && !matches!(state, 'Z' | 'X') => Ok(()),
        Some((_, start)) if start == process.start_time_ticks => Err(dead(format!("{process} has ended"))),
        Some(_) => Err(dead(format!("{process} is another process now"))),
        None => Err(RouterError::new(
            Class::Corrupt,
            "read the state of",
            process.to_string(),
            "/proc/PID/stat has an unknown form",
        )),
    }
}

/// Fields 3 and 22 of proc_pid_stat(5); the name before them may hold blanks and parentheses.
fn state_and_start(stat: &[u8]) -> Option<(char, u64)> {
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let text = std::str::from_utf8(stat.get(after_name..)?).ok()?;
    let mut fields = text.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// Unbinds the namespaces; they end with their last process. An absent sandbox is a success.
pub(crate) fn remove(paths: &Paths, id: &SandboxId) -> Result<(), RouterError> {
    let directory = paths.sandbox(id.as_str());
    for kind in KINDS.iter().rev() {
        let path = directory.join(kind);
        unbind(&path)?;
        absent_is_fine(std::fs::remove_file(&path))
            .map_err(|error| io("remove", path.display().to_string(), &error))?;
    }
    absent_is_fine(std::fs::remove_dir(&directory))
        .map_err(|error| io("remove", directory.display().to_string(), &error))
}

fn absent_is_fine(result: std::io::Result<()>) -> std::io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// The network namespace of every complete sandbox.
pub(crate) fn observe(paths: &Paths) -> Result<BTreeMap<SandboxId, NamespaceId>, RouterError> {
    let mut found = BTreeMap::new();
    let parent = paths.sandbox("");
    let entries = match std::fs::read_dir(&parent) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(io("list", parent.display().to_string(), &error)),
    };
    for entry in entries {
        let entry = entry.map_err(|error| io("list", parent.display().to_string(), &error))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let directory = entry.path();
        if !is_complete(&directory)? {
            continue;
        }
        if let Some(namespace) = netns::bound(&directory.join("net"))
            .map_err(|error| errno("look at", directory.display().to_string(), error))?
        {
            found.insert(SandboxId::from_raw(name), namespace);
        }
    }
    Ok(found)
}

/// Opens a sandbox's network namespace.
pub(crate) fn open(paths: &Paths, id: &SandboxId) -> Result<OwnedFd, RouterError> {
    let path = paths.sandbox(id.as_str()).join("net");
    netns::open_namespace(&path)
        .map_err(|error| errno("open the network namespace of sandbox", id.as_str(), error))
}

#[cfg(test)]
mod tests {
    use super::state_and_start;

    #[test]
    fn names_with_parentheses_do_not_shift_fields() {
        let stat = b"42 (a) b (c)) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 9876 1 1";
        assert_eq!(state_and_start(stat), Some(('S', 9876)));
        assert_eq!(state_and_start(b"42 (a) S 1"), None);
        assert_eq!(state_and_start(b""), None);
    }
}
