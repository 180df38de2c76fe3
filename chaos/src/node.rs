//! One node of its own, driven through the `holdfast` binary. What its JSON looks like is known here only.

use crate::{
    command::{self, Output},
    identity::Identity,
    poll,
    process::{self, Process},
};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fmt, fs,
    net::Ipv4Addr,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Where the node and its helpers find crun, conmon, slirp4netns, newuidmap.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Where nodes are made; the runner of scenarios sets it, so that it can clean up after one that hangs.
pub const SCRATCH_VARIABLE: &str = "HOLDFAST_CHAOS_SCRATCH";

/// How long one command may take. Longer than any wait inside the node, so that the node's own error is seen.
pub const COMMAND_DEADLINE: Duration = Duration::from_secs(60);

/// The processes that make the node, besides monitors and workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Public API, store, planner, executor.
    Daemon,
    /// The hands inside the namespaces.
    Control,
    /// The sleeper that holds the namespaces.
    Pin,
    /// slirp4netns.
    Uplink,
}

impl Role {
    /// All four.
    pub const ALL: [Self; 4] = [Self::Daemon, Self::Control, Self::Pin, Self::Uplink];

    /// As `status` and people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Daemon => "daemon",
            Self::Control => "control",
            Self::Pin => "pin",
            Self::Uplink => "uplink",
        }
    }
}

/// The node's processes at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processes {
    /// See [`Role::Daemon`].
    pub daemon: Process,
    /// See [`Role::Control`].
    pub control: Process,
    /// See [`Role::Pin`].
    pub pin: Process,
    /// See [`Role::Uplink`].
    pub uplink: Process,
}

impl Processes {
    /// The process of a role.
    pub fn get(&self, role: Role) -> Process {
        match role {
            Role::Daemon => self.daemon,
            Role::Control => self.control,
            Role::Pin => self.pin,
            Role::Uplink => self.uplink,
        }
    }

    /// All four.
    pub fn all(&self) -> [Process; 4] {
        Role::ALL.map(|role| self.get(role))
    }
}

impl fmt::Display for Processes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { daemon, control, pin, uplink } = self;
        write!(f, "daemon {daemon}  control {control}  pin {pin}  uplink {uplink}")
    }
}

/// A container as `inspect` tells it, its processes checked against `/proc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Name.
    pub name: String,
    /// `running`, `exited`, ….
    pub state: String,
    /// Its first process, if it runs.
    pub init: Option<Process>,
    /// Its monitor, if it runs.
    pub monitor: Option<Process>,
    /// IPv4 address of its first interface.
    pub address: Option<Ipv4Addr>,
    /// All addresses and MACs, as told: to be compared, not read.
    pub interfaces: Vec<String>,
    /// Restarts that nobody asked for.
    pub restarts: u64,
    /// Exit code of its last end.
    pub exit_code: Option<i64>,
    /// The last cure of its sandbox, if it was not "untouched".
    pub last_cure: Option<String>,
}

impl Container {
    /// Its first process.
    ///
    /// # Errors
    /// When it does not run.
    pub fn running(&self) -> Result<Process> {
        self.init.with_context(|| format!("container {} is {} and has no process", self.name, self.state))
    }

    /// Its first address.
    ///
    /// # Errors
    /// When it has none.
    pub fn ipv4(&self) -> Result<Ipv4Addr> {
        self.address.with_context(|| format!("container {} has no IPv4 address", self.name))
    }
}

/// A node with state, runtime and scratch directories of its own.
#[derive(Debug)]
pub struct Node {
    /// Who runs it.
    pub identity: Arc<Identity>,
    /// Its state directory.
    pub root: PathBuf,
    /// Its `XDG_RUNTIME_DIR`.
    pub runtime: PathBuf,
    /// Everything above lies in here, unless the state was put elsewhere.
    pub scratch: TempDir,
}

impl Node {
    /// Makes the directories; starts nothing.
    ///
    /// # Errors
    /// I/O errors.
    pub fn new(identity: Arc<Identity>) -> Result<Self> {
        // Short: a unix socket's path holds 108 bytes, unix(7).
        let base = std::env::var_os(SCRATCH_VARIABLE).unwrap_or_else(|| "/tmp".into());
        let scratch = tempfile::Builder::new().prefix("hfc-").tempdir_in(base)?;
        let (root, runtime) = (scratch.path().join("state"), scratch.path().join("run"));
        for path in [&root, &runtime] {
            fs::create_dir(path)?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
        }
        Ok(Self { identity, root, runtime, scratch })
    }

