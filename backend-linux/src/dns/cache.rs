//! Answers of servers outside, for as long as they may be kept.

use hickory_proto::{op::Message, op::ResponseCode, rr::RData};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    rc::Rc,
    time::{Duration, Instant},
};

/// Answers kept.
const ENTRIES_MAX: usize = 4096;
/// The longest an answer is kept, in seconds, whatever it says.
const TTL_MAX_S: u32 = 300;
/// The longest it is kept that there is no answer, in seconds.
const NEGATIVE_TTL_MAX_S: u32 = 30;

/// What an answer depends on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// Who was asked: workloads with servers of their own do not see others' answers.
    pub servers: Rc<[SocketAddr]>,
    /// Lower case.
    pub name: String,
    /// Type of the question.
    pub kind: u16,
    /// Whether signatures were asked for, and whether checking them was left to the asker.
    pub dnssec: (bool, bool),
}

#[derive(Debug)]
struct Entry {
    answer: Rc<Message>,
    stored: Instant,
    keep: Duration,
}

/// The answers.
#[derive(Debug, Default)]
pub(super) struct Cache(BTreeMap<Key, Entry>);

/// How long an answer may be kept, in seconds; `None` is not at all.
fn lifetime_s(answer: &Message) -> Option<u32> {
    if answer.truncation {
        return None;
    }
    let negative = || {
        // RFC 2308: without a SOA record, not at all.
        let soa = answer.authorities.iter().find_map(|record| match &record.data {
            RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
            _ => None,
        });
        soa.map(|ttl| ttl.min(NEGATIVE_TTL_MAX_S))
    };
    let ttl = match answer.response_code {
        ResponseCode::NoError if !answer.answers.is_empty() => {
            answer.answers.iter().map(|record| record.ttl).min().map(|ttl| ttl.min(TTL_MAX_S))
        }
        ResponseCode::NoError | ResponseCode::NXDomain => negative(),
        _ => None,
    };
    ttl.filter(|ttl| *ttl > 0)
}

impl Cache {
    /// The answer, its times shortened by how long it was kept.
    pub fn get(&self, key: &Key) -> Option<Message> {
        let entry = self.0.get(key)?;
        let age = entry.stored.elapsed();
        if age >= entry.keep {
            return None;
        }
        let mut answer = Message::clone(&entry.answer);
        let age_s = u32::try_from(age.as_secs()).unwrap_or(u32::MAX);
        let keep_s = u32::try_from(entry.keep.as_secs()).unwrap_or(u32::MAX);
        let sections = [&mut answer.answers, &mut answer.authorities, &mut answer.additionals];
        for record in sections.into_iter().flatten() {
            record.ttl = record.ttl.min(keep_s).saturating_sub(age_s);
        }
        Some(answer)
    }

    /// Keeps an answer, if it may be kept.
    pub fn put(&mut self, key: Key, answer: Rc<Message>) {
        let Some(ttl_s) = lifetime_s(&answer) else { return };
        if self.0.len() >= ENTRIES_MAX && !self.0.contains_key(&key) {
            self.0.retain(|_, entry| entry.stored.elapsed() < entry.keep);
        }
        if self.0.len() >= ENTRIES_MAX {
            // Full of what is still good: whatever comes first makes room.
            self.0.pop_first();
        }
        let keep = Duration::from_secs(ttl_s.into());
        self.0.insert(key, Entry { answer, stored: Instant::now(), keep });
    }

    /// Forgets everything: whom the host asks has changed, and with it perhaps what is true.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use hickory_proto::{
        op::OpCode,
        rr::{Name, Record, rdata::SOA},
    };

    fn key(name: &str) -> Key {
        Key { servers: Rc::from([]), name: name.into(), kind: 1, dnssec: (false, false) }
    }

    fn answer(code: ResponseCode, ttl_s: Option<u32>, soa_s: Option<u32>) -> Rc<Message> {
        let mut message = Message::error_msg(7, OpCode::Query, code);
        let name = Name::from_ascii("example.org.").unwrap();
        if let Some(ttl_s) = ttl_s {
            let data = RData::A(std::net::Ipv4Addr::LOCALHOST.into());
            message.add_answer(Record::from_rdata(name.clone(), ttl_s, data));
        }
        if let Some(minimum) = soa_s {
            let soa = SOA::new(name.clone(), name.clone(), 1, 1, 1, 1, minimum);
            message.add_authority(Record::from_rdata(name, 3600, RData::SOA(soa)));
        }
        Rc::new(message)
    }

    #[test]
    fn only_what_may_be_kept_is_and_not_for_longer() {
        use ResponseCode::{NXDomain, NoError, ServFail};
        let lifetime = |code, ttl_s, soa_s| lifetime_s(&answer(code, ttl_s, soa_s));
        assert_eq!(lifetime(NoError, Some(60), None), Some(60));
        assert_eq!(lifetime(NoError, Some(86_400), None), Some(TTL_MAX_S));
        assert_eq!(lifetime(NoError, Some(0), None), None);
        assert_eq!(lifetime(NXDomain, None, Some(5)), Some(5));
        assert_eq!(lifetime(NXDomain, None, Some(5_000)), Some(NEGATIVE_TTL_MAX_S));
        assert_eq!(lifetime(NXDomain, None, None), None);
        assert_eq!(lifetime(ServFail, Some(60), None), None);
        let mut cache = Cache::default();
        cache.put(key("a."), answer(NoError, Some(60), None));
        cache.0.get_mut(&key("a.")).unwrap().stored -= Duration::from_secs(50);
        assert_eq!(cache.get(&key("a.")).unwrap().answers[0].ttl, 10);
        cache.0.get_mut(&key("a.")).unwrap().stored -= Duration::from_secs(50);
        assert!(cache.get(&key("a.")).is_none());
        for number in 0..ENTRIES_MAX + 50 {
            cache.put(key(&number.to_string()), answer(NoError, Some(60), None));
        }
        assert_eq!(cache.0.len(), ENTRIES_MAX);
    }
}
