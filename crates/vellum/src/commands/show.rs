//! `vellum show`: one snapshot, or one file in it, in full.

use std::ffi::OsString;

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_types::FileKind;
use vellum_volume::annotation::SnapshotAnnotation;
use vellum_volume::record::SnapshotOrigin;
use vellum_volume::tree::{InodeRecord, file_kind_name};

use super::ls::{format_long_listing, list_dir};
use crate::context::CommandContext;
use crate::context::names::SnapshotNames;
use crate::context::place::SnapshotPath;
use crate::error::{CommandOutcome, Result};
use crate::ui::json::{FileDetailsJson, FileJson};
use crate::ui::owners::NamedOwners;
use crate::ui::table::FactList;
use crate::ui::{format, json};

/// Describe a snapshot, or a file in it
///
/// Without PATH, describes the snapshot: its record, its statistics and its top directory. With PATH, describes
/// everything that is recorded about that file, or lists that directory.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The snapshot
    #[arg(value_name = "SNAP", default_value = "HEAD")]
    snapshot: String,
    /// A file or directory
    path: Option<OsString>,
}

#[derive(Serialize)]
struct ShowSnapshotJson {
    snapshot: json::SnapshotJson,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<FileDetailsJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<Vec<FileJson>>,
}

/// Describes the snapshot or file.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.open_volume()?;
    // Without a path, the snapshot as a whole is described, wherever the user stands in the worktree.
    let root = context.paths_for_volume(&volume)?.root().as_os_str().to_owned();
    let path = args.path.clone().unwrap_or(root);
    let place = SnapshotPath::find_path(context, &volume, &args.snapshot, Some(&path))?;
    let inode = place.tree.read_inode(place.ino)?;
    let listing = match place.attr.kind {
        FileKind::Dir => Some(list_dir(&place.tree, place.ino)?),
        _ => None,
    };
    let names = SnapshotNames::load_all(&volume)?;
    let ui = &context.ui;
    if ui.is_json() {
        let items = |listing: &Vec<_>| listing.iter().map(new_file_item).collect();
        ui.print_json(&ShowSnapshotJson {
            snapshot: names.to_snapshot_json(&place.entry),
            file: args.path.as_ref().map(|_| FileDetailsJson::new(&place.path, &inode)),
            entries: listing.as_ref().map(items),
        })?;
        return Ok(CommandOutcome::Done);
    }
    let facts = match &args.path {
        None => snapshot_facts(&names, &place),
        Some(_) => file_facts(&names, &place, &inode),
    };
    ui.print_lines(facts.format_lines())?;
    if let Some(listing) = listing {
        ui.print_line("")?;
        ui.print_lines(format_long_listing(context, &listing))?;
    }
    Ok(CommandOutcome::Done)
}

fn new_file_item(entry: &super::ls::ListedFile) -> FileJson {
    FileJson::new(&entry.name, entry.ino, &entry.attr)
}

fn snapshot_facts(names: &SnapshotNames, place: &SnapshotPath) -> FactList {
    let record = &place.entry.record;
    let stats = &record.statistics;
    let mut facts = FactList::default();
    facts.add_fact("Snapshot", place.entry.id.to_string());
    facts.add_fact(
        "Made",
        format!("{} ({})", format::format_local_time(record.time), format::format_age(record.time)),
    );
    facts.add_fact("By", format_path(format!("{}@{}", record.author, record.host).as_bytes()));
    facts.add_fact("Worktree", format_path(&record.worktree));
    if record.origin == SnapshotOrigin::Safety {
        facts.add_fact("Why", "to keep what a restore was about to overwrite");
    }
    // Line by line, because the escape would make text of line feeds.
    for line in names.note_of(&place.entry).lines() {
        facts.add_fact("Note", escape_note_line(line));
    }
    let annotation = names.annotation_of(&place.entry.id);
    if let Some(note) = annotation.and_then(SnapshotAnnotation::note) {
        let who = format_path(format!("{}@{}", note.author, note.host));
        facts.add_fact("Noted", format!("{} by {who}", format::format_local_time(note.set)));
    }
    for (name, field) in annotation.into_iter().flat_map(SnapshotAnnotation::properties) {
        let value = field.value.as_deref().unwrap_or_default();
        facts.add_fact("Property", escape_note_line(&format!("{name}={value}")));
    }
    if !names.snapshot_labels(&place.entry.id).is_empty() {
        facts.add_fact("Names", names.snapshot_labels(&place.entry.id).join(", "));
    }
    for parent in &record.parents {
        facts.add_fact("Parent", parent.to_string());
    }
    for path in &record.paths {
        facts.add_fact("Only of", format_path(path));
    }
    let holds = [
        format::format_count(stats.files, "file"),
        format::format_count(stats.dirs, "directory"),
        format::format_count(stats.others, "other entry"),
    ];
    let shown = if stats.others == 0 { &holds[..2] } else { &holds[..] };
    facts.add_fact("Holds", format!("{}, {}", shown.join(", "), format::format_size(stats.bytes)));
    facts.add_fact("Changed", format!("{} against its parent", format::format_number(stats.changed)));
    facts.add_fact("Stored", format!("{} added to the store", format::format_size(stats.stored)));
    facts
}

fn file_facts(names: &SnapshotNames, place: &SnapshotPath, inode: &InodeRecord) -> FactList {
    let attr = &inode.attr;
    let mut facts = FactList::default();
    facts.add_fact("Path", format_path(&place.path));
    facts.add_fact("Snapshot", names.describe_snapshot(&place.entry));
    // The name has an article in front, for use in messages: "a file".
    facts.add_fact("Kind", file_kind_name(attr.kind).split_once(' ').map_or("", |(_, noun)| noun));
    facts.add_fact("Mode", format!("{} ({:04o})", format::format_mode(attr.kind, attr.mode), attr.mode));
    let owners = NamedOwners::read();
    let user = owners.describe_user(attr.uid);
    let group = owners.describe_group(attr.gid);
    facts.add_fact("Owner", format!("user {user}, group {group}"));
    facts.add_fact("Modified", format::format_exact_time(attr.mtime));
    if attr.kind == FileKind::File {
        facts.add_fact(
            "Size",
            format!("{} ({} bytes)", format::format_size(attr.size), format::format_number(attr.size)),
        );
        let stored = match &attr.inline {
            Some(_) => "within the tree".into(),
            None => format::format_count(vellum_json::count_chunks(inode) as u64, "chunk"),
        };
        facts.add_fact("Stored", stored);
        if vellum_json::count_hole_bytes(inode) > 0 {
            facts.add_fact("Holes", format::format_size(vellum_json::count_hole_bytes(inode)));
        }
    }
    // The links of a directory come from the directories in it, and are no names of it.
    if attr.nlink > 1 && attr.kind != FileKind::Dir {
        facts.add_fact("Links", attr.nlink.to_string());
    }
    if attr.kind == FileKind::Symlink {
        facts.add_fact("Target", format_path(&attr.target));
    }
    for (name, value) in &inode.xattrs {
        facts.add_fact("Attribute", format!("{}: {} bytes", format_path(name), value.len()));
    }
    facts
}

fn escape_note_line(line: &str) -> String {
    if line.is_empty() { String::new() } else { format_path(line) }
}
