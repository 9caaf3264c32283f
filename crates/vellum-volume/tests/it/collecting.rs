//! Garbage collection: what is alive stays, what is dead goes, and a kill after any operation does no harm.

use std::sync::Arc;

use vellum_host::ProgressMeter;
use vellum_store::{ObjectKey, ObjectStore};
use vellum_testkit::{FaultTrigger, FaultyStore, StoreFault, StoreOperation};
use vellum_types::{BlobKind, ErrorKind, Ino, SnapshotId};
use vellum_volume::gc::{self, CollectionReport, PackAction};
use vellum_volume::refs::UnsnapshottedTree;
use vellum_volume::session::LEASE;
use vellum_volume::{Result, SnapshotStatistics, Volume, VolumeError};

use crate::model::{Tree, noise, small};
use crate::ram::Ram;
use crate::world::{
    PLAIN, SEALED, World, assert_clean, bury_sessions, change_session, record, refused, snapshot, verified,
};

pub fn collect(volume: &Volume) -> Result<CollectionReport> {
    gc::run_collection(volume, &gc::CollectionRequest::default(), &ProgressMeter::default())
}

/// A volume with wholly dead packs, one that is mostly dead, an abandoned one, and two living snapshots.
pub struct Littered {
    pub world: World,
    pub alive: Vec<(SnapshotId, Tree)>,
}

impl Littered {
    pub fn new(encrypted: bool) -> Self {
        let world = World::new(encrypted);
        let volume = &world.volume;
        let mut tree = small(1);
        for number in 0..6 {
            tree.file(Ino::ROOT, &format!("old-{number}"), noise(100 + number, 2000));
        }
        let old = snapshot(volume, &tree, "old");
        for number in 0..6 {
            tree.unlink(Ino::ROOT, format!("old-{number}").as_bytes());
        }
        let keeps = snapshot(volume, &tree, "keeps a little of the old");
        let wholly = snapshot(volume, &small(2), "goes wholly");
        let head = snapshot(volume, &small(3), "head");
        volume.forget_snapshot(&old).unwrap();
        volume.forget_snapshot(&wholly).unwrap();
        let littered = Self { alive: vec![(keeps, tree), (head, small(3))], world };
        littered.abandon_a_pack();
        littered
    }

    /// A writer is killed between its packs and its index object.
    fn abandon_a_pack(&self) {
        let faulty = Arc::new(FaultyStore::new(self.world.ram.clone()));
        let volume = self.world.seen_in(faulty.clone());
        let mut session = volume.begin_write_session().unwrap();
        session.put_blob(BlobKind::Chunk, &noise(50, 3000)).unwrap();
        faulty.set_script([(FaultTrigger::Each(StoreOperation::Put, "index/".into()), StoreFault::Before)]);
        session.flush_blobs().unwrap_err();
    }

    pub fn assert_alive(&self, volume: &Volume) {
        for (id, tree) in &self.alive {
            let record = volume.catalog.fetch_record(id).unwrap();
            tree.assert_readable(volume, record.root);
        }
        assert_clean(volume);
    }

    /// A later collection finishes what is left, and nothing dead stays.
    pub fn assert_finished(&self, ram: &Arc<Ram>) {
        let volume = self.world.seen_in(ram.clone());
        collect(&volume).unwrap();
        let fresh = self.world.seen_in(ram.clone());
        let plan = gc::plan_collection(&fresh, &[], &ProgressMeter::default()).unwrap();
        assert_eq!(plan.packs, []);
        self.assert_alive(&fresh);
        assert_eq!(ram.keys("sessions"), []);
    }
}

