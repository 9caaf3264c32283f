//! `vellum sync --fake-super`: what only root may set is kept in extended attributes, as rsync keeps it.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::Path;
use std::process::Command;

use crate::other_host::Host;
use crate::world::World;

/// A user without privileges, who keeps the tree.
const KEEPER: u32 = 61_235;

/// A tree that only root can make: owners, set-id bits, devices, modes that shut the owner out.
fn fill(world: &World) {
    world.write("src/program", "runs as another");
    world.write("src/dir/shut", "unreadable");
    let at = |name: &str| world.tree().join("src").join(name);
    chown(at("program"), Some(12), Some(34)).unwrap();
    world.chmod("src/program", 0o4751);
    world.chmod("src/dir/shut", 0o004);
    chown(at("dir"), Some(8), Some(9)).unwrap();
    world.chmod("src/dir", 0o1311);
    symlink("program", at("link")).unwrap();
    lchown(at("link"), Some(5), Some(6)).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    fs::hard_link(at("program"), at("program again")).unwrap();
    run("mknod char c 5 7; mknod block b 9 3; mkfifo fifo", &at(""));
    drop(std::os::unix::net::UnixListener::bind(at("socket")).unwrap());
    run("setfattr -n user.mine -v 1 program; setfattr -n trusted.roots -v 2 dir", &at(""));
    // rsync leaves times alone that are in the right second.
    run("find . -depth -exec touch -h -d @1600000000.123456789 {} +", &at(""));
}

fn run(script: &str, dir: &Path) {
    let status = Command::new("bash").args(["-euc", script]).current_dir(dir).status().unwrap();
    assert!(status.success(), "{script}");
}

/// Names, types, modes, owners, devices, targets, times and attributes of all that is in a directory.
fn describe_tree(world: &World, dir: &str) -> String {
    let script = "find . -printf '%P %y %m %U:%G %s %l %T@\\n' | sort; \
        find . \\( -type b -o -type c \\) -exec stat -c '%n %t:%T' {} + | sort; \
        getfattr -hdR -m '^(user|trusted)' . | sort";
    let output =
        Command::new("bash").args(["-euc", script]).current_dir(world.tree().join(dir)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Sizes of directories are the filesystem's.
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter(|line| !line.starts_with("# file")).map(drop_dir_size).collect::<Vec<_>>().join("\n")
}

fn drop_dir_size(line: &str) -> String {
    let words: Vec<_> = line.split(' ').collect();
    match words.as_slice() {
        [name, "d", mode, owner, _, rest @ ..] => format!("{name} d {mode} {owner} {}", rest.join(" ")),
        _ => line.into(),
    }
}

/// A directory that belongs to who keeps the tree.
fn give(world: &World, dir: &str) {
    fs::create_dir_all(world.tree().join(dir)).unwrap();
    chown(world.tree().join(dir), Some(KEEPER), Some(KEEPER)).unwrap();
}

#[test]
fn a_tree_of_roots_is_kept_by_somebody_else_and_comes_back_whole() {
    let world = World::empty();
    fill(&world);
    // Somebody who may read everything is to write as somebody else: the tree is kept as root first, then given away.
    world.run(&["sync", "-aHX", "-M--fake-super", "src/", "kept/"]).ok();
    for name in ["link", "dangling", "char", "block", "fifo", "socket"] {
        let stat = fs::symlink_metadata(world.tree().join("kept").join(name)).unwrap();
        assert!(stat.is_file() && stat.uid() == 0, "{name}");
    }
    let program = fs::metadata(world.tree().join("kept/program")).unwrap();
    assert_eq!((program.mode() & 0o7777, program.uid(), program.nlink()), (0o751, 0, 2));
    assert_eq!(world.read("kept/link"), "program");
    run("chown -R 61235:61235 kept", &world.tree());
    world.run(&["sync", "--list-only", "--fake-super", "kept/"]).ok().says("dangling -> nowhere");
    world.run(&["sync", "-aHX", "--fake-super", "-M--super", "kept/", "back/"]).ok();
    assert_eq!(describe_tree(&world, "src"), describe_tree(&world, "back"));
    let block = fs::symlink_metadata(world.tree().join("back/block")).unwrap();
    assert!(block.file_type().is_block_device());
}

#[test]
fn who_is_not_root_keeps_what_they_may_read() {
    let world = World::empty();
    world.write("src/file", "content");
    world.chmod("src/file", 0o2644);
    chown(world.tree().join("src/file"), Some(12), Some(34)).unwrap();
    world.chmod("src/file", 0o2644);
    run("mknod src/char c 1 3; chmod 755 . src", &world.tree());
    give(&world, "to");
    let keep = ["sync", "-a", "-M--fake-super", "src/", "to/kept/"];
    world.run_as(KEEPER, &keep).ok();
    world.run_as(KEEPER, &keep).ok().says("Nothing to do");
    let file = fs::metadata(world.tree().join("to/kept/file")).unwrap();
    assert_eq!((file.mode() & 0o7777, file.uid(), file.gid()), (0o644, KEEPER, KEEPER));
    world.run(&["sync", "-a", "--fake-super", "-M--super", "to/kept/", "back/"]).ok();
    assert_eq!(describe_tree(&world, "src"), describe_tree(&world, "back"));
}

#[test]
fn each_change_is_kept_and_nothing_else_is_written_again() {
    let world = World::empty();
    fill(&world);
    let keep = ["sync", "-aHX", "--delete", "-M--fake-super", "src/", "kept/"];
    world.run(&keep).ok();
    world.run(&keep).ok().says("Nothing to do");
    let changes = [
        "chown 77 src/program",
        "chmod 2711 src/program",
        "chown -h 78 src/link",
        "ln -sfn nowhere src/link",
        "rm src/fifo; echo regular > src/fifo",
        "rm src/char; mknod src/char c 5 8",
        "rm src/socket",
        "chmod 700 src",
        "setfattr -n trusted.roots -v 3 src/dir",
    ];
    for change in changes {
        run(change, &world.tree());
        world.run(&["sync", "-aHXn", "--delete", "-M--fake-super", "src/", "kept/"]).ok().says("Dry run");
        world.run(&keep).ok().says("Done: ");
        world.run(&keep).ok().says("Nothing to do");
        world.run(&["sync", "-aHX", "--delete", "--fake-super", "-M--super", "kept/", "back/"]).ok();
        assert_eq!(describe_tree(&world, "src"), describe_tree(&world, "back"), "{change}");
    }
    // Both sides keep it: the attributes are read on one and written on the other.
    world.run(&["sync", "-aHX", "--fake-super", "kept/", "kept again/"]).ok();
    world.run(&["sync", "-aHXc", "--fake-super", "kept/", "kept again/"]).ok().says("Nothing to do");
    assert_eq!(describe_tree(&world, "kept"), describe_tree(&world, "kept again"));
}

#[test]
fn rsync_reads_what_is_kept_here_and_keeps_what_is_read_here() {
    let world = World::empty();
    fill(&world);
    let rsync = |line: &str| run(&format!("rsync {line}"), &world.tree());
    world.run(&["sync", "-aHX", "-M--fake-super", "src/", "ours/"]).ok();
    rsync("-aHX --fake-super -M--super ours/ back/");
    assert_eq!(describe_tree(&world, "src"), describe_tree(&world, "back"));
    rsync("-aHX -M--fake-super src/ theirs/");
    world.run(&["sync", "-aHX", "--fake-super", "-M--super", "theirs/", "again/"]).ok();
    assert_eq!(describe_tree(&world, "src"), describe_tree(&world, "again"));
    // What one has kept the other has nothing to add to.
    let checked = Command::new("rsync")
        .args(["-aHXni", "-M--fake-super", "src/", "ours/"])
        .current_dir(world.tree())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&checked.stdout), "");
}

