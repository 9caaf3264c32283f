//! Mounts of volumes in services: what is published when, and how they end if the service does not answer.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use vellum_testkit::{LyingS3, S3Failure, S3Lie, SeaweedServer};

use crate::mounting::wait_until;
use crate::remote::{every, init, world_with_credentials};
use crate::world::{Ran, World, noise};

/// A mount of a volume in a service.
struct ServiceMount {
    world: World,
    mountpoint: PathBuf,
}

impl ServiceMount {
    /// A volume at an address with one snapshot of `a.txt`, mounted with more options.
    fn new(world: World, url: &str, options: &[&str]) -> Self {
        init(&world, url).ok();
        world.write("a.txt", "one\n");
        world.run_at_home(&["snapshot", "-m", "one"]).ok();
        let mountpoint = world.path("mnt");
        fs::create_dir(&mountpoint).unwrap();
        let mount = Self { world, mountpoint };
        mount.run(&["mount"], options).ok();
        mount
    }

    /// Runs a command of the mountpoint, with its path as the last word.
    fn run(&self, command: &[&str], options: &[&str]) -> Ran {
        let shown = self.mountpoint.display().to_string();
        self.world.run_at_home(&[command, options, &[&shown]].concat())
    }

    fn run_inside(&self, args: &[&str]) -> Ran {
        let mut command = self.world.command_at_home(args);
        Ran::of(args, command.current_dir(&self.mountpoint).output().unwrap())
    }

    fn daemon_log(&self) -> String {
        let worktree = self.world.tree().join(".vellum/live");
        let mut dirs = fs::read_dir(worktree).unwrap().map(|dir| dir.unwrap().path().join("daemon.log"));
        fs::read_to_string(dirs.find(|log| log.exists()).unwrap()).unwrap()
    }

    fn is_mounted(&self) -> bool {
        fs::read_to_string("/proc/mounts").unwrap().contains(&self.mountpoint.display().to_string())
    }
}

impl Drop for ServiceMount {
    fn drop(&mut self) {
        if self.is_mounted() {
            self.run(&["umount", "--force"], &[]);
        }
    }
}

/// Puts of packs since the last call.
fn count_packs(server: &LyingS3) -> usize {
    let requests = server.take_requests().into_iter();
    requests.filter(|request| request.method == "PUT" && request.key.contains("/packs/")).count()
}

#[test]
fn much_data_is_published_to_a_service_at_once_and_little_when_it_is_asked_for() {
    let server = LyingS3::start().unwrap();
    let mount = ServiceMount::new(world_with_credentials(), &server.store_url("store"), &[]);
    let _ = count_packs(&server);
    fs::write(mount.mountpoint.join("small"), "small").unwrap();
    mount.run_inside(&["flush"]).ok();
    assert!(count_packs(&server) > 0, "flush does not wait");
    fs::write(mount.mountpoint.join("small"), "other").unwrap();
    mount.run_inside(&["snapshot", "--wait"]).ok();
    assert!(count_packs(&server) > 0, "snapshot does not wait");
    // More than 64 MiB; what is written while these are published waits.
    fs::write(mount.mountpoint.join("big"), noise(80 << 20)).unwrap();
    wait_until("it is published", || count_packs(&server) > 0);
    fs::write(mount.mountpoint.join("last"), "last").unwrap();
    mount.run(&["umount"], &[]).ok();
    assert!(count_packs(&server) > 0, "umount does not wait");
}

#[test]
fn a_service_that_hangs_does_not_keep_a_mount_and_nothing_is_lost() {
    let world = world_with_credentials();
    let server = SeaweedServer::start(&world.path("seaweed"));
    let mount = ServiceMount::new(world, &server.store_url("hangs"), &[]);
    fs::write(mount.mountpoint.join("new"), "new").unwrap();
    server.signal(Signal::STOP).unwrap();
    let begun = Instant::now();
    let ended = mount.run(&["umount"], &[]).code(1).says("Unmounted");
    assert!(begun.elapsed() < Duration::from_secs(90), "{:?}", begun.elapsed());
    ended.remarks("is not whole in the store").remarks("is published by the next mount");
    assert!(!mount.is_mounted());
    // The next one finds it here, as soon as the service is there again.
    server.signal(Signal::CONT).unwrap();
    mount.run(&["mount"], &[]).ok();
    assert_eq!(fs::read_to_string(mount.mountpoint.join("new")).unwrap(), "new");
    mount.run(&["umount"], &[]).ok();
}

#[test]
fn force_ends_a_mount_without_the_service() {
    let world = world_with_credentials();
    let server = SeaweedServer::start(&world.path("seaweed"));
    let mount = ServiceMount::new(world, &server.store_url("forced"), &[]);
    mount.run(&["umount", "--force"], &["--lazy"]).code(3);
    server.signal(Signal::STOP).unwrap();
    fs::write(mount.mountpoint.join("new"), "new").unwrap();
    // One that is in use stays, and goes on as before.
    let used = fs::File::open(mount.mountpoint.join("a.txt")).unwrap();
    mount.run(&["umount", "--force"], &[]).code(2).remarks("is in use");
    drop(used);
    let begun = Instant::now();
    let ended = mount.run(&["umount", "--force"], &[]).code(1).says("Unmounted");
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    let ended = ended.remarks("the mount was ended without the store (--force)");
    let next =
        ended.err.split_once("'vellum ").and_then(|(_, rest)| rest.split_once('\'')).unwrap().0.to_owned();
    assert!(!mount.is_mounted());
    server.signal(Signal::CONT).unwrap();
    // The command that was named.
    mount.world.run_at_home(&next.split(' ').collect::<Vec<_>>()).ok();
    assert_eq!(fs::read_to_string(mount.mountpoint.join("new")).unwrap(), "new");
    mount.run_inside(&["flush"]).ok();
    // With everything in the store, nothing is left here.
    mount.run(&["umount", "--force"], &[]).ok().says("Unmounted");
    mount.run(&["mount"], &[]).ok();
    mount.run(&["umount"], &[]).ok();
}

#[test]
fn a_write_log_that_fills_is_told_before_it_is_full() {
    let server = LyingS3::start().unwrap();
    let mount =
        ServiceMount::new(world_with_credentials(), &server.store_url("store"), &["--log-limit", "48M"]);
    server.add_lie(every("PUT"), S3Lie::Fail(S3Failure::new(503, "ServiceUnavailable")));
    fs::write(mount.mountpoint.join("one"), noise(41 << 20)).unwrap();
    wait_until("it is told", || mount.daemon_log().contains("% full ("));
    mount.run_inside(&["status"]).remarks("% full: when it is full, writes wait until the store accepts");
    mount.run(&["umount", "--force"], &[]).code(1).remarks("of file data missing there");
    server.tell_truth();
    mount.run(&["mount"], &[]).ok();
    assert_eq!(fs::metadata(mount.mountpoint.join("one")).unwrap().len(), 41 << 20);
    mount.run(&["umount"], &[]).ok();
}
