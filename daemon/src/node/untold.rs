//! Bring-ups that did something while nobody waited for their report: `up` tells them too, so that what was
//! healed a moment before it was asked is not reported as nothing.

use holdfast_core::driver::BringUpReport;
use std::{collections::VecDeque, sync::Arc};

/// Reports that are kept; the oldest make room.
const REPORTS_LEN_MAX: usize = 16;

/// What nobody was told yet, oldest first.
#[derive(Debug, Default)]
pub struct Untold(VecDeque<Arc<BringUpReport>>);

impl Untold {
    /// Keeps a report that nobody waits for, if it says anything.
    pub fn keep(&mut self, report: Arc<BringUpReport>) {
        if !report.is_eventful() {
            return;
        }
        if self.0.len() == REPORTS_LEN_MAX {
            self.0.pop_front();
        }
        self.0.push_back(report);
    }

    /// What is to be told now.
    pub fn all(&self) -> Vec<Arc<BringUpReport>> {
        self.0.iter().cloned().collect()
    }

    /// Somebody was told.
    pub fn told(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn report(passes: u32, began: u64) -> Arc<BringUpReport> {
        let report = serde_json::json!({
            "trigger": "start", "case": "adopt", "passes": passes, "converged": true, "cures": {}, "recovered": [],
            "failed": {}, "resumed": [], "errors": [], "began": began, "took": 1, "next_due": null, "down": false,
        });
        Arc::new(serde_json::from_value(report).unwrap())
    }

    #[test]
    fn what_did_something_is_told_once_and_the_list_is_bounded() {
        let mut untold = Untold::default();
        untold.keep(report(1, 0));
        assert!(untold.all().is_empty(), "a look that found nothing to do says nothing");
        untold.keep(report(2, 1));
        assert_eq!(untold.all(), [report(2, 1)]);
        assert_eq!(untold.all().len(), 1, "until somebody was told");
        untold.told();
        assert!(untold.all().is_empty());
        for began in 0..100 {
            untold.keep(report(2, began));
        }
        let kept: Vec<u64> = untold.all().iter().map(|report| report.began.0).collect();
        assert_eq!(kept, (84..100).collect::<Vec<_>>());
    }
}
