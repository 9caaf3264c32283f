//! A checked-out worktree: its snapshots, and what changed since.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use vellum_chunker::Chunker;
use vellum_host::ProgressMeter;
use vellum_host::beneath::{HeldDir, raise_open_files_limit};
use vellum_host::metadata::{FileStat, MetadataCaller};
use vellum_host::process::host_name;
use vellum_host::process::user_name;
use vellum_map::{MapRoot, apply_changes};
use vellum_types::{FileKind, Ino, InodeAttr, SnapshotId, UnixTime};
use vellum_volume::diff::{FileChange, StateComparison, is_path_within};
use vellum_volume::history::{AncestorWalk, HistoryEntry};
use vellum_volume::lost::LostContent;
use vellum_volume::session::current_time;
use vellum_volume::state::{STATE_DIR, WorktreeLock};
use vellum_volume::{
    FsTree, SnapshotOrigin, SnapshotRecord, SnapshotStatistics, StateDir, Volume, WriteSession,
};

use crate::capture::{CaptureRequest, CaptureResult, ChunkSink, LayerSink, TreeSink};
use crate::error::{CheckoutError, CheckoutProblem, Result};
use crate::renew::is_lost_base;
use crate::scan::{PathSelection, ScanDirIndex, ScanEntryId, ScanEntryRef, ScanOptions, ScanTree, scan_tree};
use crate::statcache::{FilesystemTime, NewStatCache, RecordedEntry, StatCache, write_stat_cache};

/// Name of the stat cache in the state directory.
const STATCACHE_FILE: &[u8] = b"statcache";

/// Longer than the coarsest tick of a filesystem's clock, with its tolerance.
const CLOCK_TICK: Duration = Duration::from_millis(25);

/// A worktree that is open.
pub struct CheckoutWorktree {
    /// The volume that it belongs to.
    pub volume: Volume,
    pub(crate) root: HeldDir,
    pub(crate) chunker: Chunker,
}

/// What to snapshot.
#[derive(Debug, Clone)]
pub struct CheckoutSnapshotRequest {
    /// A note for people.
    pub note: String,
    /// Paths relative to the root; all else stays as in the parent snapshot. Empty: everything.
    pub paths: Vec<Vec<u8>>,
    /// Why it is made.
    pub origin: SnapshotOrigin,
}

/// A snapshot that was made.
#[derive(Debug)]
pub struct SnapshotReport {
    /// Its id.
    pub id: SnapshotId,
    /// What was recorded.
    pub record: SnapshotRecord,
    /// What could not be recorded as it is.
    pub problems: Vec<CheckoutProblem>,
    /// Whether its tree is the parent's.
    pub unchanged: bool,
    /// Blobs that were stored again, because the store had lost them.
    pub renewed: u64,
}

/// A snapshot compared with the directory as it is now.
pub struct DirectoryDiff {
    /// The snapshot's state.
    pub from: FsTree,
    /// The directory's state. Chunks that no snapshot holds are known by their ids only.
    pub to: FsTree,
    /// The differences, by path.
    pub changes: Vec<FileChange>,
    /// What could not be read.
    pub problems: Vec<CheckoutProblem>,
}

/// Where in the history a new snapshot is.
#[derive(Clone, Copy)]
struct SnapshotPlace<'a> {
    /// The snapshot that the worktree stands on.
    head: Option<&'a HistoryEntry>,
    /// What the new one descends from, if that is not it.
    parents: Option<&'a [SnapshotId]>,
}

/// A directory as it was scanned and captured.
pub(crate) struct CapturedDirectory {
    pub tree: ScanTree,
    pub captured: CaptureResult,
    /// The state that the directory is in: the head's with a layer over it.
    pub state: FsTree,
}

impl CheckoutWorktree {
    /// Opens the worktree that `start` lies in.
    pub fn open(start: &Path) -> Result<Self> {
        let state = StateDir::find_enclosing(start)?;
        Self::from_volume(Volume::open(&state)?)
    }

