//! A ref behind its seal, and in it the head of a worktree, a pin, settings or an annotation; the file of refs that are known.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_volume::annotation::SnapshotAnnotation;
use vellum_volume::refs::{WorktreeHead, check_ref_name, parse_ref};
use vellum_volume::settings::StoredSettings;
use vellum_volume::snapshot_pin::SnapshotPin;

fuzz_target!(|bytes: &[u8]| {
    vellum_volume::fuzzing::fuzz_known_refs(bytes);
    if let Ok((_, name, value)) = parse_ref(bytes) {
        let _ = check_ref_name(&name);
        let _ = WorktreeHead::decode(&value);
    }
    if let Ok(settings) = StoredSettings::decode(bytes) {
        assert_eq!(settings.encode(), bytes);
    }
    if let Ok(annotation) = SnapshotAnnotation::decode(bytes) {
        assert_eq!(annotation.encode(), bytes);
    }
    if let Ok(pin) = SnapshotPin::decode(bytes) {
        assert_eq!(pin.encode(), bytes);
    }
    if let Ok(head) = WorktreeHead::decode(bytes) {
        // Those of the first version get another form.
        assert_eq!(WorktreeHead::decode(&head.encode()), Ok(head));
    }
});
