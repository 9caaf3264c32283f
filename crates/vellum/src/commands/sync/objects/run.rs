//! One run with a service: both sides are listed, the plan is made, and carried out.
//!
//! Invariant: single objects are asked about only where the answer decides something: of one size with a file of this host,
//! or about to be written to it.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use vellum_host::ProgressMeter;
use vellum_sync::SyncError;
use vellum_sync::ends::local::LocalEnd;
use vellum_sync::ends::object::{self, ComparedTree, ObjectEnd, adapt_plan, find_compared_objects};
use vellum_sync::ends::{ListingRequest, SourceEnd, SyncEnd, SyncSide};
use vellum_sync::local::moving;
use vellum_sync::local::receive::{DestinationEnd, SyncJob, SyncReport};
use vellum_sync::model::listing::{EntryFlags, ListingEntryId, TreeListing};
use vellum_sync::model::options::{CompareMethod, SyncOptions};
use vellum_sync::model::owners;
use vellum_sync::plan::{PlanRemark, StepAction, SyncPlan, find_undecided_files};
use vellum_sync::rules::SyncFilters;
use vellum_types::FileKind;

use super::super::args::Args;
use super::super::ends::DestinationEndpoint;
use super::super::line_format::{LineFormat, SyncDirection};
use super::super::log::SyncLog;
use super::super::report::SyncRun;
use super::super::{AGAIN, PlannedRun, TASK};
use crate::context::CommandContext;
use crate::error::{CommandOutcome, Result, ResumeHint};
use crate::ui::format::format_count;

/// The side that is no service.
pub enum LocalSide {
    /// Files come from it.
    Source(Box<dyn SourceEnd>),
    /// Files go into it.
    Destination(DestinationEndpoint),
}

/// The options of a run, as they are for planning it and for carrying it out.
pub struct RunOptions {
    planning: Arc<SyncOptions>,
    writing: Arc<SyncOptions>,
}

impl RunOptions {
    /// Where times are not compared, they are no difference: to find it out would take a request for each object.
    pub fn new(options: SyncOptions) -> Self {
        let mut planning = options.clone();
        planning.preserve.times &= options.compare.by == CompareMethod::SizeAndTime;
        Self { planning: Arc::new(planning), writing: Arc::new(options) }
    }
}

/// What is synchronised in one go.
pub struct ObjectRun {
    pub objects: ObjectEnd,
    pub local: LocalSide,
    pub direction: SyncDirection,
    pub words: String,
    /// The name of a directory that was named itself.
    pub top: Vec<u8>,
    /// Where rules are anchored, on this host.
    pub root: Option<PathBuf>,
    pub filters: Arc<SyncFilters>,
    pub options: RunOptions,
    /// Nothing is printed if there was nothing to do.
    pub hides_idle: bool,
}

impl ObjectRun {
    /// Runs, and reports.
    pub fn run(&self, args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
        // Parsed once before anything is done, because it is used only at the end.
        if let Some(typed) = &args.show.out_format {
            LineFormat::parse_format("--out-format", typed)?;
        }
        let log = SyncLog::open_log(&args.show, context)?;
        if let Some(log) = &log {
            log.log_start(&self.words, args.show.dry_run)?;
        }
        let outcome = self.run_and_report(args, log.as_ref(), context);
        if let Some(log) = &log {
            log.log_failure(&outcome, &context.ui)?;
        }
        outcome
    }

    fn run_and_report(
        &self,
        args: &Args,
        log: Option<&SyncLog>,
        context: &CommandContext,
    ) -> Result<CommandOutcome> {
        let is_dry = args.show.dry_run;
        let loud = args.show.wants_progress();
        let ran = context.run_with_forced_progress(TASK, loud, |meter| match &self.local {
            LocalSide::Source(source) => self.upload(&**source, is_dry, meter),
            LocalSide::Destination(into) => self.download(into, is_dry, meter),
        });
        let PlannedRun { from, to, plan, done } = ran.with_resume_hint(AGAIN)?;
        let run = SyncRun {
            words: self.words.clone(),
            from: &from,
            to: &to,
            plan: &plan,
            done: done.as_ref(),
            direction: self.direction,
            notes: self.describe_left_out(&from, &plan).into_iter().collect(),
            hides_idle: self.hides_idle,
        };
        run.log_and_report(log, args, context)
    }

