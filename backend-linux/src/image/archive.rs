//! What an archive is, and where its layers are in it.

use super::config::{ImageConfig, sha256_hex};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
};

/// The largest description (manifest, configuration) in an archive.
const DESCRIPTION_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// The most files of an archive that is not a root file system itself.
const ARCHIVE_ENTRIES_MAX: usize = 10_000;
/// gzip's magic number: RFC 1952.
pub(super) const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A layer's place in the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LayerPlace {
    /// Where its bytes begin.
    pub(super) offset: u64,
    /// How many.
    pub(super) length: u64,
    /// sha256 of exactly these bytes, where the format tells it.
    pub(super) blob_digest: Option<String>,
    /// sha256 of the uncompressed layer, where the format tells it.
    pub(super) diff_id: Option<String>,
}

/// What was found in an archive.
#[derive(Debug)]
pub(super) struct Found {
    /// Names such as `busybox:latest`.
    pub(super) names: Vec<String>,
    /// Identity (sha256 of the configuration) and configuration; `None` for a root file system.
    pub(super) config: Option<(String, ImageConfig)>,
    /// Lowest first.
    pub(super) layers: Vec<LayerPlace>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerManifest {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    digest: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct OciIndex {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct OciManifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

fn corrupt(cause: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, cause.to_string())
}

/// Decompresses a gzipped archive into a nameless file in `directory`, so that it can be read at any offset; a plain
/// one is returned as it is.
pub(super) fn plain(mut file: File, directory: &std::path::Path, bytes_max: u64) -> io::Result<File> {
    let mut magic = [0; 2];
    let read = file.read_at(&mut magic, 0)?;
    if read < 2 || magic != GZIP_MAGIC {
        return Ok(file);
    }
    use std::os::unix::fs::OpenOptionsExt;
    let mut to =
        File::options().read(true).write(true).custom_flags(libc::O_TMPFILE).mode(0o600).open(directory)?;
    file.seek(SeekFrom::Start(0))?;
    let mut from = flate2::read::MultiGzDecoder::new(io::BufReader::new(file)).take(bytes_max + 1);
    if io::copy(&mut from, &mut to)? > bytes_max {
        return Err(io::Error::new(
            io::ErrorKind::QuotaExceeded,
            format!("it unpacks to more than {bytes_max} bytes"),
        ));
    }
    to.flush()?;
    Ok(to)
}

/// Looks into an uncompressed archive.
pub(super) fn look(file: &File) -> io::Result<Found> {
    let index = Index::read(file)?;
    if index.files.contains_key("manifest.json") {
        docker(&index)
    } else if index.files.contains_key("index.json") && index.files.contains_key("oci-layout") {
        oci(&index)
    } else {
        let length = file.metadata()?.len();
        Ok(Found {
            names: Vec::new(),
            config: None,
            layers: vec![LayerPlace { offset: 0, length, blob_digest: None, diff_id: None }],
        })
    }
}

/// Names and places of the files of an archive.
struct Index<'a> {
    file: &'a File,
    files: BTreeMap<String, (u64, u64)>,
    links: BTreeMap<String, String>,
}

impl<'a> Index<'a> {
    fn read(file: &'a File) -> io::Result<Self> {
        let mut index = Self { file, files: BTreeMap::new(), links: BTreeMap::new() };
        let mut reader = file;
        reader.seek(SeekFrom::Start(0))?;
        let mut archive = tar::Archive::new(reader);
        for (number, entry) in archive.entries_with_seek()?.enumerate() {
            let entry = entry.map_err(|error| corrupt(format!("it is no tar archive: {error}")))?;
            if number >= ARCHIVE_ENTRIES_MAX {
                // Only a root file system has so many, and then no description was needed.
                break;
            }
            let name = clean(&entry.path()?.to_string_lossy());
            if entry.header().entry_type().is_file() {
                index.files.insert(name, (entry.raw_file_position(), entry.size()));
            } else if let Some(target) = entry.link_name()? {
                let target = target.to_string_lossy().into_owned();
                index.links.insert(name, target);
            }
        }
        Ok(index)
    }

    /// A file by name; docker writes a layer that two images share once, and links to it.
    fn place(&self, name: &str) -> io::Result<(u64, u64)> {
        let name = clean(name);
        if let Some(place) = self.files.get(&name) {
            return Ok(*place);
        }
        let target =
            self.links.get(&name).ok_or_else(|| corrupt(format!("{name} is missing in the archive")))?;
        let base = name.rsplit_once('/').map_or("", |(base, _)| base);
        [clean(&format!("{base}/{target}")), clean(target)]
            .iter()
            .find_map(|name| self.files.get(name))
            .copied()
            .ok_or_else(|| corrupt(format!("{name} links to {target}, which is missing in the archive")))
    }

