//! What an undo or redo did, or would do.

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_types::SnapshotId;
use vellum_volume::Volume;
use vellum_volume::operations::{HeadChange, KeptSnapshot, RevertDirection, RevertPlan, RevertStep};
use vellum_volume::refs::RefKind;

use crate::context::CommandContext;
use crate::context::merge_place::PlaceReport;
use crate::error::{CommandOutcome, Result};
use crate::ui::UserInterface;
use crate::ui::format;
use crate::ui::json::ProblemJson;

#[derive(Serialize)]
struct RevertJson {
    action: &'static str,
    operation: RevertedJson,
    dry_run: bool,
    steps: Vec<StepJson>,
    safety: Option<String>,
    kept: Vec<KeptJson>,
    problems: Vec<ProblemJson>,
    /// The same of the other operations of the command.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    others: Vec<RevertJson>,
}

/// The operation that is taken back.
#[derive(Serialize)]
struct RevertedJson {
    worktree: Option<String>,
    number: u64,
    hash: String,
    command: Vec<String>,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum StepJson {
    MoveHead { from: Option<String>, to: Option<String> },
    RestoreFiles { from: Option<String>, to: String },
    Recover { snapshots: Vec<String> },
    Forget { snapshots: Vec<String> },
    SetLimits { worktree: String, quota_bytes: Option<u64>, quota_inodes: Option<u64>, trash_days: u32 },
    RemoveWorktree { name: String },
    AddWorktree { name: String, snapshot: Option<String> },
    SetTag { name: String, from: Option<String>, to: Option<String> },
    SetPin { snapshot: String },
    SetNote { snapshot: String },
    SetSettings,
}

#[derive(Serialize)]
struct KeptJson {
    snapshot: String,
    reason: String,
}

/// What is told of an undo or redo.
pub struct RevertReport<'a> {
    context: &'a CommandContext,
    volume: &'a Volume,
    plan: &'a RevertPlan,
    kept: Vec<KeptSnapshot>,
    place: PlaceReport,
}

impl<'a> RevertReport<'a> {
    /// Of a plan.
    pub fn new(context: &'a CommandContext, volume: &'a Volume, plan: &'a RevertPlan) -> Self {
        Self { context, volume, plan, kept: plan.kept.clone(), place: PlaceReport::default() }
    }

    /// Adds a snapshot that stays after all.
    pub fn add_kept(&mut self, kept: Option<KeptSnapshot>) {
        self.kept.extend(kept);
    }

    /// Says what became of the files.
    pub fn set_place(&mut self, place: PlaceReport) {
        self.place = place;
    }

    fn list_problems(&self) -> Vec<ProblemJson> {
        self.place.problems.iter().map(ProblemJson::from).collect()
    }

    fn print(self, dry_run: bool) -> Result<()> {
        let ui = &self.context.ui;
        ui.print_problems(&self.list_problems())?;
        if ui.voice.quiet && !dry_run {
            return Ok(());
        }
        let operation = &self.plan.operation;
        let verb = match (self.plan.reverted.direction, dry_run) {
            (RevertDirection::Undo, false) => "Undid",
            (RevertDirection::Undo, true) => "Would undo",
            (RevertDirection::Redo, false) => "Redid",
            (RevertDirection::Redo, true) => "Would redo",
        };
        let own = Some(&self.volume.worktree.worktree);
        let of = match &self.plan.reverted.worktree {
            // Numbers of operations count in each worktree apart, so another one has to be named.
            Some(worktree) if Some(worktree) == own => String::new(),
            Some(worktree) => format!(" of worktree {}", format_path(worktree)),
            None => " of the volume".into(),
        };
        let number = operation.link.sequence;
        let command = format_path(operation.record.command.join(" "));
        ui.print_line(format!("{verb} operation {number}{of}: {command}"))?;
        for line in self.describe_steps() {
            ui.print_line(format!("  {line}"))?;
        }
        for KeptSnapshot { id, reason } in &self.kept {
            ui.print_note(format!("{} stays in the history: {}", short(id), format_path(reason)))?;
        }
        if let Some(safety) = &self.place.safety {
            let short = short(safety);
            ui.print_note(format!(
                "What no snapshot held is in {short}: 'vellum restore {short}' brings it back"
            ))?;
        }
        Ok(())
    }

    fn steps(&self) -> impl Iterator<Item = &RevertStep> {
        self.plan.before.iter().chain(&self.plan.after)
    }

    fn describe_steps(&self) -> Vec<String> {
        let head = self.plan.head.as_ref().map(|head| match head {
            HeadChange::Move { from, target } => {
                format!("{} -> {}; the files stay as they are", short_or_none(*from), short_or_none(*target))
            }
            HeadChange::Restore { from, target } => {
                format!("{} -> {}, with its files", short_or_none(*from), short(target))
            }
        });
        head.into_iter().chain(self.steps().map(describe_step)).collect()
    }

