//! Rotations: who reads on, who does not, and what a device that was revoked can still do to the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use vellum_crypto::{EpochKeys, KeyEpoch, MasterKey, RecordDomain, RecoveryCode, SlotSecret, VolumeKeys};
use vellum_host::ProgressMeter;
use vellum_store::{ObjectKey, ObjectStore};
use vellum_types::{ErrorKind, FieldWriter, SnapshotId};
use vellum_volume::device;
use vellum_volume::key_epochs::{RotationReport, bring_slots_up_to_date, preview_rotation, rotate_key};
use vellum_volume::refs::RefKind;
use vellum_volume::remote::{PushRequest, push_to_volume};
use vellum_volume::{Result, Volume, VolumeError, keyring};
use zeroize::Zeroizing;

use crate::collecting::collect;
use crate::model::{Tree, small};
use crate::ram::{Image, Ram};
use crate::world::{
    PLAIN, SEALED, World, assert_clean, new_worktree, record_on, refused, snapshot, verified,
};

pub fn rotate(volume: &Volume) -> Result<RotationReport> {
    rotate_key(volume, &ProgressMeter::default())
}

/// A machine with a slot of its own.
pub struct TestDevice {
    pub volume: Volume,
    pub code: RecoveryCode,
}

/// Attaches a directory with a code.
pub fn attach(world: &World, store: &Arc<Ram>, name: &str, code: &RecoveryCode) -> Result<Volume> {
    let given = Zeroizing::new(code.to_text().as_bytes().to_vec());
    let made =
        Volume::init_volume_on(store.clone(), &world.empty_state(), &new_worktree(name, SEALED), || {
            Ok(given)
        })?;
    Ok(made.volume)
}

/// Adds a device and lets it attach.
pub fn add_device(world: &World, name: &str) -> TestDevice {
    let code = RecoveryCode::generate();
    device::add_device(&world.volume, name, SlotSecret::Recovery(&code)).unwrap();
    let volume = attach(world, &world.ram, &format!("{name}.work"), &code).unwrap();
    TestDevice { volume, code }
}

/// The keys that a device has which opened the volume before any rotation.
fn first_keys(world: &World) -> VolumeKeys {
    let master = world.volume.state.read_master_key().unwrap().unwrap();
    VolumeKeys::for_encrypted(&master, world.volume.config.volume)
}

fn key(text: &str) -> ObjectKey {
    ObjectKey::new(text).unwrap()
}

/// The objects that are new or other than before.
fn changed_objects(before: &Image, after: &Image) -> Vec<ObjectKey> {
    let is_new = |(key, bytes): &(&ObjectKey, &Arc<[u8]>)| before.get(*key) != Some(*bytes);
    after.iter().filter(is_new).map(|(key, _)| key.clone()).collect()
}

/// Fails if `keys` open anything that is sealed in these objects. `reader` knows where it is.
fn assert_unreadable(reader: &Volume, ram: &Ram, objects: &[ObjectKey], keys: &VolumeKeys) {
    let opens =
        |domain, aad: &[u8], sealed: &[u8]| keys.open_record(domain, aad, sealed, &mut Vec::new()).is_ok();
    let mut sealed_parts = 0;
    for object in objects {
        let bytes = ram.bytes(object);
        let text = object.as_str();
        let folder = text.split('/').next().unwrap();
        sealed_parts += 1;
        match folder {
            "refs" => {
                let kind = text.split('/').nth(1).unwrap();
                let aad = [kind.as_bytes(), &[0], text.as_bytes()].concat();
                assert!(!opens(RecordDomain::Ref, &aad, &bytes), "{text}");
            }
            "snapshots" | "forgotten" => {
                let id: SnapshotId = object.name().parse().unwrap();
                assert!(!opens(RecordDomain::Snapshot, id.as_bytes(), &bytes), "{text}");
            }
            "operations" => assert!(!opens(RecordDomain::Operation, text.as_bytes(), &bytes), "{text}"),
            "sessions" => assert!(!opens(RecordDomain::Session, text.as_bytes(), &bytes), "{text}"),
            "index" => assert!(!opens(RecordDomain::Index, &bytes[..16], &bytes[16..]), "{text}"),
            "packs" => {
                let table_len =
                    u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap()) as usize;
                let table = &bytes[bytes.len() - 8 - table_len..bytes.len() - 8];
                assert!(!opens(RecordDomain::PackToc, &bytes[..16], table), "{text}");
                for entry in reader.blobs.read_pack_entries(&object.name().parse().unwrap()).unwrap() {
                    let sealed = &bytes[entry.offset as usize..][..entry.len as usize];
                    assert!(!opens(RecordDomain::Blob(entry.kind), entry.id.as_bytes(), sealed), "{text}");
                    sealed_parts += 1;
                }
            }
            "key-epochs" | "keys" | "slot-keys" | "devices" | "removed-keys" => {
                assert!(!opens(RecordDomain::Config, text.as_bytes(), &bytes), "{text}");
            }
            other => panic!("{other}: what is it sealed with?"),
        }
    }
    assert!(sealed_parts > 0);
}

