//! Waiting for an effect, never for a time.

use anyhow::{Result, bail};
use std::time::{Duration, Instant};

/// How long [`until`] rests between two looks.
const INTERVAL: Duration = Duration::from_millis(4);

/// Rests; the only place that does.
#[allow(clippy::disallowed_methods)] // Every caller loops on an effect under a deadline, or paces traffic.
pub fn rest(span: Duration) {
    std::thread::sleep(span);
}

/// Looks until `look` finds something.
///
/// # Errors
/// When `look` fails, and when it has found nothing by the deadline: names `what` was waited for.
pub fn until<T>(what: &str, deadline: Duration, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let started = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if started.elapsed() >= deadline {
            bail!("waited {:.1} s in vain for {what}", deadline.as_secs_f64());
        }
        rest(INTERVAL);
    }
}
