//! Offloaded pods: accepted durably, then made one action at a time, by whoever is there to ask what is next.

use super::{operation::commit, request, session::Session};
use crate::{
    error::{OperationError, Refusal, RefusalCode, StoreError, WorldError},
    id,
    interlink::{
        kube::{Pod, PodData},
        next::{Action, Next, next},
        record::{Deletion, Failure, PodRecord, PodUid, Tombstone, VolumeSource},
        retry::{self, Moment, Place},
        translate::{self, Abilities},
    },
    ops::{
        self,
        request::{RemoveRequest, RequestError, StopRequest},
    },
    record::{Change, Records},
    time::{Mono, Span},
    world::{Durability, World},
};
use alloc::{boxed::Box, collections::BTreeSet, format, string::String, vec::Vec};
use futures_util::future::join_all;

/// The most tombstones; beyond it the oldest goes early.
pub const TOMBSTONES_MAX: usize = 10_000;
/// Wait before the removal of a pod goes on after a failure.
const REMOVAL_WAIT: Span = Span::from_secs(1);

/// A pod that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Identity.
    pub uid: PodUid,
    /// What names it on the node.
    pub jid: String,
    /// It had been accepted before.
    pub repeated: bool,
    /// What is not done as asked.
    pub notes: Vec<String>,
}

/// Accepts a pod: checked whole, written down, nothing of it made yet. A repeat is the same pod.
///
/// # Errors
/// Refused, naming what is wrong; or it could not be written down.
pub async fn accept<W: World>(
    world: &W,
    data: &PodData,
    abilities: Abilities,
) -> Result<Accepted, RequestError> {
    let mut random = [0_u8; 6];
    world.fill(&mut random);
    let record = translate::translate(data, id::new_id(random), world.wall(), abilities);
    let uid = translate::uid(&data.pod)?;
    let accepted = world.transact(Durability::Power, |records| {
        if let Some(known) = records.offloaded.get(&uid) {
            // Also where the repeat says something else: a uid is one pod, and a pod's spec does not change.
            return match &known.progress.deleting {
                None => Ok((Vec::new(), accepted(known, true))),
                Some(_) => Err(deleted(&known.name)),
            };
        }
        if records.tombstones.contains_key(&uid) {
            return Err(deleted(&data.pod.metadata.name));
        }
        ops::require_up(records)?;
        let record = record?;
        let accepted = accepted(&record, false);
        Ok((alloc::vec![Change::Offloaded(record)], accepted))
    });
    accepted.await?.map_err(RequestError::Refused)
}

fn accepted(record: &PodRecord, repeated: bool) -> Accepted {
    Accepted { uid: record.uid.clone(), jid: record.jid.clone(), repeated, notes: record.notes.clone() }
}

fn deleted(name: &str) -> Refusal {
    let detail = format!("pod {name} was deleted on this node before this create; a new pod gets a new uid");
    Refusal::new(RefusalCode::WrongState, detail)
}

/// Writes down that a pod is to go. Of one that is not known it leaves a tombstone, so that a create that comes late
/// makes nothing.
///
/// # Errors
/// Refused for want of a uid, or it could not be written down.
pub async fn delete<W: World>(world: &W, pod: &Pod, keep: Span) -> Result<PodUid, RequestError> {
    let uid = translate::uid(pod)?;
    let (now, wall, boot_id) = (world.now(), world.wall(), world.boot_id());
    let asked = pod.metadata.deletion_grace_seconds;
    commit(world, Durability::Power, |records| {
        if let Some(known) = records.offloaded.get(&uid) {
            let wanted = asked.map_or(known.grace_ms, |seconds| translate::grace_ms(Some(seconds)));
            let grace_ms =
                known.progress.deleting.as_ref().map_or(wanted, |before| before.grace_ms.min(wanted));
            let mut next = known.clone();
            next.progress.deleting = Some(Deletion { grace_ms, asked: wall });
            return if next.progress.deleting.as_ref().map(|it| it.grace_ms)
                == known.progress.deleting.as_ref().map(|it| it.grace_ms)
            {
                Vec::new()
            } else {
                alloc::vec![Change::Offloaded(next)]
            };
        }
        if records.tombstones.contains_key(&uid) {
            return Vec::new();
        }
        let mut changes = room_for_a_tombstone(records);
        changes.push(Change::Tombstone(Tombstone {
            uid: uid.clone(),
            jid: String::new(),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            logs: Vec::new(),
            expires: now.after(keep),
            boot_id: boot_id.clone(),
            deleted: wall,
        }));
        changes
    })
    .await?;
    Ok(uid)
}

