//! Views and snapshots through paths.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use vellum_library::{OpenOptions, Tree, Volume};

use crate::stand::{Stand, kind};

/// Everything of a tree: paths, attributes that do not depend on where it is, content.
fn render(tree: &impl Tree) -> String {
    let mut text = String::new();
    for found in tree.walk("") {
        let found = found.unwrap();
        let meta = &found.metadata;
        let path = found.path.display();
        text += &format!("{path} {:?} {:o} {} {}", meta.kind(), meta.mode(), meta.size(), meta.links());
        if meta.is_file() {
            text +=
                &format!(" {:x?}", tree.read(&found.path).unwrap().iter().step_by(1000).collect::<Vec<_>>());
        }
        if meta.is_symlink() {
            text += &format!(" -> {}", tree.read_link(&found.path).unwrap().display());
        }
        for name in if meta.is_symlink() { Vec::new() } else { tree.xattrs(&found.path).unwrap() } {
            text += &format!(" {name:?}={:?}", tree.xattr(&found.path, &name).unwrap());
        }
        text.push('\n');
    }
    text
}

fn populated() -> Stand {
    let stand = Stand::new();
    stand.mkdir_all("a/b/c").unwrap();
    stand.write("a/small", "hello").unwrap();
    stand.write("a/b/big", vec![b'x'; 50_000]).unwrap();
    stand.symlink("b/big", "a/link").unwrap();
    stand.link("a/small", "a/b/c/again").unwrap();
    stand.set_xattr("a/small", "user.mark", "1").unwrap();
    stand
}

fn change(stand: &Stand) {
    stand.write("a/small", "HELLO THERE").unwrap();
    stand.truncate("a/b/big", 10).unwrap();
    stand.rename("a/b", "moved").unwrap();
    stand.remove("a/link").unwrap();
    stand.remove_xattr("a/small", "user.mark").unwrap();
    stand.write("new", "new").unwrap();
}

fn undo(stand: &Stand, id: &str) {
    stand.restore_discarding_changes(id).unwrap();
}

#[test]
fn one_state_reads_alike_in_every_way() {
    let stand = populated();
    let live = render(stand.root());
    let view = stand.open_view().unwrap();
    let id = stand.create_snapshot("as it was").unwrap().to_string();
    let waiting = stand.open_snapshot(&id).unwrap();
    assert!(waiting.info().statistics.is_none() || stand.volume.open_snapshot(&id).is_ok());
    change(&stand);
    assert_ne!(render(stand.root()), live);
    assert_eq!((render(&view), render(&waiting)), (live.clone(), live.clone()));
    stand.flush().unwrap();
    assert_eq!((render(&view), render(&waiting)), (live.clone(), live.clone()));
    assert_eq!(render(&stand.open_snapshot(&id).unwrap()), live);
    assert_eq!(render(&stand.volume.open_snapshot(&id).unwrap()), live);
    let changed = stand.open_view().unwrap();
    let now = render(&changed);
    undo(&stand, &id);
    assert_eq!((render(stand.root()), render(&view), render(&changed)), (live.clone(), live.clone(), now));
    // An older view than its worktree, alone.
    let Stand { work, volume, dir: _dir } = stand;
    drop(work);
    assert_eq!(render(&view), live);
    assert!(volume.open_worktree("work").is_err(), "the views keep it open");
    drop((view, waiting, changed));
    assert_eq!(render(volume.open_worktree("work").unwrap().root()), live);
}

#[test]
fn what_does_not_change_cannot_be_changed() {
    let stand = populated();
    let view = stand.open_view().unwrap();
    let file = view.open("a/small").unwrap();
    assert!(file.write_at(b"x", 0).is_err());
    assert!(file.truncate(0).is_err());
    file.sync().unwrap();
    let mut buffer = [0; 3];
    assert_eq!(file.read_at(&mut buffer, 2).unwrap(), 3);
    assert_eq!(&buffer, b"llo");
    assert_eq!(kind(view.read("a/b")), ErrorKind::IsADirectory);
    assert_eq!(kind(view.read("a/small/x")), ErrorKind::NotADirectory);
    assert_eq!(kind(view.stat("nothing")), ErrorKind::NotFound);
}

