//! `vellum cache`: what is kept of a remote store on this machine.

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_store::{CacheCheck, CachePart, CachePartSummary, CacheSummary, PackCache};
use vellum_types::UnixTime;
use vellum_volume::Volume;

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::mounting::control::{ControlRequest, MemoryCache, MemoryCaches};
use crate::ui::{format, json};

/// Show, limit, check or clear the local cache of a remote store, and the memory of a mount
///
/// What is read from a store in a service, and what is written to it, is kept on this machine, encrypted as it is in
/// the store. All worktrees and mounts of this user share the cache of a store. It can be deleted at any time; what
/// is needed is then fetched again. Names and attributes have a limit of their own, so that reading much content does
/// not push them out.
///
/// In a mount, what its process keeps in memory is shown, too. The options for memory change it until the mount ends.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How much disk space content may take, in bytes or with K, M, G; 0 keeps none. By default a tenth of the disk, at
    /// most 10 GiB. As long as a mount has a smaller '--disk-cache', that counts
    #[arg(long, value_name = "SIZE", value_parser = format::parse_size)]
    set_size: Option<u64>,
    /// How much disk space names and attributes may take; 0 keeps none. By default a tenth of the disk, at most 2 GiB
    #[arg(long, value_name = "SIZE", value_parser = format::parse_size)]
    set_node_size: Option<u64>,
    /// Remove everything from the cache that is not pinned
    #[arg(long, conflicts_with_all = ["set_size", "set_node_size"])]
    clear: bool,
    /// Check everything in the cache, and remove what is damaged
    #[arg(long, conflicts_with_all = ["set_size", "set_node_size", "clear"])]
    verify: bool,
    /// In a mount: how much memory its process may take for content that was read lately; at least 1M
    #[arg(long, value_name = "SIZE", value_parser = format::parse_size)]
    set_memory: Option<u64>,
    /// In a mount: how much memory its process may take for attributes and names; at least 1M
    #[arg(long, value_name = "SIZE", value_parser = format::parse_size)]
    set_inode_memory: Option<u64>,
    /// In a mount: forget everything that its process keeps in memory only because it was read
    #[arg(long)]
    clear_memory: bool,
}

/// The least memory of a mount for content, and for attributes and names, bytes: below some chunks, nothing is found again.
const MEMORY_MIN: u64 = 1 << 20;

#[derive(Serialize)]
struct CacheJson {
    store: String,
    /// Null if the store is a directory, which needs none.
    directory: Option<String>,
    bytes: u64,
    limit: u64,
    pinned: u64,
    packs: u64,
    nodes: CachePartJson,
    oldest: Option<String>,
    /// What the process of the mount keeps; null outside a mount.
    memory: Option<MemoryCaches>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checked: Option<CacheCheckJson>,
}

#[derive(Default, Serialize)]
struct CachePartJson {
    bytes: u64,
    limit: u64,
    packs: u64,
}

#[derive(Serialize)]
struct CacheCheckJson {
    sound: u64,
    removed: u64,
}

/// Shows it, after what was asked for was done.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    // Before the cache on the disk is looked for: a mount of a store in a directory has none, and keeps things in memory
    // all the same.
    let memory = set_mount_memory(args, context)?;
    let (store, cache) = context.find_pack_cache()?;
    let Some(cache) = cache else { return report_no_cache(context, store, memory) };
    let folder = cache.folder().display().to_string();
    let mut checked = None;
    let limits = [(CachePart::Nodes, args.set_node_size), (CachePart::Content, args.set_size)];
    let limits = limits.into_iter().filter_map(|(part, limit)| Some((part, limit?)));
    // All are checked before the first is set.
    limits.clone().try_for_each(|(part, limit)| check_limit(&cache, part, limit))?;
    for (part, limit) in limits {
        cache.set_limit(part, limit).map_err(CliError::io_error("set the limit of", folder.clone()))?;
    }
    if args.clear {
        cache.clear().map_err(CliError::io_error("clear", folder.clone()))?;
    } else if args.verify {
        checked = Some(cache.verify().map_err(CliError::io_error("check", folder.clone()))?);
    }
    // Read last, so that it shows what the change has left.
    let summary = cache.summarize().map_err(CliError::io_error("read", folder.clone()))?;
    let report = CacheReport { store: &store, folder: &folder, summary: &summary, memory, checked };
    report.print(context)?;
    // What was damaged is fetched again when it is needed, and is a finding nevertheless.
    Ok(CommandOutcome::from_findings(checked.is_some_and(|checked| checked.removed > 0)))
}

/// Limits what the cache of a mount's store may take for content as long as this process serves the mount.
pub fn limit_mount_cache(volume: &Volume, limit: u64) -> Result<()> {
    let Some(blocks) = volume.objects.as_block_store() else {
        return Err(CliError::usage_error(
            "the store is a directory, which needs no cache on the disk",
            "leave out '--disk-cache'",
        ));
    };
    // A user without a folder for caches has none.
    let Some(cache) = blocks.pack_cache() else { return Ok(()) };
    check_limit(cache, CachePart::Content, limit)?;
    let folder = cache.folder().display().to_string();
    cache.limit_while_open(limit).map_err(CliError::io_error("set the limit of", folder))
}

