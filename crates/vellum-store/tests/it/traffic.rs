//! What a service is asked for and why: counts by kind and purpose, and requests that are sent a second time.

use std::time::Duration;

use vellum_store::{
    ObjectKey, ObjectStore, PerPurpose, PurposeTraffic, RequestLimits, RequestPurpose, ServiceStore,
    ServiceTraffic, map_requests,
};
use vellum_testkit::{LyingS3, S3Failure, S3Lie, S3Match, TcpRelay};

use crate::services::{open_service, short_limits};

/// Requests that are answered before one is late: enough to know what is usual, and to be allowed a second request.
const PROMPT: u64 = 40;

struct SlowService {
    server: LyingS3,
    store: ServiceStore,
    key: ObjectKey,
}

/// A service with one object of 7 bytes, and a client that has not read it.
fn start_service() -> SlowService {
    let server = LyingS3::start().unwrap();
    // Long enough that no prompt answer takes it, and less than a request may be silent.
    let limits = RequestLimits {
        silence_max: Duration::from_secs(30),
        hedge_after_min: Duration::from_millis(400),
        ..short_limits()
    };
    let store = open_service(&server.store_url("store"), &limits);
    let key = ObjectKey::new("packs/ab/one").unwrap();
    store.put_object(&key, b"content").unwrap();
    SlowService { server, store, key }
}

impl SlowService {
    fn read(&self) {
        assert_eq!(self.store.get_range(&self.key, 0, 7).unwrap(), b"content");
    }

    fn traffic(&self) -> ServiceTraffic {
        self.store.service_traffic().unwrap()
    }

    fn add_lie(&self, skip: u64, lie: S3Lie) {
        let key = "store/packs/".to_owned();
        self.server.add_lie(S3Match { method: "GET", key, skip: skip as u32, times: 1 }, lie);
    }
}

#[test]
fn a_late_answer_is_overtaken_by_that_to_a_second_request() {
    let service = start_service();
    service.add_lie(PROMPT, S3Lie::Hang);
    // The second request of the first late read stands between.
    service.add_lie(PROMPT + 1, S3Lie::StallBody(3));
    for _ in 0..PROMPT {
        service.read();
    }
    assert_eq!(service.traffic().hedges, 0);
    // The first of these gets no answer, and the second only the beginning of one.
    service.read();
    service.read();
    let traffic = service.traffic();
    assert_eq!((traffic.hedges, traffic.hedges_won), (2, 2));
    let counted = traffic.purposes.foreground;
    assert_eq!(counted.gets, PROMPT + 4);
    assert_eq!((counted.retries, counted.discarded_bytes), (0, 3));
}

#[test]
fn what_nobody_waits_for_is_not_sent_twice() {
    let service = start_service();
    for _ in 0..PROMPT {
        service.read();
    }
    let _scope = RequestPurpose::ReadAhead.enter();
    service.add_lie(0, S3Lie::CutBody(3));
    service.read();
    let traffic = service.traffic();
    assert_eq!(traffic.hedges, 0);
    let expected = PurposeTraffic { gets: 2, retries: 1, discarded_bytes: 3, ..PurposeTraffic::default() };
    assert_eq!(traffic.purposes.read_ahead, expected);
}

#[test]
fn requests_count_by_kind_and_by_purpose_also_in_other_threads() {
    let service = start_service();
    let scope = RequestPurpose::Upkeep.enter();
    let answers = map_requests(&service.store, &[0, 1, 2], |_| service.store.get_range(&service.key, 0, 7));
    assert!(answers.iter().all(Result::is_ok));
    service.store.list_objects("packs").unwrap();
    assert_eq!(service.store.object_size(&service.key).unwrap(), 7);
    drop(scope);
    let scope = RequestPurpose::Upload.enter();
    let unavailable = S3Lie::Fail(S3Failure::new(503, "SlowDown"));
    service.server.add_lie(S3Match { method: "PUT", key: String::new(), skip: 0, times: 1 }, unavailable);
    service.store.put_object(&ObjectKey::new("packs/ab/two").unwrap(), b"2").unwrap();
    drop(scope);
    service.store.delete_object(&service.key).unwrap();
    let none = PurposeTraffic::default();
    assert_eq!(
        service.traffic().purposes,
        PerPurpose {
            foreground: PurposeTraffic { puts: 1, deletes: 1, ..none },
            read_ahead: none,
            upload: PurposeTraffic { puts: 2, retries: 1, ..none },
            upkeep: PurposeTraffic { gets: 3, heads: 1, lists: 1, ..none },
        }
    );
}

