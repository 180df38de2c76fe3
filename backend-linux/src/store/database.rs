//! The SQLite file: opening, reading, committing.

use super::error::{FREE_SPACE, from_io, from_sqlite};
use holdfast_core::{
    error::{Class, StoreError},
    journal::Resume,
    record::{Change, DecodeError, Encoded, Kind, Quarantined, Records, decode, encode},
    world::Durability,
};
use nix::fcntl::{Flock, FlockArg};
use rusqlite::{Connection, ErrorCode, OpenFlags, config::DbConfig, params};
use std::{
    collections::BTreeSet,
    fs::File,
    io::{Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

/// The layout of the tables (`PRAGMA user_version`); the version of a record is its own.
const SCHEMA_VERSION: i64 = 1;

/// Kept free inside the database and allocated in its log, in pages of 4 KiB, so that stops and removals can
/// be written down when the disk is full.
const RESERVE_PAGES: u64 = 256;
const PAGE_BYTES: u64 = 4096;

/// With less space than this left on the file system nothing new is accepted, in bytes.
const FREE_BYTES_MIN: u64 = 1 << 20;

/// The log is copied into the database when it holds so many pages; half the reserve, so that a commit on a
/// full disk stays within what is allocated.
const CHECKPOINT_PAGES: i64 = RESERVE_PAGES as i64 / 2;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS records (
        kind TEXT NOT NULL, id TEXT NOT NULL, version INTEGER NOT NULL, body TEXT NOT NULL,
        PRIMARY KEY (kind, id)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS quarantine (
        kind TEXT NOT NULL, id TEXT NOT NULL, version INTEGER NOT NULL, body ANY NOT NULL, moved_ms INTEGER NOT NULL
    ) STRICT;";

/// An open database.
#[derive(Debug)]
pub struct Database {
    path: PathBuf,
    connection: Connection,
    /// Keys whose stored record this build cannot read: moved away before they are written.
    unreadable: BTreeSet<(String, String)>,
    /// What the connection is set to.
    durability: Durability,
    /// Held for as long as the database is open, over every runtime directory that could be chosen.
    _lock: Flock<File>,
}

/// Why a file could not be opened as a database.
enum OpenError {
    /// It is none, or is damaged.
    Damaged(String),
    /// Anything else.
    Other(StoreError),
}

impl Database {
    /// Opens or makes the database and reads all records.
    pub fn open(path: &Path) -> Result<(Self, Records), StoreError> {
        let lock = lock(path)?;
        let connection = match connect(path) {
            Ok(connection) => connection,
            Err(OpenError::Other(error)) => return Err(error),
            Err(OpenError::Damaged(cause)) => {
                let aside = move_aside(path)?;
                tracing::error!(path = %path.display(), aside = %aside.display(), cause, "database is damaged; moved aside");
                connect(path).map_err(|error| match error {
                    OpenError::Other(error) => error,
                    OpenError::Damaged(cause) => {
                        StoreError::new(Class::Corrupt, "make", path.display().to_string(), cause)
                    }
                })?
            }
        };
        let (mut records, unreadable) =
            read_all(&connection).map_err(|error| from_sqlite(Some(&connection), "read", path, &error))?;
        if let Some(newer) = unreadable.iter().find(|(kind, _, error)| {
            kind == Kind::Node.as_str() && matches!(error, DecodeError::Newer { .. })
        }) {
            // Everything else hangs on its counters: without them identities would be handed out twice.
            return Err(StoreError::new(
                Class::Denied,
                "open",
                path.display().to_string(),
                format!("the node's record {}", newer.2),
            )
            .with_remedy("run the build that wrote it, or name another --root"));
        }
        let mut database = Self {
            path: path.to_owned(),
            connection,
            unreadable: unreadable.iter().map(|(kind, id, _)| (kind.clone(), id.clone())).collect(),
            durability: Durability::Power,
            _lock: lock,
        };
        records.quarantined = unreadable
            .into_iter()
            .map(|(kind, id, error)| Quarantined { kind, id, cause: error.to_string() })
            .chain(databases_aside(path))
            .collect();
        if let Err(error) = database.restore_reserve() {
            tracing::warn!(%error, "no room for the store's reserve");
        }
        Ok((database, records))
    }

    /// Commits changes; `records` is what they were decided on.
    pub fn commit(
        &mut self,
        durability: Durability,
        changes: &[Change],
        records: &Records,
    ) -> Result<(), StoreError> {
        if changes.iter().any(|change| is_new(change, records)) {
            self.check_space()?;
        }
        self.write(durability, changes)
            .map_err(|error| from_sqlite(Some(&self.connection), "commit to", &self.path, &error))?;
        for change in changes {
            let Encoded { kind, id, .. } = encode(change);
            self.unreadable.remove(&(kind.as_str().to_owned(), id));
        }
        Ok(())
    }

    fn write(&mut self, durability: Durability, changes: &[Change]) -> rusqlite::Result<()> {
        if durability != self.durability {
            // In WAL, FULL syncs the log at each commit and NORMAL at checkpoints only: a commit then outlives
            // every process but not the power. The next FULL commit makes earlier ones durable with it.
            let level = if durability == Durability::Power { "FULL" } else { "NORMAL" };
            self.connection.pragma_update(None, "synchronous", level)?;
            self.durability = durability;
        }
        // A transaction that is dropped without a commit is rolled back.
        let transaction = self.connection.transaction()?;
        for change in changes {
            let Encoded { kind, id, body } = encode(change);
            if self.unreadable.contains(&(kind.as_str().to_owned(), id.clone())) {
                transaction
                    .prepare_cached(
                        "INSERT INTO quarantine SELECT kind, id, version, body, ?3 FROM records WHERE kind = ?1 AND id = ?2",
                    )?
                    .execute(params![kind.as_str(), id, now_ms()])?;
            }
            match body {
                Some(body) => transaction
                    .prepare_cached(
                        "INSERT OR REPLACE INTO records (kind, id, version, body) VALUES (?1, ?2, ?3, ?4)",
                    )?
                    .execute(params![kind.as_str(), id, kind.version(), body])?,
                None => transaction
                    .prepare_cached("DELETE FROM records WHERE kind = ?1 AND id = ?2")?
                    .execute(params![kind.as_str(), id])?,
            };
        }
        transaction.commit()
    }

    /// Refuses when the last of the disk is to be left to stops and removals.
    fn check_space(&self) -> Result<(), StoreError> {
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        let Ok(stat) = nix::sys::statvfs::statvfs(directory) else {
            return Ok(()); // Not knowing is no reason to refuse: the commit itself finds out.
        };
        let free = stat.blocks_available().saturating_mul(stat.fragment_size());
        if free < FREE_BYTES_MIN {
            let cause = format!(
                "only {} KiB are free on its file system, {} are needed",
                free >> 10,
                FREE_BYTES_MIN >> 10
            );
            return Err(StoreError::new(
                Class::Exhausted,
                "commit to",
                self.path.display().to_string(),
                cause,
            )
            .with_remedy(FREE_SPACE));
        }
        Ok(())
    }

    /// Makes sure that the log has its length on disk and the database its free pages.
    fn restore_reserve(&mut self) -> Result<(), StoreError> {
        let log = with_suffix(&self.path, "-wal");
        let log_bytes = std::fs::metadata(&log).map(|metadata| metadata.len()).unwrap_or(0);
        let map = |connection: &Connection, error| {
            from_sqlite(Some(connection), "reserve space in", &self.path, &error)
        };
        let free: u64 = self
            .connection
            .pragma_query_value(None, "freelist_count", |row| row.get::<_, i64>(0))
            .map_err(|error| map(&self.connection, error))?
            .try_into()
            .unwrap_or(0);
        if free >= RESERVE_PAGES / 2 && log_bytes >= RESERVE_PAGES * PAGE_BYTES {
            return Ok(());
        }
        // Written and dropped: its pages stay in the file as free ones, and the log keeps its length.
        let bytes = RESERVE_PAGES * PAGE_BYTES;
        self.connection
            .execute_batch(&format!(
                "BEGIN IMMEDIATE; CREATE TABLE reserve (body BLOB NOT NULL); INSERT INTO reserve VALUES (zeroblob({bytes})); COMMIT;
                 DROP TABLE reserve; PRAGMA wal_checkpoint(RESTART);"
            ))
            .or_else(|error| {
                if !self.connection.is_autocommit() {
                    self.connection.execute_batch("ROLLBACK")?;
                }
                Err(error)
            })
            .map_err(|error| map(&self.connection, error))
    }
}

/// Whether a change asks for something new, which a nearly full disk refuses: an operation that would be
/// taken back after a crash, or an image.
fn is_new(change: &Change, records: &Records) -> bool {
    match change {
        Change::Operation(operation) => {
            operation.resume == Resume::Undo && !records.operations.contains_key(&operation.id)
        }
        Change::Image(image) => !records.images.contains_key(&image.id),
        Change::Offloaded(pod) => !records.offloaded.contains_key(&pod.uid),
        _ => false,
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn now_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| i64::try_from(since.as_millis()).ok())
        .unwrap_or(0)
}

/// Locks the database for this process: two daemons whose environments choose different runtime directories
/// still meet here.
fn lock(path: &Path) -> Result<Flock<File>, StoreError> {
    let lock_path = with_suffix(path, ".lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
        .open(&lock_path)
        .map_err(|error| from_io("open", &lock_path, &error))?;
    let mut lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(mut file, errno)| {
        let mut holder = String::new();
        let _ = Read::by_ref(&mut file).take(32).read_to_string(&mut holder);
        let cause = format!("another process has the database open (pid {}): {errno}", holder.trim());
        StoreError::new(Class::Conflict, "open", path.display().to_string(), cause)
            .with_remedy("use that daemon, or end it first")
    })?;
    // The number only helps a person; the lock is what counts, and a full disk is no reason to stay away.
    let _ =
        lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| writeln!(lock, "{}", std::process::id()));
    Ok(lock)
}

/// Opens and prepares a connection.
fn connect(path: &Path) -> Result<Connection, OpenError> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.is_file() => {
            return Err(OpenError::Damaged("is not a regular file".to_owned()));
        }
        _ => {}
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(path, flags)
        .map_err(|error| OpenError::Other(from_sqlite(None, "open", path, &error)))?;
    prepare(&connection, path).map_err(|error| match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => OpenError::Damaged(error.to_string()),
        _ => OpenError::Other(from_sqlite(Some(&connection), "open", path, &error)),
    })??;
    Ok(connection)
}

