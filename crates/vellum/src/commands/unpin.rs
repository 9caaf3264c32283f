//! `vellum unpin`: content may leave this machine again, and snapshots may be forgotten.

use std::ffi::{OsStr, OsString};

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_store::{PackCache, PinListing};
use vellum_types::{ErrorKind, SnapshotId};
use vellum_volume::{Volume, VolumeError};

use crate::commands::pin::target::{ambiguous_target_error, is_only_path, open_unsettled_volume};
use crate::context::CommandContext;
use crate::context::content::default_pin_name;
use crate::context::names::describe_snapshot;
use crate::error::{CliError, CommandOutcome, Result};

/// Remove pins: their content can be evicted when the cache is full, their snapshots can be forgotten
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("which").required(true)))]
pub struct Args {
    /// Names of pins of content, the paths that were pinned, or snapshots
    #[arg(value_name = "NAME", group = "which")]
    names: Vec<OsString>,
    /// Every NAME is a snapshot, also if a pin of content has this name
    #[arg(long, requires = "names")]
    snapshot: bool,
    /// All pins of content, of all worktrees
    #[arg(long, group = "which", conflicts_with = "snapshot")]
    all: bool,
}

#[derive(Serialize)]
struct UnpinJson {
    unpinned: Vec<String>,
    snapshots: Vec<String>,
}

/// What is to be unpinned.
#[derive(Default)]
struct ChosenPins {
    /// Pins of content, by name.
    content: Vec<String>,
    snapshots: Vec<PinnedSnapshotChoice>,
}

/// A snapshot that is to be unpinned.
enum PinnedSnapshotChoice {
    /// One whose pin can be read.
    Snapshot(SnapshotId),
    /// The object of a pin that is damaged or lost.
    Damaged(String),
}

/// Removes them.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let (_, cache) = context.find_pack_cache()?;
    let folder = || cache.as_ref().map_or("", |cache| cache.folder().to_str().unwrap_or_default());
    let listing = cache.as_ref().map_or(Ok(PinListing::default()), PackCache::list_pins);
    let pins = listing.map_err(CliError::io_error("read", folder()))?.pins;
    let known: Vec<String> = pins.into_iter().map(|pin| pin.name).collect();
    // Opened only if a name may mean a snapshot: pins of content are taken away without the store.
    let mut volume = None;
    let chosen = if args.all {
        // `--all` is about content: pins of snapshots protect history, and are taken away by name only.
        ChosenPins { content: known, ..ChosenPins::default() }
    } else {
        choose_pins(args, context, &known, &mut volume)?
    };
    for name in &chosen.content {
        let removed = cache.as_ref().map_or(Ok(false), |cache: &PackCache| cache.remove_pin(name));
        removed.map_err(CliError::io_error("remove a pin from", folder()))?;
        report_line(context, || format!("Removed the pin '{}'", format_path(name)))?;
    }
    let mut snapshots = Vec::new();
    for choice in &chosen.snapshots {
        let Some(volume) = &volume else { break };
        snapshots.push(unpin_snapshot(choice, volume, context)?);
    }
    if context.ui.is_json() {
        context.ui.print_json(&UnpinJson { unpinned: chosen.content, snapshots })?;
    }
    Ok(CommandOutcome::Done)
}

fn report_line(context: &CommandContext, line: impl FnOnce() -> String) -> Result<()> {
    if context.ui.is_json() || context.ui.voice.quiet { Ok(()) } else { context.ui.print_line(line()) }
}

fn unpin_snapshot(
    choice: &PinnedSnapshotChoice,
    volume: &Volume,
    context: &CommandContext,
) -> Result<String> {
    match choice {
        PinnedSnapshotChoice::Snapshot(id) => {
            let pin = volume.unpin_snapshot(*id)?;
            let described = match volume.resolve_snapshot(&id.to_string()) {
                Ok(entry) => describe_snapshot(volume, &entry)?,
                // The pin may have outlived its snapshot, which then has nothing to be described by.
                Err(_) => id.to_string(),
            };
            report_line(context, || format!("Unpinned {described}; it was pinned by {}", pin.describe()))?;
            Ok(id.to_string())
        }
        PinnedSnapshotChoice::Damaged(name) => {
            volume.remove_damaged_pin(name)?;
            report_line(context, || format!("Removed the damaged pin {}", format_path(name)))?;
            Ok(name.clone())
        }
    }
}

/// Returns all that was typed. Fails if something names no pin, before anything is removed. `volume` is opened if one of
/// them may be a snapshot.
fn choose_pins(
    args: &Args,
    context: &CommandContext,
    known: &[String],
    volume: &mut Option<Volume>,
) -> Result<ChosenPins> {
    let process = context.find_mount_process()?;
    let name_of_path = |typed: &OsStr| {
        let process = process.as_ref()?;
        // The name of a pin need not be a path.
        let path = context.paths_at_root(&process.mountpoint).parse_path(typed).ok()?;
        Some(default_pin_name(&process.worktree, &path))
    };
    let mut chosen = ChosenPins::default();
    for typed in &args.names {
        // A typed name counts before a typed path: a pin may have the name of a file.
        let named = typed.to_str().map(|name| name.strip_prefix("./").unwrap_or(name).into()).into_iter();
        let content = named.chain(name_of_path(typed)).find(|name| !args.snapshot && known.contains(name));
        let snapshot = match find_pinned_snapshot(context, volume, typed) {
            // Content is unpinned also while the store does not answer.
            Err(error) if content.is_some() && error.is_store_failure() => None,
            found => found?,
        };
        match (content, snapshot) {
            (Some(_), Some(_)) => return Err(ambiguous_target_error(typed)),
            (Some(name), None) => chosen.content.push(name),
            (None, Some(choice)) => chosen.snapshots.push(choice),
            (None, None) => {
                let message = format!("there is no pin '{}'", format_path(typed.as_encoded_bytes()));
                return Err(CliError::usage_error(message, "'vellum pins' lists the pins"));
            }
        }
    }
    Ok(chosen)
}

/// The pinned snapshot that a word names, if it names one.
fn find_pinned_snapshot(
    context: &CommandContext,
    volume: &mut Option<Volume>,
    typed: &OsStr,
) -> Result<Option<PinnedSnapshotChoice>> {
    let Some(text) = typed.to_str().filter(|_| !is_only_path(typed)) else { return Ok(None) };
    let volume = match volume {
        Some(volume) => volume,
        // What is pinned is in the store: nothing has to be published first.
        None => volume.insert(open_unsettled_volume(context)?),
    };
    let (pins, damaged) = volume.list_readable_pins()?;
    let is_pinned = |id: &SnapshotId| {
        let id = id.to_string();
        pins.iter().any(|(name, pin)| *name == id && pin.is_pinned)
    };
    // The whole id also names a snapshot that is lost.
    let resolved = match text.parse::<SnapshotId>() {
        Ok(id) => Ok(id),
        Err(_) => volume.resolve_snapshot(text).map(|entry| entry.id),
    };
    match resolved {
        Ok(id) if is_pinned(&id) => return Ok(Some(PinnedSnapshotChoice::Snapshot(id))),
        Ok(_) => {}
        Err(VolumeError::Ambiguous { prefix, matches }) => {
            return Err(VolumeError::Ambiguous { prefix, matches }.into());
        }
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Usage) => {}
        Err(error) => return Err(error.into()),
    }
    let is_damaged = damaged.iter().any(|damaged| damaged.key.as_str() == text);
    Ok(is_damaged.then(|| PinnedSnapshotChoice::Damaged(text.into())))
}
