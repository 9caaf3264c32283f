//! What windows ask: parts of the history and of directories, versions of paths, differences.

use std::fs;

use tempfile::TempDir;
use vellum_library::{Checkout, HistoryQuery, SnapshotId, Tree, Volume, VolumeOptions};

/// A directory with snapshots, and its volume.
struct Stand {
    _dir: TempDir,
    checkout: Checkout,
    volume: Volume,
}

impl Stand {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = VolumeOptions { plain: true, ..VolumeOptions::default() };
        let volume = Volume::create_with(dir.path().join("data"), &options).unwrap().volume;
        let checkout = Checkout::open(dir.path().join("data")).unwrap();
        Self { _dir: dir, checkout, volume }
    }

    fn write(&self, path: &str, content: &str) {
        fs::write(self.checkout.root_path().join(path), content).unwrap();
    }

    fn snapshot(&self, note: &str) -> SnapshotId {
        self.checkout.create_snapshot(note).unwrap().id
    }
}

#[test]
fn the_history_by_page_is_the_whole_history() {
    let stand = Stand::new();
    let mut ids: Vec<SnapshotId> = Vec::new();
    for number in 0..7 {
        stand.write("file", &format!("{number}"));
        ids.insert(0, stand.snapshot(&format!("note {number}")));
    }
    stand.volume.tag_snapshot("kept", ids[3]).unwrap();
    let whole = stand.volume.history(&HistoryQuery::first_rows(100)).unwrap();
    assert!(!whole.more);
    let mut after = None;
    let mut rows = Vec::new();
    loop {
        let page = stand.volume.history(&HistoryQuery { after, ..HistoryQuery::first_rows(3) }).unwrap();
        after = page.rows.last().map(|row| row.entry.id);
        rows.extend(page.rows);
        if !page.more {
            break;
        }
    }
    assert_eq!(rows.iter().map(|row| row.entry.id).collect::<Vec<_>>(), ids);
    let lanes =
        |rows: &[vellum_library::HistoryRow]| rows.iter().map(|row| row.lane.clone()).collect::<Vec<_>>();
    assert_eq!(lanes(&rows), lanes(&whole.rows));
    let tagged = HistoryQuery { tag: Some("kept".into()), ..HistoryQuery::first_rows(9) };
    let tagged = stand.volume.history(&tagged).unwrap().rows;
    assert_eq!((tagged.len(), tagged[0].entry.id, &tagged[0].lane), (1, ids[3], &None));
    assert_eq!(tagged[0].labels.tags, ["kept"]);
    let unknown = HistoryQuery { worktree: Some("other".into()), ..HistoryQuery::first_rows(9) };
    assert!(stand.volume.history(&unknown).is_err());
}

#[test]
fn a_path_has_one_version_for_each_content() {
    let stand = Stand::new();
    let mut last = Vec::new();
    for (file, other) in [("a", "1"), ("a", "2"), ("b", "2"), ("a", "3"), ("a", "4")] {
        stand.write("file", file);
        stand.write("other", other);
        last.push(stand.snapshot(other));
    }
    fs::remove_file(stand.checkout.root_path().join("file")).unwrap();
    let gone = stand.snapshot("gone");
    stand.write("file", "a");
    let back = stand.snapshot("back");
    let versions: Vec<_> =
        stand.volume.path_versions(b"file", back).unwrap().collect::<Result<_, _>>().unwrap();
    let shown: Vec<_> = versions.iter().map(|version| (version.last, version.first, version.count)).collect();
    assert_eq!(shown, [(back, back, 1), (last[4], last[3], 2), (last[2], last[2], 1), (last[1], last[0], 2)]);
    // The same content has the same id, wherever it is.
    assert_eq!(versions[0].content, versions[3].content);
    assert_ne!(versions[0].content, versions[2].content);
    assert!(stand.volume.read_path(gone, b"file").is_err());
    assert_eq!(stand.volume.read_path(back, b"file").unwrap().content, versions[0].content);
    assert_eq!(stand.volume.path_versions(b"nothing", back).unwrap().count(), 0);
}

