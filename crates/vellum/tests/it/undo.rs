//! `vellum undo` and `vellum redo`

use std::fs;
use std::process::Stdio;

use crate::mounting::{Mount, kill, wait_until};
use crate::world::{World, run};

fn head(world: &World) -> String {
    world.json(&["show"])["snapshot"]["id"].as_str().unwrap().into()
}

fn notes(world: &World) -> Vec<String> {
    let json = world.json(&["history"]);
    let snapshots = json["snapshots"].as_array().unwrap().clone();
    snapshots.iter().map(|snapshot| snapshot["note"].as_str().unwrap().into()).collect()
}

/// The number of the last operation whose command begins with a word.
fn number_of(world: &World, word: &str) -> String {
    let json = world.json(&["operations", "-n", "0"]);
    let operations = json["operations"].as_array().unwrap().clone();
    let found = operations.iter().find(|operation| operation["command"][0] == word).unwrap();
    found["number"].to_string()
}

#[test]
fn an_undone_snapshot_leaves_the_files_and_comes_back_by_redo() {
    let world = World::with_snapshot();
    world.write("a.txt", "changed");
    world.run(&["snapshot", "-m", "second"]).ok();
    let second = head(&world);
    world.run(&["undo", "-n"]).ok().says("Would undo").says("the files stay as they are");
    assert_eq!(head(&world), second);
    world.run(&["undo"]).ok().says("Undid operation").says("snapshot -m second").says("is forgotten");
    assert_eq!((notes(&world), world.read("a.txt").as_str()), (vec!["first".to_owned()], "changed"));
    world.run(&["status"]).code(1).says("a.txt");
    world.run(&["redo"]).ok().says("Redid operation").says("is in the history again");
    assert_eq!((head(&world), world.run(&["status"]).code), (second.clone(), 0));
    world.run(&["redo"]).code(2).remarks("there is nothing to redo");
    // An undo is taken back by its number, too.
    world.run(&["undo"]).ok();
    let undo = number_of(&world, "undo");
    world.run(&["undo", &undo]).ok().says("Redid operation");
    assert_eq!(head(&world), second);
    world.run(&["operations"]).ok().says("undoes ").says("redoes ");
    world.run(&["operations", "--verify", "--all"]).ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn undo_goes_back_step_by_step_and_redo_forward() {
    let world = World::with_snapshot();
    for tag in ["t1", "t2", "t3"] {
        world.run(&["tag", "add", tag]).ok();
    }
    let tags = || {
        let json = world.json(&["tag", "list"]);
        json["tags"].as_array().unwrap().iter().filter(|tag| tag["name"] != "first").count()
    };
    for left in [2, 1, 0] {
        world.run(&["undo"]).ok().says("tag t");
        assert_eq!(tags(), left);
    }
    for there in [1, 2] {
        world.run(&["redo"]).ok();
        assert_eq!(tags(), there);
    }
    world.run(&["tag", "add", "other"]).ok();
    world.run(&["redo"]).code(2).remarks("there is nothing to redo").remarks("vellum operations");
    world.run(&["undo"]).ok().says("tag other");
    world.run(&["undo"]).ok().says("tag t2");
    assert_eq!(tags(), 1);
}

#[test]
fn a_snapshot_in_a_mount_is_undone_with_its_tags() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "m");
    let inside = |args: &[&str]| run(&mount.path, args, Stdio::null());
    let state = || {
        let history = inside(&["history"]).ok().out;
        (inside(&["tag", "list"]).ok().out, history.contains("in a mount"), history.lines().count())
    };
    for paths in [&[][..], &["x"]] {
        mount.sh("date +%N > x; date +%N > y");
        let files = mount.sh("cat x y");
        let before = state();
        inside(&[&["snapshot", "-m", "in a mount", "-t", "one", "-t", "two"], paths].concat()).ok();
        inside(&["flush"]).ok();
        let after = state();
        assert!(after.0.contains("one") && after.1 && after.2 == before.2 + 1, "{before:?} {after:?}");
        let undone = inside(&["undo"]).ok().says("is forgotten").says("tag one").says("tag two");
        assert!(!undone.err.contains("stays in the history"), "{}", undone.err);
        assert_eq!(state(), before);
        inside(&["redo"]).ok().says("is in the history again");
        assert_eq!(state(), after);
        inside(&["undo"]).ok();
        assert_eq!((state(), mount.sh("cat x y")), (before, files), "the files stay");
    }
    // Elsewhere, that it was mounted is the last that was done.
    world.run(&["undo", "-n"]).code(2).remarks("the worktree 'm' belongs to process");
    world.run(&["operations", "--verify", "--all"]).ok();
}

