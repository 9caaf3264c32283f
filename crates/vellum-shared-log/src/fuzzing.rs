//! Access for fuzz targets to decoders of what engines return. Not for other callers.
//!
//! Invariant: each function accepts any bytes, and panics only where a decoder broke a promise of its own.

use crate::etcd_log::append_value::AppendValue;

/// The objects of a log in the object store, and the values of one in etcd.
///
/// # Panics
/// When what decodes encodes to other bytes.
pub fn stored_log(bytes: &[u8]) {
    crate::object_log::fuzz_decoders(bytes);
    if let Ok(value) = AppendValue::decode(bytes) {
        assert_eq!(value.encode(), bytes, "one value has one encoding");
    }
}
