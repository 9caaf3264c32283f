//! `.vellum/snapshots`: a directory for each snapshot, named by its whole id. Tags and prefixes of ids are symlinks.
//!
//! Invariant: a snapshot gets a slot when it is first looked up or listed, and keeps it as long as the mount exists:
//! the kernel may know any of its inodes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use vellum_fs::{FsError, LiveFilesystem, Result};
use vellum_types::{FileKind, Ino, InodeAttr, SnapshotId};
use vellum_volume::{FsTree, Volume, VolumeError};

use super::VirtualNode;
use crate::node::{ListedDirName, NodePlace, SLOTS, SnapshotSlot};

/// The first number of a symlink; those below are for the fixed files.
const FIRST_LINK: u64 = 1 << 16;

/// Symlinks that are kept at most: one for each name that was looked up.
const LINKS_MAX: usize = 1 << 20;

/// The directory `.vellum/snapshots`.
pub struct SnapshotsDir {
    volume: Arc<Volume>,
    /// The mounted worktree, whose latest snapshots may not be in the store yet.
    live: Option<Arc<LiveFilesystem>>,
    known: Mutex<KnownSnapshots>,
}

#[derive(Default)]
struct KnownSnapshots {
    slots: HashMap<SnapshotId, SnapshotSlot>,
    /// The snapshots by slot.
    ids: Vec<SnapshotId>,
    trees: HashMap<SnapshotSlot, Arc<FsTree>>,
    links: HashMap<Vec<u8>, u64>,
    targets: Vec<SnapshotId>,
}

impl SnapshotsDir {
    /// The directory of the snapshots of a volume.
    pub fn new(volume: Arc<Volume>, live: Option<Arc<LiveFilesystem>>) -> Self {
        Self { volume, live, known: Mutex::default() }
    }

    /// The pending snapshots, with their tags.
    fn pending_snapshots(&self) -> Result<Vec<(SnapshotId, Vec<String>)>> {
        let Some(fs) = &self.live else { return Ok(Vec::new()) };
        Ok(fs
            .live_map()
            .pending_snapshots()?
            .into_iter()
            .map(|(_, pending)| (pending.id, pending.tags))
            .collect())
    }

    /// Publishes the pending snapshots if one of them is wanted: a snapshot can be read as soon as it was created.
    fn publish_if_wanted(&self, is_wanted: impl Fn(&SnapshotId, &[String]) -> bool) -> Result<()> {
        let is_waiting = self.pending_snapshots()?.iter().any(|(id, tags)| is_wanted(id, tags));
        match &self.live {
            Some(fs) if is_waiting => fs.publisher().publish_pending(),
            Some(_) | None => Ok(()),
        }
    }

    /// Looks up a name: the directory of a snapshot, or a symlink with the attributes of `link`.
    pub fn lookup_snapshot(&self, name: &[u8], link: InodeAttr) -> Result<VirtualNode> {
        let text = std::str::from_utf8(name).map_err(|_| Errno::NOENT)?;
        // These expressions depend on the worktree or on the time, so a name with them would not keep its meaning.
        if text == "HEAD" || text.contains(['~', '@']) {
            return Err(Errno::NOENT.into());
        }
        self.publish_if_wanted(|id, tags| {
            id.to_string().starts_with(text) || tags.iter().any(|tag| tag == text)
        })?;
        let id = self.volume.resolve_snapshot(text).map_err(map_missing_snapshot)?.id;
        // Only whole ids are directories. The kernel must know each inode of a snapshot by one path, and a tag may be
        // moved.
        if id.to_string() != text {
            let number = self.find_or_add_link(name, id)?;
            let size = id.to_string().len() as u64;
            return Ok(VirtualNode { place: NodePlace::Virtual(number), attr: InodeAttr { size, ..link } });
        }
        let slot = self.find_or_add_slot(id)?;
        Ok(VirtualNode {
            place: NodePlace::Snapshot(slot, Ino::ROOT),
            attr: self.snapshot_tree(slot)?.expect_inode_attr(Ino::ROOT)?,
        })
    }

