//! Listing a tree of keys, with rules applied.
//!
//! Invariant: the listing is the one that a scan of the same files would make, except for attributes that objects lack.

use std::sync::Arc;

use vellum_store::{PlainListing, PlainObject};
use vellum_types::{FileKind, UnixTime};
use vellum_volume::config::CONFIG_OBJECT;
use vellum_volume::own_place::{self, CONFIG_HEAD_LEN};

use super::tree::{KeyDirectory, KeyNode, KeyTree};
use super::{ListedObject, ObjectEnd, map_object_error};
use crate::ends::{ListingRequest, SyncSide};
use crate::error::Result;
use crate::local::scan::{EntryFilter, EntryVerdict, is_own_name};
use crate::model::listing::{
    DirectoryBlock, EntryFlags, ListingEntryId, NewListingEntry, TreeListing, UnlistedEntry,
};
use crate::model::options::DeletePhase;
use crate::rules::{RULE_FILE_MAX, RuleError};

/// Modes of entries of an object store: the umask reduces them.
const FILE_MODE: u32 = 0o666;
const DIR_MODE: u32 = 0o777;
/// Largest object that is read as the configuration of a store, bytes.
const CONFIG_MAX: u64 = 64 << 10;

/// A directory that is to be listed.
struct ObjectListingTask<'t> {
    id: ListingEntryId,
    name: Vec<u8>,
    entries: &'t KeyDirectory,
    judge: Arc<dyn EntryFilter>,
}

/// The entries of one directory.
#[derive(Default)]
struct ListedDirectory<'t> {
    block: DirectoryBlock,
    /// Its objects, with their positions in the block.
    objects: Vec<(u32, &'t PlainObject)>,
    /// Its subdirectories that are entered, with their positions in the block.
    dirs: Vec<(u32, &'t str, &'t KeyDirectory)>,
    keeps: bool,
}

/// Lists a tree of keys.
pub(super) struct KeyTreeLister<'l> {
    pub end: &'l ObjectEnd,
    pub wish: &'l ListingRequest,
    pub found: &'l PlainListing,
    /// The times are already those of files, and not of uploads.
    pub is_dated: bool,
}

