//! How much of a pack is fetched at once.
//!
//! Invariant: spans grow only while reads of a pack follow one another, and at least a quarter of what was fetched from it
//! was used. What a reader of many files announced is fetched in long spans at once.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use crate::object::{ObjectKey, PieceSet};
use crate::pack::pack_key;

/// Most pieces in one request, a count: 4 MiB, of which 8 under way hide the latency of any service.
const PIECES_MAX: u64 = 16;
/// Fetched bytes for each used byte above which spans become small.
const WASTE_MAX: u64 = 4;
/// Pieces between two requests that follow one another, at most: 1 MiB. Between them lies what was here already, or is not
/// wanted.
const GAP_MAX: u64 = 4;
/// So many requests in a row that follow no other one are those of a reader that reads here and there: one that reads in
/// order begins anew in each pack.
const JUMPS_MIN: u32 = 2;
/// Packs whose use is remembered, a count.
const PACKS_MAX: usize = 1024;

/// Most pieces in one request of those that were announced: 8 MiB.
const ANNOUNCED_MAX: u64 = 32;

/// What was fetched from each pack, and what of it was used.
#[derive(Default)]
pub(super) struct FetchWindows {
    packs: HashMap<ObjectKey, PackUse>,
    /// Requests since the last one that followed another.
    jumps: u32,
    /// Pieces that somebody is going to read.
    announced: HashMap<ObjectKey, BTreeSet<u64>>,
}

#[derive(Debug, Clone, Default)]
struct PackUse {
    fetched: u64,
    used: u64,
    /// The last request.
    last: Range<u64>,
}

impl PackUse {
    fn is_followed_by(&self, number: u64) -> bool {
        self.last.start <= number && number <= self.last.end.saturating_add(GAP_MAX) && self.last.end > 0
    }
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
        let jumps = self.jumps;
        let pack = self.pack_use(key);
        let before = pack.last.end - pack.last.start;
        let follows = pack.is_followed_by(number);
        // Spans double while a reader uses what was fetched for it, as a sequential reader does. Scattered reads
        // waste most of a long span, so they begin again with one piece.
        let count = match follows {
            _ if pack.fetched > pack.used.saturating_mul(WASTE_MAX) => 1,
            true => (before * 2).clamp(1, PIECES_MAX),
            false if jumps >= JUMPS_MIN => 1,
            // Several threads that share a pack, or a reader that leaves something out.
            false => (before / 2).max(1),
        };
        pack.last = number..number + count;
        self.jumps = if follows { 0 } else { jumps.saturating_add(1) };
        count
    }

    /// Whether a range that begins in this piece and ends in the next is fetched alone, since nothing near it is wanted. It
    /// counts as a request.
    pub fn begin_lone_range(&mut self, key: &ObjectKey, number: u64) -> bool {
        let is_scattered = self.jumps >= JUMPS_MIN && self.count_announced(key, number) == 0;
        let pack = self.pack_use(key);
        if !is_scattered || pack.is_followed_by(number) {
            return false;
        }
        pack.last = number..number + 2;
        self.jumps = self.jumps.saturating_add(1);
        true
    }

    fn pack_use(&mut self, key: &ObjectKey) -> &mut PackUse {
        // What is forgotten begins small again.
        if self.packs.len() >= PACKS_MAX && !self.packs.contains_key(key) {
            self.packs.clear();
        }
        self.packs.entry(key.clone()).or_default()
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
