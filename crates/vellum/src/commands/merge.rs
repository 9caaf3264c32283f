//! `vellum merge`: another line of the history joins this worktree's.

mod report;

use vellum_types::{ErrorKind, SnapshotId};
use vellum_volume::VolumeError;
use vellum_volume::history::HistoryEntry;
use vellum_volume::merge::text::{TEXT_MAX, has_conflict_markers};
use vellum_volume::merge::{
    ConflictKind, ConflictPolicies, ConflictPolicy, MergeConflict, MergeProgress, MergeStage, MergedTree,
    SnapshotMerge, SnapshotRelation, TrackedConflict,
};

pub use self::report::MergeReports;
use self::report::{MergeOutcomeKind, MergeReport};
use crate::context::CommandContext;
use crate::context::merge_place::{MergePlace, PlaceReport};
use crate::error::{CliError, CommandOutcome, Result, ResumeHint};

/// Merge another snapshot into this worktree
///
/// Applies to this worktree what SNAP has changed since the last snapshot that both have in common. Renamed files are
/// followed, text is merged line by line, and modes, owners and attributes are merged separately. Changes that no
/// snapshot holds are recorded in a snapshot first. The result is a snapshot with two parents; if this worktree has
/// nothing that SNAP lacks, it moves to SNAP.
///
/// What both sides changed differently is a conflict: the merge waits, with both versions in the worktree, until
/// 'vellum merge --continue' finishes it or 'vellum merge --abort' aborts it. Exits with 1 if conflicts remain. If
/// the command is interrupted, run it again.
///
/// With --all, the worktrees of other machines that have the name of this one are merged one after another, until one
/// has conflicts: NAME, DEVICE.NAME, and both of a remote as the last 'vellum pull' saw them.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("policy"))]
pub struct Args {
    /// The snapshot
    #[arg(value_name = "SNAP", required_unless_present_any = ["is_continued", "is_aborted", "all"])]
    snapshot: Option<String>,
    /// Merge the worktrees of all other machines that have the name of this one
    #[arg(long, conflicts_with_all = ["snapshot", "base"])]
    all: bool,
    /// Start from this common snapshot instead of the best one
    #[arg(long, value_name = "SNAP")]
    base: Option<String>,
    /// Resolve conflicts with the version of this worktree
    #[arg(long, group = "policy")]
    ours: bool,
    /// Resolve conflicts with the version of SNAP
    #[arg(long, group = "policy")]
    theirs: bool,
    /// Resolve conflicts by keeping both versions, the second one as NAME.~ID
    #[arg(long, group = "policy")]
    both: bool,
    /// Print the conflicts that a merge of the last snapshot would have, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// A note for the snapshot of the result
    #[arg(short = 'm', long = "note", alias = "message", value_name = "NOTE")]
    note: Option<String>,
    /// Finish a merge that had conflicts or was interrupted
    #[arg(long = "continue", conflicts_with_all = ["snapshot", "all", "base", "policy", "dry_run", "is_aborted"])]
    is_continued: bool,
    /// Abort a merge: the worktree returns to its state before it
    #[arg(long = "abort", conflicts_with_all = ["snapshot", "all", "base", "policy", "dry_run", "note"])]
    is_aborted: bool,
}

/// Merges.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let place = MergePlace::open(context)?;
    // Held from before the note is read: of two commands, one continues a merge, and the other must see how that ended.
    let _lock = place.lock(context)?;
    let command = MergeCommand { args, context, place: &place };
    let progress = place.volume().read_merge_progress()?;
    if args.all {
        return command.merge_siblings(progress);
    }
    let report = match (&args.snapshot, progress) {
        (None, None) => return Err(VolumeError::NoMerge.into()),
        (None, Some(progress)) if args.is_aborted => command.abort(progress)?,
        (None, Some(progress)) => command.proceed(progress)?,
        (Some(name), progress) => command.merge_or_go_on(name, progress)?,
    };
    command.print(report)
}

/// Merges a snapshot, as 'vellum merge' does, or goes on with that. Prints the result, unless it is to be JSON.
pub fn merge_snapshot(name: &str, note: &str, context: &CommandContext) -> Result<MergeReports> {
    let args = Args {
        snapshot: Some(name.into()),
        all: false,
        base: None,
        ours: false,
        theirs: false,
        both: false,
        dry_run: false,
        note: Some(note.into()),
        is_continued: false,
        is_aborted: false,
    };
    let place = MergePlace::open(context)?;
    let _lock = place.lock(context)?;
    let command = MergeCommand { args: &args, context, place: &place };
    let report = command.merge_or_go_on(name, place.volume().read_merge_progress()?)?;
    let mut reports = MergeReports::default();
    reports.add(report, context, &place)?;
    Ok(reports)
}

