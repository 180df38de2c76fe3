//! Errors as RFC 9457 `application/problem+json`, with a stable code.

use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use holdfast_core::{
    error::{Class, OperationError, Refusal, RefusalCode, StoreError, WorldError},
    ops::request::RequestError,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The media type: RFC 9457, section 3.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// An error as it goes over the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// A URI of the kind of problem: `urn:holdfast:problem:<code>`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind in words.
    pub title: String,
    /// The HTTP status again.
    pub status: u16,
    /// What happened here, naming the thing.
    pub detail: String,
    /// Stable, machine-readable: a [`RefusalCode`] or a [`Class`], as stored in snake case.
    pub code: String,
    /// What a person can do about it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub remedy: String,
    /// Undos that failed too; what they name may have leaked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undo_failures: Vec<String>,
}

impl Problem {
    /// A problem without a remedy.
    pub fn new(status: u16, code: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:holdfast:problem:{code}"),
            title: code.replace('_', " "),
            status,
            detail: detail.into(),
            code: code.to_owned(),
            remedy: String::new(),
            undo_failures: Vec::new(),
        }
    }

    /// A fault of this program.
    pub fn internal(detail: impl Into<String>) -> Self {
        let mut problem = Self::new(500, "fatal", detail);
        "look at the daemon's log".clone_into(&mut problem.remedy);
        problem
    }

    fn with_remedy(mut self, remedy: &str) -> Self {
        remedy.clone_into(&mut self.remedy);
        self
    }
}

/// The word that an enum of core has in JSON.
fn word(value: impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        // Both enums hold unit variants alone, which serialise as strings.
        _ => "fatal".to_owned(),
    }
}

fn status_of_code(code: RefusalCode) -> u16 {
    match code {
        RefusalCode::Invalid => 400,
        RefusalCode::NotFound => 404,
        RefusalCode::NameInUse | RefusalCode::InUse | RefusalCode::WrongState | RefusalCode::Taken => 409,
        RefusalCode::Busy => 503,
        RefusalCode::Exhausted => 507,
    }
}

/// A failure of the node is a 5xx whatever was missing or in the way there: the request itself was in order.
fn status_of_class(class: Class) -> u16 {
    match class {
        Class::Transient => 503,
        Class::Unknown => 504,
        Class::Exhausted => 507,
        Class::Conflict | Class::Missing | Class::Denied | Class::Corrupt | Class::Fatal => 500,
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        Self::new(status_of_code(refusal.code), &word(refusal.code), refusal.detail)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let detail = format!("{} {}: {}", error.action, error.subject, error.cause);
        Self::new(status_of_class(error.class), &word(error.class), detail).with_remedy(&error.remedy)
    }
}

/// The error without its remedy, which a problem has a field for.
fn detail(error: &WorldError) -> String {
    let (action, subject, cause) = match error {
        WorldError::Keeper(error) => (&error.action, &error.subject, &error.cause),
        WorldError::Router(error) => (&error.action, &error.subject, &error.cause),
        WorldError::Uplink(error) => (&error.action, &error.subject, &error.cause),
        WorldError::Container(error) => (&error.action, &error.subject, &error.cause),
        WorldError::Store(error) => (&error.action, &error.subject, &error.cause),
        WorldError::Volume(error) => (&error.action, &error.subject, &error.cause),
    };
    format!("{action} {subject}: {cause}")
}

impl From<WorldError> for Problem {
    fn from(error: WorldError) -> Self {
        let class = error.class();
        Self::new(status_of_class(class), &word(class), detail(&error)).with_remedy(error.remedy())
    }
}

impl From<OperationError> for Problem {
    fn from(error: OperationError) -> Self {
        let mut problem = Self::from(*error.cause);
        problem.detail = format!("{} failed: {}", error.step, problem.detail);
        problem.undo_failures = error.undo_failures;
        problem
    }
}

impl From<RequestError> for Problem {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Refused(refusal) => refusal.into(),
            RequestError::Failed(error) => error.into(),
            RequestError::Store(error) => error.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)?;
        if !self.remedy.is_empty() {
            write!(f, " ({})", self.remedy)?;
        }
        for failure in &self.undo_failures {
            write!(f, "; undo failed: {failure}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problem {}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Strings and a number: serialising them cannot fail.
        let body = serde_json::to_vec(&self).unwrap_or_default();
        (status, [(header::CONTENT_TYPE, MEDIA_TYPE)], body).into_response()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use holdfast_core::error::ContainerError;

    #[test]
    fn every_refusal_has_its_status_and_stable_code() {
        for (code, status, text) in [
            (RefusalCode::Invalid, 400, "invalid"),
            (RefusalCode::NotFound, 404, "not_found"),
            (RefusalCode::NameInUse, 409, "name_in_use"),
            (RefusalCode::InUse, 409, "in_use"),
            (RefusalCode::WrongState, 409, "wrong_state"),
            (RefusalCode::Exhausted, 507, "exhausted"),
            (RefusalCode::Taken, 409, "taken"),
            (RefusalCode::Busy, 503, "busy"),
        ] {
            let problem = Problem::from(RequestError::from(Refusal::new(code, "why")));
            assert_eq!(
                (problem.status, problem.code.as_str(), problem.detail.as_str()),
                (status, text, "why")
            );
            assert_eq!(problem.kind, format!("urn:holdfast:problem:{text}"));
        }
    }

    #[test]
    fn a_failed_operation_keeps_cause_remedy_and_failed_undos() {
        let cause = ContainerError::new(Class::Denied, "start", "web", "no crun").with_remedy("install crun");
        let problem = Problem::from(RequestError::Failed(OperationError {
            cause: Box::new(cause.into()),
            step: "start container".to_owned(),
            undo_failures: vec!["detach 3: timeout".to_owned()],
        }));
        assert_eq!(
            (problem.status, problem.code.as_str(), problem.remedy.as_str()),
            (500, "denied", "install crun")
        );
        assert_eq!(problem.detail, "start container failed: start web: no crun");
        let json = serde_json::to_value(&problem).unwrap();
        assert_eq!(json["undo_failures"][0], "detach 3: timeout");
        assert_eq!(serde_json::from_value::<Problem>(json).unwrap(), problem);
    }
}
