//! What a restore would lose: files that it overwrites or removes and that no snapshot holds as they are.

use std::collections::HashSet;

use vellum_map::Span;
use vellum_types::{FileKind, Ino, KeyRef};
use vellum_volume::diff::compare;
use vellum_volume::{FsTree, VolumeError};

use crate::beneath::Dir;
use crate::error::Result;
use crate::plan::{Place, Steps};
use crate::scan::{EntryId, Tree};
use crate::worktree::Looked;

/// Paths in the way that a message names.
const SHOWN: usize = 10;

/// What would be lost.
#[derive(Debug, Default)]
pub struct Found {
    /// Paths that a snapshot can save.
    pub unsaved: Vec<Vec<u8>>,
    /// Paths, escaped, that none can: they are ignored or cannot be read.
    pub in_the_way: Vec<String>,
}

/// Finds what the steps would lose. `saved` is the state that an earlier, interrupted run saved.
pub fn find(root: &Dir, target: &FsTree, looked: &Looked, saved: Option<&FsTree>, steps: &Steps) -> Result<Found> {
    let dirty = changed_inodes(&looked.state)?;
    let mut found = Found::default();
    let replaced = steps.writes.iter().filter_map(|write| write.replaces);
    let relinked = steps.links.iter().filter_map(|link| link.replaces);
    for id in steps.deletes.iter().copied().chain(replaced).chain(relinked) {
        let entry = looked.tree.entry(id);
        let ino = looked.captured.number(id);
        if looked.captured.recorded(entry).is_none() {
            found.in_the_way.push(vellum_volume::tree::show(&entry.path()));
        } else if dirty.contains(&ino) && !is_saved(looked, saved, id)? {
            found.unsaved.push(entry.path());
        }
    }
    for place in &steps.metas {
        let path = target.path_in(place.dir, &place.name)?;
        if let Ok((ino, _)) = looked.state.find(&path, "")
            && dirty.contains(&ino)
            && !same_in(saved, &path, looked, ino)?
        {
            found.unsaved.push(path);
        }
    }
    in_the_way(root, target, &looked.tree, steps, &mut found.in_the_way)?;
    found.in_the_way.truncate(SHOWN);
    Ok(found)
}

/// With `--discard`, what the scan left out may be overwritten.
pub fn allow_overwriting(steps: &mut Steps) {
    for write in &mut steps.writes {
        write.overwrites = true;
    }
}

/// Inodes of which the directory's state differs from the last snapshot's.
fn changed_inodes(state: &FsTree) -> Result<HashSet<Ino>> {
    let changes = state.view().changes(&Span::all());
    let parse = |key: &[u8]| KeyRef::parse(key).map(|key| key.ino());
    Ok(changes
        .map(|(key, _)| parse(key).map_err(VolumeError::decoding("a change")))
        .collect::<std::result::Result<_, _>>()?)
}

fn is_saved(looked: &Looked, saved: Option<&FsTree>, id: EntryId) -> Result<bool> {
    let entry = looked.tree.entry(id);
    if entry.kind() == FileKind::Dir && saved.is_none() {
        return Ok(false);
    }
    same_in(saved, &entry.path(), looked, looked.captured.number(id))
}

fn same_in(saved: Option<&FsTree>, path: &[u8], looked: &Looked, ino: Ino) -> Result<bool> {
    let Some(saved) = saved else { return Ok(false) };
    let Ok((there, _)) = saved.find(path, "") else { return Ok(false) };
    Ok(!compare(&looked.state.inode(ino)?, &saved.inode(there)?).any())
}

/// Finds what stands where something is to be made, though the scan did not list it.
fn in_the_way(root: &Dir, target: &FsTree, tree: &Tree, steps: &Steps, found: &mut Vec<String>) -> Result<()> {
    if tree.dirs().all(|dir| dir.left_out() == 0) {
        return Ok(());
    }
    let mut missing: HashSet<Ino> = HashSet::new();
    let made = steps.writes.iter().filter(|write| write.replaces.is_none()).map(|write| &write.place);
    let linked = steps.links.iter().filter(|link| link.replaces.is_none()).map(|link| &link.place);
    let going: HashSet<Vec<u8>> = steps.deletes.iter().map(|id| tree.entry(*id).path()).collect();
    for place in steps.make_dirs.iter().chain(made).chain(linked) {
        if missing.contains(&place.dir) {
            missing.insert(place.ino);
            continue;
        }
        let path = target.path_in(place.dir, &place.name)?;
        match kind_at(root, &path) {
            None => {
                missing.insert(place.ino);
            }
            // What is there and listed goes before this is made.
            Some(_) if going.contains(&path) => {
                missing.insert(place.ino);
            }
            Some(kind) if is_harmless(place, kind) => {}
            Some(_) => found.push(vellum_volume::tree::show(&path)),
        }
    }
    Ok(())
}

fn is_harmless(place: &Place, there: FileKind) -> bool {
    place.kind == FileKind::Dir && there == FileKind::Dir
}

fn kind_at(root: &Dir, path: &[u8]) -> Option<FileKind> {
    let (dir, name) = root.resolve_parent(path).ok()?;
    dir.stat(name).ok().map(|stat| stat.kind)
}
