//! The names and paths of files in the result.
//!
//! Invariant: the name that a file's attributes tell is the one whose path sorts first, as far as names are known: the same
//! for whoever merges.

use std::collections::{BTreeSet, HashMap, HashSet};

use vellum_types::{FileKind, Ino};

use super::files::{FileId, FileLink};
use super::side::SideName;
use super::work::{InodeNames, MergeWork};
use crate::error::{Result, VolumeError};
use crate::tree::DEPTH_MAX;

impl MergeWork<'_> {
    /// The name that a file's attributes tell: the one whose path sorts first, as far as the names are known.
    pub fn find_main_link(&mut self, id: FileId, paths: &mut ResultPaths) -> Result<FileLink> {
        // A copy, because the directories that are looked up below may be added to the table.
        let file = self.table.get(id).clone();
        let mut links: BTreeSet<FileLink> = file.outcome.added.union(&file.retained).cloned().collect();
        if let Some(base) = file.base {
            // The attributes of each tree tell one name of the file, so that no directory has to be searched.
            let mut known = vec![self.table.base_attr(base)?.map(|attr| (None, attr))];
            for side in SideName::BOTH {
                let attr = file.sides.get(side).map(|ino| self.table.side_attr(side, ino)).transpose()?;
                known.push(attr.flatten().map(|attr| (Some(side), attr)));
            }
            for (side, attr) in known.into_iter().flatten().filter(|(_, attr)| !attr.name.is_empty()) {
                let dir = match side {
                    None => self.table.find_base_file(attr.parent, FileKind::Dir),
                    Some(side) => self.table.find_side_file(side, attr.parent, FileKind::Dir),
                };
                let link = (dir, attr.name);
                // A name that a side added counts only if the result has taken it over: then it is in the list already.
                let is_base_link = side.is_none_or(|side| !file.links.get(side).added.contains(&link));
                if is_base_link && !file.outcome.removed.contains(&link) {
                    links.insert(link);
                }
            }
        }
        if links.is_empty() {
            // The name that the attributes tell is gone, and the others are recorded only in their directories.
            links.extend(self.find_other_links(id)?);
        }
        // Most files have one name, and to find its path means to read the directories above it.
        if links.len() == 1
            && let Some(link) = links.pop_first()
        {
            return Ok(link);
        }
        let mut best: Option<(Vec<u8>, FileLink)> = None;
        for link in links {
            let path = self.result_path(&link, paths)?;
            if best.as_ref().is_none_or(|(least, _)| path < *least) {
                best = Some((path, link));
            }
        }
        let missing = || VolumeError::BadTree("a file of a merge has no name".into());
        best.map(|(_, link)| link).ok_or_else(missing)
    }

    /// The names that a file has in the base and keeps.
    fn find_other_links(&mut self, id: FileId) -> Result<Vec<FileLink>> {
        let Some(ino) = self.table.get(id).base else { return Ok(Vec::new()) };
        let names = match &self.base_links {
            Some(links) => links,
            None => self.base_links.insert(self.search_links()?),
        };
        let names = names.get(&ino).cloned().unwrap_or_default();
        let links: Vec<_> = names
            .into_iter()
            .map(|(dir, name)| (self.table.find_base_file(dir, FileKind::Dir), name))
            .collect();
        let file = self.table.get(id);
        Ok(links.into_iter().filter(|link| !file.outcome.removed.contains(link)).collect())
    }

    /// All names in the base of the files that lose one. Looks at every name of the tree, once for all files.
    fn search_links(&self) -> Result<InodeNames> {
        // Only names of files that lose one are kept: those of all files of a large tree would need too much memory.
        let loses_name = |id: &FileId| !self.table.get(*id).outcome.removed.is_empty();
        let losers: HashSet<Ino> =
            self.table.ids().filter(loses_name).filter_map(|id| self.table.get(id).base).collect();
        let mut names = InodeNames::new();
        let view = self.table.base.map_view();
        for entry in view.read_range(self.table.base.nodes(), vellum_map::KeySpan::all_keys())? {
            let entry = entry?;
            let decode_error = || VolumeError::wrap_decode_error("an entry of the tree");
            if let vellum_types::MapKeyRef::Dentry(dir, name) =
                vellum_types::MapKeyRef::parse(&entry.key).map_err(decode_error())?
            {
                let ino = vellum_types::Dentry::decode(&entry.value).map_err(decode_error())?.ino;
                if losers.contains(&ino) {
                    names.entry(ino).or_default().push((dir, name.to_vec()));
                }
            }
        }
        Ok(names)
    }

    /// The path of a name in the result.
    pub fn result_path(&mut self, link: &FileLink, paths: &mut ResultPaths) -> Result<Vec<u8>> {
        let mut below = Vec::new();
        let mut at = link.0;
        let mut path = loop {
            if let Some(path) = paths.dirs.get(&at) {
                break path.clone();
            }
            if self.table.get(at).is_root() {
                break Vec::new();
            }
            // Circles of the merge were undone, but a damaged base may have one of its own.
            if below.len() > DEPTH_MAX {
                return Err(VolumeError::BadTree("a directory lies in itself".into()));
            }
            let (dir, name) = self.find_dir_link(at)?;
            below.push((at, name));
            at = dir;
        };
        for (dir, name) in below.into_iter().rev() {
            push_name(&mut path, &name);
            paths.dirs.insert(dir, path.clone());
        }
        push_name(&mut path, &link.1);
        Ok(path)
    }

    /// The only name of a directory.
    fn find_dir_link(&mut self, id: FileId) -> Result<FileLink> {
        let file = self.table.get(id);
        // A directory has one name: one that the merge gives it replaces that of the base.
        if let Some(link) = file.outcome.added.first() {
            return Ok(link.clone());
        }
        let missing = || VolumeError::BadTree("a directory of a merge has no name".into());
        let attr = self.table.base.expect_inode_attr(file.base.ok_or_else(missing)?)?;
        Ok((self.table.find_base_file(attr.parent, FileKind::Dir), attr.name))
    }
}

/// Paths of directories in the result, as far as they were asked for.
#[derive(Default)]
pub(super) struct ResultPaths {
    dirs: HashMap<FileId, Vec<u8>>,
}

fn push_name(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}
