//! What only a local directory can get wrong.
#![expect(clippy::unwrap_used, reason = "tests")]
