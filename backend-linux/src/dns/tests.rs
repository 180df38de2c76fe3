#![allow(clippy::unwrap_used, clippy::expect_used)]
use super::{
    Dns,
    forward::Taken,
    message,
    resolv_conf::Watched,
    upstream::{Asked, Pool},
};
use crate::{paths::Paths, service::Ground};
use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, Query, ResponseCode},
    rr::{Name, RData, Record, RecordType},
};
use holdfast_core::{
    world::{PrefixEntry, Snapshot},
    zone::{Host, Sight, View, Zone, ZoneNetwork},
};
use proptest::prelude::*;
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, UdpSocket},
    sync::watch,
};

/// `web` and `db` of one place and `other` of another, on the network `default`; `many` has a hundred addresses.
fn snapshot() -> Snapshot {
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    let host = |name: &str, place, addresses: Vec<IpAddr>| Host {
        names: vec![name.into(), format!("{name}-alias")],
        network: 0,
        place,
        addresses,
    };
    let many = (10..110).map(|last| IpAddr::from([10, 89, 0, last])).collect();
    let view = |place| View {
        sees: vec![Sight { place, ipv4: true, ipv6: true }],
        networks: vec![0],
        forwards: place == 0,
        servers: vec![],
    };
    Snapshot {
        zone: Zone {
            askers: [(address("10.89.0.2"), 0), (address("fd00::2"), 0), (address("10.89.0.4"), 1)].into(),
            views: vec![view(0), view(1)],
            hosts: vec![
                host("web", 0, vec![address("10.89.0.2"), address("fd00::2")]),
                host("db", 0, vec![address("10.89.0.3")]),
                host("other", 1, vec![address("10.89.0.4"), address("fd00::4")]),
                host("many", 0, many),
            ],
            networks: vec![ZoneNetwork {
                name: "default".into(),
                subnets: vec![(address("10.89.0.0"), 24), (address("fd00::"), 64)],
            }],
        },
        prefixes: vec![PrefixEntry {
            index: 0,
            name: "default".into(),
            gateways: vec![(address("10.89.0.1"), 24), (address("fd00::1"), 64)],
        }],
        ..Snapshot::default()
    }
}

/// A service whose host asks nobody.
fn dns() -> (Dns, watch::Sender<Arc<Snapshot>>, tempfile::TempDir) {
    let state = tempfile::tempdir().unwrap();
    std::fs::write(state.path().join("resolv.conf"), "").unwrap();
    let (sender, snapshots) = watch::channel(Arc::new(snapshot()));
    let paths = Paths { state: state.path().into(), runtime: state.path().into() };
    let dns = Dns::new(&Ground::new(paths, snapshots));
    (dns, sender, state)
}

