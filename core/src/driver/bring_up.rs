//! Brings the node up: observe, plan, run, and look again until there is nothing left to do.

use super::{
    expire::remove_expired,
    operation::{commit, orphans, resume, run_step},
    perform::{hints, name_of},
    report::{BringUpReport, Trigger},
    session::Session,
};
use crate::{
    bring_up::{BringUpPlan, Case, Work, plan_bring_up},
    cure::Cure,
    error::{Class, RouterError, WorldError},
    id::{self, OperationId, SandboxId},
    invariant::{Violation, check_records},
    journal::{OperationKind, OperationRecord, Phase, Resume, Subject},
    observed::{Basis, ControlObserved, Observed},
    ops::{busy_subjects, snapshot},
    plan::Step,
    record::{Change, Records},
    restart,
    time::Span,
    world::{ContainerHint, Durability, World},
};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::{String, ToString},
    vec::Vec,
};
use futures_util::future::join_all;

/// How often a snapshot is handed over that another one overtakes.
const HAND_OVER_TRIES: u32 = 3;

/// The most passes of one bring-up: entering, looking inside, repairing, proving, and room for two failures.
pub const PASSES_MAX: u32 = 6;
/// Sandboxes that are cured at the same time.
const WORKS_AT_ONCE: usize = 16;
/// Among the cures that are counted: changes of the router by others that were put right.
const REPAIRED: &str = "repaired";
/// Wait before a pass that follows a failed one; longer with each.
const RETRY_WAIT: Span = Span::from_ms(20);

/// Looks at everything once.
///
/// # Errors
/// When the processes, the uplink or the containers cannot be looked at. A router that does not answer is not
/// an error: it is what was observed.
pub async fn observe<W: World>(world: &W) -> Result<Observed, WorldError> {
    let at = world.now();
    let mut hints = hints(world).await;
    let wanted: Vec<ContainerHint> = world
        .read(|records| {
            let hint = |container: &crate::record::ContainerRecord| ContainerHint {
                id: container.id.clone(),
                incarnation: container.incarnation,
                running: container.running().map(|(init, monitor)| (init.clone(), monitor.clone())),
            };
            records.containers.values().map(hint).collect()
        })
        .await;
    let mut containers = world.observe_containers(&wanted).await?;
    // A start that was never written down has a monitor too, and that one may be the last to lead to the binds.
    for (id, seen) in &containers {
        if let (Some(init), Some(monitor)) = (&seen.init, &seen.monitor) {
            hints.containers.insert(id.clone(), (init.clone(), monitor.clone()));
        }
    }
    let mut keepers = world.observe_keepers(&hints).await?;
    if mutant!(CachedPinLiveness) {
        keepers.pin.clone_from(&hints.pin);
    }
    for hint in wanted {
        let seen = containers.entry(hint.id).or_default();
        if let Some((init, _)) = hint.running.as_ref().filter(|_| mutant!(CachedContainerLiveness)) {
            seen.init = Some(init.clone());
        }
        seen.basis = Some(Basis { incarnation: hint.incarnation, init: hint.running.map(|(init, _)| init) });
    }
    let uplink = world.observe_uplink(hints.uplink.as_ref()).await?;
    let router = match keepers.control {
        ControlObserved::Answering(_) => match world.observe_router().await {
            Ok(router) => Some(router),
            Err(error) => {
                tracing::warn!(error = %error, "router not observed");
                None
            }
        },
        _ => None,
    };
    Ok(Observed { at, boot_id: world.boot_id(), keepers, uplink, router, containers })
}

