//! One entry of a listing.

use std::fmt;
use std::num::NonZeroU32;

use vellum_host::beneath::ExtendedAttribute;
use vellum_types::{FileKind, UnixTime};

use super::TreeListing;

/// The number of an entry in its listing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListingEntryId(NonZeroU32);

impl ListingEntryId {
    /// The root's.
    pub const ROOT: Self = Self(NonZeroU32::MIN);

    pub(super) fn from_index(index: usize) -> Self {
        let number = u32::try_from(index).unwrap_or(u32::MAX - 1).saturating_add(1);
        Self(NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN))
    }

    /// Its position in the listing, from 0.
    #[must_use]
    pub fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    /// The number that many positions later.
    #[must_use]
    pub fn offset_by(self, places: u32) -> Self {
        Self(self.0.saturating_add(places))
    }

    /// Its encoding on the wire: its position.
    #[must_use]
    pub fn as_u32(self) -> u32 {
        self.0.get() - 1
    }

    /// Decodes a number from the wire; None for a number beyond the limit of listings.
    #[must_use]
    pub fn from_u32(place: u32) -> Option<Self> {
        place.checked_add(1).and_then(NonZeroU32::new).map(Self)
    }
}

impl fmt::Debug for ListingEntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.index())
    }
}

/// Further facts of an entry. The bits are sent over the wire as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EntryFlags(pub u8);

impl EntryFlags {
    /// At the source: it exists, so its copy is not deleted, but a rule on size or age excludes it from the transfer.
    pub const WITHHELD: Self = Self(1);
    /// At the destination, of a protected entry: it is deleted nevertheless if its directory is. It shares the bit of
    /// [`Self::WITHHELD`], which no entry of a destination has.
    pub const PERISHABLE: Self = Self(1);
    /// At the destination: a rule protects it from deletion.
    pub const PROTECTED: Self = Self(2);
    /// A directory in which a rule excluded an entry: it cannot be removed.
    pub const KEEPS: Self = Self(4);
    /// A directory that could not be read, or not completely.
    pub const UNREAD: Self = Self(8);
    /// A file with fewer allocated bytes than its size.
    pub const SPARSE: Self = Self(16);
    /// A directory that is a Vellum store: no other program writes or deletes there. It shares the bit of
    /// [`Self::SPARSE`], which no directory has.
    pub const STORE: Self = Self(16);
    /// Another filesystem is mounted here.
    pub const MOUNT: Self = Self(32);
    /// A directory whose attributes are not transferred: the root of a listing that only holds named paths, a root that
    /// does not exist yet (at the destination), and the directories above named paths.
    pub const IMPLIED: Self = Self(64);
    /// A file with several names, whether or not the others are in the listing.
    pub const LINKED: Self = Self(128);

    /// Whether it has all of these flags.
    #[must_use]
    pub fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// With these flags added.
    #[must_use]
    pub fn union(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }

    /// With these flags added if the condition holds.
    #[must_use]
    pub fn union_if(self, flags: Self, condition: bool) -> Self {
        if condition { self.union(flags) } else { self }
    }
}

/// Facts that few entries have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EntryDetail {
    /// The target of a symlink.
    pub target: Box<[u8]>,
    /// The number of a device node, encoded like `st_rdev`.
    pub rdev: u64,
    /// The link group: entries of one group are names of one file; 0 for a file that is listed once.
    pub group: u32,
    /// Extended attributes and ACLs, sorted by name, as far as they were requested.
    pub xattrs: Box<[ExtendedAttribute]>,
    /// Access time, if it was requested.
    pub atime: Option<UnixTime>,
}

/// The representation of an entry in the arena.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryRecord {
    /// Of a file or symlink its size in bytes; of a directory the position of its first entry and their number.
    pub size: u64,
    pub secs: i64,
    pub nanos: u32,
    pub uid: u32,
    pub gid: u32,
    pub parent: u32,
    pub name: u32,
    /// The index of its details, from 1; 0 for none.
    pub detail: u32,
    pub mode: u16,
    pub name_len: u8,
    pub flags: EntryFlags,
    pub kind: FileKind,
}

/// An entry of a listing.
#[derive(Clone, Copy)]
pub struct ListingEntry<'l> {
    pub(super) listing: &'l TreeListing,
    pub(super) id: ListingEntryId,
}

impl<'l> ListingEntry<'l> {
    fn record(&self) -> &'l EntryRecord {
        &self.listing.records[self.id.index()]
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> ListingEntryId {
        self.id
    }