#[test]
fn a_command_that_does_several_things_is_undone_whole() {
    let world = World::with_snapshot();
    let place = world.tree().to_str().unwrap().to_owned();
    for tag in ["one", "two"] {
        let run = |args: &[&str]| world.run(&[&["-C", &place], args].concat());
        let state = || {
            let tags = run(&["tag", "list"]).ok().out.contains(tag);
            let history = run(&["history"]).ok().out;
            (tags, history.contains("several things"), history.lines().count())
        };
        world.write(tag, "content");
        let before = state();
        run(&["snapshot", "-m", "several things", "-t", tag, "--set", "a=b"]).ok();
        let after = state();
        assert!(after.0 && after.1 && after.2 == before.2 + 1, "{place}: {before:?} {after:?}");
        let told = run(&["undo", "-n"]).ok().says("is forgotten").says(&format!("tag {tag}")).says("note of");
        assert!(!told.err.contains("stays in the history"), "{}", told.err);
        assert_eq!(state(), after);
        run(&["undo"]).ok().says("is forgotten").says(&format!("tag {tag}")).says("note of");
        assert_eq!(state(), before);
        run(&["redo"]).ok().says("is in the history again");
        assert_eq!(state(), after);
        run(&["history", "--where", "a=b"]).ok().says("several things");
        let json = run(&["undo", "--json"]).ok().out;
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["others"].as_array().unwrap().len(), 2, "{json}");
        assert_eq!(state(), before);
    }
    world.run(&["operations", "--verify", "--all"]).ok();
}

#[test]
fn a_command_is_not_undone_in_part() {
    let world = World::with_snapshot();
    world.run(&["fork", "side", "--to", "../side"]).ok();
    world.write("a.txt", "changed");
    world.run(&["snapshot", "-m", "second", "-t", "moved", "--set", "a=b"]).ok();
    world.run(&["-C", "../side", "tag", "remove", "moved"]).ok();
    world.run(&["-C", "../side", "tag", "add", "moved", "first"]).ok();
    for args in [&["undo", "-n"][..], &["undo"]] {
        world.run(args).code(2).remarks("the tag 'moved' was changed since").remarks("tag remove moved");
    }
    assert_eq!(notes(&world), ["second", "first"]);
    world.run(&["history", "--where", "a=b"]).ok().says("second");
}

#[test]
fn an_undone_restore_brings_the_files_back_and_loses_nothing() {
    let world = World::with_snapshot();
    world.write("a.txt", "second");
    world.run(&["snapshot", "-m", "second"]).ok();
    world.run(&["restore", "first"]).ok();
    assert_eq!(world.read("a.txt"), "one\ntwo\nthree\n");
    world.write("dir/b.txt", "not in any snapshot");
    let undone = world.json(&["undo"]);
    assert_eq!((undone["action"].as_str(), undone["dry_run"].as_bool()), (Some("undo"), Some(false)));
    assert_eq!(undone["steps"][0]["kind"], "restore-files");
    assert_eq!((world.read("a.txt").as_str(), world.read("dir/b.txt").as_str()), ("second", "b\n"));
    let safety = undone["safety"].as_str().unwrap();
    world.run(&["cat", safety, "dir/b.txt"]).ok().says("not in any snapshot");
    world.run(&["redo"]).ok();
    assert_eq!(world.read("a.txt"), "one\ntwo\nthree\n");
    world.run(&["operations", "--verify"]).ok();
}

