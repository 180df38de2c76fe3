//! The `World` of Holdfast on a real Linux node.

pub mod container;
pub mod image;
pub mod internal;
pub mod keeper;
pub mod net;
pub mod paths;
pub mod process;
pub mod protocol;
pub mod store;
pub mod uplink;
pub mod world;
