//! The plan of a restore: what decodes encodes to the same plan.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_checkout::SavedRestorePlan;

fuzz_target!(|bytes: &[u8]| {
    let Ok(plan) = SavedRestorePlan::decode(bytes) else { return };
    let encoded = plan.encode().expect("a plan that was decoded can be encoded");
    assert_eq!(SavedRestorePlan::decode(&encoded).ok(), Some(plan));
});
