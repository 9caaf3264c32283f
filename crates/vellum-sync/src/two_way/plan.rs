//! Two plans, one for each direction, with those steps of one-way plans that the decisions call for.
//!
//! Invariant: a pure function of the archive, the listings and the request. Each step is one that a one-way run would
//! take; this module only decides which of them are taken. Where both versions of an entry are kept, the plans refer to
//! listings in which one of them has its new name already.

use std::collections::{BTreeSet, HashSet};

use crate::error::Result;
use crate::model::listing::{EntryFlags, ListingEntry, ListingEntryId, ListingError, TreeListing};
use crate::model::options::{DeleteOptions, DeletePhase, SyncOptions};
use crate::plan::{
    DeletionCounts, Differences, PlanRefusal, PlanRemark, StepAction, StepCounts, StepPhase, SyncPlan,
    SyncStep, WriteMethod,
};

use super::TwoWaySide;
use super::archive::TwoWayArchive;
use super::decide::{DecisionMaker, EntryConflict, EntryCourse, TwoWayDecision, compare_digests};
use super::merge::{EntryStatus, MergedNode, ThreeWayTree};
use super::rename::{RenameError, VersionRename, VersionRenames};
use super::rule::{ConflictAnswers, ConflictEnding, ConflictRule};

/// How often new names are chosen before the plan is made with what is there: one round suffices unless new names
/// collide.
const RENAMES_MAX: usize = 3;

/// The request of a two-way run.
#[derive(Debug, Clone)]
pub struct TwoWayRequest {
    /// The options; their limit of deletions holds for each direction.
    pub options: SyncOptions,
    /// The rule that resolves conflicts.
    pub rule: ConflictRule,
    /// The answers of the user.
    pub answers: ConflictAnswers,
    /// Conflicts that are left open.
    pub held: BTreeSet<Vec<u8>>,
    /// The name of each side, for names of kept versions.
    pub labels: [String; 2],
    /// Of the paths that were looked up: those that exist on each side although a rule leaves them out.
    pub hidden: [BTreeSet<Vec<u8>>; 2],
}

/// The plan of a two-way run.
#[derive(Debug)]
pub struct TwoWayPlan {
    /// New names of versions that are kept; they are given before any other step.
    pub renamings: [VersionRenames; 2],
    /// The listings that the steps refer to: those after the renaming. None if nothing is renamed.
    renamed: [Option<TreeListing>; 2],
    /// The plan from the first side to the second, and the other way.
    pub plans: [SyncPlan; 2],
    /// The entries that changed on both sides.
    pub conflicts: Vec<EntryConflict>,
    /// Whether an edited version loses on each side: then replaced and deleted entries there go to the trash.
    pub loses: [bool; 2],
    /// Why the plan may not be carried out.
    pub refusal: Option<(TwoWaySide, PlanRefusal)>,
    pub(super) nodes: Vec<MergedNode>,
    pub(super) courses: Vec<[EntryCourse; 2]>,
    /// The entries that the archive may not have any more when the new names are given.
    forgotten: BTreeSet<Vec<u8>>,
}

impl TwoWayPlan {
    /// Makes the plan. Fails if a version cannot be kept under its new name.
    pub fn new(
        archive: &TwoWayArchive,
        listings: [&TreeListing; 2],
        request: &TwoWayRequest,
    ) -> Result<Self> {
        let mut named = GivenNames::default();
        // A new name can itself be the path of another conflict, which is seen only in the renamed listings.
        while named.rounds < RENAMES_MAX && named.assign_names(archive, listings, request)? {
            named.rounds += 1;
        }
        // The plans are made as if the new names had been given already. Execution gives them first, lists
        // both sides again and plans once more, so a mistake here cannot write anything wrong.
        let forgetful = forget_entries(archive, &named.unedited_winners)?;
        let merged = ThreeWayTree::merge_listings(
            forgetful.as_ref().unwrap_or(archive),
            named.renamed_listings(listings),
            &request.options.preserve,
        );
        let decision = DecisionMaker { merged: &merged, request }.decide_all();
        let (plans, refusal) = TwoWayPlanner { merged: &merged, decision: &decision, request }.build_plans();
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
            forgotten: named.unedited_winners,
        })
    }

    /// The archive that has to be saved before this plan is carried out; None if the given one, with which it was made,
    /// remains valid. A file that both sides had agreed on, and whose other version is about to get another name, is
    /// not in it: if the run is killed then, the next one finds the file on one side alone, and must not take that for
    /// a deletion on the other.
    pub fn archive_before_renames(&self, archive: &TwoWayArchive) -> Result<Option<TwoWayArchive>> {
        Ok(forget_entries(archive, &self.forgotten)?)
    }

    /// The listings that the steps refer to.
    #[must_use]
    pub fn renamed_listings<'a>(&'a self, listings: [&'a TreeListing; 2]) -> [&'a TreeListing; 2] {
        select_renamed(&self.renamed, listings)
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.plans.iter().all(SyncPlan::is_empty) && self.renamings.iter().all(VersionRenames::is_empty)
    }

    /// The conflicts that are open.
    pub fn open_conflicts(&self) -> impl Iterator<Item = &EntryConflict> {
        self.conflicts.iter().filter(|conflict| conflict.ending == ConflictEnding::Open)
    }
}

