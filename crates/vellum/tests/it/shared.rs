//! One worktree that several machines mount at once: here, processes with state directories of their own.
//!
//! Files of clients are held open by processes of their own ([`OpenFile`]).

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use serde_json::Value;

use crate::mounting::{Mount, kill, sh, wait_until};
use crate::open_file::OpenFile;
use crate::world::{Ran, World, run};

/// A worktree that is served, and its clients.
pub struct Cluster<'w> {
    world: &'w World,
    pub server: Mount<'w>,
    pub address: String,
}

impl<'w> Cluster<'w> {
    /// The worktree `work`, served by a mount.
    pub fn serve(world: &'w World) -> Self {
        let server = Mount::place(world, "work");
        let mut cluster = Self { world, server, address: "127.0.0.1:0".into() };
        cluster.address = cluster.start_server();
        cluster
    }

    /// Serves; gives where.
    pub fn start_server(&self) -> String {
        let path = self.server.path.to_str().unwrap();
        let words = ["mount", "--shared", "work", "--listen", &self.address, "--allow-other"];
        let report = self.world.json(&[&words[..], &["--no-io-uring", path]].concat());
        report["serves"].as_str().unwrap().into()
    }

    /// A state directory of another machine.
    pub fn attach(&self, name: &str) -> String {
        let dir = format!("../{name}-state");
        fs::create_dir(self.world.tree().join(&dir)).unwrap();
        let store = self.world.tree().join(".vellum/store");
        let init = ["init", "--plain", "--name", name, "--store", store.to_str().unwrap()];
        self.world.run_in(&dir, &init).ok();
        dir
    }

    /// Mounts the worktree as a client with a state directory of its own.
    pub fn client(&self, name: &str) -> Mount<'w> {
        self.client_with(name, &[])
    }

    /// The same, with more arguments.
    pub fn client_with(&self, name: &str, more: &[&str]) -> Mount<'w> {
        let dir = self.attach(name);
        let mount = Mount::place(self.world, name);
        self.mount_client(&dir, &mount, more).ok();
        mount
    }

    fn mount_client(&self, dir: &str, mount: &Mount<'_>, more: &[&str]) -> Ran {
        let words = ["mount", "--shared", "work", "--server", &self.address, "--allow-other"];
        self.world.run_in(dir, &[&words[..], more, &[mount.path.to_str().unwrap()]].concat())
    }

    pub fn sessions(&self) -> Vec<Value> {
        let ran = run(&self.server.path, &["--json", "status", "--clients"], Stdio::null()).ok();
        let listed: Value = serde_json::from_str(&ran.out).unwrap();
        listed["worktrees"][0]["clients"].as_array().unwrap().clone()
    }
}

fn errno(error: &std::io::Error) -> Option<Errno> {
    Errno::from_io_error(error)
}

#[test]
fn what_one_machine_does_is_seen_by_the_others_at_once() {
    let world = World::with_snapshot();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    let two = cluster.client("two");
    let all = [&cluster.server, &one, &two];
    for (number, writer) in all.into_iter().enumerate() {
        let name = format!("f{number}");
        fs::write(writer.at(&name), format!("content {number}")).unwrap();
        for reader in all {
            assert_eq!(fs::read_to_string(reader.at(&name)).unwrap(), format!("content {number}"));
            assert_eq!(fs::metadata(reader.at(&name)).unwrap().len(), 9);
        }
    }
    // A file that is open, and a name that was looked for before it was there.
    let mut open = OpenFile::open(&two.at("f0"));
    assert!(fs::metadata(two.at("late")).is_err());
    fs::write(one.at("f0"), "longer than it was before").unwrap();
    fs::write(one.at("late"), "late").unwrap();
    assert_eq!(open.read(100).unwrap(), b"longer than it was before");
    assert_eq!(fs::read_to_string(two.at("late")).unwrap(), "late");
    assert_eq!(fs::read_to_string(one.at("dir/b.txt")).unwrap(), "b\n");
    // Names.
    fs::create_dir(one.at("made")).unwrap();
    fs::rename(two.at("f1"), two.at("made/moved")).unwrap();
    assert!(fs::metadata(one.at("f1")).is_err());
    let names = |mount: &Mount<'_>| mount.sh("cd made; ls");
    assert_eq!(all.map(names), ["moved\n"; 3]);
    fs::remove_file(cluster.server.at("made/moved")).unwrap();
    assert_eq!(all.map(names), [""; 3]);
    fs::remove_dir(two.at("made")).unwrap();
    assert!(fs::metadata(one.at("made")).is_err());
}

