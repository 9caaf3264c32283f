//! What the tree of a snapshot must keep, beyond nodes and values that decode: a root, no directory in itself or in two
//! places, no entry without its inode, extents in order and within the size, chunks that are chunks, no `.vellum`.
//!
//! Invariant: the first tree is looked at whole; of each further one what differs from the last sound one, so that
//! thousands of snapshots cost what they changed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use vellum_host::ProgressMeter;
use vellum_host::escape::format_path;
use vellum_map::{MapRoot, diff_maps};
use vellum_types::value::SuperBlock;
use vellum_types::{BlobKind, Dentry, ErrorKind, Extent, ExtentSource, FileKind, Ino, InodeAttr, MapKeyRef};

use super::{FoundDamage, TreeOwner, VerifiedTree};
use crate::error::{Result, VolumeError, is_data_loss};
use crate::state::STATE_DIR;
use crate::tree::{DEPTH_MAX, FsTree};
use crate::volume::Volume;

/// How many problems of one tree are named.
const PROBLEMS_MAX: usize = 20;

/// Checks trees, each once. Trees that cannot be read are passed over: that was found before.
pub fn check_structure(
    volume: &Volume,
    trees: &[VerifiedTree],
    damage: &mut FoundDamage,
    meter: &ProgressMeter,
) -> Result<()> {
    // The empty tree has no root directory, and is the state of a worktree before its first snapshot.
    let mut met = HashSet::from([volume.empty_root()]);
    let mut sound: Option<MapRoot> = None;
    for VerifiedTree { owner, root } in trees {
        if !met.insert(*root) {
            continue;
        }
        meter.check_stopped()?;
        // Only a sound tree is compared with: what is wrong in a damaged one and in this one alike would be passed over.
        let mut check = TreeCheck {
            volume,
            tree: volume.open_tree(*root),
            problems: BTreeSet::new(),
            ways: DirectoryWays::default(),
        };
        // A trash has nothing in common with other trees.
        let is_trash = matches!(owner, TreeOwner::Trash(_));
        let done = match sound.filter(|_| !is_trash) {
            None => check.check_whole_tree(),
            Some(sound) => check.check_changes_since(sound),
        };
        match done {
            Ok(()) if check.problems.is_empty() && is_trash => {}
            Ok(()) if check.problems.is_empty() => sound = Some(*root),
            Err(error) if !is_data_loss(&error) && error.kind() != ErrorKind::NotFound => return Err(error),
            // A node of it cannot be read, which the walk over the trees has reported.
            _ if check.problems.is_empty() => {}
            _ => {
                let problems: Vec<_> = check.problems.into_iter().take(PROBLEMS_MAX).collect();
                damage.add_object(format!("tree {} of {owner}", root.0), problems.join("; "));
            }
        }
    }
    Ok(())
}

/// What a tree is found to break, looked at whole.
pub(crate) fn check_whole(volume: &Volume, tree: FsTree) -> Result<Vec<String>> {
    let mut check = TreeCheck { volume, tree, problems: BTreeSet::new(), ways: DirectoryWays::default() };
    check.check_whole_tree()?;
    Ok(check.problems.into_iter().collect())
}

struct TreeCheck<'a> {
    volume: &'a Volume,
    tree: FsTree,
    problems: BTreeSet<String>,
    /// Of directories that changed.
    ways: DirectoryWays,
}

/// What is kept of an inode while a whole tree is looked at.
struct SeenInode {
    kind: FileKind,
    parent: Ino,
    name: Box<[u8]>,
    /// Whether it is where it says.
    is_placed: bool,
}

/// The entries of one inode as they come.
struct InodeGroup {
    ino: Ino,
    attr: Option<InodeAttr>,
    /// Where the last extent ended.
    end: u64,
}

