//! A node with workloads and traffic on it, the blows that are dealt to it, and the zero-leak check at the end.

use crate::{
    census::Census,
    identity::Identity,
    image,
    inside::PingReport,
    leak::{self, Snapshot},
    node::{Container, Node, Processes, Role},
    poll,
    process::{self, Process},
    traffic::{HttpClient, HttpReport, Pinger, Stream, ping_some},
};
use anyhow::{Context, Result, bail, ensure};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// The containers that [`Stage::populated`] starts: two that may reach each other, and two members of a pod of
/// another tenant on the same network.
pub const WORKLOADS: [&str; 4] = ["web", "peer", "left", "right"];

/// How long the node may take to be whole again after any blow.
pub const HEAL_DEADLINE: Duration = Duration::from_secs(30);

/// How many descriptors more than before any workload a daemon may hold, sockets apart: it keeps watches of its
/// own. A leak per workload, of which a stage has four with two processes each, is more.
const DESCRIPTORS_SLACK: usize = 3;

/// How many sockets more: it keeps connections to its control, of which a crowd of requests needs several.
const SOCKETS_SLACK: usize = 16;

/// The port of the TCP stream between `web` and `peer`.
const STREAM_PORT: u16 = 7001;

#[derive(Debug)]
struct Baseline {
    census: Census,
    files: BTreeSet<String>,
    daemon: Process,
    sockets: usize,
    others: usize,
}

/// A node for one scenario.
#[derive(Debug)]
pub struct Stage {
    /// The node.
    pub node: Node,
    /// Where `web` is published, once it is.
    pub published: Option<SocketAddr>,
    machine: Snapshot,
    baseline: Option<Baseline>,
    finished: bool,
}

/// The workloads at one moment.
pub type Workloads = BTreeMap<String, Container>;

/// Traffic on a populated stage: 100 Hz ping and a TCP stream between `peer` and `web`, and HTTP requests to the
/// published port.
#[derive(Debug)]
pub struct Traffic {
    /// `peer` pings `web`.
    pub ping: Pinger,
    /// `peer` talks with `web`.
    pub stream: Stream,
    /// The host asks `web`.
    pub http: HttpClient,
}

/// What a blow did.
#[derive(Clone, Debug)]
pub struct Healing {
    /// The node's processes before.
    pub before: Processes,
    /// And after.
    pub after: Processes,
    /// From the blow until every process of the node was there again, as its status told.
    pub healed: Duration,
    /// Pings meanwhile.
    pub ping: PingReport,
    /// HTTP requests meanwhile.
    pub http: HttpReport,
    /// The router's network namespace is the same one.
    pub router_kept: bool,
}

