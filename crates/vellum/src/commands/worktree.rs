//! `vellum worktree`: the worktrees of the volume.

mod quota;

use std::path::Path;

use serde::Serialize;
use vellum_checkout::CheckoutWorktree;
use vellum_host::escape::format_path;
use vellum_host::process::host_name;
use vellum_library::live;
use vellum_store::StoreLocation;
use vellum_volume::refs::WorktreeHead;
use vellum_volume::{Volume, VolumeError};

use crate::context::CommandContext;
use crate::context::names::{SnapshotNames, warn_about_damaged_refs};
use crate::error::{CliError, CommandOutcome, Result};
use crate::store_args::CredentialsArgs;
use crate::ui::table::TextTable;
use crate::ui::{format, json};

/// List, rename, limit, keep, adopt, relocate and remove worktrees
///
/// 'vellum fork' and 'vellum init --store' create new ones.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List all worktrees of the volume; '*' marks the one you stand in
    List,
    /// Give a worktree another name
    Rename {
        /// Its name
        old: String,
        /// The new name
        new: String,
    },
    /// Create a worktree from unpublished changes that were left here
    ///
    /// When another machine takes over a mounted worktree, what had not been published stays where it was written.
    /// This command turns it into a separate worktree, which can be mounted.
    Keep {
        /// The worktree that was taken over
        old: String,
        /// The name of the new worktree
        new: String,
    },
    /// Show or set how much a mounted worktree may hold
    ///
    /// If a limit is lower than what the worktree holds, nothing is deleted, but the worktree cannot grow.
    Quota(quota::Args),
    /// Turn a copy of a worktree's directory into a separate worktree
    ///
    /// Of a directory that was copied with all that is in it ('cp -a'), and whose store lies elsewhere, only one can be
    /// the worktree. This gives the one you stand in a name of its own; its files stay as they are.
    Adopt {
        /// The name of the worktree that it becomes
        #[arg(long = "as", value_name = "NAME")]
        name: String,
    },
    /// Record the new location of a directory or store that was moved
    ///
    /// A directory that was moved is noticed when it is next changed by a command; this makes the list right at once. With
    /// --store, the store is looked for there from now on; with --source, the store that a lazy clone reads from.
    Relocate {
        /// Where the store is now: a path or a URL
        #[arg(long, value_name = "URL", conflicts_with = "source")]
        store: Option<String>,
        /// Where the store is now from which content is read that this one does not have
        #[arg(long, value_name = "URL")]
        source: Option<String>,
        #[command(flatten)]
        credentials: CredentialsArgs,
    },
    /// Remove a worktree from the list
    ///
    /// Its snapshots stay, and so do the files in its directory.
    Remove {
        /// Its name
        name: String,
    },
}

#[derive(Serialize)]
struct WorktreeListJson {
    worktrees: Vec<WorktreeJson>,
}

#[derive(Serialize)]
struct WorktreeJson {
    name: String,
    here: bool,
    snapshot: Option<String>,
    host: String,
    directory: String,
    created: String,
    missing: bool,
    /// Whether it is one to be mounted, and no process has it.
    unused: bool,
}

#[derive(Serialize)]
struct WorktreeRenamedJson<'a> {
    old: &'a str,
    new: &'a str,
}

#[derive(Serialize)]
struct Adopted<'a> {
    name: &'a str,
    snapshot: Option<String>,
    directory: &'a str,
}

#[derive(Serialize)]
struct Relocated<'a> {
    name: &'a str,
    directory: &'a str,
    store: &'a str,
    /// The store from which content is read that this one does not have.
    source: Option<&'a str>,
}

#[derive(Serialize)]
struct WorktreeRemovedJson<'a> {
    name: &'a str,
    snapshot: Option<String>,
    directory: &'a str,
}

/// Lists worktrees, or changes one.
pub fn run(command: &Command, context: &CommandContext) -> Result<CommandOutcome> {
    match command {
        Command::List => list_worktrees(context, &context.open_volume()?),
        Command::Rename { old, new } => rename_worktree(context, &context.open_volume()?, old, new),
        Command::Keep { old, new } => keep_unpublished(context, &context.open_volume()?, old, new),
        Command::Quota(args) => quota::run(args, context, &context.open_volume()?),
        // The next two open the volume themselves: in a copy, or without its store, the usual way warns or fails.
        Command::Adopt { name } => adopt_worktree(context, name),
        Command::Relocate { store, source, credentials } => {
            let locate = |url: &String| credentials.locate_store(url, &context.cwd);
            let store = store.as_ref().map(locate).transpose().map_err(VolumeError::from)?;
            let source = source.as_ref().map(locate).transpose().map_err(VolumeError::from)?;
            relocate_worktree(context, store.as_ref(), source.as_ref())
        }
        Command::Remove { name } => remove_worktree(context, &context.open_volume()?, name),
    }
}

