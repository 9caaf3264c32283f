//! Two states of a worktree that are compared: two snapshots, or a snapshot and the directory as it is now; and the
//! content of files on either side.

use vellum_checkout::Worktree;
use vellum_types::FileKind;
use vellum_volume::diff::{Comparison, FileChange, Side, within};
use vellum_volume::history::Entry;
use vellum_volume::{FsTree, Meter, Volume};

use crate::commands::cat::copy_content;
use crate::error::{CliError, Result};
use crate::ui::json::Problem;
use crate::ui::patch::Content;

/// Largest file that patches and line counts look into, bytes: far above any text that people write.
const PATCH_MAX: u64 = 8 << 20;

/// What was compared.
pub struct Compared<'a> {
    worktree: &'a Worktree,
    from: FsTree,
    to: FsTree,
    to_directory: bool,
    /// The differences, by path.
    pub changes: Vec<FileChange>,
    /// What could not be read.
    pub problems: Vec<Problem>,
}

impl<'a> Compared<'a> {
    /// A snapshot (the head, if None is named) with the directory.
    pub fn with_directory(
        worktree: &'a Worktree,
        from: Option<&Entry>,
        paths: &[Vec<u8>],
        meter: &Meter,
    ) -> Result<Self> {
        let diff = worktree.compare(from, paths, meter)?;
        Ok(Self {
            worktree,
            from: diff.from,
            to: diff.to,
            to_directory: true,
            changes: diff.changes,
            problems: diff.problems.iter().map(Problem::from).collect(),
        })
    }

    /// Two snapshots.
    pub fn snapshots(worktree: &'a Worktree, from: &Entry, to: &Entry, paths: &[Vec<u8>]) -> Result<Self> {
        let volume = &worktree.volume;
        let (from, to) = (volume.tree(from.record.root), volume.tree(to.record.root));
        let mut changes = Comparison { from: &from, to: &to }.run()?;
        if !paths.is_empty() {
            let touched = |side: &Side| paths.iter().any(|path| within(&side.path, path));
            changes.retain(|change| [&change.old, &change.new].into_iter().flatten().any(touched));
        }
        Ok(Self { worktree, from, to, to_directory: false, changes, problems: Vec::new() })
    }

    /// Whether a path exists on either side.
    pub fn has(&self, path: &[u8]) -> bool {
        self.from.find(path, "").is_ok() || self.to.find(path, "").is_ok()
    }

    /// The content of both sides of a difference, for a patch.
    pub fn contents(&self, change: &FileChange) -> Result<(Content, Content)> {
        let old = change.old.as_ref().map_or(Ok(Content::None), |side| self.stored(&self.from, side))?;
        let new =
            change.new.as_ref().map_or(Ok(Content::None), |side| match (self.to_directory, side.kind) {
                (true, FileKind::File) => self.current(side),
                _ => self.stored(&self.to, side),
            })?;
        Ok((old, new))
    }

    fn stored(&self, tree: &FsTree, side: &Side) -> Result<Content> {
        let inode = tree.inode(side.ino)?;
        let (attr, mode) = (&inode.attr, inode.attr.mode);
        match attr.kind {
            FileKind::Symlink => Ok(Content::Whole { bytes: attr.target.clone(), mode }),
            FileKind::File if attr.size > PATCH_MAX => Ok(Content::TooLarge),
            FileKind::File => {
                let volume: &Volume = &self.worktree.volume;
                let mut bytes = Vec::new();
                copy_content(volume, &inode, &mut bytes, CliError::Output)?;
                Ok(Content::Whole { bytes, mode })
            }
            _ => Ok(Content::None),
        }
    }

    /// A file of the directory; its chunks may be in no store yet.
    fn current(&self, side: &Side) -> Result<Content> {
        if side.size > PATCH_MAX {
            return Ok(Content::TooLarge);
        }
        let mode = self.to.attr_of(side.ino)?.mode;
        Ok(Content::Whole { bytes: self.worktree.read_current(&side.path, PATCH_MAX)?, mode })
    }
}
