//! Loading an archive.

use super::{
    LinuxImages, UNFINISHED,
    archive::{self, Found, LayerPlace},
    config::{ImageConfig, resolve_user, sha256_hex},
    unpack::Unpacked,
};
use crate::container::{Inside, fail, io_fail};
use holdfast_core::{
    error::{Class, ContainerError},
    id::{ImageId, ProcessRef},
};
use std::{
    ffi::OsString,
    fs::File,
    path::{Path, PathBuf},
    time::Duration,
};

/// How long a layer may take to unpack.
const UNPACK_DEADLINE: Duration = Duration::from_secs(1800);

/// What a loaded image is: all of its record but the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedImage {
    /// sha256 of the configuration; of the layer for a root file system, which has none.
    pub id: ImageId,
    /// References that name it.
    pub names: Vec<String>,
    /// Layer directories below the image store, lowest first.
    pub layers: Vec<String>,
    /// Default entry point.
    pub entrypoint: Vec<String>,
    /// Default command.
    pub command: Vec<String>,
    /// Default environment.
    pub env: Vec<(String, String)>,
    /// Default working directory.
    pub working_dir: String,
    /// Default numeric user and group.
    pub user: (u32, u32),
    /// Size of all layers, unpacked, in bytes.
    pub size_bytes: u64,
    /// What was left out, for people.
    pub warnings: Vec<String>,
}

impl LinuxImages {
    /// Loads an archive: what `docker save` writes, an OCI layout as tar, or a root file system as tar; each also
    /// gzipped. `name` is added to the names that the archive gives. Layers that are there already are not unpacked
    /// again; what was unpacked by a load that failed is removed.
    ///
    /// # Errors
    /// `Missing` and `Denied` for the file, `Corrupt` for an archive that is damaged, tries to escape or has other
    /// digests than it says, `Exhausted` for a full disk or an image beyond the limits.
    pub async fn load(
        &self,
        file: &Path,
        name: Option<&str>,
        pin: Option<&ProcessRef>,
    ) -> Result<LoadedImage, ContainerError> {
        let _lock = self.lock.lock().await;
        self.remove_unfinished(pin).await?;
        let (archive, found) = self.open(file).await?;
        if found.layers.len() > self.limits.layers_max {
            let cause =
                format!("it has {} layers, at most {} are taken", found.layers.len(), self.limits.layers_max);
            return Err(fail(Class::Exhausted, "load image", file.display().to_string(), cause));
        }
        let result = self.unpack_all(file, &archive, &found, pin).await;
        // After a success too: a layer that another name had already stays under its unfinished name.
        let removed = self.remove_unfinished(pin).await;
        match (result, removed) {
            (Ok(unpacked), Ok(())) => describe(self, file, name, found, unpacked),
            (Ok(_), Err(error)) | (Err(error), Ok(())) => Err(error),
            (Err(error), Err(undo)) => {
                Err(ContainerError { cause: format!("{}; and not cleaned up: {undo}", error.cause), ..error })
            }
        }
    }

    async fn open(&self, file: &Path) -> Result<(File, Found), ContainerError> {
        let (path, layers, bytes_max) = (file.to_owned(), self.paths.layers(), self.limits.layer_bytes_max);
        let looked = tokio::task::spawn_blocking(move || {
            std::fs::create_dir_all(&layers)?;
            let archive = archive::plain(File::open(path)?, &layers, bytes_max)?;
            let found = archive::look(&archive)?;
            Ok((archive, found))
        });
        let subject = || file.display().to_string();
        looked
            .await
            .map_err(|error| fail(Class::Fatal, "load image", subject(), error))?
            .map_err(|error| io_fail("load image", subject(), error))
    }

    async fn unpack_all(
        &self,
        file: &Path,
        archive: &File,
        found: &Found,
        pin: Option<&ProcessRef>,
    ) -> Result<Vec<(String, Unpacked)>, ContainerError> {
        let inside = Inside::of(pin)?;
        let mut done = Vec::with_capacity(found.layers.len());
        for (number, layer) in found.layers.iter().enumerate() {
            done.push(self.unpack_layer(file, archive, layer, number, &inside).await?);
        }
        Ok(done)
    }

