//! Containers and images on the real kernel, as a user without privileges.
//!
//! Run by root, the tests become the user that `HOLDFAST_TEST_USER` names (default `holdfast`), who needs subordinate
//! ids. Without crun, conmon, newuidmap or busybox they fail and say what is missing.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(
    clippy::disallowed_methods,
    reason = "its children end by process::exit, every sleep is a look again under a deadline, its tools are short"
)]

#[path = "container_support/archive.rs"]
mod archive;
#[path = "container_support/exec.rs"]
mod exec;
#[path = "container_support/image.rs"]
mod image;
#[path = "container_support/life.rs"]
mod life;
#[path = "container_support/logs.rs"]
mod logs;
#[path = "container_support/node.rs"]
mod node;
#[path = "container_support/plan.rs"]
mod plan;

use std::{ffi::OsString, future::Future, os::unix::process::CommandExt, pin::Pin, process::ExitCode};

type Test = (&'static str, fn() -> Pin<Box<dyn Future<Output = ()>>>);

macro_rules! tests {
    ($($module:ident :: $name:ident),* $(,)?) => {
        &[$((concat!(stringify!($module), "::", stringify!($name)), || Box::pin($module::$name()))),*]
    };
}

const TESTS: &[Test] = tests![
    plan::every_field_of_the_plan_shows_in_the_container,
    plan::argv_and_env_arrive_exactly,
    plan::a_missing_command_mount_or_layer_is_named_and_leaves_nothing,
    plan::a_state_directory_with_a_long_and_odd_name_works,
    life::exit_codes_are_read,
    life::a_start_is_idempotent_and_an_interrupted_one_is_finished,
    life::incarnations_keep_the_upper_layer,
    life::the_monitor_lives_in_the_pins_namespaces,
    life::a_killed_init_leaves_its_code,
    life::a_killed_monitor_loses_neither_container_nor_exit_code,
    life::a_living_container_is_neither_cleaned_nor_removed,
    life::a_user_of_its_own_is_stopped_by_signal_and_by_kill,
    life::without_a_pin_a_container_is_stopped_and_removed,
    life::a_thousand_containers_are_observed_quickly,
    exec::streams_are_binary_safe,
    exec::exit_codes_and_failures_are_told_apart,
    exec::two_hundred_execs_leave_nothing,
    exec::a_killed_or_dropped_session_kills_its_process,
    exec::a_terminal_is_given_and_resized,
    exec::exec_works_from_a_new_mount_namespace,
    logs::tail_since_streams_and_parts,
    logs::a_followed_log_ends_with_its_container,
    image::a_docker_archive_runs_with_its_defaults,
    image::whiteouts_and_opaque_directories_hide_lower_layers,
    image::hostile_archives_stay_inside_and_leave_nothing,
    image::digests_limits_and_damage_are_refused,
    image::a_root_file_system_loads_with_and_without_a_pin,
    image::an_oci_layout_loads,
    image::a_full_disk_is_said_to_be_one,
];

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match arguments.first().and_then(|first| first.to_str()) {
        Some("internal") => return holdfast_linux::container::internal_main(&arguments[1..]),
        Some("test-pin") => return node::pin_main(&arguments[1..]),
        Some("--list") => return ExitCode::SUCCESS,
        _ => {}
    }
    if nix::unistd::getuid().is_root() {
        return become_user();
    }
    let filters: Vec<String> = arguments
        .iter()
        .filter_map(|text| text.to_str())
        .filter(|text| !text.starts_with('-'))
        .map(str::to_owned)
        .collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut failed = Vec::new();
    let mut passed = 0;
    for (name, test) in TESTS {
        if !filters.is_empty() && !filters.iter().any(|filter| name.contains(filter.as_str())) {
            continue;
        }
        let started = std::time::Instant::now();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime.block_on(test())));
        let word = if result.is_ok() { "ok" } else { "FAILED" };
        println!("test {name} ... {word} ({} ms)", started.elapsed().as_millis());
        match result {
            Ok(()) => passed += 1,
            Err(_) => failed.push(*name),
        }
    }
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    let failures = failed.len();
    println!(
        "\ntest result: {word}. {passed} passed; {failures} failed; 0 ignored; 0 measured; 0 filtered out"
    );
    if failures > 0 {
        println!("failed: {failed:?}");
    }
    if failed.is_empty() && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs this binary again as the test user, with a clean environment.
fn become_user() -> ExitCode {
    let name = std::env::var("HOLDFAST_TEST_USER").unwrap_or_else(|_| "holdfast".to_owned());
    let Some(user) = nix::unistd::User::from_name(&name).unwrap() else {
        eprintln!("there is no user {name}: make it with `useradd -m {name}`, or set HOLDFAST_TEST_USER");
        return ExitCode::FAILURE;
    };
    let error = std::process::Command::new("setpriv")
        .arg(format!("--reuid={name}"))
        .arg(format!("--regid={}", user.gid))
        .args(["--init-groups", "--reset-env", "env"])
        .arg("PATH=/usr/sbin:/usr/bin:/sbin:/bin")
        .args(std::env::var("RUST_BACKTRACE").ok().map(|value| format!("RUST_BACKTRACE={value}")))
        .arg(std::env::current_exe().unwrap())
        .args(std::env::args_os().skip(1))
        .exec();
    eprintln!("setpriv: {error}");
    ExitCode::FAILURE
}
