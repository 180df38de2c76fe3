//! Networks of workloads that run: connect and disconnect, declared addresses, routes, published ports as seen from
//! inside; each by real packets.

use crate::{
    runner::Context,
    support::{IMAGE, own_copy, pause, serve, stage, text, whole},
};
use anyhow::{Context as _, Result, ensure};
use holdfast_chaos::{
    command,
    node::{Node, Role},
    poll,
    process::{self, Process},
    stage::{HEAL_DEADLINE, free_port},
    traffic::http_get,
};
use std::{
    net::{SocketAddr, UdpSocket},
    process::{Child, Command, Stdio},
    time::Duration,
};

/// What may pass answers within a millisecond or two; what may not is waited for in vain.
const PATIENCE_MS: u32 = 2_000;
const SILENCE_MS: u32 = 400;

/// This program inside a workload's network.
fn inside(node: &Node, pid: u32, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(&node.identity.chaos);
    command.args(["inside", "--pid", &pid.to_string(), "exec", "--"]);
    command.arg(own_copy(node)?).args(arguments);
    Ok(command)
}

fn init(node: &Node, name: &str) -> Result<Process> {
    node.await_running(name, HEAL_DEADLINE)?.running()
}

/// Whether a workload gets the page at an address, by TCP.
pub fn fetches(node: &Node, from: &str, address: &str, port: u16, deadline_ms: u32) -> Result<bool> {
    let target = SocketAddr::new(address.parse()?, port).to_string();
    let pid = init(node, from)?.pid;
    let mut command = inside(node, pid, &["--fetch", &target, &deadline_ms.to_string()])?;
    let output = command::run(&mut command, Duration::from_secs(10))?;
    ensure!(output.stdout.starts_with("Ok") || output.stdout.starts_with("Err"), "could not try: {output:?}");
    Ok(output.status.success())
}

/// Whether a workload's datagram to an address is answered.
pub fn asks(node: &Node, from: &str, address: &str, port: u16, deadline_ms: u32) -> Result<bool> {
    let target = SocketAddr::new(address.parse()?, port).to_string();
    let pid = init(node, from)?.pid;
    let mut command = inside(node, pid, &["--ask", &target, &deadline_ms.to_string()])?;
    let output = command::run(&mut command, Duration::from_secs(10))?;
    ensure!(output.stdout.starts_with("answer"), "could not try: {output:?}");
    Ok(output.stdout.starts_with("answered"))
}

/// Whether a workload's echo request to an address is answered.
pub fn pings(node: &Node, from: &str, address: &str, deadline_ms: u32) -> Result<bool> {
    let pid = init(node, from)?.pid;
    let mut command = inside(node, pid, &["--ping", address, &deadline_ms.to_string()])?;
    let output = command::run(&mut command, Duration::from_secs(10))?;
    ensure!(output.stdout.starts_with("answer"), "could not try: {output:?}");
    Ok(output.stdout.starts_with("answered"))
}

/// A process that answers datagrams in a workload's network, for as long as this lives.
pub struct Echo(Child);

