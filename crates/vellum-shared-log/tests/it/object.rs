//! The log in the object store: on several kinds of stores, with requests that arrive late or fail in the middle.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use vellum_shared_log::{LogClaim, LogEpoch, LogPosition, ObjectLog, SharedLog, SharedLogError};
use vellum_store::{
    LocalStore, MemoryObjectStore, NumberedRefStore, ObjectInfo, ObjectKey, ObjectStore, RequestLimits,
    ServiceStore, StoreAddress, StoreError,
};
use vellum_testkit::shared_log_conformance::{SharedLogFixture, check_shared_log, make_server};
use vellum_testkit::{FaultTrigger, FaultyStore, SeaweedServer, StoreFault};

/// A store, which each log opens anew.
struct StoreFixture {
    open: Box<dyn Fn() -> Arc<dyn ObjectStore> + Sync>,
}

impl SharedLogFixture for StoreFixture {
    fn open_log(&self, name: &str) -> Arc<dyn SharedLog> {
        Arc::new(ObjectLog::new((self.open)(), name).unwrap())
    }

    fn remove_everything(&self) {
        let store = (self.open)();
        for head in store.list_keys("log-heads").unwrap() {
            let bytes = store.get_object(&head, 1 << 20).unwrap();
            store.swap_ref(&head, Some(&bytes), None).unwrap();
        }
        for key in store.list_keys("live").unwrap() {
            // A directory lists its folders, too, if their names could be those of objects.
            if let Err(error) = store.delete_object(&key) {
                assert!(error.to_string().contains("Directory not empty"), "{error}");
            }
        }
    }
}

#[test]
fn a_log_in_memory_conforms() {
    let store: Arc<dyn ObjectStore> = Arc::new(MemoryObjectStore::new("memory"));
    check_shared_log(&StoreFixture { open: Box::new(move || store.clone()) });
}

#[test]
fn a_log_in_a_directory_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    LocalStore::create(&path).unwrap();
    check_shared_log(&StoreFixture { open: Box::new(move || Arc::new(LocalStore::open(&path).unwrap())) });
}

#[test]
fn a_log_in_a_store_of_numbered_refs_conforms() {
    let memory: Arc<dyn ObjectStore> = Arc::new(MemoryObjectStore::new("memory"));
    let open = move || -> Arc<dyn ObjectStore> { Arc::new(NumberedRefStore::new(memory.clone())) };
    check_shared_log(&StoreFixture { open: Box::new(open) });
}

#[test]
fn a_log_in_s3_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let server = SeaweedServer::start(&dir.path().join("seaweed"));
    let url = server.store_url("volume");
    let credentials = crate::tls::write_credentials("seaweed", &SeaweedServer::credentials_file());
    let open = move || -> Arc<dyn ObjectStore> {
        let StoreAddress::Service(address) = StoreAddress::parse(&url).unwrap() else { panic!("{url}") };
        let limits = RequestLimits::default();
        Arc::new(ServiceStore::open(address, Some(credentials), &limits, None).unwrap())
    };
    check_shared_log(&StoreFixture { open: Box::new(open) });
}

/// Holds up the creation of appends until it is told to let them pass: requests that are on their way for long.
struct SlowStore {
    inner: Arc<dyn ObjectStore>,
    state: Mutex<SlowState>,
    changed: Condvar,
}

#[derive(Default)]
struct SlowState {
    is_slow: bool,
    waiting: usize,
}

impl SlowStore {
    fn new(inner: Arc<dyn ObjectStore>) -> Arc<Self> {
        Arc::new(Self { inner, state: Mutex::new(SlowState::default()), changed: Condvar::new() })
    }

    fn hold_appends(&self) {
        self.state.lock().is_slow = true;
    }

    fn wait_for_append(&self) {
        let mut state = self.state.lock();
        while state.waiting == 0 {
            let timeout = self.changed.wait_for(&mut state, Duration::from_secs(60));
            assert!(!timeout.timed_out(), "no append is on its way");
        }
    }

    fn let_pass(&self) {
        self.state.lock().is_slow = false;
        self.changed.notify_all();
    }
}

