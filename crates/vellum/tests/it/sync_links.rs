//! `vellum sync` and symlinks on the way to DST and to what options name: those of other users are not followed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::process::Command;

use crate::other_host::Host;
use crate::world::World;

/// A user that no system has.
const STRANGER: u32 = 61_234;

/// A directory in which everybody may write, and in it a symlink of the stranger to `inside`, which has the lists.
fn plant(world: &World) {
    world.write("src/file", "content");
    world.write("inside/list", "file\n");
    world.write("inside/rules", "*.o\n");
    let shared = world.tree().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    symlink("../inside", shared.join("theirs")).unwrap();
    lchown(shared.join("theirs"), Some(STRANGER), Some(STRANGER)).unwrap();
}

fn names(world: &World, path: &str) -> Vec<String> {
    let all = fs::read_dir(world.tree().join(path)).unwrap();
    let mut names: Vec<_> = all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

const REFUSED: &str = "shared/theirs' (to '../inside') is not followed, because it belongs to user 61234";

#[test]
fn a_symlink_that_somebody_else_planted_does_not_lead_the_destination_elsewhere() {
    let world = World::empty();
    plant(&world);
    for to in ["shared/theirs", "shared/theirs/", "shared/theirs/new", "shared/theirs/../inside"] {
        world.run(&["sync", "-a", "src/", to]).code(2).remarks(REFUSED);
        world.run(&["sync", "-a", "--mkpath", "src", to]).code(2).remarks(REFUSED);
        world.run(&["sync", "-a", "src/file", to]).code(2).remarks(REFUSED);
        world.run_at_home(&["sync", "--two-way", "src", to]).code(2).remarks(REFUSED);
    }
    // A link of one's own that leads through it.
    symlink("shared/theirs/", world.tree().join("mine")).unwrap();
    world.run(&["sync", "-a", "src/", "mine"]).code(2).remarks(REFUSED);
    assert_eq!(names(&world, "inside"), ["list", "rules"]);
    // rsync does the same.
    let mut rsync = Command::new("rsync");
    rsync.args(["-a", "src/", "shared/theirs/"]).current_dir(world.tree());
    assert!(!rsync.output().unwrap().status.success());
}

#[test]
fn a_symlink_that_somebody_else_planted_does_not_lead_options_elsewhere() {
    let world = World::empty();
    plant(&world);
    let theirs = world.tree().join("shared/theirs");
    let theirs = theirs.to_str().unwrap();
    world.run(&["sync", "-a", "src/", "dst"]).ok();
    world.write("src/file", "edited");
    let before = names(&world, "inside");
    for option in [
        format!("--temp-dir={theirs}"),
        format!("--partial-dir={theirs}/new"),
        format!("--backup-dir={theirs}/new"),
        format!("--link-dest={theirs}"),
        format!("--log-file={theirs}/log"),
        format!("--files-from={theirs}/list"),
        format!("--exclude-from={theirs}/rules"),
        format!("--include-from={theirs}/rules"),
        format!("--filter=. {theirs}/rules"),
    ] {
        let ran = world.run(&["sync", "-a", &option, "src/", "dst"]).remarks(REFUSED);
        assert!(ran.code == 2 || ran.code == 3, "{option}: {} {}", ran.code, ran.err);
        assert_eq!(world.read("dst/file"), "content", "{option}");
    }
    assert_eq!(names(&world, "inside"), before);
}

#[test]
fn symlinks_that_only_trusted_users_can_have_made_are_followed() {
    let world = World::empty();
    plant(&world);
    // What a symlink at the source leads to is read.
    world.run(&["sync", "-a", "shared/theirs/", "copied"]).ok();
    assert_eq!(names(&world, "copied"), ["list", "rules"]);
    // One's own, in a directory of everybody's, and also to the end of a chain.
    symlink("theirs-again", world.tree().join("shared/own")).unwrap();
    symlink(world.tree().join("inside"), world.tree().join("shared/theirs-again")).unwrap();
    world.run(&["sync", "-a", "src/", "shared/own"]).ok();
    assert_eq!(names(&world, "inside"), ["file", "list", "rules"]);
    // Somebody else's, in a directory in which nobody else writes: who made it was trusted.
    world.write("kept/file", "");
    symlink("../inside", world.tree().join("kept/given")).unwrap();
    lchown(world.tree().join("kept/given"), Some(STRANGER), None).unwrap();
    world.run(&["sync", "-a", "src/", "kept/given/below"]).ok();
    world.chmod("kept", 0o775);
    world
        .run(&["sync", "-a", "src/", "kept/given"])
        .code(2)
        .remarks("kept/given' (to '../inside') is not followed");
    world.chmod("kept", 0o755);
    chown(world.tree().join("kept"), Some(STRANGER), None).unwrap();
    world.run(&["sync", "-a", "src/", "kept/given"]).code(2).remarks("belongs to user 61234");
    // What the shell makes of <(...), which is a pipe.
    let mut piped = Command::new("bash");
    let line = "\"$0\" sync -a --files-from=<(echo file) --exclude-from=/dev/stdin src/ listed </dev/null";
    piped.args(["-c", line, env!("CARGO_BIN_EXE_vellum")]).current_dir(world.tree());
    let output = piped.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(names(&world, "listed"), ["file"]);
}

#[test]
fn another_host_follows_no_symlink_that_somebody_planted_there() {
    let host = Host::new();
    plant(&host.world);
    let there = host.at("shared/theirs");
    host.sync(&["-a", "src/", &there]).code(2).remarks(REFUSED);
    host.sync(&["-a", "src/", &format!("{there}/new")]).code(2).remarks(REFUSED);
    assert_eq!(names(&host.world, "inside"), ["list", "rules"]);
}
