//! Allocations, counted by thread, and for the whole process in benches that ask for it.
//!
//! Invariant: counting allocates nothing itself. The allocator is that of every binary that this crate is linked into, so
//! that no bench can forget it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

thread_local! {
    /// A cell that is there from the start and is never dropped: using it from within the allocator is safe.
    static COUNT: Cell<u64> = const { Cell::new(0) };
    /// Bytes that this thread asked for.
    static BYTES: Cell<u64> = const { Cell::new(0) };
    /// Bytes that this thread allocated, less those that it freed.
    static HELD: Cell<i64> = const { Cell::new(0) };
}

/// Whether all threads are counted together, too. Off, it costs an allocation one load; on, threads contend for the sums.
static IS_PROCESS_COUNTED: AtomicBool = AtomicBool::new(false);
static PROCESS_COUNT: AtomicU64 = AtomicU64::new(0);
static PROCESS_BYTES: AtomicU64 = AtomicU64::new(0);

/// What was allocated so far. A reallocation counts as one, with its new size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllocationCount {
    /// How often memory was asked for.
    pub calls: u64,
    /// How much was asked for.
    pub bytes: u64,
}

impl AllocationCount {
    /// Of this thread.
    #[must_use]
    pub fn of_thread() -> Self {
        Self { calls: COUNT.get(), bytes: BYTES.get() }
    }

    /// Of all threads, since this was first called.
    #[must_use]
    pub fn of_process() -> Self {
        IS_PROCESS_COUNTED.store(true, Ordering::Relaxed);
        Self { calls: PROCESS_COUNT.load(Ordering::Relaxed), bytes: PROCESS_BYTES.load(Ordering::Relaxed) }
    }
}

/// The system's allocator, counted.
#[derive(Debug, Clone, Copy, Default)]
struct CountingAllocator;

impl CountingAllocator {
    fn record_allocation(bytes: usize) {
        // While a thread ends, its cell may be gone; what it allocates then is not counted.
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        let _ = BYTES.try_with(|sum| sum.set(sum.get() + bytes as u64));
        if IS_PROCESS_COUNTED.load(Ordering::Relaxed) {
            // Relaxed is enough: nothing but the sums is read.
            PROCESS_COUNT.fetch_add(1, Ordering::Relaxed);
            PROCESS_BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        Self::adjust_held_bytes(bytes as i64);
    }

    fn adjust_held_bytes(bytes: i64) {
        // The sum may fall below zero, since a thread may free what another one has allocated.
        let _ = HELD.try_with(|held| held.set(held.get() + bytes));
    }
}

// SAFETY: everything is the system allocator's; counting touches a cell of this thread.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Also if it fails: a bench without memory has failed anyway.
        Self::record_allocation(layout.size());
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::record_allocation(layout.size());
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::record_allocation(size);
        Self::adjust_held_bytes(-(layout.size() as i64));
        // SAFETY: the caller's promise is handed on.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Self::adjust_held_bytes(-(layout.size() as i64));
        // SAFETY: the caller's promise is handed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// How often this thread allocates while it does something.
pub fn count_allocations(work: impl FnOnce()) -> u64 {
    let before = COUNT.get();
    work();
    COUNT.get() - before
}

/// Bytes that this thread still holds of what it allocates while it does something, as it asked for them.
pub fn count_retained_bytes(work: impl FnOnce()) -> i64 {
    let before = HELD.get();
    work();
    HELD.get() - before
}

/// Fails loudly if `times` repetitions allocate more than `most` times each.
///
/// # Panics
/// If they do.
pub fn assert_max_allocations(what: &str, most: u64, times: u64, mut work: impl FnMut(u64)) {
    let found = count_allocations(|| (0..times).for_each(&mut work));
    assert!(found <= most * times, "{what}: {found} allocations in {times}, but at most {most} each");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_are_counted_and_sums_are_not() {
        assert_eq!(count_allocations(|| drop(std::hint::black_box(Box::new(1_u8)))), 1);
        assert_eq!(count_allocations(|| assert_eq!(std::hint::black_box(1) + 1, 2)), 0);
        assert_max_allocations("a box", 1, 10, |number| drop(std::hint::black_box(Box::new(number))));
    }

    #[test]
    fn bytes_are_those_that_are_still_there() {
        let mut kept = Vec::new();
        assert_eq!(count_retained_bytes(|| kept.extend(std::hint::black_box(vec![1_u8; 300]))), 300);
        assert_eq!(count_retained_bytes(|| kept.reserve_exact(700)), 700);
        assert_eq!(count_retained_bytes(move || drop(kept)), -1000);
    }

    #[test]
    fn other_threads_are_counted_with_the_process_alone() {
        let process = AllocationCount::of_process();
        let thread = std::thread::spawn(|| {
            let before = AllocationCount::of_thread();
            drop(std::hint::black_box(vec![1_u8; 1000]));
            AllocationCount::of_thread().bytes - before.bytes
        });
        assert_eq!(thread.join().expect("it allocates"), 1000);
        let after = AllocationCount::of_process();
        assert!(after.bytes >= process.bytes + 1000, "{process:?} {after:?}");
        assert!(after.calls > process.calls, "{process:?} {after:?}");
    }

    #[test]
    #[should_panic(expected = "two boxes: 20 allocations in 10")]
    fn too_many_are_told() {
        assert_max_allocations("two boxes", 1, 10, |_| {
            drop(std::hint::black_box((Box::new(1), Box::new(2))))
        });
    }
}
