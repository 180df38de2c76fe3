//! End-to-end tests of Holdfast as a non-root user
