//! Samples and what is said of them.

use std::{fmt, time::Duration};

/// Durations of one thing, done again and again.
#[derive(Clone, Debug, Default)]
pub struct Sample(Vec<Duration>);

impl Sample {
    /// Adds one.
    pub fn add(&mut self, duration: Duration) {
        self.0.push(duration);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The smallest duration that so many per cent of all do not exceed (nearest rank); zero without any.
    pub fn percentile(&self, per_cent: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * per_cent).div_ceil(100).max(1);
        sorted.get(rank - 1).copied().unwrap_or_default()
    }

    /// The median in milliseconds.
    pub fn p50_ms(&self) -> f64 {
        self.percentile(50).as_secs_f64() * 1e3
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p99 = self.percentile(99).as_secs_f64() * 1e3;
        write!(f, "p50 {:>8.2} ms   p99 {p99:>8.2} ms   n {}", self.p50_ms(), self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let mut sample = Sample::default();
        assert_eq!(sample.percentile(50), Duration::ZERO);
        for ms in (1..=100).rev() {
            sample.add(Duration::from_millis(ms));
        }
        assert_eq!(sample.percentile(50), Duration::from_millis(50));
        assert_eq!(sample.percentile(99), Duration::from_millis(99));
        assert_eq!(sample.percentile(100), Duration::from_millis(100));
    }
}
