//! How the demo looks: plain text, colour only on a terminal.

use super::acts::Report;
use std::io::IsTerminal;

/// Prints the story.
#[derive(Debug)]
pub struct Printer {
    colour: bool,
}

const BOLD: &str = "1";
const DIM: &str = "2";
const GREEN: &str = "32";
const RED: &str = "31";

impl Printer {
    /// For standard output.
    pub fn new() -> Self {
        // https://no-color.org
        Self { colour: std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() }
    }

    fn paint(&self, style: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// One line as it is.
    pub fn line(&self, text: &str) {
        println!("{text}");
    }

    /// The first line.
    pub fn title(&self, text: &str) {
        println!("{}\n", self.paint(BOLD, text));
    }

    /// A heading.
    pub fn heading(&self, text: &str) {
        println!("\n{}", self.paint(BOLD, text));
    }

    /// A name and what there is to say of it.
    pub fn fact(&self, name: &str, text: &str) {
        println!("  {name:<9} {}", text.trim_end());
    }

    /// Something that should not have happened.
    pub fn failure(&self, text: &str) {
        println!("{}", self.paint(RED, &format!("FAILED: {text}")));
    }

    /// The head of an act.
    pub fn act(&self, number: usize, of: usize, title: &str, about: &str) {
        println!(
            "\n{} {}",
            self.paint(BOLD, &format!("{number}/{of}  {title}")),
            self.paint(DIM, &format!("({about})"))
        );
    }

    /// What an act showed.
    pub fn report(&self, report: &Report) {
        if let Some((before, after)) = &report.processes {
            self.fact("before", &before.to_string());
            self.fact("after", &after.to_string());
        }
        if !report.workloads.is_empty() {
            let shown: Vec<String> = report
                .workloads
                .iter()
                .map(|(name, was, is)| {
                    let pid = |process: &Option<crate::process::Process>| {
                        process.map_or_else(|| "none".to_owned(), |process| process.to_string())
                    };
                    if was == is {
                        format!("{name} {}", pid(is))
                    } else {
                        format!("{name} {} → {}", pid(was), pid(is))
                    }
                })
                .collect();
            self.fact("workloads", &format!("{}  ({} restarts)", shown.join("  "), report.restarts));
        }
        if let Some((lost, sent)) = report.pings {
            let (failed, asked) = report.http.unwrap_or_default();
            self.fact(
                "traffic",
                &format!("{lost} of {sent} pings lost, {failed} of {asked} requests failed"),
            );
        }
        if report.processes.is_some() {
            self.fact("healed", &format!("after {:.0} ms", report.healed.as_secs_f64() * 1e3));
        }
        for note in &report.notes {
            println!("  {} {note}", self.paint(GREEN, "ok"));
        }
        for failure in &report.failures {
            println!("  {} {failure}", self.paint(RED, "FAILED"));
        }
    }

    /// All acts in one table.
    pub fn table(&self, reports: &[Report]) {
        let header =
            ["killed", "cure", "restarts", "pings lost", "outage", "requests failed", "healed", "claims"]
                .map(str::to_owned);
        let mut rows = vec![header.to_vec()];
        for report in reports {
            let of = |pair: Option<(u64, u64)>| {
                pair.map_or_else(|| "—".to_owned(), |(part, all)| format!("{part}/{all}"))
            };
            rows.push(vec![
                report.title.clone(),
                report.cure.clone(),
                report.restarts.to_string(),
                of(report.pings),
                report.pings.map_or_else(|| "—".to_owned(), |_| format!("{:.0} ms", report.outage_ms)),
                of(report.http),
                format!("{:.0} ms", report.healed.as_secs_f64() * 1e3),
                if report.failures.is_empty() {
                    format!("{} held", report.claims)
                } else {
                    "FAILED".to_owned()
                },
            ]);
        }
        let widths: Vec<usize> = (0..header.len())
            .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default())
            .collect();
        println!();
        for (index, row) in rows.iter().enumerate() {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell}{}", " ".repeat(width - cell.chars().count())))
                .collect();
            let line = cells.join("   ");
            println!(
                "{}",
                if index == 0 { self.paint(BOLD, line.trim_end()) } else { line.trim_end().to_owned() }
            );
        }
        println!();
    }
}
