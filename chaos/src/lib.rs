//! Real kills on a real node.
//!
//! A harness that drives a node as a person would, through the `holdfast` binary, `/proc` and signals, and
//! never through its code: what it claims holds for the thing that ships. It knows nothing of the node's
//! insides but what `holdfast status` says, and checks that against the kernel.
//!
//! * [`node`]: a node of its own per scenario, and the one place that knows the JSON of the CLI.
//! * [`stage`]: the workloads that scenarios kill things under, and the zero-leak check at the end.
//! * [`traffic`]: pings, TCP streams and HTTP requests that count what they lose.
//! * [`sim`]: replays, shrinks and explains simulated failures; it alone links the project's code.
//! * [`scenarios`]: the named scenarios; [`demo`]: the story that `make demo` tells.

pub mod census;
pub mod command;
pub mod demo;
pub mod identity;
pub mod image;
pub mod inside;
pub mod leak;
pub mod node;
pub mod poll;
pub mod privileged;
pub mod process;
pub mod report;
pub mod scenarios;
pub mod sim;
pub mod stage;
pub mod traffic;
