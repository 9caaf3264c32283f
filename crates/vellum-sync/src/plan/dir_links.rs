//! Symlinks at the destination that are treated as the directories that they lead to (`--keep-dirlinks`).
//!
//! Invariant: this applies only to a symlink at the path of a source directory, so that no entry that is deleted or
//! replaced is reached through a symlink. Deliberately absent: whether the symlink leads to a directory, which the
//! listing determines.

use std::collections::HashSet;

use vellum_types::FileKind;

use super::walk::find_bare_dirs;
use crate::model::listing::{ListingEntryId, TreeListing};
use crate::model::options::PreserveOptions;

/// Paths of the destination's symlinks where the source has directories. The destination has to be listed again with
/// them; the new listing may contain further ones below them.
#[must_use]
pub fn find_dir_links(
    source: &TreeListing,
    destination: &TreeListing,
    preserve: &PreserveOptions,
) -> Vec<Vec<u8>> {
    if !preserve.keep_dir_links {
        return Vec::new();
    }
    // A directory that is left out as empty counts as absent, so the entry at its path may be deleted.
    let bare: HashSet<ListingEntryId> =
        if preserve.prune_empty { find_bare_dirs(source) } else { HashSet::new() };
    let links = destination.iter().filter(|entry| entry.kind() == FileKind::Symlink);
    links
        .map(|link| link.path())
        .filter(|path| {
            source.find_path(path).is_some_and(|entry| entry.is_dir() && !bare.contains(&entry.id()))
        })
        .collect()
}
