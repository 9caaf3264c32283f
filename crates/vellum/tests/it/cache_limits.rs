//! The limits of the cache of a store in a service (case 47): none at all, little, less than what is pinned, and those of
//! two mounts, of which the smaller counts.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::hydrate::{LazyMount, noise, read_state};
use crate::remote::world_with_credentials;

const MIB: u64 = 1 << 20;

/// Files of 1.5 MB, others for each number.
fn content(number: u64) -> Vec<u8> {
    noise(number + 20, 1_500_000)
}

fn mount_files(numbers: std::ops::Range<u64>) -> LazyMount {
    let files: Vec<_> = numbers.map(|number| (format!("file-{number}"), content(number))).collect();
    let files: Vec<_> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    LazyMount::in_world(world_with_credentials(), &files)
}

/// What a cache holds on the disk, and may hold, as a command in a mount shows it.
fn read_limits(lazy: &LazyMount, mount: &Path) -> (u64, u64) {
    let ran = lazy.run_in(mount, &["--json", "cache"]).ok();
    let shown: Value = serde_json::from_str(&ran.out).unwrap();
    (shown["bytes"].as_u64().unwrap(), shown["limit"].as_u64().unwrap())
}

#[test]
fn with_no_room_or_little_all_is_read_and_no_pin_fits() {
    for (size, limit) in [("0", 0), ("1M", MIB)] {
        let lazy = mount_files(0..3);
        lazy.run(&["cache", "--set-size", size]).ok();
        for _ in 0..2 {
            for number in 0..3 {
                assert!(fs::read(lazy.path(&format!("file-{number}"))).unwrap() == content(number));
                let (bytes, shown) = read_limits(&lazy, &lazy.mountpoint());
                assert!(bytes <= limit && shown == limit, "{bytes} of {shown} with a limit of {limit}");
            }
            // From nothing in memory.
            lazy.umount();
            lazy.mount();
        }
        for refused in [&["pin", "file-1"][..], &["hydrate", "file-1"]] {
            lazy.run(refused).code(2).remarks("may hold").remarks("'vellum cache --set-size SIZE'");
        }
        lazy.run(&["pins"]).ok().remarks("nothing is pinned");
        assert!(limit > 0 || read_state(&lazy.path("file-1")) == "remote");
        fs::write(lazy.path("new"), content(9)).unwrap();
        lazy.run(&["snapshot", "-m", "two"]).ok();
        lazy.run(&["verify", "--all"]).ok();
        let (bytes, _) = read_limits(&lazy, &lazy.mountpoint());
        assert!(bytes <= limit, "{bytes} with a limit of {limit}");
        // More room counts at once, and less than a pin does not.
        lazy.run(&["cache", "--set-size", "8M"]).ok();
        lazy.run(&["pin", "file-1"]).ok();
        lazy.run(&["cache", "--set-size", size]).code(3).remarks("'vellum unpin --all' removes all pins");
        assert_eq!(read_state(&lazy.path("file-1")), "pinned");
    }
}

#[test]
fn two_mounts_of_a_store_have_the_limit_that_one_of_them_lowered() {
    let lazy = mount_files(0..4);
    let other = lazy.world.path("other");
    let shown = other.display().to_string();
    let url = lazy.server.store_url("store");
    let clone = ["clone", &url, &shown, "--mount", "--plain", "--credentials", "test"];
    lazy.run_in(&lazy.world.tree(), &clone).ok();
    let mounts = [lazy.mountpoint(), other.clone()];
    for (lowering, raising) in [(0, 1), (1, 0)] {
        lazy.run_in(&mounts[raising], &["cache", "--set-size", "64M"]).ok();
        lazy.run_in(&mounts[lowering], &["cache", "--set-size", "2M"]).ok();
        for number in 0..4 {
            for mount in &mounts {
                assert!(fs::read(mount.join(format!("file-{number}"))).unwrap() == content(number));
                let (bytes, limit) = read_limits(&lazy, mount);
                assert!(bytes <= 2 * MIB && limit == 2 * MIB, "{bytes} of {limit}");
            }
        }
        for mount in &mounts {
            lazy.run_in(mount, &["evict", "--all"]).ok();
        }
    }
    lazy.run_in(&lazy.world.tree(), &["umount", &shown]).ok();
}

#[test]
fn of_two_mounts_with_limits_of_their_own_the_smaller_counts_while_it_is_mounted() {
    let lazy = mount_files(0..4);
    lazy.umount();
    let other = lazy.world.path("other");
    let shown = other.display().to_string();
    fs::create_dir(&other).unwrap();
    let mount_other = |size: &str| lazy.run_in(&lazy.world.tree(), &["mount", &shown, "--disk-cache", size]);
    let mounts = [lazy.mountpoint(), other.clone()];
    let assert_limit = |expected: u64| {
        for number in 0..4 {
            for mount in &mounts {
                assert!(fs::read(mount.join(format!("file-{number}"))).unwrap() == content(number));
                let (bytes, limit) = read_limits(&lazy, mount);
                assert!(bytes <= expected && limit == expected, "{bytes} of {limit}, expected {expected}");
            }
        }
    };
    lazy.mount_with(&["--disk-cache", "4M"]);
    mount_other("2M").ok();
    assert_limit(2 * MIB);
    // What the cache is told itself counts, too, if it is less; and what does not fit is not pinned.
    lazy.run(&["cache", "--set-size", "1M"]).ok();
    assert_limit(MIB);
    lazy.run(&["cache", "--set-size", "64M"]).ok();
    assert_limit(2 * MIB);
    lazy.run(&["pin", "file-1", "file-2"]).code(2).remarks("may hold");
    // The smaller limit ends with its mount.
    lazy.run_in(&lazy.world.tree(), &["umount", &shown]).ok();
    assert_eq!(read_limits(&lazy, &mounts[0]).1, 4 * MIB);
    lazy.run(&["pin", "file-1"]).ok();
    mount_other("1M").code(3).remarks("are pinned");
}
