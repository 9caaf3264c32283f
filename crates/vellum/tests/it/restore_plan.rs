//! `vellum restore --plan` and `--run`

use std::fs;

use crate::world::World;

/// What somebody does between plan and run.
type WorldChange = fn(&World);

/// A worktree with changes, and a plan that takes them back.
fn planned() -> (World, String) {
    let world = World::with_snapshot();
    world.write("a.txt", "edited");
    world.write("new/file", "new");
    world.remove("dir/b.txt");
    let plan = world.path("plan").display().to_string();
    let ran = world.run(&["restore", "first", "--plan", &plan]).ok();
    ran.says("replace  a.txt").says("delete   new/file").says("create   dir/b.txt").remarks("--run");
    assert_eq!(world.read("a.txt"), "edited");
    (world, plan)
}

#[test]
fn a_plan_is_carried_out_as_it_was_shown() {
    let (world, plan) = planned();
    world.run(&["restore", "--run", &plan]).ok().says("Restored").says("brings it back");
    assert_eq!(world.read("a.txt"), "one\ntwo\nthree\n");
    assert!(!world.has("new") && world.has("dir/b.txt"));
    world.run(&["status"]).ok();
    // It was carried out, and is a plan for another state now.
    world.run(&["restore", "--run", &plan]).code(2).remarks("'a.txt' has changed");
}

#[test]
fn a_plan_of_paths_is_one_of_these_alone() {
    let world = World::with_snapshot();
    world.write("a.txt", "edited");
    world.write("dir/b.txt", "edited");
    let plan = world.path("plan").display().to_string();
    world.run(&["restore", "HEAD", "a.txt", "--discard", "--plan", &plan]).ok();
    // What the plan does not touch may change.
    world.write("dir/b.txt", "edited again");
    world.run(&["restore", "--run", &plan]).ok();
    assert_eq!(world.read("a.txt"), "one\ntwo\nthree\n");
    assert_eq!(world.read("dir/b.txt"), "edited again");
    assert_eq!(world.json(&["info"])["snapshots"], 1, "--discard is a part of the plan");
}

#[test]
fn what_has_changed_since_is_named_and_nothing_is_done() {
    let changes: [(&str, WorldChange); 5] = [
        ("'a.txt' has changed", |world| world.write("a.txt", "edited again")),
        ("'new/more' has changed", |world| world.write("new/more", "more")),
        ("'dir/b.txt' has changed", |world| world.write("dir/b.txt", "back")),
        ("'a.txt' has changed", |world| world.chmod("a.txt", 0o600)),
        ("stands on another snapshot", |world| drop(world.snapshot("between"))),
    ];
    for (message, change) in changes {
        let (world, plan) = planned();
        change(&world);
        let before = world.run(&["status"]).out;
        world.run(&["restore", "--run", &plan]).code(2).remarks("is not carried out").remarks(message);
        assert_eq!(world.run(&["status"]).out, before, "{message}");
        assert!(world.has("new/file"), "{message}");
    }
}

#[test]
fn plans_that_are_not_as_they_were_written_are_refused() {
    let (world, plan) = planned();
    let text = fs::read_to_string(&plan).unwrap();
    let cut = &text[..text.len() / 2];
    let other = World::with_snapshot();
    for (bad, reason) in [
        (text.replace("\"discard\": false", "\"discard\": true"), "was changed after it was written"),
        (text.replace("\"replace\"", "\"delete\""), "was changed after it was written"),
        (text.replace("\"version\": 1", "\"version\": 2"), "has version 2"),
        (text.replace("new/file", "../file"), "'../file', which no plan can have"),
        (text.replace("new/file", "/etc/passwd"), "'/etc/passwd', which no plan can have"),
        (text.replace("new/file", ".vellum/key"), "'.vellum/key', which no plan can have"),
        (text.replace("\"discard\"", "\"other\": 1, \"discard\""), "no plan of a restore"),
        (cut.to_owned(), "not a whole one"),
        (String::new(), "not a whole one"),
        ("{\"format\": \"x\", \"version\": 1}".to_owned(), "no plan of a restore"),
    ] {
        fs::write(world.path("bad"), bad).unwrap();
        let bad = world.path("bad").display().to_string();
        let ran = world.run(&["restore", "--run", &bad]).code(3);
        ran.remarks(reason);
    }
    other.run(&["restore", "--run", &plan]).code(3).remarks("it is for another volume");
    world.run(&["worktree", "rename", "main", "other"]).ok();
    world.run(&["restore", "--run", &plan]).code(3).remarks("it is for the worktree 'main'");
    assert_eq!(world.read("a.txt"), "edited");
}

#[test]
fn a_plan_is_not_written_into_the_worktree_and_no_options_go_with_it() {
    let world = World::with_snapshot();
    world.run(&["restore", "first", "--plan", "plan"]).code(3).remarks("is in the worktree");
    world.run(&["restore", "first", "--run", "plan"]).code(3);
    world.run(&["restore", "--run", "nowhere"]).code(2);
    world.run(&["restore"]).code(3);
}
