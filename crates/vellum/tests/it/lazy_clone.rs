//! Mounted clones of published stores: content is fetched from a web server when it is read, and what is written goes into
//! a store of the clone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use vellum_testkit::{LyingS3, S3Failure, S3Lie, WebServer};

use crate::hydrate::noise;
use crate::mounting::wait_until;
use crate::published::new_served_world;
use crate::remote::{every, init, world_with_credentials};
use crate::world::{Ran, World, copy_dir};

/// A published volume with two files, and a mounted clone of it with a cache that is empty at first.
struct LazyClone {
    world: World,
    server: LyingS3,
}

impl LazyClone {
    fn new() -> Self {
        let clone = Self { world: world_with_credentials(), server: LyingS3::start().unwrap() };
        init(&clone.world, &clone.server.store_url("store")).ok();
        clone.world.write("a.bin", noise(1, 700_000));
        clone.world.write("dir/b.bin", noise(2, 900_000));
        clone.publish("one");
        let url = clone.web_url();
        let dir = clone.mountpoint().display().to_string();
        let _ = clone.server.take_requests();
        clone.run_in(&clone.world.tree(), &["clone", "--mount", &url, &dir, "--plain"]).ok();
        clone
    }

    /// A snapshot of the worktree that is published, and what is published of it.
    fn publish(&self, note: &str) {
        self.run_in(&self.world.tree(), &["snapshot", "-m", note]).ok();
        self.run_in(&self.world.tree(), &["publish"]).ok();
    }

    /// The store as a web server serves it.
    fn web_url(&self) -> String {
        let url = self.server.store_url("store");
        let (place, query) = url.strip_prefix("s3://").unwrap().split_once('?').unwrap();
        let endpoint = query.split('&').find_map(|part| part.strip_prefix("endpoint=")).unwrap();
        format!("{endpoint}/{place}")
    }

    fn mountpoint(&self) -> PathBuf {
        self.world.path("clone")
    }

    /// The directory beside the mountpoint.
    fn beside(&self) -> PathBuf {
        self.world.path("clone.vellum")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mountpoint().join(name)
    }

    fn run_in(&self, dir: &Path, args: &[&str]) -> Ran {
        let mut command = self.world.command_at_home(args);
        command.env("XDG_CACHE_HOME", self.world.path("cache")).current_dir(dir);
        Ran::of(args, command.output().unwrap())
    }

    /// Runs the binary in the mount.
    fn run(&self, args: &[&str]) -> Ran {
        self.run_in(&self.mountpoint(), args)
    }

    /// Runs the binary in the directory beside the mountpoint.
    fn run_beside(&self, args: &[&str]) -> Ran {
        self.run_in(&self.beside(), args)
    }

    fn umount(&self) {
        self.run_in(&self.world.tree(), &["umount", &self.mountpoint().display().to_string()]).ok();
    }

    fn mount(&self) {
        let dirs = [self.beside(), self.mountpoint()].map(|dir| dir.display().to_string());
        self.run_in(&self.world.tree(), &["mount", &dirs[0], &dirs[1]]).ok();
    }

    fn state(&self, name: &str) -> String {
        let mut value = [0; 64];
        let len = rustix::fs::getxattr(self.path(name), "user.vellum.state", &mut value).unwrap();
        String::from_utf8_lossy(&value[..len]).into_owned()
    }

    /// Bytes of packs that were sent since the last call.
    fn count_pack_requests(&self) -> usize {
        let requests = self.server.take_requests().into_iter();
        requests.filter(|request| request.method == "GET" && request.key.contains("/packs/")).count()
    }

    /// The source is gone: nothing can be read.
    fn refuse_reads(&self) {
        for method in ["GET", "HEAD", "LIST"] {
            self.server.add_lie(every(method), S3Lie::Fail(S3Failure::new(403, "AccessDenied")));
        }
    }

    /// Forgets all snapshots of the published volume but the last one, and collects.
    fn collect_source(&self) {
        let history = self.run_in(&self.world.tree(), &["history", "--json"]).ok().out;
        let history: serde_json::Value = serde_json::from_str(&history).unwrap();
        for entry in history["snapshots"].as_array().unwrap().iter().skip(1) {
            self.run_in(&self.world.tree(), &["forget", entry["id"].as_str().unwrap()]).ok();
        }
        self.run_in(&self.world.tree(), &["gc", "run"]).ok().says("Freed");
    }
}