fn question(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(77, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message
}

fn answer(dns: &Dns, from: &str, question: &Message) -> Option<(Message, usize)> {
    match dns.take(&question.to_vec().unwrap(), from.parse().unwrap()) {
        Taken::Answer(answer, limit) => {
            // What is looked at is what goes over the wire.
            let bytes = message::write(&answer, limit).unwrap();
            assert!(bytes.len() <= limit);
            Some((Message::from_vec(&bytes).unwrap(), bytes.len()))
        }
        _ => None,
    }
}

#[track_caller]
fn check(dns: &Dns, from: &str, name: &str, kind: RecordType, code: ResponseCode, data: &[&str]) {
    let (answer, _) = answer(dns, from, &question(name, kind)).expect("an answer");
    let found: Vec<String> = answer.answers.iter().map(|record| record.data.to_string()).collect();
    assert_eq!(
        (answer.response_code, found.as_slice()),
        (code, &data.iter().map(|it| it.to_string()).collect::<Vec<_>>()[..]),
        "{name} {kind}"
    );
    assert!(answer.answers.iter().all(|record| record.ttl <= 5));
    let bare = answer.answers.is_empty() && code != ResponseCode::Refused;
    assert_eq!(answer.authorities.len(), usize::from(bare), "an absence says how long it lasts");
    assert_eq!((answer.id, answer.recursion_available), (77, true));
}

#[test]
fn names_are_told_to_whoever_sees_them() {
    use RecordType::{A, AAAA, MX, NS, PTR, SOA};
    use ResponseCode::{NXDomain, NoError, Refused};
    let (dns, _sender, _state) = dns();
    let blue = "10.89.0.2";
    for name in [
        "web.",
        "WEB.",
        "web-alias.",
        "web.default.",
        "web.holdfast.internal.",
        "web.default.holdfast.internal.",
    ] {
        check(&dns, blue, name, A, NoError, &["10.89.0.2"]);
        check(&dns, "fd00::2", name, AAAA, NoError, &["fd00::2"]);
        check(&dns, blue, name, MX, NoError, &[]);
        check(&dns, "10.89.0.4", name, A, NXDomain, &[]);
    }
    check(&dns, blue, "db.", AAAA, NoError, &[]);
    check(&dns, blue, "2.0.89.10.in-addr.arpa.", PTR, NoError, &["web.default.holdfast.internal."]);
    check(&dns, blue, "4.0.89.10.in-addr.arpa.", PTR, NXDomain, &[]);
    check(&dns, "10.89.0.4", "4.0.89.10.in-addr.arpa.", PTR, NoError, &["other.default.holdfast.internal."]);
    for nobody in ["nobody.", "other.", "a.b.holdfast.internal.", "other.default.holdfast.internal."] {
        check(&dns, blue, nobody, A, NXDomain, &[]);
    }
    check(&dns, blue, "default.holdfast.internal.", A, NoError, &[]);
    check(&dns, blue, "holdfast.internal.", NS, NoError, &[]);
    check(&dns, blue, "localhost.", A, NoError, &["127.0.0.1"]);
    check(&dns, blue, "localhost.", AAAA, NoError, &["::1"]);
    let (apex, _) = answer(&dns, blue, &question("holdfast.internal.", SOA)).unwrap();
    assert_eq!((apex.answers.len(), apex.authorities.len()), (1, 0));
    // There is nobody to ask, and a network's name at the end of a name is ours then.
    check(&dns, blue, "example.org.", A, Refused, &[]);
    check(&dns, blue, "nobody.default.", A, NXDomain, &[]);
    // One that has no way out is not told of names outside, and one that is nobody of nothing.
    check(&dns, "10.89.0.4", "example.org.", A, Refused, &[]);
    check(&dns, "10.89.0.99", "web.", A, Refused, &[]);
}

#[test]
fn a_new_snapshot_is_answered_from_at_once() {
    let (dns, sender, _state) = dns();
    check(&dns, "10.89.0.2", "new.", RecordType::A, ResponseCode::NXDomain, &[]);
    let mut next = snapshot();
    next.zone.hosts[0].names.push("new".into());
    sender.send_replace(Arc::new(next));
    check(&dns, "10.89.0.2", "new.", RecordType::A, ResponseCode::NoError, &["10.89.0.2"]);
    sender.send_replace(Arc::new(Snapshot::default()));
    check(&dns, "10.89.0.2", "web.", RecordType::A, ResponseCode::Refused, &[]);
}

#[test]
fn an_answer_that_is_too_large_says_so_and_no_more() {
    let (dns, _sender, _state) = dns();
    let mut asked = question("many.", RecordType::A);
    let (cut, length) = answer(&dns, "10.89.0.2", &asked).unwrap();
    assert!(cut.truncation && cut.answers.is_empty() && length <= 512);
    let mut edns = Edns::new();
    edns.set_max_payload(65_000);
    asked.set_edns(edns);
    let (cut, length) = answer(&dns, "10.89.0.2", &asked).unwrap();
    assert!(cut.truncation && cut.edns.is_some() && length <= 1232, "never more than a path takes");
    let Taken::Answer(whole, _) = dns.take(&asked.to_vec().unwrap(), "10.89.0.2".parse().unwrap()) else {
        panic!("an answer")
    };
    let whole = Message::from_vec(&message::write(&whole, 65_535).unwrap()).unwrap();
    assert_eq!((whole.answers.len(), whole.truncation), (100, false));
}

#[test]
fn what_is_no_question_is_told_so_or_left_alone() {
    let (dns, _sender, _state) = dns();
    let code = |message: &Message| answer(&dns, "10.89.0.2", message).map(|(answer, _)| answer.response_code);
    let mut update = question("web.", RecordType::A);
    update.metadata.op_code = OpCode::Notify;
    assert_eq!(code(&update), Some(ResponseCode::NotImp));
    assert_eq!(code(&question("web.", RecordType::AXFR)), Some(ResponseCode::Refused));
    let mut two = question("web.", RecordType::A);
    two.add_query(two.queries[0].clone());
    assert_eq!(code(&two), Some(ResponseCode::FormErr));
    let mut newer = question("web.", RecordType::A);
    let mut edns = Edns::new();
    edns.set_version(1);
    newer.set_edns(edns);
    // 16 is BADVERS in one place and BADSIG in another.
    assert_eq!(code(&newer).map(u16::from), Some(16));
    let mut reply = question("web.", RecordType::A);
    reply.metadata.message_type = MessageType::Response;
    assert_eq!(code(&reply), None, "an answer is never answered");
    let bytes = question("web.", RecordType::A).to_vec().unwrap();
    let cut = dns.take(&bytes[..bytes.len() - 3], "10.89.0.2".parse().unwrap());
    assert!(
        matches!(cut, Taken::Answer(wrong, _) if wrong.response_code == ResponseCode::FormErr && wrong.id == 77)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever comes is answered within its limit or not at all, and an answer is never answered.
    #[test]
    fn no_packet_does_harm(noise in proptest::collection::vec(any::<u8>(), 0..600), cut in 0_usize..64, flips in proptest::collection::vec((0_usize..64, any::<u8>()), 0..6)) {
        let (dns, _sender, _state) = dns();
        let mut changed = question("web.default.holdfast.internal.", RecordType::A).to_vec().unwrap();
        changed.truncate(changed.len().saturating_sub(cut));
        for (at, bits) in flips {
            if let Some(byte) = changed.get_mut(at) {
                *byte ^= bits;
            }
        }
        for bytes in [noise, changed] {
            if let Taken::Answer(answer, limit) = dns.take(&bytes, "10.89.0.2".parse().unwrap()) {
                let written = message::write(&answer, limit).expect("every answer can be written");
                prop_assert!(written.len() <= limit && written[2] & 0x80 != 0);
                prop_assert_eq!(&written[..2], &bytes[..2]);
                prop_assert!(bytes[2] & 0x80 == 0, "an answer was answered");
            }
        }
    }
}

/// How a server of the tests behaves.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    /// As it should.
    Right,
    /// Over UDP it says that the answer is cut.
    Cuts,
    /// With the name in lower case.
    FoldsCase,
    /// With another identity first.
    WrongFirst,
    /// With an error.
    Fails,
    /// Not at all.
    Silent,
}

fn manner_answer(bytes: &[u8], manner: Manner, tcp: bool) -> Vec<Vec<u8>> {
    let asked = Message::from_vec(bytes).unwrap();
    let mut reply = message::reply(&asked, ResponseCode::NoError);
    let name = asked.queries[0].name().clone();
    let data = RData::A(std::net::Ipv4Addr::new(192, 0, 2, if tcp { 2 } else { 1 }).into());
    reply.add_answer(Record::from_rdata(name.clone(), 60, data));
    match manner {
        Manner::Cuts if !tcp => vec![reply.truncate().to_vec().unwrap()],
        Manner::FoldsCase => {
            reply.queries[0].set_name(name.to_lowercase());
            vec![reply.to_vec().unwrap()]
        }
        Manner::WrongFirst => {
            let right = reply.to_vec().unwrap();
            reply.metadata.id ^= 1;
            vec![reply.to_vec().unwrap(), vec![0; 3], right]
        }
        Manner::Fails => vec![message::reply(&asked, ResponseCode::ServFail).to_vec().unwrap()],
        Manner::Silent => vec![],
        _ => vec![reply.to_vec().unwrap()],
    }
}

/// A server on the loopback that this test makes, with the names that it was asked for.
async fn server(manner: Manner) -> (SocketAddr, tokio::sync::mpsc::Receiver<String>) {
    let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = udp.local_addr().unwrap();
    let tcp = TcpListener::bind(address).await.unwrap();
    let (sender, asked) = tokio::sync::mpsc::channel(64);
    tokio::task::spawn_local(async move {
        let mut buffer = [0; 2048];
        loop {
            let (length, from) = udp.recv_from(&mut buffer).await.unwrap();
            let question = Message::from_vec(&buffer[..length]).unwrap();
            let _ = sender.try_send(format!("{} from {}", question.queries[0].name(), from.port()));
            for bytes in manner_answer(&buffer[..length], manner, false) {
                udp.send_to(&bytes, from).await.unwrap();
            }
        }
    });
    tokio::task::spawn_local(async move {
        loop {
            let (mut stream, _) = tcp.accept().await.unwrap();
            let mut bytes = vec![0; stream.read_u16().await.unwrap().into()];
            stream.read_exact(&mut bytes).await.unwrap();
            for bytes in manner_answer(&bytes, manner, true) {
                stream.write_u16(bytes.len() as u16).await.unwrap();
                stream.write_all(&bytes).await.unwrap();
            }
        }
    });
    (address, asked)
}

fn local<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, future)
}

