//! Plans of small listings.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use vellum_types::Time;

use super::*;
use crate::listing::{Block, Detail, EntryId, Flags, Fresh};
use crate::options::{Delete, Most, Preserve, Symlinks, When};

fn file(size: u64, secs: i64) -> Fresh {
    let mtime = Time { secs, nanos: 5 };
    Fresh { kind: vellum_types::FileKind::File, size, mtime, mode: 0o644, ..Fresh::dir() }
}

fn listing(files: &[(&str, Fresh)]) -> Listing {
    let mut listing = Listing::new(&Fresh::dir(), None);
    let mut block = Block::default();
    for (name, fresh) in files {
        block.push(name.as_bytes(), fresh, None).unwrap();
    }
    listing.attach(EntryId::ROOT, &mut block).unwrap();
    listing
}

fn options() -> Options {
    let preserve = Preserve {
        recursive: true,
        times: true,
        modes: true,
        symlinks: Symlinks::Keep,
        ..Preserve::default()
    };
    Options { preserve, ..Options::default() }
}

fn deleting() -> Options {
    Options { delete: Delete { when: When::After, ..Delete::default() }, ..options() }
}

fn actions(plan: &Plan) -> Vec<Action> {
    plan.steps.iter().map(|step| step.action).collect()
}

#[test]
fn equal_trees_need_nothing() {
    let tree = listing(&[("a", file(1, 2)), ("b", file(3, 4))]);
    assert!(Plan::new(&tree, &tree, &deleting()).is_empty());
}

#[test]
fn an_edit_within_the_same_second_is_seen() {
    let edited = Fresh { mtime: Time { secs: 2, nanos: 6 }, ..file(1, 2) };
    let plan = Plan::new(&listing(&[("a", edited)]), &listing(&[("a", file(1, 2))]), &options());
    assert_eq!(plan.counts.writes, 1);
    let mut windowed = options();
    windowed.compare.modify_window = 1;
    let plan = Plan::new(&listing(&[("a", edited)]), &listing(&[("a", file(1, 2))]), &windowed);
    assert_eq!(plan.counts.writes, 0);
}

#[test]
fn deletes_come_last_and_only_if_asked() {
    let (source, old) = (
        listing(&[("a", file(1, 2)), ("c", file(1, 2))]),
        listing(&[("b", file(1, 2)), ("c", file(1, 2)), ("d", file(1, 1))]),
    );
    assert_eq!(
        actions(&Plan::new(&source, &old, &options())),
        [Action::Write(How::Whole), Action::Attributes]
    );
    let mut force = deleting();
    force.delete.force = true;
    let plan = Plan::new(&source, &old, &force);
    assert_eq!(
        actions(&plan),
        [Action::Write(How::Whole), Action::Delete, Action::Delete, Action::Attributes]
    );
    force.delete.when = When::Before;
    assert_eq!(Plan::new(&source, &old, &force).steps[0].action, Action::Delete);
}

#[test]
fn deleting_more_than_half_is_refused() {
    let names: Vec<String> = (0..12).map(|number| format!("f{number:02}")).collect();
    let tree = |names: &[String]| {
        let entries: Vec<(&str, Fresh)> = names.iter().map(|name| (name.as_str(), file(1, 2))).collect();
        listing(&entries)
    };
    let (source, old) = (tree(&names[..1]), tree(&names));
    let refusal = |options: &Options| Plan::new(&source, &old, options).refusal;
    assert_eq!(refusal(&deleting()), Some(Refusal::MoreThanHalf { deletes: 11, of: 12 }));
    let mut limited = deleting();
    limited.delete.force = true;
    assert_eq!(refusal(&limited), None);
    let too_many = Some(Refusal::TooMany { deletes: 11, allowed: 10 });
    limited.delete.max = Some(Most::Entries(10));
    assert_eq!(refusal(&limited), too_many);
    limited.delete.max = Some(Most::Percent(91));
    assert_eq!(refusal(&limited), too_many);
    limited.delete.max = Some(Most::Percent(92));
    assert_eq!(refusal(&limited), None);
}

/// One of one was refused, and with it all that was to be written.
#[test]
fn few_deletions_are_no_sign_of_a_wrong_source() {
    let (source, old) = (listing(&[("a", file(1, 2))]), listing(&[("b", file(1, 2))]));
    let plan = Plan::new(&source, &old, &deleting());
    assert_eq!((plan.refusal, plan.counts.deleted, plan.counts.made), (None, 1, 1));
}

#[test]
fn what_is_not_a_deletion_goes_on() {
    let source = listing(&[("a", file(1, 2)), ("b", file(1, 2))]);
    let old = listing(&[("b", file(1, 2)), ("c", file(1, 2)), ("d", file(1, 2))]);
    let mut limited = deleting();
    limited.delete.max = Some(Most::Entries(1));
    let plan = Plan::new(&source, &old, &limited);
    let refusal = Refusal::TooMany { deletes: 2, allowed: 1 };
    assert_eq!(plan.remarks, [Remark::DeletesRefused { refusal }]);
    assert_eq!(actions(&plan), [Action::Write(How::Whole), Action::Attributes]);
    assert_eq!((plan.refusal, plan.counts.deleted, plan.counts.made), (None, 0, 1));
}

