//! `vellum doctor`

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use serde_json::Value;
use vellum_volume::state::StateDir;
use vellum_volume::{SnapshotOrigin, SnapshotRecord, Volume};

use crate::mounting::{Mount, hold, kill, sh, wait_until};
use crate::shared::Cluster;
use crate::shared_unpublished::{kill_at_call, leave_unpublished, unpublished_sessions};
use crate::world::{Ran, World, copy_dir, noise};

/// Runs a command without the mounts of other tests, of which some are dead on purpose: in a mount namespace of its own.
/// Standard error ends with the number of mounts that are left there.
const WITHOUT_OTHERS: &str = r#"
below=$1; shift
list() { awk '/ - fuse\.vellum / { print $5 }' /proc/self/mountinfo; }
# 'umount' would ask the mounts for their attributes, and wait for those whose process is held.
list | python3 -c '
import ctypes, sys
for mount in sys.stdin.read().split():
    if not mount.startswith(sys.argv[1]):
        ctypes.CDLL(None).umount2(mount.encode(), 2)
' "$below"
code=0; "$@" || code=$?
echo "mounts left: $(list | wc -l)" >&2
exit $code"#;

fn doctor_after(world: &World, dir: &Path, before: &[&str], args: &[&str]) -> Ran {
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "bash", "-c", WITHOUT_OTHERS, "bash"]);
    command.arg(world.path("")).args(before).arg(env!("CARGO_BIN_EXE_vellum")).arg("doctor").args(args);
    let state = world.path("user-state");
    command.current_dir(dir).env("XDG_STATE_HOME", state).env("TZ", "UTC").stdin(Stdio::null());
    Ran::of(&[&["doctor"], args].concat(), command.output().unwrap())
}

pub fn doctor(world: &World, args: &[&str]) -> Ran {
    doctor_after(world, &world.tree(), &[], args)
}

fn findings_in(world: &World, dir: &Path, args: &[&str]) -> Vec<Value> {
    let ran = doctor_after(world, dir, &[], &[&["--json"], args].concat());
    let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{}{}", ran.out, ran.err));
    let findings = report["findings"].as_array().unwrap().clone();
    assert_eq!(ran.code, i32::from(report["healthy"] == false), "{}", ran.out);
    findings
}

fn findings(world: &World, args: &[&str]) -> Vec<Value> {
    findings_in(world, &world.tree(), args)
}

fn ids(findings: &[Value]) -> Vec<&str> {
    findings.iter().map(|finding| finding["id"].as_str().unwrap()).collect()
}

/// The only finding has this id. It is repaired if `--repair` is asked for, and gone then.
fn expect_repairable(world: &World, id: &str) {
    let found = findings(world, &[]);
    assert_eq!(ids(&found), [id], "{found:?}");
    assert_eq!(found[0]["repair"], "possible", "{found:?}");
    doctor(world, &[]).code(1).says(id).says("--repair").remarks("repairs 1 finding");
    let found = findings(world, &["--repair"]);
    assert_eq!(ids(&found), [id], "{found:?}");
    assert_eq!(found[0]["repair"], "done", "{found:?}");
    assert!(findings(world, &[]).is_empty());
}

/// The only finding has this id, and nothing is done about it.
fn expect_reported(world: &World, id: &str) -> Value {
    for args in [&[][..], &["--repair"]] {
        let found = findings(world, args);
        assert_eq!(ids(&found), [id], "{found:?}");
        assert_eq!(found[0]["repair"], "none", "{found:?}");
    }
    findings(world, &[]).remove(0)
}

fn state(world: &World, name: &str) -> PathBuf {
    world.tree().join(".vellum").join(name)
}

fn make_old(path: &Path) {
    let old = SystemTime::now() - Duration::from_secs(2 * 24 * 60 * 60);
    File::open(path).unwrap().set_modified(old).unwrap();
}

fn spawn(world: &World, args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vellum"));
    command.args(args).current_dir(world.tree()).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null()).spawn().unwrap()
}

fn pid(child: &Child) -> i32 {
    i32::try_from(child.id()).unwrap()
}

fn session_files(world: &World) -> usize {
    fs::read_dir(state(world, "store/sessions")).map_or(0, Iterator::count)
}

