//! The cache of a store in a service on a disk that hangs: everything is read nevertheless, and soon. The kernel may hold a
//! process that has used such a disk, until the disk answers: commands do not use it.

use std::fs;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::hydrate::{LazyMount, noise};
use crate::mounting::{Mount, hold, kill};
use crate::remote::world_with_credentials;
use crate::world::World;

/// What is waited for a disk that hangs, and much more for a machine that has other things to do.
const SOON: Duration = Duration::from_secs(60);

/// Lets a held process go on after [`SOON`] or when dropped, so that a test that hangs fails.
struct HeldProcess {
    pid: i32,
    begun: Instant,
    _end: mpsc::Sender<()>,
}

impl HeldProcess {
    fn hold(pid: i32) -> Self {
        hold(pid);
        let (end, ended) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            let _ = ended.recv_timeout(SOON);
            kill(pid, "-CONT");
        });
        Self { pid, begun: Instant::now(), _end: end }
    }

    #[track_caller]
    fn let_go(self) {
        assert!(self.begun.elapsed() < SOON, "something waited for the disk");
        kill(self.pid, "-CONT");
    }
}

#[test]
fn a_cache_on_a_disk_that_hangs_holds_nothing_up() {
    let world = world_with_credentials();
    fs::create_dir(world.path("cache")).unwrap();
    // The disk is a mount whose process can be stopped. Without the ring: requests in it cannot be killed.
    let disk_world = World::new();
    let disk = Mount { world: &disk_world, path: world.path("cache") };
    disk.again(&["--no-io-uring"]).ok();
    let files = [("one", noise(1, 700_000)), ("two", noise(2, 9_000_000)), ("three", noise(3, 700_000))];
    let lazy = LazyMount::in_world(world, &files);
    assert!(fs::read(lazy.path("one")).unwrap() == files[0].1);
    let shown = lazy.mountpoint().display().to_string();
    let stats = || lazy.json(&["stats", &shown, "--interval", "0.05", "--count", "1"])["disk_cache"].clone();
    let before = stats();
    assert!(before["bytes"].as_u64().unwrap() > 500_000, "{before}");
    lazy.run(&["cache"]).ok();

    let held = HeldProcess::hold(disk.pid());
    assert!(fs::read(lazy.path("two")).unwrap() == files[1].1);
    assert!(fs::read(lazy.path("one")).unwrap() == files[0].1);
    let during = stats();
    assert_eq!(during["bypassed"], true);
    assert_eq!(during["bytes"], before["bytes"], "the last figures stay");
    for args in [&["cache"][..], &["cache", "--clear"], &["offline", "on"], &["bandwidth", "--upload", "1M"]]
    {
        lazy.run(args).code(2).remarks("the disk does not answer");
    }
    // What the command needs is here, or in the store.
    lazy.run(&["cat", "HEAD", "three"]).ok();
    lazy.run(&["status"]).ok();
    lazy.umount();
    held.let_go();

    lazy.mount();
    lazy.run(&["cache"]).ok();
    assert!(fs::read(lazy.path("three")).unwrap() == files[2].1);
    lazy.umount();
    lazy.run_in(&lazy.world.tree(), &["cache", "--verify"]).ok();
    lazy.mount();
}
