//! Two plans of the one-way sort, one for each direction, with the steps that the decisions call for.
//!
//! Invariant: a pure function of the archive, the listings and what was asked. A step is one that a one-way run would
//! take, too; what is decided here is only which of them are taken. Where both versions of an entry are kept, the
//! listings are those in which one has its new name already.

use std::collections::{BTreeSet, HashSet};

use crate::listing::{Entry, EntryId, Flags, Listing};
use crate::options::{Delete, Options, When};
use crate::plan::{Action, Counts, Deletions, How, Phase, Plan, Refusal, Remark, Step, What};

use super::Which;
use super::archive::Archive;
use super::decide::{Conflict, Course, Decision, Judgement, digests};
use super::merge::{Merged, Node, Standing};
use super::rename::{RenameError, Renaming, Renamings};
use super::rule::{Answers, Ending, Rule};

/// How often names are given before a plan is made of what there is: once is enough, unless names meet.
const RENAMES_MAX: usize = 3;

/// What was asked of a two-way run.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The options; what they say about deleting bounds both directions.
    pub options: Options,
    /// Who wins a conflict.
    pub rule: Rule,
    /// What somebody answered.
    pub answers: Answers,
    /// Conflicts that are left as they are.
    pub held: BTreeSet<Vec<u8>>,
    /// What each side is called in names of kept versions.
    pub labels: [String; 2],
    /// What rules leave out on each side although it is there, of what was asked about.
    pub hidden: [BTreeSet<Vec<u8>>; 2],
}

/// What a two-way run will do.
#[derive(Debug)]
pub struct TwoWayPlan {
    /// New names of versions that are kept, given before anything else.
    pub renamings: [Renamings; 2],
    /// What the steps speak of: the listings, once the new names are given. None: as they are.
    renamed: [Option<Listing>; 2],
    /// What goes from the first side to the second, and the other way.
    pub plans: [Plan; 2],
    /// What both sides changed.
    pub conflicts: Vec<Conflict>,
    /// Whether a version loses on a side that nobody deleted there: then what goes from it is kept in its trash.
    pub loses: [bool; 2],
    /// Why none of it may be carried out.
    pub refusal: Option<(Which, Refusal)>,
    pub(super) nodes: Vec<Node>,
    pub(super) courses: Vec<[Course; 2]>,
}

impl TwoWayPlan {
    /// The plan; an error if a version cannot be kept under the name that it would get.
    pub fn new(archive: &Archive, listings: [&Listing; 2], asked: &Asked) -> Result<Self, RenameError> {
        let mut named = Named::default();
        while named.rounds < RENAMES_MAX && named.give(archive, listings, asked)? {
            named.rounds += 1;
        }
        let merged = Merged::walk(archive, named.listings(listings), &asked.options.preserve);
        let decision = Judgement { merged: &merged, asked }.run();
        let (plans, refusal) = Drafter { merged: &merged, decision: &decision, asked }.run();
        let nodes = merged.nodes;
        // A version that got another name is missed under its old one, which is no conflict of its own.
        let known: HashSet<&[u8]> = named.conflicts.iter().map(|conflict| &*conflict.path).collect();
        let more = decision.conflicts.iter().filter(|conflict| !known.contains(&*conflict.path));
        let conflicts = named.conflicts.iter().chain(more).cloned().collect();
        Ok(Self {
            renamings: named.renamings,
            renamed: named.renamed,
            plans,
            conflicts,
            loses: decision.loses,
            refusal,
            nodes,
            courses: decision.courses,
        })
    }

    /// The listings that the steps speak of.
    #[must_use]
    pub fn listings<'a>(&'a self, listings: [&'a Listing; 2]) -> [&'a Listing; 2] {
        in_their_place(&self.renamed, listings)
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.plans.iter().all(Plan::is_empty) && self.renamings.iter().all(Renamings::is_empty)
    }

    /// Conflicts that wait for an answer.
    pub fn open(&self) -> impl Iterator<Item = &Conflict> {
        self.conflicts.iter().filter(|conflict| conflict.ending == Ending::Open)
    }
}

