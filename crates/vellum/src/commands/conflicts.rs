//! `vellum conflicts`: what a merge that is under way could not decide.

use serde::Serialize;
use vellum_volume::merge::{ConflictResolution, MergeConflict, TrackedConflict};

use crate::context::CommandContext;
use crate::context::merge_place::MergePlace;
use crate::error::{CommandOutcome, Result};
use crate::ui::format;
use crate::ui::json::NameJson;

/// List the conflicts of the merge in progress
///
/// Those that are not resolved yet come first; --json lists all. Exits with 1 if any of them is unresolved.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show at most N; 0 shows all
    #[arg(short, long, value_name = "N", default_value_t = CONFLICTS_SHOWN)]
    number: usize,
}

/// Conflicts that are listed unless somebody asks for more.
pub const CONFLICTS_SHOWN: usize = 100;

#[derive(Serialize)]
struct ConflictsJson {
    merge: Option<MergeNameJson>,
    conflicts: Vec<TrackedConflictJson>,
}

#[derive(Serialize)]
struct MergeNameJson {
    name: String,
    ours: String,
    theirs: String,
}

#[derive(Serialize)]
struct TrackedConflictJson {
    #[serde(flatten)]
    conflict: ConflictJson,
    resolution: Option<ConflictResolution>,
}

/// A conflict.
#[derive(Serialize)]
pub struct ConflictJson {
    kind: &'static str,
    #[serde(flatten)]
    name: NameJson,
    other: Option<NameJson>,
}

impl ConflictJson {
    /// The shape of a conflict.
    pub fn new(conflict: &MergeConflict) -> Self {
        Self {
            kind: conflict.kind.name(),
            name: NameJson::new(&conflict.path),
            other: conflict.other.as_ref().map(|other| NameJson::new(other)),
        }
    }
}

/// A conflict in one line.
pub fn format_conflict(conflict: &MergeConflict, show: impl Fn(&[u8]) -> String) -> String {
    let other = conflict.other.as_ref().map_or(String::new(), |other| format!("  ({})", show(other)));
    format!("{:<13}  {}{other}", conflict.kind.name(), show(&conflict.path))
}

/// Lists them.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let place = MergePlace::open(context)?;
    let progress = place.volume().read_merge_progress()?;
    let ui = &context.ui;
    let tracked = progress.as_ref().map(|progress| progress.conflicts.as_slice()).unwrap_or_default();
    // A conflict that is decided stays in the list until the merge is finished, and is no finding any more.
    let open = tracked.iter().filter(|tracked| tracked.resolution.is_none()).count();
    let outcome = CommandOutcome::from_findings(open > 0);
    if ui.is_json() {
        let item = |tracked: &TrackedConflict| TrackedConflictJson {
            conflict: ConflictJson::new(&tracked.conflict),
            resolution: tracked.resolution,
        };
        ui.print_json(&ConflictsJson {
            conflicts: tracked.iter().map(item).collect(),
            merge: progress.as_ref().map(|progress| MergeNameJson {
                name: progress.name.clone(),
                ours: progress.ours.to_string(),
                theirs: progress.theirs.to_string(),
            }),
        })?;
        return Ok(outcome);
    }
    let paths = place.paths(context);
    // Of very many, those that need a decision must not be hidden behind those that have one.
    let is_open = |tracked: &&TrackedConflict| tracked.resolution.is_none();
    let listed = tracked.iter().filter(is_open).chain(tracked.iter().filter(|tracked| !is_open(tracked)));
    let limit = if args.number == 0 { usize::MAX } else { args.number };
    for TrackedConflict { conflict, resolution } in listed.take(limit) {
        let line = format_conflict(conflict, |path| paths.format_path(path));
        ui.print_line(match resolution {
            Some(_) => format!("{line}  resolved"),
            None => line,
        })?;
    }
    if tracked.len() > limit {
        ui.print_note(format!(
            "{} more: 'vellum conflicts -n 0' lists all",
            format::format_number((tracked.len() - limit) as u64)
        ))?;
    }
    ui.print_note(match &progress {
        None => "no merge is under way".into(),
        Some(progress) => format!(
            "merge of {}: {} to resolve",
            progress.name,
            format::format_count(open as u64, "conflict")
        ),
    })?;
    Ok(outcome)
}
