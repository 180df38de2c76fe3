//! The end of a container, and the removal of what it leaves.

use super::{
    LinuxContainers,
    fault::{fail, io_fail},
    files::{Files, Located, zombie_status},
    joined::Inside,
    start::MOUNT_DEADLINE,
};
use crate::process::{ExitStatus, ProcessWatch, is_alive};
use holdfast_core::{
    error::{Class, ContainerError},
    id::{ContainerId, ProcessRef},
    observed::ExitObserved,
    time::Span,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// How long a killed process may take to die: it does at once, unless the kernel holds it in a call.
const KILL_DEADLINE: Duration = Duration::from_secs(10);
/// How long a living monitor may take to write the exit code.
const EXIT_FILE_DEADLINE: Duration = Duration::from_secs(5);
/// How long the parent of an orphan may take to reap it: before that no pidfd tells how it ended.
const REAP_DEADLINE: Duration = Duration::from_secs(1);
/// How long an interrupted start may take to come to its gate, or to an end.
const SETTLE_DEADLINE: Duration = Duration::from_secs(10);
/// How long the monitor of a dead container may take to end by itself.
const MONITOR_DEADLINE: Duration = Duration::from_secs(2);
/// How long the removal of files may take.
const REMOVE_DEADLINE: Duration = Duration::from_secs(300);
/// How often a file is looked for.
const POLL: Duration = Duration::from_millis(2);

/// Looks until `find` finds something or time is up.
async fn poll<T>(deadline: Duration, mut find: impl FnMut() -> Option<T>) -> Option<T> {
    let started = Instant::now();
    loop {
        if let Some(found) = find() {
            return Some(found);
        }
        if started.elapsed() >= deadline {
            return None;
        }
        tokio::time::sleep(POLL).await;
    }
}

impl LinuxContainers {
    /// See [`holdfast_core::world::Containers::stop_container`].
    pub(super) async fn stop(
        &self,
        id: &ContainerId,
        incarnation: u32,
        number: u32,
        grace: Span,
        pin: Option<&ProcessRef>,
    ) -> Result<ExitObserved, ContainerError> {
        let files = Files::of(&self.paths, id, incarnation);
        let located = self.settle(&files).await?;
        let mut code = files.exit_code();
        if let Some(init) = &located.init {
            let ended = self.end(id, init, number, grace).await?;
            code = self.learn_exit(&files, &located, ended.as_deref()).await;
        }
        self.delete(&files, &located, pin).await?;
        Ok(ExitObserved { code })
    }

    /// The processes of the start, once an interrupted start has come to rest: a monitor that is still creating the
    /// container would bring it up behind our back.
    pub(super) async fn settle(&self, files: &Files) -> Result<Located, ContainerError> {
        let located = files.locate();
        if located.init.is_some() || !files.has_bundle() {
            return Ok(located);
        }
        let settled = poll(SETTLE_DEADLINE, || {
            let located = files.locate();
            (located.init.is_some() || files.search_monitors().is_empty()).then_some(located)
        })
        .await;
        settled.ok_or_else(|| {
            fail(Class::Unknown, "stop", files.id.as_str(), "its monitor is still creating it")
                .with_remedy("try again")
        })
    }

    /// Signal, grace, SIGKILL; comes back when the process is dead, with the watch that saw it die.
    async fn end(
        &self,
        id: &ContainerId,
        init: &ProcessRef,
        number: u32,
        grace: Span,
    ) -> Result<Option<Arc<ProcessWatch>>, ContainerError> {
        let io = |action: &'static str| move |error| io_fail(action, format!("{id} ({init})"), error);
        let Some(watch) = ProcessWatch::open(init).map_err(io("watch"))? else {
            return Ok(self.forget_orphan(init));
        };
        let number = i32::try_from(number).unwrap_or(libc::SIGTERM);
        // A daemon of the same uid owns the user namespace, and so may signal every uid in it; user_namespaces(7).
        for (number, wait) in [(number, Duration::from_nanos(grace.0)), (libc::SIGKILL, KILL_DEADLINE)] {
            if !watch.signal(number).map_err(io("signal"))? {
                break;
            }
            if let Ok(result) = tokio::time::timeout(wait, watch.exited()).await {
                result.map_err(io("watch"))?;
                break;
            }
        }
        if is_alive(init) {
            return Err(fail(Class::Unknown, "stop", format!("{id} ({init})"), "it survived SIGKILL")
                .with_remedy("look at its state in /proc: the kernel holds it in an uninterruptible call"));
        }
        Ok(Some(self.forget_orphan(init).unwrap_or_else(|| Arc::new(watch))))
    }

    fn forget_orphan(&self, init: &ProcessRef) -> Option<Arc<ProcessWatch>> {
        self.orphans.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(init)
    }

    /// How a dead container ended: by its monitor's file; else, where the monitor is gone too, by the kernel.
    async fn learn_exit(
        &self,
        files: &Files,
        located: &Located,
        watch: Option<&ProcessWatch>,
    ) -> Option<i32> {
        let monitor = located.monitor.as_ref().filter(|monitor| is_alive(monitor));
        let mut told = files.exit_code();
        if told.is_none()
            && let Some(monitor) = monitor
        {
            // Looked for once more after the monitor's end: it may have written in between.
            told = poll(EXIT_FILE_DEADLINE, || {
                let alive = is_alive(monitor);
                files.exit_code().map(Some).or_else(|| (!alive).then_some(None))
            })
            .await
            .flatten();
        }
        if told.is_some() {
            return told;
        }
        let init = located.init.as_ref()?;
        let code = poll(REAP_DEADLINE, || {
            watch
                .and_then(ProcessWatch::exit_status)
                .map(ExitStatus::code)
                .or_else(|| zombie_status(init).map(exit_code))
        })
        .await?;
        if let Err(error) = files.write_exit_code(code) {
            tracing::warn!(container = %files.id, %error, "exit code could not be kept");
        }
        Some(code)
    }

    /// Deletes runtime state, root mount, monitor and bundle of a start whose process is dead.
    async fn delete(
        &self,
        files: &Files,
        located: &Located,
        pin: Option<&ProcessRef>,
    ) -> Result<(), ContainerError> {
        if let Some(init) = &located.init {
            self.forget_orphan(init);
        }
        if files.other_incarnation().is_none() {
            self.delete_runtime_state(files)?;
            if let Some(pin) = pin {
                self.unmount_root(&files.id, pin).await?;
            }
        }
        self.end_monitors(files, located).await?;
        if pin.is_none() {
            // The root may be mounted still, where descriptors keep the mount namespace: the bundle stays, so that
            // the next bring-up finds something to clean up.
            return Ok(());
        }
        files.delete_start().map_err(|error| io_fail("delete the bundle of", files.id.as_str(), error))
    }

    /// What `crun delete` does once the process is dead and no cgroup was made: its state directory goes. Done here,
    /// because it must work without a pin as well.
    fn delete_runtime_state(&self, files: &Files) -> Result<(), ContainerError> {
        match std::fs::remove_dir_all(&files.runtime_state) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(io_fail("delete the runtime state of", files.id.as_str(), error))
            }
            _ => Ok(()),
        }
    }

    async fn unmount_root(&self, id: &ContainerId, pin: &ProcessRef) -> Result<(), ContainerError> {
        let arguments = ["unmount-root".into(), self.paths.container_root(id.as_str()).into_os_string()];
        let inside = Inside::of(Some(pin))?;
        inside.internal(&self.tools.exe, arguments, None, id.as_str(), MOUNT_DEADLINE).await.map(|_| ())
    }

    /// A monitor ends by itself after its container; one that does not is killed.
    async fn end_monitors(&self, files: &Files, located: &Located) -> Result<(), ContainerError> {
        let monitors = match &located.monitor {
            Some(monitor) => vec![monitor.clone()],
            None if files.has_bundle() => files.search_monitors(),
            None => Vec::new(),
        };
        for monitor in monitors {
            let io = |error| io_fail("end the monitor of", files.id.as_str(), error);
            let Some(watch) = ProcessWatch::open(&monitor).map_err(io)? else { continue };
            if tokio::time::timeout(MONITOR_DEADLINE, watch.exited()).await.is_ok() {
                continue;
            }
            watch.signal(libc::SIGKILL).map_err(io)?;
            if tokio::time::timeout(KILL_DEADLINE, watch.exited()).await.is_err() {
                return Err(fail(
                    Class::Unknown,
                    "end the monitor of",
                    files.id.as_str(),
                    format!("{monitor} survived SIGKILL"),
                ));
            }
        }
        Ok(())
    }

    /// See [`holdfast_core::world::Containers::clean_container`]: this start and every one before it, because a daemon
    /// may have died between counting a start and cleaning up after the last.
    pub(super) async fn clean(
        &self,
        id: &ContainerId,
        incarnation: u32,
        pin: Option<&ProcessRef>,
    ) -> Result<(), ContainerError> {
        let mut starts = self.incarnations(id);
        starts.retain(|start| *start < incarnation);
        starts.push(incarnation);
        for start in starts {
            self.clean_one(&Files::of(&self.paths, id, start), pin).await?;
        }
        Ok(())
    }

    async fn clean_one(&self, files: &Files, pin: Option<&ProcessRef>) -> Result<(), ContainerError> {
        let id = &files.id;
        let located = self.settle(files).await?;
        if let Some(init) = located.init.as_ref().filter(|init| is_alive(init)) {
            return Err(fail(Class::Conflict, "clean", id.as_str(), format!("its process ({init}) lives"))
                .with_remedy("stop it first"));
        }
        self.delete(files, &located, pin).await?;
        if pin.is_none() {
            return Ok(());
        }
        match std::fs::remove_dir_all(&files.bundle) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(io_fail("delete the bundle of", id.as_str(), error))
            }
            _ => Ok(()),
        }
    }

    /// The starts that have files, oldest first.
    fn incarnations(&self, id: &ContainerId) -> Vec<u32> {
        let Ok(entries) = std::fs::read_dir(self.paths.container(id.as_str()).join("run")) else {
            return Vec::new();
        };
        let mut starts: Vec<u32> =
            entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
        starts.sort_unstable();
        starts
    }

    /// See [`holdfast_core::world::Containers::remove_files`].
    pub(super) async fn remove(
        &self,
        id: &ContainerId,
        pin: Option<&ProcessRef>,
    ) -> Result<(), ContainerError> {
        let own = self.paths.container(id.as_str());
        if let Some((incarnation, init)) = self.living_incarnation(id) {
            let cause = format!("its incarnation {incarnation} runs ({init})");
            return Err(
                fail(Class::Conflict, "remove the files of", id.as_str(), cause).with_remedy("stop it first")
            );
        }
        if let Some(pin) = pin {
            self.unmount_root(id, pin).await?;
        }
        if std::fs::symlink_metadata(&own).is_err() {
            return Ok(());
        }
        let inside = Inside::of(pin)?;
        let arguments = ["remove".into(), own.clone().into_os_string()];
        inside.internal(&self.tools.exe, arguments, None, id.as_str(), REMOVE_DEADLINE).await?;
        match std::fs::symlink_metadata(&own) {
            Ok(_) => Err(fail(
                Class::Fatal,
                "remove the files of",
                id.as_str(),
                format!("{} is still there", own.display()),
            )),
            Err(_) => Ok(()),
        }
    }

    /// An incarnation whose process lives.
    fn living_incarnation(&self, id: &ContainerId) -> Option<(u32, ProcessRef)> {
        self.incarnations(id).into_iter().find_map(|incarnation| {
            let init = Files::of(&self.paths, id, incarnation).locate().init?;
            is_alive(&init).then_some((incarnation, init))
        })
    }
}

/// The code of a wait status; wait(2).
fn exit_code(status: i32) -> i32 {
    if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
}
