//! Requests: admit in one transaction, run, answer with what is on record then.

use super::{operation, session::Session};
use crate::{
    error::{Class, OperationError, Refusal, RefusalCode},
    id::{PolicyId, SandboxId},
    journal::{OperationRecord, Subject},
    observed::HostObserved,
    ops::{
        self, Admission, Stamp, connect, container, network, pod, policy,
        request::{
            ConnectRequest, DisconnectRequest, NetworkRequest, PodRequest, PolicyRequest, PolicyTarget,
            RemoveRequest, RequestError, RunRequest, StopRequest,
        },
        route, snapshot,
    },
    plan::Step,
    record::{Change, ContainerRecord, NetworkRecord, Records, SandboxRecord},
    time::Span,
    world::{Durability, World},
};
use alloc::{boxed::Box, format, string::String, vec::Vec};

/// How long a request waits for another operation on the same object.
const BUSY_WAIT: Span = Span::from_secs(60);
/// How long it waits before it looks whether that has ended: twice as long each time, since what takes long takes
/// longer, and each look is a transaction.
const BUSY_POLL_FIRST: Span = Span::from_ms(5);
/// The longest it waits between two looks.
const BUSY_POLL_MAX: Span = Span::from_ms(100);

enum Refused {
    Request(Refusal),
    Busy(Refusal),
}

/// Admits a request that takes subnets or ports: what the host has of them is looked at first.
async fn carry_out_on_host<W: World, T: Send + Clone>(
    world: &W,
    session: &Session,
    admit: impl Fn(&Records, &Stamp) -> Result<Admission<T>, Refusal> + Send + Sync,
) -> Result<T, RequestError> {
    let host = world.observe_host().await.map_err(|cause| {
        RequestError::Failed(OperationError {
            cause: Box::new(cause.into()),
            step: String::from("look at the host's routes and ports"),
            undo_failures: Vec::new(),
        })
    })?;
    carry_out_with(world, session, host, admit).await
}

/// Admits a request, waiting for operations in its way, and runs it.
async fn carry_out<W: World, T: Send + Clone>(
    world: &W,
    session: &Session,
    admit: impl Fn(&Records, &Stamp) -> Result<Admission<T>, Refusal> + Send + Sync,
) -> Result<T, RequestError> {
    carry_out_with(world, session, HostObserved::default(), admit).await
}

async fn carry_out_with<W: World, T: Send + Clone>(
    world: &W,
    session: &Session,
    host: HostObserved,
    admit: impl Fn(&Records, &Stamp) -> Result<Admission<T>, Refusal> + Send + Sync,
) -> Result<T, RequestError> {
    let deadline = world.now().after(BUSY_WAIT);
    let mut poll = BUSY_POLL_FIRST;
    let durable = if mutant!(BeginNotDurable) { Durability::Process } else { Durability::Power };
    loop {
        let mut random = [0_u8; 32];
        world.fill(&mut random);
        let (wall, daemon_generation) = (world.wall(), session.daemon_generation);
        let stamp = Stamp { host: host.clone(), random, wall, daemon_generation };
        let admitted = world.transact(durable, |records| begin(records, admit(records, &stamp))).await?;
        match admitted {
            Ok((None, about)) => return Ok(about),
            Ok((Some(operation), about)) => {
                let span = tracing::info_span!("operation", kind = %operation.kind, name = %operation.name, id = %operation.id);
                tracing::debug!(parent: &span, steps = operation.steps.len(), "admitted");
                if changes_names(&operation) {
                    // Who starts resolves names, and is resolved, from its first packet on; who ends is no longer
                    // named while it does.
                    hand_over(world, session).await;
                }
                let result = operation::run(world, &operation).await;
                hand_over(world, session).await;
                tracing::info!(parent: &span, ok = result.is_ok(), "ended");
                return result.map(|()| about).map_err(RequestError::Failed);
            }
            Err(Refused::Request(refusal)) => return Err(refusal.into()),
            Err(Refused::Busy(refusal)) => {
                if world.now() >= deadline {
                    return Err(refusal.into());
                }
                world.sleep(poll).await;
                poll = Span(poll.0.saturating_mul(2).min(BUSY_POLL_MAX.0));
            }
        }
    }
}

type Begun<T> = (alloc::vec::Vec<Change>, (Option<Box<OperationRecord>>, T));

fn begin<T>(records: &Records, admission: Result<Admission<T>, Refusal>) -> Result<Begun<T>, Refused> {
    // What is refused for its own sake is refused at once; what waits is decided anew when the way is free.
    match admission.map_err(Refused::Request)? {
        Admission::AlreadySo(about) => match ops::blocker(records, &[], &[]) {
            Some(open) if open.subjects.contains(&Subject::Node) => Err(busy(open)),
            _ => Ok((alloc::vec::Vec::new(), (None, about))),
        },
        Admission::Run { operation, mut changes, mut uses, about } => {
            // Its steps were made from the rules as they are.
            uses.push(Subject::Policy);
            if let Some(open) = ops::blocker(records, &operation.subjects, &uses)
                && !mutant!(LocksIgnored)
            {
                return Err(busy(open));
            }
            if !mutant!(JournalAfterEffect) {
                changes.push(Change::Operation((*operation).clone()));
            }
            Ok((changes, (Some(operation), about)))
        }
    }
}

