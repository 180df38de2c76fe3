//! Traffic that counts what it loses, seen from the harness.

use crate::{
    identity::Identity,
    inside::{PingReport, StreamReport},
    process::Process,
};
use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How long a helper may take to answer: a pinger waits a second for its last requests.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// A helper in a workload's network; ends with this value.
#[derive(Debug)]
struct Helper {
    what: String,
    child: Child,
    stdin: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Helper {
    fn start(identity: &Identity, at: Process, arguments: &[String]) -> Result<Self> {
        let mut command = Command::new(&identity.chaos);
        command.args(["inside", "--pid", &at.pid.to_string()]).args(arguments);
        command.env_clear().env("PATH", crate::node::PATH);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let what = crate::command::describe(&command);
        let mut child = command.spawn().with_context(|| format!("start {what}"))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("helper without standard output")?;
        let (sender, answers) = sync_channel(16);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { what, child, stdin, answers })
    }

    fn answer<T: DeserializeOwned>(&self) -> Result<T> {
        let line = self.answers.recv_timeout(ANSWER_DEADLINE);
        let line = line.with_context(|| format!("{} does not answer", self.what))?;
        serde_json::from_str(&line).with_context(|| format!("{} answered {line:?}", self.what))
    }

    fn ask<T: DeserializeOwned>(&mut self, question: &str) -> Result<T> {
        let stdin = self.stdin.as_mut().context("helper without standard input")?;
        writeln!(stdin, "{question}").with_context(|| format!("{} has ended", self.what))?;
        self.answer()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        drop(self.stdin.take());
        // It ends by itself; if not, wait() kills it. Nothing more can be done about a child that won't die.
        let _ = crate::command::wait(&mut self.child, Duration::from_millis(500));
    }
}

/// Pings from one workload to an address until it is dropped.
#[derive(Debug)]
pub struct Pinger(Helper);

impl Pinger {
    /// Starts to ping `to` from the network of `from`.
    ///
    /// # Errors
    /// When the helper cannot be started.
    pub fn start(identity: &Identity, from: Process, to: Ipv4Addr, interval: Duration) -> Result<Self> {
        let interval = interval.as_micros().to_string();
        let arguments = ["ping".to_owned(), to.to_string(), "--interval-us".to_owned(), interval];
        Helper::start(identity, from, &arguments).map(Self)
    }

    /// Starts to count anew.
    ///
    /// # Errors
    /// When the helper has ended.
    pub fn mark(&mut self) -> Result<()> {
        self.0.ask::<bool>("mark").map(drop)
    }

    /// What was sent since the mark; waits until each request is answered or lost.
    ///
    /// # Errors
    /// When the helper has ended.
    pub fn report(&mut self) -> Result<PingReport> {
        self.0.ask("report")
    }

    /// Waits until a request is answered, then starts to count anew.
    ///
    /// # Errors
    /// When none is by the deadline.
    pub fn await_answer(&mut self, deadline: Duration) -> Result<()> {
        let started = Instant::now();
        loop {
            self.mark()?;
            crate::poll::rest(Duration::from_millis(50));
            if self.report()?.received > 0 {
                return self.mark();
            }
            ensure!(started.elapsed() < deadline, "{}: no answer within {deadline:?}", self.0.what);
        }
    }
}

/// Sends a few pings and tells how many were answered.
///
/// # Errors
/// When the helper cannot be started.
pub fn ping_some(identity: &Identity, from: Process, to: Ipv4Addr) -> Result<PingReport> {
    let mut pinger = Pinger::start(identity, from, to, Duration::from_millis(20))?;
    pinger.mark()?;
    crate::poll::rest(Duration::from_millis(120));
    pinger.report()
}

/// An established TCP connection between two workloads, with sequenced numbers going both ways.
#[derive(Debug)]
pub struct Stream {
    server: Helper,
    client: Helper,
}

impl Stream {
    /// Opens it: the network of `server` listens on `address` and `port`.
    ///
    /// # Errors
    /// When either end cannot be started, or they cannot connect.
    pub fn open(
        identity: &Identity,
        server: Process,
        address: Ipv4Addr,
        port: u16,
        client: Process,
    ) -> Result<Self> {
        let at = format!("{address}:{port}");
        let server = Helper::start(identity, server, &["listen".to_owned(), at.clone()])?;
        server.answer::<bool>()?;
        let client = Helper::start(identity, client, &["connect".to_owned(), at])?;
        client.answer::<bool>()?;
        Ok(Self { server, client })
    }

    /// Both ends as they are now, server first.
    ///
    /// # Errors
    /// When a helper has ended.
    pub fn report(&mut self) -> Result<(StreamReport, StreamReport)> {
        Ok((self.server.ask("report")?, self.client.ask("report")?))
    }

