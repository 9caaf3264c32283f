//! How much of a pack is fetched at once.
//!
//! Invariant: spans grow only while at least a quarter of what was fetched from the pack was used. What a reader of many
//! files announced is fetched in long spans at once.

use std::collections::{BTreeSet, HashMap};

use crate::object::{ObjectKey, PieceSet};
use crate::pack::pack_key;

/// Most pieces in one request, a count: 4 MiB, of which 8 under way hide the latency of any service.
const PIECES_MAX: u64 = 16;
/// Fetched bytes for each used byte above which spans become small.
const WASTE_MAX: u64 = 4;
/// Packs whose use is remembered, a count.
const PACKS_MAX: usize = 1024;

/// Most pieces in one request of those that were announced: 8 MiB.
const ANNOUNCED_MAX: u64 = 32;

/// What was fetched from each pack, and what of it was used.
#[derive(Default)]
pub(super) struct FetchWindows {
    packs: HashMap<ObjectKey, PackUse>,
    /// Pieces that somebody is going to read.
    announced: HashMap<ObjectKey, BTreeSet<u64>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct PackUse {
    fetched: u64,
    used: u64,
    /// Pieces of the last request.
    pieces: u64,
}

impl FetchWindows {
    /// Remembers pieces that somebody is going to read, instead of those that were announced before.
    pub fn announce_pieces(&mut self, pieces: &PieceSet) {
        self.announced = pieces
            .iter_packs()
            .map(|(pack, pieces)| (pack_key(pack), pieces.keys().map(|number| u64::from(*number)).collect()))
            .collect();
    }

    /// How many pieces the next request for a pack is to have, if it begins with this one.
    pub fn choose_piece_count(&mut self, key: &ObjectKey, number: u64) -> u64 {
        let run = self.count_announced(key, number);
        if run > 0 {
            return run;
        }
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

    /// How many pieces from this one on were announced, up to the most that one request is to have.
    fn count_announced(&self, key: &ObjectKey, number: u64) -> u64 {
        let Some(pieces) = self.announced.get(key) else { return 0 };
        (number..number + ANNOUNCED_MAX).take_while(|piece| pieces.contains(piece)).count() as u64
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