#[test]
fn a_restore_that_saved_changes_is_undone_in_two_steps() {
    let world = World::with_snapshot();
    world.write("a.txt", "second");
    world.run(&["snapshot", "-m", "second"]).ok();
    world.write("a.txt", "unsaved");
    world.run(&["restore", "first"]).ok();
    world.run(&["undo"]).ok().says("with its files");
    assert_eq!(world.read("a.txt"), "unsaved");
    world.run(&["undo"]).ok().says("the files stay as they are");
    assert_eq!((world.read("a.txt").as_str(), notes(&world)[0].as_str()), ("unsaved", "second"));
    world.run(&["status"]).code(1).says("a.txt");
}

#[test]
fn a_merge_is_undone() {
    let world = World::with_snapshot();
    let side = world.path("side").display().to_string();
    world.run(&["fork", "side", "--to", &side]).ok();
    fs::write(world.path("side").join("dir/b.txt"), "theirs").unwrap();
    world.run_beside("side", &["snapshot", "-m", "theirs"]).ok();
    world.write("a.txt", "ours");
    world.run(&["snapshot", "-m", "ours"]).ok();
    world.run(&["merge", "side"]).ok();
    assert_eq!(world.read("dir/b.txt"), "theirs");
    world.run(&["undo"]).ok();
    assert_eq!((world.read("a.txt").as_str(), world.read("dir/b.txt").as_str()), ("ours", "b\n"));
    world.run(&["redo"]).ok();
    assert_eq!(world.read("dir/b.txt"), "theirs");
}

#[test]
fn a_merge_with_conflicts_is_undone_once_it_is_finished() {
    let world = World::with_snapshot();
    let side = world.path("side").display().to_string();
    world.run(&["fork", "side", "--to", &side]).ok();
    fs::write(world.path("side").join("a.txt"), "theirs").unwrap();
    world.run_beside("side", &["snapshot", "-m", "theirs"]).ok();
    world.write("a.txt", "ours");
    world.run(&["snapshot", "-m", "ours"]).ok();
    world.run(&["merge", "side"]).code(1);
    world.run(&["undo"]).code(2).remarks("a merge of side is under way");
    world.write("a.txt", "resolved");
    world.run(&["resolve", "--all"]);
    world.run(&["merge", "--continue"]).ok();
    assert_eq!(world.read("a.txt"), "resolved");
    world.run(&["undo"]).ok().says("merge --continue");
    assert_eq!((world.read("a.txt").as_str(), notes(&world)[0].as_str()), ("ours", "ours"));
    world.run(&["redo"]).ok();
    assert_eq!(world.read("a.txt"), "resolved");
}

#[test]
fn a_fork_is_undone_from_where_it_was_made_and_only_if_nothing_changed_in_it() {
    let world = World::with_snapshot();
    let side = world.path("side").display().to_string();
    world.run(&["fork", "side", "--to", &side]).ok();
    world.run_beside("side", &["undo"]).code(2).remarks("there is no operation to undo");
    world.run(&["undo"]).ok().says("worktree side is taken off the list; its files stay");
    assert!(world.path("side").join("a.txt").exists());
    assert_eq!(world.json(&["worktree", "list"])["worktrees"].as_array().unwrap().len(), 1);
    world.run(&["redo"]).ok().says("worktree side is on the list again");
    world.run_beside("side", &["status"]).ok();
    fs::write(world.path("side").join("a.txt"), "theirs").unwrap();
    world.run_beside("side", &["snapshot", "-m", "theirs"]).ok();
    world
        .run(&["undo", "1", "--worktree", "side"])
        .code(2)
        .remarks("the worktree 'side' was changed since, by operation")
        .remarks("snapshot -m theirs");
}

#[test]
fn a_worktree_that_was_removed_is_on_the_list_again() {
    let world = World::with_snapshot();
    let side = world.path("side").display().to_string();
    world.run(&["fork", "side", "--to", &side]).ok();
    world.run(&["worktree", "remove", "side"]).ok();
    world.run(&["undo"]).ok().says("worktree side is on the list again");
    world.run_beside("side", &["status"]).ok();
    world.run(&["operations", "--verify", "--all"]).ok();
}

