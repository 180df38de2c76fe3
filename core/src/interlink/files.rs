//! Volumes out of a pod's spec and the objects that came with it: exact bytes, exact modes, no path that leaves.

use super::{
    bytes::Bytes,
    kube::{ConfigMap, ContainerData, Item, ObjectVolume, PodData, Projected, Secret, Volume},
    record::{HostPathKind, VolumeFile, VolumeSource, VolumeWanted},
};
use alloc::{collections::BTreeMap, format, string::String, vec::Vec};

/// Mode of a file whose volume names none: v1.ConfigMapVolumeSource `defaultMode`.
const MODE_DEFAULT: u32 = 0o644;
/// The largest sum of all files of a pod, in bytes. etcd keeps no object above 1.5 MiB; a pod has several.
pub const FILES_BYTES_MAX: usize = 16 << 20;

/// Everything that came with a pod, by name. Which container it came with says nothing: volumes are the pod's.
pub(super) struct Objects<'a> {
    config_maps: BTreeMap<&'a str, &'a ConfigMap>,
    projected: BTreeMap<&'a str, &'a ConfigMap>,
    secrets: BTreeMap<&'a str, &'a Secret>,
}

impl<'a> Objects<'a> {
    pub(super) fn of(data: &'a PodData) -> Self {
        let named = |list: fn(&'a ContainerData) -> &'a Vec<ConfigMap>| {
            data.containers.iter().flat_map(list).map(|one| (one.metadata.name.as_str(), one)).collect()
        };
        Self {
            config_maps: named(|container| &container.config_maps),
            projected: named(|container| &container.projected),
            secrets: data
                .containers
                .iter()
                .flat_map(|container| &container.secrets)
                .map(|one| (one.metadata.name.as_str(), one))
                .collect(),
        }
    }

    /// The keys of a ConfigMap with their bytes.
    pub(super) fn config_map(&self, name: &str) -> Option<BTreeMap<String, Vec<u8>>> {
        self.config_maps.get(name).copied().map(of_config_map)
    }

    /// The keys of a Secret with their bytes.
    pub(super) fn secret(&self, name: &str) -> Option<BTreeMap<String, Vec<u8>>> {
        let secret = self.secrets.get(name)?;
        let mut keys: BTreeMap<String, Vec<u8>> =
            secret.data.iter().map(|(key, bytes)| (key.clone(), bytes.0.clone())).collect();
        let text = secret.string_data.iter().map(|(key, text)| (key.clone(), text.clone().into_bytes()));
        keys.extend(text);
        Some(keys)
    }
}

fn of_config_map(map: &ConfigMap) -> BTreeMap<String, Vec<u8>> {
    let text = map.data.iter().map(|(key, text)| (key.clone(), text.clone().into_bytes()));
    text.chain(map.binary_data.iter().map(|(key, bytes)| (key.clone(), bytes.0.clone()))).collect()
}

/// Every volume of a pod.
pub(super) fn volumes(
    data: &PodData,
    objects: &Objects<'_>,
    faults: &mut Vec<String>,
    notes: &mut Vec<String>,
) -> Vec<VolumeWanted> {
    let mut wanted: Vec<VolumeWanted> = Vec::new();
    let mut bytes = 0_usize;
    for volume in &data.pod.spec.volumes {
        let at = format!("spec.volumes[{}]", volume.name);
        if volume.name.is_empty()
            || !volume.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        {
            faults.push(format!("{at}: {:?} is no name of a volume", volume.name));
            continue;
        }
        if wanted.iter().any(|other| other.name == volume.name) {
            faults.push(format!("{at}: two volumes have this name"));
            continue;
        }
        match source(volume, objects, notes) {
            Ok(source) => {
                if let VolumeSource::Files(files) = &source {
                    bytes += files.iter().map(|file| file.content.0.len()).sum::<usize>();
                }
                wanted.push(VolumeWanted { name: volume.name.clone(), source });
            }
            Err(fault) => faults.push(format!("{at}{fault}")),
        }
    }
    if bytes > FILES_BYTES_MAX {
        faults.push(format!("the files of its volumes have {bytes} bytes, more than {FILES_BYTES_MAX}"));
    }
    wanted
}

fn source(volume: &Volume, objects: &Objects<'_>, notes: &mut Vec<String>) -> Result<VolumeSource, String> {
    if let Some(empty) = &volume.empty_dir {
        if !empty.medium.is_empty() {
            notes.push(format!("volume {}: medium {} is not had; it is on disk", volume.name, empty.medium));
        }
        if !empty.size_limit.is_null() {
            notes.push(format!("volume {}: sizeLimit is not enforced", volume.name));
        }
        return Ok(VolumeSource::Empty);
    }
    if let Some(host) = &volume.host_path {
        if !host.path.starts_with('/')
            || host.path.contains('\0')
            || host.path.split('/').any(|part| part == "..")
        {
            return Err(format!(".hostPath.path: {:?} is no absolute path without `..`", host.path));
        }
        let kind = host_path_kind(&host.kind)
            .ok_or_else(|| format!(".hostPath.type: {:?} is not known", host.kind))?;
        return Ok(VolumeSource::Host { path: host.path.clone(), kind });
    }
    if let Some(object) = &volume.config_map {
        return object_files(".configMap", &object.name, object, objects.config_map(&object.name));
    }
    if let Some(object) = &volume.secret {
        let name = if object.secret_name.is_empty() { &object.name } else { &object.secret_name };
        return object_files(".secret", name, object, objects.secret(name));
    }
    if let Some(projected) = volume.projected.as_ref().or(volume.downward.as_ref()) {
        return projected_files(volume, projected, objects, notes);
    }
    match volume.rest.keys().next() {
        Some(kind) => Err(format!(".{kind}: this kind of volume is not supported")),
        // Kubernetes: a volume that names no source is an emptyDir.
        None => Ok(VolumeSource::Empty),
    }
}

fn host_path_kind(kind: &str) -> Option<HostPathKind> {
    Some(match kind {
        "" => HostPathKind::Any,
        "Directory" => HostPathKind::Directory,
        "DirectoryOrCreate" => HostPathKind::DirectoryOrCreate,
        "File" => HostPathKind::File,
        "FileOrCreate" => HostPathKind::FileOrCreate,
        "Socket" => HostPathKind::Socket,
        "CharDevice" => HostPathKind::CharDevice,
        "BlockDevice" => HostPathKind::BlockDevice,
        _ => return None,
    })
}

fn object_files(
    kind: &str,
    name: &str,
    volume: &ObjectVolume,
    keys: Option<BTreeMap<String, Vec<u8>>>,
) -> Result<VolumeSource, String> {
    let optional = volume.optional.unwrap_or(false);
    let Some(keys) = keys else {
        return if optional {
            Ok(VolumeSource::Files(Vec::new()))
        } else {
            Err(format!("{kind}: {name:?} did not come with the pod, and it is not optional"))
        };
    };
    let default = volume.default_mode.unwrap_or(MODE_DEFAULT);
    let mut files = Vec::new();
    if volume.items.is_empty() {
        for (key, content) in keys {
            files.push(file(kind, &key, default, content)?);
        }
        return Ok(VolumeSource::Files(files));
    }
    for Item { key, path, mode, .. } in &volume.items {
        match keys.get(key) {
            Some(content) => files.push(file(kind, path, mode.unwrap_or(default), content.clone())?),
            None if optional => {}
            None => return Err(format!("{kind}.items: {name} has no key {key:?}")),
        }
    }
    Ok(VolumeSource::Files(files))
}

fn projected_files(
    volume: &Volume,
    projected: &Projected,
    objects: &Objects<'_>,
    notes: &mut Vec<String>,
) -> Result<VolumeSource, String> {
    let name = volume.name.as_str();
    let map = objects.projected.get(name).or_else(|| objects.config_maps.get(name));
    let Some(map) = map else {
        // The token every pod has unless it says otherwise; the virtual kubelet can be told not to send it.
        if name.starts_with("kube-api-access-") {
            notes.push(format!("volume {name} did not come with the pod: it is empty"));
            return Ok(VolumeSource::Files(Vec::new()));
        }
        return Err(String::from(
            ": its files did not come with the pod (they come as a ConfigMap named after the volume)",
        ));
    };
    let mode = projected.default_mode.unwrap_or(MODE_DEFAULT);
    let files = of_config_map(map).into_iter().map(|(key, content)| file(".projected", &key, mode, content));
    files.collect::<Result<_, _>>().map(VolumeSource::Files)
}

fn file(kind: &str, path: &str, mode: u32, content: Vec<u8>) -> Result<VolumeFile, String> {
    if !is_relative(path) {
        return Err(format!("{kind}: {path:?} is no relative path without `..`"));
    }
    if mode > 0o777 {
        return Err(format!("{kind}: mode {mode:o} of {path} has bits besides rwxrwxrwx"));
    }
    Ok(VolumeFile { path: String::from(path), mode, content: Bytes(content) })
}

/// Whether a path stays below where it is put: no `..`, no empty part, not absolute.
pub(super) fn is_relative(path: &str) -> bool {
    !path.contains('\0') && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}
