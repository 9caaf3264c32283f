//! Stores in services: a real server, and one that lies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use vellum_store::{
    NumberedRefStore, ObjectCondition, ObjectKey, ObjectStore, PlainObjects, RequestLimits, ServiceStore,
    StoreAddress, StoreError, StoreGuarantees, StoreMode, UploadedFile,
};
use vellum_testkit::{
    CloudEmulator, LyingS3, S3Failure, S3Lie, S3Match, SeaweedServer, WebdavServer, conformance,
};
use vellum_types::{ErrorKind, UnixTime};

/// Limits that let tests of silence and of failures end soon.
pub(super) fn short_limits() -> RequestLimits {
    RequestLimits {
        retry_for: Duration::from_secs(20),
        silence_max: Duration::from_secs(1),
        ..RequestLimits::default()
    }
}

pub(super) fn open_service(url: &str, limits: &RequestLimits) -> ServiceStore {
    let StoreAddress::Service(address) = StoreAddress::parse(url).unwrap() else { panic!("{url}") };
    ServiceStore::open(address, Some(test_credentials()), limits, None).unwrap()
}

/// The name of the credentials of WebDAV servers, beside those of [`test_credentials`].
pub(super) const WEBDAV_CREDENTIALS: &str = "webdav";

/// The names of credentials of emulators.
pub(super) const AZURE_CREDENTIALS: &str = "azure";
pub(super) const GCS_CREDENTIALS: &str = "gcs";

/// The name of credentials that both servers accept, in a directory of configuration of this process.
pub(super) fn test_credentials() -> &'static str {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    use std::sync::LazyLock;
    static CONFIG: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
        let dir = tempfile::tempdir().unwrap();
        let credentials = dir.path().join("vellum/credentials");
        std::fs::create_dir_all(&credentials).unwrap();
        std::fs::set_permissions(&credentials, std::fs::Permissions::from_mode(0o700)).unwrap();
        for (name, content) in [
            ("test", SeaweedServer::credentials_file()),
            (WEBDAV_CREDENTIALS, WebdavServer::credentials_file()),
            (AZURE_CREDENTIALS, CloudEmulator::AZURE_CREDENTIALS.to_owned()),
            (GCS_CREDENTIALS, CloudEmulator::GCS_CREDENTIALS.to_owned()),
        ] {
            let mut file = std::fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(credentials.join(name))
                .unwrap();
            std::io::Write::write_all(&mut file, content.as_bytes()).unwrap();
        }
        dir
    });
    // SAFETY: the tests of this file are the only ones of this process that read or change it, and all of them come
    // through here first.
    static SET: LazyLock<()> = LazyLock::new(|| unsafe {
        std::env::set_var("XDG_CONFIG_HOME", CONFIG.path());
        // What a server answers is to be seen: no folder can be made below a file.
        std::env::set_var("XDG_CACHE_HOME", CONFIG.path().join("vellum/credentials/test"));
    });
    LazyLock::force(&SET);
    "test"
}

pub(super) fn key(text: &str) -> ObjectKey {
    ObjectKey::new(text).unwrap()
}

/// All requests of a method to keys that begin so.
fn each(method: &'static str, key: &str) -> S3Match {
    S3Match { method, key: format!("store/{key}"), skip: 0, times: u32::MAX }
}

/// The first request of a method to keys that begin so.
fn once(method: &'static str, key: &str) -> S3Match {
    S3Match { times: 1, ..each(method, key) }
}

struct Liar {
    server: LyingS3,
    store: Arc<ServiceStore>,
}

fn start_liar() -> Liar {
    let server = LyingS3::start().unwrap();
    let store = Arc::new(open_service(&server.store_url("store"), &short_limits()));
    Liar { server, store }
}

#[test]
fn seaweedfs_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let server = SeaweedServer::start(&dir.path().join("seaweed"));
    conformance::check_object_store(&open_service(
        &server.store_url("suite/of/tests"),
        &RequestLimits::default(),
    ));
}

