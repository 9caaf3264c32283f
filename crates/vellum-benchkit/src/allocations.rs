//! Allocations, counted by thread.
//!
//! Invariant: counting allocates nothing itself, and what other threads allocate is not counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// A cell that is there from the start and is never dropped: using it from within the allocator is safe.
    static COUNT: Cell<u64> = const { Cell::new(0) };
    /// Bytes that this thread allocated, less those that it freed.
    static HELD: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator, counted. A binary that wants counts has it as its `#[global_allocator]`.
#[derive(Debug, Clone, Copy, Default)]
pub struct CountingAllocator;

impl CountingAllocator {
    fn record_allocation(bytes: usize) {
        // While a thread ends, its cell may be gone; what it allocates then is not counted.
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        Self::adjust_held_bytes(bytes as i64);
    }

    fn adjust_held_bytes(bytes: i64) {
        let _ = HELD.try_with(|held| held.set(held.get() + bytes));
    }
}

// SAFETY: everything is the system allocator's; counting touches a cell of this thread.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
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

/// How often this thread allocates while it does something. 0 unless [`CountingAllocator`] is the binary's allocator.
pub fn count_allocations(work: impl FnOnce()) -> u64 {
    let before = COUNT.get();
    work();
    COUNT.get() - before
}

/// Bytes that this thread still holds of what it allocates while it does something, as it asked for them. 0 unless
/// [`CountingAllocator`] is the binary's allocator.
pub fn count_retained_bytes(work: impl FnOnce()) -> i64 {
    let before = HELD.get();
    work();
    HELD.get() - before
}

/// Fails loudly if `times` repetitions allocate more than `most` times each.
///
/// # Panics
/// If they do, or if the binary does not count.
pub fn assert_max_allocations(what: &str, most: u64, times: u64, mut work: impl FnMut(u64)) {
    let counted = count_allocations(|| drop(std::hint::black_box(Box::new(0_u8))));
    assert_ne!(counted, 0, "allocations are not counted: `Counting` has to be the global allocator");
    let found = count_allocations(|| (0..times).for_each(&mut work));
    assert!(found <= most * times, "{what}: {found} allocations in {times}, but at most {most} each");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: CountingAllocator = CountingAllocator;

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
    #[should_panic(expected = "two boxes: 20 allocations in 10")]
    fn too_many_are_told() {
        assert_max_allocations("two boxes", 1, 10, |_| {
            drop(std::hint::black_box((Box::new(1), Box::new(2))))
        });
    }
}
