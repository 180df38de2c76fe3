//! Images.

use crate::{
    archive::{Entry, busybox_layer, docker_archive, gzip, layer, oci_archive, sha256},
    node::Node,
};
use holdfast_core::{error::Class, id::ImageId, plan::ContainerPlan, spec::RootSource};
use holdfast_linux::{
    container::Tools,
    image::{ImageLimits, LinuxImages, LoadedImage},
};
use std::path::PathBuf;

fn save(node: &Node, bytes: &[u8]) -> PathBuf {
    let path = node.directory.path().join("archive.tar");
    std::fs::write(&path, bytes).unwrap();
    path
}

fn plan(node: &Node, image: &LoadedImage, argv: &[&str]) -> ContainerPlan {
    let mut plan = node.plan("000000000001", argv);
    plan.rootfs.root = RootSource::Image(image.id.clone());
    plan.rootfs.layers = image.layers.clone();
    (plan.env, plan.working_dir, plan.user) = (image.env.clone(), image.working_dir.clone(), image.user);
    plan
}

fn left(node: &Node) -> Vec<String> {
    let entries = std::fs::read_dir(node.paths.layers()).into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

pub async fn a_docker_archive_runs_with_its_defaults() {
    let node = Node::new();
    let base = busybox_layer();
    let passwd = b"root:x:0:0::/:/bin/sh\nweb:x:33:34::/:/bin/sh\n";
    let entries = [
        Entry::Dir("etc", 0o755),
        Entry::File("etc/passwd", passwd, 0o644),
        Entry::Dir("srv", 0o2750),
        Entry::File("srv/suid", b"x", 0o4711),
        Entry::Device("dev-null"),
        Entry::Hardlink("srv/same", "srv/suid"),
    ];
    let top = layer(&entries, (33, 34));
    let config = r#"{"Entrypoint":["/bin/sh","-c"],"Cmd":["id -u; id -g; pwd; echo $V; stat -c '%a %u %g %h %Y' /srv /srv/suid"],"Env":["PATH=/bin","V=a=b"],"WorkingDir":"/srv","User":"web"}"#;
    let ids = [sha256(&base), sha256(&top)];
    for (zipped, layers) in [(false, [base.clone(), top.clone()]), (true, [gzip(&base), gzip(&top)])] {
        let mut archive = docker_archive("box:latest", config, &layers, &ids);
        if zipped {
            archive = gzip(&archive);
        }
        let image = node.images.load(&save(&node, &archive), Some("mine:1"), Some(&node.pin)).await.unwrap();
        assert_eq!(image.names, ["box:latest", "mine:1"]);
        assert_eq!(image.layers, ids);
        assert_eq!((image.user, image.working_dir.as_str(), image.entrypoint.len()), ((33, 34), "/srv", 2));
        assert!(image.size_bytes > 100_000);
        if !zipped {
            assert!(
                image.warnings.iter().any(|warning| warning.contains("/dev-null")),
                "{:?}",
                image.warnings
            );
        }
        let argv: Vec<&str> = image.entrypoint.iter().chain(&image.command).map(String::as_str).collect();
        let (text, code) = node.output(&plan(&node, &image, &argv)).await;
        assert_eq!(text, "33\n34\n/srv\na=b\n2750 33 34 2 1000000000\n4711 33 34 2 1000000000", "{code:?}");
        if zipped {
            // Loading it again unpacks nothing and says the same.
            let again = node.images.load(&save(&node, &archive), None, Some(&node.pin)).await.unwrap();
            assert_eq!((again.id, again.size_bytes), (image.id, image.size_bytes));
        }
        node.images.remove_layers(&image.layers, Some(&node.pin)).await.unwrap();
        assert_eq!(left(&node), [""; 0]);
        if !zipped {
            continue;
        }
        node.images.remove_layers(&image.layers, Some(&node.pin)).await.unwrap();
    }
    node.assert_clean();
}

pub async fn whiteouts_and_opaque_directories_hide_lower_layers() {
    let node = Node::new();
    let lower = layer(
        &[
            Entry::File("gone", b"x", 0o644),
            Entry::File("kept", b"x", 0o644),
            Entry::Dir("dir", 0o755),
            Entry::File("dir/old", b"x", 0o644),
            Entry::Dir("tree", 0o755),
            Entry::File("tree/x", b"x", 0o644),
        ],
        (0, 0),
    );
    let upper = layer(
        &[
            Entry::File(".wh.gone", b"", 0o644),
            Entry::Dir("dir", 0o755),
            Entry::File("dir/.wh..wh..opq", b"", 0o644),
            Entry::File("dir/new", b"x", 0o644),
            Entry::File(".wh.tree", b"", 0o644),
        ],
        (0, 0),
    );
    let layers = [busybox_layer(), lower, upper];
    let ids: Vec<String> = layers.iter().map(|layer| sha256(layer)).collect();
    let file = save(&node, &docker_archive("w:1", "null", &layers, &ids));
    let image = node.images.load(&file, None, Some(&node.pin)).await.unwrap();
    let (text, code) = node
        .output(&plan(&node, &image, &["/bin/sh", "-c", "ls -d /gone /kept /tree 2>/dev/null; ls /dir"]))
        .await;
    assert_eq!(text, "/kept\nnew", "{code:?}");
    node.images.remove_layers(&image.layers, Some(&node.pin)).await.unwrap();
    node.assert_clean();
}

pub async fn hostile_archives_stay_inside_and_leave_nothing() {
    let node = Node::new();
    let outside = node.directory.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), "untouched").unwrap();
    let target = outside.to_str().unwrap();
    let through = format!("{target}/file");
    let cases: [(&[Entry<'_>], bool); 7] = [
        (&[Entry::File("../escaped", b"x", 0o644)], true),
        (&[Entry::File("a/../../escaped", b"x", 0o644)], true),
        (&[Entry::File("/absolute", b"x", 0o644)], false),
        (&[Entry::Symlink("out", "/"), Entry::File("out/tmp-escaped", b"x", 0o644)], false),
        (&[Entry::Symlink("out", target), Entry::File("out/file", b"overwritten", 0o644)], true),
        (&[Entry::Hardlink("hard", &through)], true),
        (&[Entry::Symlink("file", &through), Entry::File("file", b"overwritten", 0o644)], false),
    ];
    for (number, (entries, refused)) in cases.into_iter().enumerate() {
        let bytes = layer(entries, (0, 0));
        let file =
            save(&node, &docker_archive("h:1", "null", std::slice::from_ref(&bytes), &[sha256(&bytes)]));
        match node.images.load(&file, None, Some(&node.pin)).await {
            Ok(image) => {
                assert!(!refused, "case {number} was accepted");
                node.images.remove_layers(&image.layers, Some(&node.pin)).await.unwrap();
            }
            Err(error) => assert!(refused, "case {number}: {error}"),
        }
        assert_eq!(left(&node), [""; 0], "case {number}");
        assert_eq!(std::fs::read_to_string(outside.join("file")).unwrap(), "untouched", "case {number}");
        for path in ["/absolute", "/tmp-escaped", "/escaped"] {
            assert!(!std::path::Path::new(path).exists(), "case {number}: {path}");
        }
        assert!(!node.paths.state.join("escaped").exists() && !node.paths.layers().join("escaped").exists());
    }
    node.assert_clean();
}

pub async fn digests_limits_and_damage_are_refused() {
    let node = Node::new();
    let good = layer(&[Entry::File("file", &[7; 5000], 0o644)], (0, 0));
    let good = std::slice::from_ref(&good);
    let unmapped = layer(&[Entry::File("file", b"x", 0o644)], (1_999_999, 0));
    let whole = docker_archive("d:1", "null", good, &[sha256(&good[0])]);
    let mut cut = whole.clone();
    cut.truncate(2000);
    let cases: [(&str, Vec<u8>, Class); 5] = [
        ("digest", docker_archive("d:1", "null", good, &[sha256(b"other")]), Class::Corrupt),
        ("cut", cut, Class::Corrupt),
        ("garbage", vec![b'z'; 4096], Class::Corrupt),
        ("gzip garbage", [&[0x1f, 0x8b][..], &[0; 100]].concat(), Class::Corrupt),
        (
            "unmapped owner",
            docker_archive("d:1", "null", std::slice::from_ref(&unmapped), &[sha256(&unmapped)]),
            Class::Denied,
        ),
    ];
    for (name, bytes, class) in cases {
        let error = node.images.load(&save(&node, &bytes), None, Some(&node.pin)).await.unwrap_err();
        assert_eq!(error.class, class, "{name}: {error}");
        assert!(error.to_string().contains("archive.tar"), "{name}: {error}");
        assert_eq!(left(&node), [""; 0], "{name}");
    }
    let tools = Tools::find(std::env::current_exe().unwrap());
    for limits in [
        ImageLimits { layer_bytes_max: 4000, ..ImageLimits::default() },
        ImageLimits { layer_entries_max: 0, ..ImageLimits::default() },
        ImageLimits { layers_max: 0, ..ImageLimits::default() },
    ] {
        let images = LinuxImages::new(node.paths.clone(), tools.clone(), limits);
        for bytes in [whole.clone(), gzip(&whole)] {
            let error = images.load(&save(&node, &bytes), None, Some(&node.pin)).await.unwrap_err();
            assert_eq!(error.class, Class::Exhausted, "{limits:?}: {error}");
        }
    }
    let error =
        node.images.load(&node.directory.path().join("absent"), None, Some(&node.pin)).await.unwrap_err();
    assert_eq!(error.class, Class::Missing, "{error}");
    node.assert_clean();
}

pub async fn a_root_file_system_loads_with_and_without_a_pin() {
    let node = Node::new();
    let rootfs = busybox_layer();
    let mut ids: Vec<ImageId> = Vec::new();
    for (pin, bytes) in [(Some(&node.pin), rootfs.clone()), (None, gzip(&rootfs))] {
        let image = node.images.load(&save(&node, &bytes), Some("root:1"), pin).await.unwrap();
        assert_eq!(
            (image.names.as_slice(), image.layers.as_slice()),
            (&["root:1".to_owned()][..], &[sha256(&rootfs)][..])
        );
        let (text, code) = node.output(&plan(&node, &image, &["/bin/sh", "-c", "echo $0 runs"])).await;
        assert_eq!((text.as_str(), code), ("/bin/sh runs", Some(0)));
        node.images.remove_layers(&image.layers, pin).await.unwrap();
        assert_eq!(left(&node), [""; 0]);
        ids.push(image.id);
    }
    assert_eq!(ids[0], ids[1]);
    node.assert_clean();
}

pub async fn an_oci_layout_loads() {
    let node = Node::new();
    let plain = busybox_layer();
    let zipped = gzip(&plain);
    let archive =
        oci_archive("oci:2", r#"{"Cmd":["/bin/true"]}"#, std::slice::from_ref(&zipped), &[sha256(&plain)]);
    let image = node.images.load(&save(&node, &archive), None, Some(&node.pin)).await.unwrap();
    assert_eq!(
        (image.names.as_slice(), image.layers.as_slice()),
        (&["oci:2".to_owned()][..], &[sha256(&plain)][..])
    );
    assert_eq!(node.output(&plan(&node, &image, &["/bin/true"])).await.1, Some(0));
    node.images.remove_layers(&image.layers, Some(&node.pin)).await.unwrap();
    node.assert_clean();
}

/// The unpacker on a disk of 256 KiB, which a user may mount in a user namespace.
pub async fn a_full_disk_is_said_to_be_one() {
    let node = Node::new();
    let bytes = layer(&[Entry::File("big", &vec![7; 1 << 20], 0o644)], (0, 0));
    let (file, disk) = (save(&node, &bytes), node.directory.path().join("disk"));
    std::fs::create_dir(&disk).unwrap();
    let script = "mount -t tmpfs -o size=256k tmpfs \"$1\" && exec \"$2\" internal unpack \"$1/layer\" 0 \"$3\" 99999999 99 - - < \"$4\"";
    let output = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .args([&disk, &std::env::current_exe().unwrap()])
        .arg(bytes.len().to_string())
        .arg(&file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("\"class\":\"exhausted\"") && said.contains("/big"),
        "{said}"
    );
    node.assert_clean();
}
