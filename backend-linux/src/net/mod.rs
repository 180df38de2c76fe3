//! The hands inside: links, rules and sandboxes, worked by the control from within the node's user, network
//! and mount namespaces.
//!
//! Everything goes through netlink, answers of the kernel included: `/sys/class/net` shows the namespace of
//! whoever mounted it. Workloads hang on isolated bridge ports with /32 and /128 addresses, so every packet
//! between two of them, on one bridge or not, is routed and meets the `inet` rules of [`nft`].
//!
//! The calls are asynchronous because their callers are; they do not wait, for the kernel carries a netlink
//! request out while it is sent. [`RouterHands::probe`] does wait, on a thread of its own.

mod attach;
mod base;
mod bridge;
mod conntrack;
mod drift;
mod error;
pub(crate) mod host;
mod link;
mod netlink;
mod netns;
pub mod nft;
mod observe;
mod probe;
mod route;
mod sandbox;
mod sysctl;

pub(crate) use drift::DriftWatch;
pub use link::bridge_mac;

use crate::paths::Paths;
use conntrack::Conntrack;
use error::errno;
use holdfast_core::{
    error::{Class, RouterError},
    id::{SandboxId, Slot},
    observed::RouterObserved,
    plan::{AttachmentPlan, NetworkPlan, SandboxPlan},
    ruleset::{Counter, Element, Ruleset},
    world::Probe,
};
use nft::Firewall;
use route::Route;
use std::{collections::BTreeSet, future::Future, net::Ipv4Addr};

/// The uplink helper's tap in the router.
pub const UPLINK_LINK: &str = "hftap0";
/// The address and prefix length that slirp4netns gives the tap.
pub const UPLINK_ADDRESS: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 0, 2, 100), 24);

/// Works on the router whose network namespace it was opened in. Holds open sockets and no state that counts:
/// another one, opened later, does the same.
pub struct RouterHands {
    paths: Paths,
    route: Route,
    firewall: Firewall,
    conntrack: Conntrack,
    remembered: attach::Remembered,
}

impl RouterHands {
    /// Opens netlink sockets in the calling thread's network namespace, which must be the router's, in a
    /// process of the node's mount namespace.
    ///
    /// # Errors
    /// `Denied` and `Exhausted` as the kernel says.
    pub async fn open(paths: &Paths) -> Result<Self, RouterError> {
        Ok(Self {
            paths: paths.clone(),
            route: Route::open().map_err(|error| errno("open netlink in", "the router", error))?,
            firewall: Firewall::open().map_err(|error| errno("open nftables in", "the router", error))?,
            conntrack: Conntrack::open().map_err(|error| errno("open conntrack in", "the router", error))?,
            remembered: attach::Remembered::new(),
        })
    }

    /// The base of everything else, idempotent: private mounts, the tmpfs on [`Paths::inside`], the router's
    /// own netns bound on [`Paths::router_netns`], a pure cgroup v2 hierarchy on /sys/fs/cgroup, the loopback
    /// link and the router's sysctls.
    ///
    /// # Errors
    /// `Denied` outside the node's user namespace.
    pub async fn ensure_inside(&mut self) -> Result<(), RouterError> {
        base::ensure(&self.paths, &mut self.route)
    }

    /// See [`holdfast_core::world::Router::observe_router`].
    ///
    /// # Errors
    /// When links, sandboxes or rules cannot be listed.
    pub async fn observe_router(&mut self) -> Result<RouterObserved, RouterError> {
        observe::observe(&self.paths, &mut self.route, &mut self.firewall)
    }

    /// See [`holdfast_core::world::Router::ensure_ruleset`].
    ///
    /// # Errors
    /// `Transient` when what was read back is not what was asked for.
    pub async fn ensure_ruleset(&mut self, ruleset: &Ruleset) -> Result<(), RouterError> {
        let gone = self.firewall.ensure(ruleset)?;
        self.conntrack.forget(&gone)
    }

    /// See [`holdfast_core::world::Router::add_elements`].
    ///
    /// # Errors
    /// `Missing` before the first [`Self::ensure_ruleset`].
    pub async fn add_elements(&mut self, elements: &BTreeSet<Element>) -> Result<(), RouterError> {
        self.firewall.add(elements)
    }

