//! `vellum hydrate`: brings content to this machine.

mod policies;

use std::ffi::OsString;

use serde::Serialize;

use crate::context::CommandContext;
use crate::context::content::{ContentPaths, list_refused, report_refused};
use crate::error::{CliError, CommandOutcome, Result, ResumeHint};
use crate::heap;
use crate::mounting::control::ContentReply;
use crate::ui::format;
use crate::ui::json::ProblemJson;
use crate::ui::progress::ProgressTask;
use policies::PolicyWord;

/// Bring files, or their content, to this machine
///
/// In a mount whose store is in a service, content is fetched when it is read. This command fetches all content at
/// and below PATH, which can then be read without the service, until it is evicted because the cache is full ('vellum
/// pin' prevents that).
///
/// In a partial checkout, it writes the absent files at and below PATH, as they are in the last snapshot.
///
/// If it is interrupted, run it again: what was fetched is not fetched twice.
///
/// With --policy, it sets for a mounted worktree on this machine when the content at and below PATH is fetched, until
/// another policy is set. Of several paths above a file that have a policy, the longest decides.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files and directories
    #[arg(required_unless_present = "policies", value_name = "PATH")]
    paths: Vec<OsString>,
    /// Fetch only names and attributes
    #[arg(long)]
    metadata_only: bool,
    /// Use the content that this snapshot has at PATH
    #[arg(long, value_name = "SNAP")]
    from: Option<String>,
    /// Set when the content at and below PATH is fetched
    #[arg(long, value_name = "POLICY", conflicts_with_all = ["metadata_only", "from"])]
    policy: Option<PolicyWord>,
    /// List the policies of the worktree
    #[arg(long, conflicts_with_all = ["paths", "metadata_only", "from", "policy"])]
    policies: bool,
}

/// What was fetched, as JSON shows it.
#[derive(Serialize)]
struct HydrateJson {
    files: u64,
    bytes: u64,
    fetched: u64,
    local: bool,
    refused: Vec<ProblemJson>,
}

/// What a checkout got, as JSON shows it.
#[derive(Serialize)]
struct HydratedFilesJson {
    written: u64,
    bytes: u64,
    refused: Vec<ProblemJson>,
}

/// Fetches.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    if args.policies {
        return policies::list_policies(context);
    }
    if let Some(policy) = args.policy {
        return policies::set_policies(&args.paths, policy.into(), context);
    }
    // As in 'vellum evict': a named snapshot means the cache, and PATH alone, in a checkout, means its files.
    if args.from.is_none() && context.find_mount_process()?.is_none() {
        return hydrate_checkout(args, context);
    }
    let paths = ContentPaths::find_paths(context, &args.paths, args.from.as_deref())?;
    let done = paths.hydrate(context, args.metadata_only, None)?;
    let refused = list_refused(&done.refused);
    let ui = &context.ui;
    let outcome = report_refused(context, &refused)?;
    if ui.is_json() {
        let ContentReply { files, bytes, moved, is_local, .. } = done;
        ui.print_json(&HydrateJson { files, bytes, fetched: moved, local: is_local, refused })?;
    } else if done.is_local {
        ui.print_note("the store is a directory of this machine: everything is here")?;
    } else if !ui.voice.quiet {
        let what = if args.metadata_only { "Names and attributes of" } else { "The content of" };
        ui.print_line(format!(
            "{what} {}: {}, of which {} were fetched",
            format::format_count(done.files, "file"),
            format::format_size(done.bytes),
            format::format_size(done.moved)
        ))?;
    }
    Ok(outcome)
}

/// Plain files: what is absent is written.
fn hydrate_checkout(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    if args.metadata_only {
        let message = "a plain directory has no names without files: --metadata-only is for mounts";
        return Err(CliError::usage_error(message, "--from SNAP names the content of a snapshot"));
    }
    heap::limit_command_heaps();
    let worktree = context.open_worktree()?;
    let paths = context.paths_at_root(worktree.root_path()).parse_paths(&args.paths)?;
    // Locked before the scan, so that no other command changes meanwhile what is absent.
    let lock = worktree.lock_worktree(context.lock_wait_notice())?;
    let task = ProgressTask { first: "Scanning", verb: "Writing", item: "file" };
    let done = context
        .run_with_progress(task, |meter| worktree.hydrate_paths(&paths, meter))
        .with_resume_hint("run it again: what was written is here")?;
    // As in every command, the results are printed without the lock.
    drop(lock);
    let refused: Vec<_> = done.problems.iter().map(ProblemJson::from).collect();
    let outcome = report_refused(context, &refused)?;
    let json = HydratedFilesJson { written: done.written, bytes: done.bytes, refused };
    context.ui.print_outcome(&json, || match done.written {
        0 => "Nothing was absent there".into(),
        written => {
            format!("{} written, {}", format::format_count(written, "file"), format::format_size(done.bytes))
        }
    })?;
    Ok(outcome)
}
