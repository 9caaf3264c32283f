//! Histories with gaps, with clocks that go back, and the expressions that point into them; the catalog as a cache.

use std::collections::{HashMap, HashSet};
use std::fs;

use vellum_map::MapRoot;
use vellum_types::{BlobId, SnapshotId, UnixTime};
use vellum_volume::history::{AncestorWalk, list_history};
use vellum_volume::versions::{HistoryStep, PathHistory};
use vellum_volume::{Volume, VolumeError};

use crate::model::{noise, small};
use crate::world::{PLAIN, SEALED, World, assert_clean, record, refused, snapshot};

/// Commits a record without a tree worth speaking of.
fn commit_at(volume: &Volume, secs: i64, note: &str) -> SnapshotId {
    let time = UnixTime { secs, nanos: 0 };
    volume
        .commit_snapshot(vellum_volume::SnapshotRecord { time, ..record(volume, volume.empty_root(), note) })
        .unwrap()
}

fn line(volume: &Volume) -> Vec<String> {
    let entries = AncestorWalk::from_heads(&volume.catalog, volume.read_head().unwrap()).unwrap();
    entries.map(|entry| entry.unwrap().record.note.clone()).collect()
}

fn note(volume: &Volume, text: &str) -> String {
    volume.resolve_snapshot(text).unwrap().record.note.clone()
}

#[test]
fn forgotten_snapshots_are_passed_over() {
    let world = World::new(SEALED);
    let ids: Vec<_> = (0..6).map(|n| commit_at(&world.volume, n, &n.to_string())).collect();
    for gone in [ids[1], ids[2], ids[4]] {
        world.volume.forget_snapshot(&gone).unwrap();
    }
    for volume in [world.again(), world.seen_in(world.ram.clone())] {
        assert_eq!(line(&volume), ["5", "3", "0"]);
        assert_eq!(note(&volume, "HEAD"), "5");
        assert_eq!(note(&volume, "HEAD~"), "3");
        assert_eq!(note(&volume, "main~2"), "0");
        assert_eq!(note(&volume, &format!("{}~1", ids[3])), "0");
        assert!(matches!(
            refused(volume.resolve_snapshot("HEAD~3")),
            VolumeError::UnknownSnapshot(_) | VolumeError::NoSnapshotThere { .. }
        ));
        assert!(matches!(
            refused(volume.resolve_snapshot(&ids[4].to_string())),
            VolumeError::UnknownSnapshot(_) | VolumeError::NoSnapshotThere { .. }
        ));
        assert_eq!(list_history(&volume.catalog).unwrap().len(), 3);
        assert_clean(&volume);
    }
    assert!(matches!(refused(world.volume.forget_snapshot(&ids[4])), VolumeError::MissingRecord(_)));
}

#[test]
fn a_forgetting_that_was_killed_halfway_is_finished_by_another() {
    let world = World::new(PLAIN);
    let ids: Vec<_> = (0..2).map(|n| commit_at(&world.volume, n, &n.to_string())).collect();
    let before = world.ram.image();
    world.volume.forget_snapshot(&ids[0]).unwrap();
    let mut both = before;
    both.extend(world.ram.image());
    world.ram.become_like(&both);
    let volume = world.again();
    assert_eq!(line(&volume), ["1", "0"]);
    volume.forget_snapshot(&ids[0]).unwrap();
    assert_eq!(line(&volume), ["1"]);
}

#[test]
fn the_order_holds_when_clocks_go_back() {
    let world = World::new(PLAIN);
    let side = world.worktree("side");
    let base = commit_at(&world.volume, 1000, "base");
    side.set_head(base).unwrap();
    commit_at(&world.volume, 500, "main 1");
    commit_at(&side, 10, "side 1");
    commit_at(&world.volume, 400, "main 2");
    commit_at(&side, 2000, "side 2");
    let heads = [world.volume.read_head().unwrap().unwrap(), side.read_head().unwrap().unwrap()];
    let entries: Vec<_> =
        AncestorWalk::from_heads(&world.volume.catalog, heads).unwrap().collect::<Result<_, _>>().unwrap();
    let mut met = HashSet::new();
    for entry in entries.iter().rev() {
        assert!(entry.record.parents.iter().all(|parent| met.contains(parent)), "{}", entry.record.note);
        met.insert(entry.id);
    }
    assert_eq!(entries.len(), 5);
    assert_eq!(entries.first().unwrap().record.note, "side 2");
    let counters: Vec<_> =
        ["HEAD", "HEAD~1", "HEAD~2"].map(|at| side.resolve_snapshot(at).unwrap().record.counter).into();
    assert_eq!(counters, [3, 2, 1]);
    let times =
        ["HEAD", "HEAD~1", "HEAD~2"].map(|at| world.volume.resolve_snapshot(at).unwrap().record.time.secs);
    assert_eq!(times, [1000, 1000, 1000], "no snapshot is older than its parent");
}

