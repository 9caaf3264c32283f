//! Merges of random trees and of chosen ones: the table of cases, what holds of every merge, and what a merge reads.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use vellum_map::MapRoot;
use vellum_types::{FileKind, Ino, SnapshotId};
use vellum_volume::diff::StateComparison;
use vellum_volume::merge::{
    ConflictKind, ConflictPolicies, ConflictPolicy, MergeBase, MergeBaseOrigin, MergeInput, MergeSide,
    MergedTree, SnapshotRelation,
};
use vellum_volume::tree::FileReader;
use vellum_volume::{SnapshotStatistics, Volume};

use crate::comparing::{Edit, edits, grown, root_of};
use crate::model::{Tree, noise};
use crate::ram::Hooked;
use crate::world::{PLAIN, World, assert_clean, record_on};

const LOW: SnapshotId = SnapshotId([0x11; 32]);
const HIGH: SnapshotId = SnapshotId([0x22; 32]);

fn open_base(volume: &Volume, root: MapRoot) -> MergeBase {
    let shared =
        volume.open_tree(root).read_super_block().map_or(Ino(Ino::ROOT.0 + 1), |record| record.next_ino);
    MergeBase { root, shared, origin: MergeBaseOrigin::Merged }
}

fn merge_roots(
    volume: &Volume,
    base: MapRoot,
    ours: MergeSide,
    theirs: MergeSide,
    policies: &ConflictPolicies,
) -> MergedTree {
    let mut session = volume.begin_write_session().unwrap();
    let base = open_base(volume, base);
    let input = MergeInput { base, ours, statistics: SnapshotStatistics::default(), theirs, policies };
    let merged = volume.merge_trees(&input, &session).unwrap();
    session.flush_blobs().unwrap();
    session.end_session().unwrap();
    merged
}

/// A merge of three trees that a test made; the first side has the lower id.
struct Case {
    world: World,
    base: Tree,
    first: Tree,
    second: Tree,
    policy: ConflictPolicy,
}

impl Case {
    fn new(
        base: impl FnOnce(&mut Tree),
        first: impl FnOnce(&mut Tree),
        second: impl FnOnce(&mut Tree),
    ) -> Self {
        let mut tree = Tree::default();
        base(&mut tree);
        let base = tree.clone();
        let mut a = base.clone();
        first(&mut a);
        let mut b = base.clone();
        second(&mut b);
        Self { world: World::new(PLAIN), base, first: a, second: b, policy: ConflictPolicy::Report }
    }

    fn with_policy(self, policy: ConflictPolicy) -> Self {
        Self { policy, ..self }
    }