async fn ask(pool: &Pool, list: &[SocketAddr]) -> std::io::Result<String> {
    let query = Query::query(Name::from_ascii("www.example.org.").unwrap(), RecordType::A);
    let asked = Asked { dnssec_ok: false, checking_disabled: false };
    let answer = pool.ask(list, &query, asked).await?;
    Ok(answer
        .answers
        .first()
        .map_or_else(|| answer.response_code.to_string(), |record| record.data.to_string()))
}

#[test]
fn servers_are_asked_so_that_nobody_can_guess_the_answer() {
    local(async {
        let pool = Pool::default();
        let (right, mut asked) = server(Manner::Right).await;
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..16 {
            assert_eq!(ask(&pool, &[right]).await.unwrap(), "192.0.2.1");
            seen.insert(asked.recv().await.unwrap());
        }
        let names: std::collections::BTreeSet<&str> =
            seen.iter().filter_map(|it| it.split(' ').next()).collect();
        let ports: std::collections::BTreeSet<&str> =
            seen.iter().filter_map(|it| it.rsplit(' ').next()).collect();
        assert!(names.len() > 8 && ports.len() > 8, "{seen:?}");
        let (wrong_first, _asked) = server(Manner::WrongFirst).await;
        assert_eq!(ask(&pool, &[wrong_first]).await.unwrap(), "192.0.2.1");
        let (cuts, _asked) = server(Manner::Cuts).await;
        assert_eq!(ask(&pool, &[cuts]).await.unwrap(), "192.0.2.2", "over TCP");
        let (folds, _asked) = server(Manner::FoldsCase).await;
        assert_eq!(ask(&pool, &[folds]).await.unwrap(), "192.0.2.2", "not believed but over TCP");
        assert_eq!(ask(&pool, &[folds]).await.unwrap(), "192.0.2.1", "known to fold case");
    });
}

