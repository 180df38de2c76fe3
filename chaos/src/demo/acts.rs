//! What is killed, and what is claimed of it.

use crate::{
    node::{Processes, Role},
    poll,
    process::{self, Process},
    stage::{HEAL_DEADLINE, Healing, Stage, Workloads, check_addresses, check_untouched},
    traffic::http_get,
};
use anyhow::{Context, Result, ensure};
use std::time::{Duration, Instant};

/// One kill.
pub struct Act {
    /// What is killed, as a person would type it.
    pub title: &'static str,
    /// What that means for the node.
    pub about: &'static str,
    /// Roles to kill.
    roles: &'static [Role],
    /// What dies with them.
    depth: Depth,
}

/// How much dies beside the roles.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// Nothing.
    Roles,
    /// Every other keeper of the router: the monitors.
    Keepers,
    /// Those and the workloads themselves.
    Everything,
}

/// The story.
pub const ACTS: [Act; 7] = [
    Act {
        title: "kill -9 control",
        about: "the hands inside the namespaces: rules, links, names",
        roles: &[Role::Control],
        depth: Depth::Roles,
    },
    Act {
        title: "kill -9 daemon",
        about: "API, store, planner; the next command starts another",
        roles: &[Role::Daemon],
        depth: Depth::Roles,
    },
    Act {
        title: "kill -9 uplink",
        about: "the way out, and the published ports",
        roles: &[Role::Uplink],
        depth: Depth::Roles,
    },
    Act {
        title: "kill -9 pin",
        about: "the process that made the namespaces",
        roles: &[Role::Pin],
        depth: Depth::Roles,
    },
    Act {
        title: "kill -9 control daemon uplink pin",
        about: "all four as one blow: the monitors still hold the router",
        roles: &Role::ALL,
        depth: Depth::Roles,
    },
    Act {
        title: "kill -9 all four, and the monitors",
        about: "nothing holds the router any more: it is gone, and built anew under the running workloads",
        roles: &Role::ALL,
        depth: Depth::Keepers,
    },
    Act {
        title: "kill -9 everything, workloads included",
        about: "as after a power cut: each workload comes back whole",
        roles: &Role::ALL,
        depth: Depth::Everything,
    },
];

/// What an act showed.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The act.
    pub title: String,
    /// The node's processes before and after.
    pub processes: Option<(Processes, Processes)>,
    /// Name, pid before and pid after of each workload.
    pub workloads: Vec<(String, Option<Process>, Option<Process>)>,
    /// The cure as the node tells it.
    pub cure: String,
    /// Restarts of workloads.
    pub restarts: u64,
    /// Pings lost and sent; `None` where the pinger's network died with its workload.
    pub pings: Option<(u64, u64)>,
    /// The longest run of lost pings.
    pub outage_ms: f64,
    /// HTTP requests failed and sent.
    pub http: Option<(u64, u64)>,
    /// Until the node was whole again.
    pub healed: Duration,
    /// What else is worth a line.
    pub notes: Vec<String>,
    /// Claims checked.
    pub claims: u32,
    /// Claims that failed.
    pub failures: Vec<String>,
}

impl Report {
    /// An act that could not be played to its end.
    pub fn broken(act: &Act, error: &anyhow::Error) -> Self {
        Self {
            title: super::named(act).to_owned(),
            cure: "—".to_owned(),
            failures: vec![format!("{error:#}")],
            ..Self::default()
        }
    }

    fn claim(&mut self, what: &str, result: Result<()>) {
        self.claims += 1;
        match result {
            Ok(()) => self.notes.push(what.to_owned()),
            Err(error) => self.failures.push(format!("{what}: {error:#}")),
        }
    }
}

impl Act {
    /// Plays it on the stage.
    ///
    /// # Errors
    /// When the node does not heal at all.
    pub fn play(&self, stage: &Stage) -> Result<Report> {
        let before = stage.workloads()?;
        match self.depth {
            Depth::Everything => self.play_restart(stage, &before),
            Depth::Roles | Depth::Keepers => self.play_survival(stage, &before),
        }
    }