    /// The paths of the result with their content, and its conflicts. Both orders of the sides give the same.
    fn merge(&self) -> (BTreeMap<String, String>, Vec<(ConflictKind, String)>) {
        let volume = &self.world.volume;
        let [base, first, second] = [&self.base, &self.first, &self.second].map(|tree| root_of(volume, tree));
        let a = MergeSide { id: LOW, root: first };
        let b = MergeSide { id: HIGH, root: second };
        let policies = ConflictPolicies { general: self.policy, ..ConflictPolicies::default() };
        let merged = merge_roots(volume, base, a, b, &policies);
        let again = merge_roots(volume, base, b, a, &policies);
        assert_eq!((merged.root, &merged.conflicts), (again.root, &again.conflicts));
        let id = volume.commit_snapshot(record_on(volume, None, merged.root, "")).unwrap();
        assert_clean(volume);
        assert!(volume.catalog.get_record(&id).is_ok());
        let conflicts = merged.conflicts.iter().map(|conflict| {
            let other = conflict.other.as_ref().map_or(String::new(), |other| format!(" {}", text(other)));
            (conflict.kind, text(&conflict.path) + &other)
        });
        (contents(volume, merged.root), conflicts.collect())
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// All paths, with what stands there: content, `-> target`, or nothing for a directory.
fn contents(volume: &Volume, root: MapRoot) -> BTreeMap<String, String> {
    let tree = volume.open_tree(root);
    let mut found = BTreeMap::new();
    let mut waiting = vec![(String::new(), Ino::ROOT)];
    while let Some((path, dir)) = waiting.pop() {
        for (name, dentry) in tree.list_entries(dir).unwrap() {
            let path = format!("{path}{}", text(&name));
            let inode = tree.read_inode(dentry.ino).unwrap();
            let mut content = inode.attr.target.clone();
            if inode.attr.kind == FileKind::File {
                content.extend(FileReader::new(volume, &inode).unwrap().read_to_end().unwrap());
            }
            if dentry.kind == FileKind::Dir {
                waiting.push((format!("{path}/"), dentry.ino));
                found.insert(format!("{path}/"), String::new());
            } else {
                found.insert(path, text(&content));
            }
        }
    }
    found
}

fn paths(found: &[(&str, &str)]) -> BTreeMap<String, String> {
    found.iter().map(|(path, content)| ((*path).to_owned(), (*content).to_owned())).collect()
}

fn at(tree: &Tree, path: &str) -> Ino {
    path.split('/').fold(Ino::ROOT, |dir, name| tree.lookup(dir, name.as_bytes()).unwrap())
}

fn write(tree: &mut Tree, path: &str, content: &[u8]) {
    let ino = at(tree, path);
    tree.node(ino).content = content.to_vec();
    tree.node(ino).mtime += 1;
}

fn new_file(tree: &mut Tree, name: &str, content: &[u8]) {
    tree.file(Ino::ROOT, name, content.to_vec());
}

fn rename(tree: &mut Tree, from: &str, to: &str) {
    let split = |tree: &Tree, path: &str| match path.rsplit_once('/') {
        Some((dir, name)) => (at(tree, dir), name.as_bytes().to_vec()),
        None => (Ino::ROOT, path.as_bytes().to_vec()),
    };
    let from = split(tree, from);
    let to = split(tree, to);
    tree.rename((from.0, &from.1), (to.0, &to.1));
}

fn remove(tree: &mut Tree, name: &str) {
    tree.unlink(Ino::ROOT, name.as_bytes());
}

fn base_file(tree: &mut Tree) {
    new_file(tree, "f", b"1\n2\n3\n");
}

#[test]
fn edits_of_both_sides_meet_line_by_line() {
    let case = Case::new(
        base_file,
        |tree| write(tree, "f", b"one\n2\n3\n"),
        |tree| write(tree, "f", b"1\n2\nthree\n"),
    );
    assert_eq!(case.merge(), (paths(&[("f", "one\n2\nthree\n")]), vec![]));
}

#[test]
fn overlapping_edits_are_marked() {
    let case =
        Case::new(base_file, |tree| write(tree, "f", b"1\nX\n3\n"), |tree| write(tree, "f", b"1\nY\n3\n"));
    let marked = "1\n<<<<<<< 11111111\nX\n=======\nY\n>>>>>>> 22222222\n3\n";
    assert_eq!(case.merge(), (paths(&[("f", marked)]), vec![(ConflictKind::Content, "f".into())]));
    let both = case.with_policy(ConflictPolicy::KeepBoth);
    assert_eq!(both.merge(), (paths(&[("f", "1\nX\n3\n"), ("f.~22222222", "1\nY\n3\n")]), vec![]));
    let theirs = both.with_policy(ConflictPolicy::Prefer(HIGH));
    assert_eq!(theirs.merge(), (paths(&[("f", "1\nY\n3\n")]), vec![]));
}

#[test]
fn of_binary_files_both_versions_are_kept() {
    let case = Case::new(base_file, |tree| write(tree, "f", b"\0one"), |tree| write(tree, "f", b"\0two"));
    let conflicts = vec![(ConflictKind::Content, "f f.~22222222".into())];
    assert_eq!(case.merge(), (paths(&[("f", "\0one"), ("f.~22222222", "\0two")]), conflicts));
}

#[test]
fn a_rename_and_an_edit_meet() {
    let case = Case::new(base_file, |tree| rename(tree, "f", "g"), |tree| write(tree, "f", b"new\n"));
    assert_eq!(case.merge(), (paths(&[("g", "new\n")]), vec![]));
}

#[test]
fn an_edit_in_a_renamed_directory_moves_with_it() {
    let base = |tree: &mut Tree| {
        let dir = tree.dir(Ino::ROOT, "d");
        tree.file(dir, "f", b"old".to_vec());
    };
    let second = |tree: &mut Tree| {
        write(tree, "d/f", b"new");
        let dir = at(tree, "d");
        tree.file(dir, "g", b"more".to_vec());
    };
    let case = Case::new(base, |tree| rename(tree, "d", "e"), second);
    assert_eq!(case.merge(), (paths(&[("e/", ""), ("e/f", "new"), ("e/g", "more")]), vec![]));
}

#[test]
fn what_one_side_changed_and_the_other_deleted_stays() {
    let case = Case::new(base_file, |tree| write(tree, "f", b"new\n"), |tree| remove(tree, "f"));
    assert_eq!(case.merge(), (paths(&[("f", "new\n")]), vec![(ConflictKind::EditDelete, "f".into())]));
    let theirs = case.with_policy(ConflictPolicy::Prefer(HIGH));
    assert_eq!(theirs.merge(), (paths(&[]), vec![]));
    let case = Case::new(base_file, |tree| remove(tree, "f"), |tree| rename(tree, "f", "g"));
    assert_eq!(case.merge(), (paths(&[("g", "1\n2\n3\n")]), vec![(ConflictKind::RenameDelete, "g".into())]));
    let case = Case::new(base_file, |tree| remove(tree, "f"), |_| {});
    assert_eq!(case.merge(), (paths(&[]), vec![]));
}

#[test]
fn a_file_renamed_on_both_sides_has_one_name() {
    let case = Case::new(base_file, |tree| rename(tree, "f", "h"), |tree| rename(tree, "f", "g"));
    let conflicts = vec![(ConflictKind::RenameRename, "g h".into())];
    assert_eq!(case.merge(), (paths(&[("g", "1\n2\n3\n")]), conflicts));
}

#[test]
fn two_files_with_one_name_are_both_kept() {
    let base = |tree: &mut Tree| {
        new_file(tree, "a", b"a");
        new_file(tree, "b", b"b");
    };
    let case = Case::new(base, |tree| rename(tree, "a", "t"), |tree| rename(tree, "b", "t"));
    let conflicts = vec![(ConflictKind::SameName, "t t.~22222222".into())];
    assert_eq!(case.merge(), (paths(&[("t", "a"), ("t.~22222222", "b")]), conflicts.clone()));
    let create = |content: &'static [u8]| move |tree: &mut Tree| new_file(tree, "t", content);
    let case = Case::new(|_| {}, create(b"one"), create(b"two"));
    assert_eq!(case.merge(), (paths(&[("t", "one"), ("t.~22222222", "two")]), conflicts));
    let ours = case.with_policy(ConflictPolicy::Prefer(LOW));
    assert_eq!(ours.merge(), (paths(&[("t", "one")]), vec![]));
    let theirs = ours.with_policy(ConflictPolicy::Prefer(HIGH));
    assert_eq!(theirs.merge(), (paths(&[("t", "two")]), vec![]));
}

#[test]
fn what_both_sides_made_alike_is_one() {
    let make = |own: &'static str| {
        move |tree: &mut Tree| {
            let dir = tree.dir(Ino::ROOT, "d");
            let deep = tree.dir(dir, "deep");
            tree.file(deep, "same", b"same".to_vec());
            tree.file(deep, own, b"own".to_vec());
        }
    };
    let case = Case::new(|_| {}, make("x"), make("y"));
    let all =
        [("d/", ""), ("d/deep/", ""), ("d/deep/same", "same"), ("d/deep/x", "own"), ("d/deep/y", "own")];
    assert_eq!(case.merge(), (paths(&all), vec![]));
}

#[test]
fn a_directory_keeps_its_name_before_a_file() {
    let dir = |tree: &mut Tree| {
        let dir = tree.dir(Ino::ROOT, "t");
        tree.file(dir, "in", b"in".to_vec());
    };
    let case = Case::new(|_| {}, |tree| new_file(tree, "t", b"file"), dir);
    let all = [("t/", ""), ("t/in", "in"), ("t.~11111111", "file")];
    assert_eq!(case.merge(), (paths(&all), vec![(ConflictKind::Kind, "t t.~11111111".into())]));
}

#[test]
fn a_deleted_directory_stays_with_what_is_new_in_it() {
    let base = |tree: &mut Tree| {
        let dir = tree.dir(Ino::ROOT, "d");
        let deep = tree.dir(dir, "deep");
        tree.file(deep, "old", b"old".to_vec());
        tree.file(dir, "gone", b"gone".to_vec());
    };
    let add = |tree: &mut Tree| {
        let deep = at(tree, "d/deep");
        tree.file(deep, "new", b"new".to_vec());
    };
    let case = Case::new(base, |tree| remove(tree, "d"), add);
    let all = [("d/", ""), ("d/deep/", ""), ("d/deep/new", "new")];
    assert_eq!(case.merge(), (paths(&all), vec![(ConflictKind::EditDelete, "d/deep/new".into())]));
}

#[test]
fn a_renamed_directory_that_the_other_side_deleted_stays_whole() {
    let base = |tree: &mut Tree| {
        let dir = tree.dir(Ino::ROOT, "d");
        tree.file(dir, "f", b"f".to_vec());
    };
    let case = Case::new(base, |tree| remove(tree, "d"), |tree| rename(tree, "d", "e"));
    let all = [("e/", ""), ("e/f", "f")];
    assert_eq!(case.merge(), (paths(&all), vec![(ConflictKind::RenameDelete, "e".into())]));
}

#[test]
fn directories_that_were_moved_into_each_other_are_not_lost() {
    let base = |tree: &mut Tree| {
        let d = tree.dir(Ino::ROOT, "d");
        let e = tree.dir(Ino::ROOT, "e");
        tree.file(d, "in-d", b"d".to_vec());
        tree.file(e, "in-e", b"e".to_vec());
    };
    let case = Case::new(base, |tree| rename(tree, "d", "e/d"), |tree| rename(tree, "e", "d/e"));
    let all = [("d/", ""), ("d/in-d", "d"), ("d/e/", ""), ("d/e/in-e", "e")];
    assert_eq!(case.merge(), (paths(&all), vec![(ConflictKind::Cycle, "d e/d".into())]));
}

#[test]
fn moves_of_both_sides_that_close_a_circle_together_are_not_lost() {
    let base = |tree: &mut Tree| {
        for name in ["d", "e", "g"] {
            let dir = tree.dir(Ino::ROOT, name);
            tree.file(dir, "in", name.as_bytes().to_vec());
        }
    };
    let first = |tree: &mut Tree| rename(tree, "d", "e/d");
    let second = |tree: &mut Tree| {
        rename(tree, "e", "g/e");
        rename(tree, "g", "d/g");
    };
    let case = Case::new(base, first, second);
    let (all, conflicts) = case.merge();
    let files: BTreeSet<_> = all.values().map(String::as_str).collect();
    assert_eq!(files, BTreeSet::from(["", "d", "e", "g"]), "{all:?}");
    assert_eq!(all.len(), 6, "{all:?}");
    assert_eq!(conflicts.len(), 1, "{conflicts:?}");
    assert_eq!(conflicts[0].0, ConflictKind::Cycle);
}

#[test]
fn names_that_one_side_exchanges_follow_the_edits_of_the_other() {
    let base = |tree: &mut Tree| {
        new_file(tree, "a", b"a");
        new_file(tree, "b", b"b");
    };
    let exchange = |tree: &mut Tree| {
        rename(tree, "a", "c");
        rename(tree, "b", "a");
        rename(tree, "c", "b");
    };
    let case = Case::new(base, exchange, |tree| write(tree, "a", b"edited"));
    assert_eq!(case.merge(), (paths(&[("a", "b"), ("b", "edited")]), vec![]));
    let case = Case::new(base, exchange, exchange);
    assert_eq!(case.merge(), (paths(&[("a", "b"), ("b", "a")]), vec![]));
}

#[test]
fn what_became_a_directory_and_was_edited_is_there_as_both() {
    let change_kind = |tree: &mut Tree| {
        remove(tree, "f");
        let dir = tree.dir(Ino::ROOT, "f");
        tree.file(dir, "in", b"in".to_vec());
    };
    let case = Case::new(base_file, change_kind, |tree| write(tree, "f", b"edited\n"));
    let (all, conflicts) = case.merge();
    assert_eq!(all, paths(&[("f/", ""), ("f/in", "in"), ("f.~22222222", "edited\n")]));
    assert!(!conflicts.is_empty(), "{conflicts:?}");
    // Alone, it is no conflict.
    let case = Case::new(base_file, change_kind, |_| {});
    assert_eq!(case.merge(), (paths(&[("f/", ""), ("f/in", "in")]), vec![]));
}

#[test]
fn modes_owners_and_attributes_are_merged_by_themselves() {
    let first = |tree: &mut Tree| {
        let file = at(tree, "f");
        tree.node(file).mode = 0o600;
        tree.node(file).xattrs.insert(b"user.a".to_vec(), b"1".to_vec());
    };
    let second = |tree: &mut Tree| {
        let file = at(tree, "f");
        tree.node(file).uid = 7;
        tree.node(file).xattrs.insert(b"user.b".to_vec(), b"2".to_vec());
        write(tree, "f", b"new\n");
    };
    assert_eq!(Case::new(base_file, first, second).merge(), (paths(&[("f", "new\n")]), vec![]));
    let mode = |mode| {
        move |tree: &mut Tree| {
            let file = at(tree, "f");
            tree.node(file).mode = mode;
        }
    };
    let case = Case::new(base_file, mode(0o600), mode(0o755));
    assert_eq!(case.merge().1, vec![(ConflictKind::Attribute, "f".into())]);
}

#[test]
fn hard_links_of_both_sides_are_links_of_one_file() {
    let link = |name: &'static str| {
        move |tree: &mut Tree| {
            let file = at(tree, "f");
            tree.node(file).links.insert((Ino::ROOT, name.as_bytes().to_vec()));
        }
    };
    let edit = |tree: &mut Tree| {
        link("b")(tree);
        write(tree, "f", b"new");
    };
    let case = Case::new(base_file, link("a"), edit);
    assert_eq!(case.merge(), (paths(&[("a", "new"), ("b", "new"), ("f", "new")]), vec![]));
    let two = |tree: &mut Tree| {
        base_file(tree);
        link("g")(tree);
    };
    let case = Case::new(two, |tree| remove(tree, "f"), |tree| remove(tree, "g"));
    assert_eq!(case.merge().1.len(), 1, "the last name is not lost");
}

