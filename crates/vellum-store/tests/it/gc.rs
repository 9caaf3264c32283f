//! Condemning, repacking, replacing, deleting.

use std::collections::HashSet;

use vellum_store::BlobStore;
use vellum_types::{BlobId, BlobKind, PackId};

use crate::world::{World, noise};

const KIND: BlobKind = BlobKind::Chunk;

fn commit(store: &BlobStore, seeds: std::ops::Range<u64>) -> (PackId, Vec<BlobId>) {
    let writer = store.create_writer();
    let ids: Vec<_> = seeds.map(|seed| writer.put_blob(KIND, &noise(seed, 1000)).unwrap()).collect();
    writer.finish().unwrap();
    (store.locate_blob(&ids[0]).unwrap().pack, ids)
}

#[test]
fn a_condemned_pack_is_read_and_not_relied_on() {
    let world = World::new();
    let store = world.open("a");
    let other = world.open("b");
    let (pack, ids) = commit(&store, 0..3);
    store.condemn_packs(&[pack]).unwrap();
    other.refresh_index().unwrap();
    for store in [&store, &other] {
        assert!(!store.contains(&ids[0]));
        assert_eq!(store.read_blob(KIND, &ids[0]).unwrap(), noise(0, 1000));
        assert!(store.condemned_packs().contains_key(&pack));
    }
    let (again, _) = commit(&other, 0..1);
    assert_ne!(again, pack, "a writer that knows stores it again");
    assert!(other.contains(&ids[0]) && !other.contains(&ids[1]));
}

#[test]
fn a_collection_keeps_what_lives() {
    let world = World::new();
    let store = world.open("a");
    let (dead, dead_ids) = commit(&store, 0..5);
    let (half, half_ids) = commit(&store, 10..15);
    let (kept, kept_ids) = commit(&store, 20..25);
    let live: HashSet<_> = half_ids[..2].iter().copied().collect();
    let repacked = store.repack_blobs(&[(half, live.clone())]).unwrap();
    assert_eq!((repacked.blobs_new, repacked.packs), (2, 1));
    store.condemn_packs(&[dead, half]).unwrap();
    assert!(live.iter().all(|id| store.contains(id)), "the copies count");
    store.drop_packs_from_index(&HashSet::from([dead, half])).unwrap();
    for pack in [dead, half] {
        store.delete_pack(&pack).unwrap();
    }
    for store in [store, world.open("b")] {
        for id in live.iter().chain(&kept_ids) {
            assert!(store.contains(id));
            store.read_blob(KIND, id).unwrap();
        }
        for id in dead_ids.iter().chain(&half_ids[2..]) {
            assert!(store.locate_blob(id).is_none());
        }
        assert_eq!(store.locate_blob(&kept_ids[0]).unwrap().pack, kept);
        assert_eq!(store.list_packs().unwrap().len(), 2);
    }
}

#[test]
fn repacked_bytes_are_the_same_bytes() {
    let world = World::new();
    let store = world.open("a");
    let (pack, ids) = commit(&store, 0..3);
    let before = store.read_pack_entries(&pack).unwrap();
    store.repack_blobs(&[(pack, ids.iter().copied().collect())]).unwrap();
    let other = store.list_packs().unwrap().into_iter().find(|info| info.id != pack).unwrap();
    let after = store.read_pack_entries(&other.id).unwrap();
    assert_eq!(before, after);
    let objects = world.objects();
    let bytes = |pack: &PackId| objects.get_object(&vellum_store::pack::pack_key(pack), u64::MAX).unwrap();
    let end = (before[2].offset + before[2].len) as usize;
    assert_eq!(bytes(&pack)[..end], bytes(&other.id)[..end]);
}

#[test]
fn a_client_that_slept_brings_nothing_dead_back() {
    let world = World::new();
    let sleeper = world.open("sleeper");
    let store = world.open("a");
    let (dead, ids) = commit(&store, 0..5);
    // The sleeper knows the pack, and enough runs to merge at its next commit.
    for seed in 100..115 {
        commit(&store, seed..seed + 1);
    }
    sleeper.refresh_index().unwrap();
    store.condemn_packs(&[dead]).unwrap();
    store.drop_packs_from_index(&HashSet::from([dead])).unwrap();
    store.delete_pack(&dead).unwrap();
    for seed in 200..240 {
        commit(&sleeper, seed..seed + 1);
    }
    for store in [sleeper, world.open("b")] {
        assert!(ids.iter().all(|id| !store.contains(id)));
        let (_, again) = commit(&store, 0..1);
        assert_eq!(store.read_blob(KIND, &again[0]).unwrap(), noise(0, 1000));
    }
}

#[test]
fn a_hint_that_a_repack_made_stale_is_renewed() {
    let world = World::new();
    let reader = world.open("reader");
    let store = world.open("a");
    let (pack, ids) = commit(&store, 0..3);
    reader.refresh_index().unwrap();
    store.repack_blobs(&[(pack, ids.iter().copied().collect())]).unwrap();
    store.drop_packs_from_index(&HashSet::from([pack])).unwrap();
    store.delete_pack(&pack).unwrap();
    let wanted: Vec<_> = ids.iter().map(|id| (KIND, *id)).collect();
    let fetched = reader.fetch_blobs(&wanted).unwrap();
    assert_eq!(fetched.open_blob(1).unwrap(), noise(1, 1000));
    assert_eq!(reader.read_blob(KIND, &ids[2]).unwrap(), noise(2, 1000));
}