#[test]
fn directories_and_differences_come_by_page() {
    let stand = Stand::new();
    let before = stand.snapshot("before");
    for name in ["a", "b", "c", "d", "e"] {
        stand.write(name, name);
    }
    let after = stand.snapshot("after");
    let snapshot = stand.volume.open_snapshot(&after.to_string()).unwrap();
    let first = snapshot.read_dir_page("", None, 2).unwrap();
    assert_eq!((first.total, first.more, first.entries[1].metadata.size()), (5, true, 1));
    let last = snapshot.read_dir_page("", Some(b"c"), 2).unwrap();
    assert_eq!(last.entries.iter().map(|entry| entry.name.to_str().unwrap()).collect::<Vec<_>>(), ["d", "e"]);
    assert!(!last.more && snapshot.read_dir_page("a", None, 2).is_err());
    for entry in snapshot.read_dir("").unwrap() {
        assert_eq!(snapshot.stat_inode(entry.ino).unwrap(), snapshot.lstat(&entry.name).unwrap());
    }
    for ino in [0, u64::MAX] {
        assert!(snapshot.stat_inode(ino).is_err(), "{ino}");
    }
    let found = stand.volume.compare(before, after, b"").unwrap();
    assert_eq!((found.page(0, 2).0.len(), found.page(0, 2).1, found.page(4, 2).1), (2, true, false));
    assert_eq!(stand.volume.compare(before, after, b"c").unwrap().changes.len(), 1);
    assert!(stand.volume.compare(after, after, b"").unwrap().changes.is_empty());
}

#[test]
fn each_change_gives_another_state() {
    let stand = Stand::new();
    let mut seen = vec![stand.volume.read_state().unwrap()];
    assert_eq!(stand.volume.read_state().unwrap(), seen[0]);
    stand.write("file", "1");
    let first = stand.snapshot("first");
    let state = stand.volume.read_state().unwrap();
    assert_ne!(state.snapshots, seen[0].snapshots);
    assert_ne!(state.refs, seen[0].refs);
    seen.push(state);
    // Refs of one length, one after another: what is in them is another thing, and nothing is there more or less.
    for name in ["aa", "bb"] {
        stand.volume.tag_snapshot(name, first).unwrap();
        let state = stand.volume.read_state().unwrap();
        assert_eq!(state.snapshots, seen[1].snapshots);
        assert!(
            seen.iter().all(|earlier| earlier.refs != state.refs && earlier.operations != state.operations)
        );
        seen.push(state);
    }
    let text = seen[0].refs.to_string();
    assert_eq!(text.len(), 32);
}

#[test]
fn what_others_forget_and_make_is_noticed_by_a_volume_that_is_open() {
    let stand = Stand::new();
    let mut ids = Vec::new();
    for number in 0..3 {
        stand.write("file", &format!("{number}"));
        ids.push(stand.snapshot(&format!("note {number}")));
    }
    let list = |worktree: Option<&str>| {
        let query = HistoryQuery { worktree: worktree.map(Into::into), ..HistoryQuery::first_rows(10) };
        let rows = stand.volume.history(&query).unwrap().rows;
        rows.iter().map(|row| row.entry.id).collect::<Vec<_>>()
    };
    assert_eq!((list(None).len(), list(Some("main")).len()), (3, 3));
    Volume::open(stand.checkout.root_path()).unwrap().forget_snapshot(ids[1]).unwrap();
    assert_eq!(list(Some("main")), [ids[2], ids[0]]);
    assert_eq!(list(None), [ids[2], ids[0]]);
    // What was listed last does not have it.
    stand.write("file", "later");
    let made = stand.snapshot("later");
    assert_eq!(list(Some("main")), [made, ids[2], ids[0]]);
}
