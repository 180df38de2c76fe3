use crate::node::{Node, hints, median, on_runtime};
use holdfast_core::{
    id::{ContainerId, ProcessRef},
    observed::{Keeper, KeeperObserved},
    plan::AdoptSource,
    record::NamespaceIds,
    world::{KeeperHints, Keepers, PinStarted, Uplink},
};
use holdfast_linux::{
    keeper::{
        HeldNamespaces,
        namespace::{Kind, namespace_id, namespaces_of},
    },
    process::is_alive,
    uplink::{LinuxUplink, UplinkConfig},
};
use std::{
    ffi::OsStr,
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
    time::Instant,
};

/// Something that only the router itself has: an address on its loopback.
const MARK: &str = "198.51.100.7";

async fn run_inside(node: &Node, pin: &ProcessRef, arguments: &[&str]) -> String {
    let output =
        node.keepers.command_inside(pin, arguments[0]).unwrap().args(&arguments[1..]).output().await.unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

async fn mark(node: &Node, pin: &ProcessRef) {
    run_inside(node, pin, &["ip", "address", "add", &format!("{MARK}/32"), "dev", "lo"]).await;
}

async fn is_marked(node: &Node, pin: &ProcessRef) -> bool {
    run_inside(node, pin, &["ip", "address", "show", "dev", "lo"]).await.contains(MARK)
}

/// The pin is dead; what is found must be exactly this keeper, and adopting through it gives the router back.
async fn adopt(node: &Node, hints: &KeeperHints, expected: &KeeperObserved) -> PinStarted {
    let observed = node.keepers.observe_keepers(hints).await.unwrap();
    assert_eq!(observed.pin, None);
    assert_eq!(observed.keepers, std::slice::from_ref(expected));
    let source = AdoptSource {
        user: expected.keeper.clone(),
        net: expected.keeper.clone(),
        mount: expected.mount.then(|| expected.keeper.clone()),
    };
    let recorded = hints.namespaces.unwrap();
    let adopted = node.noted(node.keepers.adopt_namespaces(&source, hints).await);
    assert_eq!((adopted.namespaces.user, adopted.namespaces.net), (recorded.user, recorded.net));
    assert_eq!(adopted.namespaces.mount == recorded.mount, expected.mount);
    assert!(is_marked(node, &adopted.process).await, "another router");
    let observed = node.keepers.observe_keepers(&self::hints(&adopted)).await.unwrap();
    assert_eq!(observed.pin.as_ref(), Some(&adopted.process));
    adopted
}

fn full(keeper: Keeper) -> KeeperObserved {
    KeeperObserved { keeper, user: true, net: true, mount: true }
}

pub fn adopt_by_descriptors_alone() {
    on_runtime(async {
        let node = Node::new();
        let pin = node.create().await;
        mark(&node, &pin.process).await;
        node.kill(&pin.process).await;
        adopt(&node, &hints(&pin), &full(Keeper::Descriptors)).await;
    });
}

pub fn adopt_by_control_alone() {
    on_runtime(async {
        let node = Node::new();
        let pin = node.create().await;
        mark(&node, &pin.process).await;
        let control = node.control(&pin.process).await;
        node.keepers.held().release();
        node.kill(&pin.process).await;
        let hints = KeeperHints { control: Some(control.clone()), ..hints(&pin) };
        adopt(&node, &hints, &full(Keeper::Control(control))).await;
    });
}

pub fn adopt_by_monitor_alone() {
    on_runtime(async {
        let node = Node::new();
        let pin = node.create().await;
        mark(&node, &pin.process).await;
        let (monitor, _child) = node.sleeper(&pin.process, &["-u"]).await;
        let (workload, _child2) = node.sleeper(&pin.process, &["-n", "-m", "-u"]).await;
        node.keepers.held().release();
        node.kill(&pin.process).await;
        let container = ContainerId::from_raw("c1");
        let mut hints = hints(&pin);
        hints.containers.insert(container.clone(), (workload.clone(), monitor.clone()));
        let observed = node.keepers.observe_keepers(&hints).await.unwrap();
        let expected = [
            full(Keeper::Monitor(container.clone(), monitor.clone())),
            KeeperObserved {
                keeper: Keeper::Workload(container.clone(), workload.clone()),
                user: true,
                net: false,
                mount: false,
            },
        ];
        assert_eq!(observed.keepers, expected);
        node.kill(&workload).await;
        adopt(&node, &hints, &full(Keeper::Monitor(container, monitor))).await;
    });
}

/// A monitor that sits in another netns, and still leads to the router by the bind in its mount namespace.
pub fn adopt_by_bind_in_a_monitors_mounts() {
    on_runtime(async {
        let node = Node::new();
        let pin = node.create().await;
        mark(&node, &pin.process).await;
        let bind = node.paths.router_netns();
        std::fs::create_dir_all(bind.parent().unwrap()).unwrap();
        std::fs::write(&bind, b"").unwrap();
        run_inside(&node, &pin.process, &["mount", "--bind", "/proc/self/ns/net", bind.to_str().unwrap()])
            .await;
        let (monitor, _child) = node.sleeper(&pin.process, &["-n"]).await;
        node.keepers.held().release();
        node.kill(&pin.process).await;
        let container = ContainerId::from_raw("c1");
        let mut hints = hints(&pin);
        hints.containers.insert(container.clone(), (pin.process.clone(), monitor.clone()));
        adopt(&node, &hints, &full(Keeper::Monitor(container, monitor))).await;
    });
}

pub fn adopt_by_uplink_alone() {
    on_runtime(async {
        let node = Node::new();
        let pin = node.create().await;
        mark(&node, &pin.process).await;
        let uplink =
            LinuxUplink::new(node.paths.clone(), UplinkConfig::default(), node.keepers.held().clone());
        let helper = uplink.start_uplink(&pin.process).await.unwrap();
        node.note(&helper);
        node.keepers.held().release();
        node.kill(&pin.process).await;
        let hints = KeeperHints { uplink: Some(helper.clone()), ..hints(&pin) };
        let expected = KeeperObserved { keeper: Keeper::Uplink(helper), user: true, net: true, mount: false };
        adopt(&node, &hints, &expected).await;
    });
}

pub fn adopt_latency() {
    on_runtime(async {
        let node = Node::new();
        let mut pin = node.create().await;
        let source = AdoptSource {
            user: Keeper::Descriptors,
            net: Keeper::Descriptors,
            mount: Some(Keeper::Descriptors),
        };
        let mut times = Vec::new();
        for _ in 0..15 {
            let watch = holdfast_linux::process::ProcessWatch::open(&pin.process).unwrap().unwrap();
            let started = Instant::now();
            watch.signal(libc::SIGKILL).unwrap();
            watch.exited().await.unwrap();
            let observed = node.keepers.observe_keepers(&hints(&pin)).await.unwrap();
            assert_eq!(observed.pin, None);
            pin = node.noted(node.keepers.adopt_namespaces(&source, &hints(&pin)).await);
            times.push(started.elapsed());
        }
        println!("  pin killed → noticed, observed, adopted: median {:?}", median(times));
    });
}

async fn enter_through(unshare: &[&str]) {
    let node = Node::new();
    let pin = node.create().await;
    mark(&node, &pin.process).await;
    let (workload, _child) = node.sleeper(&pin.process, unshare).await;
    node.keepers.held().release();
    node.kill(&pin.process).await;
    let keeper = Keeper::Workload(ContainerId::from_raw("c1"), workload.clone());
    let entered = node.noted(node.keepers.enter_user_namespace(&keeper).await);
    assert_eq!(entered.namespaces.user, pin.namespaces.user);
    assert_ne!(entered.namespaces.net, namespaces_of(&workload).unwrap().unwrap().net);
    assert!(!is_marked(&node, &entered.process).await, "the router was to be new");
    assert!(is_alive(&workload));
    // The held descriptors are of the new router, so that the old one is kept by nothing.
    assert_eq!(node.keepers.held().ids(), Some(entered.namespaces));
}

pub fn enter_user_namespace_of_a_workload() {
    on_runtime(enter_through(&["-n", "-m", "-u", "-i"]));
}

pub fn enter_user_namespace_of_a_nested_workload() {
    on_runtime(enter_through(&["-U", "-n", "-m"]));
}

pub fn observation_tells_pin_by_identity() {
    on_runtime(async {
        let node = Node::new();
        let pin = node.create().await;
        let good = hints(&pin);
        let pin_of = async |hints: &KeeperHints| node.keepers.observe_keepers(hints).await.unwrap().pin;
        assert_eq!(pin_of(&good).await.as_ref(), Some(&pin.process));
        let mut recycled = good.clone();
        recycled.pin.as_mut().unwrap().start_time_ticks -= 1;
        assert_eq!(pin_of(&recycled).await, None);
        let mut rebooted = good.clone();
        rebooted.pin.as_mut().unwrap().boot_id = holdfast_core::id::BootId::from_raw("before");
        assert_eq!(pin_of(&rebooted).await, None);
        let mut elsewhere = good.clone();
        elsewhere.namespaces.as_mut().unwrap().net.0 += 1;
        assert_eq!(pin_of(&elsewhere).await, None);
        assert_eq!(pin_of(&KeeperHints::default()).await, None);
        let started = Instant::now();
        for _ in 0..100 {
            pin_of(&good).await;
        }
        println!("  observation with a living pin: {:?}", started.elapsed() / 100);
    });
}

/// A service manager of our own: takes what it is sent and passes it to the next start.
pub fn descriptors_go_to_the_service_manager() {
    use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
    let node = Node::new();
    let socket = node.paths.runtime.join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    manager.set_nonblocking(true).unwrap();
    // SAFETY: no other thread of this program runs now.
    unsafe { std::env::set_var("NOTIFY_SOCKET", &socket) };
    let mut ids = None;
    on_runtime(async {
        ids = Some(node.create().await.namespaces);
    });
    // SAFETY: the runtime's threads have ended.
    unsafe { std::env::remove_var("NOTIFY_SOCKET") };
    let mut stored: Vec<(String, OwnedFd)> = Vec::new();
    loop {
        let mut bytes = [0u8; 256];
        let mut buffer = [std::io::IoSliceMut::new(&mut bytes)];
        let mut space = nix::cmsg_space!([i32; 2]);
        let Ok(message) =
            recvmsg::<()>(manager.as_raw_fd(), &mut buffer, Some(&mut space), MsgFlags::empty())
        else {
            break;
        };
        let fds: Vec<i32> = message
            .cmsgs()
            .unwrap()
            .flat_map(|control| match control {
                ControlMessageOwned::ScmRights(fds) => fds,
                _ => Vec::new(),
            })
            .collect();
        let length = message.bytes;
        let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap().to_owned();
        for fd in fds {
            assert!(text.contains("FDSTORE=1"));
            // SAFETY: received just now, owned by nobody else.
            stored.push((name.clone(), unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) }));
        }
    }
    let names: Vec<_> = stored.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["holdfast-user", "holdfast-net", "holdfast-mnt", "holdfast-cgroup"]);
    restart_with(&stored, ids.unwrap());
}

