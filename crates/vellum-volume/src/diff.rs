//! Two states compared by path: what was added, deleted, modified or renamed, and how.
//!
//! Inode numbers are stable within a worktree, so that a renamed directory is one change, however much is in it.
//! Files that were copied and removed instead are paired by equal content.

mod entries;
mod inode;
mod scopes;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use vellum_map::{KeySpan, MapView, diff_maps};
use vellum_types::value::SuperBlock;
use vellum_types::{DecodeError, Dentry, FileKind, Ino, InodeAttr, MapKeyRef};

pub(crate) use self::entries::DirectoryLink;
use self::entries::UnpairedEntries;
pub use self::inode::compare_inodes;
use self::inode::content_signature;
pub(crate) use self::inode::hash_content;
pub use self::scopes::PathScopes;
use crate::error::{Result, VolumeError};
use crate::tree::{FsTree, InodeRecord, PathBudget};

/// What happened to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChangeKind {
    /// It was not there before.
    Added,
    /// It is not there any more.
    Deleted,
    /// It is there still, and differs.
    Modified,
    /// It was elsewhere before; it may differ too.
    Renamed,
}

/// In which respects a file differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct ChangeAspects {
    /// Content, or a symlink's target, or a device's number.
    pub content: bool,
    /// It is another kind of file.
    pub kind: bool,
    /// Mode bits.
    pub mode: bool,
    /// User or group.
    pub owner: bool,
    /// Modification time.
    pub time: bool,
    /// Extended attributes, ACLs among them.
    pub xattr: bool,
}

impl ChangeAspects {
    /// Returns whether anything differs.
    #[must_use]
    pub fn has_change(&self) -> bool {
        self.content || self.kind || self.mode || self.owner || self.time || self.xattr
    }
}

/// One file on one side of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeSide {
    /// Its path from the root.
    pub path: Vec<u8>,
    /// Its inode number.
    pub ino: Ino,
    /// Its kind.
    pub kind: FileKind,
    /// Bytes of content.
    pub size: u64,
}

/// One difference between two states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// What happened.
    pub kind: ChangeKind,
    /// The file before; None if added.
    pub old: Option<ChangeSide>,
    /// The file after; None if deleted.
    pub new: Option<ChangeSide>,
    /// How they differ.
    pub aspects: ChangeAspects,
}

impl FileChange {
    /// Returns the path to sort and show by: the new one if there is one.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        self.new.as_ref().or(self.old.as_ref()).map_or(b"", |side| &side.path)
    }
}

/// Two states to compare.
pub struct StateComparison<'a> {
    /// The state before.
    pub from: &'a FsTree,
    /// The state after.
    pub to: &'a FsTree,
}

/// What changed of one inode. There is one for each, however many are deleted at once: it holds no attributes.
#[derive(Debug, Clone, Copy, Default)]
struct TouchedInode {
    /// In which of the states it exists, if its attributes differ.
    attr: Option<Existence>,
    /// A directory, on either side, that has another kind, name or directory above it.
    is_moved_dir: bool,
    content: bool,
    xattr: bool,
}

/// In which of two states an inode is that does not have the same attributes in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Existence {
    Both,
    One,
}

impl TouchedInode {
    /// Whether both states have the inode.
    fn is_in_both(self) -> bool {
        match self.attr {
            Some(existence) => existence == Existence::Both,
            None => self.content || self.xattr,
        }
    }

    fn record_attr(&mut self, before: Option<&InodeAttr>, after: Option<&InodeAttr>) {
        let (Some(before), Some(after)) = (before, after) else {
            self.attr = Some(Existence::One);
            return;
        };
        let place = |attr: &InodeAttr| (attr.kind, attr.parent, attr.name.clone());
        let is_dir = before.kind == FileKind::Dir || after.kind == FileKind::Dir;
        self.attr = Some(Existence::Both);
        self.is_moved_dir = is_dir && place(before) != place(after);
    }
}