impl ObjectStore for SlowStore {
    fn describe_location(&self) -> String {
        self.inner.describe_location()
    }

    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.get_object(key, max)
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.get_range(key, offset, len)
    }

    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        self.inner.object_size(key)
    }

    fn put_object(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        state.waiting += 1;
        self.changed.notify_all();
        while state.is_slow {
            self.changed.wait(&mut state);
        }
        state.waiting -= 1;
        drop(state);
        self.inner.put_object(key, bytes)
    }

    fn swap_ref(
        &self,
        key: &ObjectKey,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        self.inner.swap_ref(key, expected, new)
    }

    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        self.inner.list_objects(folder)
    }

    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.inner.delete_object(key)
    }
}

/// Lists as a directory does while files are created in it: of what is new, a listing may show the second and not the first.
struct UnevenStore {
    inner: Arc<dyn ObjectStore>,
    listed: Mutex<BTreeSet<ObjectKey>>,
}

impl ObjectStore for UnevenStore {
    fn describe_location(&self) -> String {
        self.inner.describe_location()
    }

    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.get_object(key, max)
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.get_range(key, offset, len)
    }

    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        self.inner.object_size(key)
    }

    fn put_object(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        self.inner.put_object(key, bytes)
    }

    fn swap_ref(
        &self,
        key: &ObjectKey,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        self.inner.swap_ref(key, expected, new)
    }

    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        let mut infos = self.inner.list_objects(folder)?;
        infos.sort_by(|a, b| a.key.cmp(&b.key));
        let mut listed = self.listed.lock();
        // All listings before this one have ended: what they left out is shown.
        let hidden = infos.iter().position(|info| !listed.contains(&info.key));
        listed.extend(infos.iter().map(|info| info.key.clone()));
        if let Some(hidden) = hidden {
            infos.remove(hidden);
        }
        Ok(infos)
    }

    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.inner.delete_object(key)
    }
}

#[test]
fn a_listing_that_shows_the_second_of_two_appends_alone_is_repeated() {
    let inner: Arc<dyn ObjectStore> = Arc::new(MemoryObjectStore::new("memory"));
    let uneven = Arc::new(UnevenStore { inner: inner.clone(), listed: Mutex::default() });
    let writer = ObjectLog::new(inner, "w").unwrap();
    let claim = writer.claim(writer.create().unwrap(), &make_server(1), None).unwrap();
    let reader = ObjectLog::new(uneven, "w").unwrap();
    let mut end = LogPosition(0);
    for text in [&b"one"[..], b"two", b"three"] {
        end = writer.append(claim.epoch, end, text).unwrap();
    }
    assert_eq!(read_all(&reader, 0), b"onetwothree");
}

/// What others do while an append is on its way.
type Meanwhile = fn(&dyn SharedLog, &LogClaim);

fn read_all(log: &dyn SharedLog, from: u64) -> Vec<u8> {
    log.read(LogPosition(from), 1 << 20).unwrap()
}

/// An append is sent, others do something, the append arrives. Returns what it returned.
fn append_late(meanwhile: Meanwhile) -> (Arc<dyn SharedLog>, Result<LogPosition, SharedLogError>) {
    let memory: Arc<dyn ObjectStore> = Arc::new(MemoryObjectStore::new("memory"));
    let slow = SlowStore::new(memory.clone());
    let old = ObjectLog::new(slow.clone(), "w").unwrap();
    let claim = old.claim(old.create().unwrap(), &make_server(1), None).unwrap();
    old.append(claim.epoch, LogPosition(0), b"before").unwrap();
    let other: Arc<dyn SharedLog> = Arc::new(ObjectLog::new(memory, "w").unwrap());
    slow.hold_appends();
    let result = std::thread::scope(|scope| {
        let late = scope.spawn(|| old.append(claim.epoch, LogPosition(6), b"late"));
        slow.wait_for_append();
        meanwhile(&*other, &claim);
        slow.let_pass();
        late.join().unwrap()
    });
    (other, result)
}

fn claim_next(log: &dyn SharedLog, first: &LogClaim) -> LogClaim {
    log.claim(first.incarnation, &make_server(2), Some(first.epoch)).unwrap()
}

