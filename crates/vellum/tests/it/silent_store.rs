//! Mounts of volumes in services that do not answer any more: what is here goes on, and what is not fails in time.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use vellum_testkit::S3Lie;

use crate::hydrate::{LazyMount, noise};
use crate::mounting::wait_until;
use crate::remote::{every, world_with_credentials};

/// For how long nothing is sent after the service did not answer.
const BREAK: Duration = Duration::from_secs(5);

/// A service stops in the middle of a read, of which a mount with these options gives up after `budget`.
fn read_without_the_service(options: &[&str], budget: Duration) {
    let here = noise(1, 300_000);
    let files = [("here", here.clone()), ("there", noise(2, 800_000)), ("other", noise(3, 800_000))];
    let lazy = LazyMount::in_world(world_with_credentials(), &files);
    lazy.run(&["hydrate", "here"]).ok();
    lazy.umount();
    lazy.mount_with(options);
    lazy.run(&["hydrate", ".", "--metadata-only"]).ok();
    for method in ["GET", "HEAD", "LIST", "PUT"] {
        lazy.server.add_lie(every(method), S3Lie::Hang);
    }
    let is_eio = |read: io::Result<Vec<u8>>| assert_eq!(read.unwrap_err().raw_os_error(), Some(5));
    std::thread::scope(|scope| {
        let begun = Instant::now();
        let reading = scope.spawn(|| fs::read(lazy.path("there")));
        let mut reads = 0;
        while !reading.is_finished() {
            assert!(fs::read(lazy.path("here")).unwrap() == here);
            assert_eq!(fs::metadata(lazy.path("other")).unwrap().len(), 800_000);
            reads += 1;
            std::thread::sleep(Duration::from_millis(100));
        }
        let took = begun.elapsed();
        is_eio(reading.join().unwrap());
        assert!(took >= budget, "{took:?}");
        assert!(reads >= 10, "it was read {reads} times in {took:?}");
    });
    // The service is not asked for a while.
    let _ = lazy.server.take_requests();
    let begun = Instant::now();
    is_eio(fs::read(lazy.path("other")));
    let asked = lazy.server.take_requests().len();
    assert!(asked == 0 || begun.elapsed() >= BREAK, "{asked} requests");
    let mut logs = fs::read_dir(lazy.world.tree().join(".vellum/live")).unwrap();
    let log = fs::read_to_string(logs.next().unwrap().unwrap().path().join("daemon.log")).unwrap();
    let told: Vec<_> = log.lines().filter(|line| line.contains(": ") && line.contains("other")).collect();
    assert!(!told.is_empty(), "{log}");
    lazy.server.tell_truth();
    wait_until("it answers again", || fs::read(lazy.path("there")).is_ok_and(|read| read == files[1].1));
    assert!(fs::read(lazy.path("other")).unwrap() == files[2].1);
}

#[test]
fn what_is_here_is_read_while_a_read_waits_for_a_silent_service() {
    read_without_the_service(&["--retry-for", "4s"], Duration::from_secs(4));
}

#[test]
#[ignore = "soak: it waits for a minute, as mounts do"]
fn a_read_waits_a_minute_for_a_silent_service() {
    read_without_the_service(&[], Duration::from_secs(60));
}
