//! Subordinate ids: who the node's workloads may be.

use holdfast_core::error::{Class, KeeperError};
use nix::unistd::{Gid, Uid, User};
use std::{path::Path, time::Duration};
use tokio::process::Command;

/// How long newuidmap(1) or newgidmap(1) may take.
const TOOL_DEADLINE: Duration = Duration::from_secs(5);
/// The most ranges that are mapped: the kernel takes 340 lines, nobody has more than a few; user_namespaces(7).
const RANGES_MAX: usize = 32;

/// A range of subordinate ids; subuid(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First id on the host.
    pub start: u32,
    /// How many.
    pub count: u32,
}

/// The ranges that a file of the form of subuid(5) gives to a user, by name or by number.
fn parse_ranges(text: &str, name: Option<&str>, id: u32) -> Vec<Range> {
    let id = id.to_string();
    text.lines()
        .filter_map(|line| {
            let mut fields = line.trim().split(':');
            let owner = fields.next()?;
            if Some(owner) != name && owner != id {
                return None;
            }
            let range = Range { start: fields.next()?.parse().ok()?, count: fields.next()?.parse().ok()? };
            (range.count > 0).then_some(range)
        })
        .take(RANGES_MAX)
        .collect()
}

fn ranges(file: &str, name: Option<&str>, id: u32) -> Result<Vec<Range>, KeeperError> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(parse_ranges(&text, name, id)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(KeeperError::new(Class::Denied, "read subordinate ids", file, error)),
    }
}

/// The arguments of newuidmap(1) after the pid: id 0 inside is the user, the ranges follow from 1 on.
fn map_arguments(own: u32, ranges: &[Range]) -> Vec<String> {
    let mut arguments = vec!["0".to_owned(), own.to_string(), "1".to_owned()];
    let mut inside: u32 = 1;
    for range in ranges {
        let count = range.count.min(u32::MAX - inside);
        arguments.extend([inside.to_string(), range.start.to_string(), count.to_string()]);
        inside += count;
    }
    arguments
}

/// Maps the ids of a new user namespace, whose first process `pid` waits for it. Without any subordinate range
/// only the user itself is mapped, with a warning: containers then run as a single user.
///
/// # Errors
/// `Denied` when a range exists and cannot be mapped, with what to do about it.
pub async fn map_ids(pid: u32) -> Result<(), KeeperError> {
    let (uid, gid) = (Uid::current(), Gid::current());
    let name = User::from_uid(uid).ok().flatten().map(|user| user.name);
    let uids = ranges("/etc/subuid", name.as_deref(), uid.as_raw())?;
    // subgid(5) lists ranges by the user, not by the group.
    let gids = ranges("/etc/subgid", name.as_deref(), uid.as_raw())?;
    if uids.is_empty() || gids.is_empty() {
        let user = name.unwrap_or_else(|| uid.to_string());
        tracing::warn!(
            user,
            remedy = format!("usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}"),
            "no subordinate ids: a single id is mapped, images with files of other users will not work"
        );
        return map_single(pid, uid, gid);
    }
    run_tool("newuidmap", pid, &map_arguments(uid.as_raw(), &uids)).await?;
    run_tool("newgidmap", pid, &map_arguments(gid.as_raw(), &gids)).await
}

/// The map that needs no privilege; user_namespaces(7): one id, and setgroups(2) denied first.
fn map_single(pid: u32, uid: Uid, gid: Gid) -> Result<(), KeeperError> {
    let write = |file: &str, text: String| {
        let path = Path::new("/proc").join(pid.to_string()).join(file);
        std::fs::write(&path, text).map_err(|error| {
            KeeperError::new(Class::Denied, "map a single id", path.display().to_string(), error)
        })
    };
    write("setgroups", "deny".to_owned())?;
    write("uid_map", format!("0 {uid} 1"))?;
    write("gid_map", format!("0 {gid} 1"))
}

async fn run_tool(tool: &str, pid: u32, arguments: &[String]) -> Result<(), KeeperError> {
    let fail = |class, cause: String| {
        KeeperError::new(class, "map subordinate ids", format!("of pid {pid} with {tool}"), cause)
    };
    let mut command = Command::new(tool);
    command.arg(pid.to_string()).args(arguments).stdin(std::process::Stdio::null()).kill_on_drop(true);
    let output = match tokio::time::timeout(TOOL_DEADLINE, command.output()).await {
        Err(_) => return Err(fail(Class::Unknown, format!("not done after {} s", TOOL_DEADLINE.as_secs()))),
        Ok(Err(error)) => {
            return Err(fail(Class::Denied, error.to_string()).with_remedy("install the package uidmap"));
        }
        Ok(Ok(output)) => output,
    };
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(fail(Class::Denied, format!("{}: {}", output.status, said.trim())).with_remedy(format!(
        "check that {tool} is setuid root or has its file capability, and that the user's ranges in /etc/subuid and /etc/subgid are right"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found_by_name_and_by_number_and_nobody_elses() {
        let text = "a:100000:65536\nb:200000:65536\n1000:300000:10\n# c\na:bad:1\na:5:0\n";
        assert_eq!(
            parse_ranges(text, Some("a"), 1000),
            [Range { start: 100_000, count: 65536 }, Range { start: 300_000, count: 10 }]
        );
        assert!(parse_ranges(text, None, 7).is_empty());
    }

    #[test]
    fn ranges_are_mapped_one_after_the_other_from_one_on() {
        let ranges = [Range { start: 100_000, count: 10 }, Range { start: 5, count: 3 }];
        let expected = ["0", "1000", "1", "1", "100000", "10", "11", "5", "3"];
        assert_eq!(map_arguments(1000, &ranges), expected);
    }
}
