//! Sets of pieces of packs: what a command is to fetch, to remove or to keep of them.
//!
//! Invariant: a piece is in the set once, with at most as many wanted bytes as a piece has.

use std::collections::BTreeMap;

use vellum_types::PackId;

use super::cache::{PIECE, PIECES_MAX};

/// Pieces of packs, and how many bytes of each are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PieceSet {
    packs: BTreeMap<PackId, BTreeMap<u32, u32>>,
}

impl PieceSet {
    /// Adds the pieces that hold a range of a pack. Nothing is added for ranges that no pack can have.
    pub fn add_range(&mut self, pack: &PackId, offset: u32, len: u32) {
        let end = u64::from(offset) + u64::from(len);
        if len == 0 || end > PIECE * PIECES_MAX {
            return;
        }
        for number in u64::from(offset) / PIECE..=(end - 1) / PIECE {
            // The part of the range that is in this piece: only these bytes are wanted of it, and progress counts
            // them.
            let within = end.min((number + 1) * PIECE) - u64::from(offset).max(number * PIECE);
            self.add_piece(pack, number, within);
        }
    }

    /// Adds a piece of which `wanted` bytes are wanted.
    pub(super) fn add_piece(&mut self, pack: &PackId, number: u64, wanted: u64) {
        let Ok(number) = u32::try_from(number) else { return };
        let bytes = self.packs.entry(*pack).or_default().entry(number).or_default();
        // Wanted bytes of several blobs add up. Overlapping ranges could add up to more than the piece has.
        *bytes = u32::try_from((u64::from(*bytes) + wanted).min(PIECE)).unwrap_or(u32::MAX);
    }

    /// Adds all that another set has.
    pub fn add_all(&mut self, other: &Self) {
        for (pack, pieces) in &other.packs {
            pieces.iter().for_each(|(number, bytes)| self.add_piece(pack, (*number).into(), (*bytes).into()));
        }
    }

    /// Removes the pieces of which another set wants something.
    pub fn remove_all(&mut self, other: &Self) {
        for (pack, kept) in &other.packs {
            if let Some(pieces) = self.packs.get_mut(pack) {
                pieces.retain(|number, _| !kept.contains_key(number));
            }
        }
        self.packs.retain(|_, pieces| !pieces.is_empty());
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packs.is_empty()
    }

    /// Bytes that are wanted.
    #[must_use]
    pub fn wanted_bytes(&self) -> u64 {
        self.packs.values().flat_map(BTreeMap::values).map(|bytes| u64::from(*bytes)).sum()
    }

    /// Bytes of the pieces, at most.
    #[must_use]
    pub fn piece_bytes(&self) -> u64 {
        self.packs.values().map(|pieces| pieces.len() as u64 * PIECE).sum()
    }

    /// Whether a piece is in it.
    pub(super) fn contains_piece(&self, pack: &PackId, number: u64) -> bool {
        let pieces = self.packs.get(pack).zip(u32::try_from(number).ok());
        pieces.is_some_and(|(pieces, number)| pieces.contains_key(&number))
    }

    /// Whether something of a pack is in it.
    pub(super) fn contains_pack(&self, pack: &PackId) -> bool {
        self.packs.contains_key(pack)
    }

    /// The packs, with the numbers of their pieces and the wanted bytes of each, in order.
    pub(super) fn iter_packs(&self) -> impl Iterator<Item = (&PackId, &BTreeMap<u32, u32>)> {
        self.packs.iter()
    }

    /// Pieces that lie next to each other, at most `most` together: the pack, the first, how many, and wanted bytes.
    pub(super) fn join_neighbours(&self, most: u32) -> Vec<PieceRun> {
        let mut runs: Vec<PieceRun> = Vec::new();
        for (pack, pieces) in &self.packs {
            for (number, bytes) in pieces {
                match runs.last_mut() {
                    Some(run)
                        if run.pack == *pack && run.first + run.count == *number && run.count < most =>
                    {
                        run.count += 1;
                        run.wanted += u64::from(*bytes);
                    }
                    _ => runs.push(PieceRun {
                        pack: *pack,
                        first: *number,
                        count: 1,
                        wanted: u64::from(*bytes),
                    }),
                }
            }
        }
        runs
    }
}

/// Pieces of one pack that lie next to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PieceRun {
    pub pack: PackId,
    pub first: u32,
    pub count: u32,
    /// Bytes of them that are wanted.
    pub wanted: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_become_pieces_with_their_wanted_bytes() {
        let pack = PackId([1; 32]);
        let mut set = PieceSet::default();
        set.add_range(&pack, 100, 50);
        set.add_range(&pack, (PIECE - 10) as u32, 30);
        set.add_range(&pack, 0, 0);
        set.add_range(&pack, u32::MAX, u32::MAX);
        assert_eq!(set.wanted_bytes(), 80);
        assert_eq!(set.piece_bytes(), 2 * PIECE);
        assert!(set.contains_piece(&pack, 1) && !set.contains_piece(&pack, 2));
        set.add_range(&pack, 0, (PIECE / 2) as u32);
        set.add_range(&pack, 0, PIECE as u32);
        assert_eq!(set.wanted_bytes(), PIECE + 20, "a piece is wanted once");
    }

    #[test]
    fn pieces_that_another_set_wants_are_removed() {
        let packs = [1, 2].map(|number| PackId([number; 32]));
        let mut set = PieceSet::default();
        let mut other = PieceSet::default();
        packs.iter().for_each(|pack| set.add_range(pack, 0, 2 * PIECE as u32));
        other.add_range(&packs[0], 10, 1);
        other.add_range(&packs[1], 0, 3 * PIECE as u32);
        set.remove_all(&other);
        assert!(set.contains_piece(&packs[0], 1) && !set.contains_piece(&packs[0], 0));
        assert!(!set.contains_pack(&packs[1]));
    }

    #[test]
    fn neighbours_are_fetched_together() {
        let mut set = PieceSet::default();
        for number in [0, 1, 2, 4] {
            set.add_piece(&PackId([1; 32]), number, 1);
        }
        set.add_piece(&PackId([2; 32]), 5, 1);
        let joined: Vec<_> = set.join_neighbours(2).iter().map(|run| (run.first, run.count)).collect();
        assert_eq!(joined, [(0, 2), (2, 1), (4, 1), (5, 1)]);
    }
}
