//! Partial checkouts: what is absent on purpose stays in snapshots, whatever is done around it.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

use vellum_checkout::{
    AbsentPaths, CheckoutError, EvictReport, ForkRequest, HydrateReport, RestoreReport, RestoreRequest,
    SnapshotReport,
};
use vellum_host::ProgressMeter;

use crate::audit::{audit, recorded};
use crate::chance::Chance;
use crate::picture::Picture;
use crate::place::{Place, concerning};
use crate::zoo::set_time;

/// A worktree with some directories, a snapshot of it, and its picture.
fn prepared() -> (Place, SnapshotReport) {
    let place = Place::new();
    for path in ["docs/a", "docs/b", "docs/deep/c", "src/x", "src/y", "src/sub/z", "top"] {
        place.write(path, format!("content of {path}"));
    }
    let made = place.snapshot();
    (place, made)
}

/// Removes paths and says that they are absent.
fn make_absent(place: &Place, paths: &[&str]) {
    let mut absent = place.tree.read_absent_paths().unwrap();
    for path in paths {
        absent.add_path(path.as_bytes());
        let path = place.on(path);
        if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.unwrap();
    }
    std::fs::write(place.on(".vellum/absent"), absent.encode().unwrap()).unwrap();
}

fn absent(place: &Place) -> Vec<String> {
    let absent = place.tree.read_absent_paths().unwrap();
    absent.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
}

/// What a snapshot holds, but for times, which removals by hand change.
fn held(place: &Place, made: &SnapshotReport) -> Picture {
    let state = place.state(made.record.root);
    audit(&state);
    recorded(&place.tree.volume, &state).without(|seen| seen.mtime = (0, 0))
}

/// The same of the whole directory, after `edit` was made in it and in a partial checkout of it.
fn same_as_whole(paths: &[&str], edit: impl Fn(&Place)) -> (Place, SnapshotReport) {
    let (whole, _) = prepared();
    edit(&whole);
    let whole_made = whole.snapshot();
    let (place, _) = prepared();
    make_absent(&place, paths);
    edit(&place);
    let made = place.snapshot();
    held(&place, &made).expect(&held(&whole, &whole_made), "the snapshot of the partial checkout");
    let statistics = |made: &SnapshotReport| {
        let found = made.record.statistics;
        (found.files, found.dirs, found.others, found.bytes)
    };
    assert_eq!(statistics(&made), statistics(&whole_made));
    assert_eq!(place.status(), [""; 0]);
    place.forget_statcache();
    assert_eq!(place.status(), [""; 0], "without a stat cache");
    (place, made)
}

#[test]
fn what_is_absent_is_not_deleted() {
    for forget in [false, true] {
        let (place, made) = prepared();
        make_absent(&place, &["docs", "src/y", "src/sub"]);
        if forget {
            place.forget_statcache();
        }
        assert_eq!(place.status(), [""; 0]);
        let again = place.snapshot();
        held(&place, &again).expect(&held(&place, &made), "nothing changed");
        assert_eq!(absent(&place), ["docs", "src/sub", "src/y"]);
        let compared = place.tree.compare_with_snapshot(None, &[], &Default::default()).unwrap();
        let content = compared.absent.unwrap().content.unwrap();
        assert_eq!((content.files, content.bytes), (5, 92));
    }
}

#[test]
fn edits_beside_what_is_absent() {
    same_as_whole(&["docs/a", "src/sub"], |place| {
        place.write("docs/new", "new");
        place.write("src/x", "changed");
        place.write("other/new", "new");
        std::fs::remove_file(place.on("top")).unwrap();
        std::fs::remove_file(place.on("docs/b")).unwrap();
    });
}

