//! Snapshots between two stores of one volume: what arrives, what is left after every kind of interruption, and which
//! refs move.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vellum_host::ProgressMeter;
use vellum_store::{ObjectKey, StoreLocation};
use vellum_testkit::{FaultTrigger, FaultyStore, StoreFault};
use vellum_types::{Ino, SnapshotId};
use vellum_volume::history::list_history;
use vellum_volume::refs::NamedRefKind;
use vellum_volume::remote::{
    PullRequest, PushReport, PushRequest, RefPushOutcome, RemoteContent, compare_with_remote, pull_snapshots,
    push_snapshots, push_to_volume,
};
use vellum_volume::{Result, StateDir, Volume, VolumeError};

use crate::collecting::collect;
use crate::model::{Tree, noise, small};
use crate::ram::{Hooked, Image, Ram};
use crate::world::{PLAIN, SEALED, World, assert_clean, bury_sessions, record_on, refused, snapshot};

/// The worktree and all tags.
fn everything() -> PushRequest {
    PushRequest { worktrees: vec!["main".into()], ..PushRequest::default() }
}

/// A second store of the world's volume that holds its config and nothing else.
pub fn empty_copy(world: &World) -> Arc<Ram> {
    let config = ObjectKey::new("config").unwrap();
    Ram::of(Image::from([(config.clone(), world.ram.bytes(&config).into())]))
}

fn push(volume: &Volume, target: &Volume) -> Result<PushReport> {
    push_to_volume(volume, target, &everything(), &ProgressMeter::default())
}

fn outcome(report: &PushReport) -> &RefPushOutcome {
    &report.refs[0].outcome
}

/// A tree that resembles `small(1)`: one file is another.
fn changed() -> Tree {
    let mut tree = small(1);
    tree.file(Ino::ROOT, "another", noise(77, 3000));
    tree
}

fn assert_same_history(a: &Volume, b: &Volume) {
    let list = |volume: &Volume| -> Vec<SnapshotId> {
        list_history(&volume.catalog).unwrap().into_iter().map(|entry| entry.id).collect()
    };
    assert_eq!(list(a), list(b));
}

#[test]
fn blobs_pass_as_they_are_to_and_from_a_store_that_says_other_chunk_sizes() {
    let world = World::new(SEALED);
    let url = "memory://remotes-chunk-sizes";
    let store = vellum_store::open_store(&StoreLocation::new(url)).unwrap();
    // No command makes one: only who has the key can.
    let chunker = vellum_volume::config::ChunkSizes::from_target(1 << 20).unwrap();
    let config = vellum_volume::config::VolumeConfig { chunker, ..world.volume.config };
    store.put_object(&ObjectKey::new("config").unwrap(), &config.encode(&world.volume.keys)).unwrap();
    let first = snapshot(&world.volume, &small(1), "first");
    let there = world.seen_in(store.clone());
    assert_eq!(there.config.chunker, chunker);
    push(&world.volume, &there).unwrap();
    let there = world.seen_in(store.clone());
    small(1).assert_readable(&there, there.catalog.fetch_record(&first).unwrap().root);
    assert_clean(&there);
    let second = snapshot(&there, &changed(), "second");
    world.volume.add_remote("origin", &StoreLocation::new(url)).unwrap();
    let remote = world.volume.find_remote(None).unwrap();
    let request = PullRequest::default();
    let report = pull_snapshots(&world.volume, &remote, request, &ProgressMeter::default()).unwrap();
    assert_eq!(report.fetched.snapshots, 1);
    let back = world.seen_in(world.ram.clone());
    changed().assert_readable(&back, back.catalog.fetch_record(&second).unwrap().root);
    assert_clean(&back);
}

