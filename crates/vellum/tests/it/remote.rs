//! Volumes whose store is in a service.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use vellum_testkit::{LyingS3, S3Failure, S3Lie, S3Match, S3Request, SeaweedServer};

use crate::world::{Ran, World};

/// A world whose user has credentials, with the name `test`, for both servers.
pub fn world_with_credentials() -> World {
    let world = World::empty();
    add_credentials(&world);
    world
}

/// Gives the user of a world these credentials.
pub fn add_credentials(world: &World) {
    let dir = world.path("config/vellum/credentials");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("test"), SeaweedServer::credentials_file()).unwrap();
    fs::set_permissions(dir.join("test"), fs::Permissions::from_mode(0o600)).unwrap();
}

pub fn init(world: &World, url: &str) -> Ran {
    world.run_at_home(&["init", "--plain", "--name", "main", "--store", url, "--credentials", "test"])
}

pub fn every(method: &'static str) -> S3Match {
    S3Match { method, key: String::new(), skip: 0, times: u32::MAX }
}

#[test]
fn a_volume_in_s3_is_used_like_any_other() {
    let world = world_with_credentials();
    let server = SeaweedServer::start(&world.path("seaweed"));
    let url = server.store_url("photos/of/ann");
    let made = world.run_at_home(&["init", "--name", "main", "--store", &url, "--credentials", "test"]).ok();
    let code = made.out.lines().find_map(|line| line.strip_prefix("Recovery code: ")).unwrap().to_owned();
    world.write("a.txt", "one\n");
    world.write("dir/b.bin", crate::world::noise(300_000));
    world.run_at_home(&["snapshot", "-m", "one"]).ok();
    world.write("a.txt", "two\n");
    world.run_at_home(&["status"]).code(1).says("a.txt");
    world.run_at_home(&["snapshot", "-m", "two", "--tag", "second"]).ok();
    world.run_at_home(&["diff", "HEAD~1", "HEAD"]).code(1).says("a.txt");
    assert_eq!(world.run_at_home(&["cat", "HEAD~1", "a.txt"]).ok().out, "one\n");
    world.run_at_home(&["restore", "HEAD~1"]).ok();
    assert_eq!(world.read("a.txt"), "one\n");
    world.run_at_home(&["verify", "--all"]).ok();
    world.run_at_home(&["gc", "run"]).ok();

    // Another directory, as on another machine, that has the recovery code only.
    let other = world.path("other");
    fs::create_dir(&other).unwrap();
    fs::write(world.path("code"), &code).unwrap();
    let run = |args: &[&str]| {
        let mut command = world.command_at_home(args);
        Ran::of(args, command.current_dir(&other).output().unwrap())
    };
    let code_file = world.path("code").display().to_string();
    run(&["init", "--store", &url, "--credentials", "test", "--passphrase-file", &code_file]).ok();
    run(&["restore", "second"]).ok();
    assert_eq!(fs::read_to_string(other.join("a.txt")).unwrap(), "two\n");
    run(&["tag", "remove", "second"]).ok();
    assert!(!world.run_at_home(&["tag", "list"]).ok().out.contains("second"), "one store, one set of tags");
}

#[test]
fn a_volume_in_s3_is_mounted() {
    let world = world_with_credentials();
    let server = SeaweedServer::start(&world.path("seaweed"));
    init(&world, &server.store_url("mounted")).ok();
    world.write("a.txt", "one\n");
    world.run_at_home(&["snapshot"]).ok();
    let mountpoint = world.path("mnt");
    fs::create_dir(&mountpoint).unwrap();
    let shown = mountpoint.display().to_string();
    world.run_at_home(&["mount", &shown]).ok();
    assert_eq!(fs::read_to_string(mountpoint.join("a.txt")).unwrap(), "one\n");
    fs::write(mountpoint.join("b.txt"), "b\n").unwrap();
    world.run_at_home(&["umount", &shown]).ok();
    assert!(!mountpoint.join("b.txt").exists());
    // It is in the store now, and not in this directory only.
    fs::remove_dir_all(world.tree().join(".vellum/live")).unwrap();
    world.run_at_home(&["mount", &shown]).ok();
    assert_eq!(fs::read_to_string(mountpoint.join("b.txt")).unwrap(), "b\n");
    world.run_at_home(&["umount", &shown]).ok();
}

/// Most requests that an idle mount may make in an hour.
const IDLE_MAX: u64 = 130;

