//! `vellum try --copy`: where nothing can be mounted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::mounting::{Mount, kill, wait_until};
use crate::try_command::tries;
use crate::world::{Ran, World, run};

/// The directories beside the worktree that copies are in.
fn copies(world: &World) -> Vec<PathBuf> {
    let beside = fs::read_dir(world.path("")).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = beside
        .filter(|path| path.to_string_lossy().starts_with(&*world.path("tree.").to_string_lossy()))
        .collect();
    found.sort();
    found
}

/// Nothing of a try is left.
#[track_caller]
fn assert_gone(world: &World) {
    assert!(copies(world).is_empty(), "{:?}", copies(world));
    assert!(tries(&world.tree()).is_empty());
    let listed = world.run(&["worktree", "list"]).ok();
    assert!(!listed.out.contains("try-"), "{}", listed.out);
}

#[track_caller]
fn tried(dir: &Path, options: &[&str], script: &str) -> Ran {
    run(dir, &[&["try", "--copy"], options, &["--", "bash", "-c", script]].concat(), Stdio::null())
}

/// Runs a script in the worktree where there is no device for FUSE.
fn without_fuse(world: &World, script: &str) -> Ran {
    let script = format!("mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && {script}");
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-c", &script]).current_dir(world.tree()).stdin(Stdio::null());
    Ran::of(&[&script], command.output().unwrap())
}

#[test]
fn without_fuse_the_error_names_the_copy_and_the_copy_works() {
    let world = World::with_snapshot();
    let vellum = env!("CARGO_BIN_EXE_vellum");
    let refused = without_fuse(&world, &format!("{vellum} try -- touch ran"));
    let refused = refused.code(2).remarks("/dev/fuse").remarks("modprobe fuse");
    assert!(!world.has("ran"));
    assert_gone(&world);
    let hinted = refused.err.split('\'').find(|words| words.contains("--copy")).unwrap();
    let command = hinted.replacen("vellum", vellum, 1).replace("COMMAND", "touch ran");
    without_fuse(&world, &command).ok().remarks("and not in").remarks("the try is kept in");
    assert!(!world.has("ran"));
    let name = tries(&world.tree())[0]["name"].as_str().unwrap().to_owned();
    without_fuse(&world, &format!("{vellum} try --apply {name}")).ok();
    assert!(world.has("ran"));
    assert_gone(&world);
}

#[test]
fn a_command_runs_at_another_path_and_in_the_same_place_there() {
    let world = World::with_snapshot();
    world.write("unsaved", "unsaved\n");
    let script = "pwd; echo $PWD; cat ../unsaved b.txt; echo tried > b.txt; echo $VELLUM_TRY; exit 7";
    let ran = tried(&world.tree().join("dir"), &[], script).code(7);
    let copy = copies(&world)[0].join("dir");
    let name = tries(&world.tree())[0]["name"].as_str().unwrap().to_owned();
    assert_eq!(
        ran.out.lines().take(5).collect::<Vec<_>>(),
        [copy.to_str().unwrap(), copy.to_str().unwrap(), "unsaved", "b", &name]
    );
    assert_eq!(tries(&world.tree())[0]["copy"], copies(&world)[0].to_str().unwrap());
    assert_eq!((world.read("dir/b.txt"), world.read("unsaved")), ("b\n".into(), "unsaved\n".into()));
    world.run(&["try", "--list"]).ok().says("ended with 7").says(copies(&world)[0].to_str().unwrap());
    world.run(&["try", "--discard", &name]).ok();
    assert_gone(&world);
}

#[test]
fn changes_are_applied_kept_and_discarded() {
    let world = World::with_snapshot();
    tried(&world.tree(), &["--apply"], "echo tried > a.txt; mv dir moved").ok().says("M  a.txt");
    assert_eq!(world.read("a.txt"), "tried\n");
    assert!(world.has("moved/b.txt") && !world.has("dir"));
    assert_gone(&world);
    // What a command makes read-only is deleted, too.
    let closed = "mkdir closed && touch closed/file && chmod 500 closed; rm a.txt";
    tried(&world.tree(), &["--discard"], closed).ok();
    assert!(world.has("a.txt"));
    assert_gone(&world);
    tried(&world.tree(), &["--keep", "side"], "echo side > side").ok().remarks("the worktree side is in");
    assert!(tries(&world.tree()).is_empty() && !world.has("side"));
    let side = copies(&world)[0].clone();
    run(&side, &["status"], Stdio::null()).ok().remarks("Worktree side");
    world.run(&["merge", "side"]).ok();
    assert_eq!(world.read("side"), "side\n");
    world.run(&["worktree", "remove", "--delete", "side"]).ok();
    assert_gone(&world);
}