#[test]
fn a_clock_that_was_ahead_dates_no_later_snapshot() {
    let world = World::new(PLAIN);
    let volume = &world.volume;
    let now = vellum_volume::session::current_time().secs;
    let times = [now - 100, now + 300 * 24 * 60 * 60, now - 50, now - 40];
    let notes = ["before", "ahead", "right 1", "right 2"];
    let ids: Vec<_> = times.iter().zip(notes).map(|(time, note)| commit_at(volume, *time, note)).collect();
    let found: Vec<_> = ids.iter().map(|id| volume.catalog.get_record(id).unwrap().time.secs).collect();
    assert_eq!(found, times);
    let newest_first = ["right 2", "right 1", "ahead", "before"];
    assert_eq!(line(volume), newest_first);
    let all = list_history(&volume.catalog).unwrap();
    assert_eq!(all.iter().map(|entry| entry.record.note.as_str()).collect::<Vec<_>>(), newest_first);
    assert_eq!(volume.find_latest_snapshot().unwrap(), Some(ids[3]));
    // What is newer than a snapshot that is dated in the future is not known before then.
    for (at, newer) in [(0, 3), (2, 1), (3, 0)] {
        volume.set_head(ids[at]).unwrap();
        assert_eq!(volume.count_newer_than_head().unwrap(), newer);
    }
}

#[test]
fn no_snapshot_comes_before_its_children_where_lines_with_wrong_clocks_meet() {
    let world = World::new(PLAIN);
    let side = world.worktree("side");
    let now = vellum_volume::session::current_time().secs;
    let ahead = commit_at(&world.volume, now + 5000, "ahead");
    side.set_head(ahead).unwrap();
    for number in 0..3 {
        commit_at(&world.volume, now - 100 + number, "main");
        commit_at(&side, now - 1000 + number, "side");
    }
    let heads = [world.volume.read_head().unwrap().unwrap(), side.read_head().unwrap().unwrap()];
    let walk = AncestorWalk::from_heads(&world.volume.catalog, heads).unwrap();
    let notes: Vec<_> = walk.map(|entry| entry.unwrap().record.note.clone()).collect();
    assert_eq!(notes, ["main", "main", "main", "side", "side", "side", "ahead"]);
    let all = list_history(&world.volume.catalog).unwrap();
    assert_eq!(all.last().unwrap().id, ahead);
}

#[test]
fn a_tag_and_a_worktree_of_one_name_are_an_error_that_lists_both() {
    let world = World::new(PLAIN);
    let ids: Vec<_> = (0..2).map(|n| commit_at(&world.volume, n, &n.to_string())).collect();
    // As versions made it that did not look.
    let tag = |name: &str, id: SnapshotId| {
        let value = id.as_bytes().to_vec();
        world
            .volume
            .refs
            .update_ref(vellum_volume::refs::RefKind::Tag, name, |_| Ok(Some(value.clone())))
            .unwrap();
    };
    tag("main", ids[0]);
    let error = refused(world.volume.resolve_snapshot("main")).to_string();
    let short = |id: &SnapshotId| world.volume.short_id(id).unwrap();
    assert!(
        error.contains("'main' names several")
            && error.contains(&format!("tag main, which is {}", short(&ids[0])))
    );
    assert!(error.contains(&format!("worktree main, which stands on {}", short(&ids[1]))), "{error}");
    world.volume.remove_tag("main").unwrap();
    tag("main", ids[1]);
    assert_eq!(world.volume.resolve_snapshot("main").unwrap().id, ids[1], "both mean one snapshot");
    // An old tag that reads as the beginning of an id is what it says, and may be set again.
    let beginning = ids[1].to_string()[..6].to_owned();
    tag(&beginning, ids[0]);
    assert_eq!(world.volume.resolve_snapshot(&beginning).unwrap().id, ids[0]);
    world.volume.add_tag(&beginning, ids[0]).unwrap();
    assert!(matches!(refused(world.volume.add_tag("abcd", ids[0])), VolumeError::BadName { .. }));
    assert_eq!(world.volume.resolve_snapshot("latest").unwrap().id, ids[1]);
    world.volume.set_head(ids[0]).unwrap();
    assert_eq!(world.volume.resolve_snapshot("latest").unwrap().id, ids[1]);
    assert_eq!(world.volume.count_newer_than_head().unwrap(), 1);
    tag("latest", ids[0]);
    assert_eq!(world.volume.resolve_snapshot("latest").unwrap().id, ids[0], "a name that is there counts");
}

