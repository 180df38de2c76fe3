//! What is replayed: named histories, and drawn ones.

use anyhow::{Context as _, Result, anyhow};
use holdfast_core::{
    ops::request::{NetworkRequest, PodRequest, RootRequest, RunRequest},
    spec::{PortSpec, RestartPolicy},
};
use holdfast_sim::{
    fault::{FaultKind, Victim},
    generate,
    history::{Action, request},
    profile::Profile,
    random::Stream,
    scenarios,
};
use holdfast_tests::stage::{self, HOLD, Stage};
use std::collections::{BTreeMap, BTreeSet};

/// Drawn histories that are replayed when nobody says how many.
const SEEDS_DEFAULT: u64 = 2;
/// Actions of a drawn history, besides bystanders, kills and bring-ups.
const ACTIONS_MAX: usize = 9;

/// Steps, one after the other.
#[derive(Clone, Debug)]
pub struct History {
    /// Its name.
    pub name: String,
    /// Seed of the simulator.
    pub seed: u64,
    /// Containers that ignore every signal but SIGKILL.
    pub stubborn: BTreeSet<String>,
    /// The steps. A bring-up goes on until nothing is left to do.
    pub steps: Vec<Action>,
}

/// Every history: the named ones first.
///
/// # Errors
/// When the profile of the drawn ones cannot be read.
pub fn all() -> Result<Vec<History>> {
    let number = |name: &str, default| {
        std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(default)
    };
    let from = number("HOLDFAST_REPLAY_FROM", 0);
    let until = from.saturating_add(number("HOLDFAST_REPLAY_SEEDS", SEEDS_DEFAULT));
    let profile = profile()?;
    Ok(named().into_iter().chain((from..until).map(|seed| drawn(seed, &profile))).collect())
}

/// The history of a name.
///
/// # Errors
/// When there is none.
pub fn find(name: &str) -> Result<History> {
    match name.strip_prefix("seed_") {
        Some(seed) => Ok(drawn(seed.parse()?, &profile()?)),
        None => named().into_iter().find(|history| history.name == name).context("no such history"),
    }
}

/// The simulator's own profile of kills.
fn profile() -> Result<Profile> {
    Profile::load("kills").map_err(|sentence| anyhow!("{sentence}"))
}

fn kill(who: &[Victim]) -> Action {
    Action::Strike(FaultKind::Kill { who: who.to_vec() })
}

fn history(name: &str, acts: Vec<Action>) -> History {
    let mut steps = vec![Action::BringUp];
    steps.extend(scenarios::bystanders());
    // One that another may reach: none of the bystanders may.
    steps.push(Action::run("peer"));
    steps.extend(acts);
    History { name: name.to_owned(), seed: 0, stubborn: BTreeSet::new(), steps }
}

/// Kills, each followed by a bring-up.
fn outages(name: &str, outages: &[&[Victim]]) -> History {
    history(name, outages.iter().flat_map(|who| [kill(who), Action::BringUp]).collect())
}

fn own(name: &str) -> String {
    name.to_owned()
}

fn named() -> Vec<History> {
    use Victim::{Control, Daemon, Init, Monitor, Monitors, Pin, Uplink};
    let published = RunRequest { ports: vec![scenarios::port(18_090)], ..request("one") };
    let run = Action::Run(Box::new(published));
    let pod = PodRequest { name: own("pair"), ports: vec![scenarios::port(18_091)], ..PodRequest::default() };
    let network = NetworkRequest { name: own("side"), ..NetworkRequest::default() };
    let stubborn = RunRequest { stop_grace_ms: Some(300), ..request("deaf") };
    let exit = |name: &str, code| Action::Strike(FaultKind::Exit { container: own(name), code });
    let retrying =
        RunRequest { restart: RestartPolicy::OnFailure { retries_max: Some(2) }, ..request("trying") };
    vec![
        history(
            "requests",
            vec![
                run.clone(),
                run.clone(),
                Action::Stop(own("one")),
                Action::Stop(own("one")),
                Action::Start(own("one")),
                Action::Restart(own("one")),
                Action::Restart(own("nobody")),
                Action::CreatePod(pod),
                Action::run_in("pair", "left"),
                Action::run_in("pair", "right"),
                Action::Restart(own("left")),
                Action::Remove(own("left")),
                Action::CreateNetwork(network),
                Action::RemoveNetwork(own("back")),
                Action::RemoveNetwork(own("side")),
                Action::RemovePod(own("pair")),
                Action::BringUp,
            ],
        ),
        History {
            stubborn: [own("deaf")].into(),
            ..history(
                "ends",
                vec![
                    Action::Run(Box::new(stubborn)),
                    Action::Stop(own("deaf")),
                    exit("web", 1),
                    Action::BringUp,
                    exit("db", 2),
                    Action::BringUp,
                    Action::Run(Box::new(retrying)),
                    exit("trying", 1),
                    Action::BringUp,
                    exit("trying", 0),
                    Action::BringUp,
                    kill(&[Init(own("till"))]),
                    Action::BringUp,
                    kill(&[Monitor(own("cart")), Init(own("cart"))]),
                    Action::BringUp,
                ],
            )
        },
        outages("control_and_uplink", &[&[], &[Control], &[Uplink], &[Control, Uplink], &[Daemon]]),
        outages(
            "adopt",
            &[
                &[Pin],
                &[Pin, Control],
                &[Daemon, Pin],
                &[Daemon, Pin, Control],
                &[Daemon, Pin, Control, Uplink, Monitor(own("web"))],
                &[Daemon, Pin, Control, Monitors],
            ],
        ),
        history(
            "down_and_up",
            vec![
                Action::TakeDown,
                Action::BringUp,
                kill(&[Daemon]),
                Action::Up,
                kill(&[Pin, Control, Uplink]),
                Action::TakeDown,
                Action::Up,
            ],
        ),
        outages("replug", &[&Victim::KEEPERS, &[Pin, Control], &Victim::KEEPERS]),
        outages("rebuild", &[&Victim::EVERYTHING, &[Control], &Victim::EVERYTHING]),
        outages(
            "replug_and_restart",
            &[&[Monitors, Init(own("web")), Init(own("cart")), Daemon, Pin, Control, Uplink]],
        ),
        history(
            "wedged",
            vec![
                Action::Strike(FaultKind::WedgeUplink),
                Action::BringUp,
                Action::Strike(FaultKind::WedgeControl),
                Action::BringUp,
                Action::Strike(FaultKind::FlushRules),
                Action::BringUp,
            ],
        ),
        history(
            "requests_amid_outages",
            vec![
                run.clone(),
                kill(&[Uplink]),
                Action::Restart(own("one")),
                Action::BringUp,
                kill(&[Pin]),
                Action::Stop(own("one")),
                Action::run("late"),
                Action::BringUp,
                Action::Start(own("one")),
                Action::Remove(own("idle")),
                Action::BringUp,
            ],
        ),
    ]
}