#[test]
fn a_probe_finds_what_seaweedfs_keeps_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = SeaweedServer::start(&dir.path().join("seaweed"));
    let store = open_service(&server.store_url("probed"), &RequestLimits::default());
    assert_eq!(store.probe_guarantees().unwrap(), StoreGuarantees::ALL);
    assert!(store.list_keys("").unwrap().is_empty());
}

#[test]
fn a_probe_finds_what_a_server_ignores() {
    let probe = |lies: &[(S3Match, S3Lie)]| {
        let liar = start_liar();
        lies.iter().for_each(|(requests, lie)| liar.server.add_lie(requests.clone(), lie.clone()));
        let found = liar.store.probe_guarantees().unwrap();
        liar.server.tell_truth();
        assert!(liar.store.list_keys("").unwrap().is_empty(), "nothing is left");
        found
    };
    assert_eq!(probe(&[]), StoreGuarantees::ALL);
    let none = StoreGuarantees { creates: false, replaces: false, deletes: false, ..StoreGuarantees::ALL };
    assert_eq!(probe(&[(each("PUT", ""), S3Lie::IgnoreConditions)]), none);
    let unsupported = S3Lie::Fail(S3Failure::new(501, "NotImplemented"));
    assert_eq!(probe(&[(each("PUT", ""), unsupported)]), none);
    let found = probe(&[(each("PUT", "probe/"), S3Lie::LoseReply)].map(|(requests, lie)| {
        // Lost replies are no broken promise.
        (S3Match { skip: 2, times: 2, ..requests }, lie)
    }));
    assert_eq!(found, StoreGuarantees::ALL);
    let found = probe(&[(each("DELETE", ""), S3Lie::IgnoreConditions)]);
    assert_eq!(found, StoreGuarantees { deletes: false, ..StoreGuarantees::ALL });
    let found = probe(&[(each("GET", ""), S3Lie::ShiftRange(0)), (each("GET", ""), S3Lie::WholeObject)]);
    assert_eq!(found, StoreGuarantees::ALL);
}

#[test]
fn a_service_that_only_creates_on_a_condition_has_numbered_refs() {
    for lie in [S3Lie::IgnoreIfMatch, S3Lie::RefuseIfMatch] {
        let liar = start_liar();
        // Deletions are sent without a condition there.
        liar.server.add_lie(each("PUT", ""), lie.clone());
        let found = liar.store.probe_guarantees().unwrap();
        let only_creates = StoreGuarantees { replaces: false, deletes: false, ..StoreGuarantees::ALL };
        assert_eq!(found, only_creates, "{lie:?}");
        assert_eq!(found.best_mode(), Some(StoreMode::NumberedRefs));
        assert!(liar.store.list_keys("").unwrap().is_empty(), "nothing is left");
        conformance::check_object_store(&NumberedRefStore::new(liar.store.clone()));
    }
}

#[test]
fn a_swap_of_numbered_refs_whose_reply_is_lost_has_succeeded_once() {
    let liar = start_liar();
    let store = NumberedRefStore::new(liar.store.clone());
    let name = key("refs/tag/x");
    store.swap_ref(&name, None, Some(b"1")).unwrap();
    liar.server.add_lie(once("PUT", "refs/"), S3Lie::LoseReply);
    store.swap_ref(&name, Some(b"1"), Some(b"2")).unwrap();
    assert_eq!(store.get_object(&name, 9).unwrap(), b"2");
    assert_eq!(liar.store.list_keys("refs").unwrap().len(), 2);
    let _ = liar.server.take_requests();
    store.swap_ref(&name, Some(b"2"), Some(b"3")).unwrap();
    let methods: Vec<_> = liar.server.take_requests().iter().map(|request| request.method).collect();
    assert_eq!(methods, ["PUT", "LIST"], "a ref that is known is changed by two requests");
}

