//! Content of stores in services on this machine: hydrate, evict, pin, and where content is.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use vellum_testkit::{LyingS3, S3Failure, S3Lie, S3Match};

use crate::mounting::wait_until;
use crate::remote::{every, init, world_with_credentials};
use crate::world::{Ran, World};

/// Bytes that no compressor makes smaller, others for each seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A mount of a volume in a service, with a cache that is empty at first.
pub struct LazyMount {
    pub world: World,
    pub server: LyingS3,
}

impl LazyMount {
    /// A mount of these files.
    fn new(files: &[(&str, Vec<u8>)]) -> Self {
        Self::in_world(world_with_credentials(), files)
    }

    /// A mount of these files in a world whose user has credentials. The cache is its directory `cache`.
    pub fn in_world(world: World, files: &[(&str, Vec<u8>)]) -> Self {
        let lazy = Self { world, server: LyingS3::start().unwrap() };
        init(&lazy.world, &lazy.server.store_url("store")).ok();
        files.iter().for_each(|(name, content)| lazy.world.write(name, content));
        lazy.run_in(&lazy.world.tree(), &["snapshot", "-m", "one"]).ok();
        fs::create_dir(lazy.mountpoint()).unwrap();
        lazy.mount();
        lazy.run(&["evict", "--all"]).ok().says("; 0 B are left");
        lazy
    }

    pub fn mountpoint(&self) -> PathBuf {
        self.world.path("mnt")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.mountpoint().join(name)
    }

    pub fn mount(&self) {
        self.mount_with(&[]);
    }

    pub fn mount_with(&self, options: &[&str]) {
        let mountpoint = self.mountpoint().display().to_string();
        self.run_in(&self.world.tree(), &[&["mount"], options, &[&mountpoint]].concat()).ok();
    }

    pub fn umount(&self) {
        self.run_in(&self.world.tree(), &["umount", &self.mountpoint().display().to_string()]).ok();
    }

    pub fn run_in(&self, dir: &Path, args: &[&str]) -> Ran {
        let mut command = self.world.command_at_home(args);
        command.env("XDG_CACHE_HOME", self.world.path("cache")).current_dir(dir);
        Ran::of(args, command.output().unwrap())
    }

    /// Runs the binary in the mount.
    pub fn run(&self, args: &[&str]) -> Ran {
        self.run_in(&self.mountpoint(), args)
    }

    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.run(&[&["--json"], args].concat()).out).unwrap()
    }

    fn state(&self, name: &str) -> String {
        read_state(&self.path(name))
    }

    /// Requests for packs since the last call.
    pub fn count_gets(&self) -> usize {
        let requests = self.server.take_requests().into_iter();
        requests.filter(|request| request.method == "GET" && request.key.contains("/packs/")).count()
    }

    /// From now on nothing can be read.
    fn refuse_reads(&self) {
        for method in ["GET", "HEAD", "LIST"] {
            self.server.add_lie(every(method), S3Lie::Fail(S3Failure::new(403, "AccessDenied")));
        }
    }
}

impl Drop for LazyMount {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.server.tell_truth();
            self.umount();
        } else {
            // The process ends by itself when the mount is gone.
            let _ = Command::new("umount").arg("-l").arg(self.mountpoint()).output();
        }
    }
}

/// Where the content of a file is.
pub fn read_state(path: &Path) -> String {
    let mut value = [0; 64];
    let len = rustix::fs::getxattr(path, "user.vellum.state", &mut value).unwrap();
    String::from_utf8_lossy(&value[..len]).into_owned()
}

