//! Comparisons of random pairs of trees, against a naive one that looks at every path.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use vellum_map::{ChangeLayer, MapBuilder, MapRoot};
use vellum_types::{FileKind, Ino};
use vellum_volume::diff::{ChangeAspects, ChangeKind, FileChange, StateComparison, is_path_within};
use vellum_volume::tree::FileReader;
use vellum_volume::{FsTree, Volume};

use crate::model::{Link, Node, Tree, noise};
use crate::world::{PLAIN, World, snapshot};

/// One change of a random tree; numbers choose among what there is.
#[derive(Debug, Clone)]
pub enum Edit {
    File(usize, u8, u64),
    Dir(usize, u8),
    Symlink(usize, u8),
    Link(usize, usize, u8),
    Unlink(usize),
    Rename(usize, usize, u8),
    Write(usize, u64),
    Mode(usize, u32),
    Owner(usize, u32),
    Time(usize, i64),
    Xattr(usize, u8),
    /// Another kind of file under the same name.
    Replace(usize, u64),
    /// The same content as a new inode under another name, as `cp` and `rm` do it.
    Copy(usize, usize, u8),
}

pub fn edits(max: usize) -> impl Strategy<Value = Vec<Edit>> {
    let n = || 0..1000_usize;
    let name = || 0..6_u8;
    let edit = prop_oneof![
        4 => (n(), name(), 0..6_u64).prop_map(|(a, b, c)| Edit::File(a, b, c)),
        3 => (n(), name()).prop_map(|(a, b)| Edit::Dir(a, b)),
        1 => (n(), name()).prop_map(|(a, b)| Edit::Symlink(a, b)),
        2 => (n(), n(), name()).prop_map(|(a, b, c)| Edit::Link(a, b, c)),
        2 => n().prop_map(Edit::Unlink),
        4 => (n(), n(), name()).prop_map(|(a, b, c)| Edit::Rename(a, b, c)),
        2 => (n(), 0..6_u64).prop_map(|(a, b)| Edit::Write(a, b)),
        1 => (n(), 0..0o1000_u32).prop_map(|(a, b)| Edit::Mode(a, b)),
        1 => (n(), 0..3_u32).prop_map(|(a, b)| Edit::Owner(a, b)),
        1 => (n(), -5..5_i64).prop_map(|(a, b)| Edit::Time(a, b)),
        1 => (n(), 0..3_u8).prop_map(|(a, b)| Edit::Xattr(a, b)),
        2 => (n(), 0..6_u64).prop_map(|(a, b)| Edit::Replace(a, b)),
        2 => (n(), n(), name()).prop_map(|(a, b, c)| Edit::Copy(a, b, c)),
    ];
    prop::collection::vec(edit, 0..max)
}

fn content(seed: u64) -> Vec<u8> {
    // Empty, inline and in chunks, and few enough to be equal now and then.
    noise(seed, [0, 5, 99, 300, 800, 1500][usize::try_from(seed % 6).unwrap()])
}

fn name(number: u8) -> String {
    char::from(b'a' + number).to_string()
}

fn pick<T: Clone>(all: &[T], number: usize) -> Option<T> {
    all.get(number % all.len().max(1)).cloned()
}

fn dirs(tree: &Tree) -> Vec<Ino> {
    tree.nodes.iter().filter(|(_, node)| node.kind == FileKind::Dir).map(|(ino, _)| *ino).collect()
}

fn links(tree: &Tree, wanted: impl Fn(&Node) -> bool) -> Vec<(Link, Ino)> {
    let nodes = tree.nodes.iter().filter(|(_, node)| wanted(node));
    nodes.flat_map(|(ino, node)| node.links.iter().map(|link| (link.clone(), *ino))).collect()
}

