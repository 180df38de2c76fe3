//! Profiles: what seeds are drawn from, and what a run of them must reach, as files. Unknown fields, kinds and
//! marks are refused.

use crate::{
    generate::{self, ActionKind},
    marks,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::Path};

/// What seeds are drawn from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// What it is about, in a sentence.
    pub what: String,
    /// Weight of each kind of fault, by name ([`generate::FAULTS`]); a kind that is not named never strikes.
    pub faults: BTreeMap<String, u32>,
    /// Percent of the kinds that each seed does without: some faults are only found where others are absent
    /// (swarm testing; Groce et al. 2012).
    pub kinds_off_percent: u32,
    /// The fewest and the most faults of a seed.
    pub faults_count: (u32, u32),
    /// Faults that strike at a call strike among this many calls of the lanes.
    pub faults_within_calls: u32,
    /// Weight of each action.
    pub actions: BTreeMap<ActionKind, u32>,
    /// The fewest and the most actions of a lane.
    pub actions_count: (u32, u32),
    /// The fewest and the most lanes.
    pub lanes_count: (u32, u32),
    /// The most that a call takes when nothing delays it, in microseconds: drawn per seed between these.
    pub latency_max_us: (u64, u64),
    /// Percent of seeds in which the lanes go on with the next daemon after a kill, and ask again what got no
    /// answer.
    pub resume_percent: u32,
    /// Percent of seeds in which the service manager keeps the daemon's descriptors.
    pub fd_store_percent: u32,
    /// Percent of containers that ignore their stop signal.
    pub stubborn_percent: u32,
    /// Marks that a run of [`REACH_SEEDS`] seeds must reach, besides a strike of every kind of fault above.
    pub must_reach: Vec<String>,
}

/// From this many seeds on, a run must reach all that its profile says.
pub const REACH_SEEDS: u64 = 300;

macro_rules! profiles {
    ($($name:literal),* $(,)?) => {
        /// The profiles that come along, by name.
        pub const PROFILES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../profiles/", $name, ".json")))),*];
    };
}
profiles!("default", "kills", "disk", "power", "slow", "calm");

impl Profile {
    /// One of the profiles that come along, by name, or a file, by path.
    ///
    /// # Errors
    /// What is wrong with it, with the names there are.
    pub fn load(name_or_path: &str) -> Result<Self, String> {
        if let Some((name, text)) = PROFILES.iter().find(|(name, _)| *name == name_or_path) {
            return Self::parse(text).map_err(|error| format!("profile {name}: {error}"));
        }
        if !name_or_path.contains(['/', '.']) {
            let names: Vec<&str> = PROFILES.iter().map(|(name, _)| *name).collect();
            return Err(format!(
                "there is no profile {name_or_path}; there are {}, or give the path of a file",
                names.join(", ")
            ));
        }
        let text = std::fs::read_to_string(Path::new(name_or_path))
            .map_err(|error| format!("profile {name_or_path}: {error}"))?;
        Self::parse(&text).map_err(|error| format!("profile {name_or_path}: {error}"))
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// The first thing wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let profile: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let known = |name: &String| generate::FAULTS.iter().any(|fault| fault.name == name);
        if let Some(name) = profile.faults.keys().find(|name| !known(name)) {
            let names: Vec<&str> = generate::FAULTS.iter().map(|fault| fault.name).collect();
            return Err(format!("{name} is no kind of fault; there are {}", names.join(", ")));
        }
        if let Some(name) = profile.must_reach.iter().find(|name| !marks::is_known(name)) {
            return Err(format!("{name} is no mark; see marks.rs"));
        }
        for (what, (least, most)) in [
            ("faults_count", profile.faults_count),
            ("actions_count", profile.actions_count),
            ("lanes_count", profile.lanes_count),
        ] {
            if least > most {
                return Err(format!("{what} goes from {least} to {most}"));
            }
        }
        if profile.latency_max_us.0 > profile.latency_max_us.1 {
            return Err("latency_max_us goes down".to_owned());
        }
        if profile.actions.values().all(|weight| *weight == 0) {
            return Err("no action has a weight".to_owned());
        }
        Ok(profile)
    }

    /// Kinds of faults and marks that a run of enough seeds must have met, by name.
    pub fn required(&self) -> Vec<String> {
        let kinds = self.faults.iter().filter(|(_, weight)| **weight > 0 && self.faults_count.1 > 0);
        let kinds = kinds.map(|(name, _)| format!("{}{name}", marks::FAULT));
        kinds.chain(self.must_reach.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn what_comes_along_is_valid_and_named_as_its_file() {
        for (name, _) in PROFILES {
            assert_eq!(&Profile::load(name).unwrap().name, name);
        }
        let refused = Profile::load("nosuch").unwrap_err();
        assert!(refused.contains("default"), "{refused}");
    }

    #[test]
    fn unknown_fields_kinds_and_marks_are_refused() {
        let (_, text) = PROFILES[0];
        for (from, to) in [
            ("\"name\"", "\"extra\": 1, \"name\""),
            ("\"kill\":", "\"kil\":"),
            ("\"case.adopt\"", "\"case.adoptt\""),
            ("\"run\":", "\"runn\":"),
        ] {
            assert!(text.contains(from), "{from}");
            assert!(Profile::parse(&text.replacen(from, to, 1)).is_err(), "{to}");
        }
    }
}
