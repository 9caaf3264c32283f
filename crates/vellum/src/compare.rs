//! Two states of a worktree that are compared: two snapshots, or a snapshot and the directory as it is now; and the
//! content of files on either side.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use vellum_checkout::{AbsentSummary, CheckoutWorktree, DirectoryDiff};
use vellum_host::ProgressMeter;
use vellum_map::MapRoot;
use vellum_types::{FileKind, SnapshotId};
use vellum_volume::diff::{ChangeSide, FileChange, PathScopes, StateComparison};
use vellum_volume::history::HistoryEntry;
use vellum_volume::{FsTree, Volume};

use crate::commands::cat::write_file_content;
use crate::error::{CliError, Result};
use crate::ui::json::ProblemJson;
use crate::ui::patch::PatchContent;

/// Largest file that patches and line counts look into, bytes: far above any text that people write.
const PATCH_MAX: u64 = 8 << 20;

/// What was compared.
pub struct ComparedSnapshots<'a> {
    volume: &'a Volume,
    from: FsTree,
    to: FsTree,
    /// The directory, if that is the second side: its content may be in no store yet.
    directory: Option<&'a CheckoutWorktree>,
    /// The differences, by path.
    pub changes: Vec<FileChange>,
    /// What could not be read.
    pub problems: Vec<ProblemJson>,
    /// What is absent from the directory on purpose.
    pub absent: Option<AbsentSummary>,
}

impl<'a> ComparedSnapshots<'a> {
    /// A snapshot (the head, if None is named) with the directory.
    pub fn compare_dir(
        worktree: &'a CheckoutWorktree,
        from: Option<&HistoryEntry>,
        paths: &[Vec<u8>],
        meter: &ProgressMeter,
    ) -> Result<Self> {
        let diff = worktree.compare_with_snapshot(from, paths, meter)?;
        Ok(Self { directory: Some(worktree), ..Self::from_diff(&worktree.volume, diff) })
    }

    /// The last snapshot of a directory with the directory, of which no content is asked for.
    pub fn from_diff(volume: &'a Volume, diff: DirectoryDiff) -> Self {
        Self {
            volume,
            from: diff.from,
            to: diff.to,
            directory: None,
            changes: diff.changes,
            problems: diff.problems.iter().map(ProblemJson::from).collect(),
            absent: diff.absent,
        }
    }

    /// Two trees of the store. `lines` are the snapshots that they are of, or were made from.
    pub fn compare_trees(
        volume: &'a Volume,
        from: MapRoot,
        to: MapRoot,
        lines: Option<(SnapshotId, SnapshotId)>,
        paths: &[Vec<u8>],
    ) -> Result<Self> {
        let from = volume.open_tree(from);
        let to = volume.open_tree(to);
        // Below this number an inode is the same file in both trees, so that a rename is recognised by the number
        // alone.
        let shared = lines.map_or(Ok(None), |(from, to)| volume.find_shared_bound(from, to))?;
        let mut changes = StateComparison { from: &from, to: &to }.find_changes_sharing(shared)?;
        if !paths.is_empty() {
            let scopes = PathScopes::new(paths.iter().map(Vec::as_slice));
            // A rename is meant if either of its two paths is.
            let touched = |side: &ChangeSide| scopes.contains(&side.path);
            changes.retain(|change| [&change.old, &change.new].into_iter().flatten().any(touched));
        }
        Ok(Self { volume, from, to, directory: None, changes, problems: Vec::new(), absent: None })
    }

    /// Whether a path exists on either side.
    pub fn contains_path(&self, path: &[u8]) -> bool {
        self.from.find_path(path, "").is_ok() || self.to.find_path(path, "").is_ok()
    }

    /// Whether the file has other names on the second side.
    pub fn has_several_names(&self, change: &FileChange) -> Result<bool> {
        let Some(side) = &change.new else { return Ok(false) };
        Ok(self.to.expect_inode_attr(side.ino)?.nlink > 1)
    }

    /// Whether what counts as deleted is in the directory: it is ignored from now on. If something that is not ignored
    /// took its place, it is deleted indeed.
    pub fn is_ignored_now(&self, deleted: &FileChange) -> bool {
        let Some(root) = self.directory.map(CheckoutWorktree::root_path) else { return false };
        let path = deleted.path();
        path_exists_beneath(root, path) && self.to.find_path(path, "").is_err()
    }

    /// The content of both sides of a difference, for a patch.
    pub fn read_change_contents(&self, change: &FileChange) -> Result<(PatchContent, PatchContent)> {
        let old = change
            .old
            .as_ref()
            .map_or(Ok(PatchContent::None), |side| self.read_stored_content(&self.from, side))?;
        let new =
            change.new.as_ref().map_or(Ok(PatchContent::None), |side| match (self.directory, side.kind) {
                (Some(directory), FileKind::File) => self.read_current_content(directory, side),
                // Only the content of files may be missing in the store: everything else is in the tree.
                _ => self.read_stored_content(&self.to, side),
            })?;
        Ok((old, new))
    }

    fn read_stored_content(&self, tree: &FsTree, side: &ChangeSide) -> Result<PatchContent> {
        let inode = tree.read_inode(side.ino)?;
        let attr = &inode.attr;
        let mode = inode.attr.mode;
        match attr.kind {
            // Patches in git's format show the target of a symlink as its content.
            FileKind::Symlink => Ok(PatchContent::Whole { bytes: attr.target.clone(), mode }),
            FileKind::File if attr.size > PATCH_MAX => Ok(PatchContent::TooLarge),
            FileKind::File => {
                let mut bytes = Vec::new();
                write_file_content(self.volume, &inode, &mut bytes, CliError::Output)?;
                Ok(PatchContent::Whole { bytes, mode })
            }
            _ => Ok(PatchContent::None),
        }
    }

    /// A file of the directory; its chunks may be in no store yet.
    fn read_current_content(&self, directory: &CheckoutWorktree, side: &ChangeSide) -> Result<PatchContent> {
        if side.size > PATCH_MAX {
            // The comparison read the file before: it may have grown since, so that the limit is given to the read,
            // too.
            return Ok(PatchContent::TooLarge);
        }
        let mode = self.to.expect_inode_attr(side.ino)?.mode;
        Ok(PatchContent::Whole { bytes: directory.read_current_file(&side.path, PATCH_MAX)?, mode })
    }
}

/// Whether a directory has a path, and not by way of a symlink that was put in the place of one above it.
fn path_exists_beneath(root: &Path, path: &[u8]) -> bool {
    let full = root.join(OsStr::from_bytes(path));
    let relative = Path::new(OsStr::from_bytes(path)).parent().unwrap_or(Path::new(""));
    let parent = full.parent().and_then(|parent| parent.canonicalize().ok());
    parent.is_some_and(|parent| parent == root.join(relative)) && full.symlink_metadata().is_ok()
}