#[test]
fn a_worktree_with_changes_of_a_mount_is_not_taken_off_the_list() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "side");
    mount.sh("echo kept > only-here");
    mount.umount().ok();
    world.run(&["worktree", "list"]).ok().says("changed").says("(unused, last mounted");
    for more in [&[][..], &["--delete"]] {
        let ran = world.run(&[&["worktree", "remove", "side"], more].concat());
        ran.code(3)
            .remarks("side holds changes that no snapshot does")
            .remarks("vellum mount --worktree side DIR");
    }
    world.run(&["gc", "run"]).ok();
    mount.again(&["--worktree", "side"]).ok();
    assert_eq!(mount.sh("cat only-here"), "kept\n");
    run(&mount.path, &["snapshot", "-q"], Stdio::null()).ok();
    mount.umount().ok();
    // With nothing left to lose, its state goes, too; and undone, it is there with its snapshot.
    world.run(&["worktree", "remove", "side"]).ok();
    assert!(!world.tree().join(".vellum/live/side").exists());
    world.run(&["undo"]).ok();
    mount.again(&["--worktree", "side"]).ok();
    assert_eq!(mount.sh("cat only-here"), "kept\n");
    mount.umount().ok();
}

/// The list shows what can be read, and what a mount has put into the store may be all that is left.
#[test]
fn a_worktree_whose_snapshot_is_lost_is_listed_and_not_taken_off() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "side");
    mount.sh("echo kept > only-here");
    mount.umount().ok();
    fs::remove_dir_all(world.tree().join(".vellum/store/snapshots")).unwrap();
    fs::remove_file(world.tree().join(".vellum/catalog")).unwrap();
    world.run(&["worktree", "list"]).ok().says("side").says("changed");
    world.run(&["worktree", "remove", "side"]).code(3).remarks("side holds changes that no snapshot does");
}

/// A process that was killed leaves what only its state directory has: that is not deleted either, also after the worktree was
/// off the list meanwhile.
#[test]
fn the_state_of_a_killed_mount_is_not_deleted_with_its_worktree() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "side");
    fs::write(mount.at("unpublished"), "x").unwrap();
    kill(mount.pid(), "-KILL");
    wait_until("the mount is dead", || mount.is_dead());
    mount.umount().ok();
    world.run(&["worktree", "remove", "side"]).ok();
    world.run(&["undo"]).ok();
    world.run(&["worktree", "remove", "side", "--delete"]).code(3).remarks("no snapshot does");
    assert!(world.tree().join(".vellum/live/side").exists());
}

