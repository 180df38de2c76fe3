//! What the router holds, asked of the kernel with `ip` and `nft` from inside, not of the node.

use crate::{command, identity::Identity, process::Process};
use anyhow::{Context, Result};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    time::Duration,
};

/// Links and rules of a network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Names of its links.
    pub links: BTreeSet<String>,
    /// Elements per set or map, as `family table set`.
    pub elements: BTreeMap<String, usize>,
    /// Rules per chain, as `family table chain`; empty where the tool cannot read them.
    pub rules: BTreeMap<String, usize>,
}

impl Census {
    /// Counts in the network namespace of `process`.
    ///
    /// # Errors
    /// When `ip` or `nft` cannot be run there.
    pub fn take(identity: &Identity, process: Process) -> Result<Self> {
        let links = inside(identity, process, &["ip", "-j", "link", "show"])?;
        let mut census = Self::default();
        for link in links.as_array().context("ip -j link: no list")? {
            census.links.insert(link["ifname"].as_str().unwrap_or_default().to_owned());
        }
        for (kind, list) in [("set", "sets"), ("map", "maps")] {
            let found = inside(identity, process, &["nft", "-j", "list", list])?;
            for set in objects(&found, kind)? {
                census.elements.insert(key(set, "name"), set["elem"].as_array().map_or(0, Vec::len));
            }
        }
        // nft 1.0.6 aborts on rules that it cannot put into words (a concatenation with a mapped field): the
        // sets tell more, and rules are counted where the tool can read them.
        if let Ok(found) = inside(identity, process, &["nft", "-j", "list", "ruleset"]) {
            for rule in objects(&found, "rule")? {
                *census.rules.entry(key(rule, "chain")).or_default() += 1;
            }
        }
        Ok(census)
    }

    /// What this census has and `before` has not; empty when nothing was added.
    pub fn added_since(&self, before: &Self) -> Vec<String> {
        let links = self.links.difference(&before.links).map(|link| format!("link {link}"));
        let counts =
            |now: &BTreeMap<String, usize>, then: &BTreeMap<String, usize>, what: &str| -> Vec<String> {
                now.iter()
                    .filter_map(|(key, count)| {
                        let old = then.get(key).copied().unwrap_or_default();
                        (*count > old).then(|| format!("{} {what} of {key}", count - old))
                    })
                    .collect()
            };
        links
            .chain(counts(&self.elements, &before.elements, "elements"))
            .chain(counts(&self.rules, &before.rules, "rules"))
            .collect()
    }
}

fn objects<'a>(answer: &'a Value, kind: &'a str) -> Result<impl Iterator<Item = &'a Value> + 'a> {
    let list = answer["nftables"].as_array().context("nft -j: no list")?;
    Ok(list.iter().filter_map(move |object| object.get(kind)))
}

fn key(object: &Value, name: &str) -> String {
    ["family", "table", name].map(|field| object[field].as_str().unwrap_or_default()).join(" ")
}

fn inside(identity: &Identity, process: Process, tool: &[&str]) -> Result<Value> {
    let mut command = Command::new(&identity.chaos);
    command.args(["inside", "--pid", &process.pid.to_string(), "exec", "--"]).args(tool);
    command.env_clear().env("PATH", crate::node::PATH);
    let text = command::run(&mut command, Duration::from_secs(10))?.success(&tool.join(" "))?;
    serde_json::from_str(&text).with_context(|| format!("{} printed no JSON", tool.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_additions_are_leaks() {
        let mut before = Census::default();
        before.links.insert("lo".to_owned());
        before.elements.insert("ip holdfast group4".to_owned(), 2);
        let mut after = before.clone();
        assert!(after.added_since(&before).is_empty());
        after.elements.insert("ip holdfast group4".to_owned(), 3);
        after.links.insert("hfv1".to_owned());
        assert_eq!(after.added_since(&before), ["link hfv1", "1 elements of ip holdfast group4"]);
        assert!(before.added_since(&after).is_empty());
    }
}
