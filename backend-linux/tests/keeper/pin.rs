use crate::node::{Node, descriptors, on_runtime, own_zombies, status_kib, until};
use holdfast_core::{id::ProcessRef, world::Keepers};
use holdfast_linux::process::is_alive;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{ffi::OsStr, os::unix::process::CommandExt, time::Duration};

fn pid(process: &ProcessRef) -> Pid {
    Pid::from_raw(process.pid.cast_signed())
}

pub fn costs_nothing_and_ignores_signals() {
    on_runtime(async {
        let node = Node::new();
        let pin = node.create().await.process;
        let wchan = || std::fs::read_to_string(format!("/proc/{}/stat", pin.pid)).unwrap().contains(" S ");
        until("the pin sleeps", || wchan() && descriptors(&pin).is_empty()).await;
        let (resident, anonymous) = (status_kib(&pin, "VmRSS"), status_kib(&pin, "RssAnon"));
        println!("  pin: VmRSS {resident} KiB, RssAnon {anonymous} KiB");
        assert!(resident < 2048, "{resident} KiB resident");
        assert_eq!(status_kib(&pin, "Threads"), 1);
        assert_eq!(std::fs::read_to_string(format!("/proc/{}/comm", pin.pid)).unwrap(), "holdfast-pin\n");
        for signal in Signal::iterator().filter(|signal| !matches!(signal, Signal::SIGKILL | Signal::SIGSTOP))
        {
            kill(pid(&pin), signal).unwrap();
        }
        // SAFETY: plain integers.
        assert_eq!(unsafe { libc::kill(pid(&pin).as_raw(), libc::SIGRTMIN() + 3) }, 0);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(is_alive(&pin));
        assert_eq!(status_kib(&pin, "VmRSS"), resident, "a signal made it run");
        // A session of its own, so that no terminal or logout of ours reaches it.
        assert_eq!(nix::unistd::getsid(Some(pid(&pin))).unwrap(), pid(&pin));
    });
}

pub fn inherits_nothing() {
    on_runtime(async {
        let node = Node::new();
        // What a careless library would leave: a descriptor without CLOEXEC.
        // SAFETY: plain integers.
        let leaky = unsafe { libc::dup(2) };
        assert!(leaky > 2);
        let pin = node.create().await.process;
        until("no descriptor is left", || descriptors(&pin).is_empty()).await;
        let environment = std::fs::read(format!("/proc/{}/environ", pin.pid)).unwrap();
        assert!(environment.is_empty(), "{:?}", String::from_utf8_lossy(&environment));
        // SAFETY: the descriptor was made above.
        unsafe { libc::close(leaky) };
    });
}

pub fn maps_subordinate_ids() {
    on_runtime(async {
        let node = Node::new();
        let pin = node.create().await.process;
        let map = std::fs::read_to_string(format!("/proc/{}/uid_map", pin.pid)).unwrap();
        let lines: Vec<Vec<u32>> = map
            .lines()
            .map(|line| line.split_whitespace().map(|field| field.parse().unwrap()).collect())
            .collect();
        assert_eq!(lines[0], [0, nix::unistd::getuid().as_raw(), 1]);
        assert_eq!(lines[1][0], 1);
        assert!(lines[1][2] >= 65536, "{map}");
        let output = node.keepers.command_inside(&pin, "id").unwrap().arg("-u").output().await.unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n");
    });
}

/// A pin whose daemon dies before it knows it must not stay: here the daemon is a process that starts one and
/// is killed while the pin waits to be known.
pub fn of_a_dead_daemon_does_not_stay() {
    on_runtime(async {
        let node = Node::new();
        let mut child = tokio::process::Command::new("/proc/self/exe")
            .arg("start-and-die")
            .arg(&node.paths.state)
            .spawn()
            .unwrap();
        assert!(child.wait().await.unwrap().success());
        until("no pin is left", || node.keepers.stray_pins(None).is_empty()).await;
    });
}

/// A daemon that is killed between the start of a pin and its record leaves one that nobody knows: the next pin
/// ends it, and not the processes of another node.
pub fn is_the_only_one() {
    on_runtime(async {
        let node = Node::new();
        let other = Node::new();
        let neighbour = other.create().await.process;
        let unrecorded = node.create().await.process;
        let pin = node.create().await.process;
        assert!(!is_alive(&unrecorded), "a pin that nobody knows was left");
        assert_eq!(node.keepers.stray_pins(None), std::slice::from_ref(&pin));
        assert!(is_alive(&neighbour), "the pin of another node was ended");
    });
}

/// Starts a pin by hand, lets it get ready, and exits without a word.
pub fn start_and_die(state: &OsStr) -> ! {
    use std::io::Read;
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut command = std::process::Command::new("/proc/self/exe");
    command.arg0("holdfast").arg("pin").arg("--state").arg(state).args(["--join", "", "--unshare", "user"]);
    command.stdin(std::os::fd::OwnedFd::from(theirs));
    let _child = command.spawn().unwrap();
    drop(command);
    let mut byte = [0u8];
    ours.read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"m");
    std::process::exit(0)
}

pub fn stop_is_exact_and_leaves_no_zombie() {
    on_runtime(async {
        let node = Node::new();
        let pin = node.create().await.process;
        let mut stranger = pin.clone();
        stranger.start_time_ticks += 1;
        node.keepers.stop_process(&stranger).await.unwrap();
        assert_eq!(node.keepers.stray_pins(None), std::slice::from_ref(&pin));
        assert!(node.keepers.stray_pins(Some(&pin)).is_empty());
        assert!(is_alive(&pin), "another process of the same pid was stopped");
        let watch = holdfast_linux::process::ProcessWatch::open(&pin).unwrap().unwrap();
        let started = std::time::Instant::now();
        node.keepers.stop_process(&pin).await.unwrap();
        assert!(started.elapsed() < Duration::from_secs(1), "it waited for a pin to heed SIGTERM");
        assert!(!is_alive(&pin));
        watch.exited().await.unwrap();
        until("the pin is reaped", || !std::path::Path::new(&format!("/proc/{}", pin.pid)).exists()).await;
        assert_eq!(watch.exit_status().map(|status| status.code()), Some(128 + libc::SIGKILL));
        assert_eq!(own_zombies(), Vec::<u32>::new());
        node.keepers.stop_process(&pin).await.unwrap();
    });
}
