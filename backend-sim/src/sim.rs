//! The simulation: the node, the clock, the faults that are still to strike, and the trace.

#[cfg(madsim)]
use crate::executor;
use crate::{
    SimWorld,
    check::{self, History, Violation},
    executor::Interruption,
    fault::{At, Fault, FaultKind, FaultPlan, Side},
    model::{Node, Role},
    random::Streams,
    trace::{ProcessEvent, Trace},
};
use holdfast_core::{
    error::Class,
    id::ProcessRef,
    time::{Mono, Span},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

/// What a simulated node is like.
#[derive(Clone, Debug)]
pub struct Config {
    /// The seed of every stream.
    pub seed: u64,
    /// Whether the service manager keeps the daemon's descriptors.
    pub fd_store: bool,
    /// The longest a call takes when nothing delays it, in microseconds.
    pub latency_max_us: u64,
    /// Containers that ignore their stop signal, by name.
    pub stubborn: BTreeSet<String>,
    /// Whether invariants are looked at after every call.
    pub check: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { seed: 0, fd_store: false, latency_max_us: 200, stubborn: BTreeSet::new(), check: true }
    }
}

/// A fault that may still strike.
struct Armed {
    fault: Fault,
    /// Calls that matched its name and subject so far.
    seen: u64,
}

pub(crate) struct State {
    /// The processes last seen and what they are, where they are watched.
    watched: Option<BTreeMap<ProcessRef, String>>,
    pub(crate) node: Node,
    pub(crate) streams: Streams,
    pub(crate) trace: Trace,
    config: Config,
    armed: Vec<Armed>,
    struck: BTreeMap<String, u64>,
    timers: BTreeMap<(Mono, u64), Waker>,
    timers_made: u64,
    daemon: Option<ProcessRef>,
    daemons: u32,
    daemon_calls: u64,
    violation: Option<Violation>,
    history: History,
    /// Whether anything may differ from when the invariants were looked at.
    changed: bool,
}

/// A simulated node over all its daemons and boots.
#[derive(Clone)]
pub struct Sim(Arc<Mutex<State>>);

/// What a call must do besides its effect.
pub(crate) struct Begun {
    pub(crate) nth: u64,
    pub(crate) takes: Span,
    verdict: Option<FaultKind>,
    after: Vec<Fault>,
}

/// What a call does instead of its effect, or after it.
pub(crate) enum Verdict {
    Effect,
    Fail(Class),
    EffectThenUnknown,
}

impl Begun {
    pub(crate) fn verdict(&self) -> Verdict {
        match self.verdict {
            Some(FaultKind::Fail(class)) => Verdict::Fail(class),
            Some(FaultKind::Unknown { applied: false }) => Verdict::Fail(Class::Unknown),
            Some(FaultKind::Unknown { applied: true }) => Verdict::EffectThenUnknown,
            _ => Verdict::Effect,
        }
    }
}