impl Echo {
    pub fn start(node: &Node, name: &str, address: &str) -> Result<Self> {
        use std::io::{BufRead, BufReader};
        let mut command = inside(node, init(node, name)?.pid, &["--echo", address])?;
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().context("start the echo")?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let echo = Self(child);
        ensure!(line == "bound\n", "the echo said {line:?}");
        Ok(echo)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        // Its own child, which is waited for: nothing is left, whatever came of it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The address of a workload on a network, of one family.
pub fn address(node: &Node, name: &str, network: &str, family: &str) -> Result<String> {
    let value = node.json(&format!("inspect {name}"))?;
    let all = value["addresses"].as_array().cloned().unwrap_or_default();
    let own = all.iter().find(|one| text(one, "/network") == network);
    Ok(text(own.with_context(|| format!("{name} is not on {network}"))?, &format!("/{family}")).to_owned())
}

pub fn connect_and_disconnect(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    node.sh("network create lan --subnet 10.77.3.0/24 --subnet fd77:3::/64 --gateway 10.77.3.254 --ipv6")?;
    let lan = node.json("network inspect lan")?;
    ensure!(text(&lan, "/subnet6") == "fd77:3::/64" && text(&lan, "/gateway4") == "10.77.3.254", "{lan}");
    let port = free_port()?;
    serve(node, "web", &format!("-p {port}:80"))?;
    serve(node, "other", "--network lan")?;
    let before = init(node, "web")?;
    let said = node.refused("network connect --ip 10.77.4.9 lan web")?;
    ensure!(said.contains("10.77.4.9") && said.contains("10.77.3.0/24"), "{said}");
    node.sh("network connect --ip 10.77.3.9 --ip6 fd77:3::9 --mac 02:42:00:00:00:09 lan web")?;
    let check = |after: &str| -> Result<()> {
        for target in ["10.77.3.9", "fd77:3::9"] {
            poll::until(&format!("{target} to be reached after {after}"), HEAL_DEADLINE, || {
                Ok(fetches(node, "other", target, 80, PATIENCE_MS)?.then_some(()))
            })?;
            ensure!(pings(node, "other", target, PATIENCE_MS)?, "no echo from {target} after {after}");
        }
        let link = node.sh("exec web ip link show eth1")?;
        ensure!(link.contains("02:42:00:00:00:09"), "after {after}: {link}");
        poll::until(&format!("the port to answer after {after}"), HEAL_DEADLINE, || {
            Ok(http_get(port, Duration::from_secs(1)).ok().filter(|page| page == "held fast\n").map(drop))
        })
    };
    check("connect")?;
    // Every keeper dies: both links are plugged into the running workload again.
    let processes = whole(node)?;
    let mut victims = processes.all().to_vec();
    for name in ["web", "other"] {
        victims.extend(node.container(name)?.monitor);
    }
    process::kill_all(&victims)?;
    node.await_processes("the node to come back", HEAL_DEADLINE, |now| {
        Role::ALL.iter().all(|role| now.get(*role) != processes.get(*role))
    })?;
    check("a replug")?;
    ensure!(init(node, "web")? == before, "web was restarted");
    // The primary network goes: default routes and the published port move to the other one.
    node.sh("network disconnect default web")?;
    let routes = node.sh("exec web ip route")?;
    ensure!(routes.contains("default via 10.77.3.254"), "{routes}");
    let links = node.sh("exec web ip -o link")?;
    ensure!(!links.contains("eth0"), "{links}");
    check("disconnect")?;
    let said = node.refused("network disconnect lan web")?;
    ensure!(said.contains("ports"), "{said}");
    node.sh("restart --time 1 web")?;
    node.sh("stop --time 1 web")?;
    node.sh("start web")?;
    check("a restart")?;
    ensure!(node.names("network ls")?.len() == 2, "networks");
    node.sh("network create idle")?;
    ensure!(node.sh("network prune")?.contains("idle"), "prune");
    ensure!(!node.names("network ls")?.contains(&"idle".to_owned()), "idle is left");
    // Pods, and their addresses.
    node.sh("pod create pair --network lan:ip=10.77.3.20,ip6=fd77:3::20")?;
    ensure!(pings(node, "other", "10.77.3.20", PATIENCE_MS)?, "a pod does not answer");
    node.sh("network disconnect lan pair")?;
    node.sh("network connect default pair")?;
    let said = node.refused(&format!("run -d --network lan --ip 10.77.3.9 {IMAGE} pause"))?;
    ensure!(said.contains("web"), "{said}");
    stage.finish()
}

/// A published UDP port that is another workload's now: its answers come from there, for a client that kept its
/// socket, although the router knew that flow as the old one's.
pub fn old_flows_are_forgotten(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    let port = free_port()?.port();
    let client = UdpSocket::bind("127.0.0.1:0")?;
    client.set_read_timeout(Some(Duration::from_millis(200)))?;
    let answered = |client: &UdpSocket| -> Result<()> {
        poll::until("an answer to a datagram", HEAL_DEADLINE, || {
            client.send_to(b"held fast", ("127.0.0.1", port))?;
            let mut bytes = [0; 64];
            Ok(client.recv(&mut bytes).is_ok().then_some(()))
        })
    };
    pause(node, "old", &format!("-p 127.0.0.1:{port}:53/udp"))?;
    let echo = Echo::start(node, "old", "0.0.0.0:53")?;
    answered(&client)?;
    drop(echo);
    node.sh("rm --force old")?;
    pause(node, "new", &format!("--ip 10.89.0.200 -p 127.0.0.1:{port}:53/udp"))?;
    let echo = Echo::start(node, "new", "0.0.0.0:53")?;
    answered(&client)?;
    drop((echo, client));
    // An address that another gets: its neighbours reach the new owner at once.
    serve(node, "asker", "")?;
    serve(node, "first", "--ip 10.89.0.50 --mac 02:42:00:00:00:50")?;
    ensure!(fetches(node, "asker", "10.89.0.50", 80, PATIENCE_MS)?, "the first owner");
    node.sh("rm --force first")?;
    ensure!(!fetches(node, "asker", "10.89.0.50", 80, SILENCE_MS)?, "nobody has the address");
    serve(node, "second", "--ip 10.89.0.50 --mac 02:42:00:00:00:51")?;
    ensure!(fetches(node, "asker", "10.89.0.50", 80, PATIENCE_MS)?, "the second owner");
    stage.finish()
}

pub fn routed_networks(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    for name in ["a", "b"] {
        node.sh(&format!("network create {name}"))?;
        serve(node, &format!("{name}1"), &format!("--network {name}"))?;
    }
    serve(node, "b2", "--network b --namespace blue")?;
    let reach = |wanted: bool| -> Result<()> {
        for family in ["ipv4", "ipv6"] {
            for (from, to, network) in [("a1", "b1", "b"), ("b1", "a1", "a")] {
                let target = address(node, to, network, family)?;
                let patience = if wanted { PATIENCE_MS } else { SILENCE_MS };
                let got = fetches(node, from, &target, 80, patience)?;
                ensure!(got == wanted, "{from} to {to} at {target}: {got}");
            }
            let target = address(node, "b2", "b", family)?;
            ensure!(!fetches(node, "a1", &target, 80, SILENCE_MS)?, "another tenant's workload is reached");
        }
        Ok(())
    };
    reach(false)?;
    node.sh("network route add a b")?;
    reach(true)?;
    let said = node.refused("network rm a")?;
    ensure!(said.contains("a1") || said.contains("route"), "{said}");
    node.sh("network route rm b a")?;
    reach(false)?;
    stage.finish()
}

pub fn published_from_inside(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    let port = free_port()?.port();
    serve(node, "web", &format!("-p {port}:80"))?;
    serve(node, "peer", "")?;
    node.sh("network create far")?;
    serve(node, "stranger", "--network far --namespace blue")?;
    // A published port is open to whoever reaches the host: workloads reach it by their own gateway.
    for (from, network) in [("peer", "default"), ("web", "default"), ("stranger", "far")] {
        let inspected = node.json(&format!("network inspect {network}"))?;
        let gateway = text(&inspected, "/gateway4");
        ensure!(fetches(node, from, gateway, port, PATIENCE_MS)?, "{from} at {gateway}:{port}");
    }
    let own = address(node, "web", "default", "ipv4")?;
    ensure!(
        !fetches(node, "stranger", &own, 80, SILENCE_MS)?,
        "the workload itself is reached past its port"
    );
    node.sh("rm --force web")?;
    let inspected = node.json("network inspect default")?;
    ensure!(!fetches(node, "peer", text(&inspected, "/gateway4"), port, SILENCE_MS)?, "the port is gone");
    // Ranges, protocols, and what is really listened on.
    let first = free_port()?.port().min(65_000);
    let last = first + 2;
    let range = format!("-p 127.0.0.1:{first}-{last}:8000-8002 -p 127.0.0.2:{first}:9000");
    pause(node, "many", &range)?;
    let ports = node.json("port many")?;
    let listed = ports.as_array().context("a list")?;
    ensure!(listed.len() == 4 && listed.iter().all(|one| one["listening"] == true), "{ports}");
    for (address, port) in [("127.0.0.1", first), ("127.0.0.1", last), ("127.0.0.2", first)] {
        ensure!(
            std::net::TcpListener::bind((address, port)).is_err(),
            "{address}:{port} is told and not bound"
        );
    }
    node.sh("stop --time 1 many")?;
    let ports = node.json("port many")?;
    ensure!(ports.as_array().is_some_and(|all| all.iter().all(|one| one["listening"] == false)), "{ports}");
    for (option, word) in
        [("80:80", "ip_unprivileged_port_start"), ("8080:80/sctp", "SCTP"), ("[::1]:8080:80", "IPv6")]
    {
        let said = node.refused(&format!("run -d -p {option} {IMAGE} pause"))?;
        ensure!(said.contains(word), "{option}: {said}");
    }
    let pod = free_port()?.port();
    node.sh(&format!("pod create shop -p {pod}:80"))?;
    let ports = node.json("port shop")?;
    ensure!(ports[0]["listening"] == true, "{ports}");
    stage.finish()
}
