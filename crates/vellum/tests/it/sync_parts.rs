//! Uploads in parts to a service that are interrupted: the next run goes on, or removes what is left.

use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use vellum_testkit::{LyingS3, S3Failure, S3Lie, S3Match, SeaweedServer, TcpRelay};

use crate::sync_objects::new_world;
use crate::world::{Ran, World, noise};

/// Length of a part, bytes.
const PART: usize = 8 << 20;

fn sync(world: &World, args: &[&str]) -> Ran {
    world.run_at_home(&[&["sync", "--credentials", "test", "-a"], args].concat())
}

fn start_sync(world: &World, args: &[&str]) -> Child {
    let args = [&["sync", "--credentials", "test", "-a"], args].concat();
    world.command_at_home(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The requests of this method from the first on.
fn from(method: &'static str, skip: u32) -> S3Match {
    S3Match { method, key: "p/large".to_owned(), skip, times: u32::MAX }
}

/// The numbers of the parts that were sent since the last call.
fn take_sent_parts(server: &LyingS3) -> Vec<u32> {
    server.take_requests().iter().filter_map(|request| request.part).collect()
}

fn check_uploaded(world: &World, server: &LyingS3) {
    assert!(server.read_object("p/large").unwrap() == fs::read(world.tree().join("src/large")).unwrap());
    assert_eq!(server.count_unfinished_uploads(), 0);
    let records = world.path("state/vellum/uploads");
    let left = fs::read_dir(&records).map(|places| {
        places.map(|place| fs::read_dir(place.unwrap().path()).unwrap().count()).sum::<usize>()
    });
    assert_eq!(left.unwrap_or(0), 0, "no record is left");
}

#[test]
fn an_upload_that_was_killed_goes_on_with_the_parts_that_are_missing() {
    let world = new_world();
    world.write("src/large", noise(4 * PART + 1000));
    // Five parts, and the request that makes an object of them; killed before and after each takes effect.
    let moments = (0..5).map(|skip| from("PUT", skip)).chain([from("POST", 1)]);
    for (moment, lie) in
        moments.flat_map(|moment| [(moment.clone(), S3Lie::Hang), (moment, S3Lie::HangAfter)])
    {
        let server = LyingS3::start().unwrap();
        let url = server.store_url("p");
        server.add_lie(moment.clone(), lie.clone());
        let mut child = start_sync(&world, &["src/", &url]);
        wait_until("it does not come that far", || server.count_told_lies() > 0);
        child.kill().unwrap();
        child.wait().unwrap();
        server.tell_truth();
        let stored = server.list_stored_parts();
        let _ = server.take_requests();
        sync(&world, &["src/", &url]).ok();
        let sent = take_sent_parts(&server);
        let again: Vec<_> = sent.iter().filter(|part| stored.contains(part)).collect();
        assert!(again.is_empty(), "{moment:?} {lie:?}: {stored:?} were there, and {sent:?} were sent");
        check_uploaded(&world, &server);
    }
}

#[test]
fn what_the_service_or_the_user_changed_in_between_is_not_mixed() {
    let world = new_world();
    world.write("src/large", noise(4 * PART));
    let interrupt = |server: &LyingS3| {
        server.add_lie(from("PUT", 2), S3Lie::Hang);
        let mut child = start_sync(&world, &["src/", &server.store_url("p")]);
        wait_until("no part arrives", || {
            server.count_told_lies() > 0 && server.list_stored_parts().len() == 2
        });
        child.kill().unwrap();
        child.wait().unwrap();
        server.tell_truth();
        let _ = server.take_requests();
    };
    // The service forgets the upload.
    let server = LyingS3::start().unwrap();
    let url = server.store_url("p");
    interrupt(&server);
    server.forget_uploads();
    sync(&world, &["src/", &url]).ok();
    assert_eq!(take_sent_parts(&server).len(), 4);
    check_uploaded(&world, &server);

    // The file changes.
    let server = LyingS3::start().unwrap();
    let url = server.store_url("p");
    interrupt(&server);
    world.write("src/large", noise(3 * PART + 5));
    sync(&world, &["src/", &url]).ok();
    assert_eq!(take_sent_parts(&server).len(), 4);
    check_uploaded(&world, &server);

    // The file is not to be uploaded any more.
    let server = LyingS3::start().unwrap();
    let url = server.store_url("p");
    interrupt(&server);
    assert_eq!(server.count_unfinished_uploads(), 1);
    sync(&world, &["-n", "src/", &url]).ok();
    assert_eq!(server.count_unfinished_uploads(), 1, "a dry run changes nothing");
    world.write("other/small", "x");
    sync(&world, &["other/", &server.store_url("elsewhere")]).ok();
    assert_eq!(server.count_unfinished_uploads(), 1, "runs with other places leave it alone");
    sync(&world, &["other/", &url]).ok();
    assert_eq!((server.count_unfinished_uploads(), server.list_keys().len()), (0, 2));

    // Somebody else stores an object of this name.
    let server = LyingS3::start().unwrap();
    let url = server.store_url("p");
    interrupt(&server);
    server.overwrite_object("p/large", b"theirs");
    sync(&world, &["--ignore-existing", "src/", &url]).ok();
    assert_eq!(server.read_object("p/large").unwrap(), b"theirs");
    assert_eq!(server.count_unfinished_uploads(), 0);
}

#[test]
fn a_run_that_goes_on_elsewhere_keeps_its_upload() {
    let world = new_world();
    world.write("src/large", noise(3 * PART));
    let server = LyingS3::start().unwrap();
    let url = server.store_url("p");
    server.add_lie(S3Match { times: 1, ..from("PUT", 1) }, S3Lie::Hang);
    let mut child = start_sync(&world, &["src/", &url]);
    wait_until("no part arrives", || server.count_told_lies() > 0);
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    world.write("other/small", "x");
    sync(&world, &["other/", &url]).ok();
    assert_eq!(server.count_unfinished_uploads(), 1, "it belongs to a run that has not ended");
    // The other run uploads the same file, on its own.
    sync(&world, &["src/", &url]).ok();
    child.kill().unwrap();
    child.wait().unwrap();
    sync(&world, &["src/", &url]).ok().says("Nothing to do");
    check_uploaded(&world, &server);
}

#[test]
fn an_upload_goes_on_after_the_service_did_not_answer() {
    let world = new_world();
    world.write("src/large", noise(5 * PART));
    let server = LyingS3::start().unwrap();
    let url = server.store_url("p");
    server.add_lie(from("PUT", 2), S3Lie::Disconnect);
    sync(&world, &["--retry-for=2s", "src/", &url]).code(1).remarks("large");
    let stored = server.list_stored_parts();
    assert_eq!(stored.len(), 2);
    server.tell_truth();
    let _ = server.take_requests();
    let done = sync(&world, &["--json", "src/", &url]).ok();
    let done: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((&done["written_bytes"], &done["spared_bytes"]), (&(3 * PART).into(), &(2 * PART).into()));
    let sent = take_sent_parts(&server);
    assert!(sent.len() == 3 && !sent.iter().any(|part| stored.contains(part)), "{sent:?}");
    check_uploaded(&world, &server);

    // While it is under way, the service forgets it, or answers with success and then fails.
    world.write("src/large", noise(5 * PART + 1));
    let lost = S3Lie::Fail(S3Failure::new(404, "NoSuchUpload"));
    let told = server.count_told_lies();
    server.add_lie(S3Match { times: 1, ..from("PUT", 3) }, lost);
    server
        .add_lie(S3Match { times: 1, ..from("POST", 2) }, S3Lie::Fail(S3Failure::new(200, "InternalError")));
    sync(&world, &["src/", &url]).ok();
    assert_eq!(server.count_told_lies(), told + 2);
    check_uploaded(&world, &server);
}

#[test]
fn a_real_server_sends_the_tags_by_which_parts_are_known() {
    let world = new_world();
    let server = SeaweedServer::start(&world.path("seaweed"));
    let relay = TcpRelay::start(&server.store_url("p"));
    let len = 6 * PART;
    world.write("src/large", noise(len));
    let path = world.tree().join("src/large");
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    relay.hold_after(4 * PART as u64 + 4096 * 10);
    let mut child = start_sync(&world, &["--bwlimit=40M", "src/", relay.store_url()]);
    wait_until("it does not come that far", || relay.is_held());
    child.kill().unwrap();
    child.wait().unwrap();
    relay.release();
    // The first part changes, though neither the length nor the time of the file does.
    let mut bytes = fs::read(&path).unwrap();
    bytes[100] ^= 1;
    fs::write(&path, &bytes).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
    let before = relay.count_sent_bytes();
    sync(&world, &["src/", relay.store_url()]).ok();
    let sent = relay.count_sent_bytes() - before;
    assert!(sent < 6 * PART as u64 && sent > PART as u64, "{sent} bytes were sent");
    sync(&world, &[relay.store_url(), "down"]).ok();
    assert!(
        fs::read(world.tree().join("down/large")).unwrap() == bytes,
        "no part of the old version is in it"
    );
    let left = list_uploads(&server);
    assert!(!left.contains("UploadId"), "{left}");
}

/// What the service says about uploads in progress, as rclone shows it.
fn list_uploads(server: &SeaweedServer) -> String {
    let (environment, place) = server.rclone_place("");
    let output = std::process::Command::new("rclone")
        .args(["backend", "list-multipart-uploads", &place])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .envs(environment)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
