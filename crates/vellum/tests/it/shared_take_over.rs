//! A shared worktree whose server is lost: another machine serves it, and clients find that one by the worktree's log.
//!
//! Machines are processes with state directories of their own. A claim that nobody gives up ends after 10 seconds.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use rustix::io::Errno;
use rustix::process::Signal;
use vellum_testkit::{EtcdServer, PostgresServer, RedisServer};

use crate::mounting::{Mount, kill, wait_until};
use crate::open_file::OpenFile;
use crate::world::{Ran, World, run};

/// A machine that has a directory of its own and the common store.
pub struct Machine<'w> {
    pub dir: String,
    pub mount: Mount<'w>,
}

impl<'w> Machine<'w> {
    pub fn attached(world: &'w World, name: &str) -> Self {
        Self::attached_in(world, format!("{name}-state"), name)
    }

    /// The same with a directory that does not exist yet, in the world or elsewhere.
    pub fn attached_in(world: &'w World, dir: String, name: &str) -> Self {
        fs::create_dir(world.path(&dir)).unwrap();
        let store = world.tree().join(".vellum/store");
        let init = ["init", "--plain", "--name", name, "--store", store.to_str().unwrap()];
        world.run_beside(&dir, &init).ok();
        Self { dir, mount: Mount::place(world, name) }
    }

    pub fn mounts(&self, more: &[&str]) -> Ran {
        let words = ["mount", "--shared", "work", "--no-io-uring"];
        let path = self.mount.path.to_str().unwrap();
        self.mount.world.run_beside(&self.dir, &[&words[..], more, &[path]].concat())
    }
}

/// What clients and what the next server see after the first was lost.
fn check_take_over(world: &World, engine: &[&str]) {
    let [first, next, client] = ["server", "next", "client"].map(|name| Machine::attached(world, name));
    let listen = ["--listen", "127.0.0.1:0"];
    // What the first machine creates, it gives a log.
    first.mounts(&[&listen[..], engine].concat()).ok();
    client.mounts(&[]).ok();
    fs::create_dir(client.mount.at("dir")).unwrap();
    client.mount.sh("echo synced > dir/file; sync dir/file");
    assert_eq!(first.mount.sh("cat dir/file"), "synced\n");
    // While it is served, it stands by.
    next.mounts(&listen).ok().says("Stands by to serve clients at 127.0.0.1:");
    assert_eq!(next.mount.sh("cat dir/file"), "synced\n");
    let mut open = OpenFile::open(&next.mount.at("dir/file"));
    run(&client.mount.path, &["status", "--clients"], Stdio::null())
        .ok()
        .says("3 clients, served by ")
        .says("stands by at 127.0.0.1:");
    kill(first.mount.pid(), "-KILL");
    wait_until("the mount is dead", || first.mount.is_dead());
    // It waits for the next server.
    fs::write(client.mount.at("dir/late"), "late").unwrap();
    assert_eq!(next.mount.sh("cat dir/file dir/late"), "synced\nlate");
    assert_eq!(open.read(100).unwrap(), b"synced\n");
    drop(open);
    fs::write(next.mount.at("new"), "new").unwrap();
    assert_eq!(client.mount.sh("cat new"), "new");
    run(&client.mount.path, &["snapshot", "-m", "after all"], Stdio::null()).ok();
    client.mount.umount().ok();
    next.mount.umount().ok();
    world.run(&["history", "--all", "-n", "1"]).ok().says("after all");
}

#[test]
fn a_log_in_the_store_names_the_next_server() {
    check_take_over(&World::with_snapshot(), &["--meta", "store:"]);
}

#[test]
fn a_log_in_redis_names_the_next_server() {
    let dir = tempfile::tempdir().unwrap();
    let engine = RedisServer::start(dir.path(), &[]);
    check_take_over(&World::with_snapshot(), &["--meta", &engine.url()]);
}

