//! Stores over SFTP, with a real sshd.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;
use vellum_store::{
    BandwidthLimits, LocalStore, NumberedRefStore, ObjectKey, ObjectStore, PackCache, RequestLimits,
    SftpStore, StoreAddress, StoreError, StoreGuarantees, StoreMode,
};
use vellum_testkit::{SshServer, conformance};
use vellum_types::ErrorKind;

struct World {
    dir: tempfile::TempDir,
    server: SshServer,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = SshServer::new(&dir.path().join("ssh"));
        Self { dir, server }
    }

    /// The directory of the store, on "the other machine".
    fn store_dir(&self) -> PathBuf {
        self.dir.path().join("far/store")
    }

    fn open_with(&self, limits: &RequestLimits) -> SftpStore {
        let url = format!("sftp://far{}", self.store_dir().display());
        let StoreAddress::Sftp(address) = StoreAddress::parse(&url).unwrap() else { panic!("{url}") };
        SftpStore::open(address, self.server.program(), limits, Some(&self.dir.path().join("cache")))
    }

    fn open(&self) -> SftpStore {
        self.open_with(&RequestLimits::default())
    }
}

fn key(text: &str) -> ObjectKey {
    ObjectKey::new(text).unwrap()
}

#[test]
fn sftp_conforms_with_numbered_refs() {
    let world = World::new();
    conformance::check_object_store(&NumberedRefStore::new(Arc::new(world.open())));
    assert_eq!(std::fs::read_dir(world.store_dir().join(".tmp")).unwrap().count(), 0, "nothing is left");
}

#[test]
fn a_probe_finds_that_sftp_creates_on_a_condition_and_replaces_nothing() {
    let world = World::new();
    let store = world.open();
    let found = store.probe_guarantees().unwrap();
    assert_eq!(found, StoreGuarantees { replaces: false, deletes: false, ..StoreGuarantees::ALL });
    assert_eq!(found.best_mode(), Some(StoreMode::NumberedRefs));
    assert!(store.list_keys("").unwrap().is_empty());
    let swap = store.swap_ref(&key("refs/tag/x"), Some(b"1"), Some(b"2"));
    assert!(swap.is_err_and(|error| error.kind() == ErrorKind::Unsupported));
}

#[test]
fn objects_are_those_of_a_store_in_a_directory() {
    let world = World::new();
    let store = world.open();
    assert!(store.list_objects("").unwrap().is_empty(), "a directory that is missing is empty");
    let large: Vec<u8> = (0..5_000_000_u32).map(|number| (number % 253) as u8).collect();
    store.put_object(&key("packs/ab/large"), &large).unwrap();
    let local = LocalStore::open(world.store_dir()).unwrap();
    assert_eq!(local.get_object(&key("packs/ab/large"), 5_000_000).unwrap(), large);
    local.put_object(&key("index/1"), b"one").unwrap();
    assert_eq!(store.get_object(&key("index/1"), 9).unwrap(), b"one");
    assert_eq!(store.list_keys("").unwrap(), local.list_keys("").unwrap());
    let listed = store.list_objects("index").unwrap();
    assert!(listed[0].modified.unwrap().elapsed().unwrap() < Duration::from_secs(3600));
    assert_eq!(
        store.get_range(&key("packs/ab/large"), 3_999_999, 200_000).unwrap(),
        large[3_999_999..4_199_999]
    );
    assert_eq!(store.get_range_up_to(&key("packs/ab/large"), 4_999_990, 99).unwrap(), large[4_999_990..]);
    std::fs::create_dir(world.store_dir().join("index/dir")).unwrap();
    let read = store.get_object(&key("index/dir"), 9);
    assert!(matches!(read, Err(StoreError::NotAFile { .. })), "{read:?}");
    assert!(matches!(store.object_size(&key("index/dir")), Err(StoreError::NotAFile { .. })));
}

