//! What the disk cache of a store in a service spares, and what it keeps.

use std::fs;
use std::path::Path;

use vellum_testkit::{LyingS3, SeaweedServer};

use crate::remote::{assert_no_secret_in, run_with_cache, world_with_cached_snapshot};
use crate::world::{Ran, World};

#[test]
fn what_is_in_the_cache_is_not_fetched_again() {
    let server = LyingS3::start().unwrap();
    let world = world_with_cached_snapshot(&server);
    let _ = server.take_requests();
    let ranges = || {
        let requests = server.take_requests().into_iter();
        requests.filter(|request| request.method == "GET" && request.key.contains("/packs/")).count()
    };
    // What was written here is here.
    run_with_cache(&world, &["export", "HEAD", "--to", &world.path("first").display().to_string()]).ok();
    assert_eq!(ranges(), 0);
    run_with_cache(&world, &["cache", "--clear"]).ok().says("0 B of");
    run_with_cache(&world, &["export", "HEAD", "--to", &world.path("second").display().to_string()]).ok();
    let cold = ranges();
    assert!(cold > 0 && cold < 20, "{cold}");
    run_with_cache(&world, &["export", "HEAD", "--to", &world.path("third").display().to_string()]).ok();
    assert_eq!(ranges(), 0);
    run_with_cache(&world, &["cache"]).ok().says("Names: ").says("The oldest was fetched");
    // A verification reads the store.
    run_with_cache(&world, &["verify", "--all"]).ok();
    assert!(ranges() > 0);

    // Damage is noticed, and costs what is fetched again.
    run_with_cache(&world, &["cache", "--verify"]).ok().says("are sound");
    let damage_packs = || {
        for folder in fs::read_dir(world.path("cache/vellum")).unwrap() {
            let folder = folder.unwrap().path();
            for part in ["packs", "nodes"] {
                for_each_file(&folder.join(part), &|path| {
                    if path.extension().is_none() {
                        let mut bytes = fs::read(path).unwrap();
                        bytes.iter_mut().step_by(1000).for_each(|byte| *byte ^= 1);
                        fs::write(path, bytes).unwrap();
                    }
                });
            }
        }
    };
    damage_packs();
    let to = world.path("fourth").display().to_string();
    run_with_cache(&world, &["export", "HEAD", "--to", &to]).ok();
    assert!(ranges() > 0);
    for name in ["first", "second", "third", "fourth"] {
        for number in 0..40 {
            let path = format!("dir-{}/file-{number}", number % 3);
            assert!(fs::read(world.path(name).join(&path)).unwrap() == crate::world::noise(20_000 + number));
        }
    }
    damage_packs();
    run_with_cache(&world, &["cache", "--verify"]).code(1).says("damaged piece");
    run_with_cache(&world, &["cache", "--verify"]).ok();
}

fn for_each_file(dir: &Path, act: &dyn Fn(&Path)) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { for_each_file(&path, act) } else { act(&path) }
    }
}

#[test]
fn a_cache_keeps_its_limit_and_can_be_switched_off() {
    let server = LyingS3::start().unwrap();
    let world = world_with_cached_snapshot(&server);
    let bytes = |ran: Ran| {
        let value: serde_json::Value = serde_json::from_str(&ran.ok().out).unwrap();
        (value["bytes"].as_u64().unwrap(), value["limit"].as_u64().unwrap())
    };
    let before = bytes(run_with_cache(&world, &["cache", "--json"]));
    assert!(before.0 > 20_000 && before.1 > 1 << 20, "{before:?}");
    let small = bytes(run_with_cache(&world, &["cache", "--set-size", "16K", "--json"]));
    assert!(small.0 <= 16 << 10 && small.1 == 16 << 10, "{small:?}");
    run_with_cache(&world, &["cat", "HEAD", "dir-1/file-1"]).ok();
    assert!(bytes(run_with_cache(&world, &["cache", "--json"])).0 <= 16 << 10);
    run_with_cache(&world, &["cache", "--set-size", "0"]).ok().says("0 B of 0 B in 0 packs");
    run_with_cache(&world, &["cat", "HEAD", "dir-1/file-1"]).ok();
    assert_eq!(bytes(run_with_cache(&world, &["cache", "--json"])), (0, 0));
    // What is in the cache is sealed or plain as in the store; a secret is nowhere.
    let secret =
        SeaweedServer::credentials_file().lines().last().unwrap().split_once("= ").unwrap().1.to_owned();
    assert_no_secret_in(&world.path("cache"), &secret);
    // Without a folder for caches, there is none, and nothing fails.
    world.run_at_home(&["cache"]).code(3).remarks("set HOME, or XDG_CACHE_HOME");
    world.run_at_home(&["cat", "HEAD", "dir-1/file-1"]).ok();
    let local = World::with_snapshot();
    local.run(&["cache"]).ok().remarks("needs no cache");
    // A file in its place.
    fs::remove_dir_all(world.path("cache")).unwrap();
    fs::write(world.path("cache"), "").unwrap();
    run_with_cache(&world, &["cat", "HEAD", "dir-1/file-1"]).ok();
}
