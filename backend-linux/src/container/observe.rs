//! What is alive: a few reads of procfs and of files per container, and no process is started.

use super::{
    LinuxContainers,
    fault::fail,
    files::{Files, Located},
};
use crate::process::{ExitStatus, ProcessWatch, is_alive};
use holdfast_core::{
    error::{Class, ContainerError},
    id::{ContainerId, ProcessRef},
    observed::{ContainerObserved, ExitObserved},
    record::NamespaceId,
    world::ContainerHint,
};
use std::{
    collections::BTreeMap,
    os::unix::fs::MetadataExt,
    sync::{Arc, PoisonError},
};

impl LinuxContainers {
    /// See [`holdfast_core::world::Containers::observe_containers`].
    pub(super) async fn observe(
        &self,
        hints: &[ContainerHint],
    ) -> Result<BTreeMap<ContainerId, ContainerObserved>, ContainerError> {
        let (own, hints) = (self.clone(), hints.to_vec());
        tokio::task::spawn_blocking(move || {
            hints.iter().map(|hint| (hint.id.clone(), own.observe_one(hint))).collect()
        })
        .await
        .map_err(|error| fail(Class::Fatal, "observe", "containers", error))
    }

    fn observe_one(&self, hint: &ContainerHint) -> ContainerObserved {
        let files = Files::of(&self.paths, &hint.id, hint.incarnation);
        let located = match &hint.running {
            Some((init, monitor)) => Located { init: Some(init.clone()), monitor: Some(monitor.clone()) },
            None => files.locate(),
        };
        let init = located.init.as_ref().filter(|process| is_alive(process)).cloned();
        let monitor = located.monitor.as_ref().filter(|process| is_alive(process)).cloned();
        let exit =
            if init.is_some() { None } else { self.exit_of(&files, located.init.as_ref(), monitor.as_ref()) };
        if let (Some(init), None) = (&init, &monitor) {
            self.watch_orphan(init);
        }
        ContainerObserved {
            netns: init.as_ref().and_then(netns_of),
            init,
            monitor,
            exit,
            remains: files.has_runtime_state() || files.has_bundle(),
            basis: None,
        }
    }

    /// The end of this incarnation. While a monitor lives that has not written yet, nothing is known; once nobody is
    /// left who could tell, it is known that it ended, and not how.
    fn exit_of(
        &self,
        files: &Files,
        init: Option<&ProcessRef>,
        monitor: Option<&ProcessRef>,
    ) -> Option<ExitObserved> {
        if let Some(code) = files.exit_code() {
            return Some(ExitObserved { code: Some(code) });
        }
        let init = init?;
        if monitor.is_some() {
            return None;
        }
        let mut orphans = self.orphans.lock().unwrap_or_else(PoisonError::into_inner);
        let code = orphans.get(init).and_then(|watch| watch.exit_status()).map(ExitStatus::code);
        if let Some(code) = code {
            orphans.remove(init);
            if let Err(error) = files.write_exit_code(code) {
                tracing::warn!(container = %files.id, %error, "exit code could not be kept");
            }
        }
        Some(ExitObserved { code })
    }

    /// Opens a pidfd while the process lives: later it is the only one who can tell how it ended.
    fn watch_orphan(&self, init: &ProcessRef) {
        let mut orphans = self.orphans.lock().unwrap_or_else(PoisonError::into_inner);
        if !orphans.contains_key(init)
            && let Ok(Some(watch)) = ProcessWatch::open(init)
        {
            orphans.insert(init.clone(), Arc::new(watch));
        }
    }
}

fn netns_of(process: &ProcessRef) -> Option<NamespaceId> {
    let metadata = std::fs::metadata(format!("/proc/{}/ns/net", process.pid)).ok()?;
    // Looked at again: the pid may have changed hands in between.
    is_alive(process).then(|| NamespaceId(metadata.ino()))
}
