//! One case at a time.

use std::fs;

use super::world::World;
use crate::model::options::CompareMethod;
use crate::two_way::*;
use TwoWaySide::{First, Second};

/// Both sides have these files, and agreed on them.
fn agreed(paths: &[&str]) -> World {
    let mut world = World::new();
    for path in paths {
        world.write(First, path);
    }
    world.sync(ConflictRule::KeepBoth);
    world.assert_settled(ConflictRule::KeepBoth);
    world
}

#[test]
fn a_first_run_is_the_union() {
    let mut world = World::new();
    let a = world.write(First, "d/a");
    let b = world.write(Second, "d/b");
    world.sync(ConflictRule::KeepBoth);
    assert_eq!((world.read(Second, "d/a"), world.read(First, "d/b")), (Some(a), Some(b)));
    world.assert_settled(ConflictRule::KeepBoth);
}

#[test]
fn what_changed_on_one_side_goes_to_the_other() {
    let mut world = agreed(&["a", "b", "c", "d/e"]);
    let a = world.write(First, "a");
    let b = world.write(Second, "b");
    world.remove(Second, "c");
    world.remove(First, "d");
    world.sync(ConflictRule::KeepBoth);
    assert_eq!((world.read(Second, "a"), world.read(First, "b")), (Some(a), Some(b)));
    assert_eq!(world.tree(First).keys().collect::<Vec<_>>(), ["a", "b"]);
    world.assert_settled(ConflictRule::KeepBoth);
}

#[test]
fn both_versions_are_kept_under_names_that_are_free() {
    let mut world = agreed(&["a"]);
    let old = world.write(First, "a");
    let new = world.write(Second, "a");
    let moment = old.trim_end_matches('x').parse().unwrap();
    let moment = jiff::Timestamp::from_second(moment).unwrap().strftime("%Y%m%d-%H%M%S").to_string();
    let taken = format!("a.conflict-one-{moment}");
    let free = format!("a.conflict-one-{moment}-2");
    let other = world.write(Second, &taken);
    let (shown, report) = world.sync(ConflictRule::KeepBoth);
    assert_eq!(shown[0], format!("First a becomes {free}"));
    assert_eq!(report.renamed[0].steps, 1);
    for which in TwoWaySide::BOTH {
        assert_eq!(world.read(which, "a"), Some(new.clone()));
        assert_eq!(world.read(which, &free), Some(old.clone()));
        assert_eq!(world.read(which, &taken), Some(other.clone()));
    }
    world.assert_settled(ConflictRule::KeepBoth);
}

#[test]
fn edits_of_one_size_and_one_time_are_told_apart() {
    let mut world = agreed(&["a"]);
    let moment = std::time::SystemTime::now();
    for (which, text) in [(First, "one"), (Second, "two")] {
        fs::write(world.path(which, "a"), text).unwrap();
        fs::File::open(world.path(which, "a")).unwrap().set_modified(moment).unwrap();
    }
    world.sync(ConflictRule::KeepBoth);
    for which in TwoWaySide::BOTH {
        let tree = world.tree(which);
        assert_eq!(tree.len(), 2, "{tree:?}");
        let texts: Vec<_> = tree.keys().map(|path| world.read(which, path).unwrap()).collect();
        assert!(texts.contains(&"one".to_owned()) && texts.contains(&"two".to_owned()), "{texts:?}");
    }
    world.assert_settled(ConflictRule::KeepBoth);
}

/// Writes other content of the same length and leaves the time as it was, as an edit within one tick of the clock does.
fn write_unseen(world: &World, which: TwoWaySide, path: &str) -> String {
    use std::os::unix::fs::FileExt;
    let place = world.path(which, path);
    let file = fs::File::options().write(true).open(&place).unwrap();
    let moment = file.metadata().unwrap().modified().unwrap();
    let version = "y".repeat(file.metadata().unwrap().len() as usize);
    file.write_all_at(version.as_bytes(), 0).unwrap();
    file.set_modified(moment).unwrap();
    version
}

