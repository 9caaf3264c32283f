//! Decides what happens to each entry.
//!
//! Invariant: an entry that was created or edited since both sides agreed is never deleted or replaced, unless the
//! other side's version won by the rule. A directory is deleted only together with everything in it.

use std::collections::BTreeSet;

use crate::model::listing::{EntryFlags, ListingEntry, ListingEntryId};
use crate::model::options::CompareMethod;
use crate::plan::{Differences, compare_attributes, compare_content};

use super::TwoWaySide;
use super::merge::{EntryStatus, MergedNode, ThreeWayTree};
use super::plan::TwoWayRequest;
use super::rule::{ComparedVersion, ConflictEnding};
use super::state::ChangeExtent;

/// What happens to the entry of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EntryCourse {
    /// It stays, and the archive keeps its older record.
    #[default]
    Stay,
    /// Both sides have the same.
    Agreed,
    /// It is copied to the other side.
    Across,
    /// The other side's entry replaces it.
    Replaced,
    /// It is deleted.
    Gone,
}

/// An entry that changed on both sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryConflict {
    /// Its path.
    pub path: Vec<u8>,
    /// The entry of each side; None if it was deleted there.
    pub entries: [Option<ListingEntryId>; 2],
    /// How the conflict is resolved.
    pub ending: ConflictEnding,
}

/// The decisions for all entries.
pub(super) struct TwoWayDecision {
    /// For each node, what happens to the entry of each side.
    pub courses: Vec<[EntryCourse; 2]>,
    /// The entries that changed on both sides.
    pub conflicts: Vec<EntryConflict>,
    /// The sides on which an edited version loses. It is moved to the trash there.
    pub loses: [bool; 2],
    /// Conflicts of files that are as the archive has them, in which the other side's version gets another name.
    pub unedited_winners: BTreeSet<Vec<u8>>,
}

/// The inputs of the decisions.
pub(super) struct DecisionMaker<'a> {
    pub merged: &'a ThreeWayTree<'a>,
    pub request: &'a TwoWayRequest,
}

/// The decision for an entry that is a directory on one side and something else on the other; it holds for all entries
/// below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TypeConflict {
    /// This side's version replaces the other's, with all entries below.
    Wins(TwoWaySide),
    /// The conflict is still open.
    Open,
}

/// The differences of directories that are propagated: neither their modification time nor their access time is.
pub(super) const DIR_BITS: Differences = Differences(
    Differences::MODE.0
        | Differences::OWNER.0
        | Differences::GROUP.0
        | Differences::ACL.0
        | Differences::XATTR.0,
);

