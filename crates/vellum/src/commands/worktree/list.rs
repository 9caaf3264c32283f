//! `vellum worktree list` and `show`: what there is of each worktree.
//!
//! Everything but the changes of a checked-out directory comes from refs and records: nothing is scanned unless it is asked for.

use std::path::{Path, PathBuf};

use serde::Serialize;
use vellum_checkout::CheckoutWorktree;
use vellum_host::escape::format_path;
use vellum_host::process::host_name;
use vellum_library::live;
use vellum_types::UnixTime;
use vellum_volume::Volume;
use vellum_volume::refs::WorktreeHead;
use vellum_volume::remote::estimate_standing;

use super::quota::{published_usage, query_mounted_quota};
use super::remove::has_published_changes;
use crate::context::CommandContext;
use crate::context::names::{SnapshotNames, warn_about_damaged_refs};
use crate::error::{CliError, CommandOutcome, Result};
use crate::ui::progress::ProgressTask;
use crate::ui::table::{ShortenedColumn, TableFit, TextTable};
use crate::ui::{format, json};

const SCANNING: ProgressTask = ProgressTask { first: "Scanning", verb: "Comparing", item: "file" };

#[derive(Serialize)]
struct WorktreeListJson {
    worktrees: Vec<WorktreeJson>,
}

#[derive(Serialize)]
struct WorktreeJson {
    name: String,
    here: bool,
    snapshot: Option<String>,
    /// When that snapshot was taken.
    time: Option<String>,
    host: String,
    directory: String,
    /// Where it is mounted.
    mountpoint: Option<String>,
    created: String,
    missing: bool,
    /// Whether it is one to be mounted, and no process has it.
    unused: bool,
    /// Snapshots that it has and the current worktree lacks.
    ahead: u64,
    /// Snapshots that the current worktree has and it lacks.
    behind: u64,
    /// Bytes of content, as last stored; of a mounted one, as its process counts.
    bytes: u64,
    /// Files, directories and others.
    inodes: u64,
    /// The most bytes that it may hold.
    quota_bytes: Option<u64>,
    /// The most inodes that it may hold.
    quota_inodes: Option<u64>,
    /// Whether it holds something that no snapshot does; None: nobody asked, or it cannot be seen from here.
    changed: Option<bool>,
    #[serde(skip)]
    age: Option<UnixTime>,
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

/// Where the files of a worktree are found: its directory, or its mountpoint; None: nowhere on this machine.
fn find_files(volume: &Volume, name: &str, head: &WorktreeHead) -> Option<PathBuf> {
    if head.host != host_name() || is_dir_missing(volume, name, head) {
        return None;
    }
    match live::is_live_worktree(head) {
        false => Some(head.place.clone().into()),
        true => json::LeaseJson::from_worktree_head(name, head)?.mountpoint.map(PathBuf::from),
    }
}

fn describe_worktree(volume: &Volume, name: &str, head: &WorktreeHead) -> Result<WorktreeJson> {
    let standing = match name == volume.worktree.worktree {
        true => None,
        false => Some(estimate_standing(volume, head.head, volume.read_head()?)?),
    };
    // A process that does not answer tells nothing: then what was published counts.
    let counted = query_mounted_quota(head, None).ok().flatten();
    let size = match &counted {
        Some(answer) => (answer.used_bytes, answer.used_inodes),
        // Nor does a snapshot that is lost.
        None => published_usage(volume, head).unwrap_or_default(),
    };
    let taken = head.head.and_then(|id| volume.catalog.get_record(&id).ok()).map(|record| record.time);
    Ok(WorktreeJson {
        name: name.into(),
        here: name == volume.worktree.worktree,
        snapshot: head.head.map(|id| id.to_string()),
        time: taken.map(json::format_json_time),
        host: head.host.clone(),
        directory: head.place.clone(),
        mountpoint: json::LeaseJson::from_worktree_head(name, head).and_then(|lease| lease.mountpoint),
        created: json::format_json_time(head.created),
        missing: is_dir_missing(volume, name, head),
        unused: is_unused_live(name, head),
        ahead: standing.map_or(0, |standing| standing.ahead),
        behind: standing.map_or(0, |standing| standing.behind),
        bytes: size.0,
        inodes: size.1,
        quota_bytes: head.quota.bytes,
        quota_inodes: head.quota.inodes,
        changed: match counted {
            Some(answer) => Some(answer.changed),
            // What a mount that has ended left is in the store, so nothing has to be scanned.
            // A damaged record is for 'verify' to name: the list shows what can be read.
            None if is_unused_live(name, head) => has_published_changes(volume, head).ok(),
            None => None,
        },
        age: taken,
    })
}

/// Whether a checked-out worktree of this machine holds what no snapshot does: by a scan.
fn look_for_changes(
    context: &CommandContext,
    volume: &Volume,
    name: &str,
    head: &WorktreeHead,
) -> Result<Option<bool>> {
    if live::is_live_worktree(head) || is_dir_missing(volume, name, head) || head.host != host_name() {
        return Ok(None);
    }
    // Opened as a worktree of its own, whose stat cache and rules hold for it.
    let worktree = CheckoutWorktree::open(Path::new(&head.place))?;
    Ok(Some(context.run_with_progress(SCANNING, |meter| worktree.has_unsaved_changes(meter))?))
}

/// Lists all worktrees. `changes`: whether directories are scanned for what no snapshot holds.
pub(super) fn list_worktrees(
    context: &CommandContext,
    volume: &Volume,
    changes: bool,
) -> Result<CommandOutcome> {
    let (worktrees, damaged) = volume.list_readable_worktrees()?;
    warn_about_damaged_refs(&context.ui, &damaged)?;
    let mut items = Vec::new();
    for (name, head) in &worktrees {
        let mut item = describe_worktree(volume, name, head)?;
        if changes && item.changed.is_none() {
            item.changed = look_for_changes(context, volume, name, head)?;
        }
        items.push(item);
    }
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&WorktreeListJson { worktrees: items })?;
        return Ok(CommandOutcome::Done);
    }
    let names = SnapshotNames::load_all(volume)?;
    let mut table = TextTable::default();
    for ((name, head), item) in worktrees.iter().zip(&items) {
        table.add_row(worktree_row(context, &names, item, &format_place(context, name, head, item)));
    }
    let shortened = [ShortenedColumn::keep_end(7), ShortenedColumn::keep_beginning(1)];
    table.fit_columns(ui.output_columns(), &TableFit { optional: &[5, 3], shortened: &shortened });
    ui.print_lines(table.format_lines())?;
    // Each mount of a new name creates a worktree: those that were meant for once would collect here unnoticed.
    if items.iter().any(|item| item.unused && item.changed != Some(true)) {
        ui.print_note(
            "'vellum worktree remove NAME' removes one that is not needed any more; its snapshots stay",
        )?;
    }
    Ok(CommandOutcome::Done)
}

