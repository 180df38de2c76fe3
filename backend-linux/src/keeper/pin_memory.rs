//! Gives back the memory that a process used to start, so that a pin costs next to nothing.

/// Address ranges that can be dropped because the kernel can read them from their file again.
///
/// Read from smaps (proc_pid_smaps(5)). Only ranges of a file without a single changed page count: the relocated
/// constants of a position-independent program are read-only too, and dropping them would lose the relocations.
pub fn droppable_ranges() -> Vec<(usize, usize)> {
    let Ok(smaps) = std::fs::read_to_string("/proc/self/smaps") else { return Vec::new() };
    parse(&smaps)
}

fn parse(smaps: &str) -> Vec<(usize, usize)> {
    let mut ranges = Vec::new();
    let mut candidate = None;
    for line in smaps.lines() {
        if let Some(header) = header(line) {
            candidate = header;
        } else if let Some(size) = line.strip_prefix("Anonymous:") {
            ranges.extend(candidate.take().filter(|_| size.trim() == "0 kB"));
        }
    }
    ranges
}

/// `Some(range)` for the first line of a mapping: the range if it is of a file and not writable.
fn header(line: &str) -> Option<Option<(usize, usize)>> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    let permissions = fields.next()?;
    let path = fields.nth(3).unwrap_or_default();
    let fits = path.starts_with('/') && permissions.as_bytes().get(1) == Some(&b'-');
    Some(fits.then_some((start, end)))
}

/// Drops the ranges and what the allocator has free. Code that runs again is read from its file again.
pub fn drop_ranges(ranges: &[(usize, usize)]) {
    #[cfg(target_env = "gnu")]
    // SAFETY: gives free memory back; nothing that is in use changes.
    unsafe {
        libc::malloc_trim(0);
    }
    for (start, end) in ranges {
        // SAFETY: an unchanged mapping of a file keeps its content: the kernel reads it again on the next access.
        unsafe { libc::madvise(*start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unchanged_read_only_ranges_of_files_are_dropped() {
        let smaps = "\
1000-2000 r-xp 00000000 fe:00 1 /bin/a
Rss: 4 kB
Anonymous:             0 kB
2000-3000 r--p 00001000 fe:00 1 /bin/a
Anonymous:             4 kB
3000-4000 rw-p 00002000 fe:00 1 /bin/a
Anonymous:             0 kB
4000-5000 rw-p 00000000 00:00 0 [heap]
Anonymous:             0 kB
5000-6000 r--p 00000000 00:00 0
Anonymous:             0 kB
";
        assert_eq!(parse(smaps), [(0x1000, 0x2000)]);
    }
}
