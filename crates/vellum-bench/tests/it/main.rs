//! Benches of real directories and of stores that fail.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod browser;
mod filesystem;
mod objects;
