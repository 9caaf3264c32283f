//! Snapshots that leave something out, and restores of a worktree that holds what they left out, against what they must be.

use std::collections::{BTreeMap, BTreeSet};

use vellum_fs::history::exclusions::ExclusionChoice;
use vellum_fs::history::expected::ExpectedState;
use vellum_fs::history::snapshot::LiveSnapshotRequest;
use vellum_fs::{FsError, StateReader, XattrFlags};
use vellum_testkit::random::{TestRandom, choose_seed, scale_rounds};
use vellum_types::{ErrorKind, SnapshotId};
use vellum_volume::SnapshotOrigin;
use vellum_volume::exclusions::SnapshotExclusions;

use crate::check::check;
use crate::selected::{act, render};
use crate::stand::{ROOT, Stand, request};

type Rendered = BTreeMap<String, String>;

fn excluding(patterns: &[&str]) -> SnapshotExclusions {
    let patterns = patterns.iter().map(|it| (*it).to_owned()).collect();
    SnapshotExclusions { patterns, ..SnapshotExclusions::default() }
}

impl Stand {
    fn snapshot_excluding(&self, exclusions: &SnapshotExclusions) -> SnapshotId {
        self.create_snapshot_excluding(&request(), &[], ExclusionChoice::Given(exclusions)).unwrap()
    }

    fn render_now(&self) -> Rendered {
        render(&self.fs.open_view().unwrap())
    }

    fn render_snapshot(&self, id: SnapshotId) -> Rendered {
        render(&self.fs.open_snapshot_view(id).unwrap())
    }

    fn put(&self, path: &str, content: &[u8]) {
        if !self.exists(path) {
            self.create(path).unwrap();
        }
        self.content().write(self.at(path).ino, 0, content, false).unwrap();
    }

    fn content_of(&self, path: &str) -> Vec<u8> {
        self.fs.read(self.at(path).ino, 0, 1 << 20).unwrap()
    }
}

/// A worktree whose last snapshot leaves out `*.o` and `/out`.
fn left_out() -> (Stand, SnapshotId) {
    let stand = Stand::new();
    stand.populate(&["src/", "src/deep/", "out/", "out/sub/"]);
    stand.put("src/a.c", b"source");
    stand.put("src/deep/a.o", &vec![7; 200_000]);
    stand.put("out/sub/large", b"built");
    stand.link("out/sub/large", "out/second").unwrap();
    let id = stand.snapshot_excluding(&excluding(&["*.o", "/out"]));
    (stand, id)
}

#[test]
fn a_snapshot_leaves_out_what_the_worktree_keeps() {
    let (stand, id) = left_out();
    let now = stand.render_now();
    let made = stand.render_snapshot(id);
    assert_eq!(made.keys().collect::<Vec<_>>(), ["src", "src/a.c", "src/deep"]);
    assert!(made.iter().all(|(path, shown)| now[path] == *shown), "times of directories, too");
    assert_eq!(stand.content_of("src/deep/a.o").len(), 200_000);
    assert!(!stand.is_changed().unwrap());
    // Neither does another file that is left out change anything, and one that is not does.
    stand.put("src/b.o", b"object");
    stand.put("out/second", b"longer than before");
    assert!(!stand.is_changed().unwrap() && !stand.is_changed().unwrap());
    assert!(stand.differs_from_snapshot().unwrap());
    stand.put("src/b.c", b"new");
    assert!(stand.is_changed().unwrap());
    // A snapshot of some paths leaves it out, too.
    let paths = [b"src".to_vec()];
    let id = stand.fs.snapshot_paths(&request(), &paths, ExclusionChoice::Kept).unwrap();
    assert_eq!(
        stand.render_snapshot(id).keys().collect::<Vec<_>>(),
        ["src", "src/a.c", "src/b.c", "src/deep"]
    );
    assert!(!stand.is_changed().unwrap());
    assert_eq!(stand.kept_exclusions().unwrap(), excluding(&["*.o", "/out"]));
    let whole = stand.create_snapshot(&request()).unwrap();
    assert!(stand.kept_exclusions().unwrap().is_empty() && !stand.is_changed().unwrap());
    assert_eq!(stand.render_snapshot(whole), stand.render_now());
    check(&stand);
}