impl Drop for LazyClone {
    fn drop(&mut self) {
        self.server.tell_truth();
        // The process ends by itself when the mount is gone.
        let _ = Command::new("umount").arg("-l").arg(self.mountpoint()).output();
    }
}

#[test]
fn names_come_at_once_and_content_when_it_is_read() {
    let clone = LazyClone::new();
    assert_eq!(fs::metadata(clone.path("a.bin")).unwrap().len(), 700_000);
    assert_eq!(clone.state("a.bin"), "remote");
    assert_eq!(clone.state("dir/b.bin"), "remote");
    let _ = clone.count_pack_requests();
    assert_eq!(fs::read(clone.path("a.bin")).unwrap(), noise(1, 700_000));
    assert_eq!(clone.state("a.bin"), "here");
    assert!(clone.count_pack_requests() > 0);
    // What is written goes into the clone's own store, and nothing is fetched for it.
    fs::write(clone.path("c.txt"), "three\n").unwrap();
    fs::remove_file(clone.path("dir/b.bin")).unwrap();
    clone.run(&["snapshot", "-m", "mine", "--wait"]).ok();
    assert_eq!(clone.state("c.txt"), "here");
    clone.run(&["history"]).ok().says("mine").says("one");
    clone.run(&["restore", "HEAD~1", "dir/b.bin"]).ok();
    assert_eq!(fs::read(clone.path("dir/b.bin")).unwrap(), noise(2, 900_000));
    // Hydrated content is read without the source, in later processes, too.
    clone.run(&["evict", "--all"]).ok();
    clone.run(&["hydrate", "a.bin"]).ok();
    clone.umount();
    clone.mount();
    // What is not here fails at once while nothing is sent.
    clone.run(&["offline", "on"]).ok();
    assert_eq!(fs::read(clone.path("dir/b.bin")).map(drop).unwrap_err().raw_os_error(), Some(5));
    clone.run(&["offline", "off"]).ok();
    clone.refuse_reads();
    assert_eq!(fs::read(clone.path("a.bin")).unwrap(), noise(1, 700_000));
    assert_eq!(fs::read_to_string(clone.path("c.txt")).unwrap(), "three\n");
    assert!(fs::read(clone.path("dir/b.bin")).is_err(), "never zeros");
    fs::write(clone.path("d.txt"), "four\n").unwrap();
    clone.run(&["snapshot", "-m", "offline", "--wait"]).ok();
    clone.server.tell_truth();
    wait_until("the source is asked again", || {
        fs::read(clone.path("dir/b.bin")).is_ok_and(|content| content == noise(2, 900_000))
    });
    clone.run_beside(&["verify", "--all"]).ok();
    clone.umount();
}

#[test]
fn collections_keep_what_is_here_and_need_nothing_of_the_source() {
    let clone = LazyClone::new();
    for number in 0..4 {
        fs::write(clone.path("mine.bin"), noise(10 + number, 600_000)).unwrap();
        // The same content is in the source: what is written here is stored here all the same.
        fs::write(clone.path("copy.bin"), noise(1, 700_000)).unwrap();
        clone.run(&["snapshot", "-m", "mine", "--wait"]).ok();
    }
    let history = clone.run(&["history", "--json"]).ok().out;
    clone.umount();
    let history: serde_json::Value = serde_json::from_str(&history).unwrap();
    let entries = history["snapshots"].as_array().unwrap();
    assert_eq!(entries.len(), 5);
    for entry in &entries[1..4] {
        clone.run_beside(&["forget", entry["id"].as_str().unwrap()]).ok();
    }
    clone.refuse_reads();
    clone.run_beside(&["gc", "run"]).ok().says("Freed");
    clone.server.tell_truth();
    clone.run_beside(&["verify", "--all"]).ok();
    fs::remove_dir_all(clone.world.path("cache")).unwrap();
    clone.mount();
    clone.refuse_reads();
    assert_eq!(fs::read(clone.path("mine.bin")).unwrap(), noise(13, 600_000));
    assert_eq!(fs::read(clone.path("copy.bin")).unwrap(), noise(1, 700_000));
    clone.umount();
}

