//! `vellum verify`: proves that nothing rotted, or names what did.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_store::RequestPurpose;
use vellum_volume::Volume;
use vellum_volume::history::{HistoryEntry, list_history};
use vellum_volume::verify::{
    AffectedTree, RebuiltIndex, TreeOwner, VerifyFinding, VerifyReport, VerifyScope, rebuild_index,
    verify_volume,
};

use crate::context::CommandContext;
use crate::error::{CommandOutcome, Result, ResumeHint};
use crate::ui::format;
use crate::ui::progress::ProgressTask;

/// How many lines of damage are listed in full: more are summed up.
const LINES_MAX: usize = 30;

/// Verify that snapshots are intact, or list what is damaged
///
/// Reads everything from the store, decrypts it and compares its hashes: for one snapshot [default: this worktree's
/// current snapshot], or for the whole store with --all: all snapshots, and what mounted worktrees published since their
/// last snapshot and have in their trash. Exits with 1 if anything is damaged or missing, and lists the affected files.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The snapshot
    #[arg(value_name = "SNAP", default_value = "HEAD")]
    snapshot: String,
    /// Check every object of the store, and every snapshot
    #[arg(short, long, conflicts_with = "snapshot")]
    all: bool,
    /// Check only names, attributes and structure, not the content of files
    #[arg(long)]
    metadata_only: bool,
    /// Make the index anew from the packs, if objects of it are damaged or missing; verify nothing
    ///
    /// Reads the table of contents of each pack. Nobody may write to the store meanwhile: the command fails if somebody
    /// does.
    #[arg(long, conflicts_with_all = ["snapshot", "all", "metadata_only"])]
    rebuild_index: bool,
}

#[derive(Serialize)]
struct VerifyJson<'a> {
    sound: bool,
    metadata_only: bool,
    #[serde(flatten)]
    report: &'a VerifyReport,
}

/// Verifies.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    RequestPurpose::Upkeep.set_for_process();
    let volume = context.open_volume()?;
    if args.rebuild_index {
        return run_rebuild(&volume, context);
    }
    let scope = if args.all {
        VerifyScope::All
    } else {
        VerifyScope::Snapshot(volume.resolve_snapshot(&args.snapshot)?)
    };
    let start = std::time::Instant::now();
    let report = context
        .run_with_progress(
            ProgressTask { first: "Reading the index", verb: "Verifying", item: "object" },
            |meter| verify_volume(&volume, &scope, args.metadata_only, meter),
        )
        .with_resume_hint("nothing was changed; a verification starts from the beginning")?;
    // Damage is a finding of this command, and no failure of it.
    let outcome = CommandOutcome::from_findings(!report.findings.is_empty());
    let ui = &context.ui;
    if ui.is_json() {
        let sound = report.findings.is_empty();
        let metadata_only = args.metadata_only;
        ui.print_json(&VerifyJson { sound, metadata_only, report: &report })?;
        return Ok(outcome);
    }
    let read = format!(
        "{}, {} ({} stored) in {}",
        format::format_count(report.snapshots, "snapshot"),
        format::format_count(report.blobs, "blob"),
        format::format_size(report.bytes),
        format::format_duration(start.elapsed())
    );
    let verdict = match report.findings.len() as u64 {
        0 => ui.style.paint_green("All is intact"),
        damaged => ui.style.paint_red(&format!("Damaged: {}", format::format_count(damaged, "object"))),
    };
    let limits = if args.metadata_only { " (without the content of files)" } else { "" };
    ui.print_line(format!("{verdict}: read {read}{limits}"))?;
    let mut lines: Vec<_> =
        report.findings.iter().flat_map(|finding| describe_finding(&volume, finding)).collect();
    // One damaged pack hits thousands of blobs and files: they are counted by pack and by directory.
    if lines.len() > LINES_MAX && !ui.voice.verbose {
        lines = summarize_findings(&volume, &report.findings)?;
        ui.print_note("--verbose lists every damaged blob and every file")?;
    }
    ui.print_lines(lines)?;
    if report.foreign.count > 0 {
        let examples = report.foreign.examples.join("', '");
        ui.print_note(format!(
            "{} in the store: none of this volume's, and left alone, such as '{examples}'",
            format::format_count(report.foreign.count, "other object")
        ))?;
    }
    if report.needs_new_index {
        ui.print_note("'vellum verify --rebuild-index' makes the index anew from the packs")?;
    }
    if report.findings.iter().any(|finding| !finding.affected.is_empty()) {
        ui.print_note(
            "the next 'vellum snapshot' stores again what the directory still has of it, and older snapshots get it \
             back where they have the same content",
        )?;
    }
    Ok(outcome)
}

fn run_rebuild(volume: &Volume, context: &CommandContext) -> Result<CommandOutcome> {
    let task = ProgressTask { first: "Reading the packs", verb: "Reading", item: "pack" };
    let rebuilt = context.run_with_progress(task, |_| rebuild_index(volume))?;
    let outcome = CommandOutcome::from_findings(!rebuilt.unreadable.is_empty());
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&rebuilt)?;
        return Ok(outcome);
    }
    let RebuiltIndex { packs, blobs, unreadable } = rebuilt;
    let packs = format::format_count(packs, "pack");
    ui.print_line(format!("Made the index anew: {} in {packs}", format::format_count(blobs, "blob")))?;
    for pack in &unreadable {
        let problem = format_path(pack.problem.as_bytes());
        ui.print_line(format!("{} is left out: {problem}", format_path(pack.object.as_bytes())))?;
    }
    ui.print_note("'vellum verify --all' shows whether anything else is damaged")?;
    Ok(outcome)
}