#[test]
fn what_is_pushed_is_whole_there_and_sent_once() {
    for encrypted in [SEALED, PLAIN] {
        let world = World::new(encrypted);
        let first = snapshot(&world.volume, &small(1), "first");
        let ram = empty_copy(&world);
        let target = world.seen_in(ram.clone());
        let report = push(&world.volume, &target).unwrap();
        assert_eq!((outcome(&report), report.sent.snapshots), (&RefPushOutcome::Created, 1));
        let fresh = world.seen_in(ram.clone());
        small(1).assert_readable(&fresh, fresh.catalog.fetch_record(&first).unwrap().root);
        assert_eq!(fresh.read_worktree_head("main").unwrap().unwrap().head, Some(first));
        assert_clean(&fresh);

        let before = ram.image();
        let again = push(&world.volume, &target).unwrap();
        assert_eq!((outcome(&again), again.sent), (&RefPushOutcome::Unchanged, Default::default()));
        assert_eq!(ram.image(), before, "nothing is written where there is nothing to send");

        let all = before.iter().filter(|(key, _)| key.as_str().starts_with("packs/"));
        let all: usize = all.map(|(_, bytes)| bytes.len()).sum();
        let second = snapshot(&world.volume, &changed(), "second");
        let report = push(&world.volume, &target).unwrap();
        assert_eq!(outcome(&report), &RefPushOutcome::Moved(first));
        assert!(report.sent.bytes < all as u64 / 2 + 6000, "{} of {all}", report.sent.bytes);
        let fresh = world.seen_in(ram.clone());
        changed().assert_readable(&fresh, fresh.catalog.fetch_record(&second).unwrap().root);
        assert_same_history(&fresh, &world.volume);
        assert_clean(&fresh);
    }
}

#[test]
fn what_is_pulled_is_whole_here_and_changes_nothing_else() {
    let world = World::new(SEALED);
    let url = "memory://remotes-pull";
    let remote_store = vellum_store::open_store(&StoreLocation::new(url)).unwrap();
    let config = ObjectKey::new("config").unwrap();
    remote_store.put_object(&config, &world.ram.bytes(&config)).unwrap();
    let other = world.seen_in(remote_store.clone());
    other.add_worktree("side", None, "/elsewhere").unwrap();
    let tree = changed();
    let id = {
        let mut session = other.begin_write_session().unwrap();
        let root = tree.store(&other, &session).unwrap();
        session.flush_blobs().unwrap();
        let mut record = record_on(&other, None, root, "there");
        record.worktree = "side".into();
        let id = other.commit_snapshot(record).unwrap();
        session.end_session().unwrap();
        id
    };
    other.add_tag("v1", id).unwrap();
    let here = snapshot(&world.volume, &small(1), "here");
    assert_eq!(world.volume.add_remote("origin", &StoreLocation::new(url)).unwrap(), RemoteContent::Volume);
    let remote = world.volume.find_remote(None).unwrap();
    let pull = |request| pull_snapshots(&world.volume, &remote, request, &ProgressMeter::default()).unwrap();
    let planned = pull(PullRequest { is_dry_run: true, ..PullRequest::default() });
    assert_eq!((planned.fetched.snapshots, planned.refs.len()), (1, 2));
    assert!(world.volume.resolve_snapshot("origin/side").is_err(), "a dry run remembers nothing");
    let report = pull(PullRequest::default());
    assert_eq!((report.fetched.snapshots, report.refs.len()), (1, 2));
    assert_eq!(world.volume.resolve_snapshot("origin/side").unwrap().id, id);
    assert_eq!(world.volume.resolve_snapshot("origin/v1").unwrap().id, id);
    assert!(world.volume.resolve_snapshot("origin/side~1").is_err());
    assert!(world.volume.resolve_snapshot("origin/none").is_err());
    assert_eq!(world.volume.read_head().unwrap(), Some(here));
    assert_eq!(world.volume.list_tags().unwrap(), []);
    let fresh = world.seen_in(world.ram.clone());
    tree.assert_readable(&fresh, fresh.catalog.fetch_record(&id).unwrap().root);
    assert_clean(&fresh);
    let again = pull(PullRequest::default());
    assert_eq!((again.fetched.snapshots, again.refs.len()), (0, 0));
    // What was fetched stays, whatever the remote forgets.
    collect(&world.again()).unwrap();
    assert_clean(&world.again());
}