    /// Unpacks one layer under a name that is no layer's, checks it, and renames it when all of it is on the disk.
    async fn unpack_layer(
        &self,
        file: &Path,
        archive: &File,
        layer: &LayerPlace,
        number: usize,
        inside: &Inside,
    ) -> Result<(String, Unpacked), ContainerError> {
        let subject = format!("{} (layer {number})", file.display());
        let io = |error| io_fail("unpack", &subject, error);
        if let Some(name) = &layer.diff_id
            && self.paths.layers().join(name).is_dir()
        {
            let size_bytes = std::fs::read_to_string(self.size_file(name))
                .ok()
                .and_then(|text| text.parse().ok())
                .unwrap_or(0);
            return Ok((name.clone(), Unpacked { diff_id: name.clone(), size_bytes, warnings: Vec::new() }));
        }
        let unfinished = self.paths.layers().join(format!("{UNFINISHED}{number}"));
        let mut arguments: Vec<OsString> = vec!["unpack".into(), unfinished.clone().into()];
        for value in [layer.offset, layer.length, self.limits.layer_bytes_max, self.limits.layer_entries_max]
        {
            arguments.push(value.to_string().into());
        }
        for digest in [&layer.blob_digest, &layer.diff_id] {
            arguments.push(digest.as_deref().unwrap_or("-").into());
        }
        let stdin = archive.try_clone().map_err(io)?.into();
        let output =
            inside.internal(&self.tools.exe, arguments, Some(stdin), &subject, UNPACK_DEADLINE).await?;
        let unpacked: Unpacked = serde_json::from_slice(&output).map_err(|error| {
            fail(Class::Corrupt, "unpack", &subject, format!("the unpacker's answer: {error}"))
        })?;
        let name = unpacked.diff_id.clone();
        let target = self.paths.layers().join(&name);
        if !target.is_dir() {
            std::fs::write(self.size_file(&name), unpacked.size_bytes.to_string())
                .and_then(|()| std::fs::rename(&unfinished, &target))
                .and_then(|()| File::open(self.paths.layers())?.sync_all())
                .map_err(io)?;
        }
        Ok((name, unpacked))
    }

    /// Keeps a layer's size, so that an image that shares it need not walk it.
    fn size_file(&self, layer: &str) -> PathBuf {
        self.paths.layers().join(format!("{layer}.size"))
    }
}

fn describe(
    images: &LinuxImages,
    file: &Path,
    name: Option<&str>,
    found: Found,
    unpacked: Vec<(String, Unpacked)>,
) -> Result<LoadedImage, ContainerError> {
    let layers: Vec<String> = unpacked.iter().map(|(layer, _)| layer.clone()).collect();
    let (id, config) =
        found.config.unwrap_or_else(|| (sha256_hex(layers.join(",").as_bytes()), ImageConfig::default()));
    let config = config.config.unwrap_or_default();
    let mut names = found.names;
    if let Some(name) = name
        && !names.iter().any(|known| known == name)
    {
        names.push(name.to_owned());
    }
    let directories: Vec<PathBuf> = layers.iter().map(|layer| images.paths.layers().join(layer)).collect();
    let user = resolve_user(config.user.as_deref().unwrap_or(""), &directories)
        .map_err(|error| io_fail("find the user of image", file.display().to_string(), error))?;
    let env = config.env.unwrap_or_default();
    let pair = |entry: &String| match entry.split_once('=') {
        Some((name, value)) => (name.to_owned(), value.to_owned()),
        None => (entry.clone(), String::new()),
    };
    Ok(LoadedImage {
        id: ImageId::from_raw(id),
        names,
        layers,
        entrypoint: config.entrypoint.unwrap_or_default(),
        command: config.cmd.unwrap_or_default(),
        env: env.iter().map(pair).collect(),
        working_dir: config.working_dir.filter(|path| !path.is_empty()).unwrap_or_else(|| "/".to_owned()),
        user,
        size_bytes: unpacked.iter().map(|(_, layer)| layer.size_bytes).sum(),
        warnings: unpacked.into_iter().flat_map(|(_, layer)| layer.warnings).collect(),
    })
}