/// An address of PostgreSQL without its password, and the password.
pub fn split_password(url: &str) -> (String, String) {
    let (front, place) = url.rsplit_once('@').unwrap();
    let (user, password) = front.rsplit_once(':').unwrap();
    (format!("{user}@{place}"), password.to_owned())
}

/// Writes the credentials `log`.
pub fn write_log_password(world: &World, password: &str) {
    let credentials = world.path("config/vellum/credentials");
    fs::create_dir_all(&credentials).unwrap();
    fs::write(credentials.join("log"), format!("password = {password}\n")).unwrap();
    fs::set_permissions(credentials.join("log"), fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn a_log_in_postgresql_names_the_next_server() {
    let engine = PostgresServer::start(&[]);
    let world = World::with_snapshot();
    let (address, password) = split_password(&engine.url());
    // The worktree's ref has the name of the file.
    write_log_password(&world, &password);
    check_take_over(&world, &["--meta", &address, "--meta-credentials", "log"]);
}

#[test]
fn a_log_in_etcd_names_the_next_server() {
    let dir = tempfile::tempdir().unwrap();
    let engine = EtcdServer::start(dir.path(), &[]);
    check_take_over(&World::with_snapshot(), &["--meta", &engine.url()]);
}

/// What was answered and is not in the log is lost with its server: `fsync` must not say that it is durable.
#[test]
fn a_sync_of_what_a_lost_server_took_along_fails() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = RedisServer::start(dir.path(), &[]);
    let world = World::with_snapshot();
    let [first, next, client] = ["server", "next", "client"].map(|name| Machine::attached(&world, name));
    let listen = ["--listen", "127.0.0.1:0"];
    first.mounts(&[&listen[..], &["--meta", &engine.url()]].concat()).ok();
    client.mounts(&[]).ok();
    client.mount.sh("echo kept > file; echo kept > other; sync file other");
    let mut file = OpenFile::open(&client.mount.at("file"));
    let mut other = OpenFile::open(&client.mount.at("other"));
    // The server answers while the engine takes nothing.
    engine.signal(Signal::STOP);
    file.write(b"lost").unwrap();
    kill(first.mount.pid(), "-KILL");
    wait_until("the mount is dead", || first.mount.is_dead());
    // It never reads what the server has sent.
    engine.crash_and_restart();
    next.mounts(&listen).ok();
    assert_eq!(file.sync(), Err(Errno::IO));
    assert_eq!(other.sync(), Ok(()), "nothing of it was lost");
    assert_eq!(file.read(9).unwrap(), b"kept\n");
    file.write(b"more").unwrap();
    file.sync().unwrap();
    assert_eq!(next.mount.sh("cat file other"), "more\nkept\n");
    drop((file, other));
    client.mount.umount().ok();
    next.mount.umount().ok();
}

/// What a client has closed is there after the server's machine and all that its log's engine had not answered are lost, if
/// closing is to say so.
#[test]
fn what_was_closed_durably_is_not_lost() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = RedisServer::start(dir.path(), &[]);
    let world = World::with_snapshot();
    let [first, next, client] = ["server", "next", "client"].map(|name| Machine::attached(&world, name));
    let listen = ["--listen", "127.0.0.1:0"];
    first.mounts(&[&listen[..], &["--meta", &engine.url()]].concat()).ok();
    client.mounts(&["--close", "durable"]).ok();
    client.mount.sh("echo before > file; mkdir dir; echo new > dir/new");
    // Who changes nothing does not wait for the engine.
    engine.signal(Signal::STOP);
    assert_eq!(client.mount.sh("cat file"), "before\n");
    let mut file = OpenFile::open(&client.mount.at("file"));
    file.write(b"behind").unwrap();
    kill(first.mount.pid(), "-KILL");
    wait_until("the mount is dead", || first.mount.is_dead());
    engine.crash_and_restart();
    next.mounts(&listen).ok();
    assert_eq!(file.close(), Err(Errno::IO), "what was written after the last close is gone");
    assert_eq!(next.mount.sh("cat file dir/new"), "before\nnew\n");
    client.mount.umount().ok();
    next.mount.umount().ok();
}

