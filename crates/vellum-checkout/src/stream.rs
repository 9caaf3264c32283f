//! Snapshots of streams: of a tree that has one file, with the content of the stream.

use std::io::Read;

use rustix::process::{getgid, getuid};
use vellum_chunker::Chunker;
use vellum_host::ProgressMeter;
use vellum_host::process::{host_name, user_name};
use vellum_map::MapRoot;
use vellum_types::key::check_name;
use vellum_types::value::SuperBlock;
use vellum_types::{Dentry, FileKind, Ino, InodeAttr, MapKey, UnixTime};
use vellum_volume::session::{current_time, date_after_parent};
use vellum_volume::tree::compute_generation;
use vellum_volume::volume::name_outside_line;
use vellum_volume::{SnapshotOrigin, SnapshotRecord, SnapshotStatistics, Volume, WriteSession};

use crate::capture::{ChangeSink, ChunkSink, ContentReader, StreamedContent, TreeSink};
use crate::error::{CheckoutError, Result};
use crate::worktree::SnapshotReport;

/// Permissions of the directory and of the file: those that programs ask for, less what others may not.
const DIR_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;
/// The file's number: the first after the directory's.
const FILE: Ino = Ino(Ino::ROOT.0 + 1);

/// What is to be in the snapshot.
#[derive(Debug, Clone)]
pub struct StreamSnapshotRequest {
    /// The name of the file.
    pub name: Vec<u8>,
    /// A note for people.
    pub note: String,
}

/// Makes a snapshot of a stream in a line of its own, which has the name of the file and the host. `confirm` is asked when
/// the stream has ended: if it fails, no snapshot is made.
pub fn create_stream_snapshot(
    volume: &Volume,
    request: &StreamSnapshotRequest,
    source: &mut (dyn Read + Send),
    confirm: impl FnOnce() -> Result<()>,
    meter: &ProgressMeter,
) -> Result<SnapshotReport> {
    check_name(&request.name)
        .map_err(|_| CheckoutError::BadFileName(vellum_host::escape::format_path(&request.name)))?;
    let line = name_outside_line(&request.name);
    let last = volume.find_newest_in_line(&line)?;
    let chunker = Chunker::new(volume.config.chunker, &volume.keys.chunker_key());
    let mut session = volume.begin_lazy_write_session()?;
    let content =
        ContentReader { chunker: &chunker, sink: ChunkSink::Store(&session), meter }.read_stream(source)?;
    // Before a tree names the content. What was stored of a stream that failed is garbage for the collector.
    confirm()?;
    let statistics =
        SnapshotStatistics { files: 1, dirs: 1, bytes: content.size, changed: 1, ..Default::default() };
    let now = current_time();
    let time = last.as_ref().map_or(now, |last| date_after_parent(now, last.record.time));
    let root = store_tree(volume, &session, request, content, time)?;
    let stored = session.flush_blobs()?.bytes_stored;
    let record = SnapshotRecord {
        nonce: Default::default(),
        root,
        parents: last.iter().map(|last| last.id).collect(),
        counter: last.as_ref().map_or(0, |last| last.record.counter) + 1,
        time,
        worktree: line,
        author: user_name(),
        host: host_name(),
        note: request.note.clone(),
        origin: SnapshotOrigin::User,
        paths: Vec::new(),
        statistics: SnapshotStatistics { stored, ..statistics },
    };
    // The record within the session: until that ends, the collector deletes nothing.
    let id = volume.commit_outside_snapshot(record.clone())?;
    session.end_session()?;
    volume.ensure_reserves();
    let unchanged = last.is_some_and(|last| last.record.root == root);
    Ok(SnapshotReport { id, record, problems: Vec::new(), is_new: true, unchanged, renewed: 0 })
}

fn store_tree(
    volume: &Volume,
    session: &WriteSession,
    request: &StreamSnapshotRequest,
    content: StreamedContent,
    time: UnixTime,
) -> Result<MapRoot> {
    let mut dir = new_attributes(FileKind::Dir, DIR_MODE, time);
    dir.nlink = 2;
    let mut file = new_attributes(FileKind::File, FILE_MODE, time);
    (file.parent, file.name) = (Ino::ROOT, request.name.clone());
    file.generation = compute_generation(file.parent, &file.name);
    (file.size, file.chunking, file.inline) = (content.size, content.chunking, content.inline);
    let mut sink = TreeSink::new(volume, session, None)?;
    let mut add = |key: MapKey, value: Vec<u8>| sink.apply_change(key.as_bytes(), Some(&value));
    // In the order of the keys.
    add(MapKey::for_attr(Ino::SUPER), SuperBlock { next_ino: Ino(FILE.0 + 1) }.encode())?;
    add(MapKey::for_attr(Ino::ROOT), dir.encode())?;
    let dentry = Dentry { ino: FILE, kind: FileKind::File };
    add(MapKey::for_dentry(Ino::ROOT, &request.name), dentry.encode())?;
    add(MapKey::for_attr(FILE), file.encode())?;
    for (offset, extent) in content.extents {
        add(MapKey::for_extent(FILE, offset), extent.encode())?;
    }
    sink.finish_tree()
}

fn new_attributes(kind: FileKind, mode: u32, time: UnixTime) -> InodeAttr {
    let mut attr = InodeAttr::new(kind, mode);
    // A stream has no owner whose numbers could be recorded.
    (attr.uid, attr.gid) = (getuid().as_raw(), getgid().as_raw());
    attr.set_all_times(time);
    attr
}
