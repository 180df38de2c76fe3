//! Unpacking one layer, inside the user namespace and with the layer as the root directory: no path in the archive,
//! and no link that it made before, leads out.
//!
//! Whiteouts become what overlayfs understands with `userxattr`: a character device 0:0 (which mknod(2) allows in a
//! user namespace since Linux 5.8), and `user.overlay.opaque` on an opaque directory.

use super::{archive::GZIP_MAGIC, config::hex};
use crate::container::Report;
use flate2::read::MultiGzDecoder;
use holdfast_core::error::Class;
use nix::sys::stat::{Mode, SFlag, UtimensatFlags, mknod, utimensat};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    ffi::{CString, OsString},
    fs::File,
    io::{self, BufReader, Read, Write},
    os::{
        fd::AsFd,
        unix::{
            ffi::OsStrExt,
            fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt},
        },
    },
    path::{Component, Path, PathBuf},
};
use tar::EntryType;

/// Prefix of a whiteout: <https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts>.
const WHITEOUT: &[u8] = b".wh.";
/// Name of the entry that makes its directory opaque.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// The most warnings that are reported.
const WARNINGS_MAX: usize = 100;

/// What the unpacker reports, as JSON on stdout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unpacked {
    /// sha256 of the uncompressed layer, hexadecimal.
    pub(crate) diff_id: String,
    /// Bytes of all its files.
    pub(crate) size_bytes: u64,
    /// What was left out.
    pub(crate) warnings: Vec<String>,
}

type Outcome<T> = Result<T, Report>;

fn io_at(action: &str, path: &Path) -> impl FnOnce(io::Error) -> Report + use<> {
    let action = format!("{action} {}", path.display());
    move |error| Report::io(action, &error)
}

/// `unpack DIRECTORY OFFSET LENGTH BYTES_MAX ENTRIES_MAX BLOB_DIGEST DIFF_ID`, the archive on stdin; `-` is an unknown
/// digest.
pub(crate) fn unpack_main(arguments: &[OsString]) -> Outcome<()> {
    let texts: Vec<&str> = arguments.iter().skip(1).filter_map(|argument| argument.to_str()).collect();
    let number = |text: &str| text.parse::<u64>().map_err(|error| Report::new(Class::Fatal, "unpack", error));
    let ([directory, ..], [offset, length, bytes_max, entries_max, blob_digest, diff_id]) =
        (arguments, texts.as_slice())
    else {
        return Err(Report::new(Class::Fatal, "unpack", "the arguments are not understood"));
    };
    let directory = PathBuf::from(directory);
    std::fs::create_dir(&directory).map_err(io_at("create", &directory))?;
    let handle = File::open(&directory).map_err(io_at("open", &directory))?;
    let archive = io::stdin().as_fd().try_clone_to_owned().map_err(io_at("read", Path::new("stdin")))?;
    let part = Part { file: File::from(archive), offset: number(offset)?, left: number(length)? };
    nix::unistd::chroot(&directory)
        .and_then(|()| nix::unistd::chdir("/"))
        .map_err(|error| io_at("enter", &directory)(error.into()))?;
    let limits = (number(bytes_max)?, number(entries_max)?);
    let expected = |text: &str| (text != "-").then(|| text.to_owned());
    let unpacked = unpack(part, limits, expected(blob_digest), expected(diff_id))?;
    // All of it is on the disk before anybody calls it a layer; syncfs(2).
    nix::unistd::syncfs(&handle).map_err(|error| io_at("sync", &directory)(error.into()))?;
    let answer = serde_json::to_vec(&unpacked).map_err(|error| Report::new(Class::Fatal, "unpack", error))?;
    io::stdout().write_all(&answer).map_err(io_at("write", Path::new("stdout")))
}

/// A part of the archive, read without moving the descriptor's offset, which others share.
struct Part {
    file: File,
    offset: u64,
    left: u64,
}

