//! Sealed records open in their own place and nowhere else, and any change of them is noticed.

use proptest::prelude::*;
use vellum_crypto::{MasterKey, PLAIN_OVERHEAD, RecordDomain, SEAL_OVERHEAD, VolumeKeys};
use vellum_types::{BlobKind, VolumeId};

use crate::{DOMAINS, VOLUME, both, master, open, seal};

const CHUNK: RecordDomain = RecordDomain::Blob(BlobKind::Chunk);

#[test]
fn the_overhead_is_as_announced() {
    for (keys, overhead) in both().iter().zip([SEAL_OVERHEAD, PLAIN_OVERHEAD]) {
        assert_eq!(keys.seal_overhead(), overhead);
        assert_eq!(seal(keys, CHUNK, b"", b"12345").len(), 5 + overhead);
    }
}

#[test]
fn output_is_appended_to_and_untouched_by_failure() {
    for keys in both() {
        let mut sealed = b"head".to_vec();
        keys.seal_record(CHUNK, b"aad", b"text", &mut sealed);
        assert_eq!(&sealed[..4], b"head");
        let mut out = b"before".to_vec();
        assert!(keys.open_record(CHUNK, b"other", &sealed[4..], &mut out).is_err());
        assert_eq!(out, b"before");
        keys.open_record(CHUNK, b"aad", &sealed[4..], &mut out).expect("it opens");
        assert_eq!(out, b"beforetext");
    }
}

#[test]
fn sealing_twice_gives_different_bytes() {
    let [keys, _] = both();
    assert_ne!(seal(&keys, CHUNK, b"", b"same"), seal(&keys, CHUNK, b"", b"same"));
}

#[test]
fn no_domain_opens_what_another_sealed() {
    for keys in both() {
        for from in DOMAINS {
            let sealed = seal(&keys, from, b"aad", b"text");
            for to in DOMAINS {
                assert_eq!(open(&keys, to, b"aad", &sealed).is_some(), from == to, "{from:?} as {to:?}");
            }
        }
    }
}

#[test]
fn no_other_volume_key_or_mode_opens_it() {
    let [sealed_keys, plain_keys] = both();
    let strangers = [
        VolumeKeys::for_encrypted(&master(), VolumeId([0x12; 16])),
        VolumeKeys::for_encrypted(&MasterKey::from_bytes([0; 32]), VOLUME),
        VolumeKeys::for_plain(VolumeId([0x12; 16])),
    ];
    let sealed = seal(&sealed_keys, CHUNK, b"", b"a text of some length, so that it is no short record");
    let plain = seal(&plain_keys, CHUNK, b"", b"a text of some length, so that it is no short record");
    for stranger in strangers.iter().chain([&plain_keys]) {
        assert_eq!(open(stranger, CHUNK, b"", &sealed), None);
    }
    for stranger in strangers.iter().chain([&sealed_keys]) {
        assert_eq!(open(stranger, CHUNK, b"", &plain), None);
    }
}

#[test]
fn every_flipped_bit_every_truncation_and_every_addition_is_noticed() {
    for keys in both() {
        let sealed = seal(&keys, CHUNK, b"aad", b"plaintext");
        for place in 0..sealed.len() * 8 {
            let mut flipped = sealed.clone();
            flipped[place / 8] ^= 1 << (place % 8);
            assert_eq!(open(&keys, CHUNK, b"aad", &flipped), None, "bit {place}");
        }
        for len in 0..sealed.len() {
            assert_eq!(open(&keys, CHUNK, b"aad", &sealed[..len]), None, "cut to {len}");
        }
        assert_eq!(open(&keys, CHUNK, b"aad", &[&sealed[..], &[0]].concat()), None);
    }
}

#[test]
fn ids_differ_by_kind_key_and_mode() {
    let [keys, plain] = both();
    let other = VolumeKeys::for_encrypted(&MasterKey::generate(), VOLUME);
    let ids = [&keys, &plain, &other]
        .map(|keys| [BlobKind::Chunk, BlobKind::Node].map(|kind| keys.compute_blob_id(kind, b"content")));
    let distinct: std::collections::HashSet<_> = ids.as_flattened().iter().collect();
    assert_eq!(distinct.len(), 6);
    assert_eq!(keys.compute_blob_id(BlobKind::Chunk, b"x").0, keys.compute_record_id(CHUNK, b"x"));
    assert_ne!(
        keys.compute_record_id(RecordDomain::Ref, b"x"),
        keys.compute_name_id(RecordDomain::Ref, b"x")
    );
    // Equal content has equal ids in all plain volumes, so that they can be compared and copied cheaply.
    let elsewhere = VolumeKeys::for_plain(VolumeId([0x12; 16]));
    assert_eq!(
        plain.compute_blob_id(BlobKind::Chunk, b"x"),
        elsewhere.compute_blob_id(BlobKind::Chunk, b"x")
    );
}

#[test]
fn debug_shows_no_key() {
    let [keys, _] = both();
    let shown = format!("{keys:?}");
    assert_eq!(shown, "VolumeKeys { volume: VolumeId(11111111111111111111111111111111), plain: false, .. }");
}

proptest! {
    #[test]
    fn what_is_sealed_opens(
        plaintext in proptest::collection::vec(any::<u8>(), 0..5000),
        aad in proptest::collection::vec(any::<u8>(), 0..100),
        domain in proptest::sample::select(&DOMAINS[..]),
    ) {
        for keys in both() {
            let sealed = seal(&keys, domain, &aad, &plaintext);
            prop_assert_eq!(sealed.len(), plaintext.len() + keys.seal_overhead());
            prop_assert_eq!(open(&keys, domain, &aad, &sealed), Some(plaintext.clone()));
        }
    }

    #[test]
    fn bytes_cannot_move_into_or_out_of_the_associated_data(
        text in proptest::collection::vec(any::<u8>(), 2..40),
        at in 1_usize..40,
        to in 1_usize..40,
    ) {
        let at = at % text.len();
        let to = to % text.len();
        prop_assume!(at != to);
        for keys in both() {
            let sealed = seal(&keys, CHUNK, &text[at..], &text[..at]);
            prop_assert_eq!(open(&keys, CHUNK, &text[to..], &sealed), None);
        }
    }

    #[test]
    fn arbitrary_bytes_open_nowhere(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        for keys in both() {
            for domain in DOMAINS {
                prop_assert_eq!(open(&keys, domain, b"", &bytes), None);
            }
        }
    }
}
