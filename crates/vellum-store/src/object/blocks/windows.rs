//! How much of a pack is fetched at once.
//!
//! Invariant: spans grow only while reads of a pack follow one another, and at least a quarter of what was fetched from it
//! was used. What a reader announced is fetched in long spans, each once; if it is wanted again, it counts as a
//! scattered read.

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

/// Most pieces in one request of those that were announced: 9 MiB, so that a pack, which has a little more than 16 MiB,
/// takes two.
const ANNOUNCED_MAX: u64 = 36;

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
        // An empty range stands for a pack of which nothing was requested yet.
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

    /// The pieces that the next request for a pack is to have, if this one is wanted.
    pub fn choose_span(&mut self, key: &ObjectKey, number: u64) -> Range<u64> {
        if let Some(span) = self.find_announced_span(key, number) {
            return span;
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
        number..number + count
    }

    /// Whether a range that begins in this piece and ends in the next is fetched alone, since nothing near it is wanted. It
    /// counts as a request.
    pub fn begin_lone_range(&mut self, key: &ObjectKey, number: u64) -> bool {
        let is_announced = [number, number + 1].iter().any(|piece| self.is_announced(key, *piece));
        let is_scattered = self.jumps >= JUMPS_MIN && !is_announced;
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

    /// Whether a piece was announced, and not fetched since.
    pub fn is_announced(&self, key: &ObjectKey, number: u64) -> bool {
        self.announced.get(key).is_some_and(|pieces| pieces.contains(&number))
    }

    /// The part of the announced pieces around this one that is fetched at once. They are cut into equal parts, wherever
    /// reading begins: a tree is read from its root, which is at the end of its pack.
    fn find_announced_span(&self, key: &ObjectKey, number: u64) -> Option<Range<u64>> {
        let pieces = self.announced.get(key).filter(|pieces| pieces.contains(&number))?;
        let start = (0..number).rev().take_while(|piece| pieces.contains(piece)).last().unwrap_or(number);
        let end = (number + 1..).find(|piece| !pieces.contains(piece)).unwrap_or(number + 1);
        let parts = (end - start).div_ceil(ANNOUNCED_MAX);
        let len = (end - start).div_ceil(parts);
        let from = number - (number - start) % len;
        Some(from..(from + len).min(end))
    }

    /// Notes pieces that were fetched, and how many bytes they have.
    pub fn note_fetched(&mut self, key: &ObjectKey, pieces: &Range<u64>, bytes: u64) {
        self.packs.entry(key.clone()).or_default().fetched += bytes;
        if let Some(announced) = self.announced.get_mut(key) {
            announced.retain(|piece| !pieces.contains(piece));
        }
    }

    /// Notes bytes that were used.
    pub fn note_used(&mut self, key: &ObjectKey, bytes: u64) {
        self.packs.entry(key.clone()).or_default().used += bytes;
    }
}
