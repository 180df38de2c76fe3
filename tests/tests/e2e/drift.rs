//! What somebody else does to the router, by the tools an operator has: noticed at once, put right, counted.

use crate::{
    recovery::check_works,
    runner::Context,
    support::{status, whole},
};
use anyhow::{Context as _, Result, ensure};
use holdfast_chaos::{
    command,
    node::Node,
    poll,
    stage::{Stage, check_untouched},
};
use std::{process::Command, time::Duration};

/// Well below the period of the slow timer, so that what is put right in it was noticed by a notification.
const NOTICED_WITHIN: Duration = Duration::from_secs(10);

/// How often something was put right.
fn repaired(node: &Node) -> Result<u64> {
    let count = status(node)?["cures"]["repaired"].as_u64();
    Ok(count.unwrap_or(0))
}

/// Runs a tool in the router, as the operator of the node would.
fn in_router(node: &Node, pin: u32, line: &str) -> Result<String> {
    let mut command = Command::new(&node.identity.chaos);
    command.args(["inside", "--pid", &pin.to_string(), "exec", "--"]).args(line.split_whitespace());
    let output = command::run(&mut command, NOTICED_WITHIN)?;
    ensure!(output.status.success(), "{line}: {output:?}");
    Ok(output.stdout)
}

/// The first link of the router with such a name.
fn link(node: &Node, pin: u32, prefix: &str) -> Result<String> {
    let shown = in_router(node, pin, "ip -oneline link show")?;
    let names = shown.lines().filter_map(|line| line.split([':', '@']).nth(1)).map(str::trim);
    let found = names.into_iter().find(|name| name.starts_with(prefix));
    Ok(found.with_context(|| format!("no link {prefix}* in {shown}"))?.to_owned())
}

pub fn changes_by_others_are_put_right(context: &Context) -> Result<()> {
    let stage = Stage::populated(&context.identity)?;
    let node = &stage.node;
    let pin = whole(node)?.pin.pid;
    let before = stage.workloads()?;
    // Everything so far was asked for by the node itself.
    ensure!(repaired(node)? == 0, "the node took its own work for somebody else's");
    let (bridge, plug) = (link(node, pin, "hfbr")?, link(node, pin, "hfv")?);
    let lines = [
        "nft flush ruleset".to_owned(),
        "nft delete table bridge holdfast".to_owned(),
        format!("ip link set {bridge} down"),
        format!("ip address flush dev {bridge}"),
        format!("ip link delete {plug}"),
    ];
    for (done, line) in (0..).zip(&lines) {
        in_router(node, pin, line)?;
        poll::until(&format!("{line:?} to be put right and counted"), NOTICED_WITHIN, || {
            Ok((repaired(node)? > done).then_some(()))
        })?;
        stage.check_reach().with_context(|| line.clone())?;
    }
    check_works(&stage)?;
    let counted = repaired(node)?;
    ensure!(counted == lines.len() as u64, "{counted} repairs of {} changes", lines.len());
    check_untouched(&before, &stage.workloads()?)?;
    // The kernel's own doing, and the node's: a sandbox that goes takes its plug with it.
    node.sh("rm --force web")?;
    node.sh("up")?;
    ensure!(repaired(node)? == counted, "a removal was taken for somebody else's change");
    stage.finish()
}