fn try_snapshot(volume: &Volume, tree: &Tree, note: &str) -> Result<SnapshotId> {
    let mut session = volume.begin_write_session()?;
    let root = tree.store(volume, &session)?;
    session.flush_blobs()?;
    let id = volume.commit_snapshot(record_on(volume, volume.read_head()?, root, note))?;
    session.end_session()?;
    Ok(id)
}

#[test]
fn remaining_devices_go_on_and_the_revoked_one_reads_nothing_new() {
    let world = World::new(SEALED);
    let old = snapshot(&world.volume, &small(1), "before");
    let laptop = add_device(&world, "laptop");
    let desk = add_device(&world, "desk");
    snapshot(&desk.volume, &small(2), "of the device that goes");
    device::revoke_device(&world.volume, "desk", false).unwrap();
    let before = world.ram.image();
    let report = rotate(&world.volume).unwrap();
    assert_eq!((report.epoch, report.is_resumed, report.left_out.len()), (1, false, 0));
    assert_eq!(report.recipients.len(), 2, "the first recovery code and the laptop: {:?}", report.recipients);
    assert!(report.recipients.contains(&"device laptop".to_owned()));
    assert_eq!(report.refs, 3);

    // Those that had it open go on, and so does who opens it anew, or has the key only and is on the same machine.
    let by_main = snapshot(&world.volume, &small(3), "after");
    let by_laptop = snapshot(&laptop.volume, &small(4), "after, on the laptop");
    let fork = laptop.volume.fork_into(&world.empty_state(), "fork").unwrap();
    let readers = [
        world.again(),
        world.seen_in(world.ram.clone()),
        Volume::open_on(world.ram.clone(), &laptop.volume.state).unwrap(),
        attach(&world, &world.ram, "again", &laptop.code).unwrap(),
        fork,
    ];
    for reader in &readers {
        for (id, seed) in [(old, 1), (by_main, 3), (by_laptop, 4)] {
            small(seed).assert_readable(reader, reader.catalog.fetch_record(&id).unwrap().root);
        }
        assert_clean(reader);
    }

    // The revoked one is told, whatever it tries, and its keys open nothing of what is new.
    let revoked = |error: VolumeError| assert!(matches!(error, VolumeError::Revoked { .. }), "{error}");
    revoked(refused(desk.volume.read_head()));
    revoked(refused(try_snapshot(&desk.volume, &small(5), "too late")));
    revoked(refused(Volume::open_on(world.ram.clone(), &desk.volume.state).unwrap().read_head()));
    assert_eq!(refused(desk.volume.read_head()).kind(), ErrorKind::Denied);
    assert!(matches!(
        attach(&world, &world.ram, "desk.two", &desk.code),
        Err(VolumeError::WrongSecret | VolumeError::RemovedSlot)
    ));
    let new = changed_objects(&before, &world.ram.image());
    assert!(new.iter().any(|object| object.as_str().starts_with("packs/")));
    assert_unreadable(&world.again(), &world.ram, &new, &first_keys(&world));
    assert_clean(&world.volume);
}

#[test]
fn what_was_stored_before_is_found_again_and_not_stored_twice() {
    let world = World::new(SEALED);
    let old = snapshot(&world.volume, &small(1), "before");
    rotate(&world.volume).unwrap();
    let packs = world.ram.keys("packs").len();
    let new = snapshot(&world.volume, &small(1), "the same");
    assert_eq!(world.ram.keys("packs").len(), packs);
    let root = |id| world.volume.catalog.fetch_record(&id).unwrap().root;
    assert_eq!(root(old), root(new));
}

