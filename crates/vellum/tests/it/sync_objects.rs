//! `vellum sync` with plain objects of a service: a real server and rclone, and a server that lies.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use vellum_testkit::random::TestRandom;
use vellum_testkit::{LyingS3, S3Failure, S3Lie, S3Match, SeaweedServer};

use crate::world::{Ran, World, noise};

/// Every file below a directory: content and time of last change.
type Tree = BTreeMap<Vec<u8>, (Vec<u8>, i64, i64)>;

fn read_tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let found = path.symlink_metadata().unwrap();
            if found.is_dir() {
                pending.push(path);
            } else if found.is_file() {
                let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
                tree.insert(name, (fs::read(&path).unwrap(), found.mtime(), found.mtime_nsec()));
            }
        }
    }
    tree
}

/// Sets the time of last change.
fn set_mtime(path: &Path, seconds: f64) {
    let time = match seconds < 0.0 {
        true => std::time::SystemTime::UNIX_EPOCH - Duration::from_secs_f64(-seconds),
        false => std::time::SystemTime::UNIX_EPOCH + Duration::from_secs_f64(seconds),
    };
    fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

/// A place to work in that has credentials, which both servers accept.
pub fn new_world() -> World {
    let world = World::empty();
    let dir = world.path("config/vellum/credentials");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("test"), SeaweedServer::credentials_file()).unwrap();
    fs::set_permissions(dir.join("test"), fs::Permissions::from_mode(0o600)).unwrap();
    world
}

fn sync(world: &World, args: &[&str]) -> Ran {
    world.run_at_home(&[&["sync", "--credentials", "test"], args].concat())
}

/// A tree with what names, sizes and times can be.
fn write_varied_tree(world: &World) {
    world.write("src/a.txt", "one\n");
    world.write("src/empty", "");
    world.write("src/dir/b & <c> 'd' \"e\".txt", "quoted\n");
    world.write("src/dir/ünï%20+?#.txt", "odd\n");
    world.write("src/dir-x", "beside\n");
    world.write("src/dir/deep/er/c.bin", noise(300_000));
    world.write("src/big.bin", noise(21 << 20));
    set_mtime(&world.tree().join("src/a.txt"), 1_354_040_105.123_456);
    set_mtime(&world.tree().join("src/empty"), -86_400.5);
    set_mtime(&world.tree().join("src/dir-x"), 4_000_000_000.0);
}

#[test]
fn a_tree_goes_up_and_comes_down_and_rclone_agrees() {
    let world = new_world();
    let server = SeaweedServer::start(&world.path("seaweed"));
    let url = server.store_url("some/prefix");
    write_varied_tree(&world);
    fs::create_dir_all(world.tree().join("src/hollow/inner")).unwrap();
    symlink("a.txt", world.tree().join("src/link")).unwrap();
    let source = world.tree().join("src");

    sync(&world, &["-n", "src/", &url]).ok().says("Dry run").says("write   a.txt").says("big.bin");
    let up = sync(&world, &["-a", "src/", &url]).ok().says("Done: 7 made").says("in 7 files");
    up.remarks("not kept in objects: 1 symlink (-L copies what they lead to), 2 empty directories");
    sync(&world, &["-a", "src/", &url]).ok().says("Nothing to do");
    sync(&world, &["-ac", "--delete", "src/", &url]).ok().says("Nothing to do");
    sync(&world, &["-a", &url, "down"]).ok().says("in 7 files");
    assert!(read_tree(&world.tree().join("down")) == read_tree(&source), "content and times come back");
    sync(&world, &["-a", &url, "down"]).ok().says("Nothing to do");
    sync(&world, &["-ac", &url, "down"]).ok().says("Nothing to do");
    fs::remove_file(source.join("link")).unwrap();

    // rclone finds nothing to do, in either direction, and gets the same files.
    let rclone = |args: &[&str]| {
        let (environment, _) = server.rclone_place("");
        let output = Command::new("rclone")
            .args(args)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .envs(environment)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "rclone {args:?}: {text}");
        text
    };
    let place = server.rclone_place("some/prefix").1;
    let source_text = source.display().to_string();
    let idle = rclone(&["sync", "-v", &source_text, &place]);
    assert!(idle.contains("There was nothing to transfer"), "{idle}");
    let fetched = world.tree().join("fetched").display().to_string();
    rclone(&["sync", &place, &fetched]);
    assert!(read_tree(Path::new(&fetched)) == read_tree(&source), "rclone reads what was uploaded");

    // What rclone uploaded is read here, and is as good as uploaded here.
    let other = server.rclone_place("by/rclone").1;
    rclone(&["sync", "--s3-upload-cutoff", "16M", "--s3-chunk-size", "5M", &source_text, &other]);
    let url = server.store_url("by/rclone");
    sync(&world, &["-a", "--delete", "src/", &url]).ok().says("Nothing to do");
    sync(&world, &["-ac", "src/", &url]).ok().says("Nothing to do");
    sync(&world, &["-a", &url, "down2"]).ok();
    assert!(read_tree(&world.tree().join("down2")) == read_tree(&source));

    // Changes go up, and what is gone is deleted.
    world.write("src/a.txt", "another\n");
    fs::remove_dir_all(source.join("dir")).unwrap();
    let seen = sync(&world, &["-n", "-i", "-a", "--delete", "src/", &url]).ok();
    seen.says(">fcst...... a.txt").says("*deleting   dir/deep/er/c.bin");
    let json = sync(&world, &["--json", "-a", "--delete", "src/", &url]).ok();
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!((json["updated"].as_u64(), json["deleted"].as_u64()), (Some(1), Some(3)), "{json}");
    sync(&world, &["-a", "--delete", &url, "down2"]).ok().says("deleted");
    assert!(read_tree(&world.tree().join("down2")) == read_tree(&source));
    let idle = rclone(&["sync", "-v", &source_text, &other]);
    assert!(idle.contains("There was nothing to transfer"), "{idle}");
}