/// Both sides agreed on a file that was written a moment before.
fn agreed_just_now(stamps: bool) -> World {
    let mut world = World::new();
    world.options.stamps = stamps;
    world.write(First, "a");
    // Later than any moment at which this test lists: as if the clock stood still.
    let soon = std::time::SystemTime::now() + std::time::Duration::from_secs(600);
    fs::File::open(world.path(First, "a")).unwrap().set_modified(soon).unwrap();
    world.write(First, "b");
    world.sync(ConflictRule::KeepBoth);
    world
}

/// Such an edit moves neither size nor time, and where clocks are coarse not even the time of the last change.
#[test]
fn an_edit_within_the_tick_of_the_agreement_is_seen() {
    for which in TwoWaySide::BOTH {
        let mut world = agreed_just_now(true);
        // As if the edit fell into the very tick of the agreement.
        world.archive.stamps.clear();
        let edit = write_unseen(&world, which, "a");
        let (shown, _) = world.sync(ConflictRule::Dest);
        assert_eq!(world.read(which.opposite(), "a").as_ref(), Some(&edit), "{shown:?}");
        assert_eq!(shown.len(), 1, "{shown:?}");
        world.assert_settled(ConflictRule::Dest);
    }
    // On both sides it is a conflict, and one on one side wins against a deletion.
    let mut world = agreed_just_now(true);
    world.archive.stamps.clear();
    let edit = write_unseen(&world, First, "a");
    let other = world.write(Second, "a");
    world.sync(ConflictRule::KeepBoth);
    let versions = world.versions(Second, false);
    assert!(versions.contains(&edit) && versions.contains(&other), "{versions:?}");
    let mut world = agreed_just_now(true);
    world.archive.stamps.clear();
    let edit = write_unseen(&world, First, "a");
    world.remove(Second, "a");
    world.sync(ConflictRule::KeepBoth);
    assert_eq!(world.read(Second, "a"), Some(edit));
}

/// Long after the agreement, by a program that sets the time back.
#[test]
fn an_edit_that_keeps_size_and_time_is_seen() {
    for which in TwoWaySide::BOTH {
        let mut world = agreed(&["a", "b"]);
        // Time passes: whatever the clock's tick, the change is later than the agreement.
        for stamps in world.archive.stamps.values_mut() {
            *which.select_from_mut(stamps) -= 1;
        }
        let edit = write_unseen(&world, which, "a");
        // A name more, or the same content again, is no edit.
        fs::hard_link(world.path(which, "b"), world.path(which, "c")).unwrap();
        fs::remove_file(world.path(which, "c")).unwrap();
        let (shown, _) = world.sync(ConflictRule::KeepBoth);
        assert_eq!(world.read(which.opposite(), "a").as_ref(), Some(&edit), "{shown:?}");
        assert_eq!(shown.len(), 1, "{shown:?}");
        world.assert_settled(ConflictRule::KeepBoth);
    }
}

/// Both sides agreed on a file that neither run had read: of one size and one time, with different content.
fn agreed_unread() -> World {
    let mut world = World::new();
    let moment = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_500);
    for (which, text) in [(First, "one"), (Second, "two")] {
        fs::write(world.path(which, "a"), text).unwrap();
        fs::File::open(world.path(which, "a")).unwrap().set_modified(moment).unwrap();
    }
    world.sync(ConflictRule::KeepBoth);
    assert_eq!(world.read(First, "a").as_deref(), Some("one"));
    assert_eq!(world.read(Second, "a").as_deref(), Some("two"));
    world.options.compare.by = CompareMethod::Content;
    world
}

fn assert_both_texts(world: &World) {
    for which in TwoWaySide::BOTH {
        let versions = world.versions(which, false);
        assert_eq!(versions.iter().collect::<Vec<_>>(), ["one", "two"], "{which:?}");
    }
    world.assert_settled(ConflictRule::KeepBoth);
}

#[test]
fn a_conflict_that_only_contents_show_keeps_both_versions() {
    let mut world = agreed_unread();
    world.sync(ConflictRule::KeepBoth);
    assert_both_texts(&world);
}