fn busy(open: &OperationRecord) -> Refused {
    let detail = format!("{} {} is not finished yet; try again in a moment", open.kind, open.name);
    Refused::Busy(Refusal::new(RefusalCode::Busy, detail))
}

/// Whether an operation begins or ends what has a name.
fn changes_names(operation: &OperationRecord) -> bool {
    operation.steps.iter().any(|step| {
        matches!(
            step,
            Step::AddElements(_)
                | Step::RemoveElements(_)
                | Step::StartContainer(_)
                | Step::StopContainer { .. }
        )
    })
}

/// The control's copy follows every change; a control that is away gets it from the next bring-up.
async fn hand_over<W: World>(world: &W, session: &Session) {
    let generation = session.daemon_generation;
    let snapshot = world.read(|records| snapshot(records, generation)).await;
    match world.hand_snapshot(&snapshot).await {
        Ok(()) => {}
        // Another request read the records later and was faster: what it handed over holds this one's changes too.
        Err(error) if error.class == Class::Conflict => {
            tracing::debug!(error = %error, "a newer snapshot is served");
        }
        Err(error) => tracing::warn!(error = %error, "snapshot not handed over"),
    }
}

async fn container_record<W: World>(
    world: &W,
    id: &crate::id::ContainerId,
) -> Result<ContainerRecord, RequestError> {
    let found = world.read(|records| records.containers.get(id).cloned()).await;
    found.ok_or_else(|| {
        Refusal::new(RefusalCode::NotFound, format!("container {id} was removed meanwhile")).into()
    })
}

/// `run`: stores the whole spec, then starts it. Ports are bound and the process runs when it comes back.
///
/// # Errors
/// Refused, or failed and taken back.
pub async fn run_container<W: World>(
    world: &W,
    session: &Session,
    request: &RunRequest,
) -> Result<ContainerRecord, RequestError> {
    let admit = |records: &Records, stamp: &Stamp| container::run(records, request, stamp);
    let id = if request.ports.is_empty() {
        carry_out(world, session, admit).await?
    } else {
        carry_out_on_host(world, session, admit).await?
    };
    container_record(world, &id).await
}

/// `start`.
///
/// # Errors
/// Refused, or failed and taken back.
pub async fn start_container<W: World>(
    world: &W,
    session: &Session,
    name: &str,
) -> Result<ContainerRecord, RequestError> {
    let id = carry_out(world, session, |records, stamp| container::start(records, name, stamp)).await?;
    container_record(world, &id).await
}

/// `stop`.
///
/// # Errors
/// Refused or failed; a process that would not end is still what the records say.
pub async fn stop_container<W: World>(
    world: &W,
    session: &Session,
    name: &str,
    request: &StopRequest,
) -> Result<ContainerRecord, RequestError> {
    let id =
        carry_out(world, session, |records, stamp| container::stop(records, name, request, stamp)).await?;
    let stopped = container_record(world, &id).await?;
    for error in super::expire::remove_expired(world, session).await {
        // It is stopped, as asked; the next bring-up tries again.
        tracing::warn!(error, "not removed yet");
    }
    Ok(stopped)
}

/// `restart`.
///
/// # Errors
/// Refused or failed.
pub async fn restart_container<W: World>(
    world: &W,
    session: &Session,
    name: &str,
    request: &StopRequest,
) -> Result<ContainerRecord, RequestError> {
    let id =
        carry_out(world, session, |records, stamp| container::restart(records, name, request, stamp)).await?;
    container_record(world, &id).await
}

/// `rm`.
///
/// # Errors
/// Refused or failed.
pub async fn remove_container<W: World>(
    world: &W,
    session: &Session,
    name: &str,
    request: &RemoveRequest,
) -> Result<(), RequestError> {
    carry_out(world, session, |records, stamp| container::remove(records, name, request, stamp)).await
}

/// `pod create`.
///
/// # Errors
/// Refused, or failed and taken back.
pub async fn create_pod<W: World>(
    world: &W,
    session: &Session,
    request: &PodRequest,
) -> Result<SandboxRecord, RequestError> {
    let admit = |records: &Records, stamp: &Stamp| pod::create(records, request, stamp);
    let id = if request.ports.is_empty() {
        carry_out(world, session, admit).await?
    } else {
        carry_out_on_host(world, session, admit).await?
    };
    sandbox_record(world, &id).await
}

async fn sandbox_record<W: World>(world: &W, id: &SandboxId) -> Result<SandboxRecord, RequestError> {
    let found = world.read(|records| records.sandboxes.get(id).cloned()).await;
    found.ok_or_else(|| {
        Refusal::new(RefusalCode::NotFound, format!("workload {id} was removed meanwhile")).into()
    })
}