#[test]
fn a_collection_keeps_what_any_epoch_needs() {
    let world = World::new(SEALED);
    let gone = snapshot(&world.volume, &small(1), "gone");
    let old = snapshot(&world.volume, &small(2), "old");
    rotate(&world.volume).unwrap();
    let new = snapshot(&world.volume, &small(3), "new");
    world.volume.forget_snapshot(&gone).unwrap();
    rotate(&world.volume).unwrap();
    collect(&world.volume).unwrap();
    let reader = world.seen_in(world.ram.clone());
    for (id, seed) in [(old, 2), (new, 3)] {
        small(seed).assert_readable(&reader, reader.catalog.fetch_record(&id).unwrap().root);
    }
    assert!(reader.catalog.fetch_record(&gone).is_ok(), "its record has moved aside, and counts as it was");
    assert_clean(&reader);
}

#[test]
fn a_device_that_is_added_after_rotations_reads_everything() {
    let world = World::new(SEALED);
    let mut snapshots = vec![(snapshot(&world.volume, &small(1), ""), 1)];
    for seed in 2..4 {
        rotate(&world.volume).unwrap();
        snapshots.push((snapshot(&world.volume, &small(seed), ""), seed));
    }
    let late = add_device(&world, "late");
    for (id, seed) in &snapshots {
        small(*seed).assert_readable(&late.volume, late.volume.catalog.fetch_record(id).unwrap().root);
    }
    // It is given the next key as well, and makes the one after it.
    rotate(&world.volume).unwrap();
    snapshot(&late.volume, &small(4), "late");
    rotate(&late.volume).unwrap();
    snapshot(&world.volume, &small(5), "again");
    assert_eq!(world.volume.keys.newest_epoch().number(), 4);
    assert_clean(&world.seen_in(world.ram.clone()));
}

#[test]
fn a_preview_changes_nothing() {
    let world = World::new(SEALED);
    add_device(&world, "laptop");
    let before = world.ram.image();
    let planned = preview_rotation(&world.volume).unwrap();
    assert_eq!((planned.epoch, planned.recipients.len()), (1, 2));
    assert_eq!(world.ram.image(), before);
}

#[test]
fn slots_without_a_public_key_are_named_until_they_are_opened() {
    let world = World::new(SEALED);
    let code = RecoveryCode::generate();
    device::add_device(&world.volume, "laptop", SlotSecret::Recovery(&code)).unwrap();
    // As an early version made it, and as an early version attached.
    for object in world.ram.keys("slot-keys") {
        world.ram.delete_object(&object).unwrap();
    }
    let old = attach(&world, &world.ram, "old", &code).unwrap();
    for object in world.ram.keys("slot-keys") {
        world.ram.delete_object(&object).unwrap();
    }
    std::fs::remove_file(old.state.join("slot-key")).unwrap();
    let VolumeError::SlotsWithoutKey(lacking) = refused(rotate(&world.volume)) else { panic!("refused") };
    assert_eq!(lacking.len(), 2);
    assert!(lacking.contains(&"device laptop".to_owned()), "{lacking:?}");
    assert!(world.ram.keys("key-epochs").is_empty());
    keyring::open_with_secret(&old, code.to_text().as_bytes()).unwrap();
    let slots = keyring::list_key_slots(&*world.ram).unwrap();
    let held = old.state.read_held_slot().unwrap().unwrap();
    for (_, slot) in slots.iter().filter(|(_, slot)| slot.id() != held.slot) {
        keyring::remove_key_slot(&world.volume, &slot.id().to_string()).unwrap();
    }
    rotate(&world.volume).unwrap();
    snapshot(&old, &small(2), "it has the new key");
    assert_clean(&old);
}