/// Brings the node up. Never fails as a whole: the report says what did.
pub async fn bring_up<W: World>(world: &W, session: &Session, trigger: Trigger) -> BringUpReport {
    let mut run = Run::new(world, session, trigger);
    for pass in 1..=PASSES_MAX {
        run.report.passes = pass;
        match run.pass().await {
            Outcome::Again => {}
            Outcome::Idle => {
                run.report.converged = run.report.failed.is_empty();
                break;
            }
            Outcome::Down => {
                run.report.down = true;
                break;
            }
            Outcome::Failed => world.sleep(Span(RETRY_WAIT.0 * u64::from(pass))).await,
        }
    }
    let mut report = run.finish().await;
    if !report.down {
        report.errors.extend(remove_expired(world, session).await);
    }
    report
}

enum Outcome {
    /// Something was done, so what is true now must be looked at.
    Again,
    /// Nothing to do.
    Idle,
    /// The user wants it down.
    Down,
    /// What everything stands on could not be put in place.
    Failed,
}

struct Run<'a, W> {
    world: &'a W,
    session: &'a Session,
    report: BringUpReport,
    names: BTreeMap<SandboxId, String>,
    /// Sandboxes that the last look found work on.
    unproven: BTreeSet<String>,
    /// The last look saw all there is to see, and found what everything stands on whole.
    looked: bool,
    first: bool,
}

struct Planned {
    plan: BringUpPlan,
    node: Option<OperationId>,
    works: Vec<(OperationId, Work)>,
    names: BTreeMap<SandboxId, String>,
}

/// Why nothing is brought up.
enum NotNow {
    /// The user wants it down.
    Down,
    /// It is being taken down at this moment.
    GoingDown,
}

impl<'a, W: World> Run<'a, W> {
    fn new(world: &'a W, session: &'a Session, trigger: Trigger) -> Self {
        let report = BringUpReport {
            trigger,
            case: Case::Nothing,
            passes: 0,
            converged: false,
            cures: BTreeMap::new(),
            recovered: Vec::new(),
            failed: BTreeMap::new(),
            resumed: Vec::new(),
            errors: Vec::new(),
            began: world.now(),
            took: Span(0),
            next_due: None,
            down: false,
        };
        Self {
            world,
            session,
            report,
            names: BTreeMap::new(),
            unproven: BTreeSet::new(),
            looked: false,
            first: true,
        }
    }

    async fn pass(&mut self) -> Outcome {
        let observed = match observe(self.world).await {
            Ok(observed) => observed,
            Err(error) => {
                self.report.errors.push(error.to_string());
                return Outcome::Failed;
            }
        };
        let planned = match self.plan(&observed).await {
            Ok(Ok(planned)) => planned,
            Ok(Err(NotNow::Down)) => return Outcome::Down,
            Ok(Err(NotNow::GoingDown)) => {
                let said = "the node is being taken down; bring it up when that has ended";
                if self.report.errors.iter().all(|error| error != said) {
                    self.report.errors.push(said.to_string());
                }
                return Outcome::Failed;
            }
            Err(error) => {
                self.report.errors.push(error.to_string());
                return Outcome::Failed;
            }
        };
        self.note(&planned);
        let Planned { plan, node, works, .. } = planned;
        if let Some(id) = node
            && !self.run_node(&id, &plan.node).await
        {
            self.abandon(works).await;
            return Outcome::Failed;
        }
        let resumed = self.resume_orphans().await;
        let idle = plan.is_idle() && !resumed;
        if !works.is_empty() {
            // Who is started again resolves names, and is resolved, from its first packet on.
            self.hand_over()
                .await
                .unwrap_or_else(|error| tracing::debug!(%error, "snapshot not handed over yet"));
        }
        self.run_works(&works, &observed).await;
        if idle { Outcome::Idle } else { Outcome::Again }
    }