#[test]
fn content_comes_and_goes_as_asked() {
    let big = noise(1, 700_000);
    let lazy = LazyMount::new(&[
        ("dir/big", big.clone()),
        ("dir/other", noise(2, 400_000)),
        ("small.txt", b"small\n".to_vec()),
    ]);
    assert_eq!(lazy.state("dir/big"), "remote");
    assert_eq!(lazy.state("small.txt"), "here");
    lazy.run(&["ls", "HEAD", "dir", "--state"]).ok().says("remote      big");
    let done = lazy.json(&["hydrate", "dir"]);
    assert_eq!(done["files"], 2);
    assert!(done["fetched"].as_u64().unwrap() > 1_100_000, "{done}");
    assert_eq!(lazy.state("dir/big"), "here");
    let _ = lazy.count_gets();
    assert!(fs::read(lazy.path("dir/big")).unwrap() == big);
    assert!(fs::read(lazy.path("dir/other")).unwrap() == noise(2, 400_000));
    assert_eq!(lazy.count_gets(), 0, "what is here is not fetched");
    lazy.run(&["hydrate", "dir"]).ok().says("of which 0 B were fetched");
    lazy.run(&["status"]).remarks("On this machine: ");
    lazy.run(&["ls", "HEAD", "--state", "-R", "-l"]).ok().says("here");

    lazy.run(&["evict", "dir/big"]).ok().says("the content of 1 file");
    assert_eq!(lazy.state("dir/big"), "remote");
    assert!(lazy.state("dir/other").starts_with("partly ") || lazy.state("dir/other") == "here");
    // The content comes again when it is read.
    lazy.umount();
    lazy.mount();
    assert!(fs::read(lazy.path("dir/big")).unwrap() == big);
    assert_eq!(lazy.state("dir/big"), "here");
    lazy.run(&["evict", "--older", "1h"]).ok().says("Removed 0 B");
    lazy.run(&["evict", "--to", "1K"]).ok();
    assert_eq!(lazy.state("dir/other"), "remote");
    // Nobody sets what is only said.
    let set = |path: &Path| {
        rustix::fs::setxattr(path, "user.vellum.state", b"here", rustix::fs::XattrFlags::empty())
    };
    assert_eq!(set(&lazy.path("dir/big")), Err(rustix::io::Errno::PERM));
    lazy.run(&["hydrate", "nowhere"]).code(2).remarks("nowhere");
    lazy.run(&["evict"]).code(3);
}

