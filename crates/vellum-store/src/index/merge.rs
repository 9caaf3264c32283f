//! Which runs to merge, and the merging.
//!
//! Invariant: after any number of commits there are at most `SMALL_RUNS_MAX` runs that are not nearly full, and an
//! entry has been rewritten a number of times that grows with the logarithm of the index.

use std::iter::Peekable;

use vellum_types::{BlobId, PackId};

use super::{BlobLocation, RUN_ENTRIES_MAX};

/// Most runs that are not nearly full, a count: each costs a lookup a cache line, and an opening a file.
pub(super) const SMALL_RUNS_MAX: usize = 16;
/// Fewest runs merged at once, a count: so that a merge buys this many commits without one.
const MERGE_MIN: usize = 8;

/// Positions of the runs that a commit of `new` entries should take in, given each run's number of entries.
pub(super) fn choose_runs(sizes: &[usize], new: usize) -> Vec<usize> {
    // Runs that are at least half full are left alone: each merge of them would rewrite much and save little.
    let mut small: Vec<_> =
        sizes.iter().copied().enumerate().filter(|(_, n)| *n < RUN_ENTRIES_MAX / 2).collect();
    if small.len() < SMALL_RUNS_MAX {
        return Vec::new();
    }
    small.sort_by_key(|(_, size)| *size);
    let mut total = new;
    let mut chosen = Vec::new();
    for (position, size) in small {
        // Beyond the fewest, a run is worth rewriting only if it is not much larger than what is merged anyway.
        let worth = chosen.len() < MERGE_MIN || size <= total.saturating_mul(2);
        // Those that follow are larger still.
        if !worth || total + size > RUN_ENTRIES_MAX {
            break;
        }
        chosen.push(position);
        total += size;
    }
    chosen
}

type MergeSource<'a> = Peekable<Box<dyn Iterator<Item = (BlobId, BlobLocation)> + 'a>>;

/// Sorted sources as one sorted sequence in which every id stands once.
pub(super) struct MergedRecords<'a, F> {
    sources: Vec<MergeSource<'a>>,
    is_condemned: F,
}

impl<'a, F: Fn(&PackId) -> bool> MergedRecords<'a, F> {
    pub(super) fn new(
        sources: impl IntoIterator<Item = Box<dyn Iterator<Item = (BlobId, BlobLocation)> + 'a>>,
        is_condemned: F,
    ) -> Self {
        Self { sources: sources.into_iter().map(Iterator::peekable).collect(), is_condemned }
    }
}

impl<F: Fn(&PackId) -> bool> Iterator for MergedRecords<'_, F> {
    type Item = (BlobId, BlobLocation);

    fn next(&mut self) -> Option<Self::Item> {
        // A linear search is enough for a few dozen sources.
        let least = self.sources.iter_mut().filter_map(|source| source.peek().map(|(id, _)| *id)).min()?;
        let mut best: Option<(BlobId, BlobLocation)> = None;
        for source in &mut self.sources {
            while let Some(found) = source.next_if(|(id, _)| *id == least) {
                // A place in a pack that is about to be deleted counts only if there is no other.
                if best.is_none_or(|(_, place)| (self.is_condemned)(&place.pack)) {
                    best = Some(found);
                }
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_stay_few_and_are_rewritten_seldom() {
        let mut sizes = Vec::new();
        let mut written = 0;
        for _ in 0..10_000 {
            let chosen = choose_runs(&sizes, 1);
            let merged: usize = 1 + chosen.iter().map(|i| sizes[*i]).sum::<usize>();
            let mut position = 0..;
            sizes.retain(|_| !position.next().is_some_and(|i| chosen.contains(&i)));
            sizes.push(merged);
            written += merged;
            assert!(sizes.len() <= SMALL_RUNS_MAX);
        }
        assert_eq!(sizes.iter().sum::<usize>(), 10_000);
        assert!(written < 10_000 * 12, "{written} entries written for 10,000");
    }

    #[test]
    fn full_runs_are_left_alone_and_none_overflows() {
        let mut sizes = Vec::new();
        for _ in 0..500 {
            let new = 100_000;
            let chosen = choose_runs(&sizes, new);
            let merged: usize = new + chosen.iter().map(|i| sizes[*i]).sum::<usize>();
            assert!(merged <= RUN_ENTRIES_MAX);
            let mut position = 0..;
            sizes.retain(|_| !position.next().is_some_and(|i| chosen.contains(&i)));
            sizes.push(merged);
        }
        assert!(sizes.len() <= SMALL_RUNS_MAX + 2 * 500 * 100_000 / RUN_ENTRIES_MAX, "{} runs", sizes.len());
    }
}
