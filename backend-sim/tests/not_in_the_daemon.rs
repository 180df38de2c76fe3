//! Nothing of the simulator is linked into `holdfast`: neither this crate nor madsim is in its tree of
//! dependencies, for any target.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

#[test]
#[expect(clippy::disallowed_methods, reason = "it polls for the end, with a deadline")]
fn the_daemon_depends_on_no_simulator() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = Command::new(cargo);
    command.args([
        "tree",
        "--locked",
        "--offline",
        "-p",
        "holdfast",
        "--target",
        "all",
        "-e",
        "normal,build",
    ]);
    command.args(["--prefix", "none", "--format", "{p}"]).env_remove("RUSTFLAGS");
    let file = tempfile_path();
    let out = std::fs::File::create(&file).unwrap();
    let mut child = command.stdin(Stdio::null()).stdout(out).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline, "cargo tree does not end");
        std::thread::sleep(Duration::from_millis(20));
    };
    let tree = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(status.success(), "cargo tree ended with {status}");
    let names: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains(&"holdfast-core"), "this is the daemon's tree: {names:?}");
    let simulator = names.iter().find(|name| name.contains("madsim") || **name == "holdfast-sim");
    assert_eq!(simulator, None);
}

fn tempfile_path() -> std::path::PathBuf {
    std::env::temp_dir().join(format!("holdfast-tree-{}", std::process::id()))
}