/// Sets the connection up, checks what the file is and makes the tables.
fn prepare(connection: &Connection, path: &Path) -> rusqlite::Result<Result<(), OpenError>> {
    // Exclusive before the first access: the log's index then lives in memory, so that opening needs no file
    // that a full disk would refuse.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if version > SCHEMA_VERSION {
        let cause = format!(
            "its layout has version {version}, newer than {SCHEMA_VERSION}, the newest this build reads"
        );
        return Ok(Err(OpenError::Other(
            StoreError::new(Class::Denied, "open", path.display().to_string(), cause)
                .with_remedy("run the build that wrote it, or name another --root"),
        )));
    }
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict != "ok" {
        return Ok(Err(OpenError::Damaged(verdict)));
    }
    if version < SCHEMA_VERSION {
        connection.execute_batch(&format!(
            "BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
        ))?;
    }
    Ok(Ok(()))
}

type Unreadable = Vec<(String, String, DecodeError)>;

/// Reads every record; those that cannot be understood come back beside the others.
fn read_all(connection: &Connection) -> rusqlite::Result<(Records, Unreadable)> {
    let mut records = Records::default();
    let mut unreadable = Vec::new();
    let mut statement =
        connection.prepare("SELECT kind, id, version, CAST(body AS BLOB) FROM records ORDER BY kind, id")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (kind, id): (String, String) = (row.get(0)?, row.get(1)?);
        let version: i64 = row.get(2)?;
        let body: Vec<u8> = row.get(3)?;
        match understand(&kind, &id, version, &body) {
            Ok(change) => records.apply(change),
            Err(error) => unreadable.push((kind, id, error)),
        }
    }
    Ok((records, unreadable))
}