fn check_limit(cache: &PackCache, part: CachePart, limit: u64) -> Result<()> {
    let folder = cache.folder().display().to_string();
    let pinned = *cache.pinned_bytes().map_err(CliError::io_error("read", folder))?.get(part);
    // What is pinned is never evicted, so that such a limit could not be kept.
    if limit >= pinned {
        return Ok(());
    }
    let message = format!(
        "{} are pinned, which is more than {}",
        format::format_size(pinned),
        format::format_size(limit)
    );
    Err(CliError::usage_error(message, "'vellum unpin --all' removes all pins"))
}

/// Changes what the mount keeps in memory that the user stands in, and returns it; none outside a mount.
fn set_mount_memory(args: &Args, context: &CommandContext) -> Result<Option<MemoryCaches>> {
    let content = args.set_memory;
    let inodes = args.set_inode_memory;
    let changes = content.is_some() || inodes.is_some() || args.clear_memory;
    if let Some(limit) = [content, inodes].into_iter().flatten().find(|limit| *limit < MEMORY_MIN) {
        return Err(CliError::usage_error(
            format!("{} of memory hold nothing that is read", format::format_size(limit)),
            "1M is the least; '--clear-memory' forgets what is kept",
        ));
    }
    match context.find_mount_process()? {
        Some(process) => {
            let request = ControlRequest::SetMemory { content, inodes, clears: args.clear_memory };
            Ok(process.send_request(&request)?.memory)
        }
        None if changes => Err(CliError::usage_error(
            "this is not a mounted worktree: only the process of a mount keeps something in memory",
            "run it in the mount, or with -C MOUNTPOINT",
        )),
        None => Ok(None),
    }
}

fn report_no_cache(
    context: &CommandContext,
    store: String,
    memory: Option<MemoryCaches>,
) -> Result<CommandOutcome> {
    if context.ui.is_json() {
        context.ui.print_json(&CacheJson {
            store,
            directory: None,
            bytes: 0,
            limit: 0,
            pinned: 0,
            packs: 0,
            nodes: CachePartJson::default(),
            oldest: None,
            memory,
            checked: None,
        })?;
    } else {
        print_memory(context, memory)?;
        context.ui.print_note("the store is a directory, which needs no cache on the disk")?;
    }
    Ok(CommandOutcome::Done)
}

/// What is told.
struct CacheReport<'a> {
    store: &'a str,
    folder: &'a str,
    summary: &'a CacheSummary,
    memory: Option<MemoryCaches>,
    checked: Option<CacheCheck>,
}

impl CacheReport<'_> {
    fn print(&self, context: &CommandContext) -> Result<()> {
        let ui = &context.ui;
        let oldest = self.summary.oldest.and_then(|time| {
            let secs = time.duration_since(std::time::UNIX_EPOCH).ok()?.as_secs();
            Some(UnixTime { secs: i64::try_from(secs).ok()?, nanos: 0 })
        });
        let CacheSummary { content, nodes, pinned, .. } = *self.summary;
        if ui.is_json() {
            return ui.print_json(&CacheJson {
                store: self.store.to_owned(),
                directory: Some(self.folder.to_owned()),
                bytes: content.bytes,
                limit: content.limit,
                pinned,
                packs: content.packs,
                nodes: CachePartJson { bytes: nodes.bytes, limit: nodes.limit, packs: nodes.packs },
                oldest: oldest.map(json::format_json_time),
                memory: self.memory,
                checked: self.checked.map(|CacheCheck { sound, removed }| CacheCheckJson { sound, removed }),
            });
        }
        ui.print_line(format!("Content: {}", format_part(&content)))?;
        ui.print_line(format!("Names: {}", format_part(&nodes)))?;
        ui.print_line(format!("In {}", format_path(self.folder)))?;
        if pinned > 0 {
            // The pieces of a pin that were not fetched yet count as well.
            ui.print_line(format!("Up to {} are pinned", format::format_size(pinned)))?;
        }
        if let Some(oldest) = oldest {
            ui.print_line(format!("The oldest was fetched {}", format::format_age(oldest)))?;
        }
        print_memory(context, self.memory)?;
        self.print_check(context)
    }

    fn print_check(&self, context: &CommandContext) -> Result<()> {
        let ui = &context.ui;
        match self.checked {
            None => Ok(()),
            Some(CacheCheck { sound, removed: 0 }) => {
                ui.print_line(format!("All {} are sound", format::format_count(sound, "piece")))
            }
            Some(CacheCheck { sound, removed }) => ui.print_line(format!(
                "Removed {}; {} are sound",
                format::format_count(removed, "damaged piece"),
                format::format_number(sound)
            )),
        }
    }
}

fn print_memory(context: &CommandContext, memory: Option<MemoryCaches>) -> Result<()> {
    let Some(MemoryCaches { content, inodes }) = memory else { return Ok(()) };
    let show = |cache: MemoryCache| {
        format!("{} of {}", format::format_size(cache.bytes), format::format_size(cache.limit))
    };
    context.ui.print_line(format!(
        "In memory: content {}, attributes and names {}",
        show(content),
        show(inodes)
    ))
}

fn format_part(part: &CachePartSummary) -> String {
    let packs = format::format_count(part.packs, "pack");
    format!("{} of {} in {packs}", format::format_size(part.bytes), format::format_size(part.limit))
}