impl TreeCheck<'_> {
    fn add_problem(&mut self, problem: impl Into<String>) {
        // A hostile tree may have millions.
        if self.problems.len() <= PROBLEMS_MAX {
            self.problems.insert(problem.into());
        }
    }

    /// The first inode number that was not given out.
    fn read_next_number(&mut self) -> Result<Ino> {
        match self.tree.read_super_block() {
            Ok(record) => Ok(record.next_ino),
            Err(VolumeError::BadTree(problem)) => {
                // The check goes on: with the highest number, no inode is reported for a counter that is missing.
                self.add_problem(problem);
                Ok(Ino(u64::MAX))
            }
            Err(error) => Err(error),
        }
    }

    fn check_whole_tree(&mut self) -> Result<()> {
        let mut seen: HashMap<Ino, SeenInode> = HashMap::new();
        let mut links: Vec<(Ino, Box<[u8]>, Dentry)> = Vec::new();
        let next = self.read_next_number()?;
        let mut group = InodeGroup { ino: Ino::SUPER, attr: None, end: 0 };
        // A clone, because the checks below change `self` while the range is read.
        let view = self.tree.map_view().clone();
        let volume = self.volume;
        for entry in view.read_range(&*volume.nodes, vellum_map::KeySpan::all_keys())? {
            let entry = entry?;
            self.check_entry(&entry.key, &entry.value, &mut group)?;
            match MapKeyRef::parse(&entry.key).map_err(wrap_decode_error())? {
                MapKeyRef::Attr(ino) if ino != Ino::SUPER => {
                    // Whoever writes on from this snapshot would give the number to another file.
                    if ino >= next {
                        self.add_problem(format!("inode {ino} has a number that was not given out yet"));
                    }
                    if let Some(attr) = &group.attr {
                        let name = attr.name.clone().into();
                        let place =
                            SeenInode { kind: attr.kind, parent: attr.parent, name, is_placed: false };
                        seen.insert(ino, place);
                    }
                }
                MapKeyRef::Dentry(dir, name) => {
                    links.push((
                        dir,
                        name.into(),
                        Dentry::decode(&entry.value).map_err(wrap_decode_error())?,
                    ));
                }
                _ => {}
            }
        }
        if seen.get(&Ino::ROOT).is_none_or(|root| root.kind != FileKind::Dir) {
            self.add_problem("it has no root directory");
        }
        // After all inodes are known: an entry may come before or after the inode that it names.
        for (dir, name, dentry) in links {
            let target = seen.get_mut(&dentry.ino);
            let Some(problem) = find_dentry_problem(dir, &name, dentry, target) else { continue };
            self.add_problem(problem);
        }
        self.check_cycles(&seen);
        Ok(())
    }

    /// Directories that are nowhere, or in themselves.
    fn check_cycles(&mut self, seen: &HashMap<Ino, SeenInode>) {
        let mut ways = DirectoryWays::default();
        let dirs = seen.iter().filter(|(ino, place)| place.kind == FileKind::Dir && **ino != Ino::ROOT);
        for (ino, place) in dirs {
            if !place.is_placed {
                self.add_problem(format!("directory {ino} is in no directory"));
                continue;
            }
            let end = ways.follow(*ino, |at| {
                Ok::<_, VolumeError>(seen.get(&at).filter(|place| place.is_placed).map(|place| place.parent))
            });
            if let Ok(WayEnd::Circle) = end {
                self.add_problem(lies_too_deep(*ino));
            }
        }
    }

    /// One entry of the map, by itself and with those of its inode before it.
    fn check_entry(&mut self, key: &[u8], value: &[u8], group: &mut InodeGroup) -> Result<()> {
        let key = MapKeyRef::parse(key).map_err(wrap_decode_error())?;
        if key.ino() != group.ino {
            // The entries of one inode follow each other, the attributes first: what comes before any is of an inode
            // that is missing.
            *group = InodeGroup { ino: key.ino(), attr: None, end: 0 };
        }
        let ino = group.ino;
        match key {
            MapKeyRef::Attr(Ino::SUPER) => {
                SuperBlock::decode(value).map_err(wrap_decode_error())?;
            }
            MapKeyRef::Attr(_) => {
                group.attr = Some(InodeAttr::decode_published(value).map_err(wrap_decode_error())?)
            }
            MapKeyRef::Dentry(_, name) => {
                let dentry = Dentry::decode(value).map_err(wrap_decode_error())?;
                if group.attr.as_ref().is_none_or(|attr| attr.kind != FileKind::Dir) {
                    self.add_problem(format!(
                        "'{}' is an entry of inode {ino}, which is no directory",
                        format_path(name)
                    ));
                }
                // Whoever checks it out would write over the state directory of a worktree.
                if name == STATE_DIR.as_bytes() && (ino == Ino::ROOT || dentry.kind == FileKind::Dir) {
                    self.add_problem(format!("directory {ino} has an entry '{STATE_DIR}'"));
                }
            }
            MapKeyRef::Xattr(..) if group.attr.is_none() => {
                self.add_problem(format!("inode {ino} has attributes and is missing"));
            }
            MapKeyRef::Xattr(..) => {}
            MapKeyRef::Extent(_, offset) => {
                let extent = Extent::decode(value).map_err(wrap_decode_error())?;
                self.check_extent(offset, &extent, group);
            }
        }
        Ok(())
    }

    fn check_extent(&mut self, offset: u64, extent: &Extent, group: &mut InodeGroup) {
        let ino = group.ino;
        let size = match &group.attr {
            Some(attr) if attr.kind == FileKind::File && attr.inline.is_none() => attr.size,
            Some(_) => return self.add_problem(format!("inode {ino} has extents that it should not have")),
            None => return self.add_problem(format!("inode {ino} has content and is missing")),
        };
        if offset < group.end {
            self.add_problem(format!("inode {ino} has overlapping extents"));
        }
        // A sum that is too large is a problem of its own below, and must not end the check of the other entries.
        group.end = offset.saturating_add(extent.len);
        if group.end > size || offset.checked_add(extent.len).is_none() {
            self.add_problem(format!("inode {ino} has extents beyond its size"));
        }
        match extent.source {
            ExtentSource::Chunk { id, .. } => {
                // Whether the chunk is there is checked with the blobs. Here, it only must not be a node.
                let held = self.volume.blobs.find_holder(&id).ok().flatten();
                if held.is_some_and(|held| held.place.kind != BlobKind::Chunk) {
                    self.add_problem(format!("inode {ino} names {id} as its content, which is no chunk"));
                }
            }
            ExtentSource::WriteLog { .. } => {
                self.add_problem(format!("inode {ino} has content in a write log, which is in no snapshot"));
            }
            ExtentSource::Hole => {}
        }
    }

    /// What differs from a tree that is sound.
    fn check_changes_since(&mut self, sound: MapRoot) -> Result<()> {
        let mut inodes = BTreeSet::new();
        let mut links = Vec::new();
        let mut gone = Vec::new();
        let mut lost: BTreeMap<Ino, InodeAttr> = BTreeMap::new();
        for change in diff_maps(&*self.volume.nodes, &sound, &self.tree.map_view().base) {
            let change = change?;
            let key = MapKeyRef::parse(&change.key).map_err(wrap_decode_error())?;
            // Whatever differs of an inode, all of it is looked at again: its parts have to fit together.
            inodes.insert(key.ino());
            match (key, change.before.as_deref(), change.after.as_deref()) {
                (MapKeyRef::Dentry(dir, name), before, after) => {
                    let decode = |value| Dentry::decode(value).map_err(wrap_decode_error());
                    if let Some(after) = after.map(decode).transpose()? {
                        links.push((dir, name.to_vec(), after));
                    }
                    if let Some(before) = before.map(decode).transpose()? {
                        gone.push((dir, name.to_vec(), before));
                    }
                }
                // Where its entry was is known from the attributes that it had.
                (MapKeyRef::Attr(ino), Some(before), None) if ino != Ino::SUPER => {
                    lost.insert(ino, InodeAttr::decode_published(before).map_err(wrap_decode_error())?);
                }
                _ => {}
            }
        }
        let next = self.read_next_number()?;
        for ino in &inodes {
            self.check_changed_inode(*ino, next)?;
        }
        for (dir, name, dentry) in links {
            // From the tree and not from the changes: an entry may be new and its inode an old one.
            let mut target = self.tree.inode_attr(dentry.ino)?.map(new_seen_inode);
            if let Some(problem) = find_dentry_problem(dir, &name, dentry, target.as_mut()) {
                self.add_problem(problem);
            }
        }
        // A directory that still says that it is there must have its entry there.
        for (dir, name, dentry) in gone {
            let left = self.tree.inode_attr(dentry.ino)?.filter(|attr| attr.kind == FileKind::Dir);
            if left.is_some_and(|attr| (attr.parent, &attr.name) == (dir, &name))
                && self.tree.lookup_dentry_unchecked(dir, &name)?.is_none_or(|there| there.ino != dentry.ino)
            {
                self.add_problem(format!("directory {} is in no directory", dentry.ino));
            }
        }
        // An entry that did not change is no difference, but may name an inode that is gone.
        for (ino, attr) in lost {
            if self
                .tree
                .lookup_dentry_unchecked(attr.parent, &attr.name)?
                .is_some_and(|there| there.ino == ino)
            {
                self.add_problem(format!("inode {ino} is missing"));
            }
        }
        Ok(())
    }

    fn check_changed_inode(&mut self, ino: Ino, next: Ino) -> Result<()> {
        let mut group = InodeGroup { ino: Ino::SUPER, attr: None, end: 0 };
        // Collected first, because the checks change `self` while the scan borrows its tree.
        let mut entries = Vec::new();
        self.tree.scan_inode_raw(ino, |key, value| {
            entries.push((key.to_vec(), value.to_vec()));
            Ok(())
        })?;
        for (key, value) in &entries {
            self.check_entry(key, value, &mut group)?;
        }
        let Some(attr) = group.attr.filter(|_| ino != Ino::SUPER) else {
            if ino == Ino::ROOT {
                self.add_problem("it has no root directory");
            }
            return Ok(());
        };
        if ino >= next {
            self.add_problem(format!("inode {ino} has a number that was not given out yet"));
        }
        if attr.kind != FileKind::Dir || ino == Ino::ROOT {
            if ino == Ino::ROOT && attr.kind != FileKind::Dir {
                self.add_problem("it has no root directory");
            }
            return Ok(());
        }
        // Taken out, because the way up reports problems to `self`.
        let mut ways = std::mem::take(&mut self.ways);
        let end = ways.follow(ino, |at| self.placed_parent(at));
        self.ways = ways;
        if end? == WayEnd::Circle {
            self.add_problem(lies_too_deep(ino));
        }
        Ok(())
    }

    /// The directory that has a directory as its entry; none, and a problem that is found, if there is none.
    fn placed_parent(&mut self, dir: Ino) -> Result<Option<Ino>> {
        let Some(attr) = self.tree.inode_attr(dir)? else {
            self.add_problem(format!("inode {dir} is missing"));
            return Ok(None);
        };
        if self.tree.lookup_dentry_unchecked(attr.parent, &attr.name)?.is_none_or(|there| there.ino != dir) {
            self.add_problem(format!("directory {dir} is in no directory"));
            return Ok(None);
        }
        Ok(Some(attr.parent))
    }
}

