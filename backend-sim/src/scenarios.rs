//! Named histories without faults, for sweeps that put a kill at every call.

mod networks;

use crate::{
    fault::{At, Fault, FaultKind, FaultPlan, Side, Victim},
    history::{Action, History, request},
};
use holdfast_core::{
    error::Class,
    ops::request::{NetworkRequest, PodRequest, RunRequest},
    spec::{NetworkSpec, PortSpec, Protocol, RestartPolicy},
};
use std::net::Ipv4Addr;

/// A published port.
pub fn port(host_port: u16) -> PortSpec {
    PortSpec { host_address: Ipv4Addr::UNSPECIFIED, host_port, target_port: 80, protocol: Protocol::Tcp }
}

/// Bystanders of every kind: a published port, a pod with two members in another tenant, a second network, a
/// container that is stopped.
pub fn bystanders() -> Vec<Action> {
    let back = NetworkRequest { name: "back".to_owned(), ..NetworkRequest::default() };
    let web = RunRequest { ports: vec![port(18_080)], restart: RestartPolicy::Always, ..request("web") };
    let db = RunRequest { networks: vec!["back".to_owned()], ..request("db") };
    let pod = PodRequest {
        name: "shop".to_owned(),
        tenant: Some("blue".to_owned()),
        ports: vec![port(18_081)],
        ..PodRequest::default()
    };
    let cart = RunRequest { pod: Some("shop".to_owned()), restart: RestartPolicy::Always, ..request("cart") };
    vec![
        Action::CreateNetwork(back),
        Action::Run(Box::new(web)),
        Action::Run(Box::new(db)),
        Action::CreatePod(pod),
        Action::Run(Box::new(cart)),
        Action::run_in("shop", "till"),
        Action::run("idle"),
        Action::Stop("idle".to_owned()),
    ]
}

fn scenario(name: &str, more: Vec<Action>, act: Vec<Action>) -> History {
    let mut prepare = bystanders();
    prepare.extend(more);
    History { name: name.to_owned(), prepare, lanes: vec![act], ..History::default() }
}

fn outage(name: &str, who: &[Victim]) -> History {
    let outage = if who.is_empty() { Vec::new() } else { vec![FaultKind::Kill { who: who.to_vec() }] };
    History { outage, ..scenario(name, Vec::new(), vec![Action::BringUp]) }
}

/// Every scenario.
pub fn all() -> Vec<History> {
    let own = |name: &str| name.to_owned();
    let published = RunRequest { ports: vec![port(18_090)], ..request("one") };
    let run = Action::Run(Box::new(published));
    let pod = Action::CreatePod(PodRequest {
        name: own("pair"),
        ports: vec![port(18_091)],
        ..PodRequest::default()
    });
    let network = Action::CreateNetwork(NetworkRequest { name: own("side"), ..NetworkRequest::default() });
    let members = vec![pod.clone(), Action::run_in("pair", "left"), Action::run_in("pair", "right")];
    let own = vec![
        scenario("run", Vec::new(), vec![run.clone()]),
        scenario("stop", vec![run.clone()], vec![Action::Stop(own("one"))]),
        scenario("start", vec![run.clone(), Action::Stop(own("one"))], vec![Action::Start(own("one"))]),
        scenario("restart", vec![run.clone()], vec![Action::Restart(own("one"))]),
        scenario("remove", vec![run.clone()], vec![Action::Remove(own("one"))]),
        scenario("pod create and two members", Vec::new(), members.clone()),
        scenario("member restart", members.clone(), vec![Action::Restart(own("left"))]),
        scenario("member remove", members.clone(), vec![Action::Remove(own("left"))]),
        scenario("pod remove", members, vec![Action::RemovePod(own("pair"))]),
        scenario("network create", Vec::new(), vec![network.clone()]),
        scenario("network remove", vec![network], vec![Action::RemoveNetwork(own("side"))]),
        outage("bring-up: nothing", &[]),
        outage("bring-up: control", &[Victim::Control]),
        outage("bring-up: uplink", &[Victim::Uplink]),
        outage("bring-up: adopt", &[Victim::Pin, Victim::Control]),
        outage(
            "bring-up: adopt through a monitor",
            &[Victim::Daemon, Victim::Pin, Victim::Control, Victim::Uplink, Victim::Monitor(own("web"))],
        ),
        outage("bring-up: replug", &Victim::KEEPERS),
        outage("bring-up: rebuild", &Victim::EVERYTHING),
        History {
            outage: vec![FaultKind::PowerLoss],
            ..scenario("bring-up: power loss", Vec::new(), vec![Action::BringUp])
        },
        mixed(),
        gone_with_its_end("run --rm that ends", Action::Strike(exit_of("brief"))),
        gone_with_its_end("run --rm that is stopped", Action::Stop(own("brief"))),
    ];
    own.into_iter().chain(networks::all()).collect()
}

