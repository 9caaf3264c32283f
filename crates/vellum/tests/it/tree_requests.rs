//! Trees that are read whole through a mount whose store is a service, with nothing on this machine: how many requests it takes.
//! Names are listed in another order than the one in which they were stored.

use vellum_testkit::LyingS3;

use crate::hydrate::noise;
use crate::mounting::Mount;
use crate::remote::{init, world_with_credentials};
use crate::world::World;

/// Most requests for all names of a tree.
const NAMES_MAX: usize = 10;
/// Most requests for all of a tree.
const TREE_MAX: usize = 60;

/// A tree of 24 MB in 120 directories, with 3 MB of small files.
fn write_tree(world: &World) {
    for directory in 0..120_u64 {
        let place = format!("group-{}/dir-{}", directory / 12, directory % 12);
        for file in 0..18_u64 {
            // Of what is small, content stands beside the attributes.
            let len = if file < 10 { 20_000 } else { 3_000 };
            world.write(&format!("{place}/file-{file}"), noise(directory * 100 + file, len));
        }
    }
}

/// Mounts the snapshot, runs a script in the mount, and returns how many requests that took.
fn count_requests(world: &World, server: &LyingS3, script: &str) -> usize {
    let mount = Mount::place(world, "mnt");
    let path = mount.path.display().to_string();
    world.run_at_home(&["mount", "--snapshot", "main", &path]).ok();
    let _ = server.take_requests();
    mount.sh(script);
    let requests = server.take_requests().len();
    println!("{script}: {requests} requests");
    world.run_at_home(&["umount", &path]).ok();
    drop(mount);
    std::fs::remove_dir(world.path("mnt")).unwrap();
    requests
}

#[test]
fn all_of_a_tree_takes_few_requests() {
    let world = world_with_credentials();
    let server = LyingS3::start().unwrap();
    init(&world, &server.store_url("store")).ok();
    write_tree(&world);
    world.run_at_home(&["snapshot"]).ok();
    let names = count_requests(&world, &server, "find . -printf '%s ' > /dev/null");
    let all = count_requests(&world, &server, "! grep -rq 'no such words in here' group-*");
    assert!(names <= NAMES_MAX && all <= TREE_MAX, "{names} and {all} requests");
}