    /// Plans and writes the plan down in one transaction, so that no request comes between.
    async fn plan(&mut self, observed: &Observed) -> Result<Result<Planned, NotNow>, WorldError> {
        let wall = self.world.wall();
        let mut seed = [0_u8; 6];
        self.world.fill(&mut seed);
        let generation = self.session.daemon_generation;
        // Asked for once: who takes the node down later has the last word.
        let up = self.report.trigger == Trigger::Up && self.first;
        let planned = self.world.transact(Durability::Process, |records| {
            let mut changes = Vec::new();
            if let Some(node) = &records.node {
                if node.down && !up {
                    return Err(NotNow::Down);
                }
                if records
                    .operations
                    .values()
                    .any(|open| open.kind == OperationKind::TakeDown && open.daemon_generation == generation)
                {
                    return Err(NotNow::GoingDown);
                }
                let seen = crate::record::NodeRecord { down: false, ..with_helpers(node, observed) };
                if seen != *node {
                    changes.push(Change::Node(seen));
                }
            }
            let plan = plan_bring_up(observed, records, wall, &busy_subjects(records));
            changes.extend(plan.settle.iter().cloned());
            let mut number = 0_u8;
            let mut open = |kind, subject, name: &str, steps: &[Step]| {
                number = number.wrapping_add(1);
                let operation = OperationRecord {
                    id: OperationId::from_raw(format!("{}-{number}", id::new_id(seed))),
                    kind,
                    subjects: alloc::vec![subject],
                    name: String::from(name),
                    steps: steps.to_vec(),
                    phase: Phase::Forward { done: 0 },
                    resume: Resume::Replan,
                    on_done: Vec::new(),
                    on_undone: Vec::new(),
                    daemon_generation: generation,
                    started: wall,
                };
                let id = operation.id.clone();
                changes.push(Change::Operation(operation));
                id
            };
            let node = (!plan.node.is_empty())
                .then(|| open(OperationKind::BringUp, Subject::Node, "node", &plan.node));
            let works = plan
                .work
                .iter()
                .map(|work| {
                    let subject = Subject::Sandbox(work.sandbox.clone());
                    (open(OperationKind::Recover, subject, &work.name, &work.steps), work.clone())
                })
                .collect();
            let named = plan
                .cures
                .keys()
                .chain(plan.unwhole.keys())
                .chain(plan.work.iter().map(|work| &work.sandbox));
            let names =
                named.filter_map(|id| Some((id.clone(), records.sandboxes.get(id)?.name.clone()))).collect();
            Ok((changes, Planned { plan, node, works, names }))
        });
        Ok(planned.await?)
    }

    fn note(&mut self, planned: &Planned) {
        if self.first {
            self.report.case = planned.plan.case;
            self.first = false;
        }
        self.names.extend(planned.names.iter().map(|(id, name)| (id.clone(), name.clone())));
        for (id, cure) in &planned.plan.cures {
            let Some(name) = self.names.get(id) else { continue };
            let harshest = self.report.cures.entry(name.clone()).or_insert(*cure);
            *harshest = (*harshest).max(*cure);
        }
        self.report.next_due = planned.plan.next_due;
        // Only what the last look still finds wrong has failed, and what it finds work on is not proven yet.
        let name_of = |id: &SandboxId| self.names.get(id).cloned();
        self.report.failed = planned
            .plan
            .unwhole
            .iter()
            .filter_map(|(id, cause)| Some((name_of(id)?, cause.clone())))
            .collect();
        self.unproven = planned.plan.work.iter().map(|work| work.name.clone()).collect();
        self.looked = !planned.plan.look_again && planned.plan.node.is_empty();
        tracing::info!(
            case = %planned.plan.case,
            pass = self.report.passes,
            node_steps = planned.plan.node.len(),
            work = planned.plan.work.len(),
            "planned"
        );
    }

    /// Runs the steps that everything stands on. `false` when one failed without which the rest is in vain.
    async fn run_node(&mut self, operation: &OperationId, steps: &[Step]) -> bool {
        let mut standing = true;
        for step in steps {
            if let Err(error) = run_step(self.world, step).await {
                tracing::warn!(step = %step, error = %error, "failed");
                self.report.errors.push(format!("{step}: {error}"));
                if is_foundation(step) {
                    standing = false;
                    break;
                }
            }
        }
        self.close(operation).await;
        standing
    }