    /// All snapshots and tags. No snapshot is read: a volume may have many, and its store may be distant.
    pub fn list_entries(&self) -> Result<Vec<ListedDirName>> {
        let mut entries = Vec::new();
        let waiting = self.pending_snapshots()?;
        let mut ids: BTreeSet<SnapshotId> = self.volume.catalog.list_ids()?.into_iter().collect();
        ids.extend(waiting.iter().map(|(id, _)| *id));
        // There are no more node ids than that.
        for id in ids.into_iter().take(SLOTS) {
            let node = NodePlace::Snapshot(self.find_or_add_slot(id)?, Ino::ROOT).to_node().unwrap_or(0);
            entries.push(ListedDirName { name: id.to_string().into_bytes(), node, kind: FileKind::Dir });
        }
        let mut tags: BTreeMap<String, SnapshotId> =
            self.volume.list_readable_tags()?.0.into_iter().collect();
        // A tag that the store has stays where it is: publishing a snapshot does not move one.
        for (id, new) in waiting {
            new.into_iter().for_each(|tag| _ = tags.entry(tag).or_insert(id));
        }
        for (name, id) in tags {
            let node = NodePlace::Virtual(self.find_or_add_link(name.as_bytes(), id)?).to_node().unwrap_or(0);
            entries.push(ListedDirName { name: name.into_bytes(), node, kind: FileKind::Symlink });
        }
        Ok(entries)
    }

    /// The target of a symlink.
    pub fn link_target(&self, number: u64) -> Result<Vec<u8>> {
        let index = number.checked_sub(FIRST_LINK).and_then(|index| usize::try_from(index).ok());
        let known = self.known.lock();
        let target = index.and_then(|index| known.targets.get(index)).ok_or(Errno::STALE)?;
        Ok(target.to_string().into_bytes())
    }

    /// The name of the snapshot in a slot: the first of the tags by which it was looked up, or else its id.
    pub fn snapshot_name(&self, slot: SnapshotSlot) -> Option<Vec<u8>> {
        let known = self.known.lock();
        let id = *known.ids.get(usize::from(slot.0).checked_sub(1)?)?;
        let whole = id.to_string().into_bytes();
        let names = known.links.iter().filter(|(_, number)| Self::is_link_to(&known, **number, id));
        // Prefixes of an id are symlinks as well, and no tags.
        let tags = names.map(|(name, _)| name).filter(|name| !whole.starts_with(name));
        // The first by name, so that a snapshot with several tags has one path.
        Some(tags.min().cloned().unwrap_or(whole))
    }

    /// The tree of the snapshot in a slot.
    pub fn snapshot_tree(&self, slot: SnapshotSlot) -> Result<Arc<FsTree>> {
        let id = {
            let known = self.known.lock();
            if let Some(tree) = known.trees.get(&slot) {
                return Ok(tree.clone());
            }
            let index = usize::from(slot.0).checked_sub(1);
            *index.and_then(|index| known.ids.get(index)).ok_or(Errno::STALE)?
        };
        // The lock is not held from here on, since opening a tree may fetch from a distant store.
        self.publish_if_wanted(|waiting, _| *waiting == id)?;
        let root = self.volume.catalog.get_record(&id)?.root;
        let tree = Arc::new(self.volume.open_tree(root));
        // Another thread may have opened the same tree meanwhile; then that one is used.
        Ok(self.known.lock().trees.entry(slot).or_insert(tree).clone())
    }

    fn find_or_add_slot(&self, id: SnapshotId) -> Result<SnapshotSlot> {
        let mut known = self.known.lock();
        if let Some(slot) = known.slots.get(&id) {
            return Ok(*slot);
        }
        // `ENFILE`: the mount has no number left for another snapshot.
        if known.ids.len() >= SLOTS {
            return Err(Errno::NFILE.into());
        }
        known.ids.push(id);
        let slot = SnapshotSlot(u16::try_from(known.ids.len()).map_err(|_| Errno::NFILE)?);
        known.slots.insert(id, slot);
        Ok(slot)
    }

    /// The number of the symlink with this name. A tag that was moved gets a new one.
    fn find_or_add_link(&self, name: &[u8], id: SnapshotId) -> Result<u64> {
        let mut known = self.known.lock();
        if let Some(number) = known.links.get(name)
            && Self::is_link_to(&known, *number, id)
        {
            return Ok(*number);
        }
        if known.targets.len() >= LINKS_MAX {
            return Err(Errno::NFILE.into());
        }
        // Never the number of before: the kernel may have cached where that leads.
        let number = FIRST_LINK + known.targets.len() as u64;
        known.targets.push(id);
        known.links.insert(name.to_vec(), number);
        Ok(number)
    }

    fn is_link_to(known: &KnownSnapshots, number: u64, id: SnapshotId) -> bool {
        let index = usize::try_from(number - FIRST_LINK).unwrap_or(usize::MAX);
        known.targets.get(index) == Some(&id)
    }
}

/// Maps the errors of a name that stands for no snapshot to `ENOENT`: they are no failures of the volume.
fn map_missing_snapshot(error: VolumeError) -> FsError {
    match error {
        VolumeError::UnknownSnapshot(_)
        | VolumeError::NoSnapshotThere { .. }
        | VolumeError::Ambiguous { .. }
        | VolumeError::SeveralNamed { .. }
        | VolumeError::BadExpression { .. } => Errno::NOENT.into(),
        error => error.into(),
    }
}
