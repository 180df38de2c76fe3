//! Containers: the OCI runtime (crun) under a monitor (conmon), inside the node's namespaces.
//!
//! The daemon is no parent of anything here: conmon detaches itself, lives in the pin's namespaces (and so keeps
//! them), holds the container's output and leaves its exit code in a file. What is alive is asked of the kernel.

mod etc;
pub mod exec;
mod fault;
mod files;
mod internal;
mod joined;
pub mod logs;
mod monitor;
mod observe;
mod root;
mod spec;
mod start;
mod stop;
mod supervise;

pub(crate) use fault::{class_of, fail, io_fail};
pub(crate) use internal::Report;
pub use internal::internal_main;
pub(crate) use joined::Inside;

use crate::{paths::Paths, process::ProcessWatch};
use holdfast_core::{
    error::ContainerError,
    id::{ContainerId, ProcessRef},
    observed::{ContainerObserved, ExitObserved},
    plan::ContainerPlan,
    time::Span,
    world::{ContainerHint, Containers, Started},
};
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex},
};

/// The programs that are run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tools {
    /// The OCI runtime; conmon wants it absolute.
    pub crun: PathBuf,
    /// The monitor.
    pub conmon: PathBuf,
    /// This binary: `<exe> internal …` runs [`internal_main`].
    pub exe: PathBuf,
}

impl Tools {
    /// crun and conmon where Debian installs them, or else where PATH finds them.
    pub fn find(exe: PathBuf) -> Self {
        let find = |name: &str| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::iter::once(PathBuf::from("/usr/bin"))
                .chain(std::env::split_paths(&path))
                .map(|directory| directory.join(name))
                .find(|candidate| candidate.is_absolute() && candidate.is_file())
                .unwrap_or_else(|| PathBuf::from("/usr/bin").join(name))
        };
        Self { crun: find("crun"), conmon: find("conmon"), exe }
    }
}

/// [`Containers`] by crun and conmon.
#[derive(Clone, Debug)]
pub struct LinuxContainers {
    paths: Paths,
    tools: Tools,
    /// Watches of containers whose monitor is gone: their exit code can only be had through a pidfd that was opened
    /// while they lived (`PIDFD_GET_INFO`).
    orphans: Arc<Mutex<BTreeMap<ProcessRef, Arc<ProcessWatch>>>>,
}

impl LinuxContainers {
    /// Containers of the node with these paths, run with these tools.
    pub fn new(paths: Paths, tools: Tools) -> Self {
        Self { paths, tools, orphans: Arc::default() }
    }

    /// A crun command on this node's runtime state.
    fn crun(&self, inside: &Inside) -> tokio::process::Command {
        let mut command = inside.command(&self.tools.crun, &[]);
        command.args(self.crun_options());
        command
    }

    /// cgroups are neither made nor joined: a limit needs a delegated subtree, and there is none in a plain login.
    fn crun_options(&self) -> [std::ffi::OsString; 2] {
        let mut root = std::ffi::OsString::from("--root=");
        root.push(self.paths.oci_runtime());
        ["--cgroup-manager=disabled".into(), root]
    }
}

impl Containers for LinuxContainers {
    async fn observe_containers(
        &self,
        hints: &[ContainerHint],
    ) -> Result<BTreeMap<ContainerId, ContainerObserved>, ContainerError> {
        self.observe(hints).await
    }

    async fn start_container(
        &self,
        plan: &ContainerPlan,
        pin: &ProcessRef,
    ) -> Result<Started, ContainerError> {
        self.start(plan, pin).await
    }

    async fn stop_container(
        &self,
        id: &ContainerId,
        incarnation: u32,
        signal: u32,
        grace: Span,
        pin: Option<&ProcessRef>,
    ) -> Result<ExitObserved, ContainerError> {
        self.stop(id, incarnation, signal, grace, pin).await
    }

    async fn clean_container(
        &self,
        id: &ContainerId,
        incarnation: u32,
        pin: Option<&ProcessRef>,
    ) -> Result<(), ContainerError> {
        self.clean(id, incarnation, pin).await
    }

    async fn remove_files(&self, id: &ContainerId, pin: Option<&ProcessRef>) -> Result<(), ContainerError> {
        self.remove(id, pin).await
    }
}