#[test]
fn a_volume_without_trouble_is_healthy() {
    let world = World::empty();
    world.run(&["init"]).ok();
    doctor(&world, &[]).ok().says("Healthy");
    world.write("a", "content");
    world.run(&["snapshot"]).ok();
    let ran = doctor(&world, &["--verbose"]).ok().says("Healthy").says("fuse").says("reflink");
    assert_eq!(ran.err.trim(), "mounts left: 0");
    let report: Value = serde_json::from_str(&doctor(&world, &["--json", "--repair"]).ok().out).unwrap();
    assert_eq!(report["healthy"], true);
    let features: Vec<_> = report["features"].as_array().unwrap().iter().map(|one| &one["id"]).collect();
    assert_eq!(features, ["fuse", "fuse-io-uring", "user-namespaces", "reflink"]);
}

/// Calls that read.
const COUNTED: &str = "trace=openat,openat2,read,pread64,statx,newfstatat,fstat,getdents64,mmap";
/// What may differ between two runs: threads that are started, folders of packs.
const CALLS_SPARE: u64 = 150;

#[test]
fn its_work_does_not_grow_with_the_files() {
    let count_calls = |files: usize| {
        let world = World::new();
        for file in 0..files {
            world.write(&format!("d{}/f{file}", file % 30), format!("{file}"));
        }
        world.snapshot("all");
        let log = world.path("calls");
        let strace =
            ["strace", "-f", "-qq", "-c", "-U", "calls,name", "-e", COUNTED, "-o", log.to_str().unwrap()];
        doctor_after(&world, &world.tree(), &strace, &[]).ok().says("Healthy");
        let table = fs::read_to_string(&log).unwrap();
        let total = table.lines().find_map(|line| line.trim().strip_suffix("total")).unwrap();
        total.trim().parse::<u64>().unwrap()
    };
    let few = count_calls(30);
    let many = count_calls(3000);
    assert!(many < few + CALLS_SPARE, "{few} calls for 30 files, {many} for 3,000");
}

#[test]
fn a_directory_that_is_no_worktree_is_told_why() {
    let world = World::with_snapshot();
    let found = |dir: &Path| findings_in(&world, dir, &[]);
    fs::create_dir(world.path("empty")).unwrap();
    let nothing = found(&world.path("empty"));
    assert_eq!(ids(&nothing), ["no-worktree"]);
    assert!(nothing[0]["remedy"].as_str().unwrap().contains("vellum init"));
    // One level above a worktree.
    let above = found(&world.path(""));
    assert!(above[0]["remedy"].as_str().unwrap().contains("/tree"), "{above:?}");
    copy_dir(&state(&world, "store"), &world.path("store"));
    let store = found(&world.path("store"));
    assert!(store[0]["meaning"].as_str().unwrap().contains("store"), "{store:?}");
    assert!(store[0]["remedy"].as_str().unwrap().contains("--store"), "{store:?}");
    let text = fs::read(state(&world, "worktree.json")).unwrap();
    fs::write(state(&world, "worktree.json"), &text[..20]).unwrap();
    assert_eq!(ids(&findings(&world, &[])), ["damaged-worktree-file"]);
    let newer = String::from_utf8(text).unwrap().replace("\"layout\": 1", "\"layout\": 9");
    fs::write(state(&world, "worktree.json"), newer).unwrap();
    assert_eq!(ids(&findings(&world, &[])), ["newer-version"]);
    fs::remove_file(state(&world, "worktree.json")).unwrap();
    assert_eq!(ids(&findings(&world, &[])), ["lost-worktree-file"]);
}

#[test]
fn a_moved_store_a_lost_key_and_damaged_notes_are_named() {
    let world = World::empty();
    world.run(&["init", "--store", "../store"]).ok();
    world.write("a", "a");
    world.snapshot("first");
    fs::rename(world.path("store"), world.path("moved")).unwrap();
    let found = findings(&world, &["--repair"]);
    assert_eq!(ids(&found), ["moved-store"]);
    assert!(found[0]["remedy"].as_str().unwrap().contains("relocate --store"), "{found:?}");
    world.run(&["worktree", "relocate", "--store", "../moved"]).ok();
    doctor(&world, &[]).ok();
    fs::rename(state(&world, "key"), world.path("key")).unwrap();
    assert_eq!(ids(&findings(&world, &["--repair"])), ["missing-key"]);
    fs::rename(world.path("key"), state(&world, "key")).unwrap();
    fs::write(state(&world, "seen.json"), "junk").unwrap();
    assert_eq!(ids(&findings(&world, &["--repair"])), ["damaged-seen"]);
    assert_eq!(fs::read(state(&world, "seen.json")).unwrap(), b"junk");
}