/// A crowd of deletes must not fill the store: the oldest tombstone without files goes first.
fn room_for_a_tombstone(records: &Records) -> Vec<Change> {
    if records.tombstones.len() < TOMBSTONES_MAX {
        return Vec::new();
    }
    let bare = records.tombstones.values().filter(|grave| grave.jid.is_empty());
    bare.min_by_key(|grave| grave.deleted)
        .map(|grave| Change::RemoveTombstone(grave.uid.clone()))
        .into_iter()
        .collect()
}

/// What came of asking for the next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advanced {
    /// One was done; ask again.
    Acted,
    /// Nothing is to be done until the records change.
    Idle,
    /// Or until this time has come.
    At(Mono),
}

/// The pods for which there is something to do, and when there will be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Now.
    pub pods: Vec<PodUid>,
    /// The earliest of the others, if only time is waited for.
    pub at: Option<Mono>,
}

/// Looks which pods have something to be done; `skip` names those that somebody works on.
pub async fn due<W: World>(world: &W, skip: &BTreeSet<PodUid>) -> Due {
    let (now, wall, boot_id) = (world.now(), world.wall(), world.boot_id());
    world
        .read(|records| {
            let mut due = Due::default();
            if ops::require_up(records).is_err() {
                return due;
            }
            for pod in records.offloaded.values().filter(|pod| !skip.contains(&pod.uid)) {
                match next(records, pod, &world.pod_place(&pod.jid), now, wall, &boot_id) {
                    Next::Idle => {}
                    Next::At(at) => due.at = Some(due.at.map_or(at, |known| known.min(at))),
                    Next::Act(_) => due.pods.push(pod.uid.clone()),
                }
            }
            due
        })
        .await
}

/// Does the next action for a pod, if there is one. For one pod, one call at a time.
///
/// # Errors
/// When what was done cannot be written down.
pub async fn advance<W: World>(
    world: &W,
    session: &Session,
    uid: &PodUid,
    keep: Span,
) -> Result<Advanced, StoreError> {
    let (now, wall, boot_id) = (world.now(), world.wall(), world.boot_id());
    let decided = world
        .read(|records| {
            let pod = records.offloaded.get(uid)?;
            // Nothing is made or removed on a node that the user took down; it goes on with `up`.
            ops::require_up(records).ok()?;
            let place = world.pod_place(&pod.jid);
            Some((pod.jid.clone(), pod.name.clone(), next(records, pod, &place, now, wall, &boot_id)))
        })
        .await;
    let action = match decided {
        None | Some((.., Next::Idle)) => return Ok(Advanced::Idle),
        Some((.., Next::At(due))) => return Ok(Advanced::At(due)),
        Some((jid, name, Next::Act(action))) => {
            tracing::debug!(uid = %uid, jid, name, action = ?Summary(&action), "pod: next");
            (jid, action)
        }
    };
    act(world, session, uid, &action.0, action.1, keep).await
}

/// An action without what volumes hold.
struct Summary<'a>(&'a Action);

impl core::fmt::Debug for Summary<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            Action::WriteVolumes(volumes) => write!(f, "write {} volumes", volumes.len()),
            Action::CreateSandbox(request) => write!(f, "create sandbox {}", request.name),
            Action::AdoptSandbox(id) => write!(f, "adopt sandbox {id}"),
            Action::Run(index, _) => write!(f, "run container {index}"),
            Action::AdoptContainer(index, id) => write!(f, "adopt container {index} ({id})"),
            Action::LoseContainer(index, _) => write!(f, "container {index} is lost"),
            Action::Fail(failure) => write!(f, "fail: {}", failure.message),
            Action::Stop(names, grace_ms) => write!(f, "stop {} within {grace_ms} ms", names.join(", ")),
            Action::RemoveSandbox(name, _) => write!(f, "remove sandbox {name}"),
            Action::Bury => f.write_str("bury"),
        }
    }
}

