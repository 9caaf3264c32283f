//! How many files may be open at once.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Open files asked for when there is no hard limit: far more than any walk holds.
const UNLIMITED_ASKS_FOR: u64 = 1 << 20;

/// Raises the soft limit of open files to the hard one and returns the limit that holds now. Failure is harmless:
/// whoever holds many directories counts them against what this returned.
pub fn raise_open_files_limit() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    let before = limit.current.unwrap_or(UNLIMITED_ASKS_FOR);
    let wanted = limit.maximum.unwrap_or(UNLIMITED_ASKS_FOR).max(before);
    limit.current = Some(wanted);
    match setrlimit(Resource::Nofile, limit) {
        Ok(()) => wanted,
        Err(_) => before,
    }
}
