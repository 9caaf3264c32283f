//! The list of absent paths after a snapshot: names that are in the directory now are present, and what moved is absent where
//! it went. Its old path stays on the list: an older snapshot, restored, has it there.

use std::collections::HashMap;

use vellum_types::Ino;
use vellum_volume::FsTree;

use super::names::visit_resolved_paths;
use super::{AbsentPaths, join_name};
use crate::capture::CaptureResult;
use crate::error::Result;
use crate::scan::{ScanDirIndex, ScanTree};

/// The list that goes with the state which was captured over `base`.
pub(crate) fn revise_after_snapshot(
    absent: &AbsentPaths,
    base: &FsTree,
    tree: &ScanTree,
    captured: &CaptureResult,
) -> Result<AbsentPaths> {
    let places = tree.dirs().map(|dir| (captured.number_of_dir(&dir), dir.index())).collect();
    let mut revision =
        ListRevision { base, tree, captured, places, paths: HashMap::new(), revised: AbsentPaths::default() };
    visit_resolved_paths(absent, base, |resolved| {
        let dir = resolved.dir();
        let scanned = dir.and_then(|dir| revision.places.get(&dir).copied()).map(|index| tree.dir(index));
        match (dir, scanned) {
            (_, Some(scanned)) => {
                if scanned.find_entry(resolved.name).is_some() {
                    return Ok(());
                }
                revision.add_if_missing(resolved.path);
                let here = revision.path_of_scanned_dir(scanned.index());
                revision.revised.add_path(&join_name(&here, resolved.name));
            }
            (Some(dir), None) if captured.is_kept_dir(dir) => {
                let top = revision.find_topmost_kept(dir)?;
                revision.revised.add_path(&top);
            }
            (_, None) => revision.add_if_missing(resolved.path),
        }
        Ok(())
    })?;
    revision.add_missing_in_shadows()?;
    Ok(revision.revised)
}

struct ListRevision<'a> {
    base: &'a FsTree,
    tree: &'a ScanTree,
    captured: &'a CaptureResult,
    /// Where the directories of the snapshot are now.
    places: HashMap<Ino, ScanDirIndex>,
    /// Paths of directories that were asked for.
    paths: HashMap<ScanDirIndex, Vec<u8>>,
    revised: AbsentPaths,
}

impl ListRevision<'_> {
    fn add_if_missing(&mut self, path: &[u8]) {
        if self.tree.find_entry_at(path).is_none() {
            self.revised.add_path(path);
        }
    }

    fn path_of_scanned_dir(&mut self, index: ScanDirIndex) -> Vec<u8> {
        let tree = self.tree;
        self.paths.entry(index).or_insert_with(|| tree.dir(index).path()).clone()
    }

    /// Of a directory that stands in the place of an absent one, or once did and moved, what is not in it is absent.
    fn add_missing_in_shadows(&mut self) -> Result<()> {
        for dir in self.tree.dirs() {
            let ino = self.captured.number_of_dir(&dir);
            if !self.captured.is_shadowed_dir(ino) {
                continue;
            }
            let above = dir.path();
            for (name, _) in self.base.list_entries(ino)? {
                if dir.find_entry(&name).is_none() {
                    self.revised.add_path(&join_name(&above, &name));
                }
            }
        }
        Ok(())
    }

    /// The directory that was removed but for what is absent in it, and lies in one that was not: all that the snapshot has
    /// of it is absent.
    fn find_topmost_kept(&mut self, dir: Ino) -> Result<Vec<u8>> {
        let mut names = Vec::new();
        let mut at = dir;
        let above = loop {
            let attr = self.base.expect_inode_attr(at)?;
            names.push(attr.name);
            if !self.captured.is_kept_dir(attr.parent) {
                break match self.places.get(&attr.parent).copied() {
                    Some(index) => self.path_of_scanned_dir(index),
                    None => self.base.inode_path(attr.parent)?,
                };
            }
            at = attr.parent;
        };
        // The topmost name was met last.
        Ok(join_name(&above, &names.pop().unwrap_or_default()))
    }
}
