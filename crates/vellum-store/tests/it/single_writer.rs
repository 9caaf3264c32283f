//! Stores whose service takes no conditions: one machine writes at a time.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use vellum_store::{
    ClaimPace, NumberedRefStore, ObjectKey, ObjectStore, ServiceStore, SingleWriterStore, StoreAddress,
    StoreError, StoreMode,
};
use vellum_testkit::{LyingS3, S3Failure, S3Lie, S3Match, WebdavServer, conformance};
use vellum_types::ErrorKind;

use super::services::{WEBDAV_CREDENTIALS, short_limits, test_credentials};

/// Times that are short for a test, and long for a server on the same machine.
const PACE: ClaimPace = ClaimPace {
    look_to_write: Duration::from_millis(500),
    settle: Duration::from_millis(2000),
    check_age: Duration::from_millis(500),
    renew_age: Duration::from_secs(1),
    abandoned_age: Duration::from_secs(3),
};

/// The store as a machine opens it that keeps its right to write in `cache`.
fn open_on_machine(url: &str, credentials: &str, cache: &Path) -> SingleWriterStore {
    test_credentials();
    let StoreAddress::Service(address) = StoreAddress::parse(url).unwrap() else { panic!("{url}") };
    let service = ServiceStore::open(address, Some(credentials), &short_limits(), None).unwrap();
    SingleWriterStore::new(service, cache, PACE)
}

/// A server that does not take conditions.
fn start_unconditional(lie: &S3Lie) -> LyingS3 {
    let server = LyingS3::start().unwrap();
    for method in ["PUT", "DELETE"] {
        let all = S3Match { method, key: "store/".to_owned(), skip: 0, times: u32::MAX };
        server.add_lie(all, lie.clone());
    }
    server
}

fn key(text: &str) -> ObjectKey {
    ObjectKey::new(text).unwrap()
}

fn is_claimed_elsewhere(error: &StoreError) -> bool {
    matches!(error, StoreError::Service { kind: ErrorKind::Conflict, .. })
}

#[test]
fn services_without_conditions_conform_with_one_writer() {
    for lie in [S3Lie::IgnoreConditions, S3Lie::RefuseConditions] {
        let dir = tempfile::tempdir().unwrap();
        let server = start_unconditional(&lie);
        let store = open_on_machine(&server.store_url("store"), test_credentials(), dir.path());
        let found = store.probe_guarantees().unwrap();
        assert_eq!(found.best_mode(), Some(StoreMode::Shared), "{lie:?}");
        assert!(store.list_keys("").unwrap().is_empty() && !store.holds_objects().unwrap());
        conformance::check_object_store(&store);
    }
}

#[test]
fn webdav_servers_conform_with_one_writer_and_numbered_refs() {
    let dir = tempfile::tempdir().unwrap();
    let served = dir.path().join("served");
    std::fs::create_dir(&served).unwrap();
    let server = WebdavServer::start(&served);
    let url = server.store_url("a/store");
    let store = Arc::new(open_on_machine(&url, WEBDAV_CREDENTIALS, &dir.path().join("cache")));
    assert!(store.list_keys("").unwrap().is_empty() && !store.holds_objects().unwrap());
    let found = store.probe_guarantees().unwrap();
    assert_eq!(found.best_mode(), Some(StoreMode::NumberedRefs), "{found:?}");
    assert!(store.list_keys("").unwrap().is_empty() && !store.holds_objects().unwrap());
    conformance::check_object_store(&NumberedRefStore::new(store));
    let temporary = std::fs::read_dir(served.join("a/store/.tmp")).unwrap();
    assert_eq!(temporary.count(), 0, "every object has its name");
}

#[test]
fn what_killed_processes_wrote_to_learn_the_time_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let served = dir.path().join("served");
    let temporary = served.join("store/.tmp");
    std::fs::create_dir_all(&temporary).unwrap();
    for name in ["clock-old", "clock-new"] {
        std::fs::write(temporary.join(name), b"").unwrap();
    }
    let old = std::fs::File::options().write(true).open(temporary.join("clock-old")).unwrap();
    old.set_modified(std::time::SystemTime::now() - Duration::from_hours(48)).unwrap();
    let server = WebdavServer::start(&served);
    let store = open_on_machine(&server.store_url("store"), WEBDAV_CREDENTIALS, &dir.path().join("cache"));
    store.put_object(&key("one"), b"1").unwrap();
    assert!(!temporary.join("clock-old").exists());
    assert!(temporary.join("clock-new").exists(), "another machine may be looking at it");
}

#[test]
fn wrong_credentials_of_a_webdav_server_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = WebdavServer::start(dir.path());
    let store = open_on_machine(&server.store_url("store"), test_credentials(), &dir.path().join("cache"));
    let error = store.get_object(&key("config"), 9).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[test]
