//! A live worktree with everything that works on it. The operations are in modules of their own, by family.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use vellum_chunker::Chunker;
use vellum_host::clock::current_time;
use vellum_live::{CommitSequence, LiveStore};
use vellum_types::value::SuperBlock;
use vellum_types::{BareInodeAttr, FileKind, Ino, InodeAttr, MapKey, SnapshotId};
use vellum_volume::Volume;
use vellum_volume::lease::HeldLease;
use vellum_volume::refs::WorktreeQuota;
use vellum_volume::tree::PrefetchLimits;

use crate::attributes::cache::InodeCache;
use crate::attributes::numbers::InodeNumberPool;
use crate::content::memory;
use crate::content::opened::OpenInodes;
use crate::content::{ContentSource, ReleasedOrphans, StoredByteCounts};
use crate::error::Result;
use crate::history::past::Epochs;
use crate::log::WriteLog;
use crate::metrics::LiveTimes;
use crate::names::HardLinks;
use crate::publish::age::UnpublishedAge;
use crate::tree::head::{LayeredState, LiveHead};
use crate::tree::{CommittedChanges, LiveMap, LiveTransaction};

/// The caller of an operation: owner of new entries, and subject of ownership checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestCaller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits that new files do not get, unless a default ACL decides.
    pub umask: u32,
}

/// An inode with its attributes.
#[derive(Debug, Clone)]
pub struct InodeAttributes {
    /// Its number.
    pub ino: Ino,
    /// Its attributes; an orphan has no links.
    pub attr: Arc<InodeAttr>,
}

/// An inode with its attributes, but without its inline content.
#[derive(Debug, Clone)]
pub struct BareInode {
    /// Its number.
    pub ino: Ino,
    /// Its attributes; an orphan has no links.
    pub bare: BareInodeAttr,
}

/// Options of a live worktree.
#[derive(Clone)]
pub struct LiveOptions {
    /// Its name. `None`: the worktree for which the volume was opened.
    pub worktree: Option<String>,
    /// Bytes of decoded chunks kept in memory; unless told otherwise a sixteenth of it, 64 MiB to 1 GiB.
    pub chunk_cache: u64,
    /// Its quota.
    pub quota: WorktreeQuota,
    /// The lease with which it is changed, if it has one.
    pub tenure: Option<Arc<HeldLease>>,
}

impl Default for LiveOptions {
    fn default() -> Self {
        let chunk_cache = memory::chunk_cache_size(memory::read_memory_limit());
        Self { worktree: None, chunk_cache, quota: WorktreeQuota::default(), tenure: None }
    }
}

/// A live worktree.
pub struct LiveFilesystem {
    pub(crate) volume: Arc<Volume>,
    pub(crate) tree: LiveMap,
    pub(crate) log: Arc<WriteLog>,
    pub(crate) inodes: InodeCache,
    pub(crate) opened: OpenInodes,
    pub(crate) released: ReleasedOrphans,
    pub(crate) stored_counts: StoredByteCounts,
    pub(crate) epochs: Epochs,
    /// Access times are not updated.
    pub(crate) keeps_access_times: AtomicBool,
    /// There may be layers that no state needs.
    pub(crate) has_unneeded_layers: AtomicBool,
    pub(crate) source: ContentSource,
    /// The chunker for publishing.
    pub(crate) chunker: Chunker,
    pub(crate) times: LiveTimes,
    /// Held while publishing: publishing is sequential and in order.
    pub(crate) publishing: Mutex<()>,
    /// A sealed state of which nothing can be published: it contains only open files without a name.
    pub(crate) remainder: Mutex<Option<LayeredState>>,
    pub(crate) unpublished_age: UnpublishedAge,
    pub(crate) numbers: InodeNumberPool,
    pub(crate) places: HardLinks,
    /// The snapshot that the worktree's ref names, as far as this process wrote it.
    pub(crate) announced: Mutex<Option<SnapshotId>>,
    pub(crate) tenure: Option<Arc<HeldLease>>,
    worktree: String,
    /// The last transaction that was committed.
    committed: AtomicU64,
}

