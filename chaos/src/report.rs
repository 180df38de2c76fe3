//! How a scenario ends.

use std::fmt;

/// The end of a scenario that did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It held; with what was measured.
    Pass(String),
    /// It could not be tried; names what is missing.
    Skip(String),
}

/// The end of any scenario, as one line carries it from the scenario's process to the runner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// See [`Outcome::Pass`].
    Pass(String),
    /// Something was not as it should be.
    Fail(String),
    /// See [`Outcome::Skip`].
    Skip(String),
}

impl Verdict {
    /// From what a scenario returned.
    pub fn of(result: anyhow::Result<Outcome>) -> Self {
        match result {
            Ok(Outcome::Pass(detail)) => Self::Pass(detail),
            Ok(Outcome::Skip(missing)) => Self::Skip(missing),
            Err(error) => Self::Fail(format!("{error:#}").replace('\n', "; ")),
        }
    }

    /// Reads the last line of a scenario's output; anything else is a failure.
    pub fn parse(output: &str) -> Self {
        let line = output.lines().last().unwrap_or_default();
        match line.split_once(' ') {
            Some(("PASS", detail)) => Self::Pass(detail.to_owned()),
            Some(("SKIP", missing)) => Self::Skip(missing.to_owned()),
            Some(("FAIL", cause)) => Self::Fail(cause.to_owned()),
            _ => Self::Fail(format!("ended without a verdict: {line:?}")),
        }
    }

    /// The word that a line begins with.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Pass(_) => "PASS",
            Self::Fail(_) => "FAIL",
            Self::Skip(_) => "SKIP",
        }
    }

    /// What follows it.
    pub fn detail(&self) -> &str {
        match self {
            Self::Pass(text) | Self::Fail(text) | Self::Skip(text) => text,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.word(), self.detail())
    }
}

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Scenarios that held.
    pub pass: u32,
    /// Scenarios that did not.
    pub fail: u32,
    /// Scenarios that could not be tried.
    pub skip: u32,
}

impl Tally {
    /// Counts one.
    pub fn add(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Pass(_) => self.pass += 1,
            Verdict::Fail(_) => self.fail += 1,
            Verdict::Skip(_) => self.skip += 1,
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} PASS · {} FAIL · {} SKIP", self.pass, self.fail, self.skip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_survives_its_line_and_silence_is_a_failure() {
        for verdict in
            [Verdict::Pass("12 ms".into()), Verdict::Fail("x; y".into()), Verdict::Skip("no root".into())]
        {
            assert_eq!(Verdict::parse(&format!("noise\n{verdict}\n")), verdict);
        }
        assert_eq!(Verdict::parse("PASS\nsomething else").word(), "FAIL");
        assert_eq!(Verdict::parse("").word(), "FAIL");
    }

    #[test]
    fn the_last_line_counts() {
        let mut tally = Tally::default();
        tally.add(&Verdict::Pass(String::new()));
        tally.add(&Verdict::Skip(String::new()));
        assert_eq!(tally.to_string(), "1 PASS · 0 FAIL · 1 SKIP");
    }
}
