//! Devices: what their secrets open, what is left of one that was revoked, and what a store can do to them.

use std::sync::Arc;

use vellum_crypto::{RecoveryCode, SlotSecret, VolumeKeys};
use vellum_host::ProgressMeter;
use vellum_store::ObjectKey;
use vellum_testkit::{FaultTrigger, FaultyStore, StoreFault};
use vellum_types::ErrorKind;
use vellum_volume::device::{self, DeviceState};
use vellum_volume::remote::{PushRequest, push_to_volume};
use vellum_volume::volume::{InitialisedVolume, NewWorktree};
use vellum_volume::{Result, Volume, VolumeError, keyring};
use zeroize::Zeroizing;

use crate::model::small;
use crate::ram::{Image, Ram};
use crate::world::{SEALED, World, assert_clean, new_worktree, snapshot, verified};

/// Adds a device with a new code.
fn add(volume: &Volume, name: &str) -> Result<RecoveryCode> {
    let code = RecoveryCode::generate();
    device::add_device(volume, name, SlotSecret::Recovery(&code)).map(|_| code)
}

/// Attaches a directory as a device does that has this code.
fn attach(world: &World, store: &Arc<Ram>, code: &RecoveryCode) -> Result<InitialisedVolume> {
    let given = Zeroizing::new(code.to_text().as_bytes().to_vec());
    let new = NewWorktree { is_in_device_line: true, ..new_worktree("work", SEALED) };
    Volume::init_volume_on(store.clone(), &world.empty_state(), &new, || Ok(given))
}

/// Name and state of each device.
fn states(volume: &Volume) -> Vec<(String, DeviceState)> {
    let listing = device::list_devices(volume).unwrap();
    listing.devices.into_iter().map(|device| (device.name, device.state)).collect()
}

fn slot_object(volume: &Volume, name: &str) -> ObjectKey {
    let devices = device::list_devices(volume).unwrap().devices;
    devices.into_iter().find(|device| device.name == name).unwrap().slot
}

fn record_object(volume: &Volume, name: &str) -> ObjectKey {
    ObjectKey::new(format!("devices/{}", slot_object(volume, name).name())).unwrap()
}

#[test]
fn a_device_opens_the_volume_and_has_worktrees_of_its_own() {
    let world = World::new(SEALED);
    let id = snapshot(&world.volume, &small(1), "");
    let code = add(&world.volume, "laptop").unwrap();
    let other = add(&world.volume, "desk").unwrap();
    let made = attach(&world, &world.ram, &code).unwrap();
    assert_eq!(made.volume.worktree.worktree, "laptop.work");
    assert_eq!(made.volume.worktree.device.as_deref(), Some("laptop"));
    assert_eq!(made.volume.catalog.list_ids().unwrap(), [id]);
    // The same name on another device is another worktree; a fork belongs to the device that makes it.
    assert_eq!(attach(&world, &world.ram, &other).unwrap().volume.worktree.worktree, "desk.work");
    let fork = made.volume.fork_into(&world.empty_state(), "side").unwrap();
    assert_eq!(fork.worktree.device.as_deref(), Some("laptop"));
    let active = |name: &str| (name.to_owned(), DeviceState::Active);
    assert_eq!(states(&world.volume), [active("desk"), active("laptop")]);
    assert_clean(&world.volume);
}

#[test]
fn who_names_the_worktree_or_opens_it_otherwise_has_the_name_as_it_is() {
    let world = World::new(SEALED);
    let code = add(&world.volume, "laptop").unwrap();
    let given = Zeroizing::new(code.to_text().as_bytes().to_vec());
    let named =
        Volume::init_volume_on(world.ram.clone(), &world.empty_state(), &new_worktree("x", SEALED), || {
            Ok(given)
        });
    assert_eq!(named.unwrap().volume.worktree.worktree, "x");
    let recovery = keyring::add_recovery_slot(&world.volume).unwrap();
    let made = attach(&world, &world.ram, &recovery).unwrap().volume.worktree;
    assert_eq!((made.worktree.as_str(), made.device), ("work", None));
}

