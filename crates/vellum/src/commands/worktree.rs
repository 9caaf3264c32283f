//! `vellum worktree`: the worktrees of the volume.

mod quota;

use std::path::Path;

use serde::Serialize;
use vellum_library::live;
use vellum_volume::Volume;
use vellum_volume::refs::WorktreeHead;
use vellum_volume::session::host_name;
use vellum_volume::tree::show;

use crate::context::Context;
use crate::context::names::{Names, warn_of_damaged};
use crate::error::{CliError, Outcome, Result};
use crate::ui::table::{Align, Cell, Table};
use crate::ui::{format, json};

/// List, rename, limit, keep and remove worktrees
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
    /// Take a worktree off the list
    ///
    /// Its snapshots stay, and so do the files in its directory.
    Remove {
        /// Its name
        name: String,
    },
}

#[derive(Serialize)]
struct Listing {
    worktrees: Vec<Item>,
}

#[derive(Serialize)]
struct Item {
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
struct Renamed<'a> {
    old: &'a str,
    new: &'a str,
}

#[derive(Serialize)]
struct Removed<'a> {
    name: &'a str,
    snapshot: Option<String>,
    directory: &'a str,
}

/// Lists, renames, keeps or removes.
pub fn run(command: &Command, context: &Context) -> Result<Outcome> {
    let volume = context.volume()?;
    match command {
        Command::List => list(context, &volume),
        Command::Rename { old, new } => rename(context, &volume, old, new),
        Command::Keep { old, new } => keep(context, &volume, old, new),
        Command::Quota(args) => quota::run(args, context, &volume),
        Command::Remove { name } => remove(context, &volume, name),
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
    live::is_live(head) && json::Lease::of(name, head).is_none()
}

fn list(context: &Context, volume: &Volume) -> Result<Outcome> {
    let (worktrees, damaged) = volume.read_worktrees()?;
    warn_of_damaged(&context.ui, &damaged)?;
    let here = &volume.worktree.worktree;
    let ui = &context.ui;
    if ui.json() {
        let item = |(name, head): &(String, WorktreeHead)| Item {
            name: name.clone(),
            here: name == here,
            snapshot: head.head.map(|id| id.to_string()),
            host: head.host.clone(),
            directory: head.place.clone(),
            created: json::time(head.created),
            missing: is_missing(volume, name, head),
            unused: is_unused(name, head),
        };
        ui.object(&Listing { worktrees: worktrees.iter().map(item).collect() })?;
        return Ok(Outcome::Done);
    }
    let names = Names::load(volume)?;
    let mut table = Table::new(&[Align::Left; 4]);
    for (name, head) in &worktrees {
        table.row(row(context, volume, &names, (name, head)));
    }
    for line in table.lines() {
        ui.line(line)?;
    }
    if worktrees.iter().any(|(name, head)| is_unused(name, head)) {
        ui.note("'vellum worktree remove NAME' removes one that is not needed any more; its snapshots stay")?;
    }
    Ok(Outcome::Done)
}

fn row(context: &Context, volume: &Volume, names: &Names, (name, head): (&str, &WorktreeHead)) -> [Cell; 4] {
    let style = context.ui.style;
    let place = show(head.place.as_bytes());
    let place = match (head.host == host_name(), is_missing(volume, name, head)) {
        (true, false) => place,
        (true, true) => format!("{place} {}", style.dim("(not there any more)")),
        (false, _) => format!("{}:{place}", show(head.host.as_bytes())),
    };
    let place = match (is_unused(name, head), json::Lease::of(name, head)) {
        (true, _) => {
            let since = head.lease.as_ref().map_or(head.created, |lease| lease.session.renewed);
            format!("{place} {}", style.dim(&format!("(unused, last mounted {})", format::ago(since))))
        }
        (false, Some(json::Lease { mountpoint: Some(mountpoint), .. })) => {
            format!("{place} {}", style.dim(&format!("(mounted on {})", show(mountpoint.as_bytes()))))
        }
        (false, _) => place,
    };
    let mark = if name == volume.worktree.worktree { "*" } else { " " };
    let id = head.head.map_or_else(|| "no snapshot".into(), |id| names.short(&id));
    [
        Cell::from(mark),
        Cell::painted(name, |text| style.cyan(text)),
        Cell::painted(&id, |text| style.yellow(text)),
        place.into(),
    ]
}

fn rename(context: &Context, volume: &Volume, old: &str, new: &str) -> Result<Outcome> {
    live::rename(volume, old, new)?;
    if context.ui.json() {
        context.ui.object(&Renamed { old, new })?;
    } else if !context.ui.voice.quiet {
        context.ui.line(format!("The worktree {old} is now called {new}"))?;
    }
    Ok(Outcome::Done)
}

fn keep(context: &Context, volume: &Volume, old: &str, new: &str) -> Result<Outcome> {
    live::keep(volume, old, new)?;
    let ui = &context.ui;
    if ui.json() {
        ui.object(&Renamed { old, new })?;
    } else if !ui.voice.quiet {
        ui.line(format!("What was left of {old} here is the worktree {}", ui.style.cyan(new)))?;
        ui.note(format!("'vellum mount --worktree {new} MOUNTPOINT' shows it"))?;
    }
    Ok(Outcome::Done)
}

fn remove(context: &Context, volume: &Volume, name: &str) -> Result<Outcome> {
    if name == volume.worktree.worktree {
        let message = format!("'{name}' is the worktree that you stand in");
        let hint = "remove it from another worktree; to give up the whole volume, delete its directories";
        return Err(CliError::usage(message, hint));
    }
    let head = volume.remove_worktree(name)?;
    let ui = &context.ui;
    if ui.json() {
        let snapshot = head.head.map(|id| id.to_string());
        ui.object(&Removed { name, snapshot, directory: &head.place })?;
    } else if !ui.voice.quiet {
        ui.line(format!("Removed the worktree {name} from the list; its snapshots stay"))?;
        if head.host == host_name() && std::path::Path::new(&head.place).exists() {
            ui.note(format!("its files are still in {}: delete them yourself", show(head.place.as_bytes())))?;
        }
    }
    Ok(Outcome::Done)
}
