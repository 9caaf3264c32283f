//! Tests on real files.
