//! madsim's executor: its runtime polls in a seeded order of its own, its clock is the node's, and time passes
//! between polls, which the stepping executor's never does.

use super::{End, Executor, Interruption, POLLS_MAX, Task};
use crate::{Sim, random::Stream};
use ::madsim::{
    Config,
    runtime::Runtime,
    task,
    time::{Sleep, TimeHandle},
};
use holdfast_core::time::Mono;
use std::{
    cell::RefCell,
    future::{Future, poll_fn},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

/// Virtual time without any event after which tasks are taken to wait for something that will never come:
/// longer than every deadline and back-off there is. (Without an event at all, madsim would panic.)
const STUCK_AFTER: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

/// madsim's runtime, for one history.
pub struct Madsim {
    runtime: Runtime,
}

impl Madsim {
    /// A runtime whose random numbers come from the seed's scheduler stream.
    pub fn new(seed: u64) -> Self {
        let seed = Stream::of(seed, "scheduler").next();
        Self { runtime: Runtime::with_seed_and_config(seed, Config::default()) }
    }
}

impl Executor for Madsim {
    fn run<T: 'static>(&self, sim: &Sim, tasks: Vec<Task<'static, T>>) -> End<T> {
        self.runtime.block_on(supervise(sim.clone(), tasks))
    }
}

/// Runs on a thread of its own: a thread's first hash-ordered map fixes the keys of all its later ones, and
/// madsim's maps are to be keyed by their own seed.
pub(crate) fn alone<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| match scope.spawn(run).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Lets madsim's clock wake the polled task at `until`. False where no runtime of madsim polls it.
pub(crate) fn wake_at(until: Mono, context: &mut Context<'_>) -> bool {
    let Some(time) = TimeHandle::try_current() else { return false };
    let mut sleep = sleep_until(&time, until);
    // A poll registers the timer, which outlives this future. Should it be due already, so is the task.
    if Pin::new(&mut sleep).poll(context).is_ready() {
        context.waker().wake_by_ref();
    }
    true
}

/// A sleep to the nanosecond: a plain one of madsim takes a millisecond at least.
fn sleep_until(time: &TimeHandle, until: Mono) -> Sleep {
    let now = time.now_instant();
    let begin = now - time.elapsed();
    let mut sleep = time.sleep_until(now);
    Pin::new(&mut sleep).reset(begin + Duration::from_nanos(until.0));
    sleep
}

fn elapsed(time: &TimeHandle) -> Mono {
    Mono(u64::try_from(time.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// Why the lanes stop.
enum Stop {
    Interrupted(Interruption),
    Stuck,
    TooLong,
}

/// What lanes and supervisor share.
struct Gate<T> {
    results: Vec<Option<T>>,
    wakers: Vec<Option<Waker>>,
    supervisor: Option<Waker>,
    open: usize,
    polls: u64,
    stop: Option<Stop>,
}

impl<T> Gate<T> {
    /// From now on no lane goes on: each is polled once more, and drops its task.
    fn stop(&mut self, stop: Stop) {
        self.stop.get_or_insert(stop);
        self.wakers.iter_mut().filter_map(Option::take).for_each(Waker::wake);
        self.wake_supervisor();
    }

    fn wake_supervisor(&mut self) {
        if let Some(waker) = self.supervisor.take() {
            waker.wake();
        }
    }
}

/// A task under madsim: looks after each poll, as the stepping executor does, whether anybody may go on.
struct Lane<T> {
    sim: Sim,
    time: TimeHandle,
    gate: Rc<RefCell<Gate<T>>>,
    place: usize,
    task: Option<Task<'static, T>>,
}

impl<T> Lane<T> {
    fn end(&mut self, result: Option<T>) -> Poll<()> {
        self.task = None;
        let mut gate = self.gate.borrow_mut();
        gate.open -= 1;
        if result.is_some() {
            gate.results[self.place] = result;
        }
        gate.wake_supervisor();
        Poll::Ready(())
    }

    fn stop_if_interrupted(&self) -> bool {
        let interruption = self.sim.interruption();
        let interrupted = interruption.is_some();
        if let Some(interruption) = interruption {
            self.gate.borrow_mut().stop(Stop::Interrupted(interruption));
        }
        interrupted
    }
}

impl<T> Future for Lane<T> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let lane = self.get_mut();
        if lane.gate.borrow().stop.is_some() {
            return lane.end(None);
        }
        lane.sim.clock_is(elapsed(&lane.time));
        if lane.stop_if_interrupted() {
            return lane.end(None);
        }
        let polled = match lane.task.as_mut() {
            Some(task) => task.as_mut().poll(context),
            None => return Poll::Ready(()),
        };
        let result = match polled {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        };
        let interrupted = lane.stop_if_interrupted();
        let too_long = {
            let mut gate = lane.gate.borrow_mut();
            gate.polls += 1;
            gate.polls > POLLS_MAX
        };
        if too_long {
            lane.gate.borrow_mut().stop(Stop::TooLong);
        }
        if result.is_some() || interrupted || too_long {
            return lane.end(result);
        }
        lane.gate.borrow_mut().wakers[lane.place] = Some(context.waker().clone());
        Poll::Pending
    }
}

/// Lets all lanes run until they are done or must not go on, and faults strike that strike by the clock.
async fn supervise<T: 'static>(sim: Sim, tasks: Vec<Task<'static, T>>) -> End<T> {
    let time = TimeHandle::current();
    let gate = Rc::new(RefCell::new(Gate {
        results: tasks.iter().map(|_| None).collect(),
        wakers: tasks.iter().map(|_| None).collect(),
        supervisor: None,
        open: tasks.len(),
        polls: 0,
        stop: None,
    }));
    for (place, task) in tasks.into_iter().enumerate() {
        let (sim, time, gate) = (sim.clone(), time.clone(), Rc::clone(&gate));
        drop(task::spawn_local(Lane { sim, time, gate, place, task: Some(task) }));
    }
    let mut stuck = time.sleep(STUCK_AFTER);
    let mut fault: Option<(Mono, Sleep)> = None;
    poll_fn(|context| {
        loop {
            let mut gate = gate.borrow_mut();
            if gate.open == 0 {
                return Poll::Ready(());
            }
            gate.supervisor = Some(context.waker().clone());
            if gate.stop.is_some() {
                return Poll::Pending;
            }
            let next = sim.next_timed_fault();
            if fault.as_ref().map(|(at, _)| *at) != next {
                fault = next.map(|at| (at, sleep_until(&time, at)));
            }
            let due = fault.as_mut().is_some_and(|(_, sleep)| Pin::new(sleep).poll(context).is_ready());
            if due {
                sim.clock_is(elapsed(&time));
                if let Some(interruption) = sim.interruption() {
                    gate.stop(Stop::Interrupted(interruption));
                }
                continue;
            }
            if fault.is_none() && Pin::new(&mut stuck).poll(context).is_ready() {
                gate.stop(Stop::Stuck);
            }
            return Poll::Pending;
        }
    })
    .await;
    let mut gate = gate.borrow_mut();
    let results = std::mem::take(&mut gate.results);
    match gate.stop.take() {
        Some(Stop::Interrupted(interruption)) => interruption.end(results),
        Some(Stop::Stuck) => End::Stuck,
        Some(Stop::TooLong) => End::TooLong,
        None => End::Done(results.into_iter().flatten().collect()),
    }
}
