//! Images: archives are read on the host's side, layers are unpacked inside the user namespace, where the files get
//! the owners that the archive says.

mod archive;
mod config;
mod load;
pub(crate) mod unpack;

pub use load::LoadedImage;

use crate::{
    container::{Inside, Tools, fail, io_fail},
    paths::Paths,
};
use holdfast_core::{
    error::{Class, ContainerError},
    id::ProcessRef,
};
use std::{ffi::OsString, path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::Mutex;

/// How long the removal of layers may take.
const REMOVE_DEADLINE: Duration = Duration::from_secs(600);
/// Prefix of what is being unpacked; never a layer's name, which is hexadecimal.
const UNFINISHED: &str = ".unfinished-";

/// What an image may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// The most that one layer may unpack to, in bytes.
    pub layer_bytes_max: u64,
    /// The most files, directories and links of one layer.
    pub layer_entries_max: u64,
    /// The most layers.
    pub layers_max: usize,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self { layer_bytes_max: 64 << 30, layer_entries_max: 5_000_000, layers_max: 128 }
    }
}

/// The image store.
#[derive(Clone, Debug)]
pub struct LinuxImages {
    paths: Paths,
    tools: Tools,
    limits: ImageLimits,
    /// One change at a time: what is unfinished under this lock belongs to nobody who lives.
    lock: Arc<Mutex<()>>,
}

impl LinuxImages {
    /// The image store of the node with these paths.
    pub fn new(paths: Paths, tools: Tools, limits: ImageLimits) -> Self {
        Self { paths, tools, limits, lock: Arc::default() }
    }

    /// Removes layers that no image uses any more; the caller says which. Absent ones are a success.
    ///
    /// # Errors
    /// I/O errors; `Denied` for a name that is not a layer's.
    pub async fn remove_layers(
        &self,
        layers: &[String],
        pin: Option<&ProcessRef>,
    ) -> Result<(), ContainerError> {
        let _lock = self.lock.lock().await;
        let mut paths = Vec::with_capacity(layers.len());
        for layer in layers {
            if layer.len() != 64 || !layer.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(fail(Class::Denied, "remove layer", layer, "it is not the name of a layer"));
            }
            // Renamed first: a layer that is only half removed must not look like one.
            let (from, to) =
                (self.paths.layers().join(layer), self.paths.layers().join(format!("{UNFINISHED}{layer}")));
            // Only a hint of the size; a missing one is read as unknown.
            let _ = std::fs::remove_file(self.paths.layers().join(format!("{layer}.size")));
            match std::fs::rename(&from, &to) {
                Ok(()) => paths.push(to),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(io_fail("remove layer", layer, error)),
            }
        }
        self.remove_trees(paths, pin).await
    }

    /// Removes what an interrupted load or removal left. Called with the lock held.
    async fn remove_unfinished(&self, pin: Option<&ProcessRef>) -> Result<(), ContainerError> {
        let entries = match std::fs::read_dir(self.paths.layers()) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(io_fail("list", "the layers", error)),
        };
        let unfinished = entries
            .filter_map(Result::ok)
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(UNFINISHED))
            .map(|entry| entry.path())
            .collect();
        self.remove_trees(unfinished, pin).await
    }

    async fn remove_trees(
        &self,
        trees: Vec<PathBuf>,
        pin: Option<&ProcessRef>,
    ) -> Result<(), ContainerError> {
        if trees.is_empty() {
            return Ok(());
        }
        let inside = Inside::of(pin)?;
        let arguments =
            std::iter::once(OsString::from("remove")).chain(trees.into_iter().map(OsString::from));
        inside.internal(&self.tools.exe, arguments, None, "layers", REMOVE_DEADLINE).await.map(|_| ())
    }
}