#[test]
fn a_restore_carries_over_what_was_left_out() {
    let (stand, first) = left_out();
    stand.put("src/a.c", b"changed");
    stand
        .attributes()
        .setxattr(stand.at("src/deep/a.o").ino, b"user.m", b"x", XattrFlags::default())
        .unwrap();
    let second = stand.snapshot_excluding(&excluding(&["*.o", "/out"]));
    let before = stand.render_now();
    let saved = stand.restore_snapshot(first, false).unwrap();
    assert!(saved.is_none(), "nothing was changed");
    let restored = stand.render_now();
    assert_eq!(stand.content_of("src/a.c"), b"source");
    let differing: Vec<_> = restored.iter().filter(|(path, shown)| before[*path] != **shown).collect();
    assert_eq!(differing.len(), 1, "{differing:?}");
    assert_eq!(restored.len(), before.len());
    assert_eq!(stand.at("out/second").ino, stand.at("out/sub/large").ino, "one file with two names");
    check(&stand);
    // After a crash, and published, it is there still.
    let stand = stand.again();
    assert_eq!(stand.render_now(), restored);
    assert!(!stand.is_changed().unwrap());
    stand.restore_snapshot(second, false).unwrap();
    assert_eq!(stand.render_now(), before);
    let stand = stand.elsewhere();
    assert_eq!(stand.render_now(), before);
}

#[test]
fn a_directory_that_only_holds_what_was_left_out_stays() {
    let (stand, first) = left_out();
    stand.populate(&["new/", "new/sub/"]);
    stand.put("new/sub/x.o", b"object");
    stand.put("new/x.c", b"source");
    stand.snapshot_excluding(&excluding(&["*.o", "/out"]));
    stand.restore_snapshot(first, false).unwrap();
    assert!(stand.exists("new/sub/x.o") && !stand.exists("new/x.c"));
    assert_eq!(stand.content_of("new/sub/x.o"), b"object");
    check(&stand);
}

#[test]
fn what_stands_in_its_place_is_named_and_nothing_is_changed() {
    let (stand, _) = left_out();
    let whole = stand.create_snapshot(&request()).unwrap();
    stand.put("src/deep/a.o", b"newer object");
    stand.unlink("out/second").unwrap();
    stand.snapshot_excluding(&excluding(&["*.o", "/out"]));
    stand.put("src/a.c", b"unsaved");
    let before = stand.render_now();
    let snapshots = stand.volume().catalog.cached_ids().len();
    let refused = stand.restore_snapshot(whole, false).unwrap_err();
    assert!(matches!(&refused, FsError::InTheWay(paths) if paths == &["out", "src/deep/a.o"]), "{refused}");
    assert!(stand.fs.check_restorable(whole, &[]).is_err());
    let paths = [b"src".to_vec()];
    assert_eq!(stand.fs.restore_paths(whole, &paths, false).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(stand.render_now(), before);
    assert_eq!(stand.volume().catalog.cached_ids().len(), snapshots, "no safety snapshot");
    // What is given up gives way, and no more than that.
    stand.put("out/other", b"of none");
    stand.restore_snapshot(whole, true).unwrap();
    assert_eq!(stand.content_of("src/deep/a.o").len(), 200_000);
    assert_eq!(stand.content_of("out/other"), b"of none");
    assert!(stand.exists("out/second"));
    check(&stand);
}

#[test]
fn paths_are_restored_around_what_was_left_out() {
    let (stand, first) = left_out();
    stand.put("src/a.c", b"changed");
    stand.populate(&["src/fresh/"]);
    stand.put("src/fresh/y.o", b"object");
    stand.put("src/fresh/y.c", b"source");
    let object = stand.render_now()["src/deep/a.o"].clone();
    let restored = stand.fs.restore_paths(first, &[b"src".to_vec()], false).unwrap();
    let saved = stand.render_snapshot(restored.saved.unwrap());
    assert!(saved.contains_key("src/fresh/y.c") && !saved.contains_key("src/fresh/y.o"));
    assert_eq!(stand.content_of("src/a.c"), b"source");
    assert_eq!(stand.content_of("src/fresh/y.o"), b"object");
    assert!(!stand.exists("src/fresh/y.c"));
    assert_eq!(stand.render_now()["src/deep/a.o"], object);
    assert_eq!(stand.render_now()["src"], stand.render_snapshot(first)["src"]);
    // A path that is left out is none that can be restored, and stays.
    let nowhere = stand.fs.restore_paths(first, &[b"out".to_vec()], false).unwrap_err();
    assert!(matches!(nowhere, FsError::PathNowhere { .. }), "{nowhere}");
    stand.fs.restore_paths(first, &[Vec::new()], false).unwrap();
    assert!(stand.exists("out/sub/large"));
    check(&stand);
    stand.publisher().publish_all().unwrap();
    let stand = stand.elsewhere();
    assert_eq!(stand.content_of("src/deep/a.o").len(), 200_000);
    check(&stand);
}

#[test]
fn a_caller_who_saw_what_is_not_left_out_restores_what_is_still_so() {
    let (stand, first) = left_out();
    stand.put("src/a.c", b"changed");
    let root = stand.publish_visible_tree(ExclusionChoice::Kept).unwrap();
    let expected = ExpectedState { root, paths: Vec::new() };
    stand.put("out/more", b"left out, and nobody's concern");
    stand.restore_expected_state(first, false, &expected).unwrap();
    assert!(stand.exists("out/more"));
    stand.put("src/a.c", b"again");
    let stale = stand.restore_expected_state(first, false, &expected);
    assert!(matches!(stale, Err(FsError::ChangedMeanwhile)), "{stale:?}");
}

#[test]
fn caches_are_left_out_but_for_their_marks() {
    let stand = Stand::new();
    stand.populate(&["cache/", "cache/deep/", "false/"]);
    stand.put("cache/CACHEDIR.TAG", b"Signature: 8a477f597d28d172789f06886806bc55\n");
    stand.put("cache/deep/data", b"data");
    stand.put("false/CACHEDIR.TAG", b"no signature");
    stand.put("CACHEDIR.TAG", b"Signature: 8a477f597d28d172789f06886806bc55\n");
    let caches = SnapshotExclusions { caches: true, ..SnapshotExclusions::default() };
    let id = stand.snapshot_excluding(&caches);
    let made = stand.render_snapshot(id);
    let expected = ["CACHEDIR.TAG", "cache", "cache/CACHEDIR.TAG", "false", "false/CACHEDIR.TAG"];
    assert_eq!(made.keys().collect::<Vec<_>>(), expected);
    assert!(!stand.is_changed().unwrap());
    let wrong = excluding(&["[z-a]"]);
    let refused = stand.create_snapshot_excluding(&request(), &[], ExclusionChoice::Given(&wrong));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Usage);
}

