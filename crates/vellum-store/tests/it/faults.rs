//! The store fails or the machine dies at each operation in turn: what was acknowledged is there afterwards, and
//! what the index says is there can be read.

use std::sync::Arc;

use vellum_store::{
    BlobError, BlobOptions, BlobStore, BlockStore, LocalStore, ObjectInfo, ObjectKey, ObjectStore, PackCache,
    StoreError, WriteStats,
};
use vellum_testkit::{FaultTrigger, FaultyStore, StoreFault, StoreOperation};
use vellum_types::{BlobId, BlobKind, ErrorKind};

use crate::world::{World, noise};

const KINDS: [BlobKind; 2] = [BlobKind::Chunk, BlobKind::Node];

fn commit(store: &BlobStore, seeds: std::ops::Range<u64>) -> Result<Vec<(BlobKind, BlobId, u64)>, BlobError> {
    let writer = store.create_writer();
    let mut ids = Vec::new();
    for seed in seeds {
        let kind = KINDS[seed as usize % 2];
        ids.push((kind, writer.put_blob(kind, &noise(seed, 20_000))?, seed));
    }
    writer.finish()?;
    Ok(ids)
}

fn try_open(world: &World, objects: &Arc<FaultyStore>, local: &str) -> Result<BlobStore, BlobError> {
    let options = BlobOptions { pack_size: 64 << 10, ..BlobOptions::default() };
    BlobStore::open(objects.clone(), world.keys.clone(), &world.local(local), options)
}

/// Twenty commits, so that runs are merged on the way. Returns what was acknowledged.
fn scenario(world: &World, objects: &Arc<FaultyStore>, commits: u64) -> Vec<(BlobKind, BlobId, u64)> {
    let mut acknowledged = Vec::new();
    let Ok(mut store) = try_open(world, objects, "writer") else { return acknowledged };
    for number in 0..commits {
        // Some share contents with the one before; every fifth fills several packs.
        let width = if number % 5 == 0 { 12 } else { 2 };
        match commit(&store, number..number + width) {
            Ok(ids) => acknowledged.extend(ids),
            Err(_) => match try_open(world, objects, "writer") {
                Ok(again) => store = again,
                Err(_) => break,
            },
        }
    }
    acknowledged
}

fn check(world: &World, acknowledged: &[(BlobKind, BlobId, u64)], story: &str) {
    // The writer's own local copy, and none.
    for local in ["writer", "fresh"] {
        let store = world.open(local);
        for (kind, id, seed) in acknowledged {
            assert!(store.contains(id), "{story}: {kind} {id} is unknown");
            assert_eq!(store.read_blob(*kind, id).unwrap(), noise(*seed, 20_000), "{story}");
        }
        let mut known = Vec::new();
        store.for_each_entry(|id, place| known.push((place.kind, *id)));
        for (kind, id) in known {
            store.read_blob(kind, &id).unwrap_or_else(|error| panic!("{story}: {error}"));
        }
        // Life goes on.
        commit(&store, 500..503).unwrap();
    }
}

fn at_each_operation(fault: StoreFault, when: impl Fn(u64) -> FaultTrigger, commits: u64) {
    let total = {
        let world = World::new();
        let objects = Arc::new(FaultyStore::new(world.objects()));
        assert!(!scenario(&world, &objects, commits).is_empty());
        objects.operation_count()
    };
    for number in 0..total {
        let world = World::new();
        let objects = Arc::new(FaultyStore::new(world.objects()));
        objects.set_script([(when(number), fault)]);
        let acknowledged = scenario(&world, &objects, commits);
        check(&world, &acknowledged, &format!("{fault:?} at operation {number}"));
    }
}

#[test]
fn death_before_each_operation() {
    at_each_operation(StoreFault::Before, FaultTrigger::From, 6);
}

#[test]
fn each_operation_fails_once() {
    at_each_operation(StoreFault::Before, FaultTrigger::Nth, 6);
}

#[test]
fn each_answer_is_lost_once() {
    at_each_operation(StoreFault::After, FaultTrigger::Nth, 6);
}

