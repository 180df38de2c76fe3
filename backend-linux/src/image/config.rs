//! An image's configuration: <https://github.com/opencontainers/image-spec/blob/main/config.md>, and its user.

use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

/// The largest /etc/passwd or /etc/group that is read.
const USERS_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The part of an image's configuration that Holdfast uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct ImageConfig {
    /// Defaults of the process.
    #[serde(default)]
    pub(super) config: Option<ProcessConfig>,
    /// The layers.
    #[serde(default)]
    pub(super) rootfs: RootfsConfig,
}

/// Digests of the uncompressed layers, lowest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct RootfsConfig {
    #[serde(default)]
    pub(super) diff_ids: Vec<String>,
}

/// Defaults of the process; docker writes `null` for what is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ProcessConfig {
    #[serde(default)]
    pub(super) entrypoint: Option<Vec<String>>,
    #[serde(default)]
    pub(super) cmd: Option<Vec<String>>,
    #[serde(default)]
    pub(super) env: Option<Vec<String>>,
    #[serde(default)]
    pub(super) working_dir: Option<String>,
    #[serde(default)]
    pub(super) user: Option<String>,
}

/// Hexadecimal sha256.
pub(super) fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Hexadecimal digits of a digest.
pub(super) fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The numbers of `user[:group]`, each a number or a name that the image's /etc/passwd and /etc/group know. `layers`
/// lowest first.
///
/// # Errors
/// `NotFound` for a name that the image does not know.
pub(super) fn resolve_user(user: &str, layers: &[PathBuf]) -> io::Result<(u32, u32)> {
    let (user, group) = match user.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (user, None),
    };
    if user.is_empty() && group.is_none() {
        return Ok((0, 0));
    }
    let passwd = read_top(layers, "etc/passwd")?;
    let unknown = |what: &str, name: &str| {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("the image's {what} {name:?} is in none of its /etc files"),
        )
    };
    // passwd(5): name:password:uid:gid:…
    let by_name = |text: &str, name: &str| {
        text.lines()
            .map(|line| line.split(':').collect::<Vec<_>>())
            .find(|fields| fields[0] == name || fields.get(2) == Some(&name))
            .map(|fields| {
                (
                    fields.get(2).and_then(|id| id.parse::<u32>().ok()),
                    fields.get(3).and_then(|id| id.parse::<u32>().ok()),
                )
            })
    };
    let entry = by_name(&passwd, if user.is_empty() { "0" } else { user });
    let uid = match user {
        "" => Some(0),
        user => user.parse().ok().or_else(|| entry.and_then(|(uid, _)| uid)),
    };
    let uid = uid.ok_or_else(|| unknown("user", user))?;
    let gid = match group {
        None | Some("") => entry.and_then(|(_, gid)| gid).unwrap_or(0),
        Some(group) => match group.parse() {
            Ok(gid) => gid,
            Err(_) => by_name(&read_top(layers, "etc/group")?, group)
                .and_then(|(gid, _)| gid)
                .ok_or_else(|| unknown("group", group))?,
        },
    };
    Ok((uid, gid))
}

/// The file as the stacked layers show it; empty where none has it. Links are followed inside the layer only.
fn read_top(layers: &[PathBuf], name: &str) -> io::Result<String> {
    for layer in layers.iter().rev() {
        match open_in(layer, Path::new(name)) {
            // A whiteout: deleted by this layer.
            Ok(file) if file.metadata()?.file_type().is_char_device() => return Ok(String::new()),
            Ok(file) => {
                let mut text = Vec::new();
                file.take(USERS_BYTES_MAX).read_to_end(&mut text)?;
                return Ok(String::from_utf8_lossy(&text).into_owned());
            }
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ENXIO)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(String::new())
}

/// Opens a file of a layer as if the layer were the root: openat2(2).
fn open_in(layer: &Path, name: &Path) -> io::Result<File> {
    use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
    let directory = File::open(layer)?;
    let how = |flags| {
        OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS)
    };
    // Looked at first: opening a device or a fifo would act on it.
    let found = File::from(openat2(&directory, name, how(OFlag::O_PATH | OFlag::O_CLOEXEC))?);
    if !found.metadata()?.is_file() {
        return Ok(found);
    }
    Ok(File::from(openat2(&directory, name, how(OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC))?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn users_are_numbers_or_names_of_the_top_layer_that_has_them() {
        let directory = tempfile::tempdir().unwrap();
        let layers: Vec<PathBuf> = ["low", "high"].iter().map(|name| directory.path().join(name)).collect();
        for layer in &layers {
            std::fs::create_dir_all(layer.join("etc")).unwrap();
        }
        std::fs::write(layers[0].join("etc/passwd"), "root:x:0:0::/:/bin/sh\nweb:x:33:34::/:/bin/sh\n")
            .unwrap();
        std::fs::write(layers[1].join("etc/group"), "www:x:99:\n").unwrap();
        let check = |user: &str, expected: (u32, u32)| {
            assert_eq!(resolve_user(user, &layers).unwrap(), expected, "{user}")
        };
        check("", (0, 0));
        check("web", (33, 34));
        check("33", (33, 34));
        check("7", (7, 0));
        check("7:8", (7, 8));
        check("web:www", (33, 99));
        assert_eq!(resolve_user("nobody", &layers).unwrap_err().kind(), io::ErrorKind::NotFound);
        // A link out of the layer leads back into it.
        std::fs::remove_file(layers[1].join("etc/group")).unwrap();
        std::os::unix::fs::symlink("/../../../../../../etc/group", layers[1].join("etc/group")).unwrap();
        assert!(resolve_user("0:root", &layers).is_err());
    }
}
