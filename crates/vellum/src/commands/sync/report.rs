//! Reports of a run, for people and as JSON.

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_sync::local::receive::SyncReport;
use vellum_sync::model::listing::TreeListing;
use vellum_sync::plan::{PlanRemark, StepAction, SyncPlan};

use super::AGAIN;
use super::args::Args;
use super::itemize::{self, itemize_steps};
use super::line_format::{LineFormat, SyncDirection};
use super::log::SyncLog;
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::ui::format;
use crate::ui::json::{NameJson, ProblemJson};
use crate::ui::table::FactList;

/// A run that was planned, and perhaps carried out.
pub struct SyncRun<'a> {
    /// What goes where, in words.
    pub words: String,
    /// The source as it was listed.
    pub from: &'a TreeListing,
    /// The destination as it was listed.
    pub to: &'a TreeListing,
    /// The plan.
    pub plan: &'a SyncPlan,
    /// What became of it; none for a dry run.
    pub done: Option<&'a SyncReport>,
    /// Which way content went.
    pub direction: SyncDirection,
    /// What else is worth a word.
    pub notes: Vec<String>,
    /// Whether nothing is printed if there was nothing to do.
    pub hides_idle: bool,
}

/// A run as JSON.
#[derive(Serialize)]
pub struct SyncRunJson {
    dry_run: bool,
    entries: u64,
    files: u64,
    bytes: u64,
    made: u64,
    updated: u64,
    attributes: u64,
    renamed: u64,
    deleted: u64,
    write_files: u64,
    write_bytes: u64,
    written_bytes: u64,
    spared_bytes: u64,
    carried_out: u64,
    stopped: bool,
    taken_away: u64,
    unlinked: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<Vec<SyncStepJson>>,
    kept: Vec<NameJson>,
    shadowed: Vec<NameJson>,
    skipped: Vec<NameJson>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
    problems: Vec<ProblemJson>,
}

#[derive(Serialize)]
struct SyncStepJson {
    action: &'static str,
    #[serde(flatten)]
    name: NameJson,
    #[serde(skip_serializing_if = "Option::is_none")]
    other: Option<NameJson>,
    differs: Vec<&'static str>,
    new: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

impl SyncRun<'_> {
    /// Appends the run to the log and reports it. Returns how it ended; fails if it was stopped.
    pub fn log_and_report(
        &self,
        log: Option<&SyncLog>,
        args: &Args,
        context: &CommandContext,
    ) -> Result<CommandOutcome> {
        let logged = match log {
            Some(log) => log.log_result(self, args.show.dry_run, &context.ui)?,
            None => CommandOutcome::Done,
        };
        let stopped = self.done.is_some_and(|done| done.stopped);
        // A failure is an object of its own.
        let outcome = if stopped && context.ui.is_json() {
            logged
        } else {
            self.report_run(args, context)?.max(logged)
        };
        // Reported before: the user sees how far the run came, and the exit code says that it was stopped.
        if stopped { Err(CliError::Stopped { resume: AGAIN.into() }) } else { Ok(outcome) }
    }

    fn report_run(&self, args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
        let problems = self.collect_problems();
        if context.ui.is_json() {
            context.ui.print_json(&self.to_json(args, problems))?;
        } else {
            self.print_lines(args, context)?;
            context.ui.print_problems(&problems)?;
        }
        Ok(self.command_outcome())
    }

    /// How it ended.
    pub fn command_outcome(&self) -> CommandOutcome {
        // As with rsync, whose code 24 means the same, files that vanished have a code of their own: scripts that
        // copy a tree in use treat it as success.
        match (self.has_failures(), self.has_vanished_files()) {
            (true, _) => CommandOutcome::Findings,
            (false, true) => CommandOutcome::Vanished,
            (false, false) => CommandOutcome::Done,
        }
    }

    fn has_failures(&self) -> bool {
        let unlisted = self.from.unlisted.iter().chain(&self.to.unlisted).any(|unlisted| !unlisted.vanished);
        let reported = self.done.is_some_and(|done| done.problems.iter().any(|problem| !problem.vanished));
        unlisted || reported || self.plan.remarks.iter().any(PlanRemark::is_problem)
    }

    fn has_vanished_files(&self) -> bool {
        self.from.unlisted.iter().any(|unlisted| unlisted.vanished)
            || self.done.is_some_and(|done| done.problems.iter().any(|problem| problem.vanished))
    }

    /// What could not be done.
    pub fn collect_problems(&self) -> Vec<ProblemJson> {
        let unlisted = self.from.unlisted.iter().chain(&self.to.unlisted);
        let mut problems: Vec<ProblemJson> =
            unlisted.map(|unlisted| ProblemJson::new(&unlisted.path, unlisted.message.clone())).collect();
        let remarks = self.plan.remarks.iter().filter(|remark| remark.is_problem());
        problems.extend(remarks.map(|remark| ProblemJson::new(remark.path(), remark.to_string())));
        let done = self.done.into_iter().flat_map(|done| &done.problems);
        problems.extend(done.map(|problem| ProblemJson::new(&problem.path, problem.message.clone())));
        problems
    }

