//! The helpers that count packets, tried in a network namespace made for it: no node is needed.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use holdfast_chaos::{
    command,
    identity::Identity,
    poll,
    process::Process,
    traffic::{Pinger, Stream, ping_some},
};
use std::{
    net::Ipv4Addr,
    process::{Child, Command, Stdio},
    time::Duration,
};

const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// A sleeper in user and network namespaces of its own, with `lo` up.
struct Network(Child, Process);

impl Network {
    fn new() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", "sleep", "300"]).stdin(Stdio::null());
        let child = command.spawn().unwrap();
        let own = holdfast_chaos::process::namespace(std::process::id(), "net");
        let process = poll::until("unshare to make the namespaces", Duration::from_secs(10), || {
            let moved = holdfast_chaos::process::command_line(child.id()).starts_with("sleep");
            let apart = holdfast_chaos::process::namespace(child.id(), "net") != own;
            Ok((moved && apart).then(|| Process::of(child.id())).flatten())
        })
        .unwrap();
        let network = Self(child, process);
        network.exec(&["ip", "link", "set", "lo", "up"]);
        network
    }

    fn exec(&self, tool: &[&str]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast-chaos"));
        command.args(["inside", "--pid", &self.1.pid.to_string(), "exec", "--"]).args(tool);
        command::run(&mut command, Duration::from_secs(10)).unwrap().success("inside").unwrap();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The binaries beside the test; the node's is not used here.
fn identity() -> Identity {
    Identity::for_helpers(env!("CARGO_BIN_EXE_holdfast-chaos").into())
}

#[test]
fn pings_are_counted_and_a_link_that_goes_away_shows_as_loss() {
    let (network, identity) = (Network::new(), identity());
    let mut pinger = Pinger::start(&identity, network.1, LOOPBACK, Duration::from_millis(1)).unwrap();
    pinger.await_answer(Duration::from_secs(10)).unwrap();
    poll::rest(Duration::from_millis(200));
    let whole = pinger.report().unwrap();
    assert!(whole.sent > 100 && whole.lost == 0 && whole.silence_ms == 0.0, "{whole:?}");
    pinger.mark().unwrap();
    network.exec(&["ip", "link", "set", "lo", "down"]);
    poll::rest(Duration::from_millis(100));
    network.exec(&["ip", "link", "set", "lo", "up"]);
    poll::rest(Duration::from_millis(100));
    let cut = pinger.report().unwrap();
    assert!(cut.lost >= 50 && cut.outage_ms >= 50.0 && cut.silence_ms == 0.0, "{cut:?}");
    assert!(cut.received > 0, "{cut:?}");
}

#[test]
fn nothing_answers_where_nothing_is() {
    let (network, identity) = (Network::new(), identity());
    let report = ping_some(&identity, network.1, Ipv4Addr::new(10, 1, 2, 3)).unwrap();
    assert!(report.sent > 3 && report.received == 0, "{report:?}");
}

#[test]
fn a_stream_moves_both_ways_and_arrives_whole() {
    let (network, identity) = (Network::new(), identity());
    let mut stream = Stream::open(&identity, network.1, LOOPBACK, 7001, network.1).unwrap();
    stream.await_progress(Duration::from_secs(10)).unwrap();
    // Away for a while: TCP repeats what was lost.
    network.exec(&["ip", "link", "set", "lo", "down"]);
    poll::rest(Duration::from_millis(150));
    network.exec(&["ip", "link", "set", "lo", "up"]);
    stream.await_progress(Duration::from_secs(10)).unwrap();
    assert!(stream.finish(Duration::from_secs(10)).unwrap() > 10);
}

#[test]
fn a_broken_stream_is_no_progress() {
    let (network, identity) = (Network::new(), identity());
    let mut stream = Stream::open(&identity, network.1, LOOPBACK, 7001, network.1).unwrap();
    stream.await_progress(Duration::from_secs(10)).unwrap();
    network.exec(&["ss", "--kill", "--tcp", "sport", "=", "7001"]);
    let error = stream.await_progress(Duration::from_secs(5)).unwrap_err();
    assert!(error.to_string().contains("the stream broke"), "{error:#}");
}
