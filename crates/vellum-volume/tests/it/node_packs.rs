//! Packs of nodes: many small ones are joined, and each is read once.

use std::collections::BTreeMap;
use std::sync::Arc;

use vellum_host::ProgressMeter;
use vellum_map::MapRoot;
use vellum_store::{BlockStore, ObjectKey};
use vellum_testkit::{FaultTrigger, FaultyStore, StoreFault};
use vellum_types::{BlobKind, Ino};
use vellum_volume::gc::{self, PackAction, count_node_packs};
use vellum_volume::refs::UnsnapshottedTree;
use vellum_volume::{SnapshotStatistics, Volume};

use crate::collecting::collect;
use crate::model::{Tree, noise, small};
use crate::ram::Ram;
use crate::world::{SEALED, World, assert_clean, bury_sessions, snapshot, verified};

const FILES: u64 = 10_000;
const PUBLICATIONS: u64 = 110;

/// A mount that published many times, a change of another place each time, and what it stands on.
struct Published {
    world: World,
    root: MapRoot,
}

impl Published {
    fn new() -> Self {
        let world = World::new(SEALED);
        let mut tree = Tree::default();
        for number in 0..FILES {
            tree.file(Ino::ROOT, &format!("file-{number:05}"), noise(number, 90));
        }
        snapshot(&world.volume, &tree, "first");
        let mut root = world.volume.empty_root();
        for number in 0..PUBLICATIONS {
            tree.node(Ino(Ino::ROOT.0 + 1 + number * (FILES / PUBLICATIONS))).mtime += 1;
            root = publish(&world.volume, &tree);
        }
        Self { world, root }
    }

    fn assert_readable(&self, volume: &Volume) {
        let tree = volume.open_tree(self.root);
        assert_eq!(tree.list_entries(Ino::ROOT).unwrap().len() as u64, FILES);
        for ino in (Ino::ROOT.0 + 1..=FILES).step_by(20) {
            assert!(tree.inode_attr(Ino(ino)).unwrap().is_some());
        }
    }
}

fn publish(volume: &Volume, tree: &Tree) -> MapRoot {
    let mut session = volume.begin_write_session().unwrap();
    let root = tree.store(volume, &session).unwrap();
    session.flush_blobs().unwrap();
    let live = UnsnapshottedTree { root, counted: SnapshotStatistics::default() };
    volume.update_worktree_ref(&volume.worktree.worktree, |head| head.live = Some(live)).unwrap();
    session.end_session().unwrap();
    root
}

fn count(volume: &Volume, root: MapRoot) -> gc::NodePackCount {
    count_node_packs(volume, root, &ProgressMeter::default()).unwrap()
}

#[test]
fn small_packs_of_nodes_are_joined_if_a_tree_needs_many() {
    let published = Published::new();
    let volume = &published.world.volume;
    let before = count(volume, published.root);
    assert!(before.small > 64 && before.packs == before.small, "{before:?}");
    let plan = gc::plan_collection(volume, &[], &ProgressMeter::default()).unwrap();
    let joined = plan.packs.iter().filter(|pack| pack.action == PackAction::Join).count() as u64;
    assert!(joined > 60, "{joined} packs");
    let done = collect(volume).unwrap();
    assert_eq!((done.joined, done.writers.len()), (joined, 0));
    let after = count(volume, published.root);
    assert!(after.packs <= 2, "{after:?}");
    published.assert_readable(volume);
    assert_clean(&published.world.seen_in(published.world.ram.clone()));
    // A few small ones stay as they are.
    assert_eq!(gc::plan_collection(volume, &[], &ProgressMeter::default()).unwrap().packs, []);
}

#[test]
fn few_small_packs_of_nodes_are_left_alone() {
    let world = World::new(SEALED);
    for seed in 0..80 {
        // None of these trees needs more than its own pack.
        snapshot(&world.volume, &small(1000 + seed), "one of many");
    }
    assert_eq!(gc::plan_collection(&world.volume, &[], &ProgressMeter::default()).unwrap().packs, []);
}

