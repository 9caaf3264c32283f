//! Plans of small listings.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use vellum_types::UnixTime;

use super::*;
use crate::model::listing::{DirectoryBlock, EntryDetail, EntryFlags, ListingEntryId, NewListingEntry};
use crate::model::options::{DeleteLimit, DeleteOptions, DeletePhase, PreserveOptions, SymlinkHandling};

fn file(size: u64, secs: i64) -> NewListingEntry {
    let mtime = UnixTime { secs, nanos: 5 };
    NewListingEntry {
        kind: vellum_types::FileKind::File,
        size,
        mtime,
        mode: 0o644,
        ..NewListingEntry::unknown_dir()
    }
}

fn listing(files: &[(&str, NewListingEntry)]) -> TreeListing {
    let mut listing = TreeListing::new(&NewListingEntry::unknown_dir(), None);
    let mut block = DirectoryBlock::default();
    for (name, fresh) in files {
        block.push(name.as_bytes(), fresh, None).unwrap();
    }
    listing.attach_block(ListingEntryId::ROOT, &mut block).unwrap();
    listing
}

fn options() -> SyncOptions {
    let preserve = PreserveOptions {
        recursive: true,
        times: true,
        modes: true,
        symlinks: SymlinkHandling::Keep,
        ..PreserveOptions::default()
    };
    SyncOptions { preserve, ..SyncOptions::default() }
}

fn deleting() -> SyncOptions {
    SyncOptions {
        delete: DeleteOptions { when: DeletePhase::After, ..DeleteOptions::default() },
        ..options()
    }
}

fn actions(plan: &SyncPlan) -> Vec<StepAction> {
    plan.steps.iter().map(|step| step.action).collect()
}

#[test]
fn equal_trees_need_nothing() {
    let tree = listing(&[("a", file(1, 2)), ("b", file(3, 4))]);
    assert!(SyncPlan::new(&tree, &tree, &deleting()).is_empty());
}

#[test]
fn an_edit_within_the_same_second_is_seen() {
    let edited = NewListingEntry { mtime: UnixTime { secs: 2, nanos: 6 }, ..file(1, 2) };
    let plan = SyncPlan::new(&listing(&[("a", edited)]), &listing(&[("a", file(1, 2))]), &options());
    assert_eq!(plan.counts.writes, 1);
    let mut windowed = options();
    windowed.compare.modify_window = 1;
    let plan = SyncPlan::new(&listing(&[("a", edited)]), &listing(&[("a", file(1, 2))]), &windowed);
    assert_eq!(plan.counts.writes, 0);
}

#[test]
fn directories_may_keep_two_seconds_where_files_keep_one() {
    let dir =
        |secs, nanos| NewListingEntry { mtime: UnixTime { secs, nanos }, ..NewListingEntry::unknown_dir() };
    let mut windowed = options();
    let steps = |from, to, options: &SyncOptions| {
        SyncPlan::new(&listing(&[("a", from)]), &listing(&[("a", to)]), options).steps.len()
    };
    assert_eq!(steps(dir(5, 26_000_000), dir(4, 0), &windowed), 1);
    windowed.compare.widen_tolerance(999_999_999);
    assert_eq!(steps(dir(5, 26_000_000), dir(4, 0), &windowed), 0);
    assert_eq!(steps(dir(6, 0), dir(4, 0), &windowed), 1);
    assert_ne!(steps(file(1, 5), file(1, 4), &windowed), 0);
}

#[test]
fn deletes_come_last_and_only_if_asked() {
    let source = listing(&[("a", file(1, 2)), ("c", file(1, 2))]);
    let old = listing(&[("b", file(1, 2)), ("c", file(1, 2)), ("d", file(1, 1))]);
    assert_eq!(
        actions(&SyncPlan::new(&source, &old, &options())),
        [StepAction::Write(WriteMethod::Whole), StepAction::Attributes]
    );
    let mut force = deleting();
    force.delete.force = true;
    let plan = SyncPlan::new(&source, &old, &force);
    assert_eq!(
        actions(&plan),
        [
            StepAction::Write(WriteMethod::Whole),
            StepAction::Delete,
            StepAction::Delete,
            StepAction::Attributes
        ]
    );
    force.delete.when = DeletePhase::Before;
    assert_eq!(SyncPlan::new(&source, &old, &force).steps[0].action, StepAction::Delete);
}

