//! Which packs were found intact here, and when: what a verification of a part looks at.
//!
//! Invariant: a pack is noted only after every byte of it was read from the store and found right. The file is local, and a
//! hint: without it, more is read.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use vellum_store::{PackInfo, PackRange};
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartReport {
    /// Packs that were read.
    pub packs: u64,
    /// Packs that there are.
    pub of: u64,
    /// Packs that are still to be looked at by runs of the same kind.
    pub left: u64,
    /// Why it could not be noted what was looked at; None: it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_noted: Option<String>,
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

/// Packs of at least this size are looked at in parts by samples, bytes: less is not worth requests of its own.
const SPLIT_MIN: u64 = 1 << 20;

/// What is read of a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PackReading {
    pub pack: PackInfo,
    /// A part of it; None: all of it.
    pub range: Option<PackRange>,
}

impl PackReading {
    pub fn whole(pack: PackInfo) -> Self {
        Self { pack, range: None }
    }

    /// How many bytes are read, about.
    pub fn count_bytes(&self) -> u64 {
        self.range.map_or(self.pack.size, |range| range.len)
    }
}

/// A pack of which samples have looked at the beginning.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct BegunPack {
    pack: String,
    /// What was not looked at begins here.
    next: u64,
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
    /// The pack of which the last sample read a part.
    #[serde(default)]
    begun: Option<BegunPack>,
    /// Packs that were found damaged: each run reads them.
    #[serde(default)]
    damaged: BTreeSet<String>,
}

