//! A busybox image in docker-archive format, made from the machine's own static busybox.
//!
//! Format: <https://github.com/moby/docker-image-spec/blob/main/spec.md>, "Combined Image JSON + Filesystem
//! Changeset Format".

use anyhow::{Context, Result, bail};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::{
    fs::{self, File},
    path::Path,
    process::Command,
    time::Duration,
};
use tar::{Builder, EntryType, Header};

/// What the image is called once loaded.
pub const NAME: &str = "busybox:latest";

/// A container's process that does nothing and ends at once on SIGTERM, which a process 1 must ask for.
pub const PAUSE: &[&str] = &["/bin/pause"];

const PAUSE_SCRIPT: &str = "#!/bin/sh\ntrap 'exit 0' TERM INT\nwhile :; do sleep 3600 & wait $!; done\n";

/// Writes the archive to `path`.
///
/// # Errors
/// When there is no static busybox, and I/O errors.
pub fn write_archive(path: &Path) -> Result<()> {
    let layer = layer()?;
    let diff_id = hex(&layer);
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": { "Env": ["PATH=/bin"], "Cmd": ["/bin/sh"], "WorkingDir": "/" },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{diff_id}")] },
    })
    .to_string();
    let config_name = format!("{}.json", hex(config.as_bytes()));
    let layer_name = format!("{diff_id}/layer.tar");
    let manifest = json!([{ "Config": config_name, "RepoTags": [NAME], "Layers": [layer_name] }]).to_string();
    let mut archive = Builder::new(File::create(path).with_context(|| format!("create {}", path.display()))?);
    add_file(&mut archive, &config_name, config.as_bytes(), 0o644)?;
    add_file(&mut archive, &layer_name, &layer, 0o644)?;
    add_file(&mut archive, "manifest.json", manifest.as_bytes(), 0o644)?;
    archive.into_inner()?.sync_all()?;
    Ok(())
}

fn layer() -> Result<Vec<u8>> {
    let busybox = fs::read("/bin/busybox").context("read /bin/busybox (install busybox-static)")?;
    if wants_interpreter(&busybox).context("/bin/busybox is no 64-bit ELF file")? {
        bail!("/bin/busybox is not static: install busybox-static");
    }
    let applets = crate::command::run(Command::new("/bin/busybox").arg("--list"), Duration::from_secs(10))?
        .success("busybox --list")?;
    let mut layer = Builder::new(Vec::new());
    for directory in ["bin", "dev", "etc", "proc", "root", "sys", "tmp", "www"] {
        let mode = if directory == "tmp" { 0o1777 } else { 0o755 };
        layer.append_data(&mut header(EntryType::Directory, 0, mode), format!("{directory}/"), &[][..])?;
    }
    add_file(&mut layer, "bin/busybox", &busybox, 0o755)?;
    for applet in applets.lines().filter(|applet| *applet != "busybox") {
        layer.append_link(&mut header(EntryType::Symlink, 0, 0o777), format!("bin/{applet}"), "busybox")?;
    }
    add_file(&mut layer, "bin/pause", PAUSE_SCRIPT.as_bytes(), 0o755)?;
    add_file(&mut layer, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n", 0o644)?;
    add_file(&mut layer, "etc/group", b"root:x:0:\n", 0o644)?;
    add_file(&mut layer, "www/index.html", b"held fast\n", 0o644)?;
    Ok(layer.into_inner()?)
}

/// Whether an ELF file has a `PT_INTERP` program header, which a static one has not: elf(5).
fn wants_interpreter(elf: &[u8]) -> Option<bool> {
    const PT_INTERP: u32 = 3;
    if elf.get(..5)? != b"\x7fELF\x02" {
        return None;
    }
    let offset = u64::from_le_bytes(elf.get(32..40)?.try_into().ok()?) as usize;
    let size = usize::from(u16::from_le_bytes(elf.get(54..56)?.try_into().ok()?));
    let count = usize::from(u16::from_le_bytes(elf.get(56..58)?.try_into().ok()?));
    let mut kinds = (0..count).map(|index| {
        let at = offset.checked_add(index.checked_mul(size)?)?;
        Some(u32::from_le_bytes(elf.get(at..at.checked_add(4)?)?.try_into().ok()?))
    });
    Some(kinds.any(|kind| kind == Some(PT_INTERP)))
}

fn header(kind: EntryType, size: u64, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn add_file<W: std::io::Write>(archive: &mut Builder<W>, path: &str, bytes: &[u8], mode: u32) -> Result<()> {
    archive.append_data(&mut header(EntryType::Regular, bytes.len() as u64, mode), path, bytes)?;
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn a_dynamic_program_is_told_from_a_static_one() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(wants_interpreter(&own), Some(true), "tests are linked dynamically");
        assert_eq!(wants_interpreter(&fs::read("/bin/busybox").unwrap()), Some(false));
        assert_eq!(wants_interpreter(b"#!/bin/sh"), None);
        assert_eq!(wants_interpreter(&own[..70]), Some(false), "cut short, no header is read beyond its end");
    }

    #[test]
    fn the_archive_names_layer_and_config_by_their_digests() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("busybox.tar");
        write_archive(&path).unwrap();
        let mut archive = tar::Archive::new(File::open(&path).unwrap());
        let mut files = std::collections::BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
            files.insert(entry.path().unwrap().display().to_string(), bytes);
        }
        let manifest: serde_json::Value = serde_json::from_slice(&files["manifest.json"]).unwrap();
        let config_name = manifest[0]["Config"].as_str().unwrap();
        assert_eq!(config_name, format!("{}.json", hex(&files[config_name])));
        let config: serde_json::Value = serde_json::from_slice(&files[config_name]).unwrap();
        let layer = &files[manifest[0]["Layers"][0].as_str().unwrap()];
        assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", hex(layer)));
    }
}