/// Files of one directory that are hit.
#[derive(Default)]
struct DamagedDirectory {
    files: BTreeSet<String>,
    /// Files beyond those that the report names.
    more: u64,
    snapshots: BTreeSet<usize>,
    /// Others than snapshots that have them.
    others: BTreeSet<String>,
}

/// The findings by object, and what they hit by directory, with the range of snapshots.
fn summarize_findings(volume: &Volume, findings: &[VerifyFinding]) -> Result<Vec<String>> {
    let history = list_history(&volume.catalog)?;
    // Oldest first, so that a range of snapshots reads in the order of time.
    let age: HashMap<String, usize> =
        history.iter().rev().enumerate().map(|(age, entry)| (entry.id.to_string(), age)).collect();
    let mut lines = Vec::new();
    let mut blobs: BTreeMap<&str, (u64, &str)> = BTreeMap::new();
    let mut directories: BTreeMap<String, DamagedDirectory> = BTreeMap::new();
    for finding in findings {
        // A finding about a blob is called "BLOB in PACK", any other by its object alone.
        match finding.object.split_once(" in ") {
            // The blobs of a damaged pack mostly have one problem in common, so that the first is shown for all.
            Some((_, place)) => blobs.entry(place).or_insert((0, &finding.problem)).0 += 1,
            None => {
                lines.push(format!("{}: {}", format_path(&finding.object), format_path(&finding.problem)))
            }
        }
        for affected in &finding.affected {
            let named = affected.paths.len() as u64;
            let mut note = |directory: String, file: Option<&String>, more| {
                let hits = directories.entry(directory).or_default();
                hits.files.extend(file.cloned());
                // Several snapshots may have the same damaged files, so the numbers are not added.
                hits.more = hits.more.max(more);
                match &affected.owner {
                    TreeOwner::Snapshot(id) => hits.snapshots.extend(age.get(id)),
                    TreeOwner::Worktree(_) | TreeOwner::Trash(_) => {
                        hits.others.insert(describe_owner(volume, &affected.owner));
                    }
                }
            };
            for path in &affected.paths {
                let directory = path.rsplit_once('/').map_or(".", |(directory, _)| directory);
                note(directory.into(), Some(path), 0);
            }
            match affected.count {
                None => note("files that cannot be named, because a directory is damaged".into(), None, 0),
                Some(count) if count > named => note("other files".into(), None, count - named),
                Some(_) => {}
            }
        }
    }
    for (place, (count, problem)) in blobs {
        let count = format::format_count(count, "blob");
        lines.push(format!("{}: {count} damaged: {}", format_path(place), format_path(problem)));
    }
    for (directory, hits) in directories {
        let files = match (hits.files.len() as u64, hits.more) {
            (0, 0) => String::new(),
            (0, more) => format!(": {} or more", format::format_count(more, "file")),
            (files, _) => format!(": {}", format::format_count(files, "file")),
        };
        let mut owners = Vec::from_iter(hits.others);
        if !hits.snapshots.is_empty() || owners.is_empty() {
            owners.insert(0, format_snapshot_range(volume, &history, &hits.snapshots)?);
        }
        lines.push(format!("    {directory}{files}, {}", owners.join(", ")));
    }
    Ok(lines)
}

/// Snapshots by their age, oldest 0, as a range.
fn format_snapshot_range(
    volume: &Volume,
    history: &[HistoryEntry],
    ages: &BTreeSet<usize>,
) -> Result<String> {
    let short = |age: Option<&usize>| {
        // The history begins with the newest snapshot, and ages count from the oldest.
        let entry = age.and_then(|age| history.iter().rev().nth(*age));
        entry.map_or(Ok(String::new()), |entry| volume.short_id(&entry.id))
    };
    let first = short(ages.first())?;
    let last = short(ages.last())?;
    Ok(match ages.len() as u64 {
        0 | 1 => format!("in snapshot {first}"),
        count => format!("in {} from {first} to {last}", format::format_count(count, "snapshot")),
    })
}

fn describe_finding(volume: &Volume, finding: &VerifyFinding) -> Vec<String> {
    let mut lines = vec![format!("{}: {}", format_path(&finding.object), format_path(&finding.problem))];
    for AffectedTree { owner, paths, count } in &finding.affected {
        let place = describe_owner(volume, owner);
        lines.extend(paths.iter().map(|path| format!("    {place}: {path}")));
        match count {
            Some(count) if *count > paths.len() as u64 => {
                lines
                    .push(format!("    {place}: {} more", format::format_number(count - paths.len() as u64)));
            }
            None => {
                lines.push(format!("    {place}: files that cannot be named, because a directory is damaged"))
            }
            Some(_) => {}
        }
    }
    lines
}

/// Where files are.
fn describe_owner(volume: &Volume, owner: &TreeOwner) -> String {
    match owner {
        // The volume is damaged, so that the id may not be found in it: then it is shown whole.
        TreeOwner::Snapshot(id) => {
            let short = id.parse().ok().and_then(|id| volume.short_id(&id).ok());
            format!("in {}", short.as_ref().unwrap_or(id))
        }
        TreeOwner::Worktree(name) => format!("in worktree '{}'", format_path(name.as_bytes())),
        TreeOwner::Trash(name) => format!("in the trash of '{}'", format_path(name.as_bytes())),
    }
}