#[test]
fn where_deletions_are_unconditional_refs_are_marked_as_deleted() {
    let liar = start_liar();
    liar.server.add_lie(each("DELETE", ""), S3Lie::IgnoreConditions);
    let found = liar.store.probe_guarantees().unwrap();
    assert_eq!(found.best_mode(), Some(StoreMode::Shared));
    liar.store.adapt_to_guarantees(&found);
    let name = key("refs/heads/main");
    liar.store.swap_ref(&name, None, Some(b"1")).unwrap();
    let other = open_service(&liar.server.store_url("store"), &short_limits());
    other.adapt_to_guarantees(&found);
    assert_eq!(other.get_object(&name, 9).unwrap(), b"1");
    liar.store.swap_ref(&name, Some(b"1"), Some(b"2")).unwrap();
    let stale = other.swap_ref(&name, Some(b"1"), None);
    assert!(matches!(stale, Err(StoreError::Changed { .. })), "{stale:?}");
    other.swap_ref(&name, Some(b"2"), None).unwrap();
    assert!(liar.store.get_object(&name, 99).unwrap_err().is_not_found());
    assert!(liar.store.list_keys("").unwrap().is_empty());
    let stale = liar.store.swap_ref(&name, Some(b"2"), Some(b"3"));
    assert!(matches!(stale, Err(StoreError::Changed { .. })), "{stale:?}");
    liar.store.swap_ref(&name, None, Some(b"4")).unwrap();
    assert_eq!(other.get_object(&name, 9).unwrap(), b"4");
    liar.store.delete_object(&name).unwrap();
}

#[test]
fn the_scripted_server_conforms_without_a_script() {
    let liar = start_liar();
    conformance::check_object_store(&*liar.store);
    assert_eq!(liar.store.repeat_count(), 0);
}

#[test]
fn listings_of_many_pages_are_whole() {
    let liar = start_liar();
    let keys: Vec<_> = (0..250).map(|i| key(&format!("index/{i:04}"))).collect();
    keys.iter().for_each(|key| liar.store.put_object(key, b"x").unwrap());
    assert_eq!(liar.store.list_keys("index").unwrap(), keys);
}

#[test]
fn a_put_whose_reply_is_lost_has_succeeded() {
    let liar = start_liar();
    liar.server.add_lie(once("PUT", "packs/"), S3Lie::LoseReply);
    liar.store.put_object(&key("packs/ab/one"), b"content").unwrap();
    assert_eq!(liar.store.get_object(&key("packs/ab/one"), 9).unwrap(), b"content");
    liar.server.add_lie(once("PUT", "index/"), S3Lie::LoseReply);
    liar.store.put_object(&key("index/one"), b"").unwrap();
    assert!(liar.store.repeat_count() >= 2);
}

#[test]
fn a_put_that_another_won_while_the_reply_was_lost_is_not_ours() {
    let liar = start_liar();
    liar.server.add_lie(once("PUT", "packs/"), S3Lie::Disconnect);
    liar.server.overwrite_object("store/packs/ab/one", b"another");
    let put = liar.store.put_object(&key("packs/ab/one"), b"content");
    assert!(matches!(put, Err(StoreError::Exists { .. })), "{put:?}");
    assert_eq!(liar.store.get_object(&key("packs/ab/one"), 9).unwrap(), b"another");
}

#[test]
fn a_swap_whose_reply_is_lost_has_succeeded_once() {
    let liar = start_liar();
    let name = key("refs/heads/main");
    liar.server.add_lie(once("PUT", "refs/"), S3Lie::LoseReply);
    liar.store.swap_ref(&name, None, Some(b"1")).unwrap();
    liar.server.add_lie(once("PUT", "refs/"), S3Lie::LoseReply);
    liar.store.swap_ref(&name, Some(b"1"), Some(b"2")).unwrap();
    assert_eq!(liar.store.get_object(&name, 9).unwrap(), b"2");
    liar.server.add_lie(once("DELETE", "refs/"), S3Lie::LoseReply);
    liar.store.swap_ref(&name, Some(b"2"), None).unwrap();
    assert!(liar.store.get_object(&name, 9).unwrap_err().is_not_found());
}

#[test]
fn a_swap_that_another_won_while_the_reply_was_lost_is_reported_as_changed() {
    let liar = start_liar();
    let name = key("refs/heads/main");
    liar.store.swap_ref(&name, None, Some(b"1")).unwrap();
    liar.server.add_lie(once("PUT", "refs/"), S3Lie::Disconnect);
    liar.server.overwrite_object("store/refs/heads/main", b"9");
    let swapped = liar.store.swap_ref(&name, Some(b"1"), Some(b"2"));
    assert!(matches!(swapped, Err(StoreError::Changed { .. })), "{swapped:?}");
    assert_eq!(liar.store.get_object(&name, 9).unwrap(), b"9");
}

