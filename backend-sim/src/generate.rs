//! Random but valid histories, drawn whole before the first call. Work and faults are drawn from streams of
//! their own, so that a draw added to one shifts no other.

use crate::{
    fault::{At, Fault, FaultKind, FaultPlan, Side, Victim},
    history::{Action, History, request},
    profile::Profile,
    random::Stream,
    scenarios,
};
use holdfast_core::{
    error::Class,
    ops::request::{NetworkRequest, PodRequest, RunRequest},
    spec::RestartPolicy,
};

/// A lane's names are its own, so that what is told in one lane is not contradicted by another.
const LANES_MAX: u64 = 3;

/// The history of a seed under a profile.
pub fn history_of(seed: u64, _profile: &Profile) -> History {
    history(seed)
}

/// The history of a seed.
pub fn history(seed: u64) -> History {
    let mut work = Stream::of(seed, "workload");
    let mut faults = Stream::of(seed, "fault");
    let lanes = (0..=work.below(LANES_MAX)).map(|lane| draw_lane(&mut work, lane)).collect();
    History {
        name: format!("seed {seed}"),
        seed,
        fd_store: work.chance(30),
        stubborn: ["a0", "b1"].into_iter().filter(|_| work.chance(20)).map(str::to_owned).collect(),
        prepare: scenarios::bystanders(),
        lanes,
        plan: draw_plan(&mut faults),
        ..History::default()
    }
}

fn draw_lane(work: &mut Stream, lane: u64) -> Vec<Action> {
    let name = |kind: &str| format!("{kind}{lane}");
    let restart = [RestartPolicy::No, RestartPolicy::Always, RestartPolicy::UnlessStopped];
    let mut request_of = |kind: &str| RunRequest {
        tenant: Some(if lane == 0 { "blue" } else { "green" }.to_owned()),
        restart: restart.get(work.below(3) as usize).copied().unwrap_or_default(),
        ..request(&name(kind))
    };
    let first = RunRequest { ports: vec![scenarios::port(19_000 + lane as u16)], ..request_of("a") };
    let second = request_of("b");
    let member = RunRequest { pod: Some(name("pod")), tenant: None, ..request_of("m") };
    let pod = PodRequest { name: name("pod"), ..PodRequest::default() };
    let network = NetworkRequest { name: name("net"), ..NetworkRequest::default() };
    let all = [
        Action::Run(Box::new(first)),
        Action::Run(Box::new(second)),
        Action::CreatePod(pod),
        Action::Run(Box::new(member)),
        Action::Stop(name("a")),
        Action::Restart(name("a")),
        Action::Start(name("a")),
        Action::Remove(name("b")),
        Action::Restart(name("m")),
        Action::RemovePod(name("pod")),
        Action::CreateNetwork(network),
        Action::RemoveNetwork(name("net")),
        Action::BringUp,
    ];
    let count = 2 + work.below(6) as usize;
    // Mostly in an order that makes sense, now and then not: a refusal must be one.
    let mut at = 0;
    let mut lane = Vec::new();
    while lane.len() < count {
        at = if work.chance(15) { work.below(all.len() as u64) as usize } else { at % all.len() };
        lane.extend(all.get(at).cloned());
        at += 1 + work.below(2) as usize;
    }
    lane
}

fn draw_plan(faults: &mut Stream) -> FaultPlan {
    let count = faults.below(4);
    FaultPlan { faults: (0..count).map(|_| draw_fault(faults)).collect() }
}

fn draw_fault(faults: &mut Stream) -> Fault {
    let who = match faults.below(8) {
        0 => vec![Victim::Daemon],
        1 => vec![Victim::Pin],
        2 => vec![Victim::Control],
        3 => vec![Victim::Uplink],
        4 => vec![Victim::Daemon, Victim::Pin, Victim::Control],
        5 => Victim::KEEPERS.to_vec(),
        6 => Victim::EVERYTHING.to_vec(),
        _ => vec![Victim::Monitor("web".to_owned()), Victim::Daemon],
    };
    let kind = match faults.below(14) {
        0..=4 => FaultKind::Kill { who },
        5 => FaultKind::KillAndReusePid { who },
        6 => FaultKind::Fail(
            *faults.pick(&[Class::Transient, Class::Fatal, Class::Exhausted]).unwrap_or(&Class::Fatal),
        ),
        7 => FaultKind::Delay { by_ms: faults.below(2_000) },
        8 => FaultKind::WedgeControl,
        9 => FaultKind::WedgeUplink,
        10 => FaultKind::ForeignControl,
        11 => FaultKind::FlushRules,
        12 => FaultKind::PowerLoss,
        _ => FaultKind::Exit { container: "web".to_owned(), code: faults.below(3) as i32 },
    };
    let side = if faults.chance(50) { Side::Before } else { Side::After };
    // A read of records in memory cannot fail, and what a failed one would do is nobody's business.
    let at = match kind {
        FaultKind::Fail(_) => {
            let calls = [
                "router.attach",
                "router.add_elements",
                "containers.start",
                "uplink.publish",
                "keepers.observe",
            ];
            let call = faults.pick(&calls).copied().unwrap_or("router.attach").to_owned();
            At::Named { call, subject: String::new(), nth: faults.below(3) }
        }
        _ => At::Call { nth: faults.below(200) },
    };
    Fault { at, side, kind }
}
