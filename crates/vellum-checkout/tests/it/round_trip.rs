//! Everything that a tree can hold comes back exactly: by restore, by fork with each engine, by export.

use vellum_checkout::{CheckoutWorktree, ForkEngine, ForkReport, ForkRequest, export_tree};
use vellum_host::ProgressMeter;
use vellum_types::Ino;

use crate::audit::audit;
use crate::mounted::Mounted;
use crate::picture::Picture;
use crate::place::Place;
use crate::zoo;

/// A worktree that holds the zoo, a snapshot of it, and what it looked like.
fn zoo_in(place: &Place) -> (vellum_checkout::SnapshotReport, Picture) {
    zoo::fill(&place.path);
    let before = place.picture();
    let made = place.snapshot();
    place.picture().expect(&before, "a snapshot changes nothing");
    audit(&place.state(made.record.root));
    (made, before)
}

fn fork(place: &Place, name: &str, to: &std::path::Path, engine: Option<ForkEngine>) -> ForkReport {
    let from = place.tree.head_snapshot().unwrap().unwrap();
    let request = ForkRequest { name: name.into(), to: to.into(), from, engine };
    let outcome = place.tree.fork_worktree(&request, &ProgressMeter::default()).unwrap();
    assert_eq!(outcome.problems, []);
    outcome
}

#[test]
fn everything_comes_back_by_restore() {
    let place = Place::new();
    let (made, before) = zoo_in(&place);
    place.wipe();
    let outcome = place.restore(made.id);
    assert_eq!(outcome.safety, None, "nothing was lost that a snapshot does not hold");
    place.picture().expect(&before, "restored");
    assert_eq!(place.status(), [""; 0]);
    assert!(place.snapshot().unchanged);
    place.forget_statcache();
    assert_eq!(place.status(), [""; 0]);
    assert_eq!(place.snapshot().record.root, made.record.root, "equal directories have equal roots");
}

#[test]
fn everything_comes_back_over_a_tree_in_disorder() {
    let place = Place::new();
    let (made, before) = zoo_in(&place);
    for (a, b) in
        [("names", "modes"), ("links/one", "text"), ("sparse", "noise"), ("links/small", "links/dangling")]
    {
        let spare = place.on("spare");
        std::fs::rename(place.on(a), &spare).unwrap();
        std::fs::rename(place.on(b), place.on(a)).unwrap();
        std::fs::rename(&spare, place.on(b)).unwrap();
    }
    place.restore(made.id);
    place.picture().expect(&before, "restored");
    assert_eq!(place.status(), [""; 0]);
}

#[test]
fn everything_comes_back_by_fork_and_export() {
    let place = Place::new();
    let (made, before) = zoo_in(&place);
    let copied = place.beside().join("copied");
    let outcome = fork(&place, "copied", &copied, Some(ForkEngine::Copy));
    assert!(outcome.copied > 0 && outcome.reflinked == 0, "{outcome:?}");
    Picture::of(&copied).expect(&before, "copied");
    let chunks = place.beside().join("chunks");
    let outcome = fork(&place, "chunks", &chunks, Some(ForkEngine::Chunks));
    assert!(outcome.from_chunks > 0 && outcome.copied + outcome.reflinked == 0, "{outcome:?}");
    Picture::of(&chunks).expect(&before, "from chunks");
    let exported = place.beside().join("exported");
    let state = place.state(made.record.root);
    let problems =
        export_tree(&place.tree.volume, &state, Ino::ROOT, &exported, &ProgressMeter::default()).unwrap();
    assert_eq!(problems, []);
    Picture::of(&exported).expect(&before, "exported");
    let forked = CheckoutWorktree::open(&copied).unwrap();
    assert_eq!(forked.compare_with_snapshot(None, &[], &ProgressMeter::default()).unwrap().changes, []);
}

#[test]
fn everything_comes_back_by_reflink_on_btrfs() {
    let mounted = Mounted::on_loop("btrfs", 256);
    let place = Place::at(&mounted.path().join("tree"), &mounted.path().join("store"));
    let (_, before) = zoo_in(&place);
    let to = mounted.path().join("forked");
    let outcome = fork(&place, "forked", &to, Some(ForkEngine::Reflink));
    assert!(outcome.reflinked > 20 && outcome.copied + outcome.from_chunks == 0, "{outcome:?}");
    Picture::of(&to).expect(&before, "reflinked");
    let chosen = mounted.path().join("chosen");
    assert!(fork(&place, "chosen", &chosen, None).reflinked > 20);
    Picture::of(&chosen).expect(&before, "reflinked by choice");
}