fn apply(tree: &mut Tree, edit: &Edit) -> Option<()> {
    let is_dir = |node: &Node| node.kind == FileKind::Dir;
    let any = |number: usize| pick(&links(tree, |_| true), number);
    let other = |number: usize| pick(&links(tree, |node| !is_dir(node)), number);
    let place = |number: usize, new: u8| {
        let dir = pick(&dirs(tree), number)?;
        tree.lookup(dir, name(new).as_bytes()).is_none().then_some((dir, name(new)))
    };
    match *edit {
        Edit::File(dir, new, seed) => place(dir, new).map(|(dir, new)| {
            tree.file(dir, &new, content(seed));
        }),
        Edit::Dir(dir, new) => place(dir, new).map(|(dir, new)| {
            tree.dir(dir, &new);
        }),
        Edit::Symlink(dir, new) => place(dir, new).map(|(dir, new)| {
            tree.add(dir, &new, FileKind::Symlink, b"target".to_vec());
        }),
        Edit::Link(from, dir, new) => {
            let (_, ino) = other(from)?;
            let (dir, new) = place(dir, new)?;
            tree.node(ino).links.insert((dir, new.into_bytes()));
            Some(())
        }
        Edit::Unlink(at) => any(at).map(|((dir, name), _)| tree.unlink(dir, &name)),
        Edit::Rename(from, dir, new) => {
            let ((from, old), ino) = any(from)?;
            let (dir, new) = place(dir, new)?;
            (!tree.is_below(dir, ino)).then(|| tree.rename((from, &old), (dir, new.as_bytes())))
        }
        Edit::Write(at, seed) => other(at).map(|(_, ino)| {
            if tree.nodes[&ino].kind == FileKind::File {
                tree.node(ino).content = content(seed);
            }
        }),
        Edit::Mode(at, mode) => any(at).map(|(_, ino)| tree.node(ino).mode = mode),
        Edit::Owner(at, uid) => any(at).map(|(_, ino)| tree.node(ino).uid = uid),
        Edit::Time(at, mtime) => any(at).map(|(_, ino)| tree.node(ino).mtime = mtime),
        Edit::Xattr(at, value) => any(at).map(|(_, ino)| {
            tree.node(ino).xattrs.insert(b"user.x".to_vec(), vec![value]);
        }),
        Edit::Replace(at, seed) => any(at).map(|((dir, name), ino)| {
            let was_file = tree.nodes[&ino].kind == FileKind::File;
            tree.unlink(dir, &name);
            let name = String::from_utf8(name).unwrap();
            match seed % 3 {
                0 => tree.dir(dir, &name),
                1 if was_file => tree.add(dir, &name, FileKind::Symlink, b"elsewhere".to_vec()),
                _ => tree.file(dir, &name, content(seed)),
            };
        }),
        Edit::Copy(from, dir, new) => {
            let ((from, old), ino) = other(from)?;
            let (dir, new) = place(dir, new)?;
            let node = tree.nodes[&ino].clone();
            tree.unlink(from, &old);
            tree.add(dir, &new, node.kind, node.content);
            Some(())
        }
    }
}

pub fn grown(mut tree: Tree, edits: &[Edit]) -> Tree {
    for edit in edits {
        apply(&mut tree, edit);
    }
    tree
}

pub fn root_of(volume: &Volume, tree: &Tree) -> MapRoot {
    let mut session = volume.begin_write_session().unwrap();
    let root = tree.store(volume, &session).unwrap();
    session.flush_blobs().unwrap();
    session.end_session().unwrap();
    root
}

fn aspects(old: &Node, new: &Node) -> ChangeAspects {
    let dirs = old.kind == FileKind::Dir && new.kind == FileKind::Dir;
    ChangeAspects {
        content: old.content != new.content,
        kind: old.kind != new.kind,
        mode: old.mode != new.mode,
        owner: old.uid != new.uid,
        time: !dirs && old.mtime != new.mtime,
        xattr: old.xattrs != new.xattrs,
    }
}