#[test]
fn files_of_writers_that_died_are_removed_when_they_are_old() {
    let world = World::new();
    let temporary = world.store_dir().join(".tmp");
    std::fs::create_dir_all(&temporary).unwrap();
    let old = SystemTime::now() - Duration::from_secs(25 * 3600);
    std::fs::File::create(temporary.join("old")).unwrap().set_modified(old).unwrap();
    std::fs::File::create(temporary.join("new")).unwrap();
    world.open().put_object(&key("index/1"), b"one").unwrap();
    let start = Instant::now();
    while temporary.join("old").exists() {
        assert!(start.elapsed() < Duration::from_secs(20), "it is removed without anybody waiting");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(temporary.join("new").exists());
}

#[test]
fn connections_that_are_cut_lose_and_repeat_nothing() {
    let world = World::new();
    let store = NumberedRefStore::new(Arc::new(world.open()));
    let is_over = AtomicBool::new(false);
    let content = |number: u32| vec![number as u8; 100_000];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(700));
                world.server.signal_connections(Signal::KILL);
            }
        });
        let name = key("refs/tag/x");
        store.swap_ref(&name, None, Some(b"0")).unwrap();
        for number in 0..25 {
            store.put_object(&key(&format!("packs/{number:02}/x")), &content(number)).unwrap();
            let old = number.to_string().into_bytes();
            let swapped = store.swap_ref(&name, Some(&old), Some((number + 1).to_string().as_bytes()));
            swapped.unwrap_or_else(|error| panic!("{number}: {error}; {}", world.server.read_log()));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(store.get_object(&key("refs/tag/x"), 9).unwrap(), b"25");
    assert_eq!(store.list_keys("packs").unwrap().len(), 25);
    for number in 0..25 {
        assert_eq!(
            store.get_object(&key(&format!("packs/{number:02}/x")), 100_000).unwrap(),
            content(number)
        );
    }
}

#[test]
fn a_server_that_stops_is_an_error_in_time() {
    let world = World::new();
    let limits = RequestLimits {
        retry_for: Duration::from_secs(2),
        silence_max: Duration::from_secs(1),
        ..RequestLimits::default()
    };
    let store = world.open_with(&limits);
    store.put_object(&key("index/1"), b"one").unwrap();
    world.server.signal_connections(Signal::STOP);
    // The next connection works.
    assert_eq!(store.get_object(&key("index/1"), 9).unwrap(), b"one");
    std::fs::write(world.server.program(), "#!/bin/sh\necho 'Connection refused' >&2\nexit 255\n").unwrap();
    world.server.signal_connections(Signal::KILL);
    let start = Instant::now();
    let read = store.get_object(&key("index/1"), 9).unwrap_err();
    assert!(read.to_string().contains("ssh says: Connection refused"), "{read}");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn what_cannot_succeed_is_not_repeated() {
    let world = World::new();
    let try_with = |script: &str| {
        std::fs::write(world.server.program(), format!("#!/bin/sh\n{script}\n")).unwrap();
        let start = Instant::now();
        let error = world.open().get_object(&key("config"), 9).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(5), "{script}: {:?}", start.elapsed());
        error
    };
    let denied = try_with("echo 'ann@far: Permission denied (publickey).' >&2; exit 255");
    assert_eq!(denied.kind(), ErrorKind::Denied);
    assert!(denied.to_string().contains("Permission denied (publickey)"), "{denied}");
    assert_eq!(try_with("echo 'Host key verification failed.' >&2; exit 255").kind(), ErrorKind::Denied);
    assert_eq!(try_with("echo 'subsystem request failed' >&2; exit 255").kind(), ErrorKind::Unsupported);
    std::fs::remove_file(world.server.program()).unwrap();
    let missing = world.open().get_object(&key("config"), 9).unwrap_err();
    assert!(missing.to_string().contains("cannot start"), "{missing}");
}

#[test]
fn transfers_take_as_long_as_the_limits_of_bandwidth_say() {
    let world = World::new();
    let cache = PackCache::new(&world.dir.path().join("cache"));
    cache.set_bandwidth_limits(BandwidthLimits { upload: Some(1 << 20), download: Some(2 << 20) }).unwrap();
    let store = world.open();
    let bytes = vec![7; 1 << 20];
    let start = Instant::now();
    store.put_object(&key("packs/ab/one"), &bytes).unwrap();
    assert!(start.elapsed() > Duration::from_millis(800), "sent in {:?}", start.elapsed());
    let start = Instant::now();
    assert_eq!(store.get_object(&key("packs/ab/one"), 2 << 20).unwrap(), bytes);
    assert!(start.elapsed() > Duration::from_millis(350), "received in {:?}", start.elapsed());
}
