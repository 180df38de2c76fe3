//! The hidden subcommands: what has to be done inside the node's namespaces by a process with one thread.

use super::{fault::class_of, root, supervise};
use holdfast_core::error::{Class, ContainerError};
use serde::{Deserialize, Serialize};
use std::{ffi::OsString, io, path::Path, process::ExitCode};

/// What a hidden subcommand reports of its failure, as one JSON line on stderr.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// What policy decides by.
    pub(crate) class: Class,
    /// What was being done.
    pub(crate) action: String,
    /// What went wrong.
    pub(crate) cause: String,
}

impl Report {
    /// A failure with its class.
    pub(crate) fn new(class: Class, action: impl Into<String>, cause: impl std::fmt::Display) -> Self {
        Self { class, action: action.into(), cause: cause.to_string() }
    }

    /// An I/O failure.
    pub(crate) fn io(action: impl Into<String>, error: &io::Error) -> Self {
        Self::new(class_of(error), action, error)
    }
}

/// The error that a hidden subcommand printed; `None` if it printed none.
pub(crate) fn reported(stderr: &[u8], subject: &str) -> Option<ContainerError> {
    let line = stderr.split(|byte| *byte == b'\n').rfind(|line| line.starts_with(b"{"))?;
    let report: Report = serde_json::from_slice(line).ok()?;
    let error = ContainerError::new(report.class, report.action, subject, report.cause);
    Some(match error.class {
        Class::Exhausted => error.with_remedy("free some disk space, or raise the limit"),
        _ => error,
    })
}

/// The body of `holdfast internal …`: `arguments` are those after `internal`. Must be called before any thread or
/// runtime exists.
pub fn internal_main(arguments: &[OsString]) -> ExitCode {
    let Some((name, rest)) = arguments.split_first() else {
        eprintln!("internal: no subcommand");
        return ExitCode::from(2);
    };
    let paths: Vec<&Path> = rest.iter().map(Path::new).collect();
    let result = match (name.to_str(), paths.as_slice()) {
        (Some("mount-root"), [target, upper, work, lower @ ..]) if !lower.is_empty() => {
            root::mount(target, upper, work, lower)
        }
        (Some("unmount-root"), [target]) => root::unmount(target),
        (Some("remove"), trees) if !trees.is_empty() => {
            trees.iter().try_for_each(|tree| root::remove_tree(tree))
        }
        (Some("unpack"), [_, ..]) => crate::image::unpack::unpack_main(rest),
        (Some("supervise"), [_, ..]) => return supervise::supervise(rest),
        _ => Err(Report::new(
            Class::Fatal,
            "run a hidden subcommand",
            format!("{name:?} with {} arguments is unknown", rest.len()),
        )),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(report) => {
            // A report is strings and an enum: it always serializes.
            eprintln!("{}", serde_json::to_string(&report).unwrap_or(report.cause));
            ExitCode::FAILURE
        }
    }
}