#[test]
fn an_idle_mount_takes_few_requests() {
    let world = world_with_credentials();
    let server = LyingS3::start().unwrap();
    init(&world, &server.store_url("store")).ok();
    world.write("a.txt", "one\n");
    world.run_at_home(&["snapshot"]).ok();
    let mountpoint = world.path("mnt");
    fs::create_dir(&mountpoint).unwrap();
    let shown = mountpoint.display().to_string();
    // A lease is renewed three times in its term: here each second.
    world.run_at_home(&["mount", &shown, "--lease-term", "3"]).ok();
    assert_eq!(fs::read_to_string(mountpoint.join("a.txt")).unwrap(), "one\n");
    let _ = server.take_requests();
    let mut requests = Vec::new();
    let is_renewal = |request: &vellum_testkit::S3Request| request.method == "PUT";
    while requests.iter().filter(|request| is_renewal(request)).count() < 5 {
        std::thread::sleep(std::time::Duration::from_millis(20));
        requests.extend(server.take_requests());
    }
    // From the end of one renewal to the end of another: what comes between them is what renewing takes.
    let first = requests.iter().position(is_renewal).unwrap();
    let last = requests.iter().rposition(is_renewal).unwrap();
    let between = &requests[first + 1..=last];
    let renewals = between.iter().filter(|request| is_renewal(request)).count() as u64;
    assert!(between.iter().all(|request| request.key.starts_with("store/refs/")), "{between:?}");
    let renewals_in_an_hour = 3600 * 3 / u64::from(vellum_volume::lease::SERVICE_TERM);
    let in_an_hour = (between.len() as u64).div_ceil(renewals) * renewals_in_an_hour;
    assert!(in_an_hour <= IDLE_MAX, "{in_an_hour} requests an hour: {between:?}");
    world.run_at_home(&["umount", &shown]).ok();
}

/// Looks of a mount that follows, in its first hour without news; a test of the follower counts them.
const LOOKS_IN_AN_HOUR: usize = 15;

#[test]
fn an_idle_mount_that_follows_takes_few_requests() {
    let world = world_with_credentials();
    let server = LyingS3::start().unwrap();
    init(&world, &server.store_url("store")).ok();
    world.write("a.txt", "one\n");
    world.run_at_home(&["snapshot"]).ok();
    // With these, the directory and the mount, there are five worktrees.
    for name in ["b", "c", "laptop.d"] {
        world.run_at_home(&["fork", name, "--to", &world.path(name).display().to_string()]).ok();
    }
    let mountpoint = world.path("mnt");
    fs::create_dir(&mountpoint).unwrap();
    let shown = mountpoint.display().to_string();
    let _ = server.take_requests();
    world.run_at_home(&["mount", &shown, "--follow", "--follow-interval", "1"]).ok();
    let mut requests = Vec::new();
    let is_look = |request: &vellum_testkit::S3Request| {
        request.method == "LIST" && request.key.starts_with("store/refs/worktree")
    };
    while requests.iter().filter(|request| is_look(request)).count() < 6 {
        std::thread::sleep(std::time::Duration::from_millis(20));
        requests.extend(server.take_requests());
    }
    // From one look to another: what is read of the devices is read once.
    let looks: Vec<_> = (0..requests.len()).filter(|at| is_look(&requests[*at])).collect();
    let (first, last) = (looks[looks.len() - 4], looks[looks.len() - 1]);
    let between = &requests[first..last];
    let in_a_look = between.iter().filter(|request| request.method != "PUT").count() / 3;
    assert_eq!(in_a_look, 1 + 5, "{between:?}");
    let renewals_in_an_hour = 3600 * 3 / vellum_volume::lease::SERVICE_TERM as usize;
    let in_an_hour = in_a_look * LOOKS_IN_AN_HOUR + renewals_in_an_hour;
    assert!(in_an_hour as u64 <= IDLE_MAX, "{in_an_hour} requests an hour: {between:?}");
    world.run_at_home(&["umount", &shown]).ok();
}

