//! The World contract: one list of cases that every implementation of core's traits passes, a simulated node
//! as well as a real one. A case that only one of them passes is a bug in the other.
//!
//! Each case gets a node of its own with nothing on it, and leaves whatever it made: the caller throws the
//! node away. A case returns what it saw instead of what it expected.

mod keepers;
mod router;
mod runtime;
mod setup;

use holdfast_core::{id::ProcessRef, observed::UplinkObserved, spec::RootSource, world::World};

pub use setup::Node;

/// What a case needs beside the World.
pub trait Killer {
    /// Kills exactly this process (SIGKILL) and comes back when it is dead.
    fn kill(&self, process: &ProcessRef);
    /// A root filesystem whose `/bin/sleep` a container can run; a simulated node never looks at it.
    fn root(&self) -> RootSource;
    /// A free port of the host, not below 1024.
    fn free_port(&self) -> u16;
}

/// A case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Case {
    /// A pin is seen by its hints, and by nothing else.
    PinIsSeen,
    /// A pin that is started ends the one before it: a start that nobody recorded leaves no second pin.
    OnePin,
    /// A control's death is seen, its pin lives, and a new one serves the same router.
    ControlDies,
    /// With the pin dead, the control leads to all three namespaces, and a new pin enters through it.
    ControlLeadsEverywhere,
    /// With pin and control dead, the descriptors of the running daemon do.
    DescriptorsLeadEverywhere,
    /// With the pin dead, a container's monitor leads everywhere and its process to the user namespace only.
    MonitorAndWorkload,
    /// With the pin dead, the uplink helper leads to the router, never to the mount namespace.
    UplinkLeadsToTheRouter,
    /// A new router in the user namespace of a living workload; the workload is plugged into it while it runs.
    Replug,
    /// Ending a dead process is a success; another process of that number is left alone.
    StopProcess,
    /// Without a control every request to the router is refused as transient.
    NoControl,
    /// Rules: exact, idempotent, one target per key.
    Rules,
    /// Bridges: made twice, removed twice.
    Networks,
    /// Sandboxes: made twice are the same namespaces, removed twice are gone.
    Sandboxes,
    /// Links: need a bound sandbox and a bridge; made twice, removed twice.
    Links,
    /// A group's members reach each other, others do not, and nobody before the rules say so.
    Isolation,
    /// Ports: bound twice, taken, unbound twice, gone with the helper.
    Ports,
    /// A start asked for twice is one start; a living one is not cleaned; an end asked for twice is one end.
    Container,
    /// A container whose monitor died runs on, and how it ended is not known.
    MonitorDies,
    /// A container that is killed leaves its code, and an exit of one start is none of the next.
    InitDies,
    /// Cleaning a start cleans the ones before it.
    EarlierStart,
    /// A transaction that refuses changes nothing; one that commits is read back.
    Store,
}

impl Case {
    /// Every case.
    pub const ALL: [Self; 21] = [
        Self::PinIsSeen,
        Self::OnePin,
        Self::ControlDies,
        Self::ControlLeadsEverywhere,
        Self::DescriptorsLeadEverywhere,
        Self::MonitorAndWorkload,
        Self::UplinkLeadsToTheRouter,
        Self::Replug,
        Self::StopProcess,
        Self::NoControl,
        Self::Rules,
        Self::Networks,
        Self::Sandboxes,
        Self::Links,
        Self::Isolation,
        Self::Ports,
        Self::Container,
        Self::MonitorDies,
        Self::InitDies,
        Self::EarlierStart,
        Self::Store,
    ];
}

/// Runs one case on a node with nothing on it.
///
/// # Errors
/// What was seen instead of what the contract says.
pub async fn run_case<W: World>(case: Case, world: &W, kill: &dyn Killer) -> Result<(), String> {
    match case {
        Case::PinIsSeen => keepers::pin_is_seen(world).await,
        Case::OnePin => keepers::one_pin(world).await,
        Case::ControlDies => keepers::control_dies(world, kill).await,
        Case::ControlLeadsEverywhere => keepers::control_leads_everywhere(world, kill).await,
        Case::DescriptorsLeadEverywhere => keepers::descriptors_lead_everywhere(world, kill).await,
        Case::MonitorAndWorkload => keepers::monitor_and_workload(world, kill).await,
        Case::UplinkLeadsToTheRouter => keepers::uplink_leads_to_the_router(world, kill).await,
        Case::Replug => keepers::replug(world, kill).await,
        Case::StopProcess => keepers::stop_process(world).await,
        Case::NoControl => router::no_control(world).await,
        Case::Rules => router::rules(world).await,
        Case::Networks => router::networks(world).await,
        Case::Sandboxes => router::sandboxes(world).await,
        Case::Links => router::links(world).await,
        Case::Isolation => router::isolation(world).await,
        Case::Ports => runtime::ports(world, kill).await,
        Case::Container => runtime::starts_once(world, kill).await,
        Case::MonitorDies => runtime::monitor_dies(world, kill).await,
        Case::InitDies => runtime::init_dies(world, kill).await,
        Case::EarlierStart => runtime::earlier_start(world, kill).await,
        Case::Store => runtime::store(world).await,
    }
}

/// `Ok` when it holds, else the sentence.
fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

/// An error as a case reports it.
fn said<E: std::fmt::Display>(what: &str) -> impl FnOnce(E) -> String {
    let what = what.to_owned();
    move |error| format!("{what}: {error}")
}

/// The ports a helper forwards, as (host port, router port).
fn forwarded(observed: &UplinkObserved) -> Vec<(u16, u16)> {
    match observed {
        UplinkObserved::Serving { ports, .. } => {
            ports.iter().map(|port| (port.spec.host_port, port.router_port)).collect()
        }
        UplinkObserved::Absent | UplinkObserved::Broken(..) => Vec::new(),
    }
}