    async fn resume_orphans(&mut self) -> bool {
        let orphans = orphans(self.world, self.session).await;
        let mut any = false;
        for orphan in orphans {
            // One that could not be undone is tried once a bring-up, not once a pass.
            if self
                .report
                .resumed
                .iter()
                .any(|resumed| !resumed.failures.is_empty() && resumed.name == orphan.name)
            {
                continue;
            }
            any = true;
            let resumed = resume(self.world, &orphan).await;
            tracing::info!(resumed = %resumed, failures = resumed.failures.len(), "resumed");
            if orphan.resume != Resume::Replan {
                self.report.resumed.push(resumed);
            }
        }
        any
    }

    /// Sandboxes are independent of one another: a slow one holds up no other.
    async fn run_works(&mut self, works: &[(OperationId, Work)], observed: &Observed) {
        for chunk in works.chunks(WORKS_AT_ONCE) {
            let results =
                join_all(chunk.iter().map(|(id, work)| run_work(self.world, id, work, observed))).await;
            for ((_, work), WorkResult { failed, errors }) in chunk.iter().zip(results) {
                if let Some(cause) = failed {
                    self.report.failed.insert(work.name.clone(), cause);
                }
                self.report.errors.extend(errors);
            }
        }
    }

    async fn abandon(&mut self, works: Vec<(OperationId, Work)>) {
        for (id, _) in works {
            self.close(&id).await;
        }
    }

    async fn close(&mut self, operation: &OperationId) {
        self.report.errors.extend(close(self.world, operation).await);
    }

    /// Hands the control its copy of what is to be served.
    async fn hand_over(&self) -> Result<(), RouterError> {
        let generation = self.session.daemon_generation;
        let mut outcome = Ok(());
        // A request that read the records later may be faster: then there is something newer to hand over.
        for _ in 0..HAND_OVER_TRIES {
            let snapshot = self.world.read(|records| snapshot(records, generation)).await;
            outcome = self.world.hand_snapshot(&snapshot).await;
            if !outcome.as_ref().is_err_and(|error| error.class == Class::Conflict) {
                break;
            }
        }
        outcome
    }

    /// Counts what was cured, writes the cures down, and hands the control its copy.
    async fn finish(mut self) -> BringUpReport {
        let cured: BTreeMap<SandboxId, Cure> = self
            .names
            .iter()
            .filter_map(|(id, name)| Some((id.clone(), *self.report.cures.get(name)?)))
            .filter(|(_, cure)| *cure > Cure::Untouched)
            .collect();
        if !self.report.down && !self.report.converged && self.report.failed.is_empty() {
            self.report.errors.push(format!("not proven whole after {} passes", self.report.passes));
        }
        self.report.recovered = cured
            .keys()
            .filter_map(|id| self.names.get(id))
            .filter(|name| !self.report.failed.contains_key(*name) || mutant!(RecoveredAsPlanned))
            .filter(|name| (self.looked && !self.unproven.contains(*name)) || mutant!(RecoveredAsPlanned))
            .cloned()
            .collect();
        if self.report.passes > 1 {
            // Something was done: the records must still make sense, or the report is not to be trusted.
            let broken = self.world.read(check_records).await;
            let broken =
                broken.into_iter().map(|Violation { invariant, detail }| format!("{invariant}: {detail}"));
            self.report.errors.extend(broken);
        }
        let repaired = self.report.is_repair();
        if repaired || !cured.is_empty() {
            let changes = |records: &Records| cure_changes(records, &cured, repaired);
            let written = commit(self.world, Durability::Process, changes);
            if let Err(error) = written.await {
                self.report.errors.push(error.to_string());
            }
        }
        if !self.report.down
            && let Err(error) = self.hand_over().await
        {
            self.report.errors.push(error.to_string());
        }
        self.report.took = self.world.now().since(self.report.began);
        self.report
    }
}

