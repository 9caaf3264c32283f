//! Owners, modes and special files that are stored in an extended attribute instead of being set, as rsync's
//! `--fake-super` does: so a user who may set none of these can keep a copy of root's files.
//!
//! The metadata of a file or directory is in `user.rsync.%stat`; symlinks, devices, fifos and sockets are stored as
//! regular files, that of a symlink with its target as content. Attributes outside of `user.` are stored with the
//! prefix `user.rsync.`.
//!
//! Invariant: a source is decoded when it is listed, and a destination receives a listing that is encoded already, so
//! that plans and writers are the same with and without it. Deliberately absent: ACLs.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;

use rustix::fs::{major, makedev, minor};
use vellum_host::ProgressMeter;
use vellum_host::beneath::{ExtendedAttribute, HeldDir, HeldNode};
use vellum_host::metadata::FileStat;
use vellum_types::FileKind;

use crate::ends::{
    ContentPieces, ListingRequest, OldVersion, SourceContent, SourceEnd, SyncEnd, TransferPiece, WantedFile,
};
use crate::error::{Result, SyncError};
use crate::model::listing::{
    ContentDigests, EntryDetail, EntryFlags, ListingEntry, ListingEntryId, NewListingEntry, TreeListing,
};
use crate::model::options::{ACL_PREFIX, SymlinkHandling, SyncOptions};
use crate::plan::WantedAttributes;

/// The attribute that contains the metadata.
pub(crate) const STORED_STAT: &[u8] = b"user.rsync.%stat";
/// The prefix of stored attributes that only root may set.
const STORED_PREFIX: &[u8] = b"user.rsync.";
const USER_PREFIX: &[u8] = b"user.";
/// Longest target of a symlink, bytes.
const TARGET_MAX: u64 = 4095;
/// The file type bits of a mode.
const TYPE_MASK: u32 = 0o170_000;

/// The metadata in the attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoredStat {
    /// The file type.
    pub kind: FileKind,
    /// The lowest twelve mode bits.
    pub mode: u32,
    /// The number of a device node, encoded like `st_rdev`.
    pub rdev: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl StoredStat {
    /// The attribute's value: `MODE MAJOR,MINOR UID:GID`, the mode in octal and with the bits of its type.
    pub fn encode(&self) -> Vec<u8> {
        let Self { kind, mode, rdev, uid, gid } = *self;
        format!("{:o} {},{} {uid}:{gid}", type_bits(kind) | mode & 0o7777, major(rdev), minor(rdev))
            .into_bytes()
    }

    /// Parses a value; None if it is damaged.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let mut fields = std::str::from_utf8(value).ok()?.split(' ');
        let mode = u32::from_str_radix(fields.next()?, 8).ok()?;
        let (major, minor) = fields.next()?.split_once(',')?;
        let (uid, gid) = fields.next()?.split_once(':')?;
        // A value that is not understood completely is damaged. Applying a part of it could give a file to
        // somebody else.
        if fields.next().is_some() {
            return None;
        }
        let kind = kind_of_type(mode & TYPE_MASK)?;
        let rdev = makedev(major.parse().ok()?, minor.parse().ok()?);
        Some(Self { kind, mode: mode & 0o7777, rdev, uid: uid.parse().ok()?, gid: gid.parse().ok()? })
    }

    /// Reads the metadata that a regular file or directory stores; None if it stores none.
    pub fn read_from_node(node: &HeldNode<'_>, holder: FileKind, name: &[u8]) -> Result<Option<Self>> {
        let Some(value) = node.read_xattr(STORED_STAT)? else { return Ok(None) };
        let fits = |stored: &Self| (stored.kind == FileKind::Dir) == (holder == FileKind::Dir);
        Self::parse(&value)
            .filter(fits)
            .map(Some)
            .ok_or_else(|| damaged_error(name, "the attribute that has it"))
    }

    /// The attributes of the entry that a file represents.
    pub fn apply_to(&self, holder: FileStat) -> FileStat {
        let Self { kind, mode, rdev, uid, gid } = *self;
        FileStat { kind, mode, rdev, uid, gid, ..holder }
    }
}

/// Reads the target of a symlink that a regular file represents.
pub(crate) fn read_stored_target(dir: &HeldDir, name: &[u8]) -> Result<Vec<u8>> {
    let mut target = Vec::new();
    let file = dir.open_file(name)?.file;
    file.take(TARGET_MAX + 1).read_to_end(&mut target).map_err(SyncError::wrap_io_error("read"))?;
    match target.is_empty() || target.contains(&0) || target.len() as u64 > TARGET_MAX {
        true => Err(damaged_error(name, "the target of the symlink")),
        false => Ok(target),
    }
}

fn damaged_error(name: &[u8], part: &str) -> SyncError {
    let why = format!("{part} is damaged");
    SyncError::End { what: "cannot read the stored metadata of", path: name.to_vec(), why }
}

fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::File => 0o100_000,
        FileKind::Dir => 0o040_000,
        FileKind::Symlink => 0o120_000,
        FileKind::Fifo => 0o010_000,
        FileKind::Socket => 0o140_000,
        FileKind::CharDevice => 0o020_000,
        FileKind::BlockDevice => 0o060_000,
    }
}

