//! The versions of a file that is in conflict: the common one, ours, and theirs.

use vellum_map::MapRoot;
use vellum_types::{FileKind, Ino};
use vellum_volume::history::HistoryEntry;
use vellum_volume::merge::{ConflictKind, MergeConflict, MergeProgress};
use vellum_volume::tree::{FsTree, InodeRecord};
use vellum_volume::{Volume, WriteSession};

use crate::context::merge_place::MergePlace;
use crate::error::Result;

/// The versions of one file.
pub struct ConflictVersions {
    /// None if both sides added the file.
    pub base: Option<InodeRecord>,
    pub ours: InodeRecord,
    pub theirs: InodeRecord,
    /// What the merge has put beside the file, which holds one of the two.
    pub copy: Option<InodeRecord>,
}

/// Reads them from the snapshots of a merge.
pub struct VersionReader<'a> {
    place: &'a MergePlace,
    is_ours_first: bool,
    ours: FsTree,
    theirs: FsTree,
    merged: FsTree,
    base: FsTree,
    /// A collector takes nothing of the base as long as it is there.
    _session: Option<WriteSession>,
}

impl<'a> VersionReader<'a> {
    /// Opens the trees.
    pub fn open(place: &'a MergePlace, progress: &MergeProgress) -> Result<Self> {
        let volume = place.volume();
        let tree = |entry: &HistoryEntry| volume.open_tree(entry.record.root);
        let (base, session) = find_base_root(place, progress)?;
        Ok(Self {
            place,
            is_ours_first: progress.ours <= progress.theirs,
            ours: tree(&place.entry(progress.ours)?),
            theirs: tree(&place.entry(progress.theirs)?),
            merged: tree(&place.entry(progress.merged)?),
            base: volume.open_tree(base),
            _session: session,
        })
    }

    /// The volume that has the content.
    pub fn volume(&self) -> &Volume {
        self.place.volume()
    }

    /// The versions; None if it is no conflict of the content of two files.
    pub fn find_versions(&self, conflict: &MergeConflict) -> Result<Option<ConflictVersions>> {
        let found = match conflict.kind {
            ConflictKind::Content => self.find_edited(conflict)?,
            ConflictKind::SameName => self.find_added(conflict)?,
            ConflictKind::EditDelete
            | ConflictKind::RenameDelete
            | ConflictKind::RenameRename
            | ConflictKind::Kind
            | ConflictKind::Cycle
            | ConflictKind::Attribute => None,
        };
        let is_file = |record: &InodeRecord| record.attr.kind == FileKind::File;
        Ok(found.filter(|found| is_file(&found.ours) && is_file(&found.theirs)))
    }

    /// A file that both sides have edited.
    fn find_edited(&self, conflict: &MergeConflict) -> Result<Option<ConflictVersions>> {
        // Numbers are told in the order of the snapshots' ids, which is the same on all machines.
        let file = conflict.file;
        let numbers = if self.is_ours_first { (file.first, file.second) } else { (file.second, file.first) };
        let (Some(ours), Some(theirs)) = numbers else { return Ok(None) };
        let copy = conflict.other.as_ref().map(|path| read_path(&self.merged, path)).transpose()?;
        Ok(Some(ConflictVersions {
            base: file.base.map(|ino| self.base.read_inode(ino)).transpose()?,
            ours: self.ours.read_inode(ours)?,
            theirs: self.theirs.read_inode(theirs)?,
            copy,
        }))
    }

    /// Two files that got one name. The merge has put one of them beside the other.
    fn find_added(&self, conflict: &MergeConflict) -> Result<Option<ConflictVersions>> {
        let Some(other) = &conflict.other else { return Ok(None) };
        let winner = read_path(&self.merged, &conflict.path)?;
        let loser = read_path(&self.merged, other)?;
        let is_loser_ours = self.is_ours(conflict);
        let copy = Some(loser.clone());
        let (ours, theirs) = if is_loser_ours { (loser, winner) } else { (winner, loser) };
        Ok(Some(ConflictVersions { base: None, ours, theirs, copy }))
    }

    /// Whether our side gave the name to the file of a conflict.
    fn is_ours(&self, conflict: &MergeConflict) -> bool {
        let file = conflict.file;
        let number = if self.is_ours_first { file.first } else { file.second };
        let is_there = |ino: Ino| {
            let found = self.ours.find_path(&conflict.path, "");
            // The directories above may have other names there: then its being there at all has to do.
            found.map_or(file.base.is_none(), |(there, _)| there == ino)
        };
        number.is_some_and(is_there)
    }
}

fn read_path(tree: &FsTree, path: &[u8]) -> Result<InodeRecord> {
    let (ino, _) = tree.find_path(path, "")?;
    Ok(tree.read_inode(ino)?)
}

/// The state that the merge started from, and the session that keeps it, if no snapshot has it.
fn find_base_root(place: &MergePlace, progress: &MergeProgress) -> Result<(MapRoot, Option<WriteSession>)> {
    let volume = place.volume();
    if let Some(base) = progress.base {
        return Ok((place.entry(base)?.record.root, None));
    }
    match volume.find_merge_bases(progress.ours, progress.theirs)?.as_slice() {
        [] => Ok((volume.empty_root(), None)),
        [only] => Ok((only.record.root, None)),
        // They are merged once more. Nothing names the result.
        [_, _, ..] => {
            let mut session = volume.begin_write_session()?;
            let base = volume.find_merge_base(progress.ours, progress.theirs, &mut session)?;
            Ok((base.root, Some(session)))
        }
    }
}