#[test]
fn reading_a_whole_mounted_volume_takes_few_requests() {
    let world = world_with_credentials();
    let server = LyingS3::start().unwrap();
    init(&world, &server.store_url("store")).ok();
    for dir in 0..40 {
        for file in 0..50 {
            let content = crate::world::noise(2_000 + 37 * file + dir);
            world.write(
                &format!("dir-{dir}/with-a-longer-name-{file}"),
                [&content[..], &[dir as u8, file as u8]].concat(),
            );
        }
    }
    world.run_at_home(&["snapshot"]).ok();
    let mountpoint = world.path("mnt");
    fs::create_dir(&mountpoint).unwrap();
    let shown = mountpoint.display().to_string();
    world.run_at_home(&["mount", &shown]).ok();
    let _ = server.take_requests();
    let count_gets = || server.take_requests().iter().filter(|request| request.method == "GET").count();
    let list = |dir: &Path| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let files: Vec<_> = list(&mountpoint).iter().flat_map(|dir| list(dir)).collect();
    assert_eq!(files.len(), 2000);
    files.iter().for_each(|file| assert!(file.symlink_metadata().unwrap().len() > 2_000));
    let gets = count_gets();
    assert!(gets <= 10, "{gets} requests for all names");
    let read: u64 = files.iter().map(|file| fs::read(file).unwrap().len() as u64).sum();
    assert!(read > 4_000_000);
    let gets = count_gets();
    assert!(gets <= 15, "{gets} requests for {read} bytes");
    world.run_at_home(&["umount", &shown]).ok();
}

#[test]
fn a_service_that_ignores_conditions_is_refused() {
    for (lie, words) in [
        (S3Lie::IgnoreConditions, "If-None-Match is ignored"),
        (S3Lie::Fail(S3Failure::new(501, "NotImplemented")), "cannot hold a volume"),
        (S3Lie::RefuseConditions, "cannot hold a volume"),
    ] {
        let world = world_with_credentials();
        let server = LyingS3::start().unwrap();
        server.add_lie(every("PUT"), lie);
        let ran = init(&world, &server.store_url("store")).code(2).remarks(words);
        ran.remarks("use a service that keeps conditional writes")
            .remarks("add 'single-writer' to the address")
            .remarks("'vellum objbench URL' shows what a store keeps");
        assert!(!world.has(".vellum"));
        assert!(server.list_keys().is_empty(), "{:?}", server.list_keys());
        let url = server.store_url("bench");
        let bench =
            ["objbench", &url, "--credentials", "test", "--small-objects", "0", "--big-object-size", "0"];
        world.run_at_home(&bench).code(1).says("Vellum cannot use this store");
    }
}

#[test]
fn a_folder_that_holds_other_objects_is_left_alone() {
    let world = world_with_credentials();
    let server = LyingS3::start().unwrap();
    let url = server.store_url("photos");
    server.overwrite_object("photos/2026/a.jpg", b"jpeg");
    init(&world, &url).code(3).remarks("not those of a volume").remarks("name a folder that is empty");
    assert!(!world.has(".vellum"));
    init(&world, &server.store_url("photos/vellum")).ok();
    let add = ["remote", "add", "origin", &url, "--credentials", "test"];
    world.run_at_home(&add).code(3).remarks("not those of a volume");
    let puts = server.take_requests().into_iter().filter(|request| request.method == "PUT");
    assert!(puts.into_iter().all(|put| put.key.contains("/vellum/") || put.key.contains("/probe/")));
}

#[test]
fn a_service_that_forgot_conditions_since_is_only_read() {
    let world = world_with_credentials();
    let server = LyingS3::start().unwrap();
    init(&world, &server.store_url("store")).ok();
    world.write("a.txt", "one\n");
    world.run_at_home(&["snapshot", "-m", "one"]).ok();
    server.add_lie(every("PUT"), S3Lie::IgnoreConditions);
    // The result of the last check is too old to be used.
    fs::remove_file(world.tree().join(".vellum/store-check.json")).unwrap();
    server.overwrite_object("store/store-check", b"not sealed by anybody");
    world.write("a.txt", "two\n");
    world.run_at_home(&["snapshot", "-m", "two"]).code(2).remarks("only read");
    world.run_at_home(&["history"]).ok().says("one");
    assert_eq!(world.run_at_home(&["cat", "HEAD", "a.txt"]).ok().out, "one\n");
}

