//! Every decision of Holdfast, and nothing else.
//!
//! This crate is `no_std + alloc`: a clock, a thread, a file or a hash-ordered collection does not even
//! compile here. Time, randomness and every effect come from a [`world::World`], which `backend-linux`
//! implements on a real node and `backend-sim` as a seeded simulation.
//!
//! The shape is the same everywhere: *observe* returns one immutable [`observed::Observed`]; a `plan_*`
//! function turns it and the [`record::Records`] into a list of [`plan::Step`]s; a [`driver`] runs the steps
//! and has no choices left.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

#[macro_use]
pub mod mutant;

pub mod alloc_address;
pub mod bring_up;
pub mod cure;
pub mod driver;
pub mod error;
pub mod id;
pub mod interlink;
pub mod invariant;
pub mod join;
pub mod journal;
pub mod name;
pub mod observed;
pub mod ops;
pub mod plan;
pub mod policy;
pub mod record;
pub mod restart;
pub mod ruleset;
pub mod spec;
pub mod status;
pub mod steps;
pub mod time;
pub mod world;
pub mod zone;
