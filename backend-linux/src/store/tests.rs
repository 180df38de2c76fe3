#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::SqliteStore;
use holdfast_core::{
    error::{Class, StoreError},
    id::{NetworkId, OperationId, Tenant},
    journal::{OperationKind, OperationRecord, Phase, Resume},
    record::{Change, NetworkRecord, NodeRecord, Records},
    time::Wall,
    world::{Durability, Store},
};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Tells a re-executed test binary which directory to work in.
const CHILD_DIRECTORY: &str = "HOLDFAST_STORE_TEST_DIRECTORY";

fn node(slot_next: u32) -> NodeRecord {
    NodeRecord {
        ula_prefix: "fd00:1:2::".parse().unwrap(),
        router_generation: 1,
        daemon_generation: 1,
        slot_next,
        group_next: 0,
        network_next: 0,
        namespaces: None,
        pin: None,
        control: None,
        uplink: None,
        down: false,
        cures: BTreeMap::new(),
        policy_classes: Default::default(),
    }
}

fn network(id: &str, label: &str) -> NetworkRecord {
    let mut spec = holdfast_core::spec::NetworkSpec::default();
    spec.labels.insert("label".to_owned(), label.to_owned());
    NetworkRecord {
        id: NetworkId::from_raw(id),
        name: id.to_owned(),
        spec,
        index: 1,
        subnet4: "10.0.0.0".parse().unwrap(),
        prefix4: 24,
        gateway4: "10.0.0.1".parse().unwrap(),
        subnet6: "fd00:1:2:1::".parse().unwrap(),
        prefix6: 64,
        routed: Default::default(),
        gateway6: "fd00:1:2:1::1".parse().unwrap(),
        groups: BTreeMap::from([(Tenant::default(), 0)]),
        created: Wall(1),
    }
}

fn operation(resume: Resume) -> OperationRecord {
    OperationRecord {
        id: OperationId::from_raw("op"),
        kind: OperationKind::CreateNetwork,
        subjects: Vec::new(),
        name: "net".to_owned(),
        steps: Vec::new(),
        phase: Phase::Forward { done: 0 },
        resume,
        on_done: Vec::new(),
        on_undone: Vec::new(),
        daemon_generation: 1,
        started: Wall(1),
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn commit(store: &SqliteStore, durability: Durability, changes: Vec<Change>) -> Result<(), StoreError> {
    run(store.transact::<(), ()>(durability, |_| Ok((changes, ())))).map(|decided| decided.unwrap())
}

/// Without the count of changes, which begins anew with each opening.
fn records(store: &SqliteStore) -> Records {
    let records = run(store.read(Records::clone));
    Records { revision: 0, ..records }
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn database(&self) -> PathBuf {
        self.0.path().join("holdfast.db")
    }

    fn open(&self) -> SqliteStore {
        SqliteStore::open(&self.database()).unwrap()
    }

    fn sql(&self, sql: &str) {
        rusqlite::Connection::open(self.database()).unwrap().execute_batch(sql).unwrap();
    }

    fn count(&self, table: &str) -> i64 {
        rusqlite::Connection::open(self.database())
            .unwrap()
            .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))
            .unwrap()
    }
}

#[test]
fn what_was_committed_is_there_after_a_restart() {
    let place = Place::new();
    let store = place.open();
    commit(&store, Durability::Power, vec![Change::Node(node(1)), Change::Network(network("a", "x"))])
        .unwrap();
    commit(&store, Durability::Process, vec![Change::Node(node(2)), Change::Network(network("b", "y"))])
        .unwrap();
    commit(&store, Durability::Power, vec![Change::RemoveNetwork(NetworkId::from_raw("a"))]).unwrap();
    let before = records(&store);
    drop(store);
    let after = records(&place.open());
    assert_eq!(after, before);
    assert_eq!(after.node.unwrap().slot_next, 2);
    assert_eq!(after.networks.keys().map(NetworkId::as_str).collect::<Vec<_>>(), ["b"]);
}

#[test]
fn a_refused_transaction_changes_nothing() {
    let place = Place::new();
    let store = place.open();
    let refused = run(store.transact::<(), &str>(Durability::Power, |_| Err("no"))).unwrap();
    assert_eq!(refused, Err("no"));
    assert_eq!(records(&store), Records::default());
}

