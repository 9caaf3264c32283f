//! From paths to inodes.
//!
//! The empty path is the root, the directory of a handle. Invariant: no path leads out of the root: `..` there is the
//! root itself, and symlinks that begin with a slash are resolved from it. The number of symlinks that are followed
//! is limited.

use rustix::io::Errno;
use vellum_fs::{Epoch, EpochGuard, FsError, Result};
use vellum_types::{Dentry, FileKind, Ino};

use crate::source::{OpenedView, ReadSource};

/// Symlinks that one path may contain, as on Linux.
const LINKS_MAX: u32 = 40;
/// Maximum length of a path with its NUL, bytes, as on Linux.
const PATH_MAX: usize = 4096;

/// A source and the directory that is the root of its paths.
#[derive(Clone)]
pub struct PathReader {
    pub(crate) source: ReadSource,
    root: Ino,
    /// The epoch to which the inode number of the root belongs.
    epoch: Epoch,
}

/// A name in a directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ParentAndName<'p> {
    pub dir: Ino,
    pub name: &'p [u8],
    /// Whether a slash follows, so that it must be a directory.
    pub is_dir: bool,
}

/// The target of a path.
pub(crate) enum ResolvedPath {
    There(Dentry),
    /// Nothing exists, but it can be created there.
    Free(Ino, Vec<u8>),
}

/// A path that is being resolved.
struct PathResolution<'r> {
    source: &'r ReadSource,
    /// The parent directories, from the root on.
    above: Vec<Dentry>,
    at: Dentry,
    links: u32,
    /// The directory in which the last name was not found.
    free: Option<(Ino, Vec<u8>)>,
}

impl PathReader {
    /// The whole source.
    pub(crate) fn new(source: ReadSource) -> Self {
        let epoch = source.current_epoch();
        Self { source, root: Ino::ROOT, epoch }
    }

    /// The same source with another root, a directory that was just found.
    pub(crate) fn with_root(&self, root: Dentry) -> Self {
        Self { source: self.source.clone(), root: root.ino, epoch: self.source.current_epoch() }
    }

    /// Enters the epoch: a live worktree is not restored while the guard exists. A thread that already has a guard
    /// must not call this.
    pub(crate) fn enter_epoch(&self) -> Option<EpochGuard<'_>> {
        match &self.source {
            ReadSource::Live(live) => Some(live.fs.epochs().enter_epoch()),
            ReadSource::View(_) | ReadSource::Frozen(_) => None,
        }
    }

    /// Resolves a path; follows a symlink at its end if asked to.
    pub(crate) fn resolve_path(&self, path: &[u8], follow: bool) -> Result<Dentry> {
        let mut way = self.new_resolution()?;
        way.resolve_from_root(path, follow)?;
        Ok(way.at)
    }

    /// Resolves a path, or returns where it can be created.
    pub(crate) fn resolve_or_free(&self, path: &[u8]) -> Result<ResolvedPath> {
        let mut way = self.new_resolution()?;
        // In this order: the resolution is what sets `free`.
        match (way.resolve_from_root(path, true), way.free) {
            (Ok(()), _) => Ok(ResolvedPath::There(way.at)),
            (Err(FsError::Posix(Errno::NOENT)), Some((dir, name))) => Ok(ResolvedPath::Free(dir, name)),
            (Err(error), _) => Err(error),
        }
    }

    /// Returns the directory and the last name of a path. `None`: the path ends with `.`, `..` or a root instead of a
    /// name.
    pub(crate) fn split_parent<'p>(&self, path: &'p [u8]) -> Result<Option<ParentAndName<'p>>> {
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let (whole, slashes) = path.split_at_checked(end).unwrap_or((path, &[]));
        let start = whole.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (dir, name) = whole.split_at_checked(start).unwrap_or((whole, &[]));
        check_path_len(path)?;
        // Resolved all the same: a path that leads nowhere is an error of its own, before the one about the missing
        // name.
        if matches!(name, b"" | b"." | b"..") {
            self.resolve_path(path, true)?;
            return Ok(None);
        }
        // The empty path is the root.
        let dir = self.resolve_path(dir, true)?;
        if dir.kind != FileKind::Dir {
            return Err(Errno::NOTDIR.into());
        }
        Ok(Some(ParentAndName { dir: dir.ino, name, is_dir: !slashes.is_empty() }))
    }

    /// Returns the current state of the same entry: a live worktree keeps changing.
    pub(crate) fn freeze_view(&self) -> Result<Self> {
        match &self.source {
            ReadSource::Live(live) => {
                let seen = OpenedView::new(live.fs.open_view()?, live);
                // Checked after the view was opened: a restore before it is noticed, and one afterwards no longer
                // matters to the view.
                self.check_root()?;
                let source = ReadSource::View(seen);
                Ok(Self { epoch: source.current_epoch(), source, root: self.root })
            }
            ReadSource::View(_) | ReadSource::Frozen(_) => Ok(self.clone()),
        }
    }

    /// A directory of an earlier epoch is stale, and its inode number may belong to another inode.
    fn check_root(&self) -> Result<()> {
        let holds = self.root == Ino::ROOT || self.epoch == self.source.current_epoch();
        if holds { Ok(()) } else { Err(Errno::STALE.into()) }
    }

    fn new_resolution(&self) -> Result<PathResolution<'_>> {
        self.check_root()?;
        let at = Dentry { ino: self.root, kind: FileKind::Dir };
        Ok(PathResolution { source: &self.source, above: Vec::with_capacity(16), at, links: 0, free: None })
    }
}

