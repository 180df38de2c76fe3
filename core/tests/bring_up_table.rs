//! Every combination of what can be alive, against the case and the cures it must lead to.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use holdfast_core::{
    bring_up::{BringUpPlan, Case, plan_bring_up},
    cure::Cure,
    id::SandboxId,
    observed::{ContainerObserved, ControlObserved, ExitObserved, Keeper, Observed, UplinkObserved},
    plan::Step,
    record::{Change, NamespaceId, Records, RunState},
    spec::RestartPolicy,
    time::Mono,
};
use support::*;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Control {
    Answering,
    Foreign,
    Silent,
    Absent,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    None,
    Descriptors,
    Control,
    Monitor,
    UplinkOnly,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Uplink {
    Serving,
    Broken,
    Absent,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Alive {
    pin: bool,
    control: Control,
    way: Way,
    uplink: Uplink,
    containers: u8,
}

/// A single container and a pod of two.
fn three() -> Records {
    let mut records = node();
    add_container(&mut records, &request("web"), 1);
    add_pod(&mut records, "duo", "other", 2);
    for (name, seed) in [("left", 3), ("right", 4)] {
        let mut member = request(name);
        member.pod = Some("duo".into());
        add_container(&mut records, &member, seed);
    }
    records
}

fn observe(records: &Records, alive: Alive) -> Observed {
    let mut observed = whole(records);
    let keepers = &mut observed.keepers;
    keepers.control = match alive.control {
        Control::Answering => ControlObserved::Answering(process(11)),
        Control::Foreign => ControlObserved::Foreign(process(13), "another build".into()),
        Control::Silent => ControlObserved::Silent(Some(process(11))),
        Control::Absent => ControlObserved::Absent,
    };
    if !alive.pin {
        keepers.pin = None;
        keepers.keepers.extend(match alive.way {
            Way::None => vec![],
            Way::Descriptors => vec![keeper(Keeper::Descriptors, true, true, true)],
            Way::Control => vec![keeper(Keeper::Control(process(11)), true, true, true)],
            Way::Monitor => {
                let id = records.containers.keys().next().unwrap().clone();
                vec![keeper(Keeper::Monitor(id, process(101)), true, true, true)]
            }
            Way::UplinkOnly => vec![keeper(Keeper::Uplink(process(12)), true, true, false)],
        });
    }
    observed.uplink = match alive.uplink {
        Uplink::Serving => observed.uplink,
        Uplink::Broken => UplinkObserved::Broken(process(12), "does not answer".into()),
        Uplink::Absent => UplinkObserved::Absent,
    };
    if alive.control != Control::Answering {
        observed.router = None;
    }
    for (number, seen) in (0_u8..).zip(observed.containers.values_mut()) {
        if alive.containers & (1 << number) == 0 {
            (seen.init, seen.netns, seen.monitor) = (None, None, None);
        } else if !alive.pin && alive.way == Way::None {
            let (id, process) =
                (records.containers.keys().nth(number.into()).unwrap(), seen.init.clone().unwrap());
            observed.keepers.keepers.push(keeper(Keeper::Workload(id.clone(), process), true, false, false));
        }
    }
    observed
}

/// What is alive, in all combinations that the kernel allows.
fn all() -> Vec<Alive> {
    let mut all = vec![];
    for pin in [true, false] {
        for control in [Control::Answering, Control::Foreign, Control::Silent, Control::Absent] {
            for way in [Way::None, Way::Descriptors, Way::Control, Way::Monitor, Way::UplinkOnly] {
                for uplink in [Uplink::Serving, Uplink::Broken, Uplink::Absent] {
                    for containers in 0..8 {
                        all.push(Alive { pin, control, way, uplink, containers });
                    }
                }
            }
        }
    }
    all
}

fn plan(records: &Records, observed: &Observed) -> BringUpPlan {
    plan_bring_up(observed, records, WALL, &none_busy())
}

#[test]
fn the_case_follows_from_what_is_alive() {
    let records = three();
    for alive in all() {
        let observed = observe(&records, alive);
        let expected = match alive {
            Alive { pin: true, control: Control::Answering, .. } => Case::Nothing,
            Alive { pin: true, .. } => Case::Control,
            Alive { way, .. } if way != Way::None => Case::Adopt,
            Alive { containers, .. } if containers != 0 => Case::Replug,
            _ => Case::Rebuild,
        };
        assert_eq!(plan(&records, &observed).case, expected, "{alive:?}");
    }
}

#[test]
fn no_plan_ends_a_living_process_that_is_not_the_nodes_own() {
    let records = three();
    for alive in all() {
        let plan = plan(&records, &observe(&records, alive));
        let steps: Vec<&Step> =
            plan.node.iter().chain(plan.work.iter().flat_map(|work| &work.steps)).collect();
        for step in steps {
            assert!(!matches!(step, Step::StopContainer { .. } | Step::StopPin(_)), "{alive:?}: {step}");
            if let Step::StopControl(_) = step {
                let replaced = alive.control != Control::Answering || !alive.pin && alive.way == Way::None;
                assert!(replaced && alive.control != Control::Absent, "{alive:?}: {step}");
            }
            if let Step::StartContainer(start) = step {
                let number = records.containers.keys().position(|id| *id == start.id).unwrap();
                assert_eq!(alive.containers & (1 << number), 0, "{alive:?}: a living container is started");
            }
        }
    }
}

#[test]
fn each_sandbox_gets_the_mildest_cure_that_makes_it_whole() {
    let records = three();
    for alive in all() {
        let observed = observe(&records, alive);
        let plan = plan(&records, &observed);
        for sandbox in records.sandboxes.values() {
            let members: Vec<bool> = records
                .containers
                .values()
                .enumerate()
                .filter(|(_, container)| container.sandbox == sandbox.id)
                .map(|(number, _)| alive.containers & (1 << number) != 0)
                .collect();
            let all_alive = members.iter().all(|alive| *alive);
            let known = matches!(plan.case, Case::Replug | Case::Rebuild) || observed.router.is_some();
            let survived = if plan.case == Case::Adopt { Cure::Adopted } else { Cure::Untouched };
            let expected = match plan.case {
                // What is not looked at yet is not restarted.
                _ if !known => survived,
                _ if !all_alive => Cure::Restarted,
                Case::Replug => Cure::Replugged,
                _ => survived,
            };
            assert_eq!(plan.cures[&sandbox.id], expected, "{alive:?} {}", sandbox.name);
        }
    }
}

#[test]
fn a_router_that_must_be_looked_into_is_looked_into_again() {
    let records = three();
    for alive in all() {
        let plan = plan(&records, &observe(&records, alive));
        let expected = matches!(plan.case, Case::Nothing | Case::Control | Case::Adopt)
            && alive.control != Control::Answering;
        assert_eq!(plan.look_again, expected, "{alive:?}");
        assert!(!plan.look_again || plan.work.is_empty(), "{alive:?}: decides about what it did not see");
    }
}

#[test]
fn rules_come_before_links_and_the_namespaces_before_both() {
    let records = three();
    for alive in all() {
        let plan = plan(&records, &observe(&records, alive));
        let order: Vec<u8> =
            plan.node.iter().chain(plan.work.iter().flat_map(|work| &work.steps)).map(rank).collect();
        let node = &order[..plan.node.len()];
        assert!(node.is_sorted(), "{alive:?}: {}", steps_text(&plan.node));
        for work in &plan.work {
            let ranks: Vec<u8> = work.steps.iter().map(rank).filter(|rank| *rank < 20).collect();
            assert!(ranks.is_sorted(), "{alive:?}: {}", steps_text(&work.steps));
        }
    }
}

fn rank(step: &Step) -> u8 {
    match step {
        Step::CreateNamespaces | Step::AdoptNamespaces(_) | Step::EnterUserNamespace(_) => 0,
        Step::StopControl(_) => 1,
        Step::StartControl => 2,
        Step::EnsureRuleset(_) | Step::AddElements(_) => 3,
        Step::EnsureNetwork(_) => 4,
        Step::StopUplink(_) => 5,
        Step::StartUplink => 6,
        Step::EnsureSandbox(_) => 7,
        Step::Attach(_) => 8,
        Step::Publish(_) => 9,
        Step::CleanContainer(..) => 20,
        Step::StartContainer(_) => 10,
        _ => 21,
    }
}

#[test]
fn a_whole_node_needs_nothing() {
    let records = three();
    let plan = plan(&records, &whole(&records));
    assert!(plan.is_idle(), "{plan:?}");
    assert!(plan.cures.values().all(|cure| *cure == Cure::Untouched));
}

#[test]
fn plans_read_as_step_lists() {
    let records = three();
    let named = [
        (
            "nothing, uplink dead",
            Alive {
                pin: true,
                control: Control::Answering,
                way: Way::None,
                uplink: Uplink::Absent,
                containers: 7,
            },
        ),
        (
            "control dead",
            Alive {
                pin: true,
                control: Control::Absent,
                way: Way::None,
                uplink: Uplink::Serving,
                containers: 7,
            },
        ),
        (
            "adopt through the daemon's descriptors, control dead",
            Alive {
                pin: false,
                control: Control::Absent,
                way: Way::Descriptors,
                uplink: Uplink::Absent,
                containers: 7,
            },
        ),
        (
            "adopt through the uplink's tap",
            Alive {
                pin: false,
                control: Control::Absent,
                way: Way::UplinkOnly,
                uplink: Uplink::Serving,
                containers: 7,
            },
        ),
        (
            "replug",
            Alive {
                pin: false,
                control: Control::Absent,
                way: Way::None,
                uplink: Uplink::Absent,
                containers: 7,
            },
        ),
        (
            "replug one, restart the rest",
            Alive {
                pin: false,
                control: Control::Absent,
                way: Way::None,
                uplink: Uplink::Absent,
                containers: 1,
            },
        ),
        (
            "rebuild",
            Alive {
                pin: false,
                control: Control::Absent,
                way: Way::None,
                uplink: Uplink::Absent,
                containers: 0,
            },
        ),
    ];
    let mut text = String::new();
    for (name, alive) in named {
        let plan = plan(&records, &observe(&records, alive));
        text.push_str(&format!(
            "# {name}: case {}{}\n",
            plan.case,
            if plan.look_again { ", then look again" } else { "" }
        ));
        text.push_str(&steps_text(&plan.node));
        for work in &plan.work {
            text.push_str(&format!("  [{}: {}]\n", work.name, work.cure));
            text.push_str(&work.steps.iter().map(|step| format!("  {step}\n")).collect::<String>());
        }
        text.push('\n');
    }
    insta::assert_snapshot!(text);
}

fn seen<'a>(observed: &'a mut Observed, records: &Records, name: &str) -> &'a mut ContainerObserved {
    let id = &records.containers.values().find(|container| container.name == name).unwrap().id;
    observed.containers.get_mut(id).unwrap()
}

