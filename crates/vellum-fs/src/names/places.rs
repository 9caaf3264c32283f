//! The links of files with several names: needed when the first one is removed, since attributes record only that
//! one.
//!
//! All entries here are hints: a caller that relies on one checks it in its transaction. Missing ones are found by a
//! walk over the map, which then finds those of many files at once.

use std::collections::HashMap;
use std::ops::ControlFlow;

use parking_lot::Mutex;
use vellum_map::KeySpan;
use vellum_types::{Dentry, FileKind, Ino, InodeAttr, MapKey, MapKeyRef, MapKeyTag};

use super::{LiveNames, NameInDir};
use crate::error::Result;
use crate::tree::{LiveMap, VisitKey};

/// Files whose places are remembered: some ten MiB.
const FILES_MAX: usize = 1 << 17;

/// A link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HardLink {
    /// Its directory.
    pub dir: Ino,
    /// Its name.
    pub name: Box<[u8]>,
}

impl HardLink {
    fn from_name_in_dir(place: &NameInDir<'_>) -> Self {
        Self { dir: place.dir, name: place.name.into() }
    }

    /// The same, borrowed.
    pub fn as_name_in_dir(&self) -> NameInDir<'_> {
        NameInDir { dir: self.dir, name: &self.name }
    }
}

/// Places of links.
#[derive(Debug, Default)]
pub struct HardLinks {
    known: Mutex<HashMap<Ino, Vec<HardLink>>>,
}

impl HardLinks {
    /// Forgets everything: the worktree stands on another state.
    pub fn forget_all(&self) {
        self.known.lock().clear();
    }

    /// An inode with several links has this one.
    pub(super) fn add_link(&self, ino: Ino, place: &NameInDir<'_>) {
        let mut known = self.known.lock();
        // All go at once, since they are only hints: a walk over the map finds those again that are needed.
        if known.len() >= FILES_MAX && !known.contains_key(&ino) {
            known.clear();
        }
        let links = known.entry(ino).or_default();
        if !links.iter().any(|link| link.as_name_in_dir() == *place) {
            links.push(HardLink::from_name_in_dir(place));
        }
    }

    /// An inode does not have this link any more.
    pub(super) fn remove_link(&self, ino: Ino, place: &NameInDir<'_>) {
        let mut known = self.known.lock();
        if let Some(links) = known.get_mut(&ino) {
            links.retain(|link| link.as_name_in_dir() != *place);
            if links.is_empty() {
                known.remove(&ino);
            }
        }
    }

    fn links_of_inode(&self, ino: Ino) -> Vec<HardLink> {
        self.known.lock().get(&ino).cloned().unwrap_or_default()
    }
}

impl LiveNames {
    /// A link of an inode beside the one at `place`. None if there is none, as long as the inode does not change.
    pub(super) fn find_other_link(&self, ino: Ino, place: &NameInDir<'_>) -> Result<Option<HardLink>> {
        if let Some(link) = self.find_known_link(ino, place)? {
            return Ok(Some(link));
        }
        let found = find_hard_links(&self.map, ino)?;
        // Replaced, not extended: that bounds them, and all of them are hints.
        *self.links.known.lock() = found;
        self.find_known_link(ino, place)
    }

    fn find_known_link(&self, ino: Ino, place: &NameInDir<'_>) -> Result<Option<HardLink>> {
        for link in self.links.links_of_inode(ino) {
            if link.as_name_in_dir() != *place
                && self.map.lookup_dentry(link.dir, &link.name)?.is_some_and(|dentry| dentry.ino == ino)
            {
                return Ok(Some(link));
            }
        }
        Ok(None)
    }
}

/// The places of all links of files with several of them, from `first` on, up to [`FILES_MAX`] files: files that are
/// removed together mostly have numbers that follow each other.
fn find_hard_links(map: &LiveMap, first: Ino) -> Result<HashMap<Ino, Vec<HardLink>>> {
    let mut found: HashMap<Ino, Vec<HardLink>> = HashMap::new();
    visit_entries_from(map, first, &mut |key, value| {
        if let MapKeyRef::Attr(ino) = key
            // Under this number lies the record of the filesystem, which has no attributes.
            && ino != Ino::SUPER
        {
            let attr = InodeAttr::decode(value)?;
            if attr.nlink > 1 && attr.kind != FileKind::Dir || ino == first {
                found.insert(ino, Vec::new());
            }
        }
        Ok(if found.len() < FILES_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    // A second walk, over everything: the directories that name these files may have any number.
    visit_entries_from(map, Ino::SUPER, &mut |key, value| {
        if let MapKeyRef::Dentry(dir, name) = key
            && let Some(links) = found.get_mut(&Dentry::decode(value)?.ino)
        {
            links.push(HardLink { dir, name: name.into() });
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(found)
}

/// Visits all entries of the map from an inode on, until `visit` breaks off.
fn visit_entries_from(map: &LiveMap, first: Ino, visit: &mut VisitKey<'_>) -> Result<()> {
    let span = KeySpan::from_start(MapKey::first_for_tag(first, MapKeyTag::Attr).as_bytes());
    map.read_head_state(|view| view.scan_keys(span, "the tree", visit))
}
