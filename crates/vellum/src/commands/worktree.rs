//! `vellum worktree`: the worktrees of the volume.

mod quota;

use std::path::Path;

use serde::Serialize;
use vellum_checkout::CheckoutWorktree;
use vellum_library::live;
use vellum_volume::refs::WorktreeHead;
use vellum_volume::session::host_name;
use vellum_volume::tree::show;
use vellum_volume::{Volume, VolumeError};

use crate::context::CommandContext;
use crate::context::names::{SnapshotNames, warn_of_damaged};
use crate::error::{CliError, CommandOutcome, Result};
use crate::ui::table::{ColumnAlignment, TableCell, TextTable};
use crate::ui::{format, json};

/// List, rename, limit, keep, adopt, relocate and remove worktrees
///
/// 'vellum fork' and 'vellum init --store' make new ones.
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
    /// Make a worktree of what was left behind here
    ///
    /// When another machine takes a mounted worktree over, what had not been published stays where it was written.
    /// This makes a worktree of its own of it, to be mounted.
    Keep {
        /// The worktree that was taken over
        old: String,
        /// The name of the one that is made
        new: String,
    },
    /// Show or set how much a mounted worktree may hold
    ///
    /// What it holds already stays when the limit is set lower; it may not grow.
    Quota(quota::Args),
    /// Make a copy of a worktree's directory a worktree of its own
    ///
    /// Of a directory that was copied with all that is in it ('cp -a'), and whose store lies elsewhere, only one can be
    /// the worktree. This gives the one you stand in a name of its own; its files stay as they are.
    Adopt {
        /// The name of the worktree that it becomes
        #[arg(long = "as", value_name = "NAME")]
        name: String,
    },
    /// Say where the directory or the store is after it was moved
    ///
    /// A directory that was moved is noticed when it is next changed by a command; this makes the list right at once. With
    /// --store, the store is looked for there from now on.
    Relocate {
        /// Where the store is now: a path or a URL
        #[arg(long, value_name = "URL")]
        store: Option<String>,
    },
    /// Take a worktree off the list
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
    /// Whether it is one to be mounted, and nobody has it.
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
        Command::List => list(context, &context.volume()?),
        Command::Rename { old, new } => rename(context, &context.volume()?, old, new),
        Command::Keep { old, new } => keep(context, &context.volume()?, old, new),
        Command::Quota(args) => quota::run(args, context, &context.volume()?),
        Command::Adopt { name } => adopt(context, name),
        Command::Relocate { store } => relocate(context, store.as_deref()),
        Command::Remove { name } => remove(context, &context.volume()?, name),
    }
}

/// Whether the directory should be on this machine and is not that worktree any more.
fn is_missing(volume: &Volume, name: &str, head: &WorktreeHead) -> bool {
    if head.host != host_name() {
        return false;
    }
    // A live state has no directory of files beside it.
    if live::is_live(head) {
        return !Path::new(&head.place).is_dir();
    }
    !matches!(volume.state_of(name, head), Ok(Some(_)))
}

/// Whether it is a worktree to be mounted that nobody has mounted or open.
fn is_unused(name: &str, head: &WorktreeHead) -> bool {
    live::is_live(head) && json::LeaseJson::of(name, head).is_none()
}

fn list(context: &CommandContext, volume: &Volume) -> Result<CommandOutcome> {
    let (worktrees, damaged) = volume.read_worktrees()?;
    warn_of_damaged(&context.ui, &damaged)?;
    let here = &volume.worktree.worktree;
    let ui = &context.ui;
    if ui.json() {
        let item = |(name, head): &(String, WorktreeHead)| WorktreeJson {
            name: name.clone(),
            here: name == here,
            snapshot: head.head.map(|id| id.to_string()),
            host: head.host.clone(),
            directory: head.place.clone(),
            created: json::time(head.created),
            missing: is_missing(volume, name, head),
            unused: is_unused(name, head),
        };
        ui.object(&WorktreeListJson { worktrees: worktrees.iter().map(item).collect() })?;
        return Ok(CommandOutcome::Done);
    }
    let names = SnapshotNames::load(volume)?;
    let mut table = TextTable::new(&[ColumnAlignment::Left; 4]);
    for (name, head) in &worktrees {
        table.row(row(context, volume, &names, (name, head)));
    }
    for line in table.lines() {
        ui.line(line)?;
    }
    if worktrees.iter().any(|(name, head)| is_unused(name, head)) {
        ui.note("'vellum worktree remove NAME' removes one that is not needed any more; its snapshots stay")?;
    }
    Ok(CommandOutcome::Done)
}

