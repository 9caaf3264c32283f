//! `vellum init`

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use crate::terminal::Terminal;
use crate::world::{Ran, World, run};

fn recovery_code(out: &str) -> String {
    let line = out.lines().find(|line| line.starts_with("Recovery code: ")).unwrap();
    line.trim_start_matches("Recovery code: ").into()
}

#[test]
fn a_volume_is_encrypted_and_nothing_is_asked() {
    let world = World::empty();
    let ran = world.run(&["init"]).ok().says("encrypted").says("worktree 'main'").says("not shown again");
    assert_eq!(recovery_code(&ran.out).len(), 41);
    world.write("secret-name", "secret content");
    world.snapshot("s");
    for entry in walk(&world.tree().join(".vellum/store")) {
        let bytes = fs::read(&entry).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains("secret"), "{}", entry.display());
    }
}

fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(walk(&path)) } else { files.push(path) }
    }
    files
}

#[test]
fn the_key_is_its_owners_only() {
    let world = World::empty();
    world.run(&["init"]).ok();
    let mode = |name: &str| fs::metadata(world.tree().join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(".vellum"), mode(".vellum/key")), (0o700, 0o600));
}

#[test]
fn a_directory_is_made_a_worktree_once() {
    let world = World::new();
    world.run(&["init"]).code(3).remarks("is a worktree already").remarks("vellum info");
    world.write("sub/x", "");
    world.run_in("sub", &["init"]).code(3).remarks("lies inside the worktree");
    assert!(!world.has("sub/.vellum"));
}

#[test]
fn a_directory_is_adopted_into_the_volume_of_another_without_a_secret() {
    let world = World::empty();
    world.run(&["init"]).ok();
    world.write("same", crate::world::noise(1 << 20));
    world.snapshot("first");
    let other = world.path("other");
    fs::create_dir(&other).unwrap();
    fs::copy(world.tree().join("same"), other.join("same")).unwrap();
    let tree = world.tree().display().to_string();
    let adopt = |dir: &str, more: &[&str]| world.run(&[&["init", dir, "--volume", &tree], more].concat());
    let dir = other.display().to_string();
    adopt(&dir, &[]).ok().says("is now the worktree 'other' of the volume");
    let ran = run(&other, &["--json", "snapshot"], Stdio::null()).ok();
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert!(json["snapshot"]["stored"].as_u64().unwrap() < 10_000, "{json}");
    world.run(&["diff", "first", "other", "--name-status"]).says("same");
    world.run(&["worktree", "list"]).ok().says("other");
    // Once, under a name that is free, and with no options that have no meaning here.
    adopt(&dir, &["--name", "again"]).code(3).remarks("is a worktree already");
    let new = world.path("new").display().to_string();
    adopt(&new, &["--name", "other"]).code(3).remarks("has a worktree 'other' already");
    assert!(!world.path("new").exists());
    adopt(&new, &["--store", "x"]).code(3);
    adopt(&new, &["--plain"]).code(3);
    adopt(&new, &["--passphrase"]).code(3).remarks("has its key");
    let nowhere = world.path("nowhere").display().to_string();
    world.run(&["init", &new, "--volume", &nowhere]).code(2);
    adopt(&new, &["--json"]).ok().says("\"attached\": true");
}

#[test]
fn a_missing_directory_is_made() {
    let world = World::empty();
    world.run(&["init", "new/dir", "--plain"]).ok().says("not encrypted");
    assert!(world.has("new/dir/.vellum"));
}

#[test]
fn a_passphrase_opens_the_store_elsewhere() {
    let world = World::empty();
    fs::write(world.path("pass"), "correct horse\n").unwrap();
    world.write("file", "content");
    world.run(&["init", "--store", "../store", "--name", "one", "--passphrase-file", "../pass"]).ok();
    world.snapshot("s");

    fs::create_dir(world.path("two")).unwrap();
    let init = ["init", "--store", "../store"];
    let two = world.path("two");
    run(&two, &init, Stdio::null())
        .code(3)
        .remarks("cannot ask for the passphrase")
        .remarks("--passphrase-file");
    fs::write(world.path("wrong"), "battery staple\n").unwrap();
    run(&two, &[&init[..], &["--passphrase-file", "../wrong"]].concat(), Stdio::null())
        .code(2)
        .remarks("no key slot of this volume opens");
    run(&two, &[&init[..], &["--passphrase-file", "../pass"]].concat(), Stdio::null())
        .ok()
        .says("worktree 'two'");
    run(&two, &["restore", "s"], Stdio::null()).ok();
    assert_eq!(fs::read_to_string(two.join("file")).unwrap(), "content");
}

