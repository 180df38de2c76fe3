//! Where the node keeps its files.
//!
//! State (survives a reboot): `--root`, else `$XDG_STATE_HOME/holdfast`, else `~/.local/state/holdfast`.
//! Runtime (gone after a reboot): `$XDG_RUNTIME_DIR/holdfast`, else a short directory in /tmp, because a unix
//! socket's path holds 108 bytes (unix(7)). A node with its own `--root` has its own runtime directory, named
//! by a digest of the root, so that several nodes of one user never share a socket.

use sha2::{Digest, Sha256};
use std::{
    io,
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

/// The longest path a socket may have, without the terminating NUL: unix(7).
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The longest file name below the runtime directory that is a socket; the directory is chosen to leave room.
const SOCKET_NAME_BYTES_MAX: usize = 40;

/// The directories of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Absolute state directory.
    pub state: PathBuf,
    /// Absolute runtime directory.
    pub runtime: PathBuf,
}

impl Paths {
    /// Decides the directories; creates nothing.
    ///
    /// # Errors
    /// When neither `root` nor the environment names a place for the state.
    pub fn resolve(root: Option<&Path>) -> io::Result<Self> {
        let uid = nix::unistd::getuid();
        let variable =
            |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let (state, name) = match root {
            Some(root) => {
                let state = std::path::absolute(root)?;
                let digest = Sha256::digest(state.as_os_str().as_bytes());
                let short: String = digest.iter().take(5).map(|byte| format!("{byte:02x}")).collect();
                (state, format!("holdfast-{short}"))
            }
            None => {
                let base = variable("XDG_STATE_HOME")
                    .or_else(|| variable("HOME").map(|home| home.join(".local/state")))
                    .ok_or_else(|| {
                        io::Error::other("neither --root, XDG_STATE_HOME nor HOME says where the state is")
                    })?;
                (std::path::absolute(base)?.join("holdfast"), "holdfast".to_owned())
            }
        };
        let runtime = variable("XDG_RUNTIME_DIR")
            .map(|base| base.join(&name))
            .filter(|path| path.as_os_str().len() + 1 + SOCKET_NAME_BYTES_MAX <= SOCKET_PATH_BYTES_MAX)
            .unwrap_or_else(|| PathBuf::from(format!("/tmp/{name}-{uid}")));
        Ok(Self { state, runtime })
    }

    /// Creates both directories for this user alone, and refuses ones that belong to another.
    ///
    /// # Errors
    /// I/O errors, and a directory that another user owns or can write.
    pub fn create(&self) -> io::Result<()> {
        for path in [&self.state, &self.runtime] {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
            let metadata = std::fs::symlink_metadata(path)?;
            if !metadata.is_dir() || metadata.uid() != nix::unistd::getuid().as_raw() {
                return Err(io::Error::other(format!(
                    "{} is not a directory of this user; remove it",
                    path.display()
                )));
            }
            if metadata.mode() & 0o022 != 0 {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))?;
            }
        }
        Ok(())
    }

    /// The SQLite database with all records.
    pub fn database(&self) -> PathBuf {
        self.state.join("holdfast.db")
    }

    /// The public API's socket.
    pub fn daemon_socket(&self) -> PathBuf {
        self.runtime.join("daemon.sock")
    }

    /// Locked (flock) by the running daemon; holds its pid.
    pub fn daemon_lock(&self) -> PathBuf {
        self.runtime.join("daemon.lock")
    }

    /// The control's socket.
    pub fn control_socket(&self) -> PathBuf {
        self.runtime.join("control.sock")
    }

    /// What the control serves while the daemon is away.
    pub fn control_snapshot(&self) -> PathBuf {
        self.runtime.join("control.snapshot")
    }

    /// slirp4netns's API socket.
    pub fn uplink_socket(&self) -> PathBuf {
        self.runtime.join("uplink.sock")
    }

    /// The tmpfs inside the node's mount namespace, on which everything that must not outlive it is bound.
    pub fn inside(&self) -> PathBuf {
        self.runtime.join("inside")
    }

    /// Bind of the router's own netns: makes every process of the mount namespace a keeper.
    pub fn router_netns(&self) -> PathBuf {
        self.inside().join("router")
    }

    /// Bound namespaces of a sandbox: files `net`, `ipc` and `uts`.
    pub fn sandbox(&self, id: &str) -> PathBuf {
        self.inside().join("sandbox").join(id)
    }

    /// Mount point of a container's root, inside the mount namespace.
    pub fn container_root(&self, id: &str) -> PathBuf {
        self.inside().join("rootfs").join(id)
    }

    /// State directory of the OCI runtime (`--root`), on a host path so that it outlives the mount namespace.
    pub fn oci_runtime(&self) -> PathBuf {
        self.runtime.join("oci")
    }

    /// Files of a container that outlive its starts.
    pub fn container(&self, id: &str) -> PathBuf {
        self.state.join("containers").join(id)
    }

    /// Files of one start of a container.
    pub fn incarnation(&self, id: &str, incarnation: u32) -> PathBuf {
        self.container(id).join("run").join(incarnation.to_string())
    }

    /// Takes the place of the host's resolv.conf(5) for the node's name service, where it exists.
    pub fn resolv_conf(&self) -> PathBuf {
        self.state.join("resolv.conf")
    }

    /// The interLink plugin's socket.
    pub fn interlink_socket(&self) -> PathBuf {
        self.runtime.join("interlink.sock")
    }

    /// Volumes and kept logs of an offloaded pod, by the job's identity.
    pub fn pod(&self, jid: &str) -> PathBuf {
        self.state.join("pods").join(jid)
    }

    /// Unpacked image layers.
    pub fn layers(&self) -> PathBuf {
        self.state.join("layers")
    }
}