fn worktree_row(
    context: &CommandContext,
    names: &SnapshotNames,
    item: &WorktreeJson,
    place: &str,
) -> [String; 8] {
    let style = context.ui.style;
    let mark = if item.here { "*" } else { " " };
    let id = item.snapshot.as_deref().and_then(|id| id.parse().ok());
    let id = id.map_or_else(|| "no snapshot".into(), |id| names.short_id(&id));
    let age = item.age.map(format::format_age).unwrap_or_default();
    [
        mark.into(),
        style.paint_cyan(&item.name),
        style.paint_yellow(&id),
        age,
        format_standing(item),
        format_extent(item),
        if item.changed == Some(true) { "changed".into() } else { String::new() },
        place.into(),
    ]
}

/// How far it and the current worktree are apart.
fn format_standing(item: &WorktreeJson) -> String {
    let parts = [(item.ahead, "ahead"), (item.behind, "behind")].into_iter().filter(|(count, _)| *count > 0);
    let parts: Vec<_> =
        parts.map(|(count, word)| format!("{} {word}", format::format_number(count))).collect();
    parts.join(", ")
}

/// How much it holds, and may hold.
fn format_extent(item: &WorktreeJson) -> String {
    let size = format::format_size(item.bytes);
    match item.quota_bytes {
        None => size,
        Some(quota) => format!("{size} of {}", format::format_size(quota)),
    }
}