fn understand(kind: &str, id: &str, version: i64, body: &[u8]) -> Result<Change, DecodeError> {
    let corrupt = |cause: String| DecodeError::Corrupt(cause);
    let known =
        Kind::parse(kind).ok_or_else(|| corrupt(format!("no build before this one wrote a {kind:?}")))?;
    let version = u32::try_from(version).map_err(|_| corrupt(format!("version {version}")))?;
    let body = std::str::from_utf8(body).map_err(|error| corrupt(error.to_string()))?;
    let change = decode(known, version, body)?;
    let stored = encode(&change).id;
    if stored != id {
        return Err(corrupt(format!("stored as {id}, but says it is {stored}")));
    }
    Ok(change)
}

/// Moves a damaged database and its log out of the way, under one name.
fn move_aside(path: &Path) -> Result<PathBuf, StoreError> {
    let aside = with_suffix(path, &format!(".corrupt-{}", now_ms()));
    for suffix in ["-wal", "-shm", "-journal", ""] {
        match std::fs::rename(with_suffix(path, suffix), with_suffix(&aside, suffix)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(from_io("move aside", &with_suffix(path, suffix), &error));
            }
            _ => {}
        }
    }
    Ok(aside)
}

/// Databases that were moved aside and that nobody has removed yet.
fn databases_aside(path: &Path) -> Vec<Quarantined> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return Vec::new() };
    let prefix = format!("{}.corrupt-", name.to_string_lossy());
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut found: Vec<Quarantined> = entries
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.strip_prefix(&prefix).is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
        })
        .map(|entry| Quarantined {
            kind: "database".to_owned(),
            id: entry.path().display().to_string(),
            cause: "was damaged and moved aside; the node started empty; remove the file when it is not needed any more"
                .to_owned(),
        })
        .collect();
    found.sort_by(|a, b| a.id.cmp(&b.id));
    found
}
