//! Writers that read the index when they need it, and not before.

use std::sync::Arc;

use vellum_store::{BlobStore, MeteredStore};
use vellum_types::{BlobId, BlobKind};

use crate::world::{World, noise};

const KIND: BlobKind = BlobKind::Chunk;

struct Scene {
    metered: Arc<MeteredStore>,
    store: BlobStore,
    other: BlobStore,
}

/// A store that two machines have open, with a blob that both know: that of seed 0.
fn scene(world: &World) -> Scene {
    let other = world.open("other");
    store_eagerly(&other, 0, 1000);
    let metered = Arc::new(MeteredStore::new(world.objects()));
    let store = world.open_over(metered.clone(), "own");
    Scene { metered, store, other }
}

fn store_eagerly(store: &BlobStore, seed: u64, len: usize) -> BlobId {
    let writer = store.create_writer();
    let id = writer.put_blob(KIND, &noise(seed, len)).unwrap();
    writer.finish().unwrap();
    id
}

/// What a lazy writer did with content of these seeds and lengths: listings, new blobs, blobs that were there.
fn store_lazily(world: &World, scene: &Scene, content: &[(u64, usize)]) -> (u64, u64, u64) {
    let before = scene.metered.request_counts().lists;
    let writer = scene.store.create_lazy_writer();
    for (seed, len) in content {
        writer.put_blob(KIND, &noise(*seed, *len)).unwrap();
    }
    let stats = writer.finish().unwrap();
    for (seed, len) in content {
        let id = world.keys.compute_blob_id(KIND, &noise(*seed, *len));
        assert_eq!(scene.store.read_blob(KIND, &id).unwrap(), noise(*seed, *len));
    }
    (scene.metered.request_counts().lists - before, stats.blobs_new, stats.blobs_duplicate)
}

#[test]
fn who_stores_little_that_is_new_asks_for_nothing() {
    let world = World::new();
    let scene = scene(&world);
    assert_eq!(store_lazily(&world, &scene, &[(1, 1000), (2, 1000)]), (0, 2, 0));
}

#[test]
fn who_would_rely_on_a_copy_reads_the_index_once() {
    let world = World::new();
    let scene = scene(&world);
    assert_eq!(store_lazily(&world, &scene, &[(1, 1000), (0, 1000), (0, 1000), (2, 1000)]), (1, 2, 2));
}

#[test]
fn little_that_another_has_stored_is_stored_twice_and_much_is_not() {
    let world = World::new();
    let scene = scene(&world);
    store_eagerly(&scene.other, 1, 1000);
    assert_eq!(store_lazily(&world, &scene, &[(1, 1000)]), (0, 1, 0));
    store_eagerly(&scene.other, 2, 300_000);
    assert_eq!(store_lazily(&world, &scene, &[(2, 300_000)]), (1, 0, 1));
    // Of many that are small, the first ones are stored before that is known.
    for seed in 10..20 {
        store_eagerly(&scene.other, seed, 50_000);
    }
    let many: Vec<_> = (10..20).map(|seed| (seed, 50_000)).collect();
    assert_eq!(store_lazily(&world, &scene, &many), (1, 5, 5));
}

#[test]
fn what_was_condemned_since_the_index_was_read_is_not_relied_on() {
    let world = World::new();
    let scene = scene(&world);
    let id = world.keys.compute_blob_id(KIND, &noise(0, 1000));
    let pack = scene.store.locate_blob(&id).unwrap().pack;
    scene.other.condemn_packs(&[pack]).unwrap();
    assert!(scene.store.contains(&id), "it was not heard of here");
    assert_eq!(store_lazily(&world, &scene, &[(0, 1000)]), (1, 1, 0));
    assert_ne!(scene.store.locate_blob(&id).unwrap().pack, pack);
}
