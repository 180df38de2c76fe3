//! Starting conmon, which starts crun: conmon(8).

use super::{
    LinuxContainers,
    fault::{class_of_text, fail, io_fail},
    files::{Files, Located, read_pid},
    joined::Inside,
};
use crate::process::{is_alive, process_ref};
use holdfast_core::{
    error::{Class, ContainerError},
    id::ProcessRef,
    plan::ContainerPlan,
};
use serde::Deserialize;
use std::{
    os::fd::AsRawFd,
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::process::Command;

/// How long conmon may take to detach itself.
const DETACH_DEADLINE: Duration = Duration::from_secs(10);
/// How long `crun create` may take: a few milliseconds, unless the disk is very busy.
const CREATE_DEADLINE: Duration = Duration::from_secs(30);
/// How often the answer is looked for: `crun create` takes some ten milliseconds.
const ANSWER_POLL: Duration = Duration::from_millis(1);

/// What conmon says on `_OCI_SYNCPIPE`; older versions say `data`, newer ones `pid`.
#[derive(Deserialize)]
struct Answer {
    #[serde(alias = "data")]
    pid: i64,
    #[serde(default)]
    message: String,
}

impl LinuxContainers {
    /// Has conmon create the container; it waits at crun's gate afterwards.
    ///
    /// # Errors
    /// What crun said; `Unknown` when nobody said anything in time.
    pub(super) async fn start_monitor(
        &self,
        plan: &ContainerPlan,
        files: &Files,
        inside: &Inside,
    ) -> Result<Located, ContainerError> {
        let subject = subject(plan);
        if plan_path_has_colon(&self.log_path(&plan.id)) {
            let cause =
                format!("conmon takes no colon in a log's path: {}", self.log_path(&plan.id).display());
            return Err(
                fail(Class::Denied, "start", subject, cause).with_remedy("choose a --root without a colon")
            );
        }
        // A file, not a pipe: a monitor whose answer nobody reads any more (the daemon was killed) must not die of it.
        let answer = std::fs::File::create(files.answer())
            .map_err(|error| io_fail("make a file for", &subject, error))?;
        let log = std::fs::File::create(files.monitor_log())
            .map_err(|error| io_fail("write the monitor's log of", &subject, error))?;
        let mut command = inside.command(&self.tools.conmon, &[answer.as_raw_fd()]);
        self.monitor_arguments(&mut command, plan, files);
        command.env("_OCI_SYNCPIPE", answer.as_raw_fd().to_string());
        command.stdout(Stdio::null()).stderr(log).kill_on_drop(true);
        let mut launcher = inside.spawn(command).await?;
        let status = tokio::time::timeout(DETACH_DEADLINE, launcher.wait())
            .await
            .map_err(|_| fail(Class::Unknown, "start the monitor of", &subject, "it did not detach in time"))?
            .map_err(|error| io_fail("wait for the monitor of", &subject, error))?;
        if !status.success() {
            let said = std::fs::read_to_string(files.monitor_log()).unwrap_or_default();
            return Err(fail(
                Class::Fatal,
                "start the monitor of",
                &subject,
                format!("conmon: {status}: {}", said.trim()),
            ));
        }
        let monitor = read_pid(&files.monitor_pid()).and_then(|pid| process_ref(pid).ok().flatten());
        let init = read_answer(files, plan, monitor.as_ref()).await?;
        let init = process_ref(init).map_err(|error| io_fail("look at the process of", &subject, error))?;
        Ok(Located { init, monitor })
    }

    fn monitor_arguments(&self, command: &mut Command, plan: &ContainerPlan, files: &Files) {
        let id = plan.id.as_str();
        let mut log = std::ffi::OsString::from("k8s-file:");
        log.push(self.log_path(&plan.id));
        command
            .args(["--api-version", "1", "--cid", id, "--cuuid", id, "--name", &plan.name])
            .arg("--runtime")
            .arg(&self.tools.crun)
            .args(self.crun_options().map(|option| {
                let mut argument = std::ffi::OsString::from("--runtime-arg=");
                argument.push(option);
                argument
            }))
            .arg("--bundle")
            .arg(&files.bundle)
            .arg("--container-pidfile")
            .arg(files.init_pid())
            .arg("--conmon-pidfile")
            .arg(files.monitor_pid())
            .arg("--exit-dir")
            .arg(files.exit_dir())
            .arg("--log-path")
            .arg(log)
            // Sockets lie in the bundle and are reached by descriptor: no path is too long for sockaddr_un.
            .arg("--full-attach")
            // A sync of the log's file system per exit would make every stop as slow as the disk.
            .arg("--no-sync-log")
            .args(["--log-level", "warning"]);
    }
}

/// How a container is named in errors.
pub(super) fn subject(plan: &ContainerPlan) -> String {
    format!("container {} ({})", plan.name, plan.id)
}

fn plan_path_has_colon(path: &std::path::Path) -> bool {
    path.as_os_str().as_encoded_bytes().contains(&b':')
}

/// The pid that conmon tells of, once crun has created the container.
async fn read_answer(
    files: &Files,
    plan: &ContainerPlan,
    monitor: Option<&ProcessRef>,
) -> Result<u32, ContainerError> {
    let subject = &subject(plan);
    let started = Instant::now();
    let line = loop {
        // Looked at before the file: what it wrote before its end is read after it.
        let alive = monitor.is_some_and(is_alive);
        let text = std::fs::read(files.answer())
            .map_err(|error| io_fail("read from the monitor of", subject, error))?;
        if text.contains(&b'\n') {
            break text;
        }
        if !alive {
            return Err(fail(Class::Transient, "create", subject, "the monitor ended without an answer"));
        }
        if started.elapsed() > CREATE_DEADLINE {
            let cause = format!("crun was not done after {} s", CREATE_DEADLINE.as_secs());
            return Err(fail(Class::Unknown, "create", subject, cause));
        }
        tokio::time::sleep(ANSWER_POLL).await;
    };
    let answer: Answer = serde_json::from_slice(&line).map_err(|error| {
        fail(
            Class::Corrupt,
            "create",
            subject,
            format!("the monitor said {:?}: {error}", String::from_utf8_lossy(&line)),
        )
    })?;
    match u32::try_from(answer.pid) {
        Ok(pid) if pid > 0 => Ok(pid),
        _ => {
            let said = match answer.message.trim() {
                "" => "crun failed and said nothing",
                message => message,
            };
            let command = plan.argv.first().map_or("", String::as_str);
            let cause = match said.contains(command) {
                true => said.to_owned(),
                false => format!("{said} (the command is {command})"),
            };
            Err(fail(class_of_text(said), "create", subject, cause))
        }
    }
}
