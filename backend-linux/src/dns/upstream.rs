//! Asking servers outside: random ports and identities, mixed case, one deadline for all tries, and a memory of who
//! does not answer.

use super::message::UDP_BYTES_MAX;
use hickory_proto::{
    op::{Edns, Message, MessageType, Query, ResponseCode},
    rr::{Name, RecordType},
};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    rc::Rc,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    time::{Instant, timeout_at},
};

/// How long an answer may take in all: a resolver asks again after 5 s (resolv.conf(5), `timeout`).
const DEADLINE: Duration = Duration::from_millis(4_500);
/// Likewise while no server is known to answer: the asker learns it soon.
const DEADLINE_DOWN: Duration = Duration::from_millis(1_500);
/// How long one server may take before the next is asked.
const TRY_DEADLINE: Duration = Duration::from_millis(1_400);
/// How long a server may take that is only asked whether it is there.
const PROBE_DEADLINE: Duration = Duration::from_secs(1);
/// How often each server is asked one question.
const ROUNDS: usize = 2;
/// Questions in a row without an answer after which a server counts as down.
const FAILURES_MAX: u32 = 2;
/// Wait before a server that is down is probed; doubles up to the most.
const PROBE_FIRST: Duration = Duration::from_secs(1);
/// The longest such wait.
const PROBE_MAX: Duration = Duration::from_secs(30);
/// Servers remembered; each workload may name three of its own.
const SERVERS_MAX: usize = 1024;
/// Packets that are no answer to the question, and are looked at before a try is given up.
const STRAYS_MAX: usize = 32;

/// A server and how it has been.
#[derive(Debug)]
struct Server {
    address: SocketAddr,
    failures: Cell<u32>,
    down: Cell<Option<Instant>>,
    probe_wait: Cell<Duration>,
    probe_at: Cell<Instant>,
    /// It answers with the name in other letters than it was asked with.
    folds_case: Cell<bool>,
}

impl Server {
    fn new(address: SocketAddr) -> Self {
        Self {
            address,
            failures: Cell::new(0),
            down: Cell::new(None),
            probe_wait: Cell::new(PROBE_FIRST),
            probe_at: Cell::new(Instant::now()),
            folds_case: Cell::new(false),
        }
    }

    fn answered(&self) {
        if self.down.take().is_some() {
            tracing::info!(server = %self.address, "the name server answers again");
        }
        self.failures.set(0);
        self.probe_wait.set(PROBE_FIRST);
    }

    fn failed(&self, cause: &io::Error) {
        self.failures.set(self.failures.get().saturating_add(1));
        if self.failures.get() < FAILURES_MAX {
            return;
        }
        if self.down.get().is_none() {
            tracing::warn!(server = %self.address, %cause, "the name server does not answer");
            self.down.set(Some(Instant::now()));
        }
        self.probe_at.set(Instant::now() + self.probe_wait.get());
        self.probe_wait.set((self.probe_wait.get() * 2).min(PROBE_MAX));
    }
}

/// Every server that was asked.
#[derive(Debug, Default)]
pub(super) struct Pool(RefCell<BTreeMap<SocketAddr, Rc<Server>>>);

/// What goes into a question besides name and type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// Signatures are wanted.
    pub dnssec_ok: bool,
    /// They are not to be checked.
    pub checking_disabled: bool,
}

impl Pool {
    fn server(&self, address: SocketAddr) -> Rc<Server> {
        let mut servers = self.0.borrow_mut();
        if servers.len() >= SERVERS_MAX && !servers.contains_key(&address) {
            // Whoever is forgotten is only asked as if for the first time.
            servers.clear();
        }
        servers.entry(address).or_insert_with(|| Rc::new(Server::new(address))).clone()
    }

    /// Servers of these that do not answer, and since when.
    pub fn down<'a>(&'a self, list: &'a [SocketAddr]) -> impl Iterator<Item = (SocketAddr, Duration)> + 'a {
        let servers = self.0.borrow();
        let down = move |address: &SocketAddr| {
            let since = servers.get(address)?.down.get()?;
            Some((*address, since.elapsed()))
        };
        list.iter().filter_map(down)
    }

