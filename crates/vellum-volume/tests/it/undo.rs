//! Operations that are taken back: wherever it is killed, whoever does something at the same time, and what gc has taken.

use std::sync::Arc;

use vellum_host::ProgressMeter;
use vellum_types::SnapshotId;
use vellum_volume::operations::{
    HeadChange, OperationChoice, RevertDirection, RevertError, RevertPlan, RevertScope, RevertStep,
};
use vellum_volume::snapshot_pin::NewSnapshotPin;
use vellum_volume::{Result, Volume, VolumeError};

use crate::collecting::collect;
use crate::killed::kill_everywhere;
use crate::model::small;
use crate::world::{PLAIN, SEALED, World, assert_clean, snapshot};

/// Carries out a plan as a command does in a worktree without files.
fn apply(volume: &Volume, plan: &RevertPlan) -> Result<()> {
    let _scope = RevertScope::enter(plan.reverted.clone());
    for step in &plan.before {
        volume.apply_revert_step(step)?;
    }
    match plan.head {
        None => {}
        Some(HeadChange::Move { from, target }) => volume.move_head(from, target)?,
        Some(HeadChange::Restore { target, .. }) => volume.set_head(target)?,
    }
    for step in &plan.after {
        volume.apply_revert_step(step)?;
    }
    Ok(())
}

fn undo(volume: &Volume) -> Result<()> {
    apply(volume, &volume.plan_undo(&OperationChoice::Last)?)
}

fn redo(volume: &Volume) -> Result<()> {
    apply(volume, &volume.plan_redo()?)
}

fn numbered(volume: &Volume, number: u64) -> OperationChoice {
    OperationChoice::Numbered { worktree: volume.worktree.worktree.clone(), number }
}

fn last_number(volume: &Volume) -> u64 {
    volume.list_operations(&volume.worktree.worktree, 1).unwrap().operations[0].link.sequence
}

fn assert_sound(volume: &Volume) {
    let check = volume.verify_all_operations().unwrap();
    assert_eq!(check.problems, [], "{check:#?}");
}

fn revert_error(result: Result<impl std::fmt::Debug>) -> RevertError {
    match result.unwrap_err() {
        VolumeError::Revert(error) => error,
        other => panic!("{other}"),
    }
}

fn tags(volume: &Volume) -> Vec<String> {
    volume.list_tags().unwrap().into_iter().map(|(name, _)| name).collect()
}

#[test]
fn undo_and_redo_walk_through_the_history_of_a_worktree() {
    for encrypted in [SEALED, PLAIN] {
        let world = World::new(encrypted);
        let volume = &world.volume;
        let first = snapshot(volume, &small(1), "first");
        let second = snapshot(volume, &small(2), "second");
        volume.add_tag("v1", first).unwrap();
        undo(volume).unwrap();
        assert_eq!(tags(volume), [""; 0]);
        undo(volume).unwrap();
        assert_eq!(
            (volume.read_head().unwrap(), volume.catalog.list_ids().unwrap()),
            (Some(first), vec![first])
        );
        undo(volume).unwrap();
        assert_eq!((volume.read_head().unwrap(), volume.catalog.list_ids().unwrap().len()), (None, 0));
        // The worktree itself was made by 'init'.
        assert_eq!(revert_error(undo(volume)), RevertError::NothingToUndo);
        for head in [first, second, second] {
            redo(volume).unwrap();
            assert_eq!(volume.read_head().unwrap(), Some(head));
        }
        assert_eq!(tags(volume), ["v1"]);
        assert_eq!(revert_error(redo(volume)), RevertError::NothingToRedo);
        undo(volume).unwrap();
        snapshot(volume, &small(3), "third");
        assert_eq!(revert_error(redo(volume)), RevertError::NothingToRedo);
        assert_sound(volume);
        assert_clean(volume);
    }
}

