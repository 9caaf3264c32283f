//! Directory listings, with positions that stay valid.
//!
//! The kernel does not report when a directory is opened or closed, nor which process reads. So a position in a listing
//! has to be valid for every reader, for as long as the mount exists.
//!
//! Invariant: the position of a name depends on the name alone, and a listing is in the order of positions. So a reader
//! that continues from a position gets each name that exists all the time exactly once, whatever is added and removed
//! meanwhile. (Two names whose hashes are equal get adjacent positions, which depend on the other name; with 62 bits of
//! a keyed hash that does not happen.) Listings are kept only to save listing the directory again.
//!
//! Several may read a directory at once, and share what is kept. Invariant: only the newest listing of a directory is kept.
//! So a reader goes on in its own listing or in a newer one, and meets all names that were there when it began.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::metrics::line::{LineDetail, LineOutcome};
use crate::node::ListedDirName;

/// Listings that are kept: this many directories can be read at the same time, each of which is listed once.
const KEPT_MAX: usize = 64;

/// Names in all kept listings together, unless only one is kept: some tens of MiB.
const KEPT_NAMES_MAX: usize = 1 << 18;

/// The positions of `.` and `..`, before all others.
const SELF_POSITION: u64 = 1;
const PARENT_POSITION: u64 = 2;

/// Bits of a hash that are not used in a position: the kernel's offsets are signed, and the first positions are taken.
const UNUSED_BITS: u32 = 2;

/// The names of a directory, in the order of their positions.
#[derive(Debug, Default)]
pub struct DirListing(Vec<(u64, ListedDirName)>);

impl DirListing {
    /// The names behind a position, each with its own.
    pub fn entries_after(&self, position: u64) -> &[(u64, ListedDirName)] {
        // Positions ascend, so the next name is found without a scan, even if the name at the position was removed.
        let start = self.0.partition_point(|(at, _)| *at <= position);
        self.0.get(start..).unwrap_or_default()
    }
}

impl LineDetail for Arc<DirListing> {
    fn line_outcome(&self) -> LineOutcome {
        // The names are not logged.
        LineOutcome::Done
    }
}

/// The listings of a mount.
#[derive(Debug)]
pub struct DirListings {
    seed: u64,
    kept: Mutex<KeptListings>,
}

#[derive(Debug, Default)]
struct KeptListings {
    /// Newer ones, or those that were read later, are at the end.
    listings: VecDeque<KeptListing>,
    /// How many were begun.
    begun: u64,
}

#[derive(Debug)]
struct KeptListing {
    node: u64,
    /// Which one it was, counted when it was begun: it has all names that were there then.
    number: u64,
    listing: Arc<DirListing>,
}

impl Default for DirListings {
    fn default() -> Self {
        Self { seed: RandomState::new().build_hasher().finish(), kept: Mutex::default() }
    }
}

impl DirListings {
    /// Listings of a worktree that several processes serve, one after the other: a reader that has begun at one goes on at the
    /// next, so all have the same positions.
    pub fn of_several_processes() -> Self {
        // Whoever chooses names with one hash, which is possible without a key, confuses readers about these names alone.
        Self { seed: 0, kept: Mutex::default() }
    }

    /// The listing of a directory, to be read from a position on. At position 0 the directory is listed again.
    pub fn get_or_list<E>(
        &self,
        node: u64,
        position: u64,
        list: impl FnOnce() -> Result<Vec<ListedDirName>, E>,
    ) -> Result<Arc<DirListing>, E> {
        // From the beginning the names must be those of now: a program that lists again expects to see what it has
        // just changed.
        let kept = if position > 0 { self.take_listing(node) } else { None };
        let kept = match kept {
            Some(kept) => kept,
            None => {
                let number = self.begin_listing();
                KeptListing { node, number, listing: Arc::new(self.assign_positions(list()?)) }
            }
        };
        let listing = kept.listing.clone();
        // A reader that has got all names needs it no more.
        if !listing.entries_after(position).is_empty() {
            self.keep_listing(kept);
        }
        Ok(listing)
    }

    fn begin_listing(&self) -> u64 {
        let mut kept = self.kept.lock();
        kept.begun += 1;
        kept.begun
    }

    fn assign_positions(&self, names: Vec<ListedDirName>) -> DirListing {
        let mut placed: Vec<_> =
            names.into_iter().map(|listed| (self.compute_position(&listed.name), listed)).collect();
        // By name, too, so that equal hashes always come in the same order.
        placed.sort_unstable_by(|(a, one), (b, other)| (a, &one.name).cmp(&(b, &other.name)));
        let mut last = 0;
        for (position, _) in &mut placed {
            // Two equal hashes: the second one moves on by one, and stays behind the first.
            *position = (last + 1).max(*position);
            last = *position;
        }
        DirListing(placed)
    }

    fn compute_position(&self, name: &[u8]) -> u64 {
        match name {
            b"." => SELF_POSITION,
            b".." => PARENT_POSITION,
            name => (xxh3_64_with_seed(name, self.seed) >> UNUSED_BITS).max(PARENT_POSITION + 1),
        }
    }

    fn take_listing(&self, node: u64) -> Option<KeptListing> {
        let listings = &mut self.kept.lock().listings;
        let index = listings.iter().position(|kept| kept.node == node)?;
        listings.remove(index)
    }