#[test]
fn what_is_absent_moves_with_its_directory() {
    let (place, _) = same_as_whole(&["docs/deep", "src/sub/z", "src/y"], |place| {
        std::fs::rename(place.on("src"), place.on("docs/source")).unwrap();
        std::fs::rename(place.on("docs"), place.on("papers")).unwrap();
        place.write("src/y", "another file");
    });
    let listed = absent(&place);
    for path in ["papers/deep", "papers/source/sub/z", "papers/source/y"] {
        assert!(listed.contains(&path.to_owned()), "{path} in {listed:?}");
    }
    assert!(!listed.contains(&"src/y".to_owned()), "it is there: {listed:?}");
}

#[test]
fn of_a_removed_directory_only_what_is_absent_stays() {
    let (place, _) = prepared();
    make_absent(&place, &["src/sub/z", "docs/a"]);
    std::fs::remove_dir_all(place.on("src")).unwrap();
    assert_eq!(place.status(), ["Deleted src/x", "Deleted src/y"]);
    let made = place.snapshot();
    let now = held(&place, &made);
    for path in ["src", "src/sub", "src/sub/z", "docs/a", "docs/b"] {
        assert!(now.0.contains_key(path.as_bytes()), "{path}");
    }
    assert!(!now.0.contains_key(&b"src/x"[..]) && !now.0.contains_key(&b"src/y"[..]));
    assert_eq!(absent(&place), ["docs/a", "src"], "nothing of it is here");
    assert_eq!(place.status(), [""; 0]);
    assert!(place.snapshot().unchanged);
}

#[test]
fn what_takes_the_place_of_an_absent_path_counts() {
    let (place, made) = prepared();
    make_absent(&place, &["docs", "src/y", "src/sub"]);
    place.write("src/y", "another y");
    place.write("src/sub", "a file now");
    place.write("docs/b", "another b");
    assert_eq!(
        place.status(),
        ["Modified docs/b", "Added src/sub", "Deleted src/sub", "Deleted src/sub/z", "Modified src/y"]
    );
    let before = held(&place, &made);
    let made = place.snapshot();
    let now = held(&place, &made);
    for path in ["docs", "docs/a", "docs/deep", "docs/deep/c"] {
        assert_eq!(now.0[path.as_bytes()], before.0[path.as_bytes()], "{path}");
    }
    assert_eq!(absent(&place), ["docs/a", "docs/deep"], "of the directory, the rest is absent");
    std::fs::remove_dir_all(place.on("docs")).unwrap();
    assert_eq!(place.status(), ["Deleted docs/b"]);
}

#[test]
fn a_name_of_a_linked_file_may_be_absent() {
    for forget in [false, true] {
        let (place, _) = prepared();
        std::fs::hard_link(place.on("src/x"), place.on("docs/link")).unwrap();
        std::fs::hard_link(place.on("docs/a"), place.on("src/link")).unwrap();
        let made = place.snapshot();
        let before = held(&place, &made);
        make_absent(&place, &["docs/link", "src/link"]);
        if forget {
            place.forget_statcache();
        }
        assert_eq!(place.status(), [""; 0]);
        held(&place, &place.snapshot()).expect(&before, "the links are as they were");
        // Replaced under the name that is here, the file keeps its other name and its content there.
        std::fs::remove_file(place.on("docs/a")).unwrap();
        place.write("docs/a", "another file");
        // Edited, it is another file under both names.
        place.write("src/x", "edited");
        let now = held(&place, &place.snapshot());
        assert_eq!(now.0[&b"src/link"[..]].content, before.0[&b"src/link"[..]].content);
        assert_ne!(now.0[&b"docs/a"[..]].content, before.0[&b"docs/a"[..]].content);
        assert_eq!(now.0[&b"docs/link"[..]].content, now.0[&b"src/x"[..]].content);
    }
}