#[derive(Default)]
struct CollectedChanges {
    inodes: BTreeMap<Ino, TouchedInode>,
    removed: UnpairedEntries,
    added: UnpairedEntries,
}

impl StateComparison<'_> {
    /// Returns all differences, sorted by path, of two states of one line of history, or of which nothing is known. Fails as
    /// [`Self::find_changes_sharing`] does.
    pub fn find_changes(&self) -> Result<Vec<FileChange>> {
        self.find_changes_sharing(None)
    }

    /// Returns all differences, sorted by path. Inode numbers below `shared` mean the same file in both states, those from it
    /// on were given out by each line for itself; see [`crate::Volume::find_shared_bound`]. Fails with
    /// [`VolumeError::BadTree`] if a tree contradicts itself, and with [`VolumeError::DeepPaths`] if the changed paths are
    /// too long to be listed.
    pub fn find_changes_sharing(&self, shared: Option<Ino>) -> Result<Vec<FileChange>> {
        let mut collected = self.collect_changes()?;
        // Without a bound, nothing tells that a directory with one number is not the same one.
        if let Some(shared) = shared {
            self.split_dirs(shared, &mut collected)?;
        }
        collected.removed.sort_entries();
        collected.added.sort_entries();
        let mut changes = ChangePairing::new(self, collected, shared).finish_pairing()?;
        // In place: a list of a million deletions is not copied.
        changes.sort_unstable_by(|a, b| a.path().cmp(b.path()).then_with(|| a.kind.cmp(&b.kind)));
        Ok(changes)
    }

    /// Returns every inode of which anything differs, link counts and directory times included; and whether one of them has
    /// several names, of which the list does not say where they are. Takes some bytes of memory for each of them.
    pub fn find_touched_inodes(&self) -> Result<(BTreeSet<Ino>, bool)> {
        let mut touched = BTreeSet::new();
        let mut has_other_names = false;
        // The links of a directory come from its subdirectories, and are no further names.
        let is_linked = |attr: &InodeAttr| attr.kind != FileKind::Dir && attr.nlink > 1;
        // Of which the attributes, which come first, are the same.
        let mut last = Ino::SUPER;
        let mut unsure = Vec::new();
        self.visit_differences(|key, before, after| {
            let values = || [before, after].into_iter().flatten();
            match key {
                MapKeyRef::Attr(Ino::SUPER) => {
                    // It belongs to no file. It is decoded all the same, so that a damaged one is reported and not passed over.
                    values().try_for_each(|value| SuperBlock::decode(value).map(drop))?
                }
                MapKeyRef::Attr(_) => {
                    for value in values() {
                        has_other_names |= is_linked(&InodeAttr::decode_published(value)?);
                    }
                    touched.insert(key.ino());
                    last = key.ino();
                }
                MapKeyRef::Dentry(dir, _) => {
                    touched.insert(dir);
                    for value in values() {
                        // A name that came or went touches the inode that it leads to, even if all else of that is equal.
                        touched.insert(Dentry::decode(value)?.ino);
                    }
                }
                MapKeyRef::Xattr(ino, _) | MapKeyRef::Extent(ino, _) => {
                    touched.insert(ino);
                    if ino != last {
                        unsure.push(ino);
                        last = ino;
                    }
                }
            }
            Ok(())
        })?;
        // Their attributes do not differ, so that either state tells how many names they have.
        for ino in unsure {
            has_other_names |= self.to.inode_attr(ino)?.is_some_and(|attr| is_linked(&attr));
        }
        Ok((touched, has_other_names))
    }

    /// Directories that have one number and are not the same one: what is in them, down to the last level, is removed
    /// from one and added to the other, also where it is equal.
    fn split_dirs(&self, shared: Ino, collected: &mut CollectedChanges) -> Result<()> {
        let moved = collected.inodes.range(shared..).filter(|(_, touched)| touched.is_moved_dir);
        let mut waiting: Vec<Ino> = moved.map(|(ino, _)| *ino).collect();
        let mut met = BTreeSet::new();
        while let Some(dir) = waiting.pop() {
            // A directory may wait twice: both trees can have it.
            if !met.insert(dir) {
                continue;
            }
            for (tree, links) in [(self.from, &mut collected.removed), (self.to, &mut collected.added)] {
                for (name, dentry) in tree.list_entries(dir)? {
                    if dentry.kind == FileKind::Dir && dentry.ino >= shared {
                        waiting.push(dentry.ino);
                    }
                    links.push_entry((dir, name), dentry);
                }
            }
        }
        Ok(())
    }

    fn collect_changes(&self) -> Result<CollectedChanges> {
        let mut collected = CollectedChanges::default();
        self.visit_differences(|key, before, after| collected.record_entry(key, before, after))?;
        Ok(collected)
    }

    /// Visits every key under which the states hold different values: before, and after.
    fn visit_differences(
        &self,
        mut each: impl FnMut(MapKeyRef<'_>, Option<&[u8]>, Option<&[u8]>) -> Result<(), DecodeError>,
    ) -> Result<()> {
        let mut visit = |key: &[u8], before: Option<&[u8]>, after: Option<&[u8]>| {
            let visited = MapKeyRef::parse(key).and_then(|key| each(key, before, after));
            visited.map_err(VolumeError::wrap_decode_error("a changed part of the tree"))
        };
        let from = self.from.map_view();
        let to = self.to.map_view();
        // The layers of both views: each may cover what the base of the other says.
        let is_layered = |key: &[u8]| {
            let layers = || from.layers.iter().chain(&to.layers);
            layers().any(|layer| layer.get(key).is_some())
        };
        for change in diff_maps(self.from.nodes(), &from.base, &to.base) {
            let change = change?;
            if !is_layered(&change.key) {
                visit(&change.key, change.before.as_deref(), change.after.as_deref())?;
            }
        }
        // A layer may hide or undo what the bases say: of its keys, what both states hold decides.
        for key in merge_layer_keys(from, to) {
            let before = from.get_value(self.from.nodes(), key)?;
            let after = to.get_value(self.to.nodes(), key)?;
            if before != after {
                visit(key, before.as_deref(), after.as_deref())?;
            }
        }
        Ok(())
    }
}

