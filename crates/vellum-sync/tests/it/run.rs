//! One run of the library, as the command does it.

use std::path::Path;
use std::sync::Arc;

use vellum_host::ProgressMeter;
use vellum_sync::ends::local::LocalEnd;
use vellum_sync::ends::{ListingRequest, SyncEnd, SyncSide};
use vellum_sync::local::receive::{DestinationEnd, SyncJob, SyncReport};
use vellum_sync::model::listing::{ListingEntryId, TreeListing};
use vellum_sync::model::options::{Basis, BasisUsage, PreserveOptions, SymlinkHandling, SyncOptions};
use vellum_sync::plan::{
    Differences, StepAction, StepPhase, SyncPlan, SyncStep, find_undecided_files, find_undecided_in_basis,
};
use vellum_sync::rules::SyncFilters;

/// Everything that -aHAX means, as root.
pub fn everything() -> SyncOptions {
    let preserve = PreserveOptions {
        recursive: true,
        times: true,
        modes: true,
        owners: true,
        groups: true,
        symlinks: SymlinkHandling::Keep,
        devices: true,
        specials: true,
        hard_links: true,
        xattrs: true,
        acls: true,
        ..PreserveOptions::default()
    };
    SyncOptions { preserve, ..SyncOptions::default() }
}

/// Both listings and what would be done.
pub struct Planned {
    pub from: TreeListing,
    pub to: TreeListing,
    pub plan: SyncPlan,
    source: LocalEnd,
    target: LocalEnd,
    options: SyncOptions,
}

/// Lists and plans.
pub fn plan_with(from: &Path, to: &Path, options: &SyncOptions, filters: &Arc<SyncFilters>) -> Planned {
    plan_beside(from, to, options, filters, &[])
}

/// The same with basis directories.
fn plan_beside(
    from: &Path,
    to: &Path,
    options: &SyncOptions,
    filters: &Arc<SyncFilters>,
    basis: &[&Path],
) -> Planned {
    let meter = ProgressMeter::default();
    let source = LocalEnd::open(from).unwrap();
    let target = LocalEnd::open(to).unwrap();
    let wish = |side| ListingRequest {
        side,
        options: Arc::new(options.clone()),
        rules: filters.create_filter(side, b"/").unwrap(),
        top: Vec::new(),
        avoid: None,
        owners: false,
    };
    let mut from = source.list_entries(&wish(SyncSide::Source), &meter).unwrap();
    let mut to = target.list_entries(&wish(SyncSide::Destination), &meter).unwrap();
    let (ours, theirs) = find_undecided_files(&from, &to, options);
    settle(&source, &mut from, &ours);
    settle(&target, &mut to, &theirs);
    let mut listings = Vec::new();
    for path in basis {
        let end = LocalEnd::open(path).unwrap();
        let mut listing = end.list_entries(&wish(SyncSide::Destination), &meter).unwrap();
        let (ours, theirs) = find_undecided_in_basis(&from, &listing, options);
        settle(&source, &mut from, &ours);
        settle(&end, &mut listing, &theirs);
        listings.push(listing);
    }
    let plan = SyncPlan::with_basis(&from, &to, &listings, options);
    Planned { from, to, plan, source, target, options: options.clone() }
}

fn settle(end: &LocalEnd, listing: &mut TreeListing, files: &[ListingEntryId]) {
    for (id, digest) in files.iter().zip(end.hash_files(listing, files, &ProgressMeter::default()).unwrap()) {
        listing.set_content_digest(*id, digest.unwrap());
    }
}

impl Planned {
    /// The steps as a person sees them: numbers of entries depend on the order of the walk.
    pub fn shown(&self) -> Vec<(StepPhase, StepAction, Differences, Vec<u8>)> {
        let path = |step: &SyncStep| match (step.source, step.old) {
            (Some(source), _) => self.from.entry(source).path(),
            (None, Some(old)) => self.to.entry(old).path(),
            (None, None) => Vec::new(),
        };
        self.plan.steps.iter().map(|step| (step.phase, step.action, step.what, path(step))).collect()
    }

    /// Carries it out.
    pub fn carry_out(&self) -> vellum_sync::Result<SyncReport> {
        let Self { from, to, plan, options, .. } = self;
        let meter = ProgressMeter::default();
        let report =
            self.target.execute_plan(&SyncJob { plan, source: &self.source, from, to, options }, &meter);
        let seen = meter.read_progress();
        // A name that a file cannot have becomes a copy, which was not foreseen.
        let is_link = |step: &SyncStep| matches!(step.action, StepAction::Link | StepAction::LinkBasis(_));
        let foreseen = !plan.steps.iter().any(is_link);
        let whole = report.as_ref().is_ok_and(|report| report.problems.is_empty());
        assert!(
            !(whole && foreseen) || seen.bytes <= seen.total_bytes,
            "bytes that were counted twice: {seen:?}"
        );
        report
    }
}

/// Lists and plans, without rules.
pub fn plan(from: &Path, to: &Path, options: &SyncOptions) -> Planned {
    plan_with(from, to, options, &Arc::new(SyncFilters::default()))
}

/// Lists and plans, with basis directories.
pub fn plan_from(
    from: &Path,
    to: &Path,
    options: &SyncOptions,
    usage: BasisUsage,
    basis: &[&Path],
) -> Planned {
    use std::os::unix::ffi::OsStrExt;
    let dirs = basis.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect();
    let options = SyncOptions { basis: Some(Basis { usage, dirs }), ..options.clone() };
    plan_beside(from, to, &options, &Arc::new(SyncFilters::default()), basis)
}

/// A whole run.
pub fn sync(from: &Path, to: &Path, options: &SyncOptions) -> SyncReport {
    plan(from, to, options).carry_out().unwrap()
}
