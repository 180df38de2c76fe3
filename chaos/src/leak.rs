//! The zero-leak check: what is there before a node starts is all that may be there after it went down.

use crate::{
    identity::Identity,
    node::Node,
    poll,
    process::{self, Process},
};
use anyhow::Result;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// How long what the node let go of may take to vanish: the kernel tears a network namespace down by itself.
const SETTLE: Duration = Duration::from_secs(5);

/// What the machine holds of the node's user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    processes: BTreeSet<Process>,
    mounts: BTreeSet<String>,
    links: BTreeSet<String>,
    listeners: BTreeSet<String>,
    holders: BTreeSet<Process>,
}

impl Snapshot {
    /// Takes it.
    pub fn take(identity: &Identity) -> Self {
        let users = Users::of(identity);
        let own_namespace = process::namespace(std::process::id(), "user");
        let mut snapshot = Self::default();
        for pid in process::all() {
            if !process::uid(pid).is_some_and(|uid| users.holds(uid)) {
                continue;
            }
            // A zombie whose parent is process 1 is that one's to reap, and not every process 1 is quick.
            let Some(stat) = process::stat(pid) else { continue };
            if stat.state == 'Z' && stat.parent == 1 {
                continue;
            }
            let process = Process { pid, start_ticks: stat.start_ticks };
            snapshot.processes.insert(process);
            let namespace = process::namespace(pid, "user");
            if namespace.is_some() && namespace != own_namespace {
                snapshot.holders.insert(process);
            }
        }
        snapshot.mounts = lines("/proc/self/mountinfo", |line| line.split(' ').nth(4));
        snapshot.links = lines("/proc/net/dev", |line| line.split_once(':').map(|(name, _)| name.trim()));
        for table in ["tcp", "tcp6", "udp", "udp6"] {
            let wanted = if table.starts_with("tcp") { "0A" } else { "07" };
            let path = format!("/proc/net/{table}");
            snapshot.listeners.extend(lines(&path, |line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let ours = fields.get(7)?.parse().is_ok_and(|uid| users.holds(uid));
                (ours && fields.get(3) == Some(&wanted)).then(|| fields.get(1).copied()).flatten()
            }));
        }
        snapshot
    }

    /// Waits until nothing is left that was not there before; what is left at the end, else nothing.
    pub fn leaks_after(&self, node: &Node) -> Vec<String> {
        let started = Instant::now();
        loop {
            let leaks = self.compare(node, &Self::take(&node.identity));
            if leaks.is_empty() || started.elapsed() > SETTLE {
                return leaks;
            }
            poll::rest(Duration::from_millis(20));
        }
    }

    /// Processes of the node that were not there before.
    pub fn leaked_processes(&self, node: &Node) -> Vec<Process> {
        self.new_processes(node, &Self::take(&node.identity))
    }

    fn new_processes(&self, node: &Node, after: &Self) -> Vec<Process> {
        let relatives: BTreeSet<Process> = node.relatives().into_iter().collect();
        let own = std::process::id();
        let new = after.processes.difference(&self.processes).copied();
        // An ordinary user has other processes too: only what belongs to the node, or lives in a user
        // namespace that was not there before, counts.
        new.filter(|process| process.pid != own && !is_child_of(process.pid, own))
            .filter(|process| relatives.contains(process) || after.holders.contains(process))
            .collect()
    }

    fn compare(&self, node: &Node, after: &Self) -> Vec<String> {
        let mut leaks: Vec<String> = self
            .new_processes(node, after)
            .into_iter()
            .map(|process| format!("process {}: {}", process.pid, describe(process)))
            .collect();
        let new = |what: &str, now: &BTreeSet<String>, then: &BTreeSet<String>| -> Vec<String> {
            now.difference(then).map(|entry| format!("{what} {entry}")).collect()
        };
        let mark = node.scratch.path().display().to_string();
        leaks.extend(
            new("mount", &after.mounts, &self.mounts).into_iter().filter(|mount| mount.contains(&mark)),
        );
        leaks.extend(new("link", &after.links, &self.links));
        leaks.extend(new("listening socket", &after.listeners, &self.listeners));
        leaks
    }
}

