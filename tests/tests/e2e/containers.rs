//! One container, from `run` to `rm`.

use crate::{
    runner::Context,
    support::{IMAGE, ends_with, pause, stage, text, with_input},
};
use anyhow::{Context as _, Result, ensure};
use holdfast_chaos::{poll, process, stage::HEAL_DEADLINE};
use std::{fs, time::Duration};

pub fn run_gives_back_output_and_exit_code(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    let output = ends_with(node, 7, &["run", IMAGE, "sh", "-c", "echo out; echo err >&2; exit 7"])?;
    ensure!(output.stdout == "out\n" && output.stderr == "err\n", "{output:?}");
    for code in [0, 1, 255] {
        ends_with(node, code, &["run", IMAGE, "sh", "-c", &format!("exit {code}")])?;
    }
    ends_with(node, 137, &["run", IMAGE, "sh", "-c", "kill -9 $$"]).or_else(|_| {
        // The first process of a pid namespace ignores what it does not handle: pid_namespaces(7).
        ends_with(node, 0, &["run", IMAGE, "sh", "-c", "kill -9 $$"])
    })?;
    let ended = node.names("ps --all")?.len();
    let said = ends_with(node, 127, &["run", IMAGE, "no-such-program"])?.stderr;
    ensure!(said.contains("no-such-program"), "{said}");
    let said = ends_with(node, 126, &["run", IMAGE, "/etc/passwd"])?.stderr;
    ensure!(!said.trim().is_empty(), "126 without a word");
    ends_with(node, 125, &["run", "no-such-image", "true"])?;
    ensure!(node.names("ps --all")?.len() == ended, "a refused run left a container");
    ensure!(node.names("ps")?.is_empty(), "ended containers are listed as running");
    stage.finish()
}

pub fn run_rm_goes_with_its_end(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    let gone = |name: &str| {
        poll::until("the container to be gone", HEAL_DEADLINE, || {
            Ok((!node.names("ps --all")?.iter().any(|known| known == name)).then_some(()))
        })
    };
    ends_with(node, 5, &["run", "--rm", "--name", "front", IMAGE, "sh", "-c", "exit 5"])?;
    ensure!(node.names("ps --all")?.is_empty(), "run --rm left a container");
    // Detached: nobody waits for its end, and its name is free once more.
    for end in ["stop --time 0 back", "exec back kill -s USR1 1"] {
        let script = "trap 'exit 3' USR1; while :; do sleep 0.1; done";
        node.cli(&["run", "-d", "--rm", "--name", "back", IMAGE, "sh", "-c", script])?;
        node.sh(end)?;
        gone("back")?;
    }
    // Also when the daemon was away as it ended.
    node.cli(&["run", "-d", "--rm", "--name", "away", IMAGE, "pause"])?;
    let init = node.await_running("away", HEAL_DEADLINE)?.running()?;
    let daemon = node.await_processes("the node to be whole", HEAL_DEADLINE, |_| true)?.daemon;
    process::kill_all(&[daemon, init])?;
    gone("away")?;
    let said = ends_with(node, 125, &["run", "--rm", "--restart", "always", IMAGE, "true"])?.stderr;
    ensure!(said.contains("--rm") && said.contains("--restart"), "{said}");
    stage.finish()
}

pub fn run_options_are_exact(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    let shared = node.scratch.path().join("shared");
    fs::create_dir(&shared)?;
    fs::write(shared.join("seen"), "by the container\n")?;
    let (writable, read_only) = (format!("{}:/rw", shared.display()), format!("{}:/ro:ro", shared.display()));
    let script =
        "echo \"uid=$(id -u) gid=$(id -g) pwd=$(pwd) A=[$A] E=[$E] host=$(hostname)\"; cat /rw/seen /ro/seen";
    #[rustfmt::skip]
    let output = ends_with(node, 0, &[
        "run", "--name", "exact", "-e", "A=x  y=z", "-e", "E=", "-w", "/tmp", "-u", "1000:1001",
        "-v", &writable, "-v", &read_only, "--hostname", "here", "-l", "k=v", "--entrypoint", "/bin/sh",
        IMAGE, "-c", script,
    ])?;
    let wanted = "uid=1000 gid=1001 pwd=/tmp A=[x  y=z] E=[] host=here\nby the container\nby the container\n";
    ensure!(output.stdout == wanted, "{output:?}");
    let inspected = node.json("inspect exact")?;
    ensure!(text(&inspected, "/labels/k") == "v", "{inspected}");
    // As root in the container, which is the node's user outside.
    let script = "echo written > /rw/new && ! echo no > /ro/never 2>/dev/null";
    #[rustfmt::skip]
    ends_with(node, 0, &["run", "-v", &writable, "-v", &read_only, IMAGE, "sh", "-c", script])?;
    ensure!(fs::read_to_string(shared.join("new"))? == "written\n", "what it wrote is not there");
    ensure!(!shared.join("never").exists(), "it wrote to a read-only mount");
    let said = ends_with(node, 125, &["run", "-v", "/no/such/place:/x", IMAGE, "true"])?.stderr;
    ensure!(said.contains("/no/such/place"), "{said}");
    // Every field is kept over a restart: the spec is stored whole.
    let script = "echo $A $(pwd) $(id -u) $(hostname); exec pause";
    #[rustfmt::skip]
    node.cli(&["run", "-d", "--name", "kept", "-e", "A=a b", "-w", "/etc", "-u", "7:8", "--hostname", "h",
        "-v", &writable, IMAGE, "sh", "-c", script])?;
    node.sh("restart --time 1 kept")?;
    let logs = poll::until("two lines of log", HEAL_DEADLINE, || {
        let logs = node.sh("logs kept")?;
        Ok((logs.lines().count() == 2).then_some(logs))
    })?;
    ensure!(logs == "a b /etc 7 h\n".repeat(2), "{logs}");
    ends_with(node, 0, &["exec", "kept", "test", "-e", "/rw/seen"])?;
    stage.finish()
}