#[test]
fn deleting_more_than_half_is_refused() {
    let names: Vec<String> = (0..12).map(|number| format!("f{number:02}")).collect();
    let tree = |names: &[String]| {
        let entries: Vec<(&str, NewListingEntry)> =
            names.iter().map(|name| (name.as_str(), file(1, 2))).collect();
        listing(&entries)
    };
    let source = tree(&names[..1]);
    let old = tree(&names);
    let refusal = |options: &SyncOptions| SyncPlan::new(&source, &old, options).refusal;
    assert_eq!(refusal(&deleting()), Some(PlanRefusal::MoreThanHalf { deletes: 11, of: 12 }));
    let mut limited = deleting();
    limited.delete.force = true;
    assert_eq!(refusal(&limited), None);
    let too_many = Some(PlanRefusal::TooMany { deletes: 11, allowed: 10 });
    limited.delete.max = Some(DeleteLimit::Entries(10));
    assert_eq!(refusal(&limited), too_many);
    limited.delete.max = Some(DeleteLimit::Percent(91));
    assert_eq!(refusal(&limited), too_many);
    limited.delete.max = Some(DeleteLimit::Percent(92));
    assert_eq!(refusal(&limited), None);
}

/// One of one was refused, and with it all that was to be written.
#[test]
fn few_deletions_are_no_sign_of_a_wrong_source() {
    let source = listing(&[("a", file(1, 2))]);
    let old = listing(&[("b", file(1, 2))]);
    let plan = SyncPlan::new(&source, &old, &deleting());
    assert_eq!((plan.refusal, plan.counts.deleted, plan.counts.made), (None, 1, 1));
}

#[test]
fn what_is_not_a_deletion_goes_on() {
    let source = listing(&[("a", file(1, 2)), ("b", file(1, 2))]);
    let old = listing(&[("b", file(1, 2)), ("c", file(1, 2)), ("d", file(1, 2))]);
    let mut limited = deleting();
    limited.delete.max = Some(DeleteLimit::Entries(1));
    let plan = SyncPlan::new(&source, &old, &limited);
    let refusal = PlanRefusal::TooMany { deletes: 2, allowed: 1 };
    assert_eq!(plan.remarks, [PlanRemark::DeletesRefused { refusal }]);
    assert_eq!(actions(&plan), [StepAction::Write(WriteMethod::Whole), StepAction::Attributes]);
    assert_eq!((plan.refusal, plan.counts.deleted, plan.counts.made), (None, 0, 1));
}

#[test]
fn a_store_is_neither_written_to_nor_deleted() {
    let store = NewListingEntry {
        flags: EntryFlags::STORE.union(EntryFlags::KEEPS),
        ..NewListingEntry::unknown_dir()
    };
    let old = listing(&[("a", file(1, 2)), ("s", store)]);
    let forced = || SyncOptions { delete: DeleteOptions { force: true, ..deleting().delete }, ..deleting() };
    let refused = Some(PlanRefusal::Store { path: b"s".to_vec() });
    assert_eq!(SyncPlan::new(&listing(&[("a", file(1, 2))]), &old, &forced()).refusal, refused);
    assert_eq!(
        SyncPlan::new(&listing(&[("s", NewListingEntry::unknown_dir())]), &old, &options()).refusal,
        refused
    );
    assert_eq!(SyncPlan::new(&listing(&[("a", file(1, 2))]), &old, &options()).refusal, None);
    let kept = NewListingEntry { flags: store.flags.union(EntryFlags::PROTECTED), ..store };
    let old = listing(&[("a", file(1, 2)), ("s", kept)]);
    assert_eq!(SyncPlan::new(&listing(&[("a", file(1, 2))]), &old, &forced()).refusal, None);
}