    /// The worktree whose state directory `volume` was opened from.
    pub fn from_volume(volume: Volume) -> Result<Self> {
        // Scans and restores hold hundreds of directories open; the usual soft limit is 1,024.
        raise_open_files_limit();
        let root = HeldDir::open_root(volume.state.root())?;
        let chunker = Chunker::new(volume.config.chunker, &volume.keys.chunker_key());
        Ok(Self { volume, root, chunker })
    }

    /// Its directory.
    #[must_use]
    pub fn root_path(&self) -> &Path {
        self.volume.state.root()
    }

    /// Waits until no other command changes this worktree; `waiting` is called once if there is one. Fails if the directory
    /// is a copy of the worktree's.
    pub fn lock_worktree(&self, waiting: impl FnOnce()) -> Result<WorktreeLock> {
        let lock = self.volume.state.lock_worktree(waiting)?;
        self.volume.confirm_own_dir()?;
        Ok(lock)
    }

    /// Makes a directory that is a copy of another worktree's one of its own, called `name`. It stands on the snapshot that
    /// was the copied directory's last when it was copied, as far as that can be told. Returns that snapshot.
    pub fn adopt_copy(&self, name: &str, waiting: impl FnOnce()) -> Result<Option<SnapshotId>> {
        let _lock = self.volume.state.lock_worktree(waiting)?;
        let base = self.find_copied_snapshot()?;
        self.volume.adopt_dir(name, base)?;
        Ok(base)
    }

    /// The newest snapshot of this worktree that has the tree of which the stat cache was made; else its last.
    fn find_copied_snapshot(&self) -> Result<Option<SnapshotId>> {
        let Some(head) = self.volume.read_head()? else { return Ok(None) };
        let state = self.root.open_dir(STATE_DIR.as_bytes())?;
        let Ok(cache) = StatCache::load(&state, STATCACHE_FILE) else { return Ok(Some(head)) };
        // The original worktree may have taken snapshots since it was copied. The stat cache was copied with
        // the files and names the tree that they had then.
        for entry in AncestorWalk::from_heads(&self.volume.catalog, [head])? {
            let entry = entry?;
            if entry.record.root.0 == cache.base_root() {
                return Ok(Some(entry.id));
            }
        }
        Ok(Some(head))
    }

    /// The snapshot that it stands on.
    pub fn head_snapshot(&self) -> Result<Option<HistoryEntry>> {
        let Some(id) = self.volume.read_head()? else { return Ok(None) };
        Ok(Some(HistoryEntry { id, record: self.volume.catalog.get_record(&id)? }))
    }

    /// Records the directory as it is now. The caller holds the lock. What the store has lost of the last snapshot is
    /// stored again, as far as the directory has it.
    pub fn create_snapshot(
        &self,
        request: &CheckoutSnapshotRequest,
        meter: &ProgressMeter,
    ) -> Result<SnapshotReport> {
        self.create_snapshot_with_parents(None, request, meter)
    }

    /// The same for a snapshot that descends from others than the one that the worktree stands on.
    pub(crate) fn create_snapshot_with_parents(
        &self,
        parents: Option<&[SnapshotId]>,
        request: &CheckoutSnapshotRequest,
        meter: &ProgressMeter,
    ) -> Result<SnapshotReport> {
        let head = self.head_snapshot()?;
        let renewal = self.plan_renewal(head.as_ref())?;
        let stands = SnapshotPlace { head: head.as_ref(), parents };
        // The base is known to be unreadable, so the directory is captured without one.
        if renewal == LostContent::Tree && request.paths.is_empty() {
            return self.create_snapshot_on(stands, &renewal, request, meter);
        }
        match self.create_snapshot_on(stands, &renewal, request, meter) {
            // The loss was not known before. A partial snapshot cannot do without its base, which holds all
            // other paths.
            Err(error) if request.paths.is_empty() && head.is_some() && is_lost_base(&error) => {
                self.create_snapshot_on(stands, &LostContent::Tree, request, meter)
            }
            other => other,
        }
    }

