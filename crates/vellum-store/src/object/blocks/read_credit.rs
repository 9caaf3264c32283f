//! How much may be fetched beyond what is wanted, if the files or names of a tree are read in any order.
//!
//! Invariant: of what readers used, at most [`WASTE_MAX`] times as much is fetched, and [`CREDIT_MAX`] more. Deliberately
//! absent: which pieces these are.

use std::ops::Range;

use super::windows::{PIECES_MAX, WASTE_MAX};
use crate::object::cache::PIECE;

/// Most bytes of credit, and of debt: two long spans. Whoever begins to read in another way wastes no more than that, and
/// whoever begins to read densely is not held back for long.
const CREDIT_MAX: i64 = 8 << 20;

/// Bytes that may be fetched before they are wanted: each byte that is used allows for some more.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ReadCredit {
    bytes: i64,
}

impl ReadCredit {
    /// Notes bytes that were used.
    pub fn add_used(&mut self, bytes: u64) {
        self.change(i64::try_from(bytes.saturating_mul(WASTE_MAX)).unwrap_or(CREDIT_MAX));
    }

    /// Notes bytes that were fetched.
    pub fn take_fetched(&mut self, bytes: u64) {
        self.change(-i64::try_from(bytes).unwrap_or(CREDIT_MAX));
    }

    fn change(&mut self, by: i64) {
        self.bytes = self.bytes.saturating_add(by).clamp(-CREDIT_MAX, CREDIT_MAX);
    }

    /// Whether most of what was fetched is used: there is no more debt than for one piece, of which the use has only begun.
    pub fn is_dense(self) -> bool {
        self.bytes.saturating_add_unsigned(PIECE) >= 0
    }

    /// The pieces around this one that may be fetched with it.
    pub fn choose_span(self, number: u64) -> Range<u64> {
        let affordable = u64::try_from(self.bytes).unwrap_or(0) / PIECE;
        let most = affordable.clamp(1, PIECES_MAX);
        // Aligned to their own length, which is a power of two: then spans leave no gaps of odd lengths between them, each of
        // which would be a request of its own.
        let count = 1 << most.ilog2();
        let start = number - number % count;
        start..start + count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn credit_after(used: u64, fetched: u64) -> ReadCredit {
        let mut credit = ReadCredit::default();
        credit.add_used(used);
        credit.take_fetched(fetched);
        credit
    }

    #[test]
    fn spans_grow_with_what_is_used() {
        assert_eq!(credit_after(0, 0).choose_span(13), 13..14);
        assert_eq!(credit_after(MIB / 4, MIB / 4).choose_span(13), 12..14);
        assert_eq!(credit_after(MIB / 2, MIB).choose_span(13), 12..16);
        assert_eq!(credit_after(MIB, MIB).choose_span(13), 8..16);
        assert_eq!(credit_after(8 * MIB, MIB).choose_span(13), 0..16);
        assert_eq!(credit_after(MIB, 4 * MIB).choose_span(13), 13..14);
    }

    #[test]
    fn what_was_saved_or_wasted_long_ago_counts_little() {
        let mut credit = credit_after(1 << 40, 0);
        credit.take_fetched(9 * MIB);
        assert_eq!(credit.choose_span(13), 13..14);
        let mut debtor = credit_after(0, 1 << 40);
        debtor.add_used(3 * MIB);
        assert_eq!(debtor.choose_span(13), 0..16);
    }
}
