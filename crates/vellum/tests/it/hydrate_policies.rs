//! `vellum hydrate --policy`: content that is always here, and content that reading does not fetch.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};
use vellum_testkit::SeaweedServer;

use crate::hydrate::{noise, read_state};
use crate::mounting::wait_until;
use crate::remote::{init, world_with_credentials};
use crate::world::{Ran, World, run};

/// A mount of a volume in a service, which looks every second at what is always to be here. Its cache is empty at first.
struct PolicyMount {
    world: World,
    server: SeaweedServer,
    url: String,
}

impl PolicyMount {
    fn new(files: &[(&str, Vec<u8>)]) -> Self {
        let world = world_with_credentials();
        let server = SeaweedServer::start(&world.path("seaweed"));
        let url = server.store_url("policies");
        init(&world, &url).ok();
        files.iter().for_each(|(name, content)| world.write(name, content));
        let mount = Self { world, server, url };
        mount.run_in("tree", &["snapshot", "-m", "one"]).ok();
        fs::create_dir(mount.path("")).unwrap();
        mount.mount().ok();
        mount.run(&["evict", "--all"]).ok();
        mount
    }

    fn path(&self, name: &str) -> PathBuf {
        self.world.path("mnt").join(name)
    }

    fn shown(&self) -> String {
        self.world.path("mnt").display().to_string()
    }

    fn mount(&self) -> Ran {
        self.run_in("tree", &["mount", "--policy-interval", "1", &self.shown()])
    }

    fn umount(&self) {
        self.run_in("tree", &["umount", &self.shown()]).ok();
    }

    /// Runs the binary in a directory of the world, with the cache of the mount.
    fn run_in(&self, dir: &str, args: &[&str]) -> Ran {
        self.run_with_cache("cache", dir, args)
    }

    fn run_with_cache(&self, cache: &str, dir: &str, args: &[&str]) -> Ran {
        let dir = if dir == "tree" { self.world.tree() } else { self.world.path(dir) };
        let mut command = self.world.command_at_home(args);
        Ran::of(
            args,
            command.env("XDG_CACHE_HOME", self.world.path(cache)).current_dir(dir).output().unwrap(),
        )
    }

    /// Runs the binary in the mount.
    fn run(&self, args: &[&str]) -> Ran {
        self.run_in("mnt", args)
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.run(&[&["--json"], args].concat()).ok().out).unwrap()
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, Option<i32>> {
        fs::read(self.path(name)).map_err(|error| error.raw_os_error())
    }

    fn policies_file(&self) -> PathBuf {
        self.world.tree().join(".vellum/live/mnt/hydration-policies.json")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.world.tree().join(".vellum/live/mnt/daemon.log")).unwrap_or_default()
    }

    /// The service answers nobody while `work` is done.
    fn while_stopped(&self, work: impl FnOnce()) {
        self.server.signal(Signal::STOP).unwrap();
        work();
        self.server.signal(Signal::CONT).unwrap();
    }
}

impl Drop for PolicyMount {
    fn drop(&mut self) {
        let _ = self.server.signal(Signal::CONT);
        if std::thread::panicking() {
            // The process ends by itself when the mount is gone.
            let _ = Command::new("umount").arg("-l").arg(self.path("")).output();
        } else {
            self.umount();
        }
    }
}

const DENIED: Result<Vec<u8>, Option<i32>> = Err(Some(13));

