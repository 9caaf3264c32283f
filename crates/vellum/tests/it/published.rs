//! Stores that a web server publishes.

use std::fs;
use std::path::Path;

use vellum_testkit::{LyingS3, S3Lie, ServerCertificate, TlsServer, WebServer};

use crate::remote::{every, init, world_with_credentials};
use crate::world::{Ran, World, noise};

fn run_in(world: &World, dir: &Path, args: &[&str]) -> Ran {
    Ran::of(args, world.command_at_home(args).current_dir(dir).output().unwrap())
}

/// A world with an encrypted volume in a directory that can be served, and its recovery code in the file `code`.
pub fn new_served_world() -> World {
    let world = World::empty();
    let store = world.path("served/photos").display().to_string();
    fs::create_dir(world.path("served")).unwrap();
    let made = world.run_at_home(&["init", "--name", "main", "--store", &store]).ok();
    let code = made.out.lines().find_map(|line| line.strip_prefix("Recovery code: ")).unwrap().to_owned();
    fs::write(world.path("code"), &code).unwrap();
    world
}

#[test]
fn a_published_volume_is_cloned_and_pulled_and_never_written_to() {
    let world = new_served_world();
    let code_file = world.path("code").display().to_string();
    world.write("a.txt", "one\n");
    world.write("dir/b.bin", noise(900_000));
    world.run_at_home(&["snapshot", "-m", "one"]).ok();
    let server = WebServer::start(&world.path("served"));
    let url = server.store_url("photos");
    let clone = world.path("clone");
    let shown = clone.display().to_string();
    let clone_args = ["clone", &url, &shown, "--passphrase-file", &code_file];
    world.run_at_home(&clone_args).code(2).remarks("vellum publish");
    assert!(!clone.exists(), "nothing is left of a clone that failed");

    world.run_at_home(&["publish"]).ok();
    world.run_at_home(&clone_args).ok();
    let run = |args: &[&str]| run_in(&world, &clone, args);
    assert_eq!(fs::read_to_string(clone.join("a.txt")).unwrap(), "one\n");
    assert_eq!(fs::read(clone.join("dir/b.bin")).unwrap(), noise(900_000));
    run(&["verify", "--all"]).ok();
    run(&["remote", "list"]).ok().says(&url);

    // A key that is removed is not looked for.
    fs::write(world.path("keyfile"), "spare").unwrap();
    world.run_at_home(&["key", "add", "--key-file", "../keyfile", "--label", "spare"]).ok();
    world.run_at_home(&["publish"]).ok();
    let slots = world.run_at_home(&["key", "list"]).ok().out;
    let spare = slots.lines().find(|line| line.contains("spare")).unwrap();
    world.run_at_home(&["key", "remove", spare.split_whitespace().next().unwrap()]).ok();
    let second = world.path("second").display().to_string();
    world.run_at_home(&["clone", &url, &second, "--passphrase-file", &code_file]).ok();

    // What was not published is not seen; what was seen before goes on to work.
    world.write("a.txt", "two\n");
    world.run_at_home(&["snapshot", "-m", "two"]).ok();
    run(&["pull"]).ok();
    assert!(!run(&["history", "--all"]).ok().out.contains("two"));
    world.run_at_home(&["publish"]).ok();
    run(&["pull"]).ok();
    run(&["history", "--all"]).ok().says("two");
    assert_eq!(run(&["cat", "origin/main", "a.txt"]).ok().out, "two\n");

    // The clone has a store of its own, and the web server takes nothing.
    fs::write(clone.join("c.txt"), "three\n").unwrap();
    run(&["snapshot", "-m", "three"]).ok();
    run(&["push", "--all"]).code(2).remarks("read only");
    let other = world.path("other").display().to_string();
    world.run_at_home(&["init", &other, "--store", &url]).code(3).remarks("vellum clone");
}

#[test]
fn a_listing_older_than_the_store_is_told() {
    let world = World::empty();
    let store = world.path("served").display().to_string();
    world.run_at_home(&["init", "--plain", "--name", "main", "--store", &store]).ok();
    world.write("a.bin", noise(300_000));
    world.run_at_home(&["snapshot"]).ok();
    world.run_at_home(&["publish"]).ok();
    fs::remove_dir_all(world.path("served/packs")).unwrap();
    let server = WebServer::start(&world.path("served"));
    let clone = world.path("clone").display().to_string();
    let failed = world.run_at_home(&["clone", &server.store_url(""), &clone, "--plain"]).code(2);
    failed.remarks("the listing is older than the store");
}