#[test]
fn commands_inside_are_commands_of_the_copy() {
    let world = World::with_snapshot();
    let vellum = env!("CARGO_BIN_EXE_vellum");
    let script = format!(
        "set -e; echo x > x; {vellum} snapshot -m inside; {vellum} restore --discard first; {vellum} history -n 1; ls; \
         ! {vellum} try -- true"
    );
    tried(&world.tree(), &["--discard"], &script).ok().remarks("already");
    assert!(!world.has("x"));
    assert_gone(&world);
    // One that removes what makes the copy a worktree.
    tried(&world.tree(), &[], "rm -r .vellum; echo y > y").code(3).remarks("cannot be recorded");
    assert!(copies(&world)[0].join("y").exists());
    let name = tries(&world.tree())[0]["name"].as_str().unwrap().to_owned();
    world.run(&["try", "--apply", &name]).code(3).remarks("take what you need from there");
    world.run(&["try", "--discard", &name]).ok();
    assert_gone(&world);
}

#[test]
fn what_a_command_mounts_in_a_copy_is_not_deleted() {
    let world = World::with_snapshot();
    fs::create_dir(world.path("precious")).unwrap();
    fs::write(world.path("precious/file"), "precious").unwrap();
    let script = format!("mkdir m && mount --bind {} m", world.path("precious").display());
    tried(&world.tree(), &["--discard"], &script).code(3).remarks("something is mounted on");
    let name = tries(&world.tree())[0]["name"].as_str().unwrap().to_owned();
    world.run(&["try", "--discard", &name]).code(3).remarks("umount");
    assert_eq!(fs::read_to_string(world.path("precious/file")).unwrap(), "precious");
    let mounted = copies(&world)[0].join("m");
    assert!(Command::new("umount").arg(&mounted).status().unwrap().success());
    world.run(&["try", "--discard", &name]).ok();
    assert_eq!(fs::read_to_string(world.path("precious/file")).unwrap(), "precious");
    assert_gone(&world);
}

#[test]
fn what_a_command_leaves_running_ends_with_it() {
    let world = World::with_snapshot();
    let running = world.path("running");
    // It has left the session and its parent, and heeds no signal.
    let daemon = format!(
        "setsid -f bash -c 'trap \"\" HUP TERM INT; echo $$ > {0}.new; mv {0}.new {0}; while :; do sleep 0.05; done' \
         < /dev/null > /dev/null 2>&1; while ! [ -e {0} ]; do sleep 0.01; done",
        running.display()
    );
    tried(&world.tree(), &["--discard"], &daemon).ok();
    let pid = fs::read_to_string(&running).unwrap();
    assert!(!Path::new(&format!("/proc/{}", pid.trim())).exists());
    let late = "(sleep 0.3; echo late > late) > /dev/null 2>&1 & true";
    tried(&world.tree(), &["--wait", "--apply"], late).ok();
    assert_eq!(world.read("late"), "late\n");
    assert_gone(&world);
}

#[test]
fn a_copy_that_was_killed_is_found_and_can_be_applied() {
    let world = World::with_snapshot();
    let going = world.path("going");
    let script =
        format!("echo tried > a.txt; echo $$ > {0}.new; mv {0}.new {0}; exec sleep 600", going.display());
    let mut child = Command::new(env!("CARGO_BIN_EXE_vellum"))
        .args(["try", "--copy", "--", "bash", "-c", &script])
        .current_dir(world.tree())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("it runs", || going.exists());
    let pid = fs::read_to_string(&going).unwrap();
    kill(i32::try_from(child.id()).unwrap(), "-9");
    child.wait().unwrap();
    let ended = || {
        fs::read_to_string(format!("/proc/{}/stat", pid.trim())).map_or(true, |stat| stat.contains(") Z "))
    };
    wait_until("the command has ended", ended);
    assert_eq!(world.read("a.txt"), "one\ntwo\nthree\n");
    let left = tries(&world.tree());
    assert_eq!((&left[0]["running"], left[0]["status"].is_null()), (&false.into(), true));
    world.run(&["doctor"]).code(1).says("interrupted-try");
    world.run(&["try", "--apply", left[0]["name"].as_str().unwrap()]).ok();
    assert_eq!(world.read("a.txt"), "tried\n");
    assert_gone(&world);
}

#[test]
fn where_no_copy_can_be_made_nothing_is_run() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    tried(&mount.path, &[], "touch ran").code(3).remarks("vellum fork NAME --mount DIR");
    world.run(&["try", "--copy", "--strict", "--", "true"]).code(3).remarks("cannot be used with");
    // Beside the worktree, this user may make nothing.
    world.give_to(65534);
    world
        .run_as(65534, &["try", "--copy", "--", "touch", "ran"])
        .code(2)
        .remarks("cannot make the directory");
    assert!(!world.has("ran"));
    assert_gone(&world);
    // A store in the worktree would be copied.
    let other = World::empty();
    other.run(&["init", "--plain", "--store", "store"]).ok();
    other.run(&["try", "--copy", "--", "true"]).code(3).remarks("holds its store");
}
