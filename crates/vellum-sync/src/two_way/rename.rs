//! New names for versions that are kept beside the winning ones.
//!
//! Invariant: a new name depends on the archive and the listings alone and is free in all three, so that no version
//! replaces another.

use std::collections::{BTreeMap, BTreeSet};

use vellum_host::escape::EscapedPath;
use vellum_types::UnixTime;
use vellum_types::limits::NAME_MAX;

use crate::model::listing::{
    DirectoryBlock, ListingEntry, ListingEntryId, ListingError, NewListingEntry, TreeListing,
};
use crate::plan::{Differences, StepAction, StepCounts, StepPhase, SyncPlan, SyncStep};

use super::decide::EntryConflict;
use super::merge::ThreeWayTree;
use super::plan::TwoWayRequest;
use super::rule::ConflictEnding;
use crate::model::path::{join_path, split_path};

/// Bytes of a host's name in the name of a file.
const LABEL_MAX: usize = 40;

/// Why a version cannot be kept beside the winning one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{}' cannot be kept as '{}': {why}; rename it on one side, or choose the winning side with --conflict",
    EscapedPath(.path),
    EscapedPath(.name)
)]
pub struct RenameError {
    /// The path of the version.
    pub path: Vec<u8>,
    /// The name that it would get.
    pub name: Vec<u8>,
    /// Why that name is impossible.
    pub why: ListingError,
}

/// One version that gets another name in its directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct VersionRename {
    /// Its path.
    pub path: Vec<u8>,
    /// Its new name.
    pub name: Vec<u8>,
}

/// The renamings of one side, by path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VersionRenames(BTreeMap<Vec<u8>, Vec<u8>>);

impl VersionRename {
    /// Chooses new names for the losers of conflicts, each on its own side.
    pub(super) fn from_conflicts(
        merged: &ThreeWayTree<'_>,
        conflicts: &[EntryConflict],
        request: &TwoWayRequest,
    ) -> [VersionRenames; 2] {
        let mut renamings = [VersionRenames::default(), VersionRenames::default()];
        let mut given: BTreeSet<Vec<u8>> = BTreeSet::new();
        for conflict in conflicts {
            let ConflictEnding::Renamed(side) = conflict.ending else { continue };
            let Some(entry) =
                side.select_from(&conflict.entries).map(|id| side.select_from(&merged.listings).entry(id))
            else {
                continue;
            };
            let (dir, name) = split_path(&conflict.path);
            // A name is free only if neither side has it, nor had it at the last run: an archived name would
            // make the kept version look like an edit of something else.
            let taken = |name: &[u8]| {
                let path = join_path(dir, name);
                given.contains(&path)
                    || merged.archive.tree.find_path(&path).is_some()
                    || merged.listings.iter().any(|listing| listing.find_path(&path).is_some())
            };
            let label: &String = side.select_from(&request.labels);
            let name = find_free_name(name, &format_suffix(label, entry.mtime()), taken);
            // Two long names can be cut to the same beginning.
            given.insert(join_path(dir, &name));
            side.select_from_mut(&mut renamings).0.insert(conflict.path.clone(), name);
        }
        renamings
    }
}

impl VersionRenames {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All renamings, in the order of paths.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = VersionRename> + '_ {
        self.0.iter().map(|(path, name)| VersionRename { path: path.clone(), name: name.clone() })
    }

    pub(super) fn extend_with(&mut self, more: &Self) {
        self.0.extend(more.0.iter().map(|(path, name)| (path.clone(), name.clone())));
    }

    /// The listing after the renamings, with the same entries as before.
    pub(super) fn apply_to_listing(&self, listing: &TreeListing) -> Result<TreeListing, RenameError> {
        let root = listing.root();
        let mut renamed = TreeListing::new(&NewListingEntry::from_entry(&root), root.detail().cloned());
        renamed.unlisted = listing.unlisted.clone();
        renamed.leftovers = listing.leftovers.clone();
        renamed.owners = listing.owners.clone();
        renamed.granularity = listing.granularity;
        renamed.begun = listing.begun;
        renamed.linked_files.clone_from(&listing.linked_files);
        let dirs: BTreeSet<&[u8]> = self.0.keys().map(|path| split_path(path).0).collect();
        // The whole listing is built again, because entries are sorted by name within their directory and a
        // new name moves an entry.
        let mut waiting = vec![(root, ListingEntryId::ROOT, Vec::new())];
        let mut next = 0;
        while let Some((dir, id, path)) = waiting.get(next).cloned() {
            next += 1;
            let mut entries: Vec<(Vec<u8>, ListingEntry<'_>)> =
                dir.children().map(|child| (child.name().to_vec(), child)).collect();
            if dirs.contains(&path[..]) {
                for (name, _) in &mut entries {
                    *name = self.0.get(&join_path(&path, name)).unwrap_or(name).clone();
                }
                entries.sort_by(|a, b| a.0.cmp(&b.0));
            }
            let mut block = DirectoryBlock::with_capacity(entries.len());
            for (name, child) in &entries {
                // Every entry is needed: one that is missing in the listing would count as deleted.
                block
                    .push(name, &NewListingEntry::from_entry(child), child.detail().cloned())
                    .map_err(|why| self.rename_error(&path, name, why))?;
            }
            let first = renamed.attach_block(id, &mut block).map_err(|why| RenameError {
                path: path.clone(),
                name: split_path(&path).1.to_vec(),
                why,
            })?;
            for (place, (name, child)) in entries.into_iter().enumerate() {
                let id = first.offset_by(u32::try_from(place).unwrap_or(u32::MAX));
                if let Some(digest) = listing.content_digest(child.id()) {
                    renamed.set_content_digest(id, *digest);
                }
                // Without its stamp, a file that may have been written would look unchanged in the plan that is
                // shown.
                let stamp = listing.change_stamp(child.id());
                if stamp != 0 {
                    renamed.set_change_stamp(id, stamp);
                }
                if listing.is_followed(child.id()) {
                    renamed.set_followed(id);
                }
                if child.is_dir() {
                    waiting.push((child, id, join_path(&path, &name)));
                }
            }
        }
        Ok(renamed)
    }

    /// The error of an impossible name in a directory, with the path of the version that would get it.
    fn rename_error(&self, dir: &[u8], name: &[u8], why: ListingError) -> RenameError {
        let given = self.0.iter().find(|(path, given)| split_path(path).0 == dir && **given == name);
        let path = given.map_or_else(|| join_path(dir, name), |(path, _)| path.clone());
        RenameError { path, name: name.to_vec(), why }
    }

    /// The plan that renames, from the present listing to the one after the renamings.
    #[must_use]
    pub fn build_plan(&self, before: &TreeListing, after: &TreeListing) -> SyncPlan {
        let steps: Vec<SyncStep> = self
            .iter()
            .filter_map(|one| {
                let (dir, _) = split_path(&one.path);
                Some(SyncStep {
                    // A rename step never replaces: if the name appeared since the listing, the step fails
                    // and the conflict stays for the next run.
                    phase: StepPhase::Rename,
                    action: StepAction::Rename,
                    what: Differences::NEW,
                    source: Some(after.find_path(&join_path(dir, &one.name))?.id()),
                    old: Some(before.find_path(&one.path)?.id()),
                    other: None,
                })
            })
            .collect();
        let counts = StepCounts { renamed: steps.len() as u64, ..StepCounts::default() };
        SyncPlan { steps, counts, ..SyncPlan::default() }
    }
}

