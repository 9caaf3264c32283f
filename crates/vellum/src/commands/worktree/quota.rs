//! `vellum worktree quota`: how much a mounted worktree may hold.

use std::path::Path;

use serde::Serialize;
use vellum_host::process::host_name;
use vellum_library::{OpenError, live};
use vellum_volume::refs::{WorktreeHead, WorktreeQuota};
use vellum_volume::{SnapshotStatistics, Volume, VolumeError};

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::mounting::control::{self, ControlReply, ControlRequest, SOCKET};
use crate::ui::format;

/// What is to be shown or set.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The worktree; by default the current one
    name: Option<String>,
    /// Limit the size of all content, holes included, in bytes or with K, M, G
    #[arg(long, value_name = "SIZE", value_parser = format::parse_size)]
    bytes: Option<u64>,
    /// Limit the number of files, directories and other entries
    #[arg(long, value_name = "NUMBER")]
    inodes: Option<u64>,
    /// Remove both limits
    #[arg(long, conflicts_with_all = ["bytes", "inodes"])]
    none: bool,
}

#[derive(Serialize)]
struct QuotaJson {
    name: String,
    bytes: QuotaPartJson,
    inodes: QuotaPartJson,
}

/// One number and its limit.
#[derive(Serialize)]
struct QuotaPartJson {
    used: u64,
    limit: Option<u64>,
}

/// Sets what was typed, and shows what there is.
pub fn run(args: &Args, context: &CommandContext, volume: &Volume) -> Result<CommandOutcome> {
    let name = args.name.clone().unwrap_or_else(|| volume.worktree.worktree.clone());
    let missing = || VolumeError::no_worktree(name.clone());
    let head = match live::find_live_worktree(volume, &name) {
        Err(OpenError::CheckedOut { name, place }) => {
            let message = format!("'{name}' is checked out in {place}: only mounted worktrees have a quota");
            let hint = "limit a directory of plain files with the quotas of its filesystem; 'vellum mount' makes a worktree \
                        that can have one";
            return Err(CliError::usage_error(message, hint));
        }
        found => found?.ok_or_else(missing)?,
    };
    let mut quota = if args.none { WorktreeQuota::default() } else { head.quota };
    quota.bytes = args.bytes.or(quota.bytes);
    quota.inodes = args.inodes.or(quota.inodes);
    let changed = quota != head.quota;
    // A mounted worktree counts in its process, which enforces the limit: that alone changes it there.
    let used = match query_mounted_quota(&head, changed.then_some(quota))? {
        Some(answer) => (answer.used_bytes, answer.used_inodes),
        None => {
            if changed {
                volume.update_worktree_ref(&name, |head| head.quota = quota)?;
            }
            published_usage(volume, &head)?
        }
    };
    let bytes = QuotaPartJson { used: used.0, limit: quota.bytes };
    let inodes = QuotaPartJson { used: used.1, limit: quota.inodes };
    report_quota(context, &QuotaJson { name, bytes, inodes })
}

/// Asks the process that has the worktree mounted on this machine, if one has, and lets it set another quota.
pub(super) fn query_mounted_quota(
    head: &WorktreeHead,
    quota: Option<WorktreeQuota>,
) -> Result<Option<ControlReply>> {
    let Some(lease) = head.lease.as_ref().filter(|lease| !lease.ended) else { return Ok(None) };
    // The lease of a process that has died ends by itself; until then no process answers.
    if head.host != host_name() || lease.session.is_process_dead() {
        return Ok(None);
    }
    let request = quota.map_or(ControlRequest::Status, |quota| ControlRequest::Quota {
        bytes: quota.bytes,
        inodes: quota.inodes,
    });
    control::request_reply(&Path::new(&head.place).join(SOCKET), &request).map(Some)
}

/// What a worktree holds that is not mounted here: what was published of it.
pub(super) fn published_usage(volume: &Volume, head: &WorktreeHead) -> Result<(u64, u64)> {
    let counted = match (&head.live, &head.head) {
        (Some(live), _) => live.counted,
        (None, Some(id)) => volume.catalog.get_record(id)?.statistics,
        (None, None) => SnapshotStatistics::default(),
    };
    Ok((counted.bytes, counted.files + counted.dirs + counted.others))
}

fn report_quota(context: &CommandContext, report: &QuotaJson) -> Result<CommandOutcome> {
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(report)?;
        return Ok(CommandOutcome::Done);
    }
    let QuotaJson { name, bytes, inodes } = report;
    let of = |limit: Option<String>| limit.map_or_else(|| "no limit".into(), |limit| format!("of {limit}"));
    ui.print_line(format!(
        "{}: {} {}, {} inodes {}",
        ui.style.paint_cyan(name),
        format::format_size(bytes.used),
        of(bytes.limit.map(format::format_size)),
        format::format_number(inodes.used),
        of(inodes.limit.map(format::format_number)),
    ))?;
    Ok(CommandOutcome::Done)
}
