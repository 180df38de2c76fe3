//! Networks: what can be created, which addresses stay, and who reaches whom.

use crate::{
    runner::Context,
    support::{IMAGE, ends_with, own_copy, pause, serve, stage, text, whole},
};
use anyhow::{Context as _, Result, ensure};
use holdfast_chaos::{
    command,
    node::{Node, Role},
    poll,
    process::{self, Process},
    stage::HEAL_DEADLINE,
};
use std::{
    collections::BTreeMap,
    io::Write,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

pub fn create_list_remove(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    node.sh("network create blue --subnet 10.77.8.0/24 --mtu 1400 -l k=v")?;
    let blue = node.json("network inspect blue")?;
    ensure!(text(&blue, "/subnet4") == "10.77.8.0/24" && text(&blue, "/labels/k") == "v", "{blue}");
    ensure!(text(&blue, "/gateway4").starts_with("10.77.8."), "{blue}");
    for (arguments, word) in [
        ("blue", "blue"),
        ("same --subnet 10.77.8.0/24", "10.77.8.0"),
        ("wider --subnet 10.77.0.0/16", "10.77."),
        ("bits --subnet 10.78.1.5/24", "10.78.1"),
        ("long --subnet 10.78.1.0/33", "33"),
        ("none --subnet rubbish", "rubbish"),
        ("loop --subnet 127.0.0.0/24", "127."),
        ("Not/A/Name", "Not/A/Name"),
    ] {
        let said = node.refused(&format!("network create {arguments}"))?;
        ensure!(said.contains(word), "{arguments}: {said}");
    }
    node.sh("network create green")?;
    let mut names = node.names("network ls")?;
    names.sort();
    ensure!(names == ["blue", "default", "green"], "{names:?}");
    ensure!(text(&node.json("network inspect green")?, "/subnet4") != "10.77.8.0/24", "one subnet twice");
    pause(node, "a", "--network blue --network green")?;
    let a = node.json("inspect a")?;
    ensure!(text(&a, "/addresses/0/ipv4").starts_with("10.77.8."), "{a}");
    let links = node.sh("exec a ip -o addr")?;
    for index in ["0", "1"] {
        for kind in ["ipv4", "ipv6"] {
            let address = text(&a, &format!("/addresses/{index}/{kind}")).to_owned();
            ensure!(!address.is_empty() && links.contains(&address), "{kind} {address} is not in {links}");
        }
    }
    ensure!(links.matches("eth").count() >= 2, "{links}");
    let link = node.sh("exec a ip link show eth0")?;
    ensure!(link.contains("mtu 1400") && link.contains(text(&a, "/addresses/0/mac")), "{link}");
    let said = node.refused("network rm blue")?;
    ensure!(said.contains('a') && said.contains("blue"), "{said}");
    ensure!(node.sh("exec a ip link show eth0")? == link, "a refused removal changed the link");
    node.sh("rm --force a")?;
    node.sh("network rm blue green")?;
    ensure!(node.names("network ls")? == ["default"], "{:?}", node.names("network ls")?);
    node.refused(&format!("run -d --network blue {IMAGE} pause"))?;
    stage.finish()
}

pub fn addresses_stay(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    node.sh("network create blue")?;
    for name in ["a", "b", "c"] {
        pause(node, name, "--network blue --restart always")?;
    }
    let inside = |name: &str| node.sh(&format!("exec {name} ip -o addr show eth0"));
    let addresses = |name: &str| -> Result<Vec<String>> {
        let text = inside(name)?;
        // Without lifetimes, which count down.
        Ok(text
            .lines()
            .filter_map(|line| line.split_whitespace().nth(3).map(str::to_owned))
            .filter(|address| !address.starts_with("fe80"))
            .collect())
    };
    let told: BTreeMap<&str, Vec<String>> = ["a", "b", "c"]
        .into_iter()
        .map(|name| Ok((name, node.await_running(name, HEAL_DEADLINE)?.interfaces)))
        .collect::<Result<_>>()?;
    let seen: BTreeMap<&str, Vec<String>> =
        ["a", "b", "c"].into_iter().map(|name| Ok((name, addresses(name)?))).collect::<Result<_>>()?;
    ensure!(seen.values().all(|list| list.len() == 2), "one v4 and one v6 address each: {seen:?}");
    let check = |after: &str| -> Result<()> {
        for name in ["a", "b", "c"] {
            let now = node.await_running(name, HEAL_DEADLINE)?.interfaces;
            ensure!(now == told[name], "{name} after {after}: {:?} became {now:?}", told[name]);
            ensure!(addresses(name)? == seen[name], "{name} inside after {after}: {:?}", addresses(name)?);
        }
        Ok(())
    };
    // All stopped at once and started in another order: nobody gets another's address.
    node.sh("stop --time 1 a b c")?;
    pause(node, "d", "--network blue")?;
    ensure!(
        !told.values().flatten().any(|one| node.container("d").is_ok_and(|d| d.interfaces.contains(one))),
        "taken"
    );
    node.sh("start c b a")?;
    check("stop and start")?;
    node.sh("restart --time 1 b a")?;
    check("restart")?;
    node.down()?;
    node.up()?;
    check("down and up")?;
    let processes = whole(node)?;
    let mut victims = processes.all().to_vec();
    for name in ["a", "b", "c", "d"] {
        let container = node.container(name)?;
        victims.extend([container.monitor, container.init].into_iter().flatten());
    }
    process::kill_all(&victims)?;
    node.await_processes("the node to come back", HEAL_DEADLINE, |now| {
        Role::ALL.iter().all(|role| now.get(*role) != processes.get(*role))
    })?;
    poll::until("all to run", HEAL_DEADLINE, || {
        let alive = |name: &&str| node.container(name).is_ok_and(|it| it.init.is_some_and(Process::is_alive));
        Ok(["a", "b", "c"].iter().all(alive).then_some(()))
    })?;
    check("everything was killed")?;
    stage.finish()
}

/// Whether a page comes from this address, by TCP. Asked from the workload's network by this program: a static
/// busybox cannot be trusted with IPv6 addresses.
fn fetches(node: &Node, from: Process, address: &str, deadline_ms: u32) -> Result<bool> {
    let address: IpAddr = address.parse()?;
    let mut command = Command::new(&node.identity.chaos);
    command.args(["inside", "--pid", &from.pid.to_string(), "exec", "--"]);
    command.arg(own_copy(node)?).arg("--fetch").arg(SocketAddr::new(address, 80).to_string());
    command.arg(deadline_ms.to_string());
    let output = command::run(&mut command, Duration::from_secs(10))?;
    ensure!(output.stdout.starts_with("Ok") || output.stdout.starts_with("Err"), "could not try: {output:?}");
    Ok(output.status.success())
}

pub fn isolation(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    node.sh("network create blue")?;
    node.sh("network create green")?;
    // Tenant and networks of each.
    let workloads: [(&str, &str, &[&str]); 5] = [
        ("a1", "acme", &["blue"]),
        ("a2", "acme", &["blue"]),
        ("b1", "bolt", &["blue"]),
        ("a3", "acme", &["green"]),
        ("a4", "acme", &["blue", "green"]),
    ];
    for (name, tenant, networks) in workloads {
        let networks: String = networks.iter().map(|network| format!("--network {network} ")).collect();
        serve(node, name, &format!("--namespace {tenant} {networks}"))?;
    }
    let mut wrong = Vec::new();
    let mut told = BTreeMap::new();
    let mut inits = BTreeMap::new();
    for (name, _, _) in workloads {
        told.insert(
            name,
            node.json(&format!("inspect {name}"))?["addresses"].as_array().cloned().context("none")?,
        );
        inits.insert(name, node.await_running(name, HEAL_DEADLINE)?.running()?);
        poll::until("the page to be served", HEAL_DEADLINE, || {
            Ok(fetches(node, inits[name], "127.0.0.1", 1000)?.then_some(()))
        })?;
    }
    for (from, from_tenant, from_networks) in workloads {
        for (to, to_tenant, _) in workloads.iter().filter(|(to, _, _)| *to != from) {
            for address in &told[to] {
                let network = text(address, "/network");
                let may = from_tenant == *to_tenant && from_networks.contains(&network);
                for family in ["/ipv4", "/ipv6"] {
                    let at = text(address, family);
                    // What may not pass is waited for in vain; what may answers within a millisecond or two.
                    if fetches(node, inits[from], at, if may { 2000 } else { 300 })? != may {
                        wrong.push(format!("{from} to {to} at {at} on {network}: it may is {may}"));
                    }
                }
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    let output = ends_with(node, 0, &["--format", "json", "network", "verify", "--all"])?;
    let report: serde_json::Value = serde_json::from_str(&output.stdout)?;
    let results = report["results"].as_array().context("no results")?;
    ensure!(results.len() >= 2 * workloads.len() * (workloads.len() - 1), "{} pairs tried", results.len());
    for result in results {
        ensure!(result["reached"] == result["allowed"], "{result}");
        let (from, to) = (text(result, "/from"), text(result, "/to"));
        let tenant = |name: &str| workloads.iter().find(|one| one.0 == name).map(|one| one.1);
        ensure!(tenant(from) == tenant(to) || result["allowed"] == false, "verify allows {result}");
    }
    stage.finish()
}

/// Answers every connection with a word and counts them, until it is dropped.
struct Listener {
    address: SocketAddr,
    count: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    fn start(address: IpAddr) -> Result<Self> {
        let listener = TcpListener::bind((address, 0))?;
        let address = listener.local_addr()?;
        let (count, stop) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (counter, stopped) = (Arc::clone(&count), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            for mut connection in listener.incoming().flatten() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                counter.fetch_add(1, Ordering::SeqCst);
                // A client that went away is counted all the same.
                let _ = connection.write_all(b"outside\n");
            }
        });
        Ok(Self { address, count, stop, thread: Some(thread) })
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes it; refused when it has ended already.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            // A panic of it has been printed.
            let _ = thread.join();
        }
    }
}

/// An address of this machine that is not its loopback; packets to it do not leave the machine.
fn own_address() -> Option<IpAddr> {
    // Connecting a UDP socket sends nothing: it asks for a route. 198.51.100.0/24 is for documentation, RFC 5737.
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("198.51.100.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|address| !address.is_loopback())
}

pub fn outbound(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    node.sh("network create inner --internal")?;
    pause(node, "open", "")?;
    pause(node, "closed", "--network inner")?;
    let loopback = Listener::start(IpAddr::from([127, 0, 0, 1]))?;
    let talk = |from: &str, to: &str, port: u16| -> Result<String> {
        let script = format!("echo | nc -w 2 {to} {port}");
        Ok(node.try_cli(&["exec", from, "sh", "-c", &script])?.stdout)
    };
    // The host's loopback, under every name it could have, is not for workloads.
    let gateway = text(&node.json("network inspect default")?, "/gateway4").to_owned();
    for to in ["10.0.2.2", "10.0.2.3", "127.0.0.1", &gateway] {
        let said = talk("open", to, loopback.address.port())?;
        ensure!(said.is_empty(), "a workload reached the host's loopback by {to}: {said:?}");
    }
    ensure!(loopback.count() == 0, "the host's loopback was reached");
    drop(loopback);
    let Some(own) = own_address() else {
        println!("outbound: no address beside the loopback: the way out was not tried");
        return stage.finish();
    };
    let outside = Listener::start(own)?;
    let port = outside.address.port();
    let said = talk("open", &own.to_string(), port)?;
    ensure!(said == "outside\n", "the way out to {own}:{port} gave {said:?}");
    ensure!(outside.count() == 1, "connected {} times", outside.count());
    let said = talk("closed", &own.to_string(), port)?;
    ensure!(said.is_empty() && outside.count() == 1, "an internal network has a way out");
    drop(outside);
    stage.finish()
}