#[test]
fn a_pull_brings_new_snapshots_without_their_content() {
    let clone = LazyClone::new();
    clone.run_beside(&["info"]).ok().says("Source").says(&clone.web_url());
    clone.world.write("a.bin", noise(3, 700_000));
    clone.world.write("new.bin", noise(4, 500_000));
    clone.publish("two");
    clone.run(&["status", "--remote"]).ok().remarks("origin: 1 snapshot newer there");
    let _ = clone.count_pack_requests();
    clone.run(&["pull"]).ok().says("Fetched 1 snapshot");
    assert_eq!(clone.count_pack_requests(), 0);
    clone.run(&["status", "--remote"]).ok().remarks("origin: 1 snapshot newer there");
    clone.run(&["diff", "HEAD", "origin/main"]).code(1).says("new.bin");
    clone.run(&["restore", "origin/main"]).ok();
    assert_eq!(clone.state("new.bin"), "remote");
    assert_eq!(fs::read(clone.path("new.bin")).unwrap(), noise(4, 500_000));
    clone.run(&["status", "--remote"]).ok().remarks("origin: nothing new there");
    // Into a directory, too.
    let dir = clone.world.path("files").display().to_string();
    let own = clone.beside().join(".vellum/store").display().to_string();
    clone.run_in(&clone.world.tree(), &["init", &dir, "--store", &own, "--plain"]).ok();
    clone.run_in(&clone.world.path("files"), &["restore", "clone"]).ok();
    assert_eq!(fs::read(clone.world.path("files/a.bin")).unwrap(), noise(3, 700_000));
    let run = |args: &[&str]| clone.run_in(&clone.world.path("files"), args);
    fs::write(clone.world.path("files/mine.txt"), "mine\n").unwrap();
    run(&["snapshot", "-m", "in files"]).ok();
    run(&["verify"]).ok();
    clone.umount();
}

#[test]
fn all_content_can_be_copied_and_the_source_is_needed_no_more() {
    let clone = LazyClone::new();
    clone.world.write("new.bin", noise(4, 500_000));
    clone.publish("two");
    clone.run(&["pull"]).ok();
    fs::write(clone.path("mine.txt"), "mine\n").unwrap();
    clone.run(&["snapshot", "-m", "mine", "--wait"]).ok();
    clone.refuse_reads();
    clone.run(&["evict", "--all"]).ok();
    clone.run(&["pull", "--content"]).code(2).remarks("AccessDenied");
    clone.server.tell_truth();
    clone.run(&["pull", "--content"]).ok().says("all content is here now");
    clone.run(&["pull", "--content"]).code(3).remarks("all content of the volume is in");
    assert!(!clone.run_beside(&["info"]).ok().out.contains("Source"));
    clone.umount();
    fs::remove_dir_all(clone.world.path("cache")).unwrap();
    clone.refuse_reads();
    clone.mount();
    assert_eq!(fs::read(clone.path("a.bin")).unwrap(), noise(1, 700_000));
    assert_eq!(fs::read(clone.path("dir/b.bin")).unwrap(), noise(2, 900_000));
    clone.umount();
    clone.run_beside(&["verify", "--all"]).ok();
    clone.run_beside(&["gc", "run"]).ok();
    clone.run_beside(&["verify", "--all"]).ok();
    let whole = clone.world.path("whole").display().to_string();
    clone.run_beside(&["export", "origin/main", "--to", &whole]).ok();
    assert_eq!(fs::read(clone.world.path("whole/new.bin")).unwrap(), noise(4, 500_000));
}

