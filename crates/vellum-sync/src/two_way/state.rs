//! The recorded state of an entry, and its comparison with a later state.
//!
//! Invariant: a state is compared only with a later one of the same side, so that every attribute is compared as that
//! side stores it, to the nanosecond; attributes that the other side rounds or cannot store are no change.

use vellum_types::{FileKind, UnixTime};
use xxhash_rust::xxh3::Xxh3;

use crate::model::listing::{ContentDigest, ListingEntry};
use crate::model::options::PreserveOptions;

/// The attributes of an entry on one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryState {
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
    /// The number of a device node.
    pub rdev: u64,
    /// A hash of the extended attributes and ACLs that the run preserves; 0 if there are none.
    pub mark: u64,
}

impl EntryState {
    /// The state of a listed entry.
    #[must_use]
    pub fn from_entry(entry: ListingEntry<'_>) -> Self {
        Self {
            kind: entry.kind(),
            mode: entry.mode(),
            uid: entry.uid(),
            gid: entry.gid(),
            size: entry.size(),
            mtime: entry.mtime(),
            rdev: entry.rdev(),
            mark: compute_mark(entry),
        }
    }
}

fn compute_mark(entry: ListingEntry<'_>) -> u64 {
    if entry.xattrs().is_empty() {
        return 0;
    }
    let mut hash = Xxh3::new();
    for xattr in entry.xattrs() {
        for part in [&xattr.name, &xattr.value] {
            // With the lengths, no two lists of attributes give the same bytes.
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    hash.digest()
}

/// The extent of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeExtent {
    /// No change.
    None,
    /// Only attributes changed: no content can be lost.
    Attributes,
    /// The content or the type changed.
    Content,
}

/// An entry's attributes with further facts.
#[derive(Debug, Clone, Copy)]
pub struct EntryFacts<'a> {
    /// Its attributes.
    pub state: EntryState,
    /// The target of a symlink.
    pub target: &'a [u8],
    /// The hash of a file whose content was read.
    pub digest: Option<&'a ContentDigest>,
    /// The change time (`ctime`); 0 if unknown.
    pub stamp: u64,
    /// It was written so shortly before its listing that a later edit may leave the same size and time.
    pub unsure: bool,
}

impl<'a> EntryFacts<'a> {
    /// The facts of a listed entry.
    #[must_use]
    pub fn from_entry(entry: ListingEntry<'a>) -> Self {
        let digest = entry.listing().content_digest(entry.id());
        let stamp = entry.listing().change_stamp(entry.id());
        Self {
            state: EntryState::from_entry(entry),
            target: entry.symlink_target(),
            digest,
            stamp,
            unsure: false,
        }
    }

    /// The changes from `self` to `now` among the attributes that are preserved.
    #[must_use]
    pub fn compare_to(&self, now: &Self, preserve: &PreserveOptions) -> ChangeExtent {
        if self.has_content_change(now) {
            ChangeExtent::Content
        } else if self.has_attribute_change(now, preserve) {
            ChangeExtent::Attributes
        } else {
            ChangeExtent::None
        }
    }

    fn has_content_change(&self, now: &Self) -> bool {
        let old = &self.state;
        let new = &now.state;
        if old.kind != new.kind {
            return true;
        }
        match old.kind {
            FileKind::File => match (self.digest, now.digest) {
                // Content that was read is certain. Times alone may differ after a `touch`, or after a
                // restore of the same file.
                (Some(old), Some(new)) => old != new,
                _ => (old.size, old.mtime) != (new.size, new.mtime) || self.is_doubtful(now),
            },
            FileKind::Symlink => self.target != now.target,
            FileKind::CharDevice | FileKind::BlockDevice => old.rdev != new.rdev,
            // The content of a directory is its entries, which have nodes of their own.
            FileKind::Dir | FileKind::Fifo | FileKind::Socket => false,
        }
    }

    /// Whether a file with its old size and time may nevertheless have been written: within the tick of the clock in
    /// which it was recorded, or by a program that set the modification time back. The latter moves the change time
    /// without a change of any attribute that would explain it.
    #[must_use]
    pub fn is_doubtful(&self, now: &Self) -> bool {
        let old = &self.state;
        let new = &now.state;
        let is_same = (old.kind, old.size, old.mtime) == (new.kind, new.size, new.mtime);
        // A change of mode, owner or attributes moves the change time as well and explains it.
        let dressed = (old.mode, old.uid, old.gid, old.mark) != (new.mode, new.uid, new.gid, new.mark);
        let touched = self.stamp != 0 && now.stamp != 0 && self.stamp != now.stamp && !dressed;
        old.kind == FileKind::File && old.size > 0 && is_same && (self.unsure || touched)
    }

    fn has_attribute_change(&self, now: &Self, preserve: &PreserveOptions) -> bool {
        let old = &self.state;
        let new = &now.state;
        // A directory's time changes with its entries, which are compared themselves.
        let timed = match old.kind {
            FileKind::Dir => false,
            FileKind::Symlink => preserve.times && !preserve.omit_link_times,
            _ => preserve.times,
        };
        // Symlinks have no mode of their own.
        let moded = (preserve.modes || preserve.executability) && old.kind != FileKind::Symlink;
        timed && old.mtime != new.mtime
            || moded && old.mode != new.mode
            || preserve.owners && old.uid != new.uid
            || preserve.groups && old.gid != new.gid
            || (preserve.xattrs || preserve.acls) && old.mark != new.mark
    }
}