async fn act<W: World>(
    world: &W,
    session: &Session,
    uid: &PodUid,
    jid: &str,
    action: Action,
    keep: Span,
) -> Result<Advanced, StoreError> {
    match action {
        Action::WriteVolumes(volumes) => match world.write_volumes(jid, &volumes).await {
            Ok(()) => update(world, uid, prepared).await?,
            Err(error) => {
                failed(world, uid, Place::Pod, &as_request("write the volumes of the pod", error.into()))
                    .await?
            }
        },
        Action::CreateSandbox(wanted) => match request::create_pod(world, session, &wanted).await {
            Ok(sandbox) => update(world, uid, |pod| made(pod, sandbox.id)).await?,
            Err(error) => failed(world, uid, Place::Pod, &error).await?,
        },
        Action::AdoptSandbox(id) => update(world, uid, |pod| made(pod, id)).await?,
        Action::Run(index, wanted) => match request::run_container(world, session, &wanted).await {
            Ok(container) => update(world, uid, |pod| started(pod, index, container.id)).await?,
            Err(error) => failed(world, uid, Place::Container(index), &error).await?,
        },
        Action::AdoptContainer(index, id) => update(world, uid, |pod| started(pod, index, id)).await?,
        Action::LoseContainer(index, failure) => {
            update(world, uid, |mut pod| {
                if let Some(progress) = pod.progress.containers.get_mut(index) {
                    progress.failed = Some(failure);
                }
                pod
            })
            .await?;
        }
        Action::Fail(failure) => {
            tracing::warn!(uid = %uid, reason = %failure.reason, cause = %failure.message, "pod has failed");
            update(world, uid, |pod| with_failure(pod, failure)).await?;
        }
        Action::Stop(names, grace_ms) => {
            let stop = StopRequest { grace_ms: Some(grace_ms) };
            let stops = names.iter().map(|name| request::stop_container(world, session, name, &stop));
            let errors: Vec<RequestError> =
                join_all(stops).await.into_iter().filter_map(Result::err).collect();
            return Ok(removal_went(world, uid, errors.first()));
        }
        Action::RemoveSandbox(name, logs) => {
            if let Err(error) = world.keep_logs(jid, &logs).await {
                tracing::warn!(uid = %uid, %error, "logs of a deleted pod are not kept");
            }
            let removed = request::remove_pod(world, session, &name, &RemoveRequest { force: true }).await;
            return Ok(removal_went(world, uid, removed.err().as_ref()));
        }
        Action::Bury => {
            if let Err(error) = world.remove_volumes(jid).await {
                let error = as_request("remove the volumes of the pod", error.into());
                return Ok(removal_went(world, uid, Some(&error)));
            }
            bury(world, uid, keep).await?;
        }
    }
    Ok(Advanced::Acted)
}

fn removal_went<W: World>(world: &W, uid: &PodUid, error: Option<&RequestError>) -> Advanced {
    let Some(error) = error else { return Advanced::Acted };
    tracing::warn!(uid = %uid, %error, "the end of a pod does not go on; it is tried again");
    Advanced::At(world.now().after(REMOVAL_WAIT))
}

fn as_request(step: &str, cause: WorldError) -> RequestError {
    RequestError::Failed(OperationError {
        cause: Box::new(cause),
        step: String::from(step),
        undo_failures: Vec::new(),
    })
}

/// The volumes are on disk: what they hold need not be in memory and in the store as well.
fn prepared(mut pod: PodRecord) -> PodRecord {
    pod.progress.prepared = true;
    pod.progress.retry = None;
    for volume in &mut pod.volumes {
        if let VolumeSource::Files(files) = &mut volume.source {
            files.clear();
        }
    }
    pod
}

fn made(mut pod: PodRecord, id: id::SandboxId) -> PodRecord {
    pod.progress.sandbox = Some(id);
    pod.progress.retry = None;
    pod
}

