//! The requests that were read and not answered yet, for the watchdog.
//!
//! Invariant: an answered request is not in the table. Beginning and ending a request takes no lock.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::wire::{Opcode, RequestHeader};

/// Cells of the table. If two requests fall into one cell, only the later one is watched.
const CELLS: usize = 1024;

/// The requests in progress.
#[derive(Debug)]
pub(super) struct PendingRequests {
    cells: Box<[PendingRequestCell]>,
    /// How often the watchdog has looked.
    tick: AtomicU32,
    /// Whether a request has arrived since the watchdog last looked.
    has_arrived: AtomicBool,
}

#[derive(Debug, Default)]
struct PendingRequestCell {
    /// The request's number; 0 if the cell is free. The kernel begins with 2.
    unique: AtomicU64,
    node: AtomicU64,
    opcode: AtomicU32,
    /// The tick in which the request arrived.
    since: AtomicU32,
}

impl Default for PendingRequests {
    fn default() -> Self {
        let cells = (0..CELLS).map(|_| PendingRequestCell::default()).collect();
        Self { cells, tick: AtomicU32::new(0), has_arrived: AtomicBool::new(false) }
    }
}

impl PendingRequests {
    /// A request was read.
    pub fn begin_request(&self, head: &RequestHeader) {
        let cell = self.find_cell(head.unique);
        cell.node.store(head.node, Ordering::Relaxed);
        cell.opcode.store(head.opcode, Ordering::Relaxed);
        cell.since.store(self.tick.load(Ordering::Relaxed), Ordering::Relaxed);
        // Last, and with release: who sees the number sees the other words of the same request.
        cell.unique.store(head.unique, Ordering::Release);
        // Nearly always it is set already. Not writing it again keeps the cache line shared between processors.
        if !self.has_arrived.load(Ordering::Relaxed) {
            self.has_arrived.store(true, Ordering::Relaxed);
        }
    }

    /// A request was answered.
    pub fn end_request(&self, unique: u64) {
        // A later request may have taken the cell.
        let cell = &self.find_cell(unique).unique;
        // Not a compare-and-exchange, which is several times dearer: if another request takes the cell between the
        // two, it is only not watched.
        if cell.load(Ordering::Relaxed) == unique {
            cell.store(0, Ordering::Release);
        }
    }

    fn find_cell(&self, unique: u64) -> &PendingRequestCell {
        // The kernel numbers requests in steps of two, so halving the number uses every cell.
        &self.cells[(unique / 2) as usize % CELLS]
    }

    /// Begins the next tick, and returns its number.
    pub fn advance_tick(&self) -> u32 {
        self.tick.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Whether a request has arrived since the last call.
    pub fn take_has_arrived(&self) -> bool {
        self.has_arrived.swap(false, Ordering::Relaxed)
    }

    /// Whether no request is in progress.
    pub fn is_empty(&self) -> bool {
        self.cells.iter().all(|cell| cell.unique.load(Ordering::Acquire) == 0)
    }

    /// Describes the requests that arrived exactly `age` ticks before `tick`.
    pub fn describe_requests(&self, tick: u32, age: u32) -> Vec<String> {
        // The cell may change between these loads. Then one request is described wrongly, or not at all, in one look.
        let is_wanted = |cell: &&PendingRequestCell| {
            cell.unique.load(Ordering::Acquire) != 0
                && tick.wrapping_sub(cell.since.load(Ordering::Relaxed)) == age
        };
        let describe = |cell: &PendingRequestCell| {
            let [unique, node] = [&cell.unique, &cell.node].map(|word| word.load(Ordering::Relaxed));
            let opcode = Opcode::from_number(cell.opcode.load(Ordering::Relaxed));
            let operation = opcode.map_or("an unknown operation", Opcode::name);
            format!("request {unique} ({operation}, node {node:#x})")
        };
        self.cells.iter().filter(is_wanted).map(describe).collect()
    }
}
