use crate::node::{Node, descriptors, hints, median, on_runtime, own_zombies, until};
use holdfast_core::{
    error::Class,
    id::{NetworkId, SandboxId, Slot},
    observed::{ControlObserved, Keeper},
    plan::NetworkPlan,
    ruleset::Ruleset,
    world::{KeeperHints, Keepers, PrefixEntry, Probe, Router, Snapshot},
};
use holdfast_linux::{
    paths::Paths,
    process::is_alive,
    protocol::{ControlClient, FRAME_BYTES_MAX, Request, Response, Role, read_frame, write_frame},
};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

fn network(name: &str) -> NetworkPlan {
    NetworkPlan {
        id: NetworkId::from_raw(name),
        index: 1,
        gateway4: ([10, 1, 0, 1].into(), 24),
        gateway6: ([0xfd00, 0, 0, 0, 0, 0, 0, 1].into(), 64),
        mtu_bytes: 1500,
    }
}

fn client(node: &Node) -> ControlClient {
    ControlClient::new(&node.paths, Role::Daemon)
}

pub fn answers_and_works() {
    on_runtime(async {
        let node = Node::new();
        let pin = node.create().await;
        let absent = node.keepers.observe_keepers(&hints(&pin)).await.unwrap();
        assert_eq!(absent.control, ControlObserved::Absent);
        let control = node.control(&pin.process).await;
        let hints = KeeperHints { control: Some(control.clone()), ..hints(&pin) };
        let observed = node.keepers.observe_keepers(&hints).await.unwrap();
        assert_eq!(observed.control, ControlObserved::Answering(control.clone()));
        let client = client(&node);
        client.ensure_network(&network("n1")).await.unwrap();
        let router = client.observe_router().await.unwrap();
        assert_eq!(router.namespaces, pin.namespaces);
        assert!(router.networks.contains_key(&NetworkId::from_raw("n1")));
        let refused = client.remove_elements(&BTreeSet::new()).await.unwrap_err();
        assert_eq!((refused.class, refused.cause.as_str()), (Class::Exhausted, "the test said so"));
        let probe = Probe {
            from: SandboxId::from_raw("a"),
            to: SandboxId::from_raw("b"),
            address: [10, 0, 0, 1].into(),
            timeout_ms: 1,
            ask: Default::default(),
        };
        assert!(client.probe(&probe).await.unwrap());
        // Recorded elsewhere: the same control is foreign.
        let mut other = hints.clone();
        other.namespaces.as_mut().unwrap().net.0 += 1;
        let observed = node.keepers.observe_keepers(&other).await.unwrap();
        assert!(matches!(observed.control, ControlObserved::Foreign(process, _) if process == control));
    });
}

pub fn inherits_nothing() {
    on_runtime(async {
        let node = Node::new();
        let listener = std::os::unix::net::UnixListener::bind(node.paths.runtime.join("d")).unwrap();
        // What a careless library would leave: a descriptor without CLOEXEC.
        // SAFETY: plain integers.
        let leaky = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) };
        let pin = node.create().await;
        let control = node.control(&pin.process).await;
        // SAFETY: the descriptor was made above.
        unsafe { libc::close(leaky) };
        // Looked at twice: what it has open for a moment, to read who is asking, is not inherited.
        let first = descriptors(&control);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let second = descriptors(&control);
        for (number, target) in first.into_iter().filter(|seen| second.contains(seen)) {
            let target = target.to_string_lossy().into_owned();
            let log = number <= 2 && (target == "/dev/null" || target.ends_with("control.log"));
            // Its own, and those of its runtime and of the connection that asked it.
            let own = ["anon_inode:", "socket:", "pipe:"].iter().any(|own| target.starts_with(own))
                || target.ends_with("control.lock");
            assert!(log || own, "{number} is {target}");
        }
        let inode =
            std::fs::metadata(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&listener)))
                .unwrap();
        let ours = format!("socket:[{}]", std::os::unix::fs::MetadataExt::ino(&inode));
        assert!(
            descriptors(&control).iter().all(|(_, target)| target != Path::new(&ours)),
            "it has our listener"
        );
        assert!(descriptors(&control).iter().all(|(_, target)| !target.to_string_lossy().contains("net:[")));
        let mode = std::fs::metadata(node.paths.control_socket()).unwrap();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777, 0o600);
    });
}