#[test]
fn a_service_that_deletes_unconditionally_can_be_lived_with() {
    let world = world_with_credentials();
    let server = LyingS3::start().unwrap();
    server.add_lie(every("DELETE"), S3Lie::IgnoreConditions);
    let url = server.store_url("bench");
    let bench = ["objbench", &url, "--credentials", "test", "--small-objects", "0", "--big-object-size", "0"];
    let ran = world.run_at_home(&bench).code(1).says("works without what is missing");
    ran.says("missing  a ref is deleted by compare-and-swap").says("Vellum works without it");
    init(&world, &server.store_url("store")).ok();
    world.write("a.txt", "one\n");
    world.run_at_home(&["snapshot", "--tag", "t"]).ok();
    world.run_at_home(&["tag", "remove", "t"]).ok();
    world.run_at_home(&["tag", "add", "t"]).ok();
    world.run_at_home(&["gc", "run"]).ok();
    world.run_at_home(&["verify", "--all"]).ok();
}

#[test]
fn a_server_that_stopped_is_an_error_in_time_and_loses_nothing() {
    let world = world_with_credentials();
    let server = SeaweedServer::start(&world.path("seaweed"));
    init(&world, &server.store_url("stopped")).ok();
    world.write("a.txt", "one\n");
    world.run_at_home(&["snapshot", "-m", "one"]).ok();
    server.signal(Signal::STOP).unwrap();
    let start = Instant::now();
    world.run_at_home(&["cat", "HEAD", "a.txt"]).code(2).remarks("no answer for 10 s");
    assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
    // Ctrl-C does not wait for it.
    let mut waiting = world.command_at_home(&["verify", "--all"]).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let interrupted = Instant::now();
    let pid = rustix::process::Pid::from_child(&waiting);
    rustix::process::kill_process(pid, Signal::INT).unwrap();
    waiting.wait().unwrap();
    assert!(interrupted.elapsed() < Duration::from_secs(3), "{:?}", interrupted.elapsed());
    server.signal(Signal::CONT).unwrap();
    world.run_at_home(&["verify", "--all"]).ok();
}

#[test]
fn secrets_are_nowhere_but_in_their_file() {
    let world = world_with_credentials();
    let server = LyingS3::start().unwrap();
    let secret =
        SeaweedServer::credentials_file().lines().last().unwrap().split_once("= ").unwrap().1.to_owned();
    init(&world, &server.store_url("store")).ok();
    world.write("a.txt", "one\n");
    let mut command = world.command_at_home(&["snapshot", "--json", "-m", "one"]);
    let ran = command.env("VELLUM_LOG", "trace").output().unwrap();
    assert!(ran.status.success());
    for output in [&ran.stdout, &ran.stderr] {
        assert!(!String::from_utf8_lossy(output).contains(&secret));
    }
    // Denied, with everything that the error has to say.
    server.add_lie(every("GET"), S3Lie::Fail(S3Failure::new(403, "SignatureDoesNotMatch")));
    let mut command = world.command_at_home(&["verify", "--all"]);
    let ran = command.env("VELLUM_LOG", "trace").output().unwrap();
    assert_eq!(ran.status.code(), Some(2));
    assert!(!String::from_utf8_lossy(&ran.stderr).contains(&secret));
    assert_no_secret_in(&world.tree(), &secret);
    assert_no_secret_in(&world.path("state"), &secret);
    let others = world.path("config/vellum/credentials/test");
    fs::set_permissions(&others, fs::Permissions::from_mode(0o644)).unwrap();
    let ran = world.run_at_home(&["history"]).code(2).remarks("chmod 600");
    assert!(!ran.err.contains(&secret));
}

pub fn assert_no_secret_in(dir: &Path, secret: &str) {
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            assert_no_secret_in(&path, secret);
        } else {
            let bytes = fs::read(&path).unwrap();
            let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!found, "{} has the secret", path.display());
        }
    }
}

/// Runs the binary with a folder for caches.
pub fn run_with_cache(world: &World, args: &[&str]) -> Ran {
    let mut command = world.command_at_home(args);
    Ran::of(args, command.env("XDG_CACHE_HOME", world.path("cache")).output().unwrap())
}

pub fn world_with_cached_snapshot(server: &LyingS3) -> World {
    let world = world_with_credentials();
    init(&world, &server.store_url("store")).ok();
    for number in 0..40 {
        world.write(&format!("dir-{}/file-{number}", number % 3), crate::world::noise(20_000 + number));
    }
    // Files as old as the snapshot are read again by the next one, which then asks for their packs.
    std::thread::sleep(Duration::from_millis(50));
    run_with_cache(&world, &["snapshot", "-m", "one"]).ok();
    world
}