/// The keys of both views' layers, each once, in ascending order.
fn merge_layer_keys<'a>(from: &'a MapView, to: &'a MapView) -> impl Iterator<Item = &'a [u8]> {
    let mut sides = [from, to]
        .map(|view| view.changes_in_span(&KeySpan::all_keys()).map(|(key, _)| key.bytes).peekable());
    std::iter::from_fn(move || {
        let key = sides.iter_mut().filter_map(|side| side.peek().copied()).min()?;
        for side in &mut sides {
            side.next_if_eq(&key);
        }
        Some(key)
    })
}

impl CollectedChanges {
    fn record_entry(
        &mut self,
        key: MapKeyRef<'_>,
        before: Option<&[u8]>,
        after: Option<&[u8]>,
    ) -> Result<(), DecodeError> {
        match key {
            // It belongs to no file, and is decoded only so that a damaged one is reported.
            MapKeyRef::Attr(Ino::SUPER) => drop(before.or(after).map(SuperBlock::decode).transpose()?),
            MapKeyRef::Attr(ino) => {
                let before = before.map(InodeAttr::decode_published).transpose()?;
                let after = after.map(InodeAttr::decode_published).transpose()?;
                self.inodes.entry(ino).or_default().record_attr(before.as_ref(), after.as_ref());
            }
            MapKeyRef::Dentry(dir, name) => {
                for (value, links) in [(before, &mut self.removed), (after, &mut self.added)] {
                    if let Some(value) = value {
                        links.push_entry((dir, name.to_vec()), Dentry::decode(value)?);
                    }
                }
            }
            MapKeyRef::Xattr(ino, _) => self.inodes.entry(ino).or_default().xattr = true,
            MapKeyRef::Extent(ino, _) => self.inodes.entry(ino).or_default().content = true,
        }
        Ok(())
    }
}

