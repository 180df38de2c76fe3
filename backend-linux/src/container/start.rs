//! One start of a container.

use super::{
    LinuxContainers, etc,
    fault::{class_of_text, fail, io_fail},
    files::{Files, Located, write_atomically},
    joined::Inside,
    monitor::subject,
    spec,
};
use crate::process::is_alive;
use holdfast_core::{
    error::{Class, ContainerError},
    id::ProcessRef,
    plan::ContainerPlan,
    spec::RootSource,
    time::Span,
    world::Started,
};
use std::{ffi::OsString, path::PathBuf, time::Duration};

/// What ends a start that came to nothing.
const SIGKILL: u32 = 9;
/// How long a child that mounts may take.
pub(super) const MOUNT_DEADLINE: Duration = Duration::from_secs(20);
/// How long `crun start` may take.
const START_DEADLINE: Duration = Duration::from_secs(20);

impl LinuxContainers {
    /// See [`holdfast_core::world::Containers::start_container`]. What a failed start made is deleted before the error
    /// comes back.
    pub(super) async fn start(
        &self,
        plan: &ContainerPlan,
        pin: &ProcessRef,
    ) -> Result<Started, ContainerError> {
        let files = Files::of(&self.paths, &plan.id, plan.incarnation);
        if let Some(process) = files.other_incarnation() {
            let cause = format!("another incarnation of it runs ({process})");
            return Err(fail(Class::Conflict, "start", subject(plan), cause).with_remedy("stop it first"));
        }
        if let Some(started) = self.resume(plan, &files, pin).await? {
            return Ok(started);
        }
        // Before anything is made: through a dead pin it could not be taken back either.
        Inside::of(Some(pin))?;
        if files.has_runtime_state() || files.has_bundle() {
            // A start that nobody finished: what it made is no workload yet, or is dead.
            self.stop(&plan.id, plan.incarnation, SIGKILL, Span::default(), Some(pin)).await?;
            self.clean(&plan.id, plan.incarnation, Some(pin)).await?;
        }
        match self.start_fresh(plan, &files, pin).await {
            Ok(started) => Ok(started),
            Err(error) => Err(self.undo_start(plan, pin, error).await),
        }
    }

    /// An interrupted or repeated start of the same incarnation: runs already, has ended already, or waits at the gate.
    async fn resume(
        &self,
        plan: &ContainerPlan,
        files: &Files,
        pin: &ProcessRef,
    ) -> Result<Option<Started>, ContainerError> {
        let Located { init: Some(init), monitor } = self.settle(files).await? else { return Ok(None) };
        // One that is created and not recorded may be found before its monitor is.
        let Some(monitor) = monitor.or_else(|| files.search_monitors().into_iter().next()) else {
            return Ok(None);
        };
        if !is_alive(&init) {
            return Ok(files.exit_code().map(|_| Started { init, monitor }));
        }
        if std::fs::symlink_metadata(files.start_gate()).is_ok() {
            if !is_alive(&monitor) {
                // Nobody would hold its output: it has run nothing yet, so it is made again.
                return Ok(None);
            }
            self.record(plan, files, &Located { init: Some(init.clone()), monitor: Some(monitor.clone()) })?;
            self.open_gate(plan, files, &Inside::of(Some(pin))?, &init).await?;
        }
        Ok(Some(Started { init, monitor }))
    }

