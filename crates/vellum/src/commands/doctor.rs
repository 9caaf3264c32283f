//! `vellum doctor`: examines this worktree, its volume and this machine, and mends what cannot lose data.

mod machine;
mod unfinished;

use std::path::PathBuf;

use serde::Serialize;
use vellum_checkout::doctor::examine_directory;
use vellum_host::escape::format_path;
use vellum_store::RequestPurpose;
use vellum_volume::doctor::{
    DoctorFinding, DoctorFindings, FindingRepair, FindingSeverity, examine_volume, explain_missing_worktree,
    explain_open_failure,
};
use vellum_volume::{StateDir, Volume};

use self::machine::{MachineFeature, examine_mounts, list_machine_features};
use self::unfinished::{examine_tries, examine_uploads};
use crate::context::CommandContext;
use crate::context::mounted::{MountProcess, find_mount_above};
use crate::error::{CliError, CommandOutcome, Result, volume_hint};
use crate::probe::is_mount_answering;
use crate::settings::SettingsFile;
use crate::ui::UserInterface;
use crate::ui::format;

/// Examine this worktree, its volume and this machine
///
/// Looks for sessions, leases and mounts of processes that are gone or stopped, leftovers of commands that were killed,
/// restores, merges, tries and uploads that were interrupted, a moved store, a copied worktree, damaged refs, local copies
/// that disagree with the store, missing packs, a wrong clock and full disks, and says what each means and what to do. Reads
/// no content: that is what 'vellum verify' is for. Exits with 1 if there are problems or warnings that are not repaired.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Repair what can be repaired without losing anything; each finding says what that is
    ///
    /// Ends sessions of dead processes, detaches dead mounts, removes leftovers and damaged copies of what the store has.
    /// Does nothing to processes that run or are stopped, nor to what they use.
    #[arg(long)]
    repair: bool,
}

#[derive(Serialize)]
struct DoctorJson<'a> {
    healthy: bool,
    findings: Vec<FindingJson<'a>>,
    features: &'a [MachineFeature],
}

#[derive(Serialize)]
struct FindingJson<'a> {
    id: &'static str,
    severity: FindingSeverity,
    object: &'a str,
    meaning: &'a str,
    remedy: &'a str,
    repair: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'a str>,
}

impl<'a> FindingJson<'a> {
    fn new(finding: &'a DoctorFinding) -> Self {
        let (repair, failure) = match &finding.repair {
            FindingRepair::None => ("none", None),
            FindingRepair::Possible => ("possible", None),
            FindingRepair::Done => ("done", None),
            FindingRepair::Failed(why) => ("failed", Some(why.as_str())),
        };
        let DoctorFinding { id, severity, object, meaning, remedy, .. } = finding;
        Self { id, severity: *severity, object, meaning, remedy, repair, failure }
    }
}

/// Examines them.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    RequestPurpose::Upkeep.set_for_process();
    let mut findings = DoctorFindings::new(args.repair, volume_hint);
    // First: a mount whose process does not answer would hold up everything that looks into it.
    examine_mounts(&mut findings)?;
    SettingsFile::of_user().into_iter().for_each(|file| examine_settings(&mut findings, &file));
    let place = examine_worktree(&mut findings, context)?;
    examine_uploads(&mut findings);
    let features = list_machine_features(&place);
    report_findings(&findings.into_sorted(), &features, &context.ui)
}

/// Examines the worktree that the user stands in. Returns a directory of it, or where the user stands.
fn examine_worktree(findings: &mut DoctorFindings, context: &CommandContext) -> Result<PathBuf> {
    let mount = find_mount_above(&context.cwd)?;
    // Reported with the mounts. Whoever asks a mount whose process is stopped waits for it.
    if mount.as_ref().is_some_and(|mount| !is_mount_answering(&mount.mountpoint) || mount.is_dead()) {
        return Ok("/".into());
    }
    let found = match &mount {
        // It is not asked to publish first.
        Some(mount) => MountProcess::find_for_mount(mount).and_then(|process| process.state_dir()),
        None => context.open_state_dir(),
    };
    let state = match found {
        Ok(state) => state,
        // To find out why a volume does not open is what this command is for.
        Err(CliError::Volume(error)) => {
            let finding = explain_missing_worktree(&context.cwd, &error, findings);
            findings.add(finding);
            return Ok(context.cwd.clone());
        }
        Err(error) => return Err(error),
    };
    examine_settings(findings, &SettingsFile::of_worktree(&state));
    examine_opened(&state, findings, context)?;
    Ok(state.path().into())
}