fn format_place(context: &CommandContext, name: &str, head: &WorktreeHead, item: &WorktreeJson) -> String {
    let style = context.ui.style;
    let place = format_path(&head.place);
    let place = match (head.host == host_name(), item.missing) {
        (true, false) => place,
        (true, true) => format!("{place} {}", style.paint_dim("(not there any more)")),
        // The ref came by a push: its directory is known only in the store that it was pushed from.
        (false, _) if !head.has_directory() => style.paint_dim("(pushed)"),
        (false, _) => format!("{}:{place}", format_path(&head.host)),
    };
    match (item.unused, json::LeaseJson::from_worktree_head(name, head)) {
        (true, _) => {
            let unused = match &head.lease {
                Some(lease) => {
                    format!("(unused, last mounted {})", format::format_age(lease.session.renewed))
                }
                // It was made to be mounted, and has no directory before.
                None => format!("(never mounted, created {})", format::format_age(head.created)),
            };
            format!("{place} {}", style.paint_dim(&unused))
        }
        (false, Some(json::LeaseJson { mountpoint: Some(mountpoint), .. })) => {
            format!("{place} {}", style.paint_dim(&format!("(mounted on {})", format_path(&mountpoint))))
        }
        (false, _) => place,
    }
}

/// The worktree of this name, or the current one.
fn find_worktree(volume: &Volume, name: Option<&str>) -> Result<(String, WorktreeHead)> {
    let name = name.unwrap_or(&volume.worktree.worktree);
    Ok((name.into(), volume.require_worktree_head(name)?))
}

/// Shows one.
pub(super) fn show_worktree(
    context: &CommandContext,
    volume: &Volume,
    name: Option<&str>,
    changes: bool,
) -> Result<CommandOutcome> {
    let (name, head) = find_worktree(volume, name)?;
    let mut item = describe_worktree(volume, &name, &head)?;
    if changes && item.changed.is_none() {
        item.changed = look_for_changes(context, volume, &name, &head)?;
    }
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&item)?;
        return Ok(CommandOutcome::Done);
    }
    let names = SnapshotNames::load_all(volume)?;
    let id = head.head.map_or_else(|| "none".into(), |id| names.short_id(&id));
    let quota = match (item.quota_bytes, item.quota_inodes) {
        (None, None) => "none".into(),
        (bytes, inodes) => {
            let bytes = bytes.map(format::format_size);
            let inodes = inodes.map(|inodes| format!("{} inodes", format::format_number(inodes)));
            bytes.into_iter().chain(inodes).collect::<Vec<_>>().join(", ")
        }
    };
    let standing = format_standing(&item);
    let changed = match item.changed {
        Some(true) => "there are changes that no snapshot holds",
        Some(false) => "none",
        None => "not looked for ('--changes' does)",
    };
    let mut table = TextTable::default();
    let rows = [
        ("name", ui.style.paint_cyan(&name)),
        ("place", format_place(context, &name, &head, &item)),
        ("created", format::format_age(head.created)),
        (
            "snapshot",
            format!(
                "{} {}",
                ui.style.paint_yellow(&id),
                item.age.map(format::format_age).unwrap_or_default()
            ),
        ),
        ("against here", if standing.is_empty() { "the same".into() } else { standing }),
        (
            "holds",
            format!("{} in {} inodes", format::format_size(item.bytes), format::format_number(item.inodes)),
        ),
        ("quota", quota),
        ("changes", changed.into()),
    ];
    for (label, text) in rows {
        table.add_row([ui.style.paint_dim(label), text]);
    }
    ui.print_lines(table.format_lines())?;
    Ok(CommandOutcome::Done)
}

#[derive(Serialize)]
struct WorktreePathJson {
    name: String,
    path: String,
}

/// Prints where the files of a worktree are.
pub(super) fn print_path(
    context: &CommandContext,
    volume: &Volume,
    name: Option<&str>,
) -> Result<CommandOutcome> {
    let (name, head) = find_worktree(volume, name)?;
    let Some(path) = find_files(volume, &name, &head) else {
        let hint = match live::is_live_worktree(&head) && head.host == host_name() {
            true => format!("'vellum mount --worktree {name} DIR' mounts it"),
            false => "'vellum worktree show' tells where it was last".into(),
        };
        return Err(CliError::usage_error(format!("the files of {name} are not on this machine"), hint));
    };
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&WorktreePathJson { name, path: path.display().to_string() })?;
        return Ok(CommandOutcome::Done);
    }
    // As it is, for scripts.
    let mut line = path.into_os_string().into_encoded_bytes();
    line.push(b'\n');
    ui.write_bytes(&line)?;
    Ok(CommandOutcome::Done)
}