#[test]
fn a_recovery_code_opens_the_store_elsewhere() {
    let world = World::empty();
    let code = recovery_code(&world.run(&["init", "--store", "../store"]).ok().out);
    world.write("file", "content");
    world.snapshot("s");
    let two = world.path("two");
    fs::create_dir(&two).unwrap();
    fs::write(world.path("code"), code.to_lowercase().replace('-', " ")).unwrap();
    run(&two, &["init", "--store", "../store", "--passphrase-file", "../code"], Stdio::null()).ok();
    run(&two, &["cat", "s", "file"], Stdio::null()).ok().says("content");
}

#[test]
fn a_second_worktree_needs_a_name_of_its_own() {
    let world = World::empty();
    world.run(&["init", "--plain", "--store", "../store", "--name", "one"]).ok();
    let two = world.path("two");
    fs::create_dir(&two).unwrap();
    run(&two, &["init", "--plain", "--store", "../store", "--name", "one"], Stdio::null())
        .code(3)
        .remarks("a worktree 'one' already")
        .remarks("--name");
    run(&two, &["init", "--plain", "--store", "../store"], Stdio::null()).ok().says("worktree 'two'");
}

#[test]
fn a_store_of_the_other_sort_is_not_attached_to() {
    let world = World::empty();
    world.run(&["init", "--plain", "--store", "../plain", "--name", "one"]).ok();
    let two = world.path("two");
    fs::create_dir(&two).unwrap();
    run(&two, &["init", "--store", "../plain"], Stdio::null())
        .code(3)
        .remarks("is not encrypted")
        .remarks("--plain")
        .remarks("exchanged");
    assert!(!two.join(".vellum").exists(), "nothing was made");
    run(&two, &["init", "sealed", "--store", "../sealed-store", "--name", "one"], Stdio::null()).ok();
    run(&two, &["init", "other", "--plain", "--store", "../sealed-store"], Stdio::null())
        .code(3)
        .remarks("is encrypted")
        .remarks("leave out --plain");
    assert!(!two.join("other/.vellum").exists());
}

#[test]
fn a_plain_store_in_the_place_of_a_sealed_one_gets_nothing() {
    let world = World::empty();
    world.run(&["init", "--store", "../store"]).ok();
    world.write("file", "secret content");
    world.snapshot("s");
    world.run(&["fork", "side", "--to", "../side"]).ok();
    let store = world.path("store");
    let planted = world.path("planted");
    fs::create_dir(&planted).unwrap();
    run(&planted, &["init", "--plain", "--store", "../other"], Stdio::null()).ok();
    fs::remove_dir_all(&store).unwrap();
    fs::rename(world.path("other"), &store).unwrap();
    let before = walk(&store).len();
    for dir in [world.tree(), world.path("side")] {
        for command in [&["snapshot"][..], &["status"], &["fork", "third", "--to", "../third"]] {
            run(&dir, command, Stdio::null())
                .code(2)
                .remarks("is not the volume that this worktree belongs to");
        }
    }
    assert_eq!(walk(&store).len(), before, "nothing was written to it");
}

#[test]
fn secrets_on_no_terminal_are_refused_before_anything_is_made() {
    let world = World::empty();
    world.run(&["init", "--passphrase"]).code(3).remarks("cannot ask for the passphrase");
    assert!(!world.has(".vellum"));
    world.run(&["init", "--plain", "--passphrase"]).code(3);
    world.run_with_input(&["init", "--passphrase-file", "-"], "secret\n").ok();
    world.run(&["key", "list"]).ok().says("passphrase").says("recovery code");
}

#[test]
fn names_are_checked() {
    let world = World::empty();
    world.run(&["init", "--name", "a b"]).code(3).remarks("white space");
    world.run(&["init", "--name", "HEAD"]).code(3);
    assert!(!world.has(".vellum"));
}

#[test]
fn json() {
    let world = World::empty();
    let value = world.json(&["init"]);
    assert_eq!(value["worktree"], "main");
    assert_eq!(value["encrypted"], true);
    assert_eq!(value["recovery_code"].as_str().unwrap().len(), 41);
}

