//! Runs cases one after the other, each in a process that can be given up on.

use anyhow::{Context as _, Result};
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
}

/// A case that needs nothing prepared.
pub const fn case(name: &'static str, play: fn(&Context) -> Result<()>) -> Case {
    Case { name, play, preparation: Preparation::None }
}

impl Case {
    /// The same with something that root must do first.
    pub const fn prepared(mut self, preparation: Preparation) -> Self {
        self.preparation = preparation;
        self
    }
}

/// Runs the selected cases; a line each and a summary as cargo's own harness prints it.
pub fn run(cases: &[Case], arguments: &[String]) -> Result<ExitCode> {
    let parts: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let selected = |case: &&Case| parts.is_empty() || parts.iter().any(|part| case.name.contains(*part));
    let chosen: Vec<&Case> = cases.iter().filter(selected).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        chosen.iter().for_each(|case| println!("{}: test", case.name));
        return Ok(ExitCode::SUCCESS);
    }
    let identity = Identity::find()?;
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
    child.env(NODE_BINARY_VARIABLE, &identity.holdfast).env(CHAOS_BINARY_VARIABLE, &identity.chaos);
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
pub fn play(cases: &[Case], name: &str) -> Result<ExitCode> {
    let case = cases.iter().find(|case| case.name == name).with_context(|| format!("no case {name:?}"))?;
    let identity = Identity::find()?;
    let scratch = std::env::var_os(SCRATCH_VARIABLE).map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
    let prepared = privileged::prepare(case.preparation, &identity, &scratch);
    identity.assume()?;
    let result = match prepared {
        Prepared::Missing(missing) => Ok(Outcome::Skip(missing)),
        prepared => {
            let context = Context { identity: Arc::new(identity), prepared };
            (case.play)(&context).map(|()| Outcome::Pass(String::new()))
        }
    };
    // A pass without detail is a line of its own all the same.
    println!("{}", Verdict::of(result));
    Ok(ExitCode::SUCCESS)
}