impl Read for Part {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read_at(&mut buffer[..most], self.offset)?;
        self.offset += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}

/// Hashes what passes.
struct Hashing<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> Hashing<R> {
    fn new(inner: R) -> Self {
        Self { inner, hash: Sha256::new() }
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hash.update(&buffer[..read]);
        Ok(read)
    }
}

fn unpack(
    part: Part,
    limits: (u64, u64),
    blob_digest: Option<String>,
    diff_id: Option<String>,
) -> Outcome<Unpacked> {
    let mut magic = [0; 2];
    let read = part.file.read_at(&mut magic, part.offset).map_err(io_at("read", Path::new("the layer")))?;
    let gzip = read == 2 && part.left >= 2 && magic == GZIP_MAGIC;
    let mut blob = Hashing::new(BufReader::with_capacity(256 * 1024, part));
    let (tree, found) =
        if gzip { extract(MultiGzDecoder::new(&mut blob), limits)? } else { extract(&mut blob, limits)? };
    io::copy(&mut blob, &mut io::sink()).map_err(io_at("read", Path::new("the layer")))?;
    compare("the layer's blob", blob_digest, &hex(&blob.hash.finalize()))?;
    compare("the layer", diff_id, &found)?;
    Ok(Unpacked { diff_id: found, size_bytes: tree.bytes, warnings: tree.warnings })
}

fn compare(what: &str, expected: Option<String>, found: &str) -> Outcome<()> {
    match expected {
        Some(expected) if expected != found => Err(Report::new(
            Class::Corrupt,
            "verify",
            format!("{what} has the digest {found}, not {expected}"),
        )),
        _ => Ok(()),
    }
}

/// Unpacks a tar stream into the root directory; returns what was made and the stream's sha256.
fn extract(stream: impl Read, limits: (u64, u64)) -> Outcome<(Tree, String)> {
    let mut stream = Hashing::new(stream);
    let mut tree = Tree { bytes_max: limits.0, entries_max: limits.1, ..Tree::default() };
    let mut archive = tar::Archive::new(&mut stream);
    let damaged = |error: io::Error| Report::new(Class::Corrupt, "read the layer", error);
    for entry in archive.entries().map_err(damaged)? {
        tree.add(entry.map_err(damaged)?)?;
    }
    tree.finish()?;
    // Padding after the end marker belongs to the digest.
    io::copy(&mut stream, &mut io::sink()).map_err(damaged)?;
    let digest = hex(&stream.hash.finalize());
    Ok((tree, digest))
}

/// What is being unpacked.
#[derive(Default)]
struct Tree {
    bytes_max: u64,
    entries_max: u64,
    bytes: u64,
    entries: u64,
    /// Directories with their times, set last: making files in them changes the times.
    directories: Vec<(PathBuf, i64)>,
    warnings: Vec<String>,
}

impl Tree {
    fn warn(&mut self, text: String) {
        if self.warnings.len() < WARNINGS_MAX {
            self.warnings.push(text);
        }
    }