#[test]
fn a_store_stays_readable_over_https_while_it_is_written_to_and_collected() {
    let world = World::empty();
    let store = world.path("served/photos").display().to_string();
    fs::create_dir(world.path("served")).unwrap();
    world.run_at_home(&["init", "--plain", "--name", "main", "--store", &store]).ok();
    world.write("kept.bin", noise(300_000));
    world.write("gone.bin", noise(400_000));
    let first = world.run_at_home(&["snapshot", "-q"]).ok().out;
    world.run_at_home(&["publish"]).ok();
    let web = WebServer::start(&world.path("served"));
    let tls = TlsServer::start(&world.path("tls"), web.address(), ServerCertificate::Valid);
    let url = format!("{}/photos?ca={}", tls.url(), tls.authority_file().display());
    let clone = |name: &str| {
        let dir = world.path(name);
        world.run_at_home(&["clone", &url, &dir.display().to_string(), "--plain"]).ok();
        dir
    };
    let early = clone("early");
    assert!(early.join("gone.bin").exists());

    // Snapshots merge the index, and are not published by that.
    for number in 0..12 {
        world.write("number.txt", format!("{number}\n"));
        world.run_at_home(&["snapshot"]).ok();
    }
    let late = clone("late");
    assert!(late.join("gone.bin").exists() && !late.join("number.txt").exists());

    world.remove("gone.bin");
    world.run_at_home(&["snapshot", "-m", "last"]).ok();
    let ids = world.run_at_home(&["history", "--json"]).ok().out;
    let history: serde_json::Value = serde_json::from_str(&ids).unwrap();
    for id in history["snapshots"].as_array().unwrap().iter().skip(1) {
        world.run_at_home(&["forget", id["id"].as_str().unwrap()]).ok();
    }
    world.run_at_home(&["gc", "run"]).ok().says("Freed");
    let after = clone("after");
    assert_eq!(fs::read(after.join("kept.bin")).unwrap(), noise(300_000));
    assert!(!after.join("gone.bin").exists());
    run_in(&world, &after, &["verify", "--all"]).ok();
    run_in(&world, &early, &["pull"]).ok();
    run_in(&world, &early, &["history", "--all"]).ok().says("last").says(&first.trim()[..8]);

    // Without 'ca=' nobody vouches for the server, unless the system does.
    let trusted = world.path("trusted").display().to_string();
    let plain_url = format!("{}/photos", tls.url());
    let args = ["clone", &plain_url, &trusted, "--plain"];
    world.run_at_home(&args).code(2).remarks("'ca=/path' in the address");
    assert!(!world.path("trusted").exists());
    let mut command = world.command_at_home(&args);
    Ran::of(&args, command.env("SSL_CERT_FILE", tls.authority_file()).output().unwrap()).ok();
}

#[test]
fn a_web_server_that_lies_is_not_believed() {
    let world = world_with_credentials();
    let server = LyingS3::start().unwrap();
    let url = server.store_url("store");
    init(&world, &url).ok();
    world.write("a.bin", noise(100_000));
    world.run_at_home(&["snapshot"]).ok();
    world.run_at_home(&["publish"]).ok();
    let (place, query) = url.strip_prefix("s3://").unwrap().split_once('?').unwrap();
    let endpoint = query.split('&').find_map(|part| part.strip_prefix("endpoint=")).unwrap();
    let web = format!("{endpoint}/{place}");
    let clone = world.path("clone").display().to_string();
    let args = ["clone", &web, &clone, "--plain", "--retry-for", "1s"];
    for lie in [S3Lie::Redirect("http://127.0.0.1:9/elsewhere".to_owned()), S3Lie::ClaimGzip] {
        server.add_lie(every("GET"), lie.clone());
        let ran = world.run_at_home(&args);
        assert_eq!(ran.code, 2, "{lie:?}: {}", ran.err);
        server.tell_truth();
        assert!(!world.path("clone").exists(), "{lie:?}");
    }
    // Some servers answer every path with the same page.
    let listing = server.read_object("store/listing").unwrap();
    server.overwrite_object("store/listing", b"<!doctype html><title>Welcome</title>");
    world.run_at_home(&args).code(2).remarks("not the listing of a store");
    server.overwrite_object("store/listing", &listing);
    // Short objects are read from a server that ignores ranges, too.
    server.add_lie(every("GET"), S3Lie::WholeObject);
    world.run_at_home(&["clone", &web, &clone, "--plain"]).ok();
    assert_eq!(fs::read(world.path("clone/a.bin")).unwrap(), noise(100_000));
}
