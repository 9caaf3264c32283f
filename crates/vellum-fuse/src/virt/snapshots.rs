//! `.vellum/snapshots`: a directory for each snapshot, by its whole id; tags and beginnings of ids are symlinks to them.
//!
//! A snapshot gets a slot when it is first looked up, and keeps it as long as the mount lives: the kernel may remember
//! any of its inodes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use vellum_fs::frozen::{FrozenChunks, FrozenTree};
use vellum_fs::{FsError, LiveFilesystem, Result};
use vellum_types::{FileKind, Ino, InodeAttr, SnapshotId};
use vellum_volume::{Volume, VolumeError};

use super::VirtualNode;
use crate::dirs::ListedDirName;
use crate::node::{NodePlace, SLOTS, SnapshotSlot};

/// The first number of a symlink; those below belong to the fixed files.
const FIRST_LINK: u64 = 1 << 16;

/// Symlinks that are remembered, one for each name that was looked up.
const LINKS_MAX: usize = 1 << 20;

/// The directory.
pub struct SnapshotsDir {
    volume: Arc<Volume>,
    chunks: Arc<FrozenChunks>,
    /// The worktree of which snapshots may not be in the store yet.
    live: Option<Arc<LiveFilesystem>>,
    known: Mutex<KnownSnapshots>,
}

#[derive(Default)]
struct KnownSnapshots {
    slots: HashMap<SnapshotId, SnapshotSlot>,
    /// By slot.
    ids: Vec<SnapshotId>,
    trees: HashMap<SnapshotSlot, Arc<FrozenTree>>,
    links: HashMap<Vec<u8>, u64>,
    targets: Vec<SnapshotId>,
}

impl SnapshotsDir {
    /// The snapshots of a volume.
    pub fn new(volume: Arc<Volume>, chunks: Arc<FrozenChunks>, live: Option<Arc<LiveFilesystem>>) -> Self {
        Self { volume, chunks, live, known: Mutex::default() }
    }

    /// The snapshots that wait to be published, with their tags.
    fn waiting(&self) -> Result<Vec<(SnapshotId, Vec<String>)>> {
        let Some(fs) = &self.live else { return Ok(Vec::new()) };
        Ok(fs.pending()?.into_iter().map(|(_, pending)| (pending.id, pending.tags)).collect())
    }

    /// Puts the snapshots that wait into the store if one of them is wanted: whoever was told of it finds it.
    fn settle(&self, is_wanted: impl Fn(&SnapshotId, &[String]) -> bool) -> Result<()> {
        let is_waiting = self.waiting()?.iter().any(|(id, tags)| is_wanted(id, tags));
        match &self.live {
            Some(fs) if is_waiting => fs.settle(),
            _ => Ok(()),
        }
    }

    /// What a name stands for: a tree, or a symlink to one with the attributes of `link`.
    pub fn lookup(&self, name: &[u8], link: InodeAttr) -> Result<VirtualNode> {
        let text = std::str::from_utf8(name).map_err(|_| Errno::NOENT)?;
        if text == "HEAD" || text.contains(['~', '@']) {
            return Err(Errno::NOENT.into());
        }
        self.settle(|id, tags| id.to_string().starts_with(text) || tags.iter().any(|tag| tag == text))?;
        let id = self.volume.resolve(text).map_err(missing)?.id;
        if id.to_string() != text {
            let number = self.link(name, id)?;
            let size = id.to_string().len() as u64;
            return Ok(VirtualNode { place: NodePlace::Virtual(number), attr: InodeAttr { size, ..link } });
        }
        let slot = self.slot(id)?;
        Ok(VirtualNode {
            place: NodePlace::Snapshot(slot, Ino::ROOT),
            attr: self.tree(slot)?.attr(Ino::ROOT)?,
        })
    }

