//! A node on this machine whose World is opened by the test itself, and what it kills it with.

use crate::{contract::Killer, runner::Context};
use anyhow::{Context as _, Result, ensure};
use holdfast_chaos::{
    leak::{self, Snapshot},
    node::Node,
    poll,
    process::Process,
};
use holdfast_core::{id::ProcessRef, spec::RootSource};
use holdfast_linux::{keeper::HeldNamespaces, paths::Paths, world::LinuxWorld};
use std::{
    collections::BTreeSet,
    fs,
    net::{Ipv4Addr, TcpListener},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// How long a killed process may take to be dead.
const DEATH_DEADLINE: Duration = Duration::from_secs(5);

/// A workload that handles its signals, as a process 1 must to be ended by them (pid_namespaces(7)): it dies of
/// SIGTERM with the code that a death by it would have, and of other signals with codes of their own.
const HOLD_SCRIPT: &str = "#!/bin/sh\ntrap 'exit 143' TERM\ntrap 'exit 0' HUP\ntrap 'exit 1' USR1\n\
     trap 'exit 2' USR2\nwhile :; do sleep 3600 & wait $!; done\n";

/// What processes of the node leave in its runtime directory; the next ones take it over.
const STAYING: [&str; 4] = [
    "run/holdfast/control.lock",
    "run/holdfast/control.snapshot",
    "run/holdfast/control.sock",
    "run/holdfast/uplink.sock",
];

/// The workload that handles its signals.
pub const HOLD: &str = "/bin/hold";

/// A node's directories, a root for its containers, and what was there before it.
#[derive(Debug)]
pub struct Stage {
    node: Node,
    paths: Paths,
    root: PathBuf,
    before: Snapshot,
    files: BTreeSet<String>,
    strangers: Mutex<Vec<TcpListener>>,
}

impl Stage {
    /// Makes the directories; starts nothing. The process must be the node's user already.
    ///
    /// # Errors
    /// I/O errors; no static busybox.
    pub fn new(context: &Context) -> Result<Self> {
        let node = Node::new(Arc::clone(&context.identity))?;
        let root = node.scratch.path().join("rootfs");
        make_root(&root)?;
        let paths = Paths { state: node.root.clone(), runtime: node.runtime.join("holdfast") };
        paths.create()?;
        let (before, files) = (Snapshot::take(&node.identity), leak::files(&node)?);
        Ok(Self { node, paths, root, before, files, strangers: Mutex::default() })
    }

    /// A daemon's view of the node, as it is at the daemon's start.
    ///
    /// # Errors
    /// As [`LinuxWorld::open`].
    pub fn world(&self) -> Result<LinuxWorld> {
        Ok(LinuxWorld::open(&self.paths, HeldNamespaces::new())?)
    }

    /// The root of its containers.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Waits until nothing is left of the node but its store, its logs and its sockets' files.
    ///
    /// # Errors
    /// Names what is left.
    pub fn nothing_left(&self) -> Result<()> {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        // The leak check leaves out children of its own process, which here is the daemon.
        let mut left = own_children_after(DEATH_DEADLINE);
        left.extend(self.before.leaks_after(&self.node));
        let files = leak::files(&self.node)?;
        left.extend(files.difference(&self.files).filter(|file| !STAYING.contains(&file.as_str())).cloned());
        ensure!(left.is_empty(), "left behind: {}", left.join(", "));
        Ok(())
    }
}

impl Drop for Stage {
    /// What a case that failed has left: a workload's process names no directory of the node, so that nobody else would
    /// find it. After one that passed there is nothing.
    fn drop(&mut self) {
        if let Err(error) = holdfast_chaos::process::kill_all(&self.before.leaked_processes(&self.node)) {
            eprintln!("not cleaned up: {error:#}");
        }
    }
}

/// Children of this process that live on; a dead one is the runtime's to reap.
fn own_children_after(deadline: Duration) -> Vec<String> {
    let own = std::process::id();
    let living = || -> Vec<String> {
        let of_own = |pid: &u32| {
            holdfast_chaos::process::stat(*pid).is_some_and(|stat| stat.parent == own && stat.state != 'Z')
        };
        let children = holdfast_chaos::process::all().into_iter().filter(of_own);
        children.map(|pid| format!("child {pid}: {}", holdfast_chaos::process::command_line(pid))).collect()
    };
    let gone = || Ok(living().is_empty().then_some(()));
    match poll::until("the daemon's children to end", deadline, gone) {
        Ok(()) => Vec::new(),
        Err(_) => living(),
    }
}

fn make_root(root: &Path) -> Result<()> {
    for directory in ["bin", "dev", "etc", "proc", "root", "sys", "tmp"] {
        fs::create_dir_all(root.join(directory))?;
    }
    let executable = |name: &str, bytes: &[u8]| -> Result<()> {
        let path = root.join("bin").join(name);
        fs::write(&path, bytes)?;
        Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
    };
    executable("busybox", &fs::read("/bin/busybox").context("read /bin/busybox (install busybox-static)")?)?;
    executable("hold", HOLD_SCRIPT.as_bytes())?;
    ["sh", "sleep"].iter().try_for_each(|applet| symlink("busybox", root.join("bin").join(applet)))?;
    Ok(())
}

/// The process as signals need it.
pub fn process(process: &ProcessRef) -> Process {
    Process { pid: process.pid, start_ticks: process.start_time_ticks }
}

/// A free TCP port of the host's loopback at this moment.
///
/// # Errors
/// When the kernel has none.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Kills exactly this process and waits until it is dead.
///
/// # Errors
/// When it does not die.
pub fn kill(victim: &ProcessRef) -> Result<()> {
    process(victim).signal(nix::libc::SIGKILL)?;
    process(victim).await_death(DEATH_DEADLINE)
}

/// Waits until a process handles SIGTERM, or is dead: a process 1 that does not yet would ignore it.
///
/// # Errors
/// When it handles none in time.
pub fn await_handler(init: &ProcessRef) -> Result<()> {
    poll::until("the workload to handle its signals", Duration::from_secs(5), || {
        let status = fs::read_to_string(format!("/proc/{}/status", init.pid)).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        let handles = caught & (1 << (nix::libc::SIGTERM - 1)) != 0;
        Ok((handles || !process(init).is_alive()).then_some(()))
    })
}

#[allow(clippy::expect_used)] // A test that cannot kill cannot go on.
impl Killer for Stage {
    fn kill(&self, process: &ProcessRef) {
        kill(process).expect("kill");
    }

    fn freeze(&self, victim: &ProcessRef) {
        process(victim).signal(nix::libc::SIGSTOP).expect("SIGSTOP");
        let stopped = || Ok(holdfast_chaos::process::stat(victim.pid).filter(|stat| stat.state == 'T'));
        poll::until("the process to stop", DEATH_DEADLINE, stopped).expect("stopped");
    }

    fn thaw(&self, victim: &ProcessRef) {
        process(victim).signal(nix::libc::SIGCONT).expect("SIGCONT");
    }

    fn root(&self) -> RootSource {
        RootSource::Directory(self.root.display().to_string())
    }

    fn free_port(&self) -> u16 {
        free_port().expect("a free port")
    }

    fn take_port(&self, port: u16) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("bind");
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner).push(listener);
    }

    fn await_ready(&self, init: &ProcessRef) {
        await_handler(init).expect("ready");
    }
}