#[test]
fn a_snapshot_of_some_paths_leaves_what_is_absent_alone() {
    let (place, made) = prepared();
    make_absent(&place, &["docs", "src/y"]);
    place.write("src/x", "changed");
    place.write("top", "changed, and not named");
    let before = held(&place, &made);
    let now = held(&place, &place.snapshot_of(&["src"]));
    for path in ["docs/a", "docs/deep/c", "src/y", "top"] {
        assert_eq!(now.0[path.as_bytes()], before.0[path.as_bytes()], "{path}");
    }
    assert_eq!(absent(&place), ["docs", "src/y"]);
    assert_eq!(place.status(), ["Modified top"]);
}

#[test]
fn nothing_is_recorded_of_the_directory_alone() {
    let place = Place::new();
    place.write("here", "x");
    let mut absent = AbsentPaths::default();
    absent.add_path(b"elsewhere");
    std::fs::write(place.on(".vellum/absent"), absent.encode().unwrap()).unwrap();
    let error = place.try_snapshot(&[]).unwrap_err();
    assert!(matches!(error, CheckoutError::AbsentNowhere(_)), "{error}");
}

#[test]
fn a_damaged_list_is_an_error() {
    let (place, _) = prepared();
    make_absent(&place, &["docs"]);
    let path = place.on(".vellum/absent");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let error = place.try_snapshot(&[]).unwrap_err();
    assert!(matches!(error, CheckoutError::AbsentList { .. }), "{error}");
}

/// A restore that makes a partial checkout.
fn restore_only(place: &Place, made: &SnapshotReport, only: &[&str]) -> RestoreReport {
    let only = only.iter().map(|path| path.as_bytes().to_vec()).collect();
    let done = place.try_restore(&RestoreRequest { only, ..place.request(made.id, &[]) }).unwrap();
    assert_eq!(done.problems, []);
    done
}

fn try_evict(place: &Place, paths: &[&str]) -> Result<EvictReport, CheckoutError> {
    let paths: Vec<_> = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
    let _lock = place.tree.lock_worktree(|| {}).unwrap();
    place.tree.evict_paths(&paths, BTreeSet::new, &ProgressMeter::default())
}

/// Makes paths absent, of which all can be.
fn evict(place: &Place, paths: &[&str]) -> EvictReport {
    let done = try_evict(place, paths).unwrap();
    assert_eq!(done.refused, []);
    done
}

fn try_hydrate(place: &Place, paths: &[&str]) -> Result<HydrateReport, CheckoutError> {
    let paths: Vec<_> = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
    let _lock = place.tree.lock_worktree(|| {}).unwrap();
    place.tree.hydrate_paths(&paths, &ProgressMeter::default())
}

fn hydrate(place: &Place, paths: &[&str]) -> HydrateReport {
    let done = try_hydrate(place, paths).unwrap();
    assert_eq!(done.problems, []);
    done
}

/// Paths of the directory.
fn here(place: &Place) -> Vec<String> {
    let paths = place.picture().0.into_keys().filter(|path| path != b".");
    paths.map(|path| String::from_utf8(path).unwrap()).collect()
}

#[test]
fn only_some_paths_are_restored_and_the_others_are_absent() {
    let (place, _) = prepared();
    place.write("src/.vellumignore", "*.o\n");
    place.write("docs/.vellumignore", "*.o\n");
    place.write(".vellumignore", "*.tmp\n");
    let made = place.snapshot();
    let whole = place.picture();
    restore_only(&place, &made, &["src/sub", "docs/a"]);
    assert_eq!(
        here(&place),
        [
            ".vellumignore",
            "docs",
            "docs/.vellumignore",
            "docs/a",
            "src",
            "src/.vellumignore",
            "src/sub",
            "src/sub/z"
        ]
    );
    assert_eq!(absent(&place), ["docs/b", "docs/deep", "src/x", "src/y", "top"]);
    for (path, seen) in &place.picture().0 {
        assert_eq!(*seen, whole.0[path], "{path:?}");
    }
    assert_eq!(place.status(), [""; 0]);
    assert!(place.snapshot().unchanged);
    restore_only(&place, &made, &["src/x", "docs"]);
    assert_eq!(absent(&place), ["src/sub", "src/y", "top"]);
    hydrate(&place, &[""]);
    place.picture().expect(&whole, "everything is back");
    assert_eq!(absent(&place), [""; 0]);
    assert!(!place.on(".vellum/absent").exists());
    assert!(place.snapshot().unchanged);
}