impl Sim {
    /// A node after its first boot, with an empty disk.
    pub fn new(config: Config, plan: FaultPlan) -> Self {
        let mut node = Node::default();
        node.fd_store = config.fd_store;
        node.stubborn.clone_from(&config.stubborn);
        Self(Arc::new(Mutex::new(State {
            watched: None,
            node,
            streams: Streams::new(config.seed),
            trace: Trace::default(),
            armed: plan.faults.into_iter().map(|fault| Armed { fault, seen: 0 }).collect(),
            config,
            struck: BTreeMap::new(),
            timers: BTreeMap::new(),
            timers_made: 0,
            daemon: None,
            daemons: 0,
            daemon_calls: 0,
            violation: None,
            history: History::default(),
            changed: true,
        })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned lock means that an assertion failed while it was held; the state still explains why.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a daemon, which takes the descriptors that the service manager kept for the last one. The last
    /// one is killed if it still lives.
    pub fn start_daemon(&self) -> SimWorld {
        let mut state = self.lock();
        if let Some(last) = state.daemon.take() {
            state.node.kill(&last, crate::model::KILLED);
        }
        state.daemons += 1;
        state.daemon_calls = 0;
        state.node.disk.open();
        let incarnation = state.daemons;
        let manager = state.node.processes.find(|role| matches!(role, Role::Manager)).pop();
        let holds = manager
            .and_then(|manager| {
                state.node.processes.get_mut(&manager).map(|process| std::mem::take(&mut process.holds))
            })
            .unwrap_or_default();
        let holds: Vec<_> = holds.into_iter().collect();
        state.daemon = Some(state.node.spawn(Role::Daemon(incarnation), &[], &holds));
        SimWorld { sim: self.clone(), incarnation }
    }

    /// Looks at the node, or changes it between calls.
    pub fn with_node<T>(&self, look: impl FnOnce(&mut Node) -> T) -> T {
        let mut state = self.lock();
        state.changed = true;
        look(&mut state.node)
    }

    /// From here on the trace says which processes begin and end.
    pub fn watch_processes(&self) {
        let mut state = self.lock();
        state.watched = Some(BTreeMap::new());
        state.note_processes();
    }

    /// Lets a fault strike now.
    pub fn strike(&self, kind: &FaultKind) {
        self.lock().strike(kind);
    }

    /// Adds faults that are to strike later.
    pub fn arm(&self, plan: FaultPlan) {
        self.lock().armed.extend(plan.faults.into_iter().map(|fault| Armed { fault, seen: 0 }));
    }

    /// Faults stop: those that have not struck never do, the disk has room, strangers leave the host's ports.
    pub fn disarm(&self) {
        let mut state = self.lock();
        state.armed.clear();
        state.node.disk.full = false;
        state.node.foreign_ports.clear();
    }

    /// How often each kind of fault struck, by name.
    pub fn faults_struck(&self) -> BTreeMap<String, u64> {
        self.lock().struck.clone()
    }

    /// Takes the calls so far out.
    pub(crate) fn take_trace(&self) -> Trace {
        std::mem::take(&mut self.lock().trace)
    }

    /// The calls so far.
    pub fn trace(&self) -> Trace {
        self.lock().trace.clone()
    }

    /// How many calls were begun.
    pub fn calls(&self) -> u64 {
        self.lock().trace.len()
    }

    /// The first violated invariant.
    pub fn violation(&self) -> Option<Violation> {
        self.lock().violation.clone()
    }

    /// Why no task may go on, if so.
    pub(crate) fn interruption(&self) -> Option<Interruption> {
        let state = self.lock();
        match &state.violation {
            Some(violation) => Some(Interruption::Violated(violation.clone())),
            None => (!state.lives(state.daemons)).then_some(Interruption::Killed),
        }
    }

    /// Whether the running daemon lives.
    pub fn daemon_lives(&self) -> bool {
        let state = self.lock();
        state.lives(state.daemons)
    }

    /// Lets the clock go on to the next timer or fault. False when there is none.
    pub(crate) fn advance(&self) -> bool {
        let mut state = self.lock();
        let timer = state.timers.keys().next().map(|(at, _)| *at);
        let fault = state.next_timed_fault();
        let next = match (timer, fault) {
            (Some(timer), Some(fault)) => timer.min(fault),
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => return false,
        };
        state.node.time = state.node.time.max(next);
        state.strike_timed();
        state.wake_due();
        true
    }

    /// The clock of the executor stands at `at`: what was to strike by then strikes.
    #[cfg(madsim)]
    pub(crate) fn clock_is(&self, at: Mono) {
        let mut state = self.lock();
        state.node.time = state.node.time.max(at);
        if !state.armed.is_empty() {
            state.strike_timed();
        }
    }

    /// When the next fault strikes that strikes by the clock.
    #[cfg(madsim)]
    pub(crate) fn next_timed_fault(&self) -> Option<Mono> {
        self.lock().next_timed_fault()
    }

    /// Virtual time since the begin of the run.
    pub fn time(&self) -> Mono {
        self.lock().node.time
    }

    /// Comes back after `span` of virtual time.
    pub(crate) fn sleep(&self, span: Span) -> Sleep {
        Sleep { sim: self.clone(), until: self.lock().node.time.after(span), waker: None }
    }
}

impl State {
    fn lives(&self, incarnation: u32) -> bool {
        self.daemons == incarnation
            && self.daemon.as_ref().is_some_and(|daemon| self.node.processes.get(daemon).is_some())
    }

    /// Begins a call; `None` when its caller is dead, before it or by a fault that strikes before it.
    pub(crate) fn begin(&mut self, incarnation: u32, call: &str, subject: &str) -> Option<Begun> {
        if !self.lives(incarnation) {
            return None;
        }
        let nth = self.trace.begin(incarnation, self.node.time, call, subject.to_owned());
        let own = self.daemon_calls;
        self.daemon_calls += 1;
        let latency = self.streams.latency.below(self.config.latency_max_us.saturating_add(1));
        let mut begun =
            Begun { nth, takes: Span(latency.saturating_mul(1_000)), verdict: None, after: Vec::new() };
        for fault in self.take_faults(nth, own, call, subject) {
            self.note(nth, &fault);
            self.count(&fault.kind);
            match (&fault.kind, fault.side) {
                (FaultKind::Fail(_) | FaultKind::Unknown { .. }, _) => {
                    begun.verdict = Some(fault.kind.clone())
                }
                (FaultKind::Delay { by_ms }, _) => {
                    begun.takes = Span(begun.takes.0.saturating_add(Span::from_ms(*by_ms).0));
                }
                (_, Side::After) => begun.after.push(fault),
                (kind, Side::Before) => self.strike(kind),
            }
        }
        self.lives(incarnation).then_some(begun)
    }

    /// The effect of a call happens. What only looks changes nothing, and how far an operation has come is no
    /// matter of any invariant; records keep no namespace alive.
    pub(crate) fn effect<T>(&mut self, call: &str, effect: impl FnOnce(&mut Node) -> T) -> T {
        let structure = self.node.disk.structure;
        let result = effect(&mut self.node);
        if call.starts_with("store.") {
            self.changed |= self.node.disk.structure != structure;
        } else if !call.ends_with(".observe") {
            self.changed = true;
            self.node.settle();
        }
        result
    }

    /// Ends a call; `None` when a fault killed its caller on the way.
    pub(crate) fn end(&mut self, incarnation: u32, begun: &Begun, outcome: String) -> Option<()> {
        if let Some(call) = self.trace.call_mut(begun.nth) {
            call.outcome = outcome;
        }
        for fault in &begun.after {
            self.strike(&fault.kind);
        }
        self.look();
        self.lives(incarnation).then_some(())
    }

    /// Whether the caller of a running call still lives.
    pub(crate) fn caller_lives(&self, incarnation: u32) -> bool {
        self.lives(incarnation)
    }

    fn strike(&mut self, kind: &FaultKind) {
        self.changed = true;
        self.node.strike(kind);
        if *kind == FaultKind::PowerLoss {
            self.history.power_lost();
        }
        self.look();
    }

    /// Looks at the invariants; the first violation stays. Where nothing changed, what held before holds still.
    fn look(&mut self) {
        if self.changed && self.watched.is_some() {
            self.note_processes();
        }
        if std::mem::take(&mut self.changed) && self.config.check && self.violation.is_none() {
            self.violation = check::after_call(&mut self.node, &mut self.history).err();
        }
    }

    fn note_processes(&mut self) {
        let Some(before) = self.watched.take() else { return };
        let now: BTreeMap<ProcessRef, String> = self
            .node
            .processes
            .iter()
            .filter_map(|process| Some((process.reference.clone(), self.node.name_of(&process.role)?)))
            .collect();
        let (at_ns, calls) = (self.node.time.0, self.trace.len());
        let ended = before.iter().filter(|(process, _)| !now.contains_key(process)).map(|it| (it, false));
        let begun = now.iter().filter(|(process, _)| !before.contains_key(process)).map(|it| (it, true));
        for ((process, who), began) in ended.chain(begun) {
            let (who, pid) = (who.clone(), process.pid);
            self.trace.note_process(ProcessEvent { at_ns, calls, who, pid, began });
        }
        self.watched = Some(now);
    }

    fn take_faults(&mut self, nth: u64, own: u64, call: &str, subject: &str) -> Vec<Fault> {
        let daemon = self.daemons;
        let mut taken = Vec::new();
        if self.armed.is_empty() {
            return taken;
        }
        self.armed.retain_mut(|armed| {
            let strikes = match &armed.fault.at {
                At::Call { nth: at } => *at == nth,
                At::Incarnation { daemon: number, call } => *number == daemon && *call == own,
                At::Named { call: name, subject: of, nth } => {
                    let matches = name == call && subject.contains(of.as_str());
                    armed.seen += u64::from(matches);
                    matches && armed.seen == *nth + 1
                }
                At::Time { .. } => false,
            };
            if strikes {
                taken.push(armed.fault.clone());
            }
            !strikes
        });
        taken
    }

    fn next_timed_fault(&self) -> Option<Mono> {
        self.armed.iter().filter_map(|armed| timed(&armed.fault)).min()
    }

    fn strike_timed(&mut self) {
        let now = self.node.time;
        let (due, later) = std::mem::take(&mut self.armed)
            .into_iter()
            .partition(|armed| timed(&armed.fault).is_some_and(|at| at <= now));
        self.armed = later;
        for armed in due {
            self.note(self.trace.len().saturating_sub(1), &armed.fault);
            self.count(&armed.fault.kind);
            self.strike(&armed.fault.kind);
        }
    }

    fn note(&mut self, nth: u64, fault: &Fault) {
        if let Some(call) = self.trace.call_mut(nth) {
            call.faults.push(fault.to_string());
        }
    }

    fn count(&mut self, kind: &FaultKind) {
        let name = format!("{kind:?}");
        let name = name.split([' ', '(', '{']).next().unwrap_or_default().to_owned();
        *self.struck.entry(name).or_default() += 1;
    }

    fn wake_due(&mut self) {
        while let Some(entry) = self.timers.first_entry() {
            if entry.key().0 > self.node.time {
                break;
            }
            entry.remove().wake();
        }
    }
}

fn timed(fault: &Fault) -> Option<Mono> {
    match fault.at {
        At::Time { at_ms } => Some(Mono(Span::from_ms(at_ms).0)),
        _ => None,
    }
}

/// A virtual sleep.
pub(crate) struct Sleep {
    sim: Sim,
    until: Mono,
    /// Whom its timer wakes.
    waker: Option<Waker>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let sim = self.sim.clone();
        let mut state = sim.lock();
        if state.node.time >= self.until {
            return Poll::Ready(());
        }
        if self.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            return Poll::Pending;
        }
        self.waker = Some(context.waker().clone());
        #[cfg(madsim)]
        if executor::madsim::wake_at(self.until, context) {
            return Poll::Pending;
        }
        state.timers_made += 1;
        let key = (self.until, state.timers_made);
        state.timers.insert(key, context.waker().clone());
        Poll::Pending
    }
}
