//! Objects larger than anything of their kind: nothing reads them whole, and they do no more harm than damaged ones.

use std::sync::Arc;

use vellum_host::ProgressMeter;
use vellum_store::ObjectKey;
use vellum_testkit::{FaultTrigger, FaultyStore, StoreFault, StoreOperation};
use vellum_types::{BlobKind, ErrorKind};
use vellum_volume::verify::{VerifyScope, verify_volume};
use vellum_volume::{Result, Volume, VolumeError, gc, history, keyring};

use crate::model::{noise, small};
use crate::ram::{Image, Ram, TEBIBYTE};
use crate::world::{PLAIN, SEALED, World, refused, snapshot, verified};

/// A volume with one of each kind of object.
fn one_of_each(encrypted: bool) -> (World, Image) {
    let world = World::new(encrypted);
    let gone = snapshot(&world.volume, &small(1), "forgotten");
    let kept = snapshot(&world.volume, &small(2), "kept");
    world.volume.forget_snapshot(&gone).unwrap();
    world.volume.add_tag("v1", kept).unwrap();
    let session = world.volume.begin_write_session().unwrap();
    let image = world.ram.image();
    drop(session);
    (world, image)
}

fn kind<T>(outcome: Result<T>) -> Option<ErrorKind> {
    outcome.err().map(|error| error.kind())
}

/// How each of some commands ends that do not name the object.
fn outcomes(world: &World, ram: &Arc<Ram>) -> Vec<(&'static str, Option<ErrorKind>)> {
    let open = || Volume::open_on(ram.clone(), &world.newcomer());
    let volume = match open() {
        Ok(volume) => volume,
        Err(error) => return vec![("open", Some(error.kind()))],
    };
    let write = || -> Result<()> {
        let mut session = volume.begin_write_session()?;
        session.put_blob(BlobKind::Chunk, &noise(9, 900))?;
        session.flush_blobs()?;
        session.end_session()
    };
    vec![
        ("head", kind(volume.read_head())),
        ("worktrees", kind(volume.list_worktrees())),
        ("tags", kind(volume.list_tags())),
        ("history", kind(history::list_history(&volume.catalog))),
        ("slots", kind(keyring::list_key_slots(&**ram))),
        ("unlock", kind(keyring::unlock_master_key(&**ram, b"wrong", volume.config.volume))),
        ("write", kind(write())),
        ("plan", kind(gc::plan_collection(&volume, &[], &ProgressMeter::default()))),
        (
            "collect",
            kind(gc::run_collection(&volume, &gc::CollectionRequest::default(), &ProgressMeter::default())),
        ),
    ]
}

#[test]
fn an_oversized_object_is_named_and_does_no_more_harm_than_a_damaged_one() {
    for encrypted in [SEALED, PLAIN] {
        let (world, image) = one_of_each(encrypted);
        assert!(image.len() > if encrypted { 12 } else { 11 });
        for key in image.keys() {
            let damaged = Ram::of(image.clone());
            damaged.force(key, b"damaged");
            let swollen = Ram::of(image.clone());
            let open = world.seen_in(swollen.clone());
            swollen.swell(key);
            let expected = outcomes(&world, &damaged);
            for outcome in outcomes(&world, &swollen) {
                // A pack that has swollen can still be read in pieces.
                assert!(
                    outcome.1.is_none() || expected.contains(&outcome),
                    "{key}: {outcome:?}, {expected:?}"
                );
            }
            assert_named(&open, key);
        }
    }
}

fn assert_named(volume: &Volume, key: &ObjectKey) {
    let report = verify_volume(volume, &VerifyScope::All, false, &ProgressMeter::default()).unwrap();
    let named = report.findings.iter().find(|finding| finding.object.contains(key.name()));
    let named = named.unwrap_or_else(|| panic!("{key} is not among {:#?}", report.findings));
    assert!(named.problem.contains(&TEBIBYTE.to_string()), "{key}: {}", named.problem);
}

#[test]
fn a_verification_goes_on_after_an_oversized_object() {
    let (world, image) = one_of_each(SEALED);
    let other = world.ram.keys("snapshots").remove(0);
    for key in image.keys().filter(|key| **key != other && key.folder() != "packs") {
        let ram = Ram::of(image.clone());
        let open = world.seen_in(ram.clone());
        let mut bytes = ram.bytes(&other);
        bytes[40] ^= 1;
        ram.force(&other, &bytes);
        ram.swell(key);
        let findings = verified(&open).findings;
        assert!(findings.iter().any(|finding| finding.object.contains(other.name())), "{key}");
    }
}

#[test]
fn a_head_longer_than_a_ref_can_hold_is_refused_before_it_is_written() {
    let world = World::new(SEALED);
    let before = world.ram.image();
    let refs = &world.volume.refs;
    let long = vec![b'x'; 64 << 10];
    let outcome = refs.update_ref(vellum_volume::refs::RefKind::Worktree, "main", |_| Ok(Some(long.clone())));
    assert!(matches!(refused(outcome), VolumeError::TooLong { .. }));
    assert_eq!(world.ram.image(), before);
}

#[test]
fn what_cannot_be_read_because_the_store_does_not_answer_is_not_called_damaged() {
    let (world, image) = one_of_each(SEALED);
    for folder in ["keys/", "sessions/", "refs/"] {
        let faulty = Arc::new(FaultyStore::new(Ram::of(image.clone())));
        let open = world.seen_in(faulty.clone());
        faulty.set_script([(FaultTrigger::Each(StoreOperation::Get, folder.into()), StoreFault::Before)]);
        let outcome = verify_volume(&open, &VerifyScope::All, false, &ProgressMeter::default());
        assert_eq!(refused(outcome).kind(), ErrorKind::Io, "{folder}");
    }
}
