//! `resolve --tool`: programs of the user merge what `merge` left, in directories and in mounts.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use crate::disk::Disk;
use crate::full_disk::fill;
use crate::merge::{files_in, run_at};
use crate::mounting::{Mount, kill, wait_until};
use crate::terminal::Terminal;
use crate::world::{Ran, World};

/// Merges lines as git does, without conflicts where that is possible.
const GIT: &str = r#"--tool=git merge-file -p "$LOCAL" "$BASE" "$REMOTE" > "$MERGED""#;
/// The same, with both versions of each conflict.
const UNION: &str = r#"--tool=git merge-file -p --union "$LOCAL" "$BASE" "$REMOTE" > "$MERGED""#;

/// A file by its versions.
struct Versions<'a> {
    name: &'a [u8],
    base: Option<&'a [u8]>,
    ours: &'a [u8],
    theirs: &'a [u8],
}

fn text(name: &str) -> Versions<'_> {
    Versions {
        name: name.as_bytes(),
        base: Some(b"one\ntwo\nthree\n"),
        ours: b"one\n2\nthree\n",
        theirs: b"one\nTWO\nthree\n",
    }
}

fn binary(name: &str) -> Versions<'_> {
    Versions {
        name: name.as_bytes(),
        base: Some(b"\0base\xff"),
        ours: b"\0ours\xff",
        theirs: b"\0theirs\xff",
    }
}

fn path_in(dir: &Path, name: &[u8]) -> PathBuf {
    dir.join(std::ffi::OsStr::from_bytes(name))
}

