//! `vellum resolve`: decides on conflicts of a merge that is under way.
//!
//! The merge is made again with what was decided, and what differs from before is brought to the worktree.

mod tool;
mod tool_files;
mod versions;

use std::collections::BTreeSet;
use std::ffi::OsString;

use serde::Serialize;
use vellum_types::FileKind;
use vellum_volume::VolumeError;
use vellum_volume::diff::{PathScopes, StateComparison};
use vellum_volume::history::HistoryEntry;
use vellum_volume::merge::{
    ConflictKind, ConflictResolution, MergeConflict, MergeProgress, MergeStage, MergedTree, SnapshotMerge,
    TrackedConflict,
};

use self::tool::{MergeTool, ToolFailure};
use super::merge::has_markers;
use crate::context::CommandContext;
use crate::context::merge_place::MergePlace;
use crate::error::{CliError, CommandOutcome, Result};
use crate::ui::format;
use crate::ui::json::NameJson;

/// Resolve conflicts of the merge in progress
///
/// Without an option, the files stay as they are now. With one, the version that it names replaces them, even if they
/// were edited since. 'vellum conflicts' lists the conflicts; 'vellum merge --continue' finishes the merge.
///
/// With --tool, a program merges the content of each file: COMMAND, or the setting 'merge.tool'. /bin/sh runs it with the paths
/// of the versions in $BASE, $LOCAL (this worktree's) and $REMOTE (the other's); it writes the result to $MERGED, which
/// begins as what the worktree has. If it exits with 0, $MERGED replaces the file, and the conflict is resolved.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("side"))]
pub struct Args {
    /// Files or directories with conflicts
    #[arg(value_name = "PATH", required_unless_present = "all")]
    paths: Vec<OsString>,
    /// All conflicts that are not resolved yet
    #[arg(long, conflicts_with = "paths")]
    all: bool,
    /// Use the version of this worktree
    #[arg(long, group = "side")]
    ours: bool,
    /// Use the version of the other snapshot
    #[arg(long, group = "side")]
    theirs: bool,
    /// Keep both versions
    #[arg(long, group = "side")]
    both: bool,
    /// Run a merge tool
    #[arg(
        long,
        group = "side",
        value_name = "COMMAND",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ""
    )]
    tool: Option<String>,
}

#[derive(Serialize)]
struct ResolveJson {
    resolved: Vec<NameJson>,
    left: usize,
    /// Only with a merge tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    failures: Option<Vec<ToolFailureJson>>,
}

#[derive(Serialize)]
struct ToolFailureJson {
    #[serde(flatten)]
    name: NameJson,
    reason: String,
}

/// Decides.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let place = MergePlace::open(context)?;
    // Before the note is read, which another command may be about to change.
    let _lock = place.lock(context)?;
    let volume = place.volume();
    let mut progress = volume.read_merge_progress()?.ok_or(VolumeError::NoMerge)?;
    // Decisions are about conflicts that stand in the files, which they do in this stage only.
    if progress.stage != MergeStage::Resolving {
        return Err(VolumeError::MergeUnderWay { name: progress.name }.into());
    }
    let chosen = match args.all {
        true => progress.open_conflicts().cloned().collect(),
        false => {
            let scopes = place.paths(context).parse_paths(&args.paths)?;
            choose_conflicts(&place, context, &progress, &scopes)?
        }
    };
    let Some(typed) = &args.tool else {
        decide(args, &place, context, &mut progress, &chosen)?;
        return report_resolved(context, &chosen, &progress, None);
    };
    let report = MergeTool::find(typed, context, &place)?.resolve(&mut progress, &chosen)?;
    report_resolved(context, &report.resolved, &progress, Some(report.failures))
}

/// Takes what is in the worktree, or the version that was asked for.
fn decide(
    args: &Args,
    place: &MergePlace,
    context: &CommandContext,
    progress: &mut MergeProgress,
    chosen: &[MergeConflict],
) -> Result<()> {
    let resolution = match (args.ours, args.theirs, args.both) {
        (true, _, _) => ConflictResolution::Ours,
        (_, true, _) => ConflictResolution::Theirs,
        (_, _, true) => ConflictResolution::Both,
        (false, false, false) => ConflictResolution::AsIs,
    };
    // Markers that are left mean that a file was not edited to its end, and would become part of the result.
    if resolution == ConflictResolution::AsIs {
        check_markers(place, context, chosen)?;
    }
    // A decision is about a file, which may have several conflicts.
    let files: BTreeSet<_> = chosen.iter().map(|conflict| conflict.file).collect();
    for tracked in &mut progress.conflicts {
        if files.contains(&tracked.conflict.file) {
            tracked.resolution = Some(resolution);
        }
    }
    if resolution == ConflictResolution::AsIs {
        return Ok(place.volume().write_merge_progress(progress)?);
    }
    merge_again(place, context, progress, chosen)
}

fn report_resolved(
    context: &CommandContext,
    resolved: &[MergeConflict],
    progress: &MergeProgress,
    failures: Option<Vec<ToolFailure>>,
) -> Result<CommandOutcome> {
    let left = progress.open_conflicts().count();
    let ui = &context.ui;
    if ui.is_json() {
        let resolved = resolved.iter().map(|conflict| NameJson::new(&conflict.path)).collect();
        let describe = |failure: ToolFailure| ToolFailureJson {
            name: NameJson::new(&failure.path),
            reason: failure.reason,
        };
        let failures = failures.map(|failures| failures.into_iter().map(describe).collect());
        ui.print_json(&ResolveJson { resolved, left, failures })?;
    } else if left == 0 {
        ui.print_note("all conflicts are resolved: 'vellum merge --continue' finishes the merge")?;
    } else {
        ui.print_note(format!("{} to resolve", format::format_count(left as u64, "conflict")))?;
    }
    Ok(CommandOutcome::from_findings(left > 0))
}

