//! A node of its own for each case, taken down at its end, and what the cases look with.

use holdfast_core::{
    error::KeeperError,
    id::ProcessRef,
    world::{KeeperHints, Keepers, PinStarted},
};
use holdfast_linux::{
    keeper::{HeldNamespaces, LinuxKeepers},
    paths::Paths,
    process::{process_ref, read_stat},
};
use std::{
    future::Future,
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::process::Child;

pub struct Node {
    pub paths: Paths,
    pub keepers: LinuxKeepers,
    started: Mutex<Vec<ProcessRef>>,
    _directory: tempfile::TempDir,
}

impl Node {
    pub fn new() -> Self {
        let base = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
        let directory = tempfile::Builder::new().prefix("n").tempdir_in(base).unwrap();
        let paths = Paths { state: directory.path().join("state"), runtime: directory.path().join("run") };
        paths.create().unwrap();
        let keepers =
            LinuxKeepers::new(paths.clone(), "/proc/self/exe", Arc::new(HeldNamespaces::new())).unwrap();
        Self { paths, keepers, started: Mutex::default(), _directory: directory }
    }

    /// To be ended with the case.
    pub fn note(&self, process: &ProcessRef) {
        self.started.lock().unwrap().push(process.clone());
    }

    pub async fn create(&self) -> PinStarted {
        self.noted(self.keepers.create_namespaces().await)
    }

    pub fn noted(&self, started: Result<PinStarted, KeeperError>) -> PinStarted {
        let started = started.unwrap();
        self.note(&started.process);
        started
    }

    pub async fn control(&self, pin: &ProcessRef) -> ProcessRef {
        let control = self.keepers.start_control(pin).await.unwrap();
        self.note(&control);
        control
    }

    /// A process that sleeps inside, as a monitor would, or with `unshare` a workload.
    pub async fn sleeper(&self, pin: &ProcessRef, unshare: &[&str]) -> (ProcessRef, Child) {
        let mut command = self.keepers.command_inside(pin, "unshare").unwrap();
        command.args(unshare).args(["sleep", "600"]).stdin(Stdio::null()).kill_on_drop(true);
        let child = command.spawn().unwrap();
        let process = process_ref(child.id().unwrap()).unwrap().unwrap();
        let path = format!("/proc/{}/comm", process.pid);
        until("the sleeper sleeps", || std::fs::read_to_string(&path).is_ok_and(|name| name == "sleep\n"))
            .await;
        (process, child)
    }

    pub async fn kill(&self, process: &ProcessRef) {
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(process.pid.cast_signed()),
            nix::sys::signal::Signal::SIGKILL,
        )
        .unwrap();
        tokio::time::timeout(Duration::from_secs(5), holdfast_linux::process::exited(process))
            .await
            .unwrap()
            .unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for process in self.started.lock().unwrap().drain(..) {
            if let Ok(Some(pidfd)) = holdfast_linux::process::open_pidfd(&process) {
                let _ = holdfast_linux::process::signal(&pidfd, libc::SIGKILL);
            }
        }
    }
}

pub fn hints(pin: &PinStarted) -> KeeperHints {
    KeeperHints { namespaces: Some(pin.namespaces), pin: Some(pin.process.clone()), ..KeeperHints::default() }
}

/// Runs a case as the daemon runs: on a runtime with several threads.
pub fn on_runtime(case: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(60), case).await.expect("the case ends in time")
    });
}

/// Polls with a deadline.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !is_so() {
        assert!(Instant::now() < deadline, "not so after 5 s: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub fn status_kib(process: &ProcessRef, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid)).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
}

/// What a process has open.
pub fn descriptors(process: &ProcessRef) -> Vec<(i32, PathBuf)> {
    let entries = std::fs::read_dir(format!("/proc/{}/fd", process.pid)).unwrap();
    entries
        .map(|entry| entry.unwrap())
        .map(|entry| {
            (
                entry.file_name().to_str().unwrap().parse().unwrap(),
                std::fs::read_link(entry.path()).unwrap_or_default(),
            )
        })
        .collect()
}

/// Zombies whose parent is this process.
pub fn own_zombies() -> Vec<u32> {
    let own = std::process::id();
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .filter(|pid| {
            read_stat(*pid).ok().flatten().is_some_and(|stat| stat.parent == own && stat.state == b'Z')
        })
        .collect()
}

pub fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
