//! The object of a key slot, and the slot in it: what decodes encodes to the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_crypto::KeySlot;

fuzz_target!(|bytes: &[u8]| {
    let _ = vellum_volume::keyring::split_slot_seal(bytes);
    if let Ok(slot) = KeySlot::decode(bytes) {
        assert_eq!(slot.encode(), bytes);
        let _ = (slot.id().to_string(), slot.label().len(), slot.kdf_params());
    }
});
