//! Files of offloaded pods: volumes written with exact bytes and modes, and the logs of pods that are gone.
//!
//! What the daemon writes belongs to the node's user, who is root inside; what containers of other users write belongs
//! to subordinate ids, so that it is removed from inside.

use crate::{
    container::{Inside, Tools},
    paths::Paths,
};
use holdfast_core::{
    error::{Class, VolumeError},
    id::ContainerId,
    interlink::{
        next::PodPlace,
        record::{HostPathKind, VolumeFile, VolumeSource, VolumeWanted},
    },
};
use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2},
    sys::stat::{Mode, mkdirat},
};
use std::{
    fs::{self, File, Permissions},
    io::{self, Write},
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    time::Duration,
};

/// How long the removal of a pod's files may take.
const REMOVE_DEADLINE: Duration = Duration::from_secs(300);

/// [`holdfast_core::world::PodFiles`] of a real node.
#[derive(Clone, Debug)]
pub struct LinuxPodFiles {
    paths: Paths,
    tools: Tools,
}

impl LinuxPodFiles {
    /// Files below these paths, removed with the help of these tools.
    pub fn new(paths: Paths, tools: Tools) -> Self {
        Self { paths, tools }
    }

    fn volumes(&self, jid: &str) -> PathBuf {
        self.paths.pod(jid).join("volumes")
    }

    /// Where the log of a container of a pod that is gone is kept.
    pub fn kept_log(&self, jid: &str, container: &str) -> PathBuf {
        self.paths.pod(jid).join("logs").join(format!("{container}.log"))
    }

    /// See [`holdfast_core::world::PodFiles::pod_place`].
    pub fn place(&self, jid: &str) -> PodPlace {
        PodPlace { volumes: self.volumes(jid).display().to_string() }
    }

    /// See [`holdfast_core::world::PodFiles::write_volumes`].
    ///
    /// # Errors
    /// `Missing` or `Conflict` for a host path that is not what it must be, and I/O errors.
    pub async fn write_volumes(&self, jid: &str, volumes: &[VolumeWanted]) -> Result<(), VolumeError> {
        let (directory, volumes) = (self.volumes(jid), volumes.to_vec());
        blocking("write the volumes of", jid, move || write_all(&directory, &volumes)).await
    }

    /// See [`holdfast_core::world::PodFiles::keep_logs`].
    ///
    /// # Errors
    /// I/O errors.
    pub async fn keep_logs(&self, jid: &str, logs: &[(ContainerId, String)]) -> Result<(), VolumeError> {
        let pairs: Vec<(PathBuf, PathBuf)> = logs
            .iter()
            .map(|(id, name)| (self.paths.container(id.as_str()).join("log"), self.kept_log(jid, name)))
            .collect();
        blocking("keep the logs of", jid, move || {
            for (from, to) in pairs {
                link(&from, &to).map_err(|error| io_fail("keep the log", &to, &error))?;
            }
            Ok(())
        })
        .await
    }

    /// See [`holdfast_core::world::PodFiles::remove_volumes`].
    ///
    /// # Errors
    /// I/O errors, and what the removal from inside reports.
    pub async fn remove_volumes(&self, jid: &str) -> Result<(), VolumeError> {
        self.remove(jid, self.volumes(jid)).await?;
        // Without kept logs nothing holds the directory of the pod.
        let _ = fs::remove_dir(self.paths.pod(jid));
        Ok(())
    }

    /// See [`holdfast_core::world::PodFiles::remove_pod_files`].
    ///
    /// # Errors
    /// As [`Self::remove_volumes`].
    pub async fn remove_pod_files(&self, jid: &str) -> Result<(), VolumeError> {
        self.remove(jid, self.paths.pod(jid)).await
    }

