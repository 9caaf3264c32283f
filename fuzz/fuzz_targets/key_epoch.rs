//! The objects of key epochs, and what stands behind their seals: what decodes encodes to the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_volume::key_epochs::{
    EpochRecord, EpochSecret, RotationEnd, SlotKeyRecord, decode_slot_public, encode_slot_public,
};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(record) = EpochRecord::decode(bytes) {
        assert_eq!(record.encode(), bytes);
    }
    if let Ok(record) = SlotKeyRecord::decode(bytes) {
        assert_eq!(record.encode(), bytes);
    }
    if let Ok(end) = RotationEnd::decode(bytes) {
        assert_eq!(end.encode(), bytes);
    }
    if let Ok(public) = decode_slot_public(bytes) {
        assert_eq!(encode_slot_public(&public), bytes);
    }
    for recipients in [0, 1, 64] {
        if let Ok(secret) = EpochSecret::decode(bytes, recipients) {
            assert_eq!(*secret.encode(), bytes);
        }
    }
});
