//! Opening and unlocking: other volumes, the future, lost keys, damaged slots; `init` killed at every step.

use std::fs;
use std::sync::Arc;

use vellum_crypto::{MasterKey, SlotSecret, VolumeKeys};
use vellum_store::{ObjectKey, ObjectStore};
use vellum_testkit::{FaultTrigger, FaultyStore, StoreFault};
use vellum_types::ErrorKind;
use vellum_volume::volume::InitialisedVolume;
use vellum_volume::{Result, StateDir, Volume, VolumeError, keyring};
use zeroize::Zeroizing;

use crate::model::small;
use crate::ram::Ram;
use crate::world::{PLAIN, SEALED, World, assert_clean, new_worktree, refused, snapshot};

fn config() -> ObjectKey {
    ObjectKey::new("config").unwrap()
}

fn open(world: &World) -> Result<Volume> {
    Volume::open_on(world.ram.clone(), &world.volume.state)
}

#[test]
fn a_format_from_the_future_is_unsupported_not_damaged() {
    for encrypted in [SEALED, PLAIN] {
        let world = World::new(encrypted);
        let mut bytes = world.ram.bytes(&config());
        bytes[8] = 2;
        world.ram.force(&config(), &bytes);
        let error = refused(open(&world));
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    let world = World::new(PLAIN);
    let path = world.volume.state.join("worktree.json");
    let text = fs::read_to_string(&path).unwrap().replace("\"layout\": 1", "\"layout\": 2");
    fs::write(&path, text).unwrap();
    assert_eq!(refused(open(&world)).kind(), ErrorKind::Unsupported);
}

#[test]
fn another_volume_in_the_store_is_refused() {
    for (own, planted) in [(SEALED, SEALED), (SEALED, PLAIN), (PLAIN, SEALED), (PLAIN, PLAIN)] {
        let world = World::new(own);
        let other = World::new(planted);
        world.ram.become_like(&other.ram.image());
        assert!(matches!(refused(open(&world)), VolumeError::Foreign { .. }));
        world.ram.become_like(&Ram::default().image());
        assert!(matches!(refused(open(&world)), VolumeError::Foreign { .. }), "an empty store");
    }
}

#[test]
fn a_plain_volume_with_the_same_id_is_refused() {
    let world = World::new(SEALED);
    let planted = vellum_volume::config::VolumeConfig { encrypted: false, ..world.volume.config };
    world.ram.force(&config(), &planted.encode(&VolumeKeys::for_plain(planted.volume)));
    assert!(matches!(refused(open(&world)), VolumeError::Foreign { .. }));
    // The same while `init` had not said yet that the volume is sealed.
    fs::remove_file(world.volume.state.join("worktree.json")).unwrap();
    let again = Volume::init_volume_on(
        world.ram.clone(),
        &world.volume.state,
        &new_worktree("main", SEALED),
        no_secret,
    );
    assert!(matches!(again.err(), Some(VolumeError::Foreign { .. })));
}

#[test]
fn a_new_worktree_takes_a_volume_of_the_sort_that_was_asked_for() {
    for (there, requested) in [(PLAIN, SEALED), (SEALED, PLAIN)] {
        let world = World::new(there);
        let before = world.ram.image();
        let state = world.empty_state();
        let refused =
            Volume::init_volume_on(world.ram.clone(), &state, &new_worktree("two", requested), no_secret);
        let error = refused.err().unwrap();
        assert!(matches!(error, VolumeError::OtherSort { encrypted, .. } if encrypted == there), "{error}");
        assert_eq!(world.ram.image(), before);
        state.remove_if_unused();
        assert!(!state.path().exists(), "nothing is kept here");
    }
    let world = World::new(PLAIN);
    let made = Volume::init_volume_on(
        world.ram.clone(),
        &world.empty_state(),
        &new_worktree("two", PLAIN),
        no_secret,
    );
    assert!(made.unwrap().attached);
}

#[test]
fn a_fork_is_refused_a_plain_volume_with_the_same_id() {
    let world = World::new(SEALED);
    let fork = world.worktree("side");
    let planted = vellum_volume::config::VolumeConfig { encrypted: false, ..world.volume.config };
    world.ram.force(&config(), &planted.encode(&VolumeKeys::for_plain(planted.volume)));
    let opened = Volume::open_on(world.ram.clone(), &fork.state);
    assert!(matches!(refused(opened), VolumeError::Foreign { .. }));
}

#[test]
fn a_config_of_another_key_is_refused() {
    let world = World::new(SEALED);
    let forged = world
        .volume
        .config
        .encode(&VolumeKeys::for_encrypted(&MasterKey::generate(), world.volume.config.volume));
    world.ram.force(&config(), &forged);
    assert!(matches!(refused(open(&world)), VolumeError::Damaged { object, .. } if object == "config"));
}

#[test]
fn a_lost_key_is_told_and_a_malformed_one_too() {
    let world = World::new(SEALED);
    let key = world.volume.state.join("key");
    let kept = fs::read(&key).unwrap();
    fs::remove_file(&key).unwrap();
    assert!(matches!(refused(open(&world)), VolumeError::Locked));
    for bytes in [&b""[..], b"junk", b"vellum-master-key-1:abcd", &kept[..kept.len() - 10]] {
        fs::write(&key, bytes).unwrap();
        let error = refused(open(&world));
        assert!(error.to_string().contains("master key"), "{error}");
    }
    fs::write(&key, kept.iter().map(u8::to_ascii_lowercase).collect::<Vec<_>>()).unwrap();
    open(&world).unwrap();
    let mut other = kept;
    let last = other.len() - 2;
    other[last] = if other[last] == b'0' { b'1' } else { b'0' };
    fs::write(&key, other).unwrap();
    assert!(matches!(refused(open(&world)), VolumeError::Damaged { .. }));
}

fn no_secret() -> Result<Zeroizing<Vec<u8>>> {
    panic!("nothing should be asked for")
}

fn attach(world: &World, name: &str, secret: &[u8]) -> Result<InitialisedVolume> {
    let given = Zeroizing::new(secret.to_vec());
    Volume::init_volume_on(world.ram.clone(), &world.empty_state(), &new_worktree(name, SEALED), || Ok(given))
}

#[test]
fn slots_open_the_volume_from_elsewhere_and_damaged_ones_close_no_other() {
    let world = World::new(SEALED);
    let id = snapshot(&world.volume, &small(1), "");
    let objects = &*world.volume.objects;
    let code = keyring::add_recovery_slot(&world.volume).unwrap();
    keyring::add_key_slot(&world.volume, SlotSecret::Passphrase(b"correct horse"), "laptop").unwrap();
    let file = keyring::add_key_slot(&world.volume, SlotSecret::KeyFile(&[0, 1, 2, 255]), "stick").unwrap();
    let typed = code.to_text().to_lowercase().replace('-', " ");
    for (name, secret) in [("a", typed.as_bytes()), ("b", b"correct horse"), ("c", &[0, 1, 2, 255])] {
        let made = attach(&world, name, secret).unwrap();
        assert!(made.attached && made.recovery.is_none());
        assert_eq!(made.volume.catalog.list_ids().unwrap(), [id]);
    }
    assert!(matches!(attach(&world, "d", b"correct horse ").err(), Some(VolumeError::WrongSecret)));
    keyring::remove_key_slot(&world.volume, &file.id().to_string()).unwrap();
    // A slot that is not one, a torn one, and one that says it is of another volume.
    let slots = world.ram.keys("keys");
    let other = World::new(SEALED);
    let torn = world.ram.bytes(&slots[0]);
    world.ram.force(&ObjectKey::new("keys/0000").unwrap(), b"junk");
    world.ram.force(&ObjectKey::new("keys/0001").unwrap(), &torn[..torn.len() / 2]);
    let foreign = other.ram.bytes(&other.ram.keys("keys")[0]);
    world.ram.force(&ObjectKey::new("keys/0002").unwrap(), &foreign);
    assert!(attach(&world, "e", typed.as_bytes()).unwrap().attached);
    let error = attach(&world, "f", b"wrong").err().unwrap();
    assert_eq!(
        error.kind(),
        ErrorKind::Corrupt,
        "a damaged slot may be the one that the secret was for: {error}"
    );
    for name in ["0000", "0001", "0002"] {
        keyring::remove_key_slot(&world.volume, name).unwrap();
    }
    assert_eq!(keyring::list_key_slots(objects).unwrap().len(), 3);
    assert_clean(&world.volume);
}

#[test]
fn secrets_of_no_length_and_of_a_mebibyte_are_wrong_not_fatal() {
    let world = World::new(SEALED);
    for secret in [Vec::new(), vec![b'x'; 1 << 20], b"with\0nul".to_vec()] {
        assert!(matches!(attach(&world, "x", &secret).err(), Some(VolumeError::WrongSecret)));
    }
}

/// Runs `init` again as a user would, after it was killed.
fn run_again(ram: &Arc<Ram>, state: &StateDir, encrypted: bool) -> InitialisedVolume {
    Volume::init_volume_on(ram.clone(), state, &new_worktree("main", encrypted), no_secret).unwrap()
}

#[test]
fn an_init_killed_at_any_operation_is_finished_by_the_next() {
    for encrypted in [SEALED, PLAIN] {
        for fault in [StoreFault::Before, StoreFault::After] {
            for at in 0.. {
                let place = World::new(PLAIN);
                let ram = Arc::new(Ram::default());
                let state = place.empty_state();
                let faulty = Arc::new(FaultyStore::new(ram.clone()));
                faulty.set_script([
                    (FaultTrigger::Nth(at), fault),
                    (FaultTrigger::From(at + 1), StoreFault::Before),
                ]);
                let killed = Volume::init_volume_on(
                    faulty.clone(),
                    &state,
                    &new_worktree("main", encrypted),
                    no_secret,
                );
                let done = faulty.operation_count() <= at;
                assert_eq!(killed.is_ok(), done, "operation {at}");
                drop(killed);
                if done {
                    assert!(at > 4, "{at} operations");
                    break;
                }
                let made = run_again(&ram, &state, encrypted);
                assert!(!made.attached, "operation {at}: it was made here");
                assert_eq!(made.recovery.is_some(), encrypted);
                let id = snapshot(&made.volume, &small(1), "");
                assert_eq!(made.volume.list_worktrees().unwrap().len(), 1);
                assert_clean(&made.volume);
                if let Some(code) = made.recovery {
                    let given = Zeroizing::new(code.to_text().as_bytes().to_vec());
                    let other =
                        Volume::init_volume_on(ram, &place.empty_state(), &new_worktree("b", SEALED), || {
                            Ok(given)
                        });
                    assert_eq!(other.unwrap().volume.catalog.list_ids().unwrap(), [id]);
                }
            }
        }
    }
}

#[test]
fn who_comes_second_to_an_empty_store_attaches_when_run_again() {
    let world = World::new(SEALED);
    let code = keyring::add_recovery_slot(&world.volume).unwrap();
    // It kept a key of its own before it found that the store had a volume meanwhile.
    let state = world.empty_state();
    state.write_master_key(&MasterKey::generate()).unwrap();
    let given = Zeroizing::new(code.to_text().as_bytes().to_vec());
    let made = Volume::init_volume_on(world.ram.clone(), &state, &new_worktree("two", SEALED), || Ok(given))
        .unwrap();
    assert!(made.attached && made.recovery.is_none());
    Volume::open_on(world.ram.clone(), &state).unwrap();
    assert_clean(&made.volume);
}

#[test]
fn attaching_under_a_taken_name_can_be_tried_again_and_adds_no_slot() {
    let world = World::new(SEALED);
    let code = keyring::add_recovery_slot(&world.volume).unwrap();
    let given = || Ok(Zeroizing::new(code.to_text().as_bytes().to_vec()));
    let state = world.empty_state();
    let attempt = Volume::init_volume_on(world.ram.clone(), &state, &new_worktree("main", SEALED), given);
    assert!(matches!(attempt.err(), Some(VolumeError::Exists { kind: "worktree", .. })));
    assert!(state.read_master_key().unwrap().is_none(), "the key of a volume is kept by its worktrees only");
    let slots = world.ram.keys("keys").len();
    let made =
        Volume::init_volume_on(world.ram.clone(), &state, &new_worktree("two", SEALED), given).unwrap();
    assert!(made.attached && made.recovery.is_none());
    assert_eq!(world.ram.keys("keys").len(), slots);
}

#[test]
fn a_state_directory_is_private_and_not_nested() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new(SEALED);
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(world.volume.state.path()), 0o700);
    for file in fs::read_dir(world.volume.state.path()).unwrap() {
        let file = file.unwrap();
        assert!(file.path().is_dir() || mode(&file.path()) == 0o600, "{:?}", file.path());
    }
    let inner = world.volume.state.root().join("inner");
    fs::create_dir(&inner).unwrap();
    assert!(matches!(refused(StateDir::create(&inner)), VolumeError::Nested { .. }));
    assert!(matches!(
        refused(StateDir::create(world.volume.state.root())),
        VolumeError::AlreadyInitialised(_)
    ));
    assert_eq!(StateDir::find_enclosing(&inner).unwrap().path(), world.volume.state.path());
    assert!(matches!(refused(StateDir::find_enclosing(world.dir.path())), VolumeError::NoVolume(_)));
}

