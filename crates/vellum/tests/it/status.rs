//! `vellum status`

use crate::terminal::Terminal;
use crate::world::World;

#[test]
fn a_worktree_without_changes_is_clean() {
    let world = World::with_snapshot();
    let ran = world.run(&["status"]).ok().remarks("Worktree main at").remarks("nothing changed since");
    assert_eq!(ran.out, "");
}

#[test]
fn every_kind_of_change_is_told() {
    let world = World::with_snapshot();
    world.write("a.txt", "other\n");
    world.chmod("dir/b.txt", 0o600);
    world.write("new/x", "x");
    world.write("new/y", "y");
    std::fs::rename(world.tree().join("dir/deep/c.bin"), world.tree().join("moved.bin")).unwrap();
    let ran = world.run(&["status"]).code(1).remarks("1 renamed");
    let lines = ran.lines();
    assert!(lines.contains(&"M  a.txt"), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("M  dir/b.txt") && line.ends_with("mode")), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("A  new/") && line.contains("2 entries")), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("R  dir/deep/c.bin -> moved.bin")), "{lines:?}");
    world.run(&["status", "--all"]).code(1).says("A  new/x");
}

#[test]
fn paths_are_shown_from_where_one_stands() {
    let world = World::with_snapshot();
    world.write("a.txt", "other\n");
    world.write("dir/b.txt", "other\n");
    world.run_in("dir", &["status"]).code(1).says("M  ../a.txt").says("M  b.txt");
    let ran = world.run_in("dir", &["status", "."]).code(1).says("M  b.txt");
    assert!(!ran.out.contains("a.txt"));
    world.run(&["status", "/etc"]).code(3).remarks("outside of the worktree");
    world.run(&["status", "nothing"]).code(2).remarks("'nothing'");
}

#[test]
fn before_the_first_snapshot_all_is_new() {
    let world = World::new();
    world.run(&["status"]).ok().remarks("without a snapshot");
    world.write("x", "");
    world.run(&["status"]).code(1).says("A  x");
}

#[test]
fn names_cannot_drive_the_terminal() {
    let world = World::with_snapshot();
    world.write("\x1b[2J\n", "");
    let ran = world.run(&["status"]).code(1).says("\\u{1b}[2J\\n");
    assert!(!ran.out.contains('\x1b'));
}

#[test]
fn json() {
    let world = World::with_snapshot();
    world.write("a.txt", "other\n");
    world.remove("dir/b.txt");
    let value = world.json(&["status"]);
    assert_eq!(value["worktree"], "main");
    assert_eq!(value["clean"], false);
    assert_eq!(value["head"]["note"], "first");
    assert_eq!(value["counts"]["modified"], 1);
    assert_eq!(value["changes"][0]["path"], "a.txt");
    assert_eq!(value["changes"][0]["change"], "modified");
    assert_eq!(value["changes"][1]["change"], "deleted");
    assert_eq!(value["changes"][1]["old_size"], 2);
}

#[test]
fn a_state_directory_of_somebody_else_is_not_taken_for_none() {
    const NOBODY: u32 = 65534;
    let world = World::with_snapshot();
    world.give_to(NOBODY);
    std::os::unix::fs::lchown(world.tree().join(".vellum"), Some(0), Some(0)).unwrap();
    for command in ["status", "history"] {
        let ran = world.run_as(NOBODY, &[command]).code(2).remarks(".vellum").remarks("ermission denied");
        assert!(!ran.err.contains("no volume here") && !ran.err.contains("vellum init"), "{}", ran.err);
    }
}

#[test]
fn what_is_ignored_from_now_on_is_told_as_such() {
    let world = World::with_snapshot();
    world.write(".vellumignore", "/dir\n");
    world.remove("a.txt");
    let ran = world.run(&["status"]).code(1);
    let line = |start: &str| ran.lines().into_iter().find(|line| line.starts_with(start)).unwrap().to_owned();
    assert!(line("D  dir/").ends_with("with 3 entries in it (ignored now)"), "{}", ran.out);
    assert_eq!(line("D  a.txt"), "D  a.txt");
    let ran = world.run(&["diff"]).code(1);
    let deleted: Vec<_> = ran.lines().into_iter().filter(|line| line.starts_with("D  dir")).collect();
    assert!(deleted.len() == 1 && deleted[0].contains("(ignored now)"), "{}", ran.out);
}