#[test]
fn death_around_each_operation_of_a_merge() {
    let prepare = || {
        let world = World::new();
        let objects = Arc::new(FaultyStore::new(world.objects()));
        let store = try_open(&world, &objects, "writer").unwrap();
        let acknowledged: Vec<_> = (0..16).flat_map(|seed| commit(&store, seed..seed + 1).unwrap()).collect();
        (world, objects, store, acknowledged)
    };
    let (_world, objects, store, _) = prepare();
    let before = objects.operation_count();
    commit(&store, 16..17).unwrap();
    let steps = objects.operation_count() - before;
    assert!(steps > 8, "a merge deletes what it supersedes: {steps} operations");
    for step in 0..steps {
        for fault in [StoreFault::Before, StoreFault::After] {
            let (world, objects, store, mut acknowledged) = prepare();
            objects.set_script([(FaultTrigger::From(objects.operation_count() + step), fault)]);
            acknowledged.extend(commit(&store, 16..17).unwrap_or_default());
            check(&world, &acknowledged, &format!("{fault:?} from step {step} of a merge"));
        }
    }
}

#[test]
fn no_space_stops_the_writer_and_loses_nothing() {
    for space in [0, 10_000, 30_000, 100_000, 200_000, 203_000] {
        let world = World::new();
        let objects = Arc::new(FaultyStore::new(world.objects()));
        let store = try_open(&world, &objects, "writer").unwrap();
        let mut acknowledged = commit(&store, 0..3).unwrap();
        objects.set_space_limit(Some(space));
        let error = commit(&store, 3..20).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        objects.set_space_limit(None);
        acknowledged.extend(commit(&store, 3..20).unwrap());
        check(&world, &acknowledged, &format!("{space} bytes of space"));
    }
}

#[test]
fn a_stopped_writer_acknowledges_nothing() {
    let world = World::new();
    let objects = Arc::new(FaultyStore::new(world.objects()));
    let store = try_open(&world, &objects, "writer").unwrap();
    objects.set_script([(FaultTrigger::Once(StoreOperation::Put, "packs/".into()), StoreFault::Before)]);
    let writer = store.create_writer();
    let put = |seed| writer.put_blob(BlobKind::Chunk, &noise(seed, 20_000)).map(|_| ());
    // The failure is in the background: it is reported by some later call, and by all after it.
    let first = (0..100).find(|seed| put(*seed).is_err());
    assert!(first.is_some());
    assert!(matches!(put(200), Err(BlobError::Stopped(_))));
    assert!(matches!(writer.finish(), Err::<WriteStats, _>(BlobError::Stopped(_))));
}

#[test]
fn a_stale_listing_hides_nothing_that_was_known() {
    let world = World::new();
    let objects = Arc::new(FaultyStore::new(world.objects()));
    let store = try_open(&world, &objects, "writer").unwrap();
    objects.set_script([(FaultTrigger::Once(StoreOperation::Swap, "none".into()), StoreFault::Stale)]);
    let ids = commit(&store, 0..2).unwrap();
    store.refresh_index().unwrap();
    assert!(ids.iter().all(|(_, id, _)| store.contains(id)));
}

#[test]
fn wrong_bytes_and_short_bodies_are_errors_or_are_read_again() {
    let world = World::new();
    let objects = Arc::new(FaultyStore::new(world.objects()));
    let store = try_open(&world, &objects, "writer").unwrap();
    let [(kind, id, seed)] = commit(&store, 0..1).unwrap()[..] else { panic!("one blob") };
    for fault in [StoreFault::Flip(77), StoreFault::Torn(10), StoreFault::Torn(0)] {
        objects.set_script([(FaultTrigger::Once(StoreOperation::GetRange, "packs/".into()), fault)]);
        assert_eq!(store.read_blob(kind, &id).unwrap(), noise(seed, 20_000), "once: {fault:?}");
        objects.set_script([(FaultTrigger::Each(StoreOperation::GetRange, "packs/".into()), fault)]);
        let error = store.read_blob(kind, &id).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains(&id.to_string()), "{error}");
    }
}

#[test]
fn what_arrived_garbled_and_was_kept_is_fetched_again() {
    let world = World::new();
    let objects = Arc::new(FaultyStore::new(world.objects()));
    let [(kind, id, seed)] = commit(&try_open(&world, &objects, "writer").unwrap(), 0..1).unwrap()[..] else {
        panic!("one blob")
    };
    for fault in [StoreFault::Flip(77_777), StoreFault::Torn(1000)] {
        let cache = world.local("cache");
        let open = |local: &str| {
            let blocks = Arc::new(BlockStore::new(objects.clone(), Some(PackCache::new(&cache))));
            BlobStore::open(blocks, world.keys.clone(), &world.local(local), BlobOptions::default()).unwrap()
        };
        let store = open("first");
        objects.set_script([(FaultTrigger::Once(StoreOperation::GetRange, "packs/".into()), fault)]);
        assert_eq!(store.read_blob(kind, &id).unwrap(), noise(seed, 20_000), "{fault:?}");
        // What is kept now is right, also for another process.
        objects
            .set_script([(FaultTrigger::Each(StoreOperation::GetRange, String::new()), StoreFault::Before)]);
        assert_eq!(open("second").read_blob(kind, &id).unwrap(), noise(seed, 20_000), "{fault:?}");
        std::fs::remove_dir_all(&cache).unwrap();
    }
}

