//! The router on the real kernel, as a user without privilege: every case runs in a process of its own, in
//! user, mount, network and cgroup namespaces of its own, and its packets are real.
//!
//! Run as root it becomes the user that `HOLDFAST_TEST_USER` names (`holdfast` when unset).
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(
    clippy::disallowed_methods,
    reason = "every sleep is a look again under a deadline, every tool runs under the deadline of its case"
)]

mod cases;
mod isolation;
mod node;
mod packets;
mod services;

use nix::{
    sched::{CloneFlags, unshare},
    unistd::{Uid, User, getgid, getuid},
};
use std::{
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

type Case = (&'static str, fn());

const CASES: &[Case] = &[
    ("base_is_idempotent", cases::base_is_idempotent),
    ("foreign_base_is_replaced", cases::foreign_base_is_replaced),
    ("elements_read_back", cases::elements_read_back),
    ("thousand_members", cases::thousand_members),
    ("attach_is_idempotent", cases::attach_is_idempotent),
    ("stale_links_are_replaced", cases::stale_links_are_replaced),
    ("replug_keeps_the_stream", cases::replug_keeps_the_stream),
    ("sandbox_rebinds_from_a_member", cases::sandbox_rebinds_from_a_member),
    ("removal_leaves_nothing", cases::removal_leaves_nothing),
    ("attach_is_fast", cases::attach_is_fast),
    ("members_reach_each_other", isolation::members_reach_each_other),
    ("others_do_not", isolation::others_do_not),
    ("revoked_at_once", isolation::revoked_at_once),
    ("sources_cannot_be_forged", isolation::sources_cannot_be_forged),
    ("gateway_answers_ping_only", isolation::gateway_answers_ping_only),
    ("uplink_is_governed", isolation::uplink_is_governed),
    ("services_answer_at_the_own_gateway_alone", services::answer_at_the_own_gateway_alone),
    ("a_published_port_takes_no_services_place", services::a_published_port_takes_no_services_place),
];

/// A case that takes longer is killed.
const CASE_DEADLINE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, name] = &arguments[..]
        && flag == "--case"
    {
        enter_namespaces();
        let (_, case) = CASES.iter().find(|(known, _)| known == name).expect("a case of that name");
        case();
        return ExitCode::SUCCESS;
    }
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let directory = tempfile::Builder::new().prefix("hf-router-").tempdir_in("/tmp").unwrap();
    let runner = Runner::prepare(directory.path());
    let mut failed = Vec::new();
    let mut count = 0;
    for (name, _) in CASES {
        if !filters.is_empty() && !filters.iter().any(|filter| name.contains(filter.as_str())) {
            continue;
        }
        let start = Instant::now();
        count += 1;
        let passed = runner.run(name);
        println!(
            "test {name} ... {} ({} ms)",
            if passed { "ok" } else { "FAILED" },
            start.elapsed().as_millis()
        );
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
    if failed.is_empty() && count > 0 {
        return ExitCode::SUCCESS;
    }
    println!("failed: {failed:?}");
    ExitCode::FAILURE
}

struct Runner<'a> {
    directory: &'a Path,
    user: Option<User>,
}

impl<'a> Runner<'a> {
    /// Puts a copy of this program where the user can run it.
    fn prepare(directory: &'a Path) -> Self {
        let user = getuid().is_root().then(|| {
            let name = std::env::var("HOLDFAST_TEST_USER").unwrap_or_else(|_| "holdfast".to_owned());
            let user = User::from_name(&name).unwrap();
            let user =
                user.unwrap_or_else(|| panic!("no user {name}: run `make setup`, or set HOLDFAST_TEST_USER"));
            assert!(!user.uid.is_root(), "{name} is root");
            user
        });
        let program = directory.join("program");
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { directory, user }
    }

    fn run(&self, name: &str) -> bool {
        let runtime = self.directory.join(name);
        std::fs::create_dir(&runtime).unwrap();
        let mut command = Command::new(self.directory.join("program"));
        command.args(["--case", name]).env("XDG_RUNTIME_DIR", &runtime).stdin(Stdio::null());
        if let Some(user) = &self.user {
            nix::unistd::chown(&runtime, Some(user.uid), Some(user.gid)).unwrap();
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw()).env("HOME", &user.dir);
        }
        let mut child = command.spawn().unwrap();
        let deadline = Instant::now() + CASE_DEADLINE;
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status.success();
            }
            if Instant::now() > deadline {
                println!("{name} took longer than {} s", CASE_DEADLINE.as_secs());
                child.kill().unwrap();
                child.wait().unwrap();
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Becomes root of a user namespace of one user, with mount, network and cgroup namespaces: what the pin does.
fn enter_namespaces() {
    let (uid, gid) = (getuid(), getgid());
    assert_ne!(uid, Uid::from_raw(0), "cases run as a user without privilege");
    unshare(
        CloneFlags::CLONE_NEWUSER
            | CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWNET
            | CloneFlags::CLONE_NEWCGROUP,
    )
    .expect("user namespaces without privilege");
    std::fs::write("/proc/self/setgroups", "deny").unwrap();
    std::fs::write("/proc/self/uid_map", format!("0 {uid} 1")).unwrap();
    std::fs::write("/proc/self/gid_map", format!("0 {gid} 1")).unwrap();
}
