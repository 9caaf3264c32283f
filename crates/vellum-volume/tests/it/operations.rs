//! What is recorded of operations, and what a verification finds when records are changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;

use parking_lot::Mutex;
use vellum_crypto::{RecordDomain, RecoveryCode, SlotSecret};
use vellum_host::ProgressMeter;
use vellum_store::{ObjectKey, ObjectStore};
use vellum_volume::device;
use vellum_volume::operations::{
    CommandScope, KeyChange, ListedOperation, OperationEffect, OperationRecord, RefEffect,
};
use vellum_volume::refs::RefKind;
use vellum_volume::remote::{PushRequest, push_to_volume};
use vellum_volume::{Result, Volume};

use crate::collecting::collect;
use crate::killed::{kill_everywhere, try_snapshot};
use crate::model::small;
use crate::ram::Hooked;
use crate::remotes::empty_copy;
use crate::world::{PLAIN, SEALED, World, assert_clean, snapshot};

type VolumeCommand<'a> = &'a dyn Fn(&Volume) -> Result<()>;

fn operations(volume: &Volume) -> Vec<ListedOperation> {
    volume.list_operations(&volume.worktree.worktree, usize::MAX).unwrap().operations
}

fn assert_sound(volume: &Volume) {
    let check = volume.verify_all_operations().unwrap();
    assert_eq!(check.problems, [], "{check:#?}");
}

fn record_keys(world: &World) -> Vec<ObjectKey> {
    world.ram.keys("operations")
}

fn reasons(volume: &Volume) -> Vec<(Option<u64>, String)> {
    let check = volume.verify_operations(&volume.worktree.worktree).unwrap();
    check.problems.into_iter().map(|problem| (problem.sequence, problem.reason)).collect()
}

#[test]
fn every_change_of_a_ref_is_recorded_once() {
    for encrypted in [SEALED, PLAIN] {
        let world = World::new(encrypted);
        let volume = &world.volume;
        let first = {
            let _scope = CommandScope::enter(["snapshot", "--key-file", "/secret/path"]);
            snapshot(volume, &small(1), "first")
        };
        let second = snapshot(volume, &small(2), "second");
        volume.add_tag("v1", second).unwrap();
        volume.add_tag("v1", second).unwrap();
        volume.remove_tag("v1").unwrap();
        volume.forget_snapshot(&first).unwrap();
        let found = operations(volume);
        assert!(found.windows(2).all(|pair| pair[0].link.sequence == pair[1].link.sequence + 1));
        let newest: Vec<_> = found.iter().map(|found| found.record.effects.clone()).collect();
        assert_eq!(newest[0], [OperationEffect::Forgotten(first)]);
        let tag = |effect: &OperationEffect| match effect {
            OperationEffect::Ref(RefEffect { kind: RefKind::Tag, before, after, .. }) => {
                (before.len(), after.len())
            }
            other => panic!("{other:?}"),
        };
        assert_eq!((tag(&newest[1][0]), tag(&newest[2][0])), ((32, 0), (0, 32)));
        assert_eq!(found[4].record.command, ["snapshot", "--key-file", "***"]);
        assert_sound(volume);
        assert_clean(volume);
    }
}

#[test]
fn a_snapshot_costs_no_wait_more() {
    let world = World::new(PLAIN);
    snapshot(&world.volume, &small(1), "first");
    let before = record_keys(&world).len();
    snapshot(&world.volume, &small(2), "second");
    assert_eq!(record_keys(&world).len(), before + 1);
}

