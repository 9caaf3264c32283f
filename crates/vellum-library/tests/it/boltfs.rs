//! What a filesystem within a store got wrong elsewhere: each defect, as a test that it is not here.

use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::sync::mpsc;
use std::time::Duration;

use vellum_library::{OpenOptions, Tree};

use crate::stand::{Stand, kind};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_subtree_of_a_snapshot_is_copied_back_and_nothing_waits_for_ever() {
    let stand = Stand::new();
    stand.mkdir_all("project/src").unwrap();
    stand.write("project/src/main", vec![7; 100_000]).unwrap();
    stand.link("project/src/main", "project/again").unwrap();
    let id = stand.create_snapshot("before").unwrap().to_string();
    stand.remove_all("project").unwrap();
    let work = stand.work.clone();
    let (done, finished) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let snapshot = work.open_snapshot(&id).unwrap();
        work.copy_from(&snapshot, "project", "project").unwrap();
        work.copy_from(&work.root().clone(), "project", "project/within").unwrap();
        done.send(()).unwrap();
    });
    finished.recv_timeout(PATIENCE).expect("copying back must end");
    thread.join().unwrap();
    assert_eq!(stand.read("project/src/main").unwrap(), vec![7; 100_000]);
    let [one, other] = ["project/src/main", "project/again"].map(|path| stand.stat(path).unwrap());
    assert_eq!((one.ino(), one.links()), (other.ino(), 2));
    assert!(stand.exists("project/within/src/main").unwrap());
}

#[test]
fn snapshots_survive_closing() {
    let stand = Stand::new();
    stand.write("file", "old").unwrap();
    let id = stand.create_snapshot_with_tags("kept", &["first"]).unwrap();
    stand.write("file", "new").unwrap();
    let stand = stand.again();
    let listed = stand.list_snapshots().unwrap();
    assert_eq!(listed.iter().map(|info| (info.id, info.note.as_str())).collect::<Vec<_>>(), [(id, "kept")]);
    assert_eq!(stand.open_snapshot("first").unwrap().read("file").unwrap(), b"old");
    assert_eq!(stand.read("file").unwrap(), b"new");
    stand.flush().unwrap();
    let Stand { work, volume, dir: _dir } = stand;
    drop(work);
    let snapshot = volume.open_snapshot(&id.to_string()).unwrap();
    assert_eq!(
        (snapshot.read("file").unwrap(), snapshot.info().tags.clone()),
        (b"old".into(), vec!["first".into()])
    );
}

#[test]
fn a_rename_replaces_what_is_there() {
    let stand = Stand::new();
    stand.write("a", "a").unwrap();
    stand.write("b", "b").unwrap();
    stand.rename("a", "b").unwrap();
    assert_eq!(stand.read("b").unwrap(), b"a");
    assert!(!stand.exists("a").unwrap());
}

#[test]
fn what_is_appended_comes_last() {
    let stand = Stand::new();
    stand.write("log", "one ").unwrap();
    let options = OpenOptions::new().append(true).read(true);
    let mut file = stand.open_with("log", options).unwrap();
    let other = stand.open_with("log", options).unwrap();
    file.write_all(b"two ").unwrap();
    assert_eq!(other.write_at(b"three ", 0).unwrap(), 6, "the offset is not asked for");
    file.seek(SeekFrom::Start(0)).unwrap();
    file.write_all(b"four").unwrap();
    assert_eq!(file.stream_position().unwrap(), 18);
    assert_eq!(stand.read("log").unwrap(), b"one two three four");
}

#[test]
fn a_directory_stays_one_when_its_permissions_change() {
    let stand = Stand::new();
    stand.mkdir_all("dir/below").unwrap();
    stand.chmod("dir", 0o700).unwrap();
    let dir = stand.stat("dir").unwrap();
    assert!(dir.is_dir() && dir.mode() == 0o700);
    assert!(stand.exists("dir/below").unwrap());
}

