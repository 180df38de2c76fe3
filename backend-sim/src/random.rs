//! Random streams: one seed, one independent stream per purpose.

/// SplitMix64 (Steele, Lea, Flood 2014): small, fast, and every seed is a good one.
#[derive(Clone, Debug)]
pub struct Stream {
    state: u64,
}

impl Stream {
    /// The stream of `purpose` under `seed`. Streams of different purposes are unrelated.
    pub fn of(seed: u64, purpose: &str) -> Self {
        let mut stream = Self { state: seed ^ crate::trace::fnv(purpose.as_bytes()) };
        // Two draws apart, so that neighbouring seeds are unrelated from the first draw on.
        let _ = stream.next();
        let _ = stream.next();
        stream
    }

    /// 64 random bits.
    #[expect(clippy::should_implement_trait, reason = "an iterator could end")]
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `bound`; 0 when `bound` is 0. The bias is below 2^-32 for every bound used here.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    /// True in `percent` of 100 draws.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `items`; `None` when there is none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let index = self.below(items.len() as u64);
        items.get(usize::try_from(index).unwrap_or_default())
    }
}

/// The streams of a run.
#[derive(Clone, Debug)]
pub struct Streams {
    /// What core asks for through `Entropy`.
    pub entropy: Stream,
    /// How long calls take.
    pub latency: Stream,
    /// Which of several ready tasks goes on.
    pub scheduler: Stream,
}

impl Streams {
    /// The streams of one seed. Workload and fault plans are drawn up front, by their generators, from
    /// `Stream::of(seed, "workload")` and `Stream::of(seed, "fault")`.
    pub fn new(seed: u64) -> Self {
        Self {
            entropy: Stream::of(seed, "entropy"),
            latency: Stream::of(seed, "latency"),
            scheduler: Stream::of(seed, "scheduler"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_by_purpose_and_by_seed_and_repeat() {
        let draw = |seed, purpose| Stream::of(seed, purpose).next();
        assert_eq!(draw(1, "fault"), draw(1, "fault"));
        assert_ne!(draw(1, "fault"), draw(2, "fault"));
        assert_ne!(draw(1, "fault"), draw(1, "latency"));
    }
}