#[test]
fn a_server_that_does_not_answer_is_passed_over_until_it_does() {
    local(async {
        let pool = Pool::default();
        let (silent, _one) = server(Manner::Silent).await;
        let (right, _two) = server(Manner::Right).await;
        let (fails, _three) = server(Manner::Fails).await;
        assert_eq!(ask(&pool, &[fails, right]).await.unwrap(), "192.0.2.1");
        assert_eq!(ask(&pool, &[fails]).await.unwrap(), ResponseCode::ServFail.to_string());
        for _ in 0..2 {
            assert_eq!(ask(&pool, &[silent, right]).await.unwrap(), "192.0.2.1");
        }
        let down: Vec<SocketAddr> = pool.down(&[silent, right]).map(|(server, _)| server).collect();
        assert_eq!(down, [silent]);
        let began = Instant::now();
        assert_eq!(ask(&pool, &[silent, right]).await.unwrap(), "192.0.2.1");
        assert!(began.elapsed() < Duration::from_millis(500), "it is not asked first any more");
        let began = Instant::now();
        ask(&pool, &[silent]).await.unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(3), "its asker learns it soon");
        // Closed ports are refused at once, and one that comes back is found by the probe.
        let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let gone = udp.local_addr().unwrap();
        drop(udp);
        for _ in 0..2 {
            ask(&pool, &[gone]).await.unwrap_err();
        }
        assert_eq!(pool.down(&[gone]).count(), 1);
        let back = UdpSocket::bind(gone).await.unwrap();
        tokio::task::spawn_local(async move {
            let mut buffer = [0; 2048];
            loop {
                let (length, from) = back.recv_from(&mut buffer).await.unwrap();
                for bytes in manner_answer(&buffer[..length], Manner::Right, false) {
                    back.send_to(&bytes, from).await.unwrap();
                }
            }
        });
        let until = Instant::now() + Duration::from_secs(20);
        while pool.down(&[gone]).count() == 1 && Instant::now() < until {
            pool.probe(&[gone]).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(pool.down(&[gone]).count(), 0);
    });
}