fn restart_with(stored: &[(String, OwnedFd)], ids: NamespaceIds) {
    use std::os::unix::process::CommandExt;
    let names = stored.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(":");
    let raw: Vec<i32> = stored
        .iter()
        // SAFETY: plain integers; out of the way of 3, 4, 5, 6.
        .map(|(_, fd)| unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 100) })
        .collect();
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-c", "LISTEN_PID=$$ exec /proc/$PPID/exe import-descriptors \"$IDS\""]);
    command.env("LISTEN_FDS", raw.len().to_string()).env("LISTEN_FDNAMES", names);
    command.env("IDS", serde_json::to_string(&ids).unwrap());
    // SAFETY: system calls on integers only.
    unsafe {
        command.pre_exec(move || {
            for (number, fd) in (3..).zip(&raw) {
                if libc::dup2(*fd, number) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        })
    };
    assert!(command.status().unwrap().success());
}

/// The next start: it has nothing but the descriptors.
pub fn import_descriptors(ids: &OsStr) -> ! {
    let ids: NamespaceIds = serde_json::from_str(ids.to_str().unwrap()).unwrap();
    let held = Arc::new(HeldNamespaces::from_service_manager());
    assert_eq!(held.ids(), Some(ids));
    let net = held.open(Kind::Net, &ids).unwrap();
    assert_eq!(namespace_id(&net).unwrap(), ids.net);
    // SAFETY: plain integers.
    assert_eq!(unsafe { libc::fcntl(3, libc::F_GETFD) }, libc::FD_CLOEXEC);
    std::process::exit(0)
}
