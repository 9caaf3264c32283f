//! What is to become of each entry.
//!
//! Invariant: an entry that somebody made or edited since both sides agreed is never to go, unless the other side's
//! version won by the rule. A directory goes only with everything that is in it.

use crate::listing::{Entry, EntryId, Flags};
use crate::options::By;
use crate::plan::{What, attributes, content};

use super::Which;
use super::merge::{Merged, Node, Standing};
use super::plan::Asked;
use super::rule::{Ending, Version};
use super::state::Change;

/// What is to become of one side's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Course {
    /// It stays, and nothing is known of it that was not known before.
    #[default]
    Stay,
    /// Both sides have the same.
    Agreed,
    /// It goes to the other side.
    Across,
    /// The other side's goes over it.
    Replaced,
    /// It is deleted.
    Gone,
}

/// An entry that both sides changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// Its path.
    pub path: Vec<u8>,
    /// What each side has; None: it was deleted.
    pub entries: [Option<EntryId>; 2],
    /// How it ends.
    pub ending: Ending,
}

/// What is to become of everything.
pub(super) struct Decision {
    /// For each node, what becomes of each side's entry.
    pub courses: Vec<[Course; 2]>,
    /// What both sides changed.
    pub conflicts: Vec<Conflict>,
    /// On which sides a version loses that nobody deleted: it is to be kept.
    pub loses: [bool; 2],
}

/// What decides.
pub(super) struct Judgement<'a> {
    pub merged: &'a Merged<'a>,
    pub asked: &'a Asked,
}

/// What decides below an entry that both sides have, one of them as a directory and the other not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Above {
    /// This side's version goes over the other's, with all that is in it.
    Wins(Which),
    /// Nothing is decided yet.
    Open,
}

/// What changes in a directory that concerns both sides: not its time, nor when it was read.
pub(super) const DIR_BITS: What =
    What(What::MODE.0 | What::OWNER.0 | What::GROUP.0 | What::ACL.0 | What::XATTR.0);

