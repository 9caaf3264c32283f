//! Hooks: settings `hooks.…`

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::mounting::{Mount, wait_until};
use crate::world::{Ran, World, noise};

fn set(world: &World, hook: &str, command: &str) {
    world.run_at_home(&["config", "set", &format!("hooks.{hook}"), command]).ok();
}

#[test]
fn a_hook_that_fails_stops_what_it_stands_before() {
    let world = World::with_snapshot();
    world.write("a.txt", "other");
    set(&world, "before-snapshot", "echo not now; exit 7");
    let ran = world.run_at_home(&["snapshot"]).code(2).remarks("not now").remarks("ended with exit code 7");
    ran.remarks("hooks.before-snapshot");
    assert_eq!(world.run(&["history"]).ok().lines().len(), 1);
    set(&world, "before-restore", "false");
    world.run_at_home(&["restore", "HEAD"]).code(2).remarks("the hook 'before-restore' failed");
    assert_eq!(world.read("a.txt"), "other");
    world.run_at_home(&["restore", "HEAD", "--dry-run"]).code(1);
    world.run_at_home(&["config", "unset", "hooks.before-restore"]).ok();
    world.run_at_home(&["restore", "HEAD"]).ok();
}

#[test]
fn a_hook_that_hangs_is_killed_with_what_it_started() {
    let world = World::with_snapshot();
    world.write("a.txt", "other");
    let file = world.path("alive").display().to_string();
    set(&world, "before-snapshot", &format!("(sleep 5; touch {file}) & sleep 600"));
    world.run_at_home(&["config", "set", "hooks.timeout", "1s"]).ok();
    world.run_at_home(&["snapshot"]).code(2).remarks("longer than 1 s (hooks.timeout)");
    assert_eq!(world.run(&["history"]).ok().lines().len(), 1);
    std::thread::sleep(std::time::Duration::from_millis(4600));
    assert!(!world.path("alive").exists());
}

#[test]
fn hooks_are_told_what_happened_and_start_no_hooks() {
    let world = World::with_snapshot();
    world.write("a.txt", "other");
    let told = world.path("told").display().to_string();
    let binary = env!("CARGO_BIN_EXE_vellum");
    let command = format!(
        "echo $VELLUM_HOOK $VELLUM_SNAPSHOT $VELLUM_WORKTREE $VELLUM_DIRECTORY >> {told}; touch more; {binary} snapshot"
    );
    set(&world, "after-snapshot", &command);
    let json = world.run_at_home(&["snapshot", "--json"]).ok();
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let id = json["snapshot"]["id"].as_str().unwrap();
    let lines = fs::read_to_string(&told).unwrap();
    assert_eq!(lines, format!("after-snapshot {id} main {}\n", world.tree().display()));
    assert_eq!(world.run(&["history"]).ok().lines().len(), 3);
    // What was done is not undone because a hook failed afterwards.
    set(&world, "after-snapshot", "exit 1");
    world.write("a.txt", "third");
    world.run_at_home(&["snapshot"]).code(1).remarks("the hook 'after-snapshot' failed");
    assert_eq!(world.run(&["history"]).ok().lines().len(), 4);
    // Nothing was made.
    world.run_at_home(&["snapshot", "--if-changed"]).ok();
}

#[test]
fn what_a_hook_prints_controls_no_terminal_and_is_no_result() {
    let world = World::with_snapshot();
    world.write("a.txt", "other");
    set(&world, "before-snapshot", r"printf 'a\033[2J\007b\nno end'; printf '\377\n' >&2");
    let ran = world.run_at_home(&["snapshot", "--json"]).ok();
    serde_json::from_str::<serde_json::Value>(&ran.out).unwrap();
    let ran = ran.remarks(r"before-snapshot: a\u{1b}[2J\u{7}b").remarks(r"before-snapshot: no end\xff");
    assert!(!ran.err.contains(['\u{1b}', '\u{7}']), "{:?}", ran.err);
}

#[test]
fn a_hook_that_does_not_exist_stops_the_snapshot() {
    let world = World::with_snapshot();
    world.write("a.txt", "other");
    set(&world, "before-snapshot", "/nowhere/hook");
    world.run_at_home(&["snapshot"]).code(2).remarks("/nowhere/hook").remarks("ended with exit code 127");
    assert_eq!(world.run(&["history"]).ok().lines().len(), 1);
}

