//! What a reference means: a name, an identity or the start of one.

use holdfast_core::{
    error::{Refusal, RefusalCode},
    record::{ContainerRecord, ImageRecord, NetworkRecord, Records, SandboxKind, SandboxRecord},
};

/// Picks the one of `all` that `reference` means. A name wins over an identity, a whole identity over the
/// start of one; two that start alike are refused.
fn pick<'a, T>(
    what: &str,
    reference: &str,
    all: impl Iterator<Item = &'a T> + Clone,
    named: impl Fn(&T, &str) -> bool,
    id: impl Fn(&T) -> &str,
) -> Result<&'a T, Refusal> {
    if let Some(found) = all.clone().find(|one| named(one, reference)) {
        return Ok(found);
    }
    if let Some(found) = all.clone().find(|one| id(one) == reference) {
        return Ok(found);
    }
    let mut starting = all.filter(|one| !reference.is_empty() && id(one).starts_with(reference));
    match (starting.next(), starting.next()) {
        (Some(found), None) => Ok(found),
        (Some(first), Some(second)) => Err(Refusal::new(
            RefusalCode::Invalid,
            format!("{what} {reference:?} could be {} or {}; give more of it", id(first), id(second)),
        )),
        (None, _) => Err(Refusal::new(RefusalCode::NotFound, format!("there is no {what} {reference:?}"))),
    }
}

/// A container.
pub fn container<'a>(records: &'a Records, reference: &str) -> Result<&'a ContainerRecord, Refusal> {
    pick("container", reference, records.containers.values(), |one, name| one.name == name, |one| one.id.as_str())
}

/// A pod; the sandbox of a single container is none.
pub fn pod<'a>(records: &'a Records, reference: &str) -> Result<&'a SandboxRecord, Refusal> {
    let pods = records.sandboxes.values().filter(|sandbox| sandbox.kind == SandboxKind::Pod);
    pick("pod", reference, pods, |one, name| one.name == name, |one| one.id.as_str())
}

/// A network.
pub fn network<'a>(records: &'a Records, reference: &str) -> Result<&'a NetworkRecord, Refusal> {
    pick("network", reference, records.networks.values(), |one, name| one.name == name, |one| one.id.as_str())
}

/// An image; `busybox` is `busybox:latest`, and an identity may begin with `sha256:`.
pub fn image<'a>(records: &'a Records, reference: &str) -> Result<&'a ImageRecord, Refusal> {
    let reference = reference.strip_prefix("sha256:").unwrap_or(reference);
    let named = |one: &ImageRecord, name: &str| {
        one.names.iter().any(|known| known == name || known.strip_suffix(":latest") == Some(name))
    };
    pick("image", reference, records.images.values(), named, |one| one.id.as_str())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use holdfast_core::{id::ImageId, time::Wall};

    fn records(images: &[(&str, &str)]) -> Records {
        let mut records = Records::default();
        for &(id, name) in images {
            let id = ImageId::from_raw(id);
            records.images.insert(
                id.clone(),
                ImageRecord {
                    id,
                    names: vec![name.to_owned()],
                    layers: Vec::new(),
                    entrypoint: Vec::new(),
                    command: Vec::new(),
                    env: Vec::new(),
                    working_dir: "/".to_owned(),
                    user: (0, 0),
                    size_bytes: 0,
                    loaded: Wall(0),
                },
            );
        }
        records
    }

    #[test]
    fn names_win_then_identities_then_their_unambiguous_starts() {
        let records = records(&[("abcd", "one:latest"), ("abff", "two:1"), ("ab", "three:latest"), ("ff00", "abcd:latest")]);
        let found = |reference: &str| image(&records, reference).map(|image| image.id.as_str().to_owned());
        assert_eq!(found("one").unwrap(), "abcd");
        assert_eq!(found("one:latest").unwrap(), "abcd");
        assert_eq!(found("abcd").unwrap(), "ff00", "a name wins");
        assert_eq!(found("sha256:abf").unwrap(), "abff");
        assert_eq!(found("ab").unwrap(), "ab", "a whole identity wins");
        assert_eq!(found("two").unwrap_err().code, RefusalCode::NotFound);
        assert_eq!(found("").unwrap_err().code, RefusalCode::NotFound);
        let ambiguous = found("a").unwrap_err();
        assert_eq!(ambiguous.code, RefusalCode::Invalid);
        assert!(ambiguous.detail.contains("could be"), "{ambiguous}");
    }
}