#[test]
fn a_conflict_that_only_contents_show_survives_a_run_that_is_killed_after_its_renames() {
    for by in [CompareMethod::Content, CompareMethod::SizeAndTime] {
        let mut world = agreed_unread();
        let ends = world.ends();
        let request = world.new_request(ConflictRule::KeepBoth);
        let mut two_way = TwoWaySync { ends: [&ends[0], &ends[1]], rules: world.rules.clone(), request };
        let meter = vellum_host::ProgressMeter::default();
        let sight = two_way.collect_listings(&world.archive, &meter).unwrap();
        let plan = two_way.build_plan(&world.archive, &sight).unwrap();
        let saved = plan.archive_before_renames(&world.archive).unwrap().unwrap();
        two_way.execute_renames(&plan, &sight, &meter).unwrap();
        world.archive = TwoWayArchive::decode(&saved.encode(), world.archive.pair).unwrap();
        world.options.compare.by = by;
        world.sync(ConflictRule::KeepBoth);
        assert_both_texts(&world);
    }
}

#[test]
fn an_archive_forgets_single_entries() {
    let archive = agreed(&["a", "d/b", "d/e/c", "f"]).archive;
    let paths = [b"a".to_vec(), b"d/b".to_vec()].into_iter().collect();
    let kept = archive.without_entries(&paths).unwrap();
    assert_eq!(kept.len(), archive.len() - 2);
    assert_eq!(TwoWayArchive::decode(&kept.encode(), kept.pair).unwrap(), kept);
    let facts = |archive: &TwoWayArchive| {
        let entry =
            archive.root().find_child(b"d").unwrap().find_child(b"e").unwrap().find_child(b"c").unwrap();
        archive.agreed_entry(entry)
    };
    assert_eq!(facts(&kept), facts(&archive));
    assert!(kept.root().find_child(b"a").is_none() && kept.root().find_child(b"f").is_some());
}

#[test]
fn the_loser_of_a_rule_is_in_the_trash() {
    for (rule, winner) in [
        (ConflictRule::Newer, Second),
        (ConflictRule::Source, First),
        (ConflictRule::Dest, Second),
        (ConflictRule::Larger, First),
    ] {
        let mut world = agreed(&["a"]);
        let mut versions = [String::new(), String::new()];
        for which in TwoWaySide::BOTH {
            *which.select_from_mut(&mut versions) = world.write(which, "a");
        }
        if rule == ConflictRule::Larger {
            fs::write(world.path(First, "a"), "larger than the other").unwrap();
            versions[0] = "larger than the other".into();
        }
        world.sync(rule);
        for which in TwoWaySide::BOTH {
            assert_eq!(world.read(which, "a").as_ref(), Some(winner.select_from(&versions)), "{rule:?}");
        }
        let trash = world.versions(winner.opposite(), true);
        assert_eq!(trash.iter().collect::<Vec<_>>(), [winner.opposite().select_from(&versions)], "{rule:?}");
        world.assert_settled(rule);
    }
}

#[test]
fn an_edit_wins_against_a_deletion_unless_a_side_always_wins() {
    for (rule, stays) in [
        (ConflictRule::Newer, true),
        (ConflictRule::KeepBoth, true),
        (ConflictRule::Source, false),
        (ConflictRule::Dest, true),
    ] {
        let mut world = agreed(&["a", "b"]);
        world.remove(First, "a");
        let edit = world.write(Second, "a");
        world.sync(rule);
        assert_eq!(world.read(First, "a").is_some(), stays, "{rule:?}");
        assert_eq!(world.read(Second, "a").is_some(), stays, "{rule:?}");
        assert_eq!(world.versions(Second, true).contains(&edit), !stays, "{rule:?}");
        world.assert_settled(rule);
    }
}

#[test]
fn a_file_made_in_a_directory_that_the_other_side_deleted_stays() {
    let mut world = agreed(&["d/a", "d/b", "e"]);
    world.remove(First, "d");
    let new = world.write(Second, "d/new");
    world.sync(ConflictRule::Source);
    assert_eq!(world.read(First, "d/new"), Some(new));
    assert_eq!(world.read(Second, "d/a"), None);
    world.assert_settled(ConflictRule::Source);
}