#[test]
fn a_question_that_many_ask_is_asked_once_and_never_of_who_asks() {
    local(async {
        let (mut dns, _sender, _state) = dns();
        let (right, mut asked) = server(Manner::Right).await;
        let mut watched = Watched::new("/nonexistent".into());
        watched.servers.addresses =
            vec![right, "10.89.0.1:53".parse().unwrap(), "10.89.0.2:53".parse().unwrap()];
        watched.freeze();
        dns.host = watched.into();
        let bytes = question("www.example.org.", RecordType::A).to_vec().unwrap();
        let take = || match dns.take(&bytes, "10.89.0.2".parse().unwrap()) {
            Taken::Wait(waiting) => waiting,
            _ => panic!("it is asked of others"),
        };
        let all: Vec<_> = (0..8).map(|_| take()).collect();
        let answers = futures_util::future::join_all(all.iter().map(|waiting| dns.forward(waiting))).await;
        for answer in answers {
            assert_eq!((answer.id, answer.answers.len()), (77, 1));
            assert_eq!(answer.queries[0].name().to_ascii(), "www.example.org.", "in its own letters");
        }
        asked.recv().await.unwrap();
        assert!(asked.try_recv().is_err(), "asked once");
        drop(all);
        // From the cache now; neither the gateway nor the asker itself was among those asked.
        assert!(
            matches!(dns.take(&bytes, "10.89.0.2".parse().unwrap()), Taken::Answer(answer, _) if answer.answers.len() == 1)
        );
        let held: Vec<_> = (0..200)
            .filter_map(|number| {
                let bytes = question(&format!("w{number}.example.org."), RecordType::A).to_vec().unwrap();
                match dns.take(&bytes, "10.89.0.2".parse().unwrap()) {
                    Taken::Wait(waiting) => Some(waiting),
                    _ => None,
                }
            })
            .collect();
        assert_eq!(held.len(), 64, "more wait for nobody");
    });
}
