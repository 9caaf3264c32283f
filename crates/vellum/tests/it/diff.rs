//! `vellum diff`

use crate::world::World;

fn changed() -> World {
    let world = World::with_snapshot();
    world.write("a.txt", "one\n2\nthree\n");
    world.write("new.txt", "new\n");
    world.remove("dir/b.txt");
    world
}

#[test]
fn the_directory_against_the_last_snapshot() {
    let world = changed();
    let ran = world.run(&["diff"]).code(1).remarks("1 added, 1 modified, 1 deleted");
    let lines = ran.lines();
    assert!(lines[0].starts_with("M  a.txt") && lines[0].ends_with("14 B -> 12 B"), "{lines:?}");
    assert!(lines[1].starts_with("D  dir/b.txt"), "{lines:?}");
    assert!(lines[2].starts_with("A  new.txt"), "{lines:?}");
    world.snapshot("second");
    world.run(&["diff"]).ok();
}

#[test]
fn two_snapshots() {
    let world = changed();
    world.snapshot("second");
    world.write("later", "");
    let ran = world.run(&["diff", "first", "second", "--name-status"]).code(1);
    assert_eq!(ran.lines(), ["M\ta.txt", "D\tdir/b.txt", "A\tnew.txt"]);
    let ran = world.run(&["diff", "second", "first", "--name-status"]).code(1);
    assert_eq!(ran.lines(), ["M\ta.txt", "A\tdir/b.txt", "D\tnew.txt"]);
    let ran = world.run(&["diff", "HEAD~1", "HEAD", "a.txt", "--name-status"]).code(1);
    assert_eq!(ran.lines(), ["M\ta.txt"]);
    world.run(&["diff", "second", "second"]).ok();
}

#[test]
fn words_are_snapshots_or_paths() {
    let world = changed();
    let ran = world.run(&["diff", "a.txt", "--name-status"]).code(1);
    assert_eq!(ran.lines(), ["M\ta.txt"]);
    let ran = world.run(&["diff", "first", "dir", "--name-status"]).code(1);
    assert_eq!(ran.lines(), ["D\tdir/b.txt"]);
    let ran = world.run(&["diff", "dir/b.txt", "--name-status"]).code(1);
    assert_eq!(ran.lines(), ["D\tdir/b.txt"]);
    world.write("first", "a file of this name");
    world.run(&["diff", "first"]).code(3).remarks("both a snapshot and a file");
    let ran = world.run(&["diff", "--name-status", "--", "first"]).code(1);
    assert_eq!(ran.lines(), ["A\tfirst"]);
    world.run(&["diff", "nothing"]).code(3).remarks("'nothing' is neither a snapshot nor a path");
    world.run(&["diff", "HEAD", "HEAD", "nothing"]).code(3).remarks("'nothing' is neither");
    world.run(&["diff", "HEAD~9"]).code(2).remarks("not that long");
}

#[test]
fn ranges_mean_their_ends() {
    let world = changed();
    world.snapshot("second");
    world.write("later", "");
    world.snapshot("third");
    for range in ["first..second", "HEAD~2..@^", "..first"] {
        world.run(&["diff", range]).code(1);
    }
    let ran = world.run(&["diff", "first..second", "dir", "--name-status"]).code(1);
    assert_eq!(ran.lines(), ["D\tdir/b.txt"]);
    assert_eq!(world.run(&["diff", "second..", "--name-status"]).code(1).lines(), ["A\tlater"]);
    world.run(&["diff", "first..secnd"]).code(2).remarks("called 'secnd'");
    world.write("first..second", "a file");
    assert_eq!(world.run(&["diff", "first..second", "--name-status"]).code(1).lines(), ["A\tfirst..second"]);
}

#[test]
fn lines_are_counted() {
    let world = changed();
    world.write("dir/deep/c.bin", [0, 9]);
    let ran = world.run(&["diff", "--stat"]).code(1).says("4 files: 2 lines added, 2 removed");
    assert!(ran.lines()[0].starts_with("M  a.txt") && ran.lines()[0].ends_with("+1  -1"), "{}", ran.out);
    assert!(ran.out.contains("not text"), "{}", ran.out);
}

#[test]
fn patches_can_be_applied() {
    let world = changed();
    world.chmod("dir/deep/c.bin", 0o755);
    let patch = world.run(&["diff", "--patch"]).code(1);
    assert!(patch.out.contains("@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"), "{}", patch.out);
    assert!(patch.out.contains("old mode 100644\nnew mode 100755\n"), "{}", patch.out);
    world.run(&["restore", "first"]).ok();
    let mut program = std::process::Command::new("patch");
    let applied = program.args(["-p1", "-s"]).current_dir(world.tree());
    let mut applied = match applied.stdin(std::process::Stdio::piped()).spawn() {
        Ok(child) => child,
        // Without the program there is nothing to try it with.
        Err(_) => return,
    };
    std::io::Write::write_all(&mut applied.stdin.take().unwrap(), &patch.raw).unwrap();
    assert!(applied.wait().unwrap().success());
    assert_eq!(world.read("a.txt"), "one\n2\nthree\n");
    assert_eq!(world.read("new.txt"), "new\n");
    assert!(!world.has("dir/b.txt"));
}

#[test]
fn before_the_first_snapshot() {
    let world = World::new();
    world.write("x", "1\n");
    world.run(&["diff", "--patch"]).code(1).says("+1");
    world.run(&["diff", "HEAD"]).code(3).remarks("no snapshot yet");
}

#[test]
fn json() {
    let world = changed();
    let value = world.json(&["diff"]);
    assert_eq!(value["to"], serde_json::Value::Null);
    assert_eq!(value["counts"]["added"], 1);
    assert_eq!(value["changes"][0]["aspects"][0], "content");
    assert_eq!(value["changes"][0]["size"], 12);
}
