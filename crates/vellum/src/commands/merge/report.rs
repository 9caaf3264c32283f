//! What a merge tells: its result, what became of the files, and its conflicts.

use serde::Serialize;
use vellum_types::SnapshotId;
use vellum_volume::history::HistoryEntry;
use vellum_volume::merge::MergeConflict;

use crate::commands::conflicts::ConflictJson;
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

    /// Prints it.
    pub fn print(self, context: &CommandContext, place: &MergePlace) -> Result<CommandOutcome> {
        let Some((kind, entry)) = &self.result else { return Ok(CommandOutcome::Done) };
        let problems: Vec<_> = self.files.problems.iter().map(ProblemJson::from).collect();
        let outcome = CommandOutcome::from_findings(!self.conflicts.is_empty() || !problems.is_empty());
        let ui = &context.ui;
        let saved = self.saved.or(self.files.safety);
        if ui.is_json() {
            ui.print_json(&MergeJson {
                outcome: *kind,
                dry_run: self.is_preview,
                theirs: self.theirs.to_string(),
                snapshot: (!self.is_preview).then(|| entry.id.to_string()),
                saved: saved.map(|id| id.to_string()),
                written: self.files.written,
                deleted: self.files.deleted,
                conflicts: self.conflicts.iter().map(ConflictJson::new).collect(),
                problems,
            })?;
            return Ok(outcome);
        }
        ui.print_problems(&problems)?;
        let paths = place.paths(context);
        for conflict in &self.conflicts {
            ui.print_line(super::super::conflicts::format_conflict(conflict, |path| {
                paths.format_path(path)
            }))?;
        }
        let names = SnapshotNames::load_all(place.volume())?;
        self.print_result(context, *kind, &names.describe_snapshot(entry))?;
        if let Some(saved) = saved {
            let short = names.short_id(&saved);
            ui.print_note(format!("what no snapshot held is in {}", ui.style.paint_yellow(&short)))?;
        }
        Ok(outcome)
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
            MergeOutcomeKind::Aborted => ui.print_line(format!("The merge of {name} was taken back")),
            MergeOutcomeKind::Conflicts => ui.print_note(format!(
                "{conflicts}: edit the files or use 'vellum resolve', then 'vellum merge --continue' finishes the \
                 merge; 'vellum merge --abort' takes it back"
            )),
            MergeOutcomeKind::Marked => ui.print_note(format!(
                "{} with conflict markers: edit them, or choose versions with 'vellum resolve'",
                format::format_count(self.conflicts.len() as u64, "file")
            )),
        }
    }
}