#[test]
fn an_empty_source_deletes_nothing() {
    let old = listing(&[("a", file(1, 2))]);
    assert_eq!(SyncPlan::new(&listing(&[]), &old, &deleting()).refusal, Some(PlanRefusal::EmptySource));
}

#[test]
fn nothing_is_deleted_when_part_of_the_source_was_not_read() {
    let mut source = listing(&[("a", file(1, 2)), ("b", file(1, 2))]);
    let path = b"c".to_vec();
    source.unlisted.push(crate::model::listing::UnlistedEntry {
        path,
        message: "no".into(),
        vanished: false,
    });
    let old = listing(&[("a", file(1, 2)), ("b", file(1, 2)), ("c", file(1, 2))]);
    let plan = SyncPlan::new(&source, &old, &deleting());
    assert!(!actions(&plan).contains(&StepAction::Delete));
    assert_eq!(plan.remarks, [PlanRemark::DeletesHeld { deletes: 1 }]);
}

#[test]
fn what_is_protected_stays_and_so_does_its_directory() {
    let source = listing(&[("a", file(1, 2)), ("b", file(1, 2)), ("c", file(1, 2))]);
    let mut old = listing(&[
        ("a", file(1, 2)),
        ("b", file(1, 2)),
        ("c", file(1, 2)),
        ("d", NewListingEntry::unknown_dir()),
    ]);
    let mut block = DirectoryBlock::default();
    let keep = NewListingEntry { flags: EntryFlags::PROTECTED, ..file(1, 2) };
    block.push(b"keep", &keep, None).unwrap();
    block.push(b"lose", &file(1, 2), None).unwrap();
    old.attach_block(old.find_path(b"d").unwrap().id(), &mut block).unwrap();
    let plan = SyncPlan::new(&source, &old, &deleting());
    assert_eq!(plan.counts.deleted, 1);
    assert_eq!(plan.remarks, [PlanRemark::Kept { path: b"d".to_vec() }]);
}

#[test]
fn a_full_directory_is_not_in_the_way_of_a_file_unless_it_may_go() {
    let source = listing(&[("a", file(1, 2))]);
    let mut old = listing(&[("a", NewListingEntry::unknown_dir())]);
    let mut block = DirectoryBlock::default();
    block.push(b"x", &file(1, 2), None).unwrap();
    old.attach_block(old.find_path(b"a").unwrap().id(), &mut block).unwrap();
    let plan = SyncPlan::new(&source, &old, &options());
    assert_eq!(plan.remarks, [PlanRemark::InTheWay { path: b"a".to_vec() }]);
    let mut force = options();
    force.delete.obstacles = true;
    let plan = SyncPlan::new(&source, &old, &force);
    assert_eq!(
        actions(&plan)[..3],
        [StepAction::Delete, StepAction::Delete, StepAction::Write(WriteMethod::Whole)]
    );
}

#[test]
fn a_newer_file_is_not_made_a_name_of_an_older_one() {
    let mut source = TreeListing::new(&NewListingEntry::unknown_dir(), None);
    let mut block = DirectoryBlock::default();
    for name in [b"a", b"b"] {
        block.push(name, &file(1, 2), Some(EntryDetail { group: 1, ..EntryDetail::default() })).unwrap();
    }
    source.attach_block(ListingEntryId::ROOT, &mut block).unwrap();
    let mut updating = options();
    updating.preserve.hard_links = true;
    updating.compare.update = true;
    for (newer, older) in [("a", "b"), ("b", "a")] {
        let plan = SyncPlan::new(&source, &listing(&[(newer, file(1, 9))]), &updating);
        let steps: Vec<_> =
            plan.phase_steps(StepPhase::Files).iter().chain(plan.phase_steps(StepPhase::Links)).collect();
        let [SyncStep { action: StepAction::Write(WriteMethod::Whole), source: Some(written), .. }] =
            steps[..]
        else {
            panic!("{steps:?}")
        };
        assert_eq!(source.entry(*written).name(), older.as_bytes());
    }
}

#[test]
fn steps_are_small() {
    assert!(size_of::<SyncStep>() <= 20);
}
