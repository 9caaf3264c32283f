//! Symlinks at the source that are followed, or that are left out because they lead out of the tree.
//!
//! Invariant: at the destination only the symlinks of `--keep-dirlinks` are followed. Whether a symlink leads out is
//! determined by its target text alone, as in rsync: other users cannot change that by moving directories.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rustix::io::Errno;
use vellum_host::beneath::HeldDir;
use vellum_host::metadata::FileStat;
use vellum_types::FileKind;

use super::EntryFilter;
use crate::ends::{ListingRequest, SyncSide};
use crate::error::{Result, SyncError};
use crate::model::listing::EntryDetail;
use crate::model::options::FollowSymlinks;

/// The directory that is visited.
#[derive(Clone, Copy)]
pub(super) struct FollowedDirectory<'h> {
    pub dir: &'h HeldDir,
    pub judge: &'h dyn EntryFilter,
    /// The number of names above its entries; symlinks may not lead above the first.
    pub depth: usize,
    /// At a destination: names of symlinks that are treated as the directories that they lead to.
    pub dir_links: Option<LinksInDirectory<'h>>,
}

/// Symlinks in a directory of a destination that are treated as the directories that they lead to.
#[derive(Clone, Copy)]
pub(super) struct LinksInDirectory<'h> {
    /// The directory that they may not lead out of.
    pub root: &'h HeldDir,
    /// The directory's path from there.
    pub path: &'h [u8],
    pub names: &'h HashSet<Vec<u8>>,
}

