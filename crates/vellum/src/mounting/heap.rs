//! How the process behind a mount takes memory from the allocator.
//!
//! The system's allocator gives each thread that allocates a heap of its own, up to eight for a processor, and what one
//! of them has freed the others cannot have. What a change allocates is made by one thread and freed by another, by
//! publishing, much later: each heap became as large as what was once under way through it. A few heaps, shared by all
//! threads, do as well: threads keep small pieces for themselves. What was freed between pieces that are still in use
//! stays with the process, too, until it is given back: with hours of snapshots that was half of its memory. Absent: other
//! allocators than glibc's.

use std::time::Duration;

/// Fewest heaps: while one is being used, there is another.
const FEWEST: usize = 2;
/// Most heaps, on machines with many processors.
const MOST: usize = 8;

/// How often memory is given back, and how much must be free for that.
const RETURN_PERIOD: Duration = Duration::from_secs(60);
const FREE_MIN: usize = 16 << 20;

/// How many heaps a process that serves a mount has at most.
fn max_heap_count() -> usize {
    std::thread::available_parallelism().map_or(FEWEST, usize::from).clamp(FEWEST, MOST)
}

/// Shares few heaps among all threads. To be called before there are any.
pub fn limit_heap_count() {
    set_max_arenas(max_heap_count());
}

/// Starts a thread that gives memory which nobody uses back to the system, for as long as the process lives.
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
    if free >= FREE_MIN {
        // SAFETY: it takes a number of bytes to keep, and gives back only pages without anything in use.
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
