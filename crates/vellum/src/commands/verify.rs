//! `vellum verify`: proves that nothing rotted, or names what did.

mod findings;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use vellum_checkout::repair::{RepairPlace, RepairRequest, repair_volume};
use vellum_host::escape::format_path;
use vellum_store::{RequestPurpose, StoreLocation};
use vellum_volume::Volume;
use vellum_volume::repair::RepairReport;
use vellum_volume::verify::{
    PackPart, RebuiltIndex, VerifyReport, VerifyScope, rebuild_index, verify_volume,
};

use self::findings::{describe_finding, summarize_findings};
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result, ResumeHint};
use crate::hooks::{HookCall, HookFact, HookKind};
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
    /// Check P percent of the packs, those first that were not looked at for longest
    ///
    /// Runs with the same percentage see everything in turn: with 5%, twenty. What a run has seen is noted on this
    /// machine, also if it is stopped. Each run also checks keys, refs and as large a part of the records, and whether all
    /// packs and records are there. Trees are checked by --since-last and --all.
    #[arg(long, value_name = "P%", conflicts_with_all = ["snapshot", "all", "metadata_only"], value_parser = parse_percent)]
    sample: Option<f64>,
    /// Check the packs that were not found intact on this machine before, and the snapshots that they belong to
    #[arg(long, conflicts_with_all = ["snapshot", "all", "metadata_only", "sample"])]
    since_last: bool,
    /// Make the index anew from the packs, if objects of it are damaged or missing; verify nothing
    ///
    /// Reads the table of contents of each pack. Nobody may write to the store meanwhile: the command fails if somebody
    /// does.
    #[arg(long, conflicts_with_all = ["snapshot", "all", "metadata_only", "sample", "since_last"])]
    rebuild_index: bool,
    /// Store again what is damaged or missing, from wherever else it is; name the files of what cannot be mended
    ///
    /// Looks in packs that the index does not know, in copies on this machine, in remotes and in the files of this
    /// machine's worktrees. Only adds to the store: nothing is deleted or replaced. A copy counts only if it has the
    /// id of what was lost.
    #[arg(long, conflicts_with = "rebuild_index")]
    repair: bool,
    /// With --repair, look in PLACE too: another store of the volume, a worktree, or any directory with copies of files
    ///
    /// Can be repeated.
    #[arg(long, value_name = "PLACE", requires = "repair")]
    from: Vec<OsString>,
}

#[derive(Serialize)]
struct VerifyJson<'a> {
    sound: bool,
    metadata_only: bool,
    #[serde(flatten)]
    report: &'a VerifyReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    repair: Option<&'a RepairReport>,
}

/// Verifies.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    RequestPurpose::Upkeep.set_for_process();
    let volume = context.open_volume()?;
    if args.rebuild_index {
        // Before a snapshot is resolved, which an index that is damaged may not allow.
        return run_rebuild(&volume, context);
    }
    let scope = if args.all {
        VerifyScope::All
    } else if let Some(percent) = args.sample {
        VerifyScope::Part(PackPart::Sample(percent))
    } else if args.since_last {
        VerifyScope::Part(PackPart::SinceLast)
    } else {
        VerifyScope::Snapshot(volume.resolve_snapshot(&args.snapshot)?)
    };
    let start = std::time::Instant::now();
    let verified = verify_scope(args, &scope, &volume, context)?;
    report_scope(args, &verified, start.elapsed(), &volume, context)?;
    if verified.report.findings.is_empty() {
        return Ok(CommandOutcome::Done);
    }
    // After the report: a hook that fails must not keep the user from reading what was found.
    run_damage_hook(&verified.report, &volume, context)?;
    // Damage is a finding of this command, and no failure of it.
    Ok(CommandOutcome::Findings)
}

fn run_damage_hook(report: &VerifyReport, volume: &Volume, context: &CommandContext) -> Result<()> {
    let damaged = report.findings.len().to_string();
    let facts = &[
        HookFact::worktree(&volume.worktree.worktree),
        HookFact { name: "VELLUM_DAMAGED", value: damaged.as_ref() },
    ];
    let directory = &context.cwd;
    HookCall { kind: HookKind::OnDamage, state: &volume.state, directory, facts }.run(context).map(drop)
}

fn report_scope(
    args: &Args,
    verified: &VerifiedScope,
    time: Duration,
    volume: &Volume,
    context: &CommandContext,
) -> Result<()> {
    let report = &verified.report;
    if context.ui.is_json() {
        let sound = report.findings.is_empty();
        let metadata_only = args.metadata_only;
        return context.ui.print_json(&VerifyJson {
            sound,
            metadata_only,
            report,
            repair: verified.repaired.as_ref(),
        });
    }
    if let Some(repaired) = &verified.repaired {
        print_repair(repaired, context)?;
    }
    let looked_at = match &report.part {
        None => format::format_count(report.snapshots, "snapshot"),
        Some(part) => {
            format!("{} of {}", format::format_number(part.packs), format::format_count(part.of, "pack"))
        }
    };
    let read = format!(
        "{looked_at}, {} ({} stored) in {}",
        format::format_count(report.blobs, "blob"),
        format::format_size(report.bytes),
        format::format_duration(time)
    );
    let limits = if args.metadata_only { " (without the content of files)" } else { "" };
    print_report(verified, &format!("read {read}{limits}"), volume, context)
}

