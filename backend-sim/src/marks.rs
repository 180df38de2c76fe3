//! Coverage marks: names of the branches that a run reached, told from what came of it. A run of many seeds that
//! never reached one that its profile demands proves less than it says, and fails.
//!
//! Nothing in core knows of them: they are read off reports, answers and the trace, so they cost nothing while a
//! history runs and are as deterministic as it is.

use crate::{
    fault::FaultKind,
    history::{Action, Answer, Passed},
    trace::CallRecord,
};
use holdfast_core::{
    driver::BringUpReport,
    error::{Class, RefusalCode},
    journal::Resume,
    ops::request::RequestError,
};
use std::collections::BTreeMap;

/// Before the name of a kind of fault: the mark that it struck.
pub const FAULT: &str = "fault.";

/// Every mark but those of faults, with what it says.
pub const MARKS: &[(&str, &str)] = &[
    ("answer.failed", "a request was tried, failed and was taken back"),
    ("answer.lost", "the daemon died before it could answer a request"),
    ("answer.ok", "a request was answered with success"),
    ("answer.refused", "a request was refused before anything was touched"),
    ("answer.store", "a request could not be written down"),
    ("case.adopt", "a bring-up found the pin dead and the router alive"),
    ("case.control", "a bring-up found the control absent, silent or foreign"),
    ("case.nothing", "a bring-up found pin and control alive"),
    ("case.rebuild", "a bring-up found nothing alive"),
    ("case.replug", "a bring-up found the router gone and a workload alive"),
    ("cure.adopted", "a sandbox was adopted"),
    ("cure.replugged", "a sandbox got new links under a running workload"),
    ("cure.restarted", "a sandbox was restarted"),
    ("disk.full", "a request was refused room on the disk"),
    ("down.by_request", "the node was taken down"),
    ("down.refused_to_come_up", "a bring-up left a node alone that was taken down"),
    ("failed.conflict", "a request failed because something was taken"),
    ("failed.unknown", "a request failed because an outcome could not be known"),
    ("kill.after_effect", "a daemon died after the effect of a call, before its answer"),
    ("kill.before_effect", "a daemon died before the effect of a call"),
    ("kill.in_bring_up", "a daemon died while it brought the node up"),
    ("refused.busy", "a request met another operation on the same thing"),
    ("refused.in_use", "something in use was not removed"),
    ("refused.name_in_use", "a name was taken"),
    ("refused.not_found", "something was asked of what is not there"),
    ("refused.taken", "an address or port was taken"),
    ("refused.wrong_state", "something was asked that makes no sense in that state"),
    ("report.errors", "a bring-up reported something it could not do"),
    ("report.failed", "a bring-up reported a sandbox that is not whole"),
    ("resumed.finished", "an interrupted operation was finished"),
    ("resumed.replanned", "an interrupted operation was planned again"),
    ("resumed.undone", "an interrupted operation was undone"),
    ("retry.done_already", "what was asked again had been done"),
    ("retry.succeeded", "what was asked again succeeded"),
    ("undo.failed", "an undo failed and stayed in the journal"),
    ("wait.back_off", "a restart was held back"),
];

/// Whether there is a mark of this name.
pub fn is_known(name: &str) -> bool {
    MARKS.iter().any(|(mark, _)| *mark == name)
}

/// The name of a kind of fault: as in files, snake case.
pub fn kind_of(kind: &FaultKind) -> String {
    snake(format!("{kind:?}").split([' ', '(', '{']).next().unwrap_or_default())
}

