//! Networks of workloads that run.

use super::{port, scenario};
use crate::history::{Action, History, request};
use holdfast_core::{
    alloc_address::Wanted,
    ops::request::{ConnectRequest, NetworkRequest, PodRequest, RunRequest},
    spec::NetworkSpec,
};

fn connect(network: &str, workload: &str) -> Action {
    let request = ConnectRequest { workload: workload.to_owned(), addresses: Wanted::default() };
    Action::Connect(network.to_owned(), request)
}

fn disconnect(network: &str, workload: &str) -> Action {
    Action::Disconnect(network.to_owned(), workload.to_owned())
}

fn network(name: &str, spec: NetworkSpec) -> Action {
    Action::CreateNetwork(NetworkRequest { name: name.to_owned(), spec })
}

fn route(one: &str, other: &str) -> (Action, Action) {
    let (one, other) = (one.to_owned(), other.to_owned());
    (Action::AddRoute(one.clone(), other.clone()), Action::RemoveRoute(one, other))
}

/// Connect, disconnect, and routes, each to be interrupted at every call.
pub fn all() -> Vec<History> {
    let internal = NetworkSpec { internal: true, ..NetworkSpec::default() };
    let published = RunRequest { ports: vec![port(18_092)], ..request("one") };
    let run = Action::Run(Box::new(published));
    let pod = Action::CreatePod(PodRequest {
        name: "pair".to_owned(),
        ports: vec![port(18_093)],
        ..PodRequest::default()
    });
    let declared = Wanted { mac: Some([2, 0x42, 0, 0, 0, 1]), ..Wanted::default() };
    let declared = ConnectRequest { workload: "one".to_owned(), addresses: declared };
    let (route, unroute) = route("back", "default");
    let two = vec![run.clone(), connect("back", "one")];
    vec![
        scenario("connect", vec![run.clone()], vec![connect("back", "one")]),
        scenario("connect with addresses", vec![run.clone()], vec![Action::Connect("back".into(), declared)]),
        scenario(
            "connect a pod",
            vec![pod.clone(), Action::run_in("pair", "left")],
            vec![connect("back", "pair")],
        ),
        scenario("connect what is stopped", vec![], vec![connect("back", "idle")]),
        scenario("disconnect the primary network", two.clone(), vec![disconnect("default", "one")]),
        scenario("disconnect another network", two.clone(), vec![disconnect("back", "one")]),
        scenario(
            "disconnect a pod's last network",
            vec![
                Action::CreatePod(PodRequest { name: "bare".to_owned(), ..PodRequest::default() }),
                Action::run_in("bare", "left"),
            ],
            vec![disconnect("default", "bare"), connect("default", "bare")],
        ),
        scenario("replug several networks", two.clone(), vec![Action::BringUp]),
        scenario("remove what has several networks", two, vec![Action::Remove("one".to_owned())]),
        scenario(
            "an internal network first",
            vec![network("inner", internal)],
            vec![Action::Run(Box::new(RunRequest {
                networks: vec!["inner".to_owned(), "default".to_owned()],
                ports: vec![port(18_094)],
                ..request("both")
            }))],
        ),
        scenario("route", vec![run.clone()], vec![route.clone()]),
        scenario("unroute", vec![run, route], vec![unroute]),
    ]
}