#[test]
fn nothing_stands_before_the_passphrase_is_there() {
    let world = World::empty();
    fs::write(world.path("empty"), "\n").unwrap();
    for (file, code, word) in [("../empty", 3, "is empty"), ("../missing", 2, "missing")] {
        for option in ["--passphrase-file", "--key-file"] {
            world.run(&["init", "new/dir", "--store", "../store", option, file]).code(code).remarks(word);
            world.run(&["init", option, file]).code(code).remarks(word);
        }
        assert!(!world.has("new") && !world.has(".vellum") && !world.path("store").exists());
    }
    let code = recovery_code(&world.run(&["init"]).ok().out);
    assert_eq!(code.len(), 41, "it is made from the beginning, and shows a code");
}

#[test]
fn ctrl_c_at_the_passphrase_leaves_nothing_and_a_terminal_that_echoes() {
    let world = World::empty();
    for answers in [&[][..], &["secret\n"]] {
        let mut terminal = Terminal::start(&world, &["init", "new", "--passphrase"]);
        terminal.wait("New passphrase: ", 1);
        for answer in answers {
            terminal.press(answer);
            terminal.wait("Repeat the passphrase: ", 1);
        }
        terminal.press("\x03");
        let (code, text, echoes) = terminal.end_with_echo();
        assert!(code.is_some_and(|code| code != 0) && echoes, "{code:?} {text}");
        assert!(text.contains("nothing was made"), "{text}");
        assert!(!world.has("new"));
    }
    let mut terminal = Terminal::start(&world, &["init", "new", "--passphrase"]);
    terminal.wait("New passphrase: ", 1);
    terminal.press("secret\n");
    terminal.wait("Repeat the passphrase: ", 1);
    terminal.press("secret\n");
    let (code, text) = terminal.end();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("Recovery code: ") && !text.contains("secret"), "{text}");
    world.run_in("new", &["key", "list"]).ok().says("passphrase").says("recovery code");
}

#[test]
fn a_volume_whose_code_could_not_be_shown_is_finished_by_another_init_that_shows_one() {
    let world = World::empty();
    // What prints to it fails, as on a full disk.
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_vellum"));
    let ran =
        command.args(["init", "--name", "one"]).current_dir(world.tree()).stdout(full).output().unwrap();
    assert_eq!(ran.status.code(), Some(2));
    world.run(&["status"]).code(2).remarks("no volume here");
    let code = recovery_code(&world.run(&["init", "--name", "two"]).ok().says("worktree 'two'").out);
    assert_eq!(
        world.run(&["worktree", "list"]).ok().lines().len(),
        1,
        "the name of the first attempt is gone"
    );
    world.write("file", "content");
    world.snapshot("s");
    fs::write(world.path("code"), code).unwrap();
    let args = ["init", "../copy", "--store", ".vellum/store", "--passphrase-file", "../code"];
    world.run(&args).ok().says("worktree 'copy'");
}

#[test]
fn a_reader_that_goes_away_misses_nothing_but_a_code() {
    for (options, code) in [(&["--plain"][..], 0), (&[], 2)] {
        let world = World::empty();
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_vellum"));
        let args = [&["init", "--name", "one"], options].concat();
        let ran = command.args(&args).current_dir(world.tree()).stdout(writer).output().unwrap();
        let ran = Ran::of(&args, ran).code(code);
        if code == 0 {
            world.snapshot("s");
        } else {
            ran.remarks("cannot show the recovery code").remarks("'vellum init' shows another one");
            world.run(&["status"]).code(2).remarks("no volume here");
            recovery_code(&world.run(&["init", "--name", "one"]).ok().out);
        }
    }
}

#[test]
fn a_failed_init_leaves_no_directory() {
    let world = World::empty();
    world.run(&["init", "--plain", "--store", "../store", "--name", "one"]).ok();
    let two = |args: &[&str]| {
        run(&world.path(""), &[&["init", "two/deep", "--store", "store"], args].concat(), Stdio::null())
    };
    two(&["--plain", "--name", "one"]).code(3).remarks("already");
    two(&[]).code(3).remarks("is not encrypted");
    two(&["--name", "a b"]).code(3);
    assert!(!world.path("two").exists());
    fs::create_dir(world.path("two")).unwrap();
    two(&["--plain", "--name", "one"]).code(3);
    assert_eq!(fs::read_dir(world.path("two")).unwrap().count(), 0, "what was there before stays");
}