    /// The same with its state in `root`.
    ///
    /// # Errors
    /// I/O errors.
    pub fn with_root(identity: Arc<Identity>, root: PathBuf) -> Result<Self> {
        let mut node = Self::new(identity)?;
        node.root = root;
        Ok(node)
    }

    /// The directory below the runtime directory that holds the node's sockets; `None` before there is one.
    pub fn sockets(&self) -> Option<PathBuf> {
        let entries = fs::read_dir(&self.runtime).ok()?;
        entries.flatten().map(|entry| entry.path()).find(|path| {
            path.is_dir()
                && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("holdfast"))
        })
    }

    /// A `holdfast` command with the node's environment and nothing of the caller's.
    pub fn command<S: AsRef<str>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new(&self.identity.holdfast);
        command.env_clear();
        command.env("PATH", PATH).env("HOME", &self.identity.home).env("USER", &self.identity.user);
        command.env("XDG_RUNTIME_DIR", &self.runtime).env("LANG", "C.UTF-8");
        // Diagnosis of a failing scenario: passed on where the caller has set it.
        for name in ["RUST_LOG", "HOLDFAST_LOG", "RUST_BACKTRACE"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.arg("--root").arg(&self.root).args(arguments.iter().map(AsRef::as_ref));
        command.current_dir("/");
        command
    }

    /// Runs a command, whatever its exit code.
    ///
    /// # Errors
    /// When it cannot be run to its end in time.
    pub fn try_cli<S: AsRef<str>>(&self, arguments: &[S]) -> Result<Output> {
        command::run(&mut self.command(arguments), COMMAND_DEADLINE)
    }

    /// Runs a command that must succeed; its standard output.
    ///
    /// # Errors
    /// When it does not.
    pub fn cli<S: AsRef<str>>(&self, arguments: &[S]) -> Result<String> {
        let words: Vec<&str> = arguments.iter().map(AsRef::as_ref).collect();
        self.try_cli(arguments)?.success(&format!("holdfast {}", words.join(" ")))
    }

    /// Runs a command line that must succeed, split at blanks.
    ///
    /// # Errors
    /// When it does not.
    pub fn sh(&self, line: &str) -> Result<String> {
        self.cli(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// Runs a command line that must be refused; what it said.
    ///
    /// # Errors
    /// When it succeeds, or says nothing.
    pub fn refused(&self, line: &str) -> Result<String> {
        let output = self.try_cli(&line.split_whitespace().collect::<Vec<_>>())?;
        ensure!(!output.status.success(), "holdfast {line} succeeded, and should have been refused");
        ensure!(!output.stderr.trim().is_empty(), "holdfast {line} failed without a word");
        Ok(output.stderr)
    }

    /// Runs a command line with `--format json`.
    ///
    /// # Errors
    /// When it fails or prints no JSON.
    pub fn json(&self, line: &str) -> Result<Value> {
        let text = self.sh(&format!("--format json {line}"))?;
        serde_json::from_str(&text).with_context(|| format!("holdfast {line} printed no JSON: {text:?}"))
    }

    /// Brings the node up and waits until all four processes live.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn up(&self) -> Result<Processes> {
        self.sh("up")?;
        self.await_processes("the node to come up", COMMAND_DEADLINE, |_| true)
    }

    /// Takes the node down.
    ///
    /// # Errors
    /// When it does not go down.
    pub fn down(&self) -> Result<()> {
        self.sh("down").map(drop)
    }

    /// `holdfast status`.
    ///
    /// # Errors
    /// When it fails, or is not what a status is.
    pub fn status(&self) -> Result<Status> {
        // A node that is not whole says so with its exit code too, and tells what it is all the same.
        let output = self.try_cli(&["--format", "json", "status"])?;
        let value = match serde_json::from_str(&output.stdout) {
            Ok(value) => value,
            Err(_) => bail!("holdfast status: {}: {}{}", output.status, output.stdout, output.stderr),
        };
        Status::parse(&value).with_context(|| format!("holdfast status printed {value}"))
    }

    /// Waits until all four processes live and answer, nothing is left to be mended, and it is as `wanted`.
    ///
    /// # Errors
    /// When it is not so by the deadline; says what `status` said last.
    pub fn await_processes(
        &self,
        what: &str,
        deadline: Duration,
        wanted: impl Fn(&Processes) -> bool,
    ) -> Result<Processes> {
        let started = Instant::now();
        let mut last;
        loop {
            match self.status() {
                Ok(status) => match status.whole() {
                    Some(processes) if wanted(&processes) => return Ok(processes),
                    Some(processes) => last = processes.to_string(),
                    None => last = format!("{status:?}"),
                },
                // A command that loses its daemon midway fails, and rightly so; the next one starts another.
                Err(error) => last = format!("{error:#}"),
            }
            if started.elapsed() > deadline {
                bail!("waited {:.1} s in vain for {what}; last seen: {last}", deadline.as_secs_f64());
            }
            poll::rest(Duration::from_millis(2));
        }
    }

    /// A container by name: what is recorded of it, and how it was just seen.
    ///
    /// # Errors
    /// When there is none.
    pub fn container(&self, name: &str) -> Result<Container> {
        let value = self.json(&format!("inspect {name}"))?;
        let status = self.status()?;
        let seen =
            status.containers.get(name).with_context(|| format!("status does not know container {name}"))?;
        let addresses = value.get("addresses").and_then(Value::as_array).cloned().unwrap_or_default();
        Ok(Container {
            name: name.to_owned(),
            state: seen.state.clone(),
            init: seen.init,
            monitor: seen.monitor,
            address: addresses.first().and_then(|first| text(first, "ipv4").parse().ok()),
            interfaces: addresses.iter().map(Value::to_string).collect(),
            restarts: seen.restarts,
            exit_code: seen.exit_code,
            last_cure: value.get("last_cure").and_then(Value::as_str).map(str::to_owned),
        })
    }

    /// A container once it runs with a living process.
    ///
    /// # Errors
    /// When it does not by the deadline.
    pub fn await_running(&self, name: &str, deadline: Duration) -> Result<Container> {
        poll::until(&format!("container {name} to run"), deadline, || {
            let container = self.container(name)?;
            Ok(container.init.is_some_and(Process::is_alive).then_some(container))
        })
    }

    /// Whether a container of this name is recorded.
    ///
    /// # Errors
    /// When the list cannot be had.
    pub fn has_container(&self, name: &str) -> Result<bool> {
        Ok(self.names("ps --all")?.iter().any(|listed| listed == name))
    }

    /// The names a list command lists.
    ///
    /// # Errors
    /// When the command fails.
    pub fn names(&self, line: &str) -> Result<Vec<String>> {
        let value = self.json(line)?;
        let list = value.as_array();
        let list = list.with_context(|| format!("holdfast {line} printed no list: {value}"))?;
        Ok(list.iter().map(|entry| text(entry, "name")).collect())
    }

    /// The daemon's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.root.join("daemon.log")).unwrap_or_default()
    }

    /// The router's network namespace, by inode.
    ///
    /// # Errors
    /// When the pin cannot be looked at.
    pub fn router(&self, processes: &Processes) -> Result<u64> {
        process::namespace(processes.pin.pid, "net").context("cannot see the pin's network namespace")
    }

    /// Every process that belongs to this node, by the directories in its environment or arguments.
    pub fn relatives(&self) -> Vec<Process> {
        let mark = self.scratch.path().display().to_string();
        let own = std::process::id();
        process::all()
            .into_iter()
            .filter(|pid| *pid != own)
            .filter(|pid| {
                let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                process::command_line(*pid).contains(&mark)
                    || String::from_utf8_lossy(&environment).contains(&mark)
            })
            .filter_map(Process::of)
            .collect()
    }
}