    async fn start_fresh(
        &self,
        plan: &ContainerPlan,
        files: &Files,
        pin: &ProcessRef,
    ) -> Result<Started, ContainerError> {
        let spec = spec::container(&self.paths, plan)?;
        let inside = Inside::of(Some(pin))?;
        files.create()?;
        etc::write(&self.paths, plan)?;
        let text = serde_json::to_vec(&spec)
            .map_err(|error| fail(Class::Fatal, "write the OCI specification of", subject(plan), error))?;
        write_atomically(&files.config(), &text)
            .and_then(|()| std::fs::create_dir_all(self.paths.oci_runtime()))
            .map_err(|error| io_fail("write the OCI specification of", subject(plan), error))?;
        self.mount_root(plan, &inside).await?;
        let located = self.start_monitor(plan, files, &inside).await?;
        let (Some(init), Some(monitor)) = (located.init.clone(), located.monitor.clone()) else {
            let gone = if located.init.is_none() { "its process" } else { "its monitor" };
            return Err(fail(
                Class::Transient,
                "start",
                subject(plan),
                format!("{gone} ended before it was started"),
            ));
        };
        // Before the gate opens: whoever looks from now on knows whose processes these are.
        self.record(plan, files, &located)?;
        self.open_gate(plan, files, &inside, &init).await?;
        Ok(Started { init, monitor })
    }

    fn record(&self, plan: &ContainerPlan, files: &Files, located: &Located) -> Result<(), ContainerError> {
        files.write_started(located).map_err(|error| io_fail("record the start of", subject(plan), error))
    }

    async fn mount_root(&self, plan: &ContainerPlan, inside: &Inside) -> Result<(), ContainerError> {
        let own = self.paths.container(plan.id.as_str());
        let lower: Vec<PathBuf> = match &plan.rootfs.root {
            RootSource::Directory(directory) => vec![PathBuf::from(directory)],
            RootSource::Image(_) => {
                plan.rootfs.layers.iter().map(|layer| self.paths.layers().join(layer)).collect()
            }
        };
        for layer in &lower {
            if !layer.is_dir() {
                return Err(fail(
                    Class::Missing,
                    "mount the root of",
                    subject(plan),
                    format!("{} is not a directory", layer.display()),
                )
                .with_remedy("load the image again, or correct --rootfs"));
            }
        }
        let mut arguments: Vec<OsString> = vec![
            "mount-root".into(),
            self.paths.container_root(plan.id.as_str()).into(),
            own.join("upper").into(),
            own.join("work").into(),
        ];
        arguments.extend(lower.into_iter().map(OsString::from));
        inside.internal(&self.tools.exe, arguments, None, &subject(plan), MOUNT_DEADLINE).await.map(|_| ())
    }

    /// Lets the created container run.
    async fn open_gate(
        &self,
        plan: &ContainerPlan,
        files: &Files,
        inside: &Inside,
        init: &ProcessRef,
    ) -> Result<(), ContainerError> {
        let mut command = self.crun(inside);
        command.args(["start", plan.id.as_str()]);
        let ran = inside.run(command, START_DEADLINE).await?;
        if !ran.status.success() {
            let said = ran.said();
            return Err(fail(class_of_text(&said), "start", subject(plan), said));
        }
        // crun is done when the process was let go; one that has ended since has started too.
        if std::fs::symlink_metadata(files.start_gate()).is_ok() && is_alive(init) {
            return Err(fail(
                Class::Unknown,
                "start",
                subject(plan),
                "crun reports success, and the process still waits",
            ));
        }
        Ok(())
    }

    /// Deletes what a failed start made; the error that comes back is the start's, unless something may still run.
    async fn undo_start(
        &self,
        plan: &ContainerPlan,
        pin: &ProcessRef,
        error: ContainerError,
    ) -> ContainerError {
        let undone = async {
            self.stop(&plan.id, plan.incarnation, SIGKILL, Span::default(), Some(pin)).await?;
            self.clean(&plan.id, plan.incarnation, Some(pin)).await
        }
        .await;
        match undone {
            // Known to be gone: trying again is safe.
            Ok(()) if error.class == Class::Unknown => ContainerError { class: Class::Transient, ..error },
            Ok(()) => error,
            Err(undo) => ContainerError {
                class: Class::Unknown,
                cause: format!("{}; and not cleaned up: {undo}", error.cause),
                ..error
            },
        }
    }
}