fn parse_percent(typed: &str) -> Result<f64, String> {
    let number = typed.strip_suffix('%').unwrap_or(typed).parse::<f64>().ok();
    number
        .filter(|percent| *percent > 0.0 && *percent <= 100.0)
        .ok_or_else(|| "a percentage above 0 and up to 100 is needed, as in 5%".into())
}

/// What was verified, and mended if that was asked for.
struct VerifiedScope {
    report: VerifyReport,
    repaired: Option<RepairReport>,
}

fn verify_scope(
    args: &Args,
    scope: &VerifyScope,
    volume: &Volume,
    context: &CommandContext,
) -> Result<VerifiedScope> {
    let task = ProgressTask { first: "Reading the index", verb: "Verifying", item: "object" };
    let metadata_only = args.metadata_only;
    if !args.repair {
        let resume = match scope {
            // Parts note which packs they have read. The others keep nothing, since what they read is not a set of packs.
            VerifyScope::Part(_) => "nothing was changed; the next run goes on with what is left",
            VerifyScope::Snapshot(_) | VerifyScope::All => {
                "nothing was changed; a verification starts from the beginning"
            }
        };
        let report = context
            .run_with_progress(task, |meter| verify_volume(volume, scope, metadata_only, meter))
            .with_resume_hint(resume)?;
        return Ok(VerifiedScope { report, repaired: None });
    }
    let find_place = |typed: &OsString| find_repair_place(typed, context);
    let places = args.from.iter().map(find_place).collect::<Result<Vec<_>>>()?;
    let request = RepairRequest { scope, metadata_only, places: &places };
    let done = context
        .run_with_progress(task, |meter| repair_volume(volume, &request, meter))
        .with_resume_hint("what was mended stays; run the command again to continue")?;
    Ok(VerifiedScope { report: done.verified, repaired: Some(done.repaired) })
}

/// A place that was typed: a directory, or the address of a store.
fn find_repair_place(typed: &OsString, context: &CommandContext) -> Result<RepairPlace> {
    // A name that has '://' in it is taken for an address, whether there is such a directory or not.
    let directory = context.resolve_local_path(Path::new(typed));
    if let Some(url) = typed.to_str().filter(|text| text.contains("://")) {
        return Ok(RepairPlace::Store(StoreLocation::new(url)));
    }
    if !directory.is_dir() {
        let shown = format_path(typed.as_bytes());
        return Err(CliError::usage_error(
            format!("{shown} is no directory"),
            "--from takes a directory or the address of a store",
        ));
    }
    Ok(RepairPlace::Directory(directory))
}

fn print_repair(repaired: &RepairReport, context: &CommandContext) -> Result<()> {
    let ui = &context.ui;
    for mended in &repaired.mended {
        let blobs = format::format_count(mended.blobs, "blob");
        let source = format_path(mended.source.as_bytes());
        ui.print_line(format!("Mended {blobs}, {}, from {source}", format::format_size(mended.bytes)))?;
    }
    for refused in &repaired.refused {
        let source = format_path(refused.source.as_bytes());
        ui.print_line(format!("Refused {source}: {}", format_path(refused.problem.as_bytes())))?;
    }
    if repaired.unused_packs > 0 {
        let packs = format::format_count(repaired.unused_packs, "damaged pack");
        ui.print_note(format!("{packs} not needed any more: 'vellum gc run' deletes what is left of them"))?;
    }
    Ok(())
}

fn print_report(
    verified: &VerifiedScope,
    read: &str,
    volume: &Volume,
    context: &CommandContext,
) -> Result<()> {
    let ui = &context.ui;
    let VerifiedScope { report, repaired } = verified;
    let verdict = match report.findings.len() as u64 {
        0 if report.part.is_some() => ui.style.paint_green("Intact"),
        0 => ui.style.paint_green("All is intact"),
        damaged => ui.style.paint_red(&format!("Damaged: {}", format::format_count(damaged, "object"))),
    };
    ui.print_line(format!("{verdict}: {read}"))?;
    if let Some(part) = report.part.as_ref().filter(|part| part.left > 0) {
        let left = format::format_count(part.left, "pack");
        ui.print_note(format!("{left} still to be looked at by the next runs"))?;
    }
    if let Some(reason) = report.part.as_ref().and_then(|part| part.not_noted.as_ref()) {
        let message =
            format!("what was looked at could not be noted: the next run reads the same ({reason})");
        ui.print_warning(message)?;
    }
    let mut lines: Vec<_> =
        report.findings.iter().flat_map(|finding| describe_finding(volume, finding)).collect();
    // One damaged pack hits thousands of blobs and files: they are counted by pack and by directory.
    let is_long = lines.len() > LINES_MAX || repaired.is_some() && !lines.is_empty();
    if is_long && !ui.voice.verbose {
        lines = summarize_findings(volume, &report.findings)?;
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
        ui.print_note(match repaired {
            None => {
                "'vellum verify --repair' looks for it elsewhere; the next 'vellum snapshot' stores again what the \
                 directory still has of it"
            }
            Some(_) => {
                "'--from PLACE' looks in other places too; what the directory has now is stored by the next 'vellum \
                 snapshot'"
            }
        })?;
    }
    Ok(())
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
