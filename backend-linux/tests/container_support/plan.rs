//! Whether a start does what its plan says.

use crate::node::{HOSTNAME, Node};
use holdfast_core::{error::Class, spec::BindMount, world::Containers};

/// Destructured, so that a new field does not compile before it is looked at here.
pub async fn every_field_of_the_plan_shows_in_the_container() {
    let node = Node::new();
    let data = node.directory.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("file"), "from the host").unwrap();
    let script = "id -u; id -g; pwd; hostname; cat /etc/hostname; cat /etc/hosts; echo \"X=$X\"; cat /rw/file; echo; \
        touch /rw/made && echo rw-ok; touch /ro/made 2>/dev/null || echo ro-refused; touch /tmp/x && echo upper-ok; \
        cat /etc/resolv.conf; stat -c %i -L /proc/self/ns/net; stat -c %i -L /proc/self/ns/ipc; \
        stat -c %i -L /proc/self/ns/uts; grep CapEff /proc/self/status; echo pid $$; \
        wc -c < /proc/timer_list";
    let mut plan = node.plan("000000000001", &["/bin/sh", "-c", script]);
    plan.env = vec![("X".into(), "a".into()), ("X".into(), "b c".into())];
    plan.working_dir = "/tmp".into();
    let source = data.to_str().unwrap().to_owned();
    plan.mounts = vec![
        BindMount { source: source.clone(), target: "/rw".into(), read_only: false, beneath: None },
        BindMount { source, target: "/ro".into(), read_only: true, beneath: None },
    ];
    *plan.resolver = holdfast_core::plan::ResolverPlan {
        servers: vec!["10.9.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        search: vec!["a.example".into(), "b.example".into()],
        options: vec!["ndots:2".into()],
        host_servers: false,
        host_search: false,
    };
    plan.hosts = vec![("10.9.8.7".into(), "box peer".into()), ("other".into(), "fd00::7".into())];
    let holdfast_core::plan::ContainerPlan {
        id: _,
        name: _,
        incarnation: _,
        sandbox: _,
        rootfs: _,
        argv: _,
        env: _,
        working_dir: _,
        user: _,
        mounts: _,
        hostname: _,
        hosts: _,
        resolver: _,
        security: _,
    } = &plan;
    let (text, code) = node.output(&plan).await;
    assert_eq!(code, Some(0), "{text}");
    let has = |needle: &str| assert!(text.contains(needle), "no {needle:?} in\n{text}");
    assert!(
        text.starts_with(&format!("0\n0\n/tmp\n{HOSTNAME}\n{HOSTNAME}\n127.0.0.1\tlocalhost\n")),
        "{text}"
    );
    for needle in [
        "10.9.8.7\tbox peer\n",
        "fd00::7\tother\n",
        "X=b c\n",
        "from the host\n",
        "rw-ok\n",
        "ro-refused\n",
        "upper-ok\n",
        "search a.example b.example\nnameserver 10.9.0.1\nnameserver fd00::1\noptions ndots:2\n",
        "pid 1\n",
    ] {
        has(needle);
    }
    // podman's default set and CAP_NET_RAW, as the kernel prints them.
    has("CapEff:\t00000000800425fb");
    assert!(text.ends_with("\n0"), "/proc/timer_list is not masked:\n{text}");
    assert!(data.join("made").exists());
    assert!(!node.rootfs.join("tmp/x").exists(), "the lower layer was written");
    let sandbox = node.paths.sandbox(crate::node::SANDBOX);
    for name in ["net", "ipc", "uts"] {
        let bound = format!("/proc/{}/root{}", node.pin.pid, sandbox.join(name).display());
        has(&format!("\n{}\n", std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(bound).unwrap())));
    }
    let started_log = node.containers.log_path(&plan.id);
    assert!(!started_log.exists());
    node.assert_clean();
}

