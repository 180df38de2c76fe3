//! /etc/hosts, /etc/hostname and /etc/resolv.conf of a container, written anew at each start.

use super::fault::io_fail;
use crate::paths::Paths;
use holdfast_core::{
    error::ContainerError,
    plan::{ContainerPlan, ResolverPlan},
};
use std::{net::IpAddr, path::PathBuf};

/// The name server that slirp4netns offers in the router: slirp4netns(1).
const UPLINK_NAME_SERVER: &str = "10.0.2.3";
/// What a resolver reads: `MAXNS` of resolv.conf(5).
const NAME_SERVERS_MAX: usize = 3;
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
    let contents = [hosts(plan), format!("{}\n", plan.hostname), resolv_conf(&plan.resolver, &host)];
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

/// What the resolver of a container reads: resolv.conf(5). Where the plan leaves it to the host's, a name server on the
/// loopback, which is another one in a container, is replaced by the uplink's.
fn resolv_conf(plan: &ResolverPlan, host: &str) -> String {
    let is_loopback = |address: &str| {
        address
            .split('%')
            .next()
            .and_then(|address| address.parse::<IpAddr>().ok())
            .is_some_and(|address| address.is_loopback())
    };
    let lines = |key: &'static str| {
        let words = host.lines().map(str::split_ascii_whitespace);
        words.filter_map(move |mut words| (words.next() == Some(key)).then(|| words.map(str::to_owned)))
    };
    let mut servers: Vec<String> = plan.servers.iter().map(IpAddr::to_string).collect();
    let mut search = plan.search.clone();
    let mut options = plan.options.clone();
    if plan.host_servers {
        for server in lines("nameserver").filter_map(|mut words| words.next()) {
            servers.push(if is_loopback(&server) { UPLINK_NAME_SERVER.to_owned() } else { server });
        }
        options.extend(lines("options").flatten());
        if servers.is_empty() {
            servers.push(UPLINK_NAME_SERVER.to_owned());
        }
    }
    if plan.host_search {
        // The last line of its kind is the one that counts, and `domain` is the old name of it.
        let last = lines("search").next_back().map(Iterator::collect::<Vec<_>>);
        let last = last.or_else(|| lines("domain").next_back().map(Iterator::collect));
        search.extend(last.unwrap_or_default());
    }
    for list in [&mut servers, &mut search, &mut options] {
        let mut seen = std::collections::BTreeSet::new();
        list.retain(|word| seen.insert(word.clone()));
    }
    let mut text = String::new();
    if !search.is_empty() {
        text.push_str(&format!("search {}\n", search.join(" ")));
    }
    for server in servers.iter().take(NAME_SERVERS_MAX) {
        text.push_str(&format!("nameserver {server}\n"));
    }
    if !options.is_empty() {
        text.push_str(&format!("options {}\n", options.join(" ")));
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::resolv_conf;
    use holdfast_core::plan::ResolverPlan;

    #[test]
    fn the_hosts_loopback_name_servers_become_the_uplinks_and_others_stay() {
        let check = |host: &str, expected: &str| {
            assert_eq!(resolv_conf(&ResolverPlan::default(), host), expected, "{host:?}")
        };
        check("", "nameserver 10.0.2.3\n");
        check("search a.b\nnameserver 9.9.9.9\n", "search a.b\nnameserver 9.9.9.9\n");
        check(
            "nameserver 127.0.0.53\nnameserver ::1\noptions edns0\n",
            "nameserver 10.0.2.3\noptions edns0\n",
        );
        check("domain x\nsearch a\nsearch b c\n", "search b c\nnameserver 10.0.2.3\n");
    }

    #[test]
    fn what_the_plan_says_comes_first_and_the_hosts_only_where_it_is_asked_for() {
        let host = "search host.example\nnameserver 9.9.9.9\noptions rotate\n";
        let plan = ResolverPlan {
            servers: vec!["10.89.0.1".parse().unwrap()],
            search: vec!["default.holdfast.internal".into()],
            options: vec!["ndots:2".into()],
            host_servers: false,
            host_search: true,
        };
        let expected =
            "search default.holdfast.internal host.example\nnameserver 10.89.0.1\noptions ndots:2\n";
        assert_eq!(resolv_conf(&plan, host), expected);
        let own = ResolverPlan { host_search: false, search: vec![], options: vec![], ..plan };
        assert_eq!(resolv_conf(&own, host), "nameserver 10.89.0.1\n");
    }
}
