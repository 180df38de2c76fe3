//! Names: looked up by `dig` and busybox from inside workloads, neither of which this project wrote.

use crate::{
    runner::Context,
    support::{IMAGE, pause, stage, status, text, whole},
};
use anyhow::{Context as _, Result, bail, ensure};
use holdfast_chaos::{
    node::{Node, Role},
    poll, process,
    stage::HEAL_DEADLINE,
};
use std::{
    net::UdpSocket,
    path::PathBuf,
    process::Stdio,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// The zone of the default network.
const ZONE: &str = "default.holdfast.internal";

/// Starts a container that has this machine's programs, `dig` among them, and does nothing.
fn digger(node: &Node, name: &str, options: &str) -> Result<()> {
    let root = dig_root(node)?;
    let root = root.display();
    node.sh(&format!("run -d --name {name} {options} -v /usr:/usr:ro --rootfs {root} sleep 10000")).map(drop)
}

/// A root in which the programs of this machine run.
fn dig_root(node: &Node) -> Result<PathBuf> {
    let root = node.scratch.path().join("dig-root");
    if !root.exists() {
        for directory in ["etc", "proc", "sys", "dev", "tmp", "usr"] {
            std::fs::create_dir_all(root.join(directory))?;
        }
        for link in ["bin", "lib", "lib64", "sbin"] {
            std::os::unix::fs::symlink(format!("usr/{link}"), root.join(link))?;
        }
        for file in ["hosts", "hostname", "resolv.conf"] {
            std::fs::write(root.join("etc").join(file), "")?;
        }
    }
    Ok(root)
}

/// What `dig +short` prints: one line for each record.
fn dig(node: &Node, from: &str, question: &str) -> Result<Vec<String>> {
    let printed = node.sh(&format!("exec {from} dig +short +tries=1 +time=6 {question}"))?;
    Ok(printed.lines().map(str::to_owned).collect())
}

/// Response code and number of answers, as `dig` prints them.
fn verdict(node: &Node, from: &str, question: &str) -> Result<(String, u32)> {
    let printed = node.sh(&format!("exec {from} dig +tries=1 +time=6 {question}"))?;
    let word = |before: &str| {
        printed
            .split(before)
            .nth(1)
            .and_then(|rest| rest.split([',', ';']).next())
            .map(|it| it.trim().to_owned())
    };
    let code = word("status: ").with_context(|| format!("dig said {printed}"))?;
    let answers = word("ANSWER: ").with_context(|| format!("dig said {printed}"))?;
    Ok((code, answers.parse()?))
}

fn address(node: &Node, name: &str, kind: &str) -> Result<String> {
    Ok(text(&node.json(&format!("inspect {name}"))?, &format!("/addresses/0/{kind}")).to_owned())
}

#[track_caller]
fn told(node: &Node, from: &str, question: &str, expected: &[&str]) -> Result<()> {
    let found = dig(node, from, question)?;
    ensure!(found == expected, "{from} asks for {question}: {found:?} and not {expected:?}");
    Ok(())
}

fn denied(node: &Node, from: &str, question: &str, code: &str) -> Result<()> {
    let found = verdict(node, from, question)?;
    ensure!(found == (code.to_owned(), 0), "{from} asks for {question}: {found:?} and not {code}");
    Ok(())
}

/// A name server of this test on the host's loopback, and a file that makes the node ask it.
struct World {
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl World {
    /// Every name below `example.org` has the address 192.0.2.`last`; `large.example.org` has a text of 900 bytes.
    fn start(last: u8) -> Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let port = socket.local_addr()?.port();
        let (asked, ended) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (seen, over) = (Arc::clone(&asked), Arc::clone(&ended));
        let thread = std::thread::spawn(move || {
            let mut bytes = [0; 2048];
            while !over.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut bytes) else { continue };
                if let Some((name, answer)) = answer(bytes.get(..length).unwrap_or_default(), last) {
                    seen.lock().unwrap_or_else(PoisonError::into_inner).push(name);
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Ok(Self { port, asked, ended, thread: Some(thread) })
    }

    /// Makes the node ask this server; it looks at the file once a second.
    fn used_by(&self, node: &Node) -> Result<()> {
        let server = format!("10.0.2.2:{}", self.port);
        resolv_conf(node, &format!("nameserver [127.0.0.1]:{}\n", self.port), &server)
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Says whom the node is to ask, and waits until status says that it does.
fn resolv_conf(node: &Node, text: &str, server: &str) -> Result<()> {
    std::fs::write(node.root.join("resolv.conf"), text)?;
    let asks = format!("asks {server} for others");
    poll::until(&asks, HEAL_DEADLINE, || Ok(status(node)?.to_string().contains(&asks).then_some(())))
}

/// The name that a packet asks for, and an answer: RFC 1035, 4.1.
fn answer(question: &[u8], last: u8) -> Option<(String, Vec<u8>)> {
    let mut name = Vec::new();
    let mut at = 12;
    loop {
        let length = usize::from(*question.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        name.push(String::from_utf8_lossy(question.get(at..at + length)?).into_owned());
        at += length;
    }
    let name = name.join(".");
    let kind = question.get(at..at + 2)?;
    let asked = question.get(12..at + 4)?;
    let known = name.to_ascii_lowercase().ends_with("example.org");
    let data: Vec<u8> = match kind {
        [0, 1] => vec![192, 0, 2, last],
        [0, 16] => (0..6).flat_map(|_| std::iter::once(150).chain([b'x'; 150])).collect(),
        _ => vec![],
    };
    let count = u8::from(known && !data.is_empty());
    let code = if known { 0 } else { 3 };
    let mut reply = question.get(..2)?.to_vec();
    reply.extend([0x81, 0x80 | code, 0, 1, 0, count, 0, 0, 0, 0]);
    reply.extend(asked);
    if count == 1 {
        reply.extend([0xc0, 12]);
        reply.extend(kind);
        reply.extend([0, 1, 0, 0, 0, 60]);
        reply.extend(u16::try_from(data.len()).ok()?.to_be_bytes());
        reply.extend(data);
    }
    Some((name, reply))
}

pub fn names(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    // The world outside knows nothing, and is this test's: no question leaves the machine.
    let world = World::start(1)?;
    world.used_by(node)?;
    node.sh("network create lan")?;
    digger(node, "web", "--network-alias www")?;
    digger(node, "both", "--network lan --network default")?;
    digger(node, "stranger", "--namespace blue")?;
    pause(node, "db", "")?;
    pause(node, "far", "--network lan")?;
    node.sh("pod create duo --network-alias pair")?;
    node.sh(&format!("run -d --name member --pod duo {IMAGE} pause"))?;
    let [db4, db6] = [address(node, "db", "ipv4")?, address(node, "db", "ipv6")?];
    for name in ["db", "db.default", &format!("db.{ZONE}"), "DB.holdfast.internal"] {
        told(node, "web", &format!("{name}. A"), &[&db4])?;
        told(node, "web", &format!("{name}. AAAA"), &[&db6])?;
        told(node, "web", &format!("{name}. A +tcp"), &[&db4])?;
        denied(node, "web", &format!("{name}. MX"), "NOERROR")?;
    }
    told(node, "web", "+search db", &[&db4])?;
    told(node, "web", "www.", &[&address(node, "web", "ipv4")?])?;
    let pod = text(&node.json("pod inspect duo")?, "/addresses/0/ipv4").to_owned();
    for name in ["duo", "pair", "member"] {
        told(node, "web", &format!("{name}."), &[&pod])?;
    }
    told(node, "web", &format!("-x {db4}"), &[&format!("db.{ZONE}.")])?;
    told(node, "web", &format!("-x {db6}"), &[&format!("db.{ZONE}.")])?;
    // Over the gateway's IPv6 address too.
    let gateway6 = text(&node.json("network inspect default")?, "/gateway6").to_owned();
    told(node, "web", &format!("@{gateway6} db."), &[&db4])?;
    // Others' names, and names on networks that are not reached, do not exist.
    for (from, name) in [("web", "stranger"), ("stranger", "db"), ("web", "far"), ("web", "nobody")] {
        denied(node, from, &format!("{name}. A"), "NXDOMAIN")?;
        denied(node, from, &format!("{name}.{ZONE}. A"), "NXDOMAIN")?;
    }
    denied(node, "stranger", &format!("-x {db4}"), "NXDOMAIN")?;
    told(node, "both", "far.", &[&address(node, "far", "ipv4")?])?;
    told(node, "both", "+search db", &[&db4])?;
    // The other network's gateway is not this workload's to ask.
    let lan = text(&node.json("network inspect lan")?, "/gateway4").to_owned();
    let output =
        node.try_cli(&["exec", "web", "dig", "+short", "+tries=1", "+time=1", &format!("@{lan}"), "db."])?;
    ensure!(!output.status.success(), "another network's gateway answered {output:?}");
    // By another client.
    for (question, expected) in [("db", &db4), (&db4, &format!("db.{ZONE}"))] {
        let printed = node.sh(&format!("exec member nslookup {question}"))?;
        ensure!(printed.contains(expected.as_str()), "nslookup {question}: {printed}");
    }
    node.sh("stop --time 1 db")?;
    denied(node, "web", "db. A", "NXDOMAIN")?;
    node.sh("start db")?;
    told(node, "web", "db.", &[&db4])?;
    node.sh("rm --force db")?;
    denied(node, "web", "db. A", "NXDOMAIN")?;
    node.sh("pod rm --force duo")?;
    denied(node, "web", "duo. A", "NXDOMAIN")?;
    // A policy that closes every way closes the name too; one that opens one opens it.
    node.sh("policy allow --name open --from workload:stranger --to workload:web --proto tcp --port 80")?;
    told(node, "stranger", "web.", &[&address(node, "web", "ipv4")?])?;
    node.sh("policy rm open")?;
    denied(node, "stranger", "web. A", "NXDOMAIN")?;
    let report = status(node)?;
    let services = report["services"].as_array().context("services")?;
    let dns = services.iter().find(|one| one["name"] == "dns").context("no dns in status")?;
    ensure!(dns["fault"].is_null() && dns["counters"]["queries"].as_u64() > Some(20), "{dns}");
    ensure!(node.sh("status")?.contains("names, 4 addresses"), "{}", node.sh("status")?);
    let names: Vec<String> =
        world.asked().into_iter().filter(|name| !name.is_empty() && !name.contains("arpa")).collect();
    ensure!(names.is_empty(), "names of workloads were asked of the world: {names:?}");
    drop(world);
    std::fs::remove_file(node.root.join("resolv.conf"))?;
    stage.finish()
}

pub fn outside(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    let world = World::start(7)?;
    world.used_by(node)?;
    node.sh("network create closed --internal")?;
    digger(node, "web", "")?;
    digger(node, "inner", "--network closed")?;
    told(node, "web", "www.example.org.", &["192.0.2.7"])?;
    told(node, "web", "WWW.Example.ORG. +tcp", &["192.0.2.7"])?;
    denied(node, "web", "nobody.example.com. A", "NXDOMAIN")?;
    let asked = world.asked();
    let of_www = asked.iter().filter(|name| name.eq_ignore_ascii_case("www.example.org")).count();
    ensure!(of_www == 1, "the second time it is known: {asked:?}");
    ensure!(
        asked.iter().any(|name| *name != name.to_ascii_lowercase()),
        "names are asked for in random case: {asked:?}"
    );
    // An answer that does not fit says so; `dig` gets it over TCP.
    let printed = node.sh("exec web dig +noedns +ignore +tries=1 large.example.org. TXT")?;
    ensure!(printed.contains(" tc ") || printed.contains(" tc;"), "not cut: {printed}");
    let printed = node.sh("exec web dig +noedns +tries=1 large.example.org. TXT")?;
    ensure!(printed.contains("(TCP)") && printed.contains("ANSWER: 1"), "not whole: {printed}");
    // Without a way out nothing outside is asked either; the node's own names are known.
    denied(node, "inner", "www.example.org. A", "REFUSED")?;
    told(node, "inner", "inner.", &[&address(node, "inner", "ipv4")?])?;
    // The host asks another server.
    let other = World::start(8)?;
    other.used_by(node)?;
    told(node, "web", "www.example.org.", &["192.0.2.8"])?;
    // One that is gone fails in time, and costs no name of the node's.
    drop(other);
    let began = Instant::now();
    denied(node, "web", "new.example.org. A", "SERVFAIL")?;
    ensure!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    told(node, "web", "web.", &[&address(node, "web", "ipv4")?])?;
    denied(node, "web", "nobody.default. A", "NXDOMAIN")?;
    poll::until("status to name the server that is gone", HEAL_DEADLINE, || {
        Ok(node.sh("status")?.contains("has not answered").then_some(()))
    })?;
    ensure!(status(node)?["state"] == "up", "the node is whole without it");
    world.used_by(node)?;
    told(node, "web", "new.example.org.", &["192.0.2.7"])?;
    // Asking itself is refused, and said.
    let gateway = text(&node.json("network inspect default")?, "/gateway4").to_owned();
    resolv_conf(node, &format!("nameserver {gateway}\n"), &format!("{gateway}:53"))?;
    denied(node, "web", "loop.example.org. A", "REFUSED")?;
    let report = status(node)?;
    ensure!(report.to_string().contains("is the node itself"), "{report}");
    resolv_conf(node, "", "nobody")?;
    // A workload's own server: its answers are nobody else's.
    digger(node, "own", &format!("--dns {} --dns-search a.example --dns-option ndots:3", "192.0.2.99"))?;
    let file = node.sh("exec own cat /etc/resolv.conf")?;
    ensure!(
        file.starts_with(&format!("search a.example\nnameserver {gateway}\n"))
            && file.ends_with("options ndots:3\n"),
        "{file}"
    );
    let said = node.refused(&format!("run -d --dns 127.0.0.1 {IMAGE} pause"))?;
    ensure!(said.contains("127.0.0.1"), "{said}");
    drop(world);
    std::fs::remove_file(node.root.join("resolv.conf"))?;
    stage.finish()
}

/// A workload that asks without end, until it is told that it is over; its log has a line for each question that got
/// no answer, or a wrong one. It outlives the daemon, as `exec` would not.
fn asking(node: &Node, asker: &str, name: &str, expected: &str) -> Result<()> {
    let script = format!(
        "n=0; while ! [ -e /tmp/over ]; do a=$(dig +short +tries=1 +time=6 {name}.); n=$((n+1)); \
         [ \"$a\" = {expected} ] || echo \"lost: $a\"; done; echo \"asked: $n\""
    );
    let root = dig_root(node)?.display().to_string();
    let arguments =
        ["run", "-d", "--name", asker, "-v", "/usr:/usr:ro", "--rootfs", &root, "sh", "-c", &script];
    node.cli(&arguments).map(drop)
}

/// Ends the questions: how many there were, and what was wrong.
fn over(node: &Node, asker: &str) -> Result<(u32, Vec<String>)> {
    node.sh(&format!("exec {asker} touch /tmp/over"))?;
    poll::until("the last question to be told", HEAL_DEADLINE, || {
        let printed = node.sh(&format!("logs {asker}"))?;
        let asked = printed.lines().find_map(|line| line.strip_prefix("asked: ")?.parse().ok());
        let lost = printed.lines().filter(|line| line.starts_with("lost")).map(str::to_owned).collect();
        Ok(asked.map(|asked| (asked, lost)))
    })
}

pub fn no_query_lost(context: &Context) -> Result<()> {
    /// Containers that start under the questions, each with a new name.
    const CONTAINERS: usize = 24;
    let stage = stage(context)?;
    let node = &stage.node;
    let world = World::start(1)?;
    world.used_by(node)?;
    pause(node, "stays", "")?;
    let expected = address(node, "stays", "ipv4")?;
    asking(node, "asker", "stays", &expected)?;
    let mut started = Vec::new();
    for chunk in (0..CONTAINERS).collect::<Vec<_>>().chunks(4) {
        let mut children = Vec::new();
        for number in chunk {
            // Each asks for itself and for another as the first thing that it does.
            let mut command = node.command(&[
                "run",
                "--rm",
                "--name",
                &format!("c{number}"),
                IMAGE,
                "sh",
                "-c",
                &format!("nslookup c{number} && nslookup stays"),
            ]);
            children.push((*number, command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?));
        }
        for (number, child) in children {
            started.push((number, child.wait_with_output()?));
        }
    }
    node.sh("network create more")?;
    node.sh("network rm more")?;
    let (asked, lost) = over(node, "asker")?;
    ensure!(lost.is_empty(), "{} of {asked} questions were lost: {lost:?}", lost.len());
    ensure!(asked > 50, "only {asked} questions");
    println!("  {asked} questions while {CONTAINERS} containers started, none lost");
    for (number, output) in started {
        ensure!(output.status.success(), "c{number} could not resolve at once: {output:?}");
    }
    drop(world);
    std::fs::remove_file(node.root.join("resolv.conf"))?;
    stage.finish()
}

pub fn daemon_and_control_away(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    let world = World::start(1)?;
    world.used_by(node)?;
    digger(node, "web", "")?;
    pause(node, "db", "")?;
    let expected = address(node, "db", "ipv4")?;
    let processes = whole(node)?;
    // The control answers alone: nothing here starts a daemon until the questions are over.
    asking(node, "asker", "db", &expected)?;
    poll::rest(Duration::from_millis(500));
    process::kill_all(&[processes.get(Role::Daemon)])?;
    poll::rest(Duration::from_secs(1));
    let (asked, lost) = over(node, "asker")?;
    ensure!(
        lost.is_empty() && asked > 5,
        "with the daemon away {} of {asked} were lost: {lost:?}",
        lost.len()
    );
    let processes = whole(node)?;
    // A control that is killed is started by the daemon, and answers from its file.
    process::kill_all(&[processes.get(Role::Control)])?;
    poll::until("the name service to answer again", HEAL_DEADLINE, || {
        let output = node.try_cli(&["exec", "web", "dig", "+short", "+tries=1", "+time=1", "db."])?;
        Ok((output.stdout.trim() == expected).then_some(()))
    })?;
    // Everything that can answer is killed, and comes back with every name.
    let processes = whole(node)?;
    process::kill_all(&processes.all())?;
    whole(node)?;
    told(node, "web", "db.", &[&expected])?;
    let resolver = node.sh("exec web cat /etc/resolv.conf")?;
    if !resolver.contains(ZONE) {
        bail!("resolv.conf does not search {ZONE}: {resolver}");
    }
    drop(world);
    std::fs::remove_file(node.root.join("resolv.conf"))?;
    stage.finish()
}
