//! What may lie where a socket or a log is to be: nothing found there is trusted, and nothing is lost.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// A log larger than this starts anew; one old log is kept.
pub const LOG_BYTES_MAX: u64 = 1 << 20;
/// How much of a log's end goes into an error.
const LOG_TAIL_BYTES: u64 = 600;

/// Makes room for a socket at `path`: a stale socket or file is removed, a directory (which may hold somebody's
/// files) is moved aside. The caller has made sure that no living process serves there.
///
/// # Errors
/// I/O errors.
pub fn clear_path(path: &Path) -> io::Result<()> {
    let metadata = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    if metadata.is_dir() {
        let aside = aside(path)?;
        tracing::warn!(path = %path.display(), moved_to = %aside.display(), "a directory lay in the way: moved aside");
        return std::fs::rename(path, aside);
    }
    if !metadata.file_type().is_socket() {
        tracing::warn!(path = %path.display(), "a file lay in the way of a socket: removed");
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The most names tried.
const ASIDE_MAX: u32 = 1000;

/// A free name beside `path`.
///
/// # Errors
/// When all names that are tried are taken.
pub fn aside(path: &Path) -> io::Result<PathBuf> {
    (0..ASIDE_MAX)
        .map(|number| {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".aside.{number}"));
            PathBuf::from(name)
        })
        .find(|candidate| std::fs::symlink_metadata(candidate).is_err())
        .ok_or_else(|| io::Error::other(format!("{}: clear away what was moved aside", path.display())))
}

/// Opens a log for a process's output, append only.
///
/// # Errors
/// I/O errors.
pub fn open_log(path: &Path) -> io::Result<File> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.is_file() => clear_path(path)?,
        Ok(metadata) if metadata.len() > LOG_BYTES_MAX => {
            std::fs::rename(path, path.with_extension("log.1"))?
        }
        _ => {}
    }
    File::options().append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(path)
}

/// The end of a log, for an error's text; empty when there is none.
pub fn log_tail(path: &Path) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    match read() {
        Ok(tail) if !tail.is_empty() => format!("; its log ends: {tail}"),
        _ => String::new(),
    }
}
