//! Lines of the CRI log format.

/// Where an entry was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogStream {
    /// Standard output.
    Stdout = 0,
    /// Standard error.
    Stderr = 1,
}

/// One line that a container wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Standard output or standard error.
    pub stream: LogStream,
    /// When its last part was written, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The same as the monitor wrote it: RFC 3339.
    pub time: String,
    /// What was written, without the line feed.
    pub bytes: Vec<u8>,
    /// Whether a line feed ended it; a longer line than [`ENTRY_BYTES_MAX`] comes in several entries.
    pub whole: bool,
}

/// The longest line that is joined.
pub const ENTRY_BYTES_MAX: usize = 1024 * 1024;

/// The pieces of a raw line; `None` when it is none.
fn split(raw: &[u8]) -> Option<(&[u8], LogStream, bool, &[u8])> {
    let raw = raw.strip_suffix(b"\n").unwrap_or(raw);
    let mut pieces = raw.splitn(4, |byte| *byte == b' ');
    let time = pieces.next()?;
    let stream = match pieces.next()? {
        b"stdout" => LogStream::Stdout,
        b"stderr" => LogStream::Stderr,
        _ => return None,
    };
    let whole = match pieces.next()? {
        b"F" => true,
        b"P" => false,
        _ => return None,
    };
    Some((time, stream, whole, pieces.next().unwrap_or_default()))
}

/// Stream and whether an entry ends with this raw line.
pub(super) fn tag(raw: &[u8]) -> Option<(LogStream, bool)> {
    split(raw).map(|(_, stream, whole, _)| (stream, whole))
}

/// Joins parts to entries, per stream. A raw line that cannot be understood is left out with a warning.
#[derive(Debug, Default)]
pub(super) struct Joiner {
    parts: [Option<LogEntry>; 2],
}

impl Joiner {
    /// Takes a raw line; an entry when one is complete.
    pub(super) fn push(&mut self, raw: &[u8]) -> Option<LogEntry> {
        let Some((time, stream, whole, bytes)) = split(raw) else {
            tracing::warn!(bytes = raw.len(), "a log line is not in the CRI format and is left out");
            return None;
        };
        let time = String::from_utf8_lossy(time).into_owned();
        let slot = &mut self.parts[stream as usize];
        let mut entry = slot.take().unwrap_or_else(|| LogEntry {
            stream,
            time_ns: 0,
            time: String::new(),
            bytes: Vec::new(),
            whole: false,
        });
        entry.time_ns = parse_time(&time).unwrap_or(0);
        entry.time = time;
        entry.bytes.extend_from_slice(bytes);
        entry.whole = whole;
        if whole || entry.bytes.len() >= ENTRY_BYTES_MAX {
            return Some(entry);
        }
        *slot = Some(entry);
        None
    }

    /// What was begun and never ended.
    pub(super) fn finish(self) -> impl Iterator<Item = LogEntry> {
        self.parts.into_iter().flatten()
    }
}

/// Nanoseconds since 1970 of an RFC 3339 time.
fn parse_time(text: &str) -> Option<u64> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let seconds = number(11..13)? * 3600 + number(14..16)? * 60 + number(17..19)?;
    let rest = text.get(19..)?;
    let zone_at = rest.find(['Z', '+', '-'])?;
    let (fraction, zone) = rest.split_at(zone_at);
    let digits = fraction.strip_prefix('.').unwrap_or("");
    let nanoseconds = format!("{digits:0<9}").get(..9)?.parse::<i64>().ok()?;
    let zone_seconds = match zone.get(..1)? {
        "Z" => 0,
        sign => {
            let seconds =
                zone.get(1..3)?.parse::<i64>().ok()? * 3600 + zone.get(4..6)?.parse::<i64>().ok()? * 60;
            if sign == "-" { -seconds } else { seconds }
        }
    };
    // Days since 1970 of the proleptic Gregorian calendar, years counted from March so that leap days come last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (153 * month + 2) / 5
        + day
        - 1
        - 719_468;
    u64::try_from((days * 86_400 + seconds - zone_seconds) * 1_000_000_000 + nanoseconds).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn times_with_zones_and_fractions() {
        let check = |text: &str, expected: Option<u64>| assert_eq!(parse_time(text), expected, "{text}");
        check("1970-01-01T00:00:00Z", Some(0));
        check("2000-02-29T12:00:00.5Z", Some(951_825_600_500_000_000));
        check("2026-11-30T23:29:41.958634123+00:00", Some(1_796_081_381_958_634_123));
        check("2026-12-01T01:29:41.958634123+02:00", Some(1_796_081_381_958_634_123));
        check("yesterday", None);
        check("2026-11-30T23:29:41", None);
    }

    #[test]
    fn parts_are_joined_per_stream() {
        let mut joiner = Joiner::default();
        let time = "2026-11-30T23:29:41.000000000+00:00";
        let mut push = |text: &str| joiner.push(format!("{time} {text}\n").as_bytes());
        assert_eq!(push("stdout P one "), None);
        assert_eq!(push("stderr F other").unwrap().bytes, b"other");
        assert_eq!(push("stdout P two "), None);
        let entry = push("stdout F three").unwrap();
        assert_eq!(
            (entry.bytes.as_slice(), entry.stream, entry.whole),
            (&b"one two three"[..], LogStream::Stdout, true)
        );
        assert_eq!(push("stdout F ").unwrap().bytes, b"");
        assert_eq!(joiner.push(b"garbage\n"), None);
        assert!(joiner.push(format!("{time} stdout P open\n").as_bytes()).is_none());
        assert_eq!(joiner.finish().next().unwrap().bytes, b"open");
    }
}
