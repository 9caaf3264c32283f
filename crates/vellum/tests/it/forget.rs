//! `vellum forget`

use crate::world::World;

#[test]
fn a_snapshot_leaves_the_history_and_the_line_holds() {
    let world = World::with_snapshot();
    world.write("a.txt", "second");
    let second = world.snapshot("second");
    world.write("a.txt", "third");
    world.snapshot("third");
    world.run(&["forget", "second"]).code(2).remarks("the tag 'second' names it");
    world.run(&["tag", "remove", "second"]).ok();
    world.run(&["forget", &second]).ok().says("Forgot").remarks("gc run");
    let ran = world.run(&["history"]).ok();
    assert_eq!(ran.lines().len(), 2);
    world.run(&["cat", "HEAD~1", "a.txt"]).ok().says("one");
    world.run(&["history", "--graph"]).ok();
    world.run(&["forget", &second]).code(2);
}

#[test]
fn what_is_in_use_stays() {
    let world = World::with_snapshot();
    world.run(&["tag", "remove", "first"]).ok();
    world.run(&["forget", "HEAD"]).code(2).remarks("the worktree 'main' stands on it");
    world.run(&["forget"]).code(3);
}

/// A world with five snapshots, of which the second has a tag.
fn world_with_line() -> World {
    let world = World::with_snapshot();
    world.run(&["tag", "remove", "first"]).ok();
    for number in 2..=5 {
        world.write("a.txt", number.to_string());
        world.run(&["snapshot", "-m", &format!("number {number}")]).ok();
    }
    world.run(&["tag", "add", "kept", "HEAD~3"]).ok();
    world
}