#[test]
fn refs_of_a_remote_move_forward_only() {
    let world = World::new(SEALED);
    let ram = empty_copy(&world);
    let target = world.seen_in(ram.clone());
    let base = snapshot(&world.volume, &small(1), "base");
    push(&world.volume, &target).unwrap();

    // Somebody else pushes what is not known here.
    let theirs = world.worktree("theirs");
    theirs.set_head(base).unwrap();
    let there = {
        let mut session = target.begin_write_session().unwrap();
        let root = small(2).store(&target, &session).unwrap();
        session.flush_blobs().unwrap();
        let id = target.catalog.store_record(&{
            let mut record = record_on(&target, Some(base), root, "theirs");
            target.assign_snapshot_id(&mut record).unwrap();
            record
        });
        session.end_session().unwrap();
        id.unwrap()
    };
    target.update_worktree_ref("main", |head| head.head = Some(there)).unwrap();
    let report = push(&world.volume, &target).unwrap();
    assert_eq!(outcome(&report), &RefPushOutcome::Ahead(there));

    let ours = snapshot(&world.volume, &changed(), "ours");
    let before = ram.image();
    let report = push(&world.volume, &target).unwrap();
    assert_eq!(outcome(&report), &RefPushOutcome::Diverged(there));
    assert_eq!(ram.image(), before, "nothing is sent for a ref that cannot move");

    // A snapshot by itself can be sent.
    let request = PushRequest { snapshots: vec![ours], ..PushRequest::default() };
    push_to_volume(&world.volume, &target, &request, &ProgressMeter::default()).unwrap();
    assert!(target.catalog.has_snapshot(&ours).unwrap());
    assert_eq!(target.read_worktree_head("main").unwrap().unwrap().head, Some(there));

    world.volume.add_tag("v1", ours).unwrap();
    target.add_tag("v1", base).unwrap();
    let request = PushRequest { tags: vec!["v1".into()], ..PushRequest::default() };
    let report = push_to_volume(&world.volume, &target, &request, &ProgressMeter::default()).unwrap();
    assert_eq!(outcome(&report), &RefPushOutcome::Taken(base));

    // A worktree that a directory of the remote's has moves with that directory only.
    target.add_worktree("attached", Some(base), "/there").unwrap();
    world.volume.add_worktree("attached", Some(ours), "/here").unwrap();
    let request = PushRequest { worktrees: vec!["attached".into()], ..PushRequest::default() };
    let report = push_to_volume(&world.volume, &target, &request, &ProgressMeter::default()).unwrap();
    assert!(matches!(outcome(&report), RefPushOutcome::Attached { place, .. } if place == "/there"));
    assert_eq!(target.read_worktree_head("attached").unwrap().unwrap().head, Some(base));

    target.add_worktree("name", Some(base), "/there").unwrap();
    world.volume.add_tag("name", ours).unwrap();
    let request = PushRequest { tags: vec!["name".into()], ..PushRequest::default() };
    let report = push_to_volume(&world.volume, &target, &request, &ProgressMeter::default()).unwrap();
    assert_eq!((outcome(&report), report.refs[0].kind), (&RefPushOutcome::NameInUse, NamedRefKind::Tag));
    assert_clean(&world.seen_in(ram));
}

