//! The World contract suite, and end-to-end tests of Holdfast as a non-root user.

pub mod contract;
