//! Tests of the workspace as a whole.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cluster;
mod floors;
mod histories;
mod scripts;
mod toolchain;