/// A worktree and a fork of it, with these files; the worktree's own versions are in no snapshot.
fn diverged(files: &[Versions<'_>]) -> World {
    put_versions(World::new(), files)
}

fn put_versions(world: World, files: &[Versions<'_>]) -> World {
    world.write("other", "other");
    let put = |dir: &Path, of: fn(&Versions<'_>) -> Option<Vec<u8>>| {
        for file in files {
            if let Some(content) = of(file) {
                fs::write(path_in(dir, file.name), content).unwrap();
            }
        }
    };
    put(&world.tree(), |file| file.base.map(<[u8]>::to_vec));
    world.snapshot("first");
    world.run(&["fork", "fork", "--to", "../fork"]).ok();
    put(&world.path("fork"), |file| Some(file.theirs.to_vec()));
    run_at(&world.path("fork"), &["snapshot", "-q"]).ok();
    put(&world.tree(), |file| Some(file.ours.to_vec()));
    world
}

/// The same in the middle of a merge with conflicts.
fn merging(files: &[Versions<'_>]) -> World {
    let world = diverged(files);
    world.run(&["merge", "fork"]).code(1);
    world
}

fn conflicts(world: &World) -> Vec<Value> {
    let ran = world.run(&["conflicts", "--json"]);
    let value: Value = serde_json::from_str(&ran.out).unwrap();
    value["conflicts"].as_array().unwrap().clone()
}

/// The files that the merge has put beside others.
fn copies(dir: &Path) -> Vec<String> {
    files_in(dir).into_keys().filter(|name| name.contains(".~")).collect()
}

/// Runs `resolve` with a directory for temporary files that is looked at afterwards; returns what is left in it.
fn resolve(world: &World, args: &[&str]) -> (Ran, Vec<PathBuf>) {
    let temporary = world.path("temporary");
    fs::create_dir_all(&temporary).unwrap();
    let args = [&["resolve"], args].concat();
    let output = world.command_at_home(&args).env("TMPDIR", &temporary).output().unwrap();
    let left = fs::read_dir(&temporary).unwrap().map(|entry| entry.unwrap().path()).collect();
    (Ran::of(&args, output), left)
}

/// The same; nothing may be left.
fn resolve_cleanly(world: &World, args: &[&str]) -> Ran {
    let (ran, left) = resolve(world, args);
    assert_eq!(left, Vec::<PathBuf>::new(), "{}", ran.err);
    ran
}

#[test]
fn git_merge_file_resolves_what_it_can_and_leaves_the_rest() {
    let world = merging(&[text("a.txt")]);
    let before = world.read("a.txt");
    assert!(before.contains("<<<<<<< "));
    let ran = resolve_cleanly(&world, &["a.txt", GIT]).code(1);
    ran.remarks("'a.txt' stays a conflict: the merge tool failed: it ended with exit code 1")
        .remarks("1 conflict to");
    assert_eq!(world.read("a.txt"), before);
    let ran = resolve_cleanly(&world, &["a.txt", UNION]).ok();
    ran.remarks("all conflicts are resolved");
    assert_eq!(world.read("a.txt"), "one\n2\nTWO\nthree\n");
    assert_eq!(conflicts(&world)[0]["resolution"], "as-is");
    world.run(&["merge", "--continue"]).ok();
    assert_eq!(world.json(&["history", "-n", "1"])["snapshots"][0]["parents"].as_array().unwrap().len(), 2);
    world.run(&["status"]).ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn diff3_merges_what_stands_on_neighbouring_lines() {
    // Changes of neighbouring lines are a conflict for 'merge'. To diff3 with options of one's own they need not be.
    let world = merging(&[text("a.txt")]);
    let line =
        r#"--tool=diff3 -m "$LOCAL" "$BASE" "$REMOTE" > "$MERGED" || sed -i '/^[<|=>]\{7\}/d' "$MERGED""#;
    resolve_cleanly(&world, &["--all", line]).ok();
    assert_eq!(world.read("a.txt"), "one\n2\ntwo\nTWO\nthree\n");
}

#[test]
fn a_tool_is_told_which_version_is_whose_wherever_it_runs() {
    let line = r#"--tool=cat "$BASE" "$LOCAL" "$REMOTE" "$MERGED" > ../told; printf '%s' "$VELLUM_PATH" > ../path; pwd > ../at; exit 1"#;
    for files in [[text("a.txt")], [binary("a.txt")]] {
        let [Versions { base, ours, theirs, .. }] = files;
        let world = merging(&files);
        // From a directory below.
        fs::create_dir(world.tree().join("dir")).unwrap();
        run_at(&world.tree().join("dir"), &["resolve", "../a.txt", line]).code(1);
        let merged = fs::read(world.tree().join("a.txt")).unwrap();
        let expected = [base.unwrap(), ours, theirs, merged.as_slice()].concat();
        assert_eq!(fs::read(world.path("told")).unwrap(), expected);
        assert_eq!(fs::read_to_string(world.path("path")).unwrap(), "a.txt");
        assert_eq!(fs::read_to_string(world.path("at")).unwrap(), format!("{}\n", world.tree().display()));
        // The other side merges the same, and calls the versions the other way round.
        world.run(&["merge", "--abort"]).ok();
        world.snapshot("ours");
        let fork = world.path("fork");
        run_at(&fork, &["merge", "main"]).code(1);
        run_at(&fork, &["resolve", "--all", line]).code(1);
        let told = fs::read(world.path("told")).unwrap();
        assert!(
            told.starts_with(&[base.unwrap(), theirs, ours].concat()),
            "{}",
            String::from_utf8_lossy(&told)
        );
    }
}

#[test]
fn any_bytes_are_merged_and_the_second_version_goes() {
    let world = merging(&[binary("image")]);
    assert_eq!(copies(&world.tree()).len(), 1);
    world.chmod("image", 0o640);
    let before = fs::metadata(world.tree().join("image")).unwrap();
    resolve_cleanly(&world, &["image", r#"--tool=cat "$REMOTE" "$LOCAL" > "$MERGED""#]).ok();
    assert_eq!(fs::read(world.tree().join("image")).unwrap(), b"\0theirs\xff\0ours\xff");
    assert_eq!(copies(&world.tree()), Vec::<String>::new());
    // It is the same file.
    let after = fs::metadata(world.tree().join("image")).unwrap();
    assert_eq!((before.ino(), before.mode()), (after.ino(), after.mode()));
    world.run(&["merge", "--continue"]).ok();
    assert_eq!(copies(&world.tree()), Vec::<String>::new());
    world.run(&["status"]).ok();
}

#[test]
fn what_the_tool_leaves_as_it_is_counts_if_it_was_written() {
    let world = merging(&[binary("image")]);
    // One of the two is what stands there already.
    for side in ["LOCAL", "REMOTE"] {
        let line = format!(r#"--tool=cat "${side}" > "$MERGED""#);
        resolve_cleanly(&world, &["image", &line]).ok();
        let content = fs::read(world.tree().join("image")).unwrap();
        assert_eq!(content, if side == "LOCAL" { &b"\0ours\xff"[..] } else { b"\0theirs\xff" });
    }
}

#[test]
fn files_that_both_sides_added_have_an_empty_base() {
    for theirs in [&b"theirs\n"[..], b"\0theirs"] {
        let world = merging(&[Versions { name: b"new", base: None, ours: b"ours\n", theirs }]);
        assert_eq!(conflicts(&world)[0]["kind"], "same-name");
        let line = r#"--tool=test -f "$BASE" && test ! -s "$BASE" && cat "$LOCAL" "$REMOTE" > "$MERGED""#;
        resolve_cleanly(&world, &["new", line]).ok();
        assert_eq!(fs::read(world.tree().join("new")).unwrap(), [b"ours\n", theirs].concat());
        assert_eq!(copies(&world.tree()), Vec::<String>::new());
        world.run(&["merge", "--continue"]).ok();
        world.run(&["verify", "--all"]).ok();
        // The other way round.
        let fork = world.path("fork");
        run_at(&fork, &["merge", "main"]).ok();
        assert_eq!(files_in(&fork), files_in(&world.tree()));
    }
}

#[test]
fn a_tool_that_does_not_succeed_changes_nothing() {
    let world = merging(&[text("a.txt"), binary("image")]);
    world.run_at_home(&["config", "set", "merge.tool-timeout", "1s"]).ok();
    let before = files_in(&world.tree());
    for (line, reason) in [
        ("cat \"$LOCAL\" > \"$MERGED\"; exit 3", "it ended with exit code 3"),
        ("cat \"$LOCAL\" > \"$MERGED\"; kill -9 $$", "it was ended by signal 9"),
        (
            "cat \"$LOCAL\" > \"$MERGED\"; sleep 600 & sleep 600",
            "the merge tool took longer than 1 s (merge.tool-timeout), and was killed",
        ),
        ("true", "the merge tool succeeded, but it has written nothing to $MERGED"),
        ("rm \"$MERGED\"", "it has removed $MERGED"),
        ("rm \"$MERGED\"; mkdir \"$MERGED\"", "what it has left in $MERGED cannot be read"),
        ("ln -sf /etc/passwd \"$MERGED\"", "what it has left in $MERGED cannot be read"),
        ("rm \"$MERGED\"; mkfifo \"$MERGED\"", "what it has left in $MERGED cannot be read"),
        ("/nowhere/meld \"$LOCAL\"", "its command '/nowhere/meld \"$LOCAL\"' was not found"),
        ("no-such-tool", "its command 'no-such-tool' was not found"),
        ("/etc/passwd", "its command '/etc/passwd' cannot be run"),
    ] {
        let ran = resolve_cleanly(&world, &["--all", &format!("--tool={line}")]).code(1);
        assert!(ran.err.contains(reason), "{line}: {}", ran.err);
        assert_eq!(files_in(&world.tree()), before, "{line}");
        assert!(conflicts(&world).iter().all(|conflict| conflict["resolution"].is_null()), "{line}");
    }
}

#[test]
fn a_tool_that_cannot_run_is_tried_once() {
    let world = merging(&[text("a.txt"), text("b.txt"), text("c.txt")]);
    let ran = resolve_cleanly(&world, &["--all", "--tool=no-such-tool"]).code(1);
    assert_eq!(ran.err.matches("was not found").count(), 1, "{}", ran.err);
    // One that fails for a file may succeed for the next.
    let line = r#"--tool=test "$VELLUM_PATH" != b.txt && cat "$LOCAL" > "$MERGED""#;
    let ran = resolve_cleanly(&world, &["--all", line, "--json"]).code(1);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(json["resolved"].as_array().unwrap().len(), 2, "{json}");
    assert_eq!((&json["left"], &json["failures"][0]["path"]), (&1.into(), &"b.txt".into()), "{json}");
    assert!(json["failures"][0]["reason"].as_str().unwrap().contains("exit code 1"));
}

#[test]
fn a_text_that_was_edited_halfway_is_kept_and_stays_a_conflict() {
    let world = merging(&[text("a.txt")]);
    let ran = resolve_cleanly(&world, &["--all", r#"--tool=echo halfway >> "$MERGED""#]).code(1);
    ran.remarks("it still has conflict markers");
    assert!(world.read("a.txt").ends_with("halfway\n"));
    // The next run goes on from there.
    resolve_cleanly(&world, &["--all", r#"--tool=sed -i '/^[<|=>]\{7\}/d' "$MERGED""#]).ok();
    assert_eq!(world.read("a.txt").lines().last(), Some("halfway"));
}

#[test]
fn what_somebody_else_wrote_meanwhile_is_not_replaced() {
    let world = merging(&[text("a.txt"), binary("image")]);
    let line = r#"--tool=echo result > "$MERGED"; echo by hand > "$VELLUM_PATH""#;
    let (ran, left) = resolve(&world, &["a.txt", line]);
    let ran = ran.code(1).remarks("it was changed while the merge tool ran, whose result is in");
    assert_eq!(world.read("a.txt"), "by hand\n");
    assert_eq!(left.len(), 1);
    let kept = left[0].join("merged.txt");
    assert!(ran.err.contains(kept.to_str().unwrap()), "{}", ran.err);
    assert_eq!(fs::read_to_string(kept).unwrap(), "result\n");
    fs::remove_dir_all(&left[0]).unwrap();
    // So is a second version that somebody has worked on.
    let copy = copies(&world.tree()).remove(0);
    world.write(&copy, "by hand");
    let ran = resolve_cleanly(&world, &["image", r#"--tool=echo result > "$MERGED""#]);
    ran.remarks(&format!("'{copy}' stays: it was changed since the merge"));
    assert_eq!((world.read("image"), world.read(&copy)), ("result\n".into(), "by hand".into()));
    // And a file that is not there any more is not made again.
    let world = merging(&[text("a.txt")]);
    world.remove("a.txt");
    resolve_cleanly(&world, &["a.txt", UNION]).code(1).remarks("it cannot be read in the worktree");
    std::os::unix::fs::symlink("other", world.tree().join("a.txt")).unwrap();
    resolve_cleanly(&world, &["a.txt", UNION]).code(1).remarks("it cannot be read in the worktree");
    assert_eq!(world.read("other"), "other");
}

#[test]
fn a_decision_replaces_what_a_tool_or_a_hand_has_made() {
    for files in [[text("a")], [binary("a")], [Versions { base: None, ..binary("a") }]] {
        let [Versions { ours, theirs, .. }] = files;
        let world = merging(&files);
        for by_tool in [true, false] {
            for (side, content) in [("--ours", ours), ("--theirs", theirs)] {
                match by_tool {
                    true => drop(resolve_cleanly(&world, &["a", r#"--tool=echo result > "$MERGED""#]).ok()),
                    false => world.write("a", "by hand\n"),
                }
                world.run(&["resolve", side, "a"]).ok();
                let versions: BTreeMap<_, _> = files_in(&world.tree());
                let expected = String::from_utf8_lossy(content).into_owned();
                assert!(versions.values().any(|version| *version == expected), "{side}: {versions:?}");
                assert!(
                    !versions
                        .values()
                        .any(|version| version.contains("by hand") || version.contains("result"))
                );
            }
            world.run(&["resolve", "--both", "a"]).ok();
            assert_eq!(copies(&world.tree()).len(), 1);
        }
    }
}

#[test]
fn the_tool_that_is_set_is_the_users_or_the_worktrees() {
    let world = merging(&[text("a.txt")]);
    let ran = resolve_cleanly(&world, &["a.txt", "--tool"]).code(3);
    ran.remarks("no merge tool is set").remarks("'vellum config set --user merge.tool COMMAND' sets one");
    let set = |place: &str, line: &str| world.run_at_home(&["config", "set", place, "merge.tool", line]);
    set("--volume", "touch ../reached").code(3).remarks("merge.tool cannot be set for a volume");
    set("--user", "echo of the user > \"$MERGED\"").ok();
    resolve_cleanly(&world, &["a.txt", "--tool"]).ok();
    assert_eq!(world.read("a.txt"), "of the user\n");
    set("--worktree", "echo of the worktree > \"$MERGED\"").ok();
    // A path is none of the command.
    resolve_cleanly(&world, &["--tool", "a.txt"]).ok();
    assert_eq!(world.read("a.txt"), "of the worktree\n");
    resolve_cleanly(&world, &["--tool=echo typed > \"$MERGED\"", "a.txt"]).ok();
    assert_eq!(world.read("a.txt"), "typed\n");
    world.run(&["resolve", "--ours", "--tool", "a.txt"]).code(3);
}

#[test]
fn conflicts_of_something_else_than_content_are_left() {
    let world = diverged(&[text("a.txt"), text("gone.txt")]);
    world.remove("gone.txt");
    world.run(&["merge", "fork"]).code(1);
    let ran = resolve_cleanly(&world, &["--all", UNION]).code(1);
    ran.remarks("1 conflict without two contents of a file").remarks("1 conflict to resolve");
    let ran = resolve_cleanly(&world, &["gone.txt", UNION]).code(3);
    ran.remarks("a merge tool merges two contents of a file").remarks("--ours, --theirs or --both");
    world.run(&["resolve", "gone.txt"]).ok();
    world.run(&["merge", "--continue"]).ok();
}

#[test]
fn names_of_any_bytes_reach_the_tool_as_they_are_and_run_nothing() {
    let names =
        [&b"$(touch reached)"[..], b"a'b\"c\\d", b"line\nbreak", b"\xff\xfe.txt", b"-rf", b"; touch reached"];
    let files: Vec<_> = names.iter().map(|name| Versions { name, ..text("") }).collect();
    let world = merging(&files);
    let line = r#"--tool=cat "$LOCAL" > "$MERGED" && printf '%s\0' "$VELLUM_PATH" >> ../told"#;
    resolve_cleanly(&world, &["--all", line]).ok();
    let told = fs::read(world.path("told")).unwrap();
    let mut told: Vec<_> = told.split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    told.sort_unstable();
    let mut expected = names.to_vec();
    expected.sort_unstable();
    assert_eq!(told, expected);
    assert!(!world.has("reached"));
    for name in names {
        assert_eq!(fs::read(path_in(&world.tree(), name)).unwrap(), b"one\n2\nthree\n");
    }
}

#[test]
fn a_mount_is_resolved_like_a_directory() {
    let world = diverged(&[text("a.txt"), binary("image")]);
    world.run(&["restore", "first"]).ok();
    let mount = Mount::new(&world, "work");
    fs::write(mount.at("a.txt"), text("").ours).unwrap();
    fs::write(mount.at("image"), binary("").ours).unwrap();
    run_at(&mount.path, &["merge", "fork"]).code(1);
    assert_eq!(copies(&mount.path).len(), 1);
    run_at(&mount.path, &["resolve", "a.txt", GIT]).code(1);
    run_at(&mount.path, &["resolve", "a.txt", UNION]).code(1).remarks("1 conflict to resolve");
    run_at(&mount.path, &["resolve", "--all", r#"--tool=cat "$LOCAL" "$REMOTE" > "$MERGED""#]).ok();
    assert_eq!(fs::read_to_string(mount.at("a.txt")).unwrap(), "one\n2\nTWO\nthree\n");
    assert_eq!(fs::read(mount.at("image")).unwrap(), b"\0ours\xff\0theirs\xff");
    assert_eq!(copies(&mount.path), Vec::<String>::new());
    run_at(&mount.path, &["merge", "--continue"]).ok();
    let work = files_in(&mount.path);
    mount.umount().ok();
    run_at(&world.path("fork"), &["merge", "work"]).ok();
    assert_eq!(files_in(&world.path("fork")), work);
}

#[test]
fn a_file_keeps_its_links_and_may_be_read_only() {
    let world = diverged(&[text("a.txt")]);
    fs::hard_link(world.tree().join("a.txt"), world.tree().join("link")).unwrap();
    world.chmod("a.txt", 0o444);
    world.run(&["merge", "fork"]).code(1);
    resolve_cleanly(&world, &["a.txt", UNION]).ok();
    assert_eq!(world.read("link"), "one\n2\nTWO\nthree\n");
    assert_eq!(fs::metadata(world.tree().join("link")).unwrap().permissions().mode() & 0o777, 0o444);
    world.run(&["merge", "--continue"]).ok();
}

#[test]
fn full_disks_are_told_and_lose_nothing() {
    // That of the temporary files.
    let world = merging(&[text("a.txt")]);
    let before = world.read("a.txt");
    let disk = Disk::in_memory(1);
    fill(&disk);
    let args = ["resolve", "a.txt", UNION];
    let output = world.command_at_home(&args).env("TMPDIR", disk.path()).output().unwrap();
    let ran = Ran::of(&args, output).code(2);
    assert!(ran.err.contains("No space left"), "{}", ran.err);
    assert_eq!(world.read("a.txt"), before);
    assert!(conflicts(&world)[0]["resolution"].is_null());
    // That of the worktree: what the tool has made is kept.
    let disk = Disk::in_memory(16);
    let world = World::on(&disk.path());
    world.run(&["init", "--plain"]).ok();
    let temporary = tempfile::tempdir().unwrap();
    let world = put_versions(world, &[text("a.txt")]);
    world.run(&["merge", "fork"]).code(1);
    let before = world.read("a.txt");
    fill(&disk);
    let args = ["resolve", "a.txt", r#"--tool=head -c 20000000 /dev/zero > "$MERGED""#];
    let output = world.command_at_home(&args).env("TMPDIR", temporary.path()).output().unwrap();
    let ran = Ran::of(&args, output);
    assert!(ran.err.contains("the result of the merge tool cannot be written"), "{}", ran.err);
    assert_eq!(world.read("a.txt"), before);
    let kept = fs::read_dir(temporary.path()).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::metadata(kept.join("merged.txt")).unwrap().len(), 20_000_000);
}

#[test]
fn a_tool_has_the_terminal_and_the_user_says_whether_to_go_on() {
    let world = merging(&[text("a.txt"), text("b.txt"), text("c.txt"), text("d.txt")]);
    // As an editor does: it shows something, and waits for what is typed. Nobody watches the time.
    let line = r#"--tool=printf 'which for %s?' "$VELLUM_PATH"; read answer; test "$answer" = quit && exit 1; echo "$answer" > "$MERGED""#;
    let mut terminal = Terminal::start(&world, &["resolve", "--all", line]);
    terminal.wait("which for a.txt?", 1);
    terminal.press("mine\n");
    terminal.wait("which for b.txt?", 1);
    terminal.press("quit\n");
    terminal.wait("go on with 2 other conflicts? [y]es, [n]o, [a]ll of them: ", 1);
    terminal.press("y\n");
    terminal.wait("which for c.txt?", 1);
    terminal.press("quit\n");
    terminal.wait("go on with 1 other conflict?", 1);
    terminal.press("n\n");
    let (code, text) = terminal.end();
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(world.read("a.txt"), "mine\n");
    assert!(world.read("d.txt").contains("<<<<<<< "));
    let resolved = conflicts(&world).iter().filter(|conflict| !conflict["resolution"].is_null()).count();
    assert_eq!(resolved, 1);
}

#[test]
fn ctrl_c_belongs_to_the_tool_that_has_the_terminal() {
    let world = merging(&[text("a.txt"), text("b.txt")]);
    // One that means something else by it.
    let line = r#"--tool=trap 'echo caught' INT; printf 'ready '; read answer || read answer; echo "$answer" > "$MERGED""#;
    let mut terminal = Terminal::start(&world, &["resolve", "a.txt", line]);
    terminal.wait("ready ", 1);
    terminal.press("\x03");
    terminal.wait("caught", 1);
    terminal.press("mine\n");
    let (code, text) = terminal.end();
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(world.read("a.txt"), "mine\n");
    // One that it ends: then so does the command, and asks nothing.
    let mut terminal = Terminal::start(&world, &["resolve", "--all", "--tool=printf 'ready '; sleep 600"]);
    terminal.wait("ready ", 1);
    terminal.press("\x03");
    let (code, text) = terminal.end();
    assert_ne!(code, Some(0), "{text}");
    assert!(world.read("b.txt").contains("<<<<<<< ") && !text.contains("go on with"), "{text}");
}

#[test]
fn a_command_that_is_to_stop_ends_the_tool_and_keeps_what_was_resolved() {
    let world = merging(&[text("a.txt"), text("b.txt"), text("c.txt")]);
    let temporary = world.path("temporary");
    fs::create_dir(&temporary).unwrap();
    let line = r#"--tool=cat "$LOCAL" > "$MERGED"; test "$VELLUM_PATH" = a.txt || { echo $$ > ../pid.new; mv ../pid.new ../pid; sleep 600; }"#;
    let mut child = world
        .command_at_home(&["resolve", "--all", line])
        .env("TMPDIR", &temporary)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the tool runs for the second file", || world.path("pid").exists());
    kill(i32::try_from(child.id()).unwrap(), "-TERM");
    assert!(!child.wait().unwrap().success());
    let tool = fs::read_to_string(world.path("pid")).unwrap();
    assert!(!Path::new("/proc").join(tool.trim()).exists(), "the tool still runs");
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
    let resolved: Vec<_> = conflicts(&world).iter().map(|conflict| conflict["resolution"].clone()).collect();
    assert_eq!(resolved.iter().filter(|resolution| **resolution == "as-is").count(), 1, "{resolved:?}");
    assert!(world.read("b.txt").contains("<<<<<<< "));
    resolve_cleanly(&world, &["--all", r#"--tool=cat "$REMOTE" > "$MERGED""#]).ok();
    world.run(&["merge", "--continue"]).ok();
}

#[test]
fn several_common_snapshots_make_one_base() {
    let world = diverged(&[text("a.txt")]);
    let fork = world.path("fork");
    world.snapshot("ours");
    run_at(&fork, &["tag", "add", "theirs", "HEAD"]).ok();
    // Each side merges the other, and decides differently.
    for (dir, other) in [(world.tree(), "theirs"), (fork, "ours")] {
        run_at(&dir, &["merge", other]).code(1);
        run_at(&dir, &["resolve", "--all", "--ours"]).ok();
        run_at(&dir, &["merge", "--continue"]).ok();
    }
    world.run(&["merge", "fork"]).code(1);
    let line = r#"--tool=cat "$BASE" > ../base; cat "$LOCAL" "$REMOTE" > "$MERGED""#;
    resolve_cleanly(&world, &["--all", line]).ok();
    assert_eq!(world.read("a.txt"), "one\n2\nthree\none\nTWO\nthree\n");
    let base = fs::read_to_string(world.path("base")).unwrap();
    assert!(base.contains("<<<<<<< ") && base.contains("2\n") && base.contains("TWO\n"), "{base}");
    world.run(&["merge", "--continue"]).ok();
    world.run(&["gc", "run"]).ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn merge_tools_in_settings_of_other_users_do_not_run() {
    let world = merging(&[text("a.txt")]);
    let line = format!("touch '{}'; cp \"$REMOTE\" \"$MERGED\"", world.path("ran").display());
    world.run_at_home(&["config", "set", "--worktree", "merge.tool", &line]).ok();
    let give =
        |user| std::os::unix::fs::lchown(world.tree().join(".vellum"), Some(user), Some(user)).unwrap();
    let before = world.read("a.txt");
    give(1234);
    // What is typed is the user's own.
    for setting in ["/nowhere", &world.tree().display().to_string()] {
        assert!(!world.path("ran").exists(), "{setting}");
        let ran = resolve_cleanly(&world, &["a.txt", "--tool"]).code(3);
        let ran = ran
            .remarks("merge.tool of this worktree is not run")
            .remarks("user 1234")
            .remarks("no other merge tool is set");
        // One is set: the warning has just said so.
        assert!(!ran.err.contains("no merge tool"), "{}", ran.err);
        assert_eq!(world.read("a.txt"), before);
        world.run_at_home(&["config", "set", "--user", "trusted-directories", setting]).ok();
    }
    resolve_cleanly(&world, &["a.txt", "--tool"]).ok();
    assert!(world.path("ran").exists());
    assert_eq!(world.read("a.txt"), "one\nTWO\nthree\n");
    give(0);
}