/// Checks a list of changes by what it must explain: each link that went or came is in exactly one change; each inode
/// that differs under a name that stayed is in one; nothing else is there.
fn check(a: &Tree, b: &Tree, changes: &[FileChange]) {
    let all = |tree: &Tree| -> BTreeMap<Link, Ino> { links(tree, |_| true).into_iter().collect() };
    let before = all(a);
    let after = all(b);
    let gone: BTreeSet<_> = before.iter().filter(|(link, ino)| after.get(*link) != Some(ino)).collect();
    let came: BTreeSet<_> = after.iter().filter(|(link, ino)| before.get(*link) != Some(ino)).collect();
    let path_in = |tree: &Tree, links: BTreeSet<(&Link, &Ino)>| -> BTreeMap<Vec<u8>, Ino> {
        links.into_iter().map(|(link, ino)| (tree.path(link), *ino)).collect()
    };
    let mut gone = path_in(a, gone);
    let mut came = path_in(b, came);
    let mut reported: BTreeSet<Ino> = BTreeSet::new();
    for change in changes {
        for (side, tree) in [(&change.old, a), (&change.new, b)] {
            let Some(side) = side else { continue };
            let node = &tree.nodes[&side.ino];
            assert_eq!(tree.paths().get(&side.path), Some(&side.ino), "{change:?}");
            assert_eq!((side.kind, side.size), (node.kind, node.content.len() as u64), "{change:?}");
        }
        let sides = (change.old.as_ref(), change.new.as_ref());
        if let (Some(old), Some(new)) = sides {
            let expected = aspects(&a.nodes[&old.ino], &b.nodes[&new.ino]);
            assert_eq!(change.aspects, expected, "{change:?}");
        }
        match (change.kind, sides) {
            (ChangeKind::Added, (None, Some(new))) => assert_eq!(came.remove(&new.path), Some(new.ino)),
            (ChangeKind::Deleted, (Some(old), None)) => assert_eq!(gone.remove(&old.path), Some(old.ino)),
            (ChangeKind::Renamed, (Some(old), Some(new))) => {
                assert_ne!(old.path, new.path, "{change:?}");
                assert_eq!(gone.remove(&old.path), Some(old.ino), "{change:?}");
                assert_eq!(came.remove(&new.path), Some(new.ino), "{change:?}");
                let same = old.ino == new.ino;
                assert!(
                    same || (!change.aspects.content && !change.aspects.kind && old.size > 0),
                    "{change:?}"
                );
                if same {
                    reported.insert(new.ino);
                }
            }
            (ChangeKind::Modified, (Some(old), Some(new))) => {
                assert!(change.aspects.has_change());
                if old.ino != new.ino {
                    assert_eq!(gone.remove(&old.path), Some(old.ino), "{change:?}");
                    assert_eq!(came.remove(&new.path), Some(new.ino), "{change:?}");
                } else {
                    assert!(reported.insert(new.ino), "told twice: {change:?}");
                }
            }
            other => panic!("{other:?}"),
        }
    }
    // A name that holds another file of like kind in like state is no change for a person.
    gone.retain(|path, old| {
        let quiet = |new: &Ino| !aspects(&a.nodes[old], &b.nodes[new]).has_change();
        let replaced = came.get(path).is_some_and(quiet);
        if replaced {
            came.remove(path);
        }
        !replaced
    });
    assert!(gone.is_empty() && came.is_empty(), "untold: {gone:?} {came:?}");
    for (ino, old) in &a.nodes {
        let Some(new) = b.nodes.get(ino) else { continue };
        if aspects(old, new).has_change() {
            let reported = reported.contains(ino);
            // Where a new name of it was paired with another file of equal content, that says how it differs.
            assert!(
                reported || moved_wholly(a, b, *ino),
                "inode {ino} differs, and nothing says so: {changes:?}"
            );
        }
    }
    assert!(changes.is_sorted_by(|x, y| x.path() <= y.path()));
}

/// Checks of each path, and of one that is nowhere, whether it is told to have changed.
fn check_paths(volume: &Volume, (a, from): (&Tree, MapRoot), (b, to): (&Tree, MapRoot)) {
    let before = a.paths();
    let after = b.paths();
    let below = |tree: &Tree, paths: &BTreeMap<Vec<u8>, Ino>, scope: &[u8]| -> BTreeMap<Vec<u8>, Node> {
        let held = paths.iter().filter(|(path, _)| is_path_within(path, scope));
        held.map(|(path, ino)| {
            let mut node = tree.nodes[ino].clone();
            node.links.clear();
            if node.kind == FileKind::Dir {
                node.mtime = 0;
            }
            (path.clone(), node)
        })
        .collect()
    };
    let nowhere = b"no/where".to_vec();
    let all: BTreeSet<_> = before.keys().chain(after.keys()).chain([&nowhere]).collect();
    for path in all {
        let expected = below(a, &before, path) != below(b, &after, path);
        let shown = String::from_utf8_lossy(path);
        assert_eq!(volume.is_path_changed(path, Some(from), to).unwrap(), expected, "{shown}");
        assert_eq!(volume.is_path_changed(path, None, to).unwrap(), after.contains_key(path), "{shown}");
    }
    let root = |tree: &Tree| {
        let node = &tree.nodes[&Ino::ROOT];
        (node.mode, node.uid, node.xattrs.clone())
    };
    let expected = root(a) != root(b) || below(a, &before, b"") != below(b, &after, b"");
    assert_eq!(volume.is_path_changed(b"", Some(from), to).unwrap(), expected);
}

fn moved_wholly(a: &Tree, b: &Tree, ino: Ino) -> bool {
    a.nodes[&ino].links.intersection(&b.nodes[&ino].links).next().is_none()
}

