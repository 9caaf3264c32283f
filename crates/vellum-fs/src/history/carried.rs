//! What no snapshot holds, carried over when the worktree is brought to another state: what the last snapshot left out.
//!
//! Invariants: an entry keeps its content, its attributes and its times, and files with several names among what is carried
//! keep them; the target's own entries and times stay as they are. Where the target has something else, nothing is carried,
//! and the caller decides: it refuses, or gives up what is there.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use vellum_host::escape::format_path;
use vellum_types::{Dentry, FileKind, Ino, InodeAttr, SnapshotId};
use vellum_volume::exclusions::SnapshotExclusions;
use vellum_volume::tree::{DirectoryEntry, StateReader, path_components};

use crate::error::{FsError, Result};
use crate::fs::LiveFilesystem;
use crate::history::exclusions::{ExcludedEntry, ExclusionRules};
use crate::history::partial::allow_not_found;
use crate::history::selected::restore_times;
use crate::history::view::LiveView;
use crate::history::visible::SessionTree;

/// Entries that are carried from a view into a directory that stands for one of it.
pub(crate) struct CarriedEntries<'c> {
    /// Where they go.
    to: &'c LiveFilesystem,
    /// Where they are.
    now: &'c LiveView,
    /// Whether what is in the way of them stays, and they go.
    gives_way: bool,
    /// Files with several links: what they became.
    linked: HashMap<Ino, Ino>,
    /// Directories that were made, and what they were.
    made: HashMap<Ino, Ino>,
    /// Directories of the target that something was put into, as they were.
    around: BTreeMap<Ino, Arc<InodeAttr>>,
}

/// A directory of the view, and the one that takes its place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CarriedDirectory {
    pub now: Ino,
    pub then: Ino,
}

impl CarriedDirectory {
    /// The root on both sides.
    pub const ROOT: Self = Self { now: Ino::ROOT, then: Ino::ROOT };
}

impl LiveFilesystem {
    /// Fails with [`FsError::InTheWay`] if a snapshot has something in the place of what the last one left out, so that the
    /// worktree cannot be brought to it, or these paths of it.
    pub fn check_restorable(self: &Arc<Self>, target: SnapshotId, paths: &[Vec<u8>]) -> Result<()> {
        let exclusions = self.kept_exclusions()?;
        if exclusions.is_empty() {
            return Ok(());
        }
        let mut excluded = ExclusionRules::parse(&exclusions)?.find_excluded(&self.open_view()?)?;
        excluded.retain(|entry| paths.is_empty() || paths.iter().any(|path| entry.concerns(path)));
        check_places_free(&excluded, &self.open_snapshot_view(target)?)
    }

    /// Stores the tree of a published snapshot with what is left out of the worktree, as it is now. With `overwrites`, what
    /// the snapshot has in its place stays, and what is left out goes there. The caller has locked the epoch.
    pub(crate) fn store_carried_tree(
        &self,
        target: SnapshotId,
        exclusions: &SnapshotExclusions,
        overwrites: bool,
    ) -> Result<SessionTree> {
        let rules = ExclusionRules::parse(exclusions)?;
        let SessionTree { session, root, counted } = self.store_whole_tree()?;
        let now = self.open_copy(root, counted)?.open_view()?;
        let excluded = rules.find_excluded(&now)?;
        let (state, ..) = self.load_published_state(target)?;
        if excluded.is_empty() {
            return Ok(SessionTree { session, root: state.base, counted: state.counted });
        }
        let then = self.open_copy(state.base, state.counted)?;
        if !overwrites {
            check_places_free(&excluded, &*then)?;
        }
        // Numbers that the worktree has given out are not given out again.
        then.raise_next_number(&now)?;
        let mut carried = CarriedEntries::new(&then, &now, overwrites);
        excluded.iter().try_for_each(|excluded| {
            carried.carry_entry(CarriedDirectory::ROOT, &excluded.path, &excluded.entry)
        })?;
        carried.finish()?;
        then.store_copy(session)
    }
}

/// Fails if a state has something in the place of what is left out.
pub(crate) fn check_places_free(excluded: &[ExcludedEntry], state: &dyn StateReader<FsError>) -> Result<()> {
    let mut taken = Vec::new();
    for excluded in excluded {
        if excluded.is_taken_in(state)? {
            taken.push(format_path(&excluded.path));
        }
    }
    if taken.is_empty() { Ok(()) } else { Err(FsError::InTheWay(taken)) }
}

