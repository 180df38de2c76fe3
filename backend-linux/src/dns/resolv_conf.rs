//! Whom the host asks, out of its resolv.conf(5), as the router reaches them.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::{Duration, Instant},
};

/// What the host asks.
const HOST_FILE: &str = "/etc/resolv.conf";
/// How old what was read may be when a question is forwarded.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// The largest file that is read, in bytes.
const FILE_BYTES_MAX: usize = 64 << 10;
/// The most servers that are used: `MAXNS` of resolv.conf(5).
const SERVERS_MAX: usize = 3;
/// slirp4netns's names for the host's 127.0.0.1, and for the server that the host asks first: slirp4netns(1).
const HOST_LOOPBACK: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const HOST_RESOLVER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);
/// RFC 1035, 4.2.
const PORT: u16 = 53;

/// Servers, and what of the file could not be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Servers {
    /// Where the router reaches them, in order.
    pub addresses: Vec<SocketAddr>,
    /// What is wrong, for a person.
    pub faults: Vec<String>,
}

/// A file that is looked at again when it is used: no change of the host's is missed for longer than the period, and
/// an idle node looks at nothing.
#[derive(Debug)]
pub(super) struct Watched {
    own: PathBuf,
    looked: Option<Instant>,
    text: Option<String>,
    /// What was read last.
    pub servers: Servers,
    /// Which file it was.
    pub file: PathBuf,
}

impl Watched {
    /// `own` is the file that takes the place of the host's, where it exists.
    pub fn new(own: PathBuf) -> Self {
        Self { own, looked: None, text: None, servers: Servers::default(), file: PathBuf::from(HOST_FILE) }
    }

    /// Leaves what is known as it is for a day.
    #[cfg(test)]
    pub fn freeze(&mut self) {
        self.looked = Some(Instant::now() + Duration::from_secs(86_400));
    }

    /// Reads the file again if it is time; whether anything changed.
    pub fn look(&mut self) -> bool {
        if self.looked.is_some_and(|at| at.elapsed() < LOOK_PERIOD) {
            return false;
        }
        self.looked = Some(Instant::now());
        let (file, read) = match std::fs::read(&self.own) {
            Ok(bytes) => (self.own.clone(), Ok(bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                (PathBuf::from(HOST_FILE), std::fs::read(HOST_FILE))
            }
            Err(error) => (self.own.clone(), Err(error)),
        };
        let is_host = file != self.own;
        let next = match read {
            Ok(bytes) => {
                let bytes = bytes.get(..FILE_BYTES_MAX).unwrap_or(&bytes);
                let text = String::from_utf8_lossy(bytes).into_owned();
                if self.text.as_ref() == Some(&text) && self.file == file {
                    return false;
                }
                let servers = servers(&text, is_host);
                self.text = Some(text);
                servers
            }
            Err(error) => {
                self.text = None;
                Servers { addresses: Vec::new(), faults: vec![format!("{}: {error}", file.display())] }
            }
        };
        self.file = file;
        let changed = next != self.servers;
        self.servers = next;
        changed
    }
}

/// The servers that a resolv.conf(5) names. `[ADDRESS]:PORT` is understood too, as OpenBSD's has it.
fn servers(text: &str, is_host: bool) -> Servers {
    let mut servers = Servers::default();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some("nameserver"), Some(word)) = (words.next(), words.next()) else { continue };
        if servers.addresses.len() == SERVERS_MAX {
            break;
        }
        let Some(address) = parse(word) else {
            servers.faults.push(format!("{word:?} is no name server"));
            continue;
        };
        match reached(address, is_host) {
            Ok(address) if servers.addresses.contains(&address) => {}
            Ok(address) => servers.addresses.push(address),
            Err(fault) => servers.faults.push(fault),
        }
    }
    if servers.addresses.is_empty() && servers.faults.is_empty() && is_host {
        // resolv.conf(5): without a server the resolver asks the one on the local machine.
        servers.addresses.push(SocketAddr::new(HOST_LOOPBACK.into(), PORT));
    }
    servers
}

fn parse(word: &str) -> Option<SocketAddr> {
    if let Some((address, port)) = word.strip_prefix('[').and_then(|rest| rest.split_once("]:")) {
        return Some(SocketAddr::new(address.parse().ok()?, port.parse().ok().filter(|port| *port != 0)?));
    }
    // A zone index names a link of the host's, which the router does not have.
    Some(SocketAddr::new(word.parse().ok()?, PORT))
}

/// Where the router reaches a server: the host's loopback is another one here.
fn reached(server: SocketAddr, is_host: bool) -> Result<SocketAddr, String> {
    let ip = server.ip().to_canonical();
    let at = |address: Ipv4Addr| Ok(SocketAddr::new(address.into(), server.port()));
    match ip {
        IpAddr::V4(Ipv4Addr::LOCALHOST) => at(HOST_LOOPBACK),
        _ if ip.is_loopback() && is_host && server.port() == PORT => at(HOST_RESOLVER),
        _ if ip.is_loopback() => {
            Err(format!("{ip} is not within reach of the node: of the host's loopback only 127.0.0.1 is"))
        }
        _ if ip.is_unspecified() => at(HOST_LOOPBACK),
        _ if ip.is_multicast() => Err(format!("{ip} is no name server")),
        _ => Ok(SocketAddr::new(ip, server.port())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn servers_are_where_the_router_reaches_them() {
        let check = |text: &str, is_host: bool, expected: &[&str], faults: usize| {
            let found = servers(text, is_host);
            let expected: Vec<SocketAddr> = expected.iter().map(|it| it.parse().unwrap()).collect();
            assert_eq!((found.addresses, found.faults.len()), (expected, faults), "{text:?}");
        };
        check("", true, &["10.0.2.2:53"], 0);
        check("", false, &[], 0);
        check(
            "search x\nnameserver 127.0.0.1\nnameserver 9.9.9.9 # a\n",
            true,
            &["10.0.2.2:53", "9.9.9.9:53"],
            0,
        );
        check("nameserver 127.0.0.53\nnameserver ::1", true, &["10.0.2.3:53"], 0);
        check("nameserver 127.0.0.53", false, &[], 1);
        check("nameserver [127.0.0.1]:5353", false, &["10.0.2.2:5353"], 0);
        check(
            "nameserver [2001:db8::1]:54\nnameserver fe80::1%eth0\nnameserver x",
            true,
            &["[2001:db8::1]:54"],
            2,
        );
        check(&"nameserver 1.1.1.1\nnameserver 1.1.1.2\n".repeat(9), true, &["1.1.1.1:53", "1.1.1.2:53"], 0);
    }

    #[test]
    fn a_file_of_the_node_takes_the_place_of_the_hosts_and_changes_are_seen() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("resolv.conf");
        let mut watched = Watched::new(own.clone());
        std::fs::write(&own, "nameserver 192.0.2.1\n").unwrap();
        assert!(watched.look());
        assert_eq!(watched.servers.addresses, ["192.0.2.1:53".parse().unwrap()]);
        std::fs::write(&own, "nameserver 192.0.2.2\n").unwrap();
        assert!(!watched.look(), "not looked at twice within the period");
        watched.looked = None;
        assert!(watched.look());
        assert_eq!(watched.servers.addresses, ["192.0.2.2:53".parse().unwrap()]);
        watched.looked = None;
        assert!(!watched.look(), "nothing changed");
        std::fs::remove_file(&own).unwrap();
        watched.looked = None;
        watched.look();
        assert_eq!(watched.file, PathBuf::from(HOST_FILE));
    }
}