    fn upload(
        &self,
        source: &dyn SourceEnd,
        is_dry: bool,
        meter: &ProgressMeter,
    ) -> vellum_sync::Result<PlannedRun> {
        let options = &*self.options.planning;
        let (mut from, mut to) = self.list_both(source, Some(&self.objects), meter)?;
        object::withhold_unstorable_files(&mut from, &self.objects);
        let compared = find_compared_objects(&to, &from, &options.compare);
        // One request for each object, so only for those whose times decide.
        self.objects.load_times(&mut to, &compared, meter)?;
        let (_, theirs) = find_undecided_files(&from, &to, options);
        let compared = ComparedTree { end: source, listing: &mut from };
        self.objects.load_checksums(&mut to, &theirs, compared, meter)?;
        let mut plan = SyncPlan::new(&from, &to, options);
        adapt_plan(&mut plan, &from, &to);
        if is_dry {
            return Ok(PlannedRun { from, to, plan, done: None });
        }
        let job = SyncJob { plan: &plan, source, from: &from, to: &to, options: &self.options.writing };
        let mut report = self.objects.execute_plan(&job, meter)?;
        // Removed at the source only now, when the service has everything.
        moving::remove_moved_entries(&job, &mut report, meter)?;
        Ok(PlannedRun { from, to, plan, done: Some(report) })
    }

    fn download(
        &self,
        into: &DestinationEndpoint,
        is_dry: bool,
        meter: &ProgressMeter,
    ) -> vellum_sync::Result<PlannedRun> {
        let options = &*self.options.planning;
        // A destination that does not exist is listed as empty, and created when the plan is known.
        let present = if into.is_new { None } else { Some(LocalEnd::open_destination(&into.path)?) };
        let there = present.as_ref().map(|present| -> &dyn SyncEnd { present });
        let (mut from, mut to) = self.list_both(&self.objects, there, meter)?;
        let compared = find_compared_objects(&from, &to, &options.compare);
        self.objects.load_times(&mut from, &compared, meter)?;
        let (ours, _) = find_undecided_files(&from, &to, options);
        if let Some(present) = &present {
            let compared = ComparedTree { end: present, listing: &mut to };
            self.objects.load_checksums(&mut from, &ours, compared, meter)?;
        }
        let options = owners::map_owners(&mut from, &to, options)?;
        let plan = SyncPlan::new(&from, &to, &options);
        if is_dry {
            return Ok(PlannedRun { from, to, plan, done: None });
        }
        // With --existing nothing is created, so the destination is not created either.
        if present.is_none() && options.compare.existing && plan.is_empty() {
            return Ok(PlannedRun { from, to, plan, done: Some(SyncReport::default()) });
        }
        // Only of files that will be written: each time is a request, and the comparison may have needed none.
        self.load_written_times(&plan, &mut from, meter)?;
        // Before the destination is created, so that a refused run leaves nothing behind.
        if let Some(refusal) = &plan.refusal {
            return Err(SyncError::Refused(refusal.clone()));
        }
        let target = into.open_or_create()?;
        let options = &*self.options.writing;
        let job = SyncJob { plan: &plan, source: &self.objects, from: &from, to: &to, options };
        let mut report = target.execute_plan(&job, meter)?;
        moving::remove_moved_entries(&job, &mut report, meter)?;
        Ok(PlannedRun { from, to, plan, done: Some(report) })
    }

