//! The World contract suite, and what end-to-end tests of Holdfast as a non-root user run on.

pub mod contract;
pub mod recording;
pub mod runner;
pub mod stage;
pub mod virtual_kubelet;
