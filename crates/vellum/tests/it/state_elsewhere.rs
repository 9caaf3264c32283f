//! Worktrees whose state is elsewhere: who works in the directory reaches neither key nor hooks.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use crate::world::{Ran, World};

/// A worktree in `tree` with its state in `safe/.vellum`, and a snapshot.
fn guarded() -> World {
    let world = World::empty();
    world.write("a.txt", "one\n");
    world.run_at_home(&["init", "--state", "../safe"]).ok();
    world.run_at_home(&["snapshot", "-q", "--tag", "first"]).ok();
    world
}

/// Another state directory, of somebody who wants a hook of theirs to run.
fn plant_state(world: &World, place: &str) {
    let other = world.path("theirs");
    fs::create_dir(&other).unwrap();
    world.run_beside("theirs", &["init", "--plain"]).ok();
    let hook = format!("hooks.before-snapshot = \"touch {}\"\n", world.path("hooked").display());
    fs::write(other.join(".vellum/config.toml"), hook).unwrap();
    let moved = world.tree().join(place);
    fs::create_dir_all(moved.parent().unwrap()).unwrap();
    fs::rename(other.join(".vellum"), moved).unwrap();
}

fn refused(ran: Ran) {
    ran.code(2).remarks("is not as Vellum made it").remarks("worktree relocate");
}

#[test]
fn commands_find_the_state_wherever_it_is() {
    let world = guarded();
    let marker = world.read(".vellum");
    assert!(marker.ends_with("/safe/.vellum\n"), "{marker}");
    let mode = |path: &str| fs::metadata(world.path(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("safe/.vellum"), mode("safe/.vellum/key")), (0o700, 0o600));
    world.write("dir/b.txt", "two\n");
    world.run_at_home(&["status"]).code(1).says("dir/");
    world.run_at_home(&["snapshot", "-q", "--tag", "second"]).ok();
    assert_eq!(world.run_at_home(&["ls", "second"]).ok().out, "a.txt\ndir/\n");
    world.run_beside("tree/dir", &["status"]).ok();
    // As users without this home do it.
    world.run_beside("safe", &["status"]).ok();
    world.write("a.txt", "changed\n");
    world.run_at_home(&["restore", "first"]).ok();
    assert_eq!(world.read("a.txt"), "one\n");
    assert!(!world.has("dir") && world.has(".vellum"));
    world.run_at_home(&["verify", "--all"]).ok();
    world.run_at_home(&["init"]).code(3).remarks("is a worktree already");
    world.run_at_home(&["fork", "side", "--to", "../side"]).ok();
    assert_eq!(fs::read_to_string(world.path("side/a.txt")).unwrap(), "one\n");
}

#[test]
fn a_user_who_does_not_know_the_state_is_refused() {
    let world = guarded();
    world.run(&["status"]).code(2).remarks("this user does not know where").remarks("XDG_STATE_HOME");
    // A copy of the directory is nobody's worktree.
    let copied = std::process::Command::new("cp").arg("-a").args([world.tree(), world.path("copy")]).status();
    assert!(copied.unwrap().success());
    world.run_beside("copy", &["status"]).code(2).remarks("this user does not know where");
}

#[test]
fn whoever_edits_the_marker_gets_nothing_run() {
    let world = guarded();
    let marker = world.tree().join(".vellum");
    let text = world.read(".vellum");
    plant_state(&world, "elsewhere/.vellum");
    let theirs = world.tree().join("elsewhere/.vellum");
    let put_back = || world.run_beside("safe", &["worktree", "relocate"]).ok();
    // Edited, removed, a symlink to a marker, a symlink to a state directory, a state directory.
    fs::write(&marker, text.replace("safe", "tree/elsewhere")).unwrap();
    refused(world.run_at_home(&["snapshot"]));
    put_back();
    world.run_at_home(&["status"]).code(1);
    fs::remove_file(&marker).unwrap();
    refused(world.run_at_home(&["snapshot"]));
    fs::write(world.tree().join("same"), &text).unwrap();
    symlink("same", &marker).unwrap();
    refused(world.run_at_home(&["snapshot"]));
    put_back();
    fs::remove_file(&marker).unwrap();
    symlink(&theirs, &marker).unwrap();
    refused(world.run_at_home(&["snapshot"]));
    put_back();
    fs::remove_file(&marker).unwrap();
    fs::rename(&theirs, &marker).unwrap();
    refused(world.run_at_home(&["snapshot"]));
    refused(world.run_at_home(&["history"]));
    assert!(!world.path("hooked").exists());
    assert_eq!(world.run_at_home(&["--json", "status"]).code(2).out.matches("\"denied\"").count(), 2);
}

