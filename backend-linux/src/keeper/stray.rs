//! Pins that nobody knows.

use crate::process::process_ref;
use holdfast_core::id::ProcessRef;
use std::{
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
};

/// Living pins of this user whose command line names this state root.
pub(super) fn pins(state: &Path) -> Vec<ProcessRef> {
    let own = nix::unistd::getuid().as_raw();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry)))
        .filter(|(_, entry)| entry.metadata().is_ok_and(|metadata| metadata.uid() == own))
        .filter(|(_, entry)| {
            std::fs::read(entry.path().join("cmdline"))
                .is_ok_and(|line| is_pin_of(&line, state.as_os_str().as_bytes()))
        })
        .filter_map(|(pid, _)| process_ref(pid).ok().flatten())
        .collect()
}

/// `holdfast pin --state STATE …`, each argument ended by NUL; proc_pid_cmdline(5).
fn is_pin_of(line: &[u8], state: &[u8]) -> bool {
    let mut arguments = line.split(|byte| *byte == 0);
    arguments.next() == Some(b"holdfast")
        && arguments.next() == Some(b"pin")
        && arguments.next() == Some(b"--state")
        && arguments.next() == Some(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pin_of_exactly_this_root_counts() {
        assert!(is_pin_of(b"holdfast\0pin\0--state\0/a\0--join\0", b"/a"));
        assert!(!is_pin_of(b"holdfast\0pin\0--state\0/ab\0", b"/a"));
        assert!(!is_pin_of(b"holdfast\0control\0--state\0/a\0", b"/a"));
        assert!(!is_pin_of(b"", b"/a"));
    }
}
