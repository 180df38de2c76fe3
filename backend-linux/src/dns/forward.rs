//! What becomes of one question.

use super::{
    Dns, cache, count,
    limit::Held,
    message::{self, Packet, Question},
    upstream::Asked,
};
use hickory_proto::{
    op::{Message, ResponseCode},
    rr::RecordType,
};
use holdfast_core::zone::Found;
use std::{
    cell::RefCell,
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    rc::Rc,
};
use tokio::sync::oneshot;

/// What is done with a packet.
pub(super) enum Taken {
    /// This is the answer, and how large it may be over UDP, in bytes.
    Answer(Message, usize),
    /// Somebody else must be asked; the answer will come.
    Wait(Box<Waiting>),
    /// Nothing.
    Nothing,
}

/// A question that is asked of others.
pub(super) struct Waiting {
    pub question: Question,
    asker: IpAddr,
    servers: Rc<[SocketAddr]>,
    /// What nobody knows does not exist: `NAME.NETWORK`.
    or_nothing: bool,
    _place: Held,
}

/// Questions under way, with whoever waits for the same answer: they are asked once.
#[derive(Debug, Default)]
pub(super) struct Pending(RefCell<BTreeMap<cache::Key, Vec<oneshot::Sender<Rc<Message>>>>>);

/// Ends a question under way, however that comes about: who waits for it is not left waiting.
struct Leader<'a>(&'a Pending, cache::Key);

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.0.0.borrow_mut().remove(&self.1);
    }
}