#[test]
fn a_swap_after_a_read_or_a_swap_is_one_request() {
    let liar = start_liar();
    let name = key("refs/heads/main");
    liar.store.swap_ref(&name, None, Some(b"1")).unwrap();
    let _ = liar.server.take_requests();
    liar.store.swap_ref(&name, Some(b"1"), Some(b"2")).unwrap();
    assert_eq!(liar.server.take_requests().len(), 1, "the tag of the last write is known");
    let other = open_service(&liar.server.store_url("store"), &short_limits());
    assert_eq!(other.get_object(&name, 9).unwrap(), b"2");
    let _ = liar.server.take_requests();
    other.swap_ref(&name, Some(b"2"), Some(b"3")).unwrap();
    assert_eq!(liar.server.take_requests().len(), 1, "the tag that was read is known");
    liar.store.swap_ref(&name, Some(b"2"), Some(b"4")).unwrap_err();
    liar.store.swap_ref(&name, Some(b"3"), Some(b"4")).unwrap();
}

#[test]
fn a_deletion_whose_reply_is_lost_has_succeeded() {
    let liar = start_liar();
    liar.store.put_object(&key("packs/ab/one"), b"content").unwrap();
    liar.server.add_lie(once("DELETE", "packs/"), S3Lie::LoseReply);
    liar.store.delete_object(&key("packs/ab/one")).unwrap();
    assert!(liar.store.list_keys("").unwrap().is_empty());
}

#[test]
fn a_conflict_of_conditional_requests_is_tried_again() {
    let liar = start_liar();
    let conflict = || S3Lie::Fail(S3Failure::new(409, "ConditionalRequestConflict"));
    liar.server.add_lie(once("PUT", ""), conflict());
    liar.store.put_object(&key("packs/ab/one"), b"content").unwrap();
    liar.server.add_lie(once("PUT", ""), conflict());
    liar.store.swap_ref(&key("refs/heads/main"), None, Some(b"1")).unwrap();
    liar.server.add_lie(once("PUT", ""), conflict());
    liar.store.swap_ref(&key("refs/heads/main"), Some(b"1"), Some(b"2")).unwrap();
}

#[test]
fn requests_that_the_service_could_not_carry_out_are_repeated() {
    let liar = start_liar();
    let name = key("packs/ab/one");
    let failures = [
        (500, "InternalError"),
        (503, "SlowDown"),
        (503, "ServiceUnavailable"),
        (502, ""),
        (504, ""),
        (429, "TooManyRequests"),
        (400, "RequestTimeout"),
        (408, ""),
    ];
    for (status, code) in failures {
        for method in ["PUT", "GET", "HEAD", "LIST", "DELETE"] {
            // An answer to HEAD has no body that could say more than the status.
            let code = if method == "HEAD" && status != 400 { "" } else { code };
            if method != "HEAD" || status != 400 {
                liar.server.add_lie(once(method, ""), S3Lie::Fail(S3Failure::new(status, code)));
            }
        }
        liar.store.put_object(&name, b"content").unwrap();
        assert_eq!(liar.store.get_range(&name, 2, 3).unwrap(), b"nte");
        assert_eq!(liar.store.object_size(&name).unwrap(), 7);
        assert_eq!(liar.store.list_keys("").unwrap(), std::slice::from_ref(&name));
        liar.store.delete_object(&name).unwrap();
        liar.server.tell_truth();
    }
    assert!(liar.store.repeat_count() >= 39);
}

#[test]
fn the_time_that_a_service_asks_for_is_waited() {
    let liar = start_liar();
    let headers = vec![("retry-after", "2".to_owned())];
    liar.server.add_lie(
        once("PUT", ""),
        S3Lie::Fail(S3Failure { headers, ..S3Failure::new(429, "TooManyRequests") }),
    );
    let start = Instant::now();
    liar.store.put_object(&key("packs/ab/one"), b"content").unwrap();
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
}