/// Turns changed entries and inodes into changes of paths.
struct ChangePairing<'a> {
    states: &'a StateComparison<'a>,
    /// From here on, inode numbers say nothing of which file it is; None if that is not known.
    shared: Option<Ino>,
    inodes: BTreeMap<Ino, TouchedInode>,
    removed: UnpairedEntries,
    added: UnpairedEntries,
    /// Inodes of which a change says how they differ.
    reported: BTreeSet<Ino>,
    changes: Vec<FileChange>,
    budget: PathBudget,
}

impl<'a> ChangePairing<'a> {
    fn new(states: &'a StateComparison<'a>, collected: CollectedChanges, shared: Option<Ino>) -> Self {
        let CollectedChanges { inodes, removed, added } = collected;
        Self {
            states,
            shared,
            inodes,
            removed,
            added,
            reported: BTreeSet::new(),
            changes: Vec::new(),
            budget: PathBudget::default(),
        }
    }

    fn finish_pairing(mut self) -> Result<Vec<FileChange>> {
        // In this order: a number that both states have is the strongest sign that two entries are one file, the same path
        // the next, and equal content the weakest.
        self.pair_renames()?;
        self.pair_replacements()?;
        self.pair_equal_content()?;
        // Grows to what is needed, and not to twice that.
        self.changes.reserve_exact(self.removed.count_entries() + self.added.count_entries());
        while let Some((link, dentry)) = self.removed.pop_entry() {
            let old = self.read_change_side(self.states.from, &link, dentry)?;
            self.push_change(ChangeKind::Deleted, Some(old), None, ChangeAspects::default())?;
        }
        while let Some((link, dentry)) = self.added.pop_entry() {
            let new = self.read_change_side(self.states.to, &link, dentry)?;
            self.push_change(ChangeKind::Added, None, Some(new), ChangeAspects::default())?;
        }
        self.add_modified_inodes()?;
        Ok(self.changes)
    }

    fn push_change(
        &mut self,
        kind: ChangeKind,
        old: Option<ChangeSide>,
        new: Option<ChangeSide>,
        aspects: ChangeAspects,
    ) -> Result<()> {
        for side in old.iter().chain(&new) {
            // Each change holds whole paths, which would fill the memory if the tree is very deep.
            self.budget.charge_path(&side.path)?;
        }
        self.changes.push(FileChange { kind, old, new, aspects });
        Ok(())
    }

    /// The same inode under another name. Worktrees that were forked number what they make alike, so that of
    /// different kinds one number says nothing.
    fn pair_renames(&mut self) -> Result<()> {
        let came: HashSet<Ino> = self.added.iter().map(|(_, dentry)| dentry.ino).collect();
        let mut gone: HashMap<(Ino, FileKind), Vec<DirectoryLink>> = HashMap::new();
        // Only names of inodes that have a new name, too, are copied: of a million deletions most have no counterpart.
        for (link, dentry) in self.removed.iter().filter(|(_, dentry)| came.contains(&dentry.ino)) {
            gone.entry((dentry.ino, dentry.kind)).or_default().push(link.clone());
        }
        // Collected first, because pairing takes entries out of the list.
        let arrived: Vec<_> = self.added.iter().map(|(link, dentry)| (link.clone(), dentry)).collect();
        for (new_link, new) in arrived {
            let Some(links) = gone.get_mut(&(new.ino, new.kind)) else { continue };
            if !self.is_same_file(new.ino)? {
                continue;
            }
            let Some(old_link) = self.take_old_link(links, &new_link)? else { continue };
            self.push_pair(ChangeKind::Renamed, old_link, new_link)?;
        }
        Ok(())
    }