/// RFC 6761, 6.3.
fn is_localhost(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

impl Dns {
    /// Takes a packet from an address; nothing waits in here.
    pub(super) fn take(&self, bytes: &[u8], asker: IpAddr) -> Taken {
        let index = self.index();
        // No workload has the address: it has just gone, or was never there.
        let Some(view) = index.view(asker) else {
            count(&self.counters.refused);
            return match message::read(bytes) {
                Packet::Question(question) => {
                    answered(&question, message::reply(&question.message, ResponseCode::Refused))
                }
                _ => Taken::Nothing,
            };
        };
        count(&self.counters.queries);
        if !self.limits.admits(asker) {
            count(&self.counters.limited);
            return Taken::Nothing;
        }
        let question = match message::read(bytes) {
            Packet::Question(question) => *question,
            Packet::Wrong(answer) => {
                count(&self.counters.malformed);
                let limit = message::udp_limit(&answer);
                return Taken::Answer(*answer, limit);
            }
            Packet::Noise => {
                count(&self.counters.malformed);
                return Taken::Nothing;
            }
        };
        let answer = match index.look_up(view, &question.name) {
            _ if is_localhost(&question.name) => {
                let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
                message::addresses(&question, &loopback)
            }
            Found::Addresses(addresses) => message::addresses(&question, &addresses),
            Found::Name(name) => message::pointer(&question, &name),
            Found::Empty => message::nothing(&question, ResponseCode::NoError),
            Found::Nothing if question.name.is_empty() || is_foreign_type(&question) => {
                return self.ask_others(question, asker, view, false);
            }
            Found::Nothing => message::nothing(&question, ResponseCode::NXDomain),
            Found::ForeignFirst if !view.forwards => message::nothing(&question, ResponseCode::NXDomain),
            Found::ForeignFirst => return self.ask_others(question, asker, view, true),
            Found::Foreign => return self.ask_others(question, asker, view, false),
        };
        count(&self.counters.answered);
        answered(&question, answer)
    }

    fn ask_others(
        &self,
        question: Question,
        asker: IpAddr,
        view: &holdfast_core::zone::View,
        or_nothing: bool,
    ) -> Taken {
        let servers = if view.forwards { self.servers(view, asker) } else { Rc::from([]) };
        if servers.is_empty() {
            count(&self.counters.refused);
            if or_nothing {
                return answered(&question, message::nothing(&question, ResponseCode::NXDomain));
            }
            return answered(&question, message::reply(&question.message, ResponseCode::Refused));
        }
        if let Some(answer) = self.cache.borrow().get(&key(&question, &servers)) {
            count(&self.counters.cached);
            return answered(&question, settled(&question, answer, or_nothing));
        }
        match self.limits.wait(asker) {
            Some(place) => {
                Taken::Wait(Box::new(Waiting { question, asker, servers, or_nothing, _place: place }))
            }
            None => {
                count(&self.counters.limited);
                answered(&question, message::reply(&question.message, ResponseCode::ServFail))
            }
        }
    }

    /// Asks others; comes back with the answer, within the deadline of [`super::upstream`].
    pub(super) async fn forward(&self, waiting: &Waiting) -> Message {
        count(&self.counters.forwarded);
        let Waiting { question, servers, or_nothing, .. } = waiting;
        match self.shared(waiting, key(question, servers)).await {
            Some(answer) => settled(question, Message::clone(&answer), *or_nothing),
            None if *or_nothing => message::nothing(question, ResponseCode::NXDomain),
            None => {
                count(&self.counters.failed);
                message::reply(&question.message, ResponseCode::ServFail)
            }
        }
    }

    /// The answer of whoever asks first for all who ask the same meanwhile. A server that is asked, and asks here for
    /// the same in turn, waits for itself until its deadline, and nothing multiplies.
    async fn shared(&self, waiting: &Waiting, key: cache::Key) -> Option<Rc<Message>> {
        let joined = {
            let mut pending = self.pending.0.borrow_mut();
            match pending.get_mut(&key) {
                Some(others) => {
                    let (sender, receiver) = oneshot::channel();
                    others.push(sender);
                    Some(receiver)
                }
                None => {
                    pending.insert(key.clone(), Vec::new());
                    None
                }
            }
        };
        if let Some(answer) = joined {
            return answer.await.ok();
        }
        let leader = Leader(&self.pending, key.clone());
        let asked = Asked { dnssec_ok: key.dnssec.0, checking_disabled: key.dnssec.1 };
        let answer = match self.pool.ask(&waiting.servers, &waiting.question.query, asked).await {
            Ok(answer) => Rc::new(answer),
            Err(error) => {
                tracing::debug!(%error, asker = %waiting.asker, "no name server answered");
                return None;
            }
        };
        let others = self.pending.0.borrow_mut().remove(&key).unwrap_or_default();
        drop(leader);
        for other in others {
            // Who is gone waits no more.
            let _ = other.send(Rc::clone(&answer));
        }
        self.cache.borrow_mut().put(key, Rc::clone(&answer));
        Some(answer)
    }
}

fn answered(question: &Question, answer: Message) -> Taken {
    Taken::Answer(answer, message::udp_limit(&question.message))
}

/// A name without a dot that no workload has is nobody's, unless it is asked about as a zone.
fn is_foreign_type(question: &Question) -> bool {
    let zone = matches!(
        question.query.query_type(),
        RecordType::NS | RecordType::SOA | RecordType::DS | RecordType::DNSKEY
    );
    zone && !question.name.contains('.')
}

fn key(question: &Question, servers: &Rc<[SocketAddr]>) -> cache::Key {
    let edns = question.message.edns.as_ref();
    cache::Key {
        servers: Rc::clone(servers),
        name: question.name.to_ascii_lowercase(),
        kind: question.query.query_type().into(),
        dnssec: (edns.is_some_and(|edns| edns.flags().dnssec_ok), question.message.checking_disabled),
    }
}

fn settled(question: &Question, answer: Message, or_nothing: bool) -> Message {
    let known = matches!(answer.response_code, ResponseCode::NoError | ResponseCode::NXDomain);
    if or_nothing && !known {
        return message::nothing(question, ResponseCode::NXDomain);
    }
    message::relayed(question, answer)
}
