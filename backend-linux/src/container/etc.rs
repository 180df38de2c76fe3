//! /etc/hosts, /etc/hostname and /etc/resolv.conf of a container, written anew at each start.

use super::fault::io_fail;
use crate::paths::Paths;
use holdfast_core::{error::ContainerError, plan::ContainerPlan};
use std::{net::IpAddr, path::PathBuf};

/// The name server that slirp4netns offers in the router: slirp4netns(1).
const UPLINK_NAME_SERVER: &str = "10.0.2.3";
/// The names of the files, which are bound at `/etc/<name>`.
pub(crate) const NAMES: [&str; 3] = ["hosts", "hostname", "resolv.conf"];

/// Directory of a container's files.
pub(crate) fn directory(paths: &Paths, id: &str) -> PathBuf {
    paths.container(id).join("etc")
}

/// Writes the files.
///
/// # Errors
/// I/O errors on the state directory.
pub(crate) fn write(paths: &Paths, plan: &ContainerPlan) -> Result<(), ContainerError> {
    let directory = directory(paths, plan.id.as_str());
    let host = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let contents = [hosts(plan), format!("{}\n", plan.hostname), resolv_conf(&host)];
    std::fs::create_dir_all(&directory)
        .and_then(|()| {
            NAMES.iter().zip(contents).try_for_each(|(name, text)| std::fs::write(directory.join(name), text))
        })
        .map_err(|error| io_fail("write /etc files of", plan.id.as_str(), error))
}

/// Own names with their addresses, whichever of the two comes first in the pair, as hosts(5) wants them.
fn hosts(plan: &ContainerPlan) -> String {
    let mut text = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n".to_owned();
    for (one, other) in &plan.hosts {
        let (address, name) = if one.parse::<IpAddr>().is_ok() { (one, other) } else { (other, one) };
        text.push_str(&format!("{address}\t{name}\n"));
    }
    text
}

/// The host's resolv.conf(5), in which a name server on the loopback, which is another one in a container, is replaced
/// by the uplink's.
fn resolv_conf(host: &str) -> String {
    let is_loopback = |address: &str| {
        address
            .split('%')
            .next()
            .and_then(|address| address.parse::<IpAddr>().ok())
            .is_some_and(|address| address.is_loopback())
    };
    let uplink = format!("nameserver {UPLINK_NAME_SERVER}");
    let mut lines: Vec<String> = Vec::new();
    for line in host.lines() {
        let mut words = line.split_ascii_whitespace();
        let line = match (words.next(), words.next()) {
            (Some("nameserver"), Some(address)) if is_loopback(address) => uplink.clone(),
            _ => line.to_owned(),
        };
        if line != uplink || !lines.contains(&line) {
            lines.push(line);
        }
    }
    if !lines.iter().any(|line| line.starts_with("nameserver")) {
        lines.push(uplink);
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::resolv_conf;

    #[test]
    fn loopback_name_servers_become_the_uplinks_and_others_stay() {
        let check = |host: &str, expected: &str| assert_eq!(resolv_conf(host), expected, "{host:?}");
        check("", "nameserver 10.0.2.3\n");
        check("search a.b\nnameserver 9.9.9.9\n", "search a.b\nnameserver 9.9.9.9\n");
        check(
            "nameserver 127.0.0.53\nnameserver ::1\noptions edns0\n",
            "nameserver 10.0.2.3\noptions edns0\n",
        );
    }
}