#[test]
fn what_is_never_fetched_is_read_once_it_was_hydrated() {
    let mount = PolicyMount::new(&[
        ("far/one", noise(1, 1_500_000)),
        ("far/two", noise(2, 1_500_000)),
        ("free", noise(3, 1_500_000)),
    ]);
    mount.run(&["hydrate", "--policies"]).ok().remarks("no path has a policy");
    mount.run(&["hydrate", "--policy", "never", "far"]).ok().says("The policy of 'far' is never");
    // Without another mount, and as often as it is read.
    for name in ["far/one", "far/two", "far/one"] {
        assert!(mount.read(name) == DENIED, "{name}");
    }
    let line = "content of 'far' that is not on this machine is not fetched";
    assert_eq!(mount.log().matches(line).count(), 1, "{}", mount.log());
    let listed = Command::new("ls").arg("-l").arg(mount.path("far")).output().unwrap();
    assert!(listed.status.success() && String::from_utf8_lossy(&listed.stdout).contains("1500000"));
    mount.run(&["hydrate", "far/one"]).ok();
    assert!(mount.read("far/one") == Ok(noise(1, 1_500_000)));
    assert!(mount.read("far/two") == DENIED);
    // It outlives the mount.
    mount.umount();
    mount.mount().ok();
    assert!(mount.read("far/two") == DENIED);
    assert_eq!(
        mount.json(&["hydrate", "--policies"])["policies"],
        json!([{ "path": "far", "policy": "never", "pin": null }])
    );
    mount.run(&["hydrate", "--policies"]).ok().says("never").says("far");
    assert!(mount.read("free") == Ok(noise(3, 1_500_000)));
    // The policy belongs to the path.
    fs::rename(mount.path("far/two"), mount.path("two")).unwrap();
    assert!(mount.read("two") == Ok(noise(2, 1_500_000)));
    mount.run(&["evict", "two"]).ok();
    fs::rename(mount.path("two"), mount.path("far/two")).unwrap();
    mount.umount();
    mount.mount().ok();
    assert!(mount.read("far/two") == DENIED);
    mount.run(&["hydrate", "--policy", "on-demand", "far"]).ok().says("is on-demand");
    assert!(mount.read("far/two") == Ok(noise(2, 1_500_000)));
    assert_eq!(mount.json(&["hydrate", "--policies"])["policies"], json!([]));
    assert!(!mount.policies_file().exists());
}

