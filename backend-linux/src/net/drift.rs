//! Notices that somebody else changed the router: nftables' and links' notifications of the kernel.
//!
//! What comes here is a hint, not a finding: whether anything is amiss is for the next bring-up to see, which compares
//! everything. Changes that this process asked for are told apart by the port of the socket they were asked on.

use super::{
    link,
    netlink::{self, Attributes, Message},
};
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{AsRawFd, OwnedFd},
    time::Duration,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{Instant, timeout_at},
};

/// How long a burst is gathered before it is judged.
const GATHER: Duration = Duration::from_millis(2);

/// A notification is far shorter; one of a burst that is cut costs a hint of a burst.
const RECEIVE_BYTES: usize = 32 * 1024;
/// `struct nfgenmsg`, linux/netfilter/nfnetlink.h.
const NFGENMSG_BYTES: usize = 4;
/// `struct ifinfomsg` and `struct ifaddrmsg`, linux/rtnetlink.h and linux/if_addr.h.
const IFINFOMSG_BYTES: usize = 16;
const IFADDRMSG_BYTES: usize = 8;
/// NFTA_GEN_PROC_NAME, linux/netfilter/nf_tables.h.
const NFTA_GEN_PROC_NAME: u16 = 3;
/// The last message of each transaction: nf_tables_gen_notify() in net/netfilter/nf_tables_api.c.
const NEW_GENERATION: u16 = ((libc::NFNL_SUBSYS_NFTABLES as u16) << 8) | libc::NFT_MSG_NEWGEN as u16;

/// The sockets.
#[derive(Debug)]
pub(crate) struct DriftWatch {
    rules: AsyncFd<OwnedFd>,
    links: AsyncFd<OwnedFd>,
    /// Links that this process has made and not yet set up.
    making: BTreeSet<u32>,
}

/// What a burst of notifications comes to.
#[derive(Debug, Default)]
struct Burst {
    /// Somebody else's doing.
    sure: Option<String>,
    /// Links that went down, each of them somebody else's doing unless this process deletes it: then the kernel closes
    /// it first, and says only of the deletion who asked for it.
    closed: BTreeMap<u32, String>,
}

impl Burst {
    fn found(self) -> Option<String> {
        self.sure.or_else(|| self.closed.into_values().next())
    }
}

