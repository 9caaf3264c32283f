//! Defects that were seen in an earlier system, each as a test by its name.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;

use vellum_host::ProgressMeter;
use vellum_volume::history::AncestorWalk;
use vellum_volume::verify::{VerifyScope, verify_volume};

use crate::audit::recorded;
use crate::mounted::Mounted;
use crate::place::Place;
use crate::zoo::set_time;

#[test]
fn restore_deletes_unsaved_files_without_asking() {
    let place = Place::new();
    place.write("file", "x");
    let first = place.snapshot();
    place.write("unsaved", "work");
    let safety = place.restore(first.id).safety.expect("a snapshot is taken first");
    assert!(!place.on("unsaved").exists());
    place.restore(safety);
    assert_eq!(place.read("unsaved"), b"work");
}

#[test]
fn restoring_a_partial_snapshot_deletes_all_else() {
    let place = Place::new();
    place.write("a/file", "1");
    place.write("b/file", "1");
    place.snapshot();
    place.write("a/file", "2");
    let partial = place.snapshot_of(&["a"]);
    place.wipe();
    place.restore(partial.id);
    assert_eq!((place.read("a/file"), place.read("b/file")), (b"2".to_vec(), b"1".to_vec()));
}

#[test]
fn control_files_leak_into_the_workspace() {
    let place = Place::new();
    place.write("file", "x");
    let made = place.snapshot();
    let held = recorded(&place.tree.volume, &place.state(made.record.root));
    assert_eq!(held.0.into_keys().collect::<Vec<_>>(), [b".".to_vec(), b"file".to_vec()]);
    place.restore(made.id);
    let names: HashSet<_> = std::fs::read_dir(&place.path).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, HashSet::from([".vellum".into(), "file".into()]));
}

#[test]
fn verify_all_skips_content() {
    let place = Place::new();
    place.write("file", crate::chance::Chance::new(3).bytes(50_000));
    place.snapshot();
    let report =
        verify_volume(&place.tree.volume, &VerifyScope::All, false, &ProgressMeter::default()).unwrap();
    assert_eq!(report.findings, []);
    assert!(report.bytes >= 50_000, "content is read: {report:?}");
}

#[test]
fn a_users_own_gz_breaks_restore() {
    let place = Place::new();
    place.write("a.gz", b"\x1f\x8b\x08\0not really");
    place.write("b.zst", b"\x28\xb5\x2f\xfd nor this");
    place.write("c", "plain ".repeat(10_000));
    place.write("c.gz", "of the same name");
    let before = place.picture();
    let made = place.snapshot();
    assert_eq!(
        verify_volume(&place.tree.volume, &VerifyScope::All, false, &ProgressMeter::default())
            .unwrap()
            .findings,
        []
    );
    place.wipe();
    place.restore(made.id);
    place.picture().expect(&before, "restored");
}

#[test]
fn gc_while_detached_deletes_the_newest_snapshot() {
    let place = Place::new();
    place.write("file", "1");
    let first = place.snapshot();
    place.write("file", "2");
    let newest = place.snapshot();
    // Back on the first one, as after a look at an old state.
    place.restore(first.id);
    let volume = &place.tree.volume;
    let plan = vellum_volume::gc::plan_collection(volume, &[], &ProgressMeter::default()).unwrap();
    vellum_volume::gc::run_collection(
        volume,
        &vellum_volume::gc::CollectionRequest {
            approved: Some(&plan),
            ..vellum_volume::gc::CollectionRequest::default()
        },
        &ProgressMeter::default(),
    )
    .unwrap();
    let place = place.reopened();
    place.restore(newest.id);
    assert_eq!(place.read("file"), b"2");
}

#[test]
fn parallel_snapshots_are_lost_from_the_lineage_and_shown_ids_collide() {
    let place = Place::new();
    let mut ids = Vec::new();
    for number in 0..30 {
        place.write("file", format!("{number}"));
        ids.push(place.snapshot().id);
    }
    let shown: HashSet<_> = ids.iter().map(|id| place.tree.volume.short_id(id).unwrap()).collect();
    assert_eq!(shown.len(), ids.len());
    for (short, id) in ids.iter().map(|id| (place.tree.volume.short_id(id).unwrap(), id)) {
        assert_eq!(place.tree.volume.resolve_snapshot(&short).unwrap().id, *id);
    }
    let head = ids[ids.len() - 1];
    assert_eq!(AncestorWalk::from_heads(&place.tree.volume.catalog, [head]).unwrap().count(), ids.len());
}

#[test]
fn sparse_files_expand_hard_links_and_directory_times_are_lost() {
    let place = Place::new();
    std::fs::File::create(place.on("sparse")).unwrap().set_len(1 << 30).unwrap();
    place.write("one", "x");
    std::fs::hard_link(place.on("one"), place.on("two")).unwrap();
    place.write("d/inside", "x");
    set_time(&place.on("d"), 1_000_000_000, 5);
    let before = place.picture();
    let made = place.snapshot();
    place.wipe();
    place.restore(made.id);
    place.picture().expect(&before, "restored");
    assert!(std::fs::metadata(place.on("sparse")).unwrap().blocks() < 100);
}

#[test]
fn renaming_the_main_worktree_splits_the_repository() {
    let place = Place::new();
    place.write("file", "1");
    let first = place.snapshot();
    place.tree.volume.rename_worktree("main", "renamed").unwrap();
    let place = place.reopened();
    place.write("file", "2");
    let second = place.snapshot();
    assert_eq!(second.record.parents, [first.id]);
    assert_eq!(place.tree.volume.list_worktrees().unwrap().len(), 1);
    // So does moving its directory, which is no command at all.
    let moved = place.beside().join("moved");
    std::fs::rename(&place.path, &moved).unwrap();
    let tree = vellum_checkout::CheckoutWorktree::open(&moved).unwrap();
    assert_eq!(tree.head_snapshot().unwrap().unwrap().id, second.id);
    assert_eq!(tree.compare_with_snapshot(None, &[], &ProgressMeter::default()).unwrap().changes, []);
}

#[test]
fn restore_orphans_the_shells_working_directory() {
    let place = Place::new();
    place.write("d/file", "1");
    let first = place.snapshot();
    place.write("d/file", "2");
    place.write("other", "2");
    place.snapshot();
    let inode = |path: &str| std::fs::metadata(place.on(path)).unwrap().ino();
    let before = (inode("."), inode("d"));
    place.restore(first.id);
    assert_eq!((inode("."), inode("d")), before, "directories stay the ones that shells stand in");
}

#[test]
fn the_copying_engine_is_not_called_by_another_name() {
    let place = Place::new();
    place.write("file", vec![1; 100_000]);
    place.snapshot();
    let memory = Mounted::in_memory(4 << 10);
    let request = vellum_checkout::ForkRequest {
        name: "fork".into(),
        to: memory.path().join("fork"),
        from: place.tree.head_snapshot().unwrap().unwrap(),
        engine: None,
    };
    let outcome = place.tree.fork_worktree(&request, &ProgressMeter::default()).unwrap();
    assert_eq!((outcome.reflinked, outcome.copied), (0, 1), "it says which engine it used");
}