    fn create_snapshot_on(
        &self,
        SnapshotPlace { head, parents }: SnapshotPlace<'_>,
        renewal: &LostContent,
        request: &CheckoutSnapshotRequest,
        meter: &ProgressMeter,
    ) -> Result<SnapshotReport> {
        let is_lost = *renewal == LostContent::Tree && request.paths.is_empty();
        let readable = head.filter(|_| !is_lost);
        let base = readable.map(|head| self.volume.open_tree(head.record.root));
        self.check_paths(&request.paths, base.as_ref(), None)?;
        self.check_parents(&request.paths)?;
        // The stamp is taken before the first file is examined: every later change has a change time that is
        // not before it.
        let (stamp, tree) = self.scan_dir(readable, &request.paths)?;
        let none = BTreeSet::new();
        let renewed = if let LostContent::Files(files) = renewal { files } else { &none };
        let mut capture = CaptureRequest {
            renewed,
            ..self.new_capture_request(&tree, base.as_ref(), readable, request, meter)
        };
        if let (true, Some(head)) = (is_lost, head) {
            capture.first_number = self.first_unused_number(head)?;
        }
        let mut session = self.volume.begin_write_session()?;
        let base_root = readable.map(|head| head.record.root);
        let (captured, root) = self.store_capture(&capture, base_root.as_ref(), &mut session)?;
        let written = session.flush_blobs()?;
        tracing::debug!(bytes = written.bytes_stored, renewed = written.blobs_renewed, "content stored");
        let mut record = self.new_snapshot_record(head, root, &captured, written.bytes_stored, request);
        if let Some(parents) = parents {
            // The volume counts on from them.
            (record.parents, record.counter) = (parents.to_vec(), 0);
        }
        // Blobs are durable since `flush_blobs`, then the record names them, then the session ends. Until the
        // session has ended, the collector deletes nothing, so at no moment can it delete blobs that only
        // this snapshot needs.
        let id = self.volume.commit_snapshot(record.clone())?;
        session.end_session()?;
        if *renewal != LostContent::Nothing && captured.problems.is_empty() && request.paths.is_empty() {
            self.volume.record_renewed_tree(root);
        }
        let unchanged = base_root == Some(root);
        if !unchanged || captured.was_racy || tree.cache().is_none() {
            // The cache only saves work, and an old one describes another root: the snapshot stands without it.
            let _ = self.write_stat_cache(&tree, root, stamp, &captured);
        }
        let renewed = written.blobs_renewed;
        Ok(SnapshotReport { id, record, problems: captured.problems, unchanged, renewed })
    }

    /// A path that is named must mean something: a typing error must not record that a file is gone.
    fn check_paths(
        &self,
        paths: &[Vec<u8>],
        base: Option<&FsTree>,
        entry: Option<&HistoryEntry>,
    ) -> Result<()> {
        for path in paths {
            let here = self.root.resolve_parent(path).and_then(|(dir, name)| match name {
                b"" => dir.stat_self(),
                name => dir.stat(name),
            });
            let there = || base.is_some_and(|base| base.find_path(path, "").is_ok());
            if here.is_err() && !there() {
                return Err(self.no_such_path_error(path, entry));
            }
        }
        Ok(())
    }

    pub(crate) fn no_such_path_error(&self, path: &[u8], entry: Option<&HistoryEntry>) -> CheckoutError {
        let short = entry.and_then(|entry| self.volume.short_id(&entry.id).ok());
        let place = short.map_or_else(|| "the last snapshot".into(), |short| format!("snapshot {short}"));
        CheckoutError::NoSuchPath { path: vellum_host::escape::format_path(path), place }
    }

