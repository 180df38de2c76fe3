//! Policies, by real packets: TCP, UDP and echoes, both families, both directions, over every cure.

use crate::{
    plugs::{Echo, address, asks, fetches, pings},
    runner::Context,
    support::{ends_with, serve, stage, text, whole, with_input},
};
use anyhow::{Context as _, Result, ensure};
use holdfast_chaos::{
    node::{Node, Role},
    poll, process,
    stage::{HEAL_DEADLINE, Stage},
};

const PATIENCE_MS: u32 = 2_000;
const SILENCE_MS: u32 = 300;

/// Web and db of blue, other of green; db answers datagrams at 53 too.
fn town(context: &Context) -> Result<(Stage, Echo, Echo)> {
    let stage = stage(context)?;
    let node = &stage.node;
    serve(node, "web", "--namespace blue -l app=web")?;
    serve(node, "db", "--namespace blue -l app=db")?;
    serve(node, "other", "--namespace green -l app=other")?;
    let four = Echo::start(node, "db", "0.0.0.0:53")?;
    let six = Echo::start(node, "db", "[::]:5353")?;
    Ok((stage, four, six))
}

#[derive(Clone, Copy)]
enum What {
    Tcp,
    Udp,
    Icmp,
}

fn reaches(node: &Node, from: &str, to: &str, what: What, wanted: bool) -> Result<()> {
    for family in ["ipv4", "ipv6"] {
        let target = address(node, to, "default", family)?;
        let patience = if wanted { PATIENCE_MS } else { SILENCE_MS };
        let got = match what {
            What::Tcp => fetches(node, from, &target, 80, patience)?,
            What::Udp => asks(node, from, &target, if family == "ipv4" { 53 } else { 5353 }, patience)?,
            What::Icmp => pings(node, from, &target, patience)?,
        };
        let what = ["tcp", "udp", "icmp"][what as usize];
        ensure!(got == wanted, "{from} to {to} at {target} by {what}: {got}, and it should be {wanted}");
    }
    Ok(())
}

pub fn rules_by_packets(context: &Context) -> Result<()> {
    let (stage, four, six) = town(context)?;
    let node = &stage.node;
    reaches(node, "web", "db", What::Tcp, true)?;
    reaches(node, "web", "db", What::Udp, true)?;
    reaches(node, "other", "db", What::Tcp, false)?;
    // Across tenants: what is named, in the direction that is named, and the answers.
    node.sh("policy allow --from other --to label:app=db --port 80 --name open")?;
    reaches(node, "other", "db", What::Tcp, true)?;
    reaches(node, "other", "db", What::Icmp, false)?;
    reaches(node, "db", "other", What::Tcp, false)?;
    reaches(node, "other", "web", What::Tcp, false)?;
    // A deny beats it, and stops what isolation lets through.
    node.sh("policy deny --to db --proto udp --name quiet")?;
    reaches(node, "web", "db", What::Udp, false)?;
    reaches(node, "web", "db", What::Tcp, true)?;
    node.sh("policy rm quiet")?;
    reaches(node, "web", "db", What::Udp, true)?;
    reaches(node, "other", "db", What::Tcp, true)?;
    // A default, with what is allowed in spite of it.
    node.sh("policy default ingress label:app=db --name closed")?;
    reaches(node, "web", "db", What::Tcp, false)?;
    reaches(node, "web", "db", What::Icmp, false)?;
    reaches(node, "other", "db", What::Tcp, true)?;
    reaches(node, "db", "web", What::Tcp, true)?;
    let why = ends_with(node, 1, &["network", "why", "web", "db", "80"])?;
    ensure!(why.stdout.contains("closed"), "{}", why.stdout);
    let why = ends_with(node, 0, &["--format", "json", "network", "why", "other", "db", "80"])?;
    ensure!(why.stdout.contains("open"), "{}", why.stdout);
    // Counted, rule by rule.
    let listed = node.json("policy ls --stats")?;
    for name in ["open", "closed"] {
        let of = |one: &&serde_json::Value| text(one, "/name") == name;
        let one = listed.as_array().and_then(|all| all.iter().find(of)).context("a rule")?;
        ensure!(one["counter"]["packets"].as_u64().is_some_and(|count| count > 0), "{one}");
    }
    // Every keeper dies, and the rules are there again before the links are.
    let processes = whole(node)?;
    let mut victims = processes.all().to_vec();
    for name in ["web", "db", "other"] {
        victims.extend(node.container(name)?.monitor);
    }
    process::kill_all(&victims)?;
    node.await_processes("the node to come back", HEAL_DEADLINE, |now| {
        Role::ALL.iter().all(|role| now.get(*role) != processes.get(*role))
    })?;
    poll::until("the allowed way", HEAL_DEADLINE, || {
        Ok(reaches(node, "other", "db", What::Tcp, true).is_ok().then_some(()))
    })?;
    reaches(node, "web", "db", What::Tcp, false)?;
    // One that comes later is under the rules at once.
    serve(node, "late", "--namespace blue -l app=late")?;
    reaches(node, "late", "db", What::Tcp, false)?;
    reaches(node, "late", "web", What::Tcp, true)?;
    let verified = ends_with(node, 0, &["--format", "json", "network", "verify", "--all"])?;
    let report: serde_json::Value = serde_json::from_str(&verified.stdout)?;
    ensure!(report["results"].as_array().is_some_and(|all| all.len() > 40), "{report}");
    node.sh("policy rm open closed")?;
    reaches(node, "web", "db", What::Tcp, true)?;
    reaches(node, "other", "db", What::Tcp, false)?;
    for (arguments, word) in
        [("deny --from nobody", "nobody"), ("deny --from default", "network:default"), ("deny --port 0", "0")]
    {
        let said = node.refused(&format!("policy {arguments}"))?;
        ensure!(said.contains(word), "{arguments}: {said}");
    }
    drop((four, six));
    stage.finish()
}

const DOCUMENT: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: db
  namespace: blue
spec:
  podSelector:
    matchLabels:
      app: db
  policyTypes: [Ingress]
  ingress:
    - from:
        - namespaceSelector:
            matchLabels:
              kubernetes.io/metadata.name: green
      ports:
        - port: 80
";

pub fn document_by_packets(context: &Context) -> Result<()> {
    let (stage, four, six) = town(context)?;
    let node = &stage.node;
    let applied = with_input(node, &["policy", "apply", "-f", "-"], DOCUMENT.as_bytes())?;
    ensure!(applied.status.success(), "{applied:?}");
    reaches(node, "other", "db", What::Tcp, true)?;
    reaches(node, "other", "db", What::Icmp, false)?;
    reaches(node, "web", "db", What::Tcp, false)?;
    reaches(node, "db", "web", What::Tcp, true)?;
    let again = with_input(node, &["policy", "apply", "-f", "-"], DOCUMENT.as_bytes())?;
    ensure!(again.status.success() && node.names("policy ls")?.len() == 2, "{again:?}");
    let broken = with_input(
        node,
        &["policy", "apply", "-f", "-"],
        DOCUMENT.replace("port: 80", "port: http").as_bytes(),
    )?;
    ensure!(!broken.status.success() && broken.stderr.contains("http"), "{broken:?}");
    node.sh("policy rm blue.db")?;
    reaches(node, "web", "db", What::Tcp, true)?;
    reaches(node, "other", "db", What::Tcp, false)?;
    drop((four, six));
    stage.finish()
}