#[test]
fn what_is_alive_stays_and_what_is_dead_goes() {
    for encrypted in [SEALED, PLAIN] {
        let littered = Littered::new(encrypted);
        let volume = &littered.world.volume;
        let before = littered.world.ram.image();
        let plan = gc::plan_collection(volume, &[], &ProgressMeter::default()).unwrap();
        assert_eq!(littered.world.ram.image(), before, "a plan changes nothing");
        let count = |action| plan.packs.iter().filter(|pack| pack.action == action).count();
        assert_eq!((count(PackAction::Repack), count(PackAction::Abandoned)), (1, 1), "{plan:#?}");
        assert!(count(PackAction::Delete) >= 2, "{plan:#?}");
        let done = collect(volume).unwrap();
        assert_eq!(done.plan, plan);
        assert_eq!((done.deleted, done.repacked, done.writers.len()), (plan.packs.len() as u64, 1, 0));
        assert_eq!(done.freed, plan.freed_bytes());
        littered.assert_alive(volume);
        littered.assert_alive(&littered.world.seen_in(littered.world.ram.clone()));
        littered.assert_finished(&littered.world.ram);
        assert_eq!(volume.blobs.list_packs().unwrap().len(), 4, "nodes and chunks of two snapshots");
    }
}

#[test]
fn only_what_was_approved_goes() {
    let littered = Littered::new(SEALED);
    let volume = &littered.world.volume;
    let mut approved = gc::plan_collection(volume, &[], &ProgressMeter::default()).unwrap();
    let all = approved.packs.len();
    approved.packs.retain(|pack| pack.action == PackAction::Delete);
    let count = approved.packs.len();
    let done = gc::run_collection(
        volume,
        &gc::CollectionRequest { approved: Some(&approved), ..gc::CollectionRequest::default() },
        &ProgressMeter::default(),
    )
    .unwrap();
    assert_eq!((done.deleted as usize, done.repacked), (count, 0));
    assert_eq!(gc::plan_collection(volume, &[], &ProgressMeter::default()).unwrap().packs.len(), all - count);
    littered.assert_alive(volume);
}

#[test]
fn a_collection_killed_at_any_operation_does_no_harm_and_is_finished_by_the_next() {
    for encrypted in [SEALED, PLAIN] {
        let littered = Littered::new(encrypted);
        let image = littered.world.ram.image();
        for fault in [StoreFault::Before, StoreFault::After] {
            for at in 0.. {
                let ram = Ram::of(image.clone());
                let faulty = Arc::new(FaultyStore::new(ram.clone()));
                let volume = littered.world.seen_in(faulty.clone());
                let start = faulty.operation_count();
                faulty.set_script([
                    (FaultTrigger::Nth(start + at), fault),
                    (FaultTrigger::From(start + at + 1), StoreFault::Before),
                ]);
                let _ = collect(&volume);
                if faulty.operation_count() <= start + at {
                    assert!(at > 15, "{at} operations");
                    break;
                }
                bury_sessions(&ram, &littered.world.volume);
                let fresh = littered.world.seen_in(ram.clone());
                littered.assert_alive(&fresh);
                littered.assert_finished(&ram);
            }
        }
    }
}

#[test]
fn a_collection_stops_on_request_between_two_packs() {
    let littered = Littered::new(SEALED);
    let meter = ProgressMeter::default();
    meter.request_stop();
    let stopped = gc::run_collection(&littered.world.volume, &gc::CollectionRequest::default(), &meter);
    assert!(matches!(refused(stopped), VolumeError::Interrupted));
    littered.assert_alive(&littered.world.volume);
    littered.assert_finished(&littered.world.ram);
}