    /// Of several names that a file lost, the one with the same path: it is in a directory that got another number.
    fn take_old_link(
        &self,
        links: &mut Vec<DirectoryLink>,
        new: &DirectoryLink,
    ) -> Result<Option<DirectoryLink>> {
        // Nearly all files have one name: no path is looked up for these.
        if links.len() < 2 {
            return Ok(links.pop());
        }
        let path = self.states.to.entry_path(new.0, &new.1)?;
        for (index, (dir, name)) in links.iter().enumerate() {
            if *name == new.1 && self.states.from.entry_path(*dir, name)? == path {
                return Ok(Some(links.swap_remove(index)));
            }
        }
        Ok(links.pop())
    }

    /// Whether both states mean the same file by a number: two lines of history give out the same ones. Where it is
    /// not known from which on, the name that a file was made under tells.
    fn is_same_file(&self, ino: Ino) -> Result<bool> {
        if let Some(shared) = self.shared {
            return Ok(ino < shared);
        }
        let generation = |tree: &FsTree| Ok::<_, VolumeError>(tree.expect_inode_attr(ino)?.generation);
        Ok(generation(self.states.from)? == generation(self.states.to)?)
    }

    /// The same path for another inode: editors save so. A directory in place of a file, or the reverse, is two
    /// changes.
    fn pair_replacements(&mut self) -> Result<()> {
        if self.removed.is_empty() || self.added.is_empty() {
            return Ok(());
        }
        let mut gone: HashMap<Vec<u8>, (DirectoryLink, bool)> = HashMap::new();
        // A budget apart from that of the changes: these paths are freed at the end of this function.
        let mut budget = PathBudget::default();
        for (link, dentry) in self.removed.iter() {
            let path = self.states.from.entry_path(link.0, &link.1)?;
            budget.charge_path(&path)?;
            gone.insert(path, (link.clone(), dentry.kind == FileKind::Dir));
        }
        let added: Vec<_> = self.added.iter().map(|(link, dentry)| (link.clone(), dentry.kind)).collect();
        for (new_link, kind) in added {
            let path = self.states.to.entry_path(new_link.0, &new_link.1)?;
            match gone.remove(&path) {
                Some((old_link, was_dir)) if was_dir == (kind == FileKind::Dir) => {
                    self.push_pair(ChangeKind::Modified, old_link, new_link)?;
                }
                // Without a counterpart of the same sort this is an addition: a directory does not become a file.
                _ => {}
            }
        }
        Ok(())
    }

    /// A removed and an added file of equal, not empty, content.
    fn pair_equal_content(&mut self) -> Result<()> {
        let is_file = |dentry: &Dentry| dentry.kind == FileKind::File;
        let added: Vec<_> =
            self.added.iter().filter(|(_, d)| is_file(d)).map(|(l, d)| (l.clone(), d)).collect();
        // Without candidates on both sides, no inode is read: each signature costs look-ups in the tree.
        if added.is_empty() || !self.removed.iter().any(|(_, dentry)| is_file(&dentry)) {
            return Ok(());
        }
        let mut gone: HashMap<Vec<u8>, Vec<DirectoryLink>> = HashMap::new();
        for (link, dentry) in self.removed.iter().filter(|(_, dentry)| is_file(dentry)) {
            if let Some(signature) = content_signature(&self.states.from.read_inode(dentry.ino)?) {
                gone.entry(signature).or_default().push(link.clone());
            }
        }
        for (new_link, dentry) in added {
            let Some(signature) = content_signature(&self.states.to.read_inode(dentry.ino)?) else {
                continue;
            };
            // Each removed file is paired once, with whichever of the equal ones comes first: content does not tell
            // them apart.
            if let Some(old_link) = gone.get_mut(&signature).and_then(Vec::pop) {
                self.push_pair(ChangeKind::Renamed, old_link, new_link)?;
            }
        }
        Ok(())
    }

