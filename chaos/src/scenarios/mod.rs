//! The named scenarios. Each runs in a process of its own on a node of its own, compares pids and packets, and
//! ends with the zero-leak check.

mod keepers;
mod operations;
mod recovery;
mod robustness;
mod storage;
mod workloads;

use crate::{
    identity::Identity,
    privileged::{Preparation, Prepared},
    report::Outcome,
};
use anyhow::Result;
use std::{sync::Arc, time::Duration};

/// What a scenario is given.
#[derive(Debug)]
pub struct Context {
    /// Who runs the node.
    pub identity: Arc<Identity>,
    /// What was prepared with root's help.
    pub prepared: Prepared,
}

/// A named scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Name.
    pub name: &'static str,
    /// What it shows, in one line.
    pub about: &'static str,
    /// What it needs root for.
    pub preparation: Preparation,
    /// How long it may take.
    pub deadline: Duration,
    run: fn(&Context) -> Result<Outcome>,
}

const fn scenario(name: &'static str, about: &'static str, run: fn(&Context) -> Result<Outcome>) -> Scenario {
    Scenario { name, about, preparation: Preparation::None, deadline: Duration::from_secs(180), run }
}

impl Scenario {
    const fn prepared(mut self, preparation: Preparation) -> Self {
        self.preparation = preparation;
        self
    }

    const fn within(mut self, seconds: u64) -> Self {
        self.deadline = Duration::from_secs(seconds);
        self
    }

    /// Plays it.
    ///
    /// # Errors
    /// When something is not as it should be.
    pub fn play(&self, context: &Context) -> Result<Outcome> {
        if let Prepared::Missing(what) = &context.prepared {
            return Ok(Outcome::Skip(what.clone()));
        }
        (self.run)(context)
    }
}

/// State root of the scenarios with a small disk: an image, the store with its reserve, and little more.
const SMALL_DISK_BYTES: u64 = 24 << 20;

/// All of them, in the order they are run.
pub const ALL: &[Scenario] = &[
    scenario(
        "idempotent_up",
        "up five times changes nothing; a second daemon is told so",
        robustness::idempotent_up,
    ),
    scenario(
        "control_restart",
        "kill -9 control: a new one serves, nothing else notices",
        keepers::control_restart,
    ),
    scenario(
        "daemon_restart",
        "kill -9 and SIGTERM of the daemon: nothing else notices",
        keepers::daemon_restart,
    ),
    scenario("uplink_kill", "kill -9 uplink: egress and published ports come back", keepers::uplink_kill),
    scenario("pin_kill", "kill -9 pin: adopted, no packet lost", keepers::pin_kill),
    scenario("pin_idle", "the pin holds nothing and ignores a session's signals", keepers::pin_idle),
    scenario("all_at_once", "kill -9 all four: adopted, no packet lost", keepers::all_at_once),
    scenario(
        "all_keepers_but_one",
        "each keeper alone, in turn, keeps the router",
        keepers::all_keepers_but_one,
    )
    .within(300),
    scenario("replug", "no keeper left: new router, same processes, streams go on", recovery::replug),
    scenario(
        "pod_recovery",
        "both members killed: same pod, same address; one killed: peer undisturbed",
        recovery::pod_recovery,
    ),
    scenario(
        "everything_killed",
        "node and workloads killed: all come back, addresses and isolation too",
        recovery::everything_killed,
    ),
    scenario(
        "keep_workloads",
        "down --keep-workloads, up: same processes, same network",
        recovery::keep_workloads,
    ),
    scenario(
        "reboot",
        "another boot id, no process, no runtime directory: restart recovery",
        recovery::reboot,
    )
    .prepared(Preparation::BootId),
    scenario("control_wedge", "silent clients on every socket wedge nothing", robustness::control_wedge),
    scenario(
        "stale_files",
        "files, directories and dead sockets at the node's paths",
        robustness::stale_files,
    ),
    scenario("concurrent_attach", "30 containers started at once", workloads::concurrent_attach),
    scenario(
        "abrupt_kill",
        "kill -9 of a container's process: policy decides, peers undisturbed",
        workloads::abrupt_kill,
    ),
    scenario(
        "conmon_kill",
        "kill -9 of a monitor: the container lives and can be restarted",
        workloads::conmon_kill,
    ),
    scenario("exec_storm", "1,000 short execs, no zombie", workloads::exec_storm).within(300),
    scenario("kill_at_every_step_run", "daemon killed at every moment of run", operations::run).within(300),
    scenario("kill_at_every_step_stop", "daemon killed at every moment of stop", operations::stop)
        .within(300),
    scenario("kill_at_every_step_rm", "daemon killed at every moment of rm", operations::remove).within(300),
    scenario("kill_at_every_step_pod", "daemon killed at every moment of pod create", operations::pod_create)
        .within(300),
    scenario(
        "write_failure",
        "the daemon cannot write: creates refused, the rest unharmed",
        storage::write_failure,
    ),
    scenario("disk_full", "a full disk: creates refused; stop, rm and status work", storage::disk_full)
        .prepared(Preparation::SmallDisk(SMALL_DISK_BYTES)),
];

/// A scenario by name.
pub fn find(name: &str) -> Option<&'static Scenario> {
    ALL.iter().find(|scenario| scenario.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<&str> = ALL.iter().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), ALL.len());
    }
}