    /// A path whose directory is gone cannot be recorded alone: that directory would have to be recorded as gone too,
    /// with all else that was in it.
    fn check_parents(&self, paths: &[Vec<u8>]) -> Result<()> {
        for path in paths {
            let names: Vec<_> = vellum_volume::tree::path_components(path).collect();
            let Some((_, above)) = names.split_last() else { continue };
            match self.root.resolve_dir(&above.join(&b'/')) {
                Err(error) if error.is_not_found() || error.is_not_a_directory() => {
                    return Err(CheckoutError::ParentGone(vellum_host::escape::format_path(path)));
                }
                // Other errors are found, and reported with the path, when it is scanned.
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }

    fn store_capture(
        &self,
        capture: &CaptureRequest<'_>,
        base: Option<&MapRoot>,
        session: &mut WriteSession,
    ) -> Result<(CaptureResult, MapRoot)> {
        let (captured, root) = {
            let mut sink = TreeSink::new(&self.volume, session, base)?;
            let captured = capture.capture_changes(ChunkSink::Store(session), &mut sink)?;
            (captured, sink.finish_tree()?)
        };
        if captured.corrections.is_empty() {
            return Ok((captured, root));
        }
        // The tree just made can be read, and changed, once its nodes are in the store.
        session.flush_blobs()?;
        session.resume_session(&self.volume)?;
        let mut keys: Vec<_> = captured.corrections.iter().flat_map(|c| c.removed_keys()).collect();
        keys.sort_unstable();
        keys.dedup();
        let removals = keys.iter().map(|key| (key.as_slice(), None::<&[u8]>));
        let root = apply_changes(&*self.volume.nodes, &*session, self.volume.map_shape(), &root, removals)?;
        Ok((captured, root))
    }

    fn new_snapshot_record(
        &self,
        head: Option<&HistoryEntry>,
        root: MapRoot,
        captured: &CaptureResult,
        stored: u64,
        request: &CheckoutSnapshotRequest,
    ) -> SnapshotRecord {
        SnapshotRecord {
            nonce: Default::default(),
            root,
            parents: head.iter().map(|head| head.id).collect(),
            counter: head.map_or(0, |head| head.record.counter) + 1,
            time: monotonic_now(head),
            worktree: self.volume.worktree.worktree.clone(),
            author: user_name(),
            host: host_name(),
            note: request.note.clone(),
            origin: request.origin,
            paths: request.paths.clone(),
            statistics: SnapshotStatistics { stored, ..captured.statistics },
        }
    }

    /// Compares a snapshot (the head, if None is named) with the directory as it is now.
    pub fn compare_with_snapshot(
        &self,
        from: Option<&HistoryEntry>,
        paths: &[Vec<u8>],
        meter: &ProgressMeter,
    ) -> Result<DirectoryDiff> {
        let head = self.head_snapshot()?;
        let state = from.or(head.as_ref()).map(|entry| self.volume.open_tree(entry.record.root));
        self.check_paths(paths, state.as_ref(), from)?;
        let looked = self.capture_unstored(paths, meter)?;
        let root = from.or(head.as_ref()).map_or(self.volume.empty_root(), |entry| entry.record.root);
        let from_id = from.map(|entry| entry.id);
        let from = self.volume.open_tree(root);
        let shared = match (from_id, head) {
            (Some(from), Some(head)) => self.volume.find_shared_bound(from, head.id)?,
            _ => None,
        };
        let mut changes = StateComparison { from: &from, to: &looked.state }.find_changes_sharing(shared)?;
        if !paths.is_empty() {
            // The layer contains only the selected paths, but the snapshot compared with may be another one
            // than the head and differ elsewhere.
            changes.retain(|change| {
                let sides = [&change.old, &change.new].into_iter().flatten();
                sides.into_iter().any(|side| paths.iter().any(|path| is_path_within(&side.path, path)))
            });
        }
        Ok(DirectoryDiff { from, to: looked.state, changes, problems: looked.captured.problems })
    }

    /// Looks at the directory without storing anything.
    pub(crate) fn capture_unstored(
        &self,
        paths: &[Vec<u8>],
        meter: &ProgressMeter,
    ) -> Result<CapturedDirectory> {
        let head = self.head_snapshot()?;
        let base = head.as_ref().map(|head| self.volume.open_tree(head.record.root));
        let (stamp, mut tree) = self.scan_dir(head.as_ref(), paths)?;
        let request = CheckoutSnapshotRequest {
            note: String::new(),
            paths: paths.to_vec(),
            origin: SnapshotOrigin::User,
        };
        let mut sink = LayerSink::default();
        let captured = {
            let capture = self.new_capture_request(&tree, base.as_ref(), head.as_ref(), &request, meter);
            capture.capture_changes(ChunkSink::Identify(&self.volume.keys), &mut sink)?
        };
        for key in captured.corrections.iter().flat_map(|correction| correction.removed_keys()) {
            sink.layer.delete_key(key);
        }
        let root = head.as_ref().map_or(self.volume.empty_root(), |head| head.record.root);
        // Nothing has changed, and the clock has ticked since the racy entries were written. With a new cache
        // the next look does not read these files again. If something had changed, the cache would have to
        // describe a tree that is not stored.
        if sink.layer.is_empty() && captured.was_racy && head.is_some() {
            self.try_write_stat_cache(&tree, root, stamp, &captured);
        }
        tree.release_cache();
        let state = self.volume.open_tree_with_layers(root, vec![Arc::new(sink.layer)]);
        Ok(CapturedDirectory { tree, captured, state })
    }

    pub(crate) fn scan_dir(
        &self,
        head: Option<&HistoryEntry>,
        paths: &[Vec<u8>],
    ) -> Result<(FilesystemTime, ScanTree)> {
        let state = self.root.open_dir(STATE_DIR.as_bytes())?;
        let stamp = FilesystemTime::read_filesystem_time(&state)?;
        let cache = StatCache::load(&state, STATCACHE_FILE).ok();
        // The inode numbers in the cache are those of its base. For any other tree they are meaningless.
        let cache = cache.filter(|cache| head.is_some_and(|head| head.record.root.0 == cache.base_root()));
        let selection = match paths {
            [] => None,
            paths => Some(PathSelection::from_paths(paths.iter().map(Vec::as_slice))?),
        };
        let tree = scan_tree(&self.root, ScanOptions { cache, selection, threads: 0 })?;
        Ok((stamp, tree))
    }

    fn new_capture_request<'a>(
        &'a self,
        tree: &'a ScanTree,
        base: Option<&'a FsTree>,
        head: Option<&HistoryEntry>,
        request: &CheckoutSnapshotRequest,
        meter: &'a ProgressMeter,
    ) -> CaptureRequest<'a> {
        CaptureRequest {
            root: &self.root,
            tree,
            base,
            // Statistics are carried on: each outcome adds the difference that its inode makes.
            statistics: head.map_or_else(SnapshotStatistics::default, |head| SnapshotStatistics {
                changed: 0,
                ..head.record.statistics
            }),
            partial: !request.paths.is_empty(),
            first_number: Ino(Ino::ROOT.0 + 1),
            renewed: const { &BTreeSet::new() },
            chunker: &self.chunker,
            meter,
        }
    }

