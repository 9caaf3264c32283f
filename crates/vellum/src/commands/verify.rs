//! `vellum verify`: proves that nothing rotted, or names what did.

use serde::Serialize;
use vellum_volume::Volume;
use vellum_volume::tree::show;
use vellum_volume::verify::{Affected, Finding, Report, Scope, verify};

use crate::context::Context;
use crate::error::{CliError, Outcome, Result};
use crate::ui::format;
use crate::ui::progress::Task;

/// Prove that snapshots are intact, or name what is damaged
///
/// Reads everything from the store, opens and hashes it again: of one snapshot [default: the one this worktree stands
/// on], or of the whole store with --all. Exits with 1 if anything is damaged or missing, and says which files of
/// which snapshots it concerns.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The snapshot
    #[arg(value_name = "SNAP", default_value = "HEAD")]
    snapshot: String,
    /// Every object of the store, and every snapshot
    #[arg(short, long, conflicts_with = "snapshot")]
    all: bool,
    /// Leave out the content of files: names, attributes and structure only
    #[arg(long)]
    metadata_only: bool,
}

#[derive(Serialize)]
struct JsonReport<'a> {
    sound: bool,
    metadata_only: bool,
    #[serde(flatten)]
    report: &'a Report,
}

/// Verifies.
pub fn run(args: &Args, context: &Context) -> Result<Outcome> {
    let volume = context.volume()?;
    let scope = if args.all { Scope::All } else { Scope::Snapshot(volume.resolve(&args.snapshot)?) };
    let start = std::time::Instant::now();
    let report = context
        .watch(Task { first: "Reading the index", verb: "Verifying", item: "object" }, |meter| {
            verify(&volume, &scope, args.metadata_only, meter)
        })
        .map_err(|error| {
            CliError::from(error).or_resume("nothing was changed; a verification starts from the beginning")
        })?;
    let outcome = Outcome::findings(!report.findings.is_empty());
    let ui = &context.ui;
    if ui.json() {
        let (sound, metadata_only) = (report.findings.is_empty(), args.metadata_only);
        ui.object(&JsonReport { sound, metadata_only, report: &report })?;
        return Ok(outcome);
    }
    for finding in &report.findings {
        for line in describe(&volume, finding) {
            ui.line(line)?;
        }
    }
    let read = format!(
        "{}, {} ({} stored) in {}",
        format::count(report.snapshots, "snapshot"),
        format::count(report.blobs, "blob"),
        format::size(report.bytes),
        format::span(start.elapsed())
    );
    let verdict = match report.findings.len() as u64 {
        0 => ui.style.green("All is intact"),
        damaged => ui.style.red(&format!("Damaged: {}", format::count(damaged, "object"))),
    };
    let limits = if args.metadata_only { " (without the content of files)" } else { "" };
    ui.line(format!("{verdict}: read {read}{limits}"))?;
    Ok(outcome)
}

fn describe(volume: &Volume, finding: &Finding) -> Vec<String> {
    let mut lines =
        vec![format!("{}: {}", show(finding.object.as_bytes()), show(finding.problem.as_bytes()))];
    for Affected { snapshot, paths, count } in &finding.affected {
        let short = snapshot.parse().ok().and_then(|id| volume.short_id(&id).ok());
        let short = short.unwrap_or_else(|| snapshot.clone());
        lines.extend(paths.iter().map(|path| format!("    in {short}: {path}")));
        match count {
            Some(count) if *count > paths.len() as u64 => {
                lines.push(format!("    in {short}: {} more", format::number(count - paths.len() as u64)));
            }
            None => lines
                .push(format!("    in {short}: files that cannot be named, because a directory is damaged")),
            Some(_) => {}
        }
    }
    lines
}