impl LiveFilesystem {
    /// Opens the worktree in `live`, or creates one with the base `fresh`. Removes orphans.
    pub fn open(
        volume: Arc<Volume>,
        live: Arc<dyn LiveStore>,
        log: Arc<WriteLog>,
        fresh: &LiveHead,
        options: LiveOptions,
    ) -> Result<Self> {
        let tree = LiveMap::open(live, volume.nodes.clone(), fresh)?;
        tree.worktree_usage().set_quota(options.quota);
        let limits = PrefetchLimits::for_requests_at_once(volume.objects.parallel_get_count());
        let source = ContentSource::new(log.clone(), volume.blobs.clone(), options.chunk_cache, limits);
        let inodes = InodeCache::default();
        let opened = OpenInodes::default();
        let chunker = Chunker::new(volume.config.chunker, &volume.keys.chunker_key());
        let worktree = options.worktree.unwrap_or_else(|| volume.worktree.worktree.clone());
        let fs = Self {
            worktree,
            tenure: options.tenure,
            volume,
            tree,
            log,
            inodes,
            opened,
            released: ReleasedOrphans::default(),
            stored_counts: StoredByteCounts::default(),
            source,
            chunker,
            times: LiveTimes::default(),
            numbers: InodeNumberPool::default(),
            places: HardLinks::default(),
            publishing: Mutex::default(),
            epochs: Epochs::default(),
            keeps_access_times: AtomicBool::new(false),
            has_unneeded_layers: AtomicBool::new(true),
            remainder: Mutex::default(),
            unpublished_age: UnpublishedAge::default(),
            announced: Mutex::default(),
            committed: AtomicU64::new(0),
        };
        if fs.tree.read_head_state(|view| view.inode_attr(Ino::ROOT))?.is_none() {
            fs.apply_change(create_root)?;
        }
        fs.remove_orphans()?;
        fs.release_all_retained()?;
        Ok(fs)
    }

    /// Stops updating access times: from now on reading changes nothing, as a read-only mount requires.
    pub fn freeze_access_times(&self) {
        self.keeps_access_times.store(true, Ordering::Relaxed);
    }

    /// The volume.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// The current state and the live head.
    #[must_use]
    pub fn live_map(&self) -> &LiveMap {
        &self.tree
    }

    /// The write log.
    #[must_use]
    pub fn write_log(&self) -> &Arc<WriteLog> {
        &self.log
    }

    /// The name of the worktree.
    #[must_use]
    pub fn worktree_name(&self) -> &str {
        &self.worktree
    }

    /// Changes the worktree, and removes what was changed from the caches. The body may run several times.
    pub(crate) fn apply_change<T>(
        &self,
        body: impl FnMut(&mut LiveTransaction<'_>) -> Result<T>,
    ) -> Result<T> {
        self.check_lease()?;
        let (value, CommittedChanges { changed, sequence }) = self.tree.run_transaction(body)?;
        self.committed.fetch_max(sequence.0, Ordering::AcqRel);
        self.tree.access_times().forget_changed(&changed);
        self.inodes.invalidate_keys(&changed);
        Ok(value)
    }

    /// Clears all caches, because the worktree has another state. To be called in the body of
    /// [`LiveMap::change_head`]: no operation is in progress then, and none continues with cached values.
    pub fn invalidate_caches(&self) {
        self.inodes.clear_all();
        self.stored_counts.forget_all();
        self.tree.access_times().forget_all();
        self.numbers.discard_numbers();
        self.places.forget_all();
    }

    /// The cache of inodes and names: its statistics and its size.
    #[must_use]
    pub fn inode_cache(&self) -> &InodeCache {
        &self.inodes
    }

    /// The last change that was committed.
    pub(crate) fn last_commit(&self) -> CommitSequence {
        CommitSequence(self.committed.load(Ordering::Acquire))
    }
}

/// An empty root directory that belongs to this process, as a checked-out directory's is recorded.
fn create_root(txn: &mut LiveTransaction<'_>) -> Result<()> {
    let mut root = InodeAttr::new(FileKind::Dir, 0o755);
    root.uid = rustix::process::geteuid().as_raw();
    root.gid = rustix::process::getegid().as_raw();
    root.nlink = 2;
    root.set_all_times(current_time());
    txn.set_key(MapKey::for_attr(Ino::SUPER), &SuperBlock { next_ino: Ino(Ino::ROOT.0 + 1) }.encode());
    txn.set_new_inode_attr(Ino::ROOT, &root);
    Ok(())
}
