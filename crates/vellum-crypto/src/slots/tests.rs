//! Slots: every secret opens its own, nothing else does, and no bytes make the decoder stumble.

use proptest::prelude::*;

use super::*;

const VOLUME: VolumeId = VolumeId([0x11; 16]);
const OTHER: VolumeId = VolumeId([0x22; 16]);

fn master() -> MasterKey {
    MasterKey::from_bytes([0x33; 32])
}

fn slot(secret: SlotSecret<'_>) -> KeySlot {
    KeySlot::create(secret, &master(), VOLUME, "laptop", KdfParams::FLOOR).expect("it can be made").slot
}

/// A slot that needs no Argon2, for tests that unlock many times.
fn recovery_slot() -> (RecoveryCode, KeySlot) {
    let code = RecoveryCode::generate();
    let slot = slot(SlotSecret::Recovery(&code));
    (code, slot)
}

fn with_costs(slot: &KeySlot, memory_kib: u32, iterations: u32, lanes: u32) -> Result<KeySlot, KeySlotError> {
    let mut bytes = slot.encode();
    let costs = 8 + 4 + 16 + 16 + 1;
    bytes[costs..costs + 4].copy_from_slice(&memory_kib.to_le_bytes());
    bytes[costs + 4..costs + 8].copy_from_slice(&iterations.to_le_bytes());
    bytes[costs + 8..costs + 12].copy_from_slice(&lanes.to_le_bytes());
    KeySlot::decode(&bytes)
}

#[test]
fn each_kind_of_secret_opens_its_slot() {
    let code = RecoveryCode::generate();
    for secret in [
        SlotSecret::Passphrase(b"open\0sesame"),
        SlotSecret::KeyFile(&[0; 5000]),
        SlotSecret::Recovery(&code),
    ] {
        let slot = KeySlot::decode(&slot(secret).encode()).expect("it decodes");
        assert_eq!((slot.kind(), slot.label(), slot.volume_id()), (secret.kind(), "laptop", VOLUME));
        let opened = slot.unlock_slot(secret, VOLUME).expect("it opens");
        assert_eq!(opened.master.as_bytes(), master().as_bytes());
    }
}

#[test]
fn wrong_secrets_are_refused() {
    let slot = slot(SlotSecret::Passphrase(b"right"));
    let long = vec![b'x'; SECRET_MAX + 1];
    for secret in [&b"wrong"[..], b"", b"right\0", b"Right", &long] {
        let error = slot.unlock_slot(SlotSecret::Passphrase(secret), VOLUME).expect_err("it is wrong");
        assert_eq!(error, UnlockError::Wrong(KeySlotKind::Passphrase));
    }
    let wanted = KeySlotKind::Passphrase;
    let given = KeySlotKind::KeyFile;
    let error = slot.unlock_slot(SlotSecret::KeyFile(b"right"), VOLUME).expect_err("it is no key file");
    assert_eq!(error, UnlockError::OtherKind { wanted, given });
}

#[test]
fn a_slot_of_another_volume_is_refused() {
    let (code, slot) = recovery_slot();
    let error = slot.unlock_slot(SlotSecret::Recovery(&code), OTHER).expect_err("it is foreign");
    assert_eq!(error, UnlockError::OtherVolume { expected: OTHER, found: VOLUME });
    // Renaming the volume in the object does not help: it is authenticated.
    let renamed = KeySlot { volume: OTHER, ..slot };
    let error = renamed.unlock_slot(SlotSecret::Recovery(&code), OTHER).expect_err("it was changed");
    assert_eq!(error, UnlockError::Wrong(KeySlotKind::Recovery));
}

#[test]
fn secrets_and_labels_out_of_range_make_no_slot() {
    let create = |secret, label: &str| {
        KeySlot::create(secret, &master(), VOLUME, label, KdfParams::FLOOR).map(|made| made.slot)
    };
    let kind = KeySlotKind::Passphrase;
    assert_eq!(create(SlotSecret::Passphrase(b""), "x"), Err(KeySlotError::EmptySecret(kind)));
    let long = vec![0; SECRET_MAX + 1];
    assert_eq!(create(SlotSecret::Passphrase(&long), "x"), Err(KeySlotError::LongSecret(kind)));
    assert!(create(SlotSecret::Passphrase(&long[1..]), "x").is_ok());
    for label in ["a\nb", "\x1b[31m", "\u{202e}txt", "\0", &"x".repeat(LABEL_MAX + 1)] {
        assert_eq!(create(SlotSecret::Passphrase(b"x"), label), Err(KeySlotError::Label), "{label:?}");
    }
}

#[test]
fn the_longest_slot_fits_its_limit() {
    let (_, slot) = recovery_slot();
    let slot = KeySlot { label: "ü".repeat(LABEL_MAX / 2), ..slot };
    assert!(slot.encode().len() <= SLOT_MAX);
    assert_eq!(KeySlot::decode(&slot.encode()), Ok(slot));
}