/// The suffix of a version's name: its host and its time.
fn format_suffix(label: &str, changed: UnixTime) -> Vec<u8> {
    // The label is the name of a host, which is chosen by somebody else. Slashes, control characters and long
    // names must not reach a file name.
    let label: String = label
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() || "-_.".contains(letter) { letter } else { '_' })
        .take(LABEL_MAX)
        .collect();
    let moment = jiff::Timestamp::from_second(changed.secs);
    let moment =
        moment.map_or_else(|_| changed.secs.to_string(), |time| time.strftime("%Y%m%d-%H%M%S").to_string());
    format!(".conflict-{label}-{moment}").into_bytes()
}

/// The name with its suffix, and a number if that name is taken; a name that would be too long is cut.
fn find_free_name(name: &[u8], ending: &[u8], taken: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut number = 1_u64;
    loop {
        let suffix =
            if number == 1 { ending.to_vec() } else { [ending, format!("-{number}").as_bytes()].concat() };
        let room = NAME_MAX.saturating_sub(suffix.len());
        // The suffix tells which version it is, so the name is cut, not the suffix.
        let stem = truncate_name(name, room);
        let whole = [stem, &suffix[..]].concat();
        if !taken(&whole) {
            return whole;
        }
        number += 1;
    }
}

/// The longest beginning of a name that does not end within a character.
fn truncate_name(name: &[u8], room: usize) -> &[u8] {
    /// The leading bits of bytes that continue a character.
    const CONTINUES: u8 = 0b1000_0000;
    if name.len() <= room {
        return name;
    }
    let mut end = room;
    while end > room.saturating_sub(4) && name.get(end).is_some_and(|byte| byte & 0b1100_0000 == CONTINUES) {
        end -= 1;
    }
    name.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(names: &[&[u8]]) -> TreeListing {
        let mut listing = TreeListing::new(&NewListingEntry::unknown_dir(), None);
        let mut block = DirectoryBlock::default();
        for name in names {
            block.push(name, &NewListingEntry::unknown_dir(), None).unwrap();
        }
        listing.attach_block(ListingEntryId::ROOT, &mut block).unwrap();
        listing
    }

    fn renamings(path: &[u8], name: &[u8]) -> VersionRenames {
        VersionRenames(BTreeMap::from([(path.to_vec(), name.to_vec())]))
    }

    #[test]
    fn a_renamed_listing_keeps_the_change_stamps_of_its_entries() {
        let mut before = listing(&[b"a", b"b"]);
        let stamped = before.find_path(b"b").unwrap().id();
        before.set_change_stamp(stamped, 7);
        before.begun = Some(UnixTime { secs: 5, nanos: 0 });
        let after = renamings(b"a", b"c").apply_to_listing(&before).unwrap();
        assert_eq!(after.change_stamp(after.find_path(b"b").unwrap().id()), 7);
        assert_eq!(after.change_stamp(after.find_path(b"c").unwrap().id()), 0);
        assert_eq!(after.begun, before.begun);
    }

    /// The entry was left out, as if it had been deleted.
    #[test]
    fn a_name_that_a_listing_refuses_is_told() {
        let before = listing(&[b"a", b"b"]);
        let why = |name: &[u8]| renamings(b"a", name).apply_to_listing(&before).unwrap_err();
        assert_eq!(why(b"b").why, ListingError::Order);
        assert_eq!(why(b"x/y").why, ListingError::Name);
        let message = why(b"b").to_string();
        assert!(
            message.starts_with("'a' cannot be kept as 'b': ") && message.contains("--conflict"),
            "{message}"
        );
        let after = renamings(b"a", b"c").apply_to_listing(&before).unwrap();
        assert_eq!(after.iter().skip(1).map(|entry| entry.path()).collect::<Vec<_>>(), [b"b", b"c"]);
    }
}