#[test]
fn a_restore_leaves_absent_what_is_absent() {
    let (place, first) = prepared();
    place.write("docs/a", "a new a");
    place.write("docs/late", "late");
    std::fs::remove_dir_all(place.on("src/sub")).unwrap();
    let second = place.snapshot();
    evict(&place, &["docs/a", "docs/late", "src/x"]);
    place.restore(first.id);
    assert_eq!(
        here(&place),
        ["docs", "docs/b", "docs/deep", "docs/deep/c", "src", "src/sub", "src/sub/z", "src/y", "top"]
    );
    assert_eq!(place.status(), [""; 0]);
    // A path that the snapshot does not have is absent again where there is one.
    place.restore(second.id);
    assert_eq!(absent(&place), ["docs/a", "docs/late", "src/x"]);
    assert_eq!(here(&place), ["docs", "docs/b", "docs/deep", "docs/deep/c", "src", "src/y", "top"]);
    assert_eq!(place.status(), [""; 0]);
    // What is in the way of an absent path counts, and is restored.
    place.write("src/x", "in the way");
    let done = place.restore(first.id);
    assert_eq!(place.read("src/x"), b"content of src/x");
    assert_eq!(absent(&place), ["docs/a", "docs/late"]);
    std::fs::remove_file(place.on("src/x")).unwrap();
    assert_eq!(place.status(), ["Deleted src/x"]);
    place.restore(done.safety.unwrap());
    assert_eq!(place.read("src/x"), b"in the way");
    assert_eq!(place.status(), [""; 0]);
}

#[test]
fn single_paths_that_are_absent_are_not_restored() {
    let (place, made) = prepared();
    evict(&place, &["docs/a", "src"]);
    for path in ["docs/a", "docs", "src", "src/sub/z"] {
        let error = place.try_restore(&place.request(made.id, &[path])).unwrap_err();
        assert!(matches!(error, CheckoutError::Absent { .. }), "{path}: {error}");
    }
    place.write("docs/b", "edited");
    place.try_restore(&place.request(made.id, &["docs/b"])).unwrap();
    assert_eq!(place.read("docs/b"), b"content of docs/b");
}

#[test]
fn only_what_equals_the_snapshot_is_evicted() {
    let (place, _) = prepared();
    set_time(&place.on("src/y"), 1_000_000_000, 5);
    place.snapshot();
    // The same size and time, and other bytes.
    std::fs::write(place.on("src/y"), "CONTENT OF src/y").unwrap();
    set_time(&place.on("src/y"), 1_000_000_000, 5);
    place.write("src/new", "no snapshot has it");
    place.write("docs/b", "changed");
    let done = try_evict(&place, &["src", "docs", "docs/a"]).unwrap();
    let refused: Vec<_> = done.refused.iter().map(|problem| String::from_utf8_lossy(&problem.path)).collect();
    assert_eq!(refused, ["docs/b", "src/new", "src/y"]);
    assert_eq!((done.files, done.bytes), (4, 16 + 20 + 17 + 22));
    assert_eq!(here(&place), ["docs", "docs/b", "src", "src/new", "src/y", "top"]);
    assert_eq!(absent(&place), ["docs/a", "docs/deep", "src/sub", "src/x"]);
    assert_eq!(place.status(), ["Modified docs/b", "Added src/new", "Modified src/y"]);
    let open = || BTreeSet::from([std::fs::metadata(place.on("top")).unwrap().ino()]);
    let done = place.tree.evict_paths(&[b"top".to_vec()], open, &ProgressMeter::default()).unwrap();
    assert_eq!(done.refused.len(), 1, "it is open");
    assert!(try_evict(&place, &["nowhere"]).is_err());
    assert!(try_evict(&place, &["src/x"]).unwrap().refused.is_empty(), "it is absent already");
}