#[test]
fn a_writer_at_work_is_waited_for_and_a_dead_one_is_not() {
    let littered = Littered::new(SEALED);
    let world = &littered.world;
    let volume = &littered.world.volume;
    let session = world.volume.begin_write_session().unwrap();
    let before = world.ram.keys("packs");
    let done = collect(volume).unwrap();
    assert_eq!((done.deleted, done.writers.len()), (0, 1));
    assert_eq!(world.ram.keys("packs"), before);
    drop(session);
    assert_eq!(world.ram.keys("sessions"), [], "a writer that gives up withdraws its claim");

    // The same process on a machine that was started anew; a process that is gone; one that slept for a day.
    let now = vellum_volume::session::current_time().secs;
    for (number, over) in [(0, true), (1, false), (2, true), (3, false), (4, true)] {
        let session = world.volume.begin_write_session().unwrap();
        let [key] = &world.ram.keys("sessions")[..] else { panic!("one session") };
        change_session(&world.ram, volume, key, |session| match number {
            0 => session.started += 1,
            // A process number says nothing in another scope.
            1 => (session.scope, session.started) = ("elsewhere".into(), 1),
            2 => (session.scope, session.renewed.secs) = ("elsewhere".into(), now - LEASE - 60),
            3 => (session.scope, session.renewed.secs) = ("elsewhere".into(), now - LEASE + 600),
            _ => session.renewed.secs = now - LEASE - 60,
        });
        // Something to collect.
        let gone = snapshot(&world.seen_in(world.ram.clone()), &small(60 + number), "");
        snapshot(volume, &small(3), "");
        volume.forget_snapshot(&gone).unwrap();
        let done = collect(volume).unwrap();
        assert_eq!((done.writers.len(), done.deleted > 0), (usize::from(!over), over), "case {number}");
        assert_eq!(world.ram.keys("sessions").is_empty(), over);
        world.ram.delete_object(key).unwrap();
        assert!(matches!(refused(session.end_session()), VolumeError::SessionLost));
    }
    littered.assert_finished(&world.ram);
}

#[test]
fn a_writer_that_was_given_up_for_dead_makes_no_snapshot() {
    let littered = Littered::new(SEALED);
    let world = &littered.world;
    let volume = &littered.world.volume;
    let sleeper = world.seen_in(world.ram.clone());
    let mut session = sleeper.begin_write_session().unwrap();
    // It relies on a chunk that nothing else needs.
    assert!(sleeper.blobs.contains(&volume.keys.compute_blob_id(BlobKind::Chunk, &noise(2, 700))));
    small(2).store(&sleeper, &session).unwrap();
    bury_sessions(&world.ram, volume);
    assert!(collect(volume).unwrap().deleted > 0);
    assert!(matches!(refused(session.flush_blobs()), VolumeError::SessionLost));
    littered.assert_finished(&world.ram);
}

#[test]
fn there_is_one_collector_at_a_time() {
    let littered = Littered::new(SEALED);
    let world = &littered.world;
    let ram = world.ram.clone();
    let volume = world.seen_in(world.ram.clone());
    let image = ram.image();
    let operations = {
        let hooked = crate::ram::Hooked::new(Ram::of(image.clone()), |_| {});
        let counted = world.seen_in(hooked.clone());
        let start = hooked.operations();
        collect(&counted).unwrap();
        hooked.operations() - start
    };
    // Another collection, whole, before each operation of the first.
    for at in 0..operations {
        ram.become_like(&image);
        let second = world.seen_in(ram.clone());
        let outcomes = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let reported = outcomes.clone();
        let start = Arc::new(std::sync::atomic::AtomicU64::new(u64::MAX));
        let begin = start.clone();
        let hooked = crate::ram::Hooked::new(ram.clone(), move |number| {
            let start = begin.load(std::sync::atomic::Ordering::SeqCst);
            if number.checked_sub(start) == Some(at) {
                reported.lock().push(collect(&second).map(|done| done.deleted).map_err(|e| e.kind()));
            }
        });
        let first = world.seen_in(hooked.clone());
        start.store(hooked.operations(), std::sync::atomic::Ordering::SeqCst);
        let outcome = collect(&first);
        let others = outcomes.lock().clone();
        assert_eq!(others.len(), 1);
        match (&outcome, &others[0]) {
            (Ok(_), Ok(_) | Err(ErrorKind::Conflict)) => {}
            other => panic!("before operation {at}: {other:?}"),
        }
        littered.assert_alive(&world.seen_in(ram.clone()));
        littered.assert_finished(&ram);
    }
    littered.assert_finished(&ram);
    drop(volume);
}