#[test]
fn links_attributes_and_large_files_work_through_a_client() {
    let world = World::with_snapshot();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    let two = cluster.client("two");
    symlink("a.txt", one.at("symbolic")).unwrap();
    fs::hard_link(one.at("a.txt"), one.at("hard")).unwrap();
    assert_eq!(fs::read_link(two.at("symbolic")).unwrap().to_str(), Some("a.txt"));
    assert_eq!(fs::metadata(two.at("a.txt")).unwrap().nlink(), 2);
    rustix::fs::setxattr(one.at("hard"), "user.a", b"value", rustix::fs::XattrFlags::CREATE).unwrap();
    let mut value = [0; 16];
    let len = rustix::fs::getxattr(two.at("a.txt"), "user.a", &mut value).unwrap();
    assert_eq!(&value[..len], b"value");
    one.sh("chmod 640 a.txt; chown 5:6 a.txt; touch -d '2001-02-03 04:05:06 UTC' a.txt");
    assert_eq!(two.sh("stat -c '%a %u %g %Y' hard"), "640 5 6 981173106\n");
    one.sh("head -c 5000000 /dev/urandom > big; cp big copy; cmp big copy");
    two.sh("cmp big copy; dd if=/dev/zero of=big bs=1 seek=4999999 count=1 conv=notrunc status=none");
    assert_eq!(one.sh("{ cmp big copy || true; } | wc -l; truncate -s 10 copy; stat -c %s copy"), "1\n10\n");
    assert_eq!(two.sh("stat -c %s copy; mkfifo pipe; stat -c %F pipe"), "10\nfifo\n");
    // Mapped memory, and executing.
    two.sh("cp /bin/true program; ./program");
    one.sh("./program; df . > /dev/null; ls -la > /dev/null; find . | sort | tail -1");
    one.umount().ok();
    wait_until("its session has ended", || cluster.sessions().len() == 1);
    two.sh("rm -r dir; [ ! -e dir ]");
}

#[test]
fn many_names_are_listed_and_removed() {
    let world = World::new();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    let two = cluster.client("two");
    one.sh("mkdir many; cd many; seq 3000 | xargs touch");
    assert_eq!(
        two.sh("ls many | wc -l; ls -l many | wc -l; find many -type f | wc -l"),
        "3000\n3001\n3000\n"
    );
    two.sh("rm -r many");
    assert_eq!(one.sh("ls"), "");
}

#[test]
fn appends_of_several_machines_are_all_there() {
    const RECORDS: usize = 200;
    let world = World::new();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    let two = cluster.client("two");
    fs::write(one.at("log"), "").unwrap();
    let script = format!("for n in $(seq 0 {}); do printf \"$NAME %060d\\n\" $n >> log; done", RECORDS - 1);
    std::thread::scope(|scope| {
        for (name, mount) in [("a", &one), ("b", &two), ("c", &cluster.server)] {
            let script = script.replace("$NAME", name);
            scope.spawn(move || mount.sh(&script));
        }
    });
    let text = fs::read_to_string(two.at("log")).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3 * RECORDS);
    for name in ["a", "b", "c"] {
        let own: Vec<_> = lines.iter().filter_map(|line| line.strip_prefix(name)).collect();
        let expected: Vec<_> = (0..RECORDS).map(|number| format!(" {number:060}")).collect();
        assert_eq!(own, expected, "{name}");
    }
}

