//! How the process behind a mount takes memory from the allocator.
//!
//! The system's allocator gives each thread that allocates a heap of its own, up to eight for a processor, and what one
//! of them has freed the others cannot have. What a change allocates is made by one thread and freed by another, by
//! publishing, much later: each heap became as large as what was once under way through it. A few heaps, shared by all
//! threads, do as well: threads keep small pieces for themselves. Absent: other allocators than glibc's.

/// Fewest heaps: while one is being used, there is another.
const FEWEST: usize = 2;
/// Most heaps, on machines with many processors.
const MOST: usize = 8;

/// How many heaps a process that serves a mount has at most.
fn most_heaps() -> usize {
    std::thread::available_parallelism().map_or(FEWEST, usize::from).clamp(FEWEST, MOST)
}

/// Shares few heaps among all threads. To be called before there are any.
pub fn share() {
    set_most(most_heaps());
}

#[cfg(target_env = "gnu")]
fn set_most(heaps: usize) {
    let heaps = libc::c_int::try_from(heaps).unwrap_or(libc::c_int::MAX);
    #[expect(unsafe_code, reason = "no safe call sets options of the allocator")]
    // SAFETY: the function takes two numbers, of which the first names an option; it locks what it changes.
    unsafe {
        // If it is refused, more memory is taken, and nothing else is different.
        libc::mallopt(libc::M_ARENA_MAX, heaps);
    }
}

#[cfg(not(target_env = "gnu"))]
fn set_most(_heaps: usize) {}