impl KeyTreeLister<'_> {
    /// Makes the listing, with the facts about each object.
    pub fn list_tree(&self, tree: KeyTree) -> Result<(TreeListing, Vec<(ListingEntryId, ListedObject)>)> {
        let flags = EntryFlags::default().union_if(EntryFlags::IMPLIED, self.wish.is_root_implied());
        let mut listing = TreeListing::new(&describe_dir(flags), None);
        let mut listed = Vec::new();
        let judge = match self.wish.top.is_empty() {
            true => None,
            false => self.wish.rules.enter_dir(b"", &|_| Ok(None))?,
        };
        let judge = judge.unwrap_or_else(|| self.wish.rules.clone());
        let mut tasks = vec![ObjectListingTask {
            id: ListingEntryId::ROOT,
            name: self.wish.top.clone(),
            entries: &tree.root,
            judge,
        }];
        while let Some(mut task) = tasks.pop() {
            // A store below the destination is neither entered nor deleted.
            if self.is_store(&task)? {
                listing.add_flags(task.id, EntryFlags::STORE.union(EntryFlags::KEEPS));
                continue;
            }
            let read = |name: &[u8]| self.read_rule_file(&task, name);
            if let Some(judge) = task.judge.enter_dir(&task.name, &read)? {
                task.judge = judge;
            }
            let mut found = self.list_dir(&task)?;
            let first = listing.attach_block(task.id, &mut found.block)?;
            if found.keeps {
                listing.add_flags(task.id, EntryFlags::KEEPS);
            }
            self.report_missing(&task, &mut listing);
            let describe =
                |object: &PlainObject| ListedObject { tag: object.tag.clone(), is_dated: self.is_dated };
            listed.extend(
                found.objects.iter().map(|(place, object)| (first.offset_by(*place), describe(object))),
            );
            for (place, name, entries) in found.dirs {
                let judge = task.judge.clone();
                let name = name.as_bytes().to_vec();
                tasks.push(ObjectListingTask { id: first.offset_by(place), name, entries, judge });
            }
        }
        listing.unlisted.extend(tree.problems);
        Ok((listing, listed))
    }

    fn list_dir<'t>(&'t self, task: &ObjectListingTask<'t>) -> Result<ListedDirectory<'t>> {
        let mut found = ListedDirectory::default();
        for (name, node) in task.entries {
            let bytes = name.as_bytes();
            // Vellum's own names are no content; the folder is not empty because of them.
            if is_own_name(bytes) {
                found.keeps = true;
                continue;
            }
            let is_dir = node.entries.is_some();
            let verdict = task.judge.evaluate_entry(bytes, is_dir);
            if self.is_left_out(verdict) {
                found.keeps = true;
                continue;
            }
            let flags = self.choose_flags(verdict, is_dir);
            let place = u32::try_from(found.block.len()).unwrap_or(u32::MAX);
            if let Some(entries) = &node.entries {
                found.block.push(bytes, &describe_dir(flags), None)?;
                if verdict.is_way || self.wish.options.preserve.recursive {
                    found.dirs.push((place, name, entries));
                }
            } else if let Some(object) = self.find_object(node) {
                let is_withheld = self.wish.side == SyncSide::Source
                    && !task.judge.should_transfer_file(object.size, object.uploaded);
                let flags = flags.union_if(EntryFlags::WITHHELD, is_withheld);
                found.block.push(bytes, &describe_object(object, flags), None)?;
                found.objects.push((place, object));
            }
        }
        Ok(found)
    }

    fn is_left_out(&self, verdict: EntryVerdict) -> bool {
        let delete = &self.wish.options.delete;
        let deletes = delete.when != DeletePhase::Never || delete.obstacles;
        match self.wish.side {
            SyncSide::Source => !verdict.transfer,
            SyncSide::Destination => {
                !verdict.transfer && verdict.protect_from_delete && !(verdict.perishable && deletes)
            }
        }
    }

    fn choose_flags(&self, verdict: EntryVerdict, is_dir: bool) -> EntryFlags {
        let preserve = &self.wish.options.preserve;
        let is_destination = self.wish.side == SyncSide::Destination;
        let protected = (is_destination || preserve.prune_empty) && verdict.protect_from_delete;
        EntryFlags::default()
            .union_if(EntryFlags::PROTECTED, protected)
            .union_if(EntryFlags::PERISHABLE, is_destination && protected && verdict.perishable)
            .union_if(
                EntryFlags::IMPLIED,
                !is_destination && is_dir && preserve.bare_way && verdict.is_between,
            )
    }

    /// Reports listed names that do not exist.
    fn report_missing(&self, task: &ObjectListingTask<'_>, listing: &mut TreeListing) {
        if self.wish.side != SyncSide::Source || self.wish.options.ignore_missing {
            return;
        }
        let path = listing.entry(task.id).path();
        let is_there =
            |name: &[u8]| std::str::from_utf8(name).is_ok_and(|name| task.entries.contains_key(name));
        for name in task.judge.listed_names().into_iter().filter(|name| !is_there(name)) {
            listing.unlisted.push(UnlistedEntry {
                path: crate::model::path::join_path(&path, &name),
                message: "it is listed, but does not exist".to_owned(),
                vanished: false,
            });
        }
    }

    fn read_rule_file(&self, task: &ObjectListingTask<'_>, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let node = std::str::from_utf8(name).ok().and_then(|name| task.entries.get(name));
        let object = node.and_then(|node| self.find_object(node));
        let Some(object) = object else { return Ok(None) };
        RuleError::check_file_len(name, object.size)?;
        self.read_beginning(object, RULE_FILE_MAX).map(Some)
    }

    fn find_object(&self, node: &KeyNode) -> Option<&PlainObject> {
        self.found.objects.get(node.object?)
    }

    /// Whether a directory of the destination is a Vellum store.
    fn is_store(&self, task: &ObjectListingTask<'_>) -> Result<bool> {
        // Reading a store as plain objects is harmless.
        if self.wish.side == SyncSide::Source {
            return Ok(false);
        }
        let has_folder = |name: &str| task.entries.get(name).is_some_and(|node| node.entries.is_some());
        let config = task.entries.get(CONFIG_OBJECT).and_then(|node| self.find_object(node));
        let config = config.filter(|object| object.size <= CONFIG_MAX);
        let head = config.map(|object| self.read_beginning(object, CONFIG_HEAD_LEN as u64)).transpose()?;
        Ok(own_place::is_vellum_store(head.as_deref(), has_folder))
    }

    fn read_beginning(&self, object: &PlainObject, max: u64) -> Result<Vec<u8>> {
        let range = 0..object.size.min(max);
        self.end.objects.read_range(&object.key, &object.tag, range).map_err(map_object_error)
    }
}

fn describe_dir(flags: EntryFlags) -> NewListingEntry {
    NewListingEntry { mode: DIR_MODE, flags, ..NewListingEntry::unknown_dir() }
}

fn describe_object(object: &PlainObject, flags: EntryFlags) -> NewListingEntry {
    let mtime: UnixTime = object.uploaded;
    let kind = FileKind::File;
    NewListingEntry { kind, mode: FILE_MODE, uid: 0, gid: 0, size: object.size, mtime, flags }
}
