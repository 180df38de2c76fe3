//! Operations: what a user can ask for, decided into journaled plans.

pub mod request;