/// New names, as they are given round after round.
#[derive(Default)]
struct Named {
    renamings: [Renamings; 2],
    renamed: [Option<Listing>; 2],
    conflicts: Vec<Conflict>,
    rounds: usize,
}

impl Named {
    fn listings<'a>(&'a self, listings: [&'a Listing; 2]) -> [&'a Listing; 2] {
        in_their_place(&self.renamed, listings)
    }

    /// Gives new names where both versions are kept; whether there were any to give.
    fn give(
        &mut self,
        archive: &Archive,
        listings: [&Listing; 2],
        asked: &Asked,
    ) -> Result<bool, RenameError> {
        let now = self.listings(listings);
        let merged = Merged::walk(archive, now, &asked.options.preserve);
        let mut conflicts = Judgement { merged: &merged, asked }.run().conflicts;
        conflicts.retain(|conflict| matches!(conflict.ending, Ending::Renamed(_)));
        let more = Renaming::of(&merged, &conflicts, asked);
        let renamed = Which::BOTH.map(|which| {
            let (more, now): (&Renamings, &&Listing) = (which.of(&more), which.of(&now));
            (!more.is_empty()).then(|| more.apply(now)).transpose()
        });
        for (which, renamed) in Which::BOTH.into_iter().zip(renamed) {
            let renamed = renamed?;
            which.of_mut(&mut self.renamings).extend(which.of(&more));
            if renamed.is_some() {
                *which.of_mut(&mut self.renamed) = renamed;
            }
        }
        let any = !conflicts.is_empty();
        self.conflicts.extend(conflicts);
        Ok(any)
    }
}

fn in_their_place<'a>(renamed: &'a [Option<Listing>; 2], listings: [&'a Listing; 2]) -> [&'a Listing; 2] {
    Which::BOTH.map(|which| which.of(renamed).as_ref().unwrap_or(*which.of(&listings)))
}

/// Makes the plans.
struct Drafter<'a> {
    merged: &'a Merged<'a>,
    decision: &'a Decision,
    asked: &'a Asked,
}

impl Drafter<'_> {
    fn run(&self) -> ([Plan; 2], Option<(Which, Refusal)>) {
        let by_entry = Which::BOTH.map(|which| self.by_entry(which));
        let plans = Which::BOTH.map(|from| self.direction(from, &by_entry));
        let refusal = self.refusal(&plans);
        (plans, refusal)
    }

    /// What becomes of each entry of one side, by its number.
    fn by_entry(&self, which: Which) -> Vec<Course> {
        let mut courses = vec![Course::Stay; which.of(&self.merged.listings).len()];
        for (node, both) in self.merged.nodes.iter().zip(&self.decision.courses) {
            let place = which.of(&node.sides).map(EntryId::index);
            if let Some(course) = place.and_then(|place| courses.get_mut(place)) {
                *course = *which.of(both);
            }
        }
        courses
    }

    /// What goes from one side to the other.
    fn direction(&self, from: Which, courses: &[Vec<Course>; 2]) -> Plan {
        let (source, old) = (*from.of(&self.merged.listings), *from.other().of(&self.merged.listings));
        let delete = Delete { when: When::After, force: true, obstacles: true, ..Delete::default() };
        let options = Options { delete, ..self.asked.options.clone() };
        let all = Plan::new(source, old, &options);
        let (ours, theirs): (&Vec<Course>, &Vec<Course>) = (from.of(courses), from.other().of(courses));
        let filter = Filter { source, old, ours, theirs };
        let mut steps: Vec<Step> = all.steps.iter().filter_map(|step| filter.step(*step)).collect();
        steps.sort_by_key(|step| step.phase);
        let mut remarks: Vec<Remark> =
            all.remarks.into_iter().filter(|remark| filter.concerns(remark)).collect();
        let held = filter.theirs.iter().filter(|course| **course == Course::Gone).count() as u64;
        if held > 0 && !(source.is_complete() && old.is_complete()) {
            remarks.push(Remark::DeletesHeld { deletes: held });
        }
        let mut counts = Counts::default();
        (counts.entries, counts.files, counts.bytes) =
            (all.counts.entries, all.counts.files, all.counts.bytes);
        steps.iter().for_each(|step| filter.count(step, &mut counts));
        Plan { steps, remarks, counts, ..Plan::default() }
    }

    /// Why so much is not deleted.
    fn refusal(&self, plans: &[Plan; 2]) -> Option<(Which, Refusal)> {
        let delete = &self.asked.options.delete;
        let store = Which::BOTH.into_iter().find_map(|side| {
            let mut dirs = side.of(&self.merged.listings).iter().filter(Entry::is_dir);
            let store = dirs.find(|dir| dir.flags().has(Flags::STORE))?;
            Some((side, Refusal::Store { path: store.path() }))
        });
        store.or_else(|| {
            Which::BOTH.into_iter().find_map(|side| {
                let deletions = Deletions {
                    deletes: side.other().of(plans).counts.deleted,
                    of: side.of(&self.merged.listings).len() as u64 - 1,
                    is_source_empty: side.other().of(&self.merged.listings).is_empty(),
                };
                Some((side, deletions.refusal(delete, delete.force)?))
            })
        })
    }
}

