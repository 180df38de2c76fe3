//! The `World` of Holdfast on a real Linux node.

const _: () = assert!(
    !holdfast_core::mutant::CAN_BE_PLANTED,
    "the feature `mutants` of holdfast-core is on: known bugs are for the simulator and never meet a real node"
);

pub mod container;
pub mod dns;
pub mod image;
pub mod internal;
pub mod keeper;
pub mod net;
pub mod paths;
pub mod pods;
pub mod process;
pub mod protocol;
mod service;
pub mod store;
pub mod uplink;
pub mod world;