/// One long request blocks the worker; pings and handshakes are answered, the queue has an end, and a client
/// that is told busy tries again until it is done.
pub fn is_busy_in_words() {
    on_runtime(async {
        let node = Node::new();
        let pin = node.create().await;
        let control = node.control(&pin.process).await;
        let client = Arc::new(client(&node));
        let blocker = tokio::spawn({
            let client = client.clone();
            async move { client.detach(Slot(1500)).await }
        });
        until("the worker is blocked", || node.paths.state.join("detaching-1500").exists()).await;
        let started = Instant::now();
        let pong = client.ping().await.unwrap();
        assert_eq!(pong.process, control);
        let observed = node.keepers.observe_keepers(&hints(&pin)).await.unwrap();
        assert_eq!(observed.control, ControlObserved::Answering(control));
        assert!(started.elapsed() < Duration::from_millis(500), "it waited for the worker");
        let raw: Vec<_> = (0..80).map(|_| tokio::spawn(raw_request(node.paths.control_socket()))).collect();
        let mut busy = 0;
        for answer in raw {
            busy += usize::from(matches!(answer.await.unwrap(), Response::Busy { .. }));
        }
        assert!((10..=20).contains(&busy), "64 wait, so 16 of 80 are told busy, not {busy}");
        blocker.await.unwrap().unwrap();
        let blocker = tokio::spawn({
            let client = client.clone();
            async move { client.detach(Slot(300)).await }
        });
        let many: Vec<_> = (0..100)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move { client.detach(Slot(0)).await })
            })
            .collect();
        for done in many {
            done.await.unwrap().unwrap();
        }
        blocker.await.unwrap().unwrap();
    });
}

async fn raw_request(socket: PathBuf) -> Response {
    let (mut stream, _) =
        holdfast_linux::protocol::greet(&socket, Role::Tool, Duration::from_secs(5)).await.unwrap();
    let envelope =
        holdfast_linux::protocol::Envelope { deadline_ms: 10_000, request: Request::ObserveRouter };
    write_frame(&mut stream, &envelope).await.unwrap();
    read_frame(&mut stream).await.unwrap().unwrap()
}

/// A panic of the worker ends the control: one that answers pings and can do nothing would never be replaced.
pub fn ends_with_its_worker() {
    on_runtime(async {
        let node = Node::new();
        let pin = node.create().await;
        let control = node.control(&pin.process).await;
        let client = Arc::new(client(&node));
        let request = tokio::spawn({
            let client = client.clone();
            async move { client.detach(Slot(u32::MAX)).await }
        });
        tokio::time::timeout(Duration::from_secs(5), holdfast_linux::process::exited(&control))
            .await
            .unwrap()
            .unwrap();
        // If no answer came before the end, the request is sent once more, and ends the next control too.
        if let Ok(second) = node.keepers.start_control(&pin.process).await {
            node.note(&second);
        }
        assert_eq!(request.await.unwrap().unwrap_err().class, Class::Unknown);
    });
}

/// More silent clients than there are places delay another client, and do not make the control look dead.
pub fn outlives_many_silent_clients() {
    on_runtime(async {
        let node = Node::new();
        let pin = node.create().await;
        let control = node.control(&pin.process).await;
        let mut silent = Vec::new();
        for _ in 0..200 {
            silent.push(UnixStream::connect(node.paths.control_socket()).await.unwrap());
        }
        client(&node).ensure_network(&network("n1")).await.unwrap();
        assert!(is_alive(&control));
        drop(silent);
        let observed = node.keepers.observe_keepers(&hints(&pin)).await.unwrap();
        assert_eq!(observed.control, ControlObserved::Answering(control));
    });
}

