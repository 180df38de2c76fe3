//! The other process of the gate of determinism.

use crate::Which;
use holdfast_sim::runner::Digests;
use std::{
    io::Read,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Longer than any run that a person waits for.
const DEADLINE: Duration = Duration::from_secs(3_600);

/// The digests as another process finds them.
pub fn digests(which: &Which) -> Result<Digests, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(own);
    command.arg("digests").args(["--seeds", &which.seeds.to_string(), "--from", &which.from.to_string()]);
    command.args(["--profile", &which.profile, "--executor", &which.executor.to_string()]);
    command.args(["--jobs", &which.jobs.to_string()]);
    let text = said(&mut command, DEADLINE).map_err(|error| format!("the other process: {error}"))?;
    let digests: Digests = text.lines().filter_map(parse).collect();
    match digests.len() as u64 == which.seeds {
        true => Ok(digests),
        false => Err(format!("the other process gave {} digests of {}", digests.len(), which.seeds)),
    }
}

fn parse(line: &str) -> Option<(u64, u64)> {
    let (seed, digest) = line.split_once(' ')?;
    Some((seed.parse().ok()?, u64::from_str_radix(digest, 16).ok()?))
}

/// What a command prints, if it ends well and in time.
pub fn said(command: &mut Command, deadline: Duration) -> Result<String, String> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
    let mut out = child.stdout.take().ok_or("it has no output")?;
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut text = String::new();
            out.read_to_string(&mut text).map(|_| text).map_err(|error| error.to_string())
        });
        let ended = wait(&mut child, Instant::now() + deadline);
        let text = reader.join().map_err(|_| "its output could not be read".to_owned())?;
        ended.and(text)
    })
}

#[expect(clippy::disallowed_methods, reason = "it polls for the end, with a deadline")]
fn wait(child: &mut Child, deadline: Instant) -> Result<(), String> {
    loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("it ended with {status}")),
            None if Instant::now() >= deadline => {
                child.kill().and_then(|()| child.wait()).map_err(|error| error.to_string())?;
                return Err("it did not end in time".to_owned());
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}
