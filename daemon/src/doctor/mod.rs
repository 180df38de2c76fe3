//! `doctor`: what this machine offers, each with its remedy. It looks and tries, and never assumes; it needs no
//! daemon and changes nothing.

mod checks;
mod kernel;
mod tools;

use crate::cli::{args::Format, outln};
use holdfast_linux::paths::Paths;
use serde::Serialize;
use std::process::ExitCode;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// The node works, something will not.
    Warn,
    /// The node does not work.
    Fail,
}

/// One finding.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What was looked at; stable.
    pub check: &'static str,
    /// How bad it is.
    pub verdict: Verdict,
    /// What was seen.
    pub seen: String,
    /// What a person can do; empty when nothing needs to be done.
    pub remedy: String,
}

impl Finding {
    /// As it should be.
    pub fn ok(check: &'static str, seen: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, seen: seen.into(), remedy: String::new() }
    }

    /// Something will not work.
    pub fn warn(check: &'static str, seen: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warn, seen: seen.into(), remedy: remedy.into() }
    }

    /// The node does not work.
    pub fn fail(check: &'static str, seen: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Fail, seen: seen.into(), remedy: remedy.into() }
    }
}

/// Looks at everything and prints it; exit code 1 when something fails.
pub fn run(paths: &Paths, format: Format) -> ExitCode {
    let mut findings = checks::all(paths);
    findings.extend(tools::all());
    findings.extend(kernel::all());
    let failed = findings.iter().any(|finding| finding.verdict == Verdict::Fail);
    match format {
        // Strings and an enum: serialising them cannot fail.
        Format::Json => outln!("{}", serde_json::to_string_pretty(&findings).unwrap_or_default()),
        Format::Name => findings
            .iter()
            .filter(|finding| finding.verdict == Verdict::Fail)
            .for_each(|finding| outln!("{}", finding.check)),
        Format::Table => print(&findings),
    }
    ExitCode::from(u8::from(failed))
}

fn print(findings: &[Finding]) {
    for finding in findings {
        let word = match finding.verdict {
            Verdict::Ok => "ok  ",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        outln!("{word}  {:<20} {}", finding.check, finding.seen);
        if !finding.remedy.is_empty() {
            outln!("      {:<20} remedy: {}", "", finding.remedy);
        }
    }
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    outln!(
        "\n{} ok, {} warnings, {} failures",
        count(Verdict::Ok),
        count(Verdict::Warn),
        count(Verdict::Fail)
    );
}
