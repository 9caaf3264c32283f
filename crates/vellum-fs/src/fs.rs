//! A live worktree: the map, and the parts that work on it, each the owner of its state.
//!
//! Each part calls those before it, and none after it: the map, content, names and attributes, epochs, the publisher.
//! What needs all of them are operations of the whole worktree: snapshots, restores, views, copies and forks
//! ([`crate::history`]). Locks are taken in this order: the epoch, publishing, the live head, past states, views, the
//! engine's writer.

use std::sync::Arc;

use parking_lot::Mutex;
use vellum_host::clock::current_time;
use vellum_live::LiveStore;
use vellum_types::value::SuperBlock;
use vellum_types::{BareInodeAttr, FileKind, Ino, InodeAttr, MapKey};
use vellum_volume::Volume;
use vellum_volume::lease::HeldLease;
use vellum_volume::refs::{WorktreeQuota, WorktreeTrash};

use crate::attributes::LiveAttributes;
use crate::content::{LiveContent, memory};
use crate::error::Result;
use crate::history::past::LiveEpochs;
use crate::history::visible::VisibleTree;
use crate::lease::WorktreeLease;
use crate::log::WriteLog;
use crate::names::LiveNames;
use crate::publish::LivePublisher;
use crate::trash::LiveTrash;
use crate::tree::head::LiveHead;
use crate::tree::{LiveMap, LiveTransaction};

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

impl RequestCaller {
    /// The caller of what copies inodes: nobody's wish decides over what is copied.
    pub(crate) const NOBODY: Self = Self { uid: 0, gid: 0, umask: 0 };
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
    /// Its trash, as its ref describes it.
    pub trash: WorktreeTrash,
    /// The lease with which it is changed, if it has one.
    pub tenure: Option<Arc<HeldLease>>,
    /// Whether files without a name stay that an earlier process had open, until
    /// [`LiveFilesystem::remove_unheld_orphans`]: other machines may still have them open.
    pub keeps_orphans: bool,
}

impl Default for LiveOptions {
    fn default() -> Self {
        let chunk_cache = memory::chunk_cache_size(memory::read_memory_limit());
        Self {
            worktree: None,
            chunk_cache,
            quota: WorktreeQuota::default(),
            trash: WorktreeTrash::default(),
            tenure: None,
            keeps_orphans: false,
        }
    }
}

/// What all parts of a live worktree stand on.
#[derive(Clone)]
pub(crate) struct LiveBase {
    pub volume: Arc<Volume>,
    pub lease: Arc<WorktreeLease>,
    pub map: Arc<LiveMap>,
    pub log: Arc<WriteLog>,
}

