//! Old records of operations are deleted, and what is left can still be verified.

use vellum_store::ObjectStore;
use vellum_volume::Volume;
use vellum_volume::operations::{ChainCheck, OperationChoice, OperationEffect, OperationRetention};

use crate::killed::kill_everywhere;
use crate::model::small;
use crate::world::{PLAIN, SEALED, World, assert_clean, snapshot};

/// Records are old at once.
const SHORT: OperationRetention = OperationRetention { newest: 4, seconds: -60, batch: 3 };

/// A worktree with so many operations, and one for its making.
fn world_with_operations(encrypted: bool, count: usize) -> World {
    let world = World::new(encrypted);
    let id = snapshot(&world.volume, &small(1), "one");
    for number in 1..count {
        world.volume.add_tag(&format!("t{number}"), id).unwrap();
    }
    world
}

fn check(volume: &Volume) -> ChainCheck {
    let check = volume.verify_all_operations().unwrap();
    assert_eq!(check.problems, [], "{check:#?}");
    check
}

fn sequences(volume: &Volume) -> Vec<u64> {
    let name = &volume.worktree.worktree;
    let listed = volume.list_operations(name, usize::MAX).unwrap().operations;
    listed.into_iter().map(|operation| operation.link.sequence).collect()
}

#[test]
fn the_newest_records_stay_and_a_checkpoint_tells_where_the_chain_ends() {
    for encrypted in [SEALED, PLAIN] {
        let world = world_with_operations(encrypted, 11);
        let volume = &world.volume;
        assert_eq!(volume.thin_operations(&SHORT).unwrap(), 8);
        // The four newest, and the checkpoint.
        assert_eq!(sequences(volume), [13, 12, 11, 10, 9]);
        let found = check(volume).checkpoints;
        assert_eq!((found.len(), found[0].checkpoint.last.sequence, found[0].checkpoint.records), (1, 8, 8));
        assert_eq!(volume.thin_operations(&SHORT).unwrap(), 0);
        let choice = OperationChoice::Numbered { worktree: "main".into(), number: 8 };
        assert!(volume.plan_undo(&choice).unwrap_err().to_string().contains("there is no operation 8"));
        volume.add_tag("more", volume.read_head().unwrap().unwrap()).unwrap();
        volume.remove_tag("more").unwrap();
        assert_eq!(volume.thin_operations(&SHORT).unwrap(), 3);
        assert_eq!(check(volume).checkpoints[0].checkpoint.last.sequence, 11);
        assert_clean(volume);
    }
}

#[test]
fn whoever_cuts_more_than_the_checkpoint_says_is_found_out() {
    let world = world_with_operations(SEALED, 11);
    let before = world.ram.image();
    world.volume.thin_operations(&SHORT).unwrap();
    let keys = world.ram.keys("operations");
    world.ram.delete_object(&keys[0]).unwrap();
    let found = world.volume.verify_all_operations().unwrap().problems;
    assert!(found.iter().any(|problem| problem.reason == "it is missing"), "{found:?}");
    // Without a checkpoint, nothing may be missing.
    world.ram.become_like(&before);
    let volume = world.seen_in(world.ram.clone());
    world.ram.delete_object(&world.ram.keys("operations")[0]).unwrap();
    assert_eq!(volume.verify_all_operations().unwrap().problems.len(), 1);
}

#[test]
fn young_records_and_few_records_stay() {
    let world = world_with_operations(PLAIN, 11);
    let young = OperationRetention { seconds: 3600, ..SHORT };
    assert_eq!(world.volume.thin_operations(&young).unwrap(), 0);
    let few = OperationRetention { newest: 10, ..SHORT };
    assert_eq!(world.volume.thin_operations(&few).unwrap(), 0);
    assert_eq!(world.volume.thin_operations(&OperationRetention::DEFAULT).unwrap(), 0);
    assert_eq!(sequences(&world.volume).len(), 12);
}

#[test]
fn thinning_that_is_killed_leaves_a_chain_that_is_sound_and_the_next_run_finishes() {
    let world = world_with_operations(PLAIN, 11);
    let image = world.ram.image();
    let command = |volume: &Volume| volume.thin_operations(&SHORT).map(drop);
    kill_everywhere(&world, &image, command, |volume, ram| {
        check(volume);
        command(volume).unwrap();
        check(volume);
        let id = volume.read_head().unwrap().unwrap();
        for number in 0..4 {
            volume.add_tag(&format!("later{number}"), id).unwrap();
        }
        command(volume).unwrap();
        let last = check(volume).checkpoints[0].checkpoint.last.sequence;
        let kept = ram.keys("operations");
        let is_covered = |name: &str| u64::from_str_radix(name, 16).unwrap() <= last;
        assert!(!kept.iter().any(|key| is_covered(key.name())), "{last} {kept:?}");
        let listed = volume.list_operations("main", usize::MAX).unwrap().operations;
        let is_checkpoint = |effect: &OperationEffect| matches!(effect, OperationEffect::Thinned(_));
        assert!(listed.iter().any(|operation| operation.record.effects.iter().any(is_checkpoint)));
    });
}
