//! Several sources combined into one, which contains the entries of all of them.
//!
//! Invariant: of entries with the same path a directory takes precedence, then the earlier source; directories contain
//! the entries of all sources. Content is read from the source of the entry that is used. Deliberately absent: the
//! sources themselves.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::sync::Arc;

use parking_lot::Mutex;
use vellum_host::ProgressMeter;

use crate::ends::{ListingRequest, OldVersion, SourceContent, SourceEnd, SyncEnd, SyncSide, WantedFile};
use crate::error::{Result, SyncError};
use crate::local::receive::SyncReport;
use crate::local::scan::EntryFilter;
use crate::model::listing::{
    ContentDigests, DirectoryBlock, EntryFlags, ListingEntry, ListingEntryId, NewListingEntry, TreeListing,
    UnlistedEntry,
};

/// One of the sources.
pub struct UnionPart {
    /// The source.
    pub source: Box<dyn SourceEnd>,
    /// The rules that exclude its entries.
    pub rules: Arc<dyn EntryFilter>,
    /// The name of the directory in the union that holds its entries; None: they are in the root.
    pub under: Option<Vec<u8>>,
    /// A directory (device and inode) that is not entered.
    pub avoid: Option<(u64, u64)>,
}

/// The combined sources.
pub struct SourceUnion {
    parts: Vec<UnionPart>,
    listed: Mutex<Arc<LastListed>>,
}

/// The last listing.
#[derive(Default)]
struct LastListed {
    parts: Vec<TreeListing>,
    /// The origin of each entry of the union: the part, and the number in its listing.
    origins: Vec<EntryOrigin>,
}

type EntryOrigin = (usize, ListingEntryId);

impl SourceUnion {
    /// Combines sources, in their order of precedence.
    #[must_use]
    pub fn new(parts: Vec<UnionPart>) -> Self {
        Self { parts, listed: Mutex::default() }
    }

    fn last_listed(&self) -> Arc<LastListed> {
        Arc::clone(&self.listed.lock())
    }
}

impl LastListed {
    fn find_origin(&self, id: ListingEntryId) -> Option<(usize, ListingEntry<'_>)> {
        let (part, id) = *self.origins.get(id.index())?;
        Some((part, self.parts.get(part)?.get(id)?))
    }

    /// Translates entries of the union, each with further data, to entries of their parts: a list for each part.
    fn group_by_part<T>(
        &self,
        entries: impl Iterator<Item = (ListingEntryId, T)>,
    ) -> Vec<Vec<(ListingEntryId, T)>> {
        let mut lists: Vec<Vec<(ListingEntryId, T)>> = self.parts.iter().map(|_| Vec::new()).collect();
        for (id, with) in entries {
            if let Some((part, entry)) = self.find_origin(id)
                && let Some(list) = lists.get_mut(part)
            {
                list.push((entry.id(), with));
            }
        }
        lists
    }
}

impl SyncEnd for SourceUnion {
    fn list_entries(&self, wish: &ListingRequest, meter: &ProgressMeter) -> Result<TreeListing> {
        let list = |part: &UnionPart| {
            part.source.list_entries(
                &ListingRequest {
                    side: SyncSide::Source,
                    options: Arc::clone(&wish.options),
                    rules: Arc::clone(&part.rules),
                    top: part.under.clone().unwrap_or_default(),
                    avoid: part.avoid,
                    owners: wish.owners,
                },
                meter,
            )
        };
        // Each listing uses several threads itself, so sources are listed one after the other.
        let listings = self.parts.iter().map(list).collect::<Result<Vec<_>>>()?;
        let merge = ListingMerge {
            parts: &self.parts,
            listings: &listings,
            groups: HashMap::new(),
            moves: wish.options.moves,
        };
        let (listing, origins) = merge.merge_listings()?;
        let listed = Arc::new(LastListed { parts: listings, origins });
        *self.listed.lock() = listed;
        Ok(listing)
    }