/// New names, as they are added in rounds.
#[derive(Default)]
struct GivenNames {
    renamings: [VersionRenames; 2],
    renamed: [Option<TreeListing>; 2],
    conflicts: Vec<EntryConflict>,
    unedited_winners: BTreeSet<Vec<u8>>,
    rounds: usize,
}

impl GivenNames {
    fn renamed_listings<'a>(&'a self, listings: [&'a TreeListing; 2]) -> [&'a TreeListing; 2] {
        select_renamed(&self.renamed, listings)
    }

    /// Chooses new names where both versions are kept; returns whether there were any.
    fn assign_names(
        &mut self,
        archive: &TwoWayArchive,
        listings: [&TreeListing; 2],
        request: &TwoWayRequest,
    ) -> Result<bool, RenameError> {
        let now = self.renamed_listings(listings);
        // Only the endings of conflicts are used from this decision. All else is decided again with the new
        // names.
        let merged = ThreeWayTree::merge_listings(archive, now, &request.options.preserve);
        let decision = DecisionMaker { merged: &merged, request }.decide_all();
        let mut conflicts = decision.conflicts;
        conflicts.retain(|conflict| matches!(conflict.ending, ConflictEnding::Renamed(_)));
        let more = VersionRename::from_conflicts(&merged, &conflicts, request);
        let renamed = TwoWaySide::BOTH.map(|which| {
            let (more, now): (&VersionRenames, &&TreeListing) =
                (which.select_from(&more), which.select_from(&now));
            (!more.is_empty()).then(|| more.apply_to_listing(now)).transpose()
        });
        for (which, renamed) in TwoWaySide::BOTH.into_iter().zip(renamed) {
            let renamed = renamed?;
            which.select_from_mut(&mut self.renamings).extend_with(which.select_from(&more));
            if renamed.is_some() {
                *which.select_from_mut(&mut self.renamed) = renamed;
            }
        }
        let any = !conflicts.is_empty();
        self.conflicts.extend(conflicts);
        self.unedited_winners.extend(decision.unedited_winners);
        Ok(any)
    }
}

/// The archive without these entries; None if there are none of them.
fn forget_entries(
    archive: &TwoWayArchive,
    paths: &BTreeSet<Vec<u8>>,
) -> Result<Option<TwoWayArchive>, ListingError> {
    if paths.is_empty() { Ok(None) } else { archive.without_entries(paths).map(Some) }
}

fn select_renamed<'a>(
    renamed: &'a [Option<TreeListing>; 2],
    listings: [&'a TreeListing; 2],
) -> [&'a TreeListing; 2] {
    TwoWaySide::BOTH.map(|which| which.select_from(renamed).as_ref().unwrap_or(*which.select_from(&listings)))
}

/// Makes the plans.
struct TwoWayPlanner<'a> {
    merged: &'a ThreeWayTree<'a>,
    decision: &'a TwoWayDecision,
    request: &'a TwoWayRequest,
}