#[test]
fn an_append_that_arrives_after_a_claim_does_not_count() {
    let cases: [(Meanwhile, u64, &[u8]); 4] = [
        (
            |log, first| {
                claim_next(log, first);
            },
            0,
            b"before",
        ),
        (
            |log, first| {
                let next = claim_next(log, first);
                log.append(next.epoch, next.end, b"!").unwrap();
            },
            0,
            b"before!",
        ),
        (
            |log, first| {
                let next = claim_next(log, first);
                log.append(next.epoch, next.end, b"new content").unwrap();
                log.discard_before(next.epoch, LogPosition(17)).unwrap();
            },
            17,
            b"",
        ),
        (
            |log, first| {
                // Its own server has stored something else at this place, without an answer, and others removed it.
                log.append(first.epoch, LogPosition(6), b"unknown").unwrap();
                let next = claim_next(log, first);
                log.append(next.epoch, next.end, b"new").unwrap();
                log.discard_before(next.epoch, next.end).unwrap();
            },
            13,
            b"new",
        ),
    ];
    for (number, (meanwhile, start, content)) in cases.into_iter().enumerate() {
        let (log, late) = append_late(meanwhile);
        let is_fenced =
            matches!(late, Err(SharedLogError::Fenced { epoch: LogEpoch(1), current: LogEpoch(2) }));
        assert!(is_fenced, "case {number}: {late:?}");
        assert_eq!(read_all(&*log, start), content, "case {number}");
        let next = claim_next(&*log, &LogClaim { epoch: LogEpoch(2), ..claim_at(&*log) });
        assert_eq!(
            next.end.0,
            start + content.len() as u64,
            "case {number}: the next server does not see it"
        );
        log.append(next.epoch, next.end, b"on").unwrap();
        log.discard_before(next.epoch, next.end).unwrap();
        assert_eq!(read_all(&*log, next.end.0), b"on", "case {number}");
    }
}

/// A claim with the incarnation of a log, of which the rest does not matter.
fn claim_at(log: &dyn SharedLog) -> LogClaim {
    let incarnation = log.create().unwrap();
    LogClaim { epoch: LogEpoch(0), incarnation, start: LogPosition(0), end: LogPosition(0) }
}

#[test]
fn an_append_that_arrives_after_the_removal_of_the_log_is_not_acknowledged() {
    let (log, late) = append_late(|log, first| {
        let next = claim_next(log, first);
        log.remove(next.epoch).unwrap();
    });
    assert!(matches!(late, Err(SharedLogError::Lost { found: None, .. })), "{late:?}");
    let claim = log.claim(log.create().unwrap(), &make_server(2), None).unwrap();
    assert_eq!(claim.end, LogPosition(0), "it is no part of the next log");
}

#[test]
fn an_append_that_arrives_before_a_claim_counts() {
    let (log, late) = append_late(|_, _| {});
    assert_eq!(late.unwrap(), LogPosition(10));
    assert_eq!(read_all(&*log, 0), b"beforelate");
}

/// A log with two appends by the first server, on a store that fails on demand.
struct InterruptedLog {
    faulty: Arc<FaultyStore>,
    memory: Arc<dyn ObjectStore>,
    first: LogClaim,
}

impl InterruptedLog {
    fn new() -> Self {
        let memory: Arc<dyn ObjectStore> = Arc::new(MemoryObjectStore::new("memory"));
        let faulty = Arc::new(FaultyStore::new(memory.clone()));
        let log = ObjectLog::new(faulty.clone(), "w").unwrap();
        let first = log.claim(log.create().unwrap(), &make_server(1), None).unwrap();
        log.append(first.epoch, LogPosition(0), b"one").unwrap();
        log.append(first.epoch, LogPosition(3), b"two").unwrap();
        Self { faulty, memory, first }
    }

    fn open_whole(&self) -> ObjectLog {
        ObjectLog::new(self.memory.clone(), "w").unwrap()
    }

    fn open_faulty(&self) -> ObjectLog {
        ObjectLog::new(self.faulty.clone(), "w").unwrap()
    }

    /// Every operation from here on fails once this many have been carried out, with or without its effect.
    fn fail_after(&self, count: u64, fault: StoreFault) {
        let at = self.faulty.operation_count() + count;
        self.faulty
            .set_script([(FaultTrigger::Nth(at), fault), (FaultTrigger::From(at), StoreFault::Before)]);
    }
}

