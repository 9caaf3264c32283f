//! Listings of a real worktree, compared with all of its keys in order.

use std::collections::BTreeSet;

use tempfile::TempDir;
use vellum_library::{Volume, VolumeOptions, Worktree};

use super::*;

/// Names that begin alike, and go on with bytes below and above the slash.
const NAMES: [&str; 9] = ["a", "a!", "a-b", "a.b", "a0", "aa", "b", "é", "\u{10000}"];

struct ListedTree {
    lister: KeyLister,
    worktree: Worktree,
    keys: BTreeSet<String>,
    _volume: TempDir,
}

impl ListedTree {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = VolumeOptions { plain: true, ..VolumeOptions::default() };
        let volume = Volume::create_with(dir.path(), &options).unwrap().volume;
        let worktree = volume.create_worktree("work", None).unwrap();
        let lister = KeyLister::new(ServedTree::Live(worktree.clone()));
        Self { lister, worktree, keys: BTreeSet::new(), _volume: dir }
    }

    /// Makes a file with the directories above it, unless something is in its way.
    fn add_file(&mut self, key: &str) {
        let path = Path::new(key);
        let made =
            self.worktree.mkdir_all(path.parent().unwrap()).and_then(|()| self.worktree.write(path, key));
        if made.is_ok() {
            self.keys.insert(key.to_owned());
        }
    }

    /// All rows, page by page, as keys.
    fn list(&self, prefix: &str, is_delimited: bool, limit: usize) -> Vec<String> {
        let mut rows = Vec::new();
        let mut after = None;
        loop {
            let query = KeyQuery { prefix: prefix.to_owned(), is_delimited, after, limit };
            let page = self.lister.list(&query).unwrap();
            assert!(page.rows.len() <= limit);
            rows.extend(page.rows.iter().map(|row| match row {
                KeyRow::Object { key, .. } | KeyRow::Prefix(key) => key.clone(),
            }));
            if !page.more {
                return rows;
            }
            let token = page.rows.last().unwrap().position().to_token();
            after = Some(KeyPosition::from_token(&token).unwrap());
        }
    }

    /// What it has to be.
    fn expect(&self, prefix: &str, is_delimited: bool) -> Vec<String> {
        let wanted = self.keys.iter().filter(|key| key.starts_with(prefix));
        let rows = wanted.map(|key| match key[prefix.len()..].find('/') {
            Some(slash) if is_delimited => key[..=prefix.len() + slash].to_owned(),
            Some(_) | None => key.clone(),
        });
        // A string's order is that of its bytes.
        rows.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

#[test]
fn listings_have_each_key_once_in_the_order_of_bytes() {
    let mut listed = ListedTree::new();
    // The same trees each time, and no two of them alike.
    let mut seed = 1_u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap()
    };
    for _ in 0..300 {
        let depth = 1 + next() % 3;
        let names: Vec<_> = (0..depth).map(|_| NAMES[next() % NAMES.len()]).collect();
        listed.add_file(&names.join("/"));
    }
    assert!(listed.keys.len() > 80);
    let mut prefixes = vec![String::new(), "a/a".into(), "b/".into(), "nothing".into(), "a/nothing/".into()];
    prefixes.extend(NAMES.iter().flat_map(|name| [(*name).to_owned(), format!("{name}/")]));
    for prefix in &prefixes {
        for is_delimited in [false, true] {
            let expected = listed.expect(prefix, is_delimited);
            for limit in [1, 2, 7, 1000] {
                assert_eq!(
                    listed.list(prefix, is_delimited, limit),
                    expected,
                    "{prefix:?} {is_delimited} {limit}"
                );
            }
        }
    }
    // Behind any key, whether it is there or not.
    for after in listed.keys.iter().cloned().chain(["a/".into(), "a".into(), "a/zz".into(), "zz".into()]) {
        let query =
            KeyQuery { after: Some(KeyPosition::Key(after.clone())), limit: 1000, ..KeyQuery::default() };
        let rows = listed.lister.list(&query).unwrap().rows;
        let expected = listed.keys.iter().filter(|key| **key > after).count();
        assert_eq!(rows.len(), expected, "{after}");
    }
}

