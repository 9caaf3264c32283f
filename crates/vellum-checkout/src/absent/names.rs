//! The absent paths as names in directories of the last snapshot. A directory keeps its inode number under another name, so
//! what is absent in it moves with it.

use std::collections::{HashMap, HashSet};

use vellum_types::Ino;
use vellum_volume::tree::{DEPTH_MAX, path_components};
use vellum_volume::{FsTree, VolumeError};

use super::AbsentPaths;
use crate::capture::InodeNumbers;
use crate::error::Result;
use crate::scan::{ScanDir, ScanTree};

/// Absent names by directory of a snapshot.
#[derive(Debug, Default)]
pub struct AbsentNames {
    names: HashMap<Ino, HashSet<Vec<u8>>>,
    /// Directories that are on the way to an absent name, the root among them.
    leading: HashSet<Ino>,
}

impl AbsentNames {
    /// The paths as names of `base`. Those whose directory it does not have stand for nothing in it.
    pub(crate) fn resolve(absent: &AbsentPaths, base: &FsTree) -> Result<Self> {
        let mut found = Self::default();
        let mut last = None;
        visit_resolved_paths(absent, base, |resolved| {
            let Some(dir) = resolved.dir() else { return Ok(()) };
            found.names.entry(dir).or_default().insert(resolved.name.to_vec());
            // Neighbours share their way, which is entered once for each directory.
            if last != Some(dir) {
                found.leading.insert(Ino::ROOT);
                found.leading.extend(resolved.way.iter().filter_map(|(_, ino)| *ino));
                last = Some(dir);
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Whether nothing is absent.
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether this very name is absent.
    pub(crate) fn contains(&self, dir: Ino, name: &[u8]) -> bool {
        self.names.get(&dir).is_some_and(|names| names.contains(name))
    }

    /// Whether a directory has absent names in it or below it, and is not absent itself.
    pub(crate) fn leads_to_absent(&self, dir: Ino) -> bool {
        self.leading.contains(&dir)
    }

    /// Whether the place that the snapshot gives an inode is absent, or below a place that is.
    pub(crate) fn is_place_absent(&self, base: &FsTree, ino: Ino) -> Result<bool> {
        let mut at = ino;
        // A hostile tree can name an inode as its own ancestor.
        for _ in 0..DEPTH_MAX {
            if at == Ino::ROOT || self.leads_to_absent(at) {
                return Ok(false);
            }
            let Some(attr) = base.inode_attr(at)? else { return Ok(false) };
            if self.contains(attr.parent, &attr.name) {
                return Ok(true);
            }
            at = attr.parent;
        }
        let problem = format!("inode {ino} lies in itself, or deeper than {DEPTH_MAX} levels");
        Err(VolumeError::BadTree(problem).into())
    }
}

/// A path of the list, and where a snapshot has it.
pub(super) struct AbsentPathPlace<'p, 'w> {
    /// From the root.
    pub path: &'p [u8],
    /// Its last component.
    pub name: &'p [u8],
    /// The directories on the way to it, by name and number; no number if the snapshot does not have it.
    pub way: &'w [(&'p [u8], Option<Ino>)],
}

impl AbsentPathPlace<'_, '_> {
    /// The directory that it is in, if the snapshot has that.
    pub(super) fn dir(&self) -> Option<Ino> {
        self.way.last().map_or(Some(Ino::ROOT), |(_, ino)| *ino)
    }
}

/// Visits the paths of a list in their order. What lies in one directory follows each other, so each is looked up once.
pub(super) fn visit_resolved_paths<'p>(
    absent: &'p AbsentPaths,
    base: &FsTree,
    mut visit: impl FnMut(AbsentPathPlace<'p, '_>) -> Result<()>,
) -> Result<()> {
    let mut way: Vec<(&[u8], Option<Ino>)> = Vec::new();
    for path in absent.iter() {
        let mut parts: Vec<&[u8]> = path_components(path).collect();
        let Some(name) = parts.pop() else { continue };
        // The list is in the order of the tree, so most of the way is that of the path before.
        let shared = way.iter().zip(&parts).take_while(|((known, _), part)| known == *part).count();
        way.truncate(shared);
        for part in parts.get(shared..).unwrap_or_default() {
            let above = way.last().map_or(Some(Ino::ROOT), |(_, ino)| *ino);
            let dentry = above.map(|above| base.lookup_dentry(above, part)).transpose()?.flatten();
            way.push((part, dentry.map(|dentry| dentry.ino)));
        }
        visit(AbsentPathPlace { path, name, way: &way })?;
    }
    Ok(())
}

/// Directories that stand in the place of absent ones, or below such: what is not in them is absent.
#[derive(Debug, Default)]
pub struct ShadowedDirs {
    dirs: HashSet<Ino>,
}

impl ShadowedDirs {
    /// Finds them in a scan.
    pub(crate) fn find_shadowed(
        names: &AbsentNames,
        tree: &ScanTree,
        base: Option<&FsTree>,
        numbers: &InodeNumbers,
    ) -> Result<Self> {
        let mut found = Self::default();
        let Some(base) = base.filter(|_| !names.is_empty()) else { return Ok(found) };
        // In pre-order, so that of the directory above it is known whether it is shadowed.
        for dir in tree.dirs() {
            let ino = numbers.number_of_dir(&dir);
            if numbers.is_from_base(ino) && found.is_dir_shadowed(names, &dir, base, numbers)? {
                found.dirs.insert(ino);
            }
        }
        Ok(found)
    }

    fn is_dir_shadowed(
        &self,
        names: &AbsentNames,
        dir: &ScanDir<'_>,
        base: &FsTree,
        numbers: &InodeNumbers,
    ) -> Result<bool> {
        let Some(entry) = dir.own_entry() else { return Ok(false) };
        let ino = numbers.number_of_entry(entry.id());
        let above = numbers.number_of_dir(&entry.containing_dir());
        let is_where_it_was = entry.cached_entry().is_some_and(|cached| cached.ino == ino);
        if is_where_it_was && !names.contains(above, entry.name()) && !self.contains(above) {
            return Ok(false);
        }
        // Moved, made anew, or absent by its place: the snapshot knows where it belongs.
        names.is_place_absent(base, ino)
    }

    /// Whether a directory is one of them.
    pub(crate) fn contains(&self, dir: Ino) -> bool {
        self.dirs.contains(&dir)
    }
}