/// The conflicts at or under the paths that were typed.
fn choose_conflicts(
    place: &MergePlace,
    context: &CommandContext,
    progress: &MergeProgress,
    scopes: &[Vec<u8>],
) -> Result<Vec<MergeConflict>> {
    let set = PathScopes::new(scopes.iter().map(Vec::as_slice));
    let mut meant = BTreeSet::new();
    // By conflict, not by path: several of the paths may contain one conflict, which is reported once.
    let mut chosen = Vec::new();
    for TrackedConflict { conflict, .. } in &progress.conflicts {
        let before = chosen.len();
        for path in std::iter::once(&conflict.path).chain(&conflict.other) {
            let covering: Vec<_> = set.find_covering(path).collect();
            if !covering.is_empty() && chosen.len() == before {
                chosen.push(conflict.clone());
            }
            meant.extend(covering);
        }
    }
    if let Some(scope) = scopes.iter().find(|scope| !meant.contains(scope.as_slice())) {
        let shown = place.paths(context).format_path(scope);
        let hint = "'vellum conflicts' lists those that have";
        return Err(CliError::usage_error(format!("'{shown}' has no conflict"), hint));
    }
    Ok(chosen)
}

fn check_markers(place: &MergePlace, context: &CommandContext, chosen: &[MergeConflict]) -> Result<()> {
    let marked = chosen
        .iter()
        .find(|conflict| conflict.kind == ConflictKind::Content && has_markers(place, &conflict.path));
    match marked {
        None => Ok(()),
        Some(conflict) => {
            let shown = place.paths(context).format_path(&conflict.path);
            let hint = format!("edit it first, or choose: 'vellum resolve --ours {shown}'");
            Err(CliError::usage_error(format!("'{shown}' still has conflict markers"), hint))
        }
    }
}

/// Brings the worktree to what the merge is with all that was decided, `chosen` just now.
fn merge_again(
    place: &MergePlace,
    context: &CommandContext,
    progress: &mut MergeProgress,
    chosen: &[MergeConflict],
) -> Result<()> {
    let volume = place.volume();
    // What a run that was interrupted has left.
    for id in std::mem::take(&mut progress.leftovers) {
        volume.forget_merge_result(&id)?;
    }
    let ours = place.entry(progress.ours)?;
    let theirs = place.entry(progress.theirs)?;
    let base = progress.base.map(|base| place.entry(base)).transpose()?;
    let policies = progress.collect_policies();
    let merge = SnapshotMerge { ours: &ours, theirs: &theirs, base: base.as_ref(), policies: &policies };
    let name = progress.name.clone();
    // Written down before it is stored, but not as what the worktree has: without the decision, which is recorded when the
    // files are as it says.
    let mut intent = volume.read_merge_progress()?.ok_or(VolumeError::NoMerge)?;
    let announce = |id, _: &MergedTree| {
        intent.leftovers = vec![id];
        volume.write_merge_progress(&intent)
    };
    let stored = volume.store_merge(&merge, |_| format!("unfinished merge of {name}"), announce)?;
    // Compared with the last result, not with the files: paths that the decision does not concern keep what was
    // edited in them.
    let before = place.entry(progress.resolved.unwrap_or(progress.merged))?;
    let paths = find_changed_paths(place, &before, &stored.entry, chosen)?;
    if !paths.is_empty() {
        // A crash between this and the record of it is harmless: the same command finds the same differences, and
        // brings the paths to the same content.
        place.restore_paths(context, &stored.entry, paths)?;
    }
    // The result that was replaced was never a snapshot of the user's. It is named until it is forgotten.
    progress.leftovers.extend(progress.resolved.replace(stored.entry.id));
    volume.write_merge_progress(progress)?;
    for old in &progress.leftovers {
        volume.forget_merge_result(old)?;
    }
    Ok(())
}

/// The paths at which two results differ and of which one is in the worktree or in the new result, and the files that were
/// decided on: they may have been edited since, also where both results have the same.
fn find_changed_paths(
    place: &MergePlace,
    before: &HistoryEntry,
    after: &HistoryEntry,
    chosen: &[MergeConflict],
) -> Result<Vec<Vec<u8>>> {
    let tree = |entry: &HistoryEntry| place.volume().open_tree(entry.record.root);
    let to = tree(after);
    let changes = StateComparison { from: &tree(before), to: &to }.find_changes()?;
    let sides = changes.into_iter().flat_map(|change| [change.old, change.new]).flatten();
    let mut paths: BTreeSet<_> = sides.map(|side| side.path).collect();
    for path in chosen.iter().flat_map(|conflict| std::iter::once(&conflict.path).chain(&conflict.other)) {
        // What is in a directory was not decided on.
        if to.find_path(path, "").is_ok_and(|(_, attr)| attr.kind != FileKind::Dir) {
            paths.insert(path.clone());
        }
    }
    let exists = |path: &Vec<u8>| place.has_path(path) || to.find_path(path, "").is_ok();
    Ok(paths.into_iter().filter(exists).collect())
}
