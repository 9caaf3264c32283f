//! Refs: races, rollback, removal, forgery, names; the worktrees and tags that are made of them.

use vellum_store::{ObjectKey, ObjectStore};
use vellum_types::SnapshotId;
use vellum_volume::refs::{RefKind, check_ref_name};
use vellum_volume::{StateDir, Volume, VolumeError};

use crate::model::small;
use crate::world::{PLAIN, SEALED, World, assert_clean, refused, snapshot, verified};

fn only(world: &World, folder: &str) -> ObjectKey {
    let keys = world.ram.keys(folder);
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys[0].clone()
}

#[test]
fn no_change_of_a_ref_is_lost_among_threads() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 25;
    let world = World::new(SEALED);
    let volumes: Vec<_> = (0..THREADS).map(|number| world.worktree(&format!("w{number}"))).collect();
    let count = |volume: &Volume| {
        volume.refs.update_ref(RefKind::Tag, "count", |old| {
            let number = old.map_or(0, |old| u32::from_le_bytes(old.value[..4].try_into().unwrap()));
            Ok(Some((number + 1).to_le_bytes().to_vec()))
        })
    };
    std::thread::scope(|scope| {
        for volume in &volumes {
            scope.spawn(move || (0..ROUNDS).for_each(|_| count(volume).unwrap()));
        }
    });
    let end = world.volume.refs.get_ref(RefKind::Tag, "count").unwrap().unwrap();
    assert_eq!(end.value, u32::try_from(THREADS * ROUNDS).unwrap().to_le_bytes());
    assert_eq!(end.counter, (THREADS * ROUNDS) as u64);
}

#[test]
fn threads_of_one_worktree_remember_what_each_of_them_saw() {
    let world = World::new(SEALED);
    let target = snapshot(&world.volume, &small(1), "");
    std::thread::scope(|scope| {
        for number in 0..4 {
            let volume = world.again();
            scope.spawn(move || {
                (0..5).for_each(|tag| volume.add_tag(&format!("t{number}-{tag}"), target).unwrap());
            });
        }
    });
    let seen = world.volume.state.read_seen_counters().unwrap();
    assert_eq!(seen.keys().filter(|key| key.starts_with("refs/tag/")).count(), 20);
}

#[test]
fn threads_that_share_a_volume_see_no_rollback_in_each_others_changes() {
    let world = World::new(SEALED);
    let volume = &world.volume;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for number in 0..100_u8 {
                    volume.refs.update_ref(RefKind::Tag, "shared", |_| Ok(Some(vec![number]))).unwrap();
                    volume.refs.get_ref(RefKind::Tag, "shared").unwrap().unwrap();
                    assert_eq!(volume.refs.list_refs(RefKind::Tag).unwrap().len(), 1);
                }
            });
        }
    });
}

#[test]
fn an_older_head_is_refused() {
    let world = World::new(SEALED);
    snapshot(&world.volume, &small(1), "one");
    let key = only(&world, "refs/worktree");
    let old = world.ram.bytes(&key);
    snapshot(&world.volume, &small(2), "two");
    world.ram.force(&key, &old);
    for volume in [&world.volume, &world.again()] {
        assert!(matches!(refused(volume.read_head()), VolumeError::RolledBack { .. }));
        assert!(matches!(refused(volume.list_worktrees()), VolumeError::RolledBack { .. }));
        assert!(refused(volume.set_head(SnapshotId([1; 32]))).to_string().contains("rolled back"));
        assert!(verified(volume).findings.iter().any(|finding| finding.object == key.as_str()));
    }
    let other = world.worktree("other");
    assert!(
        matches!(refused(other.list_worktrees()), VolumeError::RolledBack { .. }),
        "a fork remembers, too"
    );
}

