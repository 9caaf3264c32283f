//! From paths to inodes.
//!
//! The empty path is the directory that a handle stands for. Invariant: no path leads out of the directory that a handle stands for: `..` there is the directory itself, and
//! symlinks that begin with a slash begin there. Symlinks are followed a limited number of times.

use rustix::io::Errno;
use vellum_fs::{Epoch, EpochGuard, FsError, Result};
use vellum_types::{Dentry, FileKind, Ino};

use crate::source::{OpenedView, ReadSource};

/// Symlinks that one path may lead through, as Linux has it.
const LINKS_MAX: u32 = 40;
/// Longest path with the NUL that Linux counts, bytes.
const PATH_MAX: usize = 4096;

/// Something to read, from a directory on.
#[derive(Clone)]
pub struct PathReader {
    pub(crate) source: ReadSource,
    root: Ino,
    /// Which state of a live worktree the root's number is of.
    epoch: Epoch,
}

/// A name in a directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ParentAndName<'p> {
    pub dir: Ino,
    pub name: &'p [u8],
    /// Whether a slash says that it is a directory's.
    pub is_dir: bool,
}

/// What a path leads to.
pub(crate) enum ResolvedPath {
    There(Dentry),
    /// Nothing; but it can be made there.
    Free(Ino, Vec<u8>),
}

/// A path being followed.
struct PathResolution<'r> {
    source: &'r ReadSource,
    /// The directories above, from the root on.
    above: Vec<Dentry>,
    at: Dentry,
    links: u32,
    /// Where the last name was looked for in vain.
    free: Option<(Ino, Vec<u8>)>,
}

impl PathReader {
    /// All of a source.
    pub(crate) fn new(source: ReadSource) -> Self {
        let epoch = source.current_epoch();
        Self { source, root: Ino::ROOT, epoch }
    }

    /// The same from a directory on that was just found.
    pub(crate) fn with_root(&self, root: Dentry) -> Self {
        Self { source: self.source.clone(), root: root.ino, epoch: self.source.current_epoch() }
    }

    /// While it lives a live worktree is not restored to another state. Not to be called by who has one.
    pub(crate) fn enter_epoch(&self) -> Option<EpochGuard<'_>> {
        match &self.source {
            ReadSource::Live(live) => Some(live.fs.enter_epoch()),
            ReadSource::View(_) | ReadSource::Frozen(_) => None,
        }
    }

    /// What stands at a path, a symlink at its end followed or not.
    pub(crate) fn resolve_path(&self, path: &[u8], follow: bool) -> Result<Dentry> {
        let mut way = self.new_resolution()?;
        way.resolve_from_root(path, follow)?;
        Ok(way.at)
    }

    /// The same, or where it can be made.
    pub(crate) fn resolve_or_free(&self, path: &[u8]) -> Result<ResolvedPath> {
        let mut way = self.new_resolution()?;
        match (way.resolve_from_root(path, true), way.free) {
            (Ok(()), _) => Ok(ResolvedPath::There(way.at)),
            (Err(FsError::Posix(Errno::NOENT)), Some((dir, name))) => Ok(ResolvedPath::Free(dir, name)),
            (Err(error), _) => Err(error),
        }
    }

    /// The directory and the name that a path ends with; None if it ends with no name: with `.`, `..` or a root.
    pub(crate) fn split_parent<'p>(&self, path: &'p [u8]) -> Result<Option<ParentAndName<'p>>> {
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let (whole, slashes) = path.split_at_checked(end).unwrap_or((path, &[]));
        let start = whole.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (dir, name) = whole.split_at_checked(start).unwrap_or((whole, &[]));
        check_path_len(path)?;
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

    /// The same, as it is now: a live worktree goes on changing.
    pub(crate) fn freeze_view(&self) -> Result<Self> {
        match &self.source {
            ReadSource::Live(live) => {
                let seen = OpenedView::new(live.fs.open_view()?, live);
                self.check_root()?;
                let source = ReadSource::View(seen);
                Ok(Self { epoch: source.current_epoch(), source, root: self.root })
            }
            ReadSource::View(_) | ReadSource::Frozen(_) => Ok(self.clone()),
        }
    }

    /// What was a directory before a restore is gone, and its number may be another's.
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
            self.above.clear();
        }
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
            self.at = self.above.pop().unwrap_or(self.at);
            return Ok(());
        }
        let found = self.source.find_dentry(self.at.ino, name);
        if is_last && matches!(found, Err(FsError::Posix(Errno::NOENT))) {
            self.free = Some((self.at.ino, name.to_vec()));
        }
        let found = found?;
        if follow && found.kind == FileKind::Symlink {
            self.links += 1;
            if self.links > LINKS_MAX {
                return Err(Errno::LOOP.into());
            }
            let target = self.source.readlink(found.ino)?;
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
