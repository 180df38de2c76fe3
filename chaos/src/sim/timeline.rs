//! A run as rows over lanes: one lane per kind of process, one row per thing that happened.

use holdfast_sim::run::Outcome;

/// What one row shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A World call.
    Call,
    /// A World call that failed.
    FailedCall,
    /// A call that never came back: its daemon died.
    LostCall,
    /// A fault struck.
    Fault,
    /// A process began.
    Began,
    /// A process ended.
    Ended,
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Virtual time, in microseconds.
    pub at_us: u64,
    /// What it is.
    pub kind: Kind,
    /// The lane that it is about.
    pub lane: usize,
    /// Which lanes live after it.
    pub alive: Vec<bool>,
    /// In words.
    pub text: String,
}

/// A whole run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// Names of the lanes: the node's own processes, then workloads and their monitors.
    pub lanes: Vec<String>,
    /// Everything, in order.
    pub rows: Vec<Row>,
    /// The row at which it becomes interesting: shortly before the first fault or death of the lanes.
    pub begin: usize,
}

/// Rows that are shown before the first thing that went wrong.
const LEAD_ROWS: usize = 6;
/// Lanes that every run has.
const OWN: [&str; 4] = ["daemon", "pin", "control", "uplink"];

impl Timeline {
    /// Out of a run whose processes were watched.
    pub fn of(outcome: &Outcome) -> Self {
        let lanes = lanes(outcome);
        let lane = |who: &str| lanes.iter().position(|name| name == who).unwrap_or(0);
        let mut alive = vec![0_u32; lanes.len()];
        let mut rows: Vec<Row> = Vec::new();
        let mut events = outcome.trace.processes().iter().peekable();
        let put = |rows: &mut Vec<Row>, alive: &[u32], at_ns: u64, kind, lane, text| {
            let alive = alive.iter().map(|count| *count > 0).collect();
            rows.push(Row { at_us: at_ns / 1_000, kind, lane, alive, text });
        };
        for call in outcome.trace.calls() {
            while let Some(event) = events.next_if(|event| event.calls <= call.nth) {
                let own = lane(&event.who);
                let place = &mut alive[own];
                *place = if event.began { *place + 1 } else { place.saturating_sub(1) };
                let (kind, verb) = if event.began { (Kind::Began, "begins") } else { (Kind::Ended, "ends") };
                put(
                    &mut rows,
                    &alive,
                    event.at_ns,
                    kind,
                    own,
                    format!("{} {verb} ({})", event.who, event.pid),
                );
            }
            let (kind, outcome) = match call.outcome.as_str() {
                "ok" => (Kind::Call, String::new()),
                "" => (Kind::LostCall, " → never came back".to_owned()),
                error => (Kind::FailedCall, format!(" → {error}")),
            };
            let text = format!("#{} {} {}{outcome}", call.nth, call.call, call.subject);
            put(&mut rows, &alive, call.at_ns, kind, 0, text);
            for fault in &call.faults {
                put(&mut rows, &alive, call.at_ns, Kind::Fault, 0, fault.clone());
            }
        }
        for event in events {
            let own = lane(&event.who);
            let place = &mut alive[own];
            *place = if event.began { *place + 1 } else { place.saturating_sub(1) };
            let (kind, verb) = if event.began { (Kind::Began, "begins") } else { (Kind::Ended, "ends") };
            put(&mut rows, &alive, event.at_ns, kind, own, format!("{} {verb} ({})", event.who, event.pid));
        }
        let begin = begin(&rows);
        Self { lanes, rows, begin }
    }
}

fn lanes(outcome: &Outcome) -> Vec<String> {
    let mut lanes: Vec<String> = OWN.map(str::to_owned).to_vec();
    let mut others: Vec<&String> = outcome.trace.processes().iter().map(|event| &event.who).collect();
    others.sort_by_key(|who| who.strip_prefix("monitor of ").map_or((who.as_str(), 0), |of| (of, 1)));
    others.dedup();
    lanes.extend(others.into_iter().filter(|who| !OWN.contains(&who.as_str())).cloned());
    lanes
}

/// A fault, or the death of something of the node's own: a workload that is stopped while the stage is set is
/// nothing remarkable.
fn begin(rows: &[Row]) -> usize {
    let remarkable = |row: &Row| row.kind == Kind::Fault || row.kind == Kind::Ended && row.lane < OWN.len();
    rows.iter().position(remarkable).unwrap_or(0).saturating_sub(LEAD_ROWS)
}
