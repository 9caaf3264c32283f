//! Tables and headers, honest and not.
#![expect(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use vellum_crypto::MasterKey;
use vellum_types::VolumeId;

use super::*;

fn entries(lens: &[u32]) -> Vec<PackEntry> {
    let mut offset = HEADER_LEN as u32;
    let place = |(i, len): (usize, &u32)| {
        let entry = PackEntry { id: BlobId([i as u8; 32]), kind: BlobKind::Node, offset, len: *len };
        offset += len;
        entry
    };
    lens.iter().enumerate().map(place).collect()
}

proptest! {
    #[test]
    fn tables_round_trip(salt: TableSalt, lens in proptest::collection::vec(0..100_000_u32, 0..50)) {
        let entries = entries(&lens);
        let end = HEADER_LEN as u64 + lens.iter().map(|len| u64::from(*len)).sum::<u64>();
        let table = encode_table(&salt, &entries);
        prop_assert_eq!(decode_table(&table, BlobKind::Node, end), Ok(entries));
        prop_assert!(decode_table(&table, BlobKind::Node, end + 1).is_err());
    }

    #[test]
    fn no_table_makes_it_panic(table in proptest::collection::vec(any::<u8>(), 0..300), end: u64) {
        let _ = decode_table(&table, BlobKind::Chunk, end);
        let _ = decode_footer(&table, end);
        let _ = decode_header(&table);
    }
}

#[test]
fn headers_of_other_versions_and_kinds_are_refused() {
    let good = encode_header(BlobKind::Chunk);
    assert_eq!(decode_header(&good), Ok(BlobKind::Chunk));
    for (at, value) in [(0, b'x'), (8, 2), (12, 0), (12, 3), (15, 1)] {
        let mut bad = good;
        bad[at] = value;
        assert!(decode_header(&bad).is_err(), "{at}");
    }
    let mut newer = good;
    newer[8] = 2;
    assert_eq!(decode_header(&newer), Err(DecodeError::Version(2)));
}

#[test]
fn lengths_at_the_end_of_the_range_are_refused() {
    let mut writer = FieldWriter::new();
    writer.write_raw(&TableSalt::default()).write_varint(u64::MAX);
    assert!(decode_table(writer.as_slice(), BlobKind::Chunk, 16).is_err());
    let mut writer = FieldWriter::new();
    writer
        .write_raw(&TableSalt::default())
        .write_varint(1)
        .write_raw(&[0; 32])
        .write_varint(u64::from(u32::MAX));
    assert!(decode_table(writer.as_slice(), BlobKind::Chunk, 16).is_err());
}

#[test]
fn keys_of_packs_parse_back_and_others_do_not() {
    let pack = PackId([0xab; 32]);
    assert_eq!(parse_pack_key(&pack_key(&pack)), Some(pack));
    let misplaced = format!("packs/cd/{pack}");
    assert_eq!(parse_pack_key(&ObjectKey::new(misplaced).unwrap()), None);
}

#[test]
fn a_pack_is_named_by_its_bytes() {
    let keys = VolumeKeys::for_encrypted(&MasterKey::from_bytes([1; 32]), VolumeId([2; 16]));
    let mut builder = PackBuilder::new(BlobKind::Chunk);
    assert!(builder.is_empty());
    builder.append_blob(BlobId([5; 32]), b"sealed bytes");
    assert!(builder.is_full(20) && !builder.is_full(100));
    let built = builder.build_pack(&keys);
    assert_eq!(built.id.as_bytes(), blake3::hash(&built.bytes).as_bytes());
    assert_eq!(built.entries.len(), 1);
}

#[test]
fn equal_blobs_make_packs_of_different_names() {
    let keys = VolumeKeys::for_plain(VolumeId([2; 16]));
    let build = || {
        let mut builder = PackBuilder::new(BlobKind::Chunk);
        builder.append_blob(BlobId([5; 32]), b"the same bytes");
        builder.build_pack(&keys)
    };
    let one = build();
    let two = build();
    assert_ne!(one.id, two.id);
    assert_eq!(one.entries, two.entries);
}