#[test]
fn an_address_on_another_host_makes_no_directory_of_that_name() {
    let world = World::empty();
    for (typed, code, word) in [
        ("host:/x", 3, "'./host:/x'"),
        ("ann@host:/x", 3, "'./host:/x'"),
        ("sftp:host/x", 3, "'./sftp:host/x'"),
        ("s3:bucket", 3, "'./s3:bucket'"),
        ("memory:", 3, "memory://"),
        ("~/x", 3, "$HOME/x"),
        ("~ann/x", 3, "'~'"),
        ("s3://bucket/x", 3, "'?region=NAME'"),
        ("s3://ann:secret@bucket/x", 3, "--credentials NAME"),
        ("s3://bucket/x?endpoint=http://example.org", 3, "https://"),
        ("gopher://host", 2, "s3://"),
    ] {
        let ran = world.run(&["init", "--plain", "--store", typed]).code(code).remarks(word);
        assert!(!ran.err.contains("newer Vellum") && !ran.err.contains("secret@"), "{}", ran.err);
        world.run(&["objbench", typed]).code(code);
    }
    assert_eq!(fs::read_dir(world.tree()).unwrap().count(), 0);
    world.run(&["init", "--plain", "--store", "./host:x"]).ok();
    assert!(world.has("host:x"), "what is spelled as a directory is one");
    world.snapshot("s");
}

#[test]
fn git_add_takes_nothing_of_the_state_directory() {
    let world = World::empty();
    world.run(&["init"]).ok();
    world.write("file", "content");
    let git = |args: &[&str]| {
        let ran = std::process::Command::new("git").args(args).current_dir(world.tree()).output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8_lossy(&ran.stdout).into_owned()
    };
    git(&["init", "-q"]);
    git(&["add", "-A"]);
    assert_eq!(git(&["ls-files"]), "file\n");
    // Worktrees of early versions get it with the next command.
    fs::remove_file(world.tree().join(".vellum/.gitignore")).unwrap();
    world.snapshot("s");
    git(&["add", "-A"]);
    assert_eq!(git(&["ls-files"]), "file\n");
    world.run(&["fork", "side", "--to", "../side"]).ok();
    assert!(world.path("side/.vellum/.gitignore").exists());
}

#[test]
fn backup_programs_skip_copies_of_the_index_and_no_store_or_key() {
    let world = World::empty();
    world.run(&["init"]).ok();
    world.write("file", "content");
    world.snapshot("s");
    let tagged: Vec<_> =
        walk(&world.tree()).into_iter().filter(|path| path.ends_with("CACHEDIR.TAG")).collect();
    assert_eq!(tagged, [world.tree().join(".vellum/index/CACHEDIR.TAG")]);
    assert!(
        fs::read_to_string(&tagged[0]).unwrap().starts_with("Signature: 8a477f597d28d172789f06886806bc55")
    );
    let ran = std::process::Command::new("tar")
        .args(["--exclude-caches", "-cf", "backup.tar", "tree"])
        .current_dir(world.path(""))
        .status();
    assert!(ran.unwrap().success());
    fs::create_dir(world.path("back")).unwrap();
    let ran = std::process::Command::new("tar")
        .args(["-xf", "../backup.tar"])
        .current_dir(world.path("back"))
        .status();
    assert!(ran.unwrap().success());
    run(&world.path("back/tree"), &["cat", "s", "file"], Stdio::null()).ok().says("content");
}

#[test]
fn a_store_on_a_filesystem_without_links_takes_and_gives_back_snapshots() {
    let disk = crate::disk::Disk::foreign("exfat");
    let world = World::empty();
    let store = disk.path().join("store");
    world.write("a.txt", "first");
    world.run(&["init", "--plain", "--store", store.to_str().unwrap()]).ok();
    world.run(&["snapshot", "-q", "--tag", "one"]).ok();
    world.write("a.txt", "second");
    world.run(&["snapshot", "-q", "--tag", "two"]).ok();
    world.run(&["verify", "--all"]).ok();
    world.run(&["restore", "-q", "one"]).ok();
    assert_eq!(world.read("a.txt"), "first");
    world.run(&["tag", "remove", "two"]).ok();
    world.run(&["gc", "run"]).ok();
    world.run(&["verify", "--all"]).ok();
}