#[test]
fn a_push_to_another_store_sends_what_only_the_source_has() {
    let clone = LazyClone::new();
    fs::write(clone.path("mine.txt"), "mine\n").unwrap();
    clone.run(&["snapshot", "-m", "mine", "--wait"]).ok();
    let backup = clone.world.path("backup").display().to_string();
    clone.run(&["remote", "add", "backup", &backup]).ok();
    clone.run(&["push", "backup", "--all"]).ok();
    // Nothing is taken by the web server.
    clone.run(&["push", "origin", "--all"]).code(2).remarks("read only");
    clone.umount();
    clone.refuse_reads();
    let copy = clone.world.path("copy").display().to_string();
    clone.run_in(&clone.world.tree(), &["clone", &backup, &copy, "--plain", "--from", "clone"]).ok();
    assert_eq!(fs::read(clone.world.path("copy/a.bin")).unwrap(), noise(1, 700_000));
    assert_eq!(fs::read_to_string(clone.world.path("copy/mine.txt")).unwrap(), "mine\n");
    clone.run_in(&clone.world.path("copy"), &["verify", "--all"]).ok();
}

#[test]
fn a_store_that_is_not_whole_is_not_read_from_elsewhere() {
    let clone = LazyClone::new();
    clone.umount();
    let own = clone.beside().join(".vellum/store");
    clone.run_beside(&["publish"]).ok();
    let web = WebServer::start(&own);
    let other = clone.world.path("other").display().to_string();
    let failed = clone.run_in(&clone.world.tree(), &["clone", &web.store_url(""), &other, "--plain"]).code(3);
    failed.remarks("does not have all content").remarks("vellum pull --content");
    assert!(!clone.world.path("other").exists());
    // A copy of the directory reads the rest from the source.
    let moved = clone.world.path("moved");
    copy_dir(&own, &moved);
    let moved = moved.display().to_string();
    clone.run_in(&clone.world.tree(), &["clone", &moved, &other, "--plain", "--from", "clone"]).ok();
    assert_eq!(fs::read(clone.world.path("other/a.bin")).unwrap(), noise(1, 700_000));
}

#[test]
fn what_the_source_has_lost_is_named_and_what_is_here_stays() {
    let clone = LazyClone::new();
    fs::write(clone.path("mine.txt"), "mine\n").unwrap();
    clone.run(&["snapshot", "-m", "mine", "--wait"]).ok();
    clone.run(&["evict", "--all"]).ok();
    clone.umount();
    clone.world.remove("dir/b.bin");
    clone.publish("without");
    clone.collect_source();
    clone.run_in(&clone.world.tree(), &["publish"]).ok();
    clone.mount();
    assert_eq!(fs::read_to_string(clone.path("mine.txt")).unwrap(), "mine\n");
    assert!(fs::read(clone.path("dir/b.bin")).is_err());
    // It is in another pack by now.
    assert_eq!(fs::read(clone.path("a.bin")).unwrap(), noise(1, 700_000));
    // Nothing is collected here that something may need.
    clone.run(&["verify"]).code(1);
    clone.run(&["cat", "HEAD", "dir/b.bin"]).code(2).remarks("from which its content is fetched");
    clone.run_beside(&["gc", "run"]).code(2);
    fs::remove_file(clone.path("dir/b.bin")).unwrap();
    clone.run(&["snapshot", "-m", "gone", "--wait"]).ok();
    clone.umount();
}

#[test]
fn a_source_that_was_rolled_back_is_told() {
    let clone = LazyClone::new();
    let listings = ["store/listing", "store/listing-packs"];
    let old = listings.map(|key| clone.server.read_object(key).unwrap());
    clone.world.write("new.bin", noise(4, 500_000));
    clone.publish("two");
    clone.run(&["pull"]).ok().says("Fetched 1 snapshot");
    for (key, bytes) in listings.iter().zip(&old) {
        clone.server.overwrite_object(key, bytes);
    }
    clone.run(&["pull"]).code(2).remarks("rolled back");
    assert_eq!(fs::read(clone.path("a.bin")).unwrap(), noise(1, 700_000));
    clone.umount();
}

#[test]
fn a_source_that_became_another_volume_is_refused() {
    let clone = LazyClone::new();
    clone.umount();
    fs::remove_dir_all(clone.world.path("cache")).unwrap();
    // Another volume at the same address: all objects that can be read are those of that one.
    let other = World::empty();
    let store = other.path("store").display().to_string();
    other.run_at_home(&["init", "--plain", "--name", "main", "--store", &store]).ok();
    other.write("a.bin", "other\n");
    other.run_at_home(&["snapshot"]).ok();
    other.run_at_home(&["publish"]).ok();
    for key in ["config", "listing", "listing-packs"] {
        let bytes = fs::read(other.path("store").join(key)).unwrap();
        clone.server.overwrite_object(&format!("store/{key}"), &bytes);
    }
    clone.run_beside(&["pull"]).code(3).remarks("it holds another volume");
}

