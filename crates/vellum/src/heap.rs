//! How long or large work takes memory from the allocator.
//!
//! The system's allocator gives each thread that allocates a heap of its own, up to eight for a processor, and what one
//! of them has freed the others cannot have. In a mount, what a change allocates is made by one thread and freed by
//! another, by publishing, much later; in a restore, the plan fills the cache of nodes by one thread, and the threads that
//! write replace it: each heap becomes as large as what was once under way through it. A few heaps, shared by all
//! threads, do as well: threads keep small pieces for themselves. What was freed between pieces that are still in use
//! stays with a mount, too, until it is given back: with hours of snapshots that was half of its memory. Absent: other
//! allocators than glibc's.

use std::time::Duration;

/// Fewest heaps of a mount: while one is being used, there is another.
const FEWEST: usize = 2;
/// Most heaps, on machines with many processors.
const MOST: usize = 8;
/// Processors for each heap of a command: its threads wait for files most of the time.
const PROCESSORS: usize = 4;

/// How often memory is given back, and how much must be free for that.
const RETURN_PERIOD: Duration = Duration::from_secs(60);
const FREE_MIN: usize = 16 << 20;

/// Shares few heaps among all threads of a mount. To be called before there are any.
pub fn limit_mount_heaps() {
    set_max_arenas(count_processors().clamp(FEWEST, MOST));
}

/// Shares fewer among those of a command that writes many files: one for a few processors.
pub fn limit_command_heaps() {
    set_max_arenas(count_processors().div_ceil(PROCESSORS).min(MOST));
}

fn count_processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Starts a thread that returns unused memory to the system, for as long as the process lives.
pub fn start_memory_release() -> std::io::Result<()> {
    let run = || {
        loop {
            std::thread::sleep(RETURN_PERIOD);
            return_free_memory();
        }
    };
    std::thread::Builder::new().name("vellum-heap".into()).spawn(run).map(drop)
}

#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "no safe call asks the allocator")]
fn return_free_memory() {
    // SAFETY: it takes nothing, and locks each heap while it counts.
    let free = unsafe { libc::mallinfo2() }.fordblks;
    // Trimming locks each heap while it walks through it, and the threads of the mount wait meanwhile: not worth it
    // for a little memory.
    if free >= FREE_MIN {
        // SAFETY: it takes a number of bytes to keep, and returns only unused pages to the system.
        unsafe { libc::malloc_trim(0) };
    }
}

#[cfg(not(target_env = "gnu"))]
fn return_free_memory() {}

#[cfg(target_env = "gnu")]
fn set_max_arenas(heaps: usize) {
    let heaps = libc::c_int::try_from(heaps).unwrap_or(libc::c_int::MAX);
    #[expect(unsafe_code, reason = "no safe call sets options of the allocator")]
    // SAFETY: the function takes two numbers, of which the first names an option; it locks what it changes.
    unsafe {
        // If it is refused, more memory is taken, and nothing else is different.
        libc::mallopt(libc::M_ARENA_MAX, heaps);
    }
}

#[cfg(not(target_env = "gnu"))]
fn set_max_arenas(_heaps: usize) {}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    /// Memory of this process that is no file's, KiB.
    fn resident() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse().unwrap_or(0)
    }

    #[test]
    fn what_is_free_between_pieces_in_use_is_given_back() {
        // Pieces that come from a heap, every hundredth of which stays.
        let mut pieces: Vec<Option<Vec<u8>>> = (0..12_800).map(|_| Some(vec![1; 8 << 10])).collect();
        let filled = resident();
        for (number, piece) in pieces.iter_mut().enumerate() {
            if number % 100 != 0 {
                *piece = None;
            }
        }
        return_free_memory();
        let left = resident();
        assert!(left + (64 << 10) < filled, "{left} KiB of {filled} are left");
        assert!(pieces.iter().flatten().all(|piece| piece.iter().all(|byte| *byte == 1)));
    }
}
