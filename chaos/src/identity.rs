//! Who the node runs as: the caller, or, called as root, the user that `make setup` made.

use anyhow::{Context, Result, bail};
use nix::unistd::{Gid, Uid, User};
use std::{
    env,
    ffi::CString,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// Names the node's user when the harness is started as root.
pub const USER_VARIABLE: &str = "HOLDFAST_TEST_USER";
/// Names the `holdfast` binary; else it is looked for beside the own executable.
pub const NODE_BINARY_VARIABLE: &str = "HOLDFAST_BIN";
/// Names the `holdfast-chaos` binary; else it is looked for beside the own executable.
pub const CHAOS_BINARY_VARIABLE: &str = "HOLDFAST_CHAOS_BIN";

/// The node's user and the binaries it runs.
#[derive(Debug)]
pub struct Identity {
    /// Login name.
    pub user: String,
    /// User id.
    pub uid: u32,
    /// Home directory.
    pub home: PathBuf,
    /// The binary under test.
    pub holdfast: PathBuf,
    /// This harness, for helpers inside a workload's network.
    pub chaos: PathBuf,
    /// Holds copies of the binaries where the user could not reach the originals.
    _copies: Option<TempDir>,
}

impl Identity {
    /// Finds user and binaries; copies the binaries where the user can run them, if it can not where they are.
    ///
    /// # Errors
    /// When the user or a binary does not exist, with what to do about it.
    pub fn find() -> Result<Self> {
        let user = node_user()?;
        let mut holdfast = binary(NODE_BINARY_VARIABLE, "holdfast")?;
        let mut chaos = binary(CHAOS_BINARY_VARIABLE, "holdfast-chaos")?;
        let mut copies = None;
        if Uid::effective().is_root() && !(reachable(&holdfast) && reachable(&chaos)) {
            let directory = tempfile::Builder::new().prefix("holdfast-bin-").tempdir()?;
            for path in [&mut holdfast, &mut chaos] {
                let name = path.file_name().context("binary without a name")?;
                let copy = directory.path().join(name);
                fs::copy(&*path, &copy).with_context(|| format!("copy {}", path.display()))?;
                fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
                *path = copy;
            }
            fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
            // The user's own, so that it can be removed after the switch.
            std::os::unix::fs::chown(directory.path(), Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
            copies = Some(directory);
        }
        Ok(Self { user: user.name, uid: user.uid.as_raw(), home: user.dir, holdfast, chaos, _copies: copies })
    }

    /// Finds the user alone: for tests whose own program is the node.
    ///
    /// # Errors
    /// When the user does not exist, with what to do about it.
    pub fn find_user() -> Result<Self> {
        let user = node_user()?;
        Ok(Self {
            user: user.name,
            uid: user.uid.as_raw(),
            home: user.dir,
            holdfast: PathBuf::new(),
            chaos: PathBuf::new(),
            _copies: None,
        })
    }

    /// The caller with nothing but the helper binary: for traffic without a node.
    pub fn for_helpers(chaos: PathBuf) -> Self {
        let uid = Uid::effective();
        let user = User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name);
        Self {
            user,
            uid: uid.as_raw(),
            home: PathBuf::from("/"),
            holdfast: PathBuf::new(),
            chaos,
            _copies: None,
        }
    }

    /// Becomes the node's user for good, if this is root: groups, group, user, in all threads of the process.
    ///
    /// # Errors
    /// When the kernel refuses, or the switch could be taken back.
    pub fn assume(&self) -> Result<()> {
        if !Uid::effective().is_root() {
            return Ok(());
        }
        let user = node_user()?;
        let name = CString::new(user.name.as_str())?;
        nix::unistd::initgroups(&name, user.gid).context("initgroups")?;
        nix::unistd::setresgid(user.gid, user.gid, user.gid).context("setresgid")?;
        nix::unistd::setresuid(user.uid, user.uid, user.uid).context("setresuid")?;
        // A change of ids hides /proc/self from the new user: prctl(2), PR_SET_DUMPABLE.
        nix::sys::prctl::set_dumpable(true).context("prctl PR_SET_DUMPABLE")?;
        if nix::unistd::setuid(Uid::from_raw(0)).is_ok() || nix::unistd::setgid(Gid::from_raw(0)).is_ok() {
            bail!("switched to {} but could switch back to root", self.user);
        }
        // The old directory may be one that this user cannot read.
        #[allow(clippy::disallowed_methods)] // Before any thread is started, and no relative path is used.
        env::set_current_dir("/")?;
        Ok(())
    }
}

fn node_user() -> Result<User> {
    let uid = Uid::effective();
    if !uid.is_root() {
        return User::from_uid(uid)?.with_context(|| format!("uid {uid} has no entry in /etc/passwd"));
    }
    let name = env::var(USER_VARIABLE).unwrap_or_else(|_| "holdfast".to_owned());
    let user = User::from_name(&name)?
        .with_context(|| format!("no user {name}: run `make setup`, or name one in {USER_VARIABLE}"))?;
    if user.uid.is_root() {
        bail!("{USER_VARIABLE} names root: the node runs as an ordinary user");
    }
    Ok(user)
}

/// A binary by its variable, or beside the own executable: in its directory, or, for a test binary in `deps`,
/// in the one above.
fn binary(variable: &str, name: &str) -> Result<PathBuf> {
    if let Some(path) = env::var_os(variable) {
        let path = PathBuf::from(path);
        return if path.is_file() { Ok(path) } else { bail!("{variable}={} is no file", path.display()) };
    }
    let own = env::current_exe()?;
    let found =
        own.ancestors().skip(1).take(2).map(|directory| directory.join(name)).find(|path| path.is_file());
    found.with_context(|| {
        format!(
            "no {name} beside {}: run `cargo build --workspace --bins`, or name it in {variable}",
            own.display()
        )
    })
}

/// Whether everybody may run this file: it, and every directory on the way, says so to others.
fn reachable(path: &Path) -> bool {
    let Ok(path) = path.canonicalize() else { return false };
    path.ancestors().all(|part| fs::metadata(part).is_ok_and(|metadata| metadata.mode() & 0o001 != 0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn a_private_directory_on_the_way_hides_a_binary() {
        assert!(reachable(Path::new("/bin/sh")));
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tool");
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(!reachable(&file));
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(reachable(&file));
    }
}
