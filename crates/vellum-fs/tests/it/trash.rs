//! The trash: what is kept of what was removed, and what becomes of it.

use std::collections::BTreeMap;

use rustix::io::Errno;
use vellum_fs::trash::{TrashEntry, TrashRestore};
use vellum_fs::{AttributeChanges, FsError, StateReader, TimeChange, XattrFlags};
use vellum_host::ProgressMeter;
use vellum_testkit::random::{TestRandom, choose_seed};
use vellum_types::{FileKind, Ino, SnapshotId, UnixTime};
use vellum_volume::gc::{CollectionRequest, run_collection};

use crate::check::check_usage;
use crate::stand::{CALLER, MOVE, ROOT, Stand, errno, request};

const DAY: i64 = 24 * 60 * 60;

fn stand() -> Stand {
    let fs = Stand::new();
    fs.trash().set_days(7).unwrap();
    fs
}

fn write(fs: &Stand, path: &str, content: &[u8]) -> Ino {
    let ino = if fs.exists(path) { fs.at(path).ino } else { fs.create(path).unwrap().ino };
    fs.content().write(ino, 0, content, false).unwrap();
    ino
}

fn read(fs: &Stand, path: &str) -> Vec<u8> {
    let file = fs.at(path);
    fs.read(file.ino, 0, file.attr.size as usize).unwrap()
}

fn entries(fs: &Stand) -> Vec<TrashEntry> {
    fs.trash().list_entries().unwrap()
}

fn paths(fs: &Stand) -> Vec<String> {
    entries(fs).into_iter().map(|entry| String::from_utf8(entry.record.path).unwrap()).collect()
}

/// Restores everything to where it was.
fn restore_all(fs: &Stand) -> Result<(), FsError> {
    let all = entries(fs).into_iter();
    let all: Vec<_> =
        all.map(|entry| TrashRestore { number: entry.number, path: entry.record.path }).collect();
    fs.fs.restore_from_trash(&all).map(drop)
}

fn collect(fs: &Stand) {
    // Another process's: it knows only what the store has.
    run_collection(fs.volume(), &CollectionRequest::default(), &ProgressMeter::default()).unwrap();
}

/// Content that no other file has, of several chunks.
fn content(seed: u64) -> Vec<u8> {
    let mut random = TestRandom::new(seed);
    (0..300_000).map(|_| random.next_below(256) as u8).collect()
}

#[test]
fn nothing_is_kept_unless_it_was_switched_on() {
    let fs = Stand::new();
    write(&fs, "f", b"content");
    fs.unlink("f").unwrap();
    assert_eq!((fs.trash().days(), entries(&fs).len()), (0, 0));
    assert_eq!(errno(fs.fs.restore_from_trash(&[])), Errno::NOENT);
}

#[test]
fn what_was_removed_comes_back_as_it_was() {
    let fs = stand();
    fs.populate(&["d/", "d/e/"]);
    let file = write(&fs, "d/e/f", &content(1));
    let small = write(&fs, "d/small", &[7; 1000]);
    fs.attributes().setxattr(file, b"user.key", b"value", XattrFlags::default()).unwrap();
    let mtime = UnixTime { secs: 1_000_000_000, nanos: 5 };
    for ino in [file, small] {
        let set = AttributeChanges {
            mode: Some(0o640),
            uid: Some(1000),
            mtime: Some(TimeChange::At(mtime)),
            ..AttributeChanges::default()
        };
        fs.attributes().setattr(ino, &set, CALLER).unwrap();
    }
    fs.names().symlink(ROOT, b"link", b"d/e/f", CALLER).unwrap();
    let dir = fs.at("d/e").ino;
    fs.names().unlink(dir, b"f", 1234).unwrap();
    fs.unlink("d/small").unwrap();
    fs.unlink("link").unwrap();
    assert_eq!(paths(&fs), ["d/e/f", "d/small", "link"]);
    let entry = entries(&fs).remove(0);
    assert_eq!((entry.record.uid, entry.kind, entry.size), (1234, FileKind::File, 300_000));
    let used = fs.trash().used_amount().unwrap();
    assert_eq!((used.bytes, used.inodes), (301_000, 3));
    restore_all(&fs).unwrap();
    assert_eq!(read(&fs, "d/e/f"), content(1));
    assert_eq!(read(&fs, "d/small"), [7; 1000]);
    assert_eq!(fs.readlink(fs.at("link").ino).unwrap(), b"d/e/f");
    let attr = fs.attr("d/e/f");
    assert_eq!((attr.mode, attr.uid, attr.mtime, attr.nlink), (0o640, 1000, mtime, 1));
    let file = fs.at("d/e/f").ino;
    assert_eq!(fs.listxattr(file).unwrap(), [b"user.key".to_vec()]);
    assert_eq!(*fs.getxattr(file, b"user.key").unwrap(), *b"value");
    assert_eq!(entries(&fs), []);
    assert_eq!(fs.trash().used_amount().unwrap().inodes, 0);
    check_usage(&fs.fs);
}