/// Chooses among the steps of a one-way plan.
struct Filter<'a> {
    source: &'a Listing,
    old: &'a Listing,
    ours: &'a [Course],
    theirs: &'a [Course],
}

impl Filter<'_> {
    fn goes(&self, source: EntryId) -> bool {
        self.ours.get(source.index()) == Some(&Course::Across)
    }

    fn leaves(&self, old: EntryId) -> bool {
        matches!(self.theirs.get(old.index()), Some(Course::Gone | Course::Replaced))
    }

    /// The step, as it is taken; None if it is not.
    fn step(&self, step: Step) -> Option<Step> {
        let whole = Step { phase: Phase::Files, action: Action::Write(How::Whole), other: None, ..step };
        match (step.action, step.source, step.old) {
            (Action::Delete, _, Some(old)) => self.leaves(old).then_some(step),
            (Action::Rename, Some(source), Some(old)) => match (self.goes(source), self.leaves(old)) {
                (true, true) => Some(step),
                (true, false) => Some(Step { old: None, what: What::NEW, ..whole }),
                (false, true) => {
                    let (phase, action) = (Phase::Delete, Action::Delete);
                    Some(Step { phase, action, source: None, what: What::default(), ..step })
                }
                (false, false) => None,
            },
            (_, Some(source), _) if !self.goes(source) => None,
            // What leads may be what the other side changed: then this name has a file of its own.
            (Action::Link, Some(_), _) if !step.other.is_some_and(|other| self.leads(other)) => Some(whole),
            (Action::Write(_), Some(source), Some(old)) if self.is_same(source, old) => {
                Some(Step { action: Action::Attributes, what: What::TIME, ..step })
            }
            _ => Some(step),
        }
    }

    fn leads(&self, other: EntryId) -> bool {
        matches!(self.ours.get(other.index()), Some(Course::Across | Course::Agreed))
    }

    /// Both were read and have the same content: only attributes need to go.
    fn is_same(&self, source: EntryId, old: EntryId) -> bool {
        digests(self.source.entry(source), self.old.entry(old)) == Some(true)
    }

    fn concerns(&self, remark: &Remark) -> bool {
        let find = |listing: &Listing| listing.find(remark.path()).map(|entry| entry.id());
        match remark {
            Remark::DeletesHeld { .. } | Remark::DeletesRefused { .. } | Remark::BasisMissing { .. } => false,
            Remark::Kept { .. } => find(self.old).is_some_and(|old| self.leaves(old)),
            Remark::InTheWay { .. }
            | Remark::Itself { .. }
            | Remark::Shadowed { .. }
            | Remark::Skipped { .. } => find(self.source).is_some_and(|source| self.goes(source)),
        }
    }

    fn count(&self, step: &Step, counts: &mut Counts) {
        match step.action {
            Action::Delete => counts.deleted += 1,
            Action::Rename => counts.renamed += 1,
            Action::Attributes => {
                counts.attributes += u64::from(!step.what.is_empty() && !step.what.has(What::NEW));
            }
            Action::MakeDir
            | Action::Link
            | Action::Write(_)
            | Action::Symlink
            | Action::Special
            | Action::LinkBasis(_)
            | Action::CopyBasis(_) => match step.old {
                Some(_) => counts.updated += 1,
                None => counts.made += 1,
            },
        }
        if let (Action::Write(_), Some(source)) = (step.action, step.source) {
            counts.writes += 1;
            counts.write_bytes += self.source.entry(source).size();
        }
    }
}