impl Judgement<'_> {
    /// Decides.
    pub fn run(&self) -> Decision {
        let nodes = &self.merged.nodes;
        let mut decision =
            Decision { courses: Vec::with_capacity(nodes.len()), conflicts: Vec::new(), loses: [false; 2] };
        // Below an entry that won against one of another kind, everything goes the same way.
        let mut all: Vec<Option<Above>> = Vec::with_capacity(nodes.len());
        for (place, node) in nodes.iter().enumerate() {
            let above = if place == 0 { None } else { all.get(node.parent).copied().flatten() };
            let (courses, above) = match above {
                Some(Above::Wins(winner)) => (follow(node, winner), above),
                Some(Above::Open) => ([Course::Stay; 2], above),
                None => self.decide(place, node, &mut decision),
            };
            decision.courses.push(courses);
            all.push(above);
        }
        self.keep_directories(&mut decision.courses);
        decision
    }

    /// A directory that holds something which stays, stays; it goes across with it.
    fn keep_directories(&self, courses: &mut [[Course; 2]]) {
        for place in (1..self.merged.nodes.len()).rev() {
            let Some(parent) = self.merged.nodes.get(place).map(|node| node.parent) else { continue };
            for which in Which::BOTH {
                let is_there =
                    self.merged.nodes.get(place).is_some_and(|node| which.of(&node.sides).is_some());
                let course = courses.get(place).map_or(Course::Gone, |both| *which.of(both));
                let Some(above) = courses.get_mut(parent).map(|both| which.of_mut(both)) else { continue };
                if is_there && course != Course::Gone && *above == Course::Gone {
                    *above = Course::Across;
                }
            }
        }
    }

    fn decide(&self, place: usize, node: &Node, decision: &mut Decision) -> ([Course; 2], Option<Above>) {
        let withheld =
            |which| self.merged.entry(node, which).is_some_and(|entry| entry.flags().has(Flags::WITHHELD));
        let backup = self.asked.options.writing.backup.as_ref().filter(|backup| backup.dir.is_some());
        let is_backup = backup.is_some_and(|backup| backup.holds(&self.merged.path(node)));
        if withheld(Which::First)
            || withheld(Which::Second)
            || is_backup
            || self.asked.hides(self.merged, node)
        {
            return ([Course::Stay; 2], None);
        }
        let entries = Which::BOTH.map(|which| self.merged.entry(node, which));
        match entries {
            // The two roots need not be alike: they were named, not found.
            [Some(_), Some(_)] if place == 0 => ([Course::Agreed; 2], None),
            [Some(a), Some(b)] if a.is_dir() && b.is_dir() => (self.directories(node, a, b), None),
            [Some(a), Some(b)] if !a.is_dir() && !b.is_dir() => {
                (self.files(place, node, [a, b], decision), None)
            }
            [Some(_), Some(_)] => self.kinds(place, node, decision),
            [Some(_), None] => (self.alone(node, Which::First, decision), None),
            [None, Some(_)] => (self.alone(node, Which::Second, decision), None),
            [None, None] => ([Course::Stay; 2], None),
        }
    }

    /// Only one side has it.
    fn alone(&self, node: &Node, which: Which, decision: &mut Decision) -> [Course; 2] {
        let (here, there) = (*which.of(&node.standing), *which.other().of(&node.standing));
        let gone = match (here, there) {
            (_, Standing::Deleted) if !here.is_edited() => true,
            (_, Standing::Deleted) => {
                let ending = match self.asked.rule.stubborn() {
                    Some(stubborn) => Ending::Wins(stubborn),
                    None => Ending::Wins(which),
                };
                decision.conflict(self.merged.path(node), node, ending);
                ending == Ending::Wins(which.other())
            }
            _ => false,
        };
        if gone && here.is_edited() {
            *which.of_mut(&mut decision.loses) = true;
        }
        let mut courses = [Course::Stay; 2];
        *which.of_mut(&mut courses) = if gone { Course::Gone } else { Course::Across };
        courses
    }

    fn directories(&self, node: &Node, a: Entry<'_>, b: Entry<'_>) -> [Course; 2] {
        let differs = attributes(&a, &b, &self.asked.options).0 & DIR_BITS.0 != 0;
        if !differs {
            return [Course::Agreed; 2];
        }
        self.attributes(node, [a, b])
    }

    /// Both have it, with the same content and other attributes.
    fn attributes(&self, node: &Node, entries: [Entry<'_>; 2]) -> [Course; 2] {
        let winner = match node.standing.map(Standing::is_edited) {
            // What differed when both agreed, and was not touched since, was meant to differ.
            [false, false] => return [Course::Agreed; 2],
            [true, false] => Which::First,
            [false, true] => Which::Second,
            [true, true] => self.asked.rule.attributes(entries.map(version)),
        };
        across(winner)
    }

    fn files(
        &self,
        place: usize,
        node: &Node,
        entries: [Entry<'_>; 2],
        decision: &mut Decision,
    ) -> [Course; 2] {
        let [a, b] = entries;
        if self.same_content(a, b) {
            let differs = attributes(&a, &b, &self.asked.options).0 & !What::ATIME.0 != 0;
            return if differs { self.attributes(node, entries) } else { [Course::Agreed; 2] };
        }
        match node.standing.map(has_new_content) {
            [true, false] => across(Which::First),
            [false, true] => across(Which::Second),
            // Sizes and times say that nobody wrote, and the content, which was read, that somebody did.
            [false, false] if !self.was_read(a, b) => self.attributes(node, entries),
            _ => self.conflict(place, node, decision).0,
        }
    }

    fn was_read(&self, a: Entry<'_>, b: Entry<'_>) -> bool {
        self.asked.options.compare.by == By::Content && digests(a, b).is_some()
    }

    /// One of them is a directory, the other is not.
    fn kinds(&self, place: usize, node: &Node, decision: &mut Decision) -> ([Course; 2], Option<Above>) {
        let edited = Which::BOTH.map(|which| self.subtree_is_edited(place, which));
        match edited {
            [true, false] => (across(Which::First), Some(Above::Wins(Which::First))),
            [false, true] => (across(Which::Second), Some(Above::Wins(Which::Second))),
            _ => self.conflict(place, node, decision),
        }
    }

    fn subtree_is_edited(&self, place: usize, which: Which) -> bool {
        let below = self.merged.subtree(place);
        below.iter().filter_map(|place| self.merged.nodes.get(*place)).any(|node| {
            // That a directory's mode was changed is no reason to keep it in the place of a file.
            match which.of(&node.standing) {
                Standing::Known(Change::Attributes) => false,
                standing => standing.is_edited(),
            }
        })
    }

    fn conflict(&self, place: usize, node: &Node, decision: &mut Decision) -> ([Course; 2], Option<Above>) {
        let path = self.merged.path(node);
        let versions = Which::BOTH.map(|which| self.version(place, which));
        let ending = match self.asked.held.contains(&path) {
            true => Ending::Open,
            false => self.asked.rule.ending(versions, self.asked.answers.get(&path).copied()),
        };
        decision.conflict(path, node, ending);
        match ending {
            Ending::Wins(winner) => {
                *winner.other().of_mut(&mut decision.loses) = true;
                (across(winner), Some(Above::Wins(winner)))
            }
            Ending::Renamed(_) | Ending::Open => ([Course::Stay; 2], Some(Above::Open)),
        }
    }

    fn version(&self, place: usize, which: Which) -> Version {
        let below = self.merged.subtree(place);
        let nodes = below.iter().filter_map(|place| self.merged.nodes.get(*place));
        let versions = nodes.filter_map(|node| self.merged.entry(node, which)).map(version);
        let start =
            Version { changed: vellum_types::Time { secs: i64::MIN, nanos: 0 }, bytes: 0, is_dir: false };
        let is_dir = self.merged.nodes.get(place).and_then(|node| self.merged.entry(node, which));
        let sum = versions.fold(start, |sum, one| Version {
            changed: sum.changed.max(one.changed),
            bytes: sum.bytes.saturating_add(one.bytes),
            is_dir: false,
        });
        Version { is_dir: is_dir.is_some_and(|entry| entry.is_dir()), ..sum }
    }

    fn same_content(&self, a: Entry<'_>, b: Entry<'_>) -> bool {
        if a.kind() != b.kind() {
            return false;
        }
        digests(a, b).unwrap_or_else(|| content(&a, &b, &self.asked.options).is_empty())
    }
}

/// Whether two files have the same content, if both were read.
pub(super) fn digests(a: Entry<'_>, b: Entry<'_>) -> Option<bool> {
    let a_digest = a.listing().digest(a.id())?;
    let b_digest = b.listing().digest(b.id())?;
    Some(a_digest == b_digest)
}

impl Decision {
    fn conflict(&mut self, path: Vec<u8>, node: &Node, ending: Ending) {
        self.conflicts.push(Conflict { path, entries: node.sides, ending });
    }
}

fn has_new_content(standing: Standing) -> bool {
    matches!(standing, Standing::New | Standing::Known(Change::Content))
}

fn version(entry: Entry<'_>) -> Version {
    Version { changed: entry.mtime(), bytes: entry.size(), is_dir: entry.is_dir() }
}

fn across(winner: Which) -> [Course; 2] {
    let mut courses = [Course::Replaced; 2];
    *winner.of_mut(&mut courses) = Course::Across;
    courses
}

/// Below an entry that won, or lost, against one of another kind.
fn follow(node: &Node, winner: Which) -> [Course; 2] {
    let mut courses = [Course::Stay; 2];
    for which in Which::BOTH.into_iter().filter(|which| which.of(&node.sides).is_some()) {
        *which.of_mut(&mut courses) = if which == winner { Course::Across } else { Course::Gone };
    }
    courses
}