pub fn outlives_bad_clients() {
    on_runtime(async {
        let node = Node::new();
        let pin = node.create().await;
        let control = node.control(&pin.process).await;
        let socket = node.paths.control_socket();
        let mut silent = Vec::new();
        for _ in 0..20 {
            silent.push(UnixStream::connect(&socket).await.unwrap());
        }
        let client = client(&node);
        let started = Instant::now();
        client.ensure_network(&network("n1")).await.unwrap();
        assert!(started.elapsed() < Duration::from_secs(1), "silent clients blocked another");
        // Half a frame, then silence.
        let mut half = UnixStream::connect(&socket).await.unwrap();
        half.write_all(&[0, 0]).await.unwrap();
        // Too large, garbage, and no control's hello: each connection ends, the control does not.
        for bytes in [
            &u32::MAX.to_be_bytes()[..],
            &(FRAME_BYTES_MAX + 1).to_be_bytes(),
            b"\0\0\0\x04{{{{",
            b"\0\0\0\x02{}",
        ] {
            let mut bad = UnixStream::connect(&socket).await.unwrap();
            bad.write_all(bytes).await.unwrap();
            let mut rest = Vec::new();
            let read =
                tokio::time::timeout(Duration::from_secs(2), bad.read_to_end(&mut rest)).await.unwrap();
            assert!(read.is_err() || rest.is_empty(), "{rest:?}");
        }
        // A garbage request after a good hello is answered in words.
        let (mut stream, _) =
            holdfast_linux::protocol::greet(&socket, Role::Tool, Duration::from_secs(5)).await.unwrap();
        write_frame(&mut stream, &"no request").await.unwrap();
        let answer: Response = read_frame(&mut stream).await.unwrap().unwrap();
        assert!(matches!(answer, Response::Failed(error) if error.class == Class::Corrupt));
        drop(stream);
        client.observe_router().await.unwrap();
        assert!(is_alive(&control));
        // A silent client is let go of.
        let mut byte = [0u8];
        let first = silent.first_mut().unwrap();
        assert_eq!(
            tokio::time::timeout(Duration::from_secs(8), first.read(&mut byte)).await.unwrap().unwrap(),
            0
        );
    });
}

async fn observe(node: &Node) -> ControlObserved {
    node.keepers.observe_keepers(&KeeperHints::default()).await.unwrap().control
}

/// Listeners that are no control of this build.
pub fn of_another_kind_is_foreign_or_silent() {
    on_runtime(async {
        let node = Node::new();
        let own = holdfast_linux::process::own_process().unwrap();
        let socket = node.paths.control_socket();
        let serve = |answer: Option<Vec<u8>>| {
            let _ = std::fs::remove_file(&socket);
            let listener = tokio::net::UnixListener::bind(&socket).unwrap();
            tokio::spawn(async move {
                let mut kept = Vec::new();
                loop {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    if let Some(answer) = &answer {
                        let _ = stream.write_all(answer).await;
                    }
                    kept.push(stream);
                }
            })
        };
        let mut frame = Vec::new();
        let ids = serde_json::json!({"user": 1, "net": 2, "mount": 3});
        let hello = |protocol: u32, build: &str| {
            serde_json::json!({"magic": "holdfast-control", "protocol": protocol, "build": build,
                "process": own, "namespaces": ids, "added_later": true})
        };
        let current = holdfast_linux::protocol::PROTOCOL_VERSION;
        for (protocol, build, word) in [(current + 1, "x", "protocol"), (current, "another", "build")] {
            frame.clear();
            write_frame(&mut frame, &hello(protocol, build)).await.unwrap();
            let server = serve(Some(frame.clone()));
            match observe(&node).await {
                ControlObserved::Foreign(process, cause) => {
                    assert_eq!(process, own);
                    assert!(cause.contains(word), "{cause}");
                }
                other => panic!("{other:?}"),
            }
            let error = client(&node).ping().await.unwrap_err();
            assert_eq!(error.class, Class::Conflict);
            assert!(
                error.cause.contains(&own.to_string()) && error.cause.contains("control.sock"),
                "{error}"
            );
            server.abort();
        }
        let server = serve(Some(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()));
        assert!(matches!(observe(&node).await, ControlObserved::Foreign(..)));
        server.abort();
        let server = serve(None);
        let started = Instant::now();
        assert_eq!(observe(&node).await, ControlObserved::Silent(Some(own.clone())));
        assert!(started.elapsed() < Duration::from_secs(4));
        server.abort();
    });
}

