//! Bytes in JSON: base64, as Kubernetes writes them. RFC 4648, section 4.

use alloc::{string::String, vec::Vec};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// Bytes that are base64 in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // Line feeds occur in hand-written manifests.
        let joined: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        STANDARD.decode(joined).map(Self).map_err(D::Error::custom)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_base64_and_exact() {
        let all: Vec<u8> = (0..=255).collect();
        let text = serde_json::to_string(&Bytes(all.clone())).unwrap();
        assert_eq!(serde_json::from_str::<Bytes>(&text).unwrap().0, all);
        assert_eq!(serde_json::from_str::<Bytes>("\"YQ==\\n\"").unwrap().0, b"a");
        assert!(serde_json::from_str::<Bytes>("\"?\"").is_err());
    }
}