    /// The report for people.
    pub fn print_lines(&self, args: &Args, context: &CommandContext) -> Result<()> {
        let ui = &context.ui;
        // With --watch, runs that found nothing to do would fill the terminal.
        if ui.voice.quiet || self.hides_idle && self.is_idle() && self.plan.moved.is_empty() {
            return Ok(());
        }
        if let Some(typed) = &args.show.out_format {
            return self.formatted_lines(&LineFormat::parse_format("--out-format", typed)?, args, context);
        }
        if args.show.dry_run {
            ui.print_line(format!("Dry run: {}", self.words))?;
        }
        if (args.show.itemize || args.show.dry_run || ui.voice.verbose) && !self.is_idle() {
            for step in itemize_steps(self.plan, self.from, self.to) {
                let line = if args.show.itemize {
                    step.format_rsync_letters()
                } else {
                    format!("  {}", step.format_description())
                };
                ui.print_line(line)?;
            }
        }
        if args.show.dry_run || ui.voice.verbose {
            for entry in self.plan.moved.iter().map(|id| self.from.entry(*id)) {
                ui.print_line(format!("  remove  {} at the source", format_path(entry.path())))?;
            }
        }
        for remark in self.plan.remarks.iter().filter(|remark| !remark.is_problem()) {
            // Without --verbose, only what the user would not expect is printed.
            let is_told = match remark {
                PlanRemark::Kept { .. } | PlanRemark::BasisMissing { .. } => true,
                // What was to be taken away stays.
                PlanRemark::Shadowed { .. } => args.show.dry_run || args.delete.remove_source_files,
                _ => false,
            };
            if ui.voice.verbose || is_told {
                ui.print_note(ProblemJson::new(remark.path(), remark.to_string()))?;
            }
        }
        if let Some(unlinked) = self.done.map(|done| done.unlinked).filter(|unlinked| *unlinked > 0) {
            ui.print_note(format!(
                "{} became {} of {} own: the destination's filesystem has no hard links, or not for these files",
                format::format_count(unlinked, "hard link"),
                if unlinked == 1 { "a file" } else { "files" },
                if unlinked == 1 { "its" } else { "their" },
            ))?;
        }
        self.notes.iter().try_for_each(|note| ui.print_note(note))?;
        if let Some(refusal) = &self.plan.refusal {
            ui.print_line(format!("This would be refused: {refusal}"))?;
        }
        // `--info=stats2` is rsync's other way to request --stats; its levels make no difference here.
        let info = args.show.info.iter().any(|words| words.split(',').any(|word| word.starts_with("stats")));
        if args.show.stats || info {
            self.print_facts(context)
        } else {
            ui.print_line(self.format_summary(args.show.dry_run))
        }
    }

    /// Lines in the user's own format, and no others unless they are requested.
    fn formatted_lines(&self, format: &LineFormat, args: &Args, context: &CommandContext) -> Result<()> {
        if !format.is_empty() {
            for step in itemize_steps(self.plan, self.from, self.to) {
                context.ui.print_line(format.format_line(&step, self.direction))?;
            }
        }
        if let Some(refusal) = &self.plan.refusal {
            context.ui.print_note(format!("the run would be refused: {refusal}"))?;
        }
        if args.show.stats { self.print_facts(context) } else { Ok(()) }
    }