#[test]
fn a_store_is_neither_written_to_nor_deleted() {
    let store = Fresh { flags: Flags::STORE.with(Flags::KEEPS), ..Fresh::dir() };
    let old = listing(&[("a", file(1, 2)), ("s", store)]);
    let forced = || Options { delete: Delete { force: true, ..deleting().delete }, ..deleting() };
    let refused = Some(Refusal::Store { path: b"s".to_vec() });
    assert_eq!(Plan::new(&listing(&[("a", file(1, 2))]), &old, &forced()).refusal, refused);
    assert_eq!(Plan::new(&listing(&[("s", Fresh::dir())]), &old, &options()).refusal, refused);
    assert_eq!(Plan::new(&listing(&[("a", file(1, 2))]), &old, &options()).refusal, None);
    let kept = Fresh { flags: store.flags.with(Flags::PROTECTED), ..store };
    let old = listing(&[("a", file(1, 2)), ("s", kept)]);
    assert_eq!(Plan::new(&listing(&[("a", file(1, 2))]), &old, &forced()).refusal, None);
}

#[test]
fn an_empty_source_deletes_nothing() {
    let old = listing(&[("a", file(1, 2))]);
    assert_eq!(Plan::new(&listing(&[]), &old, &deleting()).refusal, Some(Refusal::EmptySource));
}

#[test]
fn nothing_is_deleted_when_part_of_the_source_was_not_read() {
    let mut source = listing(&[("a", file(1, 2)), ("b", file(1, 2))]);
    let path = b"c".to_vec();
    source.unlisted.push(crate::listing::Unlisted { path, message: "no".into(), vanished: false });
    let old = listing(&[("a", file(1, 2)), ("b", file(1, 2)), ("c", file(1, 2))]);
    let plan = Plan::new(&source, &old, &deleting());
    assert!(!actions(&plan).contains(&Action::Delete));
    assert_eq!(plan.remarks, [Remark::DeletesHeld { deletes: 1 }]);
}

#[test]
fn what_is_protected_stays_and_so_does_its_directory() {
    let source = listing(&[("a", file(1, 2)), ("b", file(1, 2)), ("c", file(1, 2))]);
    let mut old = listing(&[("a", file(1, 2)), ("b", file(1, 2)), ("c", file(1, 2)), ("d", Fresh::dir())]);
    let mut block = Block::default();
    let keep = Fresh { flags: Flags::PROTECTED, ..file(1, 2) };
    block.push(b"keep", &keep, None).unwrap();
    block.push(b"lose", &file(1, 2), None).unwrap();
    old.attach(old.find(b"d").unwrap().id(), &mut block).unwrap();
    let plan = Plan::new(&source, &old, &deleting());
    assert_eq!(plan.counts.deleted, 1);
    assert_eq!(plan.remarks, [Remark::Kept { path: b"d".to_vec() }]);
}

#[test]
fn a_full_directory_is_not_in_the_way_of_a_file_unless_it_may_go() {
    let source = listing(&[("a", file(1, 2))]);
    let mut old = listing(&[("a", Fresh::dir())]);
    let mut block = Block::default();
    block.push(b"x", &file(1, 2), None).unwrap();
    old.attach(old.find(b"a").unwrap().id(), &mut block).unwrap();
    let plan = Plan::new(&source, &old, &options());
    assert_eq!(plan.remarks, [Remark::InTheWay { path: b"a".to_vec() }]);
    let mut force = options();
    force.delete.obstacles = true;
    let plan = Plan::new(&source, &old, &force);
    assert_eq!(actions(&plan)[..3], [Action::Delete, Action::Delete, Action::Write(How::Whole)]);
}

#[test]
fn a_newer_file_is_not_made_a_name_of_an_older_one() {
    let mut source = Listing::new(&Fresh::dir(), None);
    let mut block = Block::default();
    for name in [b"a", b"b"] {
        block.push(name, &file(1, 2), Some(Detail { group: 1, ..Detail::default() })).unwrap();
    }
    source.attach(EntryId::ROOT, &mut block).unwrap();
    let mut updating = options();
    updating.preserve.hard_links = true;
    updating.compare.update = true;
    for (newer, older) in [("a", "b"), ("b", "a")] {
        let plan = Plan::new(&source, &listing(&[(newer, file(1, 9))]), &updating);
        let steps: Vec<_> = plan.phase(Phase::Files).iter().chain(plan.phase(Phase::Links)).collect();
        let [Step { action: Action::Write(How::Whole), source: Some(written), .. }] = steps[..] else {
            panic!("{steps:?}")
        };
        assert_eq!(source.entry(*written).name(), older.as_bytes());
    }
}

#[test]
fn steps_are_small() {
    assert!(size_of::<Step>() <= 20);
}