fn started(mut pod: PodRecord, index: usize, id: id::ContainerId) -> PodRecord {
    if let Some(progress) = pod.progress.containers.get_mut(index) {
        progress.id = Some(id);
        progress.retry = None;
    }
    pod
}

fn with_failure(mut pod: PodRecord, failure: Failure) -> PodRecord {
    pod.progress.failed.get_or_insert(failure);
    pod
}

/// Changes the record as it is now: a delete may have come since the action was decided.
async fn update<W: World>(
    world: &W,
    uid: &PodUid,
    change: impl FnOnce(PodRecord) -> PodRecord + Send,
) -> Result<(), StoreError> {
    commit(world, Durability::Process, |records| {
        records.offloaded.get(uid).cloned().map(|pod| Change::Offloaded(change(pod))).into_iter().collect()
    })
    .await
}

async fn failed<W: World>(
    world: &W,
    uid: &PodUid,
    place: Place,
    error: &RequestError,
) -> Result<(), StoreError> {
    tracing::warn!(uid = %uid, ?place, %error, "pod: failed");
    let moment = Moment { now: world.now(), wall: world.wall(), boot_id: world.boot_id() };
    update(world, uid, |pod| retry::after(&pod, place, error, &moment)).await
}

/// Ends a pod whose task could not go on for a fault of our own; the others are not touched.
///
/// # Errors
/// When it cannot be written down.
pub async fn give_up<W: World>(world: &W, uid: &PodUid, message: String) -> Result<(), StoreError> {
    let failure = Failure { reason: String::from("InternalError"), message, at: world.wall() };
    update(world, uid, |pod| with_failure(pod, failure)).await
}

async fn bury<W: World>(world: &W, uid: &PodUid, keep: Span) -> Result<(), StoreError> {
    let (now, wall, boot_id) = (world.now(), world.wall(), world.boot_id());
    commit(world, Durability::Power, |records| {
        let Some(pod) = records.offloaded.get(uid) else { return Vec::new() };
        let had_log = |(wanted, progress): (
            &crate::interlink::record::ContainerWanted,
            &crate::interlink::record::ContainerProgress,
        )| { progress.id.is_some().then(|| wanted.name.clone()) };
        let mut changes = room_for_a_tombstone(records);
        changes.push(Change::RemoveOffloaded(uid.clone()));
        changes.push(Change::Tombstone(Tombstone {
            uid: uid.clone(),
            jid: pod.jid.clone(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            logs: pod.containers.iter().zip(&pod.progress.containers).filter_map(had_log).collect(),
            expires: now.after(keep),
            boot_id,
            deleted: wall,
        }));
        changes
    })
    .await
}

/// Forgets tombstones whose time has come, with the logs that were kept; says when to come again.
///
/// # Errors
/// When it cannot be written down.
pub async fn reap<W: World>(world: &W, keep: Span) -> Result<Option<Mono>, StoreError> {
    let (now, boot_id) = (world.now(), world.boot_id());
    let graves: Vec<Tombstone> = world.read(|records| records.tombstones.values().cloned().collect()).await;
    let mut next_due: Option<Mono> = None;
    let mut changes = Vec::new();
    for grave in graves {
        if grave.boot_id != boot_id {
            // The clock it was stamped with has ended with its boot.
            changes.push(Change::Tombstone(Tombstone {
                expires: now.after(keep),
                boot_id: boot_id.clone(),
                ..grave
            }));
        } else if grave.expires > now {
            next_due = Some(next_due.map_or(grave.expires, |due| due.min(grave.expires)));
        } else {
            let removed =
                if grave.jid.is_empty() { Ok(()) } else { world.remove_pod_files(&grave.jid).await };
            match removed {
                Ok(()) => changes.push(Change::RemoveTombstone(grave.uid)),
                Err(error) => tracing::warn!(uid = %grave.uid, %error, "kept logs are not removed yet"),
            }
        }
    }
    if !changes.is_empty() {
        commit(world, Durability::Process, |_| changes).await?;
    }
    Ok(next_due)
}