fn kind_of_type(bits: u32) -> Option<FileKind> {
    use FileKind::{BlockDevice, CharDevice, Dir, Fifo, File, Socket, Symlink};
    [File, Dir, Symlink, Fifo, Socket, CharDevice, BlockDevice]
        .into_iter()
        .find(|kind| type_bits(*kind) == bits)
}

/// The name under which an attribute is stored; None if it is not stored.
fn stored_xattr_name(name: &[u8]) -> Option<Vec<u8>> {
    if name.starts_with(ACL_PREFIX) || name.starts_with(STORED_PREFIX) {
        return None;
    }
    match name.starts_with(USER_PREFIX) {
        true => Some(name.to_vec()),
        false => Some([STORED_PREFIX, name].concat()),
    }
}

/// The original name of a stored attribute; None for the metadata attribute itself.
pub(crate) fn original_xattr_name(stored: &[u8]) -> Option<Vec<u8>> {
    match stored.strip_prefix(STORED_PREFIX) {
        Some(name) => (!name.starts_with(b"%")).then(|| name.to_vec()),
        None => Some(stored.to_vec()),
    }
}

/// A source with an encoded listing, in which special files are regular ones.
pub struct StoredStatSource<'s> {
    inner: &'s dyn SourceEnd,
    /// The content of regular files that represent other entries.
    contents: HashMap<ListingEntryId, Vec<u8>>,
}

impl<'s> StoredStatSource<'s> {
    /// Encodes the listing of a source for a destination that stores metadata in attributes; returns a source with that
    /// listing, and the options for the plan.
    #[must_use]
    pub fn encode_listing(
        inner: &'s dyn SourceEnd,
        listing: &mut TreeListing,
        options: &SyncOptions,
    ) -> (Self, SyncOptions) {
        let mut options = options.clone();
        // Any user can store any group in an attribute.
        options.preserve.receiver = None;
        let mut contents = HashMap::new();
        let entries: Vec<_> = listing.iter().map(|entry| entry.id()).collect();
        for id in entries {
            let Some(encoded) = EncodedEntry::from_entry(&listing.entry(id), &options) else { continue };
            contents.extend(encoded.content.map(|content| (id, content)));
            listing.replace_attributes(id, &encoded.fresh, encoded.detail);
        }
        // Owners, groups and modes are in the attribute now. Applying them again to the file that keeps it
        // would fail, or lock its keeper out.
        options.preserve.owners = false;
        options.preserve.groups = false;
        options.changes.owner = None;
        options.changes.group = None;
        options.changes.modes.clear();
        (Self { inner, contents }, options)
    }
}

/// An entry as the destination receives it.
struct EncodedEntry {
    fresh: NewListingEntry,
    detail: EntryDetail,
    /// The content of the regular file that represents it.
    content: Option<Vec<u8>>,
}

impl EncodedEntry {
    /// Encodes an entry; None for one that is not copied anyway.
    fn from_entry(entry: &ListingEntry<'_>, options: &SyncOptions) -> Option<Self> {
        let preserve = &options.preserve;
        if entry.flags().contains(EntryFlags::IMPLIED) {
            return None;
        }
        let content = match entry.kind() {
            FileKind::File | FileKind::Dir => None,
            FileKind::Symlink if preserve.symlinks == SymlinkHandling::Keep => {
                Some(entry.symlink_target().to_vec())
            }
            FileKind::CharDevice | FileKind::BlockDevice if preserve.devices => Some(Vec::new()),
            FileKind::Fifo | FileKind::Socket if preserve.specials => Some(Vec::new()),
            FileKind::Symlink
            | FileKind::CharDevice
            | FileKind::BlockDevice
            | FileKind::Fifo
            | FileKind::Socket => return None,
        };
        let wanted = WantedAttributes::from_entry(entry, options);
        let stat = StoredStat {
            kind: entry.kind(),
            mode: wanted.source_mode(),
            rdev: entry.rdev(),
            uid: wanted.uid.unwrap_or(entry.uid()),
            gid: wanted.gid.unwrap_or(entry.gid()),
        };
        let is_dir = entry.is_dir();
        // The user who keeps the file must be able to read and change it.
        let mode = stat.mode & 0o777 | if is_dir { 0o700 } else { 0o600 };
        let kind = if is_dir { FileKind::Dir } else { FileKind::File };
        // The file that stands for a symlink has the target as its content.
        let size = content.as_ref().map_or(entry.size(), |content| content.len() as u64);
        let mut xattrs: Vec<_> = entry
            .xattrs()
            .iter()
            .filter_map(|xattr| {
                Some(ExtendedAttribute { name: stored_xattr_name(&xattr.name)?, value: xattr.value.clone() })
            })
            .collect();
        xattrs.push(ExtendedAttribute { name: STORED_STAT.to_vec(), value: stat.encode() });
        xattrs.sort_unstable();
        let detail = EntryDetail {
            target: Box::default(),
            rdev: 0,
            group: entry.link_group().unwrap_or_default(),
            xattrs: xattrs.into(),
            atime: entry.atime(),
        };
        Some(Self {
            fresh: NewListingEntry { kind, mode, size, ..NewListingEntry::from_entry(entry) },
            detail,
            content,
        })
    }
}