fn snake(camel: &str) -> String {
    let mut name = String::new();
    for (place, letter) in camel.chars().enumerate() {
        if letter.is_ascii_uppercase() && place > 0 {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

/// How often each mark was reached.
#[derive(Debug, Default)]
pub struct Marks(BTreeMap<String, u64>);

impl Marks {
    /// Those of a run that went as it must.
    pub(crate) fn of(passed: &Passed, calls: &[CallRecord]) -> BTreeMap<String, u64> {
        let mut marks = Self::default();
        passed.reports.iter().chain(&passed.seen).for_each(|report| marks.report(report));
        passed.answers.iter().for_each(|answer| marks.answer(answer));
        marks.retries(&passed.answers);
        marks.deaths(calls);
        marks.count("kill.in_bring_up", u64::from(passed.killed_in_bring_up));
        for (kind, count) in &passed.faults {
            *marks.0.entry(format!("{FAULT}{}", snake(kind))).or_default() += count;
        }
        marks.0
    }

    fn reach(&mut self, name: &str) {
        self.count(name, 1);
    }

    fn count(&mut self, name: &str, count: u64) {
        if count > 0 {
            *self.0.entry(name.to_owned()).or_default() += count;
        }
    }

    fn report(&mut self, report: &BringUpReport) {
        if report.down {
            return self.reach("down.refused_to_come_up");
        }
        self.reach(&format!("case.{}", report.case));
        for cure in report.cures.values().filter(|cure| cure.to_string() != "untouched") {
            self.reach(&format!("cure.{cure}"));
        }
        for resumed in &report.resumed {
            self.reach(match resumed.how {
                Resume::Undo => "resumed.undone",
                Resume::Finish => "resumed.finished",
                Resume::Replan => "resumed.replanned",
            });
            self.count("undo.failed", u64::from(!resumed.failures.is_empty()));
        }
        self.count("wait.back_off", u64::from(report.next_due.is_some()));
        self.count("report.failed", report.failed.len() as u64);
        self.count("report.errors", report.errors.len() as u64);
    }

    fn answer(&mut self, answer: &Answer) {
        match &answer.told {
            None => self.reach("answer.lost"),
            Some(Ok(())) => {
                self.reach("answer.ok");
                self.count("down.by_request", u64::from(answer.action == Action::TakeDown));
            }
            Some(Err(RequestError::Store(error))) => {
                self.reach("answer.store");
                self.count("disk.full", u64::from(error.class == Class::Exhausted));
            }
            Some(Err(RequestError::Refused(refusal))) => {
                self.reach("answer.refused");
                self.reach(match refusal.code {
                    RefusalCode::Busy => "refused.busy",
                    RefusalCode::InUse => "refused.in_use",
                    RefusalCode::NameInUse => "refused.name_in_use",
                    RefusalCode::NotFound => "refused.not_found",
                    RefusalCode::Taken => "refused.taken",
                    RefusalCode::WrongState => "refused.wrong_state",
                    RefusalCode::Invalid | RefusalCode::Exhausted => return,
                });
            }
            Some(Err(RequestError::Failed(error))) => {
                self.reach("answer.failed");
                self.count("undo.failed", u64::from(!error.undo_failures.is_empty()));
                match error.cause.class() {
                    Class::Conflict => self.reach("failed.conflict"),
                    Class::Unknown => self.reach("failed.unknown"),
                    _ => {}
                }
            }
        }
    }

    /// What was asked again after no answer came.
    fn retries(&mut self, answers: &[Answer]) {
        for (place, lost) in answers.iter().enumerate().filter(|(_, answer)| answer.told.is_none()) {
            let again = answers.iter().skip(place + 1).find(|answer| answer.action == lost.action);
            match again.and_then(|again| again.told.as_ref()) {
                Some(Ok(())) => self.reach("retry.succeeded"),
                Some(Err(RequestError::Refused(refusal)))
                    if matches!(refusal.code, RefusalCode::NameInUse | RefusalCode::NotFound) =>
                {
                    self.reach("retry.done_already");
                }
                _ => {}
            }
        }
    }

    /// The last call of a daemon that was followed by another: had it its effect?
    fn deaths(&mut self, calls: &[CallRecord]) {
        for pair in calls.windows(2) {
            let [last, next] = pair else { continue };
            if last.incarnation < next.incarnation {
                self.reach(if last.outcome.is_empty() { "kill.before_effect" } else { "kill.after_effect" });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_sorted_and_kinds_are_named_as_in_files() {
        assert!(MARKS.is_sorted());
        assert_eq!(kind_of(&FaultKind::KillAndReusePid { who: Vec::new() }), "kill_and_reuse_pid");
        assert_eq!(kind_of(&FaultKind::PowerLoss), "power_loss");
        assert_eq!(kind_of(&FaultKind::Delay { by_ms: 1 }), "delay");
    }
}