#[test]
fn a_file_against_a_directory() {
    for rule in [
        ConflictRule::KeepBoth,
        ConflictRule::Newer,
        ConflictRule::Source,
        ConflictRule::Dest,
        ConflictRule::Larger,
    ] {
        let mut world = agreed(&["x", "y"]);
        let file = world.write(First, "x");
        world.remove(Second, "x");
        let inside = world.write(Second, "x/inside");
        world.sync(rule);
        let everywhere: Vec<_> =
            TwoWaySide::BOTH.map(|w| [world.versions(w, false), world.versions(w, true)]).into();
        let all = everywhere.iter().flatten().flatten().cloned().collect::<std::collections::BTreeSet<_>>();
        assert!(all.contains(&file) && all.contains(&inside), "{rule:?}");
        world.assert_settled(rule);
    }
}

#[test]
fn the_same_change_on_both_sides_is_no_conflict() {
    let mut world = agreed(&["a", "b"]);
    for which in TwoWaySide::BOTH {
        world.write(which, "a");
        fs::write(world.path(which, "a"), "the same").unwrap();
    }
    world.remove(First, "b");
    world.remove(Second, "b");
    let (shown, _) = world.sync(ConflictRule::KeepBoth);
    assert!(!shown.iter().any(|line| line.contains("becomes") || line.contains("Write")), "{shown:?}");
    assert_eq!(world.read(Second, "a").unwrap(), "the same");
    world.assert_settled(ConflictRule::KeepBoth);
}

#[test]
fn attributes_alone_go_across() {
    let mut world = agreed(&["a", "d/b"]);
    world.chmod(First, "a", 0o600);
    world.chmod(Second, "d", 0o700);
    let (shown, _) = world.sync(ConflictRule::KeepBoth);
    assert_eq!(shown, ["First Attributes a", "Second Attributes d"]);
    world.assert_settled(ConflictRule::KeepBoth);
    // A change of content is worth more than one of attributes.
    world.chmod(First, "a", 0o640);
    let edit = world.write(Second, "a");
    world.sync(ConflictRule::Source);
    assert_eq!(world.read(First, "a"), Some(edit));
    world.assert_settled(ConflictRule::Source);
}

#[test]
fn a_lost_archive_deletes_nothing() {
    let mut world = agreed(&["a", "b", "c"]);
    world.remove(First, "a");
    world.remove(Second, "b");
    world.forget();
    world.sync(ConflictRule::Source);
    assert_eq!(world.tree(First).len(), 3);
    world.assert_settled(ConflictRule::Source);
}

