//! One run of the library, as the command does it.

use std::path::Path;
use std::sync::Arc;

use vellum_sync::listing::{EntryId, Listing};
use vellum_sync::local::Local;
use vellum_sync::options::{Basis, BasisUsage, Options, Preserve, Symlinks};
use vellum_sync::plan::{Action, Phase, Plan, Step, What, unsettled, unsettled_in_basis};
use vellum_sync::receive::{Destination, Job, Report};
use vellum_sync::rules::Filters;
use vellum_sync::source::{End, Side, Wish};
use vellum_volume::Meter;

/// Everything that -aHAX means, as root.
pub fn everything() -> Options {
    let preserve = Preserve {
        recursive: true,
        times: true,
        modes: true,
        owners: true,
        groups: true,
        symlinks: Symlinks::Keep,
        devices: true,
        specials: true,
        hard_links: true,
        xattrs: true,
        acls: true,
        ..Preserve::default()
    };
    Options { preserve, ..Options::default() }
}

/// Both listings and what would be done.
pub struct Planned {
    pub from: Listing,
    pub to: Listing,
    pub plan: Plan,
    source: Local,
    target: Local,
    options: Options,
}

/// Lists and plans.
pub fn plan_with(from: &Path, to: &Path, options: &Options, filters: &Arc<Filters>) -> Planned {
    plan_beside(from, to, options, filters, &[])
}

/// The same with basis directories.
fn plan_beside(
    from: &Path,
    to: &Path,
    options: &Options,
    filters: &Arc<Filters>,
    basis: &[&Path],
) -> Planned {
    let meter = Meter::default();
    let (source, target) = (Local::open(from).unwrap(), Local::open(to).unwrap());
    let wish = |side| Wish {
        side,
        options: Arc::new(options.clone()),
        rules: filters.judge(side, b"/").unwrap(),
        top: Vec::new(),
        avoid: None,
        owners: false,
    };
    let mut from = source.list(&wish(Side::Source), &meter).unwrap();
    let mut to = target.list(&wish(Side::Destination), &meter).unwrap();
    let (ours, theirs) = unsettled(&from, &to, options);
    settle(&source, &mut from, &ours);
    settle(&target, &mut to, &theirs);
    let mut listings = Vec::new();
    for path in basis {
        let end = Local::open(path).unwrap();
        let mut listing = end.list(&wish(Side::Destination), &meter).unwrap();
        let (ours, theirs) = unsettled_in_basis(&from, &listing, options);
        settle(&source, &mut from, &ours);
        settle(&end, &mut listing, &theirs);
        listings.push(listing);
    }
    let plan = Plan::with_basis(&from, &to, &listings, options);
    Planned { from, to, plan, source, target, options: options.clone() }
}

fn settle(end: &Local, listing: &mut Listing, files: &[EntryId]) {
    for (id, digest) in files.iter().zip(end.digest(listing, files, &Meter::default()).unwrap()) {
        listing.set_digest(*id, digest.unwrap());
    }
}

impl Planned {
    /// The steps as a person sees them: numbers of entries depend on the order of the walk.
    pub fn shown(&self) -> Vec<(Phase, Action, What, Vec<u8>)> {
        let path = |step: &Step| match (step.source, step.old) {
            (Some(source), _) => self.from.entry(source).path(),
            (None, Some(old)) => self.to.entry(old).path(),
            (None, None) => Vec::new(),
        };
        self.plan.steps.iter().map(|step| (step.phase, step.action, step.what, path(step))).collect()
    }

    /// Carries it out.
    pub fn carry_out(&self) -> vellum_sync::Result<Report> {
        let Self { from, to, plan, options, .. } = self;
        let meter = Meter::default();
        let report = self.target.carry_out(&Job { plan, source: &self.source, from, to, options }, &meter);
        let seen = meter.read();
        // A name that a file cannot have becomes a copy, which was not foreseen.
        let is_link = |step: &Step| matches!(step.action, Action::Link | Action::LinkBasis(_));
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
pub fn plan(from: &Path, to: &Path, options: &Options) -> Planned {
    plan_with(from, to, options, &Arc::new(Filters::default()))
}

/// Lists and plans, with basis directories.
pub fn plan_from(from: &Path, to: &Path, options: &Options, usage: BasisUsage, basis: &[&Path]) -> Planned {
    use std::os::unix::ffi::OsStrExt;
    let dirs = basis.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect();
    let options = Options { basis: Some(Basis { usage, dirs }), ..options.clone() };
    plan_beside(from, to, &options, &Arc::new(Filters::default()), basis)
}

/// A whole run.
pub fn sync(from: &Path, to: &Path, options: &Options) -> Report {
    plan(from, to, options).carry_out().unwrap()
}