#[test]
fn a_subtree_is_left_by_nothing() {
    let stand = populated();
    stand.write("secret", "outside").unwrap();
    stand.symlink("../secret", "a/up").unwrap();
    stand.symlink("/small", "a/absolute").unwrap();
    stand.symlink("../../../../../../small", "a/far").unwrap();
    let sub = stand.open_dir("a").unwrap();
    assert!(!sub.exists("up").unwrap() && !sub.exists("../secret").unwrap());
    for path in
        ["small", "/small", "../small", "../../small", "absolute", "far", "b/../small", "./b//c/again"]
    {
        assert_eq!(sub.read(path).unwrap(), b"hello", "{path}");
    }
    sub.write("../secret", "inside").unwrap();
    assert_eq!(stand.read("a/secret").unwrap(), b"inside");
    assert_eq!(stand.read("secret").unwrap(), b"outside");
    let view = stand.open_view().unwrap().open_dir("a").unwrap();
    assert_eq!(view.read("absolute").unwrap(), b"hello");
    assert_eq!(kind(stand.open_dir("secret")), ErrorKind::NotADirectory);
}

#[test]
fn symlinks_that_never_end_are_given_up() {
    let stand = Stand::new();
    stand.symlink("b", "a").unwrap();
    stand.symlink("a", "b").unwrap();
    let error = stand.stat("a").unwrap_err();
    assert_eq!(error.errno(), Some(40));
    assert!(error.to_string().starts_with("cannot stat a: "), "{error}");
    let io: std::io::Error = error.into();
    assert!(io.to_string().contains("cannot stat a"));
    for level in 0..39 {
        stand.symlink(format!("chain-{}", level + 1), format!("chain-{level}")).unwrap();
    }
    stand.write("chain-39", "end").unwrap();
    assert_eq!(stand.read("chain-0").unwrap(), b"end");
}

#[test]
fn what_others_have_open_is_refused() {
    let stand = Stand::new();
    let other = Volume::open(stand.dir.path()).unwrap();
    let error = other.open_worktree("work").err().unwrap();
    assert!(error.to_string().contains("is open in process"), "{error}");
    assert_eq!(kind(other.open_worktree("nowhere")), ErrorKind::NotFound);
    assert_eq!(kind(other.open_worktree("main")), ErrorKind::InvalidInput);
    stand.write("file", "x").unwrap();
    stand.create_snapshot("one").unwrap();
    stand.flush().unwrap();
    assert_eq!(other.list_snapshots().unwrap().len(), 1);
    let id = other.list_snapshots().unwrap()[0].id.to_string();
    let snapshot = other.open_snapshot(&id).unwrap();
    assert_eq!(snapshot.read("file").unwrap(), b"x");
    assert_eq!(kind(stand.copy_from(&snapshot, "file", "copy")), ErrorKind::CrossesDevices);
}

#[test]
fn a_fork_starts_from_a_snapshot() {
    let stand = populated();
    stand.create_snapshot_with_tags("base", &["base"]).unwrap();
    stand.flush().unwrap();
    let fork = stand.volume.create_worktree("fork", Some("base")).unwrap();
    assert_eq!(render(fork.root()), render(stand.root()));
    fork.write("a/small", "forked").unwrap();
    assert_eq!(stand.read("a/small").unwrap(), b"hello");
    assert_eq!(stand.volume.list_worktrees().unwrap(), ["fork", "main", "work"]);
}

#[test]
fn restoring_saves_what_no_snapshot_has() {
    let stand = populated();
    stand.create_snapshot_with_tags("good", &["good"]).unwrap();
    let good = render(stand.root());
    assert!(!stand.is_changed().unwrap());
    change(&stand);
    let bad = render(stand.root());
    assert!(stand.is_changed().unwrap());
    let saved = stand.restore_snapshot("good").unwrap().unwrap();
    assert_eq!(render(stand.root()), good);
    assert_eq!(render(&stand.open_snapshot(&saved.to_string()).unwrap()), bad);
}

#[test]
fn a_temporary_file_gets_a_name_or_goes() {
    let stand = Stand::new();
    let file = stand.temp_file("").unwrap();
    file.write_at(b"whole", 0).unwrap();
    assert!(stand.read_dir("").unwrap().is_empty());
    file.persist(stand.root(), "named").unwrap();
    assert!(file.persist(stand.root(), "named").is_err());
    drop(file);
    assert_eq!(stand.read("named").unwrap(), b"whole");
    drop(stand.temp_file("").unwrap());
    let options = OpenOptions::new().write(true).create_new(true);
    assert_eq!(kind(stand.open_with("named", options)), ErrorKind::AlreadyExists);
}

