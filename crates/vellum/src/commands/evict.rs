//! `vellum evict`: removes content from this machine that the store has.

use std::ffi::OsString;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use vellum_store::{EvictedBytes, PackCache};

use crate::context::CommandContext;
use crate::context::content::{ContentPaths, list_refused, report_refused};
use crate::error::{CliError, CommandOutcome, Result, ResumeHint};
use crate::heap;
use crate::mounting::holders;
use crate::ui::format;
use crate::ui::json::ProblemJson;
use crate::ui::progress::ProgressTask;

/// Remove files, or their content, from this machine; the store keeps them
///
/// In a mount, the content is fetched again when it is read. Files that are open, pinned, or not in the store yet are
/// kept and listed. Content is cached in pieces of 256 KiB: small files in the same piece are removed together.
///
/// In a plain directory, it removes the files at and below PATH, which makes the directory a partial checkout:
/// snapshots take what is absent from the last snapshot, and 'vellum hydrate' writes it again. Files that are open,
/// or whose content differs from the last snapshot, are kept and listed.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("what").required(true).multiple(true)))]
pub struct Args {
    /// Files and directories
    #[arg(value_name = "PATH", group = "what")]
    paths: Vec<OsString>,
    /// Use the content that this snapshot has at PATH
    #[arg(long, value_name = "SNAP", requires = "paths")]
    from: Option<String>,
    /// Remove everything from the cache that is not pinned, of all worktrees; no file of a plain directory
    #[arg(long, group = "what", conflicts_with_all = ["paths", "older", "to"])]
    all: bool,
    /// Remove from the cache what was fetched more than AGE ago, such as 30d; the units are s, m, h, d, w and y
    #[arg(long, value_name = "AGE", group = "what", value_parser = format::parse_duration, conflicts_with_all = ["paths", "to"])]
    older: Option<Duration>,
    /// Remove the oldest content from the cache until SIZE is left, in bytes or with K, M, G
    #[arg(long, value_name = "SIZE", group = "what", value_parser = format::parse_size, conflicts_with = "paths")]
    to: Option<u64>,
}

#[derive(Serialize)]
struct EvictJson {
    /// Null unless paths were named.
    files: Option<u64>,
    evicted: u64,
    refused: Vec<ProblemJson>,
}

/// Removes.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let ui = &context.ui;
    if args.paths.is_empty() {
        let (_, cache) = context.find_pack_cache()?;
        let evicted = match cache {
            Some(cache) => evict_from_cache(args, &cache)?,
            None => {
                ui.print_note("the store is a directory of this machine, and needs no cache")?;
                EvictedBytes::default()
            }
        };
        let bytes = evicted.before.saturating_sub(evicted.left);
        let json = EvictJson { files: None, evicted: bytes, refused: Vec::new() };
        ui.print_outcome(&json, || {
            let left = format::format_size(evicted.left);
            format!("Removed {} from the cache; {left} are left", format::format_size(bytes))
        })?;
        return Ok(CommandOutcome::Done);
    }
    // Of a snapshot only the cache has content, wherever the user stands. In a checkout, PATH means its files.
    if args.from.is_none() && context.find_mount_process()?.is_none() {
        return evict_from_checkout(args, context);
    }
    let done = ContentPaths::find_paths(context, &args.paths, args.from.as_deref())?.evict(context)?;
    let refused = list_refused(&done.refused);
    let outcome = report_refused(context, &refused)?;
    ui.print_outcome(&EvictJson { files: Some(done.files), evicted: done.moved, refused }, || {
        let files = format::format_count(done.files, "file");
        format!("Removed the content of {files} from this machine: {}", format::format_size(done.moved))
    })?;
    Ok(outcome)
}

/// Plain files: they are removed.
fn evict_from_checkout(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    heap::limit_command_heaps();
    let worktree = context.open_worktree()?;
    let paths = context.paths_at_root(worktree.root_path()).parse_paths(&args.paths)?;
    let lock = worktree.lock_worktree(context.lock_wait_notice())?;
    // A merge that is under way needs its files in the directory.
    worktree.volume.check_no_merge()?;
    // A function, because what programs have open is looked up after the scan, right before the first file is
    // removed.
    let list_open = || holders::list_used_nodes(worktree.root_path());
    let task = ProgressTask { first: "Scanning", verb: "Removing", item: "file" };
    let done = context
        .run_with_progress(task, |meter| worktree.evict_paths(&paths, list_open, meter))
        .with_resume_hint("run it again: what was removed is absent")?;
    // Results are printed without the lock: whoever reads them may take any time, and other commands would wait.
    drop(lock);
    let refused: Vec<_> = done.refused.iter().map(ProblemJson::from).collect();
    let outcome = report_refused(context, &refused)?;
    context.ui.print_outcome(&EvictJson { files: Some(done.files), evicted: done.bytes, refused }, || {
        let files = format::format_count(done.files, "file");
        let hint = if done.files > 0 { "; 'vellum hydrate' brings them back" } else { "" };
        format!("Removed {files}, {}{hint}", format::format_size(done.bytes))
    })?;
    Ok(outcome)
}

fn evict_from_cache(args: &Args, cache: &PackCache) -> Result<EvictedBytes> {
    let evicted = match (args.older, args.to) {
        (Some(age), _) => {
            // No content is so old that it was fetched before 1970.
            cache.evict_older(SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH))
        }
        (None, target) => cache.evict_down_to(target.unwrap_or(0)),
    };
    evicted.map_err(CliError::io_error("remove content from", cache.folder().display().to_string()))
}