/// What a worktree is merged with.
#[derive(Clone, Copy)]
struct MergeSides<'a> {
    /// What the user calls the other snapshot.
    name: &'a str,
    theirs: &'a HistoryEntry,
    /// The base that the user chose.
    base: Option<&'a HistoryEntry>,
}

/// What a merge is done with.
struct MergeCommand<'a> {
    args: &'a Args,
    context: &'a CommandContext,
    place: &'a MergePlace,
}

impl MergeCommand<'_> {
    /// Merges; if the same merge was interrupted, goes on with it.
    fn merge_or_go_on(&self, name: &str, interrupted: Option<MergeProgress>) -> Result<MergeReport> {
        match interrupted {
            None => self.start(name),
            // Nothing of it is in the worktree yet, and the options may be others now: it begins anew.
            Some(progress) if progress.is_unapplied() => {
                self.discard(&progress)?;
                self.start(name)
            }
            // The same command goes on with what was interrupted.
            Some(progress) if progress.stage == MergeStage::Applying && progress.name == name => {
                self.apply(progress, None)
            }
            Some(progress) => Err(VolumeError::MergeUnderWay { name: progress.name }.into()),
        }
    }

    /// Merges what the other machines did, one after another, until a merge has conflicts.
    fn merge_siblings(&self, interrupted: Option<MergeProgress>) -> Result<CommandOutcome> {
        let volume = self.place.volume();
        let mut reports = MergeReports::default();
        match interrupted {
            // A run like this one was interrupted in the middle of a merge.
            Some(progress) if progress.is_unapplied() => self.discard(&progress)?,
            Some(progress) if progress.stage == MergeStage::Applying => {
                reports.add(self.apply(progress, None)?, self.context, self.place)?;
            }
            Some(progress) => return Err(VolumeError::MergeUnderWay { name: progress.name }.into()),
            None => {}
        }
        let siblings = volume.list_siblings(&volume.worktree.worktree)?;
        if siblings.is_empty() && !self.context.ui.is_json() {
            let name = &volume.worktree.worktree;
            let others =
                "'vellum worktree list' shows those of other names, and 'vellum merge NAME' merges one";
            self.context.ui.print_note(format!("no other machine has a worktree '{name}': {others}"))?;
        }
        for sibling in siblings {
            // A merge that waits for a decision must end before the next one begins; a preview begins none.
            if reports.has_findings() && !self.args.dry_run {
                break;
            }
            reports.add(self.start(&sibling.name)?, self.context, self.place)?;
        }
        reports.finish(self.context)
    }

    fn start(&self, name: &str) -> Result<MergeReport> {
        let place = self.place;
        let volume = place.volume();
        let head = place.head()?;
        let named = volume.resolve_snapshot(name)?;
        // The last snapshot of a worktree may be an unfinished merge, whose open conflicts must not spread to this one.
        let theirs = volume.find_finished_snapshot(named.id)?;
        if theirs.id != named.id && !self.context.ui.is_json() {
            let shown = volume.short_id(&theirs.id)?;
            let note = format!(
                "a merge waits in '{name}' for conflicts to be resolved: taking {shown}, as it was before"
            );
            self.context.ui.print_note(note)?;
        }
        let base = self.args.base.as_ref().map(|base| volume.resolve_snapshot(base)).transpose()?;
        let report = MergeReport::new(name, &theirs);
        let relation = match &head {
            Some(head) => volume.relate_snapshots(head.id, theirs.id)?,
            // Without a snapshot of its own, the worktree has nothing in common with any.
            None => SnapshotRelation::Diverged,
        };
        match (relation, &head) {
            (SnapshotRelation::Same | SnapshotRelation::Contains, Some(head)) => {
                return Ok(report.with_result(MergeOutcomeKind::UpToDate, head));
            }
            (SnapshotRelation::Twins, Some(head)) => return self.adopt_twin(head, &theirs, report),
            // Whether the worktree moves or merges depends on unsaved changes, for which it is scanned below.
            _ => {}
        }
        if self.args.dry_run {
            let diverged = head.as_ref().filter(|_| relation == SnapshotRelation::Diverged);
            return self.preview(diverged, &theirs, base.as_ref(), report);
        }
        let is_changed = place.has_unsaved_changes(self.context)?;
        // With unsaved changes there is something to merge: the snapshot of them diverges from the other side.
        if !is_changed && relation == SnapshotRelation::IsContained {
            let done = self.move_to(&theirs, name)?;
            let report = report.with_result(MergeOutcomeKind::FastForward, &theirs);
            return Ok(report.with_files(done));
        }
        let before = head.as_ref().map(|head| head.id);
        let sides = MergeSides { name, theirs: &theirs, base: base.as_ref() };
        let merged = match head {
            Some(head) if !is_changed => self.merge(&sides, head.id, &head),
            head => self.save_changes(&sides, head.as_ref()).and_then(|ours| {
                // Without a snapshot before it, there is none to which the worktree could go back.
                self.merge(&sides, before.unwrap_or(ours.id), &ours)
            }),
        };
        merged.inspect_err(|error| self.discard_failed(error))
    }

    /// What could not be begun leaves no trace.
    fn discard_failed(&self, error: &CliError) {
        // A store that does not answer would not answer now either. The note stays, with which the next command does this.
        if matches!(error.kind(), ErrorKind::Io | ErrorKind::Interrupted) {
            return;
        }
        if let Ok(Some(progress)) = self.place.volume().read_merge_progress()
            && progress.is_unapplied()
        {
            // If this fails, the note stays, too.
            let _ = self.discard(&progress);
        }
    }

    /// Records what no snapshot holds. Written down before: the worktree then stands on another snapshot, and a command that
    /// dies before it has merged must be able to take that back.
    fn save_changes(&self, sides: &MergeSides<'_>, head: Option<&HistoryEntry>) -> Result<HistoryEntry> {
        if let Some(head) = head {
            let progress =
                MergeProgress { stage: MergeStage::Saving, ..self.new_progress(sides, head.id, head) };
            self.place.volume().write_merge_progress(&progress)?;
        }
        self.place.save_changes(self.context, format!("before the merge of {}", sides.name))
    }

    /// The same merge was made elsewhere: all keep the one with the lower id.
    fn adopt_twin(
        &self,
        head: &HistoryEntry,
        theirs: &HistoryEntry,
        report: MergeReport,
    ) -> Result<MergeReport> {
        if theirs.id > head.id || self.args.dry_run {
            return Ok(report.with_result(MergeOutcomeKind::UpToDate, head));
        }
        match self.place {
            // Both have one tree: the files stay what they are.
            MergePlace::Directory(_) => self.place.set_head(theirs.id)?,
            // Moving a mount replaces its files: not while they hold changes. The next merge adopts the twin.
            MergePlace::Mount(_) if self.place.has_unsaved_changes(self.context)? => {
                return Ok(report.with_result(MergeOutcomeKind::UpToDate, head));
            }
            MergePlace::Mount(_) => drop(self.place.stand_on(self.context, theirs)?),
        }
        Ok(report.with_result(MergeOutcomeKind::Adopted, theirs))
    }

    fn move_to(&self, theirs: &HistoryEntry, name: &str) -> Result<PlaceReport> {
        let resume = format!("'vellum merge {name}' goes on");
        self.place.stand_on(self.context, theirs).with_resume_hint(resume)
    }

    fn policies(&self, ours: SnapshotId, theirs: SnapshotId) -> ConflictPolicies {
        let general = match (self.args.ours, self.args.theirs, self.args.both) {
            (true, _, _) => ConflictPolicy::Prefer(ours),
            (_, true, _) => ConflictPolicy::Prefer(theirs),
            (_, _, true) => ConflictPolicy::KeepBoth,
            (false, false, false) => ConflictPolicy::Report,
        };
        ConflictPolicies { general, ..ConflictPolicies::default() }
    }

    /// What a merge would do; without `ours`, the worktree would move.
    fn preview(
        &self,
        ours: Option<&HistoryEntry>,
        theirs: &HistoryEntry,
        base: Option<&HistoryEntry>,
        report: MergeReport,
    ) -> Result<MergeReport> {
        let Some(ours) = ours else {
            return Ok(report.with_result(MergeOutcomeKind::FastForward, theirs).into_preview());
        };
        let policies = self.policies(ours.id, theirs.id);
        let merge = SnapshotMerge { ours, theirs, base, policies: &policies };
        let merged = self.place.volume().preview_merge(&merge)?;
        let kind = MergeOutcomeKind::from_conflicts(&merged.conflicts);
        Ok(report.with_result(kind, ours).with_conflicts(merged.conflicts).into_preview())
    }

    /// The note of a merge that begins.
    fn new_progress(&self, sides: &MergeSides<'_>, before: SnapshotId, ours: &HistoryEntry) -> MergeProgress {
        MergeProgress {
            name: sides.name.into(),
            before,
            ours: ours.id,
            theirs: sides.theirs.id,
            base: sides.base.map(|base| base.id),
            merged: ours.id,
            resolved: None,
            leftovers: Vec::new(),
            note: self.args.note.clone().unwrap_or_else(|| format!("merge of {}", sides.name)),
            stage: MergeStage::Storing,
            conflicts: Vec::new(),
        }
    }

    /// Merges, and lets the worktree stand on the result. `before` is where it was, which is our side or its parent.
    fn merge(&self, sides: &MergeSides<'_>, before: SnapshotId, ours: &HistoryEntry) -> Result<MergeReport> {
        let volume = self.place.volume();
        let MergeSides { name, theirs, base } = *sides;
        let policies = self.policies(ours.id, theirs.id);
        let merge = SnapshotMerge { ours, theirs, base, policies: &policies };
        let mut progress = self.new_progress(sides, before, ours);
        let note = progress.note.clone();
        // Conflicts or not, the result is a snapshot: the worktree is then brought to it like to any other, and a
        // merge that is interrupted continues with the same files.
        let mark_unfinished = |merged: &MergedTree| match merged.conflicts.is_empty() {
            true => note.clone(),
            false => format!("unfinished merge of {name}"),
        };
        // Written down before the snapshot is stored: a command that dies in between leaves no snapshot that nothing
        // names.
        let stored = volume.store_merge(&merge, mark_unfinished, |id, merged| {
            let track =
                |conflict: &MergeConflict| TrackedConflict { conflict: conflict.clone(), resolution: None };
            progress.merged = id;
            progress.conflicts = merged.conflicts.iter().map(track).collect();
            volume.write_merge_progress(&progress)
        })?;
        self.begin(progress, &stored.entry)
    }

    /// Begins to bring the worktree to a result that is in the store.
    fn begin(&self, mut progress: MergeProgress, merged: &HistoryEntry) -> Result<MergeReport> {
        // Before anything is begun: nothing has to be taken back if a file is in the way.
        let in_conflict = progress.conflicts.iter().map(|tracked| tracked.conflict.path.as_slice());
        let can_begin = self.place.check_present(in_conflict);
        if let Err(error) = can_begin.and_then(|()| self.place.check_reachable(self.context, merged)) {
            // Otherwise the result would stay in the history, and the worktree on the snapshot of its changes.
            self.discard(&progress)?;
            return Err(error);
        }
        // Recorded before the first file is changed: a command that is interrupted from here on is continued or taken
        // back.
        progress.stage = MergeStage::Applying;
        self.place.volume().write_merge_progress(&progress)?;
        let saved = progress.ours;
        let is_saved = progress.before != saved;
        self.apply(progress, is_saved.then_some(saved))
    }

    /// Takes back a merge of which nothing is in the worktree yet. Its files, which may have changed since, stay.
    fn discard(&self, progress: &MergeProgress) -> Result<()> {
        self.place.set_head(progress.before)?;
        self.end(progress)
    }

    /// Brings the worktree to the result; ends the merge, if there is no conflict.
    fn apply(&self, mut progress: MergeProgress, saved: Option<SnapshotId>) -> Result<MergeReport> {
        let volume = self.place.volume();
        let merged = self.place.entry(progress.merged)?;
        let done = self.move_to(&merged, &progress.name)?;
        let report = MergeReport::new(&progress.name, &self.place.entry(progress.theirs)?).with_saved(saved);
        if progress.conflicts.is_empty() {
            // A crash before this repeats `apply`, which finds the files as they should be.
            volume.remove_merge_progress()?;
            return Ok(report.with_result(MergeOutcomeKind::Merged, &merged).with_files(done));
        }
        progress.stage = MergeStage::Resolving;
        // From now on the files belong to the user, who resolves the conflicts in them.
        volume.write_merge_progress(&progress)?;
        let conflicts = progress.conflicts.into_iter().map(|tracked| tracked.conflict).collect();
        let report = report.with_result(MergeOutcomeKind::Conflicts, &merged);
        Ok(report.with_files(done).with_conflicts(conflicts))
    }

    /// Finishes a merge.
    fn proceed(&self, progress: MergeProgress) -> Result<MergeReport> {
        match progress.stage {
            MergeStage::Saving | MergeStage::Storing => return self.proceed_from_store(progress),
            MergeStage::Applying => return self.apply(progress, None),
            // Some files may be back already: to go on with the merge from there would take them for changes of the
            // user.
            MergeStage::Aborting => {
                let message = "the merge is being taken back";
                return Err(CliError::usage_error(message, "'vellum merge --abort' finishes that"));
            }
            MergeStage::Resolving => {}
        }
        // Whoever edited a text by hand may have overlooked a marker: it would become part of the snapshot.
        let marked = find_marked_files(self.place, &progress);
        let report = MergeReport::new(&progress.name, &self.place.entry(progress.theirs)?);
        if !marked.is_empty() {
            let merged = self.place.entry(progress.merged)?;
            let report = report.with_result(MergeOutcomeKind::Marked, &merged);
            return Ok(report.with_conflicts(marked));
        }
        let parents = [progress.ours, progress.theirs];
        let head = self.place.head()?;
        let recorded = match head.filter(|head| head.id != progress.merged && head.record.parents == parents)
        {
            // It was recorded by a run that was interrupted after that.
            Some(head) => head,
            None => {
                let note = self.args.note.clone().unwrap_or_else(|| progress.note.clone());
                self.place.record_merge(self.context, &parents, note)?
            }
        };
        // In a mount, this publishes: the store must have the new head before the snapshots that led to it are
        // forgotten.
        self.place.head()?;
        self.end(&progress)?;
        Ok(report.with_result(MergeOutcomeKind::Merged, &recorded))
    }

    /// Goes on with a merge that was interrupted while its result was stored.
    fn proceed_from_store(&self, progress: MergeProgress) -> Result<MergeReport> {
        let merged = match self.place.entry(progress.merged) {
            Ok(_) if progress.stage == MergeStage::Saving => None,
            // What was edited since is not in that result: it would have to be taken out of the files.
            Ok(_) if self.place.has_unsaved_changes(self.context)? => None,
            Ok(merged) => Some(merged),
            // The command died after it had written the note and before the result was stored.
            Err(CliError::Volume(VolumeError::MissingRecord(_))) => None,
            Err(error) => return Err(error),
        };
        if let Some(merged) = merged {
            return self.begin(progress, &merged);
        }
        self.discard(&progress)?;
        let name = &progress.name;
        let message = format!("the merge of {name} was interrupted before it changed anything");
        Err(CliError::usage_error(message, format!("'vellum merge {name}' begins it anew")))
    }

    /// Takes a merge back.
    fn abort(&self, mut progress: MergeProgress) -> Result<MergeReport> {
        if progress.is_unapplied() {
            self.discard(&progress)?;
            let report = MergeReport::new(&progress.name, &self.place.entry(progress.theirs)?);
            return Ok(report.with_result(MergeOutcomeKind::Aborted, &self.place.entry(progress.ours)?));
        }
        // Recorded first: an abort that is interrupted must not be continued as a merge.
        progress.stage = MergeStage::Aborting;
        self.place.volume().write_merge_progress(&progress)?;
        let ours = self.place.entry(progress.ours)?;
        let resume = "'vellum merge --abort' goes on";
        let done = self.place.stand_on(self.context, &ours).with_resume_hint(resume)?;
        // If unsaved changes were snapshotted before the merge, the worktree stood on that snapshot's parent: it
        // stands there again, and the changes are unsaved again.
        self.place.set_head(progress.before)?;
        self.place.head()?;
        self.end(&progress)?;
        let report = MergeReport::new(&progress.name, &self.place.entry(progress.theirs)?);
        Ok(report.with_result(MergeOutcomeKind::Aborted, &ours).with_files(done))
    }

    /// Nothing names the merge any more, nor the snapshots that only it needed.
    fn end(&self, progress: &MergeProgress) -> Result<()> {
        let volume = self.place.volume();
        // They are forgotten before the record of the merge is removed, which alone names them. After a crash in
        // between, the command is run again.
        for id in progress.list_results() {
            volume.forget_merge_result(id)?;
        }
        Ok(volume.remove_merge_progress()?)
    }

    fn print(&self, report: MergeReport) -> Result<CommandOutcome> {
        report.print(self.context, self.place)
    }
}

/// Texts with conflicts on which nobody decided, and that still have the markers.
fn find_marked_files(place: &MergePlace, progress: &MergeProgress) -> Vec<MergeConflict> {
    let is_marked = |conflict: &&MergeConflict| {
        conflict.kind == ConflictKind::Content && has_markers(place, &conflict.path)
    };
    progress.open_conflicts().filter(is_marked).cloned().collect()
}

/// Whether a file has lines that look like the markers of a conflict.
pub fn has_markers(place: &MergePlace, path: &[u8]) -> bool {
    // The markers may make it longer than what was merged.
    place.read_file(path, 3 * TEXT_MAX).is_some_and(|content| has_conflict_markers(&content))
}