pub fn takes_stale_paths() {
    on_runtime(async {
        let node = Node::new();
        let pin = node.create().await;
        let socket = node.paths.control_socket();
        let stale: [fn(&Path); 5] = [
            |path| std::fs::write(path, b"a file").unwrap(),
            |path| drop(std::os::unix::net::UnixListener::bind(path).unwrap()),
            |path| std::fs::create_dir(path).unwrap(),
            |path| {
                std::fs::create_dir(path).unwrap();
                std::fs::write(path.join("precious"), b"").unwrap();
            },
            |path| std::os::unix::fs::symlink("/nowhere", path).unwrap(),
        ];
        for make in stale {
            make(&socket);
            assert_eq!(observe(&node).await, ControlObserved::Absent);
            let control = node.control(&pin.process).await;
            client(&node).ping().await.unwrap();
            node.keepers.stop_process(&control).await.unwrap();
            assert!(
                std::fs::symlink_metadata(&socket).is_err(),
                "a control that ends takes its socket along"
            );
        }
        let kept = node.paths.runtime.join("control.sock.aside.1/precious");
        assert!(kept.exists(), "a directory's content was lost");
    });
}

fn snapshot(generation: u64) -> Snapshot {
    let gateways = vec![([10, 1, 0, 1].into(), 24)];
    let prefix = PrefixEntry { index: 3, name: "default".to_owned(), gateways };
    Snapshot { generation, prefixes: vec![prefix], ..Snapshot::default() }
}

pub fn restart_serves_the_snapshot() {
    on_runtime(async {
        let node = Node::new();
        let pin = node.create().await;
        let mut control = node.control(&pin.process).await;
        let client = Arc::new(client(&node));
        client.hand_snapshot(&snapshot(5)).await.unwrap();
        client.hand_snapshot(&snapshot(5)).await.unwrap();
        assert_eq!(client.hand_snapshot(&snapshot(4)).await.unwrap_err().class, Class::Conflict);
        let mut times = Vec::new();
        for _ in 0..9 {
            let started = Instant::now();
            node.kill(&control).await;
            // A request that finds no control waits for the next one.
            let waiting = tokio::spawn({
                let client = client.clone();
                async move { client.observe_router().await }
            });
            control = node.control(&pin.process).await;
            times.push(started.elapsed());
            assert_eq!(waiting.await.unwrap().unwrap().namespaces, pin.namespaces);
            assert_eq!(client.snapshot().await.unwrap(), snapshot(5));
        }
        println!("  control killed → serving again: median {:?}", median(times));
        // Killed in the middle of a request: sent once more, to the next control.
        let long = tokio::spawn({
            let client = client.clone();
            async move { client.detach(Slot(400)).await }
        });
        until("the request is under way", || node.paths.state.join("detaching-400").exists()).await;
        node.kill(&control).await;
        node.control(&pin.process).await;
        long.await.unwrap().unwrap();
        until("controls are reaped", || own_zombies().is_empty()).await;
    });
}

pub fn is_one() {
    on_runtime(async {
        let node = Node::new();
        let pin = node.create().await;
        let first = node.control(&pin.process).await;
        // One that serves already is what was asked for: there is never a second.
        assert_eq!(node.keepers.start_control(&pin.process).await.unwrap(), first);
        assert_eq!(client(&node).ping().await.unwrap().process, first);
        // SIGHUP is a logout, not an end.
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(first.pid.cast_signed()),
            nix::sys::signal::Signal::SIGHUP,
        )
        .unwrap();
        assert_eq!(client(&node).ping().await.unwrap().process, first);
    });
}

