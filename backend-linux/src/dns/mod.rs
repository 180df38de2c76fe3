//! The name service of a node: workloads ask it at their gateway.
//!
//! Names of workloads come from the zone that core made; every other name is asked of the servers that the host asks,
//! or of those that the workload was given. One thread serves all; what must wait is a task of its own.

mod cache;
mod forward;
mod limit;
mod listen;
mod message;
mod resolv_conf;
mod upstream;

use crate::service::{Ground, Listeners, Service};
use cache::Cache;
use forward::Pending;
use holdfast_core::{
    observed::ServiceObserved,
    world::Snapshot,
    zone::{Index, View},
};
use limit::Limits;
use resolv_conf::Watched;
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    rc::Rc,
    sync::Arc,
    time::Duration,
};
use tokio::sync::watch;
use upstream::Pool;

/// Its name in status and logs.
const NAME: &str = "dns";
/// RFC 1035, 4.2.
const PORT: u16 = 53;
/// How often it is said how it is, servers that are down are probed, and sockets that could not be opened are tried.
const PERIOD: Duration = Duration::from_secs(1);
/// The uplink's own address in the router: slirp4netns(1).
const UPLINK: IpAddr = IpAddr::V4(crate::net::UPLINK_ADDRESS.0);

/// The service, for the control.
pub(crate) const SERVICE: Service = Service { name: NAME, run: |ground| Box::pin(run(ground)) };

/// Events since the control started.
#[derive(Debug, Default)]
struct Counters {
    queries: Cell<u64>,
    answered: Cell<u64>,
    cached: Cell<u64>,
    forwarded: Cell<u64>,
    failed: Cell<u64>,
    refused: Cell<u64>,
    limited: Cell<u64>,
    malformed: Cell<u64>,
}

fn count(counter: &Cell<u64>) {
    counter.set(counter.get().saturating_add(1));
}

impl Counters {
    fn all(&self) -> BTreeMap<String, u64> {
        let all = [
            ("queries", &self.queries),
            ("answered", &self.answered),
            ("cached", &self.cached),
            ("forwarded", &self.forwarded),
            ("failed", &self.failed),
            ("refused", &self.refused),
            ("limited", &self.limited),
            ("malformed", &self.malformed),
        ];
        all.map(|(name, counter)| (name.to_owned(), counter.get())).into()
    }
}

/// What all of the service shares.
struct Dns {
    snapshots: RefCell<watch::Receiver<Arc<Snapshot>>>,
    index: RefCell<Rc<Index>>,
    /// Addresses that are the node's own: asking there would be asking itself.
    own: RefCell<BTreeSet<IpAddr>>,
    host: RefCell<Watched>,
    limits: Limits,
    cache: RefCell<Cache>,
    pending: Pending,
    pool: Pool,
    counters: Counters,
}

impl Dns {
    fn new(ground: &Ground) -> Self {
        let dns = Self {
            snapshots: RefCell::new(ground.snapshots.clone()),
            index: RefCell::default(),
            own: RefCell::default(),
            host: RefCell::new(Watched::new(ground.paths.resolv_conf())),
            limits: Limits::default(),
            cache: RefCell::default(),
            pending: Pending::default(),
            pool: Pool::default(),
            counters: Counters::default(),
        };
        dns.snapshots.borrow_mut().mark_changed();
        dns
    }

    /// The names as they are now: whoever was told that a snapshot was taken over is answered from it.
    fn index(&self) -> Rc<Index> {
        // A closed channel says that the control ends.
        if self.snapshots.borrow().has_changed().unwrap_or(false) {
            let snapshot = Arc::clone(&self.snapshots.borrow_mut().borrow_and_update());
            let gateways = snapshot.prefixes.iter().flat_map(|prefix| &prefix.gateways);
            *self.own.borrow_mut() = gateways.map(|(address, _)| *address).chain([UPLINK]).collect();
            *self.index.borrow_mut() = Rc::new(Index::new(snapshot.zone.clone()));
        }
        Rc::clone(&self.index.borrow())
    }

