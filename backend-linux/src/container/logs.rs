//! What a container wrote: a reader of conmon's k8s-file log, one line `TIME STREAM TAG TEXT` per write, where the tag
//! is F for a whole line and P for a part that goes on in the stream's next entry (the CRI log format).

mod line;

use super::{LinuxContainers, fault::io_fail};
use crate::process::is_alive;
use holdfast_core::{
    error::ContainerError,
    id::{ContainerId, ProcessRef},
};
use line::Joiner;
pub use line::{LogEntry, LogStream};
use std::{
    collections::VecDeque,
    fs::File,
    io::{self, BufRead, BufReader, Seek, SeekFrom},
    path::PathBuf,
    time::Duration,
};
use tokio::sync::mpsc;

/// How often a followed log is looked at.
const FOLLOW_PERIOD: Duration = Duration::from_millis(100);
/// Entries read ahead of whoever reads the stream.
const ENTRIES_AHEAD_MAX: usize = 256;
/// The longest raw line; conmon writes at most a buffer (8 KiB) per line.
const RAW_LINE_BYTES_MAX: u64 = 1024 * 1024;

/// Which entries are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Only the last so many entries.
    pub tail: Option<usize>,
    /// Only entries not older than this, in nanoseconds since 1970.
    pub since_ns: Option<u64>,
    /// Goes on with what is written later.
    pub follow: bool,
    /// Ends a follow when this process is dead and all it wrote has been read; `None` follows until the receiver is
    /// dropped.
    pub follow_until: Option<ProcessRef>,
}

impl LinuxContainers {
    /// Where the monitor writes the container's output, over all its incarnations.
    pub fn log_path(&self, id: &ContainerId) -> PathBuf {
        self.paths.container(id.as_str()).join("log")
    }

    /// Reads a container's log. A container that wrote nothing has an empty one. Needs a tokio runtime; dropping the
    /// receiver ends the reading.
    pub fn logs(
        &self,
        id: &ContainerId,
        options: LogOptions,
    ) -> mpsc::Receiver<Result<LogEntry, ContainerError>> {
        logs_of(self.log_path(id), id.as_str(), options)
    }
}

/// The same of a log that lies anywhere.
pub fn logs_of(
    path: PathBuf,
    subject: &str,
    options: LogOptions,
) -> mpsc::Receiver<Result<LogEntry, ContainerError>> {
    let (sender, receiver) = mpsc::channel(ENTRIES_AHEAD_MAX);
    let subject = subject.to_owned();
    tokio::spawn(async move {
        if let Err(error) = read(path, options, &sender).await {
            // Nobody to tell it to when the receiver is gone.
            let _ = sender.send(Err(io_fail("read the log of", &subject, error))).await;
        }
    });
    receiver
}

async fn read(
    path: PathBuf,
    options: LogOptions,
    sender: &mpsc::Sender<Result<LogEntry, ContainerError>>,
) -> io::Result<()> {
    let Some(file) = open(&path, &options, sender).await? else { return Ok(()) };
    let start = match options.tail {
        Some(tail) => {
            let file = file.try_clone()?;
            tokio::task::spawn_blocking(move || tail_offset(file, tail)).await.map_err(io::Error::other)??
        }
        None => 0,
    };
    let mut file = BufReader::new(file);
    file.seek(SeekFrom::Start(start))?;
    let mut joiner = Joiner::default();
    let mut raw = Vec::new();
    loop {
        // Looked at before the read: what was written before its death is read after it.
        let last = options.follow_until.as_ref().is_some_and(|process| !is_alive(process));
        while io::Read::take(&mut file, RAW_LINE_BYTES_MAX).read_until(b'\n', &mut raw)? > 0 {
            if raw.last() != Some(&b'\n') && raw.len() < RAW_LINE_BYTES_MAX as usize {
                // Still being written.
                break;
            }
            let entry = joiner.push(&raw);
            raw.clear();
            let Some(entry) = entry else { continue };
            if options.since_ns.is_some_and(|since| entry.time_ns < since) {
                continue;
            }
            if sender.send(Ok(entry)).await.is_err() {
                return Ok(());
            }
        }
        if !options.follow || last {
            break;
        }
        tokio::select! {
            () = sender.closed() => return Ok(()),
            () = tokio::time::sleep(FOLLOW_PERIOD) => {}
        }
    }
    // A last line without its end is an entry too, once nothing can follow.
    for entry in joiner.finish() {
        if options.since_ns.is_none_or(|since| entry.time_ns >= since)
            && sender.send(Ok(entry)).await.is_err()
        {
            break;
        }
    }
    Ok(())
}

/// Opens the log; waits for it to appear where it is followed.
async fn open(
    path: &PathBuf,
    options: &LogOptions,
    sender: &mpsc::Sender<Result<LogEntry, ContainerError>>,
) -> io::Result<Option<File>> {
    loop {
        let last = options.follow_until.as_ref().is_some_and(|process| !is_alive(process));
        match File::open(path) {
            Ok(file) => return Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        if !options.follow || last {
            return Ok(None);
        }
        tokio::select! {
            () = sender.closed() => return Ok(None),
            () = tokio::time::sleep(FOLLOW_PERIOD) => {}
        }
    }
}

/// Where the last `tail` entries begin. One pass, remembering `tail` offsets: where entries of two streams are
/// interleaved in parts, no shorter look would be right.
fn tail_offset(file: File, tail: usize) -> io::Result<u64> {
    let mut file = BufReader::new(file);
    let (mut offset, mut raw) = (0u64, Vec::new());
    let mut starts: VecDeque<u64> = VecDeque::new();
    // Per stream, where the entry that is being written began.
    let mut open: [Option<u64>; 2] = [None; 2];
    loop {
        raw.clear();
        let read = io::Read::take(&mut file, RAW_LINE_BYTES_MAX).read_until(b'\n', &mut raw)? as u64;
        if read == 0 {
            break;
        }
        if let Some((stream, whole)) = line::tag(&raw) {
            let start = open[stream as usize].take().unwrap_or(offset);
            if whole {
                starts.push_back(start);
                if starts.len() > tail {
                    starts.pop_front();
                }
            } else {
                open[stream as usize] = Some(start);
            }
        }
        offset += read;
    }
    // A last line without its end is an entry like another.
    let mut unfinished: Vec<u64> = open.into_iter().flatten().collect();
    unfinished.sort_unstable();
    starts.extend(unfinished);
    let last = starts.iter().skip(starts.len().saturating_sub(tail));
    Ok(last.min().copied().unwrap_or(offset))
}