#[test]
fn of_several_machines_that_create_a_name_one_wins() {
    let world = World::new();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    let two = cluster.client("two");
    for number in 0..50 {
        let create = |mount: &Mount<'_>| {
            let path = mount.at(&format!("n{number}"));
            OpenOptions::new().write(true).create_new(true).open(path).is_ok()
        };
        let won = std::thread::scope(|scope| {
            let first = scope.spawn(|| create(&one));
            let second = create(&two);
            [first.join().unwrap(), second]
        });
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "n{number}");
        // Without `O_EXCL`, both have it.
        let open = |mount: &Mount<'_>| {
            let path = mount.at(&format!("both{number}"));
            let opened = OpenOptions::new().write(true).create(true).truncate(false).open(path);
            opened.unwrap().metadata().unwrap().ino()
        };
        let (first, second) = std::thread::scope(|scope| {
            let first = scope.spawn(|| open(&one));
            let second = open(&two);
            (first.join().unwrap(), second)
        });
        assert_eq!(first, second);
    }
}

#[test]
fn a_file_that_another_machine_removes_stays_while_it_is_open() {
    let world = World::new();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    let two = cluster.client("two");
    let used = || world.json(&["worktree", "quota", "work"])["bytes"]["used"].as_u64().unwrap();
    fs::write(one.at("file"), vec![7; 100_000]).unwrap();
    let mut open = OpenFile::open(&one.at("file"));
    fs::remove_file(two.at("file")).unwrap();
    assert_eq!(open.read(200_000).unwrap(), vec![7; 100_000]);
    open.write(b"still").unwrap();
    assert_eq!(open.read(5).unwrap(), b"still");
    // What has no name counts no more.
    assert_eq!(used(), 0);
}

#[test]
fn what_a_killed_client_had_open_goes_and_others_work_on() {
    let world = World::new();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    let two = cluster.client("two");
    let used = || world.json(&["worktree", "quota", "work"])["bytes"]["used"].as_u64().unwrap();
    fs::write(one.at("file"), vec![7; 100_000]).unwrap();
    let pid = one.pid();
    let open = OpenFile::open(&one.at("file"));
    fs::remove_file(two.at("file")).unwrap();
    kill(pid, "-KILL");
    fs::write(two.at("other"), "works").unwrap();
    assert_eq!(fs::read_to_string(cluster.server.at("other")).unwrap(), "works");
    wait_until("its session has ended", || cluster.sessions().len() == 1);
    wait_until("the space of its file is free", || used() == 5);
    drop(open);
}

/// Kills the server, and waits until its mount is dead.
pub fn kill_server(cluster: &Cluster<'_>) {
    kill(cluster.server.pid(), "-KILL");
    wait_until("the mount is dead", || cluster.server.is_dead());
}

/// Otherwise a test that starts the next server would fail now and then, on a busy machine.
#[test]
fn a_killed_server_has_left_its_address_when_the_next_one_starts() {
    let world = World::new();
    let cluster = Cluster::serve(&world);
    for _ in 0..8 {
        kill_server(&cluster);
        drop(std::net::TcpListener::bind(&cluster.address).unwrap());
        cluster.start_server();
    }
}

#[test]
fn clients_wait_for_a_killed_server_and_go_on_when_it_is_back() {
    let world = World::new();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    let two = cluster.client("two");
    for round in 0..3 {
        kill_server(&cluster);
        std::thread::scope(|scope| {
            let writers: Vec<_> = [("one", &one), ("two", &two)]
                .into_iter()
                .map(|(name, mount)| {
                    scope.spawn(move || {
                        for number in 0..20 {
                            // Each fails if it is done twice.
                            fs::create_dir(mount.at(&format!("{name}-{round}-{number}"))).unwrap();
                        }
                        let moved = mount.at(&format!("{name}-moved"));
                        fs::rename(mount.at(&format!("{name}-{round}-0")), &moved).unwrap();
                        fs::remove_dir(moved).unwrap();
                    })
                })
                .take(1 + round % 2)
                .collect();
            assert_eq!(cluster.start_server(), cluster.address);
            writers.into_iter().for_each(|writer| writer.join().unwrap());
        });
    }
    assert_eq!(cluster.sessions().len(), 2);
}