/// The first tree with the second's entries as a layer over it.
fn layered(volume: &Volume, from: MapRoot, to: MapRoot) -> FsTree {
    let mut layer = ChangeLayer::new();
    for change in vellum_map::diff_maps(&*volume.nodes, &from, &to) {
        let change = change.unwrap();
        match change.after {
            Some(value) => layer.set_key(&*change.key, &*value),
            None => layer.delete_key(&*change.key),
        }
    }
    volume.open_tree_with_layers(from, vec![std::sync::Arc::new(layer)])
}

#[test]
fn comparisons_of_random_trees_tell_all_that_changed_and_nothing_else() {
    let world = World::new(PLAIN);
    let volume = &world.volume;
    let cases = std::env::var("VELLUM_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(500);
    let rng_seed = proptest::test_runner::RngSeed::Fixed(cases.into());
    let config = ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(base in edits(25), left in edits(8), right in edits(3))| {
        let start = grown(Tree::default(), &base);
        let a = grown(start.clone(), &right);
        let b = grown(grown(start, &right), &left);
        let from = root_of(volume, &a);
        let to = root_of(volume, &b);
        let changes = StateComparison { from: &volume.open_tree(from), to: &volume.open_tree(to) }.find_changes().unwrap();
        check(&a, &b, &changes);
        let back = StateComparison { from: &volume.open_tree(to), to: &volume.open_tree(from) }.find_changes().unwrap();
        check(&b, &a, &back);
        check_paths(volume, (&a, from), (&b, to));
        let over = layered(volume, from, to);
        prop_assert_eq!(&StateComparison { from: &volume.open_tree(from), to: &over }.find_changes().unwrap(), &changes);
        let none = StateComparison { from: &over, to: &volume.open_tree(to) }.find_changes().unwrap();
        prop_assert_eq!(none, []);
    });
}

fn reported(a: &Tree, b: &Tree) -> Vec<String> {
    let world = World::new(PLAIN);
    let volume = &world.volume;
    let from = root_of(volume, a);
    let to = root_of(volume, b);
    let states = StateComparison { from: &volume.open_tree(from), to: &volume.open_tree(to) };
    let path = |side: &Option<vellum_volume::diff::ChangeSide>| {
        side.as_ref().map_or("-".into(), |side| String::from_utf8(side.path.clone()).unwrap())
    };
    let changes = states.find_changes().unwrap();
    assert!(changes.iter().all(|change| volume.is_path_changed(change.path(), Some(from), to).unwrap()));
    changes.iter().map(|c| format!("{:?} {} {}", c.kind, path(&c.old), path(&c.new))).collect()
}

fn base() -> Tree {
    let mut tree = Tree::default();
    let dir = tree.dir(Ino::ROOT, "dir");
    let file = tree.file(dir, "file", content(3));
    tree.node(file).links.insert((Ino::ROOT, b"link".to_vec()));
    tree.file(dir, "other", content(4));
    tree
}

#[test]
fn a_renamed_directory_is_one_change() {
    let a = base();
    let mut b = base();
    b.rename((Ino::ROOT, b"dir"), (Ino::ROOT, b"moved"));
    assert_eq!(reported(&a, &b), ["Renamed dir moved"]);
    let dir = b.lookup(Ino::ROOT, b"moved").unwrap();
    b.unlink(dir, b"other");
    assert_eq!(reported(&a, &b), ["Deleted dir/other -", "Renamed dir moved"]);
}

#[test]
fn a_change_of_a_file_of_several_names_is_told_once_whatever_happens_to_the_names() {
    let a = base();
    let mut b = base();
    let dir = b.lookup(Ino::ROOT, b"dir").unwrap();
    let file = b.lookup(dir, b"file").unwrap();
    b.node(file).mode = 0o600;
    assert_eq!(reported(&a, &b), ["Modified link link"]);
    // It takes the name of another file, and keeps its own.
    b.unlink(dir, b"other");
    b.node(file).links.insert((dir, b"other".to_vec()));
    assert_eq!(reported(&a, &b), ["Modified dir/other dir/other", "Modified link link"]);
    // Both of its names change.
    let mut b = base();
    b.node(file).mode = 0o600;
    b.rename((dir, b"file"), (dir, b"x"));
    b.rename((Ino::ROOT, b"link"), (Ino::ROOT, b"y"));
    assert_eq!(reported(&a, &b).len(), 2);
}

