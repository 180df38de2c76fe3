//! Benchmarks of Holdfast: core on made-up nodes of any size (criterion, `benches/core.rs`), and a real node from
//! outside (`holdfast-bench-node`).

pub mod fixture;
pub mod sample;
