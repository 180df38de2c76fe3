//! slirp4netns: the way out of the node, and the ports into it.

mod api;
mod port;
mod start;

pub use api::{Api, ApiError, Forward};

use crate::{
    keeper::{
        HeldNamespaces,
        namespace::{namespace_id, tap_network_namespace},
    },
    paths::Paths,
    process::is_alive,
};
use holdfast_core::{
    error::{Class, UplinkError},
    id::ProcessRef,
    observed::{HostObserved, UplinkObserved},
    record::{NamespaceId, PortRecord},
    spec::PortSpec,
    world::Uplink,
};
use std::{collections::BTreeSet, net::Ipv4Addr, path::PathBuf, sync::Arc, time::Duration};

/// The tap in the router.
pub const TAP_NAME: &str = "hftap0";
/// The router's address on the tap; slirp4netns(1), `--configure`.
pub const GUEST_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 100);
/// MTU of the tap in bytes: slirp4netns(1) recommends it, packets never leave the machine as they are.
pub const MTU_BYTES: u32 = 65520;

/// How long a port may take until the kernel shows it.
const PUBLISH_DEADLINE: Duration = Duration::from_secs(2);
const PUBLISH_POLL: Duration = Duration::from_millis(2);

/// What the helper is started with.
#[derive(Clone, Debug)]
pub struct UplinkConfig {
    /// The program.
    pub program: PathBuf,
}

impl Default for UplinkConfig {
    fn default() -> Self {
        Self { program: PathBuf::from("slirp4netns") }
    }
}

/// Core's `Uplink` with slirp4netns.
///
/// The helper knows nothing of a sandbox's port: `target_port` is 0 in every port that an observation holds, and
/// ports are compared by host address, host port, protocol and router port.
#[derive(Debug)]
pub struct LinuxUplink {
    paths: Paths,
    config: UplinkConfig,
    held: Arc<HeldNamespaces>,
    api: Api,
}

impl LinuxUplink {
    /// `held` is shared with [`crate::keeper::LinuxKeepers`], which tells it the recorded router: an observation
    /// of the keepers comes before one of the uplink.
    pub fn new(paths: Paths, config: UplinkConfig, held: Arc<HeldNamespaces>) -> Self {
        let api = Api::new(paths.uplink_socket());
        Self { paths, config, held, api }
    }

    async fn find(&self, port: &PortRecord) -> Result<Option<Forward>, ApiError> {
        let (entries, _) = self.api.list().await?;
        Ok(entries.into_iter().find(|entry| same_host_port(entry, &port.spec)))
    }

    async fn await_bound(&self, port: &PortRecord) -> Result<(), UplinkError> {
        let fail = |cause: String| UplinkError::new(Class::Unknown, "publish", port.spec.to_string(), cause);
        let bound = async {
            while !port::is_bound(&port.spec) {
                tokio::time::sleep(PUBLISH_POLL).await;
            }
        };
        tokio::time::timeout(PUBLISH_DEADLINE, bound)
            .await
            .map_err(|_| fail("the helper lists the port, and nothing listens on it".to_owned()))
    }
}

/// Whether the helper's entry is of this port of the host.
fn same_host_port(entry: &Forward, spec: &PortSpec) -> bool {
    entry.host_addr == spec.host_address && entry.host_port == spec.host_port && entry.proto == spec.protocol
}

fn leads_to_router(entry: &Forward, port: &PortRecord) -> bool {
    entry.guest_addr == GUEST_ADDRESS && entry.guest_port == port.router_port
}

fn observed_ports(entries: Vec<Forward>) -> BTreeSet<PortRecord> {
    let ours = entries.into_iter().filter(|entry| entry.guest_addr == GUEST_ADDRESS);
    ours.map(|entry| PortRecord {
        spec: PortSpec {
            host_address: entry.host_addr,
            host_port: entry.host_port,
            target_port: 0,
            protocol: entry.proto,
        },
        router_port: entry.guest_port,
    })
    .collect()
}

/// Why the helper does not serve the router; `None` when it does, or when the kernel does not let anybody tell.
fn serves_another(process: &ProcessRef, router: Option<NamespaceId>) -> Option<String> {
    let Some(router) = router else { return Some("no router is recorded".to_owned()) };
    match tap_network_namespace(process) {
        Ok(None) => Some("it has no tap".to_owned()),
        Ok(Some(netns)) => match namespace_id(&netns) {
            Ok(id) if id == router => None,
            Ok(id) => Some(format!("its tap is in router {}, recorded is {}", id.0, router.0)),
            Err(error) => Some(format!("its tap cannot be examined: {error}")),
        },
        Err(error) => {
            tracing::warn!(%process, %error, "which router the uplink helper serves cannot be verified");
            None
        }
    }
}