    fn to_json(&self, dry_run: bool) -> RevertJson {
        let operation = &self.plan.operation;
        let head = self.plan.head.as_ref().map(|head| match head {
            HeadChange::Move { from, target } => {
                StepJson::MoveHead { from: text_of(*from), to: text_of(*target) }
            }
            HeadChange::Restore { from, target } => {
                StepJson::RestoreFiles { from: text_of(*from), to: target.to_string() }
            }
        });
        RevertJson {
            action: match self.plan.reverted.direction {
                RevertDirection::Undo => "undo",
                RevertDirection::Redo => "redo",
            },
            operation: RevertedJson {
                worktree: self.plan.reverted.worktree.clone(),
                number: operation.link.sequence,
                hash: vellum_types::BlobId(operation.link.hash).to_string(),
                command: operation.record.command.clone(),
            },
            dry_run,
            steps: head.into_iter().chain(self.steps().map(to_step_json)).collect(),
            safety: text_of(self.place.safety),
            kept: self
                .kept
                .iter()
                .map(|kept| KeptJson { snapshot: kept.id.to_string(), reason: kept.reason.clone() })
                .collect(),
            problems: self.list_problems(),
            others: Vec::new(),
        }
    }
}

/// Prints what became of the operations of a command.
pub fn print_reports(
    reports: Vec<RevertReport<'_>>,
    dry_run: bool,
    ui: &UserInterface,
) -> Result<CommandOutcome> {
    let has_problems = reports.iter().any(|report| !report.place.problems.is_empty());
    if ui.is_json() {
        let mut all = reports.iter().map(|report| report.to_json(dry_run));
        // There is always one: what cannot be planned is an error.
        if let Some(mut first) = all.next() {
            first.others = all.collect();
            ui.print_json(&first)?;
        }
    } else {
        reports.into_iter().try_for_each(|report| report.print(dry_run))?;
    }
    Ok(CommandOutcome::from_findings(has_problems))
}

fn text_of(id: Option<SnapshotId>) -> Option<String> {
    id.map(|id| id.to_string())
}

fn short(id: &SnapshotId) -> String {
    format::shorten_id(&id.to_string()).to_owned()
}

fn short_or_none(id: Option<SnapshotId>) -> String {
    id.map_or_else(|| "no snapshot".into(), |id| short(&id))
}

fn describe_step(step: &RevertStep) -> String {
    let count = |ids: &[SnapshotId]| format::format_count(ids.len() as u64, "snapshot");
    match step {
        RevertStep::Recover(ids) => match ids.as_slice() {
            [id] => format!("snapshot {} is in the history again", short(id)),
            ids => format!("{} are in the history again", count(ids)),
        },
        RevertStep::ForgetMade(id) => format!("snapshot {} is forgotten", short(id)),
        RevertStep::Forget(ids) => match ids.as_slice() {
            [id] => format!("snapshot {} is forgotten", short(id)),
            ids => format!("{} are forgotten", count(ids)),
        },
        RevertStep::SetLimits { worktree, .. } => {
            format!("worktree {}: limits as they were", format_path(worktree))
        }
        RevertStep::RemoveWorktree { name, .. } => {
            format!("worktree {} is taken off the list; its files stay", format_path(name))
        }
        RevertStep::AddWorktree { name, head } => {
            format!("worktree {} is on the list again, at {}", format_path(name), short_or_none(head.head))
        }
        RevertStep::SetValue { kind: RefKind::Tag, name, from, to } => {
            let target = |value: &[u8]| match SnapshotId::from_slice(value) {
                Some(id) => short(&id),
                None => "none".into(),
            };
            format!("tag {}: {} -> {}", format_path(name), target(from), target(to))
        }
        // There is one of these in a volume, so its name says nothing.
        RevertStep::SetValue { kind: RefKind::Settings, .. } => "settings of the volume as they were".into(),
        RevertStep::SetValue { kind, name, .. } => {
            format!("{} of snapshot {} as it was", kind.display_name(), format::shorten_id(name))
        }
    }
}

fn to_step_json(step: &RevertStep) -> StepJson {
    let names = |ids: &[SnapshotId]| ids.iter().map(ToString::to_string).collect();
    match step {
        RevertStep::Recover(ids) => StepJson::Recover { snapshots: names(ids) },
        RevertStep::Forget(ids) => StepJson::Forget { snapshots: names(ids) },
        RevertStep::ForgetMade(id) => StepJson::Forget { snapshots: names(&[*id]) },
        RevertStep::SetLimits { worktree, quota, trash_days } => StepJson::SetLimits {
            worktree: worktree.clone(),
            quota_bytes: quota.bytes,
            quota_inodes: quota.inodes,
            trash_days: *trash_days,
        },
        RevertStep::RemoveWorktree { name, .. } => StepJson::RemoveWorktree { name: name.clone() },
        RevertStep::AddWorktree { name, head } => {
            StepJson::AddWorktree { name: name.clone(), snapshot: text_of(head.head) }
        }
        RevertStep::SetValue { kind, name, from, to } => match kind {
            RefKind::Pin => StepJson::SetPin { snapshot: name.clone() },
            RefKind::Annotation => StepJson::SetNote { snapshot: name.clone() },
            RefKind::Settings => StepJson::SetSettings,
            // A plan sets values of tags, pins, notes and settings only: worktrees have steps of their own.
            RefKind::Tag | RefKind::Worktree | RefKind::Chain => StepJson::SetTag {
                name: name.clone(),
                from: text_of(SnapshotId::from_slice(from)),
                to: text_of(SnapshotId::from_slice(to)),
            },
        },
    }
}