/// Requests of a method since the last call.
#[test]
fn a_snapshot_goes_up_as_it_was() {
    let world = new_world();
    let server = SeaweedServer::start(&world.path("seaweed"));
    let url = server.store_url("from/a/snapshot");
    world.run_at_home(&["init", "--plain", "-q"]).ok();
    write_varied_tree(&world);
    world.write("src/holes.bin", "beginning");
    let holes = fs::File::options().write(true).open(world.tree().join("src/holes.bin")).unwrap();
    holes.set_len(9 << 20).unwrap();
    world.run_at_home(&["snapshot", "-q", "--tag", "first"]).ok();
    let recorded = read_tree(&world.tree().join("src"));
    world.write("src/a.txt", "changed since\n");
    world.remove("src/big.bin");

    let source = format!("{}@first:/src/", world.tree().display());
    sync(&world, &["-a", &source, &url]).ok().says("in 8 files");
    sync(&world, &["-a", &source, &url]).ok().says("Nothing to do");
    sync(&world, &["-a", &url, "down"]).ok();
    assert!(read_tree(&world.tree().join("down")) == recorded, "content and times are those of the snapshot");
}

fn count_requests(server: &LyingS3) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for request in server.take_requests() {
        *counts.entry(request.method).or_default() += 1;
    }
    counts
}

fn each(method: &'static str, key: &str) -> S3Match {
    S3Match { method, key: key.to_owned(), skip: 0, times: u32::MAX }
}

fn once(method: &'static str, key: &str) -> S3Match {
    S3Match { times: 1, ..each(method, key) }
}

#[test]
fn single_objects_are_asked_about_only_where_the_answer_decides() {
    let world = new_world();
    let server = LyingS3::start().unwrap();
    let url = server.store_url("p");
    for number in 0..10 {
        world.write(&format!("src/{number}"), format!("{number:03}"));
    }
    sync(&world, &["-a", "src/", &url]).ok();
    // Two `config` above the prefix and in it, which no store may have.
    assert_eq!(count_requests(&server), BTreeMap::from([("HEAD", 2), ("LIST", 1), ("PUT", 10)]));
    sync(&world, &["-a", "src/", &url]).ok().says("Nothing to do");
    assert_eq!(count_requests(&server), BTreeMap::from([("HEAD", 12), ("LIST", 1)]));
    sync(&world, &["-a", "--size-only", "src/", &url]).ok().says("Nothing to do");
    assert_eq!(count_requests(&server), BTreeMap::from([("HEAD", 2), ("LIST", 1)]));
    world.write("src/3", "longer");
    sync(&world, &["-a", "--exclude=[5-9]", "--max-size=5", "src/", &url]).ok().says("Nothing to do");
    assert_eq!(count_requests(&server), BTreeMap::from([("HEAD", 6), ("LIST", 1)]));
    sync(&world, &["-a", "src/", &url]).ok().says("1 updated");
    assert_eq!(count_requests(&server), BTreeMap::from([("HEAD", 11), ("LIST", 1), ("PUT", 1)]));
    sync(&world, &["-a", &url, "down"]).ok();
    assert_eq!(count_requests(&server), BTreeMap::from([("GET", 10), ("HEAD", 10), ("LIST", 1)]));
    sync(&world, &["-n", "-a", &url, "other"]).ok();
    assert_eq!(count_requests(&server), BTreeMap::from([("LIST", 1)]));
    fs::remove_file(world.tree().join("src/3")).unwrap();
    sync(&world, &["-a", "--size-only", "--delete", "src/", &url]).ok().says("1 deleted");
    assert_eq!(count_requests(&server), BTreeMap::from([("DELETE", 1), ("HEAD", 3), ("LIST", 1)]));
}