impl TwoWayPlanner<'_> {
    fn build_plans(&self) -> ([SyncPlan; 2], Option<(TwoWaySide, PlanRefusal)>) {
        let by_entry = TwoWaySide::BOTH.map(|which| self.courses_by_entry(which));
        let plans = TwoWaySide::BOTH.map(|from| self.plan_direction(from, &by_entry));
        // A run with suspiciously many deletions still does everything else. It is refused as a whole only if
        // nothing else is left to do, so that the user sees the reason and not an empty run.
        let Some(refused) = self.check_delete_limit(&plans) else { return (plans, None) };
        match self.without_deletions(plans.clone()) {
            Some(plans) => (plans, None),
            None => (plans, Some(refused)),
        }
    }

    /// The plans without the deletions that are refused; None if no step remains, or another refusal does.
    fn without_deletions(&self, mut plans: [SyncPlan; 2]) -> Option<[SyncPlan; 2]> {
        // Each side is refused once at most.
        for _ in TwoWaySide::BOTH {
            let Some((side, refusal)) = self.check_delete_limit(&plans) else { break };
            let plan = side.opposite().select_from_mut(&mut plans);
            // A deletion outside of its own phase makes room for an entry of another kind. Without it the
            // plan cannot be carried out.
            let is_needed =
                |step: &SyncStep| step.action == StepAction::Delete && step.phase != StepPhase::Delete;
            if matches!(refusal, PlanRefusal::Store { .. }) || plan.steps.iter().any(is_needed) {
                return None;
            }
            plan.steps.retain(|step| step.action != StepAction::Delete);
            plan.counts.deleted = 0;
            plan.remarks.push(PlanRemark::DeletesRefused { refusal });
        }
        // Setting the times of directories is no reason to run: without the deletions nothing in them
        // changed.
        let does_more = |step: &SyncStep| !matches!(step.phase, StepPhase::Delete | StepPhase::Finish);
        plans.iter().flat_map(|plan| &plan.steps).any(does_more).then_some(plans)
    }

    /// What happens to each entry of one side, by its number.
    fn courses_by_entry(&self, which: TwoWaySide) -> Vec<EntryCourse> {
        // Entries without a node cannot exist: each listing was walked whole. Staying is the harmless
        // default.
        let mut courses = vec![EntryCourse::Stay; which.select_from(&self.merged.listings).len()];
        for (node, both) in self.merged.nodes.iter().zip(&self.decision.courses) {
            let place = which.select_from(&node.sides).map(ListingEntryId::index);
            if let Some(course) = place.and_then(|place| courses.get_mut(place)) {
                *course = *which.select_from(both);
            }
        }
        courses
    }

    /// Makes the plan from one side to the other.
    fn plan_direction(&self, from: TwoWaySide, courses: &[Vec<EntryCourse>; 2]) -> SyncPlan {
        let source = *from.select_from(&self.merged.listings);
        let old = *from.opposite().select_from(&self.merged.listings);
        // The one-way planner is asked for everything that a mirror would do, deletions without limits
        // included. The filter keeps the steps that the decisions call for, and limits are checked on what is
        // left.
        let delete = DeleteOptions {
            when: DeletePhase::After,
            force: true,
            obstacles: true,
            ..DeleteOptions::default()
        };
        let options = SyncOptions { delete, ..self.request.options.clone() };
        let all = SyncPlan::new(source, old, &options);
        let (ours, theirs): (&Vec<EntryCourse>, &Vec<EntryCourse>) =
            (from.select_from(courses), from.opposite().select_from(courses));
        let filter = StepFilter { source, old, ours, theirs };
        let mut steps: Vec<SyncStep> =
            all.steps.iter().filter_map(|step| filter.filter_step(*step)).collect();
        // The filter can change the phase of a step. The sort is stable, so steps of one phase keep the order
        // that execution relies on (directories before their entries).
        steps.sort_by_key(|step| step.phase);
        let mut remarks: Vec<PlanRemark> =
            all.remarks.into_iter().filter(|remark| filter.should_keep_remark(remark)).collect();
        // If a part of either side could not be read, the one-way planner has left out all deletions. The
        // count is taken from the decisions, so that the user learns how many there would have been.
        let held = filter.theirs.iter().filter(|course| **course == EntryCourse::Gone).count() as u64;
        if held > 0 && !(source.is_complete() && old.is_complete()) {
            remarks.push(PlanRemark::DeletesHeld { deletes: held });
        }
        let mut counts = StepCounts::default();
        (counts.entries, counts.files, counts.bytes) =
            (all.counts.entries, all.counts.files, all.counts.bytes);
        steps.iter().for_each(|step| filter.count_step(step, &mut counts));
        SyncPlan { steps, remarks, counts, ..SyncPlan::default() }
    }

    /// Why so many deletions are refused.
    fn check_delete_limit(&self, plans: &[SyncPlan; 2]) -> Option<(TwoWaySide, PlanRefusal)> {
        let delete = &self.request.options.delete;
        // A store is refused whatever is planned: its objects are no files to anybody but Vellum.
        let store = TwoWaySide::BOTH.into_iter().find_map(|side| {
            let mut dirs = side.select_from(&self.merged.listings).iter().filter(ListingEntry::is_dir);
            let store = dirs.find(|dir| dir.flags().contains(EntryFlags::STORE))?;
            Some((side, PlanRefusal::Store { path: store.path() }))
        });
        store.or_else(|| {
            TwoWaySide::BOTH.into_iter().find_map(|side| {
                let deletions = DeletionCounts {
                    deletes: side.opposite().select_from(plans).counts.deleted,
                    of: side.select_from(&self.merged.listings).len() as u64 - 1,
                    is_source_empty: side.opposite().select_from(&self.merged.listings).is_empty(),
                };
                Some((side, deletions.check_limit(delete, delete.force)?))
            })
        })
    }
}

