//! One TCP connection, both ways: each end sends 0, 1, 2, … as eight bytes and demands the same of the other.

use super::{StreamReport, answer};
use anyhow::{Context, Result};
use std::{
    io::{BufRead, Read, Write},
    net::{SocketAddrV4, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

#[derive(Default)]
struct State {
    sent: AtomicU64,
    received: AtomicU64,
    stopped: AtomicBool,
    fault: Mutex<Option<String>>,
}

pub fn listen(at: SocketAddrV4, interval_ms: u64) -> Result<()> {
    let listener = TcpListener::bind(at).with_context(|| format!("listen on {at}"))?;
    answer(&true)?;
    let (connection, _) = listener.accept().context("accept")?;
    exchange(connection, interval_ms)
}

pub fn connect(to: SocketAddrV4, interval_ms: u64) -> Result<()> {
    let connection = TcpStream::connect_timeout(&to.into(), Duration::from_secs(5))
        .with_context(|| format!("connect to {to}"))?;
    answer(&true)?;
    exchange(connection, interval_ms)
}

fn exchange(connection: TcpStream, interval_ms: u64) -> Result<()> {
    connection.set_nodelay(true)?;
    let state = Arc::new(State::default());
    let (reader, writer) = (connection.try_clone()?, connection);
    let (of_reader, of_writer) = (Arc::clone(&state), Arc::clone(&state));
    std::thread::spawn(move || of_reader.end(receive(reader, &of_reader)));
    std::thread::spawn(move || of_writer.end(send(writer, &of_writer, interval_ms)));
    for line in std::io::stdin().lock().lines() {
        if line? == "stop" {
            state.stopped.store(true, Ordering::SeqCst);
        }
        answer(&StreamReport {
            sent: state.sent.load(Ordering::SeqCst),
            received: state.received.load(Ordering::SeqCst),
            fault: state.fault.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        })?;
    }
    Ok(())
}

fn send(mut connection: TcpStream, state: &State, interval_ms: u64) -> Result<()> {
    while !state.stopped.load(Ordering::SeqCst) {
        let number = state.sent.load(Ordering::SeqCst);
        connection.write_all(&number.to_be_bytes()).context("send")?;
        state.sent.store(number + 1, Ordering::SeqCst);
        crate::poll::rest(Duration::from_millis(interval_ms));
    }
    Ok(())
}

fn receive(mut connection: TcpStream, state: &State) -> Result<()> {
    loop {
        let mut bytes = [0; 8];
        connection.read_exact(&mut bytes).context("receive")?;
        let (number, expected) = (u64::from_be_bytes(bytes), state.received.load(Ordering::SeqCst));
        anyhow::ensure!(number == expected, "received number {number} where {expected} was due");
        state.received.store(expected + 1, Ordering::SeqCst);
    }
}

impl State {
    fn end(&self, result: Result<()>) {
        if let Err(error) = result {
            self.fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(format!("{error:#}"));
        }
    }
}