#[test]
fn transactions_see_one_another_one_at_a_time() {
    let place = Place::new();
    let store = std::sync::Arc::new(place.open());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..100)
            .map(|_| {
                let store = std::sync::Arc::clone(&store);
                tokio::spawn(async move {
                    let add = |records: &Records| {
                        let next = records.node.as_ref().map_or(0, |node| node.slot_next) + 1;
                        Ok::<_, ()>((vec![Change::Node(node(next))], next))
                    };
                    store.transact(Durability::Process, add).await.unwrap().unwrap()
                })
            })
            .collect();
        let mut seen = std::collections::BTreeSet::new();
        for task in tasks {
            seen.insert(task.await.unwrap());
        }
        assert_eq!(seen.len(), 100, "no two transactions decided on the same records");
    });
    assert_eq!(records(&store).node.unwrap().slot_next, 100);
}

#[test]
fn a_caller_that_goes_away_leaves_disk_and_memory_the_same() {
    let place = Place::new();
    let store = place.open();
    run(async {
        let transaction =
            store.transact::<(), ()>(Durability::Power, |_| Ok((vec![Change::Node(node(7))], ())));
        // One poll hands the job over; then the caller is gone.
        let mut transaction = Box::pin(transaction);
        std::future::poll_fn(|context| {
            let _ = transaction.as_mut().poll(context);
            std::task::Poll::Ready(())
        })
        .await;
        drop(transaction);
        store
            .transact::<(), ()>(Durability::Power, |records| {
                assert_eq!(
                    records.node.as_ref().map(|node| node.slot_next),
                    Some(7),
                    "the next one sees the commit"
                );
                Ok((Vec::new(), ()))
            })
            .await
    })
    .unwrap()
    .unwrap();
}

#[test]
fn a_second_process_is_told_who_has_the_database() {
    let place = Place::new();
    let _store = place.open();
    let error = SqliteStore::open(&place.database()).unwrap_err();
    assert_eq!(error.class, Class::Conflict);
    assert!(error.cause.contains(&std::process::id().to_string()), "{error}");
}

#[test]
fn a_record_of_the_first_version_is_read() {
    // As the first release stored it; never edited when the record grows: an upgrade reads it instead.
    let golden = r#"{"ula_prefix":"fd00:1:2::","router_generation":3,"daemon_generation":9,"slot_next":41,"group_next":5,"network_next":2,"namespaces":{"user":11,"net":12,"mount":13},"pin":{"pid":70,"start_time_ticks":71,"boot_id":"b"},"control":null,"uplink":null,"down":false,"cures":{"adopted":2}}"#;
    let place = Place::new();
    drop(place.open());
    place.sql(&format!("INSERT INTO records VALUES ('node', 'node', 1, '{golden}')"));
    let records = records(&place.open());
    assert_eq!(records.quarantined, []);
    let node = records.node.unwrap();
    assert_eq!((node.slot_next, node.daemon_generation, node.pin.unwrap().pid), (41, 9, 70));
}

#[test]
fn records_that_cannot_be_read_are_quarantined_and_kept() {
    let place = Place::new();
    let store = place.open();
    commit(
        &store,
        Durability::Power,
        vec![Change::Network(network("good", "x")), Change::Network(network("torn", "x"))],
    )
    .unwrap();
    drop(store);
    place.sql(
        "UPDATE records SET body = substr(body, 1, 40) WHERE id = 'torn';
         INSERT INTO records VALUES ('network', 'newer', 900, '{}');
         INSERT INTO records VALUES ('gadget', 'g', 1, '{}');
         INSERT INTO records SELECT kind, 'other', version, body FROM records WHERE id = 'good';",
    );
    let store = place.open();
    let read = records(&store);
    assert_eq!(read.networks.len(), 1);
    let quarantined: Vec<(&str, &str)> =
        read.quarantined.iter().map(|one| (one.kind.as_str(), one.id.as_str())).collect();
    assert_eq!(
        quarantined,
        [("gadget", "g"), ("network", "newer"), ("network", "other"), ("network", "torn")]
    );
    assert!(read.quarantined[1].cause.contains("newer"), "{}", read.quarantined[1].cause);
    // A new record under the identity of an unreadable one does not cost that one.
    commit(&store, Durability::Power, vec![Change::Network(network("torn", "new"))]).unwrap();
    drop(store);
    assert_eq!((place.count("quarantine"), place.count("records")), (1, 5));
    assert_eq!(records(&place.open()).quarantined.len(), 3);
}

