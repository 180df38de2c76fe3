//! Further processes in a container.

use crate::node::{Node, until, zombies_of_this_process};
use holdfast_core::{error::Class, plan::ContainerPlan, world::Containers};
use holdfast_linux::container::exec::{ExecSession, ExecSpec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn spec(argv: &[&str]) -> ExecSpec {
    ExecSpec {
        argv: argv.iter().map(|text| (*text).to_owned()).collect(),
        working_dir: "/".into(),
        ..ExecSpec::default()
    }
}

async fn running() -> (Node, ContainerPlan) {
    let node = Node::new();
    let plan = node.plan("000000000001", &["/bin/sleep", "1000"]);
    node.start(&plan).await;
    (node, plan)
}

async fn exec(node: &Node, plan: &ContainerPlan, spec: &ExecSpec) -> ExecSession {
    node.containers.exec(&plan.id, &node.pin, spec).await.unwrap()
}

async fn finish(
    mut session: ExecSession,
) -> (String, String, Result<i32, holdfast_core::error::ContainerError>) {
    drop(session.stdin.take());
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let (mut stdout, mut stderr) = (session.stdout.take().unwrap(), session.stderr.take().unwrap());
    let (first, second) = tokio::join!(stdout.read_to_end(&mut out), stderr.read_to_end(&mut err));
    first.unwrap();
    second.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(out), text(err), session.wait().await)
}

async fn end(node: &Node, plan: &ContainerPlan) {
    node.stop(plan).await;
    node.containers.remove_files(&plan.id, Some(&node.pin)).await.unwrap();
    node.assert_clean();
}

pub async fn streams_are_binary_safe() {
    let (node, plan) = running().await;
    let mut session = exec(&node, &plan, &ExecSpec { stdin: true, ..spec(&["/bin/cat"]) }).await;
    let sent: Vec<u8> = (0..3_000_000u32).map(|number| (number * 7 + number / 251) as u8).collect();
    let (mut stdin, mut stdout) = (session.stdin.take().unwrap(), session.stdout.take().unwrap());
    let copy = sent.clone();
    let writer = tokio::spawn(async move { stdin.write_all(&copy).await });
    let mut received = Vec::new();
    stdout.read_to_end(&mut received).await.unwrap();
    writer.await.unwrap().unwrap();
    assert!(received == sent, "{} bytes of {} came back, or others", received.len(), sent.len());
    assert_eq!(session.wait().await, Ok(0));
    let (out, err, code) =
        finish(exec(&node, &plan, &spec(&["/bin/sh", "-c", "echo out; echo err >&2; cat; exit 4"])).await)
            .await;
    assert_eq!((out.as_str(), err.as_str(), code), ("out\n", "err\n", Ok(4)));
    end(&node, &plan).await;
}

pub async fn exit_codes_and_failures_are_told_apart() {
    let (node, plan) = running().await;
    // A process may exit with whatever code crun itself fails with.
    for code in [0, 1, 125, 126, 127, 255] {
        let (_, _, got) =
            finish(exec(&node, &plan, &spec(&["/bin/sh", "-c", &format!("exit {code}")])).await).await;
        assert_eq!(got, Ok(code));
    }
    let (_, _, killed) = finish(exec(&node, &plan, &spec(&["/bin/sh", "-c", "kill -9 $$"])).await).await;
    assert_eq!(killed, Ok(137));
    let (_, _, missing) = finish(exec(&node, &plan, &spec(&["/bin/nope"])).await).await;
    let error = missing.unwrap_err();
    assert!(error.class == Class::Missing && error.to_string().contains("/bin/nope"), "{error}");
    let mut other = spec(&["/bin/sh", "-c", "id -u; id -g; pwd; echo $A"]);
    (other.user, other.working_dir, other.env) = ((5, 6), "/tmp".into(), vec![("A".into(), "x y".into())]);
    let (out, _, code) = finish(exec(&node, &plan, &other).await).await;
    assert_eq!((out.as_str(), code), ("5\n6\n/tmp\nx y\n", Ok(0)));
    let absent = holdfast_core::id::ContainerId::from_raw("00000000dead");
    let session = node.containers.exec(&absent, &node.pin, &spec(&["/bin/true"])).await.unwrap();
    let error = finish(session).await.2.unwrap_err();
    assert!(error.to_string().contains("00000000dead"), "{error}");
    end(&node, &plan).await;
}

