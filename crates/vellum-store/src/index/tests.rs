//! Records and local runs against a model, and against damage.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use vellum_crypto::{MasterKey, VolumeKeys};
use vellum_types::VolumeId;

use super::*;

const VOLUME: VolumeId = VolumeId([3; 16]);
const RUN: IndexRunId = IndexRunId([4; 32]);

fn keys() -> VolumeKeys {
    VolumeKeys::for_encrypted(&MasterKey::from_bytes([1; 32]), VOLUME)
}

fn id(number: u64) -> BlobId {
    BlobId(blake3::hash(&number.to_le_bytes()).into())
}

fn place(number: u64) -> BlobLocation {
    let kind = if number.is_multiple_of(3) { BlobKind::Node } else { BlobKind::Chunk };
    BlobLocation { pack: PackId(id(number / 7 * 3 + number % 3).0), offset: number as u32, len: 100, kind }
}

fn sample(count: u64) -> IndexRecord {
    // All blobs of a pack are of one kind.
    let mut record = IndexRecord::from_blobs((0..count).map(|number| (id(number), place(number))));
    record.supersedes = vec![IndexRunId([8; 32])];
    record.condemned = vec![CondemnedPack { pack: PackId([9; 32]), since: 1_700_000_000 }];
    record
}

#[test]
fn records_round_trip() {
    for count in [0, 1, 1000] {
        let record = sample(count);
        let object = record.seal(&keys());
        assert_eq!(IndexRecord::open(&keys(), &object).unwrap(), record);
    }
}

#[test]
fn no_changed_bit_of_an_object_is_accepted() {
    let object = sample(3).seal(&keys());
    for bit in 0..object.len() * 8 {
        let mut bad = object.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(IndexRecord::open(&keys(), &bad).is_err(), "bit {bit}");
    }
    for len in 0..object.len() {
        assert!(IndexRecord::open(&keys(), &object[..len]).is_err(), "length {len}");
    }
}

#[test]
fn a_run_answers_like_a_map() {
    for count in [0, 1, 2, 15, 16, 17, 500, 20_000] {
        let record = sample(count);
        let model: BTreeMap<_, _> = record.blobs().collect();
        let run = IndexRun::from_bytes(build_run(&record, VOLUME, RUN)).unwrap();
        assert!(run.is_intact());
        assert_eq!(run.len(), model.len());
        assert_eq!(
            (run.superseded_runs(), run.condemned_packs()),
            (&record.supersedes[..], &record.condemned[..])
        );
        assert!(run.iter().eq(model.iter().map(|(id, place)| (*id, *place))));
        for number in 0..2 * count + 10 {
            assert_eq!(run.find_blob(&id(number)), model.get(&id(number)).copied());
        }
    }
}

#[test]
fn ids_at_the_ends_are_found() {
    let ids = [BlobId([0; 32]), BlobId([255; 32])];
    let run =
        IndexRun::from_bytes(build_run(&IndexRecord::from_blobs(ids.map(|id| (id, place(1)))), VOLUME, RUN))
            .unwrap();
    assert!(ids.iter().all(|id| run.find_blob(id).is_some()));
}

#[test]
fn the_first_of_two_places_stays() {
    let record = IndexRecord::from_blobs([(id(1), place(5)), (id(0), place(6)), (id(1), place(7))]);
    assert_eq!(record.blobs().find(|(found, _)| *found == id(1)), Some((id(1), place(5))));
    assert_eq!(record.blobs().count(), 2);
}

proptest! {
    #[test]
    fn a_damaged_run_gives_no_panic(flips in proptest::collection::vec(any::<(u32, u8)>(), 1..20), cut: u16) {
        let mut bytes = build_run(&sample(200), VOLUME, RUN);
        for (at, mask) in flips {
            let at = at as usize % bytes.len();
            bytes[at] ^= mask;
        }
        if cut.is_multiple_of(4) {
            bytes.truncate(bytes.len() - cut as usize % bytes.len());
        }
        if let Ok(run) = IndexRun::from_bytes(bytes) {
            let found = (0..300).filter(|number| run.find_blob(&id(*number)).is_some()).count();
            prop_assert!(found <= 200);
            run.iter().for_each(drop);
            run.packs().for_each(drop);
        }
    }

    #[test]
    fn doors_for_fuzzing_hold(bytes in proptest::collection::vec(any::<u8>(), 0..300), flip: u16) {
        crate::fuzzing::fuzz_blob_body(&bytes);
        crate::fuzzing::fuzz_pack(&bytes);
        crate::fuzzing::fuzz_local_run(&bytes);
        let mut body = sample(5).encode();
        crate::fuzzing::fuzz_index_body(&body);
        let at = flip as usize % body.len();
        body[at] ^= bytes.first().copied().unwrap_or(1);
        crate::fuzzing::fuzz_index_body(&body);
    }

    #[test]
    fn no_record_makes_it_panic(body in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut object = sample(0).seal(&keys())[..16].to_vec();
        let header = object.clone();
        keys().seal_record(vellum_crypto::RecordDomain::Index, &header, &body, &mut object);
        let _ = IndexRecord::open(&keys(), &object);
    }
}
