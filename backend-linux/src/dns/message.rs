//! Messages: what a packet asks, and packets out of answers. RFC 1035, RFC 6891.

use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, Query, ResponseCode},
    rr::{DNSClass, Name, RData, Record, RecordType, rdata::SOA},
};
use holdfast_core::zone::{NEGATIVE_TTL_S, SUFFIX, TTL_S};
use std::net::IpAddr;

/// The largest answer over UDP, in bytes, to whoever does not say more: RFC 1035, 4.2.1.
const UDP_BYTES: u16 = 512;
/// The largest answer over UDP to anybody: what no path fragments (DNS Flag Day 2020).
pub(super) const UDP_BYTES_MAX: u16 = 1232;

/// A question that can be answered.
#[derive(Debug)]
pub(super) struct Question {
    /// The whole message.
    pub message: Message,
    /// Its only question.
    pub query: Query,
    /// The name in text, without the root's dot.
    pub name: String,
}

/// What a packet is.
#[derive(Debug)]
pub(super) enum Packet {
    /// A question.
    Question(Box<Question>),
    /// Something that is answered with an error.
    Wrong(Box<Message>),
    /// Nothing that is answered at all: an answer, or noise.
    Noise,
}

/// Reads a packet.
pub(super) fn read(bytes: &[u8]) -> Packet {
    // An answer that is answered makes two servers talk for ever.
    let Some([first, second, flags]) = bytes.get(..3).and_then(|head| <[u8; 3]>::try_from(head).ok()) else {
        return Packet::Noise;
    };
    if bytes.len() < 12 || flags & 0x80 != 0 {
        return Packet::Noise;
    }
    let message = match Message::from_vec(bytes) {
        Ok(message) => message,
        Err(_) => {
            let id = u16::from_be_bytes([first, second]);
            return Packet::Wrong(Box::new(Message::error_msg(id, OpCode::Query, ResponseCode::FormErr)));
        }
    };
    let wrong = |code| Packet::Wrong(Box::new(reply(&message, code)));
    if message.op_code != OpCode::Query {
        return wrong(ResponseCode::NotImp);
    }
    if message.edns.as_ref().is_some_and(|edns| edns.version() != 0) {
        return wrong(ResponseCode::BADVERS);
    }
    let [query] = message.queries.as_slice() else { return wrong(ResponseCode::FormErr) };
    let refused = matches!(query.query_type(), RecordType::AXFR | RecordType::IXFR)
        || !matches!(query.query_class(), DNSClass::IN | DNSClass::ANY);
    if refused {
        return wrong(ResponseCode::Refused);
    }
    let query = query.clone();
    let text = query.name().to_ascii();
    let name = text.strip_suffix('.').unwrap_or(&text).to_owned();
    Packet::Question(Box::new(Question { message, query, name }))
}

/// The beginning of an answer.
pub(super) fn reply(question: &Message, code: ResponseCode) -> Message {
    let mut reply = Message::new(question.id, MessageType::Response, question.op_code);
    reply.metadata.recursion_desired = question.recursion_desired;
    reply.metadata.checking_disabled = question.checking_disabled;
    reply.metadata.recursion_available = true;
    reply.metadata.response_code = code;
    reply.add_queries(question.queries.iter().take(1).cloned());
    if let Some(asked) = &question.edns {
        let mut edns = Edns::new();
        edns.set_max_payload(UDP_BYTES_MAX).set_dnssec_ok(asked.flags().dnssec_ok);
        reply.set_edns(edns);
    }
    reply
}

/// An answer of the zone: whatever of these addresses is asked for, or none.
pub(super) fn addresses(question: &Question, addresses: &[IpAddr]) -> Message {
    let mut reply = reply(&question.message, ResponseCode::NoError);
    reply.metadata.authoritative = true;
    let kind = question.query.query_type();
    for address in addresses {
        let data = match address {
            IpAddr::V4(address) if matches!(kind, RecordType::A | RecordType::ANY) => {
                RData::A((*address).into())
            }
            IpAddr::V6(address) if matches!(kind, RecordType::AAAA | RecordType::ANY) => {
                RData::AAAA((*address).into())
            }
            _ => continue,
        };
        reply.add_answer(Record::from_rdata(question.query.name().clone(), TTL_S, data));
    }
    if reply.answers.is_empty() { with_soa(reply, question) } else { reply }
}

/// An answer of the zone to a reverse look-up.
pub(super) fn pointer(question: &Question, name: &str) -> Message {
    let mut reply = reply(&question.message, ResponseCode::NoError);
    reply.metadata.authoritative = true;
    let asked = matches!(question.query.query_type(), RecordType::PTR | RecordType::ANY);
    // Names of workloads are labels, and the zone's fit: it can be read.
    match Name::from_ascii(format!("{name}.")) {
        Ok(name) if asked => {
            let data = RData::PTR(hickory_proto::rr::rdata::PTR(name));
            reply.add_answer(Record::from_rdata(question.query.name().clone(), TTL_S, data));
            reply
        }
        _ => with_soa(reply, question),
    }
}

/// An answer of the zone that says that there is nothing.
pub(super) fn nothing(question: &Question, code: ResponseCode) -> Message {
    let mut reply = reply(&question.message, code);
    reply.metadata.authoritative = true;
    with_soa(reply, question)
}

/// Says how long the absence may be remembered: RFC 2308.
fn with_soa(mut reply: Message, question: &Question) -> Message {
    let name = question.query.name();
    let zone = Name::from_ascii(format!("{SUFFIX}.")).unwrap_or_else(|_| Name::root());
    let zone = if zone.zone_of(name) { zone } else { name.base_name() };
    let server = zone.clone();
    let soa = SOA::new(server.clone(), server, 1, 60, 60, 60, NEGATIVE_TTL_S);
    let record = Record::from_rdata(zone, NEGATIVE_TTL_S, RData::SOA(soa));
    if question.query.query_type() == RecordType::SOA && *name == record.name {
        reply.add_answer(record);
    } else {
        reply.add_authority(record);
    }
    reply
}

/// An answer of a server outside, as an answer to this question.
pub(super) fn relayed(question: &Question, answer: Message) -> Message {
    let mut reply = reply(&question.message, answer.response_code);
    reply.metadata.authentic_data = answer.authentic_data;
    reply.metadata.truncation = answer.truncation;
    reply.answers = answer.answers;
    reply.authorities = answer.authorities;
    reply.additionals = answer.additionals;
    let wants_signatures = question.message.edns.as_ref().is_some_and(|edns| edns.flags().dnssec_ok);
    reply.maybe_strip_dnssec_records(wants_signatures)
}

/// How large an answer over UDP may be, in bytes.
pub(super) fn udp_limit(question: &Message) -> usize {
    let asked = question.edns.as_ref().map_or(UDP_BYTES, Edns::max_payload);
    usize::from(asked.clamp(UDP_BYTES, UDP_BYTES_MAX))
}

/// The packet; one that would be larger than `limit` bytes says that it is cut, and that TCP has it all.
pub(super) fn write(message: &Message, limit: usize) -> Option<Vec<u8>> {
    let bytes = message.to_vec();
    match bytes {
        Ok(bytes) if bytes.len() <= limit => Some(bytes),
        Ok(_) => message.truncate().to_vec().ok().filter(|bytes| bytes.len() <= limit),
        Err(error) => {
            tracing::debug!(%error, "an answer cannot be written");
            let mut failed = Message::error_msg(message.id, message.op_code, ResponseCode::ServFail);
            failed.queries.clone_from(&message.queries);
            failed.to_vec().ok().filter(|bytes| bytes.len() <= limit)
        }
    }
}
