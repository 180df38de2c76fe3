//! A node of its own for one test: directories, namespaces with a sandbox, and a look for what is left at the end.

use crate::archive::busybox_rootfs;
use holdfast_core::{
    id::{ContainerId, ProcessRef, SandboxId},
    observed::ContainerObserved,
    plan::{ContainerPlan, RootfsPlan},
    spec::RootSource,
    time::Span,
    world::{ContainerHint, Containers, Started},
};
use holdfast_linux::{
    container::{LinuxContainers, Tools},
    image::{ImageLimits, LinuxImages},
    paths::Paths,
    process::process_ref,
};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};
use std::{
    ffi::OsString,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

pub const SANDBOX: &str = "sb1";
pub const HOSTNAME: &str = "box";

/// The namespaces that the real pin makes, made here the simplest way.
pub fn pin_main(arguments: &[OsString]) -> ExitCode {
    let (inside, existing) = (Path::new(&arguments[0]), arguments.get(1).is_some());
    if !existing {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWCGROUP).unwrap();
        println!("unshared");
        std::io::stdin().read_exact(&mut [0]).unwrap();
    }
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
    mount(Some("tmpfs"), inside, Some("tmpfs"), MsFlags::empty(), Some("mode=0755")).unwrap();
    mount(Some("cgroup2"), "/sys/fs/cgroup", Some("cgroup2"), MsFlags::empty(), None::<&str>).unwrap();
    let sandbox = inside.join("sandbox").join(SANDBOX);
    std::fs::create_dir_all(&sandbox).unwrap();
    // SAFETY: this process has one thread; the child only makes system calls and ends.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Child => {
            unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS).unwrap();
            nix::unistd::sethostname(HOSTNAME).unwrap();
            for name in ["net", "ipc", "uts"] {
                let file = sandbox.join(name);
                std::fs::write(&file, "").unwrap();
                let source = PathBuf::from(format!("/proc/self/ns/{name}"));
                mount(Some(&source), &file, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
            }
            std::process::exit(0);
        }
        nix::unistd::ForkResult::Parent { child } => {
            nix::sys::wait::waitpid(child, None).unwrap();
        }
    }
    println!("up");
    loop {
        nix::unistd::pause();
    }
}

fn map_ids(pid: u32) {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().unwrap();
    for (tool, file, own) in
        [("newuidmap", "/etc/subuid", user.uid.as_raw()), ("newgidmap", "/etc/subgid", user.gid.as_raw())]
    {
        let text = std::fs::read_to_string(file).unwrap();
        let line = text.lines().find(|line| line.starts_with(&format!("{}:", user.name)));
        let line =
            line.unwrap_or_else(|| panic!("{} has no range in {file}: usermod --add-subuids", user.name));
        let fields: Vec<&str> = line.split(':').collect();
        let status = Command::new(tool)
            .arg(pid.to_string())
            .args(["0", &own.to_string(), "1", "1", fields[1], fields[2]])
            .status()
            .unwrap();
        assert!(status.success(), "{tool}: {status}");
    }
}