    async fn remove(&self, jid: &str, tree: PathBuf) -> Result<(), VolumeError> {
        if fs::symlink_metadata(&tree).is_err() {
            return Ok(());
        }
        let own = tree.clone();
        let plain = tokio::task::spawn_blocking(move || fs::remove_dir_all(own)).await;
        if matches!(plain, Ok(Ok(()))) {
            return Ok(());
        }
        // Something in it belongs to a subordinate id: as root of a user namespace that maps them.
        let failed = |error: holdfast_core::error::ContainerError| {
            VolumeError::new(error.class, "remove the files of", format!("pod {jid}"), error)
        };
        let inside = Inside::of(None).map_err(failed)?;
        let arguments = ["remove".into(), tree.clone().into_os_string()];
        inside.internal(&self.tools.exe, arguments, None, jid, REMOVE_DEADLINE).await.map_err(failed)?;
        match fs::symlink_metadata(&tree) {
            Err(_) => Ok(()),
            Ok(_) => Err(fail(Class::Fatal, "remove", &tree, "it is still there")),
        }
    }
}

async fn blocking(
    action: &'static str,
    jid: &str,
    work: impl FnOnce() -> Result<(), VolumeError> + Send + 'static,
) -> Result<(), VolumeError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(VolumeError::new(Class::Fatal, action, format!("pod {jid}"), error)),
    }
}

fn fail(class: Class, action: &str, path: &Path, cause: impl std::fmt::Display) -> VolumeError {
    VolumeError::new(class, action, path.display().to_string(), cause)
}

fn io_fail(action: &str, path: &Path, error: &io::Error) -> VolumeError {
    fail(crate::container::class_of(error), action, path, error)
}

fn link(from: &Path, to: &Path) -> io::Result<()> {
    if let Some(parent) = to.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    match fs::remove_file(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    match fs::hard_link(from, to) {
        // A container that never ran has no log.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        linked => linked,
    }
}

fn write_all(directory: &Path, volumes: &[VolumeWanted]) -> Result<(), VolumeError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|error| io_fail("make", directory, &error))?;
    for volume in volumes {
        let own = directory.join(&volume.name);
        match &volume.source {
            VolumeSource::Empty => {
                make(&own, 0o777).map_err(|error| io_fail("make the volume", &own, &error))?;
            }
            VolumeSource::Files(files) => {
                write_files(&own, files).map_err(|error| io_fail("write the volume", &own, &error))?;
            }
            VolumeSource::Host { path, kind } => host_path(Path::new(path), *kind)?,
        }
    }
    // One flush for all of them: the record forgets their contents next.
    File::open(directory)
        .and_then(|file| Ok(nix::unistd::syncfs(file)?))
        .map_err(|error| io_fail("write down", directory, &error))
}

/// A directory with exactly these bits, whatever the umask says.
fn make(path: &Path, mode: u32) -> io::Result<()> {
    fs::create_dir_all(path)?;
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn write_files(directory: &Path, files: &[VolumeFile]) -> io::Result<()> {
    // An earlier try may have left files that cannot be written over: 0400.
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    make(directory, 0o755)?;
    for file in files {
        let path = directory.join(&file.path);
        if let Some(parent) = path.parent().filter(|parent| *parent != directory) {
            make(parent, 0o755)?;
        }
        let mut out = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)?;
        out.write_all(&file.content.0)?;
        out.set_permissions(Permissions::from_mode(file.mode))?;
    }
    Ok(())
}

fn host_path(path: &Path, kind: HostPathKind) -> Result<(), VolumeError> {
    let made = match kind {
        HostPathKind::DirectoryOrCreate if fs::metadata(path).is_err() => {
            fs::DirBuilder::new().recursive(true).mode(0o755).create(path)
        }
        HostPathKind::FileOrCreate if fs::metadata(path).is_err() => {
            File::options().write(true).create_new(true).mode(0o644).open(path).map(drop)
        }
        _ => Ok(()),
    };
    made.map_err(|error| io_fail("make the host path", path, &error))?;
    let found = fs::metadata(path).map_err(|error| {
        io_fail("look at the host path", path, &error)
            .with_remedy("make it on the node, or let the volume make it with a type that ends in OrCreate")
    })?;
    let is = found.file_type();
    let (fits, wanted) = match kind {
        HostPathKind::Any => (true, "anything"),
        HostPathKind::Directory | HostPathKind::DirectoryOrCreate => (is.is_dir(), "a directory"),
        HostPathKind::File | HostPathKind::FileOrCreate => (is.is_file(), "a file"),
        HostPathKind::Socket => (is.is_socket(), "a socket"),
        HostPathKind::CharDevice => (is.is_char_device(), "a character device"),
        HostPathKind::BlockDevice => (is.is_block_device(), "a block device"),
    };
    if fits {
        return Ok(());
    }
    let cause = format!("it is not {wanted} (mode {:o})", found.mode());
    Err(fail(Class::Conflict, "use the host path", path, cause)
        .with_remedy("correct hostPath.type or the path"))
}