#[test]
fn an_undo_that_is_killed_can_be_run_again() {
    let world = World::new(SEALED);
    let volume = &world.volume;
    let gone = snapshot(volume, &small(1), "gone");
    let head = snapshot(volume, &small(2), "head");
    volume.forget_snapshot(&gone).unwrap();
    let forgotten = numbered(volume, last_number(volume));
    volume.add_tag("v1", head).unwrap();
    let tagged = numbered(volume, last_number(volume));
    let pin = NewSnapshotPin { reason: "audit".into(), until: None };
    volume.pin_snapshot(head, pin).unwrap();
    let pinned = numbered(volume, last_number(volume));
    let image = world.ram.image();
    for choice in [&forgotten, &tagged, &pinned] {
        let command = |volume: &Volume| match volume.plan_undo(choice) {
            Ok(plan) => apply(volume, &plan),
            // The run that was killed had done it.
            Err(VolumeError::Revert(RevertError::NothingLeft { .. })) => Ok(()),
            Err(error) => Err(error),
        };
        kill_everywhere(&world, &image, command, |volume, ram| {
            assert_sound(volume);
            command(volume).unwrap();
            assert_eq!(volume.catalog.has_snapshot(&gone).unwrap(), *choice == forgotten);
            assert_eq!(tags(volume).is_empty(), *choice == tagged);
            let now = vellum_volume::session::current_time();
            assert_eq!(volume.find_pinned_snapshots(now).unwrap().is_empty(), *choice == pinned);
            assert_sound(volume);
            collect(&world.seen_in(ram.clone())).unwrap();
            assert_clean(volume);
        });
    }
}

#[test]
fn an_undone_snapshot_is_whole_or_gone_wherever_it_is_killed() {
    let world = World::new(PLAIN);
    let first = snapshot(&world.volume, &small(1), "first");
    let second = snapshot(&world.volume, &small(2), "second");
    let number = numbered(&world.volume, last_number(&world.volume));
    let image = world.ram.image();
    let command = |volume: &Volume| apply(volume, &volume.plan_undo(&number)?);
    kill_everywhere(&world, &image, command, |volume, _| {
        assert_sound(volume);
        match volume.read_head().unwrap() {
            Some(head) if head == second => command(volume).unwrap(),
            head => assert_eq!(head, Some(first)),
        }
        assert_clean(volume);
        match volume.plan_redo() {
            Ok(plan) => apply(volume, &plan).unwrap(),
            // The record of the undo is found by the next operation.
            Err(error) => assert_eq!(revert_error(Err::<(), _>(error)), RevertError::NothingToRedo),
        }
        assert_clean(volume);
    });
}

#[test]
fn what_gc_has_taken_or_is_about_to_take_does_not_come_back() {
    let world = World::new(SEALED);
    let volume = &world.volume;
    let gone = snapshot(volume, &small(1), "gone");
    snapshot(volume, &small(2), "head");
    volume.forget_snapshot(&gone).unwrap();
    let number = numbered(volume, last_number(volume));
    let before = world.ram.image();
    collect(volume).unwrap();
    assert_eq!(revert_error(volume.plan_undo(&number)), RevertError::Collected { snapshot: gone });
    // From a machine that has not heard of the collection.
    assert_eq!(revert_error(world.again().plan_undo(&number)), RevertError::Collected { snapshot: gone });
    assert!(!volume.catalog.has_snapshot(&gone).unwrap());
    // A collection that waits for a writer has condemned it.
    world.ram.become_like(&before);
    let volume = world.seen_in(world.ram.clone());
    let session = volume.begin_write_session().unwrap();
    let request = vellum_volume::gc::CollectionRequest::default();
    let waiting = vellum_volume::gc::run_collection(&volume, &request, &ProgressMeter::default()).unwrap();
    assert_eq!((waiting.deleted, waiting.writers.len()), (0, 1));
    session.end_session().unwrap();
    assert_eq!(revert_error(volume.plan_undo(&number)), RevertError::Collected { snapshot: gone });
    assert_clean(&volume);
}

