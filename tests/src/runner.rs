//! Runs cases on the real kernel one after the other, each in a process that can be given up on. Run as root, a
//! case becomes the user that `HOLDFAST_TEST_USER` names (default `holdfast`) before it touches the node.

use anyhow::{Context as _, Result, bail};
use holdfast_chaos::{
    command,
    identity::{CHAOS_BINARY_VARIABLE, Identity, NODE_BINARY_VARIABLE},
    node::SCRATCH_VARIABLE,
    privileged::{self, Preparation, Prepared},
    process::{self, Process},
    report::{Outcome, Verdict},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::Arc,
    time::{Duration, Instant},
};

/// How long a case may take, its clean-up included.
const DEADLINE: Duration = Duration::from_secs(90);

/// What a case is given.
#[derive(Debug)]
pub struct Context {
    /// The case's own name.
    pub name: &'static str,
    /// Who runs the node.
    pub identity: Arc<Identity>,
    /// What was prepared with root's help.
    pub prepared: Prepared,
}

/// A named case.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    name: &'static str,
    play: fn(&Context) -> Result<()>,
    preparation: Preparation,
    binaries: bool,
}

/// A case that needs nothing prepared.
pub const fn case(name: &'static str, play: fn(&Context) -> Result<()>) -> Case {
    Case { name, play, preparation: Preparation::None, binaries: true }
}

impl Case {
    /// The same with something that root must do first.
    pub const fn prepared(mut self, preparation: Preparation) -> Self {
        self.preparation = preparation;
        self
    }

    /// The same where the test's own program is the node: neither `holdfast` nor `holdfast-chaos` is run.
    pub const fn without_binaries(mut self) -> Self {
        self.binaries = false;
        self
    }

    fn identity(&self) -> Result<Identity> {
        if self.binaries { Identity::find() } else { Identity::find_user() }
    }
}

/// A test program's `main`: `--case NAME` plays one case here, `--list` lists them, and arguments without a dash
/// select cases by a part of their name.
pub fn main(cases: &[Case]) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--case", name] => play(cases, name),
        _ => run(cases, &arguments),
    };
    result.unwrap_or_else(failed)
}

/// A run that could not be made, in the words that are counted.
pub fn failed(error: anyhow::Error) -> ExitCode {
    println!("error: {error:#}");
    println!("test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out");
    ExitCode::FAILURE
}

/// Runs the selected cases; a line each and a summary as cargo's own harness prints it.
///
/// # Errors
/// When the node's user or a binary does not exist, and I/O errors.
pub fn run(cases: &[Case], arguments: &[String]) -> Result<ExitCode> {
    let parts: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let selected = |case: &&Case| parts.is_empty() || parts.iter().any(|part| case.name.contains(*part));
    let chosen: Vec<&Case> = cases.iter().filter(selected).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        chosen.iter().for_each(|case| println!("{}: test", case.name));
        return Ok(ExitCode::SUCCESS);
    }
    let Some(first) = chosen.first() else { bail!("no case's name holds {parts:?}") };
    let identity = first.identity()?;
    println!("\nrunning {} tests as {} (uid {})", chosen.len(), identity.user, identity.uid);
    let (mut passed, mut ignored, mut failures) = (0, 0, Vec::new());
    let started = Instant::now();
    for case in &chosen {
        let began = Instant::now();
        let verdict = play_apart(case, &identity)?;
        let seconds = began.elapsed().as_secs_f64();
        match verdict {
            Verdict::Pass(_) => {
                passed += 1;
                println!("test {} ... ok ({seconds:.1} s)", case.name);
            }
            Verdict::Skip(missing) => {
                ignored += 1;
                println!("test {} ... ignored, NOT TRIED: it needs {missing}", case.name);
            }
            Verdict::Fail(cause) => {
                println!("test {} ... FAILED ({seconds:.1} s)\n    {cause}", case.name);
                failures.push(format!("{}: {cause}", case.name));
            }
        }
    }
    if !failures.is_empty() {
        println!("\nfailures:");
        failures.iter().for_each(|failure| println!("    {failure}"));
    }
    let word = if failures.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {passed} passed; {} failed; {ignored} ignored; 0 measured; {} filtered out; \
         finished in {:.2}s\n",
        failures.len(),
        cases.len() - chosen.len(),
        started.elapsed().as_secs_f64()
    );
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn play_apart(case: &Case, identity: &Identity) -> Result<Verdict> {
    let scratch = tempfile_in_tmp(identity.uid)?;
    let mut child = Command::new(std::env::current_exe()?);
    child.args(["--case", case.name]);
    if case.binaries {
        child.env(NODE_BINARY_VARIABLE, &identity.holdfast).env(CHAOS_BINARY_VARIABLE, &identity.chaos);
    }
    child.env(SCRATCH_VARIABLE, scratch.path());
    let verdict = match command::run(&mut child, DEADLINE) {
        Ok(output) => {
            let verdict = Verdict::parse(&output.stdout);
            if matches!(verdict, Verdict::Fail(_)) && !output.stderr.trim().is_empty() {
                println!("{}", output.stderr.trim_end());
            }
            verdict
        }
        Err(error) => Verdict::Fail(format!("{error:#}")),
    };
    // A case cleans up by itself; one that was given up on did not.
    process::kill_all(&relatives(scratch.path()))?;
    Ok(verdict)
}

fn tempfile_in_tmp(owner: u32) -> Result<Scratch> {
    // Short: a unix socket's path holds 108 bytes, unix(7).
    let path = PathBuf::from(format!("/tmp/hfe-{}", std::process::id()));
    fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
    let scratch = Scratch(path);
    std::os::unix::fs::chown(scratch.path(), Some(owner), None)?;
    Ok(scratch)
}

/// A directory that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Files of subordinate ids stay where an ordinary user runs this; the leak check has named them.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Processes with the scratch directory in their environment or arguments.
fn relatives(scratch: &Path) -> Vec<Process> {
    let mark = scratch.display().to_string();
    let own = std::process::id();
    let belongs = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        *pid != own
            && (process::command_line(*pid).contains(&mark)
                || String::from_utf8_lossy(&environment).contains(&mark))
    };
    process::all().into_iter().filter(belongs).filter_map(Process::of).collect()
}

/// Plays one case in this process: what needs root first, then as the node's user.
///
/// # Errors
/// When there is no such case or no such user; a case that fails is no error but says so in its last line.
pub fn play(cases: &[Case], name: &str) -> Result<ExitCode> {
    let case = cases.iter().find(|case| case.name == name).with_context(|| format!("no case {name:?}"))?;
    let identity = case.identity()?;
    let scratch = std::env::var_os(SCRATCH_VARIABLE).map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
    let prepared = privileged::prepare(case.preparation, &identity, &scratch);
    identity.assume()?;
    let result = match prepared {
        Prepared::Missing(missing) => Ok(Outcome::Skip(missing)),
        prepared => {
            let context = Context { name: case.name, identity: Arc::new(identity), prepared };
            (case.play)(&context).map(|()| Outcome::Pass(String::new()))
        }
    };
    // A pass without detail is a line of its own all the same.
    println!("{}", Verdict::of(result));
    Ok(ExitCode::SUCCESS)
}