impl SyncEnd for StoredStatSource<'_> {
    fn list_entries(&self, wish: &ListingRequest, meter: &ProgressMeter) -> Result<TreeListing> {
        self.inner.list_entries(wish, meter)
    }

    fn hash_files(
        &self,
        listing: &TreeListing,
        files: &[ListingEntryId],
        meter: &ProgressMeter,
    ) -> Result<ContentDigests> {
        // The source would hash a symlink or device of this number, which has no content.
        let real: Vec<_> = files.iter().copied().filter(|id| !self.contents.contains_key(id)).collect();
        let mut hashed = self.inner.hash_files(listing, &real, meter)?.into_iter();
        let one = |id| match self.contents.get(id) {
            Some(content) => Some(*blake3::hash(content).as_bytes()),
            None => hashed.next().flatten(),
        };
        Ok(files.iter().map(one).collect())
    }
}

impl SourceEnd for StoredStatSource<'_> {
    fn announce_files(&self, listing: &TreeListing, files: &[WantedFile]) {
        let real: Vec<_> =
            files.iter().copied().filter(|file| !self.contents.contains_key(&file.id)).collect();
        self.inner.announce_files(listing, &real);
    }

    fn open_content(&self, file: ListingEntry<'_>, old: Option<OldVersion<'_>>) -> Result<SourceContent> {
        match self.contents.get(&file.id()) {
            Some(content) => {
                Ok(SourceContent::Pieces(Box::new(StoredContent { bytes: content.clone(), is_read: false })))
            }
            None => self.inner.open_content(file, old),
        }
    }

    fn open_unchecked(&self, file: ListingEntry<'_>) -> Result<Option<File>> {
        match self.contents.contains_key(&file.id()) {
            true => Ok(None),
            false => self.inner.open_unchecked(file),
        }
    }

    fn needs_old_version(&self) -> bool {
        self.inner.needs_old_version()
    }
}

/// The content of a file that represents a special one.
struct StoredContent {
    bytes: Vec<u8>,
    is_read: bool,
}

impl ContentPieces for StoredContent {
    fn next_piece(&mut self) -> Result<Option<TransferPiece<'_>>> {
        let is_read = std::mem::replace(&mut self.is_read, true);
        Ok((!is_read && !self.bytes.is_empty()).then_some(TransferPiece::Data(&self.bytes)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KINDS: [FileKind; 7] = [
        FileKind::File,
        FileKind::Dir,
        FileKind::Symlink,
        FileKind::Fifo,
        FileKind::Socket,
        FileKind::CharDevice,
        FileKind::BlockDevice,
    ];

    #[test]
    fn values_are_written_as_rsync_writes_them() {
        let device =
            StoredStat { kind: FileKind::CharDevice, mode: 0o644, rdev: makedev(5, 7), uid: 0, gid: 6 };
        assert_eq!(device.encode(), b"20644 5,7 0:6");
        let program = StoredStat { kind: FileKind::File, mode: 0o4751, rdev: 0, uid: 12, gid: 34 };
        assert_eq!(program.encode(), b"104751 0,0 12:34");
    }

    #[test]
    fn damaged_values_are_none() {
        let damaged =
            ["", "100644", "100644 0,0", "100644 0 0:0", "100644 0,0 0", "644 0,0 0:0", "170644 0,0 0:0"];
        for value in damaged.into_iter().chain(["100644 0,0 0:0 ", "100648 0,0 0:0", "100644 0,0 -1:0"]) {
            assert_eq!(StoredStat::parse(value.as_bytes()), None, "{value}");
        }
    }

    #[test]
    fn attributes_of_root_have_other_names_and_come_back() {
        for name in [&b"user.mine"[..], b"trusted.roots", b"security.capability"] {
            let stored = stored_xattr_name(name).expect("kept");
            assert!(stored.starts_with(USER_PREFIX));
            assert_eq!(original_xattr_name(&stored).as_deref(), Some(name));
        }
        assert_eq!(stored_xattr_name(b"system.posix_acl_access"), None);
        assert_eq!(stored_xattr_name(STORED_STAT), None);
        assert_eq!(original_xattr_name(b"user.rsync.%aacl"), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            kind in prop::sample::select(&KINDS[..]),
            mode in 0_u32..0o10000,
            (major, minor) in (0_u32..4096, 0_u32..(1 << 20)),
            (uid, gid) in any::<(u32, u32)>(),
        ) {
            let stat = StoredStat { kind, mode, rdev: makedev(major, minor), uid, gid };
            prop_assert_eq!(StoredStat::parse(&stat.encode()), Some(stat));
        }

        #[test]
        fn no_value_is_too_strange_to_be_read(value in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(stat) = StoredStat::parse(&value) {
                prop_assert_eq!(StoredStat::parse(&stat.encode()), Some(stat));
            }
        }
    }
}