/// Selects steps of a one-way plan.
struct StepFilter<'a> {
    source: &'a TreeListing,
    old: &'a TreeListing,
    ours: &'a [EntryCourse],
    theirs: &'a [EntryCourse],
}

impl StepFilter<'_> {
    fn is_transferred(&self, source: ListingEntryId) -> bool {
        self.ours.get(source.index()) == Some(&EntryCourse::Across)
    }

    fn is_removed(&self, old: ListingEntryId) -> bool {
        matches!(self.theirs.get(old.index()), Some(EntryCourse::Gone | EntryCourse::Replaced))
    }

    /// The step as it is taken; None if it is not taken.
    fn filter_step(&self, step: SyncStep) -> Option<SyncStep> {
        let whole = SyncStep {
            phase: StepPhase::Files,
            action: StepAction::Write(WriteMethod::Whole),
            other: None,
            ..step
        };
        match (step.action, step.source, step.old) {
            (StepAction::Delete, _, Some(old)) => self.is_removed(old).then_some(step),
            (StepAction::Rename, Some(source), Some(old)) => {
                match (self.is_transferred(source), self.is_removed(old)) {
                    (true, true) => Some(step),
                    // The one-way planner found a file that was renamed. Only one half of that was decided,
                    // so the rename becomes a copy of the new name or a deletion of the old one.
                    (true, false) => Some(SyncStep { old: None, what: Differences::NEW, ..whole }),
                    (false, true) => {
                        let phase = StepPhase::Delete;
                        let action = StepAction::Delete;
                        Some(SyncStep { phase, action, source: None, what: Differences::default(), ..step })
                    }
                    (false, false) => None,
                }
            }
            (_, Some(source), _) if !self.is_transferred(source) => None,
            // If the leading name may have the other side's content, this name gets a file of its own.
            (StepAction::Link, Some(_), _) if !step.other.is_some_and(|other| self.can_lead_links(other)) => {
                Some(whole)
            }
            // Both files were read for the comparison. Without this, equal files of different times would be
            // sent.
            (StepAction::Write(_), Some(source), Some(old)) if self.has_same_content(source, old) => {
                Some(SyncStep { action: StepAction::Attributes, what: Differences::TIME, ..step })
            }
            _ => Some(step),
        }
    }

    fn can_lead_links(&self, other: ListingEntryId) -> bool {
        matches!(self.ours.get(other.index()), Some(EntryCourse::Across | EntryCourse::Agreed))
    }

    /// Both files were read and have the same content: only attributes are transferred.
    fn has_same_content(&self, source: ListingEntryId, old: ListingEntryId) -> bool {
        compare_digests(self.source.entry(source), self.old.entry(old)) == Some(true)
    }

    fn should_keep_remark(&self, remark: &PlanRemark) -> bool {
        let find = |listing: &TreeListing| listing.find_path(remark.path()).map(|entry| entry.id());
        match remark {
            PlanRemark::DeletesHeld { .. }
            | PlanRemark::DeletesRefused { .. }
            | PlanRemark::BasisMissing { .. } => false,
            PlanRemark::Kept { .. } => find(self.old).is_some_and(|old| self.is_removed(old)),
            PlanRemark::InTheWay { .. }
            | PlanRemark::Itself { .. }
            | PlanRemark::Shadowed { .. }
            | PlanRemark::Skipped { .. } => {
                find(self.source).is_some_and(|source| self.is_transferred(source))
            }
        }
    }

    fn count_step(&self, step: &SyncStep, counts: &mut StepCounts) {
        match step.action {
            StepAction::Delete => counts.deleted += 1,
            StepAction::Rename => counts.renamed += 1,
            StepAction::Attributes => {
                counts.attributes +=
                    u64::from(!step.what.is_empty() && !step.what.contains(Differences::NEW));
            }
            StepAction::MakeDir
            | StepAction::Link
            | StepAction::Write(_)
            | StepAction::Symlink
            | StepAction::Special
            | StepAction::LinkBasis(_)
            | StepAction::CopyBasis(_) => match step.old {
                Some(_) => counts.updated += 1,
                None => counts.made += 1,
            },
        }
        if let (StepAction::Write(_), Some(source)) = (step.action, step.source) {
            counts.writes += 1;
            counts.write_bytes += self.source.entry(source).size();
        }
    }
}