#[test]
fn a_history_with_forgotten_snapshots_is_pushed_across_them() {
    let world = World::new(SEALED);
    snapshot(&world.volume, &small(1), "one");
    let gone = snapshot(&world.volume, &small(2), "two");
    snapshot(&world.volume, &changed(), "three");
    world.volume.forget_snapshot(&gone).unwrap();
    collect(&world.again()).unwrap();
    let volume = world.again();
    let ram = empty_copy(&world);
    let target = world.seen_in(ram.clone());
    let report = push(&volume, &target).unwrap();
    assert_eq!(report.sent.snapshots, 2);
    let fresh = world.seen_in(ram.clone());
    assert_eq!(fresh.catalog.list_forgotten_ids().unwrap(), [gone]);
    assert_clean(&fresh);
    collect(&fresh).unwrap();
    assert_clean(&world.seen_in(ram.clone()));

    // What the remote forgot is not sent again, unless it is named.
    let target = world.seen_in(ram.clone());
    let first = volume.resolve_snapshot("HEAD~1").unwrap().id;
    target.forget_snapshot(&first).unwrap();
    collect(&target).unwrap();
    snapshot(&volume, &small(3), "four");
    let all = PushRequest { is_everything: true, ..everything() };
    let report = push_to_volume(&volume, &target, &all, &ProgressMeter::default()).unwrap();
    assert_eq!(report.sent.snapshots, 1);
    assert!(!target.catalog.has_snapshot(&first).unwrap());
    assert_clean(&world.seen_in(ram.clone()));
    let named = PushRequest { snapshots: vec![first], ..PushRequest::default() };
    push_to_volume(&volume, &target, &named, &ProgressMeter::default()).unwrap();
    assert!(target.catalog.has_snapshot(&first).unwrap());
    assert_clean(&world.seen_in(ram));
}

#[test]
fn a_push_killed_at_any_request_is_finished_by_the_next() {
    let world = World::new(SEALED);
    snapshot(&world.volume, &small(1), "one");
    let base = empty_copy(&world);
    push(&world.volume, &world.seen_in(base.clone())).unwrap();
    let head = snapshot(&world.volume, &changed(), "two");
    for fault in [StoreFault::Before, StoreFault::After] {
        for at in 0.. {
            let ram = Ram::of(base.image());
            let faulty = Arc::new(FaultyStore::new(ram.clone()));
            let target = world.seen_in(faulty.clone());
            let start = faulty.operation_count();
            faulty.set_script([
                (FaultTrigger::Nth(start + at), fault),
                (FaultTrigger::From(start + at + 1), StoreFault::Before),
            ]);
            let killed = push(&world.volume, &target);
            let done = faulty.operation_count() <= start + at;
            assert!(killed.is_ok() || !done);
            assert_clean(&world.seen_in(ram.clone()));
            bury_sessions(&ram, &world.volume);
            let packs = ram.keys("packs").len();
            // From the state that remembers that it was interrupted.
            let again = Volume::open_on(ram.clone(), &target.state).unwrap();
            push(&world.volume, &again).unwrap();
            let fresh = world.seen_in(ram.clone());
            assert_eq!(fresh.read_worktree_head("main").unwrap().unwrap().head, Some(head));
            changed().assert_readable(&fresh, fresh.catalog.fetch_record(&head).unwrap().root);
            assert_clean(&fresh);
            let all = ram.keys("packs").len();
            assert!(all <= base.keys("packs").len() + 2, "{packs} packs, then {all}: some were sent twice");
            collect(&fresh).unwrap();
            assert_clean(&world.seen_in(ram));
            if done {
                assert!(at > 8, "{at} operations");
                break;
            }
        }
    }
}

/// A store that runs an action before one of the operations that follow [`Moment::begin`].
struct Moment {
    store: Arc<Hooked>,
    begin: Arc<AtomicU64>,
    at: u64,
}

impl Moment {
    fn new(ram: Arc<Ram>, at: u64, mut action: impl FnMut() + Send + 'static) -> Self {
        let begin = Arc::new(AtomicU64::new(u64::MAX));
        let begun = begin.clone();
        let store = Hooked::new(ram, move |number| {
            if number.checked_sub(begun.load(Ordering::SeqCst)) == Some(at) {
                action();
            }
        });
        Self { store, begin, at }
    }

