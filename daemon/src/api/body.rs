//! Bodies and queries, read with a limit and a deadline, refused with a problem.

use super::problem::Problem;
use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Request},
    http::{StatusCode, request::Parts},
    response::IntoResponse,
};
use serde::de::DeserializeOwned;
use std::time::Duration;

/// How long the body of a request may take: a silent client costs a task, not for ever.
pub const BODY_DEADLINE: Duration = Duration::from_secs(10);

/// A JSON body; an absent one is `{}`.
#[derive(Debug)]
pub struct Body<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let read = tokio::time::timeout(BODY_DEADLINE, Bytes::from_request(request, state));
        let bytes = match read.await {
            Err(_) => {
                return Err(Problem::new(
                    408,
                    "timeout",
                    format!("the body did not arrive within {} s", BODY_DEADLINE.as_secs()),
                ));
            }
            Ok(Err(rejection)) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                return Err(Problem::new(
                    413,
                    "too_large",
                    format!("the body is larger than {} KiB", super::BODY_BYTES_MAX >> 10),
                ));
            }
            Ok(Err(rejection)) => return Err(Problem::new(400, "invalid", rejection.body_text())),
            Ok(Ok(bytes)) => bytes,
        };
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        serde_json::from_slice(text).map(Self).map_err(|error| {
            Problem::new(400, "invalid", format!("the body is not what this endpoint takes: {error}"))
        })
    }
}

/// Query parameters; an unknown one is refused where the type denies it.
#[derive(Debug)]
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match axum::extract::Query::<T>::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(query)) => Ok(Self(query)),
            Err(rejection) => {
                let detail = format!("the query is not what this endpoint takes: {}", rejection.body_text());
                debug_assert!(rejection.into_response().status().is_client_error());
                Err(Problem::new(400, "invalid", detail))
            }
        }
    }
}