    fn keep_listing(&self, mut newest: KeptListing) {
        let listings = &mut self.kept.lock().listings;
        // Another reader may have kept one meanwhile, also one that was begun later.
        if let Some(index) = listings.iter().position(|kept| kept.node == newest.node)
            && let Some(other) = listings.remove(index)
            && other.number > newest.number
        {
            newest = other;
        }
        listings.push_back(newest);
        let mut names: usize = listings.iter().map(|kept| kept.listing.0.len()).sum();
        while listings.len() > KEPT_MAX || names > KEPT_NAMES_MAX && listings.len() > 1 {
            names -= listings.pop_front().map_or(0, |kept| kept.listing.0.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use vellum_types::FileKind;

    fn listed(name: &str) -> ListedDirName {
        ListedDirName { name: name.into(), node: 2, kind: FileKind::File }
    }

    fn names<'n>(names: impl IntoIterator<Item = &'n str>) -> Result<Vec<ListedDirName>, ()> {
        Ok([".", ".."].into_iter().chain(names).map(listed).collect())
    }

    fn listed_names(listing: &DirListing, place: u64) -> Vec<&[u8]> {
        listing.entries_after(place).iter().map(|(_, listed)| &*listed.name).collect()
    }

    #[test]
    fn a_directory_is_listed_anew_from_the_beginning_and_kept_until_its_end() {
        let dirs = DirListings::default();
        let first = dirs.get_or_list(7, 0, || names(["a"])).unwrap();
        assert_eq!(listed_names(&first, 0), [&b"."[..], b"..", b"a"]);
        assert_eq!(listed_names(&first, PARENT_POSITION), [b"a"]);
        let kept = dirs.get_or_list(7, 1, || names(["b"])).unwrap();
        assert!(Arc::ptr_eq(&first, &kept));
        let anew = dirs.get_or_list(7, 0, || names(["b"])).unwrap();
        assert_eq!(listed_names(&anew, PARENT_POSITION), [b"b"]);
        let end = anew.entries_after(0).last().unwrap().0;
        assert!(dirs.get_or_list(7, end, || names(["c"])).unwrap().entries_after(end).is_empty());
        assert!(dirs.kept.lock().listings.is_empty());
    }

    #[test]
    fn who_reads_on_at_the_next_server_goes_on_at_the_same_place() {
        let list = || names(["a", "b", "c", "d", "e", "f"]);
        let [first, next] = [(); 2].map(|()| DirListings::of_several_processes());
        let begun = first.get_or_list(7, 0, list).unwrap();
        for (position, _) in begun.entries_after(0) {
            let read_on = next.get_or_list(7, *position, list).unwrap();
            assert_eq!(listed_names(&read_on, *position), listed_names(&begun, *position));
        }
    }

    #[test]
    fn few_listings_are_kept() {
        let dirs = DirListings::default();
        for node in 0..3 * KEPT_MAX as u64 {
            dirs.get_or_list(node, 0, || names(["a"])).unwrap();
        }
        assert_eq!(dirs.kept.lock().listings.len(), KEPT_MAX);
    }

    #[test]
    fn who_reads_on_meets_what_was_there_when_it_began_whoever_else_reads() {
        let dirs = DirListings::default();
        let read_on = || dirs.get_or_list(7, PARENT_POSITION, || names(["none is kept"])).unwrap();
        // While one lists, a name comes, and another one lists from the beginning to the middle.
        let list_slowly = || {
            let later = dirs.get_or_list(7, 0, || names(["a", "b"])).unwrap();
            assert_eq!(listed_names(&later, PARENT_POSITION).len(), 2);
            names(["a"])
        };
        let earlier = dirs.get_or_list(7, 0, list_slowly).unwrap();
        assert_eq!(listed_names(&earlier, PARENT_POSITION).len(), 1);
        // Whoever reads on first, none gets the earlier one.
        for _ in 0..3 {
            assert_eq!(listed_names(&read_on(), PARENT_POSITION).len(), 2);
        }
        assert_eq!(dirs.kept.lock().listings.len(), 1);
    }

    #[test]
    fn who_reads_on_does_not_bring_an_older_listing_back() {
        let dirs = DirListings::default();
        dirs.get_or_list(7, 0, || names(["a"])).unwrap();
        // One is about to read on, and another one begins.
        let older = dirs.take_listing(7).unwrap();
        dirs.get_or_list(7, 0, || names(["a", "b"])).unwrap();
        dirs.keep_listing(older);
        let read_on = dirs.get_or_list(7, PARENT_POSITION, || names([])).unwrap();
        assert_eq!(listed_names(&read_on, PARENT_POSITION).len(), 2);
    }

    proptest! {
        #[test]
        fn who_reads_on_meets_once_what_was_there_all_the_time(
            stays in prop::collection::btree_set("[a-z]{1,3}", 0..60),
            goes in prop::collection::btree_set("[A-Z]{1,3}", 0..60),
            comes in prop::collection::btree_set("[0-9]{1,3}", 0..60),
            portion in 1usize..20,
        ) {
            let dirs = DirListings::default();
            let before: Vec<_> = stays.iter().chain(&goes).map(String::as_str).collect();
            let after: Vec<_> = stays.iter().chain(&comes).map(String::as_str).collect();
            let mut place = 0;
            let mut met = Vec::new();
            let mut changed = false;
            loop {
                // What was kept goes, as that of a directory that was not read for long.
                dirs.take_listing(7);
                let list = if changed { &after } else { &before };
                let listing = dirs.get_or_list(7, place, || names(list.iter().copied())).unwrap();
                let rest = listing.entries_after(place);
                let Some((last, _)) = rest.iter().take(portion).next_back() else { break };
                met.extend(rest.iter().take(portion).map(|(_, listed)| listed.name.clone()));
                (place, changed) = (*last, true);
            }
            let all: BTreeSet<_> = met.iter().cloned().collect();
            prop_assert_eq!(all.len(), met.len(), "nothing is met twice");
            prop_assert!(stays.iter().all(|name| all.contains(name.as_bytes())));
        }
    }
}