/// Steps of a seed: its lanes one after the other, with kills between them, most of which are followed by a bring-up.
fn drawn(seed: u64, profile: &Profile) -> History {
    let whole = generate::history_of(seed, profile);
    let mut random = Stream::of(seed, "replay");
    let mut steps = vec![Action::BringUp];
    steps.extend(whole.prepare);
    let mut strikes: Vec<FaultKind> =
        whole.plan.faults.into_iter().map(|fault| fault.kind).filter(playable).collect();
    for action in whole.lanes.into_iter().flatten().take(ACTIONS_MAX) {
        steps.push(action);
        if random.chance(40) {
            let who = [
                vec![Victim::Daemon],
                vec![Victim::Pin],
                Victim::KEEPERS.to_vec(),
                Victim::EVERYTHING.to_vec(),
            ];
            let drawn = random.pick(&who).cloned().unwrap_or_default();
            steps.push(Action::Strike(strikes.pop().unwrap_or(FaultKind::Kill { who: drawn })));
            if random.chance(80) {
                steps.push(Action::BringUp);
            }
        }
    }
    // Also ends a `down` that was drawn.
    steps.push(Action::Up);
    // No workload ignores its signal here: a real one would use its whole grace.
    History { name: format!("seed_{seed}"), seed, stubborn: BTreeSet::new(), steps }
}

/// Whether a real node can suffer it between two steps.
fn playable(kind: &FaultKind) -> bool {
    matches!(
        kind,
        FaultKind::Kill { .. }
            | FaultKind::Exit { code: 0..=2, .. }
            | FaultKind::WedgeUplink
            | FaultKind::FlushRules
    )
}

impl History {
    /// The same with what a real node needs: a root that exists, a workload that handles its signals, ports that
    /// nobody has.
    pub fn fit(mut self, stage: &Stage) -> Result<Self> {
        let mut ports: BTreeMap<u16, u16> = BTreeMap::new();
        let mut free = |spec: &mut PortSpec| -> Result<()> {
            spec.host_port = match ports.get(&spec.host_port) {
                Some(port) => *port,
                None => {
                    let port = stage::free_port()?;
                    ports.insert(spec.host_port, port);
                    port
                }
            };
            Ok(())
        };
        for action in &mut self.steps {
            match action {
                Action::Run(request) => {
                    request.root = RootRequest::Rootfs(stage.root().display().to_string());
                    let deaf = request.name.as_ref().is_some_and(|name| self.stubborn.contains(name));
                    let argv: &[&str] = if deaf { &["/bin/sleep", "1000"] } else { &[HOLD] };
                    request.command = argv.iter().map(|&word| word.to_owned()).collect();
                    request.ports.iter_mut().try_for_each(&mut free)?;
                }
                Action::CreatePod(request) => request.ports.iter_mut().try_for_each(&mut free)?,
                _ => {}
            }
        }
        Ok(self)
    }
}

/// An action in a line.
pub fn describe(action: &Action) -> String {
    match action {
        Action::Run(request) => format!("run {}", request.name.as_deref().unwrap_or_default()),
        Action::CreatePod(request) => format!("create pod {}", request.name),
        Action::CreateNetwork(request) => format!("create network {}", request.name),
        other => format!("{other:?}"),
    }
}