    /// Its listing.
    #[must_use]
    pub fn listing(&self) -> &'l TreeListing {
        self.listing
    }

    /// Its name; the root's is empty.
    #[must_use]
    pub fn name(&self) -> &'l [u8] {
        let record = self.record();
        let start = record.name as usize;
        self.listing.names.get(start..start + usize::from(record.name_len)).unwrap_or_default()
    }

    /// The directory that contains it; None for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let parent = self.record().parent as usize;
        (self.id != ListingEntryId::ROOT)
            .then_some(Self { listing: self.listing, id: ListingEntryId::from_index(parent) })
    }

    /// Its path from the root, without a leading slash; the root's is empty.
    #[must_use]
    pub fn path(&self) -> Vec<u8> {
        let mut names = Vec::new();
        let mut here = *self;
        while let Some(parent) = here.parent() {
            names.push(here.name());
            here = parent;
        }
        names.reverse();
        names.join(&b'/')
    }

    /// Its file type.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.record().kind
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind() == FileKind::Dir
    }

    /// Whether it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.kind() == FileKind::File
    }

    /// The lowest twelve mode bits.
    #[must_use]
    pub fn mode(&self) -> u32 {
        u32::from(self.record().mode)
    }

    /// Owner.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.record().uid
    }

    /// Group.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.record().gid
    }

    /// The size of a file in bytes; 0 for all other types.
    #[must_use]
    pub fn size(&self) -> u64 {
        if self.is_file() { self.record().size } else { 0 }
    }

    /// Modification time.
    #[must_use]
    pub fn mtime(&self) -> UnixTime {
        let record = self.record();
        UnixTime { secs: record.secs, nanos: record.nanos }
    }

    /// Access time, if it was requested.
    #[must_use]
    pub fn atime(&self) -> Option<UnixTime> {
        self.detail().and_then(|detail| detail.atime)
    }

    /// Its flags.
    #[must_use]
    pub fn flags(&self) -> EntryFlags {
        self.record().flags
    }

    /// Its details, if it has any.
    #[must_use]
    pub fn detail(&self) -> Option<&'l EntryDetail> {
        self.listing.details.get((self.record().detail as usize).checked_sub(1)?)
    }

    /// The target of a symlink; empty for all other types.
    #[must_use]
    pub fn symlink_target(&self) -> &'l [u8] {
        self.detail().map_or(&[], |detail| &detail.target)
    }

    /// The number of a device node.
    #[must_use]
    pub fn rdev(&self) -> u64 {
        self.detail().map_or(0, |detail| detail.rdev)
    }

    /// The link group: entries of one group are names of one file.
    #[must_use]
    pub fn link_group(&self) -> Option<u32> {
        self.detail().map(|detail| detail.group).filter(|group| *group != 0)
    }

    /// Extended attributes and ACLs, as far as they were requested.
    #[must_use]
    pub fn xattrs(&self) -> &'l [ExtendedAttribute] {
        self.detail().map_or(&[], |detail| &detail.xattrs)
    }

    /// The entries of a directory, in the order of their names.
    pub fn children(&self) -> impl ExactSizeIterator<Item = ListingEntry<'l>> + Clone + use<'l> {
        let record = self.record();
        let (first, count) = match record.kind {
            FileKind::Dir => ((record.size >> 32) as usize, (record.size & u64::from(u32::MAX)) as usize),
            _ => (0, 0),
        };
        let listing = self.listing;
        (first..first + count).map(move |index| Self { listing, id: ListingEntryId::from_index(index) })
    }

    /// The entry of a directory with this name.
    #[must_use]
    pub fn find_child(&self, name: &[u8]) -> Option<Self> {
        let children = self.children();
        let first = children.clone().next()?.id.index();
        let records = &self.listing.records[first..first + children.len()];
        let name_of = |record: &EntryRecord| {
            let start = record.name as usize;
            self.listing.names.get(start..start + usize::from(record.name_len)).unwrap_or_default()
        };
        // The entries of a directory are sorted by name.
        let place = records.binary_search_by(|record| name_of(record).cmp(name)).ok()?;
        Some(Self { listing: self.listing, id: ListingEntryId::from_index(first + place) })
    }
}

impl fmt::Debug for ListingEntry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?} '{}'", self.id, self.kind(), String::from_utf8_lossy(&self.path()))
    }
}
