//! The limit of open files.

use rustix::process::{Resource, getrlimit, setrlimit};

/// The limit that is set if there is no hard limit: much more than any walk needs.
const UNLIMITED_ASKS_FOR: u64 = 1 << 20;
/// Open files that a store, a walk and several files need at once.
const DESCRIPTORS_RESERVED: i32 = 512;

/// Raises the soft limit of open files to the hard limit, and returns the resulting limit. A failure is harmless:
/// callers that keep many directories open adapt to the returned number.
pub fn raise_open_files_limit() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    let before = limit.current.unwrap_or(UNLIMITED_ASKS_FOR);
    let wanted = limit.maximum.unwrap_or(UNLIMITED_ASKS_FOR).max(before);
    // The soft limit is low (1,024) for programs that use `select`, which this one does not. Every process
    // may raise it to the hard limit.
    limit.current = Some(wanted);
    match setrlimit(Resource::Nofile, limit) {
        Ok(()) => wanted,
        Err(_) => before,
    }
}

/// Enlarges the descriptor table of this process to 512 open files, as far as the limit allows.
///
/// It has to be called before any thread is started: in a process with several threads, the kernel enlarges the table
/// only after an RCU grace period of about 10 ms, and does so at 64, 128 and 256 open files.
pub fn reserve_descriptor_table() {
    let Ok(null) = std::fs::File::open("/dev/null") else { return };
    // The table stays as large as it was for the highest number that was used. Without room nothing is lost but time.
    let _ = rustix::io::fcntl_dupfd_cloexec(&null, DESCRIPTORS_RESERVED - 1);
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn the_table_of_descriptors_has_room_for_many() {
        reserve_descriptor_table();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let room = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert!(room.trim().parse::<u64>().unwrap() >= limit.min(512), "{room}");
    }
}
