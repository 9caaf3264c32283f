//! What a merge tells: its result, what became of the files, and its conflicts.

use serde::Serialize;
use vellum_types::SnapshotId;
use vellum_volume::history::HistoryEntry;
use vellum_volume::merge::MergeConflict;

use crate::commands::conflicts::{CONFLICTS_SHOWN, ConflictJson};
use crate::context::CommandContext;
use crate::context::merge_place::{MergePlace, PlaceReport};
use crate::context::names::SnapshotNames;
use crate::error::{CommandOutcome, Result};
use crate::ui::format;
use crate::ui::json::ProblemJson;

/// How a merge ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MergeOutcomeKind {
    /// The worktree has everything of the other snapshot.
    UpToDate,
    /// It moved to the other snapshot, which is the same merge made elsewhere.
    Adopted,
    /// It moved to the other snapshot, which has everything of this worktree.
    FastForward,
    /// The result is a snapshot.
    Merged,
    /// The result has conflicts.
    Conflicts,
    /// Files still have conflict markers.
    Marked,
    /// The merge was taken back.
    Aborted,
}

impl MergeOutcomeKind {
    /// Whether there are conflicts.
    pub fn from_conflicts(conflicts: &[MergeConflict]) -> Self {
        if conflicts.is_empty() { Self::Merged } else { Self::Conflicts }
    }
}

/// What a merge did, or would do.
pub struct MergeReport {
    name: String,
    theirs: SnapshotId,
    result: Option<(MergeOutcomeKind, HistoryEntry)>,
    saved: Option<SnapshotId>,
    files: PlaceReport,
    conflicts: Vec<MergeConflict>,
    is_preview: bool,
}

#[derive(Serialize)]
struct MergeJson {
    outcome: MergeOutcomeKind,
    dry_run: bool,
    theirs: String,
    snapshot: Option<String>,
    saved: Option<String>,
    written: u64,
    deleted: u64,
    owners_not_set: u64,
    conflicts: Vec<ConflictJson>,
    problems: Vec<ProblemJson>,
}

impl MergeReport {
    /// A merge of the snapshot that was called `name`.
    pub fn new(name: &str, theirs: &HistoryEntry) -> Self {
        Self {
            name: name.into(),
            theirs: theirs.id,
            result: None,
            saved: None,
            files: PlaceReport::default(),
            conflicts: Vec::new(),
            is_preview: false,
        }
    }

    /// How it ended, and the snapshot on which the worktree is.
    pub fn with_result(self, kind: MergeOutcomeKind, entry: &HistoryEntry) -> Self {
        Self { result: Some((kind, entry.clone())), ..self }
    }

    /// The snapshot of what no other held.
    pub fn with_saved(self, saved: Option<SnapshotId>) -> Self {
        Self { saved, ..self }
    }

    /// What became of the files.
    pub fn with_files(self, files: PlaceReport) -> Self {
        Self { files, ..self }
    }

    /// Its conflicts.
    pub fn with_conflicts(self, conflicts: Vec<MergeConflict>) -> Self {
        Self { conflicts, ..self }
    }

    /// Nothing was changed.
    pub fn into_preview(self) -> Self {
        Self { is_preview: true, ..self }
    }

    /// Whether something is left to do: conflicts, or files that could not be written.
    fn has_findings(&self) -> bool {
        !self.conflicts.is_empty() || !self.files.problems.is_empty()
    }

    /// Prints it.
    pub fn print(self, context: &CommandContext, place: &MergePlace) -> Result<CommandOutcome> {
        let outcome = CommandOutcome::from_findings(self.has_findings());
        match context.ui.is_json() {
            true => self.to_json().map_or(Ok(()), |merge| context.ui.print_json(&merge))?,
            false => self.print_text(context, place)?,
        }
        Ok(outcome)
    }

    fn problems(&self) -> Vec<ProblemJson> {
        self.files.problems.iter().map(ProblemJson::from).collect()
    }

    fn saved_snapshot(&self) -> Option<SnapshotId> {
        self.saved.or(self.files.safety)
    }

    fn to_json(&self) -> Option<MergeJson> {
        let (kind, entry) = self.result.as_ref()?;
        Some(MergeJson {
            outcome: *kind,
            dry_run: self.is_preview,
            theirs: self.theirs.to_string(),
            // A preview stores no result: its entry is a snapshot that exists already.
            snapshot: (!self.is_preview).then(|| entry.id.to_string()),
            saved: self.saved_snapshot().map(|id| id.to_string()),
            written: self.files.written,
            deleted: self.files.deleted,
            owners_not_set: self.files.owners_not_set,
            conflicts: self.conflicts.iter().map(ConflictJson::new).collect(),
            problems: self.problems(),
        })
    }