    fn add<R: Read>(&mut self, mut entry: tar::Entry<'_, R>) -> Outcome<()> {
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::XGlobalHeader) {
            return Ok(());
        }
        self.entries += 1;
        self.bytes = self.bytes.saturating_add(entry.size());
        if self.entries > self.entries_max || self.bytes > self.bytes_max {
            let cause = format!("it has more than {} bytes or {} entries", self.bytes_max, self.entries_max);
            return Err(Report::new(Class::Exhausted, "unpack the layer", cause));
        }
        let raw = entry.path_bytes().into_owned();
        let path = inside(Path::new(std::ffi::OsStr::from_bytes(&raw)))?;
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(io_at("create", parent))?;
        }
        let name = path.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
        if name == OPAQUE {
            return set_xattr(path.parent().unwrap_or(Path::new("/")), c"user.overlay.opaque", b"y");
        }
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            if hidden.is_empty() || matches!(hidden, b"." | b"..") {
                return Err(Report::new(
                    Class::Corrupt,
                    "unpack the layer",
                    format!("{} hides nothing", path.display()),
                ));
            }
            let target = path.with_file_name(std::ffi::OsStr::from_bytes(hidden));
            clear(&target)?;
            return mknod(&target, SFlag::S_IFCHR, Mode::empty(), 0)
                .map_err(|error| io_at("make the whiteout", &target)(error.into()));
        }
        self.make(&mut entry, kind, &path)
    }

    fn make<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>, kind: EntryType, path: &Path) -> Outcome<()> {
        match kind {
            EntryType::Directory => make_directory(path)?,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                clear(path)?;
                let mut file = File::options()
                    .write(true)
                    .create_new(true)
                    .custom_flags(libc::O_NOFOLLOW)
                    .mode(0o600)
                    .open(path)
                    .map_err(io_at("create", path))?;
                copy(entry, &mut file, path)?;
            }
            EntryType::Symlink => {
                clear(path)?;
                std::os::unix::fs::symlink(link_target(entry, path)?, path).map_err(io_at("link", path))?;
            }
            EntryType::Link => {
                let target = inside(&link_target(entry, path)?)?;
                clear(path)?;
                // link(2) does not follow a symbolic link; what it links keeps its owner and mode.
                return std::fs::hard_link(&target, path).map_err(io_at("link", path));
            }
            EntryType::Fifo => {
                clear(path)?;
                nix::unistd::mkfifo(path, Mode::from_bits_truncate(0o600))
                    .map_err(|error| io_at("make", path)(error.into()))?;
            }
            EntryType::Char | EntryType::Block => {
                self.warn(format!("{}: device nodes are left out", path.display()));
                return Ok(());
            }
            _ => {
                self.warn(format!("{}: entries of type {kind:?} are left out", path.display()));
                return Ok(());
            }
        }
        self.dress(entry, kind, path)
    }

    /// Owner, extended attributes, mode and time, in this order: a change of the owner clears set-uid bits and file
    /// capabilities.
    fn dress<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>, kind: EntryType, path: &Path) -> Outcome<()> {
        let corrupt = |error: io::Error| {
            Report::new(Class::Corrupt, "read the layer", format!("{}: {error}", path.display()))
        };
        let header = entry.header();
        let (uid, gid) = (header.uid().map_err(corrupt)?, header.gid().map_err(corrupt)?);
        let (mode, time) = (header.mode().map_err(corrupt)?, header.mtime().map_err(corrupt)?);
        let id = |id: u64| {
            u32::try_from(id).map_err(|_| {
                Report::new(Class::Corrupt, "read the layer", format!("{}: owner {id}", path.display()))
            })
        };
        std::os::unix::fs::lchown(path, Some(id(uid)?), Some(id(gid)?)).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => Report::new(
                Class::Denied,
                format!("give {} to {uid}:{gid}", path.display()),
                "the id is not mapped in the user namespace: the user needs more subordinate ids (subuid(5))",
            ),
            _ => io_at("change the owner of", path)(error),
        })?;
        self.set_xattrs(entry, path)?;
        if kind != EntryType::Symlink {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode & 0o7777))
                .map_err(io_at("change the mode of", path))?;
        }
        let time = i64::try_from(time).unwrap_or(0);
        if kind == EntryType::Directory {
            self.directories.push((path.to_owned(), time));
            return Ok(());
        }
        set_time(path, time)
    }

    /// `SCHILY.xattr.*` of the PAX header. `user.overlay.*` would be read by overlayfs as its own marks: left out.
    fn set_xattrs<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>, path: &Path) -> Outcome<()> {
        let Ok(Some(extensions)) = entry.pax_extensions() else { return Ok(()) };
        for extension in extensions.flatten() {
            let Some(name) = extension.key_bytes().strip_prefix(b"SCHILY.xattr.") else { continue };
            let wanted = name == b"security.capability" || name.starts_with(b"user.");
            if !wanted || name.starts_with(b"user.overlay.") {
                continue;
            }
            let Ok(name) = CString::new(name) else { continue };
            if let Err(report) = set_xattr(path, &name, extension.value_bytes()) {
                if report.class == Class::Exhausted {
                    return Err(report);
                }
                self.warn(format!("{}: {}: {}", path.display(), name.to_string_lossy(), report.cause));
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Outcome<()> {
        self.directories.reverse();
        for (path, time) in std::mem::take(&mut self.directories) {
            // A later entry may have replaced the directory.
            if std::fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir()) {
                set_time(&path, time)?;
            }
        }
        Ok(())
    }
}

/// The path below the new root; `..` is refused, and a leading `/` means the new root.
fn inside(path: &Path) -> Outcome<PathBuf> {
    let mut clean = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                let cause = format!("the path {} tries to leave the layer", path.display());
                return Err(Report::new(Class::Corrupt, "unpack the layer", cause));
            }
        }
    }
    Ok(clean)
}

