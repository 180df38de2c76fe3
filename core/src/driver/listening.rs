//! Published ports as they really are: asked of the uplink, not of the records.

use super::perform::hints;
use crate::{
    error::WorldError,
    observed::UplinkObserved,
    ops::{find, request::RequestError},
    record::{PortRecord, Records},
    spec::PortSpec,
    world::World,
};
use alloc::{boxed::Box, string::String, vec::Vec};
use serde::{Deserialize, Serialize};

/// One published port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortState {
    /// What is published.
    pub spec: PortSpec,
    /// Whether the uplink helper really forwards it now.
    pub listening: bool,
    /// Why it is not; empty when it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cause: String,
}

/// `port NAME`: of a container or a pod; of a pod's member, its pod's.
///
/// # Errors
/// Refused for a name that nobody has; failed when the uplink cannot be looked at.
pub async fn ports<W: World>(world: &W, name: &str) -> Result<Vec<PortState>, RequestError> {
    let wanted = |records: &Records| {
        let member = find::container(records, name).ok();
        let shared = member.and_then(|member| records.sandboxes.get(&member.sandbox));
        shared.map_or_else(|| find::workload(records, name), Ok).map(|sandbox| sandbox.ports.clone())
    };
    let wanted: Vec<PortRecord> = world.read(wanted).await?;
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let hints = hints(world).await;
    let uplink = world.observe_uplink(hints.uplink.as_ref()).await.map_err(failed)?;
    let state = |port: &PortRecord| {
        let (listening, cause) = match &uplink {
            UplinkObserved::Serving { ports, .. } => {
                let same = |one: &PortRecord| {
                    let (one_spec, spec) = (one.spec, port.spec);
                    one.router_port == port.router_port
                        && one_spec.protocol == spec.protocol
                        && one_spec.host_port == spec.host_port
                        && one_spec.host_address == spec.host_address
                };
                match ports.iter().any(same) {
                    true => (true, String::new()),
                    false => {
                        (false, String::from("the uplink does not forward it; is the workload stopped?"))
                    }
                }
            }
            UplinkObserved::Absent => (false, String::from("the uplink does not run")),
            UplinkObserved::Broken(_, cause) => (false, cause.clone()),
        };
        PortState { spec: port.spec, listening, cause }
    };
    Ok(wanted.iter().map(state).collect())
}

fn failed(cause: impl Into<WorldError>) -> RequestError {
    RequestError::Failed(crate::error::OperationError {
        cause: Box::new(cause.into()),
        step: String::from("look at the uplink"),
        undo_failures: Vec::new(),
    })
}