#[test]
fn only_the_last_name_of_a_file_counts() {
    let fs = stand();
    write(&fs, "a", b"content");
    fs.link("a", "b").unwrap();
    fs.unlink("a").unwrap();
    assert!(entries(&fs).is_empty(), "it has another name");
    fs.unlink("b").unwrap();
    assert_eq!(paths(&fs), ["b"]);
    restore_all(&fs).unwrap();
    assert_eq!((read(&fs, "b"), fs.attr("b").nlink), (b"content".to_vec(), 1));
}

#[test]
fn what_a_rename_replaces_is_kept() {
    let fs = stand();
    write(&fs, "a", b"new");
    write(&fs, "b", b"old");
    fs.rename("a", "b", MOVE).unwrap();
    assert_eq!(paths(&fs), ["b"]);
    let number = entries(&fs)[0].number;
    let to = |path: &str| [TrashRestore { number, path: path.into() }];
    assert!(matches!(fs.fs.restore_from_trash(&to("b")), Err(FsError::NameTaken(_))));
    assert_eq!(errno(fs.fs.restore_from_trash(&to("b/c"))), Errno::NOTDIR);
    assert_eq!((read(&fs, "b"), paths(&fs).len()), (b"new".to_vec(), 1));
    fs.fs.restore_from_trash(&to("some/where/else")).unwrap();
    assert_eq!((read(&fs, "some/where/else"), read(&fs, "b")), (b"old".to_vec(), b"new".to_vec()));
    assert_eq!(errno(fs.fs.restore_from_trash(&to("again"))), Errno::NOENT, "it is not there any more");
}

#[test]
fn a_tree_comes_back_as_a_tree() {
    let fs = stand();
    fs.populate(&["t/", "t/empty/", "t/d/", "t/d/e/"]);
    for (number, path) in ["t/1", "t/d/2", "t/d/e/3"].into_iter().enumerate() {
        write(&fs, path, &content(number as u64));
    }
    fs.names().remove_tree(ROOT, b"t", 0).unwrap();
    assert_eq!(paths(&fs).len(), 7);
    restore_all(&fs).unwrap();
    for (number, path) in ["t/1", "t/d/2", "t/d/e/3"].into_iter().enumerate() {
        assert_eq!(read(&fs, path), content(number as u64), "{path}");
    }
    assert_eq!(fs.attr("t").nlink, 4);
    assert_eq!(fs.list_entries(fs.at("t/empty").ino).unwrap().len(), 0);
    assert!(entries(&fs).is_empty());
    check_usage(&fs.fs);
}

#[test]
fn more_entries_than_one_transaction_removes_come_back_and_go() {
    const FILES: usize = 3000;
    let fs = stand();
    fs.mkdir("d").unwrap();
    (0..FILES).for_each(|number| drop(fs.create(&format!("d/{number}")).unwrap()));
    fs.names().remove_tree(ROOT, b"d", 0).unwrap();
    assert_eq!(entries(&fs).len(), FILES + 1);
    fs.publisher().publish_all().unwrap();
    restore_all(&fs).unwrap();
    assert_eq!(fs.list_entries(fs.at("d").ino).unwrap().len(), FILES);
    assert!(entries(&fs).is_empty());
    check_usage(&fs.fs);
}