#[test]
fn a_copy_shares_its_content() {
    let stand = populated();
    stand.chmod("a/b/big", 0o4750).unwrap();
    let before = stand.unpublished_changes().unwrap().log_bytes;
    assert_eq!(stand.copy("a/link", "copy").unwrap(), 50_000);
    assert_eq!(stand.unpublished_changes().unwrap().log_bytes, before);
    assert_eq!(stand.read("copy").unwrap(), vec![b'x'; 50_000]);
    assert_eq!(stand.stat("copy").unwrap().mode(), 0o4750);
    stand.write("copy", "other").unwrap();
    assert_eq!(stand.copy("a/small", "copy").unwrap(), 5);
    assert_eq!(stand.read("copy").unwrap(), b"hello");
    assert_eq!(stand.stat("a/b/big").unwrap().size(), 50_000);
}

#[test]
fn what_is_open_outlives_a_restore() {
    let stand = populated();
    let id = stand.create_snapshot("before").unwrap().to_string();
    stand.write("a/later", vec![b'l'; 20_000]).unwrap();
    let file = stand.open_with("a/later", OpenOptions::new().read(true).write(true)).unwrap();
    let dir = stand.open_dir("a").unwrap();
    let mut walk = stand.walk("");
    walk.next().unwrap().unwrap();
    stand.restore_snapshot(&id).unwrap();
    // Its number may be another file's by now.
    stand.write("other", vec![b'o'; 20_000]).unwrap();
    let mut buffer = vec![0; 20_000];
    assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 20_000);
    assert!(buffer == vec![b'l'; 20_000] && file.stat().unwrap().size() == 20_000);
    assert!(file.write_at(b"x", 0).is_err());
    assert!(walk.next().unwrap().is_err() && walk.next().is_none());
    assert_eq!(kind(dir.read("small")), ErrorKind::NotFound);
    drop(file);
    assert_eq!(stand.read("other").unwrap(), vec![b'o'; 20_000]);
}

#[test]
fn restoring_waits_for_nobody_for_ever() {
    let stand = populated();
    let id = stand.create_snapshot("before").unwrap().to_string();
    let work = &stand.work;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..100).for_each(|_| work.restore_discarding_changes(&id).unwrap());
            done.store(true, Ordering::Relaxed);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // Either is right at some moment; that it ends is the matter.
                    let _ = work.write("a/file", "content");
                    let _ = work.copy("a/small", "a/copy");
                    let _ = work.open("a/small").and_then(|file| file.stat());
                    let _ = work.remove_all("a/b");
                    assert!(work.read("a/small").is_ok_and(|content| content == b"hello"));
                }
            });
        }
    });
}

/// What another process would do: it opens the volume by itself, and collects. Gives how much was freed.
fn collect(stand: &Stand) -> u64 {
    let volume =
        vellum_volume::Volume::open(&vellum_volume::StateDir::find_enclosing(stand.dir.path()).unwrap())
            .unwrap();
    loop {
        let collected = vellum_volume::gc::run_collection(
            &volume,
            &vellum_volume::gc::CollectionRequest::default(),
            &vellum_host::ProgressMeter::default(),
        )
        .unwrap();
        // The worktree's own publisher goes to work whenever it likes, and nothing is freed beside a writer.
        if collected.writers.is_empty() {
            return collected.freed;
        }
        std::thread::yield_now();
    }
}

/// What does not compress.
fn noise() -> Vec<u8> {
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..1_000_000).map(|_| random()).collect()
}