impl Stage {
    /// A node that is up, with the busybox image loaded and no workload.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn empty(identity: &Arc<Identity>) -> Result<Self> {
        Self::on(Node::new(Arc::clone(identity))?)
    }

    /// The same with its state in `root`.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn in_root(identity: &Arc<Identity>, root: PathBuf) -> Result<Self> {
        Self::on(Node::with_root(Arc::clone(identity), root)?)
    }

    fn on(node: Node) -> Result<Self> {
        let machine = Snapshot::take(&node.identity);
        let mut stage = Self { node, published: None, machine, baseline: None, finished: false };
        let processes = stage.node.up()?;
        let archive = stage.node.scratch.path().join("busybox.tar");
        image::write_archive(&archive)?;
        stage.node.sh(&format!("image load {}", archive.display()))?;
        let (sockets, others) = split_sockets(&process::descriptors(processes.daemon.pid));
        stage.baseline = Some(Baseline {
            census: Census::take(&stage.node.identity, processes.control)?,
            files: leak::files(&stage.node)?,
            daemon: processes.daemon,
            sockets,
            others,
        });
        Ok(stage)
    }

    /// A node with [`WORKLOADS`] running: `web` (published) and `peer` on network `blue`, pod `duo` of tenant
    /// `other` with members `left` and `right` on the same network.
    ///
    /// # Errors
    /// When anything does not start.
    pub fn populated(identity: &Arc<Identity>) -> Result<Self> {
        let mut stage = Self::empty(identity)?;
        let node = &stage.node;
        node.sh("network create blue")?;
        let address = free_port()?;
        let image = image::NAME;
        node.sh(&format!(
            "run -d --name web --network blue --restart always -p {address}:80 {image} httpd -f -p 80 -h /www"
        ))?;
        node.sh(&format!("run -d --name peer --network blue --restart always {image} {}", image::PAUSE[0]))?;
        node.sh("pod create duo --namespace other --network blue")?;
        for member in ["left", "right"] {
            node.sh(&format!(
                "run -d --name {member} --pod duo --restart always {image} {}",
                image::PAUSE[0]
            ))?;
        }
        stage.published = Some(address);
        stage.workloads()?;
        Ok(stage)
    }

    /// The workloads, all of them running.
    ///
    /// # Errors
    /// When one does not.
    pub fn workloads(&self) -> Result<Workloads> {
        WORKLOADS
            .iter()
            .map(|name| Ok(((*name).to_owned(), self.node.await_running(name, HEAL_DEADLINE)?)))
            .collect()
    }

    /// Starts the traffic and waits until all of it flows.
    ///
    /// # Errors
    /// When some does not.
    pub fn traffic(&self) -> Result<Traffic> {
        let workloads = self.workloads()?;
        let (web, peer) = (&workloads["web"], &workloads["peer"]);
        let identity = &self.node.identity;
        let (to, from) = (web.ipv4()?, peer.running()?);
        let mut ping = Pinger::start(identity, from, to, Duration::from_millis(10))?;
        ping.await_answer(HEAL_DEADLINE).context("ping from peer to web")?;
        let mut stream = Stream::open(identity, web.running()?, to, STREAM_PORT, from)?;
        stream.await_progress(HEAL_DEADLINE)?;
        let http = HttpClient::start(self.published.context("nothing is published")?);
        http.await_answers(3, HEAL_DEADLINE)?;
        ping.mark()?;
        http.mark();
        Ok(Traffic { ping, stream, http })
    }

    /// All monitors of the workloads.
    ///
    /// # Errors
    /// When a workload does not run.
    pub fn monitors(&self) -> Result<Vec<Process>> {
        Ok(self.workloads()?.into_values().filter_map(|container| container.monitor).collect())
    }

    /// Kills the processes of `roles` and `others` as one blow and waits until the node is whole and the
    /// traffic flows.
    ///
    /// # Errors
    /// When it does not heal.
    pub fn strike(&self, traffic: &mut Traffic, roles: &[Role], others: &[Process]) -> Result<Healing> {
        let before = self.node.await_processes("the node to be whole", HEAL_DEADLINE, |_| true)?;
        let router = self.node.router(&before)?;
        traffic.ping.mark()?;
        traffic.http.mark();
        let mut victims: Vec<Process> = roles.iter().map(|role| before.get(*role)).collect();
        victims.extend_from_slice(others);
        let started = Instant::now();
        process::kill_all(&victims)?;
        let after = self.node.await_processes("the node to heal", HEAL_DEADLINE, |now| {
            roles.iter().all(|role| now.get(*role) != before.get(*role))
        })?;
        let healed = started.elapsed();
        traffic.http.await_answers(3, HEAL_DEADLINE)?;
        let ping = poll::until("pings to be answered again", HEAL_DEADLINE, || {
            let report = traffic.ping.report()?;
            Ok((report.silence_ms == 0.0 && report.received > 0).then_some(report))
        })?;
        let http = traffic.http.report();
        Ok(Healing { before, after, healed, ping, http, router_kept: self.node.router(&after)? == router })
    }

    /// Checks that tenants and the pod are as isolated and as connected as they should be, by packets.
    ///
    /// # Errors
    /// Names the pair that is not.
    pub fn check_reach(&self) -> Result<()> {
        let workloads = self.workloads()?;
        for (from, to, may) in [
            ("peer", "web", true),
            ("web", "peer", true),
            ("peer", "left", false),
            ("web", "right", false),
            ("left", "web", false),
            ("right", "peer", false),
        ] {
            let address: Ipv4Addr = workloads[to].ipv4()?;
            let report = ping_some(&self.node.identity, workloads[from].running()?, address)?;
            ensure!(
                if may { report.received > 0 } else { report.received == 0 },
                "{from} {} {to} at {address}: {} of {} pings answered",
                if may { "must reach" } else { "must not reach" },
                report.received,
                report.sent
            );
        }
        let nets: BTreeSet<Option<u64>> = ["left", "right"]
            .iter()
            .map(|member| Ok(process::namespace(workloads[*member].running()?.pid, "net")))
            .collect::<Result<_>>()?;
        ensure!(nets.len() == 1 && !nets.contains(&None), "the pod's members do not share their network");
        Ok(())
    }

    /// Removes every workload and takes the node down; everything that either of them made must be gone.
    ///
    /// # Errors
    /// Lists what is left.
    pub fn finish(mut self) -> Result<()> {
        self.clear()?;
        self.check_empty()?;
        self.node.down()?;
        for process in self.node.relatives() {
            // `down` ends the node's daemon as well, or it is supervised; here nobody supervises it.
            process.await_death(Duration::from_secs(5)).context("after `holdfast down`")?;
        }
        let leaks = self.machine.leaks_after(&self.node);
        self.finished = leaks.is_empty();
        ensure!(leaks.is_empty(), "left behind after `holdfast down`: {}", leaks.join("; "));
        Ok(())
    }

    /// Removes every container, pod and network that a scenario made.
    ///
    /// # Errors
    /// When one cannot be removed.
    pub fn clear(&self) -> Result<()> {
        let node = &self.node;
        for (list, remove) in
            [("ps --all", "rm --force"), ("pod ls", "pod rm --force"), ("network ls", "network rm")]
        {
            for name in node.names(list)? {
                if name != "default" {
                    node.sh(&format!("{remove} {name}"))?;
                }
            }
        }
        Ok(())
    }

    /// A node without workloads holds what it held before the first one.
    fn check_empty(&self) -> Result<()> {
        let Some(baseline) = &self.baseline else { return Ok(()) };
        let processes = self.node.await_processes("the node to be whole", HEAL_DEADLINE, |_| true)?;
        let started = Instant::now();
        loop {
            let mut left =
                Census::take(&self.node.identity, processes.control)?.added_since(&baseline.census);
            left.extend(
                leak::files(&self.node)?.difference(&baseline.files).map(|file| format!("file {file}")),
            );
            let descriptors = process::descriptors(processes.daemon.pid);
            let (sockets, others) = split_sockets(&descriptors);
            let grown =
                sockets > baseline.sockets + SOCKETS_SLACK || others > baseline.others + DESCRIPTORS_SLACK;
            if processes.daemon == baseline.daemon && grown {
                left.push(format!(
                    "{} descriptors of the daemon, before {}: {}",
                    descriptors.len(),
                    baseline.sockets + baseline.others,
                    kinds(descriptors.values())
                ));
            }
            for process in processes.all() {
                left.extend(
                    process::zombies_of(process.pid).iter().map(|pid| format!("zombie {pid} of {process}")),
                );
            }
            if left.is_empty() {
                return Ok(());
            }
            if started.elapsed() > Duration::from_secs(5) {
                bail!("left behind by the workloads: {}", left.join("; "));
            }
            poll::rest(Duration::from_millis(50));
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // A failed scenario must not disturb the next one. Errors here would hide the scenario's own.
        let _ = self.node.try_cli(&["down"]);
        for _ in 0..10 {
            let holders = self.machine.leaked_processes(&self.node);
            if holders.is_empty() {
                return;
            }
            let _ = process::kill_all(&holders);
        }
    }
}