    /// Writes the stat cache.
    fn write_stat_cache(
        &self,
        tree: &ScanTree,
        root: MapRoot,
        stamp: FilesystemTime,
        captured: &CaptureResult,
    ) -> Result<()> {
        let dir = &self.root.open_dir(STATE_DIR.as_bytes())?;
        let cache = NewStatCache { dir, name: STATCACHE_FILE, base: root.0, stamp };
        let recorded = |entry: ScanEntryRef<'_>| captured.recorded_state(entry);
        Ok(write_stat_cache(cache, tree, recorded)?)
    }

    /// The same after a mere look: only if no other command is at work.
    fn try_write_stat_cache(
        &self,
        tree: &ScanTree,
        root: MapRoot,
        stamp: FilesystemTime,
        captured: &CaptureResult,
    ) {
        if let Ok(Some(_lock)) = self.volume.state.try_lock_worktree() {
            // A look must not fail for the sake of the next one.
            let _ = self.write_stat_cache(tree, root, stamp, captured);
        }
    }

    /// Writes the stat cache of a directory that was just made to hold a snapshot. An entry is remembered if it looks
    /// as it was made; the stamp is taken when the clock has ticked, so that a later edit shows. What could not be
    /// done is not remembered, so that it shows too. If all this fails, only work is lost.
    pub(crate) fn write_restored_stat_cache(
        &self,
        entry: &HistoryEntry,
        target: &FsTree,
        problems: &[CheckoutProblem],
    ) {
        let remember = || -> Result<()> {
            // Files that were written in the same tick as the stamp would be racy, and the next snapshot
            // would read the whole directory again.
            std::thread::sleep(CLOCK_TICK);
            let (stamp, tree) = self.scan_dir(None, &[])?;
            let numbers = match_restored_numbers(&tree, target, problems)?;
            let recorded = |entry: ScanEntryRef<'_>| {
                let (ino, as_made) = numbers.get(&entry.id())?;
                Some(RecordedEntry {
                    ino: *ino,
                    stat: (!as_made).then(|| entry.stat().with_outdated_ctime()),
                })
            };
            let dir = &self.root.open_dir(STATE_DIR.as_bytes())?;
            let cache = NewStatCache { dir, name: STATCACHE_FILE, base: entry.record.root.0, stamp };
            Ok(write_stat_cache(cache, &tree, recorded)?)
        };
        // An older cache that is left describes another root, or is still right.
        let _ = remember();
    }

    /// Content of a file of the directory, up to `max` bytes.
    pub fn read_current_file(&self, path: &[u8], max: u64) -> Result<Vec<u8>> {
        use std::io::Read;
        let (dir, name) = self.root.resolve_parent(path)?;
        let opened = dir.open_file(name)?;
        let mut content = Vec::new();
        opened.file.take(max).read_to_end(&mut content).map_err(CheckoutError::path_error("read", path))?;
        Ok(content)
    }
}