pub async fn argv_and_env_arrive_exactly() {
    let node = Node::new();
    let odd = ["", "a b", "quote\"'`", "$HOME", "back\\slash", "*", "ümläut"];
    let argv: Vec<&str> = ["/bin/printf", "[%s]"].into_iter().chain(odd).chain(["new\nline"]).collect();
    let (text, code) = node.output(&node.plan("000000000001", &argv)).await;
    let expected: String = odd.iter().map(|text| format!("[{text}]")).collect();
    assert_eq!((text, code), (format!("{expected}[new\nline]"), Some(0)));
    let mut plan = node.plan("000000000002", &["env"]);
    plan.env = vec![
        ("HOME".into(), "/x".into()),
        ("EMPTY".into(), String::new()),
        ("ODD".into(), "a=\"b\" $c".into()),
        ("PATH".into(), "/bin".into()),
    ];
    let (text, _) = node.output(&plan).await;
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["EMPTY=", "HOME=/x", "ODD=a=\"b\" $c", "PATH=/bin"]);
    node.assert_clean();
}

pub async fn a_missing_command_mount_or_layer_is_named_and_leaves_nothing() {
    let node = Node::new();
    std::fs::write(node.rootfs.join("tmp/plain"), "not a program").unwrap();
    let mut missing_mount = node.plan("000000000003", &["/bin/true"]);
    missing_mount.mounts = vec![BindMount {
        source: "/nonexistent/x".into(),
        target: "/x".into(),
        read_only: false,
        beneath: None,
    }];
    let mut missing_root = node.plan("000000000004", &["/bin/true"]);
    missing_root.rootfs.root = holdfast_core::spec::RootSource::Directory("/nonexistent/root".into());
    let mut unmapped = node.plan("000000000006", &["/bin/true"]);
    unmapped.user = (4_000_000_000, 0);
    let cases = [
        (node.plan("000000000001", &["/bin/nope"]), Class::Missing, "/bin/nope"),
        (node.plan("000000000002", &["nope"]), Class::Missing, "nope"),
        (missing_mount, Class::Missing, "/nonexistent/x"),
        (missing_root, Class::Missing, "/nonexistent/root"),
        (node.plan("000000000005", &["/tmp/plain"]), Class::Denied, "/tmp/plain"),
    ];
    for (plan, class, needle) in cases {
        let error = node.containers.start_container(&plan, &node.pin).await.unwrap_err();
        assert!(
            error.to_string().contains(needle) && error.to_string().contains(plan.id.as_str()),
            "{error}"
        );
        assert_eq!(error.class, class, "{error}");
        let observed = node.observe(&plan, None).await;
        assert!(observed.init.is_none() && observed.monitor.is_none() && !observed.remains, "{observed:?}");
        node.containers.remove_files(&plan.id, Some(&node.pin)).await.unwrap();
    }
    assert!(node.containers.start_container(&unmapped, &node.pin).await.is_err());
    node.containers.remove_files(&unmapped.id, Some(&node.pin)).await.unwrap();
    node.assert_clean();
}

/// Longer than a socket's path may be, with all the characters that mount options and lists give a meaning.
pub async fn a_state_directory_with_a_long_and_odd_name_works() {
    let name = format!("{}/a,b\\c d=e", "long".repeat(40));
    let node = Node::named(&name);
    let (text, code) =
        node.output(&node.plan("000000000001", &["/bin/sh", "-c", "touch /tmp/x; echo ok"])).await;
    assert_eq!((text.as_str(), code), ("ok", Some(0)));
    node.assert_clean();
    // A colon is refused, and not misread: conmon would log elsewhere.
    let node = Node::named("a:b");
    let plan = node.plan("000000000001", &["/bin/true"]);
    let error = node.containers.start_container(&plan, &node.pin).await.unwrap_err();
    assert!(error.class == Class::Denied && error.to_string().contains("colon"), "{error}");
    node.containers.remove_files(&plan.id, Some(&node.pin)).await.unwrap();
    node.assert_clean();
}
