//! Symlinks at the destination that count as the directories that they lead to (`--keep-dirlinks`).
//!
//! Invariant: only a symlink whose path is a directory's at the source counts, so that no entry that is deleted or replaced
//! is ever looked at through a symlink. Deliberately absent: whether it leads to a directory, which the listing finds out.

use std::collections::HashSet;

use vellum_types::FileKind;

use super::walk::find_bare_dirs;
use crate::model::listing::{ListingEntryId, TreeListing};
use crate::model::options::PreserveOptions;

/// Paths of the destination's symlinks that stand where the source has directories. The destination has to be listed again
/// with them, and shows more of them then where one leads to another.
#[must_use]
pub fn find_dir_links(
    source: &TreeListing,
    destination: &TreeListing,
    preserve: &PreserveOptions,
) -> Vec<Vec<u8>> {
    if !preserve.keep_dir_links {
        return Vec::new();
    }
    // A directory that is left out as empty is not there, and what has its path may be deleted.
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