    fn bytes(&self, name: &str) -> io::Result<Vec<u8>> {
        let (offset, length) = self.place(name)?;
        if length > DESCRIPTION_BYTES_MAX {
            return Err(corrupt(format!(
                "{name} has {length} bytes, at most {DESCRIPTION_BYTES_MAX} are read"
            )));
        }
        let mut bytes = vec![0; usize::try_from(length).map_err(corrupt)?];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn parsed<T: serde::de::DeserializeOwned>(&self, name: &str) -> io::Result<T> {
        serde_json::from_slice(&self.bytes(name)?)
            .map_err(|error| corrupt(format!("{name} cannot be understood: {error}")))
    }

    fn config(&self, name: &str, digest: Option<&str>) -> io::Result<(String, ImageConfig)> {
        let bytes = self.bytes(name)?;
        let id = sha256_hex(&bytes);
        if let Some(digest) = digest.filter(|digest| *digest != id) {
            return Err(corrupt(format!("the configuration {name} has the digest {id}, not {digest}")));
        }
        let config = serde_json::from_slice(&bytes)
            .map_err(|error| corrupt(format!("{name} cannot be understood: {error}")))?;
        Ok((id, config))
    }
}

/// A path without `.` and empty components; `..` takes one off, as far as there is one.
fn clean(path: &str) -> String {
    let mut pieces: Vec<&str> = Vec::new();
    for piece in path.split('/') {
        match piece {
            "" | "." => {}
            ".." => drop(pieces.pop()),
            piece => pieces.push(piece),
        }
    }
    pieces.join("/")
}

/// A name that is itself a sha256, as `<hex>.json`, `blobs/sha256/<hex>` or `sha256:<hex>`.
fn digest_in(name: &str) -> Option<&str> {
    let last = name.rsplit(['/', ':']).next()?;
    let last = last.strip_suffix(".json").unwrap_or(last);
    (last.len() == 64 && last.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(last)
}

/// `docker save`: <https://github.com/moby/docker-image-spec/blob/main/spec.md>, "Combined Image JSON + Filesystem".
fn docker(index: &Index<'_>) -> io::Result<Found> {
    let mut manifests: Vec<DockerManifest> = index.parsed("manifest.json")?;
    if manifests.len() != 1 {
        return Err(corrupt(format!("it holds {} images: save one image per file", manifests.len())));
    }
    let Some(manifest) = manifests.pop() else { return Err(corrupt("it holds no image")) };
    let config = index.config(&manifest.config, digest_in(&manifest.config))?;
    let layers = manifest
        .layers
        .iter()
        // A layer is addressed by its content only as a blob; `<id>/layer.tar` is no digest.
        .map(|name| (name.as_str(), name.contains("blobs/").then(|| digest_in(name)).flatten()));
    Ok(Found {
        names: manifest.repo_tags.unwrap_or_default(),
        layers: places(index, layers, &config.1)?,
        config: Some(config),
    })
}

/// An OCI image layout: <https://github.com/opencontainers/image-spec/blob/main/image-layout.md>.
fn oci(index: &Index<'_>) -> io::Result<Found> {
    let blob = |digest: &str| -> io::Result<String> {
        let hex = digest.strip_prefix("sha256:").filter(|hex| digest_in(hex).is_some());
        hex.map(|hex| format!("blobs/sha256/{hex}"))
            .ok_or_else(|| corrupt(format!("the digest {digest} is no sha256")))
    };
    let mut list: OciIndex = index.parsed("index.json")?;
    if list.manifests.len() != 1 {
        return Err(corrupt(format!("it holds {} images: save one image per file", list.manifests.len())));
    }
    let Some(entry) = list.manifests.pop() else { return Err(corrupt("it holds no image")) };
    let name = blob(&entry.digest)?;
    let bytes = index.bytes(&name)?;
    if Some(sha256_hex(&bytes).as_str()) != digest_in(&name) {
        return Err(corrupt(format!("the manifest has another digest than {}", entry.digest)));
    }
    let manifest: OciManifest = serde_json::from_slice(&bytes)
        .map_err(|error| corrupt(format!("the manifest cannot be understood: {error}")))?;
    let config_name = blob(&manifest.config.digest)?;
    let config = index.config(&config_name, digest_in(&config_name))?;
    let blobs = manifest.layers.iter().map(|layer| blob(&layer.digest)).collect::<io::Result<Vec<_>>>()?;
    let layers = places(index, blobs.iter().map(|name| (name.as_str(), digest_in(name))), &config.1)?;
    let reference = entry.annotations.get("org.opencontainers.image.ref.name").cloned();
    Ok(Found { names: reference.into_iter().collect(), layers, config: Some(config) })
}

fn places<'n>(
    index: &Index<'_>,
    layers: impl Iterator<Item = (&'n str, Option<&'n str>)>,
    config: &ImageConfig,
) -> io::Result<Vec<LayerPlace>> {
    let mut places = Vec::new();
    for (name, digest) in layers {
        let (offset, length) = index.place(name)?;
        places.push(LayerPlace { offset, length, blob_digest: digest.map(str::to_owned), diff_id: None });
    }
    let diff_ids = &config.rootfs.diff_ids;
    if diff_ids.len() != places.len() {
        return Err(corrupt(format!(
            "{} layers, but the configuration knows {}",
            places.len(),
            diff_ids.len()
        )));
    }
    for (place, diff_id) in places.iter_mut().zip(diff_ids) {
        let hex = diff_id.strip_prefix("sha256:").filter(|hex| digest_in(hex).is_some());
        place.diff_id =
            Some(hex.ok_or_else(|| corrupt(format!("the digest {diff_id} is no sha256")))?.to_owned());
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::{clean, digest_in};

    #[test]
    fn names_are_cleaned_and_digests_found() {
        assert_eq!(clean("./a//b/../c"), "a/c");
        assert_eq!(clean("../../etc/passwd"), "etc/passwd");
        let hex = "a".repeat(64);
        for name in
            [format!("{hex}.json"), format!("blobs/sha256/{hex}"), format!("sha256:{hex}"), hex.clone()]
        {
            assert_eq!(digest_in(&name), Some(hex.as_str()));
        }
        assert_eq!(digest_in("layer.tar"), None);
    }
}