#[test]
fn a_claim_that_is_interrupted_anywhere_leaves_a_log_that_can_be_claimed() {
    for fault in [StoreFault::Before, StoreFault::After] {
        let mut interrupted = 0;
        for count in 0.. {
            let log = InterruptedLog::new();
            let old = log.open_whole();
            log.fail_after(count, fault);
            let claimed =
                log.open_faulty().claim(log.first.incarnation, &make_server(2), Some(log.first.epoch));
            if claimed.is_ok() {
                break;
            }
            interrupted += 1;
            // The old server goes on, as long as it has not been replaced.
            let late = old.append(log.first.epoch, LogPosition(6), b"old");
            let other = log.open_whole();
            let seen = other.current_server(None, Duration::ZERO).unwrap().unwrap();
            let next = other.claim(log.first.incarnation, &make_server(3), Some(seen.epoch)).unwrap();
            let expected: &[u8] = match late {
                Ok(_) => b"onetwoold",
                Err(SharedLogError::Fenced { .. }) => b"onetwo",
                Err(error) => panic!("{error}"),
            };
            let content = read_all(&other, 0);
            // What was not acknowledged may be in the log or not.
            assert!(content == expected || content == b"onetwoold", "after {count} operations: {content:?}");
            assert_eq!(next.end.0, content.len() as u64);
            other.append(next.epoch, next.end, b"!").unwrap();
        }
        assert!(interrupted >= 6, "a claim has so many operations: {interrupted}");
    }
}

#[test]
fn an_append_that_is_interrupted_anywhere_is_there_whole_or_not_at_all() {
    for fault in [StoreFault::Before, StoreFault::After] {
        let mut interrupted = 0;
        for count in 0.. {
            let log = InterruptedLog::new();
            let server = log.open_faulty();
            log.fail_after(count, fault);
            let at = LogPosition(6);
            if server.append(log.first.epoch, at, b"three").is_ok() {
                break;
            }
            interrupted += 1;
            log.faulty.set_script([]);
            match server.append(log.first.epoch, at, b"three") {
                Ok(end) => assert_eq!(end.0, 11),
                Err(SharedLogError::Moved { end, .. }) => assert_eq!(end.0, 11),
                Err(error) => panic!("{error}"),
            }
            assert_eq!(read_all(&server, 0), b"onetwothree");
        }
        assert!(interrupted >= 2, "an append has so many operations: {interrupted}");
    }
}

#[test]
fn a_discard_that_is_interrupted_anywhere_discards_nothing_else() {
    let mut interrupted = 0;
    for count in 0.. {
        let log = InterruptedLog::new();
        log.fail_after(count, StoreFault::Before);
        let done = log.open_faulty().discard_before(log.first.epoch, LogPosition(3));
        let other = log.open_whole();
        let from = if other.read(LogPosition(0), 1).is_ok() { 0 } else { 3 };
        assert_eq!(read_all(&other, from), &b"onetwo"[from as usize..]);
        let next = other.claim(log.first.incarnation, &make_server(2), Some(log.first.epoch)).unwrap();
        other.discard_before(next.epoch, next.end).unwrap();
        assert_eq!(log.memory.list_keys("live").unwrap(), [], "the next discard removes what was left");
        if done.is_ok() {
            break;
        }
        interrupted += 1;
    }
    assert!(interrupted >= 5, "a discard has so many operations: {interrupted}");
}

#[test]
fn what_is_missing_or_damaged_is_reported() {
    let log = InterruptedLog::new();
    let keys = log.memory.list_keys("live").unwrap();
    let [first, second] = &keys[..] else { panic!("{keys:?}") };
    let server = log.open_whole();
    // Under the name of another append.
    let object = log.memory.get_object(second, 1 << 20).unwrap();
    log.memory.delete_object(first).unwrap();
    log.memory.put_object(first, &object).unwrap();
    let read = server.read(LogPosition(0), 99);
    assert!(matches!(read, Err(SharedLogError::Damaged { .. })), "{read:?}");
    log.memory.delete_object(first).unwrap();
    let read = server.read(LogPosition(0), 99);
    assert!(matches!(read, Err(SharedLogError::Damaged { .. })), "{read:?}");
    let claim = server.claim(log.first.incarnation, &make_server(2), Some(log.first.epoch));
    assert!(matches!(claim, Err(SharedLogError::Damaged { .. })), "{claim:?}");
}

#[test]
fn a_full_store_is_said_to_be_full() {
    let log = InterruptedLog::new();
    log.faulty.set_space_limit(Some(0));
    let server = log.open_faulty();
    let append = server.append(log.first.epoch, LogPosition(6), b"more");
    assert!(matches!(append, Err(SharedLogError::Full { .. })), "{append:?}");
    log.faulty.set_space_limit(None);
    server.append(log.first.epoch, LogPosition(6), b"more").unwrap();
}