/// A live worktree.
pub struct LiveFilesystem {
    base: LiveBase,
    content: Arc<LiveContent>,
    names: LiveNames,
    attributes: LiveAttributes,
    epochs: Arc<LiveEpochs>,
    trash: Arc<LiveTrash>,
    publisher: Arc<LivePublisher>,
    /// What a snapshot that leaves something out would have recorded last.
    visible: Mutex<Option<VisibleTree>>,
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
        let worktree = options.worktree.unwrap_or_else(|| volume.worktree.worktree.clone());
        let lease = Arc::new(WorktreeLease::new(volume.clone(), worktree, options.tenure));
        let map = Arc::new(LiveMap::open(live, volume.nodes.clone(), fresh, lease.clone())?);
        map.worktree_usage().set_quota(options.quota);
        let base = LiveBase { volume, lease, map, log };
        let content = Arc::new(LiveContent::new(&base, options.chunk_cache));
        let epochs = Arc::new(LiveEpochs::new(&base, content.clone()));
        let trash = Arc::new(LiveTrash::open(&base, options.trash)?);
        let fs = Self {
            names: LiveNames::new(&base, content.clone()),
            attributes: LiveAttributes::new(&base, content.clone()),
            publisher: Arc::new(LivePublisher::new(&base, content.clone(), epochs.clone(), trash.clone())),
            trash,
            base,
            content,
            epochs,
            visible: Mutex::default(),
        };
        // The first tree of a volume is empty. An earlier process may also have died after it stored the head
        // and before it made the root.
        if fs.live_map().read_head_state(|view| view.inode_attr(Ino::ROOT))?.is_none() {
            fs.live_map().apply_change(create_root)?;
        }
        // Whoever had these inodes open was served by a process that has ended: no handle is left on this machine.
        if !options.keeps_orphans {
            fs.content.remove_unheld_orphans()?;
        }
        fs.release_all_retained()?;
        fs.content.unpublished_chunks().hold_left_chunks(options.keeps_orphans)?;
        Ok(fs)
    }

    /// Removes the files without a name that nobody has open.
    pub fn remove_unheld_orphans(&self) -> Result<()> {
        let _entered = self.epochs.enter_epoch();
        self.content.remove_unheld_orphans()
    }

    /// Leaves files without a name that are open now for the process that serves next, also when they are closed here. Called by
    /// a server before it lets its clients go; they are removed by that process, or when the worktree is opened.
    pub fn leave_orphans(&self) {
        self.content.leave_orphans();
    }

    /// The volume.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume> {
        &self.base.volume
    }

    /// The name of the worktree.
    #[must_use]
    pub fn worktree_name(&self) -> &str {
        self.base.lease.worktree_name()
    }

    /// The worktree's ref, and the right to change it.
    pub(crate) fn lease(&self) -> &WorktreeLease {
        &self.base.lease
    }

    /// Whether a change may have to wait until it is known who has the worktree, or until what was written is elsewhere.
    #[must_use]
    pub fn may_change_wait(&self) -> bool {
        self.base.lease.may_change_wait()
    }

    /// The current state and the live head.
    #[must_use]
    pub fn live_map(&self) -> &LiveMap {
        &self.base.map
    }

    /// The write log.
    #[must_use]
    pub fn write_log(&self) -> &Arc<WriteLog> {
        &self.base.log
    }

    /// The content of files, and who has them open.
    #[must_use]
    pub fn content(&self) -> &LiveContent {
        &self.content
    }

    /// The names of files.
    #[must_use]
    pub fn names(&self) -> &LiveNames {
        &self.names
    }

    /// The attributes of files.
    #[must_use]
    pub fn attributes(&self) -> &LiveAttributes {
        &self.attributes
    }

    /// The epochs, and who holds inodes of them.
    #[must_use]
    pub fn epochs(&self) -> &LiveEpochs {
        &self.epochs
    }

    /// The trash.
    #[must_use]
    pub fn trash(&self) -> &LiveTrash {
        &self.trash
    }

    /// Publishes the worktree.
    #[must_use]
    pub fn publisher(&self) -> &Arc<LivePublisher> {
        &self.publisher
    }

    pub(crate) fn visible_tree(&self) -> &Mutex<Option<VisibleTree>> {
        &self.visible
    }

    /// Forgets what is cached, because the worktree has another state. To be called like [`LiveMap::forget_cached`].
    pub(crate) fn forget_cached_state(&self) {
        self.live_map().forget_cached();
        self.content.forget_counts();
        self.names.forget_state();
    }
}

/// An empty root directory that belongs to this process, as a checked-out directory's is recorded.
fn create_root(txn: &mut LiveTransaction<'_>) -> Result<()> {
    let mut root = InodeAttr::new(FileKind::Dir, 0o755);
    root.uid = rustix::process::geteuid().as_raw();
    root.gid = rustix::process::getegid().as_raw();
    // `.` and `..`, which both are the root itself.
    root.nlink = 2;
    root.set_all_times(current_time());
    txn.set_key(MapKey::for_attr(Ino::SUPER), &SuperBlock { next_ino: Ino(Ino::ROOT.0 + 1) }.encode());
    txn.set_new_inode_attr(Ino::ROOT, &root);
    Ok(())
}
