//! Benchmarks of Holdfast