pub async fn two_hundred_execs_leave_nothing() {
    let (node, plan) = running().await;
    let from = std::time::Instant::now();
    for round in 0..50 {
        // Failures too: crun leaves their child unwaited for, and a container with a zombie could not end.
        let failing = spec(&["/bin/nope"]);
        let good = spec(&["/bin/true"]);
        let sessions = [&good, &good, &failing, &good];
        let results = futures_util::future::join_all(
            sessions.map(async |spec| finish(exec(&node, &plan, spec).await).await.2),
        )
        .await;
        assert_eq!(
            results.iter().filter(|result| **result == Ok(0)).count(),
            3,
            "round {round}: {results:?}"
        );
    }
    println!("     200 execs in {} ms", from.elapsed().as_millis());
    assert_eq!(zombies_of_this_process(), [0u32; 0]);
    let from = std::time::Instant::now();
    end(&node, &plan).await;
    assert!(from.elapsed().as_secs() < 5, "the container could not end: {:?}", from.elapsed());
}

async fn count_of(node: &Node, plan: &ContainerPlan, needle: &str) -> usize {
    let (out, _, _) = finish(exec(node, plan, &spec(&["/bin/ps", "-o", "args"])).await).await;
    out.lines().filter(|line| line.contains(needle)).count()
}

pub async fn a_killed_or_dropped_session_kills_its_process() {
    let (node, plan) = running().await;
    for drops in [false, true] {
        let mut session = exec(&node, &plan, &spec(&["/bin/sh", "-c", "echo up; sleep 777; true"])).await;
        let mut byte = [0];
        session.stdout.as_mut().unwrap().read_exact(&mut byte).await.unwrap();
        assert!(count_of(&node, &plan, "777").await > 0);
        if drops {
            drop(session);
        } else {
            session.kill();
            assert_eq!(session.wait().await, Ok(137));
        }
        until("the shell's end", async || (count_of(&node, &plan, "echo up").await == 0).then_some(())).await;
    }
    end(&node, &plan).await;
}

pub async fn a_terminal_is_given_and_resized() {
    let (node, plan) = running().await;
    let script = "stty size; read line; stty size; echo \"got $line\"; exit 5";
    let mut session =
        exec(&node, &plan, &ExecSpec { tty: Some((30, 90)), ..spec(&["/bin/sh", "-c", script]) }).await;
    let mut terminal = session.terminal.take().unwrap();
    let mut text = String::new();
    let mut buffer = [0; 1024];
    let mut resized = false;
    loop {
        let read = tokio::time::timeout(std::time::Duration::from_secs(10), terminal.read(&mut buffer)).await;
        let read = read.unwrap_or_else(|_| panic!("nothing more after {text:?}")).unwrap();
        if read == 0 {
            break;
        }
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
        if !resized && text.contains("\n") {
            resized = true;
            terminal.resize(41, 123).unwrap();
            terminal.write_all(b"hello\n").await.unwrap();
        }
    }
    assert_eq!(session.wait().await, Ok(5), "{text:?}");
    for needle in ["41 123", "got hello"] {
        assert!(text.contains(needle), "{text:?}");
    }
    let mut missing = exec_tty_error(&node, &plan).await;
    missing.make_ascii_lowercase();
    assert!(missing.contains("/bin/nope"), "{missing}");
    end(&node, &plan).await;
}

async fn exec_tty_error(node: &Node, plan: &ContainerPlan) -> String {
    match node
        .containers
        .exec(&plan.id, &node.pin, &ExecSpec { tty: Some((24, 80)), ..spec(&["/bin/nope"]) })
        .await
    {
        Err(error) => error.to_string(),
        Ok(mut session) => session.wait().await.unwrap_err().to_string(),
    }
}

/// After a replug the pin has another mount namespace than the one in which the container was made.
pub async fn exec_works_from_a_new_mount_namespace() {
    let (mut node, plan) = running().await;
    let started = node.start(&plan).await;
    node.replace_pin();
    node.forget();
    let (out, err, code) =
        finish(exec(&node, &plan, &spec(&["/bin/sh", "-c", "touch /tmp/x && echo in"])).await).await;
    assert_eq!((out.as_str(), err.as_str(), code), ("in\n", "", Ok(0)));
    assert_eq!(node.start(&plan).await, started);
    assert_eq!(node.stop(&plan).await, Some(137));
    let mut next = plan.clone();
    (next.incarnation, next.argv) = (2, vec!["/bin/ls".into(), "/tmp/x".into()]);
    assert_eq!(node.output(&next).await, ("/tmp/x".to_owned(), Some(0)));
    node.assert_clean();
}