#[test]
fn commands_take_few_requests() {
    let server = LyingS3::start().unwrap();
    let world = world_with_cached_snapshot(&server);
    let count = |args: &[&str], code| {
        let _ = server.take_requests();
        run_with_cache(&world, args).code(code);
        server.take_requests().len()
    };
    world.write("dir-1/file-1", "changed\n");
    let counts = [
        count(&["status"], 1),
        count(&["snapshot", "-m", "two"], 0),
        count(&["history"], 0),
        count(&["diff", "HEAD~1", "HEAD"], 1),
        count(&["cat", "HEAD", "dir-1/file-1"], 0),
    ];
    // One of those of a snapshot puts the record of the operation, beside that of the snapshot, and one reads the settings
    // of the volume.
    let most = [5, 10, 5, 2, 1];
    assert!(counts.iter().zip(most).all(|(count, most)| *count <= most), "{counts:?}, at most {most:?}");
}

#[test]
fn commands_of_an_encrypted_volume_take_few_requests() {
    let server = LyingS3::start().unwrap();
    let world = world_with_credentials();
    let key = world.path("key-file");
    fs::write(&key, "a secret of some length").unwrap();
    let key = key.display().to_string();
    let url = server.store_url("store");
    let open = ["--store", &url, "--credentials", "test", "--key-file", &key];
    run_with_cache(&world, &[&["init"], &open[..]].concat()).ok();
    world.write("dir/file", crate::world::noise(20_000));
    run_with_cache(&world, &["snapshot", "--tag", "first"]).ok();
    let count = |args: &[&str]| {
        let _ = server.take_requests();
        run_with_cache(&world, args).ok();
        server.take_requests()
    };
    // Its content is a pack of its own, beside that of the nodes.
    world.write("dir/changed", crate::world::noise(5000));
    let snapshot = count(&["snapshot"]);
    assert_eq!(snapshot.len(), 12, "{snapshot:#?}");
    // Nothing in it was stored before, so that nobody need know which packs are condemned.
    assert!(snapshot.iter().all(|request| !request.key.ends_with("/index/")), "{snapshot:#?}");
    // Newer keys are looked for once, before the ref is trusted.
    let looks = |requests: &[S3Request]| {
        requests.iter().filter(|request| request.key.contains("/key-epochs/")).count()
    };
    assert_eq!(looks(&snapshot), 1);
    let other = world.path("other").display().to_string();
    let attach = count(&[&["init", &other], &open[..]].concat());
    assert!(attach.len() <= 21, "{}: {attach:#?}", attach.len());
    assert_eq!(looks(&attach), 2);
    let list = count(&["-C", &other, "ls", "first"]);
    assert!(list.len() <= 5, "{}: {list:#?}", list.len());
}

#[test]
fn a_clone_takes_few_requests() {
    let server = LyingS3::start().unwrap();
    let world = world_with_credentials();
    let url = server.store_url("store");
    let key = world.path("key-file");
    fs::write(&key, "a secret of some length").unwrap();
    let key = key.display().to_string();
    let open = ["--store", &url, "--credentials", "test", "--key-file", &key];
    world.run_at_home(&[&["init"], &open[..]].concat()).ok();
    let content = crate::world::noise(400 * 30_000);
    for (number, file) in content.chunks(30_000).enumerate() {
        world.write(&format!("dir-{}/file-{number}", number % 7), file);
    }
    world.run_at_home(&["snapshot", "-m", "one"]).ok();
    let dir = world.path("clone").display().to_string();
    let _ = server.take_requests();
    run_with_cache(&world, &["clone", &url, &dir, "--credentials", "test", "--key-file", &key]).ok();
    let requests = server.take_requests();
    assert!(requests.len() <= 30, "{}: {requests:#?}", requests.len());
    // The config never changes, and each of these objects is asked for where it matters: before anything is read, and
    // after the ref was made.
    // What is read early is not read again.
    for (name, most) in [("/config", 1), ("/store-check", 1), ("/key-epochs/", 2), ("/refs/tag/", 2)] {
        let count = requests.iter().filter(|request| request.key.contains(name)).count();
        assert!(count <= most, "{count} requests for {name}");
    }
    for (number, file) in content.chunks(30_000).enumerate() {
        assert!(fs::read(Path::new(&dir).join(format!("dir-{}/file-{number}", number % 7))).unwrap() == file);
    }
}

