//! Engines and logs that a worktree cannot be served from: what is said of them, and that nothing is lost.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;

use vellum_testkit::{EtcdServer, PostgresServer, RedisServer, WebServer};

use crate::mounting::{detach_mount, kill, wait_until};
use crate::shared_take_over::{Machine, split_password, write_log_password};
use crate::world::World;

const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:0"];

/// Tries to serve a new worktree with a log at an address, which is refused with these words.
#[track_caller]
fn expect_refused(machine: &Machine<'_>, url: &str, words: &[&str]) {
    let refused = machine.mounts(&[&LISTEN[..], &["--meta", url]].concat()).code(2);
    words.iter().fold(refused, |refused, word| refused.remarks(word));
    assert!(!machine.mount.is_mounted());
}

#[test]
fn an_engine_that_is_too_old_or_keeps_its_version_secret_is_refused() {
    let world = World::with_snapshot();
    let server = Machine::attached(&world, "server");
    let folder = tempfile::tempdir().unwrap();
    let old = RedisServer::start_old(folder.path(), &[]);
    expect_refused(
        &server,
        &old.url(),
        &["cannot hold the log", "version 6.2", "7.0 is the oldest", "update"],
    );
    let folder = tempfile::tempdir().unwrap();
    let renamed = RedisServer::start(folder.path(), &["--rename-command", "INFO", "SECRET"]);
    expect_refused(&server, &renamed.url(), &["cannot hold the log", "refuses INFO", "allow this command"]);
    // Nothing was begun by that.
    server.mounts(&[&LISTEN[..], &["--meta", "store:"]].concat()).ok();
    server.mount.umount().ok();
}

/// A real PostgreSQL that says it is an older one: its own function is put before that of the system.
#[test]
fn a_postgresql_that_is_too_old_is_refused() {
    let world = World::with_snapshot();
    let server = Machine::attached(&world, "server");
    let engine = PostgresServer::start(&[]);
    engine.run(
        "CREATE SCHEMA older; CREATE FUNCTION older.current_setting(name text) RETURNS text LANGUAGE sql AS \
         $$ SELECT CASE name WHEN 'server_version_num' THEN '110022' ELSE pg_catalog.current_setting(name) END $$; \
         ALTER ROLE CURRENT_USER SET search_path = older, pg_catalog, public",
    );
    let (address, password) = split_password(&engine.url());
    write_log_password(&world, &password);
    let arguments = [&LISTEN[..], &["--meta", &address, "--meta-credentials", "log"]].concat();
    let refused = server.mounts(&arguments).code(2);
    refused
        .remarks("cannot hold the log")
        .remarks("version 11")
        .remarks("12 is the oldest")
        .remarks("update it");
    assert!(!server.mount.is_mounted());
    // What says its version is the reason.
    engine.run("ALTER ROLE CURRENT_USER RESET search_path");
    server.mounts(&arguments).ok();
    server.mount.umount().ok();
}

/// No old etcd can be installed, so its answer to the question for its version is given by the test.
#[test]
fn an_etcd_that_is_too_old_is_refused() {
    let world = World::with_snapshot();
    let server = Machine::attached(&world, "server");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("etcd://{}", listener.local_addr().unwrap());
    // It ends with the process of the test.
    std::thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && connection.read(&mut byte).is_ok_and(|len| len == 1) {
                head.push(byte[0]);
            }
            let body = r#"{"etcdserver":"3.3.25","etcdcluster":"3.3.0"}"#;
            let len = body.len();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}"
            );
            // A client that has gone away needs no answer.
            let _ = connection.write_all(answer.as_bytes());
        }
    });
    expect_refused(
        &server,
        &url,
        &["cannot hold the log", "3.3.25", "3.4 is the oldest that can", "update it"],
    );
}