#[test]
fn a_snapshot_that_is_forgotten_right_after_a_restore_is_not_collected() {
    let stand = Stand::new();
    let noise = noise();
    stand.write("kept", &noise).unwrap();
    let kept = stand.create_snapshot("kept").unwrap();
    stand.flush().unwrap();
    stand.remove("kept").unwrap();
    stand.create_snapshot("without").unwrap();
    stand.flush().unwrap();
    // The ref names what the worktree stood on before it published last: that is not this tree any more.
    for number in ["one", "two"] {
        stand.write("more", number).unwrap();
        stand.flush().unwrap();
    }
    stand.restore_discarding_changes(&kept.to_string()).unwrap();
    // Refused if the worktree's ref was told already where it stands: that is done in the background.
    let forgotten = stand.volume.forget_snapshot(kept).is_ok();
    let freed = collect(&stand);
    assert!(freed < 900_000, "the worktree stands on what is freed (forgotten: {forgotten})");
    // Opened again, nothing of it is in memory.
    let stand = stand.again();
    assert!(stand.read("kept").unwrap() == noise);
}

#[test]
fn a_collection_by_another_leaves_what_views_read() {
    let stand = Stand::new();
    let noise = noise();
    stand.write("gone", &noise).unwrap();
    stand.flush().unwrap();
    // Opened again, nothing of it is in memory: what is read must be in the store.
    let stand = stand.again();
    let view = stand.open_view().unwrap();
    stand.remove("gone").unwrap();
    stand.flush().unwrap();
    // The tree that the view reads is not even the last but one.
    stand.write("more", "more").unwrap();
    stand.flush().unwrap();
    assert_eq!(collect(&stand), 0, "the view reads what would be freed");
    assert!(view.read("gone").unwrap() == noise);
    drop(view);
    // With the view gone, the next change lets its tree go.
    stand.write("last", "last").unwrap();
    stand.flush().unwrap();
    assert!(collect(&stand) > 900_000);
    assert_eq!(stand.read("more").unwrap(), b"more");
}

#[test]
fn what_was_copied_from_a_snapshot_that_is_forgotten_afterwards_is_not_collected() {
    let stand = Stand::new();
    let noise = noise();
    stand.write("kept", &noise).unwrap();
    let kept = stand.create_snapshot("kept").unwrap();
    stand.flush().unwrap();
    stand.remove("kept").unwrap();
    stand.create_snapshot("without").unwrap();
    let publish = |stand: &Stand, number: &str| {
        stand.write("more", number).unwrap();
        stand.flush().unwrap();
    };
    // The ref names what the worktree stood on before it published last: that is not this tree any more.
    ["one", "two"].iter().for_each(|number| publish(&stand, number));
    let snapshot = stand.open_snapshot(&kept.to_string()).unwrap();
    stand.copy_from(&snapshot, "kept", "back").unwrap();
    drop(snapshot);
    stand.volume.forget_snapshot(kept).unwrap();
    assert!(collect(&stand) < 900_000, "a layer names what is freed");
    let stand = stand.again();
    assert!(stand.read("back").unwrap() == noise);
    stand.write("back2", "x").unwrap();
    assert!(collect(&stand) < 900_000);
    publish(&stand, "three");
    assert!(collect(&stand) < 900_000);
    let stand = stand.again();
    assert!(stand.read("back").unwrap() == noise);
    // The loan has ended with the layers.
    stand.remove("back").unwrap();
    ["four", "five"].iter().for_each(|number| publish(&stand, number));
    assert!(collect(&stand) > 900_000);
}

#[test]
fn a_copy_takes_the_place_of_what_is_there() {
    let stand = Stand::new();
    stand.mkdir_all("old/deep").unwrap();
    stand.write("old/deep/file", "old").unwrap();
    stand.write("plain", "before").unwrap();
    let before = stand.open_view().unwrap();
    stand.write("plain", "after").unwrap();
    stand.write("old/deep/file", "new").unwrap();
    stand.write("old/more", "more").unwrap();
    assert_eq!(kind(stand.copy_from(&before, "old", "old")), ErrorKind::AlreadyExists);
    let expected = [
        ("plain", "plain", "before"),
        ("old", "old", "old"),
        ("old", "plain", "old"),
        ("plain", "old", "before"),
    ];
    for (from, to, content) in expected {
        stand.replace_from(&before, from, to).unwrap();
        let file = if from == "old" { format!("{to}/deep/file") } else { to.into() };
        assert_eq!(stand.read(&file).unwrap(), content.as_bytes(), "{from} to {to}");
    }
    stand.replace_from(&before, "old", "fresh").unwrap();
    assert_eq!(stand.read("fresh/deep/file").unwrap(), b"old");
    assert!(stand.replace_from(&before, "nowhere", "fresh").is_err());
    let mut names: Vec<_> = stand
        .read_dir("")
        .unwrap()
        .into_iter()
        .map(|entry| entry.name.to_str().unwrap().to_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["fresh", "old", "plain"], "nothing else is left");
}

