//! The lease of a worktree: two machines on one store, of which one at a time may change it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use vellum_host::ProgressMeter;
use vellum_map::MapRoot;
use vellum_store::ObjectStore;
use vellum_testkit::{FaultTrigger, FaultyStore, StoreFault, StoreOperation};
use vellum_types::ErrorKind;
use vellum_volume::lease::{HeldLease, LeaseClaimant, LeaseToken, MonotonicClock, TERM, TakenLease};
use vellum_volume::refs::{RefKind, UnsnapshottedTree, WorktreeHead};
use vellum_volume::{Result, SnapshotStatistics, Volume, VolumeError, gc};

use crate::model::{Tree, small};
use crate::ram::Hooked;
use crate::world::{SEALED, World, refused};

const NAME: &str = "shared";

/// A clock that a test turns.
#[derive(Default)]
struct Turned(AtomicU64);

impl Turned {
    fn pass(&self, secs: u64) {
        self.0.fetch_add(secs, Ordering::SeqCst);
    }
}

impl MonotonicClock for Turned {
    fn now(&self) -> Duration {
        Duration::from_secs(1000 + self.0.load(Ordering::SeqCst))
    }
}

/// A machine with a state directory of its own, and the live state of the worktree in it.
struct Machine {
    volume: Arc<Volume>,
    place: String,
    known: Vec<LeaseToken>,
    clock: Arc<Turned>,
}

impl Machine {
    fn new(world: &World, store: Arc<dyn ObjectStore>, name: &str) -> Self {
        let volume = Arc::new(world.seen_in(store));
        let place = format!("/home/{name}/.vellum/live/{NAME}");
        Self { volume, place, known: Vec::new(), clock: Arc::default() }
    }

    fn try_take(&mut self, early: bool) -> Result<(Arc<HeldLease>, TakenLease)> {
        let token = LeaseToken::generate();
        let claimant = LeaseClaimant {
            known: self.known.clone(),
            token,
            place: self.place.clone(),
            mountpoint: Some("/mnt".into()),
            term: TERM,
            early,
            clock: self.clock.clone(),
        };
        self.known.push(token);
        let taken = HeldLease::acquire(&self.volume, NAME, claimant);
        if matches!(taken, Err(VolumeError::Leased { .. } | VolumeError::Behind { .. })) {
            self.known.pop();
        }
        taken
    }

    fn take(&mut self) -> (Arc<HeldLease>, TakenLease) {
        self.try_take(false).unwrap()
    }

    fn take_early(&mut self) -> (Arc<HeldLease>, TakenLease) {
        self.try_take(true).unwrap()
    }

    /// Takes it as one who has thrown its live state away.
    fn anew(&mut self) -> (Arc<HeldLease>, TakenLease) {
        let lost = std::mem::take(&mut self.known);
        self.volume.release_live_states(NAME, &lost).unwrap();
        self.take()
    }

    fn head(&self) -> WorktreeHead {
        self.volume.read_worktree_head(NAME).unwrap().unwrap()
    }
}

/// Two machines and a worktree that neither has mounted yet. The store tells times.
struct Scene {
    world: World,
    ann: Machine,
    bob: Machine,
}

impl Scene {
    fn new() -> Self {
        let world = World::new(SEALED);
        world.ram.keep_dates();
        world.volume.add_worktree(NAME, None, "/nowhere").unwrap();
        let [ann, bob] = ["ann", "bob"].map(|name| Machine::new(&world, world.ram.clone(), name));
        Self { world, ann, bob }
    }

    /// Nobody has written the worktree's head for so long, by the store's clock.
    fn head_is_old(&self, secs: u64) {
        let volume = &self.world.volume;
        for key in volume.refs.list_ref_objects(RefKind::Worktree).unwrap() {
            self.world.ram.date(&key, SystemTime::now() - Duration::from_secs(secs));
        }
    }
}

fn tree(number: u8) -> UnsnapshottedTree {
    let root = MapRoot(vellum_types::BlobId([number; 32]));
    UnsnapshottedTree {
        root,
        counted: SnapshotStatistics { files: number.into(), ..SnapshotStatistics::default() },
    }
}

fn publish(tenure: &HeldLease, number: u8) -> Result<()> {
    tenure.update_worktree_ref(|head| head.live = Some(tree(number)))
}

fn is_behind(result: Result<(Arc<HeldLease>, TakenLease)>) -> bool {
    matches!(result, Err(VolumeError::Behind { .. }))
}

