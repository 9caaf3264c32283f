//! The record of an entry of the trash: its path never leads out of the worktree.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_volume::trash::TrashRecord;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(record) = TrashRecord::decode(bytes) {
        assert_eq!(record.encode(), bytes);
        assert!(record.path.split(|byte| *byte == b'/').all(|name| !matches!(name, b"" | b"." | b"..")));
    }
});
