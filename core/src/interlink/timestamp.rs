//! RFC 3339 in UTC, without a calendar of the machine's.

use crate::time::Wall;
use alloc::{format, string::String};

/// `2026-12-01T08:30:00Z`, as Kubernetes writes times.
pub fn format(wall: Wall) -> String {
    let seconds = wall.0 / 1_000;
    let (year, month, day) = civil(seconds / 86_400);
    let of_day = seconds % 86_400;
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", of_day / 3_600, of_day / 60 % 60, of_day % 60)
}

/// Days since 1970-01-01 as year, month and day.
/// Source: Howard Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`.
fn civil(days: u64) -> (u64, u64, u64) {
    // Years of the furthest wall time fit 4 digits only until 9999: what is later is shown as its last day.
    let z = days.min(2_932_896) + 719_468;
    let era = z / 146_097;
    let doe = z % 146_097;
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + u64::from(month <= 2), month, day)
}

/// Reads RFC 3339; `None` when it is none. A time before 1970, such as Go's zero time, is [`Wall`] 0.
pub fn parse(text: &str) -> Option<Wall> {
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let mut parts = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || !(0..=9999).contains(&year) {
        return None;
    }
    let zone = time.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = time.split_at(zone);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let mut parts = clock.splitn(3, ':').map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
    if !(0..24).contains(&hour) || !(0..60).contains(&minute) || !(0..=60).contains(&second) {
        return None;
    }
    if fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let mut milli: i64 = 0;
    for place in 0..3 {
        milli = milli * 10 + fraction.as_bytes().get(place).map_or(0, |digit| i64::from(digit - b'0'));
    }
    let offset = match zone {
        "Z" | "z" => 0,
        _ => {
            let sign = if zone.starts_with('-') { -1 } else { 1 };
            let (hours, minutes) = zone.get(1..)?.split_once(':')?;
            let (hours, minutes) = (hours.parse::<i64>().ok()?, minutes.parse::<i64>().ok()?);
            ((0..24).contains(&hours) && (0..60).contains(&minutes)).then_some(())?;
            sign * (hours * 60 + minutes) * 60
        }
    };
    let seconds = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second - offset;
    Some(Wall(u64::try_from(seconds.checked_mul(1_000)? + milli).unwrap_or(0)))
}

/// The inverse of [`civil`], for any year. Source: as there, `days_from_civil`.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let yoe = year.rem_euclid(400);
    let doy = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let doe = yoe * 365 + yoe / 4 - yoe / 100 + doy;
    era * 146_097 + doe - 719_468
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (1_796_113_800_000, "2026-12-01T08:30:00Z"),
        ] {
            assert_eq!(format(Wall(ms)), text);
            assert_eq!(parse(text), Some(Wall(ms)), "{text}");
        }
        assert_eq!(parse("2026-12-01T09:30:00.25+01:00"), Some(Wall(1_796_113_800_250)));
        assert_eq!(parse("2026-12-01T07:30:00.123456789-01:00"), Some(Wall(1_796_113_800_123)));
        assert_eq!(parse("0001-01-01T00:00:00Z"), Some(Wall(0)));
        for text in
            ["", "2026-12-01", "2026-13-01T00:00:00Z", "2026-12-01T00:00:00", "x", "2026-12-01T25:00:00Z"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(format(Wall(u64::MAX)).len(), 20);
    }

    #[test]
    fn every_day_of_five_centuries_comes_back() {
        for day in 0..(500 * 366) {
            let wall = Wall(day * 86_400_000);
            assert_eq!(parse(&format(wall)), Some(wall));
        }
    }
}
