//! The cache of a store in a service that cannot be read or written, or loses its files: everything is read nevertheless.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use vellum_testkit::LyingS3;

use crate::disk::Disk;
use crate::hydrate::{LazyMount, noise};
use crate::mounting::sh;
use crate::remote::world_with_credentials;
use crate::world::{Ran, World};

/// Everything that reads and writes a store, with the cache as it is: nothing fails.
fn check_without_cache(world: &World, user: Option<u32>, cache: &Path) {
    let run = |args: &[&str]| {
        let mut command = match user {
            None => world.command_at_home(args),
            Some(user) => {
                let mut command = Command::new("setpriv");
                let user = user.to_string();
                command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
                let given = world.command_at_home(args);
                command.arg(given.get_program()).args(given.get_args()).env_clear();
                command.envs(given.get_envs().filter_map(|(name, value)| Some((name, value?))));
                command.current_dir(world.tree());
                command
            }
        };
        Ran::of(args, command.env("XDG_CACHE_HOME", cache).output().unwrap())
    };
    world.write("new", noise(9, 3_000_000));
    run(&["snapshot", "-m", "two"]).ok();
    assert!(run(&["cat", "HEAD", "new"]).ok().raw == noise(9, 3_000_000));
    assert!(run(&["cat", "HEAD", "old"]).ok().raw == noise(8, 3_000_000));
    world.remove("new");
    run(&["restore", "HEAD"]).ok();
    assert!(fs::read(world.tree().join("new")).unwrap() == noise(9, 3_000_000));
    run(&["verify", "--all"]).ok();
    run(&["gc", "run"]).ok();
}

/// A world with a snapshot in a service.
fn world_in_service() -> (World, LyingS3) {
    let world = world_with_credentials();
    let server = LyingS3::start().unwrap();
    world.write("old", noise(8, 3_000_000));
    let url = server.store_url("store");
    let init = ["init", "--plain", "--name", "main", "--store", &url, "--credentials", "test"];
    for args in [&init[..], &["snapshot", "-m", "one"]] {
        let mut command = world.command_at_home(args);
        Ran::of(args, command.env("XDG_CACHE_HOME", world.path("cache")).output().unwrap()).ok();
    }
    (world, server)
}

#[test]
fn a_cache_without_permissions_is_not_needed() {
    /// Root may read everything.
    const USER: u32 = 1234;
    let (world, _server) = world_in_service();
    let cache = world.path("cache");
    world.give_to(USER);
    sh(&world.path("."), &format!("chown -R {USER} cache config; mkdir -p state; chown {USER} state ."));
    for place in ["cache/vellum/*/packs", "cache/vellum/*", "cache"] {
        sh(&world.path("."), &format!("chmod 000 {place}"));
        check_without_cache(&world, Some(USER), &cache);
        sh(&world.path("."), &format!("chmod 700 {place}"));
    }
    check_without_cache(&world, Some(USER), &cache);
}

#[test]
fn a_cache_on_a_full_disk_is_not_needed() {
    let (world, _server) = world_in_service();
    // Full from the beginning.
    let disk = Disk::in_memory(1);
    sh(&disk.path(), "cat /dev/zero > fill 2> /dev/null || true; [ $(df --output=avail . | tail -1) = 0 ]");
    check_without_cache(&world, None, &disk.path());
    // And such that it becomes full while the cache writes, which thinks that there is room.
    for files in [3, 6, 9, 12, 15] {
        let disk = Disk::with_files(files);
        check_without_cache(&world, None, &disk.path());
    }
}

#[test]
fn a_cache_that_is_removed_while_a_mount_is_searched_is_not_missed() {
    let names: Vec<String> = (0..60).map(|number| format!("dir{}/file{number}", number % 7)).collect();
    let line = |number: u64| format!("needle {number}\n").into_bytes();
    let content = |number: u64| [noise(number + 1, 200_000), b"\n".to_vec(), line(number)].concat();
    let files: Vec<_> = names.iter().map(String::as_str).zip((0..).map(content)).collect();
    let lazy = LazyMount::in_world(world_with_credentials(), &files);
    let expected = sh(&lazy.world.tree(), "grep -ra needle dir* | sort");
    assert_eq!(expected.lines().count(), 60);
    for round in 0..4 {
        // Nothing in memory, neither the kernel's nor the process's.
        lazy.umount();
        lazy.mount();
        let is_over = AtomicBool::new(false);
        let cache = lazy.world.path("cache");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let _ = fs::remove_dir_all(&cache);
                }
            });
            let found = sh(&lazy.mountpoint(), "grep -ra needle dir* | sort");
            is_over.store(true, Ordering::Relaxed);
            assert!(found == expected, "round {round}: {found}");
        });
        // From what the cache has now, and without.
        assert_eq!(sh(&lazy.mountpoint(), "grep -ra needle dir* | sort"), expected);
    }
    // Something else in its place.
    lazy.umount();
    let cache = lazy.world.path("cache");
    let _ = fs::remove_dir_all(&cache);
    symlink("/proc/self/nothing", &cache).unwrap();
    lazy.mount();
    assert_eq!(sh(&lazy.mountpoint(), "grep -ra needle dir* | sort"), expected);
}