#[test]
fn a_taken_suffix_is_counted_up() {
    let base = |tree: &mut Tree| {
        base_file(tree);
        new_file(tree, "f.~22222222", b"taken");
    };
    let case = Case::new(base, |tree| write(tree, "f", b"\0a"), |tree| write(tree, "f", b"\0b"));
    assert_eq!(case.merge().1, vec![(ConflictKind::Content, "f f.~22222222.2".into())]);
}

#[test]
fn without_a_common_state_everything_is_united() {
    let world = World::new(PLAIN);
    let volume = &world.volume;
    let tree = |names: &[(&str, &str)]| {
        let mut tree = Tree::default();
        names.iter().for_each(|(name, content)| new_file(&mut tree, name, content.as_bytes()));
        root_of(volume, &tree)
    };
    let ours = MergeSide { id: HIGH, root: tree(&[("a", "1"), ("same", "s"), ("both", "x")]) };
    let theirs = MergeSide { id: LOW, root: tree(&[("b", "2"), ("both", "y"), ("same", "s")]) };
    let merged = merge_roots(volume, volume.empty_root(), ours, theirs, &ConflictPolicies::default());
    let all = [("a", "1"), ("b", "2"), ("both", "y"), ("both.~22222222", "x"), ("same", "s")];
    assert_eq!(contents(volume, merged.root), paths(&all));
}