impl LinksInDirectory<'_> {
    /// The target of a symlink, if that is a directory.
    fn resolve_link(self, dir: &HeldDir, name: &[u8]) -> Result<Option<FileStat>> {
        let path = match self.path.is_empty() {
            true => name.to_vec(),
            false => [self.path, b"/", name].concat(),
        };
        // The kernel resolves the link and refuses to leave the root (RESOLVE_BENEATH gives EXDEV), so nobody
        // can redirect it between a check and the use.
        match self.root.open_dir_within(&path) {
            Ok(dir) => Ok(Some(dir.stat_self()?)),
            // The user asked for links to be followed and would expect this one to be. It is an error, unless
            // the link does not lead to a directory at all.
            Err(error) if error.errno() == Some(Errno::XDEV) => match dir.stat_following(name) {
                Ok(target) if target.kind == FileKind::Dir => Err(SyncError::LinkOutside),
                _ => Ok(None),
            },
            // It leads to something else, or nowhere: it is a symlink like others.
            Err(error) if error.is_not_found() || error.is_not_a_directory() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Symlinks of a destination that are treated as directories, by the paths of their own directories.
#[derive(Default)]
pub(super) struct DirectoryLinks(HashMap<Vec<u8>, HashSet<Vec<u8>>>);

impl DirectoryLinks {
    pub fn from_request(wish: &ListingRequest) -> Self {
        let mut links = Self::default();
        if wish.side == SyncSide::Destination {
            for path in &wish.options.preserve.dir_links {
                let slash = path.iter().rposition(|byte| *byte == b'/');
                let parent = path.get(..slash.unwrap_or(0)).unwrap_or_default();
                let name = path.get(slash.map_or(0, |slash| slash + 1)..).unwrap_or_default();
                links.0.entry(parent.to_vec()).or_default().insert(name.to_vec());
            }
        }
        links
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names of such symlinks in a directory.
    pub fn names_in(&self, dir: &[u8]) -> Option<&HashSet<Vec<u8>>> {
        self.0.get(dir)
    }
}

/// How symlinks are handled.
#[derive(Clone, Copy)]
pub(super) struct SymlinkFollower {
    follow: FollowSymlinks,
    safe: bool,
    is_source: bool,
    /// There are named paths, which may contain symlinks.
    has_ways: bool,
}

impl SymlinkFollower {
    pub fn from_request(wish: &ListingRequest) -> Self {
        let preserve = &wish.options.preserve;
        let has_ways = wish.rules.sync_filters().is_some_and(|filters| filters.selection.is_some());
        let is_source = wish.side == SyncSide::Source;
        Self { follow: preserve.follow, safe: preserve.safe_links, is_source, has_ways }
    }

    /// Whether any symlinks are followed.
    pub fn is_following(self) -> bool {
        self.is_source && (self.follow != FollowSymlinks::Never || self.has_ways)
    }

    /// The target of a symlink, if it is to be followed.
    pub fn resolve_target(
        self,
        here: &FollowedDirectory<'_>,
        name: &[u8],
        stat: &FileStat,
        is_way: bool,
    ) -> Result<Option<FileStat>> {
        if let Some(links) = here.dir_links.filter(|links| links.names.contains(name))
            && stat.kind == FileKind::Symlink
        {
            return links.resolve_link(here.dir, name);
        }
        if stat.kind != FileKind::Symlink || !self.is_following() {
            return Ok(None);
        }
        let must = match self.follow {
            FollowSymlinks::Always => true,
            FollowSymlinks::Outside => is_outside_tree(&here.dir.read_link(name)?, here.depth),
            FollowSymlinks::Dirs | FollowSymlinks::Never => false,
        };
        if !(must || is_way || self.follow == FollowSymlinks::Dirs) {
            return Ok(None);
        }
        match here.dir.stat_following(name) {
            Ok(target) if must || target.kind == FileKind::Dir => Ok(Some(target)),
            // A link that must be followed has nothing to be copied as. Others are copied as links.
            Err(error) if must => Err(SyncError::Dangling(error)),
            Ok(_) | Err(_) => Ok(None),
        }
    }

    /// Whether a symlink is left out because it leads out of the tree.
    pub fn should_omit(self, stat: &FileStat, detail: Option<&EntryDetail>, depth: usize) -> bool {
        self.safe
            && self.is_source
            && stat.kind == FileKind::Symlink
            && detail.is_some_and(|detail| is_outside_tree(&detail.target, depth))
    }
}

/// Whether a target leads out of the tree from a directory at this depth. Only leading `..` components are counted; a
/// later one makes the target count as outside, since the component before it may itself be a symlink.
pub(super) fn is_outside_tree(target: &[u8], depth: usize) -> bool {
    // An absolute target counts as outside even if it leads into the tree, as in rsync (`unsafe_symlink`): on
    // the other host it would lead elsewhere.
    if target.is_empty() || target.starts_with(b"/") {
        return true;
    }
    let mut names = target.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).peekable();
    let mut up = 0;
    while names.next_if_eq(&b"..".as_slice()).is_some() {
        up += 1;
    }
    up > depth || names.any(|name| name == b"..")
}

/// A directory of a walk, with those above it.
pub(super) struct AncestorDirectories {
    pub id: (u64, u64),
    pub above: Option<Arc<AncestorDirectories>>,
}

impl AncestorDirectories {
    /// Whether the chain contains a directory.
    pub fn contains_dir(&self, id: (u64, u64)) -> bool {
        let mut next = Some(self);
        while let Some(here) = next {
            if here.id == id {
                return true;
            }
            next = here.above.as_deref();
        }
        false
    }
}

impl Drop for AncestorDirectories {
    /// Drops the chain in a loop: a very deep tree must not exhaust the stack.
    fn drop(&mut self) {
        let mut next = self.above.take();
        while let Some(here) = next {
            next = Arc::into_inner(here).and_then(|mut here| here.above.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_outside_tree;

    #[test]
    fn words_decide_whether_a_symlink_leads_out() {
        for (target, depth) in [("a", 0), ("a/b", 0), ("../a", 1), ("../../a/./b", 2), (".", 0), ("./a", 0)] {
            assert!(!is_outside_tree(target.as_bytes(), depth), "{target}");
        }
        for (target, depth) in
            [("", 3), ("/a", 3), ("..", 0), ("../a", 0), ("../../a", 1), ("a/../b", 3), ("a/..", 3)]
        {
            assert!(is_outside_tree(target.as_bytes(), depth), "{target}");
        }
    }
}