#[test]
fn an_open_file_is_kept_as_it_was_when_it_was_removed() {
    let fs = stand();
    let file = write(&fs, "f", b"before");
    let held = fs.hold(file).unwrap();
    fs.unlink("f").unwrap();
    fs.content().write(file, 0, b"after!", false).unwrap();
    assert_eq!(paths(&fs), ["f"]);
    restore_all(&fs).unwrap();
    assert_eq!(read(&fs, "f"), b"before");
    assert_eq!(fs.read(file, 0, 10).unwrap(), b"after!");
    fs.release(held).unwrap();
    assert_eq!(read(&fs, "f"), b"before");
    assert!(entries(&fs).is_empty(), "the open file goes, and is not kept once more");
}

#[test]
fn no_snapshot_contains_the_trash() {
    let roots = [0, 7].map(|days| {
        let fs = Stand::new();
        fs.trash().set_days(days).unwrap();
        write(&fs, "kept", b"content");
        let set = AttributeChanges {
            mtime: Some(TimeChange::At(UnixTime::default())),
            ..AttributeChanges::default()
        };
        fs.attributes().setattr(fs.at("kept").ino, &set, CALLER).unwrap();
        write(&fs, "gone", &content(1));
        fs.unlink("gone").unwrap();
        let id = fs.create_snapshot(&request()).unwrap();
        fs.publisher().publish_all().unwrap();
        fs.volume().catalog.get_record(&id).unwrap().statistics
    });
    assert_eq!(
        (roots[0].files, roots[0].dirs, roots[0].bytes),
        (roots[1].files, roots[1].dirs, roots[1].bytes)
    );
}

#[test]
fn what_only_the_trash_holds_survives_a_collection_and_another_machine() {
    let fs = stand();
    write(&fs, "published", &content(1));
    write(&fs, "snapshotted", &content(2));
    let id = fs.create_snapshot(&request()).unwrap();
    fs.publisher().publish_all().unwrap();
    write(&fs, "young", &content(3));
    for path in ["published", "snapshotted", "young"] {
        fs.unlink(path).unwrap();
    }
    // The layers of the trash are not published here, and another snapshot moves the worktree to another tree.
    fs.create_snapshot(&request()).unwrap();
    fs.publisher().publish_all().unwrap();
    fs.volume().catalog.forget_snapshots(&[id]).unwrap();
    collect(&fs);
    let fs = fs.elsewhere();
    assert_eq!((fs.trash().days(), paths(&fs).len()), (7, 3));
    assert_eq!(fs.trash().used_amount().unwrap().bytes, 900_000);
    collect(&fs);
    restore_all(&fs).unwrap();
    fs.publisher().publish_all().unwrap();
    collect(&fs);
    let fs = fs.elsewhere();
    for (path, seed) in [("published", 1), ("snapshotted", 2), ("young", 3)] {
        assert_eq!(read(&fs, path), content(seed), "{path}");
    }
    assert!(entries(&fs).is_empty());
}

#[test]
fn emptying_frees_the_content() {
    let fs = stand();
    write(&fs, "f", &content(1));
    fs.unlink("f").unwrap();
    fs.publisher().publish_all().unwrap();
    let number = entries(&fs)[0].number;
    fs.trash().empty().unwrap();
    assert!(entries(&fs).is_empty());
    fs.publisher().publish_all().unwrap();
    let freed =
        run_collection(fs.volume(), &CollectionRequest::default(), &ProgressMeter::default()).unwrap();
    assert!(freed.freed > 250_000, "{freed:?}");
    assert_eq!(fs.unpublished_changes().unwrap().sealed_layers, 0);
    // What was listed before is nothing that comes later.
    write(&fs, "g", b"other");
    fs.unlink("g").unwrap();
    assert!(entries(&fs)[0].number > number);
    let fs = fs.again();
    assert_eq!(paths(&fs), ["g"]);
}