/// How many descriptors are sockets, and how many are not.
fn split_sockets(descriptors: &BTreeMap<u32, String>) -> (usize, usize) {
    let sockets = descriptors.values().filter(|target| target.starts_with("socket:")).count();
    (sockets, descriptors.len() - sockets)
}

/// Descriptors counted by what they lead to.
fn kinds<'a>(descriptors: impl Iterator<Item = &'a String>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for target in descriptors {
        *counts
            .entry(target.split(['[', '/']).next().filter(|kind| !kind.is_empty()).unwrap_or(target))
            .or_default() += 1;
    }
    counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect::<Vec<_>>().join(", ")
}

/// A port of the loopback interface that is free at this moment.
///
/// # Errors
/// When there is none.
pub fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Checks that every workload is on the process it was on, at its address, without a restart.
///
/// # Errors
/// Names the workload that is not.
pub fn check_untouched(before: &Workloads, after: &Workloads) -> Result<()> {
    check_addresses(before, after)?;
    for (name, was) in before {
        let is = &after[name];
        ensure!(was.init == is.init, "{name} was restarted: {:?} became {:?}", was.init, is.init);
        ensure!(
            was.restarts == is.restarts,
            "{name} counts {} restarts, before {}",
            is.restarts,
            was.restarts
        );
    }
    Ok(())
}

/// Checks that every workload has the addresses and MACs it had.
///
/// # Errors
/// Names the workload that has not.
pub fn check_addresses(before: &Workloads, after: &Workloads) -> Result<()> {
    for (name, was) in before {
        let is = after.get(name).with_context(|| format!("{name} is gone"))?;
        ensure!(!was.interfaces.is_empty(), "{name} had no interface to compare");
        ensure!(
            was.interfaces == is.interfaces,
            "{name} changed from {:?} to {:?}",
            was.interfaces,
            is.interfaces
        );
    }
    Ok(())
}