#[test]
fn a_key_slot_that_was_deleted_is_named_and_one_that_was_removed_is_not() {
    let world = World::new(SEALED);
    let slot =
        keyring::add_key_slot(&world.volume, SlotSecret::Passphrase(b"correct horse"), "laptop").unwrap();
    assert_clean(&world.volume);
    let [first, second] = &world.ram.keys("keys")[..] else { panic!("two slots") };
    let lost = if first.name() == slot.id().to_string() { second } else { first };
    world.ram.delete_object(lost).unwrap();
    let findings = crate::world::verified(&world.again()).findings;
    assert_eq!(findings.iter().map(|finding| finding.object.as_str()).collect::<Vec<_>>(), [lost.as_str()]);
    assert!(findings[0].problem.contains("missing"));
    // Another machine removes the other one properly.
    let elsewhere = world.seen_in(world.ram.clone());
    keyring::remove_key_slot(&elsewhere, &slot.id().to_string()).unwrap();
    assert_eq!(crate::world::verified(&world.again()).findings.len(), 1, "still the lost one alone");
}

#[test]
fn a_key_file_slot_that_was_made_with_its_newline_still_opens() {
    let world = World::new(SEALED);
    let id = world.volume.config.volume;
    let store = &*world.volume.objects;
    keyring::add_key_slot(&world.volume, SlotSecret::KeyFile(b"key\n"), "old").unwrap();
    assert!(keyring::unlock_master_key(store, b"key\n", id).is_ok());
    assert!(matches!(keyring::unlock_master_key(store, b"key", id), Err(VolumeError::WrongSecret)));
}