#[test]
fn a_damaged_index_object_or_record_stops_a_collection() {
    let littered = Littered::new(SEALED);
    let world = &littered.world;
    let image = world.ram.image();
    for key in world.ram.keys("index").into_iter().chain(world.ram.keys("snapshots")) {
        let mut bytes = image[&key].to_vec();
        bytes[40] ^= 1;
        let ram = Ram::of(image.clone());
        ram.force(&key, &bytes);
        let volume = world.seen_in(ram.clone());
        assert_eq!(refused(collect(&volume)).kind(), ErrorKind::Corrupt, "{key}");
        assert_eq!(
            refused(gc::plan_collection(&volume, &[], &ProgressMeter::default())).kind(),
            ErrorKind::Corrupt
        );
        assert_eq!(ram.keys("packs"), world.ram.keys("packs"), "nothing was deleted");
        ram.force(&key, &image[&key]);
        littered.assert_alive(&world.seen_in(ram));
    }
}

#[test]
fn a_missing_index_object_costs_no_living_pack() {
    let littered = Littered::new(PLAIN);
    let world = &littered.world;
    let image = world.ram.image();
    for key in world.ram.keys("index") {
        let ram = Ram::of(image.clone());
        ram.delete_object(&key).unwrap();
        let volume = world.seen_in(ram.clone());
        let outcome = collect(&volume);
        // Either it knew nothing that is needed, or the collection sees that something is amiss.
        ram.force(&key, &image[&key]);
        let fresh = world.seen_in(ram.clone());
        for (id, tree) in &littered.alive {
            tree.assert_readable(&fresh, fresh.catalog.fetch_record(id).unwrap().root);
        }
        if let Err(error) = outcome {
            assert!(matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt), "{error}");
        }
    }
}

#[test]
fn a_listing_that_omits_a_snapshot_costs_none_of_its_blobs() {
    let littered = Littered::new(SEALED);
    let world = &littered.world;
    for (id, _) in &littered.alive {
        let ram = Ram::of(world.ram.image());
        ram.omit(&ObjectKey::new(format!("snapshots/{id}")).unwrap());
        assert!(collect(&world.seen_in(ram.clone())).unwrap().deleted > 0);
        let ram = Ram::of(ram.image());
        littered.assert_alive(&world.seen_in(ram));
    }
}

#[test]
fn a_head_on_a_forgotten_snapshot_keeps_it_alive() {
    let world = World::new(SEALED);
    let tree = small(1);
    let one = snapshot(&world.volume, &tree, "one");
    snapshot(&world.volume, &small(2), "two");
    // A worktree went to it at the moment when it was forgotten.
    world.volume.forget_snapshot(&one).unwrap();
    let side = world.worktree("side");
    side.set_head(one).unwrap();
    collect(&world.volume).unwrap();
    tree.assert_readable(&side, side.catalog.get_record(&one).unwrap().root);
    assert_clean(&world.volume);
}

#[test]
fn a_pack_that_a_later_snapshot_needs_again_is_not_deleted() {
    let world = World::new(SEALED);
    let volume = &world.volume;
    let gone = snapshot(volume, &small(1), "gone");
    snapshot(volume, &small(2), "stays");
    volume.forget_snapshot(&gone).unwrap();
    let plan = gc::plan_collection(volume, &[], &ProgressMeter::default()).unwrap();
    assert!(plan.packs.iter().any(|pack| pack.action == PackAction::Delete));
    // Between plan and execution the content comes back, from the packs that the plan names.
    let again = snapshot(volume, &small(1), "again");
    let done = gc::run_collection(
        volume,
        &gc::CollectionRequest { approved: Some(&plan), ..gc::CollectionRequest::default() },
        &ProgressMeter::default(),
    )
    .unwrap();
    assert_eq!(done.deleted, 0);
    small(1).assert_readable(volume, volume.catalog.get_record(&again).unwrap().root);
    assert_clean(volume);
}

