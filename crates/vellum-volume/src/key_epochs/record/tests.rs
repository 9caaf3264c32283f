//! Any bytes are read or refused, and what is read is written as it was.

use proptest::prelude::*;

use super::*;

fn assert_cuts_refused<T>(bytes: &[u8], decode: impl Fn(&[u8]) -> Result<T, DecodeError>) {
    for cut in 0..bytes.len() {
        assert!(decode(&bytes[..cut]).is_err(), "{cut} bytes");
    }
    assert!(decode(&[bytes, b"x"].concat()).is_err());
}

fn epoch(number: u32) -> KeyEpoch {
    KeyEpoch::from_number(number).expect("there can be such an epoch")
}

#[test]
fn epochs_are_read_as_they_were_written() {
    let recipient =
        |byte| EpochRecipient { slot: KeySlotId([byte; 16]), wrapped: WrappedMaster([byte; 104]) };
    let record = EpochRecord {
        volume: VolumeId([1; 16]),
        epoch: epoch(2),
        time: UnixTime { secs: 1_700_000_000, nanos: 5 },
        recipients: vec![recipient(3), recipient(4)],
        seal: vec![5; 60],
    };
    let bytes = record.encode();
    assert_eq!(EpochRecord::decode(&bytes), Ok(record));
    assert_cuts_refused(&bytes, EpochRecord::decode);
    let secret =
        EpochSecret { previous: MasterKey::from_bytes([6; 32]), publics: vec![ExchangePublic([7; 32])] };
    let plain = secret.encode();
    assert_eq!(EpochSecret::decode(&plain, 1).map(|read| read.publics), Ok(secret.publics));
    assert!(EpochSecret::decode(&plain, 0).is_err() && EpochSecret::decode(&plain, 2).is_err());
}

#[test]
fn the_end_of_a_rotation_lists_each_snapshot_once() {
    let record =
        |byte| KnownRecordHash { id: SnapshotId([byte; 32]), hash: *blake3::hash(&[byte]).as_bytes() };
    let end = RotationEnd { records: vec![record(1), record(2)] };
    let bytes = end.encode();
    assert_eq!(RotationEnd::decode(&bytes).as_ref(), Ok(&end));
    assert_cuts_refused(&bytes, RotationEnd::decode);
    assert!(end.knows_record(&SnapshotId([2; 32]), &[2]));
    assert!(!end.knows_record(&SnapshotId([2; 32]), &[1]) && !end.knows_record(&SnapshotId([3; 32]), &[3]));
    for records in [vec![record(2), record(1)], vec![record(1), record(1)]] {
        assert!(RotationEnd::decode(&RotationEnd { records }.encode()).is_err());
    }
}

#[test]
fn public_keys_of_slots_are_read_as_they_were_written() {
    for grant in [None, Some(SlotGrant { epoch: epoch(9), wrapped: WrappedMaster([1; 104]) })] {
        let record = SlotKeyRecord { grant, seal: vec![2; 73] };
        let bytes = record.encode();
        assert_eq!(SlotKeyRecord::decode(&bytes), Ok(record));
        assert_cuts_refused(&bytes, SlotKeyRecord::decode);
    }
    let public = ExchangePublic([8; 32]);
    let plain = encode_slot_public(&public);
    assert_eq!(decode_slot_public(&plain), Ok(public));
    assert_cuts_refused(&plain, decode_slot_public);
}

#[test]
fn objects_are_called_by_their_epochs() {
    for number in [1, 0xffff] {
        let of = epoch(number);
        assert_eq!(parse_epoch_key(&epoch_object_key(of).expect("a key")), Some((of, false)));
        assert_eq!(parse_epoch_key(&end_object_key(of).expect("a key")), Some((of, true)));
    }
    for name in ["1", "0000000A", "0001ffff.x", "00000001.done", "00010000"] {
        assert_eq!(parse_epoch_key(&ObjectKey::new(format!("{EPOCH_PREFIX}{name}")).expect("a key")), None);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
        if let Ok(record) = EpochRecord::decode(&bytes) {
            prop_assert_eq!(record.encode(), bytes.clone());
        }
        if let Ok(record) = SlotKeyRecord::decode(&bytes) {
            prop_assert_eq!(record.encode(), bytes.clone());
        }
        if let Ok(end) = RotationEnd::decode(&bytes) {
            prop_assert_eq!(end.encode(), bytes);
        }
    }
}
