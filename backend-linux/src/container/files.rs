//! The files of one start of a container, and what they are evidence of.

use super::fault::io_fail;
use crate::{
    paths::Paths,
    process::{boot_id, is_alive, process_ref, read_stat},
};
use holdfast_core::{
    error::ContainerError,
    id::{ContainerId, ProcessRef},
};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// The two processes of a start; the monitor's is absent while only the runtime's own state tells of the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Located {
    /// The container's first process.
    pub(crate) init: Option<ProcessRef>,
    /// conmon.
    pub(crate) monitor: Option<ProcessRef>,
}

/// Where the files of one start are.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    /// The container.
    pub(crate) id: ContainerId,
    /// The OCI bundle: the directory of this incarnation.
    pub(crate) bundle: PathBuf,
    /// The runtime's state of the container, whatever its incarnation.
    pub(crate) runtime_state: PathBuf,
}

/// What is read of crun's `status` file.
#[derive(Deserialize)]
struct RuntimeStatus {
    pid: u32,
    #[serde(rename = "process-start-time")]
    start_time_ticks: u64,
    bundle: PathBuf,
}

impl Files {
    /// The files of an incarnation.
    pub(crate) fn of(paths: &Paths, id: &ContainerId, incarnation: u32) -> Self {
        Self {
            id: id.clone(),
            bundle: paths.incarnation(id.as_str(), incarnation),
            runtime_state: paths.oci_runtime().join(id.as_str()),
        }
    }

    /// The OCI specification; its existence says that a start began and was not deleted.
    pub(crate) fn config(&self) -> PathBuf {
        self.bundle.join("config.json")
    }

    /// conmon writes its own pid here.
    pub(crate) fn monitor_pid(&self) -> PathBuf {
        self.bundle.join("monitor.pid")
    }

    /// conmon has crun write the first process's pid here.
    pub(crate) fn init_pid(&self) -> PathBuf {
        self.bundle.join("init.pid")
    }

    /// conmon's own complaints.
    pub(crate) fn monitor_log(&self) -> PathBuf {
        self.bundle.join("monitor.log")
    }

    /// What conmon says of the start (`_OCI_SYNCPIPE`).
    pub(crate) fn answer(&self) -> PathBuf {
        self.bundle.join("answer")
    }

    /// Directory in which conmon leaves the exit code.
    pub(crate) fn exit_dir(&self) -> PathBuf {
        self.bundle.join("exit")
    }

    /// The boot in which the start began: pids in the bundle mean nothing in another.
    fn boot(&self) -> PathBuf {
        self.bundle.join("boot")
    }

    fn started(&self) -> PathBuf {
        self.bundle.join("started.json")
    }

    /// crun's gate: it exists from `create` until `start` opened it.
    pub(crate) fn start_gate(&self) -> PathBuf {
        self.runtime_state.join("exec.fifo")
    }

    /// The exit code that the monitor, or a stop, left; `None` when there is none or it is no number.
    pub(crate) fn exit_code(&self) -> Option<i32> {
        std::fs::read_to_string(self.exit_dir().join(self.id.as_str())).ok()?.trim().parse().ok()
    }

    /// Leaves an exit code that was learned in another way, as the monitor would have.
    pub(crate) fn write_exit_code(&self, code: i32) -> io::Result<()> {
        std::fs::create_dir_all(self.exit_dir())?;
        write_atomically(&self.exit_dir().join(self.id.as_str()), code.to_string().as_bytes())
    }

    /// Makes the bundle, marked with this boot.
    pub(crate) fn create(&self) -> Result<(), ContainerError> {
        std::fs::create_dir_all(self.exit_dir())
            .and_then(|()| std::fs::write(self.boot(), boot_id()?.as_str()))
            .map_err(|error| io_fail("create the bundle of", self.id.as_str(), error))
    }

    /// Records the processes of the start.
    pub(crate) fn write_started(&self, located: &Located) -> io::Result<()> {
        write_atomically(&self.started(), &serde_json::to_vec(located)?)
    }

    /// The processes of this start, alive or dead, by the best evidence there is. Pids are believed only together with
    /// a start time of this boot, or (the monitor's) together with a command line that names this bundle.
    pub(crate) fn locate(&self) -> Located {
        let recorded =
            std::fs::read(self.started()).ok().and_then(|text| serde_json::from_slice::<Located>(&text).ok());
        match recorded {
            Some(located) => located,
            None => self.locate_unrecorded().unwrap_or_default(),
        }
    }