/// Files whose content decides what is planned: they have one size, and neither side's is what both agreed on. Two that have
/// one time, too, were copied from somewhere, or written by two programs within one tick of the clock; in a first run,
/// where everything is new, they are taken for copies. And files that look as they did, and may have been written all the
/// same: against the other side's, and against what was agreed on where its hash is known.
#[must_use]
pub fn unsettled(archive: &Archive, listings: [&Listing; 2], asked: &Asked) -> [Vec<EntryId>; 2] {
    let merged = Merged::walk(archive, listings, &asked.options.preserve);
    let mut found = [Vec::new(), Vec::new()];
    let met_before = archive.tree.len() > 1;
    for node in &merged.nodes {
        let entries = Which::BOTH.map(|which| merged.entry(node, which).filter(Entry::is_file));
        let edited = node.standing.iter().all(|standing| standing.is_edited());
        let doubtful = node.doubtful.contains(&true);
        match entries {
            [Some(a), Some(b)] if a.size() == b.size() => {
                let told_apart = met_before || a.mtime() != b.mtime();
                if doubtful || edited && told_apart {
                    found[0].push(a.id());
                    found[1].push(b.id());
                }
            }
            _ if doubtful && node.archived.is_some_and(|id| archive.tree.digest(id).is_some()) => {
                for which in Which::BOTH.into_iter().filter(|which| *which.of(&node.doubtful)) {
                    which.of_mut(&mut found).extend(which.of(&entries).map(|entry| entry.id()));
                }
            }
            _ => {}
        }
    }
    found
}

/// Paths that one side seems not to have although a rule may have left them out there: what is decided about them
/// would be wrong, so that each side is to be looked at again for exactly these.
#[must_use]
pub fn doubtful(archive: &Archive, listings: [&Listing; 2], asked: &Asked) -> [Vec<Vec<u8>>; 2] {
    let merged = Merged::walk(archive, listings, &asked.options.preserve);
    let mut found = [Vec::new(), Vec::new()];
    for (place, node) in merged.nodes.iter().enumerate().skip(1) {
        for which in Which::BOTH {
            let missing = !which.of(&node.standing).is_there();
            let above = merged.nodes.get(node.parent).and_then(|parent| merged.entry(parent, which));
            let keeps = above.is_some_and(|above| above.flags().has(Flags::KEEPS));
            if missing && keeps {
                // What is below such a thing stands and falls with it, but rules may leave out its inside alone.
                let below = merged.subtree(place);
                let nodes = below.iter().filter_map(|place| merged.nodes.get(*place));
                which.of_mut(&mut found).extend(nodes.map(|node| merged.path(node)));
            }
        }
    }
    found
}

impl Asked {
    /// Whether a rule hides an entry on a side where it seems to be missing.
    pub(super) fn hides(&self, merged: &Merged<'_>, node: &Node) -> bool {
        Which::BOTH.into_iter().any(|which| {
            let hidden = which.of(&self.hidden);
            let missing = matches!(which.of(&node.standing), Standing::Absent | Standing::Deleted);
            missing && !hidden.is_empty() && hidden.contains(&merged.path(node))
        })
    }
}