#[test]
fn a_worktree_that_has_the_key_only_says_so_and_is_opened_with_a_secret() {
    let world = World::new(SEALED);
    let laptop = add_device(&world, "laptop");
    let alone = Volume::open_on(world.ram.clone(), &laptop.volume.state).unwrap();
    std::fs::remove_file(alone.state.join("slot-key")).unwrap();
    // Elsewhere, so that it is not given the key as one on the same machine.
    let head = alone.read_worktree_head("laptop.work").unwrap().unwrap();
    let moved = vellum_volume::refs::WorktreeHead { host: "elsewhere".into(), ..head };
    alone.refs.update_ref(RefKind::Worktree, "laptop.work", |_| Ok(Some(moved.encode()))).unwrap();
    rotate(&world.volume).unwrap();
    let error = refused(alone.read_head());
    assert!(matches!(error, VolumeError::KeyChanged { epoch: 1, .. }), "{error}");
    assert!(matches!(refused(keyring::open_with_secret(&alone, b"wrong")), VolumeError::WrongSecret));
    keyring::open_with_secret(&alone, laptop.code.to_text().as_bytes()).unwrap();
    assert!(alone.read_head().is_ok());
    rotate(&world.volume).unwrap();
    assert!(alone.read_head().is_ok(), "from then on it is given the next ones");
}

#[test]
fn worktrees_on_the_same_machine_are_given_the_key() {
    let world = World::new(SEALED);
    let fork = world.worktree("fork");
    for volume in [&world.volume, &fork] {
        std::fs::remove_file(volume.state.join("slot-key")).unwrap();
    }
    rotate(&world.volume).unwrap();
    snapshot(&fork, &small(1), "");
    assert_clean(&Volume::open_on(world.ram.clone(), &fork.state).unwrap());
}

/// Seals a ref as somebody does who has these keys.
fn forge_ref(keys: &VolumeKeys, object: &ObjectKey, name: &str, counter: u64, value: &[u8]) -> Vec<u8> {
    let mut plain = FieldWriter::new();
    plain.write_u8(1).write_varint(counter).write_bytes(name.as_bytes()).write_bytes(value);
    let folder = object.as_str().split('/').nth(1).unwrap();
    let aad = [folder.as_bytes(), &[0], object.as_str().as_bytes()].concat();
    let mut sealed = Vec::new();
    keys.seal_record(RecordDomain::Ref, &aad, plain.as_slice(), &mut sealed);
    sealed
}

#[test]
fn a_revoked_device_forges_neither_refs_nor_snapshots() {
    let world = World::new(SEALED);
    let old = snapshot(&world.volume, &small(1), "old");
    let other = snapshot(&world.volume, &small(2), "other");
    world.volume.add_tag("v1", old).unwrap();
    rotate(&world.volume).unwrap();
    let new = snapshot(&world.volume, &small(3), "new");
    let keys = first_keys(&world);
    let image = world.ram.image();
    let refused_by_newcomer = |forged: &dyn Fn(&Ram)| {
        let ram = Ram::of(image.clone());
        forged(&ram);
        let reader = world.seen_in(ram);
        let findings = verified(&reader).findings;
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].problem.contains("changed since"), "{}", findings[0].problem);
        reader
    };
    // A tag that names another snapshot, and one that is new.
    let tag = world.ram.keys("refs/tag")[0].clone();
    let reader = refused_by_newcomer(&|ram| {
        ram.force(&tag, &forge_ref(&keys, &tag, "v1", 9, other.as_bytes()));
    });
    assert_eq!(refused(reader.refs.get_ref(RefKind::Tag, "v1")).kind(), ErrorKind::Corrupt);
    let name_id = keys.compute_name_id(RecordDomain::Ref, b"tag/v2");
    let made = key(&format!("refs/tag/{}", SnapshotId(name_id)));
    refused_by_newcomer(&|ram| ram.force(&made, &forge_ref(&keys, &made, "v2", 1, other.as_bytes())));
    // The records of snapshots with another tree: of one that was there, and of one that is new.
    let root = world.volume.catalog.get_record(&other).unwrap().root;
    for id in [old, new] {
        let mut record = world.volume.catalog.fetch_record(&id).unwrap();
        record.root = root;
        let object = key(&format!("snapshots/{id}"));
        let mut sealed = Vec::new();
        keys.seal_record(RecordDomain::Snapshot, id.as_bytes(), &record.encode(), &mut sealed);
        let reader = refused_by_newcomer(&|ram| ram.force(&object, &sealed));
        assert_eq!(refused(reader.catalog.fetch_record(&id)).kind(), ErrorKind::Corrupt);
    }
    // What was there and is as it was counts.
    assert!(world.seen_in(Ram::of(image)).catalog.fetch_record(&old).is_ok());
}