/// Where directories end if one goes up. Each is gone through once, however many lie below it: a chain or a circle of a
/// million costs a million steps.
#[derive(Default)]
struct DirectoryWays {
    ends: HashMap<Ino, WayEnd>,
}

/// Where the way up from a directory ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WayEnd {
    /// At the root, after so many levels.
    Root(usize),
    /// At a directory that lies nowhere.
    Nowhere,
    /// Never, or too far up.
    Circle,
}

impl DirectoryWays {
    /// Where the way from `dir` ends. `parent` returns the directory above one, if that has it.
    fn follow<E>(
        &mut self,
        dir: Ino,
        mut parent: impl FnMut(Ino) -> Result<Option<Ino>, E>,
    ) -> Result<WayEnd, E> {
        let mut way = Vec::new();
        let mut at = dir;
        let mut end = loop {
            if at == Ino::ROOT {
                break WayEnd::Root(0);
            }
            if let Some(end) = self.ends.get(&at) {
                break *end;
            }
            // Until its end is known, it is on the way itself: who meets it again goes in a circle.
            self.ends.insert(at, WayEnd::Circle);
            way.push(at);
            match parent(at)? {
                Some(above) => at = above,
                None => break WayEnd::Nowhere,
            }
        };
        for ino in way.into_iter().rev() {
            end = match end {
                WayEnd::Root(levels) if levels < DEPTH_MAX => WayEnd::Root(levels + 1),
                WayEnd::Root(_) | WayEnd::Circle => WayEnd::Circle,
                WayEnd::Nowhere => WayEnd::Nowhere,
            };
            self.ends.insert(ino, end);
        }
        Ok(end)
    }
}

