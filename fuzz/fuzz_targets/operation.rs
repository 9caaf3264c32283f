//! The record of an operation, behind its seal: what decodes encodes to the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_volume::operations::OperationRecord;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(decoded) = OperationRecord::decode(bytes) {
        assert_eq!(decoded.encode(), bytes);
    }
});