pub fn notices_the_daemons_end() {
    on_runtime(async {
        let node = Node::new();
        let pin = node.create().await;
        node.control(&pin.process).await;
        let tool = ControlClient::new(&node.paths, Role::Tool);
        let mut daemon = tokio::process::Command::new("/proc/self/exe")
            .arg("connect-as-daemon")
            .arg(node.paths.runtime.parent().unwrap())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut byte = [0u8];
        daemon.stdout.as_mut().unwrap().read_exact(&mut byte).await.unwrap();
        assert_eq!(tool.ping().await.unwrap().daemon_gone_for_ms, None);
        daemon.kill().await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        while tool.ping().await.unwrap().daemon_gone_for_ms.is_none() {
            assert!(Instant::now() < deadline);
        }
        client(&node).ping().await.unwrap();
        assert_eq!(tool.ping().await.unwrap().daemon_gone_for_ms, None);
    });
}

/// A daemon that connects, says so, and waits to be killed.
pub fn connect_as_daemon(base: &OsStr) -> ! {
    let base = Path::new(base);
    let paths = Paths { state: base.join("state"), runtime: base.join("run") };
    on_runtime(async {
        let client = ControlClient::new(&paths, Role::Daemon);
        client.ping().await.unwrap();
        use std::io::{Read, Write};
        std::io::stdout().write_all(b"x").unwrap();
        std::io::stdout().flush().unwrap();
        let _ = std::io::stdin().read(&mut [0u8]);
    });
    std::process::exit(0)
}

/// With the real hands: a bridge outlives control and pin, and the bind that the control makes is a way in.
pub fn real_hands_outlive_control_and_pin() {
    on_runtime(async {
        let node = Node::new();
        std::fs::write(node.paths.state.join("real"), b"").unwrap();
        let pin = node.create().await;
        let control = node.control(&pin.process).await;
        let client = client(&node);
        let plan = network("n1");
        client.ensure_network(&plan).await.unwrap();
        client.ensure_ruleset(&Ruleset::default()).await.unwrap();
        let before = client.observe_router().await.unwrap();
        assert!(before.networks.values().any(|bridge| bridge.index == 1 && bridge.complete), "{before:?}");
        let (monitor, _child) = node.sleeper(&pin.process, &["-n"]).await;
        node.kill(&control).await;
        node.keepers.held().release();
        node.kill(&pin.process).await;
        let container = holdfast_core::id::ContainerId::from_raw("c1");
        let mut hints = hints(&pin);
        hints.containers.insert(container.clone(), (control.clone(), monitor.clone()));
        let keeper = Keeper::Monitor(container, monitor);
        let observed = node.keepers.observe_keepers(&hints).await.unwrap();
        assert_eq!(observed.keepers.iter().map(|found| &found.keeper).collect::<Vec<_>>(), [&keeper]);
        let source = holdfast_core::plan::AdoptSource {
            user: keeper.clone(),
            net: keeper.clone(),
            mount: Some(keeper),
        };
        let adopted = node.noted(node.keepers.adopt_namespaces(&source, &hints).await);
        assert_eq!(adopted.namespaces, pin.namespaces);
        node.control(&adopted.process).await;
        assert_eq!(client.observe_router().await.unwrap(), before);
    });
}

pub fn failure_says_why() {
    on_runtime(async {
        let node = Node::new();
        let pin = node.create().await;
        std::fs::write(node.paths.state.join("refuse"), b"").unwrap();
        let error = node.keepers.start_control(&pin.process).await.unwrap_err();
        assert!(error.cause.contains("the test said so"), "{error}");
        assert!(error.remedy.contains("control.log"), "{error}");
        node.kill(&pin.process).await;
        let error = node.keepers.start_control(&pin.process).await.unwrap_err();
        assert_eq!(error.class, Class::Transient, "{error}");
        let keeper = Keeper::Control(pin.process.clone());
        assert_eq!(node.keepers.enter_user_namespace(&keeper).await.unwrap_err().class, Class::Missing);
    });
}