#[test]
fn everything_comes_back_by_reflink_on_xfs() {
    let mounted = Mounted::on_loop("xfs", 320);
    let place = Place::at(&mounted.path().join("tree"), &mounted.path().join("store"));
    let (made, before) = zoo_in(&place);
    let to = mounted.path().join("forked");
    let outcome = fork(&place, "forked", &to, Some(ForkEngine::Reflink));
    assert!(outcome.reflinked > 20 && outcome.copied + outcome.from_chunks == 0, "{outcome:?}");
    Picture::of(&to).expect(&before, "reflinked");
    place.wipe();
    place.restore(made.id);
    place.picture().expect(&before, "restored");
}

#[test]
fn a_fork_by_reflink_where_there_is_none_is_refused_and_leaves_nothing() {
    let place = Place::new();
    place.write("file", "x");
    place.snapshot();
    let memory = Mounted::in_memory(4096);
    let from = place.tree.head_snapshot().unwrap().unwrap();
    let to = memory.path().join("fork");
    let mut request =
        ForkRequest { name: "fork".into(), to: to.clone(), from, engine: Some(ForkEngine::Reflink) };
    let error = place.tree.fork_worktree(&request, &ProgressMeter::default()).unwrap_err();
    assert!(error.to_string().contains("reflink"), "{error}");
    request.engine = None;
    assert_eq!(place.tree.fork_worktree(&request, &ProgressMeter::default()).unwrap().copied, 1);
    assert_eq!(std::fs::read(to.join("file")).unwrap(), b"x");
}

#[test]
fn a_fork_of_an_older_snapshot_takes_what_changed_from_chunks() {
    let place = Place::new();
    place.write("same", vec![1; 10_000]);
    place.write("edited", vec![2; 10_000]);
    place.write("gone", vec![3; 10_000]);
    let old = place.snapshot();
    let before = place.picture();
    place.write("edited", vec![4; 10_000]);
    std::fs::remove_file(place.on("gone")).unwrap();
    place.write("new", "x");
    place.snapshot();
    let to = place.beside().join("fork");
    let request =
        ForkRequest { name: "fork".into(), to: to.clone(), from: place.entry(old.id), engine: None };
    let outcome = place.tree.fork_worktree(&request, &ProgressMeter::default()).unwrap();
    assert_eq!((outcome.copied + outcome.reflinked, outcome.from_chunks), (1, 2));
    Picture::of(&to).expect(&before, "forked");
    let forked = CheckoutWorktree::open(&to).unwrap();
    assert_eq!(forked.head_snapshot().unwrap().unwrap().id, old.id);
    assert_eq!(place.status(), [""; 0]);
}

#[test]
fn a_part_is_exported_with_its_links_and_without_the_rest() {
    let place = Place::new();
    zoo_in(&place);
    let head = place.tree.head_snapshot().unwrap().unwrap();
    let state = place.state(head.record.root);
    for part in ["links", "attributes", "sparse", "links/other/place"] {
        let to = place.beside().join("part").join(part.replace('/', "-"));
        let (ino, _) = state.find_path(part.as_bytes(), "").unwrap();
        assert_eq!(export_tree(&place.tree.volume, &state, ino, &to, &ProgressMeter::default()).unwrap(), []);
        Picture::of(&to)
            .without(|seen| seen.first = None)
            .expect(&place.picture().below(part).without(|seen| seen.first = None), part);
    }
    let to = place.beside().join("one file");
    std::fs::create_dir(&to).unwrap();
    let (ino, _) = state.find_path(b"noise", "").unwrap();
    assert_eq!(export_tree(&place.tree.volume, &state, ino, &to, &ProgressMeter::default()).unwrap(), []);
    assert_eq!(std::fs::read(to.join("noise")).unwrap(), place.read("noise"));
    let error =
        export_tree(&place.tree.volume, &state, Ino::ROOT, &to, &ProgressMeter::default()).unwrap_err();
    assert!(error.to_string().contains("not empty"), "{error}");
}
