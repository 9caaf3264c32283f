//! One step of a plan.

use crate::model::listing::ListingEntryId;

/// The phases of a run, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum StepPhase {
    /// Early deletions, and entries that are in the way; children before their directories.
    Clear,
    /// Directories are created; parents first.
    Dirs,
    /// Files are renamed.
    Rename,
    /// Files, symlinks and other entries are written, and attributes set; in any order.
    Files,
    /// Further names of files are linked.
    Links,
    /// Late deletions, after everything is written; children before their directories.
    Delete,
    /// Attributes of directories are set; children before their parents.
    Finish,
}

/// The action of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum StepAction {
    /// Creates a directory.
    MakeDir,
    /// Writes a file.
    Write(WriteMethod),
    /// Creates a symlink.
    Symlink,
    /// Creates a fifo, a socket or a device node.
    Special,
    /// Links a name to the file of `other`, an entry of the source.
    Link,
    /// Sets attributes; content stays.
    Attributes,
    /// Renames the old entry to the name of the source's.
    Rename,
    /// Deletes the old entry; earlier steps have deleted the entries of a directory.
    Delete,
    /// Links a name to the file in the basis directory of this number.
    LinkBasis(u8),
    /// Copies the file from the basis directory of this number.
    CopyBasis(u8),
}

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WriteMethod {
    /// As a whole, beside the old one.
    Whole,
    /// As a new file, using blocks of the old one.
    Delta,
    /// Over the old one.
    InPlace,
    /// After the end of the old one.
    Append,
}

/// The differences of two entries, as bits; the flags in the output are derived from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Differences(pub u16);

impl Differences {
    /// There is no old entry.
    pub const NEW: Self = Self(1);
    /// Content differs, or may differ.
    pub const CONTENT: Self = Self(2);
    /// Size.
    pub const SIZE: Self = Self(4);
    /// Modification time.
    pub const TIME: Self = Self(8);
    /// Mode.
    pub const MODE: Self = Self(16);
    /// Owner.
    pub const OWNER: Self = Self(32);
    /// Group.
    pub const GROUP: Self = Self(64);
    /// Access time.
    pub const ATIME: Self = Self(128);
    /// ACLs.
    pub const ACL: Self = Self(256);
    /// Extended attributes.
    pub const XATTR: Self = Self(512);
    /// The old entry has another type.
    pub const KIND: Self = Self(1024);

    /// Whether it has all of these bits.
    #[must_use]
    pub fn contains(self, what: Self) -> bool {
        self.0 & what.0 == what.0
    }

    /// Whether nothing differs.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// With these bits added.
    #[must_use]
    pub fn union(self, what: Self) -> Self {
        Self(self.0 | what.0)
    }

    /// With these bits added if the condition holds.
    #[must_use]
    pub fn union_if(self, what: Self, condition: bool) -> Self {
        if condition { self.union(what) } else { self }
    }
}

/// One step of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SyncStep {
    /// Its phase.
    pub phase: StepPhase,
    /// Its action.
    pub action: StepAction,
    /// Its reason.
    pub what: Differences,
    /// The source's entry; None for a deletion.
    pub source: Option<ListingEntryId>,
    /// The destination's entry of the same path (for a rename: of the old path); None if there is none.
    pub old: Option<ListingEntryId>,
    /// For a link: the source's entry whose file gets the name.
    pub other: Option<ListingEntryId>,
}

/// The amount of work of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepCounts {
    /// Entries of the source, except the root.
    pub entries: u64,
    /// Files of the source.
    pub files: u64,
    /// Sum of their sizes.
    pub bytes: u64,
    /// Entries that are created.
    pub made: u64,
    /// Files whose content replaces an old one.
    pub updated: u64,
    /// Entries whose attributes alone are set.
    pub attributes: u64,
    /// Entries that are deleted.
    pub deleted: u64,
    /// Entries that are renamed.
    pub renamed: u64,
    /// Files whose content is written.
    pub writes: u64,
    /// Sum of their sizes.
    pub write_bytes: u64,
}
