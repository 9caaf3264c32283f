//! `vellum trash`: what was removed from a mounted worktree, and is kept for some days.

use std::ffi::OsString;

use serde::Serialize;
use vellum_fs::trash::TRASH_DAYS_MAX;
use vellum_host::escape::format_path;
use vellum_volume::trash::list_trash_entries;

use crate::context::CommandContext;
use crate::context::mounted::MountProcess;
use crate::error::{CliError, CommandOutcome, Result};
use crate::mounting::control::ControlRequest;
use crate::mounting::trash::{TrashFigures, TrashReply, TrashRequest, TrashSelection, TrashedEntry};
use crate::ui::json::{NameJson, file_kind_name, format_json_time};
use crate::ui::owners::NamedOwners;
use crate::ui::table::{ShortenedColumn, TableFit, TextTable};
use crate::ui::{UserInterface, format};

/// Restore what was deleted in a mounted worktree
///
/// The trash is off unless 'vellum trash days' or 'vellum mount --trash-days' has switched it on. From then on, whatever is
/// deleted or replaced in the mount is kept for so many days, whether a snapshot holds it or not.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List what is in the trash
    List {
        /// List only what was at these paths, or below them
        paths: Vec<OsString>,
        /// List the trash of this worktree, as it was published last; it need not be mounted
        #[arg(long, value_name = "NAME")]
        worktree: Option<String>,
    },
    /// Restore what is in the trash, to where it was
    ///
    /// Of each path the version that was deleted last is restored; of a directory, everything below it as well. Nothing is
    /// replaced: the command fails if a name is taken.
    #[command(group(clap::ArgGroup::new("which").required(true).multiple(true)))]
    Restore {
        /// The paths that were deleted
        #[arg(value_name = "PATH", group = "which")]
        paths: Vec<OsString>,
        /// Restore the entry of this number; 'vellum trash list' shows the numbers
        #[arg(long, value_name = "NUMBER", group = "which")]
        number: Vec<u64>,
        /// Restore to this path instead; for one path or number
        #[arg(long, value_name = "PATH")]
        to: Option<OsString>,
    },
    /// Delete everything in the trash
    Empty,
    /// Show or set the number of days for which the trash keeps what is deleted
    Days {
        /// The number; 0 switches the trash off and deletes what is in it
        #[arg(value_parser = parse_trash_days())]
        days: Option<u32>,
    },
}

#[derive(Serialize)]
struct TrashListJson {
    days: u32,
    entries: u64,
    bytes: u64,
    listed: Vec<TrashEntryJson>,
}

#[derive(Serialize)]
struct TrashEntryJson {
    number: u64,
    #[serde(flatten)]
    name: NameJson,
    kind: &'static str,
    size: u64,
    uid: u32,
    removed: String,
}

#[derive(Serialize)]
struct TrashRestoreJson {
    restored: u64,
}

#[derive(Serialize)]
struct TrashEmptyJson {
    removed: u64,
}

#[derive(Serialize)]
struct TrashDaysJson {
    days: u32,
}

/// Days as they are typed.
pub fn parse_trash_days() -> impl clap::builder::TypedValueParser<Value = u32> {
    clap::value_parser!(u32).range(..=i64::from(TRASH_DAYS_MAX))
}

/// Lists, restores, empties or sets.
pub fn run(command: &Command, context: &CommandContext) -> Result<CommandOutcome> {
    let process = context.find_mount_process()?;
    if let Command::List { paths, worktree } = command
        // The ref names the trash as it was published last. A mounted worktree has it as it is now, so it is asked where it
        // can be.
        && (process.is_none() || worktree.is_some())
    {
        return list_published(paths, worktree.as_deref(), context);
    }
    let process = process.ok_or_else(not_mounted_error)?;
    match command {
        Command::List { paths, .. } => list_entries(paths, context, &process),
        Command::Restore { paths, number, to } => {
            let parser = context.paths_at_root(&process.mountpoint);
            let to = to.as_ref().map(|to| parser.parse_path(to)).transpose()?;
            // Several entries at one path would replace each other.
            if to.is_some() && paths.len() + number.len() > 1 {
                let message = "--to is for one path or number";
                return Err(CliError::usage_error(message, "run the command once for each of them"));
            }
            let selection = TrashSelection { numbers: number.clone(), paths: parser.parse_paths(paths)?, to };
            restore_entries(selection, context, &process)
        }
        Command::Empty => empty(context, &process),
        Command::Days { days } => show_days(*days, context, &process),
    }
}

fn not_mounted_error() -> CliError {
    CliError::usage_error(
        "this is not a mounted worktree",
        "mount the worktree with 'vellum mount', or go to where 'vellum mounts' shows it, and run the command there; \
         'vellum trash list --worktree NAME' also lists the trash of one that is not mounted",
    )
}

