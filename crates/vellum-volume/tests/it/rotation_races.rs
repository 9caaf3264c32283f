//! Rotations that are killed at any operation, and those beside which others write, at each operation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vellum_crypto::{RecoveryCode, SlotSecret};
use vellum_testkit::{FaultTrigger, FaultyStore, StoreFault};
use vellum_types::SnapshotId;
use vellum_volume::device;
use vellum_volume::refs::RefKind;
use vellum_volume::{Result, Volume, VolumeError};

use crate::model::small;
use crate::ram::{Hooked, Image, Ram};
use crate::rotation::{TestDevice, add_device, attach, rotate};
use crate::world::{SEALED, World, assert_clean, bury_sessions, refused, snapshot};

/// A volume with a device, one that was revoked, a snapshot and a tag.
struct Scene {
    world: World,
    laptop: TestDevice,
    desk: TestDevice,
    old: SnapshotId,
    image: Image,
}

fn scene() -> Scene {
    let world = World::new(SEALED);
    let old = snapshot(&world.volume, &small(1), "old");
    world.volume.add_tag("v1", old).unwrap();
    let laptop = add_device(&world, "laptop");
    let desk = add_device(&world, "desk");
    device::revoke_device(&world.volume, "desk", false).unwrap();
    let image = world.ram.image();
    Scene { world, laptop, desk, old, image }
}

/// A device as it is before it has seen a store: each store of a test has keys of its own.
fn forget_store(device: &TestDevice) {
    for file in ["key-epochs", "seen.json"] {
        let _ = std::fs::remove_file(device.volume.state.join(file));
    }
}

/// Checks that a store is whole, that its key was changed, and that no ref is sealed with an earlier one.
fn assert_rotated(scene: &Scene, ram: &Arc<Ram>) {
    forget_store(&scene.laptop);
    forget_store(&scene.desk);
    bury_sessions(ram, &scene.world.seen_in(ram.clone()));
    let reader = scene.world.seen_in(ram.clone());
    small(1).assert_readable(&reader, reader.catalog.fetch_record(&scene.old).unwrap().root);
    assert_clean(&reader);
    let status = reader.epochs.read_status().unwrap();
    assert!(status.number > 0 && status.is_finished);
    let laptop = Volume::open_on(ram.clone(), &scene.laptop.volume.state).unwrap();
    assert!(laptop.read_head().is_ok());
    let desk = Volume::open_on(ram.clone(), &scene.desk.volume.state).unwrap();
    assert!(matches!(refused(desk.read_head()), VolumeError::Revoked { .. }));
    for kind in [RefKind::Worktree, RefKind::Tag] {
        for object in reader.refs.list_ref_objects(kind).unwrap() {
            assert_eq!(ram.bytes(&object)[..4], status.number.to_le_bytes(), "{object}");
        }
    }
}

#[test]
fn a_rotation_killed_at_any_operation_is_finished_by_the_next() {
    let scene = scene();
    for fault in [StoreFault::Before, StoreFault::After] {
        for at in 0.. {
            let ram = Ram::of(scene.image.clone());
            let faulty = Arc::new(FaultyStore::new(ram.clone()));
            let volume = scene.world.seen_in(faulty.clone());
            // It has the key only: nothing but what it keeps gives it the new one.
            std::fs::remove_file(volume.state.join("slot-key")).unwrap();
            let start = faulty.operation_count();
            faulty.set_script([
                (FaultTrigger::Nth(start + at), fault),
                (FaultTrigger::From(start + at + 1), StoreFault::Before),
            ]);
            let outcome = rotate(&volume);
            let done = faulty.operation_count() <= start + at;
            assert!(outcome.is_ok() || !done, "{:?}", outcome.err());
            // In between, the others work.
            forget_store(&scene.laptop);
            let laptop = Volume::open_on(ram.clone(), &scene.laptop.volume.state).unwrap();
            snapshot(&laptop, &small(2), "in between");
            let again = Volume::open_on(ram.clone(), &volume.state).unwrap();
            let report = rotate(&again).unwrap();
            assert!(report.epoch == 1 || !report.is_resumed, "{report:?}");
            assert_rotated(&scene, &ram);
            if done {
                assert!(at > 10, "{at} operations");
                break;
            }
        }
    }
}