#[test]
fn a_head_that_vanished_is_noticed() {
    let world = World::new(SEALED);
    snapshot(&world.volume, &small(1), "one");
    let key = only(&world, "refs/worktree");
    world.ram.delete_object(&key).unwrap();
    for volume in [&world.volume, &world.again()] {
        assert!(refused(volume.read_head()).to_string().contains("missing"));
        assert!(refused(volume.list_worktrees()).to_string().contains(key.as_str()));
        assert!(verified(volume).findings.iter().any(|finding| finding.object == key.as_str()));
    }
}

#[test]
fn a_listing_that_omits_a_ref_hides_it_from_nobody_who_saw_it() {
    let world = World::new(SEALED);
    let id = snapshot(&world.volume, &small(1), "one");
    world.volume.add_tag("v1", id).unwrap();
    world.ram.omit(&only(&world, "refs/tag"));
    assert_eq!(world.volume.list_tags().unwrap(), [("v1".into(), id)]);
    assert_eq!(world.again().list_tags().unwrap(), [("v1".into(), id)]);
    assert!(matches!(refused(world.volume.forget_snapshot(&id)), VolumeError::InUse { .. }));
}

#[test]
fn a_ref_of_another_name_kind_or_volume_is_refused() {
    for encrypted in [SEALED, PLAIN] {
        let world = World::new(encrypted);
        let other = World::new(encrypted);
        let id = snapshot(&world.volume, &small(1), "");
        world.volume.add_tag("one", id).unwrap();
        world.volume.add_tag("two", id).unwrap();
        let tags = world.ram.keys("refs/tag");
        let heads = world.ram.keys("refs/worktree");
        let foreign = other.ram.bytes(&only(&other, "refs/worktree"));
        let own = world.ram.image();
        for (key, bytes) in [
            (&tags[0], &*own[&tags[1]]),
            (&tags[0], &*own[&heads[0]]),
            (&heads[0], &*own[&tags[0]]),
            (&heads[0], &foreign),
            (&heads[0], b""),
        ] {
            world.ram.become_like(&own);
            world.ram.force(key, bytes);
            let kind = if key == &heads[0] { RefKind::Worktree } else { RefKind::Tag };
            assert!(matches!(refused(world.volume.refs.list_refs(kind)), VolumeError::Damaged { .. }));
            assert!(verified(&world.volume).findings.iter().any(|finding| finding.object == key.as_str()));
        }
    }
}

#[test]
fn a_tag_that_others_removed_and_made_again_is_no_rollback() {
    let world = World::new(SEALED);
    let id = snapshot(&world.volume, &small(1), "");
    for round in 0..3 {
        // Each time another worktree that has never seen the tag.
        let fresh = world.seen_in(world.ram.clone());
        fresh.add_tag("v1", id).unwrap();
        assert_eq!(world.volume.list_tags().unwrap(), [("v1".into(), id)], "round {round}");
        let fresh = world.seen_in(world.ram.clone());
        assert_eq!(fresh.remove_tag("v1").unwrap(), Some(id));
        assert_eq!(world.volume.list_tags().unwrap(), []);
        assert!(matches!(refused(fresh.remove_tag("v1")), VolumeError::NoSuchRef { .. }));
    }
    assert_clean(&world.volume);
}

#[test]
fn a_removed_tag_cannot_be_brought_back() {
    let world = World::new(SEALED);
    let id = snapshot(&world.volume, &small(1), "");
    world.volume.add_tag("v1", id).unwrap();
    let key = only(&world, "refs/tag");
    let old = world.ram.bytes(&key);
    world.volume.remove_tag("v1").unwrap();
    world.ram.force(&key, &old);
    assert!(matches!(refused(world.volume.list_tags()), VolumeError::RolledBack { .. }));
}