#[test]
fn joining_killed_at_any_step_harms_no_reader_and_is_finished_by_the_next_collection() {
    let published = Published::new();
    let world = &published.world;
    let image = world.ram.image();
    let run = |at: Option<u64>, fault: StoreFault| {
        let ram = Ram::of(image.clone());
        // It has read the index, and does not know of the collection.
        let reader = world.seen_in(ram.clone());
        let faulty = Arc::new(FaultyStore::new(ram.clone()));
        let volume = world.seen_in(faulty.clone());
        let start = faulty.operation_count();
        if let Some(at) = at {
            faulty.set_script([
                (FaultTrigger::Nth(start + at), fault),
                (FaultTrigger::From(start + at + 1), StoreFault::Before),
            ]);
        }
        let done = collect(&volume);
        let operations = faulty.operation_count() - start;
        published.assert_readable(&reader);
        bury_sessions(&ram, &world.volume);
        let fresh = world.seen_in(ram.clone());
        published.assert_readable(&fresh);
        assert_clean(&fresh);
        collect(&world.seen_in(ram.clone())).unwrap();
        let last = world.seen_in(ram.clone());
        assert!(count(&last, published.root).packs <= 2);
        assert_eq!(gc::plan_collection(&last, &[], &ProgressMeter::default()).unwrap().packs, []);
        assert_eq!(ram.keys("sessions"), []);
        (done.map(|done| done.joined).unwrap_or_default(), operations)
    };
    let (joined, operations) = run(None, StoreFault::Before);
    assert!(joined > 60);
    // All steps from the copies to the first deletions, and some of the reads and deletions around them.
    let deletions = operations.saturating_sub(joined);
    let close = deletions.saturating_sub(12)..deletions + 4;
    for at in (0..operations).filter(|at| close.contains(at) || at % 61 == 0) {
        run(Some(at), StoreFault::Before);
        run(Some(at), StoreFault::After);
    }
}

/// How often each object was read, and how many requests that took.
fn reads_by_object(ram: &Ram) -> BTreeMap<ObjectKey, u64> {
    let mut reads = BTreeMap::new();
    for key in ram.take_reads() {
        *reads.entry(key).or_default() += 1;
    }
    reads
}

#[test]
fn a_plan_reads_each_pack_of_nodes_in_two_requests_at_most() {
    let published = Published::new();
    let world = &published.world;
    // From the state of many packs, and of one.
    for _ in 0..2 {
        let volume = world.seen_in(Arc::new(BlockStore::new(world.ram.clone(), None)));
        world.ram.take_reads();
        gc::plan_collection(&volume, &[], &ProgressMeter::default()).unwrap();
        let mut packs = 0;
        for (key, reads) in reads_by_object(&world.ram) {
            let is_pack = key.as_str().starts_with("packs/");
            packs += u64::from(is_pack);
            assert!(!is_pack || reads <= 2, "{key}: {reads}");
        }
        assert!(packs > 0);
        collect(&world.volume).unwrap();
    }
}

#[test]
fn a_verification_reads_each_record_and_each_pack_once_and_nodes_once_more() {
    let published = Published::new();
    let world = &published.world;
    collect(&world.volume).unwrap();
    let volume = world.seen_in(Arc::new(BlockStore::new(world.ram.clone(), None)));
    let kinds: BTreeMap<String, BlobKind> = {
        let mut kinds = BTreeMap::new();
        volume.blobs.for_each_entry(|_, place| {
            kinds.insert(place.pack.to_string(), place.kind);
        });
        kinds
    };
    world.ram.take_reads();
    assert_eq!(verified(&volume).findings, []);
    for (key, reads) in reads_by_object(&world.ram) {
        let most = match kinds.get(key.name()) {
            Some(BlobKind::Node) => 3,
            Some(BlobKind::Chunk) => 1,
            None if key.as_str().starts_with("snapshots/") => 1,
            None => continue,
        };
        assert!(reads <= most, "{key}: {reads}");
    }
}

#[test]
fn a_collection_reads_the_records_of_forgotten_snapshots_once() {
    let world = World::new(SEALED);
    let gone: Vec<_> = (0..5).map(|seed| snapshot(&world.volume, &small(seed), "gone")).collect();
    snapshot(&world.volume, &small(9), "stays");
    for id in &gone {
        world.volume.forget_snapshot(id).unwrap();
    }
    let volume = world.seen_in(world.ram.clone());
    world.ram.take_reads();
    assert!(collect(&volume).unwrap().deleted > 0);
    let reads = reads_by_object(&world.ram);
    let forgotten: Vec<_> = reads.iter().filter(|(key, _)| key.as_str().starts_with("forgotten/")).collect();
    assert_eq!(forgotten.len(), gone.len());
    assert!(forgotten.iter().all(|(_, reads)| **reads == 1), "{forgotten:?}");
    // Whoever has seen them need not read them at all.
    world.ram.take_reads();
    collect(&world.seen_in_state(&volume)).unwrap();
    assert!(!reads_by_object(&world.ram).keys().any(|key| key.as_str().starts_with("forgotten/")));
}
