//! The same explanation as one page that needs nothing but itself: lanes as an inline drawing.

use super::{
    explain::{ending, story},
    timeline::{Kind, Row, Timeline},
};
use holdfast_sim::{history::History, run::Outcome};
use std::fmt::Write;

/// Width of a lane and height of a row, in pixels.
const LANE_PX: usize = 22;
const ROW_PX: usize = 18;
/// Where the lanes and the words begin, in pixels.
const LANES_AT_PX: usize = 90;
/// Room above the first row for the names of the lanes, in pixels.
const TOP_PX: usize = 110;

const STYLE: &str = "body{font:14px/1.5 sans-serif;margin:2em;color:#223}pre{font:12px/1.5 monospace;white-space:pre-wrap}\
svg text{font:11px monospace;fill:#223}.bar{fill:#7aa6c9}.own{fill:#4a78a3}.began{fill:#3a8f4e}.ended{fill:#222}\
.fault{fill:#d03030}text.fault{font-weight:bold;fill:#d03030}text.bad{fill:#b04a00}text.dim{fill:#889}h2{font-size:15px}";

/// The page.
pub fn page(history: &History, outcome: &Outcome, heading: &str, all: bool) -> String {
    let timeline = Timeline::of(outcome);
    let begin = if all { 0 } else { timeline.begin };
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{name}</title>\
         <style>{STYLE}</style></head><body>\n<h1>{name}</h1>\n<p>{what}</p>\n<p>{heading}</p>\n\
         <h2>What was asked, and what strikes</h2>\n<pre>{story}</pre>\n<h2>What happened</h2>\n{drawing}\
         <h2>How it ended</h2>\n<pre>{ending}</pre>\n</body></html>\n",
        name = escaped(&history.name),
        what = escaped(&history.what),
        heading = escaped(heading),
        story = escaped(&story(history)),
        drawing = drawing(&timeline, begin),
        ending = escaped(&ending(outcome)),
    )
}

fn drawing(timeline: &Timeline, begin: usize) -> String {
    let rows = timeline.rows.get(begin..).unwrap_or_default();
    let words_at = LANES_AT_PX + LANE_PX * timeline.lanes.len() + 12;
    let longest = rows.iter().map(|row| row.text.chars().count()).max().unwrap_or(0);
    let (width, height) = (words_at + longest * 7 + 20, TOP_PX + ROW_PX * rows.len() + 10);
    let mut svg = format!("<svg width=\"{width}\" height=\"{height}\" role=\"img\">\n");
    for (lane, name) in timeline.lanes.iter().enumerate() {
        let (x, y) = (LANES_AT_PX + lane * LANE_PX + 8, TOP_PX - 8);
        let name = escaped(name);
        // Writing to a string cannot fail.
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" transform=\"rotate(-60 {x} {y})\">{name}</text>");
        bars(&mut svg, rows, lane);
    }
    for (number, row) in rows.iter().enumerate() {
        line(&mut svg, row, TOP_PX + number * ROW_PX, words_at);
    }
    svg + "</svg>\n"
}

/// A bar for each stretch of rows in which the lane lives.
fn bars(svg: &mut String, rows: &[Row], lane: usize) {
    let lives = |row: &Row| row.alive.get(lane).copied().unwrap_or(false);
    let class = if lane < 4 { "own" } else { "bar" };
    let mut from = 0;
    while from < rows.len() {
        let length = rows.iter().skip(from).take_while(|row| lives(row)).count();
        if length > 0 {
            let (x, y, height) = (LANES_AT_PX + lane * LANE_PX, TOP_PX + from * ROW_PX, length * ROW_PX);
            let _ = writeln!(
                svg,
                "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"12\" height=\"{height}\"/>"
            );
        }
        from += length.max(1);
    }
}

fn line(svg: &mut String, row: &Row, y: usize, words_at: usize) {
    let middle = y + ROW_PX / 2;
    let (class, dot) = match row.kind {
        Kind::Began => ("dim", Some("began")),
        Kind::Ended => ("dim", Some("ended")),
        Kind::Fault => ("fault", Some("fault")),
        Kind::FailedCall | Kind::LostCall => ("bad", None),
        Kind::Call => ("", None),
    };
    if let Some(dot) = dot {
        let x = LANES_AT_PX + row.lane * LANE_PX + 6;
        let _ = writeln!(svg, "<circle class=\"{dot}\" cx=\"{x}\" cy=\"{middle}\" r=\"6\"/>");
    }
    let baseline = middle + 4;
    let _ = writeln!(svg, "<text class=\"dim\" x=\"4\" y=\"{baseline}\">{} us</text>", row.at_us);
    let text = escaped(&row.text);
    let _ = writeln!(svg, "<text class=\"{class}\" x=\"{words_at}\" y=\"{baseline}\">{text}</text>");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
