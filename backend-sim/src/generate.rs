//! Random but valid histories, drawn whole before the first call. Work and faults are drawn from streams of
//! their own, so that a draw added to one shifts no other.

mod fault;
mod work;

pub use fault::{FAULTS, FaultDraw, FaultOf};
pub use work::ActionKind;

use crate::{history::History, profile::Profile, random::Stream, scenarios};

/// The history of a seed under a profile.
pub fn history_of(seed: u64, profile: &Profile) -> History {
    let mut work = Stream::of(seed, "workload");
    let mut faults = Stream::of(seed, "fault");
    // How the node is, besides what is done to it.
    let mut jitter = Stream::of(seed, "jitter");
    let lanes = between(&mut work, profile.lanes_count);
    let lanes = (0..lanes).map(|lane| work::draw_lane(&mut work, profile, lane)).collect();
    let (quick, slow) = profile.latency_max_us;
    let latency_max_us = quick + jitter.below(slow - quick + 1);
    let fd_store = jitter.chance(u64::from(profile.fd_store_percent));
    let resume = jitter.chance(u64::from(profile.resume_percent));
    let stubborn = ["a0", "b1", "m0", "web"].into_iter();
    let stubborn = stubborn.filter(|_| jitter.chance(u64::from(profile.stubborn_percent)));
    History {
        name: format!("seed {seed} of profile {}", profile.name),
        seed,
        fd_store,
        stubborn: stubborn.map(str::to_owned).collect(),
        latency_max_us: Some(latency_max_us),
        resume,
        prepare: scenarios::bystanders(),
        lanes,
        plan: fault::draw_plan(&mut faults, profile),
        ..History::default()
    }
}

/// A number between two, both included.
fn between(stream: &mut Stream, (least, most): (u32, u32)) -> u32 {
    least + stream.below(u64::from(most.saturating_sub(least)) + 1) as u32
}

/// One of `choices` by weight; `None` when none has any.
fn weighted<T: Copy>(stream: &mut Stream, choices: &[(T, u32)]) -> Option<T> {
    let total: u64 = choices.iter().map(|(_, weight)| u64::from(*weight)).sum();
    let mut at = stream.below(total);
    choices.iter().find_map(|(choice, weight)| {
        let weight = u64::from(*weight);
        if at < weight {
            return Some(*choice);
        }
        at -= weight;
        None
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn a_draw_added_to_one_stream_shifts_no_other() {
        let profile = Profile::load("default").unwrap();
        for seed in 0..50 {
            let plain = history_of(seed, &profile);
            // More faults: the same work on the same node.
            let more = Profile { faults_count: (9, 9), ..profile.clone() };
            let more = history_of(seed, &more);
            assert_eq!(
                (&plain.lanes, plain.latency_max_us, plain.fd_store),
                (&more.lanes, more.latency_max_us, more.fd_store)
            );
            // More work: the same faults.
            let work = Profile { lanes_count: (5, 5), actions_count: (9, 9), ..profile.clone() };
            let work = history_of(seed, &work);
            assert_eq!((&plain.plan, &plain.stubborn), (&work.plan, &work.stubborn));
            assert_ne!(plain.lanes, work.lanes);
        }
    }

    #[test]
    fn every_kind_and_action_of_the_default_profile_is_drawn() {
        let profile = Profile::load("default").unwrap();
        let histories: Vec<History> = (0..2_000).map(|seed| history_of(seed, &profile)).collect();
        let kinds: std::collections::BTreeSet<String> = histories
            .iter()
            .flat_map(|history| &history.plan.faults)
            .map(|fault| crate::marks::kind_of(&fault.kind))
            .collect();
        let named: std::collections::BTreeSet<String> = profile.faults.keys().cloned().collect();
        assert_eq!(kinds, named);
        let some_do_without = histories.iter().filter(|history| history.plan.faults.len() > 2);
        assert!(some_do_without.count() > 100);
    }
}