pub fn arguments_arrive_exactly(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    let arguments =
        ["a b", "q\"'`", "two\nlines", "", "$HOME ${x} $(id)", "--name", "-d", "back\\slash", "ü€😀", "*"];
    let script = "for a; do printf '[%s]' \"$a\"; done";
    let wanted: String = arguments.iter().map(|argument| format!("[{argument}]")).collect();
    let command = |head: &[&'static str]| -> Vec<&str> {
        head.iter().copied().chain(["sh", "-c", script, "sh"]).chain(arguments).collect()
    };
    let output = ends_with(node, 0, &command(&["run", "--name", "args", IMAGE]))?;
    ensure!(output.stdout.trim_end() == wanted, "run: {:?} and not {wanted:?}", output.stdout);
    let inspected = node.json("inspect args")?;
    let told: Vec<&str> = inspected["command"]
        .as_array()
        .context("no command")?
        .iter()
        .filter_map(|word| word.as_str())
        .collect();
    ensure!(told == command(&[]), "inspect tells {told:?}");
    node.sh("start args")?;
    poll::until("the second start's output", HEAL_DEADLINE, || {
        let logs = node.sh("logs args")?;
        Ok((logs.matches(wanted.as_str()).count() == 2).then_some(()))
    })?;
    pause(node, "idle", "")?;
    let output = ends_with(node, 0, &command(&["exec", "idle"]))?;
    ensure!(output.stdout == wanted, "exec: {:?} and not {wanted:?}", output.stdout);
    stage.finish()
}

pub fn lifecycle(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    let id = node.sh(&format!("run -d --name web {IMAGE} pause"))?.trim().to_owned();
    let first = node.await_running("web", HEAL_DEADLINE)?;
    let init = first.running()?;
    let inspected = node.json("inspect web")?;
    ensure!(text(&inspected, "/id") == id, "run printed {id:?}, inspect says {}", inspected["id"]);
    ensure!(inspected["pid"].as_u64() == Some(u64::from(init.pid)), "{} is not {init}", inspected["pid"]);
    ensure!(process::command_line(init.pid).contains("pause"), "pid {init} is something else");
    ensure!(node.names("ps")? == ["web"], "ps lists {:?}", node.names("ps")?);
    ensure!(
        text(&node.json(&format!("inspect {}", &id[..6]))?, "/name") == "web",
        "no beginning of an identity"
    );
    let said = node.refused("rm web")?;
    ensure!(said.contains("web") && init.is_alive(), "rm of a running container: {said}");
    node.sh("start web").context("start is idempotent")?;
    ensure!(node.container("web")?.init == first.init, "start of a running container restarted it");
    node.sh("stop --time 2 web")?;
    ensure!(!init.is_alive(), "stop did not end it");
    let stopped = node.container("web")?;
    ensure!(stopped.state == "exited" && stopped.exit_code == Some(0), "{stopped:?}");
    ensure!(node.names("ps")?.is_empty() && node.names("ps --all")? == ["web"], "ps of a stopped one");
    node.sh("stop web").context("stop is idempotent")?;
    ensure!(node.sh("wait web")?.trim() == "0", "wait tells another code");
    node.sh("start web")?;
    let second = node.await_running("web", HEAL_DEADLINE)?;
    ensure!(second.init != first.init && second.interfaces == first.interfaces, "{first:?} {second:?}");
    node.sh("restart --time 2 web")?;
    let third = node.await_running("web", HEAL_DEADLINE)?;
    ensure!(third.init != second.init && third.interfaces == first.interfaces, "{second:?} {third:?}");
    ensure!(third.restarts == 0, "restarts that were asked for are counted: {}", third.restarts);
    node.sh("rm --force web")?;
    ensure!(!third.running()?.is_alive(), "rm --force left the process");
    ensure!(node.names("ps --all")?.is_empty(), "rm left the record");
    for gone in ["inspect web", "stop web", "start web", "rm web", "logs web", "exec web true"] {
        let said = node.refused(gone)?;
        ensure!(said.contains("web"), "{gone}: {said}");
    }
    stage.finish()
}

