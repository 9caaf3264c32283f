//! `vellum init`

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use crate::world::{World, run};

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
    run(&two, &init, Stdio::null()).code(3).remarks("no passphrase at hand").remarks("--passphrase-file");
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
    let (store, planted) = (world.path("store"), world.path("planted"));
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
    world.run(&["init", "--passphrase"]).code(3).remarks("no passphrase at hand");
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