    /// All snapshots and tags. Nothing of a snapshot is read: a volume may have many, and its store may be far away.
    pub fn entries(&self) -> Result<Vec<ListedDirName>> {
        let mut entries = Vec::new();
        let waiting = self.waiting()?;
        let mut ids: BTreeSet<SnapshotId> = self.volume.catalog.ids()?.into_iter().collect();
        ids.extend(waiting.iter().map(|(id, _)| *id));
        for id in ids.into_iter().take(SLOTS) {
            let node = NodePlace::Snapshot(self.slot(id)?, Ino::ROOT).node().unwrap_or(0);
            entries.push(ListedDirName { name: id.to_string().into_bytes(), node, kind: FileKind::Dir });
        }
        let mut tags: BTreeMap<String, SnapshotId> = self.volume.read_tags()?.0.into_iter().collect();
        for (id, new) in waiting {
            new.into_iter().for_each(|tag| _ = tags.entry(tag).or_insert(id));
        }
        for (name, id) in tags {
            let node = NodePlace::Virtual(self.link(name.as_bytes(), id)?).node().unwrap_or(0);
            entries.push(ListedDirName { name: name.into_bytes(), node, kind: FileKind::Symlink });
        }
        Ok(entries)
    }

    /// Where a symlink points.
    pub fn target(&self, number: u64) -> Result<Vec<u8>> {
        let index = number.checked_sub(FIRST_LINK).and_then(|index| usize::try_from(index).ok());
        let known = self.lock();
        let target = index.and_then(|index| known.targets.get(index)).ok_or(Errno::STALE)?;
        Ok(target.to_string().into_bytes())
    }

    /// The tree in a slot.
    pub fn tree(&self, slot: SnapshotSlot) -> Result<Arc<FrozenTree>> {
        let id = {
            let known = self.lock();
            if let Some(tree) = known.trees.get(&slot) {
                return Ok(tree.clone());
            }
            let index = usize::from(slot.0).checked_sub(1);
            *index.and_then(|index| known.ids.get(index)).ok_or(Errno::STALE)?
        };
        self.settle(|waiting, _| *waiting == id)?;
        let root = self.volume.catalog.get(&id)?.root;
        let tree = Arc::new(FrozenTree::new(self.volume.tree(root), self.chunks.clone()));
        Ok(self.lock().trees.entry(slot).or_insert(tree).clone())
    }

    fn slot(&self, id: SnapshotId) -> Result<SnapshotSlot> {
        let mut known = self.lock();
        if let Some(slot) = known.slots.get(&id) {
            return Ok(*slot);
        }
        if known.ids.len() >= SLOTS {
            return Err(Errno::NFILE.into());
        }
        known.ids.push(id);
        let slot = SnapshotSlot(u16::try_from(known.ids.len()).map_err(|_| Errno::NFILE)?);
        known.slots.insert(id, slot);
        Ok(slot)
    }

    /// The number of the symlink of this name. A tag that was moved gets another one.
    fn link(&self, name: &[u8], id: SnapshotId) -> Result<u64> {
        let mut known = self.lock();
        if let Some(number) = known.links.get(name)
            && Self::points_to(&known, *number, id)
        {
            return Ok(*number);
        }
        if known.targets.len() >= LINKS_MAX {
            return Err(Errno::NFILE.into());
        }
        let number = FIRST_LINK + known.targets.len() as u64;
        known.targets.push(id);
        known.links.insert(name.to_vec(), number);
        Ok(number)
    }

    fn points_to(known: &KnownSnapshots, number: u64, id: SnapshotId) -> bool {
        let index = usize::try_from(number - FIRST_LINK).unwrap_or(usize::MAX);
        known.targets.get(index) == Some(&id)
    }

    fn lock(&self) -> MutexGuard<'_, KnownSnapshots> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name that names no snapshot is no failure of the volume.
fn missing(error: VolumeError) -> FsError {
    match error {
        VolumeError::UnknownSnapshot(_)
        | VolumeError::NoSnapshotThere { .. }
        | VolumeError::Ambiguous { .. }
        | VolumeError::SeveralNamed { .. }
        | VolumeError::BadExpression { .. } => Errno::NOENT.into(),
        error => error.into(),
    }
}
