//! The log in etcd.

use std::sync::Arc;

use vellum_shared_log::{LogPosition, SharedLog, SharedLogError};
use vellum_testkit::EtcdServer;
use vellum_testkit::shared_log_conformance::{SharedLogFixture, check_shared_log, make_server};

use crate::outages::{check_crash, check_delayed_append, check_unreachable, expect_unfit, open};

struct EtcdFixture(EtcdServer);

impl SharedLogFixture for EtcdFixture {
    fn open_log(&self, name: &str) -> Arc<dyn SharedLog> {
        open(&self.0.url(), name)
    }

    fn remove_everything(&self) {
        // From the key of one zero byte on: all keys.
        let answer = self.0.request("/v3/kv/deleterange", r#"{"key":"AA==","range_end":"AA=="}"#);
        assert!(answer.contains("deleted"), "{answer}");
    }
}

#[test]
fn a_log_in_etcd_conforms() {
    let dir = tempfile::tempdir().unwrap();
    check_shared_log(&EtcdFixture(EtcdServer::start(dir.path(), &[])));
}

#[test]
fn what_etcd_acknowledged_survives_its_crash() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = EtcdServer::start(dir.path(), &[]);
    let url = server.url();
    check_crash(&url, &mut || server.crash_and_restart());
}

#[test]
fn an_append_to_etcd_that_arrives_late_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = EtcdServer::start(dir.path(), &[]);
    check_delayed_append(&server.url(), server.port());
}

#[test]
fn an_etcd_that_wants_another_password_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = EtcdServer::start(dir.path(), &[]);
    for (path, body) in [
        ("/v3/auth/user/add", r#"{"name":"root","password":"right-secret"}"#),
        ("/v3/auth/role/add", r#"{"name":"root"}"#),
        ("/v3/auth/user/grant", r#"{"user":"root","role":"root"}"#),
        ("/v3/auth/enable", "{}"),
    ] {
        let answer = server.request(path, body);
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
    let with_password = |password: &str| server.url().replace("etcd://", &format!("etcd://root:{password}@"));
    expect_unfit(&with_password("wrong-secret"), "authentication failed");
    let log = open(&with_password("right-secret"), "password");
    log.create().unwrap();
    let nobody = open(&server.url(), "password").create().unwrap_err();
    assert!(matches!(nobody, SharedLogError::Unfit { .. }), "{nobody}");
}

#[test]
fn an_etcd_that_is_away_is_reported_unless_another_server_answers() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = EtcdServer::start(&dir.path().join("away"), &[]);
    server.kill();
    check_unreachable(&server.url(), &format!("etcd at 127.0.0.1:{}", server.port()));
    let other = EtcdServer::start(&dir.path().join("other"), &[]);
    let both = format!("{},127.0.0.1:{}", server.url(), other.port());
    open(&both, "both").create().unwrap();
}

#[test]
fn a_full_etcd_keeps_its_server_and_lets_it_discard() {
    let dir = tempfile::tempdir().unwrap();
    let server = EtcdServer::start(dir.path(), &["--quota-backend-bytes", "16777216"]);
    let log = open(&server.url(), "full");
    let claim = log.claim(log.create().unwrap(), &make_server(1), None).unwrap();
    let piece = vec![7; 900 << 10];
    let mut end = LogPosition(0);
    let error = loop {
        match log.append(claim.epoch, end, &piece) {
            Ok(next) => end = next,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, SharedLogError::Full { .. }), "{error}");
    assert!(error.to_string().contains("its database has reached its quota"), "{error}");
    log.renew(claim.epoch).unwrap();
    assert_eq!(log.read(LogPosition(0), 0).unwrap(), piece);
    log.discard_before(claim.epoch, end).unwrap();
    let read = log.read(LogPosition(0), 9);
    assert!(matches!(read, Err(SharedLogError::Discarded { .. })), "{read:?}");
}