#[test]
fn tags_name_one_snapshot_until_they_are_removed() {
    let world = World::new(PLAIN);
    let one = snapshot(&world.volume, &small(1), "");
    let two = snapshot(&world.volume, &small(2), "");
    world.volume.add_tag("v1", one).unwrap();
    world.volume.add_tag("v1", one).unwrap();
    assert!(matches!(refused(world.volume.add_tag("v1", two)), VolumeError::Exists { kind: "tag", .. }));
    assert!(matches!(refused(world.volume.forget_snapshot(&one)), VolumeError::InUse { .. }));
    assert!(
        matches!(refused(world.volume.forget_snapshot(&two)), VolumeError::InUse { .. }),
        "the worktree stands on it"
    );
    assert_eq!(world.volume.remove_tag("v1").unwrap(), Some(one));
    world.volume.add_tag("v1", two).unwrap();
    world.volume.forget_snapshot(&one).unwrap();
}

#[test]
fn names_that_would_confuse_are_refused() {
    let long = "x".repeat(256);
    let id = "a".repeat(64);
    for name in
        ["", " ", "a b", "a\n", "\u{1b}[0m", "a~1", "a^", "@{1}", "a/b", "..\\", "-x", "HEAD", &long, &id]
    {
        assert!(matches!(refused(check_ref_name(name)), VolumeError::BadName { .. }), "{name:?}");
    }
    for name in ["main", "v1.0", "ä", "..", "deadbeef", &"x".repeat(255), "head"] {
        check_ref_name(name).unwrap();
    }
    let shown = refused(check_ref_name("\u{1b}]0;x")).to_string();
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
}

#[test]
fn a_worktree_is_renamed_with_its_own_file() {
    let world = World::new(SEALED);
    let id = snapshot(&world.volume, &small(1), "");
    let side = world.worktree("side");
    side.set_head(id).unwrap();
    world.volume.rename_worktree("side", "aside").unwrap();
    let names: Vec<_> = world.volume.list_worktrees().unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["aside", "main"]);
    let side = Volume::open_on(world.ram.clone(), &side.state).unwrap();
    assert_eq!((side.worktree.worktree.as_str(), side.read_head().unwrap()), ("aside", Some(id)));
    assert!(matches!(refused(world.volume.rename_worktree("aside", "main")), VolumeError::Exists { .. }));
    assert!(matches!(refused(world.volume.rename_worktree("side", "x")), VolumeError::NoSuchRef { .. }));
    assert!(matches!(refused(world.volume.rename_worktree("aside", "a b")), VolumeError::BadName { .. }));
    world.volume.rename_worktree("main", "first").unwrap();
    assert_eq!(world.again().read_head().unwrap(), Some(id));
    assert_clean(&world.again());
}

#[test]
fn a_worktree_renamed_to_its_own_name_stays() {
    let world = World::new(PLAIN);
    let id = snapshot(&world.volume, &small(1), "");
    assert!(matches!(refused(world.volume.rename_worktree("main", "main")), VolumeError::Exists { .. }));
    assert_eq!(world.again().read_head().unwrap(), Some(id));
}

#[test]
fn the_name_of_a_removed_worktree_is_free_again() {
    let world = World::new(SEALED);
    let id = snapshot(&world.volume, &small(1), "");
    let gone = world.worktree("side");
    assert_eq!(world.volume.remove_worktree("side").unwrap().head, None);
    assert!(matches!(refused(gone.read_head()), VolumeError::NoSuchRef { .. }));
    assert!(matches!(refused(gone.set_head(id)), VolumeError::NoSuchRef { .. }));
    assert!(matches!(refused(world.volume.remove_worktree("side")), VolumeError::NoSuchRef { .. }));
    let again = world.worktree("side");
    again.set_head(id).unwrap();
    assert_eq!(world.volume.read_worktree_head("side").unwrap().unwrap().head, Some(id));
    assert_clean(&world.volume);
}

#[test]
fn the_state_of_another_worktree_is_believed_only_if_it_is_still_that_worktree() {
    let world = World::new(PLAIN);
    let side = world.worktree("side");
    let head = world.volume.read_worktree_head("side").unwrap().unwrap();
    let found = |name| {
        world.volume.find_worktree_state(name, &head).unwrap().map(|state: StateDir| state.root().to_owned())
    };
    assert_eq!(found("side").as_deref(), Some(side.state.root()));
    assert_eq!(found("other"), None);
}