#[test]
fn costs_below_the_floor_or_above_the_ceiling_are_refused_at_once() {
    let slot = slot(SlotSecret::Passphrase(b"x"));
    for (memory, iterations, lanes) in [(8191, 1, 1), (0, 0, 0), (8192, 0, 1), (8192, 1, 0)] {
        let refused = matches!(
            with_costs(&slot, memory, iterations, lanes),
            Err(KeySlotError::Kdf(KdfError::Weak { .. }))
        );
        assert!(refused, "{memory} {iterations} {lanes}");
    }
    let excessive = [
        (u32::MAX, u32::MAX, u32::MAX),
        ((2 << 20) + 1, 1, 1),
        (8192, 65, 1),
        (8192, u32::MAX, 1),
        (8192, 1, 17),
        (2 << 20, 9, 1),
    ];
    for (memory, iterations, lanes) in excessive {
        let found = with_costs(&slot, memory, iterations, lanes);
        assert!(
            matches!(found, Err(KeySlotError::Kdf(KdfError::Excessive { .. }))),
            "{memory} {iterations} {lanes}"
        );
    }
    let weak = KdfParams { memory_kib: 1024, ..KdfParams::DEFAULT };
    let error =
        KeySlot::create(SlotSecret::Passphrase(b"x"), &master(), VOLUME, "", weak).expect_err("it is weak");
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert_eq!(KdfParams::DEFAULT.check_limits(), Ok(KdfParams::DEFAULT));
}

#[test]
fn other_costs_than_the_ones_it_was_made_with_do_not_unlock() {
    let lowered = with_costs(&slot(SlotSecret::Passphrase(b"x")), 8193, 1, 1).expect("it is in range");
    let error = lowered.unlock_slot(SlotSecret::Passphrase(b"x"), VOLUME).expect_err("it was changed");
    assert_eq!(error, UnlockError::Wrong(KeySlotKind::Passphrase));
}

#[test]
fn a_recovery_slot_with_costs_is_refused() {
    let (_, slot) = recovery_slot();
    assert!(matches!(with_costs(&slot, 8192, 1, 1), Err(KeySlotError::Decode(DecodeError::Invalid(_)))));
}

#[test]
fn unknown_versions_and_foreign_objects_are_told_apart() {
    let (_, slot) = recovery_slot();
    let mut bytes = slot.encode();
    bytes[8] = 2;
    assert_eq!(KeySlot::decode(&bytes), Err(KeySlotError::Decode(DecodeError::Version(2))));
    bytes[0] = b'X';
    assert_eq!(KeySlot::decode(&bytes), Err(KeySlotError::Decode(DecodeError::Magic)));
    assert_eq!(KeySlot::decode(&[]), Err(KeySlotError::Decode(DecodeError::Truncated)));
}

// Attacks 1 to 3 of a store that lies, on one object.
#[test]
fn every_flipped_bit_every_truncation_and_every_addition_is_noticed() {
    let (code, slot) = recovery_slot();
    let bytes = slot.encode();
    let opens = |bytes: &[u8]| {
        KeySlot::decode(bytes).is_ok_and(|slot| slot.unlock_slot(SlotSecret::Recovery(&code), VOLUME).is_ok())
    };
    assert!(opens(&bytes));
    for place in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[place / 8] ^= 1 << (place % 8);
        assert!(!opens(&flipped), "bit {place}");
    }
    for len in 0..bytes.len() {
        assert!(!opens(&bytes[..len]), "cut to {len}");
    }
    assert!(!opens(&[&bytes[..], &[0]].concat()));
}

#[test]
fn nothing_secret_is_printed() {
    let (code, slot) = recovery_slot();
    let shown = format!("{slot:?} {:?} {:?}", SlotSecret::Passphrase(b"canary"), SlotSecret::Recovery(&code));
    assert!(!shown.contains("canary") && !shown.contains("99, 97"), "{shown}");
    assert!(!shown.contains("salt") && !shown.contains("wrapped"), "{shown}");
}

proptest! {
    #[test]
    fn arbitrary_bytes_decode_or_fail_and_what_decodes_encodes_the_same(
        tail in proptest::collection::vec(any::<u8>(), 0..400),
        keep in 0_usize..250,
    ) {
        let (_, slot) = recovery_slot();
        let mut bytes = slot.encode();
        bytes.truncate(keep);
        bytes.extend_from_slice(&tail);
        if let Ok(decoded) = KeySlot::decode(&bytes) {
            prop_assert_eq!(decoded.encode(), bytes);
        }
        let _ = KeySlot::decode(&tail);
    }

    #[test]
    fn one_changed_byte_decodes_or_fails(place: prop::sample::Index, value: u8) {
        let mut bytes = recovery_slot().1.encode();
        let place = place.index(bytes.len());
        bytes[place] = value;
        if let Ok(decoded) = KeySlot::decode(&bytes) {
            prop_assert_eq!(decoded.encode(), bytes);
        }
    }
}
