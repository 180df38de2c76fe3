//! What becomes of a pod when something that was done for it failed.

use super::record::{Failure, PodRecord, PodRestart, Retry};
use crate::{
    error::{Class, RefusalCode},
    id::BootId,
    ops::request::RequestError,
    time::{Mono, Span, Wall},
};
use alloc::string::{String, ToString};

/// First wait before something is tried again.
const WAIT_MIN: Span = Span::from_ms(500);
/// The longest: a kubelet's.
const WAIT_MAX: Span = Span::from_secs(300);
/// Failures of the pod as a whole (volumes, sandbox) after which it has failed.
const POD_ATTEMPTS_MAX: u32 = 6;
/// Failures to start a container that is not started again by its policy.
const CONTAINER_ATTEMPTS_MAX: u32 = 6;

/// What a failed request means for the next try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hope {
    /// It was not this pod's fault, and does not count.
    Later,
    /// It may succeed.
    Some,
    /// It cannot.
    None,
}

fn hope(error: &RequestError) -> Hope {
    match error {
        RequestError::Refused(refusal) => match refusal.code {
            RefusalCode::Busy | RefusalCode::WrongState | RefusalCode::NotFound => Hope::Later,
            RefusalCode::Exhausted => Hope::Some,
            RefusalCode::Invalid | RefusalCode::NameInUse | RefusalCode::InUse | RefusalCode::Taken => {
                Hope::None
            }
        },
        // An undo that failed is tried by every bring-up; until then the open operation keeps the next try away.
        RequestError::Failed(error) => of_class(error.cause.class()),
        RequestError::Store(error) => of_class(error.class),
    }
}

fn of_class(class: Class) -> Hope {
    match class {
        // Unknown: it was undone, or the journal still holds it; either way nothing of it is left when it is tried
        // again.
        Class::Transient | Class::Exhausted | Class::Unknown => Hope::Some,
        Class::Conflict | Class::Missing | Class::Denied | Class::Corrupt | Class::Fatal => Hope::None,
    }
}

/// Where it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The pod as a whole.
    Pod,
    /// The container of this number.
    Container(usize),
}

/// When it failed.
#[derive(Clone, Debug)]
pub struct Moment {
    /// For waits.
    pub now: Mono,
    /// For people.
    pub wall: Wall,
    /// The boot of `now`.
    pub boot_id: BootId,
}

/// The record after a failure: tried again later, or failed for good.
pub fn after(pod: &PodRecord, place: Place, error: &RequestError, moment: &Moment) -> PodRecord {
    let mut next = pod.clone();
    let hope = hope(error);
    let message = error.to_string();
    match place {
        Place::Pod => {
            let retry = again(pod.progress.retry.as_ref(), hope, &message, moment);
            if hope == Hope::None || retry.attempts >= POD_ATTEMPTS_MAX {
                next.progress.retry = None;
                next.progress.failed = Some(failure("FailedCreatePodSandBox", message, moment));
            } else {
                next.progress.retry = Some(retry);
            }
        }
        Place::Container(index) => {
            let Some(progress) = next.progress.containers.get_mut(index) else { return next };
            let retry = again(progress.retry.as_ref(), hope, &message, moment);
            let done = hope == Hope::None || retry.attempts >= CONTAINER_ATTEMPTS_MAX;
            if done && pod.restart == PodRestart::Never {
                progress.retry = None;
                progress.failed = Some(failure("StartError", message, moment));
            } else {
                progress.retry = Some(retry);
            }
        }
    }
    next
}

fn failure(reason: &str, message: String, moment: &Moment) -> Failure {
    Failure { reason: String::from(reason), message, at: moment.wall }
}

fn again(before: Option<&Retry>, hope: Hope, message: &str, moment: &Moment) -> Retry {
    let attempts = before.map_or(0, |retry| retry.attempts).saturating_add(u32::from(hope != Hope::Later));
    let doublings = attempts.saturating_sub(1).min(16);
    let wait = Span(WAIT_MIN.0 << doublings).min(WAIT_MAX);
    Retry {
        attempts,
        message: String::from(message),
        not_before: moment.now.after(wait),
        boot_id: moment.boot_id.clone(),
    }
}

/// Whether a retry is due.
pub fn is_due(retry: &Retry, now: Mono, boot_id: &BootId) -> bool {
    &retry.boot_id != boot_id || retry.not_before <= now
}
