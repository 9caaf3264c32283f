//! Bodies that are honest, and bodies that are not.
#![expect(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use vellum_crypto::MasterKey;
use vellum_types::VolumeId;

use super::*;

/// Opens a blob that is no difference.
fn open(keys: &VolumeKeys, kind: BlobKind, id: &BlobId, sealed: &[u8]) -> Result<Vec<u8>, BlobBodyFault> {
    super::open_blob(keys, kind, id, sealed)?.resolve_plaintext(keys, kind, id, |_| Err(BlobBodyFault::Base))
}

const KIND: BlobKind = BlobKind::Chunk;

fn keys() -> VolumeKeys {
    VolumeKeys::for_encrypted(&MasterKey::from_bytes([1; 32]), VolumeId([2; 16]))
}

fn noise(len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new().finalize_xof().fill(&mut out);
    out
}

/// Seals a body of any bytes under the id of `plaintext`.
fn forge(keys: &VolumeKeys, plaintext: &[u8], body: &[u8]) -> (BlobId, Vec<u8>) {
    let id = keys.compute_blob_id(KIND, plaintext);
    let mut sealed = Vec::new();
    keys.seal_record(RecordDomain::Blob(KIND), id.as_bytes(), body, &mut sealed);
    (id, sealed)
}

proptest! {
    #[test]
    fn bodies_round_trip(level in 0..6, seed: u8, len in 0..40_000_usize, runs in 1..200_usize) {
        let keys = keys();
        let plaintext: Vec<u8> = noise(len).into_iter().enumerate()
            .map(|(i, byte)| if (i / runs).is_multiple_of(2) { byte } else { seed }).collect();
        let id = keys.compute_blob_id(KIND, &plaintext);
        let mut sealed = Vec::new();
        let body_len = seal_blob(&keys, level, KIND, &id, &plaintext, &mut sealed);
        prop_assert!(body_len <= plaintext.len() + 1);
        prop_assert_eq!(open(&keys, KIND, &id, &sealed), Ok(plaintext));
    }

    #[test]
    fn no_body_makes_it_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let keys = keys();
        let (id, sealed) = forge(&keys, b"something else", &body);
        prop_assert!(open(&keys, KIND, &id, &sealed).is_err());
    }
}

#[test]
fn noise_is_stored_raw_and_text_is_not() {
    let mut coder = BodyCoder { compressor: None, probe: None, decompressor: None, body: Vec::new() };
    assert!(!coder.is_compressible(&noise(64 << 10)));
    assert!(coder.is_compressible("{\"key\": \"value\"}".repeat(4000).as_bytes()));
    // Frequencies look like noise, but it repeats itself.
    let bytes: Vec<u8> = (0..=255).collect();
    assert!(coder.is_compressible(&bytes.repeat(256)));
}

#[test]
fn the_largest_blob_fits() {
    let keys = keys();
    let plaintext = noise(BLOB_MAX);
    let id = keys.compute_blob_id(KIND, &plaintext);
    let mut sealed = Vec::new();
    seal_blob(&keys, 3, KIND, &id, &plaintext, &mut sealed);
    assert!(sealed.len() <= SEALED_MAX);
    assert_eq!(open(&keys, KIND, &id, &sealed), Ok(plaintext));
}

#[test]
fn a_bomb_does_not_go_off() {
    let keys = keys();
    let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 3).unwrap();
    for stated in [1, 1000, BLOB_MAX as u64, BLOB_MAX as u64 + 1, u64::MAX] {
        let mut writer = FieldWriter::new();
        writer.write_u8(ZSTD).write_varint(stated).write_raw(&bomb);
        let (id, sealed) = forge(&keys, b"", writer.as_slice());
        assert!(open(&keys, KIND, &id, &sealed).is_err());
    }
}

#[test]
fn a_stated_length_must_be_the_length() {
    let keys = keys();
    let plaintext = b"a content of some length, a content of some length".repeat(4);
    let data = zstd::bulk::compress(&plaintext, 3).unwrap();
    for (stated, good) in [(200, true), (199, false), (201, false)] {
        let mut writer = FieldWriter::new();
        writer.write_u8(ZSTD).write_varint(stated).write_raw(&data);
        let (id, sealed) = forge(&keys, &plaintext, writer.as_slice());
        assert_eq!(open(&keys, KIND, &id, &sealed).is_ok(), good, "{stated}");
    }
}

#[test]
fn another_content_under_the_id_is_noticed() {
    let keys = keys();
    let (id, sealed) = forge(&keys, b"promised", b"\0delivered");
    assert_eq!(open(&keys, KIND, &id, &sealed), Err(BlobBodyFault::Identity));
    assert_eq!(open(&keys, BlobKind::Node, &id, &sealed), Err(BlobBodyFault::Open(UnsealError::Forged)));
}
