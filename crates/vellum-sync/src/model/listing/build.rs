//! Building listings, one directory at a time.

use vellum_types::key::check_name;
use vellum_types::{FileKind, UnixTime};

use super::entry::EntryRecord;
use super::{EntryDetail, EntryFlags, ListingEntry, ListingEntryId, OwnerNames, TreeListing};

/// Most entries of one listing: numbers have 32 bits, and the highest one means none.
const ENTRIES_MAX: usize = u32::MAX as usize - 2;

/// Why entries do not form a listing. This host's own listings cannot fail so; in a received one it is the peer's
/// fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListingError {
    /// It is not a valid file name.
    #[error("a listing contains an invalid file name")]
    Name,
    /// Names are out of order, or occur twice.
    #[error("the entries of a directory are not in order")]
    Order,
    /// The parent is not a directory, or has its entries already.
    #[error("a listing has entries of something that is not a directory")]
    Place,
    /// There are too many entries, or too many bytes of names.
    #[error("a listing has too many entries, or names that are too long")]
    TooLarge,
}

/// The attributes of a new entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewListingEntry {
    /// Its file type.
    pub kind: FileKind,
    /// The lowest twelve mode bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of a file.
    pub size: u64,
    /// Modification time.
    pub mtime: UnixTime,
    /// Further facts.
    pub flags: EntryFlags,
}

impl NewListingEntry {
    /// Copies the attributes of an entry of another listing.
    #[must_use]
    pub fn from_entry(entry: &ListingEntry<'_>) -> Self {
        Self {
            kind: entry.kind(),
            mode: entry.mode(),
            uid: entry.uid(),
            gid: entry.gid(),
            size: entry.size(),
            mtime: entry.mtime(),
            flags: entry.flags(),
        }
    }

    /// A directory whose attributes are unknown.
    #[must_use]
    pub fn unknown_dir() -> Self {
        let kind = FileKind::Dir;
        let flags = EntryFlags::default();
        Self { kind, mode: 0o755, uid: 0, gid: 0, size: 0, mtime: UnixTime::default(), flags }
    }
}

/// The entries of one directory, in order.
#[derive(Debug, Default)]
pub struct DirectoryBlock {
    records: Vec<EntryRecord>,
    names: Vec<u8>,
    details: Vec<EntryDetail>,
}

impl DirectoryBlock {
    /// An empty block with the given capacity.
    #[must_use]
    pub fn with_capacity(entries: usize) -> Self {
        Self {
            records: Vec::with_capacity(entries),
            names: Vec::with_capacity(entries * 16),
            details: Vec::new(),
        }
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Adds an entry; names have to come in the order of their bytes.
    pub fn push(
        &mut self,
        name: &[u8],
        fresh: &NewListingEntry,
        detail: Option<EntryDetail>,
    ) -> Result<(), ListingError> {
        check_name(name).map_err(|_| ListingError::Name)?;
        // Comparisons of two listings, and searches, rely on this order. A listing of another host is refused
        // here.
        if self.records.last().is_some_and(|last| self.record_name(last) >= name) {
            return Err(ListingError::Order);
        }
        let place = |index: usize| u32::try_from(index).map_err(|_| ListingError::TooLarge);
        let mut record = EntryRecord::from_new_entry(fresh);
        record.name = place(self.names.len())?;
        record.name_len = u8::try_from(name.len()).map_err(|_| ListingError::Name)?;
        if let Some(detail) = detail {
            self.details.push(detail);
            record.detail = place(self.details.len())?;
        }
        self.names.extend_from_slice(name);
        self.records.push(record);
        Ok(())
    }

    /// Sets the link group of an entry that was pushed with details.
    pub fn set_link_group(&mut self, place: usize, group: u32) {
        let detail = self.records.get(place).and_then(|record| (record.detail as usize).checked_sub(1));
        if let Some(detail) = detail.and_then(|detail| self.details.get_mut(detail)) {
            detail.group = group;
        }
    }

    fn record_name(&self, record: &EntryRecord) -> &[u8] {
        let start = record.name as usize;
        self.names.get(start..start + usize::from(record.name_len)).unwrap_or_default()
    }
}

impl EntryRecord {
    fn from_new_entry(fresh: &NewListingEntry) -> Self {
        Self {
            size: if fresh.kind == FileKind::Dir { 0 } else { fresh.size },
            secs: fresh.mtime.secs,
            nanos: fresh.mtime.nanos.min(999_999_999),
            uid: fresh.uid,
            gid: fresh.gid,
            parent: 0,
            name: 0,
            detail: 0,
            mode: (fresh.mode & 0o7777) as u16,
            name_len: 0,
            flags: fresh.flags,
            kind: fresh.kind,
        }
    }
}

impl TreeListing {
    /// A listing of a root alone.
    #[must_use]
    pub fn new(root: &NewListingEntry, detail: Option<EntryDetail>) -> Self {
        let mut record = EntryRecord::from_new_entry(&NewListingEntry { kind: FileKind::Dir, ..*root });
        record.detail = u32::from(detail.is_some());
        Self {
            records: vec![record],
            names: Vec::new(),
            details: detail.into_iter().collect(),
            digests: std::collections::HashMap::new(),
            followed: std::collections::HashSet::new(),
            stamps: Vec::new(),
            begun: None,
            granularity: super::TimeGranularity::default(),
            unlisted: Vec::new(),
            linked_files: Vec::new(),
            shadowed: Vec::new(),
            leftovers: Vec::new(),
            owners: OwnerNames::default(),
        }
    }