#[test]
fn a_revoked_device_is_given_no_key_whatever_it_puts_into_the_store() {
    let world = World::new(SEALED);
    let laptop = add_device(&world, "laptop");
    let desk = add_device(&world, "desk");
    let before = world.ram.image();
    device::revoke_device(&world.volume, "desk", false).unwrap();
    let mut restored = before.clone();
    restored.retain(|object, _| !object.as_str().starts_with("refs/"));
    // Its slot is put back, and the note of its removal is removed.
    for (object, bytes) in &restored {
        world.ram.force(object, bytes);
    }
    for note in world.ram.keys("removed-keys") {
        world.ram.delete_object(&note).unwrap();
    }
    let report = rotate(&world.volume).unwrap();
    assert!(!report.recipients.contains(&"device desk".to_owned()), "{:?}", report.recipients);
    assert!(desk.volume.read_head().is_err());
    // It puts its own public key for the slot of another, and a slot of its own.
    let thief = RecoveryCode::generate();
    let rogue = Volume::open_on(Ram::of(before), &desk.volume.state).unwrap();
    let slot = keyring::add_key_slot(&rogue, SlotSecret::Recovery(&thief), "rogue").unwrap();
    for folder in ["keys", "slot-keys"] {
        let object = key(&format!("{folder}/{}", slot.id()));
        world.ram.force(&object, &rogue.objects.get_object(&object, 4096).unwrap());
    }
    let own = keyring::list_key_slots(&*laptop.volume.objects).unwrap();
    let rogue_key = rogue.objects.get_object(&key(&format!("slot-keys/{}", slot.id())), 4096).unwrap();
    for (object, _) in own.iter().filter(|(_, known)| known.id() != slot.id()) {
        world.ram.force(&key(&format!("slot-keys/{}", object.name())), &rogue_key);
    }
    let VolumeError::SlotsWithoutKey(lacking) = refused(rotate(&world.volume)) else { panic!("refused") };
    assert!(lacking.iter().any(|title| title.contains(&slot.id().to_string())), "{lacking:?}");
    keyring::remove_key_slot(&world.volume, &slot.id().to_string()).unwrap();
    rotate(&world.volume).unwrap();
    assert!(laptop.volume.read_head().is_ok());
    assert!(attach(&world, &world.ram, "thief", &thief).is_err());
}

#[test]
fn who_does_not_have_the_newest_key_begins_no_epoch() {
    let world = World::new(SEALED);
    let desk = add_device(&world, "desk");
    let image = world.ram.image();
    device::revoke_device(&world.volume, "desk", false).unwrap();
    rotate(&world.volume).unwrap();
    // What the revoked device would have made of it: its own epoch 1, and another after it.
    let rogue_ram = Ram::of(image);
    let rogue = Volume::open_on(rogue_ram.clone(), &desk.volume.state).unwrap();
    rotate(&rogue).unwrap();
    rotate(&rogue).unwrap();
    let second = key("key-epochs/00000002");
    let genuine = world.ram.image();
    world.ram.force(&second, &rogue_ram.bytes(&second));
    let error = refused(world.again().epochs.refresh_keys());
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(refused(rotate(&world.volume)).kind(), ErrorKind::Corrupt);
    world.ram.become_like(&genuine);
    world.ram.delete_object(&second).unwrap();
    // Nor does a machine that knows the genuine one take another for it.
    let first = key("key-epochs/00000001");
    world.ram.force(&first, &rogue_ram.bytes(&first));
    assert!(refused(rotate(&world.again())).kind() == ErrorKind::Corrupt);
}

#[test]
fn an_end_that_was_seen_is_missed() {
    let world = World::new(SEALED);
    snapshot(&world.volume, &small(1), "");
    rotate(&world.volume).unwrap();
    let end = key("key-epochs/00000001.finished");
    world.ram.delete_object(&end).unwrap();
    let head = world.ram.keys("refs/worktree")[0].clone();
    world.ram.force(&head, &forge_ref(&first_keys(&world), &head, "main", 99, b""));
    assert_eq!(refused(world.again().read_head()).kind(), ErrorKind::Corrupt);
}

#[test]
fn plain_volumes_have_no_key_to_change() {
    let world = World::new(PLAIN);
    snapshot(&world.volume, &small(1), "");
    assert!(rotate(&world.volume).is_err());
    assert!(world.ram.keys("key-epochs").is_empty());
}