/// What a merge keeps of a random tree.
struct Merged<'a> {
    volume: &'a Volume,
    base: MapRoot,
    next: Ino,
}

impl Merged<'_> {
    fn merge(&self, first: (SnapshotId, MapRoot), second: (SnapshotId, MapRoot)) -> MergedTree {
        let side = |(id, root)| MergeSide { id, root };
        merge_roots(self.volume, self.base, side(first), side(second), &ConflictPolicies::default())
    }

    fn assert_same_files(&self, a: MapRoot, b: MapRoot) {
        let tree = |root| self.volume.open_tree(root);
        let changes = StateComparison { from: &tree(a), to: &tree(b) }.find_changes_sharing(Some(self.next));
        assert_eq!(changes.unwrap(), []);
    }
}

fn lines_of(contents: &BTreeMap<String, String>) -> BTreeSet<&str> {
    contents.values().flat_map(|content| content.split('\n')).collect()
}

fn check_random_merge(start: &[Edit], first: &[Edit], second: &[Edit]) {
    let world = World::new(PLAIN);
    let volume = &world.volume;
    let base_tree = grown(Tree::default(), start);
    let first_tree = grown(base_tree.clone(), first);
    let second_tree = grown(base_tree.clone(), second);
    let base = root_of(volume, &base_tree);
    let x = root_of(volume, &first_tree);
    let y = root_of(volume, &second_tree);
    let merge = Merged { volume, base, next: Ino(base_tree.next) };
    let merged = merge.merge((LOW, x), (HIGH, y));
    let swapped = merge.merge((HIGH, y), (LOW, x));
    assert_eq!((merged.root, &merged.conflicts), (swapped.root, &swapped.conflicts));
    let other_ids = merge.merge((HIGH, x), (LOW, y));
    if merged.conflicts.is_empty() && other_ids.conflicts.is_empty() {
        assert_eq!(merged.root, other_ids.root, "without a conflict, ids decide nothing");
    }
    for root in [merged.root, other_ids.root] {
        volume.commit_snapshot(record_on(volume, None, root, "")).unwrap();
    }
    assert_clean(volume);
    // Nothing that either side wrote is lost.
    let before = contents(volume, base);
    let after = contents(volume, merged.root);
    for side in [x, y] {
        let written = contents(volume, side);
        let lost: Vec<_> = lines_of(&written).difference(&lines_of(&before)).copied().collect();
        assert!(lost.iter().all(|line| lines_of(&after).contains(line)), "{written:?} {after:?}");
    }
    // One side alone is the result, and so are equal sides.
    let alone = merge.merge((LOW, x), (HIGH, base));
    assert_eq!(alone.conflicts, []);
    merge.assert_same_files(x, alone.root);
    let twice = merge.merge((LOW, x), (HIGH, x));
    assert_eq!(twice.conflicts, []);
    merge.assert_same_files(x, twice.root);
    // What was numbered anew is still known as what it was.
    let onward = Merged { volume, base: x, next: Ino(first_tree.next) };
    let again = onward.merge((LOW, merged.root), (HIGH, x));
    assert_eq!(again.conflicts, []);
    Merged { volume, base, next: Ino(base_tree.next) }.assert_same_files(merged.root, again.root);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn random_trees_merge(start in edits(25), first in edits(12), second in edits(12)) {
        check_random_merge(&start, &first, &second);
    }
}

