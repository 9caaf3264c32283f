//! The record of a device, behind its seal: what decodes encodes to the same bytes, and has a name that worktrees can have.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_volume::device::{DeviceRecord, join_line_name};
use vellum_volume::refs::check_ref_name;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(record) = DeviceRecord::decode(bytes) {
        assert_eq!(record.encode(), bytes);
        assert!(check_ref_name(&join_line_name(&record.name, "main")).is_ok());
    }
});
