//! The World contract: one list of cases that every implementation of core's traits passes, a simulated node
//! as well as a real one. A case that only one of them passes is a bug in the other.
//!
//! Each case gets a node of its own with nothing on it, and leaves whatever it made: the caller throws the
//! node away. A case returns what it saw instead of what it expected.

mod ends;
mod errors;
mod keepers;
mod limits;
mod router;
mod runtime;
pub mod setup;

use holdfast_core::{id::ProcessRef, observed::UplinkObserved, spec::RootSource, world::World};

pub use setup::{Node, STUBBORN};

/// What a case needs beside the World.
pub trait Killer {
    /// Kills exactly this process (SIGKILL) and comes back when it is dead.
    fn kill(&self, process: &ProcessRef);
    /// Stops exactly this process from doing anything, as SIGSTOP does, and comes back when it does nothing.
    fn freeze(&self, process: &ProcessRef);
    /// Lets it go on.
    fn thaw(&self, process: &ProcessRef);
    /// A root filesystem with `/bin/sleep`, which as process 1 ignores every signal but SIGKILL, and `/bin/hold`,
    /// which ends with code 143 on SIGTERM; a simulated node never looks at it.
    fn root(&self) -> RootSource;
    /// Comes back when the process of a `/bin/hold` handles its signals.
    fn await_ready(&self, init: &ProcessRef);
    /// Binds a port of the host's loopback for somebody who is not of the node, until the node is thrown away.
    fn take_port(&self, port: u16);
    /// A free port of the host, not below 1024.
    fn free_port(&self) -> u16;
}

macro_rules! cases {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A case.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Case {
            $($(#[$doc])* $name,)*
        }

        impl Case {
            /// Every case.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

cases! {
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
    /// Asked for twice, pin's control and uplink helper are one.
    StartedOnce,
    /// Through a dead pin nothing is started: transient. Through a dead keeper nothing is entered: missing.
    DeadPin,
    /// What needs a sandbox refuses one that is not bound as missing; what removes one succeeds.
    AbsentSandbox,
    /// A port that a stranger holds is a conflict, a privileged one is denied.
    ForeignPort,
    /// A link inside that has the name or the index of a new one is of an earlier life and makes room; a slot asked for
    /// with another plan is replaced; others stay.
    LinkMakesRoom,
    /// A removed bridge takes no link with it; a new one gets its ports back by attaching again.
    BridgeRemoved,
    /// Elements need the base chains.
    NoBase,
    /// An older snapshot never replaces a newer.
    SnapshotOrder,
    /// An unbound sandbox goes on under a container that runs in it, link and all.
    UnboundWhileRunning,
    /// A container that handles its signal ends with its own code; files of a living one are not removed.
    StopHandled,
    /// A container that ignores its signal is killed after its grace, not before.
    StopIgnored,
    /// More elements than a transaction of an unprivileged socket can hold are applied and read back whole.
    ManyElements,
    /// Many sandboxes plugged at the same time are all there, each once.
    ManySandboxes,
    /// The longest name there is works, and is not cut.
    LongName,
    /// A control that does not answer costs a deadline, its error says that nothing is known or happened, and what was asked is there once when it answers again.
    FrozenControl,
    /// A helper that does not answer is broken, and costs no more than a deadline.
    FrozenUplink,
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
        Case::StartedOnce => errors::started_once(world).await,
        Case::DeadPin => errors::dead_pin(world, kill).await,
        Case::AbsentSandbox => errors::absent_sandbox(world, kill).await,
        Case::ForeignPort => errors::foreign_port(world, kill).await,
        Case::LinkMakesRoom => errors::link_makes_room(world).await,
        Case::BridgeRemoved => errors::bridge_removed(world).await,
        Case::NoBase => errors::no_base(world).await,
        Case::SnapshotOrder => errors::snapshot_order(world).await,
        Case::UnboundWhileRunning => ends::unbound_while_running(world, kill).await,
        Case::StopHandled => ends::stop_handled(world, kill).await,
        Case::StopIgnored => ends::stop_ignored(world, kill).await,
        Case::ManyElements => limits::many_elements(world).await,
        Case::ManySandboxes => limits::many_sandboxes(world).await,
        Case::LongName => limits::long_name(world, kill).await,
        Case::FrozenControl => limits::frozen_control(world, kill).await,
        Case::FrozenUplink => limits::frozen_uplink(world, kill).await,
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