#[test]
fn a_newer_node_record_or_layout_is_refused_untouched() {
    for sql in ["INSERT INTO records VALUES ('node', 'node', 900, '{}')", "PRAGMA user_version = 900"] {
        let place = Place::new();
        drop(place.open());
        place.sql(sql);
        let error = SqliteStore::open(&place.database()).unwrap_err();
        assert_eq!(error.class, Class::Denied, "{error}");
        assert!(error.cause.contains("900") && !error.remedy.is_empty(), "{error}");
        assert!(
            std::fs::read_dir(place.0.path())
                .unwrap()
                .flatten()
                .all(|entry| !entry.file_name().to_string_lossy().contains("corrupt"))
        );
    }
}

#[test]
fn what_is_no_database_is_moved_aside_and_reported_until_removed() {
    type Spoil = fn(&Path);
    let spoils: [Spoil; 4] = [
        |path| {
            std::fs::write(
                path,
                "this is no database, but long enough to look at, really, it is, for a header of 100 bytes …",
            )
            .unwrap()
        },
        |path| std::fs::create_dir_all(path.join("inside")).unwrap(),
        |path| std::os::unix::fs::symlink("/dev/null", path).unwrap(),
        |path| {
            let store = SqliteStore::open(path).unwrap();
            let many =
                (0..200).map(|n| Change::Network(network(&format!("n{n}"), &"x".repeat(500)))).collect();
            commit(&store, Durability::Power, many).unwrap();
            drop(store);
            rusqlite::Connection::open(path)
                .unwrap()
                .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
                .unwrap();
            let mut file = File::options().write(true).open(path).unwrap();
            file.seek(SeekFrom::Start(4096)).unwrap();
            file.write_all(&[0xa5; 40_000]).unwrap();
        },
    ];
    for (case, spoil) in spoils.into_iter().enumerate() {
        let place = Place::new();
        spoil(&place.database());
        let store = place.open();
        let quarantined = records(&store).quarantined;
        assert_eq!(quarantined.len(), 1, "case {case}: {quarantined:?}");
        assert_eq!(quarantined[0].kind, "database");
        assert!(Path::new(&quarantined[0].id).symlink_metadata().is_ok(), "case {case}: kept");
        commit(&store, Durability::Power, vec![Change::Node(node(1))]).unwrap();
        drop(store);
        assert_eq!(records(&place.open()).quarantined.len(), 1, "case {case}: still reported");
    }
}

/// Runs `test` of this binary as a process of its own that works in `directory`.
fn child(mut command: Command, test: &str, directory: &Path) -> Command {
    command
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("store::tests::{test}"), "--ignored", "--nocapture", "--test-threads=1"])
        .env(CHILD_DIRECTORY, directory);
    command
}

fn child_directory() -> PathBuf {
    PathBuf::from(std::env::var_os(CHILD_DIRECTORY).expect("run by its parent test only"))
}

#[test]
#[ignore = "the child of a_kill_loses_nothing_that_was_confirmed"]
fn child_writes_until_it_is_killed() {
    let store = SqliteStore::open(&child_directory().join("holdfast.db")).unwrap();
    for slot in 1.. {
        // Two records of one transaction, large enough that a commit takes several pages.
        let changes = vec![
            Change::Node(node(slot)),
            Change::Network(network("pair", &format!("{slot}:{}", "x".repeat(20_000)))),
        ];
        let durability = if slot % 2 == 0 { Durability::Power } else { Durability::Process };
        commit(&store, durability, changes).unwrap();
        println!("confirmed {slot}");
    }
}