/// `network connect`: the new interface works when it comes back.
///
/// # Errors
/// Refused, or failed and taken back.
pub async fn connect_network<W: World>(
    world: &W,
    session: &Session,
    network: &str,
    request: &ConnectRequest,
) -> Result<SandboxRecord, RequestError> {
    let admit = |records: &Records, stamp: &Stamp| connect::connect(records, network, request, stamp);
    let id = carry_out(world, session, admit).await?;
    sandbox_record(world, &id).await
}

/// `network disconnect`.
///
/// # Errors
/// Refused or failed; what failed is still connected.
pub async fn disconnect_network<W: World>(
    world: &W,
    session: &Session,
    network: &str,
    request: &DisconnectRequest,
) -> Result<SandboxRecord, RequestError> {
    let admit = |records: &Records, stamp: &Stamp| connect::disconnect(records, network, request, stamp);
    let id = carry_out(world, session, admit).await?;
    let rerouted = carry_out(world, session, |records, stamp| connect::reroute(records, &id, stamp)).await;
    if let Err(error) = rerouted {
        // The disconnect is done: the next bring-up sees where the routes lead.
        tracing::warn!(error = %error, "default routes not led to another interface yet");
    }
    sandbox_record(world, &id).await
}

/// `pod rm`.
///
/// # Errors
/// Refused or failed.
pub async fn remove_pod<W: World>(
    world: &W,
    session: &Session,
    name: &str,
    request: &RemoveRequest,
) -> Result<(), RequestError> {
    carry_out(world, session, |records, stamp| pod::remove(records, name, request, stamp)).await
}

/// `network create`.
///
/// # Errors
/// Refused, or failed and taken back.
pub async fn create_network<W: World>(
    world: &W,
    session: &Session,
    request: &NetworkRequest,
) -> Result<NetworkRecord, RequestError> {
    let id =
        carry_out_on_host(world, session, |records, stamp| network::create(records, request, stamp)).await?;
    let found = world.read(|records| records.networks.get(&id).cloned()).await;
    found.ok_or_else(|| {
        Refusal::new(RefusalCode::NotFound, format!("network {id} was removed meanwhile")).into()
    })
}

/// `network rm`.
///
/// # Errors
/// Refused or failed.
pub async fn remove_network<W: World>(world: &W, session: &Session, name: &str) -> Result<(), RequestError> {
    carry_out(world, session, |records, stamp| network::remove(records, name, stamp)).await
}

/// `network route add`.
///
/// # Errors
/// Refused, or failed and taken back.
pub async fn add_route<W: World>(
    world: &W,
    session: &Session,
    one: &str,
    other: &str,
) -> Result<(), RequestError> {
    carry_out(world, session, |records, stamp| route::add(records, one, other, stamp)).await
}

/// `network route rm`.
///
/// # Errors
/// Refused or failed.
pub async fn remove_route<W: World>(
    world: &W,
    session: &Session,
    one: &str,
    other: &str,
) -> Result<(), RequestError> {
    carry_out(world, session, |records, stamp| route::remove(records, one, other, stamp)).await
}

/// `policy allow`, `policy deny`, `policy default`.
///
/// # Errors
/// Refused; or failed, and then the next bring-up finishes it.
pub async fn create_policy<W: World>(
    world: &W,
    session: &Session,
    request: &PolicyRequest,
) -> Result<Vec<PolicyId>, RequestError> {
    carry_out(world, session, |records, stamp| policy::create(records, request, stamp)).await
}

/// `policy apply`.
///
/// # Errors
/// As [`create_policy`].
pub async fn apply_policy<W: World>(
    world: &W,
    session: &Session,
    document: &serde_json::Value,
) -> Result<Vec<PolicyId>, RequestError> {
    carry_out(world, session, |records, stamp| policy::apply(records, document, stamp)).await
}

/// `policy rm`.
///
/// # Errors
/// As [`create_policy`].
pub async fn remove_policy<W: World>(
    world: &W,
    session: &Session,
    target: &PolicyTarget,
) -> Result<Vec<PolicyId>, RequestError> {
    carry_out(world, session, |records, stamp| policy::remove(records, target, stamp)).await
}

/// `network prune`: removes what nobody uses, one by one, and says what. One that came into use meanwhile stays.
///
/// # Errors
/// The first failure; what was removed before stays removed.
pub async fn prune_networks<W: World>(
    world: &W,
    session: &Session,
) -> Result<alloc::vec::Vec<String>, RequestError> {
    let named = |records: &Records| -> Vec<(String, String)> {
        let unused = network::unused(records).into_iter();
        unused
            .filter_map(|id| Some((String::from(id.as_str()), records.networks.get(&id)?.name.clone())))
            .collect()
    };
    let mut removed = Vec::new();
    for (id, name) in world.read(named).await {
        match remove_network(world, session, &id).await {
            Ok(()) => removed.push(name),
            Err(RequestError::Refused(refusal))
                if matches!(refusal.code, RefusalCode::InUse | RefusalCode::NotFound | RefusalCode::Busy) => {
            }
            Err(error) => return Err(error),
        }
    }
    Ok(removed)
}