fn die(observed: &mut Observed, records: &Records, name: &str, exit: Option<i32>) {
    let seen = seen(observed, records, name);
    (seen.init, seen.netns, seen.monitor) = (None, None, None);
    seen.exit = exit.map(|code| ExitObserved { code: Some(code) });
}

fn sandbox_of(records: &Records, name: &str) -> SandboxId {
    records.containers.values().find(|container| container.name == name).unwrap().sandbox.clone()
}

fn started(plan: &BringUpPlan) -> Vec<String> {
    let steps = plan.work.iter().flat_map(|work| &work.steps);
    steps
        .filter_map(|step| match step {
            Step::StartContainer(start) => Some(start.name.clone()),
            _ => None,
        })
        .collect()
}

#[test]
fn an_end_of_its_own_is_for_the_restart_policy_to_judge() {
    for (policy, code, again) in [
        (RestartPolicy::No, 0, false),
        (RestartPolicy::No, 1, false),
        (RestartPolicy::No, 137, false),
        (RestartPolicy::Always, 0, true),
        (RestartPolicy::UnlessStopped, 137, true),
        (RestartPolicy::OnFailure { retries_max: None }, 0, false),
        (RestartPolicy::OnFailure { retries_max: None }, 3, true),
        (RestartPolicy::OnFailure { retries_max: Some(0) }, 3, false),
        (RestartPolicy::OnFailure { retries_max: Some(1) }, 3, true),
    ] {
        let mut records = node();
        let mut wanted = request("web");
        wanted.restart = policy;
        let id = add_container(&mut records, &wanted, 1);
        let mut observed = whole(&records);
        die(&mut observed, &records, "web", Some(code));
        let plan = plan(&records, &observed);
        let Some(Change::Container(settled)) = plan.settle.first() else {
            panic!("{policy} {code}: nothing settled")
        };
        match &settled.state {
            RunState::Waiting { exit_code, not_before, .. } => {
                assert!(again, "{policy} {code}");
                assert_eq!((*exit_code, *not_before > NOW), (Some(code), true), "{policy} {code}");
                assert_eq!(plan.next_due, Some(*not_before), "{policy} {code}");
                assert!(started(&plan).is_empty(), "{policy} {code}: the back-off is skipped");
            }
            RunState::Exited { exit_code, .. } => {
                assert_eq!((again, *exit_code), (false, Some(code)), "{policy} {code}")
            }
            other => panic!("{policy} {code}: {other:?} of {id}"),
        }
    }
}

