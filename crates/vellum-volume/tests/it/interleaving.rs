//! Writers beside the collector: every step of one before every operation of the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use vellum_map::MapRoot;
use vellum_types::SnapshotId;
use vellum_volume::{Volume, WriteSession};

use crate::collecting::{Littered, collect};
use crate::model::{Tree, small};
use crate::ram::{Hooked, Image, Ram};
use crate::world::{SEALED, World, assert_clean, bury_sessions, record};

/// A writer that stores again what is dead, one step at a time.
struct Writer {
    volume: Volume,
    tree: Tree,
    session: Option<WriteSession>,
    root: Option<MapRoot>,
    snapshot: Option<SnapshotId>,
    done: usize,
}

/// Begin; find the dead chunks in the index; make all durable; record; end.
const STEPS: usize = 5;

impl Writer {
    fn new(volume: Volume) -> Self {
        // The content of the snapshot that was forgotten wholly.
        Self { volume, tree: small(2), session: None, root: None, snapshot: None, done: 0 }
    }

    fn step(&mut self) {
        match self.done {
            // Of a service, it reads the index with the next step only.
            0 => self.session = Some(self.volume.begin_lazy_write_session().unwrap()),
            1 => {
                let session = self.session.as_ref().unwrap();
                self.root = Some(self.tree.store(&self.volume, session).unwrap());
            }
            2 => {
                self.session.as_mut().unwrap().flush_blobs().unwrap();
            }
            3 => {
                let record = record(&self.volume, self.root.unwrap(), "beside the collector");
                self.snapshot = Some(self.volume.commit_snapshot(record).unwrap());
            }
            4 => self.session.take().unwrap().end_session().unwrap(),
            _ => return,
        }
        self.done += 1;
    }

    fn go_to(&mut self, step: usize) {
        while self.done < step {
            self.step();
        }
    }
}

fn assert_not_betrayed(world: &World, ram: &Arc<Ram>, writer: &Writer) {
    let fresh = world.seen_in(ram.clone());
    let root = fresh.catalog.fetch_record(&writer.snapshot.unwrap()).unwrap().root;
    writer.tree.assert_readable(&fresh, root);
    assert_clean(&fresh);
}

/// A store without a hook, as a writer sees it.
fn store_of_kind(ram: &Arc<Ram>, is_remote: bool) -> Arc<Hooked> {
    Hooked::new_of_kind(ram.clone(), is_remote, |_| {})
}

/// Runs a collection in which the writer reaches the step before the operation, for each of `plan`; then the
/// writer's rest, then another collection. Gives how many operations the first collection had.
fn beside_a_collection(littered: &Littered, image: &Image, is_remote: bool, plan: &[(u64, usize)]) -> u64 {
    let world = &littered.world;
    let ram = Ram::of(image.clone());
    let writer = Arc::new(Mutex::new(Writer::new(world.seen_in(store_of_kind(&ram, is_remote)))));
    let at_work = writer.clone();
    let plan = plan.to_vec();
    let start = Arc::new(AtomicU64::new(u64::MAX));
    let begin = start.clone();
    let hooked = Hooked::new(ram.clone(), move |number| {
        let Some(at) = number.checked_sub(begin.load(Ordering::SeqCst)) else { return };
        for (_, step) in plan.iter().filter(|(operation, _)| *operation == at) {
            at_work.lock().go_to(*step);
        }
    });
    let collector = world.seen_in(hooked.clone());
    start.store(hooked.operations(), Ordering::SeqCst);
    collect(&collector).unwrap();
    let operations = hooked.operations() - start.load(Ordering::SeqCst);
    let mut writer = writer.lock();
    writer.go_to(STEPS);
    littered.assert_alive(&world.seen_in(ram.clone()));
    assert_not_betrayed(world, &ram, &writer);
    littered.assert_finished(&ram);
    assert_not_betrayed(world, &ram, &writer);
    operations
}

#[test]
fn a_writer_is_never_betrayed_whichever_of_its_steps_come_before_an_operation_of_the_collector() {
    let littered = Littered::new(SEALED);
    let image = littered.world.ram.image();
    for is_remote in [false, true] {
        let operations = beside_a_collection(&littered, &image, is_remote, &[]);
        assert!(operations > 15, "{operations} operations");
        for at in 0..operations {
            for step in 1..=STEPS {
                beside_a_collection(&littered, &image, is_remote, &[(at, step)]);
            }
        }
    }
}

#[test]
fn a_writer_is_never_betrayed_when_its_steps_are_spread_over_a_collection() {
    let littered = Littered::new(SEALED);
    let image = littered.world.ram.image();
    let operations = beside_a_collection(&littered, &image, false, &[]);
    let mut number = 0;
    for begin in 0..operations {
        for end in begin + 1..operations {
            number += 1;
            // All pairs would take long: each is met by one in seven of the splits.
            if number % 7 == 0 {
                let split = 1 + number / 7 % (STEPS - 1);
                for is_remote in [false, true] {
                    beside_a_collection(&littered, &image, is_remote, &[(begin, split), (end, STEPS)]);
                }
            }
        }
    }
}

#[test]
fn a_collection_before_any_operation_of_a_writer_betrays_it_never() {
    let littered = Littered::new(SEALED);
    for is_remote in [false, true] {
        let operations = (0..).find(|at| collect_before_operation(&littered, is_remote, *at));
        assert!(operations > Some(8), "{operations:?} operations");
    }
}

/// Runs a collection before an operation of a writer; true: the writer has not that many.
fn collect_before_operation(littered: &Littered, is_remote: bool, at: u64) -> bool {
    let world = &littered.world;
    let ram = Ram::of(world.ram.image());
    let collector = world.seen_in(ram.clone());
    let start = Arc::new(AtomicU64::new(u64::MAX));
    let begin = start.clone();
    let hooked = Hooked::new_of_kind(ram.clone(), is_remote, move |number| {
        if number.checked_sub(begin.load(Ordering::SeqCst)) == Some(at) {
            collect(&collector).unwrap();
        }
    });
    let mut writer = Writer::new(world.seen_in(hooked.clone()));
    let before = hooked.operations();
    start.store(before, Ordering::SeqCst);
    writer.go_to(STEPS);
    let is_over = hooked.operations() - before <= at;
    littered.assert_alive(&world.seen_in(ram.clone()));
    assert_not_betrayed(world, &ram, &writer);
    littered.assert_finished(&ram);
    assert_not_betrayed(world, &ram, &writer);
    is_over
}

#[test]
fn a_writer_killed_at_any_step_leaves_nothing_that_a_collection_does_not_clear() {
    let littered = Littered::new(SEALED);
    let image = littered.world.ram.image();
    for step in 0..STEPS {
        let ram = Ram::of(image.clone());
        let mut writer = Writer::new(littered.world.seen_in(ram.clone()));
        writer.go_to(step);
        // Its destructor does not run: the session stands, and its process is gone.
        bury_sessions(&ram, &littered.world.volume);
        littered.assert_finished(&ram);
        if writer.snapshot.is_some() {
            assert_not_betrayed(&littered.world, &ram, &writer);
        }
    }
}