#[test]
fn entries_go_when_they_have_been_there_for_long_enough() {
    let fs = stand();
    for path in ["a", "b"] {
        write(&fs, path, &content(1));
        fs.unlink(path).unwrap();
    }
    let removed = entries(&fs)[1].record.removed.secs;
    let at = |secs| UnixTime { secs, nanos: 0 };
    assert_eq!(fs.trash().expire(at(removed + 6 * DAY)).unwrap(), 0);
    fs.publisher().publish_all().unwrap();
    assert_eq!(fs.trash().expire(at(removed + 7 * DAY)).unwrap(), 2);
    assert!(entries(&fs).is_empty());
    fs.publisher().publish_all().unwrap();
    assert_eq!(fs.trash().used_amount().unwrap(), Default::default());
    let fs = fs.elsewhere();
    assert!(entries(&fs).is_empty());
}

#[test]
fn switched_off_nothing_is_left_of_it() {
    let fs = stand();
    write(&fs, "f", &content(1));
    fs.unlink("f").unwrap();
    fs.publisher().publish_all().unwrap();
    fs.trash().set_days(0).unwrap();
    assert!(entries(&fs).is_empty());
    let fs = fs.again();
    assert_eq!((fs.trash().days(), entries(&fs).len()), (0, 0));
    write(&fs, "g", b"x");
    fs.unlink("g").unwrap();
    fs.publisher().publish_all().unwrap();
    let volume = fs.volume();
    let head = volume.read_worktree_head(&volume.worktree.worktree).unwrap().unwrap();
    assert_eq!(head.trash, Default::default());
    // By another process, while it is closed.
    volume.update_worktree_ref(&volume.worktree.worktree, |head| head.trash.days = 3).unwrap();
    let fs = fs.again();
    assert_eq!((fs.trash().days(), entries(&fs).len()), (3, 0));
}

#[test]
fn a_restore_of_the_worktree_leaves_the_trash_alone() {
    let fs = stand();
    let first = fs.create_snapshot(&request()).unwrap();
    write(&fs, "f", &content(1));
    fs.publisher().publish_all().unwrap();
    fs.unlink("f").unwrap();
    // From here on only the trash refers to the tree that had the file.
    fs.restore_snapshot(first, true).unwrap();
    fs.publisher().publish_oldest().unwrap();
    assert_eq!(fs.base_roots().unwrap().len(), 2, "of the snapshot, and the one that had the file");
    fs.publisher().publish_all().unwrap();
    collect(&fs);
    let fs = fs.again();
    restore_all(&fs).unwrap();
    assert_eq!(read(&fs, "f"), content(1));
}

#[test]
fn what_a_restore_of_paths_moves_aside_is_not_in_the_trash() {
    let fs = stand();
    write(&fs, "f", b"one");
    let id = fs.create_snapshot(&request()).unwrap();
    write(&fs, "f", b"two");
    fs.fs.restore_paths(id, &[b"f".to_vec()], false).unwrap();
    assert_eq!(read(&fs, "f"), b"one");
    assert!(entries(&fs).is_empty());
}

#[test]
fn the_trash_counts_for_nothing_in_the_quota() {
    let fs = stand();
    let quota = vellum_volume::refs::WorktreeQuota { bytes: Some(400_000), inodes: Some(3) };
    fs.attributes().set_worktree_quota(quota).unwrap();
    for round in 0..5 {
        write(&fs, "f", &content(round));
        fs.unlink("f").unwrap();
    }
    assert_eq!((entries(&fs).len(), fs.trash().used_amount().unwrap().bytes), (5, 1_500_000));
    check_usage(&fs.fs);
}

/// Random removals among everything that moves state about; the model is a list of what must be in the trash.
struct Run {
    stand: Stand,
    random: TestRandom,
    now: BTreeMap<String, Vec<u8>>,
    removed: Vec<(String, Vec<u8>)>,
    snapshots: Vec<(SnapshotId, BTreeMap<String, Vec<u8>>)>,
}

impl Run {
    fn pick_name(&mut self) -> String {
        format!("f{}", self.random.next_below(6))
    }

    fn write(&mut self) {
        let (name, seed) = (self.pick_name(), self.random.next_below(1000));
        let size = [10, 3000, 200_000][self.random.next_below(3) as usize];
        let offset = self.random.next_below(2) * 5000;
        let ino = if self.stand.exists(&name) {
            self.stand.at(&name).ino
        } else {
            self.stand.create(&name).unwrap().ino
        };
        let data = &content(seed)[..size];
        self.stand.content().write(ino, offset, data, false).unwrap();
        let file = self.now.entry(name).or_default();
        let end = offset as usize + size;
        file.resize(file.len().max(end), 0);
        file[offset as usize..end].copy_from_slice(data);
    }