#[test]
fn a_copy_of_a_worktree_is_told_from_the_original() {
    let world = World::empty();
    world.run(&["init", "--plain", "--store", "../store"]).ok();
    world.write("a", "a");
    world.snapshot("first");
    copy_dir(&world.tree(), &world.path("copy"));
    let found = findings_in(&world, &world.path("copy"), &[]);
    assert_eq!(ids(&found), ["copied-worktree"]);
    assert!(found[0]["remedy"].as_str().unwrap().contains("worktree adopt"), "{found:?}");
    doctor(&world, &[]).ok();
    // The directory of another worktree, which was deleted, is a note.
    world.run(&["fork", "side", "--to", "../side"]).ok();
    fs::remove_dir_all(world.path("side")).unwrap();
    assert_eq!(ids(&findings(&world, &[])), ["gone-worktree"]);
    doctor(&world, &[]).ok().says("note");
}

#[test]
fn what_belongs_to_others_and_a_key_that_they_can_read_are_found() {
    let world = World::empty();
    world.run(&["init"]).ok();
    fs::set_permissions(state(&world, "key"), fs::Permissions::from_mode(0o644)).unwrap();
    expect_repairable(&world, "open-key");
    assert_eq!(fs::metadata(state(&world, "key")).unwrap().permissions().mode() & 0o777, 0o600);
    std::os::unix::fs::chown(state(&world, "seen.json"), Some(12345), None).unwrap();
    let found = expect_reported(&world, "foreign-state");
    assert!(found["remedy"].as_str().unwrap().contains("chown"), "{found}");
}