#[test]
fn a_pause_that_no_clock_can_count_ends_the_operation() {
    let liar = start_liar();
    for asked in ["1", "18446744073709551615"] {
        let headers = vec![("retry-after", asked.to_owned())];
        let failure = S3Failure { headers, ..S3Failure::new(429, "TooManyRequests") };
        liar.server.add_lie(once("PUT", ""), S3Lie::Fail(failure));
    }
    liar.store.put_object(&key("packs/ab/one"), b"content").unwrap_err();
}

#[test]
fn a_server_that_never_answers_ends_in_an_error() {
    let server = LyingS3::start().unwrap();
    server.add_lie(each("GET", ""), S3Lie::Hang);
    let limits = RequestLimits {
        retry_for: Duration::from_secs(2),
        silence_max: Duration::from_secs(1),
        ..RequestLimits::default()
    };
    let store = open_service(&server.store_url("store"), &limits);
    let error = store.get_object(&key("config"), 9).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("no answer for 1 s"), "{error}");
}

#[test]
fn an_answer_that_stops_in_the_middle_is_asked_for_again() {
    let liar = start_liar();
    let name = key("packs/ab/one");
    liar.store.put_object(&name, b"content").unwrap();
    liar.server.add_lie(once("GET", "packs/"), S3Lie::CutBody(3));
    assert_eq!(liar.store.get_object(&name, 9).unwrap(), b"content");
    liar.server.add_lie(once("GET", "packs/"), S3Lie::CutBody(2));
    assert_eq!(liar.store.get_range(&name, 1, 4).unwrap(), b"onte");
    liar.server.add_lie(each("GET", "packs/"), S3Lie::CutBody(3));
    let error = liar.store.get_object(&name, 9).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn a_range_that_is_shorter_than_asked_for_is_damage() {
    let liar = start_liar();
    let name = key("packs/ab/one");
    liar.store.put_object(&name, b"content").unwrap();
    liar.server.add_lie(each("GET", "packs/"), S3Lie::ShortBody(3));
    let error = liar.store.get_range(&name, 0, 7).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    liar.server.tell_truth();
    // Across the end, and beyond it.
    for (offset, len) in [(5, 4), (7, 1), (100, 5)] {
        let error = liar.store.get_range(&name, offset, len).unwrap_err();
        assert!(matches!(error, StoreError::Length { .. }), "{error}");
    }
}

#[test]
fn another_range_than_the_one_asked_for_is_refused() {
    let liar = start_liar();
    let name = key("packs/ab/one");
    liar.store.put_object(&name, b"0123456789").unwrap();
    liar.server.add_lie(once("GET", "packs/"), S3Lie::ShiftRange(2));
    assert_eq!(liar.store.get_range(&name, 1, 4).unwrap(), b"1234");
    liar.server.add_lie(each("GET", "packs/"), S3Lie::ShiftRange(2));
    let error = liar.store.get_range(&name, 1, 4).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn of_a_whole_object_only_the_range_is_taken() {
    let liar = start_liar();
    let name = key("packs/ab/one");
    let large: Vec<u8> = (0..200_000_u32).map(|i| (i % 251) as u8).collect();
    liar.store.put_object(&name, &large).unwrap();
    liar.server.add_lie(each("GET", "packs/"), S3Lie::WholeObject);
    assert_eq!(liar.store.get_range(&name, 10, 90).unwrap(), &large[10..100]);
    // So far into the object, it would be read for nothing.
    assert_eq!(liar.store.get_range(&name, 150_000, 9).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_body_without_an_end_and_one_that_is_compressed_are_refused() {
    let liar = start_liar();
    let name = key("packs/ab/one");
    liar.store.put_object(&name, b"content").unwrap();
    liar.server.add_lie(each("GET", "packs/"), S3Lie::EndlessBody);
    let error = liar.store.get_object(&name, 1000).unwrap_err();
    liar.server.tell_truth();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    liar.server.add_lie(each("GET", "packs/"), S3Lie::ClaimGzip);
    let error = liar.store.get_object(&name, 1000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    liar.server.tell_truth();
    liar.server.add_lie(each("LIST", ""), S3Lie::EndlessBody);
    assert!(liar.store.list_keys("").is_err());
}

#[test]
fn redirects_are_not_followed() {
    let liar = start_liar();
    let other = LyingS3::start().unwrap();
    other.overwrite_object("store/config", b"stolen");
    liar.server
        .add_lie(each("GET", ""), S3Lie::Redirect(other.store_url("config").replace("s3://", "http://")));
    let error = liar.store.get_object(&key("config"), 9).unwrap_err();
    assert!(error.to_string().contains("redirect"), "{error}");
    assert!(other.take_requests().is_empty(), "credentials stay where they belong");
}

#[test]
fn refusals_are_reported_at_once_and_in_words() {
    let liar = start_liar();
    let name = key("config");
    let late = httpdate_in(-61 * 60);
    let cases = [
        (S3Failure::new(403, "AccessDenied"), ErrorKind::Denied, "403: AccessDenied"),
        (
            S3Failure { headers: vec![("date", late)], ..S3Failure::new(403, "RequestTimeTooSkewed") },
            ErrorKind::Denied,
            "this machine's clock is 61 min fast",
        ),
        (
            S3Failure {
                headers: vec![("x-amz-bucket-region", "eu-west-3".to_owned())],
                ..S3Failure::new(301, "PermanentRedirect")
            },
            ErrorKind::Io,
            "add 'region=eu-west-3' to the address",
        ),
        (S3Failure::new(404, "NoSuchBucket"), ErrorKind::Usage, "NoSuchBucket"),
        (S3Failure::new(501, "NotImplemented"), ErrorKind::Unsupported, "NotImplemented"),
    ];
    for (failure, kind, words) in cases {
        liar.server.add_lie(each("GET", ""), S3Lie::Fail(failure));
        let start = Instant::now();
        let error = liar.store.get_object(&name, 9).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(start.elapsed() < Duration::from_secs(1), "{error} took {:?}", start.elapsed());
        liar.server.tell_truth();
    }
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let limits = RequestLimits { retry_for: Duration::from_secs(1), ..RequestLimits::default() };
    for (endpoint, words) in [
        (format!("http://127.0.0.1:{free}"), "Connection refused"),
        ("https://no-such-host.invalid".to_owned(), "no-such-host.invalid"),
    ] {
        let store = open_service(&format!("s3://bucket/store?endpoint={endpoint}"), &limits);
        let start = Instant::now();
        let error = store.get_object(&key("config"), 9).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
    }
}

/// A date as HTTP writes it, some seconds from now.
fn httpdate_in(seconds: i64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let output = std::process::Command::new("date")
        .args(["-u", "-d", &format!("@{}", now.cast_signed() + seconds), "+%a, %d %b %Y %H:%M:%S GMT"])
        .env("LC_ALL", "C")
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn open_plain(url: &str) -> PlainObjects {
    let StoreAddress::Service(address) = StoreAddress::parse(url).unwrap() else { panic!("{url}") };
    PlainObjects::open(address, Some(test_credentials()), &short_limits()).unwrap()
}

/// What plain objects promise, on a server that keeps conditions.
fn check_plain_objects(objects: &PlainObjects) {
    let mtime = UnixTime { secs: 1_354_040_105, nanos: 123_456_789 };
    let put = |text: &'static str, expected: &ObjectCondition| {
        objects.put_object("dir/a", &Bytes::from_static(text.as_bytes()), mtime, expected)
    };
    assert_eq!(objects.stat_object("dir/a").unwrap(), None);
    put("one", &ObjectCondition::Absent).unwrap();
    assert!(matches!(put("two", &ObjectCondition::Absent), Err(StoreError::Changed { .. })));
    let first = objects.stat_object("dir/a").unwrap().unwrap();
    assert_eq!((first.size, first.mtime), (3, Some(mtime)));
    put("other", &ObjectCondition::Unchanged(first.tag.clone())).unwrap();
    assert!(matches!(
        put("two", &ObjectCondition::Unchanged(first.tag.clone())),
        Err(StoreError::Changed { .. })
    ));
    let second = objects.stat_object("dir/a").unwrap().unwrap();
    assert_eq!(objects.read_range("dir/a", &second.tag, 1..4).unwrap(), b"the");
    assert!(matches!(objects.read_range("dir/a", &first.tag, 0..3), Err(StoreError::Changed { .. })));
    assert!(matches!(objects.delete_object("dir/a", &first.tag), Err(StoreError::Changed { .. })));

    // In parts, on the same conditions; what is not finished is nothing.
    let part = Bytes::from(vec![7; PlainObjects::part_len(0) as usize]);
    let file = |size: usize| UploadedFile {
        key: "big",
        size: size as u64,
        mtime,
        expected: &ObjectCondition::Absent,
    };
    let upload = objects.begin_upload(&file(5 * part.len())).unwrap();
    for number in 1..6 {
        upload.send_part(number, &part).unwrap();
    }
    assert_eq!(objects.stat_object("big").unwrap(), None);
    drop(upload);
    assert_eq!(objects.stat_object("big").unwrap(), None);
    let upload = objects.begin_upload(&file(part.len() + 3)).unwrap();
    upload.send_part(1, &part).unwrap();
    upload.send_part(2, &Bytes::from_static(b"end")).unwrap();
    upload.finish().unwrap();
    let big = objects.stat_object("big").unwrap().unwrap();
    assert_eq!((big.size, big.mtime), (part.len() as u64 + 3, Some(mtime)));
    assert_eq!(objects.read_range("big", &big.tag, big.size - 4..big.size).unwrap(), b"\x07end");
    let upload = objects.begin_upload(&file(2 * part.len())).unwrap();
    upload.send_part(1, &part).unwrap();
    upload.send_part(2, &part).unwrap();
    assert!(matches!(upload.finish(), Err(StoreError::Changed { .. })));
    assert_eq!(objects.stat_object("big").unwrap().unwrap().size, big.size);

    let listing = objects.list_objects(&|_| {}).unwrap();
    let mut keys: Vec<_> = listing.objects.iter().map(|object| (object.key.as_str(), object.size)).collect();
    keys.sort_unstable();
    assert_eq!(keys, [("big", big.size), ("dir/a", 5)]);
    let listed = listing.objects.iter().find(|object| object.key == "dir/a").unwrap();
    assert!(listed.tag.is_same_version(&second.tag));
    assert!(objects.delete_object("dir/a", &second.tag).unwrap());
    assert!(!objects.delete_object("dir/a", &second.tag).unwrap());
}

#[test]
fn plain_objects_change_on_conditions_only() {
    let dir = tempfile::tempdir().unwrap();
    let server = SeaweedServer::start(&dir.path().join("seaweed"));
    check_plain_objects(&open_plain(&server.store_url("plain/objects")));
    let liar = LyingS3::start().unwrap();
    check_plain_objects(&open_plain(&liar.store_url("plain")));
    assert_eq!(liar.count_unfinished_uploads(), 0);
}

#[test]
fn plain_objects_are_looked_at_where_the_service_has_no_conditions() {
    let liar = LyingS3::start().unwrap();
    let objects = open_plain(&liar.store_url("store"));
    let put = |expected: &ObjectCondition| {
        objects.put_object("a", &Bytes::from_static(b"x"), UnixTime::default(), expected)
    };
    liar.add_lie(once("PUT", "a"), S3Lie::Fail(S3Failure::new(501, "NotImplemented")));
    put(&ObjectCondition::Absent).unwrap();
    let methods: Vec<_> = liar.take_requests().iter().map(|request| request.method).collect();
    assert_eq!(methods, ["PUT", "HEAD", "PUT"]);
    liar.add_lie(once("PUT", "a"), S3Lie::Fail(S3Failure::new(501, "NotImplemented")));
    assert!(matches!(put(&ObjectCondition::Absent), Err(StoreError::Changed { .. })));
    let tag = objects.stat_object("a").unwrap().unwrap().tag;
    liar.add_lie(once("DELETE", "a"), S3Lie::LoseReply);
    assert!(objects.delete_object("a", &tag).unwrap());
    assert!(liar.list_keys().is_empty());
}