#[test]
fn a_revoked_device_is_shut_out_and_its_name_is_free() {
    let world = World::new(SEALED);
    let code = add(&world.volume, "laptop").unwrap();
    add(&world.volume, "desk").unwrap();
    attach(&world, &world.ram, &code).unwrap();
    let revoked = device::revoke_device(&world.volume, "laptop", false).unwrap();
    assert_eq!(revoked.device.state, DeviceState::Active);
    assert_eq!(revoked.worktrees.len(), 1);
    assert!(matches!(attach(&world, &world.ram, &code).err(), Some(VolumeError::WrongSecret)));
    let again = device::revoke_device(&world.volume, "laptop", false).unwrap();
    assert_eq!(again.device.state, DeviceState::Revoked);
    let new = add(&world.volume, "laptop").unwrap();
    let expected = [DeviceState::Active, DeviceState::Revoked];
    let mut found: Vec<_> = states(&world.volume).into_iter().filter(|(name, _)| name == "laptop").collect();
    found.sort_by_key(|(_, state)| *state == DeviceState::Revoked);
    assert!(found.iter().map(|(_, state)| *state).eq(expected), "{found:?}");
    let name = attach(&world, &world.ram, &new).err().unwrap();
    assert!(matches!(name, VolumeError::Exists { kind: "worktree", .. }), "its worktree stayed: {name}");
    // Of several with one name, the one that is not revoked yet goes.
    let last = device::revoke_device(&world.volume, "laptop", false).unwrap();
    assert_eq!(last.device.state, DeviceState::Active);
    assert!(
        states(&world.volume).iter().all(|(name, state)| name == "desk" || *state == DeviceState::Revoked)
    );
    assert_clean(&world.volume);
}

#[test]
fn names_that_are_in_use_are_refused() {
    let world = World::new(SEALED);
    world.worktree("phone.main");
    add(&world.volume, "laptop").unwrap();
    for (name, kind) in [("laptop", "device"), ("phone", "worktree")] {
        let error = add(&world.volume, name).err().unwrap();
        assert!(matches!(&error, VolumeError::Exists { kind: found, .. } if *found == kind), "{error}");
    }
    assert!(matches!(add(&world.volume, "a.b").err(), Some(VolumeError::BadName { .. })));
    assert!(matches!(
        device::revoke_device(&world.volume, "nobody", true).err(),
        Some(VolumeError::NoSuchRef { kind: "device", .. })
    ));
}

