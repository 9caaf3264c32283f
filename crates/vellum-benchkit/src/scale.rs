//! How large set-ups are, and where they stand.
//!
//! Invariant: where benches are only tried (`cargo test --benches`, `--list`), set-ups are small.

use std::path::PathBuf;

use tempfile::TempDir;

/// What a set-up has at most where nothing is measured.
const SMALL: u64 = 100;

/// Whether this run measures: Criterion does under `cargo bench` only, unless it is asked to list or to try.
#[must_use]
pub fn is_measuring() -> bool {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    has("--bench") && !has("--test") && !has("--list")
}

/// How many things a set-up has: `normal`, or the value of the environment variable `name`; few where nothing is
/// measured.
///
/// # Panics
/// If the variable is set to something that is no number.
#[must_use]
pub fn setup_size(name: &str, normal: u64) -> u64 {
    if !is_measuring() {
        return normal.min(SMALL);
    }
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")),
        Err(_) => normal,
    }
}

/// A directory to work in, gone with the value: in `VELLUM_BENCH_DIR`, or else where temporary files are.
///
/// # Panics
/// If it cannot be made.
#[must_use]
pub fn create_scratch_dir() -> TempDir {
    let base = std::env::var_os("VELLUM_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    tempfile::tempdir_in(&base).unwrap_or_else(|error| panic!("{}: {error}", base.display()))
}