/// Whether the directory should be on this machine and is not that worktree any more.
fn is_dir_missing(volume: &Volume, name: &str, head: &WorktreeHead) -> bool {
    // A directory of another machine cannot be looked at.
    if head.host != host_name() {
        return false;
    }
    // A live state has no directory of files beside it.
    if live::is_live_worktree(head) {
        return !Path::new(&head.place).is_dir();
    }
    !matches!(volume.find_worktree_state(name, head), Ok(Some(_)))
}

/// Whether it is a worktree to be mounted that no process has mounted or open.
fn is_unused_live(name: &str, head: &WorktreeHead) -> bool {
    live::is_live_worktree(head) && json::LeaseJson::from_worktree_head(name, head).is_none()
}

fn list_worktrees(context: &CommandContext, volume: &Volume) -> Result<CommandOutcome> {
    let (worktrees, damaged) = volume.list_readable_worktrees()?;
    warn_about_damaged_refs(&context.ui, &damaged)?;
    let here = &volume.worktree.worktree;
    let ui = &context.ui;
    if ui.is_json() {
        let item = |(name, head): &(String, WorktreeHead)| WorktreeJson {
            name: name.clone(),
            here: name == here,
            snapshot: head.head.map(|id| id.to_string()),
            host: head.host.clone(),
            directory: head.place.clone(),
            created: json::format_json_time(head.created),
            missing: is_dir_missing(volume, name, head),
            unused: is_unused_live(name, head),
        };
        ui.print_json(&WorktreeListJson { worktrees: worktrees.iter().map(item).collect() })?;
        return Ok(CommandOutcome::Done);
    }
    let names = SnapshotNames::load_all(volume)?;
    let mut table = TextTable::default();
    for (name, head) in &worktrees {
        table.add_row(worktree_row(context, volume, &names, name, head));
    }
    ui.print_lines(table.format_lines())?;
    // Each mount of a new name creates a worktree: those that were meant for once would collect here unnoticed.
    if worktrees.iter().any(|(name, head)| is_unused_live(name, head)) {
        ui.print_note(
            "'vellum worktree remove NAME' removes one that is not needed any more; its snapshots stay",
        )?;
    }
    Ok(CommandOutcome::Done)
}

fn worktree_row(
    context: &CommandContext,
    volume: &Volume,
    names: &SnapshotNames,
    name: &str,
    head: &WorktreeHead,
) -> [String; 4] {
    let style = context.ui.style;
    let place = format_path(&head.place);
    let place = match (head.host == host_name(), is_dir_missing(volume, name, head)) {
        (true, false) => place,
        (true, true) => format!("{place} {}", style.paint_dim("(not there any more)")),
        // The ref came by a push: its directory is known only in the store that it was pushed from.
        (false, _) if !head.has_directory() => style.paint_dim("(pushed)"),
        (false, _) => format!("{}:{place}", format_path(&head.host)),
    };
    let place = match (is_unused_live(name, head), json::LeaseJson::from_worktree_head(name, head)) {
        (true, _) => {
            // A worktree that was never mounted has no lease, and counts from its creation.
            let since = head.lease.as_ref().map_or(head.created, |lease| lease.session.renewed);
            format!(
                "{place} {}",
                style.paint_dim(&format!("(unused, last mounted {})", format::format_age(since)))
            )
        }
        (false, Some(json::LeaseJson { mountpoint: Some(mountpoint), .. })) => {
            format!("{place} {}", style.paint_dim(&format!("(mounted on {})", format_path(&mountpoint))))
        }
        (false, _) => place,
    };
    let mark = if name == volume.worktree.worktree { "*" } else { " " };
    let id = head.head.map_or_else(|| "no snapshot".into(), |id| names.short_id(&id));
    [mark.into(), style.paint_cyan(name), style.paint_yellow(&id), place]
}