/// Until somebody mends such a file, almost every command is refused.
fn examine_settings(findings: &mut DoctorFindings, file: &SettingsFile) {
    if let Some(error) = file.find_problem() {
        let object = format!("settings of the {}", file.scope());
        let remedy = error.hint().unwrap_or_default();
        let severity = FindingSeverity::Problem;
        findings.add(DoctorFinding::new(severity, "wrong-settings", object, error.format_chain(), remedy));
    }
}

fn examine_opened(state: &StateDir, findings: &mut DoctorFindings, context: &CommandContext) -> Result<()> {
    match Volume::open(state) {
        Ok(volume) => {
            examine_volume(&volume, findings);
            examine_directory(&volume, findings);
            examine_tries(state, findings, context)
        }
        Err(error) => {
            let finding = explain_open_failure(state, &error, findings);
            findings.add(finding);
            Ok(())
        }
    }
}

fn report_findings(
    findings: &[DoctorFinding],
    features: &[MachineFeature],
    ui: &UserInterface,
) -> Result<CommandOutcome> {
    let healthy = !findings.iter().any(DoctorFinding::is_open);
    let outcome = CommandOutcome::from_findings(!healthy);
    if ui.is_json() {
        let findings = findings.iter().map(FindingJson::new).collect();
        ui.print_json(&DoctorJson { healthy, findings, features })?;
        return Ok(outcome);
    }
    for finding in findings {
        print_finding(finding, ui)?;
    }
    ui.print_line(if healthy {
        ui.style.paint_green("Healthy")
    } else {
        let count = |severity| {
            findings.iter().filter(|finding| finding.is_open() && finding.severity == severity).count() as u64
        };
        let problems = format::format_count(count(FindingSeverity::Problem), "problem");
        let warnings = format::format_count(count(FindingSeverity::Warning), "warning");
        ui.style.paint_red(&format!("{problems}, {warnings}"))
    })?;
    let repairable =
        findings.iter().filter(|finding| finding.repair == FindingRepair::Possible).count() as u64;
    if repairable > 0 {
        let findings = format::format_count(repairable, "finding");
        ui.print_note(format!("'vellum doctor --repair' repairs {findings}"))?;
    }
    if ui.voice.verbose {
        for feature in features {
            let has = if feature.available { "has" } else { "lacks" };
            ui.print_line(format!("This machine {has} {}: {}", feature.id, feature.meaning))?;
        }
    }
    Ok(outcome)
}

fn print_finding(finding: &DoctorFinding, ui: &UserInterface) -> Result<()> {
    let style = ui.style;
    let severity = match finding.severity {
        FindingSeverity::Problem => style.paint_red("problem"),
        FindingSeverity::Warning => style.paint_yellow("warning"),
        FindingSeverity::Note => "note".into(),
    };
    // Names in messages come from directories and from the store.
    let object = format_path(&finding.object);
    let meaning = format_path(&finding.meaning);
    ui.print_line(format!("{severity}: {object}: {meaning} ({})", finding.id))?;
    let remedy = format_path(&finding.remedy);
    let action = match &finding.repair {
        FindingRepair::None => remedy,
        FindingRepair::Possible => format!("--repair {remedy}"),
        FindingRepair::Done => style.paint_green("repaired"),
        FindingRepair::Failed(why) => format!("not repaired: {}", format_path(why)),
    };
    if action.is_empty() { Ok(()) } else { ui.print_line(format!("    {action}")) }
}