impl DriftWatch {
    /// Subscribes in the calling thread's network namespace.
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN over the namespace.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            rules: subscribe(SockProtocol::NetlinkNetFilter, &[libc::NFNLGRP_NFTABLES as u32])?,
            links: subscribe(
                SockProtocol::NetlinkRoute,
                &[libc::RTNLGRP_LINK, libc::RTNLGRP_IPV4_IFADDR, libc::RTNLGRP_IPV6_IFADDR],
            )?,
            making: BTreeSet::new(),
        })
    }

    /// Waits for a burst of changes in which somebody else had a hand, and says what that was.
    ///
    /// # Errors
    /// When a socket is of no use any more.
    pub async fn next(&mut self) -> io::Result<String> {
        loop {
            let mut burst = Burst::default();
            self.receive(&mut burst).await?;
            let quiet = Instant::now() + GATHER;
            while let Ok(received) = timeout_at(quiet, self.receive(&mut burst)).await {
                received?;
            }
            if let Some(what) = burst.found() {
                return Ok(what);
            }
        }
    }

    /// Takes the next datagram of either socket.
    async fn receive(&mut self, burst: &mut Burst) -> io::Result<()> {
        let received = tokio::select! {
            received = datagram(&self.rules) => received?,
            received = datagram(&self.links) => received?,
        };
        let Some(datagram) = received else {
            // What was lost could have been anything: netlink(7).
            burst.sure = Some("more changed than could be told apart".to_owned());
            return Ok(());
        };
        let mut rest = &datagram[..];
        while let Some((message, tail)) = netlink::split_message(rest) {
            rest = tail;
            self.look(&message, burst);
        }
        Ok(())
    }

    fn look(&mut self, message: &Message<'_>, burst: &mut Burst) {
        let own = netlink::is_own_port(message.port);
        match message.kind {
            NEW_GENERATION if !own => burst.sure = Some(rules_changed(message)),
            libc::RTM_NEWLINK | libc::RTM_DELLINK => self.look_at_link(message, own, burst),
            // Port 0 is the kernel, which takes addresses away with what they were on.
            libc::RTM_NEWADDR | libc::RTM_DELADDR if !own && message.port != 0 => {
                let index = message.payload().get(4..IFADDRMSG_BYTES).and_then(number);
                if let Some(index) = index.filter(|index| link::is_bridge_ifindex(*index)) {
                    burst.sure = Some(format!("addresses of link {index} were changed"));
                }
            }
            _ => {}
        }
    }

    fn look_at_link(&mut self, message: &Message<'_>, own: bool, burst: &mut Burst) {
        let Some(link) = LinkChange::of(message).filter(|link| link::is_ours(&link.name)) else { return };
        let LinkChange { index, name, up } = link;
        if message.kind == libc::RTM_DELLINK {
            self.making.remove(&index);
            if own {
                burst.closed.remove(&index);
            } else {
                burst.sure = Some(format!("link {name} vanished"));
            }
            return;
        }
        // That flags were changed is told without saying by whom: __dev_notify_flags() in net/core/dev.c.
        match (up, own) {
            (true, _) => {
                self.making.remove(&index);
                burst.closed.remove(&index);
            }
            (false, true) => {
                self.making.insert(index);
            }
            (false, false) if !self.making.contains(&index) => {
                burst.closed.insert(index, format!("link {name} was set down"));
            }
            (false, false) => {}
        }
        if !own && message.port != 0 {
            burst.sure = Some(format!("link {name} was changed"));
        }
    }
}

fn subscribe(protocol: SockProtocol, groups: &[u32]) -> io::Result<AsyncFd<OwnedFd>> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
    bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    for group in groups {
        netlink::set_option(&fd, libc::NETLINK_ADD_MEMBERSHIP, *group as libc::c_int)?;
    }
    // SAFETY: an `OwnedFd` keeps its descriptor open and the same for as long as it is owned.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(io::Error::from)
}

/// The next datagram; `None` where some were lost.
async fn datagram(socket: &AsyncFd<OwnedFd>) -> io::Result<Option<Vec<u8>>> {
    let mut buffer = vec![0; RECEIVE_BYTES];
    loop {
        let mut ready = socket.readable().await?;
        let received = ready.try_io(|socket| {
            recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()).map_err(io::Error::from)
        });
        match received {
            Ok(Ok(length)) => {
                buffer.truncate(length);
                return Ok(Some(buffer));
            }
            Ok(Err(error)) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => return Ok(None),
            Ok(Err(error)) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            Ok(Err(_)) | Err(_) => {}
        }
    }
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_ne_bytes)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

fn attribute(attributes: &[u8], wanted: u16) -> Option<String> {
    Attributes(attributes).find(|(kind, _)| *kind == wanted).map(|(_, value)| text(value))
}

fn rules_changed(message: &Message<'_>) -> String {
    let attributes = message.payload().get(NFGENMSG_BYTES..).unwrap_or_default();
    let who = attribute(attributes, NFTA_GEN_PROC_NAME);
    format!("{} changed the rules", who.as_deref().unwrap_or("somebody"))
}

/// What a message of RTNLGRP_LINK says.
struct LinkChange {
    index: u32,
    name: String,
    up: bool,
}