#[test]
fn a_clone_of_an_encrypted_volume_opens_with_its_secret_alone() {
    let world = new_served_world();
    fs::write(world.path("wrong"), "wrong").unwrap();
    world.write("a.bin", noise(5, 300_000));
    world.run_at_home(&["snapshot", "-m", "one"]).ok();
    world.run_at_home(&["publish"]).ok();
    let server = WebServer::start(&world.path("served"));
    let url = server.store_url("photos");
    let dir = world.path("clone");
    let shown = dir.display().to_string();
    let clone = |secret: &str| {
        let secret = world.path(secret).display().to_string();
        world.run_at_home(&["clone", "--mount", &url, &shown, "--passphrase-file", &secret])
    };
    clone("wrong").code(2);
    assert!(!dir.exists() && !world.path("clone.vellum").exists(), "nothing is left of a clone that failed");
    clone("code").ok();
    assert_eq!(fs::read(dir.join("a.bin")).unwrap(), noise(5, 300_000));
    fs::write(dir.join("b.txt"), "mine\n").unwrap();
    let run = |args: &[&str]| Ran::of(args, world.command_at_home(args).current_dir(&dir).output().unwrap());
    run(&["snapshot", "-m", "mine", "--wait"]).ok();
    run(&["verify"]).ok();
    // The key of the published store is changed: what is sealed with the new one is read, too.
    world.run_at_home(&["device", "rotate"]).ok();
    world.write("c.bin", noise(6, 300_000));
    world.run_at_home(&["snapshot", "-m", "two"]).ok();
    world.run_at_home(&["publish"]).ok();
    run(&["pull"]).ok().says("Fetched 1 snapshot");
    run(&["restore", "origin/main"]).ok();
    assert_eq!(fs::read(dir.join("c.bin")).unwrap(), noise(6, 300_000));
    run(&["pull", "--content"]).ok();
    world.run_at_home(&["umount", &shown]).ok();
}

#[test]
fn a_source_that_moved_is_read_from_its_new_place() {
    let world = new_served_world();
    world.write("a.bin", noise(5, 300_000));
    world.run_at_home(&["snapshot", "-m", "one"]).ok();
    world.run_at_home(&["publish"]).ok();
    let dir = world.path("clone").display().to_string();
    let beside = world.path("clone.vellum");
    let run =
        |args: &[&str]| Ran::of(args, world.command_at_home(args).current_dir(&beside).output().unwrap());
    let old = WebServer::start(&world.path("served"));
    let secret = world.path("code").display().to_string();
    let url = old.store_url("photos");
    world.run_at_home(&["clone", "--mount", &url, &dir, "--passphrase-file", &secret]).ok();
    world.run_at_home(&["umount", &dir]).ok();
    drop(old);
    world.write("b.bin", noise(6, 300_000));
    world.run_at_home(&["snapshot", "-m", "two"]).ok();
    world.run_at_home(&["publish"]).ok();
    run(&["--retry-for", "1s", "pull"]).code(2).remarks("Connection refused");
    let relocate = |source: &str| run(&["worktree", "relocate", "--source", source]);
    let other = World::with_snapshot();
    relocate(&other.tree().join(".vellum/store").display().to_string()).code(3).remarks("another volume");
    fs::create_dir(world.path("empty")).unwrap();
    relocate(world.path("empty").to_str().unwrap()).code(2).remarks("no volume");
    let new = WebServer::start(&world.path("served"));
    let url = new.store_url("photos");
    relocate(&url).ok().says(&url);
    run(&["pull"]).ok().says("Fetched 1 snapshot");
    run(&["mount", &dir]).ok();
    assert_eq!(fs::read(world.path("clone/a.bin")).unwrap(), noise(5, 300_000));
    world.run_at_home(&["umount", &dir]).ok();
    run(&["pull", "--content"]).ok();
    // All is here now: there is no source that could be elsewhere.
    relocate(&url).code(3).remarks("all content");
}