#[test]
fn the_longest_path_decides() {
    let mount = PolicyMount::new(&[
        ("near/file", noise(1, 700_000)),
        ("near/far/file", noise(2, 1_500_000)),
        ("off/file", noise(3, 1_500_000)),
        ("off/keep/file", noise(4, 700_000)),
    ]);
    mount.run(&["hydrate", "--policy", "never", "near/far", "off"]).ok();
    assert!(mount.read("off/file") == DENIED);
    let set = mount.json(&["hydrate", "--policy", "always", "near", "off/keep"]);
    assert_eq!((&set["policy"], &set["local"]), (&json!("always"), &json!(false)));
    assert_eq!((&set["paths"][0]["path"], &set["paths"][0]["files"]), (&json!("near"), &json!(1)));
    // A part of it may have come with its neighbour in the store.
    assert!(set["paths"][1]["bytes"].as_u64().unwrap() >= 700_000, "{set}");
    assert_eq!(read_state(&mount.path("near/file")), "pinned");
    mount.run(&["evict", "--all"]).ok();
    mount.while_stopped(|| {
        assert!(mount.read("near/file") == Ok(noise(1, 700_000)));
        assert!(mount.read("off/keep/file") == Ok(noise(4, 700_000)));
        assert!(mount.read("near/far/file") == DENIED);
        assert!(mount.read("off/file") == DENIED);
    });
    let pins = mount.json(&["pins"])["pins"].clone();
    let names: Vec<_> = pins.as_array().unwrap().iter().map(|pin| pin["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["always:mnt/near", "always:mnt/off/keep"]);
    assert_eq!(mount.json(&["hydrate", "--policies"])["policies"][0]["pin"], "always:mnt/near");
    // What is always here in a directory that is not becomes as it again.
    mount.run(&["hydrate", "--policy", "never", "off/keep"]).ok();
    mount.run(&["hydrate", "--policy", "on-demand", "near"]).ok();
    assert_eq!(mount.json(&["pins"])["pins"], json!([]));
    mount.run(&["evict", "--all"]).ok();
    assert_eq!(read_state(&mount.path("near/file")), "remote");
}

#[test]
fn what_is_always_here_stays_fresh() {
    let mount = PolicyMount::new(&[("near/old", noise(1, 700_000)), ("other", noise(2, 700_000))]);
    mount.run(&["hydrate", "--policy", "always", "near"]).ok().says("The policy of 'near' is always: 1 file");
    let theirs = |dir: &str, args: &[&str]| mount.run_with_cache("their-cache", dir, args);
    theirs("", &["clone", &mount.url, "theirs", "--plain", "--credentials", "test", "--name", "theirs"]).ok();
    fs::write(mount.world.path("theirs/near/new"), noise(3, 900_000)).unwrap();
    theirs("theirs", &["snapshot", "-m", "new"]).ok();
    mount.run(&["merge", "theirs"]).ok();
    wait_until("the content of the merge is here", || read_state(&mount.path("near/new")) == "pinned");
    mount.run(&["evict", "--all"]).ok();
    mount.while_stopped(|| {
        assert!(mount.read("near/new") == Ok(noise(3, 900_000)));
        assert!(mount.read("near/old") == Ok(noise(1, 700_000)));
    });
    // What is written here is pinned once it is in the store.
    fs::write(mount.path("near/own"), noise(4, 800_000)).unwrap();
    mount.run(&["flush"]).ok();
    wait_until("the own file is pinned", || read_state(&mount.path("near/own")) == "pinned");
    // What is gone is not pinned, and what comes back is pinned again.
    fs::rename(mount.path("near"), mount.path("away")).unwrap();
    mount.run(&["flush"]).ok();
    let pins = || mount.json(&["pins"])["pins"].as_array().unwrap().len();
    wait_until("the pin is gone", || pins() == 0);
    fs::rename(mount.path("away"), mount.path("near")).unwrap();
    mount.run(&["flush"]).ok();
    wait_until("the pin is there", || pins() == 1);
    // The first look of a mount brings what came while there was none.
    mount.umount();
    mount.run_in("tree", &["evict", "--all"]).ok();
    mount.mount().ok();
    wait_until("all is here", || read_state(&mount.path("near/own")) == "pinned");
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let mount = PolicyMount::new(&[("big", noise(1, 3_000_000))]);
    mount.run(&["hydrate", "--policy", "never", "nowhere"]).code(2).remarks("nowhere");
    mount.run(&["hydrate", "--policy", "always", "nowhere"]).code(2).remarks("nowhere");
    mount.run(&["hydrate", "--policy", "never", "../tree"]).code(3);
    mount.run(&["hydrate", "--policy", "sometimes", "big"]).code(3);
    mount.run(&["hydrate", "--policy", "never"]).code(3);
    mount.run(&["hydrate", "--policies", "big"]).code(3);
    mount.run_in("tree", &["hydrate", "--policy", "never", "big"]).code(3).remarks("not a mounted worktree");
    mount.run(&["cache", "--set-size", "1M"]).ok();
    mount.run(&["hydrate", "--policy", "always", "big"]).code(2).remarks("may hold");
    assert_eq!(mount.json(&["hydrate", "--policies"])["policies"], json!([]));
    assert_eq!(mount.json(&["pins"])["pins"], json!([]));
    mount.run(&["hydrate", "--policy", "never", "."]).ok().says("The policy of '.' is never");
    assert!(mount.read("big") == DENIED);
    mount.umount();
    let kept = fs::read(mount.policies_file()).unwrap();
    fs::write(mount.policies_file(), "{\"version\":1,\"policies\":[{}]}").unwrap();
    mount.mount().code(2).remarks("hydration-policies.json").remarks("to go on without policies");
    fs::write(mount.policies_file(), "{\"version\":2}").unwrap();
    mount.mount().code(2).remarks("hydration-policies.json");
    fs::write(mount.policies_file(), kept).unwrap();
    mount.mount().ok();
    assert!(mount.read("big") == DENIED);
}

#[test]
fn in_a_store_on_this_machine_no_policy_is_needed() {
    let world = World::with_snapshot();
    let mountpoint = world.path("mnt");
    fs::create_dir(&mountpoint).unwrap();
    let shown = mountpoint.display().to_string();
    world.write("file", noise(1, 200_000));
    world.run(&["snapshot"]).ok();
    world.run(&["mount", &shown]).ok();
    let at = |args: &[&str]| run(&mountpoint, args, std::process::Stdio::null());
    for policy in ["always", "never"] {
        at(&["hydrate", "--policy", policy, "file"]).ok().remarks("everything is here, and no policy is set");
    }
    at(&["hydrate", "--policies"]).ok().remarks("no path has a policy");
    assert!(fs::read(mountpoint.join("file")).unwrap() == noise(1, 200_000));
    world.run(&["umount", &shown]).ok();
}