#[test]
fn names_that_turn_the_text_around_them_are_shown_escaped() {
    let world = World::with_snapshot();
    for name in ["a\u{202e}txt.exe", "b\u{200b}", "c\u{feff}"] {
        world.write(name, "x");
    }
    let ran = world.run(&["status"]).code(1).says("a\\u{202e}txt.exe").says("b\\u{200b}").says("c\\u{feff}");
    assert!(!ran.out.contains(['\u{202e}', '\u{200b}', '\u{feff}']), "{:?}", ran.out);
    let ran = world.run(&["diff", "--patch"]);
    assert!(!ran.out.contains(['\u{202e}', '\u{200b}', '\u{feff}']), "{:?}", ran.out);
    world.run(&["tag", "add", "a\u{202e}b"]).code(3).remarks("do not show");
}

#[test]
fn a_directory_that_a_file_replaced_is_not_called_ignored() {
    let world = World::with_snapshot();
    std::fs::remove_dir_all(world.tree().join("dir")).unwrap();
    world.write("dir", "a file now");
    let ran = world.run(&["status"]).code(1);
    assert_eq!(ran.lines(), ["A  dir", "D  dir/  with 3 entries in it"]);
    world.write(".vellumignore", "/dir\n");
    let ran = world.run(&["status"]).code(1);
    assert_eq!(ran.lines(), ["A  .vellumignore", "D  dir/           with 3 entries in it (ignored now)"]);
}

#[test]
fn columns_line_up_around_a_long_rename() {
    let world = World::with_snapshot();
    let long = "a-name-that-is-about-as-long-as-those-of-downloads.txt";
    std::fs::rename(world.tree().join("a.txt"), world.tree().join(long)).unwrap();
    world.chmod("dir/b.txt", 0o600);
    // On a terminal that does not know its size, which is taken to be one of 80 columns.
    for (command, sizes) in [("status", ["mode", ""]), ("diff", ["2 B; mode", "14 B"])] {
        let ran = world.run(&[command]).code(1);
        let rename = format!("a.txt -> {long}");
        let line = |letter, name: &str, width, size| {
            format!("{letter}  {name:width$}  {size}").trim_end().to_owned()
        };
        let piped =
            [line('R', &rename, rename.len(), sizes[1]), line('M', "dir/b.txt", rename.len(), sizes[0])];
        assert_eq!(ran.lines(), piped, "{command}");
        let (code, text) = Terminal::start(&world, &[command, "--quiet"]).end();
        let mut on_terminal = vec![format!("R  {rename}")];
        on_terminal.extend((!sizes[1].is_empty()).then(|| format!("              {}", sizes[1])));
        on_terminal.push(line('M', "dir/b.txt", 9, sizes[0]));
        assert_eq!(
            (code, text.lines().collect::<Vec<_>>()),
            (Some(1), on_terminal.iter().map(|line| &**line).collect())
        );
    }
}

#[test]
fn a_deleted_directory_is_one_line_unless_all_are_wanted_and_json_lists_each_entry() {
    let world = World::new();
    let number = 1_234;
    for file in 0..number - 1 {
        world.write(&format!("dir/sub/{file}"), "x");
    }
    // Sorts between the directory and what is in it.
    world.write("dir-2", "x");
    world.snapshot("first");
    std::fs::remove_dir_all(world.tree().join("dir")).unwrap();
    world.remove("dir-2");
    for command in ["status", "diff"] {
        let ran = world.run(&[command]).code(1).remarks("1,236 deleted");
        let lines = ran.lines();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert_eq!(lines[0], "D  dir/   with 1,234 entries in it", "{command}");
        let ran = world.run(&[command, "--all"]).code(1);
        assert_eq!(ran.lines().len(), number + 2, "{command}");
        assert!(
            ran.lines().iter().any(|line| line.split_whitespace().nth(1) == Some("dir/sub/77")),
            "{command}"
        );
        let value = world.json(&[command]);
        assert_eq!(value["changes"].as_array().unwrap().len(), number + 2, "{command}");
        assert_eq!(value["counts"]["deleted"], number + 2, "{command}");
    }
    // A list for scripts is complete too.
    assert_eq!(world.run(&["diff", "--name-status"]).code(1).lines().len(), number + 2);
}