fn of_several_machines_that_begin_at_once_at_most_one_writes() {
    let server = start_unconditional(&S3Lie::IgnoreConditions);
    let dir = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let url = server.store_url(&format!("store/{round}"));
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let machines: Vec<_> = (0..4)
                .map(|machine| {
                    let cache = dir.path().join(format!("{round}-{machine}"));
                    let url = &url;
                    scope.spawn(move || {
                        let store = open_on_machine(url, test_credentials(), &cache);
                        let done = store.swap_ref(&key("ref"), None, Some(&[b'0' + machine]));
                        // Nobody gives the right back before all have tried.
                        std::mem::forget(store);
                        done
                    })
                })
                .collect();
            machines.into_iter().map(|machine| machine.join().unwrap()).collect()
        });
        let won = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert!(won <= 1, "{outcomes:?}");
        let lost = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
        lost.for_each(|error| assert!(is_claimed_elsewhere(error), "{error}"));
    }
}

#[test]
fn another_machine_waits_for_the_end_of_the_one_that_writes_or_for_its_death() {
    let dir = tempfile::tempdir().unwrap();
    let served = dir.path().join("served");
    std::fs::create_dir(&served).unwrap();
    let server = WebdavServer::start(&served);
    let url = server.store_url("store");
    let open = |machine: &str| open_on_machine(&url, WEBDAV_CREDENTIALS, &dir.path().join(machine));
    let first = open("first");
    first.put_object(&key("one"), b"1").unwrap();
    let second = open("second");
    let refused = second.put_object(&key("two"), b"2").unwrap_err();
    assert!(is_claimed_elsewhere(&refused), "{refused}");
    assert_eq!(second.get_object(&key("one"), 9).unwrap(), b"1", "it can read");
    // Another process of the first machine shares its right, and its end takes nothing away.
    let beside = open("first");
    beside.put_object(&key("beside"), b"1").unwrap();
    drop(beside);
    assert!(second.put_object(&key("two"), b"2").is_err());
    first.put_object(&key("three"), b"3").unwrap();
    drop(first);
    second.put_object(&key("two"), b"2").unwrap();
    // It dies.
    std::mem::forget(second);
    let third = open("third");
    let refused = third.put_object(&key("four"), b"4").unwrap_err();
    assert!(is_claimed_elsewhere(&refused), "{refused}");
    // Times of files that are served have whole seconds.
    std::thread::sleep(PACE.abandoned_age + Duration::from_secs(2));
    third.put_object(&key("four"), b"4").unwrap();
}

#[test]
fn a_machine_that_lost_its_right_writes_nothing_more() {
    let server = start_unconditional(&S3Lie::IgnoreConditions);
    let dir = tempfile::tempdir().unwrap();
    let url = server.store_url("store");
    let store = open_on_machine(&url, test_credentials(), dir.path());
    store.swap_ref(&key("ref"), None, Some(b"1")).unwrap();
    // It stood still for so long that another one took over.
    server.overwrite_object("store/.writer", b"vellum-writer-1 active 0123\n");
    std::thread::sleep(PACE.check_age);
    let refused = store.swap_ref(&key("ref"), Some(b"1"), Some(b"2")).unwrap_err();
    assert!(is_claimed_elsewhere(&refused), "{refused}");
    assert_eq!(store.get_object(&key("ref"), 9).unwrap(), b"1");
    drop(store);
    let claim = server.read_object("store/.writer").unwrap();
    assert_eq!(claim, b"vellum-writer-1 active 0123\n", "what is another's is not given back");
}

#[test]
fn failed_and_lost_replies_to_a_claim_do_no_harm() {
    let server = start_unconditional(&S3Lie::IgnoreConditions);
    let dir = tempfile::tempdir().unwrap();
    let of_claims = |lie: S3Lie| {
        let claims = S3Match { method: "PUT", key: "store/.writer".to_owned(), skip: 0, times: 1 };
        server.add_lie(claims, lie);
    };
    server.tell_truth();
    of_claims(S3Lie::LoseReply);
    of_claims(S3Lie::Fail(S3Failure::new(503, "SlowDown")));
    let store = open_on_machine(&server.store_url("store"), test_credentials(), dir.path());
    store.swap_ref(&key("ref"), None, Some(b"1")).unwrap();
    assert_eq!(store.get_object(&key("ref"), 9).unwrap(), b"1");
}

#[test]
fn a_service_that_takes_conditions_is_not_used_without_them() {
    let server = LyingS3::start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let store = open_on_machine(&server.store_url("store"), test_credentials(), dir.path());
    let error = store.probe_guarantees().unwrap_err();
    assert!(error.to_string().contains("leave out 'single-writer'"), "{error}");
    assert!(server.list_keys().is_empty(), "nothing is left");
}