/// Sees that `path` lies below `root` with no symbolic link on the way, and makes directories that are missing;
/// openat2(2), `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`.
pub(crate) fn resolve_beneath(root: &Path, path: &str) -> io::Result<()> {
    let how = |flags: OFlag| {
        OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(
            ResolveFlag::RESOLVE_BENEATH
                | ResolveFlag::RESOLVE_NO_SYMLINKS
                | ResolveFlag::RESOLVE_NO_MAGICLINKS,
        )
    };
    let mut at: OwnedFd = File::open(root)?.into();
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    for (number, part) in parts.iter().enumerate() {
        let last = number + 1 == parts.len();
        // The last one may be a file.
        let flags = if last { OFlag::O_PATH } else { OFlag::O_PATH | OFlag::O_DIRECTORY };
        at = match openat2(&at, *part, how(flags)) {
            Err(Errno::ENOENT) => {
                match mkdirat(&at, *part, Mode::from_bits_truncate(0o777)) {
                    Ok(()) | Err(Errno::EEXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                openat2(&at, *part, how(OFlag::O_PATH | OFlag::O_DIRECTORY))?
            }
            opened => opened?,
        };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use holdfast_core::interlink::bytes::Bytes;

    fn wanted(name: &str, source: VolumeSource) -> VolumeWanted {
        VolumeWanted { name: name.into(), source }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn volumes_have_exact_bytes_and_modes_and_can_be_written_again() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().join("volumes");
        let all: Vec<u8> = (0..=255).collect();
        let file = |path: &str, mode, bytes: &[u8]| VolumeFile {
            path: path.into(),
            mode,
            content: Bytes(bytes.to_vec()),
        };
        let volumes = [
            wanted(
                "secret",
                VolumeSource::Files(vec![file("key.pem", 0o400, &all), file("a/b", 0o711, b"")]),
            ),
            wanted("empty", VolumeSource::Empty),
            wanted(
                "host",
                VolumeSource::Host {
                    path: scratch.path().join("made/deep").display().to_string(),
                    kind: HostPathKind::DirectoryOrCreate,
                },
            ),
        ];
        for _ in 0..2 {
            write_all(&root, &volumes).unwrap();
            fs::write(root.join("empty/kept"), b"x").unwrap();
        }
        assert_eq!(fs::read(root.join("secret/key.pem")).unwrap(), all);
        assert_eq!(mode(&root.join("secret/key.pem")), 0o400);
        assert_eq!(mode(&root.join("secret/a/b")), 0o711);
        assert_eq!(mode(&root.join("empty")), 0o777);
        assert!(root.join("empty/kept").exists() && scratch.path().join("made/deep").is_dir());
    }

    #[test]
    fn a_host_path_is_what_it_must_be_or_is_named() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("x");
        let error = host_path(&path, HostPathKind::Directory).unwrap_err();
        assert_eq!(error.class, Class::Missing);
        assert!(error.to_string().contains(path.to_str().unwrap()) && !error.remedy.is_empty(), "{error}");
        host_path(&path, HostPathKind::FileOrCreate).unwrap();
        host_path(&path, HostPathKind::File).unwrap();
        assert_eq!(host_path(&path, HostPathKind::Directory).unwrap_err().class, Class::Conflict);
    }

    #[test]
    fn a_sub_path_is_made_and_never_leads_out() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().join("volume");
        fs::create_dir(&root).unwrap();
        resolve_beneath(&root, "a/b").unwrap();
        assert!(root.join("a/b").is_dir());
        fs::write(root.join("file"), b"").unwrap();
        resolve_beneath(&root, "file").unwrap();
        std::os::unix::fs::symlink("/", root.join("out")).unwrap();
        for path in ["out", "out/etc", "a/../../x"] {
            let error = resolve_beneath(&root, path).unwrap_err();
            assert!(matches!(error.raw_os_error(), Some(libc::ELOOP | libc::EXDEV)), "{path}: {error}");
        }
    }
}
