//! Several worktrees, each open by itself, that commit at once.

use std::collections::BTreeSet;
use std::sync::Arc;

use vellum_store::LocalStore;
use vellum_types::SnapshotId;
use vellum_volume::history::{AncestorWalk, list_history};
use vellum_volume::{StateDir, Volume};

use crate::collecting::collect;
use crate::model::{Tree, small};
use crate::world::{PLAIN, SEALED, World, assert_clean, new_worktree, snapshot, temporary};

const ROUNDS: u64 = 6;

fn commit_rounds(volume: &Volume, number: u64) -> Vec<(SnapshotId, Tree)> {
    let trees =
        (0..ROUNDS).map(|round| small(round * if number.is_multiple_of(2) { 1 } else { 10 + number }));
    trees.map(|tree| (snapshot(volume, &tree, &format!("{number}")), tree)).collect()
}

fn assert_none_lost(volume: &Volume, made: &[(SnapshotId, Tree)]) {
    let listed: BTreeSet<_> =
        list_history(&volume.catalog).unwrap().into_iter().map(|entry| entry.id).collect();
    assert_eq!(listed, made.iter().map(|(id, _)| *id).collect());
    for (id, tree) in made {
        tree.assert_readable(volume, volume.catalog.fetch_record(id).unwrap().root);
    }
    assert_clean(volume);
}

#[test]
fn snapshots_of_many_worktrees_at_once_are_all_in_the_history() {
    for encrypted in [SEALED, PLAIN] {
        let world = World::new(encrypted);
        let volumes: Vec<_> = (0..4).map(|number| world.worktree(&format!("w{number}"))).collect();
        let made: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(&volumes)
                .map(|(n, volume)| scope.spawn(move || commit_rounds(volume, n)))
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_none_lost(&world.seen_in(world.ram.clone()), &made);
        for volume in &volumes {
            assert_eq!(
                AncestorWalk::from_heads(&volume.catalog, volume.read_head().unwrap()).unwrap().count()
                    as u64,
                ROUNDS
            );
        }
    }
}

#[test]
fn snapshots_of_one_worktree_at_once_without_its_lock_are_all_in_the_store() {
    let dir = temporary();
    let root = dir.path().join("worktree");
    std::fs::create_dir(&root).unwrap();
    let objects = Arc::new(LocalStore::create(dir.path().join("store")).unwrap());
    let state = StateDir::create(&root).unwrap();
    Volume::init_volume_on(objects.clone(), &state, &new_worktree("main", SEALED), || unreachable!())
        .unwrap();
    let made: Vec<_> = std::thread::scope(|scope| {
        let commit = |number| {
            let volume = Volume::open_on(objects.clone(), &StateDir::find_enclosing(&root).unwrap()).unwrap();
            commit_rounds(&volume, number)
        };
        let threads: Vec<_> = (0..3).map(|number| scope.spawn(move || commit(number))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let volume = Volume::open_on(objects, &state).unwrap();
    assert_none_lost(&volume, &made);
    assert!(made.iter().any(|(id, _)| Some(*id) == volume.read_head().unwrap()));
}

#[test]
fn writers_and_a_collector_at_once_lose_nothing_that_is_alive() {
    let world = World::new(SEALED);
    let volumes: Vec<_> = (0..3).map(|number| world.worktree(&format!("w{number}"))).collect();
    let collector = world.seen_in(world.ram.clone());
    let made: Vec<_> = std::thread::scope(|scope| {
        let write = |(number, volume)| {
            let mut kept = Vec::new();
            for (at, (id, tree)) in commit_rounds(volume, number).into_iter().enumerate() {
                // Every other one goes, except for the head.
                match at.is_multiple_of(2) && at as u64 + 1 < ROUNDS {
                    true => volume.forget_snapshot(&id).unwrap(),
                    false => kept.push((id, tree)),
                }
            }
            kept
        };
        let threads: Vec<_> = (0..).zip(&volumes).map(|pair| scope.spawn(move || write(pair))).collect();
        for _ in 0..20 {
            collect(&collector).unwrap();
        }
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_none_lost(&world.seen_in(world.ram.clone()), &made);
    collect(&collector).unwrap();
    assert_none_lost(&world.seen_in(world.ram.clone()), &made);
}