#[test]
fn failures_that_pass_are_repeated_and_nothing_is_cut_off() {
    let world = new_world();
    let server = LyingS3::start().unwrap();
    let url = server.store_url("p");
    world.write("src/small", noise(100_000));
    world.write("src/large", noise(30 << 20));
    let slow = || S3Lie::Fail(S3Failure::new(503, "SlowDown"));
    server.add_lie(once("PUT", "p/small"), S3Lie::LoseReply);
    server.add_lie(S3Match { skip: 1, times: 2, ..each("PUT", "p/large") }, slow());
    server.add_lie(once("PUT", "p/large"), S3Lie::LoseReply);
    server.add_lie(S3Match { skip: 1, times: 1, ..each("POST", "p/large") }, slow());
    server.add_lie(S3Match { skip: 1, times: 1, ..each("POST", "p/large") }, S3Lie::LoseReply);
    server.add_lie(once("LIST", "p"), slow());
    sync(&world, &["-a", "src/", &url]).ok().says("2 made");
    assert_eq!(server.count_unfinished_uploads(), 0);
    for name in ["small", "large"] {
        let key = format!("p/{name}");
        let bytes = server.read_object(&key).unwrap();
        assert!(bytes == fs::read(world.tree().join("src").join(name)).unwrap(), "{name}");
        assert!(server.read_mtime(&key).unwrap().parse::<f64>().unwrap() > 1e9);
    }
    server.tell_truth();
    server.add_lie(S3Match { times: 2, ..each("GET", "p/large") }, S3Lie::CutBody(1 << 20));
    server.add_lie(once("GET", "p/large"), S3Lie::ShortBody(1 << 20));
    server.add_lie(once("GET", "p/small"), slow());
    server.add_lie(once("HEAD", "p/small"), S3Lie::Disconnect);
    sync(&world, &["-a", &url, "down"]).ok();
    assert!(read_tree(&world.tree().join("down")) == read_tree(&world.tree().join("src")));
}

#[test]
fn what_was_changed_by_others_is_left_and_told() {
    let world = new_world();
    let server = LyingS3::start().unwrap();
    let url = server.store_url("p");
    for name in ["a", "b", "c"] {
        world.write(&format!("src/{name}"), "old");
    }
    sync(&world, &["-a", "src/", &url]).ok();
    world.write("src/a", "newer");
    fs::remove_file(world.tree().join("src/b")).unwrap();
    world.write("src/d", "new");
    let changed = || S3Lie::Fail(S3Failure::new(412, "PreconditionFailed"));
    server.add_lie(once("PUT", "p/a"), changed());
    server.add_lie(once("PUT", "p/d"), changed());
    let ran = sync(&world, &["-a", "--delete", "src/", &url]).code(1);
    let ran = ran.remarks("a: the object was changed by someone else").remarks("d: the object was changed");
    ran.remarks("nothing was deleted; 1 object stays");
    assert_eq!(server.read_object("p/a").unwrap(), b"old");
    server.add_lie(once("DELETE", "p/b"), changed());
    sync(&world, &["-a", "--delete", "src/", &url])
        .code(1)
        .remarks("b: the object was changed by someone else");
    sync(&world, &["-a", "--delete", "src/", &url]).ok().says("1 deleted");
    assert_eq!(server.list_keys(), ["p/a", "p/c", "p/d"]);
    server.add_lie(once("GET", "p/c"), changed());
    let ran = sync(&world, &["-a", &url, "down"]).code(1);
    ran.remarks("c: the object was changed by someone else");
    assert!(!world.has("down/c") && world.has("down/a"));
}