    /// Asks the servers, those that answered last time first, until one has an answer. The answer's name is the
    /// question's but for its case.
    ///
    /// # Errors
    /// The last failure when none answers in time.
    pub async fn ask(&self, list: &[SocketAddr], query: &Query, asked: Asked) -> io::Result<Message> {
        let mut servers: Vec<Rc<Server>> = list.iter().map(|address| self.server(*address)).collect();
        servers.sort_by_key(|server| server.down.get().is_some());
        let all_down = servers.iter().all(|server| server.down.get().is_some());
        let deadline = Instant::now() + if all_down { DEADLINE_DOWN } else { DEADLINE };
        let mut last = Err(io::Error::other("no name server to ask"));
        for _ in 0..if all_down { 1 } else { ROUNDS } {
            for server in &servers {
                let until = deadline.min(Instant::now() + TRY_DEADLINE);
                if until <= Instant::now() {
                    return last;
                }
                match exchange(server, query, asked, until).await {
                    Ok(answer) => {
                        server.answered();
                        match answer.response_code {
                            ResponseCode::NoError | ResponseCode::NXDomain => return Ok(answer),
                            // It lives and cannot say: another may.
                            _ => last = Ok(answer),
                        }
                    }
                    Err(error) => {
                        server.failed(&error);
                        if last.is_err() {
                            last = Err(error);
                        }
                    }
                }
            }
            if last.is_ok() {
                break;
            }
        }
        last
    }

    /// Asks servers of these that are down whether they are there again, those whose time has come.
    pub async fn probe(&self, list: &[SocketAddr]) {
        for address in list {
            let server = self.server(*address);
            if server.down.get().is_none() || server.probe_at.get() > Instant::now() {
                continue;
            }
            let query = Query::query(Name::root(), RecordType::NS);
            let asked = Asked { dnssec_ok: false, checking_disabled: false };
            match exchange(&server, &query, asked, Instant::now() + PROBE_DEADLINE).await {
                Ok(_) => server.answered(),
                Err(error) => server.failed(&error),
            }
        }
    }
}

/// One question to one server: UDP, and TCP where the answer is too large or its name is in other letters.
async fn exchange(server: &Server, query: &Query, asked: Asked, until: Instant) -> io::Result<Message> {
    let mut question = Message::query();
    question.metadata.recursion_desired = true;
    question.metadata.checking_disabled = asked.checking_disabled;
    let mut name = query.name().to_lowercase();
    if !server.folds_case.get() {
        name.randomize_label_case();
    }
    let mut own = Query::query(name, query.query_type());
    own.set_query_class(query.query_class());
    question.add_query(own);
    let mut edns = Edns::new();
    edns.set_max_payload(UDP_BYTES_MAX).set_dnssec_ok(asked.dnssec_ok);
    question.set_edns(edns);
    let late = || io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
    match timeout_at(until, over_udp(server.address, &question)).await.map_err(|_| late())?? {
        Heard::Answer(answer) if !answer.truncation => return Ok(answer),
        Heard::Answer(_) => {}
        // Somebody guesses, or the server does not keep the case: a connection tells which, for it cannot be guessed.
        Heard::OtherCase => {
            let answer =
                timeout_at(until, over_tcp(server.address, &question)).await.map_err(|_| late())??;
            server.folds_case.set(true);
            return Ok(answer);
        }
    }
    timeout_at(until, over_tcp(server.address, &question)).await.map_err(|_| late())?
}

enum Heard {
    Answer(Message),
    OtherCase,
}

fn written(question: &Message) -> io::Result<Vec<u8>> {
    question.to_vec().map_err(io::Error::other)
}

/// Whether a message answers a question, and in the very same letters.
fn answers(question: &Message, answer: &Message) -> Option<bool> {
    let ([asked], [told]) = (question.queries.as_slice(), answer.queries.as_slice()) else { return None };
    let same = answer.id == question.id
        && answer.message_type == MessageType::Response
        && answer.op_code == question.op_code
        && asked.query_type() == told.query_type()
        && asked.query_class() == told.query_class()
        && asked.name() == told.name();
    same.then(|| asked.name().eq_case(told.name()))
}

async fn over_udp(server: SocketAddr, question: &Message) -> io::Result<Heard> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // A socket of its own: the kernel takes a random port, and lets in what comes from the server alone.
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(&written(question)?).await?;
    let mut buffer = vec![0; 4096];
    let mut other_case = false;
    for _ in 0..STRAYS_MAX {
        let length = socket.recv(&mut buffer).await?;
        let Ok(answer) = Message::from_vec(buffer.get(..length).unwrap_or_default()) else { continue };
        match answers(question, &answer) {
            Some(true) => return Ok(Heard::Answer(answer)),
            Some(false) => {
                other_case = true;
                break;
            }
            None => {}
        }
    }
    if other_case { Ok(Heard::OtherCase) } else { Err(io::Error::other("it answers with something else")) }
}

async fn over_tcp(server: SocketAddr, question: &Message) -> io::Result<Message> {
    let mut stream = TcpStream::connect(server).await?;
    let bytes = written(question)?;
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], &bytes].concat()).await?;
    let mut buffer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut buffer).await?;
    let answer = Message::from_vec(&buffer).map_err(io::Error::other)?;
    match answers(question, &answer) {
        Some(_) => Ok(answer),
        None => Err(io::Error::other("it answers something else over TCP")),
    }
}
