//! The sockets: UDP and TCP at each gateway's address.

use super::{Dns, Kind, PORT, count, forward::Taken, message};
use crate::service::socket;
use std::{
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    rc::Rc,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    time::timeout,
};

/// The largest question over UDP that is read, in bytes; larger ones are cut, and wrong.
const QUESTION_BYTES_MAX: usize = 4096;
/// How long a connection may say nothing: RFC 7766, 6.2.3, wants a few seconds.
const IDLE_DEADLINE: Duration = Duration::from_secs(10);
/// How long one message may take in either direction.
const MESSAGE_DEADLINE: Duration = Duration::from_secs(5);
/// Questions that a connection may ask.
const QUESTIONS_MAX: usize = 1_000;
/// Pause after a failed receive or accept, so that it is no busy loop.
const PAUSE: Duration = Duration::from_millis(20);
/// Failures in a row after which the socket is opened anew.
const FAILURES_MAX: u32 = 50;

type Serving = Pin<Box<dyn Future<Output = ()>>>;

/// Opens a socket; the future serves it.
///
/// # Errors
/// As bind(2).
pub(super) fn open(dns: &Rc<Dns>, address: IpAddr, kind: Kind) -> io::Result<Serving> {
    let dns = Rc::clone(dns);
    let at = SocketAddr::new(address, PORT);
    Ok(match kind {
        Kind::Udp => Box::pin(datagrams(dns, Rc::new(socket::udp(at)?))),
        Kind::Tcp => Box::pin(connections(dns, socket::tcp(at)?)),
    })
}

async fn datagrams(dns: Rc<Dns>, socket: Rc<UdpSocket>) {
    let mut buffer = vec![0; QUESTION_BYTES_MAX];
    let mut failures = 0;
    while failures < FAILURES_MAX {
        let (length, from) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                tracing::debug!(%error, "a question was not received");
                failures += 1;
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        failures = 0;
        let bytes = buffer.get(..length).unwrap_or_default();
        match dns.take(bytes, from.ip().to_canonical()) {
            Taken::Nothing => {}
            Taken::Answer(answer, limit) => {
                // A full send buffer drops the answer, as the network would: the asker asks again.
                let _ = message::write(&answer, limit).map(|bytes| socket.try_send_to(&bytes, from));
            }
            Taken::Wait(waiting) => {
                let (dns, socket) = (Rc::clone(&dns), Rc::clone(&socket));
                tokio::task::spawn_local(async move {
                    let answer = dns.forward(&waiting).await;
                    let limit = message::udp_limit(&waiting.question.message);
                    if let Some(bytes) = message::write(&answer, limit) {
                        let _ = timeout(MESSAGE_DEADLINE, socket.send_to(&bytes, from)).await;
                    }
                });
            }
        }
    }
}

async fn connections(dns: Rc<Dns>, listener: TcpListener) {
    let mut failures = 0;
    while failures < FAILURES_MAX {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a connection was not accepted");
                failures += 1;
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        failures = 0;
        let asker = from.ip().to_canonical();
        if dns.index().view(asker).is_none() {
            count(&dns.counters.refused);
            continue;
        }
        let Some(place) = dns.limits.connect(asker) else {
            count(&dns.counters.limited);
            continue;
        };
        let dns = Rc::clone(&dns);
        tokio::task::spawn_local(async move {
            if let Err(error) = converse(&dns, stream, asker).await {
                tracing::trace!(%error, %asker, "a connection ended");
            }
            drop(place);
        });
    }
}

/// Questions and answers in turn. Only its own client waits for a slow one.
async fn converse(dns: &Rc<Dns>, mut stream: TcpStream, asker: IpAddr) -> io::Result<()> {
    for _ in 0..QUESTIONS_MAX {
        let length = timeout(IDLE_DEADLINE, stream.read_u16()).await??;
        let mut bytes = vec![0; length.into()];
        timeout(MESSAGE_DEADLINE, stream.read_exact(&mut bytes)).await??;
        let answer = match dns.take(&bytes, asker) {
            Taken::Nothing => return Ok(()),
            Taken::Answer(answer, _) => answer,
            Taken::Wait(waiting) => dns.forward(&waiting).await,
        };
        let Some(bytes) = message::write(&answer, u16::MAX.into()) else { return Ok(()) };
        let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
        let frame = [&length.to_be_bytes()[..], &bytes].concat();
        timeout(MESSAGE_DEADLINE, stream.write_all(&frame)).await??;
    }
    Ok(())
}