fn exit_of(container: &str) -> FaultKind {
    FaultKind::Exit { container: container.to_owned(), code: 3 }
}

/// A container whose end removes it, and the name is free again.
fn gone_with_its_end(name: &str, end: Action) -> History {
    let brief = Action::Run(Box::new(RunRequest { remove_on_exit: true, ..request("brief") }));
    let again = brief.clone();
    scenario(name, Vec::new(), vec![brief, end, Action::BringUp, again])
}

/// Some workloads live and some do not: each gets the mildest cure.
fn mixed() -> History {
    let mut who = vec![Victim::Monitors, Victim::Init("web".to_owned()), Victim::Init("cart".to_owned())];
    who.extend([Victim::Daemon, Victim::Pin, Victim::Control, Victim::Uplink]);
    outage("bring-up: replug and restart", &who)
}

/// More than one scenario of all needs: a workload on two networks, one on a network without a way out, and a run that
/// fails beside a repair of the rules, at many speeds.
pub fn more() -> Vec<History> {
    let on = |name: &str, networks: &[&str]| {
        let networks = networks.iter().map(|network| (*network).to_owned()).collect();
        Action::Run(Box::new(RunRequest { networks, ..request(name) }))
    };
    let inner = Action::CreateNetwork(NetworkRequest {
        name: "inner".to_owned(),
        spec: NetworkSpec { internal: true, ..NetworkSpec::default() },
    });
    let mut more = vec![
        scenario("run on two networks", Vec::new(), vec![on("both", &["default", "back"])]),
        scenario("run on an internal network", vec![inner], vec![on("shut", &["inner"])]),
        scenario(
            "member stop",
            vec![Action::CreatePod(PodRequest { name: "pair".to_owned(), ..PodRequest::default() })]
                .into_iter()
                .chain([Action::run_in("pair", "left"), Action::run_in("pair", "right")])
                .collect(),
            vec![Action::Stop("left".to_owned())],
        ),
    ];
    let no_pin = Action::Strike(FaultKind::Kill { who: vec![Victim::Pin] });
    let down_and_up = vec![no_pin, Action::TakeDown, Action::Up];
    more.push(scenario("down without a pin, and up", Vec::new(), down_and_up));
    more.extend((0..RACES).map(|seed| {
        let repair = vec![Action::Strike(FaultKind::FlushRules), Action::BringUp];
        let run = vec![Action::Run(Box::new(RunRequest { ports: vec![port(18_090)], ..request("one") }))];
        let name = format!("a run fails beside a repair, seed {seed}");
        let slow = fault("router.ensure_ruleset", FaultKind::Delay { by_ms: 50 });
        let plan = FaultPlan { faults: vec![slow, fault("containers.start", FAILS)] };
        History { seed, lanes: vec![repair, run], plan, ..scenario(&name, Vec::new(), Vec::new()) }
    }));
    more
}

/// How often a race is run.
const RACES: u64 = 16;

/// What a call that fails fails with.
const FAILS: FaultKind = FaultKind::Fail(Class::Transient);

/// A fault at the first call of this name.
fn fault(call: &str, kind: FaultKind) -> Fault {
    Fault {
        at: At::Named { call: call.to_owned(), subject: String::new(), nth: 0 },
        side: Side::Before,
        kind,
    }
}

/// Histories in which a request fails and something hinders its undo, for what a single fault does not show.
pub fn hindered() -> Vec<History> {
    let one = RunRequest { ports: vec![port(18_090)], ..request("one") };
    let hindered = |call: &str| History {
        plan: FaultPlan { faults: vec![fault("containers.start", FAILS), fault(call, FAILS)] },
        ..scenario(
            &format!("run fails, and so does the {call} of its undo"),
            Vec::new(),
            vec![Action::Run(Box::new(one.clone()))],
        )
    };
    ["containers.stop", "uplink.unpublish", "router.detach", "router.remove_sandbox"].map(hindered).into()
}
