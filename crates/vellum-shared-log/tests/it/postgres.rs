//! The log in PostgreSQL.

use std::sync::Arc;

use vellum_shared_log::{LogPosition, SharedLog, SharedLogError};
use vellum_testkit::PostgresServer;
use vellum_testkit::shared_log_conformance::{SharedLogFixture, check_shared_log, make_server};

use crate::outages::{check_crash, check_delayed_append, check_unreachable, expect_unfit, open};

struct PostgresFixture(PostgresServer);

impl SharedLogFixture for PostgresFixture {
    fn open_log(&self, name: &str) -> Arc<dyn SharedLog> {
        open(&self.0.url(), name)
    }

    fn remove_everything(&self) {
        self.0.run("DROP TABLE vellum_logs, vellum_log_appends");
    }
}

#[test]
fn a_log_in_postgresql_conforms() {
    check_shared_log(&PostgresFixture(PostgresServer::start(&[])));
}

#[test]
fn a_log_in_postgresql_conforms_whatever_its_default_isolation_is() {
    let serializable = ["default_transaction_isolation=serializable"];
    check_shared_log(&PostgresFixture(PostgresServer::start(&serializable)));
}

#[test]
fn what_postgresql_acknowledged_survives_its_crash() {
    let mut server = PostgresServer::start(&[]);
    let url = server.url();
    check_crash(&url, &mut || server.crash_and_restart());
}

#[test]
fn an_append_to_postgresql_that_arrives_late_is_refused() {
    let server = PostgresServer::start(&[]);
    check_delayed_append(&server.url(), server.port());
}

#[test]
fn a_postgresql_that_answers_early_is_refused() {
    let early = PostgresServer::start(&["synchronous_commit=off"]);
    expect_unfit(
        &early.url(),
        "it answers before it has written (synchronous_commit = off): run 'ALTER ROLE",
    );
    // What the message says to run.
    early.run("ALTER ROLE CURRENT_USER SET synchronous_commit = on");
    open(&early.url(), "mended").create().unwrap();
    let careless = PostgresServer::start(&["fsync=off"]);
    expect_unfit(&careless.url(), "it does not wait for its disk (fsync = off)");
}

#[test]
fn a_postgresql_that_wants_another_password_is_refused() {
    let server = PostgresServer::start(&[]);
    let (user, rest) =
        server.url().split_once('@').map(|(user, rest)| (user.to_owned(), rest.to_owned())).unwrap();
    expect_unfit(&format!("{user}-wrong@{rest}"), "password authentication failed");
    expect_unfit(&server.url().replace("/postgres", "/nothing"), "database \"nothing\" does not exist");
    server.run("CREATE ROLE stranger LOGIN PASSWORD 'secret'");
    let stranger = open(&format!("postgres://stranger:secret@{rest}"), "denied").create().unwrap_err();
    assert!(matches!(stranger, SharedLogError::Unfit { .. }), "{stranger}");
    assert!(stranger.to_string().contains("'GRANT CREATE, USAGE ON SCHEMA public TO'"), "{stranger}");
    // Once the tables are there, less is enough.
    open(&server.url(), "granted").create().unwrap();
    server.run("GRANT SELECT, INSERT, UPDATE, DELETE ON vellum_logs, vellum_log_appends TO stranger");
    let log = open(&format!("postgres://stranger:secret@{rest}"), "granted");
    let claim = log.claim(log.create().unwrap(), &make_server(1), None).unwrap();
    log.append(claim.epoch, LogPosition(0), b"content").unwrap();
}

#[test]
fn a_postgresql_that_is_away_is_reported() {
    let mut server = PostgresServer::start(&[]);
    server.kill();
    check_unreachable(&server.url(), &format!("PostgreSQL at 127.0.0.1:{}", server.port()));
}

#[test]
fn a_log_whose_rows_were_removed_is_damaged() {
    let server = PostgresServer::start(&[]);
    let log = open(&server.url(), "torn");
    let claim = log.claim(log.create().unwrap(), &make_server(1), None).unwrap();
    for at in 0..3 {
        log.append(claim.epoch, LogPosition(at), b"x").unwrap();
    }
    server.run("DELETE FROM vellum_log_appends WHERE position = 1");
    let read = log.read(LogPosition(0), 9);
    assert!(matches!(read, Err(SharedLogError::Damaged { .. })), "{read:?}");
    server.run("DELETE FROM vellum_log_appends");
    let read = log.read(LogPosition(0), 9);
    assert!(matches!(read, Err(SharedLogError::Damaged { .. })), "{read:?}");
}