#[test]
fn a_lost_answer_to_any_operation_of_a_rotation_does_no_harm() {
    let scene = scene();
    for at in 0.. {
        let ram = Ram::of(scene.image.clone());
        let faulty = Arc::new(FaultyStore::new(ram.clone()));
        let volume = scene.world.seen_in(faulty.clone());
        let start = faulty.operation_count();
        faulty.set_script([(FaultTrigger::Nth(start + at), StoreFault::After)]);
        let outcome = rotate(&volume);
        if outcome.is_err() {
            rotate(&volume).unwrap();
        }
        assert_rotated(&scene, &ram);
        if faulty.operation_count() <= start + at {
            break;
        }
    }
}

/// Runs `act` on a store beside which `meanwhile` happens once, before the operation with each number in turn; then `then`
/// with what `act` returned.
fn interleave<T>(
    scene: &Scene,
    image: &Image,
    act: impl Fn(&Volume) -> Result<T>,
    meanwhile: impl Fn(&Arc<Ram>) + Send + Sync + Clone + 'static,
    then: impl Fn(&Arc<Ram>, Result<T>),
) {
    for at in 0.. {
        let ram = Ram::of(image.clone());
        let inside = ram.clone();
        let armed = Arc::new(AtomicBool::new(false));
        let first = Arc::new(parking_lot::Mutex::new(None::<u64>));
        let is_armed = armed.clone();
        let other = meanwhile.clone();
        let happened = Arc::new(AtomicBool::new(false));
        let happens = happened.clone();
        let hooked = Hooked::new(ram.clone(), move |number| {
            if !is_armed.load(Ordering::SeqCst) {
                return;
            }
            let begun = *first.lock().get_or_insert(number);
            if number == begun + at {
                happens.store(true, Ordering::SeqCst);
                other(&inside);
            }
        });
        let volume = Volume::open_on(hooked, &scene.world.newcomer()).unwrap();
        armed.store(true, Ordering::SeqCst);
        let outcome = act(&volume);
        armed.store(false, Ordering::SeqCst);
        then(&ram, outcome);
        if !happened.load(Ordering::SeqCst) {
            assert!(at > 2, "{at} operations");
            break;
        }
    }
}

/// Rotates a store, as the laptop.
fn rotate_as_laptop(scene: &Scene) -> impl Fn(&Arc<Ram>) + Send + Sync + Clone + 'static {
    let state = scene.laptop.volume.state.clone();
    let copies = scene.world.dir.path().join("laptop-copies");
    let _ = std::fs::create_dir(&copies);
    move |ram| {
        // Each store has keys of its own: the laptop begins anew with each.
        for file in ["key-epochs", "seen.json"] {
            let _ = std::fs::remove_file(state.join(file));
        }
        rotate(&Volume::open_on(ram.clone(), &state).unwrap()).unwrap();
    }
}

#[test]
fn a_snapshot_beside_which_the_key_is_changed_is_whole_and_sealed_with_the_new_key() {
    let scene = scene();
    let act = |volume: &Volume| {
        let id = snapshot(volume, &small(2), "beside a rotation");
        volume.add_tag("v2", id)?;
        Ok(id)
    };
    interleave(&scene, &scene.image, act, rotate_as_laptop(&scene), |ram, outcome| {
        let id = outcome.unwrap();
        if ram.keys("key-epochs").is_empty() {
            return;
        }
        assert_rotated(&scene, ram);
        let reader = scene.world.seen_in(ram.clone());
        small(2).assert_readable(&reader, reader.catalog.fetch_record(&id).unwrap().root);
        assert_eq!(reader.list_tags().unwrap().iter().filter(|(_, target)| *target == id).count(), 1);
        let record = vellum_store::ObjectKey::new(format!("snapshots/{id}")).unwrap();
        let epoch = u32::from_le_bytes(ram.bytes(&record)[..4].try_into().unwrap());
        // Of the first key only if the rotation found it there.
        let known = reader.catalog.fetch_record(&id).is_ok();
        assert!(epoch == 1 || known);
    });
}

