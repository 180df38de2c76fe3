//! What loading and removing an image does to the records.

use crate::{
    error::{Refusal, RefusalCode},
    id::ImageId,
    record::{Change, ImageRecord, Records},
    spec::RootSource,
};
use alloc::{collections::BTreeSet, format, string::String, vec, vec::Vec};

/// Records a loaded image. Its names are taken from images that had them, as a tag moves in every registry;
/// loaded again, an image keeps the names it had.
pub fn plan_load(records: &Records, mut image: ImageRecord) -> (Vec<Change>, ImageRecord) {
    let mut changes = Vec::new();
    for other in records.images.values() {
        if other.id == image.id {
            let kept =
                other.names.iter().filter(|name| !image.names.contains(name)).cloned().collect::<Vec<_>>();
            image.names.extend(kept);
        } else if other.names.iter().any(|name| image.names.contains(name)) {
            let mut other = other.clone();
            other.names.retain(|name| !image.names.contains(name));
            changes.push(Change::Image(other));
        }
    }
    changes.push(Change::Image(image.clone()));
    (changes, image)
}

/// Removes an image; gives the layers that no other image has, which are to be deleted after the commit.
///
/// # Errors
/// [`RefusalCode::NotFound`]; [`RefusalCode::InUse`] naming the containers made from it.
pub fn plan_remove(records: &Records, id: &ImageId) -> Result<(Vec<Change>, Vec<String>), Refusal> {
    let Some(image) = records.images.get(id) else {
        return Err(Refusal::new(RefusalCode::NotFound, format!("there is no image {id}")));
    };
    let users: Vec<&str> = records
        .containers
        .values()
        .filter(|container| matches!(&container.spec.root, RootSource::Image(used) if used == id))
        .map(|container| container.name.as_str())
        .collect();
    if !users.is_empty() {
        let detail = format!("image {id} is used by {}; remove these containers first", users.join(", "));
        return Err(Refusal::new(RefusalCode::InUse, detail));
    }
    let kept: BTreeSet<&String> =
        records.images.values().filter(|other| &other.id != id).flat_map(|other| &other.layers).collect();
    let layers = image.layers.iter().filter(|layer| !kept.contains(layer)).cloned().collect();
    Ok((vec![Change::RemoveImage(id.clone())], layers))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use crate::time::Wall;
    use alloc::borrow::ToOwned;

    fn image(id: &str, names: &[&str], layers: &[&str]) -> ImageRecord {
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        ImageRecord {
            id: ImageId::from_raw(id),
            names: owned(names),
            layers: owned(layers),
            entrypoint: Vec::new(),
            command: Vec::new(),
            env: Vec::new(),
            working_dir: "/".to_owned(),
            user: (0, 0),
            size_bytes: 1,
            loaded: Wall(1),
        }
    }

    fn load(records: &mut Records, one: ImageRecord) -> ImageRecord {
        let (changes, image) = plan_load(records, one);
        for change in changes {
            records.apply(change);
        }
        image
    }

    #[test]
    fn a_name_moves_to_the_image_loaded_last() {
        let mut records = Records::default();
        load(&mut records, image("a", &["x:latest", "x:1"], &["l1"]));
        load(&mut records, image("b", &["x:latest"], &["l1", "l2"]));
        assert_eq!(records.images[&ImageId::from_raw("a")].names, ["x:1"]);
        assert_eq!(records.images[&ImageId::from_raw("b")].names, ["x:latest"]);
        assert_eq!(
            load(&mut records, image("b", &["y:latest"], &["l1", "l2"])).names,
            ["y:latest", "x:latest"]
        );
    }

    #[test]
    fn shared_layers_stay() {
        let mut records = Records::default();
        load(&mut records, image("a", &["a"], &["l1"]));
        load(&mut records, image("b", &["b"], &["l1", "l2"]));
        let (changes, layers) = plan_remove(&records, &ImageId::from_raw("b")).expect("unused");
        assert_eq!(layers, ["l2"]);
        for change in changes {
            records.apply(change);
        }
        assert_eq!(plan_remove(&records, &ImageId::from_raw("a")).expect("unused").1, ["l1"]);
        assert_eq!(
            plan_remove(&records, &ImageId::from_raw("b")).expect_err("gone").code,
            RefusalCode::NotFound
        );
    }
}
