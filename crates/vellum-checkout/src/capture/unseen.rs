//! Entries that a scan did not see: names outside the selected paths, and what could not be read.
//!
//! Invariant: such a name stays as it is in the base, and so does its inode.

use std::collections::{HashMap, HashSet};

use vellum_map::KeySpan;
use vellum_types::{Dentry, FileKind, Ino, MapKeyRef};
use vellum_volume::{FsTree, VolumeError};

use super::jobs::CaptureJob;
use super::number::{InoSet, InodeNumbers};
use crate::error::Result;
use crate::scan::{ScanDir, ScanDirIndex, ScanProblemCause, ScanTree};

/// A directory and a name in it.
pub type DirEntryName = (Ino, Vec<u8>);

/// Entries that were listed and could not be examined: their directory was read, and yet nothing is known of them.
pub struct UnexaminedEntries {
    paths: HashSet<Vec<u8>>,
}

impl UnexaminedEntries {
    /// The gaps of a scan.
    pub fn from_scan(tree: &ScanTree) -> Self {
        let unknown = |cause: &ScanProblemCause| matches!(cause, ScanProblemCause::Unexaminable(_));
        let problems = tree.problems().iter().filter(|problem| unknown(&problem.cause));
        Self { paths: problems.map(|problem| problem.path.clone()).collect() }
    }

    /// Whether the absence of a name means that it is not there.
    pub fn proves_absence(&self, dir: &ScanDir<'_>, name: &[u8]) -> bool {
        if !dir.has_examined(name) {
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
    names: HashMap<Ino, Vec<DirEntryName>>,
}

impl UnscannedLinkNames {
    /// Finds them in the base, all of which is gone through if a file that is worked on has several names.
    pub fn find_unscanned(
        tree: &ScanTree,
        base: &FsTree,
        numbers: &InodeNumbers,
        gaps: &UnexaminedEntries,
        jobs: &[CaptureJob],
    ) -> Result<Self> {
        let mut wanted = HashSet::new();
        let mut removed = InoSet::default();
        for job in jobs {
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
            let looked_at =
                || scanned.get(&dir).is_some_and(|index| gaps.proves_absence(&tree.dir(*index), name));
            // A name in a directory that is removed goes with it.
            if wanted.contains(&ino) && !removed.contains(dir) && !looked_at() {
                unseen.names.entry(ino).or_default().push((dir, name.to_vec()));
            }
        }
        Ok(unseen)
    }

    /// The names of an inode that stay without having been looked at.
    pub fn names_of_inode(&self, ino: Ino) -> &[DirEntryName] {
        self.names.get(&ino).map_or(&[], Vec::as_slice)
    }
}