#[test]
fn records_that_are_edited_swapped_or_lost_are_named() {
    let world = World::new(SEALED);
    let volume = &world.volume;
    for number in 1..6 {
        snapshot(volume, &small(number), "one");
    }
    let image = world.ram.image();
    let keys = record_keys(&world);
    assert!(keys.len() >= 6);
    assert_eq!(reasons(volume), []);
    for (number, key) in (1..).zip(&keys) {
        // Lost: in the middle and at the end.
        world.ram.delete_object(key).unwrap();
        assert!(reasons(volume).contains(&(Some(number), "it is missing".into())), "{key}");
        assert_eq!(reasons(&world.seen_in(world.ram.clone())), reasons(volume), "whoever looks");
        // Edited, and cut.
        world.ram.become_like(&image);
        let bytes = world.ram.bytes(key);
        for changed in
            [[&bytes[..30], &[bytes[30] ^ 1], &bytes[31..]].concat(), bytes[..bytes.len() - 1].to_vec()]
        {
            world.ram.force(key, &changed);
            assert_eq!(reasons(volume).first().map(|found| found.0), Some(Some(number)), "{key}");
        }
        // Another record in its place.
        let other = keys.iter().find(|other| *other != key).unwrap();
        world.ram.become_like(&image);
        world.ram.force(key, &world.ram.bytes(other));
        assert_eq!(reasons(volume).first().map(|found| found.0), Some(Some(number)), "{key}");
        world.ram.become_like(&image);
    }
    // Written by somebody who has the key, for the same place.
    let key = &keys[2];
    let mut plain = Vec::new();
    let aad = key.as_str().as_bytes();
    volume.keys.open_record(RecordDomain::Operation, aad, &world.ram.bytes(key), &mut plain).unwrap();
    let forged = OperationRecord { user: "nobody".into(), ..OperationRecord::decode(&plain).unwrap() };
    let mut sealed = Vec::new();
    volume.keys.seal_record(RecordDomain::Operation, aad, &forged.encode(), &mut sealed);
    world.ram.force(key, &sealed);
    let found = reasons(volume);
    assert!(found[0].1.contains("not the one that was recorded"), "{found:?}");
    assert!(volume.list_operations(&volume.worktree.worktree, usize::MAX).is_err());
    assert!(!volume.list_operations(&volume.worktree.worktree, 2).unwrap().operations.is_empty());
}

#[test]
fn a_record_that_nothing_names_was_not_carried_out_and_its_number_is_left_out() {
    let world = World::new(PLAIN);
    snapshot(&world.volume, &small(1), "first");
    let before = world.ram.image();
    snapshot(&world.volume, &small(2), "second");
    let stray = record_keys(&world).last().unwrap().clone();
    let bytes = world.ram.bytes(&stray);
    // As if it had been killed before the swap.
    world.ram.become_like(&before);
    world.ram.put_object(&stray, &bytes).unwrap();
    let volume = world.seen_in(world.ram.clone());
    let check = volume.verify_all_operations().unwrap();
    assert_eq!((check.problems.len(), check.unfinished.len()), (0, 1));
    let last = operations(&volume)[0].link.sequence;
    snapshot(&volume, &small(3), "third");
    assert_eq!(operations(&volume)[0].link.sequence, last + 2);
    let check = volume.verify_all_operations().unwrap();
    assert_eq!((check.problems.len(), check.unfinished.len()), (0, 1));
    // The number is not left out for nothing.
    world.ram.delete_object(&stray).unwrap();
    assert_eq!(reasons(&volume), [(Some(last + 1), "it is missing".into())]);
}

#[test]
fn refs_and_chains_agree_wherever_a_command_is_killed() {
    let world = World::new(SEALED);
    let gone = snapshot(&world.volume, &small(1), "gone");
    let head = snapshot(&world.volume, &small(2), "head");
    let image = world.ram.image();
    let commands: [VolumeCommand<'_>; 3] = [
        &|volume| try_snapshot(volume, &small(3)).map(drop),
        &|volume| volume.add_tag("v1", head),
        &|volume| volume.forget_snapshots(&[gone]).map(drop),
    ];
    for command in commands {
        kill_everywhere(&world, &image, command, |volume, _| {
            assert_sound(volume);
            command(volume).unwrap();
            volume.add_tag("later", head).unwrap();
            assert_sound(volume);
            // What was done stands in the chain, and once.
            let all = operations(volume);
            let effects = || all.iter().flat_map(|found| &found.record.effects);
            if volume.refs.get_ref(RefKind::Tag, "v1").unwrap().is_some() {
                let is_tag = |effect: &&OperationEffect| matches!(effect, OperationEffect::Ref(RefEffect { name, .. }) if name == "v1");
                assert_eq!(effects().filter(is_tag).count(), 1);
            }
            if !volume.catalog.has_snapshot(&gone).unwrap() {
                let forgotten = OperationEffect::Forgotten(gone);
                assert!(effects().any(|effect| *effect == forgotten));
            }
        });
    }
}