    fn hash_files(
        &self,
        _: &TreeListing,
        files: &[ListingEntryId],
        meter: &ProgressMeter,
    ) -> Result<ContentDigests> {
        let listed = self.last_listed();
        let mut found = vec![None; files.len()];
        let placed = files.iter().enumerate().map(|(place, id)| (*id, place));
        for ((part, listing), own) in self.parts.iter().zip(&listed.parts).zip(listed.group_by_part(placed)) {
            let (ids, places): (Vec<ListingEntryId>, Vec<usize>) = own.into_iter().unzip();
            let digests = part.source.hash_files(listing, &ids, meter)?;
            for (place, digest) in places.into_iter().zip(digests) {
                if let Some(slot) = found.get_mut(place) {
                    *slot = digest;
                }
            }
        }
        Ok(found)
    }
}

impl SourceEnd for SourceUnion {
    fn announce_files(&self, _: &TreeListing, files: &[WantedFile]) {
        let listed = self.last_listed();
        let wanted = files.iter().map(|wanted| (wanted.id, wanted.delta));
        for ((part, listing), own) in self.parts.iter().zip(&listed.parts).zip(listed.group_by_part(wanted)) {
            let own: Vec<WantedFile> = own.into_iter().map(|(id, delta)| WantedFile { id, delta }).collect();
            part.source.announce_files(listing, &own);
        }
    }

    fn open_content(&self, file: ListingEntry<'_>, old: Option<OldVersion<'_>>) -> Result<SourceContent> {
        let listed = self.last_listed();
        let (number, entry) = listed.find_origin(file.id()).ok_or(SyncError::Vanished)?;
        self.parts.get(number).ok_or(SyncError::Vanished)?.source.open_content(entry, old)
    }

    fn open_unchecked(&self, file: ListingEntry<'_>) -> Result<Option<File>> {
        let listed = self.last_listed();
        let (number, entry) = listed.find_origin(file.id()).ok_or(SyncError::Vanished)?;
        self.parts.get(number).ok_or(SyncError::Vanished)?.source.open_unchecked(entry)
    }

    fn remove_entries(
        &self,
        _: &TreeListing,
        entries: &[ListingEntryId],
        meter: &ProgressMeter,
    ) -> Result<SyncReport> {
        let listed = self.last_listed();
        let mut all = SyncReport::default();
        let moved = entries.iter().map(|id| (*id, ()));
        for ((part, listing), own) in self.parts.iter().zip(&listed.parts).zip(listed.group_by_part(moved)) {
            let ids: Vec<ListingEntryId> = own.into_iter().map(|(id, ())| id).collect();
            if ids.is_empty() {
                continue;
            }
            let mut taken = part.source.remove_entries(listing, &ids, meter)?;
            taken.problems.iter_mut().for_each(|problem| problem.path = part.path_in_union(&problem.path));
            all.taken += taken.taken;
            all.stopped |= taken.stopped;
            all.problems.extend(taken.problems);
        }
        Ok(all)
    }

    fn needs_old_version(&self) -> bool {
        self.parts.iter().any(|part| part.source.needs_old_version())
    }
}

impl UnionPart {
    /// The path in the union for a path of this part.
    fn path_in_union(&self, path: &[u8]) -> Vec<u8> {
        let names = [self.under.as_deref().unwrap_or_default(), path];
        let names: Vec<&[u8]> = names.into_iter().filter(|name| !name.is_empty()).collect();
        names.join(&b'/')
    }
}

/// The listings that are being merged.
struct ListingMerge<'a> {
    parts: &'a [UnionPart],
    listings: &'a [TreeListing],
    /// Link groups of the union.
    groups: HashMap<LinkedFile, u32>,
    /// Copied entries are removed from their sources.
    moves: bool,
}

/// The identity of a file with several names.
#[derive(PartialEq, Eq, Hash)]
enum LinkedFile {
    /// Its device and inode: the sources of this host can share such files.
    Inode(u64, u64),
    /// The part, and the link group in its listing.
    Group(usize, u32),
}

