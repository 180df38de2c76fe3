//! The daemon's log: a file that never grows without bound, and stderr where somebody looks at it.

use anyhow::Context;
use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Mutex,
};
use tracing_subscriber::{EnvFilter, Layer, fmt, layer::SubscriberExt, util::SubscriberInitExt};

/// A log of this size, in bytes, is renamed to `….1` (whose predecessor goes) and begun anew.
const LOG_BYTES_MAX: u64 = 4 << 20;

/// A file that begins anew when it is full.
#[derive(Debug)]
pub struct BoundedFile {
    path: PathBuf,
    file: File,
    length: u64,
}

impl BoundedFile {
    /// Appends to the file at `path`.
    ///
    /// # Errors
    /// I/O errors.
    pub fn open(path: &Path) -> io::Result<Self> {
        if std::fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            crate::node::stale::clear(path)?;
        }
        let file = File::options()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
            .open(path)?;
        let length = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, length })
    }

    fn rotate(&mut self) -> io::Result<()> {
        std::fs::rename(&self.path, self.path.with_extension("log.1"))?;
        *self = Self::open(&self.path)?;
        Ok(())
    }
}

impl Write for BoundedFile {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        if self.length >= LOG_BYTES_MAX {
            self.rotate()?;
        }
        let written = self.file.write(buffer)?;
        self.length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Sends what is traced to the file at `path` and, unless `detached`, to stderr. `HOLDFAST_LOG` filters.
///
/// # Errors
/// The file cannot be opened on a disk that is not full: on a full one the daemon runs without.
pub fn install(path: &Path, detached: bool) -> anyhow::Result<()> {
    let filter = || EnvFilter::try_from_env("HOLDFAST_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let file = match BoundedFile::open(path) {
        Ok(file) => Some(fmt::layer().with_ansi(false).with_writer(Mutex::new(file)).with_filter(filter())),
        Err(error) if error.kind() == io::ErrorKind::StorageFull => None,
        Err(error) => return Err(error).with_context(|| format!("open {}", path.display())),
    };
    let stderr = (!detached || file.is_none()).then(|| {
        let ansi = io::IsTerminal::is_terminal(&io::stderr());
        fmt::layer().with_ansi(ansi).with_writer(io::stderr).with_filter(filter())
    });
    tracing_subscriber::registry().with(file).with(stderr).try_init().context("install the log")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_log_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("daemon.log");
        let mut log = BoundedFile::open(&path).unwrap();
        for _ in 0..40 {
            log.write_all(&[b'x'; 512 << 10]).unwrap();
        }
        let length = |path: &Path| path.metadata().unwrap().len();
        let old = directory.path().join("daemon.log.1");
        assert!(length(&path) <= LOG_BYTES_MAX + (512 << 10), "{}", length(&path));
        assert!(length(&old) <= LOG_BYTES_MAX + (512 << 10));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
    }
}