    /// One line: what was done.
    pub fn format_summary(&self, dry: bool) -> String {
        let counts = &self.plan.counts;
        if self.is_idle() && self.plan.moved.is_empty() {
            return match counts.entries {
                1 => "Nothing to do: 1 entry is the same".to_owned(),
                entries => format!("Nothing to do: {} entries are the same", format::format_number(entries)),
            };
        }
        let parts = [
            (counts.made, "made"),
            (counts.updated, "updated"),
            (counts.attributes, "given other attributes"),
            (counts.renamed, "renamed"),
            (counts.deleted, "deleted"),
            (self.done.map_or(self.plan.moved.len() as u64, |done| done.taken), "removed at the source"),
        ];
        let mut words: Vec<String> = parts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, verb)| format!("{} {verb}", format::format_number(*count)))
            .collect();
        if words.is_empty() {
            // Writing entries changes the times of their directories: the only steps that are left set these times
            // again.
            words.push("directory times fixed".into());
        }
        if counts.write_bytes > 0 {
            words.push(format!(
                "{} in {}",
                format::format_size(counts.write_bytes),
                format::format_count(counts.writes, "file")
            ));
        }
        let words = words.join(", ");
        match self.done {
            _ if dry => format!("Would be done: {words}"),
            Some(done) if done.stopped || done.steps < self.planned_step_count() => {
                let how =
                    if done.stopped { "Stopped before all was done" } else { "Done as far as possible" };
                format!(
                    "{how}: {} of {} of {words}",
                    format::format_number(done.steps),
                    self.format_step_count()
                )
            }
            _ if self.has_failures() => format!("Done as far as possible: {words}"),
            _ => format!("Done: {words}"),
        }
    }

    /// Whether nothing differed, also if that was found out late: that names cannot be linked, and are equal files. The
    /// directories that they are in keep their times.
    fn is_idle(&self) -> bool {
        let counts = &self.plan.counts;
        let counted = [counts.made, counts.updated, counts.attributes, counts.renamed, counts.deleted];
        let links = self.plan.steps.iter().filter(|step| step.action == StepAction::Link).count() as u64;
        let has_only_equal_links = links > 0
            && counted.iter().all(|count| *count == 0)
            && self.done.is_some_and(|done| done.unchanged == links);
        self.plan.is_empty() || has_only_equal_links && !self.has_failures()
    }

    fn planned_step_count(&self) -> u64 {
        // Steps that turned out to have nothing to do are no steps to the user.
        (self.plan.steps.len() as u64).saturating_sub(self.done.map_or(0, |done| done.unchanged))
    }

    fn format_step_count(&self) -> String {
        format::format_count(self.planned_step_count(), "step")
    }

    fn print_facts(&self, context: &CommandContext) -> Result<()> {
        let counts = &self.plan.counts;
        let mut facts = FactList::default();
        let bytes =
            |files, bytes| format!("{}, {}", format::format_count(files, "file"), format::format_size(bytes));
        facts.add_fact("source", bytes(counts.files, counts.bytes));
        facts.add_fact("to write", bytes(counts.writes, counts.write_bytes));
        facts.add_fact("to make", format::format_number(counts.made));
        facts.add_fact("to update", format::format_number(counts.updated));
        facts.add_fact("to give other attributes", format::format_number(counts.attributes));
        facts.add_fact("to rename", format::format_number(counts.renamed));
        facts.add_fact("to delete", format::format_number(counts.deleted));
        if let Some(done) = self.done {
            facts.add_fact(
                "carried out",
                format!("{} of {}", format::format_number(done.steps), self.format_step_count()),
            );
            facts.add_fact("written", format::format_size(done.written));
            facts.add_fact("shared or reused", format::format_size(done.spared));
        }
        facts.format_lines().into_iter().try_for_each(|line| context.ui.print_line(line))
    }

    /// The report for programs.
    pub fn to_json(&self, args: &Args, problems: Vec<ProblemJson>) -> SyncRunJson {
        let counts = self.plan.counts;
        // A run can have millions of steps, so they are listed only if they are asked for, or are all that there is
        // to report.
        let steps = (args.show.dry_run || args.show.itemize || self.done.is_none())
            .then(|| self.collect_json_steps());
        let named = |wanted: fn(&PlanRemark) -> bool| {
            let remarks = self.plan.remarks.iter().filter(move |remark| wanted(remark));
            remarks.map(|remark| NameJson::new(remark.path())).collect()
        };
        SyncRunJson {
            dry_run: args.show.dry_run,
            entries: counts.entries,
            files: counts.files,
            bytes: counts.bytes,
            made: counts.made,
            updated: counts.updated,
            attributes: counts.attributes,
            renamed: counts.renamed,
            deleted: counts.deleted,
            write_files: counts.writes,
            write_bytes: counts.write_bytes,
            written_bytes: self.done.map_or(0, |done| done.written),
            spared_bytes: self.done.map_or(0, |done| done.spared),
            carried_out: self.done.map_or(0, |done| done.steps),
            stopped: self.done.is_some_and(|done| done.stopped),
            taken_away: self.done.map_or(self.plan.moved.len() as u64, |done| done.taken),
            unlinked: self.done.map_or(0, |done| done.unlinked),
            steps,
            kept: named(|remark| matches!(remark, PlanRemark::Kept { .. })),
            shadowed: named(|remark| matches!(remark, PlanRemark::Shadowed { .. })),
            skipped: named(|remark| matches!(remark, PlanRemark::Skipped { .. })),
            notes: self.notes.clone(),
            problems,
        }
    }

    fn collect_json_steps(&self) -> Vec<SyncStepJson> {
        let shown = itemize_steps(self.plan, self.from, self.to).map(|item| SyncStepJson {
            action: itemize::action_name(item.step),
            name: NameJson::new(&item.path()),
            other: item.other_path().map(|path| NameJson::new(&path)),
            differs: itemize::attribute_names(item.step.what),
            new: item.step.what.contains(vellum_sync::plan::Differences::NEW),
            bytes: item.content_bytes(),
        });
        shown.collect()
    }
}
