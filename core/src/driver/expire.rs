//! Removes containers that were to go when they end (`run --rm`).

use super::{request, session::Session};
use crate::{
    error::RefusalCode,
    ops::{
        container::expired,
        request::{RemoveRequest, RequestError},
    },
    world::World,
};
use alloc::{format, string::String, vec::Vec};

/// Removes every container whose end was its removal too, and says what could not be removed. A daemon that dies
/// before this leaves them to the next bring-up.
pub(super) async fn remove_expired<W: World>(world: &W, session: &Session) -> Vec<String> {
    let mut errors = Vec::new();
    for (id, name) in world.read(expired).await {
        let removed = request::remove_container(world, session, id.as_str(), &RemoveRequest::default()).await;
        match removed {
            Ok(()) => tracing::info!(container = %name, "removed after its end"),
            // Somebody else removed it, or started it again: there is nothing left to do.
            Err(RequestError::Refused(refusal))
                if matches!(refusal.code, RefusalCode::NotFound | RefusalCode::WrongState) => {}
            Err(error) => errors.push(format!("remove {name} after its end: {error}")),
        }
    }
    errors
}