#[test]
fn a_rotation_beside_which_others_write_seals_what_they_wrote() {
    let scene = scene();
    let state = scene.laptop.volume.state.clone();
    let write = move |ram: &Arc<Ram>| {
        for file in ["key-epochs", "seen.json"] {
            let _ = std::fs::remove_file(state.join(file));
        }
        let laptop = Volume::open_on(ram.clone(), &state).unwrap();
        let id = snapshot(&laptop, &small(2), "beside a rotation");
        laptop.add_tag("v2", id).unwrap();
    };
    interleave(&scene, &scene.image, rotate, write, |ram, outcome| {
        outcome.unwrap();
        assert_rotated(&scene, ram);
        let reader = scene.world.seen_in(ram.clone());
        for (_, id) in reader.list_tags().unwrap() {
            let record = reader.catalog.fetch_record(&id).unwrap();
            let seed = if id == scene.old { 1 } else { 2 };
            small(seed).assert_readable(&reader, record.root);
        }
    });
}

#[test]
fn of_two_rotations_at_once_one_wins_and_the_other_says_so_or_follows() {
    let scene = scene();
    interleave(&scene, &scene.image, rotate, rotate_as_laptop(&scene), |ram, outcome| {
        assert_rotated(&scene, ram);
        match outcome {
            Ok(report) => assert!((1..=2).contains(&report.epoch)),
            Err(error) => assert!(matches!(error, VolumeError::Raced(_)), "{error}"),
        }
    });
}

#[test]
fn a_device_that_is_added_beside_a_rotation_has_the_key_or_is_withdrawn() {
    let scene = scene();
    let code = RecoveryCode::generate();
    let act = |volume: &Volume| device::add_device(volume, "new", SlotSecret::Recovery(&code)).map(|_| ());
    interleave(&scene, &scene.image, act, rotate_as_laptop(&scene), |ram, outcome| {
        let attached = attach(&scene.world, ram, &format!("new.{}", ram.keys("packs").len()), &code);
        match outcome {
            Ok(()) => drop(attached.unwrap()),
            Err(error) => {
                assert!(matches!(error, VolumeError::Raced(_)), "{error}");
                assert!(attached.is_err());
            }
        }
    });
}

#[test]
fn a_device_that_is_revoked_beside_a_rotation_does_not_have_the_key_at_its_end() {
    let scene = scene();
    let state = scene.world.newcomer();
    let revoke = move |ram: &Arc<Ram>| {
        for file in ["key-epochs", "seen.json"] {
            let _ = std::fs::remove_file(state.join(file));
        }
        device::revoke_device(&Volume::open_on(ram.clone(), &state).unwrap(), "laptop", false).unwrap();
    };
    interleave(&scene, &scene.image, rotate, revoke, |ram, outcome| {
        let report = outcome.unwrap();
        forget_store(&scene.laptop);
        let laptop = Volume::open_on(ram.clone(), &scene.laptop.volume.state).unwrap();
        let is_revoked = device::list_devices(&scene.world.seen_in(ram.clone()))
            .unwrap()
            .devices
            .iter()
            .any(|device| device.name == "laptop" && device.state == device::DeviceState::Revoked);
        // One that was revoked after the last look has the key until the next rotation.
        if is_revoked && !report.recipients.contains(&"device laptop".to_owned()) {
            assert!(laptop.read_head().is_err());
        }
    });
}