#[test]
fn a_plan_that_is_stale_changes_nothing() {
    let world = World::new(PLAIN);
    let volume = &world.volume;
    let first = snapshot(volume, &small(1), "first");
    volume.add_tag("v1", first).unwrap();
    let tag = volume.plan_undo(&OperationChoice::Last).unwrap();
    let second = snapshot(volume, &small(2), "second");
    let head = volume.plan_undo(&OperationChoice::Last).unwrap();
    // Somebody else is quicker.
    let other = world.again();
    other.remove_tag("v1").unwrap();
    other.add_tag("v1", second).unwrap();
    let third = snapshot(&other, &small(3), "third");
    for plan in [&tag, &head] {
        assert!(matches!(apply(volume, plan), Err(VolumeError::Raced(_))));
    }
    assert_eq!((volume.read_head().unwrap(), tags(volume)), (Some(third), vec!["v1".to_owned()]));
    let error = revert_error(volume.plan_undo(&numbered(volume, tag.operation.link.sequence)));
    assert!(matches!(error, RevertError::ChangedSince { later: Some(_), .. }), "{error}");
    assert_sound(volume);
}

#[test]
fn two_undos_at_once_take_different_operations_back_or_fail() {
    let world = World::new(PLAIN);
    let id = snapshot(&world.volume, &small(1), "one");
    for tag in 0..8 {
        world.volume.add_tag(&format!("t{tag}"), id).unwrap();
    }
    let volumes = [world.again(), world.again()];
    std::thread::scope(|scope| {
        for volume in &volumes {
            scope.spawn(move || {
                for _ in 0..4 {
                    match undo(volume) {
                        Ok(()) | Err(VolumeError::Raced(_) | VolumeError::Revert(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    let volume = world.again();
    assert!(tags(&volume).len() < 8);
    assert_eq!(volume.read_head().unwrap(), Some(id));
    assert_sound(&volume);
}

#[test]
fn an_undo_by_number_is_the_reverse_of_what_the_number_did() {
    let world = World::new(PLAIN);
    let volume = &world.volume;
    let id = snapshot(volume, &small(1), "one");
    volume.add_tag("v1", id).unwrap();
    let tagged = last_number(volume);
    undo(volume).unwrap();
    let undone = last_number(volume);
    let plan = volume.plan_undo(&numbered(volume, undone)).unwrap();
    assert_eq!((plan.reverted.direction, plan.operation.link.sequence), (RevertDirection::Redo, tagged));
    apply(volume, &plan).unwrap();
    assert_eq!(tags(volume), ["v1"]);
    let redone = last_number(volume);
    let plan = volume.plan_undo(&numbered(volume, redone)).unwrap();
    assert_eq!(plan.reverted.direction, RevertDirection::Undo);
    let left = revert_error(volume.plan_undo(&numbered(volume, undone)));
    assert!(matches!(left, RevertError::NothingLeft { .. }), "{left}");
}

#[test]
fn a_worktree_comes_and_goes_with_undo_and_redo() {
    let world = World::new(PLAIN);
    let volume = &world.volume;
    let id: SnapshotId = snapshot(volume, &small(1), "one");
    volume.add_worktree("side", Some(id), "/somewhere").unwrap();
    let names = || volume.list_worktrees().unwrap().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let plan = volume.plan_undo(&OperationChoice::Last).unwrap();
    assert!(matches!(plan.after.as_slice(), [RevertStep::RemoveWorktree { .. }]), "{plan:?}");
    apply(volume, &plan).unwrap();
    assert_eq!(names(), ["main"]);
    redo(volume).unwrap();
    assert_eq!(names(), ["main", "side"]);
    volume.remove_worktree("side").unwrap();
    undo(volume).unwrap();
    assert_eq!(volume.read_worktree_head("side").unwrap().unwrap().head, Some(id));
    // It has changed since it was made.
    let again = Arc::new(world.again().with_worktree("side"));
    again.set_head(snapshot(volume, &small(2), "two")).unwrap();
    let choice = OperationChoice::Numbered { worktree: "side".into(), number: 1 };
    let error = revert_error(volume.plan_undo(&choice));
    assert!(matches!(error, RevertError::ChangedSince { .. }), "{error}");
    assert_sound(volume);
}