#[test]
fn forgotten_snapshots_come_back_unless_gc_took_what_they_need() {
    let world = World::with_snapshot();
    world.run(&["tag", "remove", "first"]).ok();
    world.write("a.txt", crate::world::noise(200_000));
    world.run(&["snapshot", "-m", "second"]).ok();
    let second = head(&world);
    world.write("a.txt", "third");
    world.run(&["snapshot", "-m", "third"]).ok();
    world.run(&["forget", &second]).ok();
    world.run(&["undo"]).ok().says("is in the history again");
    assert_eq!(notes(&world), ["third", "second", "first"]);
    world.run(&["redo"]).ok().says("is forgotten");
    world.run(&["gc", "run"]).ok();
    let forget = number_of(&world, "forget");
    world.run(&["undo", &forget]).code(2).remarks("'gc' has deleted, or is about to delete");
    assert_eq!(notes(&world), ["third", "first"]);
    let collection = number_of(&world, "gc");
    world.run(&["undo", &collection]).code(3).remarks("what a collection has deleted is gone");
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn what_was_changed_since_is_not_undone_and_the_later_operation_is_named() {
    let world = World::with_snapshot();
    world.run(&["tag", "add", "v1"]).ok();
    let number = number_of(&world, "tag");
    world.run(&["tag", "remove", "v1"]).ok();
    // It is as it was before it was added.
    world.run(&["undo", &number]).code(3).remarks("nothing is left to undo");
    world.write("a.txt", "second");
    world.run(&["snapshot", "-m", "second"]).ok();
    world.run(&["tag", "add", "v1"]).ok();
    world
        .run(&["undo", &number])
        .code(2)
        .remarks("the tag 'v1' was changed since, by operation")
        .remarks("vellum operations");
    world.run(&["undo", "999"]).code(2).remarks("there is no operation 999 of worktree 'main'");
    world.run(&["undo", "1"]).code(3).remarks("the worktree that you stand in");
}

#[test]
fn a_snapshot_that_something_needs_stays_in_the_history() {
    let world = World::with_snapshot();
    world.write("a.txt", "second");
    world.run(&["snapshot", "-m", "second"]).ok();
    let number = number_of(&world, "snapshot");
    world.run(&["tag", "add", "keep"]).ok();
    world.run(&["undo", &number]).ok().remarks("stays in the history: the tag 'keep' names it");
    world.run(&["show", "keep"]).ok();
    assert_eq!(notes(&world), ["first"]);
}

#[test]
fn pins_notes_settings_and_limits_are_undone() {
    let world = World::with_snapshot();
    world.run(&["pin", "--snapshot", "first", "--reason", "audit"]).ok();
    world.run(&["undo"]).ok().says("pin of snapshot");
    assert_eq!(world.json(&["pins"])["snapshots"].as_array().map(Vec::len), Some(0));
    world.run(&["redo"]).ok();
    world.run(&["pins"]).ok().says("audit");
    world.run(&["note", "first", "-m", "better", "--set", "a=1"]).ok();
    world.run(&["undo"]).ok().says("note of snapshot");
    assert_eq!(world.json(&["show"])["snapshot"]["note"], "first");
    world.run(&["redo"]).ok();
    world.run(&["show"]).ok().says("better").says("a=1");
    world.run(&["config", "set", "--volume", "retention.keep-daily", "7"]).ok();
    world.run(&["config", "set", "--volume", "retention.keep-daily", "9"]).ok();
    world.run(&["undo"]).ok().says("settings of the volume");
    world.run(&["config", "get", "retention.keep-daily"]).ok().says("7");
    world.run(&["operations", "--verify"]).ok();
}

#[test]
fn snapshots_and_restores_of_a_mount_are_undone_by_its_process() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let place = mount.path.to_str().unwrap().to_owned();
    let run = |args: &[&str]| world.run(&[&["-C", &place], args].concat());
    let read = || fs::read_to_string(mount.at("f")).unwrap();
    fs::write(mount.at("f"), "one").unwrap();
    run(&["snapshot", "-m", "one", "--wait"]).ok();
    fs::write(mount.at("f"), "two").unwrap();
    run(&["snapshot", "-m", "two"]).ok();
    run(&["undo"]).ok().says("the files stay as they are").says("is forgotten");
    assert_eq!(read(), "two");
    run(&["status"]).code(1).says("f");
    run(&["history"]).ok().says("one");
    run(&["redo"]).ok();
    run(&["status"]).ok();
    run(&["restore", "HEAD~1"]).ok();
    assert_eq!(read(), "one");
    fs::write(mount.at("f"), "unsaved").unwrap();
    run(&["undo"]).ok().says("with its files").remarks("What no snapshot held is in");
    assert_eq!(read(), "two");
    run(&["redo"]).ok();
    assert_eq!(read(), "one");
    run(&["worktree", "quota", "work", "--bytes", "1G"]).ok();
    run(&["undo"]).ok().says("limits as they were");
    assert_eq!(run(&["undo"]).ok().says("with its files").code, 0);
    assert_eq!(read(), "two");
    mount.umount().ok();
    mount.again(&["--worktree", "work"]).ok();
    assert_eq!(read(), "two");
    mount.umount().ok();
    world.run(&["operations", "--verify", "--all"]).ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_head_of_another_worktree_is_undone_there() {
    let world = World::with_snapshot();
    let side = world.path("side").display().to_string();
    world.run(&["fork", "side", "--to", &side]).ok();
    fs::write(world.path("side").join("a.txt"), "theirs").unwrap();
    world.run_beside("side", &["snapshot", "-m", "theirs"]).ok();
    let json = world.json(&["operations", "--worktree", "side"]);
    let number = json["operations"][0]["number"].to_string();
    world
        .run(&["undo", &number, "--worktree", "side"])
        .code(3)
        .remarks("it changed worktree 'side'; run 'vellum undo' there");
    world.run_beside("side", &["undo", &number]).ok();
}

#[test]
fn snapshots_in_lines_of_their_own_are_recorded_and_undone() {
    let world = World::with_snapshot();
    fs::create_dir(world.path("outside")).unwrap();
    fs::write(world.path("outside/file"), "outside").unwrap();
    let outside = world.path("outside").display().to_string();
    let stream = ["snapshot", "-q", "--from-stdin", "dump", "--stdin-from-command", "--", "date"];
    for words in [&["snapshot", "-q", "--root", &outside][..], &stream] {
        let id = world.run(words).ok().out.trim().to_owned();
        world.run(&["operations"]).ok().says(&format!("made {}", &id[..8]));
        world.run(&["undo", "--dry-run"]).ok().says("is forgotten");
        world.run(&["cat", "HEAD", "a.txt"]).ok();
        world.run(&["show", &id]).ok();
        world.run(&["undo"]).ok().says("is forgotten");
        world.run(&["show", &id]).code(2);
        // Neither the files nor the head are concerned.
        assert_eq!(notes(&world)[0], "first");
        world.run(&["redo"]).ok();
        world.run(&["show", &id]).ok();
        world.run(&["tag", "add", "kept", &id]).ok();
        let number =
            world.json(&["operations"])["operations"].as_array().unwrap().iter().find_map(|operation| {
                let made = operation["changes"].as_array()?.iter().any(|change| change["snapshot"] == *id);
                (made && operation["command"][0] == "snapshot").then(|| operation["number"].to_string())
            });
        world.run(&["undo", &number.unwrap()]).code(3).remarks("still needed").remarks("'kept'");
        world.run(&["tag", "remove", "kept"]).ok();
    }
    world.run(&["operations", "--verify"]).ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_renamed_worktree_is_renamed_back_by_the_command_that_the_error_names() {
    let world = World::with_snapshot();
    world.run(&["worktree", "rename", "main", "other"]).ok();
    // The operations of this name begin with it.
    world.run(&["undo"]).code(2).remarks("there is no operation to undo");
    let refused = world.run(&["undo", "1"]).code(3).remarks("'vellum worktree rename other main'");
    refused.remarks("'vellum undo NUMBER' takes another operation back");
    world.run(&["status"]).ok().remarks("other");
    world.run(&["worktree", "rename", "other", "main"]).ok();
    world.run(&["status"]).ok();
    assert_eq!(world.json(&["worktree", "list"])["worktrees"].as_array().unwrap().len(), 1);
}

#[test]
fn after_a_try_that_was_applied_what_it_did_is_undone() {
    let world = World::with_snapshot();
    world.run(&["try", "--apply", "--", "sh", "-c", "echo tried > a.txt"]).ok();
    assert_eq!(world.read("a.txt"), "tried\n");
    world.run(&["undo"]).ok();
    assert_eq!(world.read("a.txt"), "one\ntwo\nthree\n");
    assert_eq!(world.json(&["worktree", "list"])["worktrees"].as_array().unwrap().len(), 1);
    world.run(&["redo"]).ok();
    assert_eq!(world.read("a.txt"), "tried\n");
    // One that was discarded leaves nothing to undo.
    world.run(&["tag", "add", "before"]).ok();
    world.run(&["try", "--discard", "--", "true"]).ok();
    world.run(&["undo"]).ok().says("tag before");
}
