//! `vellum device rotate`: a new key, which a device that was revoked is not given.

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_volume::Volume;
use vellum_volume::key_epochs::{RotationReport, bring_slots_up_to_date, preview_rotation, rotate_key};
use vellum_volume::remote::Remote;

use crate::context::CommandContext;
use crate::error::{CommandOutcome, Result, ResumeHint};
use crate::ui::progress::ProgressTask;

/// Change the volume's key, so that a revoked device reads nothing new
///
/// Everything that is stored from then on is sealed with a new key, which all other devices and key slots are given. What
/// was stored before stays readable to whoever had the old key and can still reach the store. The store and each remote
/// have keys of their own. If the command is interrupted, run it again.
#[derive(Debug, clap::Args)]
pub struct RotateArgs {
    /// Change the key of this remote, not that of the worktree's own store
    #[arg(long, value_name = "NAME")]
    remote: Option<String>,
    /// Print who would be given the new key, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct RotationJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    remote: Option<String>,
    dry_run: bool,
    key_epoch: u32,
    recipients: Vec<String>,
    /// Key slots that were added at the same time, and do not have the new key.
    left_out: Vec<String>,
    /// Refs that were sealed anew.
    refs: u64,
    /// Refs that cannot be read.
    damaged: Vec<String>,
    /// Whether a rotation was finished that had been interrupted.
    resumed: bool,
}

impl RotateArgs {
    /// Changes the key of the store, or of a remote.
    pub fn rotate(&self, context: &CommandContext, volume: &Volume) -> Result<CommandOutcome> {
        let remote = self.remote.as_deref().map(|name| volume.find_remote(Some(name))).transpose()?;
        let report = match &remote {
            Some(remote) => self.rotate_remote(context, volume, remote)?,
            None => self.rotate_store(context, volume)?,
        };
        self.report_rotation(context, volume, &report)
    }

    fn rotate_remote(
        &self,
        context: &CommandContext,
        volume: &Volume,
        remote: &Remote,
    ) -> Result<RotationReport> {
        // A remote to which nothing was pushed has no volume yet, and no key that could be changed.
        let Some(target) = volume.open_remote(remote)? else {
            return Err(vellum_volume::VolumeError::EmptyRemote(remote.name.clone()).into());
        };
        // A rotation gives the new key to the slots that the store has: a device that was added here, and not
        // pushed yet, would be left without it; one that was revoked here would still be given it.
        if !self.dry_run {
            bring_slots_up_to_date(volume, &target)?;
        }
        self.rotate_store(context, &target)
    }

    fn rotate_store(&self, context: &CommandContext, store: &Volume) -> Result<RotationReport> {
        if self.dry_run {
            return Ok(preview_rotation(store)?);
        }
        let task = ProgressTask { first: "Changing the key", verb: "Sealing", item: "ref" };
        context
            .run_with_progress(task, |meter| rotate_key(store, meter))
            .with_resume_hint("run the command again: it finishes the change")
    }

    fn report_rotation(
        &self,
        context: &CommandContext,
        volume: &Volume,
        report: &RotationReport,
    ) -> Result<CommandOutcome> {
        let ui = &context.ui;
        let is_incomplete = !report.damaged.is_empty() || !report.left_out.is_empty();
        let outcome = CommandOutcome::from_findings(is_incomplete);
        if ui.is_json() {
            ui.print_json(&RotationJson {
                remote: self.remote.clone(),
                dry_run: self.dry_run,
                key_epoch: report.epoch,
                recipients: report.recipients.clone(),
                left_out: report.left_out.clone(),
                refs: report.refs,
                damaged: report.damaged.iter().map(ToString::to_string).collect(),
                resumed: report.is_resumed,
            })?;
            return Ok(outcome);
        }
        if !ui.voice.quiet {
            ui.print_line(self.describe_change(report))?;
            for recipient in &report.recipients {
                ui.print_line(format!("  {}", format_path(recipient)))?;
            }
        }
        for title in &report.left_out {
            let title = format_path(title);
            ui.print_warning(format!(
                "{title} was added at the same time and does not have the new key: remove it, and add it again"
            ))?;
        }
        for object in &report.damaged {
            ui.print_warning(format!("{object} cannot be read, and is not sealed with the new key"))?;
        }
        // Each store has keys of its own. Whoever wants to shut a device out has to change them all.
        if self.remote.is_none() && !self.dry_run {
            for remote in volume.list_remotes()? {
                let name = remote.name;
                ui.print_note(format!(
                    "the remote {name} has a key of its own: 'vellum device rotate --remote {name}' changes it"
                ))?;
            }
        }
        Ok(outcome)
    }

    fn describe_change(&self, report: &RotationReport) -> String {
        let epoch = report.epoch;
        match (self.dry_run, report.is_resumed) {
            (true, false) => format!("Would change the key, to that of key epoch {epoch}, and give it to"),
            (true, true) => {
                format!("Would finish the change to key epoch {epoch} that was interrupted, given to")
            }
            (false, true) => {
                format!("Finished the interrupted change of the key: key epoch {epoch}, given to")
            }
            (false, false) => format!("Changed the key: key epoch {epoch}, given to"),
        }
    }
}
