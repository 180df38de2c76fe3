//! The daemon's own descriptors of the namespaces: a keeper that needs no other process.

use super::namespace::{Kind, namespace_id, namespace_kind, open_namespace};
use holdfast_core::{
    id::ProcessRef,
    record::{NamespaceId, NamespaceIds},
};
use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// What the names in the service manager's descriptor store start with; `sd_notify(3)`, `FDNAME=`.
const STORE_PREFIX: &str = "holdfast-";
/// The first passed descriptor; `sd_listen_fds(3)`.
const LISTEN_FDS_START: RawFd = 3;
/// The most passed descriptors that are looked at.
const LISTEN_FDS_MAX: RawFd = 64;

#[derive(Debug, Default)]
struct Inner {
    held: BTreeMap<Kind, (OwnedFd, NamespaceId)>,
    recorded: Option<NamespaceIds>,
}

/// Descriptors of the node's namespaces, and which namespaces are the recorded ones.
#[derive(Debug, Default)]
pub struct HeldNamespaces {
    inner: Mutex<Inner>,
}

impl HeldNamespaces {
    /// Holds nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes over what the service manager kept over a restart (`LISTEN_FDS`, `LISTEN_FDNAMES` with the names
    /// `holdfast-user`, `holdfast-net`, `holdfast-mnt` and `holdfast-cgroup`). To be called once, early in the
    /// process: it owns these descriptors afterwards.
    pub fn from_service_manager() -> Self {
        let held = Self::new();
        let ours = std::env::var("LISTEN_PID").is_ok_and(|pid| pid == std::process::id().to_string());
        let count =
            std::env::var("LISTEN_FDS").ok().and_then(|count| count.parse::<RawFd>().ok()).unwrap_or(0);
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        if ours {
            for (offset, name) in (0..count.min(LISTEN_FDS_MAX)).zip(names.split(':')) {
                held.import(LISTEN_FDS_START + offset, name);
            }
        }
        held
    }

    fn import(&self, fd: RawFd, name: &str) {
        let Some(kind) = name.strip_prefix(STORE_PREFIX).and_then(Kind::from_file_name) else { return };
        // SAFETY: takes a number; a descriptor that is not open is EBADF.
        if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
            return;
        }
        // SAFETY: the service manager passed this descriptor to this process, and it is taken over once.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        match namespace_id(&fd) {
            Ok(id) if namespace_kind(&fd) == Some(kind) => {
                self.lock().held.insert(kind, (fd, id));
            }
            _ => tracing::warn!(name, "the service manager's descriptor is not of such a namespace: dropped"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is one assignment: a panic elsewhere leaves nothing half-done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says which namespaces the records name; descriptors of others are no keepers.
    pub fn note_recorded(&self, recorded: Option<NamespaceIds>) {
        self.lock().recorded = recorded;
    }

    /// The namespaces that count as the node's: those last recorded or started.
    pub fn recorded(&self) -> Option<NamespaceIds> {
        self.lock().recorded
    }

    /// Opens the namespaces of a living pin and closes those held before. Costs nothing when they are held
    /// already. What changed goes to the service manager's store, where there is one.
    ///
    /// # Errors
    /// When the pin died, or procfs refuses.
    pub fn hold(&self, pin: &ProcessRef, ids: NamespaceIds) -> io::Result<()> {
        if self.ids() == Some(ids) {
            self.lock().recorded = Some(ids);
            return Ok(());
        }
        let mut held = BTreeMap::new();
        for kind in Kind::ENTER_ORDER {
            let fd = open_namespace(pin, kind)?.ok_or_else(|| io::Error::other(format!("{pin} is dead")))?;
            let id = namespace_id(&fd)?;
            held.insert(kind, (fd, id));
        }
        let opened = ids_of(&held);
        if opened != Some(ids) {
            return Err(io::Error::other(format!("{pin} is in other namespaces than it said")));
        }
        store(&held);
        let mut inner = self.lock();
        inner.held = held;
        inner.recorded = Some(ids);
        Ok(())
    }

    /// Closes all of them, here and in the service manager's store: what nothing else holds is gone.
    pub fn release(&self) {
        let mut inner = self.lock();
        for kind in inner.held.keys() {
            notify(&format!("FDSTOREREMOVE=1\nFDNAME={STORE_PREFIX}{}", kind.file_name()), None);
        }
        *inner = Inner::default();
    }

    /// The namespaces that are held, if user, net and mount are.
    pub fn ids(&self) -> Option<NamespaceIds> {
        ids_of(&self.lock().held)
    }

    /// A copy of the descriptor of one kind, if it is held and, but for the cgroup namespace, the recorded one.
    pub fn open(&self, kind: Kind, recorded: &NamespaceIds) -> Option<OwnedFd> {
        let inner = self.lock();
        let (fd, id) = inner.held.get(&kind)?;
        let wanted = match kind {
            Kind::User => Some(recorded.user),
            Kind::Net => Some(recorded.net),
            Kind::Mount => Some(recorded.mount),
            Kind::Cgroup => None,
        };
        if wanted.is_some_and(|wanted| wanted != *id) {
            return None;
        }
        fd.try_clone().ok()
    }
}

fn ids_of(held: &BTreeMap<Kind, (OwnedFd, NamespaceId)>) -> Option<NamespaceIds> {
    let id = |kind| held.get(&kind).map(|(_, id)| *id);
    Some(NamespaceIds { user: id(Kind::User)?, net: id(Kind::Net)?, mount: id(Kind::Mount)? })
}

fn store(held: &BTreeMap<Kind, (OwnedFd, NamespaceId)>) {
    for (kind, (fd, _)) in held {
        let name = kind.file_name();
        notify(&format!("FDSTOREREMOVE=1\nFDNAME={STORE_PREFIX}{name}"), None);
        // FDPOLL=0: a namespace is never readable, and must not be dropped for a poll error.
        notify(&format!("FDSTORE=1\nFDNAME={STORE_PREFIX}{name}\nFDPOLL=0"), Some(fd));
    }
}

/// Tells the service manager something, if there is one; `sd_notify(3)`. Best effort: without it the
/// descriptors live as long as the daemon.
fn notify(state: &str, fd: Option<&OwnedFd>) {
    use nix::sys::socket::{
        AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, sendmsg, socket,
    };
    let Ok(target) = std::env::var("NOTIFY_SOCKET") else { return };
    let send = || -> nix::Result<()> {
        let address = match target.strip_prefix('@') {
            Some(name) => UnixAddr::new_abstract(name.as_bytes())?,
            None => UnixAddr::new(target.as_str())?,
        };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let sender = socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
        let raw: Vec<RawFd> = fd.iter().map(|fd| fd.as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control = if raw.is_empty() { &[][..] } else { &rights[..] };
        let data = [io::IoSlice::new(state.as_bytes())];
        sendmsg(sender.as_raw_fd(), &data, control, MsgFlags::MSG_NOSIGNAL, Some(&address)).map(drop)
    };
    if let Err(error) = send() {
        tracing::warn!(socket = target, %error, "the service manager did not take a notification");
    }
}