    fn play_survival(&self, stage: &Stage, before: &Workloads) -> Result<Report> {
        let mut traffic = stage.traffic()?;
        let others = if self.depth == Depth::Keepers { stage.monitors()? } else { Vec::new() };
        let mut healing = stage.strike(&mut traffic, self.roles, &others)?;
        // Some traffic over the healed node belongs to the count.
        poll::rest(Duration::from_millis(300));
        healing.ping = traffic.ping.report()?;
        let mut report = self.report(stage, before, &healing.before, &healing.after)?;
        report.healed = healing.healed;
        report.pings = Some((healing.ping.lost, healing.ping.sent));
        report.outage_ms = healing.ping.outage_ms;
        report.http = Some((healing.http.failed, healing.http.failed + healing.http.answered));
        report.claim(
            "every workload on the process it was on, at its address",
            check_untouched(before, &stage.workloads()?),
        );
        report.claim("only what was killed was replaced", self.check_replaced(&healing));
        if self.depth == Depth::Roles {
            report.claim("no ping lost", check_none_lost(&healing));
        }
        let moved = traffic.stream.await_progress(HEAL_DEADLINE);
        report.claim(
            "the open TCP stream went on, in order, nothing lost",
            moved.and_then(|()| traffic.stream.finish(HEAL_DEADLINE)).map(drop),
        );
        report.claim("the published port answers", traffic.http.await_answers(3, HEAL_DEADLINE));
        report.claim("tenants still isolated, tried by packets", stage.check_reach());
        Ok(report)
    }

    fn play_restart(&self, stage: &Stage, before: &Workloads) -> Result<Report> {
        let old = stage.node.await_processes("the node to be whole", HEAL_DEADLINE, |_| true)?;
        let mut victims: Vec<Process> = old.all().to_vec();
        victims.extend(before.values().flat_map(|container| [container.monitor, container.init]).flatten());
        let started = Instant::now();
        process::kill_all(&victims)?;
        let new = stage.node.await_processes("the node to come back", HEAL_DEADLINE, |_| true)?;
        let after = poll::until("every workload to be restarted", HEAL_DEADLINE, || {
            let now = stage.workloads()?;
            Ok(before.iter().all(|(name, was)| now[name].init != was.init).then_some(now))
        })?;
        let healed = started.elapsed();
        let mut report = self.report(stage, before, &old, &new)?;
        report.healed = healed;
        report.claim("every workload back at its address", check_addresses(before, &after));
        report.claim(
            "both pod members share one network again, and tenants are still isolated",
            stage.check_reach(),
        );
        let address = stage.published.context("nothing is published")?;
        let answered = poll::until("the published port to answer", HEAL_DEADLINE, || {
            Ok(http_get(address, Duration::from_secs(1)).is_ok().then_some(()))
        });
        report.claim("the published port answers", answered);
        Ok(report)
    }

    fn report(&self, stage: &Stage, before: &Workloads, old: &Processes, new: &Processes) -> Result<Report> {
        let after = stage.workloads()?;
        let cures: std::collections::BTreeSet<&str> =
            after.values().map(|container| container.last_cure.as_deref().unwrap_or("untouched")).collect();
        let restarts =
            |workloads: &Workloads| workloads.values().map(|container| container.restarts).sum::<u64>();
        Ok(Report {
            title: self.title.to_owned(),
            processes: Some((*old, *new)),
            workloads: after.iter().map(|(name, is)| (name.clone(), before[name].init, is.init)).collect(),
            cure: self.cure(&cures),
            restarts: restarts(&after).saturating_sub(restarts(before)),
            ..Report::default()
        })
    }

    /// The node keeps the last cure of a workload that needed one; an act that needs none keeps an older one.
    fn cure(&self, told: &std::collections::BTreeSet<&str>) -> String {
        if self.depth == Depth::Roles && !self.roles.contains(&Role::Pin) {
            return "none needed".to_owned();
        }
        told.iter().copied().collect::<Vec<_>>().join(", ")
    }

    fn check_replaced(&self, healing: &Healing) -> Result<()> {
        for role in Role::ALL {
            let (was, is) = (healing.before.get(role), healing.after.get(role));
            let killed = self.roles.contains(&role);
            ensure!(killed == (was != is), "{} was pid {was}, is pid {is}", role.name());
        }
        Ok(())
    }
}

fn check_none_lost(healing: &Healing) -> Result<()> {
    ensure!(healing.ping.lost == 0, "{} of {} lost", healing.ping.lost, healing.ping.sent);
    ensure!(healing.router_kept, "the router was replaced");
    Ok(())
}