fn describe(process: Process) -> String {
    let line = process::command_line(process.pid);
    let stat = process::stat(process.pid);
    match stat {
        Some(stat) if line.is_empty() => {
            format!("({}, state {}, parent {})", stat.comm, stat.state, stat.parent)
        }
        Some(stat) => format!("{line} (state {}, parent {})", stat.state, stat.parent),
        None => line,
    }
}

fn is_child_of(pid: u32, parent: u32) -> bool {
    process::stat(pid).is_some_and(|stat| stat.parent == parent)
}

fn lines(path: &str, pick: impl Fn(&str) -> Option<&str>) -> BTreeSet<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| pick(line).map(str::to_owned)).collect()
}

/// The user and its subordinate ids: subuid(5).
struct Users {
    uid: u32,
    ranges: Vec<(u32, u32)>,
}

impl Users {
    fn of(identity: &Identity) -> Self {
        let text = fs::read_to_string("/etc/subuid").unwrap_or_default();
        let uid = identity.uid.to_string();
        let ranges = text.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let owner = fields.next()?;
            if owner != identity.user && owner != uid {
                return None;
            }
            Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
        });
        Self { uid: identity.uid, ranges: ranges.collect() }
    }

    fn holds(&self, uid: u32) -> bool {
        uid == self.uid || self.ranges.iter().any(|(first, count)| uid >= *first && uid - first < *count)
    }
}

/// Files below the node's directories that are there because of a workload: all but the store, logs of the node
/// itself and image layers.
///
/// # Errors
/// When a directory cannot be read.
pub fn files(node: &Node) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    walk(&node.root, Path::new("state"), &mut found)?;
    walk(&node.runtime, Path::new("run"), &mut found)?;
    Ok(found)
}

fn walk(directory: &Path, shown: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        // Gone since its parent was read; or owned by a subordinate id, which is a container's and so a leak of
        // the directory itself, which has been noted.
        Err(_) => return Ok(()),
    };
    for entry in entries.flatten() {
        let shown: PathBuf = shown.join(entry.file_name());
        let text = shown.display().to_string();
        let exempt = text.starts_with("state/holdfast.db")
            || text.starts_with("state/layers")
            || text.ends_with(".log");
        if exempt {
            continue;
        }
        if entry.file_type()?.is_dir() {
            walk(&entry.path(), &shown, found)?;
            // An empty directory is not worth a word; one with something in it is noted by what it holds.
        } else {
            found.insert(text);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use std::{net::TcpListener, sync::Arc};

    fn node() -> Node {
        let identity = Identity::for_helpers(PathBuf::new());
        Node::new(Arc::new(identity)).unwrap()
    }

    #[test]
    fn a_process_a_port_and_a_file_left_behind_are_named() {
        let node = node();
        let before = Snapshot::take(&node.identity);
        let files_before = files(&node).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // Orphaned, so that it is no child of the test; it says its pid.
        let script = format!("sleep 60 {} >/dev/null 2>&1 & echo $!", "");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script]).env("XDG_RUNTIME_DIR", &node.runtime);
        let output = crate::command::run(&mut command, Duration::from_secs(5)).unwrap();
        let orphan = Process::of(output.stdout.trim().parse().unwrap()).unwrap();
        fs::write(node.root.join("left"), "").unwrap();
        let leaks = before.compare(&node, &Snapshot::take(&node.identity));
        orphan.signal(libc::SIGKILL).unwrap();
        assert!(
            leaks.iter().any(|leak| leak.starts_with(&format!("process {}: sleep 60", orphan.pid))),
            "{leaks:?}"
        );
        assert!(leaks.iter().any(|leak| leak.contains(&format!(":{port:04X}"))), "{leaks:?}");
        let files: Vec<String> = files(&node).unwrap().difference(&files_before).cloned().collect();
        assert_eq!(files, ["state/left"]);
    }
}