#[test]
fn what_a_hook_leaves_running_is_not_waited_for() {
    let world = World::with_snapshot();
    world.write("a.txt", "other");
    set(&world, "before-snapshot", "sleep 30 & echo $! > ../pid");
    let begun = std::time::Instant::now();
    world.run_at_home(&["snapshot"]).ok();
    assert!(begun.elapsed() < std::time::Duration::from_secs(20));
    let pid = fs::read_to_string(world.path("pid")).unwrap().trim().parse().unwrap();
    crate::mounting::kill(pid, "-KILL");
}

#[test]
fn hooks_run_for_mounts_in_the_background_and_in_the_foreground() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "work");
    let shown = mount.path.to_str().unwrap();
    let told = world.path("told");
    set(&world, "after-mount", &format!("cat a.txt; echo $VELLUM_WORKTREE >> {}; exit 4", told.display()));
    // The mount stays.
    let ran = world.run_at_home(&["mount", shown]).code(1).remarks("after-mount: one");
    ran.remarks("the hook 'after-mount' failed: it ended with exit code 4");
    assert!(mount.at("a.txt").exists());
    assert_eq!(fs::read_to_string(&told).unwrap(), "work\n");
    set(&world, "before-snapshot", "pwd; test ! -e stop");
    set(&world, "before-restore", "pwd; test ! -e stop");
    fs::write(mount.at("stop"), "").unwrap();
    let at =
        |args: &[&str]| Ran::of(args, world.command_at_home(args).current_dir(&mount.path).output().unwrap());
    at(&["snapshot"]).code(2).remarks(&format!("before-snapshot: {}", shown));
    at(&["restore", "HEAD"]).code(2).remarks(&format!("before-restore: {}", shown));
    assert!(mount.at("stop").exists());
    at(&["history"]).ok();
    mount.umount().ok();
    fs::remove_file(&told).unwrap();
    // The end of the mount is not held up by its hook.
    set(&world, "after-mount", &format!("echo $VELLUM_WORKTREE >> {}; cd /; sleep 50", told.display()));
    let mut serving = world.command_at_home(&["mount", "--foreground", shown]).spawn().unwrap();
    wait_until("the hook runs", || told.exists());
    let begun = std::time::Instant::now();
    mount.umount().ok();
    assert!(serving.wait().unwrap().success());
    assert!(begun.elapsed() < std::time::Duration::from_secs(30));
}

#[test]
fn no_hook_comes_from_a_snapshot_or_a_clone() {
    let world = World::empty();
    world.run_at_home(&["init", "--plain", "--store", "../store"]).ok();
    world.write("config.toml", "[hooks]\nbefore-snapshot = \"exit 5\"\n");
    world.run_at_home(&["snapshot"]).ok();
    set(&world, "before-snapshot", "exit 5");
    world.run_at_home(&["snapshot"]).code(2);
    // Neither the store of a worktree with hooks nor a file in a snapshot brings any.
    world.run_at_home(&["clone", "--plain", "../store", "../clone"]).ok();
    world.run_beside("clone", &["snapshot"]).ok();
    world.run_beside("clone", &["config", "list"]).ok().remarks("nothing is set");
}

#[test]
fn no_volume_has_hooks() {
    let world = World::with_snapshot();
    world
        .run_at_home(&["config", "set", "--volume", "hooks.before-snapshot", "x"])
        .code(3)
        .remarks("--worktree or --user");
}

#[test]
fn damage_runs_a_hook() {
    let world = World::with_snapshot();
    world.write("noise", noise(100_000));
    world.snapshot("noise");
    let told = world.path("told").display().to_string();
    set(&world, "on-damage", &format!("echo $VELLUM_DAMAGED > {told}"));
    world.run_at_home(&["verify", "--all"]).ok();
    assert!(!world.path("told").exists());
    let pack = find_largest_file(&world.tree().join(".vellum/store/packs"));
    let mut bytes = fs::read(&pack).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::set_permissions(&pack, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&pack, bytes).unwrap();
    world.run_at_home(&["verify", "--all"]).code(1).says("Damaged");
    assert!(fs::read_to_string(&told).unwrap().trim().parse::<u64>().unwrap() > 0);
    // Its failure is told beside the damage.
    set(&world, "on-damage", "false");
    world.run_at_home(&["verify", "--all"]).code(1).remarks("the hook 'on-damage' failed");
}

