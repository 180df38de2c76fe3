//! The World of Holdfast as a seeded simulation.
//!
//! [`model`] is what the kernel, the helpers and the disk do, as measured on real nodes. [`SimWorld`]
//! implements core's traits over it; each call is a *step point* at which a [`fault::FaultPlan`] can kill,
//! fail or delay. [`executor`] drives core's futures with a virtual clock and a seeded scheduler, its own or madsim's, and
//! [`check`] holds the named invariants that are looked at after every call.
//!
//! One seed gives one history: the model holds no hash-ordered map and asks no clock of the machine, and each
//! purpose draws from a random stream of its own ([`random`]), so that a draw added to one shifts no other.
//!
//! # Adding a capability
//! Its state is a module of [`model`] with a field in [`model::Node`]; its death rules go into
//! `Node::settle`; its trait is a file in `world/` whose calls go through `SimWorld::step`. Faults that are
//! about it are variants of [`fault::FaultKind`], applied in `Node::strike`; invariants are functions in
//! [`check`], listed in `check::EVERY_CALL`.
#![forbid(unsafe_code)]

#[cfg(all(feature = "madsim", not(madsim)))]
compile_error!(
    "`--cfg madsim` was asked for and dropped: RUSTFLAGS or CARGO_ENCODED_RUSTFLAGS in the environment replace \
     the flags of .cargo/config.toml. Unset them, or add `--cfg madsim` to them."
);

pub mod check;
pub mod executor;
pub mod fault;
pub mod generate;
pub mod history;
pub mod marks;
pub mod model;
#[cfg(feature = "mutants")]
pub mod mutants;
pub mod profile;
pub mod random;
pub mod run;
pub mod runner;
pub mod scenarios;
mod sim;
pub mod trace;
mod world;

pub use sim::{Config, Sim};
pub use world::SimWorld;