impl<'c> CarriedEntries<'c> {
    /// `gives_way`: where something is in the way, that stays.
    pub fn new(to: &'c LiveFilesystem, now: &'c LiveView, gives_way: bool) -> Self {
        let around = BTreeMap::new();
        Self { to, now, gives_way, linked: HashMap::new(), made: HashMap::new(), around }
    }

    /// A directory was made for another one, whose times it is to have.
    pub fn note_made_dir(&mut self, CarriedDirectory { now, then }: CarriedDirectory) {
        self.made.insert(then, now);
    }

    /// Carries an entry, with everything below it, to the same path below another directory. Directories on the way to it
    /// that are missing there are made.
    pub fn carry_entry(&mut self, base: CarriedDirectory, path: &[u8], entry: &DirectoryEntry) -> Result<()> {
        let Some(dir) = self.create_parents(base, path)? else { return self.note_obstacle(path) };
        let mut waiting = vec![(dir, entry.clone())];
        while let Some((dir, entry)) = waiting.pop() {
            let there = allow_not_found(self.to.find_dentry(dir, &entry.name))?;
            let then = match there {
                None => self.copy_entry(dir, &entry)?,
                Some(there) if both_directories(&there, &entry) && self.gives_way => there.ino,
                Some(_) => {
                    self.note_obstacle(path)?;
                    continue;
                }
            };
            if entry.kind == FileKind::Dir {
                let below = self.now.list_entries(entry.ino)?.into_iter();
                waiting.extend(below.map(|entry| (then, entry)));
            }
        }
        Ok(())
    }

    /// Gives directories the times that they are to have, when nothing is put into them any more.
    pub fn finish(self) -> Result<()> {
        for (then, now) in &self.made {
            restore_times(self.to, *then, &*self.now.inode_attr(*now)?)?;
        }
        self.around.iter().try_for_each(|(dir, attr)| restore_times(self.to, *dir, attr))
    }

    fn note_obstacle(&self, path: &[u8]) -> Result<()> {
        if self.gives_way { Ok(()) } else { Err(FsError::InTheWay(vec![format_path(path)])) }
    }

    /// The directory that a path ends in; None if something else is in its way.
    fn create_parents(&mut self, base: CarriedDirectory, path: &[u8]) -> Result<Option<Ino>> {
        let names: Vec<&[u8]> = path_components(path).collect();
        let mut pair = base;
        for name in names.split_last().map_or(&[][..], |(_, above)| above) {
            let now = self.now.find_dentry(pair.now, name)?;
            let then = match allow_not_found(self.to.find_dentry(pair.then, name))? {
                Some(there) if there.kind == FileKind::Dir => there.ino,
                Some(_) => return Ok(None),
                None => {
                    let entry = DirectoryEntry { name: name.to_vec(), ino: now.ino, kind: now.kind };
                    self.copy_entry(pair.then, &entry)?
                }
            };
            pair = CarriedDirectory { now: now.ino, then };
        }
        Ok(Some(pair.then))
    }

    fn copy_entry(&mut self, dir: Ino, entry: &DirectoryEntry) -> Result<Ino> {
        if !self.made.contains_key(&dir) && !self.around.contains_key(&dir) {
            self.around.insert(dir, self.to.inode_attr(dir)?);
        }
        let attr = self.now.inode_attr(entry.ino)?;
        if let Some(copy) = self.linked.get(&entry.ino) {
            self.to.names().link(*copy, dir, &entry.name)?;
            restore_times(self.to, *copy, &attr)?;
            return Ok(*copy);
        }
        // With a new number: in another line, the old one may be that of another file.
        let copy = self.to.copy_inode_anew(self.now, entry.ino, dir, &entry.name)?.ino;
        if entry.kind == FileKind::Dir {
            self.made.insert(copy, entry.ino);
        } else if attr.nlink > 1 {
            self.linked.insert(entry.ino, copy);
        }
        Ok(copy)
    }
}

fn both_directories(there: &Dentry, entry: &DirectoryEntry) -> bool {
    there.kind == FileKind::Dir && entry.kind == FileKind::Dir
}
