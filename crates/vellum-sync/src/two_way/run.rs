//! A two-way run. It lists both sides, looks up paths that rules may hide, reads the files whose content decides, and
//! plans; it renames kept versions, carries out both directions, lists the results, and writes the archive.
//!
//! Invariant: only steps of the plan are carried out. The new archive is written last, so that the run after a killed
//! one does the remaining steps again, or finds them done. Before versions are renamed, entries are only removed from
//! the archive, which causes no deletion.

use std::collections::BTreeSet;
use std::sync::Arc;

use vellum_host::ProgressMeter;

use crate::ends::local::LocalEnd;
use crate::ends::{ListingRequest, SourceEnd, SyncSide};
use crate::error::{Result, SyncError};
use crate::local::receive::{DestinationEnd, SyncJob, SyncReport};
use crate::local::scan::EntryFilter;
use crate::model::listing::{ListingEntryId, TreeListing};
use crate::model::options::{SyncOptions, WriteOptions};
use crate::plan::{self, SyncPlan};
use crate::rules::{ListedPaths, SyncFilters};

use super::TwoWaySide;
use super::archive::TwoWayArchive;
use super::plan::{TwoWayPlan, TwoWayRequest, find_maybe_hidden, find_undecided_versions};
use super::record::RunAftermath;
use super::rename::VersionRenames;

/// An end of a two-way run: both a source and a destination.
pub trait TwoWayEnd: SourceEnd + DestinationEnd {
    /// Lists extra facts only: entry numbers still refer to the listing before.
    fn list_without_replacing(&self, wish: &ListingRequest, meter: &ProgressMeter) -> Result<TreeListing> {
        self.list_entries(wish, meter)
    }

    /// The connections to it.
    fn connection_health(&self) -> ConnectionHealth {
        ConnectionHealth::default()
    }
}

impl TwoWayEnd for LocalEnd {}

/// Counters of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectionHealth {
    /// How many established connections were lost so far.
    pub cuts: u32,
    /// A connection is lost now.
    pub is_lost: bool,
}

impl std::ops::Add for ConnectionHealth {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { cuts: self.cuts + other.cuts, is_lost: self.is_lost || other.is_lost }
    }
}

/// A pair of ends, and the request.
pub struct TwoWaySync<'a> {
    /// The two ends.
    pub ends: [&'a dyn TwoWayEnd; 2],
    /// The filters of each.
    pub rules: [Arc<dyn EntryFilter>; 2],
    /// The request.
    pub request: TwoWayRequest,
}

/// Both sides as they were listed.
#[derive(Debug)]
pub struct TwoWayListings {
    /// The listings.
    pub listings: [TreeListing; 2],
}

/// The result of a two-way plan.
#[derive(Debug, Default)]
pub struct TwoWayReport {
    /// The results from the first side to the second, and the other way.
    pub reports: [SyncReport; 2],
    /// The renamings of kept versions on each side.
    pub renamed: [SyncReport; 2],
}

impl TwoWayReport {
    /// Adds the result of a later attempt, which carried out the remaining steps.
    pub fn merge_later(&mut self, later: Self) {
        let pairs = self
            .reports
            .iter_mut()
            .chain(&mut self.renamed)
            .zip(later.reports.into_iter().chain(later.renamed));
        for (report, later) in pairs {
            let steps = report.steps;
            let written = report.written;
            let spared = report.spared;
            // The later attempt carried out the remaining steps, so its problems replace the earlier ones.
            // Only the counters are added.
            *report = later;
            report.steps += steps;
            report.written += written;
            report.spared += spared;
        }
    }

    /// Whether any step failed.
    #[must_use]
    pub fn has_problems(&self) -> bool {
        self.reports.iter().chain(&self.renamed).any(|report| !report.problems.is_empty())
    }

    /// Whether it was stopped before the end.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.reports.iter().chain(&self.renamed).any(|report| report.stopped)
    }
}