#[test]
fn content_that_is_here_is_read_without_the_store() {
    // The second is stored as a difference to the first.
    let base = noise(3, 300_000);
    let mut edited = base.clone();
    edited[150_000..150_010].copy_from_slice(b"0123456789");
    let lazy = LazyMount::new(&[
        ("a/base", base),
        ("b/edited", edited.clone()),
        ("b/link-like", b"x".repeat(70_000)),
        ("c/absent", noise(4, 500_000)),
    ]);
    lazy.run(&["hydrate", "b"]).ok();
    lazy.umount();
    lazy.mount();
    lazy.run(&["hydrate", ".", "--metadata-only"]).ok().says("Names and attributes of 4 files");
    lazy.refuse_reads();
    assert!(fs::read(lazy.path("b/edited")).unwrap() == edited);
    assert_eq!(fs::read(lazy.path("b/link-like")).unwrap(), b"x".repeat(70_000));
    assert_eq!(lazy.state("b/edited"), "here");
    // Names are here, and this content is not: it is neither zeros nor short.
    assert_eq!(fs::metadata(lazy.path("c/absent")).unwrap().len(), 500_000);
    let error = fs::read(lazy.path("c/absent")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    lazy.run(&["hydrate", "c"]).code(2);
}

#[test]
fn what_is_open_pinned_or_unpublished_stays_and_is_named() {
    let lazy = LazyMount::new(&[
        ("open", noise(5, 600_000)),
        ("pinned", noise(6, 600_000)),
        // Long enough for pieces of its own, wherever between the others it is stored.
        ("other", noise(7, 4_000_000)),
    ]);
    lazy.run(&["pin", "pinned", "--name", "mine"]).ok().says("Pinned 'mine': 1 file");
    lazy.run(&["hydrate", "."]).ok();
    let open = fs::File::open(lazy.path("open")).unwrap();
    lazy.server.add_lie(every("PUT"), S3Lie::Fail(S3Failure::new(403, "AccessDenied")));
    fs::write(lazy.path("new"), noise(8, 600_000)).unwrap();
    assert_eq!(lazy.state("new"), "unpublished");
    let ran = lazy.run(&["evict", "."]).code(1).says("the content of 1 file");
    ran.remarks("open: it is open")
        .remarks("pinned: it is pinned")
        .remarks("new: it is not in the store yet");
    // It may end in a piece that is pinned for its neighbour.
    assert!(lazy.state("other") == "remote" || lazy.state("other").starts_with("partly "));
    assert_eq!(lazy.state("pinned"), "pinned");
    drop(open);
    lazy.run(&["hydrate", "."]).ok();
    lazy.run(&["pin", "new"]).code(1).remarks("it is not in the store yet");
    lazy.run(&["unpin", "new"]).ok().says("Removed the pin 'mnt/new'");
    assert_eq!(fs::read(lazy.path("new")).unwrap().len(), 600_000);
    lazy.server.tell_truth();
}

/// Maps a file, closes it, and compares each byte of the mapping when it is told to.
const MAPPING: &str = r#"
import mmap, sys
with open(sys.argv[1], "rb") as file:
    mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
print("mapped", flush=True)
sys.stdin.readline()
sys.stdout.buffer.write(mapping[:])
"#;

#[test]
fn what_is_mapped_stays_though_it_is_closed() {
    let content = noise(16, 600_000);
    let lazy = LazyMount::new(&[("mapped", content.clone()), ("other", noise(17, 600_000))]);
    lazy.run(&["hydrate", "."]).ok();
    let mut python = Command::new("python3");
    python.args(["-c", MAPPING]).arg(lazy.path("mapped")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = python.spawn().unwrap();
    let mut output = program.stdout.take().unwrap();
    let mut mapped = [0; "mapped\n".len()];
    output.read_exact(&mut mapped).unwrap();
    let ran = lazy.run(&["evict", "."]).code(1).says("the content of 1 file");
    ran.remarks("mapped: it is open");
    assert_eq!(lazy.state("mapped"), "here");
    lazy.refuse_reads();
    program.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut found = Vec::new();
    output.read_to_end(&mut found).unwrap();
    assert!(program.wait().unwrap().success() && found == content);
    lazy.server.tell_truth();
    wait_until("the mapping is gone", || lazy.run(&["evict", "mapped"]).code == 0);
    assert_eq!(lazy.state("mapped"), "remote");
}

#[test]
fn pins_keep_content_here_and_are_refused_if_they_do_not_fit() {
    let lazy = LazyMount::new(&[("a/x", noise(9, 900_000)), ("b/y", noise(10, 3_000_000))]);
    lazy.run(&["pins"]).ok().remarks("nothing is pinned");
    lazy.run(&["pin", "a"]).ok().says("Pinned 'mnt/a'");
    assert_eq!(lazy.state("a/x"), "pinned");
    lazy.run(&["evict", "--all"]).ok();
    assert_eq!(lazy.state("a/x"), "pinned");
    lazy.run(&["cache", "--clear"]).ok().says("are pinned");
    lazy.run(&["cache", "--set-size", "1K"]).code(3).remarks("'vellum unpin --all' removes all pins");
    lazy.run(&["cache", "--set-size", "3M"]).ok();
    lazy.run(&["pin", "b"])
        .code(2)
        .remarks("may hold 3145728 bytes")
        .remarks("'vellum cache --set-size SIZE'");
    lazy.run(&["hydrate", "b"]).code(2).remarks("may hold");
    // Reading goes on, and pushes nothing out that is pinned.
    assert!(fs::read(lazy.path("b/y")).unwrap() == noise(10, 3_000_000));
    assert_eq!(lazy.state("a/x"), "pinned");
    let pins = lazy.json(&["pins"]);
    assert_eq!(pins["pins"][0]["name"], "mnt/a");
    assert_eq!(pins["pins"][0]["missing"], 0);
    assert_eq!(pins["pins"].as_array().unwrap().len(), 1);
    lazy.run(&["unpin", "nothing"]).code(3).remarks("'vellum pins' lists the pins");
    lazy.run(&["unpin", "a"]).ok();
    lazy.run(&["evict", "--all"]).ok();
    assert_eq!(lazy.state("a/x"), "remote");
    // Of a snapshot, from a checked-out directory.
    let run = |args: &[&str]| lazy.run_in(&lazy.world.tree(), args);
    run(&["hydrate", "a", "--from", "HEAD"]).ok().says("of 1 file");
    assert_eq!(lazy.state("a/x"), "here");
    run(&["pin", "a", "--from", "HEAD", "--name", "kept"]).ok();
    assert_eq!(lazy.state("a/x"), "pinned");
    run(&["evict", "a", "--from", "HEAD"]).code(1).remarks("it is pinned");
    run(&["unpin", "--all"]).ok();
    run(&["evict", "a", "--from", "HEAD"]).ok();
    assert_eq!(lazy.state("a/x"), "remote");
    run(&["hydrate", "a"]).ok().says("Nothing was absent there");
    run(&["pin", "a"]).code(3).remarks("--from SNAP");
}

#[test]
fn an_interrupted_hydration_goes_on_where_it_was() {
    let lazy = LazyMount::new(&[("big", noise(11, 40_000_000))]);
    // Of three answers, at least one has much content: the last pieces of a pack are few, and a node may be read.
    let requests = S3Match { method: "GET", key: "store/packs/".into(), skip: 3, times: u32::MAX };
    lazy.server.add_lie(requests, S3Lie::Fail(S3Failure::new(403, "AccessDenied")));
    let error = lazy.run(&["hydrate", "big"]).code(2);
    assert!(error.err.contains("AccessDenied") || error.err.contains("denied"), "{}", error.err);
    let state = lazy.state("big");
    assert!(state.starts_with("partly "), "{state}");
    lazy.server.tell_truth();
    let done = lazy.json(&["hydrate", "big"]);
    let (bytes, fetched) = (done["bytes"].as_u64().unwrap(), done["fetched"].as_u64().unwrap());
    assert!(bytes >= 40_000_000 && fetched < bytes - 4_000_000, "{done}");
    assert_eq!(lazy.state("big"), "here");
    let gets = lazy.count_gets();
    assert!(gets <= 20, "{gets} requests in all");
}

#[test]
fn the_figures_of_a_mount_show_its_cache_and_what_is_hydrated() {
    let lazy = LazyMount::new(&[("big", noise(11, 40_000_000)), ("small", noise(12, 300_000))]);
    let mountpoint = lazy.mountpoint().display().to_string();
    let read_figures = || lazy.json(&["stats", &mountpoint, "--interval", "0.05", "--count", "1"]);
    let number = |value: &serde_json::Value| value.as_u64().unwrap_or_else(|| panic!("{value}"));
    lazy.run(&["pin", "small"]).ok();
    let figures = read_figures();
    let cache = &figures["disk_cache"];
    assert!(number(&cache["pinned"]) >= 300_000 && number(&cache["limit"]) > 1 << 20, "{figures}");
    assert!(number(&cache["bytes"]) < 4_000_000, "{figures}");
    assert_eq!(figures["hydration"], serde_json::Value::Null);
    // The server is busy after two requests, so that the hydration stays under way.
    let requests = S3Match { method: "GET", key: "store/packs/".into(), skip: 2, times: u32::MAX };
    lazy.server.add_lie(requests, S3Lie::Fail(S3Failure::new(503, "SlowDown")));
    std::thread::scope(|scope| {
        let hydrating = scope.spawn(|| lazy.run(&["hydrate", "big"]));
        let hydration = loop {
            let figures = read_figures();
            if figures["hydration"] != serde_json::Value::Null {
                break figures["hydration"].clone();
            }
        };
        assert!(number(&hydration["fetched"]) < number(&hydration["wanted"]), "{hydration}");
        assert!(number(&hydration["wanted"]) >= 30_000_000, "{hydration}");
        lazy.server.tell_truth();
        hydrating.join().unwrap().ok();
    });
    let figures = read_figures();
    assert_eq!(figures["hydration"], serde_json::Value::Null);
    assert!(number(&figures["disk_cache"]["bytes"]) >= 40_000_000, "{figures}");
}

#[test]
fn in_a_store_on_this_machine_everything_is_here() {
    let world = World::with_snapshot();
    let mountpoint = world.path("mnt");
    fs::create_dir(&mountpoint).unwrap();
    let shown = mountpoint.display().to_string();
    world.write("big", noise(12, 200_000));
    world.run(&["snapshot"]).ok();
    world.run(&["mount", &shown]).ok();
    let run = |args: &[&str]| crate::world::run(&mountpoint, args, std::process::Stdio::null());
    assert_eq!(read_state(&mountpoint.join("big")), "here");
    run(&["hydrate", "."]).ok().remarks("everything is here");
    run(&["pin", "big"]).ok().remarks("nothing is pinned");
    run(&["evict", "--all"]).ok().remarks("needs no cache");
    run(&["pins"]).ok();
    run(&["ls", "HEAD", "--state"]).ok().says("here        big");
    let listed: serde_json::Value =
        serde_json::from_str(&run(&["--json", "ls", "HEAD", "--state"]).out).unwrap();
    assert_eq!(listed["entries"][1]["state"], "here");
    fs::write(mountpoint.join("new"), noise(13, 200_000)).unwrap();
    run(&["flush"]).ok();
    assert_eq!(read_state(&mountpoint.join("new")), "here");
    world.run(&["umount", &shown]).ok();
}

#[test]
fn offline_by_choice_what_is_here_is_read_and_the_rest_fails_at_once() {
    let here = noise(14, 300_000);
    let lazy = LazyMount::new(&[("here", here.clone()), ("there", noise(15, 800_000))]);
    lazy.run(&["hydrate", "."]).ok();
    lazy.run(&["evict", "there"]).ok();
    lazy.run(&["hydrate", "here"]).ok();
    lazy.umount();
    lazy.mount();
    lazy.run(&["hydrate", ".", "--metadata-only"]).ok();
    lazy.run(&["offline"]).ok().remarks("online");
    lazy.run(&["offline", "on"]).ok().remarks("offline: no requests");
    assert_eq!(lazy.json(&["offline"])["offline"], true);
    let _ = lazy.server.take_requests();
    let begun = Instant::now();
    assert!(fs::read(lazy.path("here")).unwrap() == here);
    assert_eq!(fs::read(lazy.path("there")).unwrap_err().raw_os_error(), Some(5));
    // What is written is acknowledged.
    fs::write(lazy.path("new"), noise(16, 200_000)).unwrap();
    fs::File::open(lazy.path("new")).unwrap().sync_all().unwrap();
    lazy.run(&["snapshot", "-m", "offline"]).ok();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(lazy.state("new"), "unpublished");
    lazy.run(&["status"]).remarks("offline: no requests are sent");
    lazy.run(&["hydrate", "there"]).code(2).remarks("'vellum offline off'");
    // Neither did any other process ask.
    lazy.run_in(&lazy.world.tree(), &["history"]).code(2).remarks("requests are switched off");
    assert_eq!(lazy.server.take_requests().len(), 0);
    lazy.run(&["offline", "off"]).ok().remarks("online");
    lazy.run(&["flush"]).ok();
    assert_eq!(lazy.state("new"), "here");
    assert!(fs::read(lazy.path("there")).unwrap() == noise(15, 800_000));
    let local = World::with_snapshot();
    local.run(&["offline", "on"]).code(3).remarks("the store is a directory");
}

#[test]
fn a_clone_is_mounted_with_its_names_and_without_its_content() {
    let world = world_with_credentials();
    let server = LyingS3::start().unwrap();
    let url = server.store_url("store");
    init(&world, &url).ok();
    for number in 0..30 {
        world.write(&format!("dir-{}/file-{number}", number % 3), noise(100 + number, 50_000));
    }
    world.run_at_home(&["snapshot", "-m", "one"]).ok();
    let dir = world.path("lazy");
    let shown = dir.display().to_string();
    let run = |args: &[&str]| {
        let mut command = world.command_at_home(args);
        command.env("XDG_CACHE_HOME", world.path("cache")).current_dir(world.path(""));
        Ran::of(args, command.output().unwrap())
    };
    let _ = server.take_requests();
    let clone = ["clone", &url, &shown, "--mount", "--plain", "--credentials", "test"];
    run(&clone).ok().says("Mounted the worktree lazy");
    let log = dir.with_file_name("lazy.vellum").join(".vellum/live/lazy/daemon.log");
    let begun = Instant::now();
    while !fs::read_to_string(&log).unwrap().contains("the names of 30 files are here") {
        assert!(begun.elapsed() < Duration::from_secs(30), "{}", fs::read_to_string(&log).unwrap());
        std::thread::sleep(Duration::from_millis(20));
    }
    let packs = |requests: Vec<vellum_testkit::S3Request>| {
        requests.iter().filter(|request| request.method == "GET" && request.key.contains("/packs/")).count()
    };
    let gets = packs(server.take_requests());
    assert!(gets <= 4, "{gets} requests for all names");
    // Names need no request any more, content does.
    let count =
        (0..3).map(|number| fs::read_dir(dir.join(format!("dir-{number}"))).unwrap().count()).sum::<usize>();
    assert_eq!(count, 30);
    assert_eq!(packs(server.take_requests()), 0);
    assert_eq!(read_state(&dir.join("dir-1/file-1")), "remote");
    assert!(fs::read(dir.join("dir-1/file-1")).unwrap() == noise(101, 50_000));
    assert!(packs(server.take_requests()) > 0);
    fs::write(dir.join("new"), "new\n").unwrap();
    run(&["-C", &shown, "snapshot", "-m", "two"]).ok();
    run(&clone).code(3).remarks("is not empty");
    run(&["umount", &shown]).ok();
    // What was cloned is mounted again, as the refusal says.
    run(&clone).code(3).remarks(&format!("'vellum mount {shown}.vellum {shown}'"));
    run(&["mount", &format!("{shown}.vellum"), &shown]).ok();
    assert_eq!(fs::read_to_string(dir.join("new")).unwrap(), "new\n");
    run(&["umount", &shown]).ok();
    world.run_at_home(&["history", "--all"]).ok().says("two");
    run(&["clone", &url, &shown, "--no-metadata", "--plain"]).code(3);
}