#[test]
fn another_host_keeps_it_and_gives_it_back() {
    let host = Host::new();
    let world = &host.world;
    fill(world);
    let there = host.at("kept");
    host.sync(&["-aHX", "-M--fake-super", "src/", &there]).ok();
    host.sync(&["-aHX", "-M--fake-super", "src/", &there]).ok().says("Nothing to do");
    assert_eq!(world.read("kept/dangling"), "nowhere");
    let back = format!("{there}/");
    host.sync(&["-aHX", "-M--fake-super", &back, "back"]).ok();
    assert_eq!(describe_tree(world, "src"), describe_tree(world, "back"));
    // From there as it is, to be kept here.
    let source = format!("{}/", host.at("src"));
    host.sync(&["-aHX", "--fake-super", &source, "here"]).ok();
    host.sync(&["-aHXc", "--fake-super", &source, "here"]).ok().says("Nothing to do");
    assert_eq!(describe_tree(world, "kept"), describe_tree(world, "here"));
}

#[test]
fn damaged_metadata_is_told_and_nothing_is_deleted_for_it() {
    let world = World::empty();
    world.write("kept/good", "good");
    world.write("kept/bad", "bad");
    world.write("kept/cut", "");
    world.write("back/old", "old");
    for (name, value) in
        [("bad", "100644 0,0 0:0 more"), ("cut", "120777 0,0 0:0"), ("good", "100600 0,0 0:0")]
    {
        run(&format!("setfattr -n user.rsync.%stat -v '{value}' {name}"), &world.tree().join("kept"));
    }
    let ran = world.run(&["sync", "-a", "--delete", "--fake-super", "-M--super", "kept/", "back/"]);
    ran.code(1)
        .remarks("'bad': the attribute that has it is damaged")
        .remarks("'cut': the target of the symlink");
    assert!(world.has("back/good") && world.has("back/old") && !world.has("back/bad"));
    assert_eq!(fs::metadata(world.tree().join("back/good")).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn what_it_does_not_go_with_is_refused() {
    let world = World::empty();
    world.write("src/file", "content");
    for (line, words) in [
        ("-aA --fake-super src/ to", "--fake-super does not keep ACLs"),
        ("-rt --fake-super src/ to", "give -a, or -o, -g and -p"),
        ("-a --fake-super --two-way src to", "no meaning with --two-way"),
        ("-a --fake-super --remove-source-files src/ to", "no meaning with"),
        ("-a -M--bwlimit=1 src/ to", "it takes only --fake-super and --super"),
    ] {
        let words_of_line: Vec<_> = std::iter::once("sync").chain(line.split(' ')).collect();
        world.run(&words_of_line).code(3).remarks(words);
    }
    assert!(!world.has("to"));
}
