//! Snapshots of trees that only a holder of the key can have made: circles, directories in two places, very deep ones.
//! Every command ends, with a clear error or with its work done, and in bounded memory.

use std::collections::BTreeMap;
use std::process::Command;

use vellum_map::MapBuilder;
use vellum_types::value::SuperBlock;
use vellum_types::{Dentry, FileKind, Ino, InodeAttr, MapKey, MapKeyTag};
use vellum_volume::Volume;
use vellum_volume::state::StateDir;

use crate::world::{Ran, World, profile};

/// What a command may take of memory, KiB: a ninth of what the paths of a deep tree have.
const MEMORY_KIB: u32 = 400 << 10;
/// Levels of the deep trees.
const DEPTH: u64 = 60_000;

/// The entries of a map.
#[derive(Default)]
struct ForgedTree {
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl ForgedTree {
    /// `dir/below/`, `dir/file`, `content`.
    fn sound() -> Self {
        let mut tree = Self::with_root();
        tree.add(1, "dir", 2, FileKind::Dir);
        tree.add(2, "file", 3, FileKind::File);
        tree.add(1, "content", 4, FileKind::File);
        tree.add(2, "below", 5, FileKind::Dir);
        tree
    }

    fn with_root() -> Self {
        let mut tree = Self::default();
        let numbers = SuperBlock { next_ino: Ino(1 << 20) };
        tree.entries.insert(MapKey::for_attr(Ino::SUPER).into_bytes(), numbers.encode());
        tree.set_attr(1, &InodeAttr::new(FileKind::Dir, 0o755));
        tree
    }

    /// So many directories, each in the one before; a file in the last.
    fn deep(depth: u64) -> Self {
        let mut tree = Self::with_root();
        for level in 1..=depth {
            tree.add(level, "d", level + 1, FileKind::Dir);
        }
        tree.add(depth + 1, "file", depth + 2, FileKind::File);
        tree
    }

    fn set_attr(&mut self, ino: u64, attr: &InodeAttr) {
        self.entries.insert(MapKey::for_attr(Ino(ino)).into_bytes(), attr.encode());
    }

    fn set_name(&mut self, dir: u64, name: &str, ino: u64, kind: FileKind) {
        let key = MapKey::first_for_tag(Ino(dir), MapKeyTag::Dentry).into_bytes();
        self.entries.insert([&key, name.as_bytes()].concat(), Dentry { ino: Ino(ino), kind }.encode());
    }

    fn add(&mut self, dir: u64, name: &str, ino: u64, kind: FileKind) {
        self.set_name(dir, name, ino, kind);
        let mut attr = InodeAttr::new(kind, 0o755);
        (attr.parent, attr.name) = (Ino(dir), name.as_bytes().to_vec());
        self.set_attr(ino, &attr);
    }

    /// Records a snapshot of it on top of the last one, and tags it.
    fn record(&self, world: &World, tag: &str) {
        let volume = Volume::open(&StateDir::find_enclosing(&world.tree()).unwrap()).unwrap();
        let head = volume.read_head().unwrap().unwrap();
        let mut record = (*volume.catalog.get_record(&head).unwrap()).clone();
        record.parents = vec![head];
        let mut session = volume.begin_write_session().unwrap();
        record.root = {
            let mut builder = MapBuilder::new(volume.map_shape(), &session);
            self.entries.iter().for_each(|(key, value)| builder.push_entry(key, value).unwrap());
            builder.finish_tree().unwrap()
        };
        session.flush_blobs().unwrap();
        let id = volume.commit_snapshot(record).unwrap();
        session.end_session().unwrap();
        volume.add_tag(tag, id).unwrap();
    }
}

/// Runs a command in a worktree with little memory; it has to end by itself.
fn run(world: &World, args: &[&str]) -> Ran {
    let script = format!("ulimit -d {MEMORY_KIB}; exec \"$@\"");
    let mut command = Command::new("timeout");
    command.args(["300", "sh", "-c", &script, "sh", env!("CARGO_BIN_EXE_vellum")]);
    command
        .args(args)
        .current_dir(world.tree())
        .env_clear()
        .envs(profile())
        .env("PATH", "/usr/bin:/bin")
        .env("TZ", "UTC");
    Ran::of(args, command.output().unwrap())
}

/// Commands that go through the whole tree of a snapshot.
const READERS: [&[&str]; 4] = [
    &["ls", "-R", "forged"],
    &["export", "forged", "--tar", "-"],
    &["export", "forged", "--to", "out"],
    &["restore", "forged"],
];
/// Commands that compare it with another one.
const COMPARERS: [&[&str]; 3] =
    [&["diff", "first", "forged"], &["status"], &["restore", "--dry-run", "forged"]];

/// What each command says of a forged tree: a clear error of those that go through it, a finding of `verify`, and nothing
/// that is not an answer of the others.
fn assert_refused(tree: &ForgedTree, problem: &str) {
    let world = World::with_snapshot();
    tree.record(&world, "forged");
    run(&world, &["verify", "forged"]).code(1).says(problem);
    run(&world, &["verify", "--all"]).code(1).says(problem);
    for command in READERS {
        run(&world, command)
            .code(2)
            .remarks("the tree of the snapshot is inconsistent")
            .remarks("belongs to another place");
        assert_eq!(world.read("a.txt"), "one\ntwo\nthree\n", "nothing is touched");
    }
    for command in COMPARERS {
        let ran = run(&world, command);
        assert!(matches!(ran.code, 0..=2), "vellum {} ended with {}: {}", ran.args, ran.code, ran.err);
    }
}

#[test]
fn a_directory_that_lies_in_itself_ends_each_command() {
    let mut tree = ForgedTree::sound();
    tree.set_name(5, "up", 2, FileKind::Dir);
    assert_refused(&tree, "'up' in directory 5 is a directory that belongs to another place");
}

#[test]
fn a_directory_in_two_places_ends_each_command() {
    let mut tree = ForgedTree::sound();
    tree.set_name(1, "again", 5, FileKind::Dir);
    assert_refused(&tree, "'again' in directory 1 is a directory that belongs to another place");
}

#[test]
fn a_circle_beside_the_tree_is_a_finding_and_nothing_that_is_listed() {
    let world = World::with_snapshot();
    let mut tree = ForgedTree::sound();
    tree.add(7, "one", 6, FileKind::Dir);
    tree.add(6, "other", 7, FileKind::Dir);
    tree.record(&world, "forged");
    run(&world, &["verify", "forged"]).code(1).says("lies in itself");
    let listed = run(&world, &["ls", "-R", "forged"]).ok();
    assert!(!listed.out.contains("other"), "{}", listed.out);
    for command in COMPARERS {
        let ran = run(&world, command);
        assert!(matches!(ran.code, 0..=2), "vellum {} ended with {}: {}", ran.args, ran.code, ran.err);
    }
}

#[test]
fn a_very_deep_tree_is_verified_and_listed_in_bounded_memory() {
    let world = World::with_snapshot();
    ForgedTree::deep(DEPTH).record(&world, "forged");
    run(&world, &["verify", "--all"]).ok().says("All is intact");
    run(&world, &["ls", "forged"]).ok().says("d/");
    // What lists its paths says that it cannot.
    for command in COMPARERS {
        run(&world, command).code(2).remarks("the directories below 'd/d/d/").remarks("too deep to list");
    }
    run(&world, &["diff", "first", "forged", "--json"]).code(2);
    run(&world, &["restore", "first"]).ok();
}

#[test]
fn a_tar_archive_of_a_very_deep_tree_is_refused_before_anything_is_written() {
    let world = World::with_snapshot();
    ForgedTree::deep(DEPTH).record(&world, "forged");
    for args in [&["export", "forged", "--tar", "deep.tar"][..], &["export", "forged"]] {
        let ran = run(&world, args)
            .code(2)
            .remarks("the directories below 'd/d/d/")
            .remarks("too deep to list")
            .remarks("'vellum export --to'");
        assert_eq!(ran.out, "", "nothing is written");
    }
    assert!(!world.has("deep.tar"));
}

#[test]
fn a_tar_archive_has_paths_that_are_longer_than_the_system_takes() {
    let world = World::with_snapshot();
    ForgedTree::deep(3_000).record(&world, "forged");
    run(&world, &["export", "forged", "--tar", "deep.tar"]).ok();
    let count =
        "import sys, tarfile\nnames = tarfile.open('deep.tar').getnames()\nprint(len(names), len(names[-1]))";
    let listed = Command::new("python3").args(["-c", count]).current_dir(world.tree()).output().unwrap();
    // The top, the directories, and a file in the last of them.
    assert_eq!(String::from_utf8(listed.stdout).unwrap(), "3002 6004\n");
}

#[test]
fn a_directory_that_is_very_deep_on_disk_is_recorded_and_left_again() {
    let world = World::with_snapshot();
    let make = "import os\nfor level in range(13000):\n os.mkdir('d')\n os.chdir('d')\nopen('file', 'w').write('deep')";
    assert!(Command::new("python3").args(["-c", make]).current_dir(world.tree()).status().unwrap().success());
    run(&world, &["status"]).code(2).remarks("too deep to list");
    run(&world, &["snapshot", "--tag", "deep"]).ok();
    run(&world, &["restore", "first"]).ok();
    assert!(!world.has("d"));
    run(&world, &["restore", "--dry-run", "deep"]).code(2).remarks("too deep to list");
    run(&world, &["restore", "deep"]).ok();
    assert!(!run(&world, &["status"]).ok().out.contains("d/"));
    assert!(Command::new("rm").args(["-rf", "d"]).current_dir(world.tree()).status().unwrap().success());
}

#[test]
fn a_deep_tree_is_exported_into_a_directory() {
    let world = World::with_snapshot();
    // With the square of the depth in steps this takes minutes.
    ForgedTree::deep(6_000).record(&world, "deep");
    let to = world.path("deep");
    run(&world, &["export", "deep", "--to", to.to_str().unwrap()]).ok();
    assert!(to.join("d/d/d/d").is_dir());
    // Deeper than what removes the world can go.
    assert!(Command::new("rm").arg("-rf").arg(&to).status().unwrap().success());
}
