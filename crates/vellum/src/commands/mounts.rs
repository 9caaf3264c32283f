//! `vellum mounts`: what is mounted on this machine.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::Serialize;
use vellum_fuse::MountFile;
use vellum_host::escape::format_path;
use vellum_types::SnapshotId;

use crate::context::CommandContext;
use crate::error::{CommandOutcome, Result};
use crate::mounting::table::{self, MountTableEntry};
use crate::probe::is_mount_answering;
use crate::ui::format;
use crate::ui::table::TextTable;

/// For how long answers are waited for, if a mount that answered a moment ago does not any more.
const ANSWERS_MAX: Duration = Duration::from_secs(4);

/// List the mounts of this machine
#[derive(Debug, clap::Args)]
pub struct Args {}

#[derive(Serialize)]
struct MountListJson {
    mounts: Vec<MountItemJson>,
}

#[derive(Serialize)]
struct MountItemJson {
    mountpoint: String,
    worktree: Option<String>,
    snapshot: Option<String>,
    read_only: bool,
    dead: bool,
    /// Whether the mount said nothing of itself in time: its process is stopped, or waits for something.
    silent: bool,
    pid: Option<u32>,
    state: Option<String>,
    store: Option<String>,
    /// For how many seconds something is acknowledged and not in the store; 0: all of it is in the store.
    unpublished_seconds: Option<u64>,
}

/// What a mount says of itself.
struct MountAnswer {
    dead: bool,
    file: Option<MountFile>,
    unpublished_seconds: Option<u64>,
}

impl MountAnswer {
    /// Asks a mount. None if it does not answer.
    fn ask_mount(mount: &MountTableEntry) -> Option<Self> {
        // By a process of its own, since a mount whose process is stopped may hold whoever asks it.
        if !is_mount_answering(&mount.mountpoint) {
            return None;
        }
        let dead = mount.is_dead();
        // The mount of another user cannot be entered; then the kernel's table of mounts is the only source.
        let file = (!dead).then(|| table::read_mount_file(mount).ok()).flatten();
        let unpublished_seconds = file.as_ref().and_then(|_| table::read_unpublished_age(mount));
        Some(Self { dead, file, unpublished_seconds })
    }
}

/// Asks all mounts at once. A thread waits for each: one that does not answer holds up neither the others nor the end of
/// the command.
fn ask_mounts(mounts: &[MountTableEntry]) -> Vec<Option<MountAnswer>> {
    let until = Instant::now() + ANSWERS_MAX;
    let (sender, answers) = mpsc::channel();
    for (number, mount) in mounts.iter().cloned().enumerate() {
        let sender = sender.clone();
        // Nobody waits for the answer any more if it comes too late.
        std::thread::spawn(move || drop(sender.send((number, MountAnswer::ask_mount(&mount)))));
    }
    // The loop below ends when the last sender is gone, which would never be while this one is here.
    drop(sender);
    let mut known: Vec<_> = mounts.iter().map(|_| None).collect();
    while let Ok((number, answer)) = answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
        if let Some(place) = known.get_mut(number) {
            *place = answer;
        }
    }
    known
}

impl MountItemJson {
    fn new(mount: &MountTableEntry, answer: Option<MountAnswer>) -> Self {
        let silent = answer.is_none();
        let nothing = MountAnswer { dead: false, file: None, unpublished_seconds: None };
        let MountAnswer { dead, file, unpublished_seconds } = answer.unwrap_or(nothing);
        let named = mount.source.strip_prefix("vellum:").map(String::from);
        let (worktree, snapshot) = match &file {
            Some(file) => (file.worktree.clone(), file.snapshot.clone()),
            // The source of a mount is the name of a worktree, or a snapshot's whole id. A name may be as long, but
            // worktrees are mounted for writing as a rule.
            None if mount.read_only && named.as_ref().is_some_and(|name| is_snapshot_id(name)) => {
                (None, named)
            }
            None => (named, None),
        };
        Self {
            mountpoint: mount.mountpoint.display().to_string(),
            worktree,
            snapshot,
            read_only: mount.read_only,
            dead,
            silent,
            pid: file.as_ref().map(|file| file.pid),
            state: file.as_ref().map(|file| file.state.clone()),
            unpublished_seconds,
            store: file.map(|file| file.store),
        }
    }
}

fn is_snapshot_id(name: &str) -> bool {
    name.parse::<SnapshotId>().is_ok()
}

/// Lists them.
pub fn run(_args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let mut found = table::read_mounts()?;
    found.retain(table::is_vellum_mount);
    let answers = ask_mounts(&found);
    let mounts = found.iter().zip(answers).map(|(mount, answer)| MountItemJson::new(mount, answer));
    let listing = MountListJson { mounts: mounts.collect() };
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&listing)?;
        return Ok(CommandOutcome::Done);
    }
    let mut table = TextTable::default();
    for item in &listing.mounts {
        table.add_row(mount_row(context, item));
    }
    ui.print_lines(table.format_lines())?;
    if listing.mounts.is_empty() {
        ui.print_note("nothing is mounted: 'vellum mount MOUNTPOINT' mounts a worktree")?;
    }
    Ok(CommandOutcome::Done)
}

fn mount_row(context: &CommandContext, item: &MountItemJson) -> [String; 4] {
    let style = context.ui.style;
    let shown = match (&item.worktree, &item.snapshot) {
        (Some(name), _) => style.paint_cyan(&format_path(name)),
        (None, Some(id)) => style.paint_yellow(format::shorten_id(id)),
        (None, None) => "?".into(),
    };
    let how = match (item.dead, item.read_only, item.unpublished_seconds) {
        _ if item.silent => "does not answer: its process is stopped, or waits".into(),
        (true, _, _) => "dead: 'vellum mount' or 'vellum umount' clears it".into(),
        (false, true, _) => "read-only".into(),
        (false, false, None | Some(0)) => String::new(),
        (false, false, Some(seconds)) => {
            format!("not all in the store for {}", format::format_duration(Duration::from_secs(seconds)))
        }
    };
    // Dead mounts and those of other users do not show where their volume is.
    let state = item.state.as_deref().map_or_else(String::new, format_path);
    [shown, format_path(&item.mountpoint), state, how]
}