    /// The times of files that will be written here.
    fn load_written_times(
        &self,
        plan: &SyncPlan,
        from: &mut TreeListing,
        meter: &ProgressMeter,
    ) -> vellum_sync::Result<()> {
        if plan.refusal.is_some() || !self.options.writing.preserve.times {
            return Ok(());
        }
        let writes = plan.steps.iter().filter(|step| matches!(step.action, StepAction::Write(_)));
        let written: Vec<ListingEntryId> = writes.filter_map(|step| step.source).collect();
        self.objects.load_times(from, &written, meter)
    }

    fn list_both(
        &self,
        source: &dyn SourceEnd,
        destination: Option<&dyn SyncEnd>,
        meter: &ProgressMeter,
    ) -> vellum_sync::Result<(TreeListing, TreeListing)> {
        let list_destination = || match destination {
            Some(destination) => {
                destination.list_entries(&self.new_list_request(SyncSide::Destination)?, meter)
            }
            None => Ok(DestinationEndpoint::empty_listing()),
        };
        // At the same time, since one side waits for a service and the other one for a disk.
        std::thread::scope(|scope| {
            let to = scope.spawn(list_destination);
            let from = source.list_entries(&self.new_list_request(SyncSide::Source)?, meter);
            // The thread ends without a result only if it panicked, which the panic hook has printed.
            let to = to.join().unwrap_or(Err(SyncError::Stopped));
            Ok((from?, to?))
        })
    }

    fn new_list_request(&self, side: SyncSide) -> vellum_sync::Result<ListingRequest> {
        let root = match (&self.local, side) {
            (LocalSide::Source(_), SyncSide::Source) => self.root.as_deref(),
            (LocalSide::Destination(into), SyncSide::Destination) => Some(&*into.path),
            // A service has no path on this host at which rules could be anchored.
            (LocalSide::Source(_), SyncSide::Destination) | (LocalSide::Destination(_), SyncSide::Source) => {
                None
            }
        };
        let root = root.map(|root| root.as_os_str().as_bytes()).unwrap_or_default();
        Ok(ListingRequest {
            side,
            options: Arc::clone(&self.options.planning),
            rules: self.filters.create_named_filter(side, root, &self.top)?,
            top: self.top.clone(),
            avoid: None,
            owners: self.direction == SyncDirection::Receive && side == SyncSide::Destination,
        })
    }

    /// What of the source is no object, by kind and count.
    fn describe_left_out(&self, from: &TreeListing, plan: &SyncPlan) -> Option<String> {
        // A service has nothing but objects, and each of them can become a file.
        if self.direction == SyncDirection::Receive {
            return None;
        }
        let skipped = plan.remarks.iter().filter(|remark| matches!(remark, PlanRemark::Skipped { .. }));
        let kinds: Vec<FileKind> =
            skipped.filter_map(|remark| Some(from.find_path(remark.path())?.kind())).collect();
        let count = |wanted: &[FileKind]| kinds.iter().filter(|kind| wanted.contains(kind)).count() as u64;
        let links = from.iter().filter(|entry| entry.flags().contains(EntryFlags::LINKED) && entry.is_file());
        let counts = [
            (count(&[FileKind::Symlink]), "symlink", " (-L copies what they lead to)"),
            (count(&[FileKind::Fifo]), "fifo", ""),
            (count(&[FileKind::Socket]), "socket", ""),
            (count(&[FileKind::CharDevice, FileKind::BlockDevice]), "device", ""),
            (object::count_empty_directories(from), "empty directory", ""),
        ];
        let shown = counts.iter().filter(|(count, ..)| *count > 0);
        let mut parts: Vec<String> =
            shown.map(|(count, noun, hint)| format!("{}{hint}", format_count(*count, noun))).collect();
        match links.count() as u64 {
            0 => {}
            links => parts
                .push(format!("hard links ({} became objects of their own)", format_count(links, "name"))),
        }
        (!parts.is_empty()).then(|| format!("not kept in objects: {}", parts.join(", ")))
    }
}