#[test]
fn a_directory_replaced_by_its_copy_is_no_change() {
    let a = base();
    let mut b = base();
    b.unlink(Ino::ROOT, b"dir");
    let copy = b.dir(Ino::ROOT, "dir");
    b.file(copy, "file", content(3));
    let other = b.file(copy, "other", content(4));
    assert_eq!(reported(&a, &b), [""; 0]);
    b.node(other).mode = 0o600;
    assert_eq!(reported(&a, &b), ["Modified dir/other dir/other"]);
}

#[test]
fn two_names_exchanged_are_two_renames() {
    let a = base();
    let mut b = base();
    let dir = b.lookup(Ino::ROOT, b"dir").unwrap();
    b.rename((dir, b"other"), (Ino::ROOT, b"spare"));
    b.rename((dir, b"file"), (dir, b"other"));
    b.rename((Ino::ROOT, b"spare"), (dir, b"file"));
    assert_eq!(reported(&a, &b), ["Renamed dir/other dir/file", "Renamed dir/file dir/other"]);
}

#[test]
fn a_file_that_became_a_directory_went_and_one_came() {
    let a = base();
    let mut b = base();
    b.unlink(Ino::ROOT, b"link");
    b.dir(Ino::ROOT, "link");
    assert_eq!(reported(&a, &b), ["Added - link", "Deleted link -"]);
    let mut b = base();
    b.unlink(Ino::ROOT, b"link");
    b.add(Ino::ROOT, "link", FileKind::Symlink, b"x".to_vec());
    assert_eq!(reported(&a, &b), ["Modified link link"]);
}

#[test]
fn one_number_for_files_of_different_kinds_is_no_rename() {
    // Two forks give the same number to what each of them makes.
    let mut a = base();
    let mut b = base();
    a.file(Ino::ROOT, "left", content(5));
    b.dir(Ino::ROOT, "right");
    assert_eq!(reported(&a, &b), ["Deleted left -", "Added - right"]);
    let mut b = base();
    b.add(Ino::ROOT, "left", FileKind::Symlink, b"x".to_vec());
    assert_eq!(reported(&a, &b), ["Modified left left"]);
}

#[test]
fn a_scope_is_a_path_and_what_is_under_it() {
    for (path, scope, expected) in
        [("a/b", "a", true), ("a", "a", true), ("ab", "a", false), ("a", "a/b", false), ("a", "", true)]
    {
        assert_eq!(is_path_within(path.as_bytes(), scope.as_bytes()), expected, "{path} {scope}");
    }
}

#[test]
fn hostile_trees_are_errors() {
    use vellum_map::{MapError, NodeSink};
    use vellum_types::{BlobKind, Dentry, Extent, ExtentSource, InodeAttr, MapKey};
    struct Sink<'a>(&'a Volume);
    impl NodeSink for Sink<'_> {
        fn store_node(&self, bytes: &[u8]) -> Result<vellum_types::BlobId, MapError> {
            let writer = self.0.blobs.create_writer();
            let id = writer
                .put_blob(BlobKind::Node, bytes)
                .map_err(|e| MapError::from_store_failure(e.kind(), e))?;
            writer.finish().map_err(|e| MapError::from_store_failure(e.kind(), e))?;
            Ok(id)
        }
    }
    let world = World::new(PLAIN);
    let volume = &world.volume;
    let named = |kind, parent, name: &[u8]| {
        let mut attr = InodeAttr::new(kind, 0o755);
        (attr.parent, attr.name) = (parent, name.to_vec());
        attr
    };
    // A directory that lies in itself; extents that overlap or go beyond the size, or point into a write log.
    let ring = named(FileKind::Dir, Ino(5), b"ring");
    let file = InodeAttr { size: 100, ..named(FileKind::File, Ino::ROOT, b"file") };
    let hole = |len| Extent { len, source: ExtentSource::Hole }.encode();
    let log = Extent { len: 1, source: ExtentSource::WriteLog { segment: 1, offset: 0 } }.encode();
    let entries = [
        (MapKey::for_attr(Ino::ROOT), named(FileKind::Dir, Ino::SUPER, b"").encode()),
        (MapKey::for_dentry(Ino::ROOT, b"gone"), Dentry { ino: Ino(99), kind: FileKind::File }.encode()),
        (MapKey::for_attr(Ino(5)), ring.encode()),
        (MapKey::for_dentry(Ino(5), b"ring"), Dentry { ino: Ino(5), kind: FileKind::Dir }.encode()),
        (MapKey::for_attr(Ino(6)), file.encode()),
        (MapKey::for_extent(Ino(6), 0), hole(60)),
        (MapKey::for_extent(Ino(6), 50), hole(50)),
        (MapKey::for_attr(Ino(7)), file.encode()),
        (MapKey::for_extent(Ino(7), u64::MAX - 1), hole(50)),
        (MapKey::for_attr(Ino(8)), file.encode()),
        (MapKey::for_extent(Ino(8), 0), log),
        (MapKey::for_attr(Ino(9)), InodeAttr { inline: Some(vec![0; 100]), ..file.clone() }.encode()),
        (MapKey::for_extent(Ino(9), 0), hole(1)),
    ];
    let sink = Sink(volume);
    let mut builder = MapBuilder::new(volume.map_shape(), &sink);
    for (key, value) in &entries {
        builder.push_entry(key.as_bytes(), value).unwrap();
    }
    let tree = volume.open_tree(builder.finish_tree().unwrap());
    assert!(tree.inode_path(Ino(5)).unwrap_err().to_string().contains("lies in itself"));
    assert!(tree.find_path(b"gone", "it").unwrap_err().to_string().contains("missing"));
    assert!(tree.find_path(b"../../etc/passwd", "it").is_err());
    assert!(tree.read_inode(Ino(6)).unwrap_err().to_string().contains("overlapping"));
    assert!(tree.read_inode(Ino(7)).unwrap_err().to_string().contains("beyond"));
    let inode = tree.read_inode(Ino(8)).unwrap();
    assert!(FileReader::new(volume, &inode).err().unwrap().to_string().contains("write log"));
    assert!(tree.read_inode(Ino(9)).unwrap_err().to_string().contains("should not have"));
    let nothing = volume.open_tree(volume.empty_root());
    let compared = StateComparison { from: &nothing, to: &tree }.find_changes();
    assert!(compared.is_err(), "{compared:?}");
}