    /// Waits until numbers that were sent from now on have arrived, in both directions.
    ///
    /// # Errors
    /// When the stream broke, was out of order, or did not move by the deadline.
    pub fn await_progress(&mut self, deadline: Duration) -> Result<()> {
        let (server, client) = self.report()?;
        crate::poll::until("both directions of the stream to move", deadline, || {
            let (server_now, client_now) = self.checked_report()?;
            let moved = server_now.received > client.sent && client_now.received > server.sent;
            Ok(moved.then_some(()))
        })
    }

    /// Stops sending and waits until all that was sent has arrived; returns how many numbers that was.
    ///
    /// # Errors
    /// When the stream broke, was out of order, or lost something.
    pub fn finish(mut self, deadline: Duration) -> Result<u64> {
        self.server.ask::<StreamReport>("stop")?;
        self.client.ask::<StreamReport>("stop")?;
        crate::poll::until("all that was sent on the stream to arrive", deadline, || {
            let (server, client) = self.checked_report()?;
            let complete = server.received == client.sent && client.received == server.sent;
            Ok((complete && server.sent > 0 && client.sent > 0).then_some(server.received + client.received))
        })
    }

    fn checked_report(&mut self) -> Result<(StreamReport, StreamReport)> {
        let (server, client) = self.report()?;
        for (end, report) in [("server", &server), ("client", &client)] {
            if let Some(fault) = &report.fault {
                bail!("the stream broke at its {end}: {fault}");
            }
        }
        Ok((server, client))
    }
}

/// What an HTTP client counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HttpReport {
    /// Requests answered with the page.
    pub answered: u64,
    /// Requests refused, reset or timed out.
    pub failed: u64,
    /// From the first failure to the first answer after the last one; zero without failure.
    pub outage: Duration,
}

#[derive(Debug, Default)]
struct HttpState {
    report: HttpReport,
    first_failure: Option<Instant>,
}

/// Asks a published port for its page, fifty times a second, until it is dropped.
#[derive(Debug)]
pub struct HttpClient {
    state: Arc<Mutex<HttpState>>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl HttpClient {
    /// Starts it.
    pub fn start(address: SocketAddr) -> Self {
        let state: Arc<Mutex<HttpState>> = Arc::default();
        let stopped: Arc<AtomicBool> = Arc::default();
        let (of_thread, stop) = (Arc::clone(&state), Arc::clone(&stopped));
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                let started = Instant::now();
                let answered = http_get(address, Duration::from_millis(500)).is_ok();
                of_thread.lock().unwrap_or_else(PoisonError::into_inner).count(started, answered);
                crate::poll::rest(Duration::from_millis(20));
            }
        });
        Self { state, stopped, thread: Some(thread) }
    }

    /// Starts to count anew.
    pub fn mark(&self) {
        *self.lock() = HttpState::default();
    }

    /// What was counted since the mark.
    pub fn report(&self) -> HttpReport {
        self.lock().report
    }

    /// Waits until `count` requests in a row were answered.
    ///
    /// # Errors
    /// When they are not by the deadline.
    pub fn await_answers(&self, count: u64, deadline: Duration) -> Result<()> {
        let mut seen = self.report();
        crate::poll::until("the published port to answer", deadline, || {
            let now = self.report();
            if now.failed > seen.failed {
                seen = now;
            }
            Ok((now.answered >= seen.answered + count).then_some(()))
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HttpState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HttpClient {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            // It ends within one request's deadline, and a panic of it has been printed already.
            let _ = thread.join();
        }
    }
}

impl HttpState {
    fn count(&mut self, started: Instant, answered: bool) {
        if answered {
            self.report.answered += 1;
            if let Some(first) = self.first_failure.take() {
                self.report.outage = self.report.outage.max(first.elapsed());
            }
        } else {
            self.report.failed += 1;
            self.first_failure.get_or_insert(started);
        }
    }
}

/// One HTTP/1.0 request for `/`; the body.
///
/// # Errors
/// When there is no connection or no answer with status 200 in time.
pub fn http_get(address: SocketAddr, deadline: Duration) -> Result<String> {
    let mut connection = TcpStream::connect_timeout(&address, deadline)?;
    connection.set_read_timeout(Some(deadline))?;
    connection.set_write_timeout(Some(deadline))?;
    connection.write_all(b"GET / HTTP/1.0\r\nHost: holdfast\r\n\r\n")?;
    let mut answer = Vec::new();
    connection.take(64 << 10).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    ensure!(head.starts_with("HTTP/1.") && head.contains(" 200 "), "answered {head:?}");
    Ok(body.to_owned())
}