pub fn exec_gives_back_streams_and_codes(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    pause(node, "idle", "-e A=container")?;
    let output = ends_with(node, 3, &["exec", "idle", "sh", "-c", "echo out; echo err >&2; exit 3"])?;
    ensure!(output.stdout == "out\n" && output.stderr == "err\n", "{output:?}");
    ends_with(node, 127, &["exec", "idle", "no-such-program"])?;
    ends_with(node, 126, &["exec", "idle", "/etc/passwd"])?;
    ends_with(node, 137, &["exec", "idle", "sh", "-c", "kill -9 $$"])?;
    let script = "echo $A $B $(pwd) $(id -u):$(id -g)";
    let options = ["exec", "-e", "B=b c", "-w", "/tmp", "-u", "5:6", "idle", "sh", "-c", script];
    let output = ends_with(node, 0, &options)?;
    ensure!(output.stdout == "container b c /tmp 5:6\n", "{output:?}");
    // Binary, longer than any buffer on the way, and ended by the end of the input.
    let input: Vec<u8> = (0..300_000_u32).flat_map(|index| format!("{index}\n").into_bytes()).collect();
    let output = with_input(node, &["exec", "-i", "idle", "cat"], &input)?;
    ensure!(
        output.status.success() && output.stdout.as_bytes() == input,
        "{} bytes came back",
        output.stdout.len()
    );
    // Without -i it reads the end of its input at once, and does not hang.
    let output = ends_with(node, 0, &["exec", "idle", "wc", "-c"])?;
    ensure!(output.stdout.trim() == "0", "{output:?}");
    let tty = ends_with(node, 0, &["exec", "-t", "idle", "sh", "-c", "test -t 1 && echo terminal"])?;
    ensure!(tty.stdout.trim() == "terminal", "{tty:?}");
    node.sh("stop --time 1 idle")?;
    let said = node.refused("exec idle true")?;
    ensure!(said.contains("idle"), "{said}");
    stage.finish()
}

pub fn logs_are_whole(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    let script = "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; echo bad >&2; printf end";
    node.cli(&["run", "-d", "--name", "talk", IMAGE, "sh", "-c", script])?;
    // Following ends with the container.
    let followed = node.try_cli(&["logs", "--follow", "talk"])?;
    ensure!(followed.status.success(), "{}", followed.stderr);
    let wanted: String = (0..2000).map(|index| format!("line {index}\n")).collect::<String>() + "end";
    ensure!(followed.stdout.trim_end() == wanted, "followed {} bytes", followed.stdout.len());
    ensure!(followed.stderr == "bad\n", "{:?}", followed.stderr);
    let whole = node.try_cli(&["logs", "talk"])?;
    ensure!(whole.stdout.trim_end() == wanted && whole.stderr == "bad\n", "logs differ from logs --follow");
    let tail = node.try_cli(&["logs", "--tail", "3", "talk"])?;
    let lines = tail.stdout.lines().count() + tail.stderr.lines().count();
    ensure!(lines == 3 && tail.stdout.contains("line 1999"), "{tail:?}");
    let stamped = node.sh("logs --timestamps --tail 2 talk")?;
    ensure!(stamped.lines().all(|line| line.starts_with("20") && line.contains('T')), "{stamped}");
    let none = node.try_cli(&["logs", "--since", "2100-01-01T00:00:00Z", "talk"])?;
    ensure!(none.status.success() && none.stdout.is_empty(), "{none:?}");
    stage.finish()
}

pub fn stop_asks_then_kills(context: &Context) -> Result<()> {
    let stage = stage(context)?;
    let node = &stage.node;
    let ready = |name: &str| {
        poll::until("the trap to be set", HEAL_DEADLINE, || {
            Ok(node.sh(&format!("logs {name}"))?.contains("ready").then_some(()))
        })
    };
    let script = "trap '' TERM; echo ready; while :; do sleep 1; done";
    node.cli(&["run", "-d", "--name", "deaf", IMAGE, "sh", "-c", script])?;
    ready("deaf")?;
    let output = ends_with(node, 0, &["stop", "--time", "1", "deaf"])?;
    let took = output.elapsed;
    ensure!(took >= Duration::from_secs(1) && took < Duration::from_secs(6), "a grace of 1 s took {took:?}");
    ensure!(node.container("deaf")?.exit_code == Some(137), "{:?}", node.container("deaf")?);
    let script = "trap 'exit 5' USR1; echo ready; while :; do sleep 60 & wait $!; done";
    node.cli(&["run", "-d", "--name", "asks", "--stop-signal", "USR1", IMAGE, "sh", "-c", script])?;
    ready("asks")?;
    let output = ends_with(node, 0, &["stop", "asks"])?;
    ensure!(output.elapsed < Duration::from_secs(5), "stop took {:?}", output.elapsed);
    ensure!(node.container("asks")?.exit_code == Some(5), "{:?}", node.container("asks")?);
    stage.finish()
}
