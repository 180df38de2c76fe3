//! Whatever lies where a socket, a lock or a log is to be: nothing found there is trusted, and nobody's files
//! are lost.

use std::{io, path::Path, time::SystemTime};

/// Makes room at `path`: a socket, file or symbolic link is removed, a directory is moved aside. The caller has
/// made sure that nobody serves there.
///
/// # Errors
/// I/O errors.
pub fn clear(path: &Path) -> io::Result<()> {
    let gone = |error: io::Error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) };
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) => return gone(error),
    };
    if !metadata.is_dir() {
        return std::fs::remove_file(path).or_else(gone);
    }
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".aside-{}", since.as_millis()));
    tracing::warn!(path = %path.display(), aside = %Path::new(&aside).display(), "a directory lay in the way: moved aside");
    std::fs::rename(path, aside)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_kind_of_thing_makes_room() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("daemon.sock");
        clear(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        clear(&path).unwrap();
        std::os::unix::fs::symlink("/nowhere", &path).unwrap();
        clear(&path).unwrap();
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        clear(&path).unwrap();
        std::fs::create_dir_all(path.join("inside")).unwrap();
        clear(&path).unwrap();
        assert!(path.symlink_metadata().is_err());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "the directory is kept");
    }
}
