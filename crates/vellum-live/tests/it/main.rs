//! Engines from outside.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod reopening;
mod suites;
