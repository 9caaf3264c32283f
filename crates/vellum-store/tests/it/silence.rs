//! A service that stops answering: requests end after a time, fail at once for a while, and are then sent again.

use std::time::Duration;

use vellum_store::{ObjectKey, ObjectStore, RequestLimits};
use vellum_testkit::{LyingS3, S3Lie, S3Match};
use vellum_types::ErrorKind;

use super::services::open_service;

/// Times that are short for a test; only the break differs.
fn limits_with_break(break_for: Duration) -> RequestLimits {
    let retry_for = Duration::from_millis(500);
    RequestLimits {
        retry_for,
        first_answer_max: retry_for,
        silence_max: retry_for,
        break_for,
        ..RequestLimits::default()
    }
}

#[test]
fn after_a_silence_requests_fail_at_once_and_are_sent_again_after_a_break() {
    let server = LyingS3::start().unwrap();
    let url = server.store_url("store");
    let key = ObjectKey::new("config").unwrap();
    let patient = open_service(&url, &limits_with_break(Duration::from_hours(1)));
    let hasty = open_service(&url, &limits_with_break(Duration::ZERO));
    patient.put_object(&key, b"content").unwrap();
    let all = S3Match { method: "GET", key: "store/".to_owned(), skip: 0, times: u32::MAX };
    server.add_lie(all, S3Lie::Hang);
    for store in [&patient, &hasty] {
        let error = store.get_object(&key, 9).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert!(error.to_string().contains("no answer"), "{error}");
    }
    server.tell_truth();
    let _before = server.take_requests();
    let withheld = patient.get_object(&key, 9).unwrap_err();
    assert!(withheld.to_string().contains("did not answer a moment ago"), "{withheld}");
    assert!(server.take_requests().is_empty(), "nothing is sent during the break");
    assert_eq!(hasty.get_object(&key, 9).unwrap(), b"content", "after it, requests are sent");
}