    /// A start that was interrupted before it was recorded.
    fn locate_unrecorded(&self) -> Option<Located> {
        let boot = boot_id().ok()?;
        if std::fs::read_to_string(self.boot()).ok()? != boot.as_str() {
            return None;
        }
        let status = std::fs::read(self.runtime_state.join("status"))
            .ok()
            .and_then(|text| serde_json::from_slice::<RuntimeStatus>(&text).ok());
        let init = status.filter(|status| status.bundle == self.bundle).map(|status| ProcessRef {
            pid: status.pid,
            start_time_ticks: status.start_time_ticks,
            boot_id: boot,
        });
        let monitor = read_pid(&self.monitor_pid())
            .filter(|pid| self.is_monitor(*pid))
            .and_then(|pid| process_ref(pid).ok().flatten());
        Some(Located { init, monitor })
    }

    /// Whether the process was started as the monitor of exactly this bundle.
    fn is_monitor(&self, pid: u32) -> bool {
        let Ok(line) = std::fs::read(format!("/proc/{pid}/cmdline")) else { return false };
        let bundle = self.bundle.as_os_str().as_bytes();
        let arguments: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        arguments.windows(2).any(|pair| pair[0] == b"--bundle" && pair[1] == bundle)
            && arguments.first().is_some_and(|name| name.ends_with(b"conmon"))
    }

    /// Looks through all processes for monitors of this bundle: for a start that was cut off before conmon wrote its
    /// pid. Includes the monitor's launcher.
    pub(crate) fn search_monitors(&self) -> Vec<ProcessRef> {
        std::fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|pid| self.is_monitor(*pid))
            .filter_map(|pid| process_ref(pid).ok().flatten())
            .collect()
    }

    /// Whether the runtime has state of this container.
    pub(crate) fn has_runtime_state(&self) -> bool {
        std::fs::symlink_metadata(&self.runtime_state).is_ok()
    }

    /// Whether a start began and was not deleted.
    pub(crate) fn has_bundle(&self) -> bool {
        std::fs::symlink_metadata(self.config()).is_ok()
    }

    /// The living first process that the runtime's state tells of, when it belongs to another bundle than this.
    pub(crate) fn other_incarnation(&self) -> Option<ProcessRef> {
        let text = std::fs::read(self.runtime_state.join("status")).ok()?;
        let status: RuntimeStatus = serde_json::from_slice(&text).ok()?;
        let process = ProcessRef {
            pid: status.pid,
            start_time_ticks: status.start_time_ticks,
            boot_id: boot_id().ok()?,
        };
        (status.bundle != self.bundle && is_alive(&process)).then_some(process)
    }

    /// Deletes what only a living start needs; the exit code stays.
    pub(crate) fn delete_start(&self) -> io::Result<()> {
        let names = [
            "answer",
            "attach",
            "ctl",
            "winsz",
            "init.pid",
            "monitor.pid",
            "monitor.log",
            "started.json",
            "boot",
        ];
        for path in names.iter().map(|name| self.bundle.join(name)).chain([self.config()]) {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The number in a pid file.
pub(crate) fn read_pid(path: &Path) -> Option<u32> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The wait status of a zombie, from field 52 of proc_pid_stat(5); `None` when it is not one or may not be read.
pub(crate) fn zombie_status(process: &ProcessRef) -> Option<i32> {
    let stat = read_stat(process.pid).ok().flatten()?;
    if stat.start_time_ticks != process.start_time_ticks || stat.state != b'Z' {
        return None;
    }
    let line = std::fs::read(format!("/proc/{}/stat", process.pid)).ok()?;
    let end = line.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(line.get(end + 1..)?).ok()?;
    // Field 3 comes first here; field 52 is 49 further on.
    rest.split_ascii_whitespace().nth(49)?.parse().ok()
}

/// Replaces a file as a whole: a reader sees the old or the new content.
pub(crate) fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let mut file = std::fs::File::create(&new)?;
    file.write_all(content)?;
    drop(file);
    std::fs::rename(&new, path)
}
