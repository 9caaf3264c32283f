//! Mounts of volumes in services that do not answer any more: what is here goes on, what is not fails in time, and the mount can
//! be ended.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use vellum_testkit::{S3Lie, SeaweedServer};

use crate::ending::ServiceMount;
use crate::hydrate::{LazyMount, noise};
use crate::mounting::{kill, wait_until};
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

/// Fills the write log of a mount, with a service that does not answer, and a program that writes; then calls `check`, after
/// which the mount must have ended.
fn with_full_log(check: impl FnOnce(&ServiceMount, &SeaweedServer)) {
    let world = world_with_credentials();
    let server = SeaweedServer::start(&world.path("seaweed"));
    let mount = ServiceMount::new(world, &server.store_url("full"), &["--log-limit", "8M"]);
    server.signal(Signal::STOP).unwrap();
    let content = noise(9, 24 << 20);
    std::thread::scope(|scope| {
        let path = mount.mountpoint.join("large");
        let written = content.clone();
        let writing = scope.spawn(move || fs::write(path, written));
        let waiting = || {
            let stats = fs::read_to_string(mount.mountpoint.join(".vellum/stats")).unwrap();
            stats.lines().any(|line| {
                line.strip_prefix("vellum_log_waiting_writers ").is_some_and(|count| count != "0")
            })
        };
        wait_until("a write waits", waiting);
        // It does not for the writes.
        for _ in 0..20 {
            assert_eq!(fs::read_to_string(mount.mountpoint.join("a.txt")).unwrap(), "one\n");
            assert!(fs::read(mount.mountpoint.join(".vellum/mount.json")).is_ok());
            assert!(waiting());
        }
        check(&mount, &server);
        writing.join().unwrap().unwrap();
    });
    server.signal(Signal::CONT).unwrap();
    wait_until("it can be mounted", || mount.run(&["mount"], &[]).code == 0);
    assert!(fs::read(mount.mountpoint.join("large")).unwrap() == content);
    mount.run(&["umount"], &[]).ok();
}

#[test]
fn a_mount_whose_log_is_full_is_ended_by_force() {
    with_full_log(|mount, _| {
        // As long as the program has its file open, the mount is in use.
        wait_until("it is ended", || mount.run(&["umount", "--force"], &[]).code == 1);
        assert!(!mount.is_mounted());
    });
}

#[test]
fn a_mount_whose_log_is_full_is_ended_by_a_signal() {
    with_full_log(|mount, server| {
        let description = fs::read(mount.mountpoint.join(".vellum/mount.json")).unwrap();
        let description: serde_json::Value = serde_json::from_slice(&description).unwrap();
        kill(i32::try_from(description["pid"].as_u64().unwrap()).unwrap(), "-TERM");
        wait_until("it is out of sight", || !mount.is_mounted());
        server.signal(Signal::CONT).unwrap();
    });
}