    /// Adds the entries of a directory, once for each directory; returns the number of the first.
    pub fn attach_block(
        &mut self,
        dir: ListingEntryId,
        block: &mut DirectoryBlock,
    ) -> Result<ListingEntryId, ListingError> {
        let first = self.records.len();
        let place = |index: usize| u32::try_from(index).map_err(|_| ListingError::TooLarge);
        if first + block.len() > ENTRIES_MAX {
            return Err(ListingError::TooLarge);
        }
        place(self.names.len() + block.names.len())?;
        let names = place(self.names.len())?;
        let details = place(self.details.len())?;
        let parent = self.records.get_mut(dir.index()).ok_or(ListingError::Place)?;
        // The size of a directory holds the place of its entries. Place 0 is the root's, so a value other
        // than 0 means that entries are attached already.
        if parent.kind != FileKind::Dir || parent.size != 0 {
            return Err(ListingError::Place);
        }
        if block.is_empty() {
            return Ok(ListingEntryId::from_index(first));
        }
        parent.size = (first as u64) << 32 | block.len() as u64;
        for record in &mut block.records {
            record.parent = dir.as_u32();
            // Places in a block are relative to it until they are part of the listing.
            record.name += names;
            record.detail += if record.detail == 0 { 0 } else { details };
        }
        self.records.append(&mut block.records);
        self.names.append(&mut block.names);
        self.details.append(&mut block.details);
        Ok(ListingEntryId::from_index(first))
    }

    /// Replaces the name of every entry, and the target of every symlink, by the result of `convert`. Entries keep
    /// their order, which is not that of the new names, so the listing may only be displayed from then on.
    pub fn rename_for_display(&mut self, convert: &dyn Fn(&[u8]) -> Vec<u8>) {
        let mut names = Vec::with_capacity(self.names.len());
        let mut places = Vec::with_capacity(self.records.len());
        for record in &self.records {
            let start = record.name as usize;
            let old = self.names.get(start..start + usize::from(record.name_len)).unwrap_or_default();
            let new = convert(old);
            // A name that became too long to be one stays as it was.
            let (shown, len) = u8::try_from(new.len()).map_or((old, record.name_len), |len| (&new, len));
            // More bytes than a listing can hold: all names stay as they were.
            let Ok(place) = u32::try_from(names.len()) else { return };
            names.extend_from_slice(shown);
            places.push((place, len));
        }
        for (record, (place, len)) in self.records.iter_mut().zip(places) {
            (record.name, record.name_len) = (place, len);
        }
        self.names = names;
        for detail in &mut self.details {
            detail.target = convert(&detail.target).into();
        }
    }

    /// Replaces the attributes of an entry; a directory stays a directory.
    pub(crate) fn replace_attributes(
        &mut self,
        id: ListingEntryId,
        fresh: &NewListingEntry,
        detail: EntryDetail,
    ) {
        let Some(record) = self.records.get_mut(id.index()) else { return };
        let mut new = EntryRecord::from_new_entry(fresh);
        (new.parent, new.name, new.name_len, new.detail) =
            (record.parent, record.name, record.name_len, record.detail);
        if record.kind == FileKind::Dir {
            (new.kind, new.size) = (record.kind, record.size);
        }
        match (record.detail as usize).checked_sub(1).and_then(|place| self.details.get_mut(place)) {
            Some(old) => *old = detail,
            None => {
                // As many details as entries, which have numbers of 32 bits.
                self.details.push(detail);
                new.detail = self.details.len() as u32;
            }
        }
        *record = new;
    }

    /// Adds flags to an entry.
    pub fn add_flags(&mut self, id: ListingEntryId, flags: EntryFlags) {
        if let Some(record) = self.records.get_mut(id.index()) {
            record.flags = record.flags.union(flags);
        }
    }
}