#[test]
fn a_container_that_ended_for_good_leaves_no_link_and_keeps_its_address() {
    let mut records = node();
    add_container(&mut records, &request("web"), 1);
    let mut observed = whole(&records);
    die(&mut observed, &records, "web", Some(0));
    let plan = plan(&records, &observed);
    let steps = &plan.work.first().unwrap().steps;
    assert!(steps.iter().any(|step| matches!(step, Step::Detach(_))), "{}", steps_text(steps));
    assert!(steps.iter().any(|step| matches!(step, Step::RemoveSandbox(_))), "{}", steps_text(steps));
    assert!(plan.cures.is_empty(), "it is not to run: it has no cure");
    assert_eq!(records.sandboxes.values().next().unwrap().attachments.len(), 1);
}

#[test]
fn a_death_without_a_witness_is_a_loss_and_cured_by_restart_whatever_the_policy() {
    let records = three();
    let mut observed = whole(&records);
    die(&mut observed, &records, "left", None);
    let plan = plan(&records, &observed);
    assert_eq!(started(&plan), ["left"]);
    assert_eq!(plan.cures[&sandbox_of(&records, "left")], Cure::Restarted);
    assert_eq!(plan.cures[&sandbox_of(&records, "web")], Cure::Untouched);
    let steps = &plan.work.first().unwrap().steps;
    assert!(
        !steps.iter().any(|step| matches!(step, Step::RemoveSandbox(_) | Step::EnsureSandbox(_))),
        "peers are disturbed"
    );
}