    fn print_text(&self, context: &CommandContext, place: &MergePlace) -> Result<()> {
        let Some((kind, entry)) = &self.result else { return Ok(()) };
        let ui = &context.ui;
        ui.print_problems(&self.problems())?;
        let paths = place.paths(context);
        for conflict in self.conflicts.iter().take(CONFLICTS_SHOWN) {
            ui.print_line(super::super::conflicts::format_conflict(conflict, |path| {
                paths.format_path(path)
            }))?;
        }
        if let Some(more) = self.conflicts.len().checked_sub(CONFLICTS_SHOWN).filter(|more| *more > 0) {
            // A preview leaves nothing that could be listed afterwards.
            let way = if self.is_preview { "--json lists all" } else { "'vellum conflicts -n 0' lists all" };
            ui.print_note(format!("{} more: {way}", format::format_number(more as u64)))?;
        }
        // Read after the merge, so that the snapshot that it made is among them.
        let names = SnapshotNames::load_all(place.volume())?;
        self.print_result(context, *kind, &names.describe_snapshot(entry))?;
        if let Some(saved) = self.saved_snapshot() {
            let short = names.short_id(&saved);
            ui.print_note(format!("what no snapshot held is in {}", ui.style.paint_yellow(&short)))?;
        }
        ui.report_owners_not_set(self.files.owners_not_set)
    }

    fn print_result(&self, context: &CommandContext, kind: MergeOutcomeKind, snapshot: &str) -> Result<()> {
        let ui = &context.ui;
        let name = &self.name;
        let conflicts = format::format_count(self.conflicts.len() as u64, "conflict");
        if self.is_preview {
            return ui.print_note(match kind {
                MergeOutcomeKind::FastForward => {
                    format!("would move to {name}, which has everything of this worktree")
                }
                _ if self.conflicts.is_empty() => format!("would merge {name} without conflicts"),
                _ => format!("would merge {name} with {conflicts}"),
            });
        }
        match kind {
            MergeOutcomeKind::UpToDate => ui.print_note(format!("nothing to merge: {name} is part of {snapshot}")),
            MergeOutcomeKind::Adopted => {
                ui.print_line(format!("Moved to {snapshot}: the same merge, made elsewhere"))
            }
            MergeOutcomeKind::FastForward => ui.print_line(format!("Moved to {snapshot}")),
            MergeOutcomeKind::Merged => ui.print_line(format!("Merged {name}: {snapshot}")),
            MergeOutcomeKind::Aborted => ui.print_line(format!("Aborted the merge of {name}")),
            MergeOutcomeKind::Conflicts => ui.print_note(format!(
                "{conflicts}: edit the files or use 'vellum resolve', then 'vellum merge --continue' finishes the \
                 merge; 'vellum merge --abort' aborts it"
            )),
            MergeOutcomeKind::Marked => ui.print_note(format!(
                "{} with conflict markers: edit them, or choose versions with 'vellum resolve'",
                format::format_count(self.conflicts.len() as u64, "file")
            )),
        }
    }
}

/// What several merges did. In text each is printed when it ended, in JSON all are one object.
#[derive(Default)]
pub struct MergeReports {
    merges: Vec<NamedMergeJson>,
    has_findings: bool,
}

#[derive(Serialize)]
struct NamedMergeJson {
    name: String,
    #[serde(flatten)]
    merge: MergeJson,
}

#[derive(Serialize)]
struct MergesJson {
    merges: Vec<NamedMergeJson>,
}

impl MergeReports {
    /// Adds the next merge.
    pub fn add(&mut self, report: MergeReport, context: &CommandContext, place: &MergePlace) -> Result<()> {
        if !context.ui.is_json() {
            report.print_text(context, place)?;
        }
        self.has_findings |= report.has_findings();
        self.merges.extend(report.to_json().map(|merge| NamedMergeJson { name: report.name, merge }));
        Ok(())
    }

    /// All of them for programs, an object each.
    pub fn as_json(&self) -> &impl Serialize {
        &self.merges
    }

    /// Whether one of them has conflicts that nobody decided on, or could not write its files.
    pub fn has_findings(&self) -> bool {
        self.has_findings
    }

    /// Prints what was not printed yet.
    pub fn finish(self, context: &CommandContext) -> Result<CommandOutcome> {
        if context.ui.is_json() {
            context.ui.print_json(&MergesJson { merges: self.merges })?;
        }
        Ok(CommandOutcome::from_findings(self.has_findings))
    }
}