/// The inode numbers of entries, and whether they look as the target says; other files are left out.
fn match_restored_numbers(
    tree: &ScanTree,
    target: &FsTree,
    problems: &[CheckoutProblem],
) -> Result<HashMap<ScanEntryId, (Ino, bool)>> {
    let failed: HashSet<&[u8]> = problems.iter().map(|problem| problem.path.as_slice()).collect();
    let privileged = MetadataCaller::current_process().is_privileged();
    let mut numbers = HashMap::new();
    let mut dirs = HashMap::from([(ScanDirIndex::ROOT, Ino::ROOT)]);
    for dir in tree.dirs() {
        let Some(ino) = dirs.get(&dir.index()).copied() else { continue };
        let entries: HashMap<_, _> = target.list_entries(ino)?.into_iter().collect();
        for entry in dir.entries() {
            let Some(dentry) = entries.get(entry.name()).filter(|dentry| dentry.kind == entry.kind()) else {
                continue;
            };
            let looks_right =
                has_applied_attributes(&target.expect_inode_attr(dentry.ino)?, entry.stat(), privileged)
                    && (failed.is_empty() || !failed.contains(entry.path().as_slice()));
            if looks_right || dentry.kind == FileKind::Dir {
                numbers.insert(entry.id(), (dentry.ino, looks_right));
            }
            if let Some(child) = entry.child_index() {
                dirs.insert(child, dentry.ino);
            }
        }
    }
    Ok(numbers)
}

/// Whether a file has the attributes that it was given. Who is not root may not have been able to give them all.
fn has_applied_attributes(attr: &InodeAttr, stat: &FileStat, privileged: bool) -> bool {
    let sized = attr.kind != FileKind::File || attr.size == stat.size;
    let moded = attr.kind == FileKind::Symlink || attr.mode == stat.mode;
    sized
        && attr.mtime == stat.mtime
        && (!privileged || moded && (attr.uid, attr.gid) == (stat.uid, stat.gid))
}

/// The present time, but not before the parent's: a history does not run backwards because a clock did.
fn monotonic_now(head: Option<&HistoryEntry>) -> UnixTime {
    head.map_or(current_time(), |head| current_time().max(head.record.time))
}
