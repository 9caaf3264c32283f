//! Key epochs: what is sealed after a rotation is sealed with the newest key, what was sealed before opens as ever, and
//! ids stay what they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use vellum_crypto::{EpochKeys, KeyEpoch, MasterKey, NewerKeySource, RecordDomain, UnsealError, VolumeKeys};
use vellum_types::BlobKind;

use crate::{DOMAINS, VOLUME, master, open, seal};

const CHUNK: RecordDomain = RecordDomain::Blob(BlobKind::Chunk);

fn epoch(number: u32) -> KeyEpoch {
    KeyEpoch::from_number(number).expect("there can be such an epoch")
}

fn epoch_keys(number: u32) -> EpochKeys {
    EpochKeys::derive(&MasterKey::from_bytes([number as u8; 32]), VOLUME, epoch(number))
}

fn rotated(epochs: u32) -> VolumeKeys {
    let keys = VolumeKeys::for_encrypted(&master(), VOLUME);
    (1..=epochs).for_each(|number| keys.add_epoch(epoch_keys(number)));
    keys
}

fn epoch_of(keys: &VolumeKeys, sealed: &[u8]) -> Result<KeyEpoch, UnsealError> {
    keys.open_record_in_epoch(CHUNK, b"aad", sealed, &mut Vec::new())
}

#[test]
fn records_of_all_epochs_up_to_the_newest_open() {
    for newest in 0..4 {
        let keys = rotated(newest);
        assert_eq!(keys.newest_epoch(), epoch(newest));
        for of in 0..4 {
            let sealed = seal(&rotated(of), CHUNK, b"aad", b"text");
            if of <= newest {
                assert_eq!(epoch_of(&keys, &sealed), Ok(epoch(of)));
                assert_eq!(open(&keys, CHUNK, b"aad", &sealed), Some(b"text".to_vec()));
            } else {
                assert_eq!(epoch_of(&keys, &sealed), Err(UnsealError::NewerKey { epoch: epoch(of) }));
            }
        }
    }
}

#[test]
fn an_epoch_has_keys_of_its_own_in_each_domain_and_ids_stay() {
    let keys = rotated(1);
    let first = rotated(0);
    for domain in DOMAINS {
        let mut sealed = Vec::new();
        epoch_keys(1).seal_record(domain, b"", b"text", &mut sealed);
        assert_eq!(open(&keys, domain, b"", &sealed), Some(b"text".to_vec()));
        for other in DOMAINS.iter().filter(|other| **other != domain) {
            assert_eq!(open(&keys, *other, b"", &sealed), None);
        }
        assert_eq!(keys.compute_record_id(domain, b"x"), first.compute_record_id(domain, b"x"));
        assert_eq!(keys.compute_name_id(domain, b"x"), first.compute_name_id(domain, b"x"));
    }
    assert_eq!(keys.chunker_key(), first.chunker_key());
    assert_eq!(keys.boundary_seed(), first.boundary_seed());
}

#[test]
fn the_length_is_the_same_and_the_nonce_names_the_epoch() {
    let sealed = seal(&rotated(3), CHUNK, b"aad", b"text");
    assert_eq!(sealed.len(), seal(&rotated(0), CHUNK, b"aad", b"text").len());
    assert_eq!(sealed[..4], [3, 0, 0, 0]);
    assert_ne!(sealed[4..24], seal(&rotated(3), CHUNK, b"aad", b"text")[4..24]);
}

#[test]
fn a_first_record_whose_nonce_looks_like_a_number_opens() {
    let first = rotated(0);
    // The nonce is random: one in 65,536 begins as one of a later epoch does.
    let sealed = std::iter::repeat_with(|| seal(&first, CHUNK, b"aad", b"text"))
        .find(|sealed| sealed[2..4] == [0, 0] && sealed[..2] != [0, 0])
        .expect("there is one before long");
    assert_eq!(epoch_of(&first, &sealed), Ok(KeyEpoch::FIRST));
    assert_eq!(epoch_of(&rotated(2), &sealed), Ok(KeyEpoch::FIRST));
}

#[test]
fn what_was_changed_does_not_open_and_no_epoch_is_taken_for_another() {
    let keys = rotated(2);
    let sealed = seal(&keys, CHUNK, b"aad", b"text");
    for position in 0..sealed.len() {
        let mut changed = sealed.clone();
        changed[position] ^= 3;
        assert!(epoch_of(&keys, &changed).is_err(), "byte {position}");
    }
    let mut renumbered = sealed;
    renumbered[0] = 1;
    assert_eq!(epoch_of(&keys, &renumbered), Err(UnsealError::Forged));
}

#[test]
fn only_the_next_epoch_is_added_and_a_plain_volume_has_none() {
    let keys = rotated(1);
    keys.add_epoch(epoch_keys(3));
    keys.add_epoch(EpochKeys::derive(&master(), VOLUME, epoch(1)));
    assert_eq!(keys.newest_epoch(), epoch(1));
    assert!(keys.has_epoch_keys(&epoch_keys(1)) && !keys.has_epoch_keys(&epoch_keys(2)));
    assert!(!keys.has_epoch_keys(&EpochKeys::derive(&master(), VOLUME, epoch(1))));
    assert!(keys.is_first_master(&master()) && !keys.is_first_master(&MasterKey::from_bytes([1; 32])));
    let plain = VolumeKeys::for_plain(VOLUME);
    plain.add_epoch(epoch_keys(1));
    assert_eq!(plain.newest_epoch(), KeyEpoch::FIRST);
}

/// Knows the keys of epochs up to one, and counts how often it is asked.
struct Source {
    known: u32,
    asked: Arc<AtomicUsize>,
}

impl NewerKeySource for Source {
    fn find_newer_keys(&self, keys: &VolumeKeys) {
        self.asked.fetch_add(1, Ordering::SeqCst);
        (1..=self.known).for_each(|number| keys.add_epoch(epoch_keys(number)));
    }
}

#[test]
fn newer_keys_are_looked_for_when_something_is_sealed_with_them() {
    let keys = rotated(0);
    let asked = Arc::new(AtomicUsize::new(0));
    keys.set_newer_key_source(Arc::new(Source { known: 2, asked: asked.clone() }));
    assert_eq!(epoch_of(&keys, &seal(&rotated(0), CHUNK, b"aad", b"text")), Ok(KeyEpoch::FIRST));
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    assert_eq!(epoch_of(&keys, &seal(&rotated(1), CHUNK, b"aad", b"text")), Ok(epoch(1)));
    assert_eq!(epoch_of(&keys, &seal(&rotated(2), CHUNK, b"aad", b"text")), Ok(epoch(2)));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    let newer = epoch_of(&keys, &seal(&rotated(3), CHUNK, b"aad", b"text"));
    assert_eq!(newer, Err(UnsealError::NewerKey { epoch: epoch(3) }));
    // What is sealed next is sealed with what was found.
    assert_eq!(epoch_of(&rotated(2), &seal(&keys, CHUNK, b"aad", b"text")), Ok(epoch(2)));
}
