//! Archives and root file systems made from the host's busybox.

use flate2::{Compression, write::GzEncoder};
use sha2::{Digest, Sha256};
use std::{io::Write, path::Path};

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn busybox() -> Vec<u8> {
    std::fs::read("/bin/busybox").expect("busybox is missing: install the package busybox-static")
}

const APPLETS: [&str; 22] = [
    "sh", "cat", "sleep", "env", "id", "hostname", "ls", "stat", "touch", "kill", "printf", "pwd", "mount",
    "stty", "ps", "test", "grep", "true", "head", "wc", "mkdir", "tr",
];

pub fn busybox_rootfs(root: &Path) {
    std::fs::create_dir_all(root.join("bin")).unwrap();
    std::fs::create_dir_all(root.join("tmp")).unwrap();
    std::fs::write(root.join("bin/busybox"), busybox()).unwrap();
    std::fs::set_permissions(root.join("bin/busybox"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    for applet in APPLETS {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet)).unwrap();
    }
}

/// One entry of a layer.
pub enum Entry<'a> {
    Dir(&'a str, u32),
    File(&'a str, &'a [u8], u32),
    Symlink(&'a str, &'a str),
    Hardlink(&'a str, &'a str),
    Device(&'a str),
}

/// A tar; names are written raw, so that hostile ones are possible. (uid, gid) owns everything.
pub fn layer(entries: &[Entry<'_>], owner: (u64, u64)) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for entry in entries {
        let mut header = tar::Header::new_gnu();
        let (name, kind, link, data, mode) = match entry {
            Entry::Dir(name, mode) => (*name, tar::EntryType::Directory, "", &b""[..], *mode),
            Entry::File(name, data, mode) => (*name, tar::EntryType::Regular, "", *data, *mode),
            Entry::Symlink(name, to) => (*name, tar::EntryType::Symlink, *to, &b""[..], 0o777),
            Entry::Hardlink(name, to) => (*name, tar::EntryType::Link, *to, &b""[..], 0o644),
            Entry::Device(name) => (*name, tar::EntryType::Char, "", &b""[..], 0o666),
        };
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_gnu_mut().unwrap().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_size(data.len() as u64);
        header.set_mode(mode);
        header.set_uid(owner.0);
        header.set_gid(owner.1);
        header.set_mtime(1_000_000_000);
        if matches!(entry, Entry::Device(_)) {
            header.set_device_major(1).unwrap();
            header.set_device_minor(3).unwrap();
        }
        header.set_cksum();
        builder.append(&header, data).unwrap();
    }
    builder.into_inner().unwrap()
}

pub fn busybox_layer() -> Vec<u8> {
    let busybox = busybox();
    let mut entries = vec![
        Entry::Dir("bin", 0o755),
        Entry::Dir("tmp", 0o1777),
        Entry::File("bin/busybox", &busybox, 0o755),
    ];
    let names: Vec<String> = APPLETS.iter().map(|applet| format!("bin/{applet}")).collect();
    entries.extend(names.iter().map(|name| Entry::Symlink(name, "busybox")));
    layer(&entries, (0, 0))
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn tar_of(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let entries: Vec<Entry<'_>> = files.iter().map(|(name, data)| Entry::File(name, data, 0o644)).collect();
    layer(&entries, (0, 0))
}

/// What `docker save` writes. Layers as given may be gzipped; `diff_ids` are of the plain ones.
pub fn docker_archive(tag: &str, config: &str, layers: &[Vec<u8>], diff_ids: &[String]) -> Vec<u8> {
    let ids = diff_ids.iter().map(|id| format!("\"sha256:{id}\"")).collect::<Vec<_>>().join(",");
    let config =
        format!(r#"{{"config":{config},"rootfs":{{"type":"layers","diff_ids":[{ids}]}}}}"#).into_bytes();
    let config_name = format!("{}.json", sha256(&config));
    let names: Vec<String> = (0..layers.len()).map(|number| format!("layer{number}/layer.tar")).collect();
    let list = names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(",");
    let manifest = format!(r#"[{{"Config":"{config_name}","RepoTags":["{tag}"],"Layers":[{list}]}}]"#);
    let mut files = vec![(config_name, config)];
    files.extend(names.into_iter().zip(layers.iter().cloned()));
    files.push(("manifest.json".into(), manifest.into_bytes()));
    tar_of(&files)
}

/// An OCI image layout of one image.
pub fn oci_archive(name: &str, config: &str, layers: &[Vec<u8>], diff_ids: &[String]) -> Vec<u8> {
    let ids = diff_ids.iter().map(|id| format!("\"sha256:{id}\"")).collect::<Vec<_>>().join(",");
    let config =
        format!(r#"{{"config":{config},"rootfs":{{"type":"layers","diff_ids":[{ids}]}}}}"#).into_bytes();
    let descriptor = |bytes: &[u8]| format!(r#""digest":"sha256:{}","size":{}"#, sha256(bytes), bytes.len());
    let list = layers.iter().map(|layer| format!("{{{}}}", descriptor(layer))).collect::<Vec<_>>().join(",");
    let manifest = format!(r#"{{"config":{{{}}},"layers":[{list}]}}"#, descriptor(&config)).into_bytes();
    let index = format!(
        r#"{{"manifests":[{{{},"annotations":{{"org.opencontainers.image.ref.name":"{name}"}}}}]}}"#,
        descriptor(&manifest)
    );
    let mut files =
        vec![("oci-layout".to_owned(), b"{}".to_vec()), ("index.json".to_owned(), index.into_bytes())];
    for blob in layers.iter().chain([&config, &manifest]) {
        files.push((format!("blobs/sha256/{}", sha256(blob)), blob.clone()));
    }
    tar_of(&files)
}