#[test]
fn what_another_machine_changed_and_collected_is_noticed() {
    let server = LyingS3::start().unwrap();
    let world = world_with_cached_snapshot(&server);
    let other = world.path("other");
    fs::create_dir(&other).unwrap();
    // Without a cache: nothing of what the first machine has read.
    let run = |args: &[&str]| {
        let mut command = world.command_at_home(args);
        Ran::of(args, command.current_dir(&other).output().unwrap())
    };
    let url = server.store_url("store");
    run(&["init", "--plain", "--store", &url, "--credentials", "test", "--name", "other"]).ok();
    run(&["restore", "main"]).ok();
    for number in 0..20 {
        fs::write(other.join(format!("dir-0/new-{number}")), crate::world::noise(30_000 + number)).unwrap();
    }
    run(&["snapshot", "-m", "elsewhere", "--tag", "elsewhere"]).ok();
    // The index here knows none of its blobs.
    let clear = || run_with_cache(&world, &["cache", "--clear"]).ok();
    clear();
    run_with_cache(&world, &["diff", "main", "elsewhere"]).code(1).says("new-7");
    run_with_cache(&world, &["restore", "elsewhere", "dir-0"]).ok();
    assert_eq!(fs::read(world.tree().join("dir-0/new-7")).unwrap(), crate::world::noise(30_007));
    // Then half of it goes, and what is left is packed again: places that the index here knows are wrong.
    run(&["tag", "remove", "elsewhere"]).ok();
    (0..10).for_each(|number| fs::remove_file(other.join(format!("dir-0/new-{number}"))).unwrap());
    run(&["snapshot", "-m", "fewer"]).ok();
    run(&["forget", "HEAD~1"]).ok();
    run(&["gc", "run"]).ok();
    clear();
    let to = world.path("exported");
    run_with_cache(&world, &["export", "other", "--to", &to.display().to_string()]).ok();
    assert_eq!(fs::read(to.join("dir-0/new-17")).unwrap(), crate::world::noise(30_017));
    // What was collected is stored again by whoever still has it.
    run_with_cache(&world, &["snapshot", "-m", "all"]).ok();
    run_with_cache(&world, &["verify", "--all"]).ok();
    clear();
    run(&["restore", "main"]).ok();
    assert_eq!(fs::read(other.join("dir-0/new-7")).unwrap(), crate::world::noise(30_007));
}

#[test]
fn the_copy_of_the_config_is_not_trusted() {
    let server = LyingS3::start().unwrap();
    let world = world_with_cached_snapshot(&server);
    let copy = world.tree().join(".vellum/config.copy");
    let sound = fs::read(&copy).unwrap();
    let mut damaged = sound.clone();
    *damaged.last_mut().unwrap() ^= 1;
    for bytes in [damaged, b"nonsense".to_vec(), Vec::new()] {
        fs::write(&copy, bytes).unwrap();
        run_with_cache(&world, &["history"]).ok().says("one");
        assert_eq!(fs::read(&copy).unwrap(), sound);
    }
}

#[test]
fn the_bandwidth_of_a_store_is_limited_until_the_limit_is_removed() {
    let world = world_with_credentials();
    let server = LyingS3::start().unwrap();
    let run = |args: &[&str]| run_with_cache(&world, args);
    let url = server.store_url("store");
    run(&["init", "--plain", "--name", "main", "--store", &url, "--credentials", "test"]).ok();
    run(&["bandwidth"]).ok().remarks("upload: unlimited, download: unlimited");
    run(&["bandwidth", "--upload", "400K"]).ok().remarks("upload: 400.0 KiB/s, download: unlimited");
    run(&["bandwidth", "--download", "2M"]).ok().remarks("upload: 400.0 KiB/s, download: 2.0 MiB/s");
    world.write("a.bin", crate::world::noise(600_000));
    let start = Instant::now();
    run(&["snapshot"]).ok();
    assert!(start.elapsed() > Duration::from_secs(1), "600,000 bytes at 409,600 a second");
    let ran = run(&["bandwidth", "--upload", "0", "--json"]).ok();
    let shown: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&shown["upload"], &shown["download"]), (&serde_json::Value::Null, &(2 << 20).into()));
    run(&["bandwidth", "--upload", "5"]).code(3).remarks("1K or more");
    let local = World::empty();
    local.run_at_home(&["init", "--plain"]).ok();
    local.run_at_home(&["bandwidth"]).code(3).remarks("the store is a directory");
}
