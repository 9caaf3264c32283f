//! `vellum show`: one snapshot, or one file in it, in full.

use std::ffi::OsString;

use serde::Serialize;
use vellum_types::FileKind;
use vellum_volume::record::SnapshotOrigin;
use vellum_volume::tree::{InodeRecord, kind_noun, show};

use super::ls::{FileJson, list, long};
use crate::context::CommandContext;
use crate::context::names::SnapshotNames;
use crate::context::place::SnapshotPath;
use crate::error::{CommandOutcome, Result};
use crate::ui::table::FactList;
use crate::ui::{format, json};

/// Describe a snapshot, or a file in it
///
/// Without PATH: what the snapshot is, what it holds in numbers, and its top directory. With PATH: all that is
/// recorded of that file, or the directory's listing.
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
    file: Option<ShowFileJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<Vec<FileJson>>,
}

#[derive(Serialize)]
struct ShowFileJson {
    #[serde(flatten)]
    item: FileJson,
    chunks: usize,
    holes: u64,
    xattrs: Vec<XattrJson>,
}

#[derive(Serialize)]
struct XattrJson {
    #[serde(flatten)]
    name: json::NameJson,
    size: usize,
}

/// Describes the snapshot or file.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.volume()?;
    let root = context.paths_of(&volume)?.root().as_os_str().to_owned();
    let path = args.path.clone().unwrap_or(root);
    let place = SnapshotPath::find(context, &volume, &args.snapshot, Some(&path))?;
    let inode = place.tree.inode(place.ino)?;
    let listing = match place.attr.kind {
        FileKind::Dir => Some(list(&place.tree, place.ino)?),
        _ => None,
    };
    let names = SnapshotNames::load(&volume)?;
    let ui = &context.ui;
    if ui.json() {
        let items = |listing: &Vec<_>| listing.iter().map(item).collect();
        ui.object(&ShowSnapshotJson {
            snapshot: names.json(&place.entry),
            file: args.path.as_ref().map(|_| file(&place.path, &inode)),
            entries: listing.as_ref().map(items),
        })?;
        return Ok(CommandOutcome::Done);
    }
    let facts = match &args.path {
        None => snapshot_facts(&names, &place),
        Some(_) => file_facts(&names, &place, &inode),
    };
    for line in facts.lines() {
        ui.line(line)?;
    }
    if let Some(listing) = listing {
        ui.line("")?;
        for line in long(context, &listing) {
            ui.line(line)?;
        }
    }
    Ok(CommandOutcome::Done)
}

fn item(entry: &super::ls::ListedFile) -> FileJson {
    FileJson::new(&entry.name, entry.ino, &entry.attr)
}

fn file(path: &[u8], inode: &InodeRecord) -> ShowFileJson {
    ShowFileJson {
        item: FileJson::new(path, inode.ino, &inode.attr),
        chunks: chunks(inode),
        holes: holes(inode),
        xattrs: inode
            .xattrs
            .iter()
            .map(|(name, value)| XattrJson { name: json::NameJson::new(name), size: value.len() })
            .collect(),
    }
}

fn chunks(inode: &InodeRecord) -> usize {
    inode.extents.iter().filter(|(_, extent)| extent.source != vellum_types::ExtentSource::Hole).count()
}

/// Bytes that nothing was written to.
fn holes(inode: &InodeRecord) -> u64 {
    let is_data = |extent: &vellum_types::Extent| extent.source != vellum_types::ExtentSource::Hole;
    let data: u64 =
        inode.extents.iter().filter(|(_, extent)| is_data(extent)).map(|(_, extent)| extent.len).sum();
    match &inode.attr.inline {
        None if inode.attr.kind == FileKind::File => inode.attr.size.saturating_sub(data),
        _ => 0,
    }
}

fn snapshot_facts(names: &SnapshotNames, place: &SnapshotPath) -> FactList {
    let record = &place.entry.record;
    let stats = &record.statistics;
    let mut facts = FactList::default();
    facts.add("Snapshot", place.entry.id.to_string());
    facts.add("Made", format!("{} ({})", format::local_time(record.time), format::ago(record.time)));
    facts.add("By", show(format!("{}@{}", record.author, record.host).as_bytes()));
    facts.add("Worktree", show(record.worktree.as_bytes()));
    if record.origin == SnapshotOrigin::Safety {
        facts.add("Why", "to keep what a restore was about to overwrite");
    }
    for line in record.note.lines() {
        facts.add("Note", show_line(line));
    }
    if !names.labels(&place.entry.id).is_empty() {
        facts.add("Names", names.labels(&place.entry.id).join(", "));
    }
    for parent in &record.parents {
        facts.add("Parent", parent.to_string());
    }
    for path in &record.paths {
        facts.add("Only of", show(path));
    }
    let holds = [
        format::count(stats.files, "file"),
        format::count(stats.dirs, "directory"),
        format::count(stats.others, "other entry"),
    ];
    let shown = if stats.others == 0 { &holds[..2] } else { &holds[..] };
    facts.add("Holds", format!("{}, {}", shown.join(", "), format::size(stats.bytes)));
    facts.add("Changed", format!("{} against its parent", format::number(stats.changed)));
    facts.add("Stored", format!("{} added to the store", format::size(stats.stored)));
    facts
}

fn file_facts(names: &SnapshotNames, place: &SnapshotPath, inode: &InodeRecord) -> FactList {
    let attr = &inode.attr;
    let mut facts = FactList::default();
    facts.add("Path", show(&place.path));
    facts.add("Snapshot", names.describe(&place.entry));
    facts.add("Kind", kind_noun(attr.kind).split_once(' ').map_or("", |(_, noun)| noun));
    facts.add("Mode", format!("{} ({:04o})", format::mode(attr.kind, attr.mode), attr.mode));
    facts.add("Owner", format!("user {}, group {}", attr.uid, attr.gid));
    facts.add("Modified", format::local_exact(attr.mtime));
    if attr.kind == FileKind::File {
        facts.add("Size", format!("{} ({} bytes)", format::size(attr.size), format::number(attr.size)));
        let stored = match &attr.inline {
            Some(_) => "within the tree".into(),
            None => format::count(chunks(inode) as u64, "chunk"),
        };
        facts.add("Stored", stored);
        if holes(inode) > 0 {
            facts.add("Holes", format::size(holes(inode)));
        }
    }
    if attr.nlink > 1 && attr.kind != FileKind::Dir {
        facts.add("Links", attr.nlink.to_string());
    }
    if attr.kind == FileKind::Symlink {
        facts.add("Target", show(&attr.target));
    }
    for (name, value) in &inode.xattrs {
        facts.add("Attribute", format!("{}: {} bytes", show(name), value.len()));
    }
    facts
}

fn show_line(line: &str) -> String {
    if line.is_empty() { String::new() } else { show(line.as_bytes()) }
}