/// Whether `b`, `/c` and `d/e` leave a path out.
fn is_left_out(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    parts.contains(&"b") || parts[0] == "c" || parts.starts_with(&["d", "e"])
}

fn parents(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(end, _)| &path[..end])
}

/// What a restore must lead to; None: something is in the way.
fn carried(now: &Rendered, target: &Rendered) -> Option<Rendered> {
    let mut expected = target.clone();
    let out: BTreeSet<&String> = now.keys().filter(|path| is_left_out(path)).collect();
    for path in out {
        let is_outermost = !parents(path).any(is_left_out);
        let is_blocked = |above: &str| target.get(above).is_some_and(|shown| !shown.starts_with("Dir"));
        if is_outermost && (target.contains_key(path) || parents(path).any(is_blocked)) {
            return None;
        }
        for above in parents(path).chain([path.as_str()]) {
            expected.entry(above.to_owned()).or_insert_with(|| now[above].clone());
        }
    }
    Some(expected)
}

#[test]
fn whatever_was_left_out_survives_whatever_is_restored() {
    let mut random = TestRandom::new(choose_seed());
    let exclusions = excluding(&["b", "/c", "d/e"]);
    let safety = LiveSnapshotRequest { origin: SnapshotOrigin::Safety, ..request() };
    for _ in 0..scale_rounds(8) {
        let mut stand = Stand::new();
        let mut made = Vec::new();
        for round in 0..8 {
            for _ in 0..60 {
                act(&stand, &mut random);
            }
            let now = stand.render_now();
            let visible: Rendered = now.clone().into_iter().filter(|(path, _)| !is_left_out(path)).collect();
            let id = match round {
                0 => stand.create_snapshot(&request()).unwrap(),
                1 | 4 => stand.snapshot_excluding(&exclusions),
                _ => stand.create_snapshot(&safety).unwrap(),
            };
            assert_eq!(stand.render_snapshot(id), if round == 0 { now.clone() } else { visible });
            assert_eq!(stand.render_now(), now, "the worktree itself stays");
            made.push(id);
            if round == 0 {
                continue;
            }
            let target = random.pick_item(&made);
            let expected = carried(&now, &stand.render_snapshot(target));
            match (stand.restore_snapshot(target, false), expected) {
                (Ok(saved), Some(expected)) => {
                    assert_eq!(saved, None, "a snapshot was made just now");
                    assert_eq!(stand.render_now(), expected);
                }
                (Err(FsError::InTheWay(_)), None) => assert_eq!(stand.render_now(), now),
                (done, expected) => panic!("{done:?}, expected {expected:?}"),
            }
            check(&stand);
            if random.is_one_in(3) {
                let before = stand.render_now();
                stand = stand.again();
                assert_eq!(stand.render_now(), before);
            }
        }
        assert!(stand.fs.list_entries(ROOT).is_ok());
    }
}