fn link_target<R: Read>(entry: &tar::Entry<'_, R>, path: &Path) -> Outcome<PathBuf> {
    let target = entry.link_name_bytes().filter(|target| !target.is_empty());
    target.map(|target| PathBuf::from(std::ffi::OsStr::from_bytes(&target))).ok_or_else(|| {
        Report::new(Class::Corrupt, "unpack the layer", format!("{} links to nothing", path.display()))
    })
}

/// A directory; one that is there stays, anything else gives way.
fn make_directory(path: &Path) -> Outcome<()> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => std::fs::remove_file(path).map_err(io_at("replace", path))?,
        Err(_) => {}
    }
    std::fs::create_dir(path).map_err(io_at("create", path))
}

/// Removes what an earlier entry of the same name made.
fn clear(path: &Path) -> Outcome<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io_at("look at", path)(error)),
        Ok(metadata) if metadata.is_dir() && metadata.ino() != 0 => {
            std::fs::remove_dir_all(path).map_err(io_at("replace", path))
        }
        Ok(_) => std::fs::remove_file(path).map_err(io_at("replace", path)),
    }
}

fn copy<R: Read>(entry: &mut tar::Entry<'_, R>, file: &mut File, path: &Path) -> Outcome<()> {
    let expected = entry.size();
    let mut buffer = vec![0; 128 * 1024];
    let mut copied = 0;
    loop {
        // Apart from io::copy, to tell a damaged archive from a full disk.
        let read = entry.read(&mut buffer).map_err(|error| {
            Report::new(Class::Corrupt, "read the layer", format!("{}: {error}", path.display()))
        })?;
        if read == 0 {
            break;
        }
        file.write_all(&buffer[..read]).map_err(io_at("write", path))?;
        copied += read as u64;
    }
    if copied != expected {
        let cause = format!("{} has {copied} bytes, not {expected}: the archive is cut off", path.display());
        return Err(Report::new(Class::Corrupt, "read the layer", cause));
    }
    Ok(())
}

fn set_time(path: &Path, seconds: i64) -> Outcome<()> {
    let time = nix::sys::time::TimeSpec::new(seconds, 0);
    utimensat(nix::fcntl::AT_FDCWD, path, &time, &time, UtimensatFlags::NoFollowSymlink)
        .map_err(|error| io_at("set the time of", path)(error.into()))
}

fn set_xattr(path: &Path, name: &std::ffi::CStr, value: &[u8]) -> Outcome<()> {
    let c_path = CString::new(path.as_os_str().as_bytes())
        .map_err(|error| Report::new(Class::Corrupt, "unpack the layer", error))?;
    // SAFETY: two NUL-terminated strings and a buffer with its length, all alive during the call.
    let result =
        unsafe { libc::lsetxattr(c_path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    if result == 0 {
        Ok(())
    } else {
        Err(io_at("set an extended attribute of", path)(io::Error::last_os_error()))
    }
}