#[test]
fn files_that_clients_have_open_outlive_a_killed_server() {
    let world = World::new();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    let two = cluster.client("two");
    fs::write(one.at("file"), "before").unwrap();
    fs::write(one.at("nameless"), "nameless").unwrap();
    let mut open = OpenFile::open(&one.at("file"));
    let mut other = OpenFile::open(&two.at("file"));
    let mut nameless = OpenFile::open(&one.at("nameless"));
    fs::remove_file(two.at("nameless")).unwrap();
    for round in 0..3 {
        kill_server(&cluster);
        cluster.start_server();
        open.append(format!(", after {round}").as_bytes()).unwrap();
    }
    let expected = "before, after 0, after 1, after 2";
    assert_eq!(fs::read_to_string(two.at("file")).unwrap(), expected);
    fs::remove_file(two.at("file")).unwrap();
    assert_eq!(other.read(100).unwrap(), expected.as_bytes());
    nameless.append(b" still").unwrap();
    assert_eq!(nameless.read(100).unwrap(), b"nameless still");
}

/// Appends numbered lines through a client until it is told to stop, in a process of its own.
fn start_appending(mount: &Mount<'_>) -> Child {
    let script = "n=0; while [ ! -e stop ]; do echo $n >> log; n=$((n+1)); done";
    Command::new("bash").args(["-eu", "-c", script]).current_dir(&mount.path).spawn().unwrap()
}

#[test]
fn operations_under_way_when_the_server_dies_are_done_once() {
    let world = World::new();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    let two = cluster.client("two");
    fs::write(one.at("log"), "").unwrap();
    let mut appending = start_appending(&one);
    for _ in 0..3 {
        let len = || fs::metadata(two.at("log")).map_or(0, |found| found.len());
        let before = len();
        wait_until("it appends", || len() > before + 100);
        kill_server(&cluster);
        cluster.start_server();
    }
    fs::write(two.at("stop"), "").unwrap();
    assert!(appending.wait().unwrap().success());
    let text = fs::read_to_string(two.at("log")).unwrap();
    for (number, line) in text.lines().enumerate() {
        assert_eq!(line, number.to_string());
    }
}

#[test]
fn requests_fail_when_the_server_stays_away() {
    let world = World::new();
    let cluster = Cluster::serve(&world);
    let dir = cluster.attach("one");
    let one = Mount::place(&world, "one");
    cluster.mount_client(&dir, &one, &["--wait", "1s"]).ok();
    kill(cluster.server.pid(), "-KILL");
    let error = fs::write(one.at("file"), "x").unwrap_err();
    assert_eq!(errno(&error), Some(Errno::IO));
    cluster.start_server();
    wait_until("it works again", || fs::write(one.at("file"), "x").is_ok());
}

#[test]
fn snapshots_and_restores_work_while_clients_do_and_from_their_mounts() {
    let world = World::with_snapshot();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    let two = cluster.client("two");
    fs::write(one.at("a.txt"), "changed").unwrap();
    run(&two.path, &["snapshot", "--tag", "second"], Stdio::null()).ok();
    fs::write(one.at("new"), "new").unwrap();
    let mut open = OpenFile::open(&one.at("a.txt"));
    run(&one.path, &["restore", "first"], Stdio::null()).ok();
    for mount in [&one, &two, &cluster.server] {
        assert_eq!(fs::read_to_string(mount.at("a.txt")).unwrap(), "one\ntwo\nthree\n");
        assert!(fs::metadata(mount.at("new")).is_err());
    }
    assert_eq!(open.read(7).unwrap(), b"changed");
    assert_eq!(fs::read_to_string(two.at(".vellum/snapshots/second/a.txt")).unwrap(), "changed");
    assert_eq!(one.description()["worktree"], "work");
    run(&one.path, &["status"], Stdio::null()).ok();
}