#[test]
fn the_cache_tells_how_often_it_answers() {
    let stand = populated();
    for _ in 0..50 {
        stand.read("a/small").unwrap();
    }
    let rate = stand.cache_statistics().hit_rate().unwrap();
    assert!((0.5..=1.0).contains(&rate), "{rate}");
    assert_eq!(vellum_library::CacheStatistics::default().hit_rate(), None);
}

#[test]
fn head_is_restored_before_it_is_in_the_store() {
    let stand = Stand::new();
    assert_eq!(kind(stand.restore_snapshot("HEAD")), ErrorKind::NotFound);
    stand.write("file", "one").unwrap();
    let first = stand.create_snapshot("first").unwrap();
    stand.flush().unwrap();
    // As long as another process holds the lock of the store, nothing is published.
    let lock = std::fs::File::open(stand.dir.path().join(".vellum/store/.lock")).unwrap();
    lock.lock().unwrap();
    stand.write("file", "two").unwrap();
    stand.create_snapshot("second").unwrap();
    stand.write("file", "three").unwrap();
    let third = stand.create_snapshot("third").unwrap();
    assert_eq!(stand.open_snapshot("HEAD").unwrap().info().id, third);
    assert_eq!(stand.open_snapshot("HEAD~").unwrap().read("file").unwrap(), b"two");
    stand.write("file", "spoilt").unwrap();
    stand.restore_discarding_changes("HEAD").unwrap();
    assert_eq!(stand.read("file").unwrap(), b"three");
    stand.restore_discarding_changes("HEAD~1").unwrap();
    assert_eq!(stand.read("file").unwrap(), b"two");
    assert_eq!(stand.unpublished_changes().unwrap().snapshots, 2, "both wait still");
    drop(lock);
    // What lies before them is in the store.
    assert_eq!(stand.open_snapshot("HEAD~1").unwrap().info().id, first);
    assert_eq!(stand.open_snapshot("HEAD").unwrap().read("file").unwrap(), b"two");
    assert_eq!(kind(stand.open_snapshot("HEAD~5")), ErrorKind::NotFound);
}

#[test]
fn a_file_has_its_content_and_attributes_before_it_has_a_name() {
    let stand = Stand::new();
    let parts: [Vec<u8>; 3] = [vec![1; 3_000_000], b"inline".into(), vec![3; 100_001]];
    let sources = parts.clone().map(|part| {
        let file = stand.temp_file("").unwrap();
        assert_eq!(file.write_at(&part, 0).unwrap(), part.len());
        file
    });
    let whole = stand.temp_file("").unwrap();
    let mut size = 0;
    for (source, part) in sources.iter().zip(&parts) {
        let len = part.len() as u64;
        assert_eq!(whole.copy_range(source, 0..len, size).unwrap(), len);
        size += len;
    }
    // Not more than there is, and nothing of an empty range.
    assert_eq!(whole.copy_range(&sources[1], 2..99, size).unwrap(), 4);
    assert_eq!(whole.copy_range(&sources[1], 3..3, 0).unwrap(), 0);
    let modified = UNIX_EPOCH + Duration::new(1_600_000_000, 5);
    whole.set_mode(0o640).unwrap();
    whole.set_xattr("user.s3.a", "1").unwrap();
    whole.set_xattr("user.other", "2").unwrap();
    whole.set_modified(modified).unwrap();
    whole.persist(stand.root(), "whole").unwrap();
    drop(sources);
    let found = stand.stat("whole").unwrap();
    assert_eq!((found.mode() & 0o7777, found.modified()), (0o640, modified));
    assert_eq!(whole.xattrs("user.s3.").unwrap(), [(b"user.s3.a".to_vec(), b"1".to_vec())]);
    let expected = [parts.concat(), b"line".into()].concat();
    drop(whole);
    let stand = stand.again();
    assert_eq!(stand.read("whole").unwrap(), expected);
    let other = Stand::new();
    let foreign = other.temp_file("").unwrap();
    assert!(foreign.copy_range(&stand.open("whole").unwrap(), 0..1, 0).is_err());
}