    fn begin(&self) {
        self.begin.store(self.store.operations(), Ordering::SeqCst);
    }

    /// Whether there was such an operation.
    fn is_reached(&self) -> bool {
        self.store.operations() - self.begin.load(Ordering::SeqCst) > self.at
    }
}

#[test]
fn a_collection_at_the_target_at_any_moment_of_a_push_does_no_harm() {
    let world = World::new(SEALED);
    snapshot(&world.volume, &small(1), "one");
    let base = empty_copy(&world);
    let target = world.seen_in(base.clone());
    push(&world.volume, &target).unwrap();
    // Litter with the content of what is to be pushed: condemned and deleted at any moment.
    let litter = {
        let mut session = target.begin_write_session().unwrap();
        let root = changed().store(&target, &session).unwrap();
        session.flush_blobs().unwrap();
        session.end_session().unwrap();
        root
    };
    let head = snapshot(&world.volume, &changed(), "two");
    assert_eq!(world.volume.catalog.get_record(&head).unwrap().root, litter);
    for at in 0.. {
        let ram = Ram::of(base.image());
        let collector = world.seen_in(ram.clone());
        let moment = Moment::new(ram.clone(), at, move || drop(collect(&collector).unwrap()));
        let target = world.seen_in(moment.store.clone());
        moment.begin();
        push(&world.volume, &target).unwrap();
        let fresh = world.seen_in(ram.clone());
        changed().assert_readable(&fresh, fresh.catalog.fetch_record(&head).unwrap().root);
        assert_clean(&fresh);
        collect(&fresh).unwrap();
        assert_clean(&world.seen_in(ram));
        if !moment.is_reached() {
            assert!(at > 8, "{at} operations");
            break;
        }
    }
}

#[test]
fn what_is_forgotten_and_collected_here_during_a_push_arrives_whole_or_not_at_all() {
    let world = World::new(SEALED);
    let gone = snapshot(&world.volume, &small(2), "gone");
    snapshot(&world.volume, &small(1), "stays");
    let request = PushRequest { snapshots: vec![gone], ..PushRequest::default() };
    let (mut arrived, mut refused) = (0, 0);
    for at in 0.. {
        let source = Ram::of(world.ram.image());
        let other = world.seen_in(source.clone());
        let moment = Moment::new(source, at, move || {
            other.forget_snapshot(&gone).unwrap();
            collect(&other).unwrap();
        });
        let volume = world.seen_in(moment.store.clone());
        let ram = empty_copy(&world);
        let target = world.seen_in(ram.clone());
        moment.begin();
        let pushed = push_to_volume(&volume, &target, &request, &ProgressMeter::default());
        let fresh = world.seen_in(ram);
        assert_clean(&fresh);
        if fresh.catalog.has_snapshot(&gone).unwrap() {
            small(2).assert_readable(&fresh, fresh.catalog.fetch_record(&gone).unwrap().root);
            arrived += 1;
        } else {
            // It was forgotten before it was looked at, or collected before the session stood.
            assert!(pushed.is_err() || !volume.catalog.has_snapshot(&gone).unwrap());
            refused += 1;
        }
        if !moment.is_reached() {
            break;
        }
    }
    assert!(arrived > 3 && refused > 0, "{arrived} arrived, {refused} did not");
}