#[test]
fn what_was_collected_can_be_stored_again() {
    for encrypted in [SEALED, PLAIN] {
        let world = World::new(encrypted);
        for round in 0..3 {
            let gone = snapshot(&world.volume, &small(1), "gone");
            small(1).assert_readable(&world.volume, world.volume.catalog.get_record(&gone).unwrap().root);
            snapshot(&world.volume, &small(2), "stays");
            world.volume.forget_snapshot(&gone).unwrap();
            assert!(collect(&world.volume).unwrap().deleted > 0, "round {round}");
            assert_clean(&world.volume);
        }
        let back = snapshot(&world.volume, &small(1), "back");
        let fresh = world.seen_in(world.ram.clone());
        small(1).assert_readable(&fresh, fresh.catalog.get_record(&back).unwrap().root);
        assert_clean(&fresh);
    }
}

#[test]
fn an_empty_volume_and_a_snapshot_of_nothing_are_collected_too() {
    let world = World::new(PLAIN);
    assert_eq!(collect(&world.volume).unwrap().plan.packs, []);
    let root = world.volume.empty_root();
    world.volume.commit_snapshot(record(&world.volume, root, "nothing")).unwrap();
    assert_eq!(collect(&world.volume).unwrap().plan.snapshots, 1);
    assert_eq!(verified(&world.volume).findings, []);
}

#[test]
fn what_a_mounted_worktree_has_published_stays() {
    let world = World::new(SEALED);
    let volume = &world.volume;
    let tree = small(7);
    let mut session = volume.begin_write_session().unwrap();
    let root = tree.store(volume, &session).unwrap();
    session.flush_blobs().unwrap();
    volume
        .update_worktree_ref(&volume.worktree.worktree, |head| {
            head.live = Some(UnsnapshottedTree { root, counted: SnapshotStatistics::default() });
        })
        .unwrap();
    session.end_session().unwrap();
    collect(volume).unwrap();
    tree.assert_readable(volume, root);
    volume.update_worktree_ref(&volume.worktree.worktree, |head| head.live = None).unwrap();
    assert!(!gc::plan_collection(volume, &[], &ProgressMeter::default()).unwrap().packs.is_empty());
}

/// Collects, without these snapshots.
fn collect_without(volume: &Volume, without: &[String]) -> Result<CollectionReport> {
    gc::run_collection(
        volume,
        &gc::CollectionRequest { without, ..Default::default() },
        &ProgressMeter::default(),
    )
}