#[test]
fn a_small_write_writes_little() {
    let stand = Stand::new();
    stand.write("file", vec![1; 8 << 20]).unwrap();
    let before = stand.unpublished_changes().unwrap().log_bytes;
    let file = stand.open_with("file", OpenOptions::new().write(true)).unwrap();
    file.write_at(&[2; 10], 4 << 20).unwrap();
    let written = stand.unpublished_changes().unwrap().log_bytes - before;
    assert!(written < 1000, "{written} bytes for ten");
    assert_eq!(stand.stat("file").unwrap().size(), 8 << 20);
}

#[test]
fn an_operation_is_seen_whole_or_not_at_all() {
    let stand = Stand::new();
    stand.mkdir("a").unwrap();
    stand.mkdir("b").unwrap();
    stand.write("a/file", "content").unwrap();
    let work = &stand.work;
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            for _ in 0..200 {
                work.rename("a/file", "b/file").unwrap();
                work.rename("b/file", "a/file").unwrap();
            }
        });
        while !mover.is_finished() {
            let view = work.open_view().unwrap();
            let found = ["a/file", "b/file"].map(|path| view.exists(path).unwrap());
            assert!(found[0] != found[1], "one name of two: {found:?}");
        }
        mover.join().unwrap();
    });
}

#[test]
fn what_was_listed_is_in_the_cache() {
    let stand = Stand::new();
    stand.mkdir("dir").unwrap();
    stand.write("dir/file", "x").unwrap();
    stand.stat("dir/file").unwrap();
    // More than a tick of the slowest clock: then the first listing moves the access time, which is read anew by the
    // second.
    std::thread::sleep(std::time::Duration::from_millis(20));
    stand.read_dir("dir").unwrap();
    stand.read_dir("dir").unwrap();
    let before = stand.cache_statistics();
    for _ in 0..10 {
        assert_eq!(stand.read_dir("dir").unwrap().len(), 1);
        stand.stat("dir/file").unwrap();
    }
    let after = stand.cache_statistics();
    assert!(after.hits >= before.hits + 40, "{before:?} {after:?}");
    assert_eq!(after.misses, before.misses);
}

#[test]
fn the_cache_is_measured_resized_and_emptied() {
    let stand = Stand::new();
    for number in 0..100 {
        stand.write(format!("file-{number}"), "x").unwrap();
        stand.stat(format!("file-{number}")).unwrap();
        stand.stat(format!("file-{number}")).unwrap();
    }
    let full = stand.cache_statistics();
    assert!(full.entries > 100 && full.bytes > 0 && full.hits > 0, "{full:?}");
    stand.resize_cache(8 << 10);
    let small = stand.cache_statistics();
    assert!(small.bytes <= small.capacity && small.capacity <= 8 << 10, "{small:?}");
    assert_eq!(stand.read("file-7").unwrap(), b"x");
    stand.clear_cache();
    assert_eq!((stand.cache_statistics().entries, stand.cache_statistics().bytes), (0, 0));
    assert!(stand.exists("file-99").unwrap());
    assert_eq!(kind(stand.stat("file-100")), ErrorKind::NotFound);
    stand.resize_cache(1 << 20);
    assert_eq!(kind(stand.stat("file-100")), ErrorKind::NotFound);
    let misses = stand.cache_statistics().misses;
    assert_eq!(kind(stand.stat("file-100")), ErrorKind::NotFound);
    assert_eq!(stand.cache_statistics().misses, misses, "what is not there is remembered, too");
}

#[test]
fn a_released_snapshot_is_gone() {
    let stand = Stand::new();
    stand.write("file", "1").unwrap();
    let first = stand.create_snapshot("first").unwrap();
    stand.write("file", "2").unwrap();
    stand.create_snapshot("second").unwrap();
    stand.flush().unwrap();
    stand.volume.forget_snapshot(first).unwrap();
    assert_eq!(stand.list_snapshots().unwrap().len(), 1);
    assert!(stand.open_snapshot(&first.to_string()).is_err());
}

#[test]
fn an_open_file_outlives_its_name() {
    let stand = Stand::new();
    let mut file = stand.create("file").unwrap();
    file.write_all(b"kept").unwrap();
    stand.remove("file").unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "kept");
    assert_eq!(file.stat().unwrap().links(), 0);
}