impl DecisionMaker<'_> {
    /// Decides what happens to each node.
    pub fn decide_all(&self) -> TwoWayDecision {
        let nodes = &self.merged.nodes;
        let mut decision = TwoWayDecision {
            courses: Vec::with_capacity(nodes.len()),
            conflicts: Vec::new(),
            loses: [false; 2],
            unedited_winners: BTreeSet::new(),
        };
        // Below an entry that won against one of another kind, everything goes the same way.
        let mut all: Vec<Option<TypeConflict>> = Vec::with_capacity(nodes.len());
        // Nodes come after the node of their directory, so what was decided there is known. Below a type
        // conflict nothing is decided entry by entry: one side has a file there, which has no entries to
        // compare with.
        for (place, node) in nodes.iter().enumerate() {
            let above = if place == 0 { None } else { all.get(node.parent).copied().flatten() };
            let (courses, above) = match above {
                Some(TypeConflict::Wins(winner)) => (courses_below_winner(node, winner), above),
                Some(TypeConflict::Open) => ([EntryCourse::Stay; 2], above),
                None => self.decide_entry(place, node, &mut decision),
            };
            decision.courses.push(courses);
            all.push(above);
        }
        self.keep_dirs(&mut decision.courses);
        decision
    }

    /// A directory with an entry that stays is kept, and is copied to the other side if it was deleted there.
    fn keep_dirs(&self, courses: &mut [[EntryCourse; 2]]) {
        // Nodes are visited backwards, from entries to their directories, so that one entry that stays keeps
        // the whole chain of directories above it.
        for place in (1..self.merged.nodes.len()).rev() {
            let Some(parent) = self.merged.nodes.get(place).map(|node| node.parent) else { continue };
            for which in TwoWaySide::BOTH {
                let is_there =
                    self.merged.nodes.get(place).is_some_and(|node| which.select_from(&node.sides).is_some());
                let course = courses.get(place).map_or(EntryCourse::Gone, |both| *which.select_from(both));
                let Some(above) = courses.get_mut(parent).map(|both| which.select_from_mut(both)) else {
                    continue;
                };
                // The directory goes across instead of only staying: the other side deleted it and needs it
                // for the entry that it gets.
                if is_there && course != EntryCourse::Gone && *above == EntryCourse::Gone {
                    *above = EntryCourse::Across;
                }
            }
        }
    }

    fn decide_entry(
        &self,
        place: usize,
        node: &MergedNode,
        decision: &mut TwoWayDecision,
    ) -> ([EntryCourse; 2], Option<TypeConflict>) {
        let withheld = |which| {
            self.merged
                .side_entry(node, which)
                .is_some_and(|entry| entry.flags().contains(EntryFlags::WITHHELD))
        };
        // Old versions that earlier runs kept in a backup directory within the tree are no content of it.
        // They would otherwise be copied to the other side, and kept there again.
        let backup = self.request.options.writing.backup.as_ref().filter(|backup| backup.dir.is_some());
        let is_backup = backup.is_some_and(|backup| backup.contains_path(&self.merged.node_path(node)));
        // A rule hides the entry, or keeps it from being transferred, on at least one side. Nothing is known
        // of the other state, so neither side may change.
        if withheld(TwoWaySide::First)
            || withheld(TwoWaySide::Second)
            || is_backup
            || self.request.is_hidden(self.merged, node)
        {
            return ([EntryCourse::Stay; 2], None);
        }
        let entries = TwoWaySide::BOTH.map(|which| self.merged.side_entry(node, which));
        match entries {
            // The two roots need not be alike: they were named, not found.
            [Some(_), Some(_)] if place == 0 => ([EntryCourse::Agreed; 2], None),
            [Some(a), Some(b)] if a.is_dir() && b.is_dir() => (self.decide_dirs(node, a, b), None),
            [Some(a), Some(b)] if !a.is_dir() && !b.is_dir() => {
                (self.decide_files(place, node, [a, b], decision), None)
            }
            [Some(_), Some(_)] => self.decide_kinds(place, node, decision),
            [Some(_), None] => (self.decide_one_sided(node, TwoWaySide::First, decision), None),
            [None, Some(_)] => (self.decide_one_sided(node, TwoWaySide::Second, decision), None),
            [None, None] => ([EntryCourse::Stay; 2], None),
        }
    }

    /// Decides for an entry that only one side has.
    fn decide_one_sided(
        &self,
        node: &MergedNode,
        which: TwoWaySide,
        decision: &mut TwoWayDecision,
    ) -> [EntryCourse; 2] {
        let here = *which.select_from(&node.standing);
        let there = *which.opposite().select_from(&node.standing);
        let gone = match (here, there) {
            // The deletion is propagated only if the entry is still what both sides had. This is the only
            // case in which a run deletes without a conflict.
            (_, EntryStatus::Deleted) if !here.is_edited() => true,
            (_, EntryStatus::Deleted) => {
                let ending = match self.request.rule.preferred_side() {
                    // With the rules `source` and `dest` the deletion itself can win. All other rules prefer
                    // the edit, because a deleted version can be had again and an edited one cannot.
                    Some(stubborn) => ConflictEnding::Wins(stubborn),
                    None => ConflictEnding::Wins(which),
                };
                decision.add_conflict(self.merged.node_path(node), node, ending);
                ending == ConflictEnding::Wins(which.opposite())
            }
            _ => false,
        };
        // An edited version that loses goes to the trash. An unedited one does not: both sides had it, and
        // the other side deleted it.
        if gone && here.is_edited() {
            *which.select_from_mut(&mut decision.loses) = true;
        }
        let mut courses = [EntryCourse::Stay; 2];
        *which.select_from_mut(&mut courses) = if gone { EntryCourse::Gone } else { EntryCourse::Across };
        courses
    }

    fn decide_dirs(&self, node: &MergedNode, a: ListingEntry<'_>, b: ListingEntry<'_>) -> [EntryCourse; 2] {
        let differs = compare_attributes(&a, &b, &self.request.options).0 & DIR_BITS.0 != 0;
        if !differs {
            return [EntryCourse::Agreed; 2];
        }
        self.decide_attributes(node, [a, b])
    }

    /// Decides for an entry that has the same content and other attributes on both sides.
    fn decide_attributes(&self, node: &MergedNode, entries: [ListingEntry<'_>; 2]) -> [EntryCourse; 2] {
        let winner = match node.standing.map(EntryStatus::is_edited) {
            // What differed when both agreed, and was not touched since, was meant to differ.
            [false, false] => return [EntryCourse::Agreed; 2],
            [true, false] => TwoWaySide::First,
            [false, true] => TwoWaySide::Second,
            // Differences of attributes are never renamed or asked about: there is nothing in them that a
            // user could lose.
            [true, true] => self.request.rule.choose_attributes(entries.map(version_from_entry)),
        };
        winner_courses(winner)
    }

    fn decide_files(
        &self,
        place: usize,
        node: &MergedNode,
        entries: [ListingEntry<'_>; 2],
        decision: &mut TwoWayDecision,
    ) -> [EntryCourse; 2] {
        let [a, b] = entries;
        // Equal content ends the question, whatever the archive says: the same change was made on both sides,
        // or the archive was lost.
        if self.has_same_content(a, b) {
            let differs = compare_attributes(&a, &b, &self.request.options).0 & !Differences::ATIME.0 != 0;
            return if differs { self.decide_attributes(node, entries) } else { [EntryCourse::Agreed; 2] };
        }
        match node.standing.map(has_new_content) {
            [true, false] => winner_courses(TwoWaySide::First),
            [false, true] => winner_courses(TwoWaySide::Second),
            // Size and time are as they were recorded, but the contents, which were compared, differ.
            [false, false] if !self.has_compared_content(a, b) => self.decide_attributes(node, entries),
            _ => self.decide_conflict(place, node, decision).0,
        }
    }

    fn has_compared_content(&self, a: ListingEntry<'_>, b: ListingEntry<'_>) -> bool {
        self.request.options.compare.by == CompareMethod::Content && compare_digests(a, b).is_some()
    }

    /// Decides for an entry that is a directory on one side only.
    fn decide_kinds(
        &self,
        place: usize,
        node: &MergedNode,
        decision: &mut TwoWayDecision,
    ) -> ([EntryCourse; 2], Option<TypeConflict>) {
        // A directory counts as edited if anything in it is. Comparing the two entries alone would let a
        // replaced directory take edited files with it.
        let edited = TwoWaySide::BOTH.map(|which| self.has_edited_subtree(place, which));
        match edited {
            [true, false] => (winner_courses(TwoWaySide::First), Some(TypeConflict::Wins(TwoWaySide::First))),
            [false, true] => {
                (winner_courses(TwoWaySide::Second), Some(TypeConflict::Wins(TwoWaySide::Second)))
            }
            _ => self.decide_conflict(place, node, decision),
        }
    }

    fn has_edited_subtree(&self, place: usize, which: TwoWaySide) -> bool {
        let below = self.merged.subtree_nodes(place);
        below.iter().filter_map(|place| self.merged.nodes.get(*place)).any(|node| {
            // That a directory's mode was changed is no reason to keep it in the place of a file.
            match which.select_from(&node.standing) {
                EntryStatus::Known(ChangeExtent::Attributes) => false,
                standing => standing.is_edited(),
            }
        })
    }

    fn decide_conflict(
        &self,
        place: usize,
        node: &MergedNode,
        decision: &mut TwoWayDecision,
    ) -> ([EntryCourse; 2], Option<TypeConflict>) {
        let path = self.merged.node_path(node);
        let versions = TwoWaySide::BOTH.map(|which| self.compute_version(place, which));
        // Paths are held during the second plan of a run: a conflict that appeared between the two plans must
        // not lead to a third.
        let ending = match self.request.held.contains(&path) {
            true => ConflictEnding::Open,
            false => self.request.rule.choose_ending(versions, self.request.answers.get(&path).copied()),
        };
        if let ConflictEnding::Renamed(loser) = ending {
            let winner = loser.opposite();
            // Only contents that were compared show this conflict. Once the loser has another name, the winner
            // would look like a file that the other side deleted.
            if !winner.select_from(&versions).is_dir && !winner.select_from(&node.standing).is_edited() {
                decision.unedited_winners.insert(path.clone());
            }
        }
        decision.add_conflict(path, node, ending);
        match ending {
            ConflictEnding::Wins(winner) => {
                *winner.opposite().select_from_mut(&mut decision.loses) = true;
                (winner_courses(winner), Some(TypeConflict::Wins(winner)))
            }
            ConflictEnding::Renamed(_) | ConflictEnding::Open => {
                ([EntryCourse::Stay; 2], Some(TypeConflict::Open))
            }
        }
    }

    fn compute_version(&self, place: usize, which: TwoWaySide) -> ComparedVersion {
        let below = self.merged.subtree_nodes(place);
        let nodes = below.iter().filter_map(|place| self.merged.nodes.get(*place));
        let versions = nodes.filter_map(|node| self.merged.side_entry(node, which)).map(version_from_entry);
        // A directory is as new as the newest, and as large as the sum, of all that is in it. Its own time
        // changes with every entry and would let an unrelated new file decide.
        let start = ComparedVersion {
            changed: vellum_types::UnixTime { secs: i64::MIN, nanos: 0 },
            bytes: 0,
            is_dir: false,
        };
        let is_dir = self.merged.nodes.get(place).and_then(|node| self.merged.side_entry(node, which));
        let sum = versions.fold(start, |sum, one| ComparedVersion {
            changed: sum.changed.max(one.changed),
            bytes: sum.bytes.saturating_add(one.bytes),
            is_dir: false,
        });
        ComparedVersion { is_dir: is_dir.is_some_and(|entry| entry.is_dir()), ..sum }
    }

    fn has_same_content(&self, a: ListingEntry<'_>, b: ListingEntry<'_>) -> bool {
        if a.kind() != b.kind() {
            return false;
        }
        // Hashes decide if both files were read; otherwise size and time do.
        compare_digests(a, b).unwrap_or_else(|| compare_content(&a, &b, &self.request.options).is_empty())
    }
}

/// Whether two files have the same content; None unless both were read.
pub(super) fn compare_digests(a: ListingEntry<'_>, b: ListingEntry<'_>) -> Option<bool> {
    let a_digest = a.listing().content_digest(a.id())?;
    let b_digest = b.listing().content_digest(b.id())?;
    Some(a_digest == b_digest)
}

impl TwoWayDecision {
    fn add_conflict(&mut self, path: Vec<u8>, node: &MergedNode, ending: ConflictEnding) {
        self.conflicts.push(EntryConflict { path, entries: node.sides, ending });
    }
}

fn has_new_content(standing: EntryStatus) -> bool {
    matches!(standing, EntryStatus::New | EntryStatus::Known(ChangeExtent::Content))
}

fn version_from_entry(entry: ListingEntry<'_>) -> ComparedVersion {
    ComparedVersion { changed: entry.mtime(), bytes: entry.size(), is_dir: entry.is_dir() }
}

fn winner_courses(winner: TwoWaySide) -> [EntryCourse; 2] {
    let mut courses = [EntryCourse::Replaced; 2];
    *winner.select_from_mut(&mut courses) = EntryCourse::Across;
    courses
}

/// The decision for entries below one that won or lost against an entry of another type.
fn courses_below_winner(node: &MergedNode, winner: TwoWaySide) -> [EntryCourse; 2] {
    let mut courses = [EntryCourse::Stay; 2];
    for which in TwoWaySide::BOTH.into_iter().filter(|which| which.select_from(&node.sides).is_some()) {
        *which.select_from_mut(&mut courses) =
            if which == winner { EntryCourse::Across } else { EntryCourse::Gone };
    }
    courses
}