#[test]
fn an_engine_of_another_kind_is_told_apart() {
    let world = World::with_snapshot();
    let server = Machine::attached(&world, "server");
    let folder = tempfile::tempdir().unwrap();
    let redis = RedisServer::start(&folder.path().join("redis"), &[]);
    let etcd = EtcdServer::start(&folder.path().join("etcd"), &[]);
    let postgres = PostgresServer::start(&[]);
    let web = WebServer::start(folder.path());
    let [redis, etcd, postgres, web] = [redis.port(), etcd.port(), postgres.port(), web.address().port()];
    for (kind, is_right, ports) in [
        ("redis", "Redis", [etcd, postgres, web]),
        ("postgres", "PostgreSQL", [etcd, redis, web]),
        ("etcd", "etcd", [redis, postgres, web]),
    ] {
        for port in ports {
            let user = if kind == "postgres" { "me@" } else { "" };
            let database = if kind == "postgres" { "/db" } else { "" };
            let url = format!("{kind}://{user}127.0.0.1:{port}{database}");
            expect_refused(&server, &url, &[&format!("{is_right} at 127.0.0.1:{port}"), is_right]);
        }
    }
}

/// A worktree with a log in Redis and a file that was synced, whose server was killed.
fn lose_server(engine: &RedisServer, machine: &Machine<'_>) {
    machine.mounts(&[&LISTEN[..], &["--meta", &engine.url()]].concat()).ok();
    machine.mount.sh("echo one > file; sync file; echo two > file; sync file");
    kill(machine.mount.pid(), "-KILL");
    wait_until("the mount is dead", || machine.mount.is_dead());
    detach_mount(&machine.mount.path);
}

/// The key of the log that has a name ending so.
fn find_key(engine: &RedisServer, end: &str) -> String {
    let answer = engine.run(&format!("KEYS vellum:*{end}"));
    answer.lines().find(|line| line.starts_with("vellum:")).unwrap().to_owned()
}

#[test]
fn a_log_that_is_cut_off_is_refused_on_each_machine() {
    let world = World::with_snapshot();
    let machines = ["server", "other"].map(|name| Machine::attached(&world, name));
    let folder = tempfile::tempdir().unwrap();
    let engine = RedisServer::start(folder.path(), &[]);
    lose_server(&engine, &machines[0]);
    let appends = find_key(&engine, ":appends");
    assert!(engine.run(&format!("XTRIM {appends} MAXLEN 0")).starts_with(':'));
    for machine in machines.iter().rev() {
        machine
            .mounts(&LISTEN)
            .code(2)
            .remarks("is damaged")
            .remarks("appends are missing")
            .remarks("--without-log");
        assert!(!machine.mount.is_mounted());
    }
}

#[test]
fn a_log_of_another_incarnation_is_refused_and_the_machine_that_had_it_goes_on() {
    let world = World::with_snapshot();
    let [server, other] = ["server", "other"].map(|name| Machine::attached(&world, name));
    let folder = tempfile::tempdir().unwrap();
    let engine = RedisServer::start(folder.path(), &[]);
    lose_server(&engine, &server);
    let names = [":state", ":appends"].map(|end| find_key(&engine, end));
    // As an administrator would who takes the log of one worktree for that of another one.
    for name in &names {
        assert_eq!(engine.run(&format!("RENAME {name} {}", name.replace("vellum:", "kept:"))), "+OK\r\n");
    }
    let elsewhere = server.mount.path.with_file_name("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let elsewhere = elsewhere.to_str().unwrap();
    let words = ["mount", "--no-io-uring", "--meta", &engine.url(), elsewhere];
    world.run_beside(&server.dir, &words).ok();
    world.run_beside(&server.dir, &["umount", elsewhere]).ok();
    for (end, name) in [":state", ":appends"].into_iter().zip(&names) {
        assert_eq!(engine.run(&format!("RENAME {} {name}", find_key(&engine, end))), "+OK\r\n");
    }
    other.mounts(&LISTEN).code(2).remarks("is gone").remarks("the engine has").remarks("--without-log");
    assert!(!other.mount.is_mounted());
    server.mounts(&LISTEN).ok();
    assert_eq!(server.mount.sh("cat file"), "two\n");
    server.mount.umount().ok();
}