    fn push_pair(
        &mut self,
        kind: ChangeKind,
        old_link: DirectoryLink,
        new_link: DirectoryLink,
    ) -> Result<()> {
        let missing = || VolumeError::BadTree("an entry vanished while it was compared".into());
        let old = self.removed.take_entry(&old_link).ok_or_else(missing)?;
        let new = self.added.take_entry(&new_link).ok_or_else(missing)?;
        let old_side = self.read_change_side(self.states.from, &old_link, old)?;
        let new_side = self.read_change_side(self.states.to, &new_link, new)?;
        // A directory that a merge numbered anew is another one by number: what is in it has not moved.
        let is_in_place = kind == ChangeKind::Renamed && old_side.path == new_side.path;
        let kind = if is_in_place { ChangeKind::Modified } else { kind };
        let aspects = self.compare_by_number(old.ino, new.ino)?;
        // Of another inode this tells nothing: it may have changed under other names that it keeps.
        if old.ino == new.ino && self.shared.is_none_or(|shared| new.ino < shared) {
            self.reported.insert(new.ino);
        }
        if kind == ChangeKind::Renamed || aspects.has_change() {
            self.push_change(kind, Some(old_side), Some(new_side), aspects)?;
        }
        Ok(())
    }

    fn compare_by_number(&self, old: Ino, new: Ino) -> Result<ChangeAspects> {
        // The comparison of the maps found no difference under this number, so that nothing has to be read.
        if old == new && !self.inodes.contains_key(&new) {
            return Ok(ChangeAspects::default());
        }
        Ok(compare_inodes(&self.states.from.read_inode(old)?, &self.states.to.read_inode(new)?))
    }

    /// Inodes that kept their names.
    fn add_modified_inodes(&mut self) -> Result<()> {
        for (ino, touched) in std::mem::take(&mut self.inodes) {
            // What one state lacks was told of by its names.
            if !touched.is_in_both() || self.reported.contains(&ino) {
                continue;
            }
            let old = self.states.from.read_inode(ino)?;
            let new = self.states.to.read_inode(ino)?;
            let aspects = compare_inodes(&old, &new);
            // Another file of this number: its names were told of already, unless both have the same one.
            let same_name = (old.attr.parent, &old.attr.name) == (new.attr.parent, &new.attr.name);
            let same_file = match self.shared {
                None => old.attr.generation == new.attr.generation || same_name,
                Some(shared) if ino < shared => true,
                // What lies in directories that were parted was told of with its names.
                Some(_) => {
                    same_name
                        && new_change_side(self.states.from, &old)?.path
                            == new_change_side(self.states.to, &new)?.path
                }
            };
            // An entry contains the kind: where that differs, both entries were reported already, as removed and added.
            if aspects.has_change() && same_file && !aspects.kind {
                let old = new_change_side(self.states.from, &old)?;
                let new = new_change_side(self.states.to, &new)?;
                self.push_change(ChangeKind::Modified, Some(old), Some(new), aspects)?;
            }
        }
        Ok(())
    }

    fn read_change_side(
        &self,
        tree: &FsTree,
        (dir, name): &DirectoryLink,
        dentry: Dentry,
    ) -> Result<ChangeSide> {
        let attr = tree.expect_inode_attr(dentry.ino)?;
        Ok(ChangeSide {
            path: tree.entry_path(*dir, name)?,
            ino: dentry.ino,
            kind: attr.kind,
            size: attr.size,
        })
    }
}

fn new_change_side(tree: &FsTree, inode: &InodeRecord) -> Result<ChangeSide> {
    let attr = &inode.attr;
    let path = tree.entry_path(attr.parent, &attr.name)?;
    Ok(ChangeSide { path, ino: inode.ino, kind: attr.kind, size: attr.size })
}

/// Returns whether a path is `scope` or lies under it. The empty scope contains everything.
#[must_use]
pub fn is_path_within(path: &[u8], scope: &[u8]) -> bool {
    scope.is_empty() || path.strip_prefix(scope).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

#[cfg(test)]
mod tests;