fn start_pin(paths: &Paths, through: Option<&ProcessRef>) -> (Child, ProcessRef) {
    let exe = std::env::current_exe().unwrap();
    let mut command = match through {
        None => Command::new(&exe),
        Some(old) => {
            let mut command = Command::new("nsenter");
            command
                .args(["--user", "--net", "--cgroup", "--preserve-credentials", "-t", &old.pid.to_string()])
                .arg(&exe);
            command
        }
    };
    command.arg("test-pin").arg(paths.inside()).args(through.map(|_| "existing"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    if through.is_none() {
        assert_eq!(lines.next().unwrap().unwrap(), "unshared");
        map_ids(child.id());
        child.stdin.take().unwrap().write_all(b"g").unwrap();
    }
    assert_eq!(lines.next().unwrap().unwrap(), "up");
    let pin = process_ref(child.id()).unwrap().unwrap();
    (child, pin)
}

pub struct Node {
    pub directory: tempfile::TempDir,
    pub paths: Paths,
    pub containers: LinuxContainers,
    pub images: LinuxImages,
    pub pin: ProcessRef,
    pub rootfs: PathBuf,
    pins: Vec<Child>,
}

impl Node {
    pub fn new() -> Self {
        Self::named("state")
    }

    pub fn named(state: &str) -> Self {
        let directory = tempfile::tempdir_in("/tmp").unwrap();
        let paths = Paths { state: directory.path().join(state), runtime: directory.path().join("run") };
        std::fs::create_dir_all(&paths.state).unwrap();
        std::fs::create_dir_all(paths.inside()).unwrap();
        let rootfs = directory.path().join("rootfs");
        busybox_rootfs(&rootfs);
        let (child, pin) = start_pin(&paths, None);
        let tools = Tools::find(std::env::current_exe().unwrap());
        Self {
            containers: LinuxContainers::new(paths.clone(), tools.clone()),
            images: LinuxImages::new(paths.clone(), tools, ImageLimits::default()),
            directory,
            paths,
            pin,
            rootfs,
            pins: vec![child],
        }
    }

    /// As after a replug: the same user namespace, a new mount namespace with nothing of the old one in it.
    pub fn replace_pin(&mut self) {
        let (child, pin) = start_pin(&self.paths, Some(&self.pin));
        self.kill_pins();
        self.pin = pin;
        self.pins.push(child);
    }

    pub fn kill_pins(&mut self) {
        for mut pin in self.pins.drain(..) {
            pin.kill().unwrap();
            pin.wait().unwrap();
        }
    }

    /// A daemon that was started anew: nothing of the old one's memory.
    pub fn forget(&mut self) {
        self.containers =
            LinuxContainers::new(self.paths.clone(), Tools::find(std::env::current_exe().unwrap()));
    }

    pub fn plan(&self, id: &str, argv: &[&str]) -> ContainerPlan {
        let id = ContainerId::from_raw(id);
        ContainerPlan {
            id: id.clone(),
            name: "test".into(),
            incarnation: 1,
            sandbox: SandboxId::from_raw(SANDBOX),
            rootfs: RootfsPlan {
                id,
                root: RootSource::Directory(self.rootfs.to_str().unwrap().into()),
                layers: vec![],
            },
            argv: argv.iter().map(|text| (*text).to_owned()).collect(),
            env: vec![],
            working_dir: "/".into(),
            user: (0, 0),
            mounts: vec![],
            hostname: HOSTNAME.into(),
            hosts: vec![],
            resolver: Default::default(),
            security: Default::default(),
        }
    }

    pub async fn start(&self, plan: &ContainerPlan) -> Started {
        self.containers.start_container(plan, &self.pin).await.unwrap()
    }

    pub async fn observe(&self, plan: &ContainerPlan, running: Option<&Started>) -> ContainerObserved {
        let running = running.map(|started| (started.init.clone(), started.monitor.clone()));
        let hint = ContainerHint { id: plan.id.clone(), incarnation: plan.incarnation, running };
        self.containers.observe_containers(&[hint]).await.unwrap().remove(&plan.id).unwrap()
    }

    /// Waits until the container has ended and returns its exit code.
    pub async fn exit_code(&self, plan: &ContainerPlan, started: &Started) -> Option<i32> {
        until("the container's exit", async || self.observe(plan, Some(started)).await.exit).await.code
    }

    pub async fn stop(&self, plan: &ContainerPlan) -> Option<i32> {
        let grace = Span::from_ms(200);
        let stopped =
            self.containers.stop_container(&plan.id, plan.incarnation, 15, grace, Some(&self.pin)).await;
        stopped.unwrap().code
    }

    /// Runs to the end, removes the container, and returns what it printed on stdout, and its exit code.
    pub async fn output(&self, plan: &ContainerPlan) -> (String, Option<i32>) {
        let started = self.start(plan).await;
        let code = self.exit_code(plan, &started).await;
        let log = std::fs::read_to_string(self.containers.log_path(&plan.id)).unwrap_or_default();
        let text = log.lines().filter_map(|line| line.splitn(4, ' ').nth(3)).collect::<Vec<_>>().join("\n");
        self.stop(plan).await;
        self.containers.remove_files(&plan.id, Some(&self.pin)).await.unwrap();
        (text, code)
    }

    /// Nothing of any container is left: no process, mount or file.
    pub fn assert_clean(&self) {
        let needle = self.directory.path().to_str().unwrap();
        until_now("processes to be gone", || {
            let left = processes_of(needle, &self.pins);
            if left.is_empty() { Ok(()) } else { Err(left) }
        });
        let own: Vec<u32> = zombies_of_this_process();
        assert!(own.is_empty(), "zombies: {own:?}");
        if let Some(pin) = self.pins.last() {
            let mounts = std::fs::read_to_string(format!("/proc/{}/mountinfo", pin.id())).unwrap();
            let left: Vec<&str> =
                mounts.lines().filter(|line| line.contains(needle) && line.contains("rootfs")).collect();
            assert!(left.is_empty(), "mounts: {left:?}");
        }
        for directory in [self.paths.oci_runtime(), self.paths.state.join("containers")] {
            let left: Vec<_> = std::fs::read_dir(&directory)
                .into_iter()
                .flatten()
                .map(|entry| entry.unwrap().path())
                .collect();
            assert!(left.is_empty(), "files: {left:?}");
        }
        let left: Vec<_> = std::fs::read_dir(&self.paths.runtime)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("exec-"))
            .collect();
        assert!(left.is_empty(), "files of execs: {left:?}");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // What a failed test left is killed: it is found by the test's own directory in its command line.
        let needle = self.directory.path().to_str().unwrap().to_owned();
        for (pid, _) in processes_of(&needle, &[]) {
            let _ = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(pid.cast_signed()),
                nix::sys::signal::Signal::SIGKILL,
            );
        }
        for entry in std::fs::read_dir(self.paths.oci_runtime()).into_iter().flatten().flatten() {
            let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            let pid = status
                .split_once("\"pid\":")
                .and_then(|(_, rest)| rest.split(',').next()?.trim().parse::<i32>().ok());
            if let Some(pid) = pid.filter(|pid| *pid > 1) {
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(pid),
                    nix::sys::signal::Signal::SIGKILL,
                );
            }
        }
        // Layers belong to subordinate ids: removed as root of their namespace.
        let pin = self.pin.pid.to_string();
        let _ = Command::new("nsenter")
            .args(["-t", &pin, "-U", "--preserve-credentials", "rm", "-rf"])
            .args([self.paths.layers(), self.paths.state.join("containers")])
            .status();
        self.kill_pins();
    }
}

fn processes_of(needle: &str, pins: &[Child]) -> Vec<(u32, String)> {
    let own = std::process::id();
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| *pid != own && !pins.iter().any(|pin| pin.id() == *pid))
        .filter_map(|pid| {
            let line = String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/cmdline")).ok()?)
                .replace('\0', " ");
            (line.contains(needle) && !line.contains("test-pin")).then_some((pid, line))
        })
        .collect()
}

pub fn zombies_of_this_process() -> Vec<u32> {
    let own = std::process::id();
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            let stat = holdfast_linux::process::read_stat(*pid).ok().flatten();
            stat.is_some_and(|stat| stat.parent == own && stat.state == b'Z')
        })
        .collect()
}

fn until_now<E: std::fmt::Debug>(what: &str, mut check: impl FnMut() -> Result<(), E>) {
    let started = Instant::now();
    while let Err(error) = check() {
        assert!(started.elapsed() < Duration::from_secs(10), "waited for {what}: {error:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub async fn until<T>(what: &str, mut find: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = find().await {
            return found;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "waited for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
