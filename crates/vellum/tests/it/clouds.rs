//! Volumes in Azure and Google Cloud Storage, as their emulators behave. `make services` runs these tests.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use vellum_testkit::{CloudEmulator, TcpRelay};

use crate::mounting::wait_until;
use crate::remote::{add_credentials, init};
use crate::remote_faults::spawn_in;
use crate::world::{Ran, World, noise};

/// No pack is longer than this, bytes.
const PACK: u64 = 17 << 20;

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

/// Kills a push in the middle. The next one sends what had not arrived: at most the three packs that were under way
/// go twice.
fn kill_a_push(world: &World, server: &CloudEmulator) {
    const CONTENT: u64 = 80_000_000;
    world.run_at_home(&["init", "--plain", "--name", "main"]).ok();
    world.write("big", noise(CONTENT as usize));
    world.run_at_home(&["snapshot", "-m", "one"]).ok();
    let relay = TcpRelay::start(&server.store_url("backup"));
    world.run_at_home(&["remote", "add", "backup", relay.store_url(), "--credentials", "test"]).ok();
    let before = relay.count_sent_bytes();
    relay.hold_after(CONTENT / 8 * 7);
    let mut push = spawn_in(world, "tree", &["push", "backup"]);
    wait_until("the push is held", || relay.is_held());
    push.kill().unwrap();
    push.wait().unwrap();
    relay.release();
    world.run_at_home(&["push", "backup"]).ok().says("Sent 1 snapshot");
    let sent = relay.count_sent_bytes() - before;
    assert!(sent < CONTENT + 3 * PACK + (1 << 20), "{sent} bytes");
    world.run_beside("", &["clone", "--plain", relay.store_url(), "copy", "--credentials", "test"]).ok();
    assert!(fs::read(world.path("copy/big")).unwrap() == noise(CONTENT as usize));
    world.run_beside("copy", &["verify", "--all"]).ok();
    world.run_beside("copy", &["gc", "run"]).ok().says("Nothing to free");
}

#[test]
#[ignore = "services"]
fn an_upload_to_azure_that_was_killed_goes_on_with_the_parts_that_are_missing() {
    const PART: u64 = 8 << 20;
    const CONTENT: u64 = 12 * PART;
    // Four parts are under way when it is killed, so that the service has at least two.
    const SENT: u64 = 6 * PART;
    let world = world_for(CloudEmulator::AZURE_CREDENTIALS);
    let server = CloudEmulator::start_azure(&world.path("azurite"));
    let relay = TcpRelay::start(&server.store_url("files"));
    let args = ["sync", "-a", "--credentials", "test", "src/", relay.store_url()];
    world.write("src/large", noise(CONTENT as usize));
    relay.hold_after(SENT);
    let mut upload = spawn_in(&world, "tree", &args);
    wait_until("the upload is held", || relay.is_held());
    upload.kill().unwrap();
    upload.wait().unwrap();
    relay.release();
    let before = relay.count_sent_bytes();
    world.run_at_home(&args).ok();
    let sent = relay.count_sent_bytes() - before;
    assert!(sent < CONTENT - 2 * PART + (1 << 20), "{sent} bytes");
    world.run_at_home(&args).ok().says("Nothing to do");
    let back = ["sync", "-a", "--credentials", "test", relay.store_url(), "back"];
    world.run_at_home(&back).ok();
    assert!(fs::read(world.tree().join("back/large")).unwrap() == noise(CONTENT as usize));
    let time = |name: &str| fs::metadata(world.tree().join(name)).unwrap().modified().unwrap();
    assert_eq!(time("src/large"), time("back/large"));

    // Another file of that name is uploaded from its beginning, and replaces the object.
    world.write("src/large", noise(CONTENT as usize - 1));
    let before = relay.count_sent_bytes();
    world.run_at_home(&args).ok();
    assert!(relay.count_sent_bytes() - before >= CONTENT - 1);
    world.run_at_home(&back).ok();
    assert!(fs::read(world.tree().join("back/large")).unwrap() == noise(CONTENT as usize - 1));
    assert_eq!(
        fs::read_dir(world.path("state/vellum/uploads"))
            .unwrap()
            .flat_map(|dir| { fs::read_dir(dir.unwrap().path()).unwrap() })
            .count(),
        0,
        "no record is left"
    );
}

#[test]
#[ignore = "services"]
fn a_push_to_azure_that_was_killed_is_finished_by_the_next() {
    let world = world_for(CloudEmulator::AZURE_CREDENTIALS);
    let server = CloudEmulator::start_azure(&world.path("azurite"));
    kill_a_push(&world, &server);
}

#[test]
#[ignore = "services"]
fn a_push_to_google_cloud_storage_that_was_killed_is_finished_by_the_next() {
    let world = world_for(CloudEmulator::GCS_CREDENTIALS);
    let server = CloudEmulator::start_gcs();
    kill_a_push(&world, &server);
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