#[test]
fn a_failed_upload_leaves_nothing_unfinished_and_a_stopped_one_goes_on() {
    let world = new_world();
    let server = LyingS3::start().unwrap();
    let url = server.store_url("p");
    world.write("src/large", noise(40 << 20));
    server.overwrite_object("p/extra", b"x");
    server.add_lie(
        S3Match { skip: 2, ..each("PUT", "p/large") },
        S3Lie::Fail(S3Failure::new(403, "AccessDenied")),
    );
    let ran = sync(&world, &["-a", "--delete", "--force-delete", "src/", &url]).code(1);
    ran.remarks("large").remarks("AccessDenied").remarks("nothing was deleted");
    assert_eq!((server.count_unfinished_uploads(), server.list_keys()), (0, vec!["p/extra".to_owned()]));
    server.tell_truth();

    let mut command =
        world.command_at_home(&["sync", "--credentials", "test", "-a", "--bwlimit=8M", "src/", &url]);
    let child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while server.count_unfinished_uploads() == 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "it does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!((server.count_unfinished_uploads(), server.list_keys()), (1, vec!["p/extra".to_owned()]));
    let stored = server.list_stored_parts();
    let _ = server.take_requests();
    sync(&world, &["-a", "src/", &url]).ok();
    let sent: Vec<u32> = server.take_requests().iter().filter_map(|request| request.part).collect();
    assert!(sent.len() + stored.len() == 5 && !sent.iter().any(|part| stored.contains(part)), "{sent:?}");
    assert_eq!(server.count_unfinished_uploads(), 0);
}

#[test]
fn a_source_that_changes_while_it_is_uploaded_is_noticed() {
    let world = new_world();
    let server = LyingS3::start().unwrap();
    let url = server.store_url("p");
    world.write("src/large", noise(40 << 20));
    let args = ["sync", "--credentials", "test", "-a", "--bwlimit=16M", "--retries=0", "src/", &url];
    let child = world.command_at_home(&args).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while server.count_unfinished_uploads() == 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "it does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    world.write("src/large", noise(20 << 20));
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains("it changed while it was being read"), "{text}");
    assert_eq!((server.count_unfinished_uploads(), server.list_keys().len()), (0, 0));
}

#[test]
fn names_that_one_side_cannot_hold_are_told_and_the_rest_goes_on() {
    let world = new_world();
    let server = LyingS3::start().unwrap();
    let url = server.store_url("p");
    for key in ["good", "dir/good", "a//b", "../up", "dir", "x/./y", "ends/"] {
        server.overwrite_object(&format!("p/{key}"), b"x");
    }
    world.write("down/extra", "stays");
    let ran = sync(&world, &["-a", "--delete", "--force-delete", &url, "down"]).code(1);
    for key in ["a//b:", "../up:", "dir:", "x/./y:"] {
        assert!(ran.err.contains(key), "{key} in {}", ran.err);
    }
    ran.remarks("so nothing is deleted");
    assert!(world.has("down/good") && world.has("down/dir/good") && world.has("down/extra"));
    assert!(!world.tree().join("up").exists());

    let odd = |bytes: &[u8]| world.tree().join("odd").join(std::ffi::OsStr::from_bytes(bytes));
    fs::create_dir(world.tree().join("odd")).unwrap();
    for name in [&b"caf\xe9"[..], b"two\nlines", b"trailing ", b"fine"] {
        fs::write(odd(name), "x").unwrap();
    }
    let url = server.store_url("q");
    server.overwrite_object("q/extra", b"x");
    let ran = sync(&world, &["-a", "--delete", "--force-delete", "odd/", &url]).code(1);
    let ran = ran.remarks("is not UTF-8").remarks("control characters").remarks("white space");
    ran.remarks("so nothing is deleted");
    let keys: Vec<String> = server.list_keys().into_iter().filter(|key| key.starts_with("q/")).collect();
    assert_eq!(keys, ["q/extra", "q/fine"]);
}