/// What two trees of lines that parted at `base` differ in.
fn told_of_lines(base: &Tree, a: &Tree, b: &Tree) -> Vec<String> {
    let world = World::new(PLAIN);
    let volume = &world.volume;
    let first = snapshot(volume, base, "base");
    let side = world.worktree("side");
    side.set_head(first).unwrap();
    let a = snapshot(volume, a, "a");
    let b = snapshot(&side, b, "b");
    let shared = volume.find_shared_bound(a, b).unwrap();
    assert_eq!(
        shared,
        Some(
            volume
                .open_tree(volume.catalog.get_record(&first).unwrap().root)
                .read_super_block()
                .unwrap()
                .next_ino
        )
    );
    assert_eq!(volume.find_shared_bound(first, b).unwrap(), shared);
    let root = |id| volume.catalog.get_record(&id).unwrap().root;
    let states = StateComparison { from: &volume.open_tree(root(a)), to: &volume.open_tree(root(b)) };
    let path = |side: &Option<vellum_volume::diff::ChangeSide>| {
        side.as_ref().map_or("-".into(), |side| String::from_utf8(side.path.clone()).unwrap())
    };
    let changes = states.find_changes_sharing(shared).unwrap();
    changes.iter().map(|c| format!("{:?} {} {}", c.kind, path(&c.old), path(&c.new))).collect()
}

#[test]
fn what_two_forks_made_is_not_paired_by_its_number() {
    let start = base();
    let mut a = start.clone();
    let mut b = start.clone();
    // Both give out the same numbers: for directories of different names with equal entries, and a file in one place
    // of a directory.
    let first = a.dir(Ino::ROOT, "first");
    a.file(first, "equal", content(10));
    a.file(first, "differs", content(11));
    let below = a.dir(first, "below");
    a.file(below, "deep", content(12));
    let second = b.dir(Ino::ROOT, "second");
    assert_eq!(first, second, "the case");
    b.file(second, "equal", content(10));
    b.file(second, "differs", content(13));
    b.file(second, "below", content(14));
    let reported = told_of_lines(&start, &a, &b);
    assert_eq!(
        reported,
        [
            "Deleted first -",
            "Deleted first/below -",
            "Deleted first/below/deep -",
            "Deleted first/differs -",
            "Added - second",
            "Added - second/below",
            "Added - second/differs",
            "Renamed first/equal second/equal",
        ]
    );
}

#[test]
fn what_two_forks_renamed_is_one_change_each() {
    let start = base();
    let mut a = start.clone();
    let b = start.clone();
    a.rename((Ino::ROOT, b"dir"), (Ino::ROOT, b"moved"));
    assert_eq!(told_of_lines(&start, &a, &b), ["Renamed moved dir"]);
}