#[test]
fn one_garbled_answer_damages_no_index_object() {
    let world = World::new();
    let objects = Arc::new(FaultyStore::new(world.objects()));
    let ids = commit(&try_open(&world, &objects, "writer").unwrap(), 0..1).unwrap();
    for fault in [StoreFault::Flip(77), StoreFault::Torn(20)] {
        objects.set_script([(FaultTrigger::Once(StoreOperation::Get, "index/".into()), fault)]);
        let store = try_open(&world, &objects, &format!("{fault:?}")).unwrap();
        assert!(ids.iter().all(|(_, id, _)| store.contains(id)), "{fault:?}");
        assert!(store.index_problems().is_empty(), "{fault:?}");
    }
}

#[test]
fn a_commit_without_space_leaves_no_pack_that_nothing_names() {
    for space in [30_000, 45_000, 200_000, 245_000] {
        let world = World::new();
        let objects = Arc::new(FaultyStore::new(world.objects()));
        let store = try_open(&world, &objects, "writer").unwrap();
        objects.set_space_limit(Some(space));
        let error = commit(&store, 0..14).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        let left = world.objects().list_keys("packs").unwrap();
        assert!(left.is_empty(), "{space} bytes: {left:?}");
    }
}

#[test]
fn a_failing_disk_is_reported_as_such() {
    let world = World::new();
    let objects = Arc::new(FaultyStore::new(Arc::new(LocalStore::create(world.local("store")).unwrap())));
    let store = try_open(&world, &objects, "writer").unwrap();
    let ids = commit(&store, 0..1).unwrap();
    objects.set_script([(FaultTrigger::Each(StoreOperation::GetRange, String::new()), StoreFault::Before)]);
    let error = store.read_blob(ids[0].0, &ids[0].1).unwrap_err();
    assert!(matches!(error, BlobError::Store(_)), "{error}");
}

/// A store in which a pack stands already when it is put: what came over twice, or something else.
struct OccupiedStore {
    inner: Arc<dyn ObjectStore>,
    /// Makes what stands there of what is put.
    damage: Damage,
}

type Damage = fn(&mut Vec<u8>);

impl ObjectStore for OccupiedStore {
    fn describe_location(&self) -> String {
        self.inner.describe_location()
    }
    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.get_object(key, max)
    }
    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.get_range(key, offset, len)
    }
    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        self.inner.object_size(key)
    }
    fn put_object(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        if key.as_str().starts_with("packs/") {
            let mut there = bytes.to_vec();
            (self.damage)(&mut there);
            self.inner.put_object(key, &there)?;
        }
        self.inner.put_object(key, bytes)
    }
    fn swap_ref(&self, key: &ObjectKey, old: Option<&[u8]>, new: Option<&[u8]>) -> Result<(), StoreError> {
        self.inner.swap_ref(key, old, new)
    }
    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        self.inner.list_objects(folder)
    }
    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.inner.delete_object(key)
    }
}

#[test]
fn a_pack_that_is_there_already_is_this_one_or_damaged() {
    let cases: [(&str, Damage); 3] = [
        ("equal", |_| {}),
        ("another byte", |bytes| *bytes.last_mut().unwrap() ^= 1),
        ("longer", |bytes| bytes.push(0)),
    ];
    for (story, damage) in cases {
        let is_equal = story == "equal";
        let world = World::new();
        let objects = Arc::new(OccupiedStore { inner: world.objects(), damage });
        let store =
            BlobStore::open(objects, world.keys.clone(), &world.local("writer"), BlobOptions::default())
                .unwrap();
        match commit(&store, 0..4) {
            Ok(ids) => {
                assert!(is_equal, "{story}");
                check(&world, &ids, story);
            }
            Err(error) => {
                assert!(!is_equal, "{story}: {error}");
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{story}: {error}");
                assert!(error.to_string().contains("is damaged"), "{story}: {error}");
            }
        }
    }
}