fn lies_too_deep(dir: Ino) -> String {
    format!("directory {dir} lies in itself, or deeper than {DEPTH_MAX} levels")
}

fn new_seen_inode(attr: InodeAttr) -> SeenInode {
    SeenInode { kind: attr.kind, parent: attr.parent, name: attr.name.into(), is_placed: false }
}

/// What is wrong with an entry of a directory, if anything is; a directory that is where it says is marked so.
fn find_dentry_problem(
    dir: Ino,
    name: &[u8],
    dentry: Dentry,
    target: Option<&mut SeenInode>,
) -> Option<String> {
    let shown = format_path(name);
    let Some(target) = target else {
        return Some(format!("inode {} is missing, which directory {dir} has as '{shown}'", dentry.ino));
    };
    if target.kind != dentry.kind {
        return Some(format!("'{shown}' in directory {dir} is said to be another kind of file than it is"));
    }
    // Other files may have any number of names, in any directories.
    if target.kind != FileKind::Dir {
        return None;
    }
    // A directory has one place, which it names itself. This is what makes every walk down a tree end.
    if dentry.ino == Ino::ROOT || target.parent != dir || *target.name != *name {
        return Some(format!("'{shown}' in directory {dir} is a directory that belongs to another place"));
    }
    target.is_placed = true;
    None
}

fn wrap_decode_error() -> impl FnOnce(vellum_types::DecodeError) -> VolumeError {
    VolumeError::wrap_decode_error("an entry of the tree")
}