#[test]
fn prefixes_are_unique_or_refused_with_candidates() {
    let world = World::new(PLAIN);
    // Of some hundred ids two begin with the same four digits.
    let mut ids = HashMap::new();
    let [first, second] = (0..)
        .find_map(|n| {
            let id = commit_at(&world.volume, n, &n.to_string());
            ids.insert(id.to_string()[..4].to_owned(), id).map(|other| [other, id])
        })
        .unwrap();
    assert_eq!(world.volume.resolve_snapshot(&first.to_string()).unwrap().id, first);
    assert_eq!(world.volume.resolve_snapshot(&world.volume.short_id(&first).unwrap()).unwrap().id, first);
    let prefix = &first.to_string()[..4];
    let VolumeError::Ambiguous { matches, .. } = refused(world.volume.resolve_snapshot(prefix)) else {
        panic!("{prefix} is not ambiguous")
    };
    assert_eq!(matches.len(), 2);
    assert!([first, second].iter().all(|id| matches.iter().any(|shown| id.to_string().starts_with(shown))));
    let three = refused(world.volume.resolve_snapshot(&first.to_string()[..3])).to_string();
    assert!(three.contains("4 digits"), "{three}");
    for text in [
        "",
        "~",
        "xyz",
        "HEAD~x",
        "HEAD~99999999999999999999",
        "HEAD~9999",
        "@{}",
        "@{next week}",
        "0123456789zz",
    ] {
        assert!(world.volume.resolve_snapshot(text).is_err(), "{text:?}");
    }
    assert!(refused(world.volume.resolve_snapshot("\u{1b}[0m")).to_string().contains("\\u{1b}"));
}

#[test]
fn names_go_before_the_beginning_of_an_id() {
    let world = World::new(PLAIN);
    let one = commit_at(&world.volume, 1, "one");
    let two = commit_at(&world.volume, 2, "two");
    let prefix = world.volume.short_id(&one).unwrap();
    assert_eq!(world.volume.resolve_snapshot(&prefix).unwrap().id, one);
    let side = world.worktree(&prefix);
    side.set_head(two).unwrap();
    assert_eq!(world.volume.resolve_snapshot(&prefix).unwrap().id, two);
    assert!(matches!(world.volume.add_tag(&prefix, two), Err(VolumeError::BadName { .. })));
    assert_eq!(
        world.volume.resolve_snapshot(&one.to_string()).unwrap().id,
        one,
        "nothing goes before a whole id"
    );
}

#[test]
fn a_moment_names_the_newest_snapshot_not_after_it() {
    let world = World::new(PLAIN);
    assert!(matches!(
        refused(world.volume.resolve_snapshot("HEAD")),
        VolumeError::UnknownSnapshot(_) | VolumeError::NoSnapshotThere { .. }
    ));
    assert!(matches!(
        refused(world.volume.resolve_snapshot("@{now}")),
        VolumeError::UnknownSnapshot(_) | VolumeError::NoSnapshotThere { .. }
    ));
    for (secs, note) in [(1_000_000_000, "2001"), (1_100_000_000, "2004"), (1_200_000_000, "2008")] {
        commit_at(&world.volume, secs, note);
    }
    assert_eq!(note(&world.volume, "@{2005-01-01}"), "2004");
    assert_eq!(note(&world.volume, "@{2005-01-01}~1"), "2001");
    assert_eq!(note(&world.volume, "@{now}"), "2008");
    assert_eq!(note(&world.volume, "@{2001-09-09T01:46:40Z}"), "2001", "the very moment counts");
    assert!(matches!(
        refused(world.volume.resolve_snapshot("@{2001-09-09T01:46:39Z}")),
        VolumeError::UnknownSnapshot(_) | VolumeError::NoSnapshotThere { .. }
    ));
    assert!(matches!(
        refused(world.volume.resolve_snapshot("@{tea time}")),
        VolumeError::BadExpression { .. }
    ));
}

