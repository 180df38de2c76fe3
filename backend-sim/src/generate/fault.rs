//! What strikes, where and when.

use super::{between, weighted};
use crate::{
    fault::{At, Fault, FaultKind, FaultPlan, Side, Victim},
    profile::Profile,
    random::Stream,
};
use holdfast_core::{error::Class, spec::Protocol};
use std::net::Ipv4Addr;

/// A kind of fault that profiles give a weight.
pub struct FaultOf {
    /// Its name, as profiles say it and marks do: the kind's, in snake case.
    pub name: &'static str,
    /// Where it can strike.
    at: Where,
    /// One of it.
    draw: fn(&mut FaultDraw<'_>) -> FaultKind,
}

/// Where a kind of fault can strike.
#[derive(Clone, Copy)]
enum Where {
    /// At any call, or by the clock.
    Anywhere,
    /// Only at a call, because it changes the call.
    Call,
    /// Only at a call that reaches out of the daemon and so can fail.
    Effect,
}

/// Every kind of fault that is drawn. A kind is added with a line here and a weight in a profile.
pub const FAULTS: &[FaultOf] = &[
    of("kill", Where::Anywhere, |draw| FaultKind::Kill { who: draw.victims() }),
    of("kill_and_reuse_pid", Where::Anywhere, |draw| FaultKind::KillAndReusePid { who: draw.victims() }),
    of("fail", Where::Effect, |draw| FaultKind::Fail(draw.class())),
    of("unknown", Where::Effect, |draw| FaultKind::Unknown { applied: draw.stream.chance(50) }),
    of("delay", Where::Call, |draw| FaultKind::Delay { by_ms: draw.stream.below(2_000) }),
    of("exit", Where::Anywhere, |draw| FaultKind::Exit {
        container: draw.container(),
        code: draw.stream.below(3) as i32,
    }),
    of("wedge_control", Where::Anywhere, |_| FaultKind::WedgeControl),
    of("wedge_uplink", Where::Anywhere, |_| FaultKind::WedgeUplink),
    of("foreign_control", Where::Anywhere, |_| FaultKind::ForeignControl),
    of("flush_rules", Where::Anywhere, |_| FaultKind::FlushRules),
    of("take_host_port", Where::Anywhere, |draw| FaultKind::TakeHostPort {
        address: Ipv4Addr::UNSPECIFIED,
        port: draw.port(),
        protocol: Protocol::Tcp,
    }),
    of("disk_full", Where::Anywhere, |_| FaultKind::DiskFull),
    of("disk_free", Where::Anywhere, |_| FaultKind::DiskFree),
    of("power_loss", Where::Anywhere, |_| FaultKind::PowerLoss),
];

const fn of(name: &'static str, at: Where, draw: fn(&mut FaultDraw<'_>) -> FaultKind) -> FaultOf {
    FaultOf { name, at, draw }
}

/// Calls that reach out of the daemon.
const EFFECTS: [&str; 17] = [
    "containers.clean",
    "containers.observe",
    "containers.remove_files",
    "containers.start",
    "containers.stop",
    "keepers.adopt",
    "keepers.create",
    "keepers.observe",
    "keepers.start_control",
    "router.add_elements",
    "router.attach",
    "router.detach",
    "router.observe",
    "uplink.observe",
    "uplink.publish",
    "uplink.start",
    "uplink.unpublish",
];

/// Where the particulars of a fault are drawn from.
pub struct FaultDraw<'a> {
    stream: &'a mut Stream,
    calls: u64,
}

impl FaultDraw<'_> {
    fn victims(&mut self) -> Vec<Victim> {
        match self.stream.below(9) {
            0 | 1 => vec![Victim::Daemon],
            2 => vec![Victim::Pin],
            3 => vec![Victim::Control],
            4 => vec![Victim::Uplink],
            5 => vec![Victim::Daemon, Victim::Pin, Victim::Control],
            6 => Victim::KEEPERS.to_vec(),
            7 => Victim::EVERYTHING.to_vec(),
            _ => vec![Victim::Monitor(self.container()), Victim::Daemon],
        }
    }

    fn class(&mut self) -> Class {
        *self.stream.pick(&[Class::Transient, Class::Fatal, Class::Exhausted]).unwrap_or(&Class::Fatal)
    }

    fn container(&mut self) -> String {
        self.stream.pick(&["web", "cart", "db", "a0", "m0"]).copied().unwrap_or("web").to_owned()
    }

    fn port(&mut self) -> u16 {
        self.stream.pick(&[18_080, 18_081, 19_000, 19_010]).copied().unwrap_or(18_080)
    }

    fn at(&mut self, at: Where) -> At {
        let nth = self.stream.below(self.calls);
        match (at, self.stream.below(10)) {
            (Where::Effect, _) => {
                let call = self.stream.pick(&EFFECTS).copied().unwrap_or("router.attach").to_owned();
                At::Named { call, subject: String::new(), nth: self.stream.below(4) }
            }
            // The preparation takes a few virtual milliseconds; a lane that waits for something takes seconds.
            (Where::Anywhere, 0) => At::Time { at_ms: 1 + self.stream.below(100) },
            // Early calls of the next daemon: it is hit while it cures. The first daemon prepared the node.
            (_, 1 | 2) => {
                At::Incarnation { daemon: 2 + self.stream.below(2) as u32, call: self.stream.below(40) }
            }
            _ => At::Call { nth },
        }
    }
}

/// The faults of a seed.
pub(super) fn draw_plan(stream: &mut Stream, profile: &Profile) -> FaultPlan {
    // Drawn for every kind there is, so that a kind added to a profile switches no other on or off.
    let on: Vec<(&FaultOf, u32)> = FAULTS
        .iter()
        .filter_map(|fault| {
            let off = stream.chance(u64::from(profile.kinds_off_percent));
            let weight = profile.faults.get(fault.name).copied().unwrap_or_default();
            (!off && weight > 0).then_some((fault, weight))
        })
        .collect();
    let count = between(stream, profile.faults_count);
    let mut draw = FaultDraw { stream, calls: u64::from(profile.faults_within_calls) };
    let faults = (0..count).map_while(|_| {
        let fault = weighted(draw.stream, &on)?;
        let kind = (fault.draw)(&mut draw);
        let side = if draw.stream.chance(50) { Side::Before } else { Side::After };
        let at = draw.at(fault.at);
        // A start that fails for good in a bring-up leaves a workload that is reported as failed, rightly; that the
        // node is whole afterwards, as is asked here, would be wrong.
        let for_good = |call: &str| call == "containers.start" && matches!(kind, FaultKind::Fail(_));
        let kind = match &at {
            At::Named { call, .. } if for_good(call) => FaultKind::Fail(Class::Transient),
            _ => kind,
        };
        Some(Fault { at, side, kind })
    });
    FaultPlan { faults: faults.collect() }
}
