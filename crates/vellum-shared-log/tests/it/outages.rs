//! What every engine with a server of its own must do when the server is killed, or does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vellum_shared_log::{
    LogAddress, LogEpoch, LogKeySpace, LogPosition, SharedLog, SharedLogError, open_shared_log,
};
use vellum_store::MemoryObjectStore;
use vellum_testkit::TcpRelay;
use vellum_testkit::shared_log_conformance::make_server;

/// Appends before a crash, a count.
const APPENDS: u64 = 200;

/// Opens a log at an address, as another process would.
pub(super) fn try_open(url: &str, name: &str) -> Result<Arc<dyn SharedLog>, SharedLogError> {
    let address = LogAddress::parse(url).unwrap();
    let key_space = LogKeySpace::new("volume", name).unwrap();
    open_shared_log(&address, &key_space, Arc::new(MemoryObjectStore::new("not used")))
}

pub(super) fn open(url: &str, name: &str) -> Arc<dyn SharedLog> {
    try_open(url, name).unwrap()
}

/// The same address through a relay.
pub(super) fn relay_to(url: &str, port: u16) -> (TcpRelay, String) {
    let relay = TcpRelay::start(&format!("http://127.0.0.1:{port}"));
    let place = relay.store_url().trim_start_matches("http://").to_owned();
    let url = url.replace(&format!("127.0.0.1:{port}"), &place);
    (relay, url)
}

/// What the engine acknowledged is there after it was killed in the middle of appends, and the server's log goes on by
/// itself when it is back.
pub(super) fn check_crash(url: &str, crash_and_restart: &mut dyn FnMut()) {
    let log = open(url, "crash");
    let claim = log.claim(log.create().unwrap(), &make_server(1), None).unwrap();
    let acknowledged = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| append_until_failure(&*log, claim.epoch, &acknowledged));
        while acknowledged.load(Ordering::SeqCst) < APPENDS {
            assert!(!writer.is_finished(), "the server was killed too early");
            std::thread::yield_now();
        }
        crash_and_restart();
        let error = writer.join().unwrap();
        assert!(matches!(error, SharedLogError::Unreachable { .. }), "{error}");
    });
    let acknowledged = acknowledged.into_inner();
    let at = LogPosition(acknowledged * 8);
    // The append that was under way is in the log or not, and the server finds out.
    let end = match log.append(claim.epoch, at, &acknowledged.to_le_bytes()) {
        Ok(end) | Err(SharedLogError::Moved { end, .. }) => end,
        Err(error) => panic!("the log does not go on: {error}"),
    };
    assert_eq!(end.0, at.0 + 8);
    log.wait_until_durable(end).unwrap();
    let bytes = open(url, "crash").read(LogPosition(0), 1 << 20).unwrap();
    let numbers: Vec<u64> =
        bytes.chunks(8).map(|number| u64::from_le_bytes(number.try_into().unwrap())).collect();
    assert_eq!(numbers, (0..=acknowledged).collect::<Vec<_>>());
    log.renew(claim.epoch).unwrap();
}

fn append_until_failure(log: &dyn SharedLog, epoch: LogEpoch, acknowledged: &AtomicU64) -> SharedLogError {
    for number in 0_u64.. {
        match log.append(epoch, LogPosition(number * 8), &number.to_le_bytes()) {
            Ok(end) => {
                assert_eq!(end.0, number * 8 + 8);
                acknowledged.store(number + 1, Ordering::SeqCst);
            }
            // An attempt of this call had been carried out, and its answer was lost: it is acknowledged now.
            Err(SharedLogError::Moved { end, .. }) if end.0 == number * 8 + 8 => {
                acknowledged.store(number + 1, Ordering::SeqCst);
            }
            Err(error) => return error,
        }
    }
    unreachable!("numbers do not end")
}

/// An append that was sent before a claim and arrives after it is refused.
pub(super) fn check_delayed_append(url: &str, port: u16) {
    let (relay, slow_url) = relay_to(url, port);
    let old = open(&slow_url, "delayed");
    let claim = old.claim(old.create().unwrap(), &make_server(1), None).unwrap();
    old.append(claim.epoch, LogPosition(0), b"before").unwrap();
    let sent = relay.count_sent_bytes();
    relay.hold();
    let late = std::thread::scope(|scope| {
        let late = scope.spawn(|| old.append(claim.epoch, LogPosition(6), b"late"));
        while relay.count_sent_bytes() == sent {
            assert!(!late.is_finished(), "an append was answered that did not arrive");
            std::thread::yield_now();
        }
        let new = open(url, "delayed");
        let next = new.claim(claim.incarnation, &make_server(2), Some(claim.epoch)).unwrap();
        assert_eq!(next.end.0, 6);
        new.append(next.epoch, next.end, b"new").unwrap();
        relay.release();
        let late = late.join().unwrap();
        assert_eq!(new.read(LogPosition(0), 99).unwrap(), b"beforenew");
        late
    });
    assert!(matches!(late, Err(SharedLogError::Fenced { .. })), "{late:?}");
}

/// An engine that is not there is reported, with its place and without its secrets, and in time.
pub(super) fn check_unreachable(url: &str, place: &str) {
    let error = try_open(url, "away").err().expect("no engine is there");
    let text = error.to_string();
    assert!(matches!(error, SharedLogError::Unreachable { .. }), "{text}");
    assert!(text.contains(place), "{text}");
    assert!(!text.contains("secret"), "{text}");
}

/// An engine that cannot hold a log is refused with a reason.
pub(super) fn expect_unfit(url: &str, reason: &str) {
    let error = try_open(url, "unfit").err().expect("an engine that cannot hold a log");
    let text = error.to_string();
    assert!(matches!(error, SharedLogError::Unfit { .. }), "{text}");
    assert!(text.contains(reason), "{text}");
    assert!(!text.contains("secret"), "{text}");
}
