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