#[test]
fn a_session_of_a_killed_writer_is_ended() {
    let world = World::with_snapshot();
    world.write("new", noise(100_000));
    // Before the second name in the store: the first one is that of the session.
    let killed = Command::new("strace")
        .args([
            "-f",
            "-qq",
            "-o",
            "/dev/null",
            "-e",
            "trace=renameat2",
            "-e",
            "inject=renameat2:signal=KILL:when=2",
        ])
        .arg(env!("CARGO_BIN_EXE_vellum"))
        .arg("snapshot")
        .current_dir(world.tree())
        .output()
        .unwrap();
    assert!(!killed.status.success() && session_files(&world) == 1, "{killed:?}");
    expect_repairable(&world, "stale-session");
    assert_eq!(session_files(&world), 0);
    world.run(&["snapshot"]).ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn what_nobody_publishes_is_named_and_a_session_without_a_worktree_is_ended() {
    let world = World::with_snapshot();
    leave_unpublished(&world);
    for args in [&[][..], &["--repair"]] {
        let found = findings(&world, args);
        assert_eq!(ids(&found), ["unpublished-content", "stale-lease"], "{found:?}");
        assert_eq!(found[0]["repair"], "none", "{found:?}");
        let remedy = found[0]["remedy"].as_str().unwrap();
        assert!(remedy.contains("mount --worktree work") && remedy.contains("--end-session"), "{found:?}");
    }
    let own = unpublished_sessions(&world);
    // A renaming that is killed after it has put a session for the new name, and before there is such a worktree.
    let words = ["worktree", "rename", "work", "moved"];
    let mut number = 0;
    while unpublished_sessions(&world).len() == 1 {
        number += 1;
        assert!(kill_at_call(&world, "renameat2", number, &words), "it was not killed in time");
    }
    let found = findings(&world, &[]);
    let ownerless = found.iter().find(|finding| finding["id"] == "ownerless-session").unwrap();
    assert!(ownerless["meaning"].as_str().unwrap().contains("'moved'"), "{ownerless}");
    assert_eq!(ownerless["repair"], "possible");
    let found = findings(&world, &["--repair"]);
    let repaired: Vec<_> = found.iter().filter(|finding| finding["repair"] == "done").collect();
    assert!(repaired.len() == 1 && repaired[0]["id"] == "ownerless-session", "{found:?}");
    assert_eq!(unpublished_sessions(&world), own);
    let mount = Mount::place(&world, "moved-mount");
    world.run(&words).ok();
    mount.again(&["--worktree", "moved", "--allow-other"]).ok();
    mount.sh("[ $(wc -c < large) -ge 1048576 ]; cat large > /dev/null");
    doctor(&world, &[]).ok().says("Healthy");
    mount.umount().ok();
    doctor(&world, &[]).ok().says("Healthy");
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_session_of_a_worktree_that_is_about_to_be_made_is_left_alone() {
    let world = World::with_snapshot();
    let volume = Volume::open(&StateDir::find_enclosing(&world.tree()).unwrap()).unwrap();
    volume.hold_unpublished("soon").unwrap();
    doctor(&world, &["--repair"]).ok().says("Healthy");
    assert!(volume.holds_unpublished("soon").unwrap());
}

#[test]
fn a_served_worktree_whose_clients_store_writes_is_healthy() {
    let world = World::with_snapshot();
    let cluster = Cluster::serve(&world);
    let client = cluster.client_with("client", &["--store-writes", "256K"]);
    client.sh("head -c 3000000 /dev/urandom > large; sync large");
    doctor(&world, &["--repair"]).ok().says("Healthy");
    client.sh("[ $(wc -c < large) = 3000000 ]; cat large > /dev/null");
    client.umount().ok();
    cluster.server.umount().ok();
    doctor(&world, &[]).ok().says("Healthy");
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_stopped_writer_is_left_alone_and_goes_on() {
    let world = World::with_snapshot();
    world.write("new", noise(100_000));
    // Whoever changes a ref waits for this lock, with its session in the store.
    let lock =
        File::options().write(true).create(true).truncate(false).open(state(&world, "store/.lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let mut writer = spawn(&world, &["snapshot", "-m", "paused"]);
    wait_until("it writes", || session_files(&world) == 1);
    hold(pid(&writer));
    drop(lock);
    for args in [&[][..], &["--repair"]] {
        let found = findings(&world, args);
        assert_eq!(ids(&found), ["stopped-command", "stopped-writer"], "{found:?}");
        assert!(found[1]["remedy"].as_str().unwrap().contains("kill -CONT"), "{found:?}");
    }
    kill(pid(&writer), "-CONT");
    assert!(writer.wait().unwrap().success());
    world.run(&["history"]).ok().says("paused");
    world.run(&["verify", "--all"]).ok();
    doctor(&world, &[]).ok();
}

#[test]
fn a_stopped_collector_is_left_alone_and_goes_on() {
    let world = World::with_snapshot();
    let collector = state(&world, "store/sessions/collector");
    let mut held = None;
    for number in 0..20 {
        world.write("new", noise(100_000 + number));
        let id = world.run(&["snapshot", "-q"]).ok().out;
        world.remove("new");
        world.snapshot(&format!("without-{number}"));
        world.run(&["forget", id.trim()]).ok();
        let mut gc = spawn(&world, &["gc", "run"]);
        while !collector.exists() && gc.try_wait().unwrap().is_none() {
            std::hint::spin_loop();
        }
        if gc.try_wait().unwrap().is_none() {
            hold(pid(&gc));
            if collector.exists() {
                held = Some(gc);
                break;
            }
            kill(pid(&gc), "-CONT");
        }
        gc.wait().unwrap();
    }
    let mut gc = held.expect("one of them was held while it worked");
    let found = findings(&world, &["--repair"]);
    assert!(ids(&found).contains(&"stopped-writer"), "{found:?}");
    assert!(found.iter().all(|finding| finding["repair"] == "none"), "{found:?}");
    kill(pid(&gc), "-CONT");
    assert!(gc.wait().unwrap().success());
    world.run(&["verify", "--all"]).ok();
    doctor(&world, &[]).ok();
}

#[test]
fn nothing_waits_for_a_stopped_process_that_has_the_lock_of_the_store() {
    let world = World::with_snapshot();
    fs::create_dir_all(state(&world, "store/sessions")).unwrap();
    let lock = state(&world, "store/.lock");
    let mut holder = Command::new("flock").arg(&lock).args(["sleep", "1000"]).spawn().unwrap();
    let is_held =
        || sh(&world.tree(), "flock -n .vellum/store/.lock echo free || echo held").trim() == "held";
    wait_until("it has the lock", is_held);
    hold(pid(&holder));
    let found = findings(&world, &["--repair"]);
    kill(pid(&holder), "-CONT");
    sh(&world.tree(), &format!("kill $(cat /proc/{0}/task/{0}/children)", holder.id()));
    holder.wait().unwrap();
    assert_eq!(ids(&found), ["stopped-command"], "{found:?}");
    doctor(&world, &[]).ok();
}

#[test]
fn a_mount_whose_process_died_is_detached_and_goes_on_afterwards() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    mount.sh("echo kept > new; sync new");
    doctor(&world, &["--repair"]).ok().remarks("mounts left: 1");
    kill(mount.pid(), "-KILL");
    wait_until("it is dead", || mount.is_dead());
    let found = findings(&world, &[]);
    assert_eq!(ids(&found), ["dead-mount", "stale-lease"], "{found:?}");
    let ran = doctor(&world, &["--repair"]).code(1).says("repaired").says("vellum mount --worktree work");
    assert!(ran.err.contains("mounts left: 0"), "{}", ran.err);
    crate::mounting::detach_mount(&mount.path);
    mount.again(&[]).ok();
    mount.sh("[ $(cat new) = kept ]");
    doctor(&world, &[]).ok();
}

#[test]
fn a_live_mount_and_a_stopped_one_are_left_alone() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "work");
    // A stopped mount with rings would hold whoever looks at it.
    mount.again(&["--no-io-uring"]).ok();
    mount.sh("echo first > file; exec 9>> file; echo second >&9");
    // From within.
    doctor_after(&world, &mount.path, &[], &["--repair"]).ok().says("Healthy");
    let pid = mount.pid();
    hold(pid);
    let found = findings(&world, &["--repair"]);
    assert_eq!(ids(&found), ["silent-mount", "stopped-mount"], "{found:?}");
    assert!(found.iter().all(|finding| finding["repair"] == "none"), "{found:?}");
    kill(pid, "-CONT");
    assert_eq!(fs::read_to_string(mount.at("file")).unwrap(), "first\nsecond\n");
    mount.sh("echo third >> file");
    doctor(&world, &[]).ok();
}

#[test]
fn leftovers_are_removed_unless_they_are_young_or_open() {
    let world = World::with_snapshot();
    let young = state(&world, "seen.json.0123456789abcdef.tmp");
    fs::write(&young, "x").unwrap();
    doctor(&world, &[]).ok();
    fs::create_dir_all(state(&world, "store/.tmp")).unwrap();
    fs::create_dir(state(&world, "verify-index")).unwrap();
    let names = ["catalog.0123456789abcdef.tmp", "store/.tmp/0123456789abcdef", "verify-index"];
    for name in names {
        let path = state(&world, name);
        if name != "verify-index" {
            fs::write(&path, "x").unwrap();
        }
        make_old(&path);
    }
    let open = state(&world, "open.0123456789abcdef.tmp");
    let held = File::create(&open).unwrap();
    make_old(&open);
    let found = findings(&world, &[]);
    assert_eq!(ids(&found), ["leftovers", "leftovers"], "{found:?}");
    assert!(names.iter().all(|name| state(&world, name).exists()));
    doctor(&world, &["--repair"]).ok().says("repaired");
    assert!(names.iter().all(|name| !state(&world, name).exists()));
    assert!(young.exists() && open.exists());
    drop(held);
    doctor(&world, &["--repair"]).ok();
    assert!(young.exists() && !open.exists());
}

#[test]
fn damaged_copies_of_the_store_are_made_anew() {
    let world = World::with_snapshot();
    world.snapshot("second");
    let catalog = fs::read(state(&world, "catalog")).unwrap();
    fs::write(state(&world, "catalog"), &catalog[..catalog.len() - 5]).unwrap();
    doctor(&world, &[]).ok().says("damaged-catalog").says("note");
    doctor(&world, &[]).ok().says("Healthy");
    assert_eq!(ids(&findings(&world, &[])), Vec::<&str>::new());
    world.run(&["history"]).ok().says("second").says("first");
    let cache = fs::read(state(&world, "statcache")).unwrap();
    for damaged in [&cache[..cache.len() / 2], b"junk", b""] {
        fs::write(state(&world, "statcache"), damaged).unwrap();
        expect_repairable(&world, "damaged-stat-cache");
        assert!(!state(&world, "statcache").exists());
    }
    world.run(&["status"]).ok();
    // The local index is made anew by whoever opens it.
    for run in fs::read_dir(state(&world, "index")).unwrap() {
        let path = run.unwrap().path();
        if path.file_name().unwrap() != "CACHEDIR.TAG" {
            fs::write(path, "junk").unwrap();
        }
    }
    doctor(&world, &[]).ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn what_the_store_has_lost_is_named() {
    let world = World::with_snapshot();
    let second = world.snapshot("second");
    world.run(&["tag", "remove", "second"]).ok();
    fs::remove_file(state(&world, &format!("store/snapshots/{second}"))).unwrap();
    let found = expect_reported(&world, "lost-record");
    assert!(found["object"].as_str().unwrap().contains(&second), "{found}");

    let world = World::with_snapshot();
    let packs = sh(&world.tree(), "find .vellum/store/packs -type f");
    fs::remove_file(world.tree().join(packs.lines().next().unwrap())).unwrap();
    expect_reported(&world, "lost-packs");

    let world = World::with_snapshot();
    for index in fs::read_dir(state(&world, "store/index")).unwrap() {
        fs::write(index.unwrap().path(), "junk").unwrap();
    }
    fs::remove_dir_all(state(&world, "index")).unwrap();
    let found = findings(&world, &[]);
    assert!(ids(&found).contains(&"damaged-index"), "{found:?}");

    let world = World::with_snapshot();
    let tags: Vec<_> = fs::read_dir(state(&world, "store/refs/tag")).unwrap().collect();
    fs::write(tags[0].as_ref().unwrap().path(), "junk").unwrap();
    expect_reported(&world, "damaged-ref");
}

#[test]
fn snapshots_and_files_from_the_future_are_named() {
    let world = World::with_snapshot();
    let volume = Volume::open(&StateDir::find_enclosing(&world.tree()).unwrap()).unwrap();
    let head = volume.read_head().unwrap().unwrap();
    let old = volume.catalog.get_record(&head).unwrap();
    let mut time = old.time;
    time.secs += 3600;
    let record = SnapshotRecord {
        parents: vec![head],
        time,
        note: "ahead".into(),
        origin: SnapshotOrigin::User,
        ..(*old).clone()
    };
    volume.commit_snapshot(record).unwrap();
    expect_reported(&world, "future-snapshots");

    let world = World::with_snapshot();
    for folder in ["worktree", "tag"] {
        for object in fs::read_dir(state(&world, "store/refs").join(folder)).unwrap() {
            let ahead = SystemTime::now() + Duration::from_secs(3600);
            File::open(object.unwrap().path()).unwrap().set_modified(ahead).unwrap();
        }
    }
    expect_reported(&world, "wrong-clock");
}

#[test]
fn interrupted_commands_are_named_with_what_finishes_them() {
    let world = World::with_snapshot();
    world.write("a.txt", "other");
    let second = world.snapshot("second");
    let journal =
        format!("{{ \"version\": 1, \"target\": \"{second}\", \"safety\": null, \"partial\": false }}");
    fs::write(state(&world, "restore.json"), journal).unwrap();
    let found = expect_reported(&world, "interrupted-restore");
    assert!(found["remedy"].as_str().unwrap().contains(&second), "{found}");
    world.run(&["restore", &second]).ok();
    doctor(&world, &[]).ok();

    world.run(&["fork", "side", "--to", "../side"]).ok();
    world.write("a.txt", "ours");
    world.snapshot("ours");
    fs::write(world.path("side/a.txt"), "theirs").unwrap();
    world.run_in("../side", &["snapshot"]).ok();
    world.run(&["merge", "side"]).code(1);
    let ran = doctor(&world, &[]).ok().says("unfinished-merge").says("vellum conflicts");
    assert!(ran.out.contains("note"), "{}", ran.out);
    let note = fs::read_to_string(state(&world, "merge.json")).unwrap();
    fs::write(state(&world, "merge.json"), note.replace("\"resolving\"", "\"applying\"")).unwrap();
    expect_reported(&world, "interrupted-merge");
}

#[test]
fn tries_of_dead_processes_are_named_and_removed_if_they_are_empty() {
    let world = World::with_snapshot();
    let folder = state(&world, "try/try-0123abcd");
    fs::create_dir_all(folder.join("mnt")).unwrap();
    let note = |base: &str| {
        let base = if base.is_empty() { "null".to_owned() } else { format!("\"{base}\"") };
        format!(
            "{{ \"name\": \"try-0123abcd\", \"of\": \"main\", \"place\": [47], \"base\": {base}, \"command\": [[109]], \
             \"started\": 1, \"started_nanos\": 0, \"process\": 1, \"process_start\": 99, \"status\": null, \
             \"result\": null }}"
        )
    };
    fs::write(folder.join("note.json"), note(&"00".repeat(32))).unwrap();
    let found = expect_reported(&world, "interrupted-try");
    assert!(found["remedy"].as_str().unwrap().contains("--discard try-0123abcd"), "{found}");
    fs::write(folder.join("note.json"), note("")).unwrap();
    expect_repairable(&world, "interrupted-try");
    assert!(!folder.exists());
}