impl TwoWaySync<'_> {
    /// Lists both sides.
    pub fn collect_listings(
        &mut self,
        archive: &TwoWayArchive,
        meter: &ProgressMeter,
    ) -> Result<TwoWayListings> {
        // A run lists more than once. What was hidden or held belongs to the earlier listings.
        self.request.hidden = [BTreeSet::new(), BTreeSet::new()];
        self.request.held.clear();
        let [first, second] = self.list_both_sides(meter);
        let mut sight = TwoWayListings { listings: [first?, second?] };
        for listing in sight.both_listings() {
            // A time that one filesystem rounds would be a difference in every run.
            self.request.options.compare.widen_tolerance(listing.granularity.tolerance_nanos());
        }
        let listings = sight.both_listings();
        for (which, paths) in
            TwoWaySide::BOTH.into_iter().zip(find_maybe_hidden(archive, listings, &self.request))
        {
            if !paths.is_empty() {
                *which.select_from_mut(&mut self.request.hidden) =
                    self.find_existing_paths(which, &paths, meter)?;
            }
        }
        self.hash_undecided_files(archive, &mut sight, meter)?;
        Ok(sight)
    }

    /// The counters of the connections to both sides.
    #[must_use]
    pub fn connection_health(&self) -> ConnectionHealth {
        let [first, second] = self.ends;
        first.connection_health() + second.connection_health()
    }

    fn list_both_sides(&self, meter: &ProgressMeter) -> [Result<TreeListing>; 2] {
        std::thread::scope(|scope| {
            // Each side can be another host or another disk, and listing is most of the time of a run with
            // few changes.
            let second = scope.spawn(|| self.list_side(TwoWaySide::Second, meter));
            let first = self.list_side(TwoWaySide::First, meter);
            let second = second.join().unwrap_or(Err(SyncError::Stopped));
            [first, second]
        })
    }

    fn build_request(&self, rules: Arc<dyn EntryFilter>) -> ListingRequest {
        ListingRequest {
            // As a source, a side lists the entries that rules would transfer and reports those that they leave
            // out. Both sides need that, since both send.
            side: SyncSide::Source,
            options: Arc::new(self.request.options.clone()),
            rules,
            top: Vec::new(),
            avoid: None,
            owners: false,
        }
    }

    fn list_side(&self, which: TwoWaySide, meter: &ProgressMeter) -> Result<TreeListing> {
        which
            .select_from(&self.ends)
            .list_entries(&self.build_request(which.select_from(&self.rules).clone()), meter)
    }

    /// The paths among these that exist on a side, whatever its rules hide.
    fn find_existing_paths(
        &self,
        which: TwoWaySide,
        paths: &[Vec<u8>],
        meter: &ProgressMeter,
    ) -> Result<BTreeSet<Vec<u8>>> {
        let selection = ListedPaths::parse(&paths.join(&0), true, false).map_err(SyncError::Rules)?;
        // No rules here: the question is whether the path exists although the rules hide it.
        let filters = Arc::new(SyncFilters { selection: Some(selection), ..SyncFilters::default() });
        let judge = filters.create_filter(SyncSide::Source, b"/").map_err(SyncError::Rules)?;
        let listing =
            which.select_from(&self.ends).list_without_replacing(&self.build_request(judge), meter)?;
        Ok(paths.iter().filter(|path| listing.find_path(path).is_some()).cloned().collect())
    }

    /// Reads the files whose content decides.
    fn hash_undecided_files(
        &self,
        archive: &TwoWayArchive,
        sight: &mut TwoWayListings,
        meter: &ProgressMeter,
    ) -> Result<()> {
        let options = &self.request.options;
        let [a, b] = sight.both_listings();
        let mut wanted = find_undecided_versions(archive, [a, b], &self.request);
        // The one-way planner is used in both directions and needs its own hashes, for `--checksum` and for
        // renames.
        let one_way = [plan::find_undecided_files(a, b, options), plan::find_undecided_files(b, a, options)];
        let [(ours, theirs), (theirs_back, ours_back)] = one_way;
        wanted[0].extend(ours.into_iter().chain(ours_back));
        wanted[1].extend(theirs.into_iter().chain(theirs_back));
        for (which, mut files) in TwoWaySide::BOTH.into_iter().zip(wanted) {
            files.sort_unstable();
            files.dedup();
            if files.is_empty() {
                continue;
            }
            let listing = which.select_from_mut(&mut sight.listings);
            let digests = which.select_from(&self.ends).hash_files(listing, &files, meter)?;
            store_digests(listing, &files, &digests);
        }
        Ok(())
    }

    /// Makes the plan.
    pub fn build_plan(&self, archive: &TwoWayArchive, sight: &TwoWayListings) -> Result<TwoWayPlan> {
        TwoWayPlan::new(archive, sight.both_listings(), &self.request)
    }

    /// Carries out a plan. The archive of [`TwoWayPlan::archive_before_renames`] has to be saved before. Returns the
    /// archive to be saved; None if the run was stopped, and the saved archive remains valid.
    pub fn execute_plan(
        &mut self,
        archive: &TwoWayArchive,
        sight: &TwoWayListings,
        plan: &TwoWayPlan,
        meter: &ProgressMeter,
    ) -> Result<(TwoWayReport, Option<TwoWayArchive>)> {
        if let Some((_, refusal)) = &plan.refusal {
            return Err(SyncError::Refused(refusal.clone()));
        }
        let mut report = TwoWayReport::default();
        if plan.renamings.iter().all(VersionRenames::is_empty) {
            let archive = self.transfer_and_record(archive, sight, plan, &mut report, meter)?;
            return Ok((report, archive));
        }
        let forgetful = plan.archive_before_renames(archive)?;
        let archive = forgetful.as_ref().unwrap_or(archive);
        // New names come first and alone. If the run is killed after them, both versions exist under
        // different names, and the next run copies each to the other side.
        report.renamed = self.execute_renames(plan, sight, meter)?;
        if report.is_stopped() {
            return Ok((report, None));
        }
        // Both sides are listed again with the new names.
        let sight = self.collect_listings(archive, meter)?;
        let mut plan = self.build_plan(archive, &sight)?;
        // A path whose renaming failed, or with a new conflict, waits for the next run.
        let more = plan.renamings.iter().flat_map(|all| all.iter().map(|one| one.path));
        // If a rename failed, or a new conflict appeared, the second plan wants names again. Giving them here
        // could go on forever, so these paths wait.
        self.request.held = more.collect();
        if !self.request.held.is_empty() {
            plan = self.build_plan(archive, &sight)?;
        }
        let archive = self.transfer_and_record(archive, &sight, &plan, &mut report, meter)?;
        Ok((report, archive))
    }

    fn transfer_and_record(
        &self,
        archive: &TwoWayArchive,
        sight: &TwoWayListings,
        plan: &TwoWayPlan,
        report: &mut TwoWayReport,
        meter: &ProgressMeter,
    ) -> Result<Option<TwoWayArchive>> {
        report.reports = self.execute_transfers(plan, sight, meter)?;
        if report.is_stopped() {
            // The archive is not written after a stop. It still describes the last agreement, and what was
            // copied meanwhile is equal on both sides, which the next run sees.
            return Ok(None);
        }
        self.record_archive(archive, plan, sight, meter).map(Some)
    }

    /// Renames versions that are kept. Both sides have to be listed and planned again afterwards.
    pub(super) fn execute_renames(
        &self,
        plan: &TwoWayPlan,
        sight: &TwoWayListings,
        meter: &ProgressMeter,
    ) -> Result<[SyncReport; 2]> {
        let mut reports = [SyncReport::default(), SyncReport::default()];
        let after = plan.renamed_listings(sight.both_listings());
        for which in TwoWaySide::BOTH {
            let renamings: &VersionRenames = which.select_from(&plan.renamings);
            if renamings.is_empty() {
                continue;
            }
            let before = *which.select_from(&sight.both_listings());
            let after = *which.select_from(&after);
            let steps = renamings.build_plan(before, after);
            let end = *which.select_from(&self.ends);
            let options = self.transfer_options(false);
            let job = SyncJob { plan: &steps, source: end, from: after, to: before, options: &options };
            *which.select_from_mut(&mut reports) = end.execute_plan(&job, meter)?;
        }
        Ok(reports)
    }

    /// Carries out a plan without renamings, in both directions.
    pub(super) fn execute_transfers(
        &self,
        plan: &TwoWayPlan,
        sight: &TwoWayListings,
        meter: &ProgressMeter,
    ) -> Result<[SyncReport; 2]> {
        if let Some((_, refusal)) = &plan.refusal {
            return Err(SyncError::Refused(refusal.clone()));
        }
        let mut reports = [SyncReport::default(), SyncReport::default()];
        // One direction after the other: both plans refer to listings made before, and the checks before each
        // replacement compare with those. What the first direction wrote is not touched by the second, since
        // an entry goes one way only.
        for from in TwoWaySide::BOTH {
            let steps: &SyncPlan = from.select_from(&plan.plans);
            if steps.is_empty() {
                continue;
            }
            let source = *from.select_from(&self.ends);
            let destination = *from.opposite().select_from(&self.ends);
            let listed = *from.select_from(&sight.both_listings());
            let old = *from.opposite().select_from(&sight.both_listings());
            let options = self.transfer_options(*from.opposite().select_from(&plan.loses));
            let job = SyncJob { plan: steps, source, from: listed, to: old, options: &options };
            let report = destination.execute_plan(&job, meter)?;
            let stopped = report.stopped;
            *from.select_from_mut(&mut reports) = report;
            if stopped {
                break;
            }
        }
        Ok(reports)
    }

    /// The options with which steps are carried out: an entry is replaced only if it still is the one that the plan was
    /// made for, and losing versions are kept.
    fn transfer_options(&self, loses: bool) -> SyncOptions {
        let options = &self.request.options;
        let kept = options.writing.backup.is_some();
        let writing = WriteOptions {
            // The losing version of a conflict is always kept somewhere: in the backup that the user asked
            // for, or in the trash.
            trash: options.writing.trash || loses && !kept,
            in_place: false,
            append: false,
            append_compared: false,
            // Nothing may be replaced or deleted that was edited after the listing, because the decision did
            // not see that edit.
            unchanged: true,
            ..options.writing.clone()
        };
        SyncOptions { writing, ..options.clone() }
    }

    /// The archive after a run, for which the sides that were written to are listed again.
    pub fn record_archive(
        &self,
        archive: &TwoWayArchive,
        plan: &TwoWayPlan,
        sight: &TwoWayListings,
        meter: &ProgressMeter,
    ) -> Result<TwoWayArchive> {
        let [forth, back] = &plan.plans;
        // Only a side that something went to is listed again. The other one is recorded as it was planned
        // with.
        let again =
            |plan: &SyncPlan, which| (!plan.is_empty()).then(|| self.list_side(which, meter)).transpose();
        let after = [again(back, TwoWaySide::First)?, again(forth, TwoWaySide::Second)?];
        let aftermath = RunAftermath {
            archive,
            before: sight.both_listings(),
            after: after.each_ref().map(Option::as_ref),
            nodes: &plan.nodes,
            courses: &plan.courses,
            options: &self.request.options,
        };
        let mut draft = aftermath.draft_records();
        let unsure = aftermath.find_unsure_drafts(&draft);
        if !unsure.is_empty() {
            // The files are read now, after the run. If both sides have the same content, a later edit shows
            // by its hash although size and time are equal.
            let hashes = |which: TwoWaySide| {
                let files: Vec<ListingEntryId> =
                    unsure.iter().map(|(_, both)| *which.select_from(both)).collect();
                which.select_from(&self.ends).hash_files(aftermath.latest_listing(which), &files, meter)
            };
            let first = hashes(TwoWaySide::First)?;
            let second = hashes(TwoWaySide::Second)?;
            for ((place, _), (first, second)) in unsure.iter().zip(first.into_iter().zip(second)) {
                if let Some(Some(agreed)) = draft.get_mut(*place) {
                    // If they differ, one of them is a later edit. Without a digest, the next run compares
                    // both.
                    agreed.digest = first.filter(|_| first == second);
                }
            }
        }
        Ok(aftermath.record_archive(draft)?)
    }
}

impl TwoWayListings {
    /// Both.
    #[must_use]
    pub fn both_listings(&self) -> [&TreeListing; 2] {
        self.listings.each_ref()
    }
}

fn store_digests(
    listing: &mut TreeListing,
    files: &[ListingEntryId],
    digests: &[Option<crate::model::listing::ContentDigest>],
) {
    for (file, digest) in files.iter().zip(digests) {
        if let Some(digest) = digest {
            listing.set_content_digest(*file, *digest);
        }
    }
}
