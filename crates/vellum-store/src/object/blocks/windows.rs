//! How much of a pack is fetched at once.
//!
//! Invariant: spans grow only while at least a quarter of what was fetched was used, and reads of a pack follow one another,
//! or nodes or whole files are read. What a reader announced is fetched in long spans, each once; if it is wanted again, it
//! counts as a scattered read.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use vellum_types::PackId;

use super::read_credit::ReadCredit;
use crate::object::{ObjectKey, PieceSet};
use crate::pack::pack_key;

/// Most pieces in one request, a count: 4 MiB, of which 8 under way hide the latency of any service.
pub(super) const PIECES_MAX: u64 = 16;
/// Fetched bytes for each used byte above which spans become small.
pub(super) const WASTE_MAX: u64 = 4;
/// Pieces between two requests that follow one another, at most: 1 MiB. Between them lies what was here already, or is not
/// wanted.
const GAP_MAX: u64 = 4;
/// So many requests in a row that follow no other one are those of a reader that reads here and there: one that reads in
/// order begins anew in each pack.
const JUMPS_MIN: u32 = 2;
/// Files that were read to their ends in a row before those beside them are expected to be read, too, a count.
const WHOLE_FILES_MIN: u32 = 8;
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
    /// The packs that hold nodes.
    node_packs: HashSet<ObjectKey>,
    node_credit: ReadCredit,
    content_credit: ReadCredit,
    /// Files that were read to their ends since something was read here and there.
    whole_files: u32,
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
        let around = self.find_credit(key).map_or(number..number + 1, |credit| credit.choose_span(number));
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
        let ahead = number..number + count;
        let span = if around.end - around.start > count { around } else { ahead };
        pack.last = span.clone();
        self.jumps = if follows { 0 } else { jumps.saturating_add(1) };
        span
    }

    /// What may be fetched beside a piece that is wanted, wherever in its pack that is.
    ///
    /// Directories are listed and read in another order than the one in which they were stored. That is no sign of scattered
    /// reads while nodes are read, since nobody reads a part of these, or while files are read to their ends. Whoever reads a
    /// large file here and there uses as much of each piece, and wants nothing else of it.
    fn find_credit(&self, key: &ObjectKey) -> Option<ReadCredit> {
        match self.node_packs.contains(key) {
            true => Some(self.node_credit),
            false => (self.whole_files >= WHOLE_FILES_MIN).then_some(self.content_credit),
        }
    }

    fn credit_mut(&mut self, key: &ObjectKey) -> &mut ReadCredit {
        match self.node_packs.contains(key) {
            true => &mut self.node_credit,
            false => &mut self.content_credit,
        }
    }

    /// Remembers which packs hold nodes, instead of those that were known before.
    pub fn set_node_packs(&mut self, packs: &HashSet<PackId>) {
        self.node_packs = packs.iter().map(pack_key).collect();
    }

    /// Notes that a file was read to its end.
    pub fn note_whole_file(&mut self) {
        self.whole_files = self.whole_files.saturating_add(1);
    }

    /// Notes that a file was read elsewhere than where its last read ended.
    pub fn note_scattered_read(&mut self) {
        self.whole_files = 0;
        self.content_credit = ReadCredit::default();
    }

    /// Whether a range that begins in this piece and ends in the next is fetched alone, since nothing near it is wanted. It
    /// counts as a request.
    pub fn begin_lone_range(&mut self, key: &ObjectKey, number: u64) -> bool {
        let is_announced = [number, number + 1].iter().any(|piece| self.is_announced(key, *piece));
        // Whoever reads a tree wants both pieces.
        let is_tree = self.find_credit(key).is_some_and(ReadCredit::is_dense);
        let is_scattered = self.jumps >= JUMPS_MIN && !is_announced && !is_tree;
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
        self.credit_mut(key).take_fetched(bytes);
        if let Some(announced) = self.announced.get_mut(key) {
            announced.retain(|piece| !pieces.contains(piece));
        }
    }

    /// Notes bytes that were used.
    pub fn note_used(&mut self, key: &ObjectKey, bytes: u64) {
        self.packs.entry(key.clone()).or_default().used += bytes;
        self.credit_mut(key).add_used(bytes);
    }
}