#[test]
fn an_empty_side_and_most_of_a_side_are_not_deleted_unless_forced() {
    let refused = |world: &World| {
        let ends = world.ends();
        let mut request = world.new_request(ConflictRule::KeepBoth);
        request.options.delete.force = false;
        let mut two_way = TwoWaySync { ends: [&ends[0], &ends[1]], rules: world.rules.clone(), request };
        let meter = vellum_host::ProgressMeter::default();
        let sight = two_way.collect_listings(&world.archive, &meter).unwrap();
        let plan = two_way.build_plan(&world.archive, &sight).unwrap();
        let refusal = plan.refusal.clone();
        assert_eq!(two_way.execute_plan(&world.archive, &sight, &plan, &meter).is_err(), refusal.is_some());
        refusal
    };
    let world = agreed(&["a", "b", "c"]);
    for path in ["a", "b", "c"] {
        world.remove(First, path);
    }
    assert_eq!(refused(&world), Some((Second, crate::plan::PlanRefusal::EmptySource)));
    let names: Vec<String> = (0..12).map(|number| format!("f{number:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let world = agreed(&names);
    for path in &names[1..] {
        world.remove(Second, path);
    }
    let more = crate::plan::PlanRefusal::MoreThanHalf { deletes: 11, of: 12 };
    assert_eq!(refused(&world), Some((First, more)));
    assert_eq!(world.tree(First).len(), 12);
    let world = agreed(&["a", "b", "c"]);
    world.remove(Second, "a");
    assert_eq!(refused(&world), None);
}

#[test]
fn a_side_that_lost_too_much_gets_what_is_new_and_nothing_is_deleted() {
    let names: Vec<String> = (0..12).map(|number| format!("f{number:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = agreed(&names);
    for path in &names[1..] {
        world.remove(Second, path);
    }
    world.write(First, "ours");
    world.write(Second, "theirs");
    let ran = |world: &mut World, force: bool| {
        let ends = world.ends();
        let mut request = world.new_request(ConflictRule::KeepBoth);
        request.options.delete.force = force;
        let mut two_way = TwoWaySync { ends: [&ends[0], &ends[1]], rules: world.rules.clone(), request };
        let meter = vellum_host::ProgressMeter::default();
        let sight = two_way.collect_listings(&world.archive, &meter).unwrap();
        let plan = two_way.build_plan(&world.archive, &sight).unwrap();
        let held = plan.plans.iter().flat_map(|plan| &plan.remarks).any(|remark| remark.is_problem());
        assert_eq!((plan.refusal.clone(), held), (None, !force));
        let (_, archive) = two_way.execute_plan(&world.archive, &sight, &plan, &meter).unwrap();
        if let Some(archive) = archive {
            world.archive = archive;
        }
    };
    ran(&mut world, false);
    assert_eq!((world.tree(First).len(), world.tree(Second).len()), (14, 3));
    // What was not deleted is still known to be gone on the other side.
    ran(&mut world, true);
    assert_eq!((world.tree(First).len(), world.tree(Second).len()), (3, 3));
}

#[test]
fn an_unanswered_question_leaves_both_sides_alone() {
    let mut world = agreed(&["a", "b"]);
    let versions = [world.write(First, "a"), world.write(Second, "a")];
    let edit = world.write(First, "b");
    world.sync(ConflictRule::Ask);
    assert_eq!([world.read(First, "a").unwrap(), world.read(Second, "a").unwrap()], versions);
    assert_eq!(world.read(Second, "b"), Some(edit));
    let mut request = world.new_request(ConflictRule::Ask);
    request.answers.insert(b"a".to_vec(), ConflictAnswer::Side(First));
    world.sync_asking(request);
    assert_eq!(world.read(Second, "a").as_ref(), Some(&versions[0]));
    world.assert_settled(ConflictRule::Ask);
}

#[test]
fn what_a_rule_hides_on_one_side_was_not_deleted_there() {
    use crate::ends::SyncSide;
    use crate::rules::{RuleArg, RuleSet, SyncFilters};
    let mut world = agreed(&["a.log", "d/b.log", "c"]);
    let args = [RuleArg::Exclude(b"*.log".to_vec())];
    let rules = RuleSet::compile_args(&args, false, &mut |_: &[u8]| Err("no files".into())).unwrap();
    let filters = std::sync::Arc::new(SyncFilters { rules, ..SyncFilters::default() });
    world.rules[0] = filters.create_filter(SyncSide::Source, b"/").unwrap();
    world.write(Second, "new.log");
    world.write(First, "new.log");
    assert_eq!(world.dry(ConflictRule::KeepBoth), Vec::<String>::new());
    world.sync(ConflictRule::KeepBoth);
    assert_eq!(world.tree(Second).len(), 5);
}

#[test]
fn a_conflict_beneath_a_longest_name_gets_a_name() {
    let name = "n".repeat(255);
    let mut world = agreed(&[&name]);
    world.write(First, &name);
    world.write(Second, &name);
    world.sync(ConflictRule::KeepBoth);
    assert_eq!(world.tree(First).len(), 2);
    world.assert_settled(ConflictRule::KeepBoth);
}

#[test]
fn an_edit_made_after_the_plan_is_not_lost() {
    let mut world = agreed(&["a", "b", "c"]);
    world.write(First, "a");
    world.remove(First, "b");
    world.chmod(First, "c", 0o600);
    let ends = world.ends();
    let request = world.new_request(ConflictRule::Source);
    let mut two_way = TwoWaySync { ends: [&ends[0], &ends[1]], rules: world.rules.clone(), request };
    let meter = vellum_host::ProgressMeter::default();
    let archive = world.archive.clone();
    let sight = two_way.collect_listings(&archive, &meter).unwrap();
    let plan = two_way.build_plan(&archive, &sight).unwrap();
    let late: Vec<String> = ["a", "b", "c"].map(|path| world.write(Second, path)).into();
    let (report, archive) = two_way.execute_plan(&archive, &sight, &plan, &meter).unwrap();
    assert!(report.reports[0].problems.len() >= 3, "{report:?}");
    for (path, version) in ["a", "b", "c"].iter().zip(&late) {
        assert_eq!(world.read(Second, path).as_ref(), Some(version));
    }
    // The next run finds them all.
    world.archive = archive.unwrap();
    world.sync(ConflictRule::KeepBoth);
    let versions = world.versions(First, false);
    assert!(late.iter().all(|version| versions.contains(version)));
    world.assert_settled(ConflictRule::KeepBoth);
}

#[test]
fn names_of_one_file_stay_names_of_one_file() {
    use std::os::unix::fs::MetadataExt;
    let mut world = agreed(&["a"]);
    fs::hard_link(world.path(First, "a"), world.path(First, "b")).unwrap();
    world.sync(ConflictRule::KeepBoth);
    assert_eq!(fs::metadata(world.path(Second, "b")).unwrap().nlink(), 2);
    let edit = world.write(Second, "b");
    world.sync(ConflictRule::KeepBoth);
    assert_eq!(world.read(First, "a"), Some(edit));
    world.assert_settled(ConflictRule::KeepBoth);
}

mod archive {
    use super::*;

    fn some() -> TwoWayArchive {
        agreed(&["a", "d/b", "d/e/c"]).archive
    }

    #[test]
    fn it_survives_its_bytes_and_nothing_else_does() {
        let archive = some();
        let bytes = archive.encode();
        assert_eq!(TwoWayArchive::decode(&bytes, archive.pair).unwrap(), archive);
        assert_eq!(TwoWayArchive::decode(&bytes, TwoWayPair([8; 32])).unwrap_err(), ArchiveError::Foreign);
        for place in 0..bytes.len() {
            let mut broken = bytes.clone();
            broken[place] ^= 0x20;
            assert!(TwoWayArchive::decode(&broken, archive.pair).is_err());
            assert!(TwoWayArchive::decode(&bytes[..place], archive.pair).is_err());
            // Behind the checksum, too, nothing panics.
            let body = &broken[..broken.len() - 32];
            let _ = TwoWayArchive::decode_body(body, archive.pair);
        }
    }

    /// An archive as docs/format.md draws it, made without this code.
    #[test]
    fn archives_of_released_versions_are_read() {
        let body = include_bytes!("../../../../../fuzz/seeds/sync_archive/0");
        let archive = TwoWayArchive::decode_body(body, TwoWayPair([0; 32])).unwrap();
        let encoded = archive.encode();
        assert_eq!(encoded.strip_prefix(body).map(<[u8]>::len), Some(32));
        let file = archive.root().find_child(b"f").unwrap();
        let [first, second] = archive.entry_facts(file).unwrap();
        assert_eq!((first.state.size, first.state.mark, second.state.mark), (5, 1, 2));
        let dir = archive.root().find_child(b"d").unwrap();
        assert!(archive.entry_facts(dir).is_none());
        assert_eq!(archive.entry_facts(dir.find_child(b"n").unwrap()).unwrap()[0].state.rdev, 259);
        assert_eq!(archive.root().find_child(b"l").unwrap().symlink_target(), b"to");
    }

    #[test]
    fn a_pair_has_one_run_at_a_time_and_its_archive_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("state/vellum/sync");
        let archive = some();
        let archive_file = LockedArchive::open(&place, archive.pair).unwrap();
        assert!(matches!(archive_file.load_archive().unwrap(), FoundArchive::Nothing));
        archive_file.save_archive(&archive).unwrap();
        assert!(LockedArchive::open(&place, archive.pair).is_err());
        assert!(LockedArchive::open(&place, TwoWayPair([8; 32])).is_ok());
        drop(archive_file);
        let archive_file = LockedArchive::open(&place, archive.pair).unwrap();
        assert!(
            matches!(archive_file.load_archive().unwrap(), FoundArchive::Archive(found) if *found == archive)
        );
        let file = place.join(format!("{}.archive", archive.pair.archive_name()));
        fs::write(&file, b"VLMPAIRS and then something else").unwrap();
        assert!(matches!(
            archive_file.load_archive().unwrap(),
            FoundArchive::Unusable(ArchiveError::Checksum)
        ));
    }
}
