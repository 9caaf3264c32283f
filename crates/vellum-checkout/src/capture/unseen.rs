//! Entries that a scan did not see: names outside the selected paths, what could not be read, and what is absent.
//!
//! Invariant: such a name stays as it is in the base, and so does its inode.

use std::collections::{HashMap, HashSet};

use vellum_map::KeySpan;
use vellum_types::{Dentry, FileKind, Ino, MapKeyRef};
use vellum_volume::tree::{DEPTH_MAX, path_components};
use vellum_volume::{FsTree, VolumeError};

use super::CapturePlan;
use super::jobs::CaptureJob;
use super::number::{InoSet, InodeNumbers};
use crate::absent::{AbsentNames, ShadowedDirs};
use crate::error::Result;
use crate::scan::{ScanDir, ScanDirIndex, ScanEntryRef, ScanProblemCause, ScanTree};

/// A directory and a name in it.
pub type DirEntryName = (Ino, Vec<u8>);

/// Entries that were listed and could not be examined: their directory was read, and yet nothing is known of them. And
/// entries that are absent on purpose.
pub struct UnexaminedEntries<'a> {
    paths: HashSet<Vec<u8>>,
    absent: &'a AbsentNames,
    shadowed: &'a ShadowedDirs,
}

impl<'a> UnexaminedEntries<'a> {
    /// The gaps of a scan.
    pub fn from_scan(tree: &ScanTree, absent: &'a AbsentNames, shadowed: &'a ShadowedDirs) -> Self {
        let unknown = |cause: &ScanProblemCause| matches!(cause, ScanProblemCause::Unexaminable(_));
        let problems = tree.problems().iter().filter(|problem| unknown(&problem.cause));
        Self { paths: problems.map(|problem| problem.path.clone()).collect(), absent, shadowed }
    }

    /// Whether a name of the base is absent in a directory of this number, unless something is there.
    pub fn is_absent(&self, dir: Ino, name: &[u8]) -> bool {
        self.absent.contains(dir, name) || self.shadowed.contains(dir)
    }

    /// Whether a directory is a mere shadow of one that is absent: the base knows its attributes.
    pub fn is_shadowed_dir(&self, dir: Ino) -> bool {
        self.shadowed.contains(dir)
    }

    /// Whether something of a directory that is gone stays, because it is absent.
    pub fn leads_to_absent(&self, dir: Ino) -> bool {
        self.absent.leads_to_absent(dir)
    }

    /// Whether a name of the base that does not stand for the same file in the directory, which has the number `ino`, was
    /// removed.
    pub fn proves_removal(&self, dir: &ScanDir<'_>, ino: Ino, name: &[u8]) -> bool {
        if !dir.has_examined(name) || self.is_absent(ino, name) && dir.find_entry(name).is_none() {
            return false;
        }
        // This is asked for each name of each changed directory, so the path is built only if there are gaps.
        if self.paths.is_empty() {
            return true;
        }
        let mut path = dir.path();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        !self.paths.contains(&path)
    }
}

/// The names, among those that the scan did not look at, of files of which it saw, or missed, another.
#[derive(Default)]
pub struct UnscannedLinkNames {
    /// In the order of a walk, each with the path that its directory has now.
    names: HashMap<Ino, Vec<UnscannedLinkName>>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnscannedLinkName {
    /// Components of the path of its directory.
    way: Vec<Vec<u8>>,
    /// Its directory, and the name.
    pub entry: DirEntryName,
}

impl UnscannedLinkName {
    /// Whether a walk meets it before an entry that was scanned.
    pub fn precedes(&self, entry: &ScanEntryRef<'_>) -> bool {
        let path = entry.containing_dir().path();
        let way = path_components(&path).map(<[u8]>::to_vec);
        let order = self.way.iter().cloned().cmp(way);
        order.then_with(|| self.entry.1.as_slice().cmp(entry.name())).is_lt()
    }
}

impl UnscannedLinkNames {
    /// Finds them in the base, all of which is gone through if a file that is worked on has several names.
    pub fn find_unscanned(
        tree: &ScanTree,
        base: &FsTree,
        numbers: &InodeNumbers,
        gaps: &UnexaminedEntries<'_>,
        plan: &CapturePlan,
    ) -> Result<Self> {
        let mut wanted = HashSet::new();
        let mut removed = InoSet::default();
        for job in &plan.jobs {
            if let CaptureJob::Remove(ino) = job {
                removed.insert(*ino);
            }
            if let CaptureJob::Entry(ino, _) | CaptureJob::Remove(ino) = job
                // Only a file that had several names in the base can have one that was not seen.
                && base.inode_attr(*ino)?.is_some_and(|attr| attr.kind != FileKind::Dir && attr.nlink > 1)
            {
                wanted.insert(*ino);
            }
        }
        let mut unseen = Self::default();
        if wanted.is_empty() {
            return Ok(unseen);
        }
        let scanned: HashMap<Ino, ScanDirIndex> =
            tree.dirs().map(|dir| (numbers.number_of_dir(&dir), dir.index())).collect();
        let broken = || VolumeError::wrap_decode_error("an entry of the last snapshot");
        // The map has no index from an inode to its names. This reads every node of the base, and happens
        // only for partial scans that touch a file with several names.
        for entry in base.map_view().read_range(base.nodes(), KeySpan::all_keys())? {
            let entry = entry?;
            let MapKeyRef::Dentry(dir, name) = MapKeyRef::parse(&entry.key).map_err(broken())? else {
                continue;
            };
            let ino = Dentry::decode(&entry.value).map_err(broken())?.ino;
            // A name in a directory that is removed goes with it.
            if !wanted.contains(&ino) || removed.contains(dir) {
                continue;
            }
            let is_known = match scanned.get(&dir) {
                Some(index) => gaps.proves_removal(&tree.dir(*index), dir, name),
                None => plan.kept.contains(&dir) && !gaps.is_absent(dir, name),
            };
            if !is_known {
                let way = find_way(tree, base, &scanned, dir)?;
                let entry = (dir, name.to_vec());
                unseen.names.entry(ino).or_default().push(UnscannedLinkName { way, entry });
            }
        }
        unseen.names.values_mut().for_each(|names| names.sort_unstable());
        Ok(unseen)
    }

    /// The names of an inode that stay without having been looked at.
    pub fn names_of_inode(&self, ino: Ino) -> &[UnscannedLinkName] {
        self.names.get(&ino).map_or(&[], Vec::as_slice)
    }
}

/// The components of the path that a directory of the base has now: it may lie in one that moved.
fn find_way(
    tree: &ScanTree,
    base: &FsTree,
    scanned: &HashMap<Ino, ScanDirIndex>,
    dir: Ino,
) -> Result<Vec<Vec<u8>>> {
    let mut below = Vec::new();
    let mut at = dir;
    let above = loop {
        if let Some(index) = scanned.get(&at) {
            break tree.dir(*index).path();
        }
        if below.len() > DEPTH_MAX {
            let problem = format!("directory {dir} lies in itself, or deeper than {DEPTH_MAX} levels");
            return Err(VolumeError::BadTree(problem).into());
        }
        let attr = base.expect_inode_attr(at)?;
        below.push(attr.name);
        at = attr.parent;
    };
    Ok(path_components(&above).map(<[u8]>::to_vec).chain(below.into_iter().rev()).collect())
}