fn row(
    context: &CommandContext,
    volume: &Volume,
    names: &SnapshotNames,
    (name, head): (&str, &WorktreeHead),
) -> [TableCell; 4] {
    let style = context.ui.style;
    let place = show(head.place.as_bytes());
    let place = match (head.host == host_name(), is_missing(volume, name, head)) {
        (true, false) => place,
        (true, true) => format!("{place} {}", style.dim("(not there any more)")),
        (false, _) => format!("{}:{place}", show(head.host.as_bytes())),
    };
    let place = match (is_unused(name, head), json::LeaseJson::of(name, head)) {
        (true, _) => {
            let since = head.lease.as_ref().map_or(head.created, |lease| lease.session.renewed);
            format!("{place} {}", style.dim(&format!("(unused, last mounted {})", format::ago(since))))
        }
        (false, Some(json::LeaseJson { mountpoint: Some(mountpoint), .. })) => {
            format!("{place} {}", style.dim(&format!("(mounted on {})", show(mountpoint.as_bytes()))))
        }
        (false, _) => place,
    };
    let mark = if name == volume.worktree.worktree { "*" } else { " " };
    let id = head.head.map_or_else(|| "no snapshot".into(), |id| names.short(&id));
    [
        TableCell::from(mark),
        TableCell::painted(name, |text| style.cyan(text)),
        TableCell::painted(&id, |text| style.yellow(text)),
        place.into(),
    ]
}

fn rename(context: &CommandContext, volume: &Volume, old: &str, new: &str) -> Result<CommandOutcome> {
    live::rename(volume, old, new)?;
    if context.ui.json() {
        context.ui.object(&WorktreeRenamedJson { old, new })?;
    } else if !context.ui.voice.quiet {
        context.ui.line(format!("The worktree {old} is now called {new}"))?;
    }
    Ok(CommandOutcome::Done)
}

fn keep(context: &CommandContext, volume: &Volume, old: &str, new: &str) -> Result<CommandOutcome> {
    live::keep(volume, old, new)?;
    let ui = &context.ui;
    if ui.json() {
        ui.object(&WorktreeRenamedJson { old, new })?;
    } else if !ui.voice.quiet {
        ui.line(format!("What was left of {old} here is the worktree {}", ui.style.cyan(new)))?;
        ui.note(format!("'vellum mount --worktree {new} MOUNTPOINT' shows it"))?;
    }
    Ok(CommandOutcome::Done)
}

fn adopt(context: &CommandContext, name: &str) -> Result<CommandOutcome> {
    // Not by the context: that it is a copy need not be said.
    let worktree = CheckoutWorktree::open(&context.cwd)?;
    let snapshot = worktree.adopt(name, context.waiting())?;
    let directory = show(worktree.root().as_os_str().as_encoded_bytes());
    let ui = &context.ui;
    if ui.json() {
        let snapshot = snapshot.map(|id| id.to_string());
        ui.object(&Adopted { name, snapshot, directory: &directory })?;
    } else if !ui.voice.quiet {
        let names = SnapshotNames::load(&worktree.volume)?;
        let place =
            snapshot.map_or_else(|| "no snapshot".into(), |id| format!("snapshot {}", names.short(&id)));
        ui.line(format!("{directory} is now the worktree {}, at {place}", ui.style.cyan(name)))?;
        ui.note("'vellum status' shows what differs from that")?;
    }
    Ok(CommandOutcome::Done)
}

fn relocate(context: &CommandContext, store: Option<&str>) -> Result<CommandOutcome> {
    let state = context.state()?;
    // Before anything is read that it changes.
    let _lock = state.lock(context.waiting())?;
    let volume = match store {
        Some(store) => {
            let store = vellum_store::absolute(store, &context.cwd).map_err(VolumeError::from)?;
            Volume::relocate_store(&state, &store)?
        }
        None => Volume::open(&state)?,
    };
    volume.confirm_directory()?;
    let (directory, store) = (show(state.root().as_os_str().as_encoded_bytes()), volume.objects.describe());
    let name = &volume.worktree.worktree;
    let ui = &context.ui;
    if ui.json() {
        ui.object(&Relocated { name, directory: &directory, store: &store })?;
    } else if !ui.voice.quiet {
        ui.line(format!(
            "The worktree {name} is in {directory}, and its store is {}",
            show(store.as_bytes())
        ))?;
    }
    Ok(CommandOutcome::Done)
}

fn remove(context: &CommandContext, volume: &Volume, name: &str) -> Result<CommandOutcome> {
    if name == volume.worktree.worktree {
        let message = format!("'{name}' is the worktree that you stand in");
        let hint = "remove it from another worktree; to give up the whole volume, delete its directories";
        return Err(CliError::usage(message, hint));
    }
    let head = volume.remove_worktree(name)?;
    let ui = &context.ui;
    if ui.json() {
        let snapshot = head.head.map(|id| id.to_string());
        ui.object(&WorktreeRemovedJson { name, snapshot, directory: &head.place })?;
    } else if !ui.voice.quiet {
        ui.line(format!("Removed the worktree {name} from the list; its snapshots stay"))?;
        if head.host == host_name() && std::path::Path::new(&head.place).exists() {
            ui.note(format!("its files are still in {}: delete them yourself", show(head.place.as_bytes())))?;
        }
    }
    Ok(CommandOutcome::Done)
}
