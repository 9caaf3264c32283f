//! The tries that there are, and decisions about them.

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_types::SnapshotId;
use vellum_volume::Volume;
use vellum_volume::history::HistoryEntry;
use vellum_volume::merge::{ConflictPolicies, SnapshotMerge, SnapshotRelation};
use vellum_volume::refs::check_ref_name;

use super::compare_try;
use super::decide::{TryDecision, carry_out};
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::experiment::fork::{TryFork, TryOrigin};
use crate::experiment::note::{CopyPlace, TryNote, TryNotes};
use crate::ui::format;
use crate::ui::json::format_json_time;
use crate::ui::table::TextTable;

#[derive(Serialize)]
struct TryListJson {
    tries: Vec<TryItemJson>,
}

#[derive(Serialize)]
struct TryItemJson {
    name: String,
    of: String,
    directory: String,
    /// The directory of its fork, if that is a copy.
    copy: Option<String>,
    command: String,
    started: String,
    /// Whether its command runs.
    running: bool,
    /// Its exit status; None: it runs, or was killed with 'vellum try'.
    status: Option<u8>,
    base: Option<String>,
    snapshot: Option<String>,
    #[serde(flatten)]
    extent: Option<TryExtent>,
}

/// How much a try changed.
#[derive(Serialize)]
struct TryExtent {
    /// Entries that were added, changed, renamed or deleted.
    changed: u64,
    /// Bytes of content in those that are there now.
    bytes: u64,
    /// Conflicts with the last snapshot of the worktree; None: it has none any more.
    conflicts: Option<u64>,
}

#[derive(Serialize)]
struct DecidedJson<'a> {
    name: &'a str,
    decision: &'static str,
    worktree: Option<&'a str>,
    merges: Option<serde_json::Value>,
}

/// Lists all tries of the volume on this machine.
pub fn list_tries(context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.open_volume()?;
    let notes = TryNotes::new(&volume.state);
    for name in notes.list_without_note()? {
        // Nothing else is known of it.
        TryFork::new(&volume.state, TryNote::new_unknown(&name), context).discard()?;
    }
    let mut items = Vec::new();
    for note in notes.list_notes()? {
        let is_begun = note.base.is_some() && volume.read_worktree_head(&note.name)?.is_some();
        if !is_begun && !note.is_running() {
            // It was killed before its fork was there, or when that was gone.
            TryFork::new(&volume.state, note, context).discard()?;
            continue;
        }
        let extent = measure_try(&volume, &note, context)?;
        items.push(TryItemJson {
            name: note.name.clone(),
            of: note.of.clone(),
            directory: note.place().display().to_string(),
            copy: note.copy.as_ref().map(CopyPlace::format_path),
            command: note.format_command(),
            started: format_json_time(note.started()),
            // The process lives on after its command has ended, for as long as it asks the user what to do.
            running: note.is_running() && note.status.is_none(),
            status: note.status,
            base: note.base.clone(),
            snapshot: note.result.clone(),
            extent,
        });
    }
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&TryListJson { tries: items })?;
        return Ok(CommandOutcome::Done);
    }
    let mut table = TextTable::default();
    for item in &items {
        table.add_row(try_row(context, item));
    }
    ui.print_lines(table.format_lines())?;
    if items.is_empty() {
        ui.print_note("there are no tries: 'vellum try -- COMMAND' makes one")?;
    }
    Ok(CommandOutcome::Done)
}

/// What a try changed, if that is recorded.
fn measure_try(volume: &Volume, note: &TryNote, context: &CommandContext) -> Result<Option<TryExtent>> {
    let Some(result) = note.result_id() else { return Ok(None) };
    let fork = TryFork::new(&volume.state, note.clone(), context);
    let compared = compare_try(volume, &fork, result)?;
    let sizes = compared.changes.iter().filter_map(|change| change.new.as_ref().map(|side| side.size));
    Ok(Some(TryExtent {
        changed: compared.changes.len() as u64,
        bytes: sizes.sum(),
        conflicts: count_conflicts(volume, note, result)?,
    }))
}