impl VerifiedPacks {
    pub(super) fn read_from_state(state: &StateDir) -> Self {
        // The file is a hint: one that cannot be read counts as one that says nothing.
        let read = state.read_file(VERIFIED_FILE).ok().flatten();
        read.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    pub(super) fn write_to_state(&self, state: &StateDir) -> Result<()> {
        // Not durably: without it more is read, and on a busy disk to wait for it takes longer than to read a sample.
        state.write_json_file_unsynced(VERIFIED_FILE, self)
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
        let names: BTreeSet<_> = listed.iter().map(|pack| pack.id.to_string()).collect();
        self.packs.retain(|name, _| names.contains(name));
        self.damaged.retain(|name| names.contains(name));
        self.begun = self.begun.take().filter(|begun| names.contains(&begun.pack));
    }

    pub(super) fn note_intact(&mut self, pack: &PackId) {
        // A round that begins in the second in which the last one ended is dated ahead.
        let now = current_time().secs.max(self.round.unwrap_or(i64::MIN));
        let name = pack.to_string();
        self.damaged.remove(&name);
        self.begun = self.begun.take().filter(|begun| begun.pack != name);
        self.packs.insert(name, now);
    }

    pub(super) fn note_damaged(&mut self, pack: &PackId) {
        let name = pack.to_string();
        self.begun = self.begun.take().filter(|begun| begun.pack != name);
        self.packs.remove(&name);
        self.damaged.insert(name);
    }

    /// A part of a pack was found intact; the rest begins at `next`.
    pub(super) fn note_begun(&mut self, pack: &PackId, next: u64) {
        self.begun = Some(BegunPack { pack: pack.to_string(), next });
    }

    /// What a verification of a part reads now, in this order.
    pub(super) fn select_packs(&mut self, part: PackPart, listed: &[PackInfo]) -> Vec<PackReading> {
        let PackPart::Sample(percent) = part else {
            return self.list_left(part, listed).into_iter().map(|pack| PackReading::whole(*pack)).collect();
        };
        let mut left = self.list_sound_left(part, listed);
        if left.is_empty() {
            self.round = None;
        }
        if self.round.is_none() {
            // Not of the same second as what the last round noted.
            self.round = Some(current_time().secs.max(self.packs.values().max().map_or(0, |last| last + 1)));
            left = self.list_sound_left(part, listed);
        }
        // Longest ago first. The id of a pack is a hash, so that those of one time come in no order that means anything.
        let begun = self.begun.as_ref();
        left.sort_by_cached_key(|pack| {
            let name = pack.id.to_string();
            let is_begun = begun.is_some_and(|begun| begun.pack == name);
            (!is_begun, self.packs.get(&name).copied(), pack.id)
        });
        let all: u64 = listed.iter().map(|pack| pack.size).sum();
        // A share of the bytes need not be exact, and is not above all of them.
        let share = (all as f64 * percent.clamp(0.0, 100.0) / 100.0).ceil() as u64;
        // Damaged packs are no part of the share: otherwise nothing else were looked at while there are many.
        let is_damaged = |pack: &&PackInfo| self.damaged.contains(&pack.id.to_string());
        let mut selected: Vec<_> =
            listed.iter().filter(is_damaged).map(|pack| PackReading::whole(*pack)).collect();
        selected.extend(self.select_share(share, &left));
        selected
    }

    /// The first of some packs, of which the last one may be read in part.
    fn select_share(&self, share: u64, left: &[&PackInfo]) -> Vec<PackReading> {
        let mut budget = share;
        let mut selected = Vec::new();
        for pack in left {
            if budget == 0 {
                break;
            }
            let begun = self.begun.as_ref().filter(|begun| begun.pack == pack.id.to_string());
            let from = begun.map_or(0, |begun| begun.next);
            let rest = pack.size.saturating_sub(from);
            // Whole, if a part is not worth a request of its own, or if nothing of the pack was read before and all of it fits.
            let range = match pack.size < SPLIT_MIN || from == 0 && rest <= budget {
                true => None,
                false => Some(PackRange { from, len: rest.min(budget) }),
            };
            budget = budget.saturating_sub(rest);
            selected.push(PackReading { pack: **pack, range });
        }
        selected
    }

    /// Those that a sample has still to look at.
    fn list_sound_left<'p>(&self, part: PackPart, listed: &'p [PackInfo]) -> Vec<&'p PackInfo> {
        let mut left = self.list_left(part, listed);
        left.retain(|pack| !self.damaged.contains(&pack.id.to_string()));
        left
    }

    /// The packs that runs of this kind have still to look at.
    pub(super) fn list_left<'p>(&self, part: PackPart, listed: &'p [PackInfo]) -> Vec<&'p PackInfo> {
        let since = match part {
            PackPart::SinceLast => i64::MIN,
            // Before a round has begun, no pack counts as looked at.
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

    fn ids(selected: Vec<PackReading>) -> Vec<PackId> {
        selected.into_iter().map(|reading| reading.pack.id).collect()
    }

    #[test]
    fn as_many_samples_as_parts_look_at_everything_once() {
        let mut verified = VerifiedPacks::default();
        let mut listed = packs(20);
        let part = PackPart::Sample(10.0);
        for round in 0..3 {
            let mut seen = BTreeSet::new();
            for run in 0..10 {
                let selected = ids(verified.select_packs(part, &listed));
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
        assert_eq!(ids(verified.select_packs(part, &listed)), [PackId([99; 32])]);
        assert_eq!(ids(verified.select_packs(PackPart::SinceLast, &listed)), [PackId([99; 32])]);
    }

    #[test]
    fn large_packs_are_looked_at_in_parts_by_as_many_samples_as_there_are_shares() {
        let mut verified = VerifiedPacks::default();
        let size = 10 * SPLIT_MIN;
        let listed: Vec<_> = packs(3).into_iter().map(|pack| PackInfo { size, ..pack }).collect();
        let mut seen = BTreeMap::<PackId, u64>::new();
        for run in 0..20 {
            let selected = verified.select_packs(PackPart::Sample(5.0), &listed);
            let read: u64 = selected.iter().map(PackReading::count_bytes).sum();
            assert_eq!(read, 3 * size / 20, "run {run}");
            for reading in selected {
                let at = seen.entry(reading.pack.id).or_default();
                assert_eq!(
                    reading.range.map_or(0, |range| range.from),
                    *at,
                    "it goes on where the last one ended"
                );
                *at += reading.count_bytes();
                match *at == size {
                    true => verified.note_intact(&reading.pack.id),
                    false => verified.note_begun(&reading.pack.id, *at),
                }
            }
        }
        assert!(seen.len() == 3 && seen.values().all(|read| *read == size), "{seen:?}");
        assert!(verified.list_left(PackPart::Sample(5.0), &listed).is_empty());
    }

    #[test]
    fn damaged_packs_are_read_whole_by_each_run_and_hold_up_nothing() {
        let mut verified = VerifiedPacks::default();
        let listed = packs(4);
        let first = ids(verified.select_packs(PackPart::Sample(25.0), &listed));
        verified.note_damaged(&first[0]);
        let mut seen = BTreeSet::new();
        for _ in 0..3 {
            let selected = ids(verified.select_packs(PackPart::Sample(25.0), &listed));
            assert!(selected.len() == 2 && selected[0] == first[0], "{selected:?}");
            verified.note_intact(&selected[1]);
            seen.insert(selected[1]);
        }
        assert_eq!(seen.len(), 3);
        // It is mended.
        verified.note_intact(&first[0]);
        assert!(verified.list_left(PackPart::Sample(25.0), &listed).is_empty());
        verified.note_damaged(&first[0]);
        verified.retain_listed(&[]);
        assert!(verified.damaged.is_empty() && verified.packs.is_empty());
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
        assert_eq!(
            verified.select_packs(PackPart::Sample(0.1), &packs(3)),
            [PackReading::whole(packs(3)[0])]
        );
    }
}