/// Whether a rule excludes a whole source.
fn is_omitted(listing: &TreeListing) -> bool {
    listing.root().flags().contains(EntryFlags::WITHHELD)
}

/// Directories of the parts that form one directory of the union, with its number.
struct UnionTask {
    id: ListingEntryId,
    from: Vec<EntryOrigin>,
}

/// An entry of a part, and its name in the union.
struct PartEntry<'a> {
    name: Vec<u8>,
    part: usize,
    entry: ListingEntry<'a>,
}

impl<'a> ListingMerge<'a> {
    fn merge_listings(mut self) -> Result<(TreeListing, Vec<EntryOrigin>)> {
        let content = |(_, part): &(usize, &UnionPart)| part.under.is_none();
        let of_root: Vec<EntryOrigin> = self
            .parts
            .iter()
            .enumerate()
            .filter(content)
            .map(|(part, _)| (part, ListingEntryId::ROOT))
            .collect();
        // The attributes of the destination itself come from the first source whose content was named.
        let first = of_root.iter().find_map(|origin| {
            let root = self.origin_entry(*origin)?;
            (!root.flags().contains(EntryFlags::IMPLIED)).then_some((*origin, root))
        });
        let mut listing = match first {
            Some((_, root)) => TreeListing::new(&NewListingEntry::from_entry(&root), root.detail().cloned()),
            None if self.listings.iter().all(is_omitted) => crate::local::scan::create_omitted_listing(),
            None => TreeListing::new(
                &NewListingEntry { flags: EntryFlags::IMPLIED, ..NewListingEntry::unknown_dir() },
                None,
            ),
        };
        let mut origins = vec![first.map_or((0, ListingEntryId::ROOT), |(origin, _)| origin)];
        let mut tasks = VecDeque::from([UnionTask { id: ListingEntryId::ROOT, from: of_root }]);
        while let Some(task) = tasks.pop_front() {
            self.merge_dir(&task, &mut listing, &mut origins, &mut tasks)?;
        }
        self.merge_unlisted(&mut listing);
        Ok((listing, origins))
    }

