//! A checked-out worktree: its snapshots, and what changed since.

mod copied;
mod exclusions;
mod named_paths;
mod stat_cache;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use vellum_chunker::Chunker;
use vellum_host::ProgressMeter;
use vellum_host::beneath::{HeldDir, raise_open_files_limit};
use vellum_host::process::host_name;
use vellum_host::process::user_name;
use vellum_map::{MapRoot, apply_changes};
use vellum_store::join_requests;
use vellum_types::{Ino, SnapshotId, UnixTime};
use vellum_volume::diff::{FileChange, PathScopes, StateComparison};
use vellum_volume::history::HistoryEntry;
use vellum_volume::lost::LostContent;
use vellum_volume::session::{current_time, date_after_parent};
use vellum_volume::state::{STATE_DIR, WorktreeLock};
use vellum_volume::{
    FsTree, SnapshotOrigin, SnapshotRecord, SnapshotStatistics, StateDir, Volume, WriteSession,
};

use crate::absent::{AbsentNames, AbsentPaths, AbsentSummary};
use crate::capture::{CaptureRequest, CaptureResult, ChunkSink, ForcedReads, LayerSink, TreeSink};
use crate::error::{CheckoutError, CheckoutProblem, Result};
use crate::renew::is_lost_base;
use crate::scan::{PathSelection, ScanExclusions, ScanOptions, ScanTree, scan_tree};
use crate::statcache::{FilesystemTime, StatCache};

pub use exclusions::SnapshotExclusions;

/// Name of the stat cache in the state directory.
pub(crate) const STATCACHE_FILE: &[u8] = STATCACHE_NAME.as_bytes();
const STATCACHE_NAME: &str = "statcache";

/// Hexadecimal digits that tell the stat caches of directories apart.
const CACHE_DIGITS: usize = 16;

/// Longer than the coarsest tick of a filesystem's clock, with its tolerance.
pub(crate) const CLOCK_TICK: Duration = Duration::from_millis(25);

/// A worktree that is open.
pub struct CheckoutWorktree {
    /// The volume that it belongs to.
    pub volume: Volume,
    pub(crate) root: HeldDir,
    pub(crate) chunker: Chunker,
    /// What is left out of all that is seen of the directory, but for what the settings say.
    scan_exclusions: ScanExclusions,
    exclusions: SnapshotExclusions,
    line: DirectoryLine,
}

/// Which snapshots are those of the directory.
struct DirectoryLine {
    /// The directory.
    path: PathBuf,
    /// The line that they are in; None: that of the worktree, whose ref names the last.
    name: Option<String>,
    /// Where the stat cache is, in the state directory of the worktree.
    cache_file: String,
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
    /// Whether none is to be made of what the last snapshot holds already.
    pub only_if_changed: bool,
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
    /// Whether it was made now; otherwise it is the last one.
    pub is_new: bool,
    /// Whether its tree is the parent's, or that of the last one.
    pub unchanged: bool,
    /// Blobs that were stored again, because the store had lost them.
    pub renewed: u64,
}

impl SnapshotReport {
    /// None was made, since the last one has all of it.
    fn for_last(last: &HistoryEntry, problems: Vec<CheckoutProblem>) -> Self {
        let record = SnapshotRecord::clone(&last.record);
        Self { id: last.id, record, problems, is_new: false, unchanged: true, renewed: 0 }
    }
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
    /// What is absent, if the checkout is partial.
    pub absent: Option<AbsentSummary>,
}

/// Where in the history a new snapshot is.
#[derive(Clone, Copy)]
struct SnapshotPlace<'a> {
    /// The snapshot that the worktree stands on.
    head: Option<&'a HistoryEntry>,
    /// What of it is absent.
    absent: &'a AbsentPaths,
    /// What the new one descends from, if that is not it.
    parents: Option<&'a [SnapshotId]>,
}

/// What a scan is compared with.
#[derive(Clone, Copy)]
struct CaptureBase<'a> {
    /// The snapshot, if there is one, and its state.
    head: Option<&'a HistoryEntry>,
    state: Option<&'a FsTree>,
    /// What of it is absent.
    absent: &'a AbsentNames,
}

