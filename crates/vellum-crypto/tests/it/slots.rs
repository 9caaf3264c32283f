//! A volume's life with several keys: added, used, removed; none needs another.

use vellum_crypto::{KdfParams, KeySlot, MasterKey, RecoveryCode, SlotSecret};

use crate::{VOLUME, master};

#[test]
fn any_of_several_slots_opens_the_same_volume() {
    let code = RecoveryCode::generate();
    let secrets =
        [SlotSecret::Passphrase(b"first"), SlotSecret::Passphrase(b"second"), SlotSecret::Recovery(&code)];
    let slots = secrets.map(|secret| {
        KeySlot::create(secret, &master(), VOLUME, "", KdfParams::FLOOR).expect("it can be made").slot
    });
    let opened = |secret: SlotSecret<'_>| -> Vec<MasterKey> {
        slots.iter().filter_map(|slot| Some(slot.unlock_slot(secret, VOLUME).ok()?.master)).collect()
    };
    for secret in secrets {
        let keys = opened(secret);
        assert_eq!(keys.iter().map(|key| *key.as_bytes()).collect::<Vec<_>>(), [*master().as_bytes()]);
    }
    assert!(opened(SlotSecret::Passphrase(b"third")).is_empty());
    assert_eq!(slots.iter().map(KeySlot::id).collect::<std::collections::HashSet<_>>().len(), 3);
}

#[test]
fn a_typed_recovery_code_opens_its_slot() {
    let code = RecoveryCode::generate();
    let slot = KeySlot::create(SlotSecret::Recovery(&code), &master(), VOLUME, "paper", KdfParams::DEFAULT)
        .expect("it can be made")
        .slot;
    let typed = RecoveryCode::parse(&code.to_text().to_lowercase().replace('-', " ")).expect("it parses");
    assert_eq!(
        slot.unlock_slot(SlotSecret::Recovery(&typed), VOLUME).expect("it opens").master.as_bytes(),
        master().as_bytes()
    );
    assert_eq!(slot.kdf_params(), None);
}