/// Lists the trash of a worktree as its ref names it, wherever the worktree is mounted, or was.
fn list_published(
    paths: &[OsString],
    worktree: Option<&str>,
    context: &CommandContext,
) -> Result<CommandOutcome> {
    let volume = context.open_volume()?;
    let name = worktree.unwrap_or(&volume.worktree.worktree);
    let trash = volume.require_worktree_head(name)?.trash;
    // A checked-out directory has none.
    if trash.days == 0 && worktree.is_none() {
        return Err(not_mounted_error());
    }
    let paths = context.paths_for_volume(&volume)?.parse_paths(paths)?;
    let entries = match trash.tree {
        None => Vec::new(),
        Some(tree) => list_trash_entries(&volume.open_tree(tree.root))?,
    };
    let figures = TrashFigures {
        days: trash.days,
        entries: entries.len() as u64,
        bytes: entries.iter().map(|entry| entry.size).sum(),
    };
    print_listing(&context.ui, figures, &TrashReply::for_listing(entries, &paths))?;
    if !context.ui.is_json() {
        context.ui.print_note(format!(
            "as the worktree '{}' published it last; it is restored where the worktree is mounted",
            format_path(name.as_bytes())
        ))?;
    }
    Ok(CommandOutcome::Done)
}

/// Asks the process of the mount. Returns what is in the trash afterwards, and the answer.
fn send_request(process: &MountProcess, request: TrashRequest) -> Result<(TrashFigures, TrashReply)> {
    let answer = process.send_request(&ControlRequest::Trash { request })?;
    Ok((answer.trash, answer.trashed.unwrap_or_default()))
}

fn list_entries(
    paths: &[OsString],
    context: &CommandContext,
    process: &MountProcess,
) -> Result<CommandOutcome> {
    let parser = context.paths_at_root(&process.mountpoint);
    let (figures, listing) = send_request(process, TrashRequest::List(parser.parse_paths(paths)?))?;
    print_listing(&context.ui, figures, &listing)?;
    Ok(CommandOutcome::Done)
}

fn print_listing(ui: &UserInterface, figures: TrashFigures, listing: &TrashReply) -> Result<()> {
    let TrashFigures { days, entries, bytes } = figures;
    if ui.is_json() {
        let listed = listing.entries.iter().map(TrashEntryJson::from_entry).collect();
        return ui.print_json(&TrashListJson { days, entries, bytes, listed });
    }
    ui.print_lines(build_table(ui, &listing.entries).format_lines())?;
    if listing.omitted > 0 {
        ui.print_warning(format!(
            "{} that were deleted earlier are not listed: name paths to list these",
            format::format_count(listing.omitted, "entry")
        ))?;
    }
    print_figures(ui, figures)
}

fn build_table(ui: &UserInterface, entries: &[TrashedEntry]) -> TextTable {
    let mut table = TextTable::new([0, 3]);
    // Read once for the table, and not for each row.
    let owners = NamedOwners::read();
    for entry in entries {
        let path = format_path(&entry.path);
        let kind = file_kind_name(entry.file_kind());
        // The size of anything else says nothing that a user could want to know here.
        let size = if kind == "file" { format::format_size(entry.size) } else { kind.into() };
        table.add_row([
            ui.style.paint_yellow(&entry.number.to_string()),
            format::format_local_time(entry.removal_time()),
            owners.format_user(entry.uid),
            size,
            path,
        ]);
    }
    let shortened = [ShortenedColumn::keep_end(4)];
    table.fit_columns(ui.output_columns(), &TableFit { optional: &[2], shortened: &shortened });
    table
}

fn print_figures(ui: &UserInterface, figures: TrashFigures) -> Result<()> {
    let TrashFigures { days, entries, bytes } = figures;
    if days == 0 {
        return ui.print_note("the trash is off: 'vellum trash days NUMBER' switches it on");
    }
    ui.print_note(format!(
        "{}, {}; kept for {}",
        format::format_count(entries, "entry"),
        format::format_size(bytes),
        format::format_count(days.into(), "day")
    ))
}

fn restore_entries(
    selection: TrashSelection,
    context: &CommandContext,
    process: &MountProcess,
) -> Result<CommandOutcome> {
    let restored = send_request(process, TrashRequest::Restore(selection))?.1.changed;
    let line = || format!("Restored {}", format::format_count(restored, "entry"));
    context.ui.print_outcome(&TrashRestoreJson { restored }, line)?;
    Ok(CommandOutcome::Done)
}

fn empty(context: &CommandContext, process: &MountProcess) -> Result<CommandOutcome> {
    let removed = send_request(process, TrashRequest::Empty)?.1.changed;
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&TrashEmptyJson { removed })?;
    } else if !ui.voice.quiet {
        ui.print_line(format!("Deleted {}", format::format_count(removed, "entry")))?;
        ui.print_note("'vellum gc run' frees their space in the store")?;
    }
    Ok(CommandOutcome::Done)
}

fn show_days(days: Option<u32>, context: &CommandContext, process: &MountProcess) -> Result<CommandOutcome> {
    let figures = match days {
        Some(days) => send_request(process, TrashRequest::SetDays(days))?.0,
        None => process.send_request(&ControlRequest::Status)?.trash,
    };
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&TrashDaysJson { days: figures.days })?;
    } else {
        ui.print_line(figures.days.to_string())?;
    }
    Ok(CommandOutcome::Done)
}

impl TrashEntryJson {
    fn from_entry(entry: &TrashedEntry) -> Self {
        Self {
            number: entry.number,
            name: NameJson::new(&entry.path),
            kind: file_kind_name(entry.file_kind()),
            size: entry.size,
            uid: entry.uid,
            removed: format_json_time(entry.removal_time()),
        }
    }
}
