//! What `/proc/PID/stat` tells of a process, and the boot it is of.

use holdfast_core::id::{BootId, ProcessRef};
use std::{io, sync::OnceLock};

/// Overrides the boot id, so that a test can play a reboot.
const BOOT_ID_VARIABLE: &str = "HOLDFAST_BOOT_ID";

/// The fields of `/proc/PID/stat` that Holdfast uses; proc_pid_stat(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Field 3: one letter.
    pub state: u8,
    /// Field 4: the parent's pid; 0 where the parent is in another pid namespace.
    pub parent: u32,
    /// Field 22: clock ticks between boot and start.
    pub start_time_ticks: u64,
}

impl Stat {
    /// Zombies and processes being torn down are dead: nothing runs in them, and they keep no namespace.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }
}

/// Reads the state of a pid; `None` if no process has it.
///
/// # Errors
/// I/O errors other than "no such process", and a line that is not as proc_pid_stat(5) says.
pub fn read_stat(pid: u32) -> io::Result<Option<Stat>> {
    match std::fs::read(format!("/proc/{pid}/stat")) {
        Ok(line) => parse_stat(&line).map(Some).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat cannot be understood"))
        }),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// The name (field 2) may hold anything, spaces and parentheses too: the last `)` ends it.
fn parse_stat(line: &[u8]) -> Option<Stat> {
    let end = line.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(line.get(end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let parent = fields.next()?.parse().ok()?;
    // Field 5 is next; field 22 is 17 further on.
    let start_time_ticks = fields.nth(17)?.parse().ok()?;
    Some(Stat { state, parent, start_time_ticks })
}

/// The running boot: `/proc/sys/kernel/random/boot_id`, read once; the variable `HOLDFAST_BOOT_ID` replaces
/// it.
///
/// # Errors
/// When procfs cannot be read.
pub fn boot_id() -> io::Result<BootId> {
    static BOOT_ID: OnceLock<BootId> = OnceLock::new();
    if let Some(id) = BOOT_ID.get() {
        return Ok(id.clone());
    }
    let raw = match std::env::var(BOOT_ID_VARIABLE) {
        Ok(id) if !id.is_empty() => id,
        _ => std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?,
    };
    Ok(BOOT_ID.get_or_init(|| BootId::from_raw(raw.trim())).clone())
}

/// The identity of the process that has this pid now; `None` when none has, or a zombie.
///
/// # Errors
/// As [`read_stat`] and [`boot_id`].
pub fn process_ref(pid: u32) -> io::Result<Option<ProcessRef>> {
    let boot_id = boot_id()?;
    Ok(read_stat(pid)?.filter(|stat| !stat.is_dead()).map(|stat| ProcessRef {
        pid,
        start_time_ticks: stat.start_time_ticks,
        boot_id,
    }))
}

/// This process.
///
/// # Errors
/// As [`process_ref`].
pub fn own_process() -> io::Result<ProcessRef> {
    process_ref(std::process::id())?
        .ok_or_else(|| io::Error::other("/proc does not show this process: is it mounted?"))
}

/// Whether exactly this process runs. One of another boot does not, nor one whose pid another has now, nor a
/// zombie, nor one whose state cannot be read.
pub fn is_alive(process: &ProcessRef) -> bool {
    boot_id().is_ok_and(|boot| boot == process.boot_id)
        && read_stat(process.pid)
            .ok()
            .flatten()
            .is_some_and(|stat| !stat.is_dead() && stat.start_time_ticks == process.start_time_ticks)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let line = b"17 (a) R 1 (b) ) S 4 17 17 0 -1 4194560 90 0 0 0 0 0 0 0 20 0 1 0 98765 2600960 200";
        assert_eq!(parse_stat(line), Some(Stat { state: b'S', parent: 4, start_time_ticks: 98765 }));
        assert_eq!(parse_stat(b"17 (short) S 4"), None);
        assert_eq!(parse_stat(b""), None);
    }

    #[test]
    fn own_process_is_alive_and_another_start_time_or_boot_is_not() {
        let own = own_process().unwrap();
        assert!(is_alive(&own));
        let mut other = own.clone();
        other.start_time_ticks += 1;
        assert!(!is_alive(&other));
        let mut other = own;
        other.boot_id = BootId::from_raw("another");
        assert!(!is_alive(&other));
    }
}