/// A directory as it was scanned and captured.
pub(crate) struct CapturedDirectory {
    pub tree: ScanTree,
    pub captured: CaptureResult,
    /// The state that the directory is in: the head's with a layer over it. What is absent is in it.
    pub state: FsTree,
    /// What is absent.
    pub absent: AbsentPaths,
    /// The filesystem's time before the scan.
    pub stamp: FilesystemTime,
}

impl CheckoutWorktree {
    /// A directory that is no worktree, and is looked at from one.
    pub(crate) fn for_outside(volume: Volume, path: &Path, line: String) -> Result<Self> {
        raise_open_files_limit();
        let root = HeldDir::open_root(path)?;
        let chunker = Chunker::new(volume.config.chunker, &volume.keys.chunker_key());
        // A hash, since a line is called by a path, which cannot be a part of a file's name.
        let digest = blake3::hash(line.as_bytes()).to_hex();
        let cache_file = format!("{STATCACHE_NAME}-{}", digest.get(..CACHE_DIGITS).unwrap_or_default());
        let line = DirectoryLine { path: path.to_owned(), name: Some(line), cache_file };
        let scan_exclusions = ScanExclusions::default();
        let exclusions = SnapshotExclusions::default();
        Ok(Self { volume, root, chunker, scan_exclusions, exclusions, line })
    }

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
        let scan_exclusions = ScanExclusions::default();
        let exclusions = SnapshotExclusions::default();
        let path = volume.state.root().to_owned();
        let line = DirectoryLine { path, name: None, cache_file: STATCACHE_NAME.into() };
        let mut opened = Self { volume, root, chunker, scan_exclusions, exclusions, line };
        opened.apply_kept_exclusions()?;
        Ok(opened)
    }

    /// Its directory.
    #[must_use]
    pub fn root_path(&self) -> &Path {
        &self.line.path
    }

    /// Whether the directory is no worktree.
    pub(crate) fn is_outside(&self) -> bool {
        self.line.name.is_some()
    }

    /// Its state directory; of a directory that is no worktree, that of the worktree from which it is looked at.
    pub(crate) fn open_state_dir(&self) -> Result<HeldDir> {
        match self.volume.state.is_elsewhere() || self.is_outside() {
            true => Ok(HeldDir::open_root(self.volume.state.path())?),
            // Below the directory that is held, wherever that was moved meanwhile.
            false => Ok(self.root.open_dir(STATE_DIR.as_bytes())?),
        }
    }

    /// Waits until no other command changes this worktree; `waiting` is called once if there is one. Fails if the directory
    /// is a copy of the worktree's.
    pub fn lock_worktree(&self, waiting: impl FnOnce()) -> Result<WorktreeLock> {
        let lock = self.volume.state.lock_worktree(waiting)?;
        // Most who change the worktree look at the directory next: the settings that say how are read meanwhile. If they
        // cannot be, whoever needs them learns why.
        let (confirmed, _) = join_requests(
            &*self.volume.objects,
            || self.volume.confirm_own_dir(),
            || self.volume.settings_in_force().map(drop),
        );
        confirmed?;
        Ok(lock)
    }

    /// The snapshot that it stands on.
    pub fn head_snapshot(&self) -> Result<Option<HistoryEntry>> {
        if let Some(line) = &self.line.name {
            return Ok(self.volume.find_newest_in_line(line)?);
        }
        let Some(id) = self.volume.read_head()? else { return Ok(None) };
        Ok(Some(HistoryEntry { id, record: self.volume.catalog.get_record(&id)? }))
    }

    /// The same for whoever scans the directory next: the settings are read meanwhile.
    fn head_before_scan(&self) -> Result<Option<HistoryEntry>> {
        let settings = || self.volume.settings_in_force().map(drop);
        let (head, read) = join_requests(&*self.volume.objects, || self.head_snapshot(), settings);
        let head = head?;
        read?;
        Ok(head)
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
        let absent = self.read_absent_paths()?;
        let renewal = self.plan_renewal(head.as_ref())?;
        let stands = SnapshotPlace { head: head.as_ref(), absent: &absent, parents };
        // Of the directory alone, a snapshot would record that what is absent is gone.
        if !absent.is_empty() && head.is_none() {
            return Err(CheckoutError::AbsentNowhere("there is none yet"));
        }
        // The base is known to be unreadable, so the directory is captured without one.
        if renewal == LostContent::Tree && request.paths.is_empty() {
            if !absent.is_empty() {
                return Err(CheckoutError::AbsentNowhere("the store has lost a part of that"));
            }
            return self.create_snapshot_on(stands, &renewal, request, meter);
        }
        let can_replace_base = request.paths.is_empty() && head.is_some() && absent.is_empty();
        match self.create_snapshot_on(stands, &renewal, request, meter) {
            // The loss was not known before. A partial snapshot cannot do without its base, which holds all
            // other paths, and neither can one of a partial checkout.
            Err(error) if can_replace_base && is_lost_base(&error) => {
                self.create_snapshot_on(stands, &LostContent::Tree, request, meter)
            }
            other => other,
        }
    }

    fn create_snapshot_on(
        &self,
        SnapshotPlace { head, absent, parents }: SnapshotPlace<'_>,
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
        let names = self.resolve_absent_names(absent, readable)?;
        let over = CaptureBase { head: readable, state: base.as_ref(), absent: &names };
        let mut capture = CaptureRequest {
            forced: ForcedReads::Listed(renewed),
            ..self.new_capture_request(&tree, over, !request.paths.is_empty(), meter)
        };
        if let (true, Some(head)) = (is_lost, head) {
            capture.first_number = self.first_unused_number(head)?;
        }
        // Only after the scan, which needs none: as long as there is a session, the collector deletes nothing.
        let mut session = self.volume.begin_lazy_write_session()?;
        let base_root = readable.map(|head| head.record.root);
        let (captured, root) = self.store_capture(&capture, base_root.as_ref(), &mut session)?;
        let written = session.flush_blobs()?;
        tracing::debug!(bytes = written.bytes_stored, renewed = written.blobs_renewed, "content stored");
        let unchanged = base_root == Some(root);
        // What the store had lost was stored again, and a new snapshot says so.
        let is_superfluous = request.only_if_changed && unchanged && *renewal == LostContent::Nothing;
        if let (true, Some(head)) = (is_superfluous, readable) {
            session.end_session()?;
            // Though no snapshot is made: the next look then need not read these files again.
            if captured.was_racy || tree.cache().is_none() {
                let _ = self.write_stat_cache(&tree, root, stamp, &captured);
            }
            return Ok(SnapshotReport::for_last(head, captured.problems));
        }
        let mut record = self.new_snapshot_record(head, root, &captured, written.bytes_stored, request);
        if let Some(parents) = parents {
            // The volume counts on from them.
            (record.parents, record.counter) = (parents.to_vec(), 0);
        }
        // Blobs are durable since `flush_blobs`, then the record names them, then the session ends. Until the
        // session has ended, the collector deletes nothing, so at no moment can it delete blobs that only
        // this snapshot needs.
        let revision = self.begin_absent_revision(absent, base.as_ref(), &tree, &captured)?;
        let id = self.commit_record(record.clone())?;
        session.end_session()?;
        self.end_absent_revision(revision);
        let is_whole = captured.problems.is_empty() && request.paths.is_empty() && absent.is_empty();
        if *renewal != LostContent::Nothing && is_whole {
            self.volume.record_renewed_tree(root);
        }
        if !unchanged || captured.was_racy || tree.cache().is_none() {
            // The cache only saves work, and an old one describes another root: the snapshot stands without it.
            let _ = self.write_stat_cache(&tree, root, stamp, &captured);
        }
        let renewed = written.blobs_renewed;
        Ok(SnapshotReport { id, record, problems: captured.problems, is_new: true, unchanged, renewed })
    }

    /// Records a snapshot, of which all blobs are durable.
    fn commit_record(&self, record: SnapshotRecord) -> Result<SnapshotId> {
        if self.is_outside() {
            return Ok(self.volume.commit_outside_snapshot(record)?);
        }
        // A snapshot of some paths, or one before a restore, does not decide what is left out of the worktree.
        if record.paths.is_empty() && record.origin == SnapshotOrigin::User {
            self.keep_exclusions()?;
        }
        Ok(self.volume.commit_snapshot(record)?)
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
        // The map takes changes in ascending order only, and of each key one.
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
            worktree: self.line.name.as_ref().unwrap_or(&self.volume.worktree.worktree).clone(),
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
        let head = self.head_before_scan()?;
        let state = from.or(head.as_ref()).map(|entry| self.volume.open_tree(entry.record.root));
        self.check_paths(paths, state.as_ref(), from)?;
        let looked = self.capture_unstored(paths, meter)?;
        let absent = (!looked.absent.is_empty()).then(|| AbsentSummary::summarize(&looked, paths.is_empty()));
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
            let scopes = PathScopes::new(paths.iter().map(Vec::as_slice));
            changes.retain(|change| {
                [&change.old, &change.new].into_iter().flatten().any(|side| scopes.contains(&side.path))
            });
        }
        Ok(DirectoryDiff { from, to: looked.state, changes, problems: looked.captured.problems, absent })
    }

    /// Looks at the directory without storing anything.
    pub(crate) fn capture_unstored(
        &self,
        paths: &[Vec<u8>],
        meter: &ProgressMeter,
    ) -> Result<CapturedDirectory> {
        self.capture_forced(paths, ForcedReads::Listed(const { &BTreeSet::new() }), meter)
    }

    /// The same, reading files that seem unchanged, too.
    pub(crate) fn capture_forced(
        &self,
        paths: &[Vec<u8>],
        forced: ForcedReads<'_>,
        meter: &ProgressMeter,
    ) -> Result<CapturedDirectory> {
        let head = self.head_before_scan()?;
        let absent = self.read_absent_paths()?;
        let names = self.resolve_absent_names(&absent, head.as_ref())?;
        let base = head.as_ref().map(|head| self.volume.open_tree(head.record.root));
        let (stamp, mut tree) = self.scan_dir(head.as_ref(), paths)?;
        let mut sink = LayerSink::default();
        let captured = {
            let over = CaptureBase { head: head.as_ref(), state: base.as_ref(), absent: &names };
            let capture =
                CaptureRequest { forced, ..self.new_capture_request(&tree, over, !paths.is_empty(), meter) };
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
        Ok(CapturedDirectory { tree, captured, state, absent, stamp })
    }

    pub(crate) fn scan_dir(
        &self,
        head: Option<&HistoryEntry>,
        paths: &[Vec<u8>],
    ) -> Result<(FilesystemTime, ScanTree)> {
        let state = self.open_state_dir()?;
        // The clock that stamps the files. Elsewhere there may be another one; in a directory that is no worktree, nothing is
        // written to ask for it.
        let is_elsewhere = self.volume.state.is_elsewhere() && !self.is_outside();
        let stamped = if is_elsewhere { &self.root } else { &state };
        let stamp = FilesystemTime::read_filesystem_time(stamped)?;
        let cache = StatCache::load(&state, self.line.cache_file.as_bytes()).ok();
        // The inode numbers in the cache are those of its base. For any other tree they are meaningless.
        let cache = cache.filter(|cache| head.is_some_and(|head| head.record.root.0 == cache.base_root()));
        let selection = match paths {
            [] => None,
            paths => Some(PathSelection::from_paths(paths.iter().map(Vec::as_slice))?),
        };
        let exclusions = self.scan_exclusions()?;
        let tree = scan_tree(&self.root, ScanOptions { cache, selection, exclusions, threads: 0 })?;
        Ok((stamp, tree))
    }

    fn new_capture_request<'a>(
        &'a self,
        tree: &'a ScanTree,
        over: CaptureBase<'a>,
        partial: bool,
        meter: &'a ProgressMeter,
    ) -> CaptureRequest<'a> {
        CaptureRequest {
            root: &self.root,
            tree,
            base: over.state,
            absent: over.absent,
            // Statistics are carried on: each outcome adds the difference that its inode makes.
            statistics: over.head.map_or_else(SnapshotStatistics::default, |head| SnapshotStatistics {
                changed: 0,
                ..head.record.statistics
            }),
            partial,
            first_number: Ino(Ino::ROOT.0 + 1),
            forced: ForcedReads::Listed(const { &BTreeSet::new() }),
            chunker: &self.chunker,
            meter,
        }
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

/// The present time, but not before the parent's, unless that is in the future.
fn monotonic_now(head: Option<&HistoryEntry>) -> UnixTime {
    head.map_or(current_time(), |head| date_after_parent(current_time(), head.record.time))
}
