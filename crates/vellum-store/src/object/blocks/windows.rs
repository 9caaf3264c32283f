//! How much of a pack is fetched at once.
//!
//! Invariant: spans grow only while at least a quarter of what was fetched from the pack was used.

use std::collections::HashMap;

use crate::object::ObjectKey;

/// Most pieces in one request, a count: 4 MiB, of which 8 under way hide the latency of any service.
const PIECES_MAX: u64 = 16;
/// Fetched bytes for each used byte above which spans become small.
const WASTE_MAX: u64 = 4;
/// Packs whose use is remembered, a count.
const PACKS_MAX: usize = 1024;

/// What was fetched from each pack, and what of it was used.
#[derive(Default)]
pub(super) struct FetchWindows {
    packs: HashMap<ObjectKey, PackUse>,
}

#[derive(Debug, Clone, Copy, Default)]
struct PackUse {
    fetched: u64,
    used: u64,
    /// Pieces of the last request.
    pieces: u64,
}

impl FetchWindows {
    /// How many pieces the next request for a pack is to have.
    pub fn choose_piece_count(&mut self, key: &ObjectKey) -> u64 {
        // What is forgotten begins small again.
        if self.packs.len() >= PACKS_MAX && !self.packs.contains_key(key) {
            self.packs.clear();
        }
        let pack = self.packs.entry(key.clone()).or_default();
        // Spans double while a reader uses what was fetched for it, as a sequential reader does. Scattered reads
        // waste most of a long span, so they begin again with one piece.
        pack.pieces = if pack.fetched > pack.used.saturating_mul(WASTE_MAX) {
            1
        } else {
            (pack.pieces * 2).clamp(1, PIECES_MAX)
        };
        pack.pieces
    }

    /// Notes bytes that were fetched.
    pub fn note_fetched(&mut self, key: &ObjectKey, bytes: u64) {
        self.packs.entry(key.clone()).or_default().fetched += bytes;
    }

    /// Notes bytes that were used.
    pub fn note_used(&mut self, key: &ObjectKey, bytes: u64) {
        self.packs.entry(key.clone()).or_default().used += bytes;
    }
}