#[test]
fn rules_keep_some_snapshots_and_say_why() {
    let world = world_with_line();
    let dry = world.run(&["forget", "--keep-last", "2", "--dry-run"]).ok();
    dry.says("keep").says("worktree main, newest, last").says("tag kept").remarks("would forget 2");
    assert_eq!(world.run(&["history"]).ok().lines().len(), 5);
    world.run(&["forget", "--keep-last", "2"]).ok().remarks("kept 3 snapshots, forgot 2").remarks("gc run");
    let left = world.run(&["history"]).ok().says("number 5").says("number 4").says("number 2");
    assert!(left.lines().iter().all(|line| !line.contains("number 3")));
    // Nothing more to do: the same rules change nothing.
    world.run(&["forget", "--keep-last", "2"]).ok().remarks("forgot 0");
    world.run(&["gc", "run"]).ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn all_snapshots_of_one_hour_are_one_hour() {
    let world = world_with_line();
    // They may lie on both sides of a full hour; in no case are they three.
    let json = world.json(&["forget", "--keep-hourly", "2", "--all", "-n"]);
    let kept = json["snapshots"].as_array().unwrap().iter().filter(|it| it["kept"] == true).count();
    assert!((3..=4).contains(&kept), "{json}");
    assert_eq!(json["dry_run"], true);
    assert_eq!(json["forgotten"].as_array().unwrap().len(), 5 - kept);
    assert_eq!(json["snapshots"][0]["reasons"][0], "worktree main");
    assert_eq!(world.run(&["history"]).ok().lines().len(), 5);
}

#[test]
fn tags_are_ignored_on_request_and_go_with_their_snapshots() {
    let world = world_with_line();
    world
        .run(&["forget", "--keep-last", "1", "--keep-tag", "nothing", "--ignore-tags"])
        .code(2)
        .remarks("there is no tag 'nothing'")
        .remarks("vellum tag list");
    world
        .run(&["forget", "--keep-last", "1", "--keep-tag", "kept", "--ignore-tags"])
        .ok()
        .says("kept tag kept");
    world.run(&["forget", "--keep-last", "1", "--ignore-tags"]).ok().remarks("forgot 1");
    assert_eq!(world.run(&["tag", "list"]).ok().lines().len(), 0);
    assert_eq!(world.run(&["history"]).ok().lines().len(), 1);
}

#[test]
fn rules_that_cannot_be_meant_are_refused() {
    let world = world_with_line();
    world.run(&["forget", "--keep-last", "0"]).code(3).remarks("0 is not in 1..");
    world.run(&["forget", "--keep-within", "soon"]).code(3).remarks("typed like 30d");
    world
        .run(&["forget", "--keep-daily", "1", "--zone", "Nowhere/Else"])
        .code(3)
        .remarks("UTC or Europe/Berlin");
    world.run(&["forget", "HEAD~1", "--keep-last", "1"]).code(3);
    world.run(&["forget", "--all"]).code(3);
    world.run(&["forget", "--keep-last", "1", "--worktree", "nobody"]).code(2).remarks("'nobody'");
    // Nothing was forgotten by any of these.
    assert_eq!(world.run(&["history"]).ok().lines().len(), 5);
    // Only one snapshot has the tag, and a worktree without any of it would keep only what always stays.
    world.run(&["tag", "add", "now", "HEAD"]).ok();
    world.run(&["forget", "--keep-tag", "now", "--worktree", "main"]).ok();
    world.run(&["forget", "HEAD~1", "-n"]).code(2).remarks("the tag 'kept' names it");
    world.run(&["fork", "side", "--to", "../side"]).ok();
    world.write("../side/new", "content");
    world.run(&["-C", "../side", "snapshot", "-m", "of the side"]).ok();
    // A dry run does not promise what is refused then.
    let rules = ["forget", "--keep-tag", "now", "--worktree", "side"];
    for more in [&[][..], &["-n"]] {
        world
            .run(&[&rules[..], more].concat())
            .code(3)
            .remarks("the rules keep no snapshot of the worktree 'side'");
    }
    world.run(&[&rules[..], &["-n", "--force"]].concat()).ok();
}

#[test]
fn the_policy_that_is_set_is_applied_and_that_of_the_worktree_counts_first() {
    let world = world_with_line();
    let run = |args: &[&str]| world.run_at_home(args);
    run(&["forget", "--policy"]).code(3).remarks("no rule is set").remarks("vellum config set --volume");
    run(&["config", "set", "--volume", "retention.keep-last", "3"]).ok();
    run(&["forget", "--policy", "-n"]).ok().remarks("would forget 1");
    run(&["config", "set", "--worktree", "retention.keep-last", "2"]).ok();
    run(&["forget", "--policy", "-n"]).ok().remarks("would forget 2");
    run(&["forget", "--policy", "--keep-last", "1"]).code(3);
    run(&["forget", "--policy", "HEAD~1"]).code(3);
    run(&["config", "set", "--worktree", "retention.keep-tag", "gone"]).ok();
    run(&["forget", "--policy"]).code(2).remarks("there is no tag 'gone' to keep");
    run(&["config", "unset", "retention.keep-tag"]).ok();
    run(&["forget", "--policy", "--gc"]).ok().remarks("forgot 2").says("Freed ");
    assert_eq!(run(&["history"]).ok().lines().len(), 3);
    let again = run(&["forget", "--policy", "--gc", "--json"]).ok();
    let again: serde_json::Value = serde_json::from_str(&again.out).unwrap();
    assert_eq!((&again["forgotten"], &again["collected"]["snapshots"]), (&serde_json::json!([]), &3.into()));
}

#[test]
fn a_policy_that_keeps_no_snapshot_by_itself_is_refused() {
    let world = world_with_line();
    let run = |args: &[&str]| world.run_at_home(args);
    run(&["worktree", "rename", "main", "kept-line"]).ok();
    world.write("a.txt", "of another name");
    run(&["snapshot"]).ok();
    run(&["config", "set", "--volume", "retention.keep-tag", "kept"]).ok();
    // The tag is on the line of the old name.
    run(&["forget", "--policy"]).code(3).remarks("keep no snapshot of the worktree 'kept-line'");
    run(&["forget", "--policy", "--force"]).ok();
}

#[test]
fn safety_snapshots_have_a_policy_that_can_be_set() {
    let world = World::with_snapshot();
    for number in 0..2 {
        world.write("a.txt", format!("unsaved {number}"));
        world.run_at_home(&["restore", "HEAD"]).ok();
        // The newest is then more than a second younger than the other.
        std::thread::sleep(std::time::Duration::from_millis(1500 * (1 - number)));
    }
    let count = |args: &[&str]| {
        let ran = world.run_at_home(&[args, &["-n", "--json"]].concat()).ok();
        let plan: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        plan["forgotten"].as_array().unwrap().len()
    };
    assert_eq!(count(&["forget", "--keep-last", "1"]), 0);
    world.run_at_home(&["config", "set", "--volume", "safety.keep-within", "1s"]).ok();
    world.run_at_home(&["config", "set", "--volume", "safety.keep-last", "1"]).ok();
    assert_eq!(count(&["forget", "--keep-last", "1"]), 1);
}