#[test]
fn signals_that_came_with_the_end_of_the_node_are_no_ends_of_their_own() {
    let records = three();
    for code in [137, 143] {
        let mut observed = nothing_alive(&records);
        die(&mut observed, &records, "web", Some(code));
        let plan = plan(&records, &observed);
        assert_eq!(started(&plan).len(), 3, "exit {code}");
    }
    let mut observed = nothing_alive(&records);
    die(&mut observed, &records, "web", Some(1));
    assert_eq!(started(&plan(&records, &observed)).len(), 2, "exit 1 was its own");
}

#[test]
fn a_container_started_since_the_observation_is_left_alone() {
    let mut records = node();
    let id = add_container(&mut records, &request("web"), 1);
    let mut observed = whole(&records);
    // Looked at while its start was still under way …
    let seen = observed.containers.get_mut(&id).unwrap();
    (seen.init, seen.netns, seen.monitor) = (None, None, None);
    seen.basis.as_mut().unwrap().init = None;
    observed.router.as_mut().unwrap().sandboxes.clear();
    // … which has ended by now.
    let plan = plan(&records, &observed);
    assert!(plan.work.is_empty() && plan.settle.is_empty(), "{plan:?}");
}

#[test]
fn a_bind_of_a_namespace_in_which_no_member_lives_is_replaced() {
    let records = three();
    let mut observed = whole(&records);
    let sandbox = sandbox_of(&records, "left");
    observed.router.as_mut().unwrap().sandboxes.insert(sandbox.clone(), NamespaceId(77));
    let plan = plan(&records, &observed);
    let work = plan.work.iter().find(|work| work.sandbox == sandbox).unwrap();
    assert!(
        work.steps.iter().any(|step| matches!(step, Step::EnsureSandbox(plan) if plan.rebind.is_some())),
        "{}",
        steps_text(&work.steps)
    );
}

#[test]
fn what_no_record_speaks_of_is_removed_from_the_router() {
    let mut records = three();
    let router = whole_router(&records);
    let mut observed = whole(&records);
    let gone = sandbox_of(&records, "web");
    let web = records.containers.values().find(|container| container.name == "web").unwrap().id.clone();
    records.apply(Change::RemoveContainer(web.clone()));
    records.apply(Change::RemoveSandbox(gone.clone()));
    observed.containers.remove(&web);
    observed.router = Some(router);
    let plan = plan(&records, &observed);
    let text = steps_text(&plan.node);
    assert!(text.contains("ensure ruleset") && text.contains("detach slot 1"), "{text}");
    assert!(text.contains(&format!("remove sandbox {gone}")), "{text}");
}