    fn origin_entry(&self, (part, id): EntryOrigin) -> Option<ListingEntry<'a>> {
        self.listings.get(part)?.get(id)
    }

    /// The entries of a directory, by name and then in the order of the parts.
    fn collect_children(&self, task: &UnionTask) -> Vec<PartEntry<'a>> {
        let mut all: Vec<PartEntry<'a>> = Vec::new();
        for origin in &task.from {
            let children = self.origin_entry(*origin).into_iter().flat_map(|dir| dir.children());
            let part = origin.0;
            all.extend(children.map(|entry| PartEntry { name: entry.name().to_vec(), part, entry }));
        }
        if task.id == ListingEntryId::ROOT {
            let taken = self.parts.iter().zip(self.listings).enumerate();
            for (part, (described, listing)) in taken.filter(|(_, (_, listing))| !is_omitted(listing)) {
                let entry = listing.root();
                all.extend(described.under.clone().map(|name| PartEntry { name, part, entry }));
            }
        }
        // By name, then in the order of the command line: the earlier source wins, as in rsync.
        all.sort_by(|a, b| (&a.name, a.part).cmp(&(&b.name, b.part)));
        all
    }

    fn merge_dir(
        &mut self,
        task: &UnionTask,
        listing: &mut TreeListing,
        origins: &mut Vec<EntryOrigin>,
        tasks: &mut VecDeque<UnionTask>,
    ) -> Result<()> {
        let kept = [EntryFlags::KEEPS, EntryFlags::UNREAD, EntryFlags::MOUNT];
        let flags = task.from.iter().filter_map(|origin| self.origin_entry(*origin)).map(|dir| dir.flags());
        let marks = flags.fold(EntryFlags::default(), |marks, flags| {
            kept.iter().fold(marks, |marks, mark| marks.union_if(*mark, flags.contains(*mark)))
        });
        listing.add_flags(task.id, marks);
        let children = self.collect_children(task);
        let mut block = DirectoryBlock::with_capacity(children.len());
        let mut dirs = Vec::new();
        let mut stamps = Vec::new();
        for same in children.chunk_by(|a, b| a.name == b.name) {
            // One that was named goes before one that is on the way to something else.
            let in_dirs = same.iter().filter(|one| one.entry.is_dir());
            let is_named = |one: &&PartEntry<'_>| !one.entry.flags().contains(EntryFlags::IMPLIED);
            let dir = in_dirs.clone().find(is_named).or_else(|| in_dirs.clone().next());
            let Some(taken) = dir.or(same.first()) else { continue };
            let PartEntry { name, part, entry } = taken;
            if entry.is_dir() {
                let from = in_dirs.map(|one| (one.part, one.entry.id())).collect::<Vec<EntryOrigin>>();
                dirs.push((block.len() as u32, from));
            }
            // rsync passes over these silently. A user who merges two directories should know that a file of
            // one is not copied.
            if same.iter().any(|other| self.is_shadowed(taken, other)) {
                let names = [listing.entry(task.id).path(), name.clone()];
                let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).filter(|n| !n.is_empty()).collect();
                listing.shadowed.push(names.join(&b'/'));
            }
            stamps.push(entry.listing().change_stamp(entry.id()));
            let detail = entry.detail().cloned().map(|mut detail| {
                detail.group = self.map_link_group(*part, detail.group);
                detail
            });
            block.push(name, &NewListingEntry::from_entry(entry), detail)?;
            origins.push((*part, entry.id()));
        }
        let first = listing.attach_block(task.id, &mut block)?;
        for (place, stamp) in (0..).zip(stamps).filter(|(_, stamp)| *stamp != 0) {
            listing.set_change_stamp(first.offset_by(place), stamp);
        }
        tasks.extend(dirs.into_iter().map(|(place, from)| UnionTask { id: first.offset_by(place), from }));
        Ok(())
    }

    fn map_link_group(&mut self, part: usize, group: u32) -> u32 {
        if group == 0 {
            return 0;
        }
        let next = self.groups.len() as u32 + 1;
        let files =
            self.listings.get(part).map(|listing| listing.linked_files.as_slice()).unwrap_or_default();
        // Two sources can contain names of one file. On this host device and inode tell; numbers of another
        // host mean nothing here.
        let file = match files.get(group as usize - 1) {
            Some((device, inode)) => LinkedFile::Inode(*device, *inode),
            None => LinkedFile::Group(part, group),
        };
        *self.groups.entry(file).or_insert(next)
    }

    /// Whether the omission of another part's entry is reported: it differs from the used one, or it stays at its
    /// source although entries are moved.
    fn is_shadowed(&self, taken: &PartEntry<'_>, other: &PartEntry<'_>) -> bool {
        let looks = |entry: &ListingEntry<'_>| (entry.kind(), entry.size(), entry.mtime());
        taken.part != other.part
            && !other.entry.is_dir()
            && (self.moves || looks(&taken.entry) != looks(&other.entry))
    }

    /// Merges unlisted entries and the names of owners.
    fn merge_unlisted(&self, union: &mut TreeListing) {
        for (part, listing) in self.parts.iter().zip(self.listings) {
            for unlisted in &listing.unlisted {
                union
                    .unlisted
                    .push(UnlistedEntry { path: part.path_in_union(&unlisted.path), ..unlisted.clone() });
            }
            for (id, name) in &listing.owners.users {
                union.owners.users.entry(*id).or_insert_with(|| name.clone());
            }
            for (id, name) in &listing.owners.groups {
                union.owners.groups.entry(*id).or_insert_with(|| name.clone());
            }
        }
    }
}