/// The conflicts that applying it would have, if the worktree holds what its last snapshot does.
fn count_conflicts(volume: &Volume, note: &TryNote, result: SnapshotId) -> Result<Option<u64>> {
    let head = volume.read_worktree_head(&note.of)?.and_then(|head| head.head);
    let Some(now) = head else { return Ok(None) };
    // Without a divergence, applying moves the worktree, and there is nothing that could conflict.
    if volume.relate_snapshots(now, result)? != SnapshotRelation::Diverged {
        return Ok(Some(0));
    }
    let entry = |id| volume.catalog.get_record(&id).map(|record| HistoryEntry { id, record });
    let ours = entry(now)?;
    let theirs = entry(result)?;
    let policies = ConflictPolicies::default();
    let merge = SnapshotMerge { ours: &ours, theirs: &theirs, base: None, policies: &policies };
    Ok(Some(volume.preview_merge(&merge)?.conflicts.len() as u64))
}

fn try_row(context: &CommandContext, item: &TryItemJson) -> [String; 6] {
    let style = context.ui.style;
    let state = match (item.running, item.status) {
        (true, _) => "running".into(),
        (false, Some(0)) => "ended with 0".into(),
        (false, Some(status)) => style.paint_red(&format!("ended with {status}")),
        (false, None) => style.paint_red("killed"),
    };
    let extent = match &item.extent {
        None => String::new(),
        Some(TryExtent { changed: 0, .. }) => "nothing changed".into(),
        Some(TryExtent { changed, bytes, .. }) => {
            format!("{} changed, {}", format::format_number(*changed), format::format_size(*bytes))
        }
    };
    let conflicts = match item.extent.as_ref().and_then(|extent| extent.conflicts) {
        None | Some(0) => String::new(),
        Some(conflicts) => style.paint_yellow(&format::format_count(conflicts, "conflict")),
    };
    [
        style.paint_cyan(&item.name),
        match &item.copy {
            None => format!("of {}", format_path(&item.of)),
            Some(copy) => format!("of {}, in {copy}", format_path(&item.of)),
        },
        item.command.clone(),
        state,
        extent,
        conflicts,
    ]
}

/// Does what was decided about an earlier try.
pub fn decide_about(name: &str, decision: &TryDecision, context: &CommandContext) -> Result<CommandOutcome> {
    // The name becomes part of a path: it must not lead out of the folder of tries.
    check_ref_name(name)?;
    let origin = TryOrigin::open(context)?;
    let state = origin.state()?;
    let Some(note) = TryNotes::new(&state).read_note(name)? else {
        let message = format!("there is no try '{name}'");
        return Err(CliError::usage_error(message, "'vellum try --list' shows the tries"));
    };
    if note.is_running() {
        let message = format!("the try {name} still runs (process {})", note.process);
        return Err(CliError::usage_error(message, "end its command first"));
    }
    if *decision == TryDecision::Apply && note.of != origin.worktree() {
        let place = format_path(note.place().as_os_str().as_encoded_bytes());
        let message = format!("the try {name} is of the worktree {}", note.of);
        return Err(CliError::usage_error(message, format!("run the command there: -C {place}")));
    }
    let mut fork = TryFork::new(&state, note, context);
    let applied = carry_out(&mut fork, decision, context)?;
    let has_conflicts = applied.as_ref().is_some_and(|merges| merges.has_findings());
    let ui = &context.ui;
    if ui.is_json() {
        let merges = applied.as_ref().map(|merges| serde_json::to_value(merges.as_json()));
        ui.print_json(&DecidedJson {
            name,
            decision: decision.name(),
            worktree: decision.worktree(name),
            merges: merges.transpose().map_err(|error| CliError::Output(error.into()))?,
        })?;
    } else if *decision == TryDecision::Discard && !ui.voice.quiet {
        ui.print_line(format!("Discarded the try {name}"))?;
    }
    Ok(CommandOutcome::from_findings(has_conflicts))
}