/// `holdfast status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// `up`, `degraded` or `down`.
    pub state: String,
    /// Living processes that the node says run as they should, by role.
    pub running: BTreeMap<&'static str, Process>,
    /// What it still has to mend by itself.
    pub unmended: Vec<String>,
    /// Names of operations under way.
    pub operations: Vec<String>,
    /// Containers as they were just seen.
    pub containers: BTreeMap<String, Seen>,
}

/// A container as `status` saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// `running`, `exited`, ….
    pub state: String,
    /// First process.
    pub init: Option<Process>,
    /// Monitor.
    pub monitor: Option<Process>,
    /// Restarts that nobody asked for.
    pub restarts: u64,
    /// Exit code.
    pub exit_code: Option<i64>,
}

impl Status {
    fn parse(value: &Value) -> Option<Self> {
        let mut running = BTreeMap::new();
        for entry in value.get("processes")?.as_array()? {
            let role = Role::ALL.into_iter().find(|role| role.name() == text(entry, "role"));
            let process = entry.get("process").and_then(reference).filter(|process| process.is_alive());
            if let (Some(role), Some(process), "running") = (role, process, text(entry, "state").as_str()) {
                running.insert(role.name(), process);
            }
        }
        let mut unmended: Vec<String> = value
            .get("degraded")?
            .as_array()?
            .iter()
            .filter(|entry| text(entry, "cause").starts_with("needs to"))
            .map(|entry| format!("{} {}", text(entry, "what"), text(entry, "cause")))
            .collect();
        if value.get("case")?.as_str()? != "nothing" {
            unmended.push(format!("case {}", text(value, "case")));
        }
        let mut containers = BTreeMap::new();
        for workload in value.get("workloads")?.as_array()? {
            for container in workload.get("containers")?.as_array()? {
                let seen = Seen {
                    state: text(container, "state"),
                    init: container.get("init").and_then(reference),
                    monitor: container.get("monitor").and_then(reference),
                    restarts: container.get("restarts")?.as_u64()?,
                    exit_code: container.get("exit_code").and_then(Value::as_i64),
                };
                containers.insert(text(container, "name"), seen);
            }
        }
        let operations = value.get("operations")?.as_array()?.iter().map(Value::to_string).collect();
        Some(Self { state: text(value, "state"), running, unmended, operations, containers })
    }