async fn close<W: World>(world: &W, operation: &OperationId) -> Option<String> {
    let closed =
        commit(world, Durability::Process, |_| alloc::vec![Change::RemoveOperation(operation.clone())]);
    closed.await.err().map(|error| error.to_string())
}

struct WorkResult {
    failed: Option<String>,
    errors: Vec<String>,
}

async fn run_work<W: World>(
    world: &W,
    operation: &OperationId,
    work: &Work,
    observed: &Observed,
) -> WorkResult {
    let mut result = WorkResult { failed: None, errors: Vec::new() };
    for step in &work.steps {
        if mutant!(AskedInsideLoop) && is_up(world, step).await {
            continue;
        }
        let Err(error) = run_step(world, step).await else { continue };
        tracing::warn!(sandbox = %work.name, step = %step, error = %error, "failed");
        result.failed = Some(format!("{}: {error}", name_of(step)));
        result.errors.extend(failed_start(world, step, &error, observed).await);
        // A port or a neighbour that does not come is no reason to leave the rest undone.
        if !matches!(step, Step::Publish(_) | Step::Unpublish(_) | Step::StartContainer(_)) {
            break;
        }
    }
    result.errors.extend(close(world, operation).await);
    result
}

/// Whether the sandbox that a step plugs is there by now: a question whose answer the steps themselves change.
async fn is_up<W: World>(world: &W, step: &Step) -> bool {
    let Step::Attach(plan) = step else { return false };
    world.observe_router().await.is_ok_and(|router| router.sandboxes.contains_key(&plan.sandbox))
}

/// A container that cannot be started is tried again later, or is reported as failed for good.
async fn failed_start<W: World>(
    world: &W,
    step: &Step,
    error: &WorldError,
    observed: &Observed,
) -> Option<String> {
    let Step::StartContainer(plan) = step else { return None };
    let (now, wall) = (world.now(), world.wall());
    let result = commit(world, Durability::Process, |records| {
        let container = records.containers.get(&plan.id).filter(|it| it.incarnation == plan.incarnation);
        let next = container.map(|it| {
            restart::after_failed_start(it, error.class(), &error.to_string(), now, wall, &observed.boot_id)
        });
        next.map(Change::Container).into_iter().collect()
    });
    result.await.err().map(|error| error.to_string())
}

/// The node's record with the control and the uplink helper that answer: a daemon may have died after it started
/// one and before it wrote that down, and a keeper that is not on record is not found when it is needed.
fn with_helpers(node: &crate::record::NodeRecord, observed: &Observed) -> crate::record::NodeRecord {
    let mut node = node.clone();
    if let ControlObserved::Answering(process) = &observed.keepers.control {
        node.control = Some(process.clone());
    }
    if let crate::observed::UplinkObserved::Serving { process, .. } = &observed.uplink {
        node.uplink = Some(process.clone());
    }
    node
}

/// Without these there is no router to work in.
fn is_foundation(step: &Step) -> bool {
    matches!(
        step,
        Step::CreateNamespaces
            | Step::AdoptNamespaces(_)
            | Step::EnterUserNamespace(_)
            | Step::StopControl(_)
            | Step::StartControl
            | Step::EnsureRuleset(_)
    )
}

fn cure_changes(records: &Records, cured: &BTreeMap<SandboxId, Cure>, repaired: bool) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut node = records.node.clone();
    if let Some(node) = node.as_mut().filter(|_| repaired) {
        *node.cures.entry(REPAIRED.to_string()).or_default() += 1;
    }
    for (id, cure) in cured {
        if let Some(sandbox) = records.sandboxes.get(id) {
            let mut sandbox = sandbox.clone();
            sandbox.last_cure = Some(*cure);
            changes.push(Change::Sandbox(sandbox));
        }
        if let Some(node) = &mut node {
            *node.cures.entry(cure.to_string()).or_default() += 1;
        }
    }
    changes.extend(node.map(Change::Node));
    changes
}