    /// Where it is to listen.
    fn addresses(&self) -> BTreeSet<IpAddr> {
        let snapshot = Arc::clone(&self.snapshots.borrow().borrow());
        snapshot.prefixes.iter().flat_map(|prefix| &prefix.gateways).map(|(address, _)| *address).collect()
    }

    /// Whom the host asks, read again if it is time.
    fn host_servers(&self) -> Vec<SocketAddr> {
        let mut host = self.host.borrow_mut();
        if host.look() {
            tracing::info!(servers = ?host.servers.addresses, file = %host.file.display(), "name servers");
            self.cache.borrow_mut().clear();
        }
        host.servers.addresses.clone()
    }

    /// Whom to ask for somebody; never the node itself, and never who asks.
    fn servers(&self, view: &View, asker: IpAddr) -> Rc<[SocketAddr]> {
        let all = match view.servers.as_slice() {
            [] => self.host_servers(),
            own => own.iter().map(|server| SocketAddr::new(*server, PORT)).collect(),
        };
        let own = self.own.borrow();
        let is_loop = |server: &SocketAddr| own.contains(&server.ip()) || server.ip() == asker;
        all.into_iter().filter(|server| !is_loop(server)).collect()
    }

    fn report(&self, ground: &Ground, listening: usize, failed: &[(Listener, std::io::Error)]) {
        let host = self.host_servers();
        let own = self.own.borrow();
        let mut faults: Vec<String> =
            failed.iter().map(|((address, kind), error)| format!("{address} {kind:?}: {error}")).collect();
        let looped = host.iter().filter(|server| own.contains(&server.ip()));
        faults.extend(looped.map(|server| format!("{server} is the node itself and is not asked")));
        faults.extend(self.host.borrow().servers.faults.iter().cloned());
        let list = |servers: &[SocketAddr]| {
            let all: Vec<String> = servers.iter().map(SocketAddr::to_string).collect();
            if all.is_empty() { "nobody".to_owned() } else { all.join(", ") }
        };
        let mut detail = format!(
            "{} names, {} addresses; asks {} for others",
            self.index().len(),
            listening / 2,
            list(&host)
        );
        for (server, since) in self.pool.down(&host) {
            detail.push_str(&format!("; {server} has not answered for {} s", since.as_secs()));
        }
        let fault = (!faults.is_empty()).then(|| faults.join("; "));
        let counters = self.counters.all();
        ground.report(ServiceObserved { name: NAME.to_owned(), fault, detail, counters });
    }
}

/// Whom the node asks for names that are not its own: the file that says so, the servers where the router reaches them,
/// and what of the file cannot be used.
pub fn asked(paths: &crate::paths::Paths) -> (std::path::PathBuf, Vec<SocketAddr>, Vec<String>) {
    let mut host = Watched::new(paths.resolv_conf());
    host.look();
    (host.file, host.servers.addresses, host.servers.faults)
}

/// How a client comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Udp,
    Tcp,
}

type Listener = (IpAddr, Kind);

async fn run(ground: Ground) {
    let dns = Rc::new(Dns::new(&ground));
    let mut listeners = Listeners::<Listener>::default();
    let mut changes = ground.snapshots.clone();
    let mut period = tokio::time::interval(PERIOD);
    period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let prober = tokio::task::spawn_local(probe(Rc::clone(&dns)));
    let _prober = AbortOnDrop(prober);
    loop {
        dns.index();
        let addresses = dns.addresses();
        let wanted: BTreeSet<Listener> =
            addresses.into_iter().flat_map(|address| [(address, Kind::Udp), (address, Kind::Tcp)]).collect();
        let failed = listeners.follow(&wanted, |(address, kind)| listen::open(&dns, *address, *kind));
        dns.report(&ground, listeners.len(), &failed);
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            _ = period.tick() => {}
        }
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Looks whether servers that were down answer again, so that no workload's question has to find out.
async fn probe(dns: Rc<Dns>) {
    loop {
        tokio::time::sleep(PERIOD).await;
        let servers = dns.host_servers();
        dns.pool.probe(&servers).await;
    }
}

#[cfg(test)]
mod tests;