    /// The four processes, if all live and answer and nothing is left to be mended.
    pub fn whole(&self) -> Option<Processes> {
        let get = |role: Role| self.running.get(role.name()).copied();
        let processes = Processes {
            daemon: get(Role::Daemon)?,
            control: get(Role::Control)?,
            pin: get(Role::Pin)?,
            uplink: get(Role::Uplink)?,
        };
        self.unmended.is_empty().then_some(processes)
    }
}

/// `{"pid": …, "start_time_ticks": …}`.
fn reference(value: &Value) -> Option<Process> {
    Some(Process {
        pid: u32::try_from(value.get("pid")?.as_u64()?).ok()?,
        start_ticks: value.get("start_time_ticks")?.as_u64()?,
    })
}

fn text(value: &Value, key: &str) -> String {
    value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use serde_json::json;

    fn status(pin: Value, degraded: Value) -> Status {
        let me = Process::of(std::process::id()).unwrap();
        let mine = json!({"pid": me.pid, "start_time_ticks": me.start_ticks, "boot_id": "b"});
        let running = |role: &str| json!({"role": role, "state": "running", "process": mine, "in_pin": null});
        let processes = json!([running("daemon"), running("control"), running("uplink"), pin]);
        let value = json!({"state": "up", "case": "nothing", "processes": processes, "degraded": degraded,
            "operations": [], "workloads": [{"name": "web", "containers": [{"name": "web", "state": "running",
            "init": mine, "monitor": null, "restarts": 2, "exit_code": null}]}]});
        Status::parse(&value).unwrap()
    }

    #[test]
    fn a_node_is_whole_when_four_living_processes_answer_and_nothing_is_left_to_mend() {
        let me = Process::of(std::process::id()).unwrap();
        let pin = |ticks: u64, state: &str| json!({"role": "pin", "state": state, "process": {"pid": me.pid, "start_time_ticks": ticks}});
        let whole = status(pin(me.start_ticks, "running"), json!([]));
        assert_eq!(whole.whole().unwrap().pin, me);
        assert_eq!(whole.containers["web"].init, Some(me));
        assert_eq!(whole.containers["web"].monitor, None);
        assert_eq!(status(pin(me.start_ticks + 1, "running"), json!([])).whole(), None, "a recycled pid");
        assert_eq!(status(pin(me.start_ticks, "does not answer"), json!([])).whole(), None);
        let monitor = json!([{"what": "web", "cause": "its monitor (conmon) is dead", "remedy": "restart"}]);
        assert!(status(pin(me.start_ticks, "running"), monitor).whole().is_some(), "not the node's to mend");
        let link = json!([{"what": "web", "cause": "needs to attach web eth0", "remedy": ""}]);
        assert_eq!(status(pin(me.start_ticks, "running"), link).whole(), None);
    }
}