#[test]
fn what_must_not_be_touched_is_refused() {
    let world = new_world();
    let server = LyingS3::start().unwrap();
    world.write("src/a", "a");
    world.run_at_home(&["init", "--plain"]).ok();
    let config = fs::read(world.tree().join(".vellum/store/config")).unwrap();
    server.overwrite_object("data/store/config", &config);
    for folder in ["data/store", "data/store/packs/deep"] {
        let refused = sync(&world, &["-a", "src/", &server.store_url(folder)]).code(2);
        refused.remarks("a Vellum store, which only Vellum may change");
    }
    let refused =
        sync(&world, &["-a", "--delete", "--force-delete", "src/", &server.store_url("data")]).code(2);
    refused.remarks("'store' at the destination is a Vellum store");
    assert_eq!(server.list_keys(), ["data/store/config"]);
    sync(&world, &["-a", "src/", &server.store_url("data")]).ok();

    // Too much is not deleted; nothing to copy is an error.
    let url = server.store_url("many");
    for number in 0..30 {
        server.overwrite_object(&format!("many/{number}"), b"x");
    }
    sync(&world, &["-a", "--delete", "src/", &url]).code(1).remarks("more than half");
    sync(&world, &["-a", "--delete", "--max-delete=3", "src/", &url]).code(2).remarks("3 are allowed");
    fs::create_dir(world.tree().join("void")).unwrap();
    sync(&world, &["-a", "--delete", "void/", &url]).code(2).remarks("the source is empty");
    sync(&world, &["-a", "--delete", &server.store_url("nothing"), "src"])
        .code(2)
        .remarks("there are no objects");
    assert!(world.has("src/a") && server.list_keys().len() == 33);
}

#[test]
fn options_without_a_meaning_are_refused_by_name() {
    let world = new_world();
    world.write("src/a", "a");
    let url = "s3://bucket/p?endpoint=http://127.0.0.1:1";
    for option in [
        "--two-way",
        "--in-place",
        "--append",
        "--fake-super",
        "-H",
        "-X",
        "-A",
        "-U",
        "-E",
        "-K",
        "-R",
        "--link-dest=x",
        "--copy-dest=x",
        "--compare-dest=x",
        "--backup",
        "--trash",
        "--resume",
        "--partial-dir=x",
        "--temp-dir=x",
        "--delay-updates",
        "--verify",
        "--chmod=go-w",
        "--chown=root",
        "--detect-renames",
        "-z",
        "--timeout=9",
        "--delta=always",
        "--iconv=utf-8,latin1",
        "--mkpath",
    ] {
        let ran = sync(&world, &["-a", option, "src/", url]).code(3);
        ran.remarks("has no meaning with a service");
    }
    sync(&world, &["-a", "--in-place", url, "down"]).code(3).remarks("--in-place has no meaning");
    sync(&world, &["-a", url, url]).code(3).remarks("has to be a directory of this host");
    sync(&world, &["-a", "src/", url, "down"]).code(3).remarks("a service is the only source of a run");
    sync(&world, &["-a", "host:src", url]).code(3).remarks("another host");
    sync(&world, &["-a", url, "host:down"]).code(3).remarks("another host");
    sync(&world, &["-a", "src/", "s3://key:secret@bucket/p"]).code(3).remarks("no user names and secrets");
    sync(&world, &["-a", "src/", "down"]).code(3).remarks("--credentials is for services");
}