#[test]
fn changes_of_keys_and_collections_lose_no_record_wherever_they_are_killed() {
    let world = World::new(SEALED);
    let gone = snapshot(&world.volume, &small(1), "gone");
    let head = snapshot(&world.volume, &small(2), "head");
    world.volume.forget_snapshot(&gone).unwrap();
    let code = RecoveryCode::generate();
    let slot = device::add_device(&world.volume, "laptop", SlotSecret::Recovery(&code)).unwrap();
    let added = OperationEffect::Key(KeyChange::SlotAdded, format!("{} device laptop", slot.id()));
    let removed = OperationEffect::Key(KeyChange::SlotRemoved, format!("{} device laptop", slot.id()));
    assert!(has_effect(&world.volume, |effect| *effect == added));
    let image = world.ram.image();
    let packs = world.ram.keys("packs").len();
    let revoke = |volume: &Volume| device::revoke_device(volume, "laptop", true).map(drop);
    kill_everywhere(&world, &image, revoke, |volume, ram| {
        volume.add_tag("later", head).unwrap();
        let is_revoked = !ram.keys("removed-keys").is_empty();
        assert_eq!(has_effect(volume, |effect| *effect == removed), is_revoked);
        assert_sound(volume);
    });
    let collect = |volume: &Volume| collect(volume).map(drop);
    kill_everywhere(&world, &image, collect, |volume, ram| {
        volume.add_tag("later", head).unwrap();
        let is_collected = |effect: &OperationEffect| matches!(effect, OperationEffect::Collected { .. });
        // Packs are repacked before others are deleted.
        let is_deleted = ram.keys("packs").len() < packs;
        assert!(!is_deleted || has_effect(volume, is_collected));
        assert_sound(volume);
    });
}

#[test]
fn slots_that_a_push_copies_or_removes_are_recorded_where_they_arrive() {
    let world = World::new(SEALED);
    snapshot(&world.volume, &small(1), "one");
    let code = RecoveryCode::generate();
    let slot = device::add_device(&world.volume, "laptop", SlotSecret::Recovery(&code)).unwrap();
    let ram = empty_copy(&world);
    let push = || {
        let target = world.seen_in(ram.clone());
        let request = PushRequest { worktrees: vec!["main".into()], ..PushRequest::default() };
        push_to_volume(&world.volume, &target, &request, &ProgressMeter::default()).unwrap();
        world.seen_in(ram.clone())
    };
    let is_of_slot = |wanted: KeyChange| {
        let id = slot.id().to_string();
        move |effect: &OperationEffect| matches!(effect, OperationEffect::Key(change, subject) if *change == wanted && subject.starts_with(&id))
    };
    let target = push();
    assert!(has_effect(&target, is_of_slot(KeyChange::SlotAdded)));
    assert!(!has_effect(&target, is_of_slot(KeyChange::SlotRemoved)));
    let image = ram.image();
    push();
    assert_eq!(ram.image(), image, "nothing is recorded where nothing changes");
    device::revoke_device(&world.volume, "laptop", true).unwrap();
    let target = push();
    assert!(has_effect(&target, is_of_slot(KeyChange::SlotRemoved)));
    assert_sound(&target);
}

fn has_effect(volume: &Volume, is_wanted: impl Fn(&OperationEffect) -> bool) -> bool {
    // Where a store does not have the worktree yet, what is done there is recorded for the volume.
    let listed = volume.list_all_operations(usize::MAX).unwrap().operations;
    listed.iter().flat_map(|found| &found.record.effects).any(is_wanted)
}

#[test]
fn two_writers_get_one_chain() {
    let world = World::new(PLAIN);
    let id = snapshot(&world.volume, &small(1), "one");
    let volumes = [world.again(), world.again()];
    std::thread::scope(|scope| {
        for (number, volume) in volumes.iter().enumerate() {
            scope.spawn(move || {
                for tag in 0..8 {
                    volume.add_tag(&format!("t{number}-{tag}"), id).unwrap();
                }
            });
        }
    });
    let volume = world.again();
    assert_sound(&volume);
    let all = operations(&volume);
    let tags = all
        .iter()
        .flat_map(|found| &found.record.effects)
        .filter(|effect| matches!(effect, OperationEffect::Ref(RefEffect { kind: RefKind::Tag, .. })));
    assert_eq!(tags.count(), 16);
}

/// Where two commands that add tags meet.
struct Meeting {
    /// The first one waits before this request of its own until it is let go.
    first_waits: u64,
    /// The second one, which begins when the first one waits, lets it go and waits for its end before this request.
    second_waits: u64,
}