fn push(from: &Volume, to: &Volume) {
    let request =
        PushRequest { worktrees: vec!["main".into()], is_everything: true, ..PushRequest::default() };
    push_to_volume(from, to, &request, &ProgressMeter::default()).unwrap();
}

/// A store with the volume's config only.
fn empty_copy(world: &World) -> Arc<Ram> {
    let config = key("config");
    Ram::of(BTreeMap::from([(config.clone(), world.ram.bytes(&config).into())]))
}

#[test]
fn each_store_has_epochs_of_its_own_and_pushes_seal_with_those_of_the_target() {
    for (rotations_here, rotations_there) in [(1, 0), (0, 1), (1, 1), (2, 1)] {
        let world = World::new(SEALED);
        let first = snapshot(&world.volume, &small(1), "first");
        let ram = empty_copy(&world);
        let there = world.seen_in(ram.clone());
        push(&world.volume, &there);
        for _ in 0..rotations_here {
            rotate(&world.volume).unwrap();
        }
        for _ in 0..rotations_there {
            rotate(&there).unwrap();
        }
        let second = snapshot(&world.volume, &small(2), "second");
        let late = RecoveryCode::generate();
        device::add_device(&world.volume, "late", SlotSecret::Recovery(&late)).unwrap();
        let before = ram.image();
        push(&world.volume, &there);
        let reader = world.seen_in(ram.clone());
        for (id, seed) in [(first, 1), (second, 2)] {
            small(seed).assert_readable(&reader, reader.catalog.fetch_record(&id).unwrap().root);
        }
        assert_clean(&reader);
        if rotations_there > 0 {
            let mut new = changed_objects(&before, &ram.image());
            new.retain(|object| {
                !object.as_str().starts_with("slot-keys/") && !object.as_str().starts_with("keys/")
            });
            assert_unreadable(&reader, &ram, &new, &first_keys(&world));
        }
        // A device that was added here opens the other store.
        let device = attach(&world, &ram, "late.work", &late).unwrap();
        small(2).assert_readable(&device, device.catalog.fetch_record(&second).unwrap().root);
        assert_clean(&world.volume);
    }
}

#[test]
fn the_slots_of_another_store_are_brought_up_to_date_before_its_key_is_changed() {
    let world = World::new(SEALED);
    let desk = add_device(&world, "desk");
    let laptop = add_device(&world, "laptop");
    let ram = empty_copy(&world);
    let there = world.seen_in(ram.clone());
    push(&world.volume, &there);
    // An early version pushed no public keys.
    for object in ram.keys("slot-keys") {
        ram.delete_object(&object).unwrap();
    }
    device::revoke_device(&world.volume, "desk", false).unwrap();
    bring_slots_up_to_date(&world.volume, &there).unwrap();
    let report = rotate(&there).unwrap();
    assert_eq!(report.recipients.len(), 2);
    assert!(attach(&world, &ram, "laptop.there", &laptop.code).is_ok());
    assert!(attach(&world, &ram, "desk.there", &desk.code).is_err());
}

#[test]
fn a_record_that_was_sealed_too_late_does_not_count() {
    // As an interrupted writer leaves it that did not look for a newer key.
    let world = World::new(SEALED);
    snapshot(&world.volume, &small(1), "");
    let keys = first_keys(&world);
    rotate(&world.volume).unwrap();
    let mut record = record_on(&world.volume, None, world.volume.empty_root(), "late");
    record.nonce = [7; 16];
    let id = record.compute_id(&keys);
    let mut sealed = Vec::new();
    keys.seal_record(RecordDomain::Snapshot, id.as_bytes(), &record.encode(), &mut sealed);
    world.ram.put_object(&key(&format!("snapshots/{id}")), &sealed).unwrap();
    let listed = world.seen_in(world.ram.clone()).catalog.read_all_records().unwrap();
    assert_eq!((listed.sound.len(), listed.damaged.len()), (1, 1));
    assert_eq!(listed.damaged[0].0, id);
}