#[test]
fn the_device_at_work_and_the_last_slot_are_revoked_by_force_only() {
    let world = World::new(SEALED);
    for slot in keyring::list_key_slots(&*world.ram).unwrap() {
        keyring::remove_key_slot(&world.volume, slot.0.name()).unwrap();
    }
    let code = add(&world.volume, "laptop").unwrap();
    let refused = |volume: &Volume| match device::revoke_device(volume, "laptop", false).err() {
        Some(VolumeError::DeviceNeeded { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert!(refused(&world.volume).contains("the last one"));
    add(&world.volume, "desk").unwrap();
    let own = attach(&world, &world.ram, &code).unwrap().volume;
    assert!(refused(&own).contains("this worktree"));
    device::revoke_device(&own, "laptop", true).unwrap();
    // It has the volume's key, and is no less able to work than before.
    snapshot(&own, &small(2), "");
    assert_clean(&own);
}

#[test]
fn no_more_slots_are_made_than_are_tried() {
    let world = World::new(SEALED);
    while world.ram.keys("keys").len() < 64 {
        keyring::add_recovery_slot(&world.volume).unwrap();
    }
    assert!(matches!(add(&world.volume, "laptop").err(), Some(VolumeError::TooManySlots(64))));
    assert!(world.ram.keys("devices").is_empty());
}

/// Runs something on a store that fails at its operation `at` and is gone from then on; whether it got that far.
fn killed_at(world: &World, at: u64, fault: StoreFault, run: impl FnOnce(&Volume) -> Result<()>) -> bool {
    let faulty = Arc::new(FaultyStore::new(world.ram.clone()));
    let volume = Volume::open_on(faulty.clone(), &world.volume.state).unwrap();
    let at = faulty.operation_count() + at;
    faulty.set_script([(FaultTrigger::Nth(at), fault), (FaultTrigger::From(at + 1), StoreFault::Before)]);
    let outcome = run(&volume);
    let is_killed = faulty.operation_count() > at;
    assert!(is_killed || outcome.is_ok(), "{outcome:?}");
    is_killed
}

#[test]
fn adding_killed_at_any_operation_leaves_a_device_or_nothing() {
    for fault in [StoreFault::Before, StoreFault::After] {
        for at in 0.. {
            let world = World::new(SEALED);
            let code = RecoveryCode::generate();
            let is_killed = killed_at(&world, at, fault, |volume| {
                device::add_device(volume, "laptop", SlotSecret::Recovery(&code)).map(|_| ())
            });
            if !is_killed {
                assert!(at > 4, "{at} operations");
                break;
            }
            let volume = world.again();
            match states(&volume).as_slice() {
                [] => assert!(add(&volume, "laptop").is_ok(), "operation {at}: the name is free"),
                [(_, DeviceState::Active)] => {
                    let made = attach(&world, &world.ram, &code).unwrap().volume;
                    assert_eq!(made.worktree.device.as_deref(), Some("laptop"), "operation {at}");
                    device::revoke_device(&volume, "laptop", false).unwrap();
                }
                other => panic!("operation {at}: {other:?}"),
            }
            assert_clean(&volume);
        }
    }
}

#[test]
fn revoking_killed_at_any_operation_is_finished_by_the_next_and_nothing_is_half_revoked() {
    for fault in [StoreFault::Before, StoreFault::After] {
        for at in 0.. {
            let world = World::new(SEALED);
            let code = add(&world.volume, "laptop").unwrap();
            let revoke = |volume: &Volume| device::revoke_device(volume, "laptop", false).map(|_| ());
            let is_killed = killed_at(&world, at, fault, revoke);
            let volume = world.again();
            let is_open = attach(&world, &world.ram, &code).is_ok();
            let shown = if is_open { DeviceState::Active } else { DeviceState::Revoked };
            assert_eq!(states(&volume), [("laptop".to_owned(), shown)], "operation {at}");
            revoke(&volume).unwrap();
            assert!(attach(&world, &world.ram, &code).is_err());
            assert_eq!(world.ram.keys("keys").len(), 1, "the recovery code's is left");
            assert_clean(&volume);
            if !is_killed {
                assert!(at > 4, "{at} operations");
                break;
            }
        }
    }
}

#[test]
fn a_slot_that_was_put_back_opens_nothing() {
    let world = World::new(SEALED);
    let code = add(&world.volume, "laptop").unwrap();
    let slot = slot_object(&world.volume, "laptop");
    let kept = world.ram.bytes(&slot);
    device::revoke_device(&world.volume, "laptop", false).unwrap();
    world.ram.force(&slot, &kept);
    assert!(matches!(attach(&world, &world.ram, &code).err(), Some(VolumeError::RemovedSlot)));
    assert_eq!(states(&world.volume), [("laptop".to_owned(), DeviceState::Revoked)]);
}

#[test]
fn forged_records_name_no_device_and_hide_none() {
    let world = World::new(SEALED);
    let code = add(&world.volume, "laptop").unwrap();
    add(&world.volume, "desk").unwrap();
    let own = record_object(&world.volume, "laptop");
    let good = world.ram.bytes(&own);
    let another = world.ram.bytes(&record_object(&world.volume, "desk"));
    let other = World::new(SEALED);
    add(&other.volume, "laptop").unwrap();
    let foreign = other.ram.bytes(&record_object(&other.volume, "laptop"));
    for forged in [&b""[..], b"junk", &good[..good.len() - 1], &another, &foreign, &[0; 2000]] {
        world.ram.force(&own, forged);
        let listing = device::list_devices(&world.volume).unwrap();
        assert_eq!(listing.devices.len(), 1, "the other one is still there");
        assert_eq!(listing.damaged.len(), 1);
        assert_eq!(listing.damaged[0].0, own);
        assert_eq!(attach(&world, &world.ram, &code).err().unwrap().kind(), ErrorKind::Corrupt);
        let found = verified(&world.volume);
        assert!(found.findings.iter().any(|found| found.object == own.as_str()), "{found:?}");
    }
    device::revoke_device(&world.volume, "desk", false).unwrap();
    add(&world.volume, "phone").unwrap();
    assert_eq!(states(&world.volume).len(), 2);
}

#[test]
fn what_the_store_loses_of_a_device_is_noticed() {
    let world = World::new(SEALED);
    add(&world.volume, "laptop").unwrap();
    assert_clean(&world.volume);
    let slot = slot_object(&world.volume, "laptop");
    let record = record_object(&world.volume, "laptop");
    let is_reported =
        |key: &ObjectKey| verified(&world.volume).findings.iter().any(|found| found.object == key.as_str());
    let kept = world.ram.bytes(&record);
    world.ram.omit(&record);
    assert!(is_reported(&record));
    world.ram.force(&record, &kept);
    world.ram.omit(&slot);
    assert!(is_reported(&slot));
    assert_eq!(states(&world.volume), [("laptop".to_owned(), DeviceState::Lost)]);
    device::revoke_device(&world.volume, "laptop", false).unwrap();
    assert!(!is_reported(&slot));
    assert_eq!(states(&world.volume), [("laptop".to_owned(), DeviceState::Revoked)]);
}

#[test]
fn devices_and_their_revocation_go_with_a_push() {
    let world = World::new(SEALED);
    snapshot(&world.volume, &small(1), "");
    let code = add(&world.volume, "laptop").unwrap();
    let config = ObjectKey::new("config").unwrap();
    let ram = Ram::of(Image::from([(config.clone(), world.ram.bytes(&config).into())]));
    let target = world.seen_in(ram.clone());
    let everything = PushRequest { worktrees: vec!["main".into()], ..PushRequest::default() };
    let push = || push_to_volume(&world.volume, &target, &everything, &ProgressMeter::default()).unwrap();
    push();
    assert_eq!(states(&target), [("laptop".to_owned(), DeviceState::Active)]);
    assert_eq!(attach(&world, &ram, &code).unwrap().volume.worktree.worktree, "laptop.work");
    device::revoke_device(&world.volume, "laptop", false).unwrap();
    assert_eq!(states(&target), [("laptop".to_owned(), DeviceState::Active)], "until the next push");
    push();
    assert_eq!(states(&target), [("laptop".to_owned(), DeviceState::Revoked)]);
    assert!(attach(&world, &ram, &code).is_err());
    assert_clean(&target);
}

#[test]
fn names_of_devices_do_not_show_without_the_key() {
    let world = World::new(SEALED);
    add(&world.volume, "unmistakable").unwrap();
    for (key, bytes) in world.ram.image() {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(!text.contains("unmistakable") && !key.as_str().contains("unmistakable"), "{key}");
    }
    let stranger = VolumeKeys::for_plain(world.volume.config.volume);
    let slot = slot_object(&world.volume, "unmistakable");
    let found = device::find_device_of_slot(&*world.volume.objects, &stranger, &slot);
    assert_eq!(found.err().unwrap().kind(), ErrorKind::Corrupt);
}