#[test]
fn a_kill_loses_nothing_that_was_confirmed() {
    let place = Place::new();
    for round in 0..5_u64 {
        let mut process = child(Command::new("env"), "child_writes_until_it_is_killed", place.0.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let deadline = Instant::now() + Duration::from_millis(60 + 37 * round);
        let mut confirmed = 0;
        while Instant::now() < deadline || confirmed == 0 {
            let line = lines.next().expect("the child writes until it is killed").unwrap();
            if let Some(slot) = line.trim().rsplit_once("confirmed ") {
                confirmed = slot.1.parse::<u32>().unwrap();
            }
        }
        process.kill().unwrap();
        process.wait().unwrap();
        for line in lines.map_while(Result::ok) {
            if let Some(slot) = line.strip_prefix("confirmed ") {
                confirmed = slot.parse().unwrap();
            }
        }
        let read = records(&place.open());
        assert_eq!(read.quarantined, []);
        let slot = read.node.unwrap().slot_next;
        assert!(slot >= confirmed, "round {round}: {slot} is on disk, {confirmed} was confirmed");
        let label = &read.networks[&NetworkId::from_raw("pair")].spec.labels["label"];
        assert_eq!(label.split(':').next().unwrap(), slot.to_string(), "both records or none");
    }
}

#[test]
#[ignore = "the child of a_full_disk_refuses_the_new_and_still_takes_removals"]
fn child_fills_its_disk() {
    let directory = child_directory();
    nix::mount::mount(
        Some("tmpfs"),
        &directory,
        Some("tmpfs"),
        nix::mount::MsFlags::empty(),
        Some("size=8m,mode=700"),
    )
    .unwrap();
    let path = directory.join("holdfast.db");
    let store = SqliteStore::open(&path).unwrap();
    commit(&store, Durability::Power, vec![Change::Node(node(1)), Change::Network(network("old", "x"))])
        .unwrap();
    let mut ballast = File::create(directory.join("ballast")).unwrap();
    while ballast.write_all(&[1; 4096]).is_ok() {}

    let before = records(&store);
    let error =
        commit(&store, Durability::Power, vec![Change::Operation(operation(Resume::Undo))]).unwrap_err();
    assert_eq!(error.class, Class::Exhausted, "{error}");
    assert!(error.remedy.contains("free space"), "{error}");
    assert_eq!(records(&store), before, "a refused commit changes nothing in memory");

    // What ends things goes on working, over a restart of the daemon and many commits.
    let store = {
        drop(store);
        SqliteStore::open(&path).unwrap()
    };
    assert_eq!(records(&store), before, "nor on disk");
    for round in 0..300 {
        let begin = vec![Change::Operation(operation(Resume::Finish)), Change::Node(node(round))];
        commit(&store, Durability::Power, begin).unwrap();
        commit(&store, Durability::Power, vec![Change::RemoveOperation(OperationId::from_raw("op"))])
            .unwrap();
    }
    commit(&store, Durability::Power, vec![Change::RemoveNetwork(NetworkId::from_raw("old"))]).unwrap();

    // A commit that really does not fit is taken back whole.
    let before = records(&store);
    let huge = network("huge", &"y".repeat(6 << 20));
    let error =
        commit(&store, Durability::Power, vec![Change::Node(node(999)), Change::Network(huge)]).unwrap_err();
    assert_eq!(error.class, Class::Exhausted, "{error}");
    assert_eq!(records(&store), before);
    drop(store);
    drop(ballast);
    std::fs::remove_file(directory.join("ballast")).unwrap();
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(records(&store), before);
    commit(&store, Durability::Power, vec![Change::Operation(operation(Resume::Undo))]).unwrap();
    println!("all claims hold");
}

#[test]
fn a_full_disk_refuses_the_new_and_still_takes_removals() {
    let place = Place::new();
    let mut unshare = Command::new("timeout");
    unshare.args(["--kill-after=5", "60", "unshare", "--user", "--map-root-user", "--mount", "--kill-child"]);
    #[allow(clippy::disallowed_methods, reason = "timeout(1) is its deadline")]
    let output = child(unshare, "child_fills_its_disk", place.0.path()).output().unwrap();
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.stderr.as_slice().read_to_string(&mut text).unwrap();
    assert!(output.status.success() && text.contains("all claims hold"), "{text}");
}