#[test]
fn a_damaged_pack_is_copied_as_far_as_it_is_sound() {
    let world = World::new(SEALED);
    snapshot(&world.volume, &small(1), "one");
    // The last byte belongs to the footer, which no blob needs.
    for key in world.ram.keys("packs") {
        let mut bytes = world.ram.bytes(&key);
        let middle = bytes.len() - 20;
        bytes[middle] ^= 1;
        world.ram.force(&key, &bytes);
    }
    let ram = empty_copy(&world);
    push(&world.again(), &world.seen_in(ram.clone())).unwrap();
    assert_clean(&world.seen_in(ram));

    for key in world.ram.keys("packs") {
        let mut bytes = world.ram.bytes(&key);
        bytes[40] ^= 1;
        world.ram.force(&key, &bytes);
    }
    let ram = empty_copy(&world);
    let error = refused(push(&world.again(), &world.seen_in(ram.clone())));
    assert!(error.to_string().contains("damaged"), "{error}");
    let fresh = world.seen_in(ram);
    assert_eq!(fresh.catalog.list_ids().unwrap(), []);
    assert_clean(&fresh);
}

#[test]
fn a_remote_is_this_volume_or_nothing() {
    let world = World::new(SEALED);
    let other = World::new(SEALED);
    let plain = World::new(PLAIN);
    let volume = &world.volume;
    let at = |name: &str, objects: &[(&str, Vec<u8>)]| {
        let location = StoreLocation::new(format!("memory://remotes-{name}"));
        let store = vellum_store::open_store(&location).unwrap();
        objects
            .iter()
            .for_each(|(key, bytes)| store.put_object(&ObjectKey::new(*key).unwrap(), bytes).unwrap());
        location
    };
    let config = |world: &World| world.ram.bytes(&ObjectKey::new("config").unwrap());
    for (name, objects, reason) in [
        ("another", vec![("config", config(&other))], "it holds another volume"),
        ("plain", vec![("config", config(&plain))], "it holds another volume"),
        ("photos", vec![("2026/a.jpg", b"jpeg".to_vec())], "objects that are not those of a volume"),
    ] {
        let error = refused(volume.add_remote("x", &at(name, &objects)));
        assert!(matches!(&error, VolumeError::OtherVolume { .. } | VolumeError::OccupiedStore(_)), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(volume.list_remotes().unwrap(), []);
    }
    assert!(matches!(refused(volume.find_remote(None)), VolumeError::NoRemotes));
    let empty = at("empty", &[]);
    assert_eq!(volume.add_remote("b", &empty).unwrap(), RemoteContent::Nothing);
    assert!(matches!(refused(volume.add_remote("b", &empty)), VolumeError::Exists { .. }));
    assert!(volume.add_remote("a/b", &empty).is_err());
    assert_eq!(volume.find_remote(None).unwrap().name, "b");
    volume.add_remote("a", &empty).unwrap();
    assert!(matches!(refused(volume.find_remote(None)), VolumeError::SeveralRemotes(_)));
    volume.rename_remote("b", "origin").unwrap();
    assert_eq!(volume.find_remote(None).unwrap().name, "origin");
    assert!(matches!(refused(volume.rename_remote("a", "origin")), VolumeError::Exists { .. }));
    volume.remove_remote("a").unwrap();
    let names: Vec<_> = volume.list_remotes().unwrap().into_iter().map(|remote| remote.name).collect();
    assert_eq!(names, ["origin"]);
    let remote = volume.find_remote(None).unwrap();
    let nothing = pull_snapshots(volume, &remote, PullRequest::default(), &ProgressMeter::default());
    assert!(matches!(refused(nothing), VolumeError::EmptyRemote(_)));
    // A fork has the same remotes.
    assert_eq!(world.worktree("fork").list_remotes().unwrap(), [remote]);
}

#[test]
fn a_fork_has_no_remotes_of_an_attempt_that_was_killed() {
    let world = World::new(PLAIN);
    world.volume.add_remote("origin", &StoreLocation::new("memory://copied")).unwrap();
    let state = world.empty_state();
    // One that is only begun, and one that was removed since.
    std::fs::create_dir_all(state.join("remotes/begun")).unwrap();
    std::fs::create_dir_all(state.join("remotes/gone")).unwrap();
    state.write_file("remotes/gone/worktree.json", b"{}").unwrap();
    let fork = world.volume.fork_into(&state, "fork").unwrap();
    assert_eq!(fork.list_remotes().unwrap(), world.volume.list_remotes().unwrap());
}

#[test]
fn the_remotes_of_a_fork_belong_to_the_owner_of_its_directory() {
    const OWNER: u32 = 61235;
    assert!(rustix::process::geteuid().is_root(), "this test gives directories to another user");
    let world = World::new(PLAIN);
    world.volume.add_remote("origin", &StoreLocation::new("memory://owned")).unwrap();
    let state = world.empty_state();
    std::os::unix::fs::chown(state.path(), Some(OWNER), Some(OWNER)).unwrap();
    world.volume.fork_into(&state, "fork").unwrap();
    for name in ["remotes", "remotes/origin", "remotes/origin/worktree.json"] {
        assert_eq!(std::fs::metadata(state.join(name)).unwrap().uid(), OWNER, "{name}");
    }
}

#[test]
fn a_remote_can_be_opened_with_the_secrets_of_the_volume() {
    let dir = crate::world::temporary();
    let root = dir.path().join("main");
    std::fs::create_dir(&root).unwrap();
    let state = StateDir::create(&root).unwrap();
    let ram = Arc::new(Ram::default());
    let made = Volume::init_volume_on(ram, &state, &crate::world::new_worktree("main", SEALED), || {
        panic!("a new volume asks for nothing")
    });
    let made = made.unwrap();
    let code = made.recovery.unwrap().to_text().to_string();
    let head = snapshot(&made.volume, &small(1), "one");
    let url = "memory://remotes-secrets";
    made.volume.add_remote("origin", &StoreLocation::new(url)).unwrap();
    let remote = made.volume.find_remote(None).unwrap();
    push_snapshots(&made.volume, &remote, &everything(), &ProgressMeter::default()).unwrap();
    assert_eq!(made.volume.resolve_snapshot("origin/main").unwrap().id, head);

    let root = dir.path().join("clone");
    std::fs::create_dir(&root).unwrap();
    let state = StateDir::create(&root).unwrap();
    let store = vellum_store::open_store(&StoreLocation::new(url)).unwrap();
    let new = crate::world::new_worktree("clone", SEALED);
    let clone = Volume::init_volume_on(store, &state, &new, || Ok(code.into_bytes().into())).unwrap().volume;
    assert_eq!(clone.resolve_snapshot("main").unwrap().id, head);
    small(1).assert_readable(&clone, clone.catalog.get_record(&head).unwrap().root);
    assert_clean(&clone);
}

#[test]
fn the_same_merge_made_on_two_machines_has_not_diverged() {
    let world = World::new(PLAIN);
    let volume = &world.volume;
    let base = snapshot(volume, &small(1), "base");
    let root = volume.catalog.fetch_record(&base).unwrap().root;
    let commit = |parents: &[SnapshotId], note: &str| {
        let record = record_on(volume, None, root, note);
        volume.commit_snapshot(vellum_volume::SnapshotRecord { parents: parents.to_vec(), ..record }).unwrap()
    };
    let a = commit(&[base], "a");
    let b = commit(&[base], "b");
    let there = commit(&[a, b], "merged there");
    volume.add_remote("origin", &StoreLocation::new("memory://twins")).unwrap();
    let remote = volume.find_remote(None).unwrap();
    push_snapshots(volume, &remote, &everything(), &ProgressMeter::default()).unwrap();
    let here = commit(&[b, a], "merged here");
    assert_eq!(volume.read_head().unwrap(), Some(here));
    let standing = compare_with_remote(volume, &remote).unwrap();
    assert_eq!((standing.there, standing.ahead, standing.behind), (Some(there), 0, 0));
    commit(&[here], "onward");
    let standing = compare_with_remote(volume, &remote).unwrap();
    assert_eq!((standing.ahead, standing.behind), (1, 0));
}