#[test]
fn clients_are_listed_and_evicted() {
    let world = World::new();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    fs::write(one.at("file"), "x").unwrap();
    let listed = cluster.sessions();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["mountpoint"], one.path.to_str().unwrap());
    assert_eq!(listed[0]["connected"], true);
    assert!(listed[0]["requests"].as_u64().unwrap() > 2);
    // From a client, and from the volume's directory, too.
    run(&one.path, &["status", "--clients"], Stdio::null()).ok().says("work: 1 client");
    world.run(&["status", "--clients"]).ok().says("connected");
    let session = listed[0]["session"].as_str().unwrap();
    world.run(&["worktree", "evict", "work", session]).ok().says("has ended");
    world.run(&["worktree", "evict", "work", &"0".repeat(32)]).code(3).remarks("no client");
    world.run(&["worktree", "evict", "work", "x"]).code(3).remarks("32 hexadecimal digits");
    assert_eq!(fs::read_to_string(one.at("file")).unwrap(), "x");
}

#[test]
fn a_worktree_is_served_without_a_mount() {
    let world = World::with_snapshot();
    world.run(&["worktree", "create", "work"]).ok();
    let mut server = Command::new(env!("CARGO_BIN_EXE_vellum"))
        .args(["--json", "serve", "work", "--listen", "127.0.0.1:0"])
        .current_dir(world.tree())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let report = serde_json::Deserializer::from_reader(server.stdout.as_mut().unwrap())
        .into_iter::<Value>()
        .next()
        .unwrap()
        .unwrap();
    let address = report["address"].as_str().unwrap();
    let one = Mount::place(&world, "one");
    one.again(&["--shared", "work", "--server", address]).ok().says(&format!("Served by {address}"));
    fs::write(one.at("file"), "kept").unwrap();
    world.run(&["status", "--clients"]).ok().says("work: 1 client");
    one.umount().ok();
    kill(i32::try_from(server.id()).unwrap(), "-TERM");
    assert!(server.wait().unwrap().success());
    let again = Mount::place(&world, "again");
    again.again(&["--worktree", "work"]).ok();
    assert_eq!(fs::read_to_string(again.at("file")).unwrap(), "kept");
}

#[test]
fn what_was_allocated_and_copied_is_synced_when_the_server_was_started_again() {
    let world = World::new();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    one.sh("head -c 100000 /dev/urandom > from; : > allocated; : > copied; sync from allocated copied");
    one.sh("fallocate -l 100000 allocated");
    let copy = "import os
source = os.open('from', os.O_RDONLY)
copied = os.open('copied', os.O_WRONLY)
assert os.copy_file_range(source, copied, 100000) == 100000";
    one.sh(&format!("python3 -c \"{copy}\""));
    kill_server(&cluster);
    cluster.start_server();
    one.sh("sync allocated copied; cmp from copied; [ $(stat -c %s allocated) = 100000 ]");
}

#[test]
fn a_directory_with_a_nameless_file_and_a_file_with_flags_are_synced_when_the_server_was_started_again() {
    let world = World::new();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    one.sh("mkdir dir; echo kept > dir/file; sync dir dir/file");
    let make = "import os
os.write(os.open('dir', os.O_TMPFILE | os.O_RDWR), b'nameless')";
    one.sh(&format!("python3 -c \"{make}\"; lsattr dir/file > ../flags"));
    kill_server(&cluster);
    cluster.start_server();
    one.sh("sync dir; sync dir/file; cat dir/file");
}

#[test]
fn a_client_is_unmounted_although_nobody_serves() {
    let world = World::new();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    let two = cluster.client("two");
    one.sh("echo synced > one; sync one");
    two.sh("echo not synced > two");
    kill_server(&cluster);
    one.umount().ok().remarks("everything that was written here had been synced");
    two.umount().code(1).remarks("no process serves the worktree work").remarks("since the last fsync");
    assert!(!one.is_mounted() && !two.is_mounted());
}