#[test]
fn after_a_service_stopped_for_a_while_only_what_was_under_way_is_sent_again() {
    let service = start_service();
    let limits = RequestLimits { silence_max: Duration::from_millis(500), ..short_limits() };
    let relay = TcpRelay::start(&service.server.store_url("store"));
    let store = open_service(relay.store_url(), &limits);
    let keys: Vec<_> = (0..24).map(|number| ObjectKey::new(format!("packs/ab/{number}")).unwrap()).collect();
    let bytes = vec![7; 100_000];
    let objects: Vec<_> = keys.iter().map(|key| (key.clone(), &bytes[..])).collect();
    let list_puts = || -> Vec<String> {
        let requests = service.server.take_requests().into_iter();
        requests.filter(|request| request.method == "PUT").map(|request| request.key).collect()
    };
    let _ = service.server.take_requests();
    relay.hold_after(1_200_000);
    let arrived = std::thread::scope(|scope| {
        let put = scope.spawn(|| store.put_objects(&objects));
        while !relay.is_held() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let arrived = list_puts();
        // Several times as long as a request may be silent.
        std::thread::sleep(Duration::from_secs(2));
        relay.release();
        put.join().unwrap().unwrap();
        arrived
    });
    let mut sent = arrived.clone();
    sent.extend(list_puts());
    assert!(arrived.len() >= 3, "{arrived:?}");
    let distinct: std::collections::BTreeSet<_> = sent.iter().collect();
    assert_eq!(distinct.len(), keys.len());
    // Those whose answers had not come when it stopped: no more than are under way at once.
    let is_repeated = |key: &&&String| sent.iter().filter(|other| *other == **key).count() > 1;
    let repeated: Vec<_> = distinct.iter().filter(is_repeated).collect();
    assert!(repeated.len() <= store.parallel_get_count(), "{repeated:?}");
    for key in &keys {
        assert_eq!(store.get_object(key, 1 << 20).unwrap(), bytes);
    }
}

#[test]
fn neighbours_in_one_folder_are_put_at_once_and_others_in_order() {
    let service = start_service();
    let _ = service.server.take_requests();
    // Short, so that the request that gets no answer is repeated soon.
    let limits = RequestLimits { silence_max: Duration::from_secs(1), ..short_limits() };
    let store = open_service(&service.server.store_url("store"), &limits);
    let hang = S3Match { method: "PUT", key: "store/packs/ab/1".to_owned(), skip: 0, times: 1 };
    service.server.add_lie(hang, S3Lie::Hang);
    let names = ["packs/ab/1", "packs/cd/2", "index/3", "snapshots/4"];
    let keys = names.map(|name| ObjectKey::new(name).unwrap());
    let objects: Vec<_> = keys.iter().map(|key| (key.clone(), &b"bytes"[..])).collect();
    store.put_objects(&objects).unwrap();
    let requests = service.server.take_requests();
    let puts: Vec<_> = requests.iter().filter(|request| request.method == "PUT").collect();
    let mut order: Vec<_> = puts.iter().map(|request| request.key.trim_start_matches("store/")).collect();
    // Which of the first two comes first is chance; both come before the first is repeated.
    order[..2].sort();
    assert_eq!(order, ["packs/ab/1", "packs/cd/2", "packs/ab/1", "index/3", "snapshots/4"]);
}

#[test]
fn requests_under_way_are_shown_while_they_are() {
    let service = start_service();
    let none = PerPurpose::default();
    assert_eq!(service.traffic().under_way, none);
    service.server.add_lie(S3Match { method: "LIST", key: String::new(), skip: 0, times: 1 }, S3Lie::Hang);
    std::thread::scope(|scope| {
        let listed = scope.spawn(|| {
            let _scope = RequestPurpose::Upkeep.enter();
            let limits = RequestLimits { silence_max: Duration::from_secs(2), ..short_limits() };
            open_service(&service.server.store_url("store"), &limits).list_objects("packs")
        });
        while service.traffic().under_way == none {
            assert!(!listed.is_finished(), "it was never shown");
            std::thread::yield_now();
        }
        assert_eq!(listed.join().unwrap().unwrap().len(), 1);
    });
    assert_eq!(service.traffic().under_way, none);
}