#[test]
fn a_missing_record_that_a_tag_a_worktree_or_a_child_names_stops_a_collection() {
    for encrypted in [SEALED, PLAIN] {
        let world = World::new(encrypted);
        let volume = &world.volume;
        let tagged = snapshot(volume, &small(1), "tagged");
        let parent = snapshot(volume, &small(2), "parent");
        let forgotten = snapshot(volume, &small(4), "forgotten");
        let head = snapshot(volume, &small(5), "head");
        volume.add_tag("v1", tagged).unwrap();
        volume.forget_snapshot(&forgotten).unwrap();
        let image = world.ram.image();
        // Of the parent only a forgotten snapshot knows, of the forgotten one only the head.
        for (id, folder, named_by) in [
            (tagged, "snapshots", "the tag 'v1'"),
            (parent, "snapshots", &*format!("it is a parent of snapshot {forgotten}")),
            (forgotten, "forgotten", &*format!("it is a parent of snapshot {head}")),
            (head, "snapshots", "the worktree 'main'"),
        ] {
            let key = ObjectKey::new(format!("{folder}/{id}")).unwrap();
            for damage in ["missing", "damaged"] {
                let ram = Ram::of(image.clone());
                if damage == "missing" {
                    ram.delete_object(&key).unwrap();
                } else {
                    let mut bytes = ram.bytes(&key);
                    bytes[40] ^= 1;
                    ram.force(&key, &bytes);
                }
                let seen = world.seen_in(ram.clone());
                let before = ram.keys("packs");
                for error in [
                    refused(collect(&seen)),
                    refused(gc::plan_collection(&seen, &[], &ProgressMeter::default())),
                    refused(collect_without(&seen, &["0".repeat(64)])),
                ] {
                    if let VolumeError::NotLost(_) = error {
                        continue;
                    }
                    assert_eq!(error.kind(), ErrorKind::Corrupt);
                    let reported = error.to_string();
                    assert!(reported.contains(&id.to_string()) && reported.contains(damage), "{reported}");
                    assert!(damage == "damaged" || reported.contains(named_by), "{reported}");
                }
                assert_eq!(ram.keys("packs"), before, "nothing was deleted");
                // Whoever says that it is lost for good goes on; so far everything can be put back.
                let short = id.to_string()[..6].to_owned();
                gc::plan_collection(&seen, std::slice::from_ref(&short), &ProgressMeter::default()).unwrap();
                collect_without(&seen, &[short]).unwrap();
                if folder == "snapshots" {
                    assert!(ram.keys("packs").len() < before.len(), "what only it needs is gone");
                }
                for (id, tree) in [(tagged, small(1)), (parent, small(2)), (head, small(5))] {
                    if key.name() != id.to_string() {
                        tree.assert_readable(&seen, seen.catalog.fetch_record(&id).unwrap().root);
                    }
                }
            }
        }
        collect(&world.seen_in(Ram::of(image))).unwrap();
    }
}

#[test]
fn a_record_that_is_whole_cannot_be_left_out_of_a_collection() {
    let littered = Littered::new(SEALED);
    let volume = &littered.world.volume;
    let sound = littered.alive[0].0.to_string();
    for text in [sound.as_str(), &sound[..8], "", "abc"] {
        let error = refused(collect_without(volume, &[text.into()]));
        assert!(matches!(error, VolumeError::NotLost(_)), "{text}: {error}");
    }
    littered.assert_alive(volume);
}

#[test]
fn a_record_that_was_seen_here_and_is_missing_now_stops_a_collection() {
    let world = World::new(SEALED);
    snapshot(&world.volume, &small(1), "base");
    let side = world.worktree("side");
    let gone = snapshot(&side, &small(2), "of another worktree");
    world.volume.catalog.get_record(&gone).unwrap();
    side.remove_worktree("side").unwrap();
    world.ram.delete_object(&ObjectKey::new(format!("snapshots/{gone}")).unwrap()).unwrap();
    let reported = refused(collect(&world.again())).to_string();
    assert!(reported.contains(&gone.to_string()) && reported.contains("seen here"), "{reported}");
}

#[test]
fn a_session_whose_writer_is_known_to_be_gone_can_be_ended() {
    let littered = Littered::new(SEALED);
    let world = &littered.world;
    let volume = &littered.world.volume;
    let writer = world.volume.begin_write_session().unwrap();
    let [key] = &world.ram.keys("sessions")[..] else { panic!("one session") };
    change_session(&world.ram, volume, key, |session| session.scope = "another host".into());
    let waited = collect(volume).unwrap();
    assert_eq!((waited.deleted, waited.writers.len()), (0, 1));
    let names = [waited.writers[0].session_name().to_owned()];
    let end = |names: &[String]| {
        let request = gc::CollectionRequest { ended_sessions: names, ..Default::default() };
        gc::run_collection(volume, &request, &ProgressMeter::default())
    };
    assert!(matches!(refused(end(&["nobody".into()])), VolumeError::NoSession(_)));
    assert!(end(&names).unwrap().deleted > 0);
    assert!(matches!(refused(writer.end_session()), VolumeError::SessionLost), "it makes no snapshot");
    littered.assert_finished(&world.ram);
}