#[test]
fn clients_are_listed_where_a_client_was_mounted_from() {
    let world = World::new();
    let cluster = Cluster::serve(&world);
    let _one = cluster.client("one");
    let list = || world.run_in("../one-state", &["status", "--clients"]);
    list().ok().says("work: 1 client, served by").says("connected");
    kill_server(&cluster);
    wait_until("it is noticed", || list().code != 0);
    list().code(2).remarks("no process serves the worktree 'work'").remarks("--listen");
}

#[test]
fn a_server_of_another_version_is_told_apart() {
    let world = World::with_snapshot();
    let cluster = Cluster::serve(&world);
    let dir = cluster.attach("one");
    let one = Mount::place(&world, "one");
    let newer = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = newer.local_addr().unwrap().to_string();
    let answer = std::thread::spawn(move || {
        let (mut stream, _) = newer.accept().unwrap();
        stream.read_exact(&mut [0; 16]).unwrap();
        // The preface of version 2, which refuses version 1.
        let preface = [&b"vlmshare"[..], &2u16.to_le_bytes(), &1u16.to_le_bytes(), &[0; 4]].concat();
        stream.write_all(&preface).unwrap();
    });
    let words = ["mount", "--shared", "work", "--server", &address, one.path.to_str().unwrap()];
    world
        .run_in(&dir, &words)
        .code(2)
        .remarks("the server speaks version 2 of the protocol, and this program version 1")
        .remarks("use the same version of vellum on both machines");
    answer.join().unwrap();
    // Who takes the address of another program is told so.
    let taken = ["mount", "--shared", "other", "--listen", &cluster.address, one.path.to_str().unwrap()];
    world.run(&taken).code(2).remarks("cannot listen on").remarks("another port");
}

#[test]
fn what_cannot_be_shared_is_refused() {
    let world = World::with_snapshot();
    let cluster = Cluster::serve(&world);
    let one = Mount::place(&world, "one");
    let mount = |args: &[&str]| one.again(args);
    mount(&["--shared", "work"])
        .code(3)
        .remarks("no shared log that says which process serves it")
        .remarks("--server");
    mount(&["--shared", "other", "--server", &cluster.address]).code(2).remarks("no worktree 'other'");
    mount(&["--shared", "work", "--server", "127.0.0.1:1"]).code(2).remarks("cannot be reached");
    mount(&["--shared", "work", "--server", "nowhere"]).code(3).remarks("HOST:PORT");
    for option in [["--trash-days", "3"], ["--disk-cache", "1M"]] {
        let of_server = format!("{} is for the process that serves", option[0]);
        mount(&[&["--shared", "work", "--server", &cluster.address], &option[..]].concat())
            .code(3)
            .remarks(&of_server);
    }
    mount(&["--shared", "fresh", "--listen", "0.0.0.0:0"]).code(3).remarks("the volume has no key");
    mount(&["--listen", "127.0.0.1:0"]).code(3);
    // Another worktree is served there, and another protocol spoken.
    world.run(&["worktree", "create", "second"]).ok();
    mount(&["--shared", "second", "--server", &cluster.address]).code(2).remarks("serves another worktree");
    let web = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = web.local_addr().unwrap().to_string();
    let answer = std::thread::spawn(move || {
        let (mut stream, _) = web.accept().unwrap();
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    mount(&["--shared", "work", "--server", &address]).code(2).remarks("does not speak the protocol");
    answer.join().unwrap();
    // Whoever has no key learns nothing, and disturbs nobody.
    let mut stranger = TcpStream::connect(&cluster.address).unwrap();
    stranger.write_all(&[0; 64]).unwrap();
    assert_eq!(stranger.read(&mut [0; 64]).unwrap_or(0), 0);
    sh(&cluster.server.path, "echo works > file");
}
