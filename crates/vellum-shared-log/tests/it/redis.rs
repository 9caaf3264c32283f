//! The log in Redis.

use std::sync::Arc;

use vellum_shared_log::{LogPosition, SharedLog, SharedLogError};
use vellum_testkit::RedisServer;
use vellum_testkit::shared_log_conformance::{SharedLogFixture, check_shared_log, make_server};

use crate::outages::{check_crash, check_delayed_append, check_unreachable, expect_unfit, open};

impl SharedLogFixture for RedisFixture {
    fn open_log(&self, name: &str) -> Arc<dyn SharedLog> {
        open(&self.0.url(), name)
    }

    fn remove_everything(&self) {
        assert_eq!(self.0.run("FLUSHALL"), "+OK\r\n");
    }
}

struct RedisFixture(RedisServer);

#[test]
fn a_log_in_redis_conforms() {
    let dir = tempfile::tempdir().unwrap();
    check_shared_log(&RedisFixture(RedisServer::start(dir.path(), &[])));
}

#[test]
fn what_redis_acknowledged_survives_its_crash() {
    for options in [&[][..], &["--appendfsync", "always"]] {
        let dir = tempfile::tempdir().unwrap();
        let mut server = RedisServer::start(dir.path(), options);
        check_crash(&server.url(), &mut || server.crash_and_restart());
    }
}

#[test]
fn an_append_to_redis_that_arrives_late_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = RedisServer::start(dir.path(), &[]);
    check_delayed_append(&server.url(), server.port());
}

#[test]
fn a_redis_that_loses_data_is_refused() {
    let cases: [(&[&str], &str); 4] = [
        (
            &["--maxmemory-policy", "allkeys-lru"],
            "as soon as somebody sets 'maxmemory': run 'redis-cli CONFIG SET",
        ),
        (
            &["--maxmemory-policy", "volatile-lru", "--maxmemory", "100mb"],
            "removes keys by the policy 'volatile-lru' when its 'maxmemory' is reached",
        ),
        (&["--appendonly", "no"], "it writes no append-only file, so that a crash loses the log"),
        (&["--appendonly", "no", "--save", "60", "1"], "it writes no append-only file"),
    ];
    for (options, reason) in cases {
        let dir = tempfile::tempdir().unwrap();
        let server = RedisServer::start(dir.path(), options);
        expect_unfit(&server.url(), reason);
    }
    let dir = tempfile::tempdir().unwrap();
    expect_unfit(
        &RedisServer::start(dir.path(), &["--appendfsync", "no"]).url(),
        "it never waits for its disk",
    );
}

#[test]
fn a_redis_that_wants_another_password_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = RedisServer::start(dir.path(), &["--requirepass", "right-secret"]);
    expect_unfit(&server.url(), "it refuses the user or the password");
    let with_password = |password: &str| server.url().replace("redis://", &format!("redis://:{password}@"));
    expect_unfit(&with_password("wrong-secret"), "it refuses the user or the password");
    let log = open(&with_password("right-secret"), "password");
    log.create().unwrap();
}

#[test]
fn a_redis_that_is_away_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = RedisServer::start(dir.path(), &[]);
    let url = server.url().replace("redis://", "redis://:secret@");
    server.kill();
    check_unreachable(&url, &format!("Redis at 127.0.0.1:{}", server.port()));
}

#[test]
fn a_full_redis_keeps_its_server_and_lets_it_discard() {
    let dir = tempfile::tempdir().unwrap();
    let server = RedisServer::start(dir.path(), &["--maxmemory", "8mb"]);
    let log = open(&server.url(), "full");
    let claim = log.claim(log.create().unwrap(), &make_server(1), None).unwrap();
    let piece = vec![7; 512 << 10];
    let mut end = LogPosition(0);
    let error = loop {
        match log.append(claim.epoch, end, &piece) {
            Ok(next) => end = next,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, SharedLogError::Full { .. }), "{error}");
    assert!(error.to_string().contains("its 'maxmemory' is reached"), "{error}");
    log.renew(claim.epoch).unwrap();
    assert_eq!(log.read(LogPosition(0), 0).unwrap(), piece);
    log.discard_before(claim.epoch, end).unwrap();
    assert_eq!(log.append(claim.epoch, end, &piece).unwrap().0, end.0 + piece.len() as u64);
}

#[test]
fn a_log_whose_appends_were_removed_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let server = RedisServer::start(dir.path(), &[]);
    let log = open(&server.url(), "torn");
    let claim = log.claim(log.create().unwrap(), &make_server(1), None).unwrap();
    log.append(claim.epoch, LogPosition(0), b"content").unwrap();
    assert_eq!(server.run("DEL vellum:{volume/torn}:appends"), ":1\r\n");
    let read = log.read(LogPosition(0), 9);
    assert!(matches!(read, Err(SharedLogError::Damaged { .. })), "{read:?}");
    let append = log.append(claim.epoch, LogPosition(7), b"x");
    assert!(matches!(append, Err(SharedLogError::Damaged { .. })), "{append:?}");
}