    /// See [`holdfast_core::world::Router::remove_elements`].
    ///
    /// # Errors
    /// As the kernel says; absent elements and tables are none.
    pub async fn remove_elements(&mut self, elements: &BTreeSet<Element>) -> Result<(), RouterError> {
        self.firewall.remove(elements)?;
        // Also of elements that were gone already: who removed them may have been killed before it came to this.
        self.conntrack.forget(elements)
    }

    /// See [`holdfast_core::world::Router::count_verdicts`].
    ///
    /// # Errors
    /// When the elements cannot be listed.
    pub async fn count_verdicts(&mut self) -> Result<Vec<(Element, Counter)>, RouterError> {
        self.firewall.counters()
    }

    /// See [`holdfast_core::world::Router::ensure_network`].
    ///
    /// # Errors
    /// `Transient` when what was read back is not what was asked for.
    pub async fn ensure_network(&mut self, plan: &NetworkPlan) -> Result<(), RouterError> {
        bridge::ensure(&mut self.route, plan)
    }

    /// See [`holdfast_core::world::Router::remove_network`].
    ///
    /// # Errors
    /// As the kernel says; an absent bridge is none.
    pub async fn remove_network(&mut self, plan: &NetworkPlan) -> Result<(), RouterError> {
        bridge::remove(&mut self.route, plan)
    }

    /// See [`holdfast_core::world::Router::ensure_sandbox`].
    ///
    /// # Errors
    /// `Missing` when the member to rebind from does not live.
    pub async fn ensure_sandbox(&mut self, plan: &SandboxPlan) -> Result<(), RouterError> {
        checked(&plan.id)?;
        sandbox::ensure(&self.paths, plan)
    }

    /// See [`holdfast_core::world::Router::remove_sandbox`].
    ///
    /// # Errors
    /// As the kernel says; an absent sandbox is none.
    pub async fn remove_sandbox(&mut self, id: &SandboxId) -> Result<(), RouterError> {
        checked(id)?;
        sandbox::remove(&self.paths, id)
    }

    /// See [`holdfast_core::world::Router::attach`].
    ///
    /// # Errors
    /// `Missing` when sandbox or bridge is not there, `Transient` when what was read back is not what was
    /// asked for.
    pub async fn attach(&mut self, plan: &AttachmentPlan) -> Result<(), RouterError> {
        checked(&plan.sandbox)?;
        attach::attach(&self.paths, &mut self.route, &mut self.remembered, plan)
    }

    /// See [`holdfast_core::world::Router::detach`].
    ///
    /// # Errors
    /// As the kernel says; an absent link is none.
    pub async fn detach(&mut self, slot: Slot) -> Result<(), RouterError> {
        attach::detach(&mut self.route, &mut self.remembered, slot)
    }

    /// See [`holdfast_core::world::Router::probe`]. The future does not borrow the hands: others can be
    /// served while it waits.
    ///
    /// # Errors
    /// `Missing` when a sandbox is not there.
    pub fn probe(&self, probe: &Probe) -> impl Future<Output = Result<bool, RouterError>> + Send + use<> {
        let from = checked(&probe.from).and_then(|()| sandbox::open(&self.paths, &probe.from));
        let to = checked(&probe.to).and_then(|()| sandbox::open(&self.paths, &probe.to));
        let Probe { address, timeout_ms, ask, .. } = *probe;
        async move {
            let (from, to) = (from?, to?);
            let (answer, answered) = tokio::sync::oneshot::channel();
            // Not the runtime's pool: its threads outlive the work and must stay in the router's namespace.
            std::thread::Builder::new()
                .name("probe".to_owned())
                .spawn(move || answer.send(probe::run(from, &to, address, timeout_ms, ask)))
                .map_err(|error| error::io("start a thread to probe", address.to_string(), &error))?;
            answered.await.unwrap_or_else(|_| {
                Err(RouterError::new(Class::Fatal, "probe", address.to_string(), "the thread panicked"))
            })
        }
    }
}

/// An identity that is a single path component: it names a directory.
fn checked(id: &SandboxId) -> Result<(), RouterError> {
    let text = id.as_str();
    if text.is_empty() || text == "." || text == ".." || text.contains(['/', '\0']) {
        return Err(RouterError::new(Class::Corrupt, "find sandbox", text, "is no identity of a sandbox"));
    }
    Ok(())
}