#[test]
fn a_missing_port_is_published_and_a_strange_one_taken_back() {
    let mut records = node();
    let mut wanted = request("web");
    wanted.ports = vec![holdfast_core::spec::PortSpec {
        host_address: address("127.0.0.1"),
        host_port: 8080,
        target_port: 80,
        protocol: holdfast_core::spec::Protocol::Tcp,
    }];
    add_container(&mut records, &wanted, 1);
    let own = records.sandboxes.values().next().unwrap().ports[0];
    let mut strange = own;
    strange.spec.host_port = 9090;
    let mut observed = whole(&records);
    observed.uplink = UplinkObserved::Serving { process: process(12), ports: [strange].into() };
    let plan = plan(&records, &observed);
    assert_eq!(plan.node, [Step::Unpublish(strange)]);
    assert_eq!(plan.work[0].steps, [Step::Publish(own)]);
    assert_eq!(plan.work[0].cure, Cure::Untouched);
    // A helper never learns the container's port: what it reports of it does not matter.
    let mut reported = own;
    reported.spec.target_port = 0;
    observed.uplink = UplinkObserved::Serving { process: process(12), ports: [reported].into() };
    assert!(plan_bring_up(&observed, &records, WALL, &none_busy()).is_idle());
}

#[test]
fn what_an_open_operation_works_on_is_left_to_it() {
    let records = three();
    let mut observed = whole(&records);
    die(&mut observed, &records, "web", None);
    die(&mut observed, &records, "left", None);
    let busy = [holdfast_core::journal::Subject::Sandbox(sandbox_of(&records, "web"))].into();
    let plan = plan_bring_up(&observed, &records, WALL, &busy);
    assert_eq!(started(&plan), ["left"]);
}

#[test]
fn a_restart_held_back_is_due_at_once_in_another_boot() {
    let mut records = node();
    let id = add_container(&mut records, &request("web"), 1);
    let mut record = records.containers[&id].clone();
    record.state = RunState::Waiting { exit_code: Some(1), not_before: Mono(u64::MAX), boot_id: boot() };
    records.apply(Change::Container(record.clone()));
    let mut observed = whole(&records);
    assert!(started(&plan(&records, &observed)).is_empty());
    observed.boot_id = holdfast_core::id::BootId::from_raw("boot-2");
    assert_eq!(started(&plan(&records, &observed)), ["web"]);
}

#[test]
fn a_monitor_that_has_not_spoken_yet_is_waited_for() {
    let mut records = node();
    add_container(&mut records, &request("web"), 1);
    let mut observed = whole(&records);
    let seen = seen(&mut observed, &records, "web");
    (seen.init, seen.netns) = (None, None);
    let plan = plan(&records, &observed);
    assert!(plan.work.is_empty() && plan.settle.is_empty(), "{plan:?}");
    assert!(plan.next_due.is_some_and(|due| due > NOW), "nobody looks again");
}

#[test]
fn an_end_that_nobody_could_read_is_a_loss() {
    let records = three();
    let mut observed = whole(&records);
    die(&mut observed, &records, "web", None);
    seen(&mut observed, &records, "web").exit = Some(ExitObserved { code: None });
    assert_eq!(started(&plan(&records, &observed)), ["web"]);
}

#[test]
fn who_waits_or_cannot_be_started_is_named_as_not_whole() {
    let mut records = three();
    let set = |records: &mut Records, name: &str, state: RunState| {
        let mut record = records.containers.values().find(|it| it.name == name).unwrap().clone();
        record.state = state;
        records.apply(Change::Container(record));
    };
    set(&mut records, "web", RunState::Failed { cause: "no such command".into(), at: WALL });
    let held = RunState::Waiting { exit_code: Some(3), not_before: Mono(u64::MAX), boot_id: boot() };
    set(&mut records, "left", held);
    let plan = plan(&records, &whole(&records));
    let causes: Vec<&str> = plan.unwhole.values().map(String::as_str).collect();
    assert_eq!(causes.len(), 2, "{causes:?}");
    assert!(
        causes.iter().any(|cause| cause.contains("web") && cause.contains("no such command")),
        "{causes:?}"
    );
    assert!(
        causes.iter().any(|cause| cause.contains("left") && cause.contains("ended with 3")),
        "{causes:?}"
    );
}