#[test]
fn an_evicted_directory_leaves_its_times_and_comes_back_as_it_was() {
    let (place, _) = prepared();
    place.write("docs/.vellumignore", "ignored\n");
    place.write("docs/ignored", "in no snapshot");
    let made = place.snapshot();
    let whole = place.picture();
    evict(&place, &["src/sub", "docs/deep", "docs/a"]);
    assert_eq!(place.picture().0[&b"src"[..]].mtime, whole.0[&b"src"[..]].mtime);
    assert!(place.snapshot().unchanged);
    let done = try_evict(&place, &["docs"]).unwrap();
    assert_eq!(concerning(&done.refused), ["docs/.vellumignore"], "its directory stays");
    assert_eq!(absent(&place), ["docs/a", "docs/b", "docs/deep", "src/sub"]);
    hydrate(&place, &["docs/deep/c", "src"]);
    assert_eq!(absent(&place), ["docs/a", "docs/b"]);
    hydrate(&place, &["docs"]);
    place.picture().expect(&whole, "everything is back");
    assert_eq!(place.snapshot().record.root, made.record.root);
    evict(&place, &["src", "top"]);
    hydrate(&place, &["src/sub/z"]);
    assert_eq!(absent(&place), ["src/x", "src/y", "top"]);
}

#[test]
fn hydrating_changes_nothing_that_is_here() {
    let (place, _) = prepared();
    evict(&place, &["docs", "src/x"]);
    place.write("docs/b", "mine");
    std::fs::remove_file(place.on("src/y")).unwrap();
    place.write("src/sub/z", "mine");
    hydrate(&place, &[""]);
    assert_eq!(place.read("docs/b"), b"mine");
    assert_eq!(place.read("docs/a"), b"content of docs/a");
    assert_eq!(place.status(), ["Modified docs/b", "Modified src/sub/z", "Deleted src/y"]);
    assert_eq!(absent(&place), [""; 0]);
}

#[test]
fn what_is_in_the_way_of_hydration_is_named() {
    let (place, _) = prepared();
    evict(&place, &["docs", "src/x"]);
    place.write("docs", "a file");
    let done = try_hydrate(&place, &["docs/a", "src/x"]).unwrap();
    assert_eq!(concerning(&done.problems), ["docs"]);
    assert!(place.on("src/x").exists());
    assert_eq!(place.read("docs"), b"a file");
    std::fs::remove_file(place.on("docs")).unwrap();
    evict(&place, &["src/x"]);
    std::fs::rename(place.on("src"), place.on("moved")).unwrap();
    let error = try_hydrate(&place, &["src/x"]).unwrap_err();
    assert!(matches!(error, CheckoutError::Moved(_)), "{error}");
    place.snapshot();
    hydrate(&place, &["moved/x"]);
    assert_eq!(place.read("moved/x"), b"content of src/x");
}

#[test]
fn hydrated_names_of_one_file_are_one_file() {
    let (place, _) = prepared();
    std::fs::hard_link(place.on("src/x"), place.on("docs/link")).unwrap();
    std::fs::hard_link(place.on("src/x"), place.on("src/sub/link")).unwrap();
    let made = place.snapshot();
    let whole = place.picture();
    evict(&place, &["docs/link"]);
    evict(&place, &["src/x"]);
    hydrate(&place, &["docs"]);
    hydrate(&place, &["src"]);
    place.picture().expect(&whole, "one file");
    evict(&place, &["docs/link", "src/x", "src/sub/link"]);
    hydrate(&place, &["src", "docs"]);
    place.picture().expect(&whole, "one file, made anew");
    assert_eq!(place.snapshot().record.root, made.record.root);
}

