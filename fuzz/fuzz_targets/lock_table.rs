//! The locks of a shared worktree, in its log: what decodes encodes to the same bytes, and works.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_cluster::locks::{LockLimits, LockTable};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(table) = LockTable::decode(bytes, LockLimits::default()) {
        assert_eq!(table.encode(), bytes);
        for session in table.list_sessions() {
            table.end_session(session);
        }
        assert_eq!(table.encode(), LockTable::new(LockLimits::default()).encode());
    }
});
