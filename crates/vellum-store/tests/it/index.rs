//! The index over many commits, many writers, and damage to its local copy.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vellum_store::{BlobStore, MeteredStore};
use vellum_types::{BlobId, BlobKind};

use crate::world::{World, noise};

const KIND: BlobKind = BlobKind::Node;

fn commit(store: &BlobStore, seed: u64) -> BlobId {
    let writer = store.create_writer();
    let id = writer.put_blob(KIND, &noise(seed, 300)).unwrap();
    writer.finish().unwrap();
    id
}

/// One commit of `count` blobs, which are numbers from `first` on.
fn commit_many(store: &BlobStore, first: u64, count: u64) -> Vec<BlobId> {
    let writer = store.create_writer();
    let numbers = first..first + count;
    let ids = numbers.map(|number| writer.put_blob(KIND, &number.to_le_bytes()).unwrap()).collect();
    writer.finish().unwrap();
    ids
}

/// Opens the blobs again after the only local run was zeroed from a place on, but for its last tenth.
fn reopen_zeroed(world: &World, start: usize) -> BlobStore {
    let file = fs::read_dir(world.local("a")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&file).unwrap();
    let end = bytes.len() * 9 / 10;
    bytes[start..end].fill(0);
    fs::write(&file, bytes).unwrap();
    world.open("a")
}

#[test]
fn many_small_commits_leave_few_runs_and_cost_few_requests() {
    let world = World::new();
    let objects = Arc::new(MeteredStore::new(world.objects()));
    let store = world.open_over(objects.clone(), "a");
    let ids: Vec<_> = (0..200).map(|seed| commit(&store, seed)).collect();
    let counts = objects.request_counts();
    assert_eq!((counts.puts, counts.barriers), (400, 200), "a pack and a run behind one barrier");
    assert_eq!(counts.bytes_in, 0, "what was written is not fetched again");
    assert!(counts.gets <= 16, "only merges look whether the store is published: {}", counts.gets);
    let runs = objects_in(&world, "index");
    assert!(runs <= 16, "{runs} runs");
    let fresh = Arc::new(MeteredStore::new(world.objects()));
    let reader = world.open_over(fresh.clone(), "b");
    assert!(ids.iter().all(|id| reader.contains(id)));
    let counts = fresh.request_counts();
    assert_eq!((counts.lists, counts.gets), (1, runs as u64), "opening reads the index and nothing else");
    let again = Arc::new(MeteredStore::new(world.objects()));
    world.open_over(again.clone(), "b");
    let counts = again.request_counts();
    assert_eq!((counts.lists, counts.gets), (1, 0), "opening again lists once");
}

fn objects_in(world: &World, folder: &str) -> usize {
    world.objects().list_keys(folder).unwrap().len()
}

#[test]
fn the_local_copy_may_be_damaged_in_any_way() {
    let world = World::new();
    let store = world.open("a");
    let ids: Vec<_> = (0..5).map(|seed| commit(&store, seed)).collect();
    drop(store);
    let files: Vec<_> = fs::read_dir(world.local("a")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 5);
    fs::write(&files[0], "").unwrap();
    fs::write(&files[1], "not an index at all").unwrap();
    let mut bytes = fs::read(&files[2]).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&files[2], bytes).unwrap();
    fs::remove_file(&files[3]).unwrap();
    fs::rename(&files[4], &files[3]).unwrap();
    let store = world.open("a");
    for (seed, id) in ids.iter().enumerate() {
        assert_eq!(store.read_blob(KIND, id).unwrap(), noise(seed as u64, 300));
    }
}

#[test]
fn damage_to_a_mapped_run_heals_when_a_blob_is_missed() {
    let world = World::new();
    let store = world.open("a");
    let ids = commit_many(&store, 0, 5000);
    drop(store);
    let filter_and_records = 192;
    let store = reopen_zeroed(&world, filter_and_records);
    assert!(!store.contains(&ids[7]));
    for (seed, id) in ids.iter().enumerate() {
        assert_eq!(store.read_blob(KIND, id).unwrap(), (seed as u64).to_le_bytes());
    }
}

#[test]
fn a_merge_does_not_spread_damage() {
    let world = World::new();
    let store = world.open("a");
    let ids = commit_many(&store, 0, 5000);
    drop(store);
    let store = reopen_zeroed(&world, 20_000);
    let mut all: Vec<_> = (10_000..10_015).map(|seed| commit(&store, seed)).collect();
    // Fifteen runs more of some size make the damaged one worth merging.
    for round in 0..16 {
        all.extend(commit_many(&store, 1 << 40 | round << 20, 2000));
    }
    let reader = world.open("b");
    assert!(all.iter().all(|id| reader.contains(id)));
    assert!(ids.iter().all(|id| reader.contains(id)));
}

#[test]
fn several_writers_and_readers_at_once() {
    let world = World::new();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3_u64)
            .map(|name| {
                let world = &world;
                scope.spawn(move || {
                    let store = world.open(&format!("writer-{name}"));
                    (0..60).map(|i| commit(&store, name << 32 | i)).collect::<Vec<_>>()
                })
            })
            .collect();
        let reader = scope.spawn(|| {
            let store = world.open("reader");
            let mut seen = 0;
            while !done.load(Ordering::Relaxed) {
                store.refresh_index().unwrap();
                let mut ids = Vec::new();
                store.for_each_entry(|id, _| ids.push(*id));
                for id in &ids {
                    store.read_blob(KIND, id).unwrap();
                }
                assert!(ids.len() >= seen, "blobs vanished: {} of {seen}", ids.len());
                ids.sort();
                ids.dedup();
                seen = ids.len();
            }
        });
        let ids: Vec<_> = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        let store = world.open("end");
        assert_eq!(ids.len(), 180);
        for id in ids {
            store.read_blob(KIND, &id).unwrap();
        }
    });
}
