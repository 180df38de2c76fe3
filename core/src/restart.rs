//! What happens after a container ended by itself.

use crate::{
    error::Class,
    id::BootId,
    record::{ContainerRecord, RunState},
    spec::RestartPolicy,
    time::{Mono, Span, Wall},
};
use alloc::string::String;

/// First wait before a restart by policy.
pub const BACKOFF_MIN: Span = Span::from_ms(100);
/// Longest wait before a restart by policy.
pub const BACKOFF_MAX: Span = Span::from_secs(60);
/// A start that ran this long was a success: the back-off begins anew.
pub const SETTLED_AFTER: Span = Span::from_secs(10);

/// The wait before the restart after so many failures in a row: doubled each time.
pub fn backoff(failures_in_row: u32) -> Span {
    let doublings = failures_in_row.saturating_sub(1).min(16);
    Span(BACKOFF_MIN.0 << doublings).min(BACKOFF_MAX)
}

/// The record after its process ended with `exit_code` (`None`: nobody could read it, which is never 0).
pub fn after_exit(
    container: &ContainerRecord,
    exit_code: Option<i32>,
    now: Mono,
    wall: Wall,
    boot_id: &BootId,
) -> ContainerRecord {
    let mut next = container.ended(exit_code, wall);
    let ran_long = match &container.state {
        RunState::Running { init, since_mono, .. } => {
            &init.boot_id == boot_id && now.since(*since_mono) >= SETTLED_AFTER
        }
        _ => false,
    };
    next.failures_in_row = if ran_long { 1 } else { container.failures_in_row.saturating_add(1) };
    let again = match container.spec.restart {
        RestartPolicy::No | RestartPolicy::Once => false,
        RestartPolicy::Always | RestartPolicy::UnlessStopped => true,
        RestartPolicy::OnFailure { retries_max } => {
            exit_code != Some(0) && retries_max.is_none_or(|retries| next.failures_in_row <= retries)
        }
    };
    next.state = if again {
        let not_before = now.after(backoff(next.failures_in_row));
        RunState::Waiting { exit_code, not_before, boot_id: boot_id.clone() }
    } else {
        RunState::Exited { exit_code, at: wall }
    };
    next
}

/// The record after a start that recovery tried failed: tried again later where that can help, else failed for
/// good until the user starts it.
pub fn after_failed_start(
    container: &ContainerRecord,
    class: Class,
    cause: &str,
    now: Mono,
    wall: Wall,
    boot_id: &BootId,
) -> ContainerRecord {
    let mut next = container.clone();
    next.failures_in_row = container.failures_in_row.saturating_add(1);
    let hopeless = match class {
        Class::Missing | Class::Denied | Class::Corrupt | Class::Fatal => true,
        Class::Transient | Class::Conflict | Class::Exhausted | Class::Unknown => false,
    };
    next.state = if hopeless {
        RunState::Failed { cause: String::from(cause), at: wall }
    } else {
        let not_before = now.after(backoff(next.failures_in_row));
        RunState::Waiting { exit_code: None, not_before, boot_id: boot_id.clone() }
    };
    next
}