#[test]
fn a_fork_of_a_partial_checkout_is_whole() {
    let (place, _) = prepared();
    let whole = place.picture();
    evict(&place, &["docs", "src/x"]);
    let to = place.beside().join("fork");
    let from = place.tree.head_snapshot().unwrap().unwrap();
    let request = ForkRequest { name: "fork".into(), to: to.clone(), from, engine: None };
    let done = place.tree.fork_worktree(&request, &ProgressMeter::default()).unwrap();
    assert_eq!(done.problems, []);
    Picture::of(&to).expect(&whole, "the fork");
}

/// Random changes of a checkout that is made partial and whole again all the time, and the same changes of a whole one.
#[test]
fn a_partial_checkout_records_what_a_whole_one_does() {
    for seed in 1..9 {
        let mut chance = Chance::new(seed);
        let (whole, _) = prepared();
        let (place, _) = prepared();
        for round in 0..25 {
            for _ in 0..1 + chance.below(3) {
                change_residence(&place, &mut chance);
            }
            let edits: Vec<_> = (0..1 + chance.below(4))
                .map(|number| edit_both(&place, &whole, &mut chance, number == 0))
                .collect();
            println!("  {edits:?}");
            // Without it, a directory that was moved is a new one, and what is absent stays where it was.
            if chance.below(3) == 0 && !edits.iter().any(|edit| edit.starts_with("rename")) {
                place.forget_statcache();
            }
            let made = place.snapshot();
            let whole_made = whole.snapshot();
            let what = format!("seed {seed}, round {round}, absent {:?}", absent(&place));
            held(&place, &made).expect(&held(&whole, &whole_made), &what);
            assert_eq!(place.status(), [""; 0], "{what}");
        }
        hydrate(&place, &[""]);
        let untimed = |place: &Place| place.picture().without(|seen| seen.mtime = (0, 0));
        untimed(&place).expect(&untimed(&whole), "all of it");
    }
}

fn change_residence(place: &Place, chance: &mut Chance) {
    let found = here(place);
    match chance.below(3) {
        0 | 1 => {
            if let Some(path) = chance.pick(&found) {
                println!("  evict {path}");
                try_evict(place, &[path]).unwrap();
            }
        }
        _ => {
            if let Some(path) = chance.pick(&absent(place)) {
                println!("  hydrate {path}");
                let _ = try_hydrate(place, &[path]);
            }
        }
    }
}

/// Makes the same change in both, of something that both have. Only the first since a snapshot may take a name away: what
/// was written since may stand in the place of something absent, which is there again when it goes.
fn edit_both(place: &Place, whole: &Place, chance: &mut Chance, takes_away: bool) -> String {
    let found = here(place);
    let Some(path) = chance.pick(&found).cloned() else { return "nothing".into() };
    let number = chance.below(6);
    let is_file = place.on(&path).is_file();
    let content = chance.bytes(20);
    let places = [place, whole];
    match chance.below(5) {
        0 if is_file => {
            places.iter().for_each(|place| std::fs::write(place.on(&path), &content).unwrap());
            format!("write {path}")
        }
        1 if is_file && takes_away => {
            places.iter().for_each(|place| std::fs::remove_file(place.on(&path)).unwrap());
            format!("remove {path}")
        }
        2 if takes_away => {
            let to = format!("renamed {number}");
            if whole.on(&to).symlink_metadata().is_ok() {
                return "nothing".into();
            }
            places.iter().for_each(|place| std::fs::rename(place.on(&path), place.on(&to)).unwrap());
            format!("rename {path} to {to}")
        }
        3 if !is_file => {
            let new = format!("{path}/new {number}");
            if whole.on(&new).is_dir() {
                return "nothing".into();
            }
            places.iter().for_each(|place| std::fs::write(place.on(&new), &content).unwrap());
            format!("write {new}")
        }
        _ => {
            let new = format!("dir {number}/file");
            places.iter().for_each(|place| place.write(&new, &content));
            format!("write {new}")
        }
    }
}