fn find_largest_file(folder: &Path) -> PathBuf {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = paths.map(|path| if path.is_dir() { find_largest_file(&path) } else { path });
    files.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap()
}

/// Gives a file or directory alone to a user.
fn give(path: &Path, user: u32) {
    std::os::unix::fs::lchown(path, Some(user), Some(user)).unwrap();
}

/// Makes a snapshot as root, who called sudo as `caller`, or did not.
fn snapshot_of_root(world: &World, caller: Option<&str>) -> Ran {
    world.write("a.txt", noise(20));
    let args = ["snapshot"];
    let mut command = world.command_at_home(&args);
    command.env_remove("SUDO_UID").envs(caller.map(|uid| ("SUDO_UID", uid)));
    Ran::of(&args, command.output().unwrap())
}

#[test]
fn hooks_of_worktrees_of_other_users_are_not_run() {
    let world = World::with_snapshot();
    set(&world, "before-snapshot", "echo ran");
    set(&world, "after-snapshot", "echo ran afterwards");
    let state = world.tree().join(".vellum");
    let file = state.join("config.toml");
    for (path, other) in [(&file, "config.toml belongs"), (&state, ".vellum belongs")] {
        snapshot_of_root(&world, None).ok().remarks("before-snapshot: ran").remarks("after-snapshot: ran");
        give(path, 1234);
        let ran = snapshot_of_root(&world, None).ok();
        let ran = ran.remarks("hooks.before-snapshot of this worktree is not run").remarks(other);
        let ran = ran.remarks("to another user, user 1234").remarks("config set --user trusted-directories");
        assert!(!ran.err.contains(": ran") && ran.err.matches("is not run").count() == 1, "{}", ran.err);
        snapshot_of_root(&world, Some("1234")).ok().remarks("before-snapshot: ran");
        snapshot_of_root(&world, Some("1235")).ok().remarks("is not run");
        give(path, 0);
    }
    // What root has written is run by others, and each runs what they own.
    world.give_to(1234);
    give(&file, 0);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    world.write("a.txt", "by the user");
    world.run_as(1234, &["snapshot"]).ok().remarks("before-snapshot: ran");
    give(&file, 1234);
    world.write("a.txt", "by the user again");
    world.run_as(1234, &["snapshot"]).ok().remarks("before-snapshot: ran");
}

#[test]
fn a_link_to_a_file_of_another_user_is_that_users_file() {
    let world = World::with_snapshot();
    let file = world.tree().join(".vellum/config.toml");
    let elsewhere = world.path("elsewhere.toml");
    fs::write(&elsewhere, "[hooks]\nbefore-snapshot = \"echo ran\"\n").unwrap();
    std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
    snapshot_of_root(&world, None).ok().remarks("before-snapshot: ran");
    for path in [&elsewhere, &file] {
        give(path, 1234);
        let ran = snapshot_of_root(&world, None).ok().remarks("is not run");
        assert!(!ran.err.contains(": ran"), "{}", ran.err);
        give(path, 0);
    }
}

#[test]
fn trusted_directories_run_their_hooks_whoever_owns_them() {
    let world = World::with_snapshot();
    set(&world, "before-snapshot", "echo ran");
    give(&world.tree().join(".vellum"), 1234);
    let trust = |values: &[&str]| {
        world.run_at_home(&[&["config", "set", "--user", "trusted-directories"], values].concat()).ok()
    };
    let tree = world.tree().display().to_string();
    let above = world.path("").display().to_string();
    for (values, is_trusted) in [
        (&[&*tree][..], true),
        (&["/nowhere", &above], true),
        (&["/"], true),
        (&["/nowhere", &(tree.clone() + "x")], false),
    ] {
        trust(values);
        let expected = if is_trusted { "before-snapshot: ran" } else { "is not run" };
        snapshot_of_root(&world, None).ok().remarks(expected);
    }
    world
        .run_at_home(&["config", "set", "--user", "trusted-directories", "work"])
        .code(3)
        .remarks("absolute");
    world.run_at_home(&["config", "set", "--worktree", "trusted-directories", "/"]).code(3);
    world.run_at_home(&["config", "set", "--volume", "trusted-directories", "/"]).code(3);
}