/// Files whose content has to be read for the plan. First: files of equal size on both sides, neither of which is as
/// both agreed on. If their times are equal too, they were copied from one another, or written by two programs within
/// one tick of the clock; a first run, where everything is new, takes them for copies. Second: files with their old
/// size and time that may nevertheless have been written; they are compared with the other side's, and with the
/// archive's hash where there is one.
#[must_use]
pub fn find_undecided_versions(
    archive: &TwoWayArchive,
    listings: [&TreeListing; 2],
    request: &TwoWayRequest,
) -> [Vec<ListingEntryId>; 2] {
    let merged = ThreeWayTree::merge_listings(archive, listings, &request.options.preserve);
    let mut found = [Vec::new(), Vec::new()];
    let met_before = archive.tree.len() > 1;
    for node in &merged.nodes {
        let entries =
            TwoWaySide::BOTH.map(|which| merged.side_entry(node, which).filter(ListingEntry::is_file));
        let edited = node.standing.iter().all(|standing| standing.is_edited());
        let doubtful = node.doubtful.contains(&true);
        match entries {
            [Some(a), Some(b)] if a.size() == b.size() => {
                // In a first run, equal size and time in two places means a copy nearly always. Reading all
                // of them would make the first run of a large pair as slow as copying it.
                let told_apart = met_before || a.mtime() != b.mtime();
                if doubtful || edited && told_apart {
                    found[0].push(a.id());
                    found[1].push(b.id());
                }
            }
            // The other side has another size, or no file. The hash is compared with the archived one, which
            // tells whether this side was edited.
            _ if doubtful && node.archived.is_some_and(|id| archive.tree.content_digest(id).is_some()) => {
                for which in TwoWaySide::BOTH.into_iter().filter(|which| *which.select_from(&node.doubtful)) {
                    which
                        .select_from_mut(&mut found)
                        .extend(which.select_from(&entries).map(|entry| entry.id()));
                }
            }
            _ => {}
        }
    }
    found
}

/// Paths that one side seems to lack although a rule may only hide them there. Deletions would be decided wrongly for
/// them, so each side is asked again for exactly these.
#[must_use]
pub fn find_maybe_hidden(
    archive: &TwoWayArchive,
    listings: [&TreeListing; 2],
    request: &TwoWayRequest,
) -> [Vec<Vec<u8>>; 2] {
    let merged = ThreeWayTree::merge_listings(archive, listings, &request.options.preserve);
    let mut found = [Vec::new(), Vec::new()];
    for (place, node) in merged.nodes.iter().enumerate().skip(1) {
        for which in TwoWaySide::BOTH {
            let missing = !which.select_from(&node.standing).is_present();
            let above = merged.nodes.get(node.parent).and_then(|parent| merged.side_entry(parent, which));
            // The flag says that the listing left something out in this directory. Only then can a missing
            // entry be one that a rule hides.
            let keeps = above.is_some_and(|above| above.flags().contains(EntryFlags::KEEPS));
            if missing && keeps {
                // The subtree of a hidden entry is hidden with it. Rules can also hide only a part of a
                // subtree.
                let below = merged.subtree_nodes(place);
                let nodes = below.iter().filter_map(|place| merged.nodes.get(*place));
                which.select_from_mut(&mut found).extend(nodes.map(|node| merged.node_path(node)));
            }
        }
    }
    found
}

impl TwoWayRequest {
    /// Whether a rule hides an entry on a side where it seems to be missing.
    pub(super) fn is_hidden(&self, merged: &ThreeWayTree<'_>, node: &MergedNode) -> bool {
        TwoWaySide::BOTH.into_iter().any(|which| {
            let hidden = which.select_from(&self.hidden);
            let missing =
                matches!(which.select_from(&node.standing), EntryStatus::Absent | EntryStatus::Deleted);
            missing && !hidden.is_empty() && hidden.contains(&merged.node_path(node))
        })
    }
}