#[test]
fn engines_that_would_lose_the_log_are_refused() {
    let cases: [(&[&str], &[&str]); 3] = [
        (&["--maxmemory-policy", "allkeys-lru"], &["cannot hold the log", "maxmemory-policy noeviction"]),
        (&["--appendonly", "no"], &["cannot hold the log", "CONFIG SET appendonly yes"]),
        (&["--maxmemory", "1"], &["has no room for the log", "maxmemory"]),
    ];
    let world = World::with_snapshot();
    let server = Machine::attached(&world, "server");
    for (options, words) in cases {
        let folder = tempfile::tempdir().unwrap();
        let engine = RedisServer::start(folder.path(), options);
        let refused = server.mounts(&["--listen", "127.0.0.1:0", "--meta", &engine.url()]).code(2);
        words.iter().fold(refused, |refused, word| refused.remarks(word));
        assert!(!server.mount.is_mounted());
    }
}

#[test]
fn an_engine_that_is_empty_or_another_one_is_told_apart_from_one_without_changes() {
    let world = World::with_snapshot();
    let [server, other] = ["server", "other"].map(|name| Machine::attached(&world, name));
    let folder = tempfile::tempdir().unwrap();
    let engine = RedisServer::start(folder.path(), &[]);
    let listen = ["--listen", "127.0.0.1:0"];
    server.mounts(&[&listen[..], &["--meta", &engine.url()]].concat()).ok();
    server.mount.sh("echo synced > file; sync file");
    kill(server.mount.pid(), "-KILL");
    wait_until("the mount is dead", || server.mount.is_dead());
    assert!(engine.run("FLUSHALL").contains("OK"));
    other
        .mounts(&listen)
        .code(2)
        .remarks("the shared log of the worktree 'work' is gone")
        .remarks("--without-log");
    // The machine that had it goes on with everything.
    server.mounts(&listen).ok();
    assert_eq!(server.mount.sh("cat file"), "synced\n");
}

#[test]
fn a_client_that_reaches_everything_but_the_server_is_told_so() {
    let world = World::with_snapshot();
    let [server, client] = ["server", "client"].map(|name| Machine::attached(&world, name));
    server.mounts(&["--listen", "127.0.0.1:0", "--meta", "store:"]).ok();
    kill(server.mount.pid(), "-KILL");
    wait_until("the mount is dead", || server.mount.is_dead());
    client.mounts(&[]).code(2).remarks("cannot be reached").remarks("a firewall is in between");
}

#[test]
fn who_serves_has_to_be_known() {
    let world = World::with_snapshot();
    let [server, client] = ["server", "client"].map(|name| Machine::attached(&world, name));
    client.mounts(&[]).code(2).remarks("there is no worktree 'work'");
    // It has a log, and serves nobody.
    let path = server.mount.path.with_file_name("alone");
    fs::create_dir(&path).unwrap();
    let path = path.to_str().unwrap();
    world.run_beside(&server.dir, &["mount", "--meta", "store:", "--no-io-uring", path]).ok();
    let words = ["mount", "--shared", "alone", client.mount.path.to_str().unwrap()];
    world.run_beside(&client.dir, &words).code(3).remarks("serves no other machine").remarks("--listen");
    world.run_beside(&server.dir, &["umount", path]).ok();
    // What is typed as a setting is checked, too, before anything is made.
    world.run(&["init", "--plain", "../new", "--meta", "tikv://host"]).remarks("'tikv' is not supported");
    assert!(!world.path("new").exists());
    world.run(&["config", "set", "mount.meta", "mysql://host"]).remarks("'mysql' is not supported");
    // A password is for a file of credentials.
    let refused = ["mount", "--meta", "redis://:secret@127.0.0.1/0", "--no-io-uring", "../elsewhere"];
    let refused = world.run(&refused).code(2);
    assert!(
        !refused.err.contains("secret") && refused.err.contains("VELLUM_META_PASSWORD"),
        "{}",
        refused.err
    );
}