#[test]
fn rules_lists_and_choices_hold_for_objects_too() {
    let world = new_world();
    let server = LyingS3::start().unwrap();
    let url = server.store_url("p");
    for (name, text) in [("a.txt", "1"), ("b.tmp", "22"), ("dir/c.txt", "333"), ("dir/d.tmp", "4444")] {
        world.write(&format!("src/{name}"), text);
    }
    let keys = || server.list_keys().join(" ");
    sync(&world, &["-a", "--exclude=*.tmp", "src/", &url]).ok().says("2 made");
    assert_eq!(keys(), "p/a.txt p/dir/c.txt");
    world.write("list", "dir/d.tmp\n");
    sync(&world, &["-a", "--files-from=list", "src/", &url]).ok().says("1 made");
    sync(&world, &["-a", "--existing", "src/", &url]).ok().says("Nothing to do");
    sync(&world, &["-a", "--delete", "--exclude=*.tmp", "src/", &url]).ok().says("Nothing to do");
    assert_eq!(keys(), "p/a.txt p/dir/c.txt p/dir/d.tmp");
    sync(&world, &["-a", "src", &url]).ok().says("4 made");
    sync(&world, &["-a", "src/a.txt", &url]).ok().says("Nothing to do");
    assert!(keys().contains("p/src/dir/c.txt"));
    sync(&world, &["-a", "--include=/dir/", "--include=/dir/**", "--exclude=*", &url, "part"]).ok();
    assert_eq!(read_tree(&world.tree().join("part")).len(), 2);
    world.write("list", "a.txt\nmissing\n");
    let ran = sync(&world, &["-a", "--files-from=list", &url, "listed"]).code(1);
    ran.remarks("missing: it is listed, but does not exist");
    assert_eq!(read_tree(&world.tree().join("listed")).len(), 1);

    // What is newer stays, in both directions.
    world.write("src/a.txt", "newer");
    set_mtime(&world.tree().join("part/dir/c.txt"), 4e9);
    set_mtime(&world.tree().join("src/a.txt"), 1.0);
    sync(&world, &["-a", "--update", "src/", &url]).ok().says("1 made").says("in 1 file");
    assert_eq!(server.read_object("p/a.txt").unwrap(), b"1");
    sync(&world, &["-a", "--ignore-existing", "src/", &url]).ok().says("Nothing to do");
    world.write("part/dir/c.txt", "mine, and newer");
    set_mtime(&world.tree().join("part/dir/c.txt"), 4e9);
    sync(&world, &["-a", "--update", "--exclude=/src", &url, "part"]).ok();
    assert_eq!(world.read("part/dir/c.txt"), "mine, and newer");
    sync(&world, &["-a", "--newer-than=2100-01-01", &url, "later"]).ok();
    assert!(read_tree(&world.tree().join("later")).is_empty());
    sync(&world, &["-ab", "--exclude=/src", &url, "part"]).ok().says("updated");
    assert_eq!(world.read("part/dir/c.txt~"), "mine, and newer");
}

#[test]
fn random_trees_come_back_as_they_are() {
    for seed in 0..4 {
        let world = new_world();
        let server = LyingS3::start().unwrap();
        let url = server.store_url("p");
        let mut random = TestRandom::new(seed);
        fs::create_dir(world.tree().join("src")).unwrap();
        for round in 0..3 {
            change_tree(&world, &mut random);
            if read_tree(&world.tree().join("src")).is_empty() {
                world.write("src/last", "one");
            }
            let args = ["-a", "--delete", "--force-delete", "src/", &url];
            sync(&world, &args).ok();
            sync(&world, &args).ok().says("Nothing to do");
            sync(&world, &["-a", "--delete", "--force-delete", &url, "down"]).ok();
            let source = read_tree(&world.tree().join("src"));
            assert!(read_tree(&world.tree().join("down")) == source, "seed {seed}, round {round}");
            assert_eq!(server.list_keys().len(), source.len(), "seed {seed}, round {round}");
        }
    }
}

/// Writes, removes and replaces files and directories at random.
fn change_tree(world: &World, random: &mut TestRandom) {
    for _ in 0..12 {
        let depth = random.next_below(3);
        let names: Vec<String> = (0..=depth).map(|_| format!("n{}", random.next_below(4))).collect();
        let path = world.tree().join("src").join(names.join("/"));
        match random.next_below(4) {
            0 if path.is_dir() => fs::remove_dir_all(&path).unwrap(),
            0 if path.exists() => fs::remove_file(&path).unwrap(),
            _ => {
                let above: Vec<_> = path.ancestors().skip(1).collect();
                if path.is_dir() || above.iter().any(|dir| dir.is_file()) {
                    continue;
                }
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, noise(random.next_below(2000) as usize)).unwrap();
                set_mtime(&path, 1e9 + random.next_below(1 << 30) as f64 / 1024.0);
            }
        }
    }
}