/// Runs the two, and checks that each is recorded once. Whether both requests were reached.
fn add_tags_that_meet(meeting: &Meeting) -> bool {
    let world = World::new(PLAIN);
    let id = snapshot(&world.volume, &small(1), "one");
    let (waiting, waits) = channel();
    let (let_go, goes_on) = channel();
    let begun = Arc::new(AtomicU64::new(u64::MAX));
    let since = |begun: &AtomicU64, number: u64| number.checked_sub(begun.load(Ordering::SeqCst));

    let (counted, at) = (begun.clone(), meeting.first_waits);
    let first_store = Hooked::new(world.ram.clone(), move |number| {
        if since(&counted, number) == Some(at) {
            waiting.send(()).unwrap();
            goes_on.recv().unwrap();
        }
    });
    let first_volume = Volume::open_on(first_store.clone(), &world.volume.state).unwrap();
    first_volume.add_tag("before", id).unwrap();
    begun.store(first_store.operations(), Ordering::SeqCst);
    drop(first_store);
    let first = std::thread::spawn(move || first_volume.add_tag("first", id).unwrap());
    // An error: it was done without that request, and its end of the channel is gone with its store.
    let is_first_reached = waits.recv().is_ok();

    let (counted, at) = (Arc::new(AtomicU64::new(u64::MAX)), meeting.second_waits);
    let begun = counted.clone();
    let first = Arc::new(Mutex::new(Some(first)));
    let finish_first = move || {
        let Some(first) = first.lock().take() else { return };
        // Nobody listens any more if it was done before.
        let _ = let_go.send(());
        first.join().unwrap();
    };
    let finish = finish_first.clone();
    let second_store = Hooked::new(world.ram.clone(), move |number| {
        if since(&counted, number) == Some(at) {
            finish();
        }
    });
    let second_volume = Volume::open_on(second_store.clone(), &world.volume.state).unwrap();
    begun.store(second_store.operations(), Ordering::SeqCst);
    second_volume.add_tag("second", id).unwrap();
    let is_second_reached = second_store.operations() > begun.load(Ordering::SeqCst) + at;
    finish_first();

    second_volume.add_tag("after", id).unwrap();
    let volume = world.again();
    assert_sound(&volume);
    let all = operations(&volume);
    let mut tags: Vec<_> = all.iter().flat_map(|found| &found.record.effects).filter_map(tag_name).collect();
    tags.sort_unstable();
    let met = format!("before requests {} and {}", meeting.first_waits, meeting.second_waits);
    assert_eq!(tags, ["after", "before", "first", "second"], "{met}");
    is_first_reached && is_second_reached
}

fn tag_name(effect: &OperationEffect) -> Option<&str> {
    match effect {
        OperationEffect::Ref(RefEffect { kind: RefKind::Tag, name, .. }) => Some(name),
        _ => None,
    }
}

#[test]
fn two_commands_are_recorded_once_wherever_they_meet() {
    let mut count = 0;
    for first_waits in 0.. {
        let reached = (0..)
            .take_while(|&second_waits| add_tags_that_meet(&Meeting { first_waits, second_waits }))
            .count();
        count += reached;
        if reached == 0 {
            break;
        }
    }
    assert!(count > 20, "{count}");
}

#[test]
fn who_remembers_an_old_head_leaves_no_record_that_nothing_names() {
    let world = World::new(PLAIN);
    let id = snapshot(&world.volume, &small(1), "one");
    world.again().add_tag("v1", id).unwrap();
    // This volume remembers its head as it was before the tag, whose record has the next number.
    snapshot(&world.volume, &small(2), "two");
    let check = world.again().verify_all_operations().unwrap();
    assert_eq!((check.problems.len(), check.unfinished.len()), (0, 0));
}

#[test]
fn a_chain_goes_on_when_its_worktree_is_removed_and_made_anew() {
    let world = World::new(PLAIN);
    let id = snapshot(&world.volume, &small(1), "one");
    world.volume.add_worktree("side", Some(id), "/somewhere").unwrap();
    world.volume.remove_worktree("side").unwrap();
    assert_eq!(world.volume.list_operations("side", 10).unwrap().operations.len(), 2);
    world.volume.add_worktree("side", None, "/elsewhere").unwrap();
    assert_eq!(world.volume.list_operations("side", 10).unwrap().operations.len(), 3);
    world.volume.rename_worktree("side", "other").unwrap();
    assert_eq!(world.volume.list_operations("other", 10).unwrap().operations.len(), 1);
    assert_sound(&world.volume);
    assert_clean(&world.volume);
}