#[test]
fn a_state_directory_that_is_made_below_is_not_used() {
    let world = guarded();
    plant_state(&world, "sub/.vellum");
    refused(world.run_beside("tree/sub", &["snapshot"]));
    assert!(!world.path("hooked").exists());
}

#[test]
fn files_that_were_moved_are_found_again() {
    let world = guarded();
    fs::rename(world.tree(), world.path("moved")).unwrap();
    fs::create_dir(world.tree()).unwrap();
    world.run_beside("moved", &["status"]).code(2).remarks("this user does not know where");
    world.run_beside("safe", &["worktree", "relocate", "--directory", "../moved"]).ok().says("/moved");
    world.run_beside("moved", &["status"]).ok();
    world.run_at_home(&["status"]).code(2).remarks("no volume here");
}

#[test]
fn places_that_guard_nothing_are_refused() {
    let world = World::empty();
    world.run_at_home(&["init", "--state", "inside"]).code(3).remarks("others are to work");
    world.run_at_home(&["init", "--state", "."]).code(3).remarks("others are to work");
    assert_eq!(fs::read_dir(world.tree()).unwrap().count(), 0);
    world.run(&["init", "--state", "../safe"]).code(3).remarks("no folder for what Vellum remembers");
    let used = guarded();
    fs::create_dir(used.path("other")).unwrap();
    used.run_beside("other", &["init", "--state", "../safe"]).code(3).remarks("lies inside the worktree");
}

#[test]
fn clones_and_new_worktrees_have_their_state_elsewhere_too() {
    let world = World::empty();
    fs::create_dir(world.path("store")).unwrap();
    world.run_at_home(&["init", "--plain", "--store", "../store/s"]).ok();
    world.write("a.txt", "one\n");
    world.run_at_home(&["snapshot", "-q", "--tag", "first"]).ok();
    world.run_at_home(&["clone", "--plain", "--state", "../safe", "../store/s", "../clone"]).ok();
    assert_eq!(fs::read_to_string(world.path("clone/a.txt")).unwrap(), "one\n");
    assert!(world.path("clone/.vellum").is_file() && world.path("safe/.vellum/worktree.json").exists());
    world.run_beside("clone", &["status"]).ok();
    world.run_at_home(&["worktree", "create", "new", "../new", "--state", "../safer"]).ok();
    world.run_beside("new", &["restore", "first"]).ok();
    assert_eq!(fs::read_to_string(world.path("new/a.txt")).unwrap(), "one\n");
    world.run_at_home(&["worktree", "remove", "--delete", "new"]).ok();
    assert!(!world.path("new").exists() && !world.path("safer/.vellum").exists());
    fs::create_dir(world.path("new")).unwrap();
    world.run_beside("new", &["status"]).code(2).remarks("no volume here");
}

#[test]
fn settings_that_cannot_be_found_are_not_left_out_in_silence() {
    let world = guarded();
    world.run_at_home(&["config", "set", "author", "ann"]).ok();
    fs::remove_file(world.tree().join(".vellum")).unwrap();
    for words in [&["config", "list"][..], &["config", "get", "author"], &["config", "set", "author", "bob"]]
    {
        refused(world.run_at_home(words));
    }
    // What needs no worktree works, and says that it knows nothing of these settings.
    world.run_at_home(&["mounts"]).ok().remarks("the settings of this worktree have no effect");
    world.run_beside("safe", &["worktree", "relocate"]).ok();
    world.run_at_home(&["config", "get", "author"]).ok().says("ann");
    // Where there is no worktree, there is nothing to say.
    let outside = world.run_beside("", &["config", "list"]).ok();
    assert!(!outside.err.contains("have no effect"), "{}", outside.err);
}

#[test]
fn a_damaged_list_of_states_is_an_error_with_a_way_out() {
    let world = guarded();
    let list = world.path("state/vellum/worktrees.json");
    let whole = fs::read(&list).unwrap();
    fs::write(&list, "{").unwrap();
    let damaged = "which says where the states of worktrees are, is damaged";
    for words in [&["status"][..], &["config", "list"], &["init"], &["init", "--state", "../other"]] {
        world.run_at_home(words).code(2).remarks(damaged).remarks("worktree relocate");
    }
    world.run_at_home(&["doctor"]).code(1).says(damaged).says("worktree relocate");
    // As the hint says.
    fs::rename(&list, world.path("damaged.json")).unwrap();
    world.run_at_home(&["status"]).code(2).remarks("this user does not know where");
    world.run_at_home(&["-C", "../safe", "worktree", "relocate"]).ok();
    assert_eq!(fs::read(&list).unwrap(), whole);
    world.run_at_home(&["status"]).ok();
}