#[test]
fn files_and_objects_move_and_what_did_not_arrive_or_changed_stays() {
    let world = new_world();
    let server = LyingS3::start().unwrap();
    let url = server.store_url("p");
    for name in ["src/a", "src/dir/b", "src/denied"] {
        world.write(name, name);
    }
    server.add_lie(once("PUT", "p/a"), S3Lie::LoseReply);
    server.add_lie(each("PUT", "p/denied"), S3Lie::Fail(S3Failure::new(403, "AccessDenied")));
    symlink("a", world.tree().join("src/link")).unwrap();
    let moves = ["-a", "--remove-source-files"];
    sync(&world, &[&moves[..], &["-n", "src/", &url]].concat()).ok();
    assert!(world.has("src/a"), "a dry run removes nothing");
    sync(&world, &[&moves[..], &["src/", &url]].concat()).code(1).says("2 removed at the source");
    assert!(!world.has("src/a") && !world.has("src/dir/b") && world.has("src/denied"));
    assert!(world.has("src/link"), "what is no object stays");
    assert!(server.read_object("p/dir/b").unwrap() == b"src/dir/b");
    server.tell_truth();

    // Another client replaces one object before it is deleted; the reply to another deletion is lost.
    let changed = S3Failure::new(412, "PreconditionFailed");
    server.add_lie(once("DELETE", "p/a"), S3Lie::Fail(changed));
    server.add_lie(once("DELETE", "p/dir/b"), S3Lie::LoseReply);
    let ran = sync(&world, &[&moves[..], &[&url, "down"]].concat()).code(1);
    ran.remarks("not removed at the source");
    assert!(world.has("down/a") && world.has("down/dir/b"));
    assert!(server.read_object("p/a").is_some() && server.read_object("p/dir/b").is_none());
    // It was copied already, and is deleted by the next run.
    sync(&world, &[&moves[..], &[&url, "down"]].concat()).ok().says("1 removed at the source");
    assert!(server.read_object("p/a").is_none());
    let refused = sync(&world, &[&moves[..], &["--delete", "src/", &url]].concat()).code(3);
    refused.remarks("with --delete, what --remove-source-files took away");
}

#[test]
fn objects_are_listed_with_the_times_of_their_files() {
    let world = new_world();
    let server = LyingS3::start().unwrap();
    world.write("src/dir/b", "12345");
    set_mtime(&world.tree().join("src/dir/b"), 1_000_000_000.0);
    let url = server.store_url("p");
    sync(&world, &["-a", "src/", &url]).ok();
    let listed = sync(&world, &["--list-only", &url]).ok();
    listed.says("             5 2001/09/09 ").says(" dir/b");
    let json = sync(&world, &["--json", "--list-only", &url]).ok();
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let file = json["entries"].as_array().unwrap().iter().find(|entry| entry["path"] == "dir/b");
    assert_eq!(file.unwrap()["size"], 5, "{json}");
    sync(&world, &["--list-only", &server.store_url("nothing")]).code(2).remarks("there are no objects");
}

#[test]
fn several_sources_go_up_as_one() {
    let world = new_world();
    let server = LyingS3::start().unwrap();
    let url = server.store_url("all");
    world.write("one/a.txt", "of one\n");
    world.write("one/dir/b.txt", "of one\n");
    world.write("two/a.txt", "of two, and longer\n");
    world.write("two/dir/c.txt", "of two\n");
    world.write("two/left.tmp", "left out\n");
    world.write("three/d.txt", "of three\n");
    world.write("single", "a file\n");
    let sources = ["one/", "two/", "three", "single"];
    let run = |options: &[&str]| sync(&world, &[options, &sources, &[&url]].concat());
    run(&["-an", "--exclude", "*.tmp"]).ok().says("go into").says("write   a.txt");
    run(&["-a", "--exclude", "*.tmp"]).ok().says("in 5 files");
    let keys = ["all/a.txt", "all/dir/b.txt", "all/dir/c.txt", "all/single", "all/three/d.txt"];
    assert_eq!(server.list_keys(), keys);
    // As with directories, the first source that has a name counts.
    assert_eq!(server.read_object("all/a.txt").unwrap(), b"of one\n");
    run(&["-a", "--exclude", "*.tmp"]).ok().says("Nothing to do");
    // What any of them has is kept, and the rest goes.
    server.overwrite_object("all/dir/old", b"old");
    fs::remove_file(world.tree().join("one/a.txt")).unwrap();
    run(&["-a", "--delete", "--exclude", "*.tmp"]).ok();
    assert_eq!(server.list_keys(), keys);
    assert_eq!(server.read_object("all/a.txt").unwrap(), b"of two, and longer\n");
    // Only files: nothing else of the prefix is looked at.
    sync(&world, &["-a", "single", "two/left.tmp", &url]).ok().says("in 1 file");
    // One that is missing is an error, and what the others have is not deleted.
    sync(&world, &["-a", "--delete", "one/", "nowhere/", &url]).code(2).remarks("nowhere");
    assert_eq!(server.list_keys().len(), keys.len() + 1);
}
