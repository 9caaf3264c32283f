//! What a scan did not look at: names outside the selected paths, and what could not be read.
//!
//! Invariant: such a name stays as the base has it, and the inode that it leads to stays too.

use std::collections::{HashMap, HashSet};

use vellum_map::Span;
use vellum_types::{Dentry, FileKind, Ino, KeyRef};
use vellum_volume::{FsTree, VolumeError};

use super::jobs::Job;
use super::number::{InoSet, Numbers};
use crate::error::Result;
use crate::scan::{DirIndex, DirView, ProblemCause, Tree};

/// A directory and a name in it.
pub type Name = (Ino, Vec<u8>);

/// Entries that were listed and could not be examined: their directory was read, and yet nothing is known of them.
pub struct Gaps {
    paths: HashSet<Vec<u8>>,
}

impl Gaps {
    /// The gaps of a scan.
    pub fn of(tree: &Tree) -> Self {
        let unknown = |cause: &ProblemCause| matches!(cause, ProblemCause::Unexaminable(_));
        let problems = tree.problems().iter().filter(|problem| unknown(&problem.cause));
        Self { paths: problems.map(|problem| problem.path.clone()).collect() }
    }

    /// Whether the absence of a name means that it is not there.
    pub fn covers(&self, dir: &DirView<'_>, name: &[u8]) -> bool {
        if !dir.covers(name) {
            return false;
        }
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
pub struct Unseen {
    names: HashMap<Ino, Vec<Name>>,
}

impl Unseen {
    /// Finds them in the base, all of which is gone through if a file that is worked on has several names.
    pub fn find(tree: &Tree, base: &FsTree, numbers: &Numbers, gaps: &Gaps, jobs: &[Job]) -> Result<Self> {
        let mut wanted = HashSet::new();
        let mut removed = InoSet::default();
        for job in jobs {
            if let Job::Remove(ino) = job {
                removed.insert(*ino);
            }
            if let Job::Entry(ino, _) | Job::Remove(ino) = job
                && base.attr(*ino)?.is_some_and(|attr| attr.kind != FileKind::Dir && attr.nlink > 1)
            {
                wanted.insert(*ino);
            }
        }
        let mut unseen = Self::default();
        if wanted.is_empty() {
            return Ok(unseen);
        }
        let scanned: HashMap<Ino, DirIndex> =
            tree.dirs().map(|dir| (numbers.of_dir(&dir), dir.index())).collect();
        let broken = || VolumeError::decoding("an entry of the last snapshot");
        for entry in base.view().range(base.nodes(), Span::all())? {
            let entry = entry?;
            let KeyRef::Dentry(dir, name) = KeyRef::parse(&entry.key).map_err(broken())? else { continue };
            let ino = Dentry::decode(&entry.value).map_err(broken())?.ino;
            let looked_at = || scanned.get(&dir).is_some_and(|index| gaps.covers(&tree.dir(*index), name));
            if wanted.contains(&ino) && !removed.contains(dir) && !looked_at() {
                unseen.names.entry(ino).or_default().push((dir, name.to_vec()));
            }
        }
        Ok(unseen)
    }

    /// The names of an inode that stay without having been looked at.
    pub fn names(&self, ino: Ino) -> &[Name] {
        self.names.get(&ino).map_or(&[], Vec::as_slice)
    }
}