fn rename_worktree(
    context: &CommandContext,
    volume: &Volume,
    old: &str,
    new: &str,
) -> Result<CommandOutcome> {
    live::rename_worktree(volume, old, new)?;
    let line = || format!("The worktree {old} is now called {new}");
    context.ui.print_outcome(&WorktreeRenamedJson { old, new }, line)?;
    Ok(CommandOutcome::Done)
}

fn keep_unpublished(
    context: &CommandContext,
    volume: &Volume,
    old: &str,
    new: &str,
) -> Result<CommandOutcome> {
    live::keep_unpublished(volume, old, new)?;
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&WorktreeRenamedJson { old, new })?;
    } else if !ui.voice.quiet {
        ui.print_line(format!("What was left of {old} here is the worktree {}", ui.style.paint_cyan(new)))?;
        ui.print_note(format!("'vellum mount --worktree {new} MOUNTPOINT' shows it"))?;
    }
    Ok(CommandOutcome::Done)
}

fn adopt_worktree(context: &CommandContext, name: &str) -> Result<CommandOutcome> {
    // Not by the context: that it is a copy need not be said.
    let worktree = CheckoutWorktree::open(&context.cwd)?;
    let snapshot = worktree.adopt_copy(name, context.lock_wait_notice())?;
    let ui = &context.ui;
    if ui.is_json() {
        let snapshot = snapshot.map(|id| id.to_string());
        let directory = worktree.root_path().display().to_string();
        ui.print_json(&Adopted { name, snapshot, directory: &directory })?;
    } else if !ui.voice.quiet {
        let directory = format_path(worktree.root_path().as_os_str().as_encoded_bytes());
        let names = SnapshotNames::load_all(&worktree.volume)?;
        let place =
            snapshot.map_or_else(|| "no snapshot".into(), |id| format!("snapshot {}", names.short_id(&id)));
        ui.print_line(format!("{directory} is now the worktree {}, at {place}", ui.style.paint_cyan(name)))?;
        ui.print_note("'vellum status' shows what differs from that")?;
    }
    Ok(CommandOutcome::Done)
}

fn relocate_worktree(
    context: &CommandContext,
    store: Option<&StoreLocation>,
    source: Option<&StoreLocation>,
) -> Result<CommandOutcome> {
    let state = context.open_state_dir()?;
    // Before anything is read that it changes.
    let _lock = state.lock_worktree(context.lock_wait_notice())?;
    let mut volume = match store {
        Some(store) => Volume::relocate_store(&state, store)?,
        None => Volume::open(&state)?,
    };
    if let Some(source) = source {
        volume.relocate_source(source)?;
    }
    volume.confirm_own_dir()?;
    let source = volume.find_source()?.map(|source| source.url);
    let store = volume.objects.describe_location();
    let name = &volume.worktree.worktree;
    let directory = state.root().display().to_string();
    let line = || {
        let directory = format_path(state.root().as_os_str().as_encoded_bytes());
        let store = format_path(&store);
        let line = format!("The worktree {name} is in {directory}, and its store is {store}");
        source.as_ref().map_or(line.clone(), |source| format!("{line}, with more in {}", format_path(source)))
    };
    let relocated = Relocated { name, directory: &directory, store: &store, source: source.as_deref() };
    context.ui.print_outcome(&relocated, line)?;
    Ok(CommandOutcome::Done)
}

fn remove_worktree(context: &CommandContext, volume: &Volume, name: &str) -> Result<CommandOutcome> {
    // Afterwards, no command could be run in this directory any more.
    if name == volume.worktree.worktree {
        let message = format!("'{name}' is the worktree that you stand in");
        let hint = "remove it from another worktree; to give up the whole volume, delete its directories";
        return Err(CliError::usage_error(message, hint));
    }
    // Its files stay: they may be on another machine, and some of them in no snapshot.
    let head = volume.remove_worktree(name)?;
    let ui = &context.ui;
    if ui.is_json() {
        let snapshot = head.head.map(|id| id.to_string());
        ui.print_json(&WorktreeRemovedJson { name, snapshot, directory: &head.place })?;
    } else if !ui.voice.quiet {
        ui.print_line(format!("Removed the worktree {name} from the list; its snapshots stay"))?;
        // Whether a directory of another machine is there cannot be seen from here.
        if head.host == host_name() && std::path::Path::new(&head.place).exists() {
            ui.print_note(format!(
                "its files are still in {}: delete them yourself",
                format_path(&head.place)
            ))?;
        }
    }
    Ok(CommandOutcome::Done)
}