fn is_fenced(result: Result<()>) -> bool {
    matches!(result, Err(VolumeError::Fenced { .. }))
}

#[test]
fn a_second_writer_is_refused_and_told_who_has_it() {
    let Scene { world: _world, mut ann, mut bob } = Scene::new();
    let (held, _) = ann.take();
    let error = refused(bob.try_take(false).map(drop));
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let told = error.to_string();
    let host = vellum_host::process::host_name();
    for part in [NAME, "/mnt", &host, &std::process::id().to_string(), "/home/ann/", "since", "until"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    publish(&held, 1).unwrap();
    assert_eq!(bob.head().live, Some(tree(1)));
}

#[test]
fn a_lease_that_was_not_renewed_is_taken_over_and_its_holder_fenced() {
    let mut scene = Scene::new();
    let (stale, _) = scene.ann.take();
    publish(&stale, 1).unwrap();
    scene.head_is_old(u64::from(TERM) - 5);
    assert!(matches!(scene.bob.try_take(false), Err(VolumeError::Leased { .. })));
    scene.head_is_old(u64::from(TERM) + 5);
    let (held, taken) = scene.bob.take();
    let (lease, place) = taken.put_out.unwrap();
    assert_eq!((lease.mountpoint.as_deref(), place.as_str()), (Some("/mnt"), scene.ann.place.as_str()));
    assert_eq!(taken.head.live, Some(tree(1)), "he goes on from what she published");
    publish(&held, 2).unwrap();
    for _ in 0..2 {
        assert!(
            is_fenced(publish(&stale, 3))
                && is_fenced(stale.renew_lease())
                && is_fenced(stale.release_lease())
        );
        assert!(is_fenced(stale.check_still_held()) && stale.lease_loss().is_some());
    }
    assert_eq!(scene.ann.head().live, Some(tree(2)));
    publish(&held, 4).unwrap();
}

#[test]
fn what_is_renewed_is_not_over() {
    let mut scene = Scene::new();
    let (held, _) = scene.ann.take();
    for _ in 0..3 {
        scene.head_is_old(u64::from(TERM) + 5);
        held.renew_lease().unwrap();
        assert!(matches!(scene.bob.try_take(false), Err(VolumeError::Leased { .. })));
    }
}

#[test]
fn a_lease_that_is_renewed_while_another_judges_it_is_not_taken_or_its_holder_fenced() {
    // Before each operation of the one who finds it over, in turn.
    for at in 0.. {
        let mut scene = Scene::new();
        let (held, _) = scene.ann.take();
        let renewing = held.clone();
        let hooked = Hooked::new(scene.world.ram.clone(), move |number| {
            if number == at {
                // Too late, maybe.
                let _ = renewing.renew_lease();
            }
        });
        let mut bob = Machine::new(&scene.world, hooked.clone(), "bob");
        scene.head_is_old(u64::from(TERM) + 5);
        match bob.try_take(false) {
            Err(VolumeError::Leased { .. }) => publish(&held, 1).unwrap(),
            taken => {
                publish(&taken.unwrap().0, 2).unwrap();
                assert!(is_fenced(publish(&held, 1)), "operation {at}");
            }
        }
        if hooked.operations() <= at {
            return;
        }
    }
}

#[test]
fn a_lease_that_was_given_up_is_free_at_once() {
    let Scene { world: _world, mut ann, mut bob } = Scene::new();
    let (first, _) = ann.take();
    publish(&first, 1).unwrap();
    first.release_lease().unwrap();
    assert!(is_fenced(publish(&first, 9)));
    let (again, taken) = ann.take();
    assert!(taken.put_out.is_none());
    again.release_lease().unwrap();
    let (second, taken) = bob.take();
    assert!(taken.put_out.is_none());
    publish(&second, 2).unwrap();
    second.release_lease().unwrap();
    assert!(is_behind(ann.try_take(true)), "somebody else was there");
    let (_, taken) = ann.anew();
    assert_eq!(taken.head.live, Some(tree(2)));
}

#[test]
fn an_early_takeover_puts_the_holder_out() {
    let Scene { world: _world, mut ann, mut bob } = Scene::new();
    let (stale, _) = ann.take();
    assert!(bob.try_take(false).is_err());
    let (held, taken) = bob.take_early();
    assert!(taken.put_out.is_some());
    assert!(is_fenced(publish(&stale, 1)));
    publish(&held, 2).unwrap();
    // And back again: what decides is the token, not the machine.
    ann.known.clear();
    let (back, _) = ann.take_early();
    assert!(is_fenced(publish(&held, 3)) && is_fenced(publish(&stale, 4)));
    publish(&back, 5).unwrap();
}

#[test]
fn the_same_live_state_goes_on_without_waiting() {
    let Scene { world: _world, mut ann, .. } = Scene::new();
    let (before, _) = ann.take();
    let (after, taken) = ann.take();
    assert!(taken.put_out.is_none());
    assert!(is_fenced(publish(&before, 1)));
    publish(&after, 2).unwrap();
}

#[test]
fn a_copied_live_state_is_another_one() {
    let Scene { world, mut ann, .. } = Scene::new();
    let (held, _) = ann.take();
    let mut copy = Machine::new(&world, world.ram.clone(), "copy");
    copy.known.clone_from(&ann.known);
    assert!(matches!(copy.try_take(false), Err(VolumeError::Leased { .. })), "the original is at work");
    held.release_lease().unwrap();
    let (again, _) = ann.take();
    publish(&again, 1).unwrap();
    again.release_lease().unwrap();
    assert!(is_behind(copy.try_take(false)), "the original went on since");
}

#[test]
fn a_live_state_that_is_behind_is_not_gone_on_with() {
    let Scene { world: _world, mut ann, mut bob } = Scene::new();
    let (stale, _) = ann.take();
    let (held, _) = bob.take_early();
    held.release_lease().unwrap();
    assert!(is_fenced(stale.renew_lease()));
    let error = refused(ann.try_take(true).map(drop));
    assert!(matches!(error, VolumeError::Behind { .. }) && error.to_string().contains(&ann.place), "{error}");
    ann.anew();
}

#[test]
fn the_tree_of_whoever_was_put_out_stays_until_it_comes_back() {
    let Scene { world, mut ann, mut bob } = Scene::new();
    let store = |tree: &Tree, tenure: &HeldLease| {
        let mut session = world.volume.begin_write_session().unwrap();
        let root = tree.store(&world.volume, &session).unwrap();
        session.flush_blobs().unwrap();
        tenure
            .update_worktree_ref(|head| {
                head.live = Some(UnsnapshottedTree { root, counted: SnapshotStatistics::default() })
            })
            .unwrap();
        session.end_session().unwrap();
        root
    };
    let (first, _) = ann.take();
    let hers = store(&small(1), &first);
    let (second, _) = bob.take_early();
    let his = store(&small(2), &second);
    let collect = || {
        let meter = ProgressMeter::default();
        gc::run_collection(&world.volume, &gc::CollectionRequest::default(), &meter).unwrap()
    };
    collect();
    small(1).assert_readable(&world.volume, hers);
    small(2).assert_readable(&world.volume, his);
    second.release_lease().unwrap();
    ann.anew();
    assert_eq!(ann.head().left, []);
    assert!(collect().deleted > 0);
    small(2).assert_readable(&world.volume, his);
}

#[test]
fn what_a_holder_reads_stays_and_so_does_what_it_stood_on_before_it_was_put_out() {
    let Scene { world, mut ann, mut bob } = Scene::new();
    let put = |number| {
        let mut session = world.volume.begin_write_session().unwrap();
        let root = small(number).store(&world.volume, &session).unwrap();
        session.flush_blobs().unwrap();
        (root, session)
    };
    let collect = || {
        gc::run_collection(&world.volume, &gc::CollectionRequest::default(), &ProgressMeter::default())
            .unwrap()
    };
    let (first, _) = ann.take();
    let (stood, one) = put(1);
    let (viewed, two) = put(2);
    first.set_read_trees_source(move || Some(vec![stood, viewed]));
    first.update_worktree_ref(|head| head.live = None).unwrap();
    assert_eq!(ann.head().reading, [stood, viewed]);
    one.end_session().unwrap();
    two.end_session().unwrap();
    collect();
    small(1).assert_readable(&world.volume, stood);
    small(2).assert_readable(&world.volume, viewed);
    // Its own crash may bring it back to that tree; views do not come back.
    let (second, _) = bob.take_early();
    second.set_read_trees_source(|| Some(Vec::new()));
    second.renew_lease().unwrap();
    collect();
    small(1).assert_readable(&world.volume, stood);
    second.release_lease().unwrap();
    assert_eq!(ann.head().reading, []);
    ann.anew();
    assert!(collect().deleted > 0);
}

#[test]
fn nobody_else_changes_removes_or_renames_what_is_leased() {
    let Scene { world, mut ann, .. } = Scene::new();
    let (held, _) = ann.take();
    let volume = &world.volume;
    let leased = |result: Result<()>| matches!(result, Err(VolumeError::Leased { .. }));
    assert!(leased(volume.update_worktree_ref(NAME, |head| head.live = None)));
    assert!(leased(volume.rename_worktree(NAME, "other")));
    assert!(leased(volume.remove_worktree(NAME).map(drop)));
    held.release_lease().unwrap();
    volume.update_worktree_ref(NAME, |head| head.live = None).unwrap();
    volume.rename_worktree(NAME, "other").unwrap();
    volume.remove_worktree("other").unwrap();
}

#[test]
fn the_lease_of_a_process_that_is_gone_is_over() {
    let Scene { world, mut ann, mut bob } = Scene::new();
    let (stale, _) = ann.take();
    world
        .volume
        .refs
        .update_ref(RefKind::Worktree, NAME, |old| {
            let mut head = WorktreeHead::decode(&old.unwrap().value).unwrap();
            // What this handle read last may be older: then it is asked once more.
            head.lease.iter_mut().for_each(|lease| lease.session.started += 1);
            Ok(Some(head.encode()))
        })
        .unwrap();
    bob.take();
    assert!(is_fenced(publish(&stale, 1)));
}

#[test]
fn a_worktree_that_was_removed_fences_its_holder() {
    let Scene { world, mut ann, .. } = Scene::new();
    let (stale, _) = ann.take();
    world.volume.refs.update_ref(RefKind::Worktree, NAME, |_| Ok(None)).unwrap();
    assert!(is_fenced(publish(&stale, 1)));
    world.volume.add_worktree(NAME, None, "/nowhere").unwrap();
    assert!(is_fenced(publish(&stale, 1)));
    assert_eq!(ann.head().live, None);
}

#[test]
fn where_the_store_tells_no_times_the_time_in_the_lease_counts() {
    let world = World::new(SEALED);
    world.volume.add_worktree(NAME, None, "/nowhere").unwrap();
    let [mut ann, mut bob] = ["ann", "bob"].map(|name| Machine::new(&world, world.ram.clone(), name));
    let (_held, _) = ann.take();
    assert!(bob.try_take(false).is_err());
    let refs = &world.volume.refs;
    refs.update_ref(RefKind::Worktree, NAME, |old| {
        let mut head = WorktreeHead::decode(&old.unwrap().value).unwrap();
        head.lease.iter_mut().for_each(|lease| lease.session.renewed.secs -= i64::from(TERM) + 5);
        Ok(Some(head.encode()))
    })
    .unwrap();
    bob.take();
}

/// A machine whose store fails on demand.
fn shaky(scene: &Scene, name: &str) -> (Machine, Arc<FaultyStore>) {
    let faulty = Arc::new(FaultyStore::new(scene.world.ram.clone()));
    (Machine::new(&scene.world, faulty.clone(), name), faulty)
}

#[test]
fn a_holder_asks_the_store_only_when_its_term_has_passed() {
    let scene = Scene::new();
    let (mut ann, store) = shaky(&scene, "ann");
    let (held, _) = ann.take();
    let before = store.operation_count();
    ann.clock.pass(u64::from(TERM) - 1);
    held.check_still_held().unwrap();
    assert_eq!(store.operation_count(), before, "the lease is known to stand");
    ann.clock.pass(2);
    held.check_still_held().unwrap();
    let requests = store.operation_count();
    assert!(requests > before);
    held.check_still_held().unwrap();
    assert_eq!(store.operation_count(), requests, "it was renewed");
}

#[test]
fn a_store_that_is_away_stops_nobody_and_what_was_not_taken_goes_on() {
    let scene = Scene::new();
    let (mut ann, store) = shaky(&scene, "ann");
    let (held, _) = ann.take();
    store.set_script([(FaultTrigger::From(0), StoreFault::Before)]);
    for _ in 0..5 {
        ann.clock.pass(u64::from(TERM) + 1);
        held.check_still_held().unwrap();
        assert!(held.lease_loss().is_none());
        assert!(!is_fenced(publish(&held, 1)) && publish(&held, 1).is_err());
    }
    store.set_script([]);
    publish(&held, 2).unwrap();
    assert_eq!(ann.head().live, Some(tree(2)));
}

#[test]
fn a_holder_that_slept_is_fenced_before_it_acknowledges_anything() {
    let mut scene = Scene::new();
    let (mut ann, store) = shaky(&scene, "ann");
    let (stale, _) = ann.take();
    ann.clock.pass(10 * u64::from(TERM));
    scene.head_is_old(10 * u64::from(TERM));
    scene.bob.take();
    store.set_script([(FaultTrigger::From(0), StoreFault::Before)]);
    stale.check_still_held().unwrap();
    store.set_script([]);
    ann.clock.pass(u64::from(TERM));
    assert!(is_fenced(stale.check_still_held()), "the store is back, and with it the news");
    assert!(is_fenced(stale.check_still_held()));
}

#[test]
fn at_no_moment_do_two_holders_both_change_the_head() {
    // Bob takes over before each operation of ann's publishing, in turn.
    for at in 0.. {
        let scene = Scene::new();
        let bob = Arc::new(Mutex::new(scene.bob));
        let hook = bob.clone();
        let count = Arc::new(AtomicU64::new(u64::MAX));
        let start = count.clone();
        let hooked = Hooked::new(scene.world.ram.clone(), move |number| {
            if number == start.load(Ordering::SeqCst).saturating_add(at) {
                hook.lock().take_early();
            }
        });
        let mut ann = Machine::new(&scene.world, hooked.clone(), "ann");
        let (held, _) = ann.take();
        count.store(hooked.operations(), Ordering::SeqCst);
        let before = hooked.operations();
        let published = publish(&held, 7);
        let done = hooked.operations() - before;
        let head = bob.lock().head();
        assert_eq!(published.is_ok(), head.live == Some(tree(7)), "operation {at}: {published:?}");
        if done <= at {
            published.unwrap();
            return;
        }
        assert!(is_fenced(published), "operation {at}");
        assert_eq!(Some(head.lease.unwrap().token), bob.lock().known.last().copied());
    }
}

#[test]
fn an_answer_that_is_lost_leaves_a_lease_that_its_taker_can_take_again() {
    let scene = Scene::new();
    let (mut ann, store) = shaky(&scene, "ann");
    for fault in [StoreFault::Before, StoreFault::After] {
        store.set_script([(FaultTrigger::Once(StoreOperation::Swap, "refs/worktree".into()), fault)]);
        assert!(ann.try_take(false).is_err());
        // Whether it was taken, she cannot know: if not, her live state is found to be behind, and goes.
        if is_behind(ann.try_take(false)) {
            ann.known.clear();
        }
        let (held, _) = ann.take();
        publish(&held, 3).unwrap();
        held.release_lease().unwrap();
    }
}

#[test]
fn a_takeover_that_fails_anywhere_leaves_one_who_may_write() {
    for at in 0.. {
        let mut scene = Scene::new();
        let (held, _) = scene.ann.take();
        let (mut bob, store) = shaky(&scene, "bob");
        let before = store.operation_count();
        store.set_script([(FaultTrigger::Nth(before + at), StoreFault::After)]);
        let taken = bob.try_take(true);
        let done = store.operation_count() - before;
        store.set_script([]);
        let ann_is_in = publish(&held, 1).is_ok();
        match &taken {
            Ok((his, _)) => assert!(!ann_is_in && publish(his, 2).is_ok(), "operation {at}"),
            Err(_) if ann_is_in => {}
            Err(_) => drop(bob.take()),
        }
        if done <= at {
            return;
        }
    }
}

/// The store in memory is shared by all: what one of them sees, the others do.
#[test]
fn a_keeper_renews_and_tells_once_when_the_lease_is_lost() {
    let Scene { world: _world, mut ann, mut bob } = Scene::new();
    let mut taken = None;
    let claimant = |machine: &Machine| LeaseClaimant {
        known: Vec::new(),
        token: LeaseToken::generate(),
        place: machine.place.clone(),
        mountpoint: Some("/mnt".into()),
        term: 1,
        early: false,
        clock: machine.clock.clone(),
    };
    let (held, _) = HeldLease::acquire(&ann.volume, NAME, claimant(&ann)).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let keeper =
        vellum_volume::lease::LeaseKeeper::start(held, move |error| tell.send(error.to_string()).unwrap())
            .unwrap();
    let renewed = |machine: &Machine| {
        let refs = &machine.volume.refs;
        refs.get_ref(RefKind::Worktree, NAME).unwrap().unwrap().counter
    };
    let before = renewed(&bob);
    while renewed(&bob) < before + 3 {
        std::thread::sleep(Duration::from_millis(10));
    }
    taken.replace(bob.take_early());
    let said = told.recv_timeout(Duration::from_secs(30)).unwrap();
    assert!(said.contains("taken over"), "{said}");
    drop(keeper);
    ann.known.clear();
    ann.take_early();
}
