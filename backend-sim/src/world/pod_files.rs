//! Files of offloaded pods.

use super::{SimWorld, at_once};
use holdfast_core::{
    error::{Class, VolumeError},
    id::ContainerId,
    interlink::{
        next::PodPlace,
        record::{HostPathKind, VolumeSource, VolumeWanted},
    },
    world::PodFiles,
};

/// A host path that is not there.
const MISSING: &str = "/missing";

impl PodFiles for SimWorld {
    fn pod_place(&self, jid: &str) -> PodPlace {
        PodPlace { volumes: format!("/pods/{jid}/volumes") }
    }

    async fn write_volumes(&self, jid: &str, volumes: &[VolumeWanted]) -> Result<(), VolumeError> {
        self.step("pods.write_volumes", jid.to_owned(), at_once, |node| {
            let files = node.disk.pods.entry(jid.to_owned()).or_default();
            for volume in volumes {
                match &volume.source {
                    VolumeSource::Host { path, kind: HostPathKind::Directory } if path == MISSING => {
                        return Err((Class::Missing, format!("{path} does not exist")));
                    }
                    _ => drop(files.volumes.insert(volume.name.clone())),
                }
            }
            Ok(())
        })
        .await
    }

    async fn keep_logs(&self, jid: &str, logs: &[(ContainerId, String)]) -> Result<(), VolumeError> {
        self.step("pods.keep_logs", jid.to_owned(), at_once, |node| {
            let kept: Vec<String> = logs
                .iter()
                .filter(|(id, _)| node.disk.containers.contains_key(id))
                .map(|(_, name)| name.clone())
                .collect();
            node.disk.pods.entry(jid.to_owned()).or_default().logs.extend(kept);
            Ok(())
        })
        .await
    }

    async fn remove_volumes(&self, jid: &str) -> Result<(), VolumeError> {
        self.step("pods.remove_volumes", jid.to_owned(), at_once, |node| {
            if let Some(files) = node.disk.pods.get_mut(jid) {
                files.volumes.clear();
                if files.logs.is_empty() {
                    node.disk.pods.remove(jid);
                }
            }
            Ok(())
        })
        .await
    }

    async fn remove_pod_files(&self, jid: &str) -> Result<(), VolumeError> {
        self.step("pods.remove_pod_files", jid.to_owned(), at_once, |node| {
            node.disk.pods.remove(jid);
            Ok(())
        })
        .await
    }
}