/// How many requests a merge takes whose sides change ten files each, in a tree of so many directories of 50 files.
fn count_merge_requests(count: usize) -> u64 {
    let world = World::new(PLAIN);
    let mut tree = Tree::default();
    let mut files = Vec::new();
    for number in 0..count {
        let dir = tree.dir(Ino::ROOT, &format!("dir-{number:04}"));
        files.extend((0..50).map(|file| tree.file(dir, &format!("file-{file:03}"), noise(file, 40))));
    }
    let changed = |side: usize| {
        let mut changed = tree.clone();
        for number in 0..10 {
            changed.node(files[number * 450 + side]).content = format!("changed {number}").into_bytes();
        }
        changed.file(Ino::ROOT, &format!("new-{side}"), b"new".to_vec());
        changed
    };
    let [base, x, y] = [&tree, &changed(3), &changed(40)].map(|tree| root_of(&world.volume, tree));
    let counting = Hooked::new(world.ram.clone(), |_| {});
    let cold = world.seen_in(counting.clone());
    let session = cold.begin_write_session().unwrap();
    let before = counting.operations();
    let input = MergeInput {
        base: open_base(&world.volume, base),
        ours: MergeSide { id: LOW, root: x },
        statistics: SnapshotStatistics::default(),
        theirs: MergeSide { id: HIGH, root: y },
        policies: &ConflictPolicies::default(),
    };
    let merged = cold.merge_trees(&input, &session).unwrap();
    assert_eq!((merged.conflicts, merged.statistics.changed), (vec![], 11));
    counting.operations() - before
}