impl LinkChange {
    fn of(message: &Message<'_>) -> Option<Self> {
        let payload = message.payload();
        let flags = number(payload.get(8..12)?)?;
        Some(Self {
            index: number(payload.get(4..8)?)?,
            name: attribute(payload.get(IFINFOMSG_BYTES..)?, libc::IFLA_IFNAME)?,
            up: flags & libc::IFF_UP as u32 != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::fd::FromRawFd;

    const STRANGER: u32 = 4_000_000_001;

    fn watch() -> DriftWatch {
        let socket = || {
            // SAFETY: plain integers.
            let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 0) };
            // SAFETY: nobody else knows the descriptor, and it stays open while it is owned.
            unsafe { AsyncFd::register(OwnedFd::from_raw_fd(fd)) }.unwrap()
        };
        DriftWatch { rules: socket(), links: socket(), making: BTreeSet::new() }
    }

    /// A message of RTNLGRP_LINK on link 7, linux/rtnetlink.h.
    fn link(kind: u16, port: u32, name: &str, up: bool) -> Vec<u8> {
        let mut payload = vec![0; 4];
        payload.extend(7_u32.to_ne_bytes());
        payload.extend(u32::from(up).to_ne_bytes());
        payload.extend([0; 4]);
        let length = 4 + name.len() as u16 + 1;
        payload.extend(length.to_ne_bytes());
        payload.extend(libc::IFLA_IFNAME.to_ne_bytes());
        payload.extend(name.as_bytes());
        payload.resize(IFINFOMSG_BYTES + usize::from(length).next_multiple_of(4), 0);
        let mut bytes = (16 + payload.len() as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 6]);
        bytes.extend(port.to_ne_bytes());
        bytes.extend(payload);
        bytes
    }

    fn judged(watch: &mut DriftWatch, messages: &[Vec<u8>]) -> Option<String> {
        let mut burst = Burst::default();
        for bytes in messages {
            let (message, _) = netlink::split_message(bytes).unwrap();
            watch.look(&message, &mut burst);
        }
        burst.found()
    }

    #[tokio::test]
    async fn only_what_others_do_is_told() {
        let own = netlink::NetlinkSocket::open(SockProtocol::NetlinkRoute, 0).unwrap();
        let (port, mut watch) = (own.port(), watch());
        // Made, joined to a bridge while it is down, set up; closed and deleted.
        let life = [
            link(libc::RTM_NEWLINK, port, "hfv7", false),
            link(libc::RTM_NEWLINK, 0, "hfv7", false),
            link(libc::RTM_NEWLINK, 0, "hfv7", true),
        ];
        assert_eq!(judged(&mut watch, &life), None);
        let end = [link(libc::RTM_NEWLINK, 0, "hfv7", false), link(libc::RTM_DELLINK, port, "hfv7", false)];
        assert_eq!(judged(&mut watch, &end), None);
        let down = [link(libc::RTM_NEWLINK, 0, "hfbr1", false)];
        assert_eq!(judged(&mut watch, &down).unwrap(), "link hfbr1 was set down");
        let gone = [link(libc::RTM_NEWLINK, 0, "hfv7", false), link(libc::RTM_DELLINK, 0, "hfv7", false)];
        assert_eq!(judged(&mut watch, &gone).unwrap(), "link hfv7 vanished");
        let renamed = [link(libc::RTM_NEWLINK, STRANGER, "hfv7", true)];
        assert_eq!(judged(&mut watch, &renamed).unwrap(), "link hfv7 was changed");
        let foreign = [link(libc::RTM_DELLINK, STRANGER, "tap0", false)];
        assert_eq!(judged(&mut watch, &foreign), None);
        drop(own);
        assert!(!netlink::is_own_port(port), "a closed socket is nobody's");
    }

    #[tokio::test]
    async fn cut_messages_are_nothing() {
        let mut watch = watch();
        let whole = link(libc::RTM_DELLINK, STRANGER, "hfv7", false);
        for length in 16..whole.len() {
            let mut cut = whole[..length].to_vec();
            cut[..4].copy_from_slice(&(length as u32).to_ne_bytes());
            for kind in [libc::RTM_DELLINK, libc::RTM_NEWADDR, NEW_GENERATION] {
                cut[4..6].copy_from_slice(&kind.to_ne_bytes());
                let (message, _) = netlink::split_message(&cut).unwrap();
                watch.look(&message, &mut Burst::default());
            }
        }
    }
}
