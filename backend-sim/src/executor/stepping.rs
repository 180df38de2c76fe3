//! The stepping executor: one thread, a virtual clock, and a seeded choice of who goes on.

use super::{End, Executor, Task};
use crate::Sim;
use std::{
    collections::BTreeSet,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Wake, Waker},
};

/// The stepping executor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stepping;

impl Executor for Stepping {
    fn run<T: 'static>(&self, sim: &Sim, tasks: Vec<Task<'static, T>>) -> End<T> {
        run(sim, tasks)
    }
}

/// Polls of one run, after which something is taken to spin.
pub const POLLS_MAX: u64 = 1_000_000;

struct Ready {
    task: usize,
    queue: Arc<Mutex<BTreeSet<usize>>>,
}

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).insert(self.task);
    }
}

/// Runs tasks until all came back, or the running daemon died.
pub fn run<'a, T>(sim: &Sim, tasks: Vec<Task<'a, T>>) -> End<T> {
    let queue = Arc::new(Mutex::new((0..tasks.len()).collect::<BTreeSet<usize>>()));
    let mut results: Vec<Option<T>> = tasks.iter().map(|_| None).collect();
    let mut tasks: Vec<Option<Task<'a, T>>> = tasks.into_iter().map(Some).collect();
    for _ in 0..POLLS_MAX {
        if results.iter().all(Option::is_some) {
            return End::Done(results.into_iter().flatten().collect());
        }
        let Some(chosen) = choose(sim, &queue) else {
            if sim.advance() {
                if let Some(end) = interrupted(sim, &mut results) {
                    return end;
                }
                continue;
            }
            return End::Stuck;
        };
        let Some(Some(task)) = tasks.get_mut(chosen) else { continue };
        let waker = Waker::from(Arc::new(Ready { task: chosen, queue: Arc::clone(&queue) }));
        if let Poll::Ready(result) = task.as_mut().poll(&mut Context::from_waker(&waker)) {
            tasks[chosen] = None;
            results[chosen] = Some(result);
        }
        if let Some(end) = interrupted(sim, &mut results) {
            return end;
        }
    }
    End::TooLong
}

fn interrupted<T>(sim: &Sim, results: &mut Vec<Option<T>>) -> Option<End<T>> {
    sim.interruption().map(|interruption| interruption.end(std::mem::take(results)))
}

fn choose(sim: &Sim, queue: &Mutex<BTreeSet<usize>>) -> Option<usize> {
    let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    let ready: Vec<usize> = queue.iter().copied().collect();
    let chosen = match ready.as_slice() {
        // No draw where there is no choice.
        [only] => *only,
        several => *sim.lock().streams.scheduler.pick(several)?,
    };
    queue.remove(&chosen);
    Some(chosen)
}

/// Runs one task.
pub fn block_on<'a, T>(sim: &Sim, task: impl Future<Output = T> + 'a) -> End<T> {
    run(sim, vec![Box::pin(task)])
}