fn api_error(action: &str, subject: String, error: &ApiError) -> UplinkError {
    let class = match error {
        ApiError::Refused(_) => Class::Conflict,
        // Nothing listens: the helper is started by the next bring-up.
        error if error.had_no_effect() => Class::Transient,
        ApiError::Malformed(_) => Class::Corrupt,
        _ => Class::Unknown,
    };
    UplinkError::new(class, action, subject, format!("slirp4netns: {error}"))
}

impl Uplink for LinuxUplink {
    async fn observe_uplink(&self, hint: Option<&ProcessRef>) -> Result<UplinkObserved, UplinkError> {
        start::bound_log(&self.paths);
        let living = hint.filter(|process| is_alive(process));
        let (entries, answered) = match (self.api.list().await, living) {
            (Ok(answer), _) => answer,
            (Err(error), Some(process)) => {
                return Ok(UplinkObserved::Broken(process.clone(), format!("its API: {error}")));
            }
            (Err(ApiError::Io(_)), None) => return Ok(UplinkObserved::Absent),
            (Err(error), None) => {
                tracing::warn!(socket = %self.api.socket().display(), %error, "no recorded helper, and its socket does not work");
                return Ok(UplinkObserved::Absent);
            }
        };
        // One that answers and is not recorded was started by a daemon that died before it could say so.
        let process = match (answered, living) {
            (Some(process), _) => process,
            (None, Some(process)) => process.clone(),
            (None, None) => return Ok(UplinkObserved::Absent),
        };
        if living.is_some_and(|living| *living != process) {
            let cause = format!("{process} answers on its socket");
            return Ok(UplinkObserved::Broken(living.cloned().unwrap_or(process), cause));
        }
        let router = self.held.recorded().map(|namespaces| namespaces.net);
        Ok(match serves_another(&process, router) {
            Some(cause) => UplinkObserved::Broken(process, cause),
            None => UplinkObserved::Serving { process, ports: observed_ports(entries) },
        })
    }

    async fn observe_host(&self) -> Result<HostObserved, UplinkError> {
        let fail = |class, cause: String| UplinkError::new(class, "look at", "the host", cause);
        match tokio::task::spawn_blocking(crate::net::host::observe).await {
            Ok(Ok(host)) => Ok(host),
            Ok(Err(error)) => Err(fail(error.class, error.to_string())),
            Err(error) => Err(fail(Class::Fatal, error.to_string())),
        }
    }

    async fn start_uplink(&self, pin: &ProcessRef) -> Result<ProcessRef, UplinkError> {
        start::start(&self.paths, &self.config, &self.api, pin).await
    }

    async fn publish(&self, port: &PortRecord) -> Result<(), UplinkError> {
        let subject = || port.spec.to_string();
        let list_error = |error: ApiError| api_error("publish", subject(), &error);
        match self.find(port).await.map_err(list_error)? {
            Some(entry) if leads_to_router(&entry, port) => return self.await_bound(port).await,
            Some(entry) => {
                // Ours, from a router port that is used no more: the helper cannot change it.
                self.api.remove(entry.id).await.map_err(list_error)?;
            }
            None => {}
        }
        port::check_free(&port.spec)?;
        let host = (port.spec.host_address, port.spec.host_port);
        if let Err(error) = self.api.add(port.spec.protocol, host, (GUEST_ADDRESS, port.router_port)).await {
            // The reason that the helper does not give, if it can be found.
            if matches!(error, ApiError::Refused(_)) {
                port::check_free(&port.spec)?;
            }
            return Err(list_error(error));
        }
        match self.find(port).await.map_err(list_error)? {
            Some(entry) if leads_to_router(&entry, port) => self.await_bound(port).await,
            _ => Err(UplinkError::new(
                Class::Unknown,
                "publish",
                subject(),
                "the helper took the port and does not list it",
            )),
        }
    }

    async fn unpublish(&self, port: &PortRecord) -> Result<(), UplinkError> {
        let subject = || port.spec.to_string();
        let found = match self.find(port).await {
            // No helper, no port.
            Err(ApiError::Io(error))
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused
                ) =>
            {
                return Ok(());
            }
            other => other.map_err(|error| api_error("unpublish", subject(), &error))?,
        };
        let Some(entry) = found else { return Ok(()) };
        if !leads_to_router(&entry, port) {
            // Another record's by now.
            return Ok(());
        }
        self.api.remove(entry.id).await.map_err(|error| api_error("unpublish", subject(), &error))?;
        match self.find(port).await.map_err(|error| api_error("unpublish", subject(), &error))? {
            None => Ok(()),
            Some(_) => {
                Err(UplinkError::new(Class::Unknown, "unpublish", subject(), "the helper lists it still"))
            }
        }
    }
}
