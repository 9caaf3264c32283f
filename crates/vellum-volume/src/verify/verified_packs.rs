//! Which packs were found intact here, and when: what a verification of a part looks at.
//!
//! Invariant: a pack is noted only after every byte of it was read from the store and found right. The file is local, and a
//! hint: without it, more is read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vellum_store::PackInfo;
use vellum_types::PackId;

use crate::error::Result;
use crate::session::current_time;
use crate::state::StateDir;

const VERIFIED_FILE: &str = "verified.json";

/// A part of the packs of a store.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PackPart {
    /// This percentage of all bytes, from those packs that were not looked at for longest: as many runs as there are such
    /// parts in the whole look at all packs.
    Sample(f64),
    /// The packs that were not found intact here before.
    SinceLast,
}

/// How much of the packs was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PartReport {
    /// Packs that were read.
    pub packs: u64,
    /// Packs that there are.
    pub of: u64,
    /// Packs that are still to be looked at by runs of the same kind.
    pub left: u64,
}

/// A share of all ids, which are random.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IdSlice {
    number: u64,
    of: u64,
}

impl IdSlice {
    /// Whether an id is one of them.
    pub fn contains(&self, id: &[u8]) -> bool {
        let start = id.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        // The product of two numbers of 64 bits fits.
        (u128::from(start) * u128::from(self.of)) >> 64 == u128::from(self.number)
    }
}

/// The file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct VerifiedPacks {
    /// Since when packs count as looked at by samples, seconds since 1970; none: the next sample begins anew.
    #[serde(default)]
    round: Option<i64>,
    /// How many samples there were.
    #[serde(default)]
    samples: u64,
    /// When each pack was found intact last.
    #[serde(default)]
    packs: BTreeMap<String, i64>,
}

impl VerifiedPacks {
    pub(super) fn read_from_state(state: &StateDir) -> Self {
        // The file is a hint: one that cannot be read counts as one that says nothing.
        let read = state.read_file(VERIFIED_FILE).ok().flatten();
        read.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    pub(super) fn write_to_state(&self, state: &StateDir) -> Result<()> {
        state.write_json_file(VERIFIED_FILE, self)
    }

    /// The records that this run of a sample looks at; another share the next time.
    pub(super) fn take_slice(&mut self, percent: f64) -> IdSlice {
        // At least one, and a hundred thousand at most.
        let of = (100.0 / percent.clamp(0.001, 100.0)).ceil().max(1.0) as u64;
        let number = self.samples % of;
        self.samples = self.samples.wrapping_add(1);
        IdSlice { number, of }
    }

    /// Forgets packs that the store does not have any more.
    pub(super) fn retain_listed(&mut self, listed: &[PackInfo]) {
        let mut kept = std::mem::take(&mut self.packs);
        let names = listed.iter().map(|pack| pack.id.to_string());
        self.packs = names.filter_map(|name| kept.remove_entry(&name)).collect();
    }

    pub(super) fn note_intact(&mut self, pack: &PackId) {
        // A round that begins in the second in which the last one ended is dated ahead.
        let now = current_time().secs.max(self.round.unwrap_or(i64::MIN));
        self.packs.insert(pack.to_string(), now);
    }

    /// The packs that a verification of a part reads now, in this order.
    pub(super) fn select_packs(&mut self, part: PackPart, listed: &[PackInfo]) -> Vec<PackId> {
        let mut left = self.list_left(part, listed);
        let PackPart::Sample(percent) = part else { return left.iter().map(|pack| pack.id).collect() };
        if left.is_empty() {
            self.round = None;
        }
        if self.round.is_none() {
            // Not of the same second as what the last round noted.
            self.round = Some(current_time().secs.max(self.packs.values().max().map_or(0, |last| last + 1)));
            left = self.list_left(part, listed);
        }
        // Longest ago first. The id of a pack is a hash, so that those of one time come in no order that means anything.
        left.sort_by_key(|pack| (self.packs.get(&pack.id.to_string()).copied(), pack.id));
        let all: u64 = listed.iter().map(|pack| pack.size).sum();
        // A share of the bytes need not be exact, and is not above all of them.
        let mut budget = (all as f64 * percent.clamp(0.0, 100.0) / 100.0).ceil() as u64;
        let mut selected = Vec::new();
        for pack in left {
            if budget == 0 {
                break;
            }
            budget = budget.saturating_sub(pack.size);
            selected.push(pack.id);
        }
        selected
    }

    /// The packs that runs of this kind have still to look at.
    pub(super) fn list_left<'p>(&self, part: PackPart, listed: &'p [PackInfo]) -> Vec<&'p PackInfo> {
        let since = match part {
            PackPart::SinceLast => i64::MIN,
            PackPart::Sample(_) => self.round.unwrap_or(i64::MAX),
        };
        let is_seen = |pack: &&PackInfo| {
            self.packs.get(&pack.id.to_string()).is_some_and(|verified| *verified >= since)
        };
        listed.iter().filter(|pack| !is_seen(pack)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packs(count: u8) -> Vec<PackInfo> {
        (0..count).map(|number| PackInfo { id: PackId([number; 32]), size: 100, modified: None }).collect()
    }

    #[test]
    fn as_many_samples_as_parts_look_at_everything_once() {
        let mut verified = VerifiedPacks::default();
        let mut listed = packs(20);
        let part = PackPart::Sample(10.0);
        for round in 0..3 {
            let mut seen = std::collections::BTreeSet::new();
            for run in 0..10 {
                let selected = verified.select_packs(part, &listed);
                assert_eq!(selected.len(), 2, "run {run} of round {round}");
                for pack in selected {
                    assert!(seen.insert(pack));
                    // Later than the round began, as a run is.
                    let begun = verified.round.unwrap_or_default();
                    verified.packs.insert(pack.to_string(), begun);
                }
            }
            assert_eq!(seen.len(), 20);
            assert!(verified.list_left(part, &listed).is_empty());
        }
        // A new pack is looked at by the next run.
        listed.push(PackInfo { id: PackId([99; 32]), size: 100, modified: None });
        assert_eq!(verified.select_packs(part, &listed), [PackId([99; 32])]);
        assert_eq!(verified.select_packs(PackPart::SinceLast, &listed), [PackId([99; 32])]);
    }

    #[test]
    fn as_many_samples_as_parts_look_at_each_record_once() {
        let mut verified = VerifiedPacks::default();
        let ids: Vec<[u8; 32]> = (0..=255).map(|first| [first; 32]).collect();
        for percent in [100.0, 34.0, 5.0] {
            let parts = (100.0_f64 / percent).ceil() as usize;
            let slices: Vec<_> = (0..parts).map(|_| verified.take_slice(percent)).collect();
            for id in &ids {
                assert_eq!(slices.iter().filter(|slice| slice.contains(id)).count(), 1, "{percent}");
            }
        }
    }

    #[test]
    fn what_could_not_be_noted_is_looked_at_again() {
        let mut verified = VerifiedPacks::default();
        let first = verified.select_packs(PackPart::Sample(5.0), &packs(20));
        assert_eq!(verified.select_packs(PackPart::Sample(5.0), &packs(20)), first);
        // A share that is less than a pack is one pack.
        assert_eq!(verified.select_packs(PackPart::Sample(0.1), &packs(3)).len(), 1);
    }
}
