//! Has the node looked at as soon as somebody else changes its router.

use super::{
    supervisor::{SupervisorHandle, until_ended},
    world::Node,
};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// Wait after a notice before the next one counts; doubles while they follow one another, for somebody may undo every
/// repair.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
/// The longest such wait, and how long without a notice makes the next one the first again.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Wait before a control is asked again that did not answer.
const AGAIN: Duration = Duration::from_millis(500);

/// Listens until the daemon ends.
pub async fn run<N: Node>(world: Arc<N>, supervisor: SupervisorHandle) {
    let mut end = supervisor.ended();
    tokio::select! {
        () = until_ended(&mut end) => {}
        () = listen(&*world, &supervisor) => {}
    }
}

async fn listen<N: Node>(world: &N, supervisor: &SupervisorHandle) {
    let (mut seen, mut pause, mut last) = (0, PAUSE_FIRST, Instant::now());
    loop {
        let Ok(drift) = world.await_drift(seen).await else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        // A control that has begun anew has seen nothing yet.
        let drifted = drift.count > 0 && drift.count != seen;
        seen = drift.count;
        if drifted {
            pause = if last.elapsed() > PAUSE_MAX { PAUSE_FIRST } else { (pause * 2).min(PAUSE_MAX) };
            last = Instant::now();
            supervisor.drifted(drift.what);
            tokio::time::sleep(pause).await;
        }
    }
}
