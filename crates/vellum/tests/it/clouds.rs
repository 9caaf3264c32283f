//! Volumes in Azure and Google Cloud Storage, as their emulators behave. `make services` runs these tests.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use vellum_testkit::CloudEmulator;

use crate::remote::{add_credentials, init};
use crate::world::{Ran, World, noise};

/// A world whose credentials `test` have this content.
fn world_for(credentials: &str) -> World {
    let world = World::empty();
    add_credentials(&world);
    let file = world.path("config/vellum/credentials/test");
    fs::write(&file, credentials).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    world
}

/// What a user does with a store, on two machines.
fn use_store(world: &World, server: &CloudEmulator) {
    let url = server.store_url("photos");
    init(world, &url).ok();
    world.write("a.txt", "one\n");
    world.write("dir/b.bin", noise(3_000_000));
    world.run_at_home(&["snapshot", "-m", "one", "--tag", "first"]).ok();
    world.write("a.txt", "two\n");
    world.remove("dir/b.bin");
    world.run_at_home(&["snapshot", "-m", "two"]).ok();
    let backup = server.store_url("backup");
    world.run_at_home(&["remote", "add", "backup", &backup, "--credentials", "test"]).ok();
    world.run_at_home(&["push", "backup", "--all", "--tags"]).ok();
    let run_in = |dir: &str, args: &[&str]| {
        let mut command = world.command_at_home(args);
        Ran::of(args, command.current_dir(world.path(dir)).output().unwrap())
    };
    run_in("", &["clone", "--plain", &backup, "copy", "--credentials", "test"]).ok();
    assert_eq!(fs::read_to_string(world.path("copy/a.txt")).unwrap(), "two\n");
    run_in("copy", &["restore", "first"]).ok();
    assert_eq!(fs::read(world.path("copy/dir/b.bin")).unwrap(), noise(3_000_000));
    run_in("copy", &["verify", "--all"]).ok();
    // What nothing needs any more is deleted there.
    world.run_at_home(&["tag", "remove", "first"]).ok();
    world.run_at_home(&["forget", "HEAD~1"]).ok();
    world.run_at_home(&["gc", "run"]).ok().says("Freed");
    world.run_at_home(&["verify", "--all"]).ok();
}

#[test]
#[ignore = "services"]
fn a_volume_in_azure_is_used_like_any_other() {
    let world = world_for(CloudEmulator::AZURE_CREDENTIALS);
    let server = CloudEmulator::start_azure(&world.path("azurite"));
    init(&world, &server.bucket_url("missing", "photos"))
        .code(3)
        .remarks("The specified container does not exist");
    use_store(&world, &server);
}

#[test]
#[ignore = "services"]
fn a_volume_in_google_cloud_storage_is_used_like_any_other() {
    let world = world_for(CloudEmulator::GCS_CREDENTIALS);
    let server = CloudEmulator::start_gcs();
    use_store(&world, &server);
}