#[test]
fn what_has_no_key_is_left_out_and_empty_directories_are_objects() {
    let listed = ListedTree::new();
    let tree = &listed.worktree;
    tree.mkdir_all("a/empty").unwrap();
    tree.mkdir("hidden").unwrap();
    tree.write(".vellum-upload-0", "").unwrap();
    tree.write("hidden/.vellum-upload-0", "seen").unwrap();
    tree.symlink("hidden", "to-directory").unwrap();
    tree.symlink("hidden/.vellum-upload-0", "to-file").unwrap();
    tree.symlink("/etc/passwd", "outside").unwrap();
    let all = ["a/empty/", "hidden/.vellum-upload-0", "to-file"];
    for limit in [1, 2, 1000] {
        assert_eq!(listed.list("", false, limit), all);
        assert_eq!(listed.list("a/empty/", false, limit), ["a/empty/"]);
        assert_eq!(listed.list("", true, limit), ["a/", "hidden/", "to-file"]);
        assert!(listed.list("to-directory/", false, limit).is_empty());
        assert!(listed.list("../", false, limit).is_empty());
    }
}

#[test]
fn the_pages_of_a_listing_read_a_directory_once_while_it_stays_the_same() {
    let mut listed = ListedTree::new();
    for number in 0..NAMES_MIN + 500 {
        listed.add_file(&format!("many/{number:05}"));
    }
    let reads = |listed: &ListedTree| listed.lister.reads.load(std::sync::atomic::Ordering::Relaxed);
    let expected = listed.expect("many/", false);
    assert_eq!(listed.list("many/", false, 100), expected);
    assert_eq!(reads(&listed), 1, "16 pages");
    assert_eq!(listed.list("many/", false, 1000), expected);
    assert_eq!(reads(&listed), 1, "another listing");
    // Each change shows at once, within one tick of the clock too.
    for round in 0..20 {
        let key = format!("many/new-{round:02}");
        listed.add_file(&key);
        assert_eq!(listed.list("many/new", false, 100).last(), Some(&key));
        assert_eq!(reads(&listed), 2 + round);
    }
    // What is only written keeps its name: the size is that of now.
    listed.worktree.write("many/00000", "changed").unwrap();
    let query = KeyQuery { prefix: "many/00000".into(), limit: 1, ..KeyQuery::default() };
    let page = listed.lister.list(&query).unwrap();
    let [KeyRow::Object { metadata, .. }] = &page.rows[..] else { panic!("one row") };
    assert_eq!(metadata.size(), 7);
    listed.worktree.rename("many", "other").unwrap();
    assert!(listed.list("many/", false, 100).is_empty());
    assert_eq!(listed.list("other/", false, 1000).len(), expected.len() + 20);
}

#[test]
fn tokens_are_read_as_they_were_written() {
    for position in [KeyPosition::Key("a b/é%".into()), KeyPosition::Prefix("a/".into())] {
        assert_eq!(KeyPosition::from_token(&position.to_token()), Some(position));
    }
    for token in ["", "x", "é", "k%ff", "kk%"] {
        let read = KeyPosition::from_token(token);
        assert!(read.is_none() || token == "kk%", "{token}: {read:?}");
    }
}

#[test]
fn a_snapshot_is_listed_as_its_worktree_was() {
    let dir = tempfile::tempdir().unwrap();
    let options = VolumeOptions { plain: true, ..VolumeOptions::default() };
    let volume = Volume::create_with(dir.path(), &options).unwrap().volume;
    let tree = volume.create_worktree("work", None).unwrap();
    tree.mkdir_all("a/empty").unwrap();
    for (number, path) in ["a.b", "a/b", "a/c", "a0"].into_iter().enumerate() {
        tree.write(path, "x".repeat(number)).unwrap();
    }
    tree.symlink("a/c", "to-file").unwrap();
    tree.symlink("a", "to-directory").unwrap();
    tree.symlink("/etc/passwd", "outside").unwrap();
    let rows = |served: ServedTree| {
        let lister = KeyLister::new(served);
        // Twice: the second listing goes by names that were read before.
        let read = || lister.list(&KeyQuery { limit: 1000, ..KeyQuery::default() }).unwrap().rows;
        let first: Vec<_> = read().into_iter().map(key_and_attributes).collect();
        assert_eq!(first, read().into_iter().map(key_and_attributes).collect::<Vec<_>>());
        first
    };
    let live = rows(ServedTree::Live(tree.clone()));
    let keys: Vec<_> = live.iter().map(|(key, ..)| key.as_str()).collect();
    assert_eq!(keys, ["a.b", "a/b", "a/c", "a/empty/", "a0", "to-file"]);
    let made = tree.create_snapshot("made").unwrap();
    tree.flush().unwrap();
    assert_eq!(rows(ServedTree::Snapshot(volume.open_snapshot(&made.to_string()).unwrap())), live);
}

fn key_and_attributes(row: KeyRow) -> (String, u64, u64) {
    match row {
        KeyRow::Object { key, metadata } => (key, metadata.ino(), metadata.size()),
        KeyRow::Prefix(prefix) => (prefix, 0, 0),
    }
}