impl PathResolution<'_> {
    fn resolve_from_root(&mut self, path: &[u8], follow: bool) -> Result<()> {
        check_path_len(path)?;
        if path.is_empty() { Ok(()) } else { self.follow_path(path, follow, true) }
    }

    /// Follows a path; `is_last`: nothing comes after it.
    fn follow_path(&mut self, path: &[u8], follow: bool, is_last: bool) -> Result<()> {
        if path.starts_with(b"/") {
            self.at = self.above.first().copied().unwrap_or(self.at);
            // Without parents, `..` stays at the root: this is what keeps links with a leading slash inside.
            self.above.clear();
        }
        // A path that ends so names a directory, as in POSIX: a symlink in front of the slash is followed.
        let must_be_dir = matches!(path.rsplit(|byte| *byte == b'/').next(), Some(b"" | b"." | b".."));
        let mut names =
            path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).peekable();
        while let Some(name) = names.next() {
            let ends = names.peek().is_none();
            self.resolve_component(name, !ends || follow || must_be_dir, ends && is_last && !must_be_dir)?;
        }
        if must_be_dir && self.at.kind != FileKind::Dir { Err(Errno::NOTDIR.into()) } else { Ok(()) }
    }

    fn resolve_component(&mut self, name: &[u8], follow: bool, is_last: bool) -> Result<()> {
        if self.at.kind != FileKind::Dir {
            return Err(Errno::NOTDIR.into());
        }
        if name == b".." {
            // At the root, `..` is the root itself.
            self.at = self.above.pop().unwrap_or(self.at);
            return Ok(());
        }
        let found = self.source.state().find_dentry(self.at.ino, name);
        if is_last && matches!(found, Err(FsError::Posix(Errno::NOENT))) {
            // Also at the end of a dangling symlink: creating makes its target, as open(2) does.
            self.free = Some((self.at.ino, name.to_vec()));
        }
        let found = found?;
        if follow && found.kind == FileKind::Symlink {
            self.links += 1;
            if self.links > LINKS_MAX {
                return Err(Errno::LOOP.into());
            }
            let target = self.source.state().readlink(found.ino)?;
            // The number of symlinks bounds this recursion.
            return self.follow_path(&target, true, is_last);
        }
        self.above.push(self.at);
        self.at = found;
        Ok(())
    }
}

fn check_path_len(path: &[u8]) -> Result<()> {
    if path.len() < PATH_MAX { Ok(()) } else { Err(Errno::NAMETOOLONG.into()) }
}