#[test]
fn a_merge_reads_what_differs_and_not_the_rest() {
    let small = count_merge_requests(100);
    let large = count_merge_requests(600);
    assert!(small > 0 && large <= small + small / 2, "{small} nodes of 5,000 files, {large} of 30,000");
}

#[test]
fn histories_are_followed_by_the_graph() {
    let world = World::new(PLAIN);
    let volume = &world.volume;
    let root = |names: &[&str]| {
        let mut tree = Tree::default();
        names.iter().for_each(|name| new_file(&mut tree, name, b""));
        root_of(volume, &tree)
    };
    let commit = |parents: &[SnapshotId], root: MapRoot, note: &str| {
        let record = record_on(volume, None, root, note);
        volume.commit_snapshot(vellum_volume::SnapshotRecord { parents: parents.to_vec(), ..record }).unwrap()
    };
    let base = commit(&[], root(&["base"]), "base");
    let a = commit(&[base], root(&["base", "a"]), "a");
    let b = commit(&[base], root(&["base", "b"]), "b");
    let both = root(&["base", "a", "b"]);
    let here = commit(&[a, b], both, "here");
    let there = commit(&[b, a], both, "there");
    let relate = |ours, theirs| volume.relate_snapshots(ours, theirs).unwrap();
    assert_eq!(relate(a, a), SnapshotRelation::Same);
    assert_eq!(relate(a, b), SnapshotRelation::Diverged);
    assert_eq!(relate(a, base), SnapshotRelation::Contains);
    assert_eq!(relate(base, a), SnapshotRelation::IsContained);
    assert_eq!(relate(here, there), SnapshotRelation::Twins, "the same merge, made twice");
    let onward = commit(&[here], root(&["c"]), "onward");
    assert_eq!(relate(onward, there), SnapshotRelation::Contains);
    assert_eq!(relate(there, onward), SnapshotRelation::IsContained);
    let other = commit(&[there], root(&["d"]), "other");
    let bases = |x, y| -> Vec<SnapshotId> {
        volume.find_merge_bases(x, y).unwrap().into_iter().map(|entry| entry.id).collect()
    };
    assert_eq!(bases(onward, other), [here.min(there)], "twins are one base");
    let next = volume.open_tree(both).read_super_block().unwrap().next_ino;
    assert_eq!(volume.find_shared_bound(onward, other).unwrap(), Some(next), "and gave out the same numbers");
    assert_eq!(bases(a, b), [base]);
    let resolved = commit(&[a, b], root(&["base", "a", "b", "r"]), "resolved in another way");
    assert_eq!(relate(here, resolved), SnapshotRelation::Diverged);
    let mut criss_cross = vec![a, b];
    criss_cross.sort();
    assert_eq!(bases(here, resolved), criss_cross);
    let mut session = volume.begin_write_session().unwrap();
    let found = volume.find_merge_base(here, resolved, &mut session).unwrap();
    assert_eq!(contents(volume, found.root).into_keys().collect::<Vec<_>>(), ["a", "b", "base"]);
    session.end_session().unwrap();
}