#[test]
fn keys_of_an_epoch_are_those_that_its_object_tells() {
    let world = World::new(SEALED);
    rotate(&world.volume).unwrap();
    let wrong = EpochKeys::derive(
        &MasterKey::from_bytes([1; 32]),
        world.volume.config.volume,
        KeyEpoch::from_number(1).unwrap(),
    );
    assert!(!world.volume.keys.has_epoch_keys(&wrong));
    let status = world.volume.epochs.read_status().unwrap();
    assert_eq!((status.number, status.is_finished), (1, true));
    assert!(status.begun.is_some());
}

#[derive(Debug, Clone)]
enum Step {
    Snapshot(usize),
    Tag(usize),
    Rotate(usize),
    Add,
    Revoke(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..6_usize).prop_map(Step::Snapshot),
        1 => (0..6_usize).prop_map(Step::Tag),
        2 => (0..6_usize).prop_map(Step::Rotate),
        2 => Just(Step::Add),
        2 => (0..6_usize).prop_map(Step::Revoke),
    ];
    proptest::collection::vec(step, 1..14)
}

/// A device that was revoked, with the store as it was when the next rotation had finished.
struct Gone {
    device: TestDevice,
    since: Option<Image>,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn remaining_devices_read_everything_and_revoked_ones_nothing_new(steps in steps()) {
        check_steps(&steps);
    }
}

/// Whoever has the volume open since before the rotation seals the record of an operation.
#[test]
fn a_device_that_records_an_operation_after_a_rotation_elsewhere_uses_the_new_keys() {
    check_steps(&[Step::Add, Step::Revoke(0), Step::Add, Step::Rotate(1), Step::Snapshot(1), Step::Tag(2)]);
}

/// Whoever revokes has not seen the rotation: the note of the removal is a new object, too.
#[test]
fn a_device_that_is_revoked_after_a_rotation_elsewhere_leaves_nothing_to_an_earlier_one() {
    check_steps(&[Step::Add, Step::Add, Step::Revoke(0), Step::Rotate(2), Step::Revoke(0)]);
}

fn check_steps(steps: &[Step]) {
    let world = World::new(SEALED);
    let mut devices: Vec<TestDevice> = Vec::new();
    let mut gone: Vec<Gone> = Vec::new();
    let mut taken: Vec<(SnapshotId, u64)> = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let seed = number as u64 + 1;
        let pick = |devices: &Vec<TestDevice>, wanted: usize| wanted % (devices.len() + 1);
        let with = |devices: &Vec<TestDevice>, wanted: usize, act: &mut dyn FnMut(&Volume)| match devices
            .get(pick(devices, wanted))
        {
            Some(device) => act(&device.volume),
            None => act(&world.volume),
        };
        match step {
            Step::Snapshot(who) => with(&devices, *who, &mut |volume| {
                taken.push((snapshot(volume, &small(seed), ""), seed));
            }),
            Step::Tag(who) => {
                if let Some((id, _)) = taken.last() {
                    with(&devices, *who, &mut |volume| volume.add_tag(&format!("t{number}"), *id).unwrap());
                }
            }
            Step::Rotate(who) => {
                with(&devices, *who, &mut |volume| drop(rotate(volume).unwrap()));
                for old in gone.iter_mut().filter(|old| old.since.is_none()) {
                    old.since = Some(world.ram.image());
                }
            }
            Step::Add => devices.push(add_device(&world, &format!("d{number}"))),
            Step::Revoke(who) if !devices.is_empty() => {
                let device = devices.remove(who % devices.len());
                let name = device.volume.worktree.device.clone().unwrap();
                device::revoke_device(&world.volume, &name, false).unwrap();
                gone.push(Gone { device, since: None });
            }
            Step::Revoke(_) => {}
        }
    }
    let after = world.ram.image();
    for volume in devices.iter().map(|device| &device.volume).chain([&world.volume]) {
        let again = Volume::open_on(world.ram.clone(), &volume.state).unwrap();
        for reader in [volume, &again] {
            for (id, seed) in &taken {
                small(*seed).assert_readable(reader, reader.catalog.fetch_record(id).unwrap().root);
            }
        }
    }
    assert_clean(&world.seen_in(world.ram.clone()));
    for Gone { device, since } in &gone {
        let Some(since) = since else { continue };
        let new = changed_objects(since, &after);
        if !new.is_empty() {
            // All keys that it has, also those of epochs in which it was still a device.
            assert_unreadable(&world.again(), &world.ram, &new, &device.volume.keys);
        }
    }
}