    fn remove(&mut self) {
        let name = self.pick_name();
        if let Some(content) = self.now.remove(&name) {
            self.stand.unlink(&name).unwrap();
            self.removed.push((name, content));
        }
    }

    fn rename(&mut self) {
        let (from, to) = (self.pick_name(), self.pick_name());
        if from == to || !self.now.contains_key(&from) {
            return;
        }
        self.stand.rename(&from, &to, MOVE).unwrap();
        let moved = self.now.remove(&from).unwrap();
        if let Some(old) = self.now.insert(to.clone(), moved) {
            self.removed.push((to, old));
        }
    }

    fn restore_entry(&mut self) {
        let listed = entries(&self.stand);
        assert_eq!(listed.len(), self.removed.len());
        if listed.is_empty() {
            return;
        }
        let at = self.random.next_below(listed.len() as u64) as usize;
        let (name, content) = self.removed[at].clone();
        assert_eq!(listed[at].record.path, name.as_bytes());
        let wanted = [TrashRestore { number: listed[at].number, path: name.clone().into() }];
        let restored = self.stand.fs.restore_from_trash(&wanted);
        assert_eq!(restored.is_err(), self.now.contains_key(&name));
        if restored.is_ok() {
            self.removed.remove(at);
            self.now.insert(name, content);
        }
    }

    fn restore_snapshot(&mut self) {
        if !self.snapshots.is_empty() {
            let at = self.random.next_below(self.snapshots.len() as u64) as usize;
            let (id, then) = &self.snapshots[at];
            self.stand.restore_snapshot(*id, true).unwrap();
            self.now = then.clone();
        }
    }

    fn check(&self) {
        for (path, content) in &self.now {
            assert!(read(&self.stand, path) == *content, "{path}");
        }
        let listed = entries(&self.stand);
        assert_eq!(listed.len(), self.removed.len());
        for (entry, (path, content)) in listed.iter().zip(&self.removed) {
            assert_eq!(entry.record.path, path.as_bytes());
            assert_eq!(entry.size, content.len() as u64);
        }
        let bytes: usize = self.removed.iter().map(|(_, content)| content.len()).sum();
        assert_eq!(self.stand.trash().used_amount().unwrap().bytes, bytes as i64);
    }

    /// All that is in the trash, restored to names of its own, reads as it did.
    fn check_content(&mut self) {
        let listed = entries(&self.stand);
        let to = |entry: &TrashEntry| format!("restored/{}", entry.number.0);
        let wanted: Vec<_> = listed
            .iter()
            .map(|entry| TrashRestore { number: entry.number, path: to(entry).into() })
            .collect();
        self.stand.fs.restore_from_trash(&wanted).unwrap();
        for (entry, (path, content)) in listed.iter().zip(&self.removed) {
            assert!(read(&self.stand, &to(entry)) == *content, "{path}");
        }
    }
}

#[test]
fn random_removals_are_all_there() {
    let random = TestRandom::new(choose_seed());
    let mut run =
        Run { stand: stand(), random, now: BTreeMap::new(), removed: Vec::new(), snapshots: Vec::new() };
    for _ in 0..300 {
        match run.random.next_below(20) {
            0..8 => run.write(),
            8..12 => run.remove(),
            12 => run.rename(),
            13 => run.restore_entry(),
            14 => {
                let id = run.stand.create_snapshot(&request()).unwrap();
                run.snapshots.push((id, run.now.clone()));
            }
            15 => run.stand.publisher().publish_all().unwrap(),
            16 => drop(run.stand.publisher().publish_oldest().unwrap()),
            17 => run.stand = run.stand.again(),
            18 => run.restore_snapshot(),
            _ => {
                run.stand.publisher().publish_all().unwrap();
                collect(&run.stand);
            }
        }
        run.check();
    }
    run.stand.publisher().publish_all().unwrap();
    collect(&run.stand);
    run.stand = run.stand.elsewhere();
    run.check();
    run.check_content();
}
