//! Volumes in services that take no conditions: one machine writes at a time.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use vellum_testkit::{LyingS3, S3Lie, S3Match, WebdavServer};

use crate::remote::world_with_credentials;
use crate::world::Ran;

#[test]
fn a_volume_on_a_webdav_server_is_written_by_one_machine_at_a_time() {
    let world = world_with_credentials();
    let credentials = world.path("config/vellum/credentials/cloud");
    fs::write(&credentials, WebdavServer::credentials_file()).unwrap();
    fs::set_permissions(&credentials, fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(world.path("served")).unwrap();
    let server = WebdavServer::start(&world.path("served"));
    let url = server.store_url("photos/ann");
    let run_on = |machine: &str, args: &[&str]| {
        let mut command = world.command_at_home(args);
        Ran::of(args, command.env("XDG_CACHE_HOME", world.path(machine)).output().unwrap())
    };
    run_on("one", &["init", "--plain", "--name", "main", "--store", &url, "--credentials", "cloud"]).ok();
    world.write("a.txt", "one\n");
    run_on("one", &["snapshot"]).ok();
    let mountpoint = world.path("mnt");
    fs::create_dir(&mountpoint).unwrap();
    let shown = mountpoint.display().to_string();
    run_on("one", &["mount", &shown]).ok();
    fs::write(mountpoint.join("b.txt"), "b\n").unwrap();

    // Another machine may read, and no more, as long as that mount is there.
    let other = world.path("other").display().to_string();
    let refused = run_on("two", &["clone", &url, &other, "--credentials", "cloud", "--plain"]);
    refused.code(2).remarks("another machine has the right to write");
    run_on("two", &["history"]).ok();
    // Also if nobody remembers what the store keeps, which only a machine with the right to write can try.
    let check = world.tree().join(".vellum/store-check.json");
    let shared = world.path("served/photos/ann/store-check");
    let kept = (fs::read(&check).unwrap(), world.path("store-check"));
    fs::remove_file(&check).unwrap();
    fs::rename(&shared, &kept.1).unwrap();
    run_on("two", &["history"]).ok();
    run_on("two", &["tag", "add", "here"]).code(2).remarks("another machine has the right to write");
    fs::rename(&kept.1, &shared).unwrap();
    fs::write(&check, &kept.0).unwrap();
    run_on("one", &["umount", &shown]).ok();
    run_on("one", &["verify", "--all"]).ok();
    run_on("one", &["gc", "run"]).ok();
    assert!(fs::read_to_string(world.path("served/photos/ann/.writer")).unwrap().contains(" released "));
    assert_eq!(fs::read_dir(world.path("served/photos/ann/.tmp")).unwrap().count(), 0);
}

/// A service without conditions is refused, and the address that the refusal names holds a volume.
fn use_with_one_writer(lie: &S3Lie) {
    let world = world_with_credentials();
    let server = LyingS3::start().unwrap();
    for method in ["PUT", "DELETE"] {
        let all = S3Match { method, key: String::new(), skip: 0, times: u32::MAX };
        server.add_lie(all, lie.clone());
    }
    let url = server.store_url("store");
    let run = |args: &[&str]| {
        let mut command = world.command_at_home(args);
        Ran::of(args, command.env("XDG_CACHE_HOME", world.path("cache")).output().unwrap())
    };
    let init =
        |url: &str| run(&["init", "--plain", "--name", "main", "--store", url, "--credentials", "test"]);
    init(&url).code(2).remarks("single-writer");
    let url = format!("{url}&single-writer");
    init(&url).ok();
    world.write("a.txt", "one\n");
    run(&["snapshot"]).ok();
    world.write("a.txt", "two\n");
    run(&["snapshot", "--tag", "second"]).ok();
    run(&["restore", "HEAD~1"]).ok();
    assert_eq!(world.read("a.txt"), "one\n");
    run(&["verify", "--all"]).ok();
}

#[test]
fn a_service_that_ignores_conditions_is_used_with_one_writer_if_that_is_asked_for() {
    use_with_one_writer(&S3Lie::IgnoreConditions);
}

#[test]
fn a_service_that_refuses_conditions_is_used_with_one_writer_if_that_is_asked_for() {
    use_with_one_writer(&S3Lie::RefuseConditions);
}
