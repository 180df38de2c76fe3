//! Pin, control, uplink and their protocol on the real kernel, as a user without privileges.
//!
//! Run as root it runs itself again as the user that `HOLDFAST_TEST_USER` names (default `holdfast`), who needs
//! ranges in /etc/subuid and /etc/subgid. An argument selects cases by a part of their name.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(
    clippy::disallowed_methods,
    reason = "its children end by process::exit, variables are set while no thread exists, its tools are short"
)]

mod control;
mod hands;
mod keepers;
mod node;
mod pin;
mod uplink;

use std::{
    ffi::OsString,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    process::{Command, ExitCode},
    time::Instant,
};

type Case = (&'static str, fn());

const CASES: &[Case] = &[
    ("pin_costs_nothing_and_ignores_signals", pin::costs_nothing_and_ignores_signals),
    ("pin_inherits_nothing", pin::inherits_nothing),
    ("pin_maps_subordinate_ids", pin::maps_subordinate_ids),
    ("pin_of_a_dead_daemon_does_not_stay", pin::of_a_dead_daemon_does_not_stay),
    ("pin_is_the_only_one", pin::is_the_only_one),
    ("pin_stop_is_exact_and_leaves_no_zombie", pin::stop_is_exact_and_leaves_no_zombie),
    ("adopt_by_descriptors_alone", keepers::adopt_by_descriptors_alone),
    ("adopt_by_control_alone", keepers::adopt_by_control_alone),
    ("adopt_by_monitor_alone", keepers::adopt_by_monitor_alone),
    ("adopt_by_bind_in_a_monitors_mounts", keepers::adopt_by_bind_in_a_monitors_mounts),
    ("adopt_by_uplink_alone", keepers::adopt_by_uplink_alone),
    ("adopt_latency", keepers::adopt_latency),
    ("enter_user_namespace_of_a_workload", keepers::enter_user_namespace_of_a_workload),
    ("enter_user_namespace_of_a_nested_workload", keepers::enter_user_namespace_of_a_nested_workload),
    ("observation_tells_pin_by_identity", keepers::observation_tells_pin_by_identity),
    ("descriptors_go_to_the_service_manager_and_come_back", keepers::descriptors_go_to_the_service_manager),
    ("control_answers_and_works", control::answers_and_works),
    ("control_inherits_nothing", control::inherits_nothing),
    ("control_is_busy_in_words", control::is_busy_in_words),
    ("control_ends_with_its_worker", control::ends_with_its_worker),
    ("control_outlives_many_silent_clients", control::outlives_many_silent_clients),
    ("control_outlives_bad_clients", control::outlives_bad_clients),
    ("control_of_another_kind_is_foreign_or_silent", control::of_another_kind_is_foreign_or_silent),
    ("control_takes_stale_paths", control::takes_stale_paths),
    ("control_restart_serves_the_snapshot", control::restart_serves_the_snapshot),
    ("control_is_one", control::is_one),
    ("control_notices_the_daemons_end", control::notices_the_daemons_end),
    ("control_real_hands_outlive_control_and_pin", control::real_hands_outlive_control_and_pin),
    ("control_failure_says_why", control::failure_says_why),
    ("uplink_publishes_for_real", uplink::publishes_for_real),
    ("uplink_refuses_taken_and_privileged_ports", uplink::refuses_taken_and_privileged_ports),
    ("uplink_killed_and_restarted", uplink::killed_and_restarted),
    ("uplink_of_another_router_is_broken", uplink::of_another_router_is_broken),
];

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match arguments.get(1).and_then(|argument| argument.to_str()) {
        Some("pin") => holdfast_linux::keeper::pin_main(&arguments[2..]),
        Some("control") => return ExitCode::from(u8::try_from(hands::control(&arguments[2..])).unwrap_or(1)),
        Some("answer") => uplink::answer(&arguments[2..]),
        Some("start-and-die") => pin::start_and_die(&arguments[2]),
        Some("connect-as-daemon") => control::connect_as_daemon(&arguments[2]),
        Some("import-descriptors") => keepers::import_descriptors(&arguments[2]),
        _ => {}
    }
    if nix::unistd::getuid().is_root() {
        return as_test_user(&arguments[1..]);
    }
    run(arguments
        .iter()
        .skip(1)
        .filter_map(|argument| argument.to_str())
        .find(|argument| !argument.starts_with('-')))
}

fn run(selected: Option<&str>) -> ExitCode {
    let mut failed = Vec::new();
    let mut count = 0;
    for (name, case) in CASES.iter().filter(|(name, _)| selected.is_none_or(|part| name.contains(part))) {
        let started = Instant::now();
        count += 1;
        let passed = catch_unwind(AssertUnwindSafe(case)).is_ok();
        println!("{} {name} ({} ms)", if passed { "PASS" } else { "FAIL" }, started.elapsed().as_millis());
        if !passed {
            failed.push(*name);
        }
    }
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {} passed; {} failed; 0 ignored; 0 measured; 0 filtered out",
        count - failed.len(),
        failed.len()
    );
    if count == 0 || !failed.is_empty() {
        println!("failed: {failed:?}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// A copy of this program that the user can read, run as the user in a clean environment.
fn as_test_user(arguments: &[OsString]) -> ExitCode {
    let name = std::env::var("HOLDFAST_TEST_USER").unwrap_or_else(|_| "holdfast".to_owned());
    let Some(user) = nix::unistd::User::from_name(&name).unwrap() else {
        println!(
            "FAIL: no user {name}: make one with `useradd -m {name}`, or name one in HOLDFAST_TEST_USER"
        );
        return ExitCode::FAILURE;
    };
    let directory = tempfile::Builder::new().prefix("hft").tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let copy: PathBuf = directory.path().join("keeper-test");
    std::fs::copy("/proc/self/exe", &copy).unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
    let runtime = directory.path().join("run");
    std::fs::create_dir(&runtime).unwrap();
    nix::unistd::chown(&runtime, Some(user.uid), Some(user.gid)).unwrap();
    std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = Command::new(&copy);
    command
        .args(arguments)
        .env_clear()
        .current_dir("/")
        .env("HOME", &user.dir)
        .env("XDG_RUNTIME_DIR", &runtime);
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
    let (uid, gid, name) = (user.uid, user.gid, std::ffi::CString::new(name).unwrap());
    // SAFETY: runs before any thread exists in the child; the group database is read once.
    unsafe {
        command.pre_exec(move || {
            nix::unistd::initgroups(&name, gid)?;
            nix::unistd::setgid(gid)?;
            Ok(nix::unistd::setuid(uid)?)
        })
    };
    let status = command.status().unwrap();
    if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