#[test]
fn a_damaged_catalog_is_only_slower_and_is_mended() {
    let world = World::new(SEALED);
    for n in 0..3 {
        commit_at(&world.volume, n, &n.to_string());
    }
    let path = world.volume.state.join("catalog");
    let whole = fs::read(&path).unwrap();
    let mut versions: Vec<Vec<u8>> = (0..whole.len()).map(|len| whole[..len].to_vec()).collect();
    versions.extend((0..whole.len()).map(|at| {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        flipped
    }));
    versions.push([&whole[..], b"x"].concat());
    versions.push([&whole[..], &whole[..]].concat());
    versions.push(vec![0xff; 100]);
    for bytes in versions {
        fs::write(&path, &bytes).unwrap();
        let volume = world.again();
        assert_eq!(list_history(&volume.catalog).unwrap().len(), 3);
        assert_eq!(line(&volume), ["2", "1", "0"]);
        fs::write(&path, &bytes).unwrap();
        assert_clean(&world.again());
    }
    // What was mended is not read from the store again.
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert_eq!(list_history(&world.again().catalog).unwrap().len(), 3);
    let counting = crate::ram::Hooked::new(world.ram.clone(), |_| {});
    let volume = Volume::open_on(counting.clone(), &world.volume.state).unwrap();
    let before = counting.operations();
    assert_eq!(list_history(&volume.catalog).unwrap().len(), 3);
    assert_eq!(counting.operations() - before, 1, "one listing");
}

#[test]
fn newer_snapshots_are_counted_with_one_listing_and_never_too_many() {
    let world = World::new(SEALED);
    let ids: Vec<_> = (0..3).map(|n| commit_at(&world.volume, n, &n.to_string())).collect();
    world.volume.set_head(ids[0]).unwrap();
    let path = world.volume.state.join("catalog");
    let whole = fs::read(&path).unwrap();
    let count = || {
        let counting = crate::ram::Hooked::new(world.ram.clone(), |_| {});
        let volume = Volume::open_on(counting.clone(), &world.volume.state).unwrap();
        volume.read_head().unwrap();
        let before = counting.operations();
        let newer = volume.count_newer_than_head().unwrap();
        assert_eq!(volume.catalog.last_listed_ids().unwrap().len(), 3);
        (newer, counting.operations() - before)
    };
    let (newer, known) = count();
    assert_eq!(newer, 2);
    fs::remove_file(&path).unwrap();
    assert_eq!(count(), (2, known + 3), "each record is read once");
    assert_eq!(count(), (2, known), "and kept");
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        fs::write(&path, flipped).unwrap();
        assert!(count().0 <= 2, "byte {at}");
    }
}

#[test]
fn a_stranger_among_the_records_hides_nothing() {
    use vellum_store::{ObjectKey, ObjectStore};
    let world = World::new(PLAIN);
    let id = snapshot(&world.volume, &small(1), "one");
    let stranger = ObjectKey::new("snapshots/README").unwrap();
    world.ram.put_object(&stranger, b"hello").unwrap();
    let volume = world.again();
    assert_eq!(volume.resolve_snapshot("HEAD").unwrap().id, id);
    let report = crate::world::verified(&volume);
    assert_eq!(report.findings, []);
    assert_eq!(report.foreign.examples, [stranger.as_str()]);
}

#[test]
fn a_record_put_twice_is_one_snapshot() {
    let world = World::new(SEALED);
    let record = record(&world.volume, MapRoot(BlobId([7; 32])), "lost answer");
    let first = world.volume.catalog.store_record(&record).unwrap();
    assert_eq!(world.volume.catalog.store_record(&record).unwrap(), first);
    assert_eq!(world.seen_in(world.ram.clone()).catalog.store_record(&record).unwrap(), first);
    assert_eq!(world.volume.catalog.list_ids().unwrap(), [first]);
}

#[test]
fn the_history_of_a_path_has_its_versions_and_nothing_else() {
    let world = World::new(SEALED);
    let mut tree = small(1);
    let mut versions = Vec::new();
    let watched = tree.file(vellum_types::Ino::ROOT, "watched", b"0".to_vec());
    for number in 0..200_u64 {
        if number % 50 == 7 {
            tree.node(watched).content = number.to_string().into_bytes();
        }
        tree.file(vellum_types::Ino::ROOT, &format!("other-{number}"), noise(number, 3000));
        let id = snapshot(&world.volume, &tree, &number.to_string());
        if number == 0 || number % 50 == 7 {
            versions.push(id);
        }
    }
    versions.reverse();
    let volume = world.again();
    let entries: Vec<_> = AncestorWalk::from_heads(&volume.catalog, volume.read_head().unwrap())
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let before = |at: usize| entries.get(at + 1).map(|entry| entry.record.root);
    let steps = entries
        .iter()
        .enumerate()
        .map(|(at, entry)| Ok(HistoryStep { entry: entry.clone(), before: before(at) }));
    let found = PathHistory::new(&volume, b"watched", steps);
    let found: Vec<_> = found.map(|entry| entry.unwrap().id).collect();
    assert_eq!(found, versions);
}
