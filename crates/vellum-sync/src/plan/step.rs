//! One step of a plan.

use crate::model::listing::ListingEntryId;

/// When a step is carried out: phase after phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum StepPhase {
    /// Deleted before anything is written, and what is in the way; children before their directories.
    Clear,
    /// Directories are made; parents first.
    Dirs,
    /// Renamed.
    Rename,
    /// Files, symlinks and others are written, and attributes set; in any order.
    Files,
    /// Further names of files.
    Links,
    /// Deleted after everything is written; children before their directories.
    Delete,
    /// Attributes of directories; children before their parents.
    Finish,
}

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum StepAction {
    /// A directory is made.
    MakeDir,
    /// A file is written.
    Write(WriteMethod),
    /// A symlink is made.
    Symlink,
    /// A fifo, a socket or a device node is made.
    Special,
    /// A name is given to the file that has the name of `other`, an entry of the source.
    Link,
    /// Attributes are set; content stays.
    Attributes,
    /// The old entry gets the name of the source's.
    Rename,
    /// The old entry is deleted; of a directory all that was in it was deleted by steps before.
    Delete,
    /// A name is given to the file that the basis directory of this number has.
    LinkBasis(u8),
    /// The file is copied from the basis directory of this number.
    CopyBasis(u8),
}

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WriteMethod {
    /// All of it, beside the old one.
    Whole,
    /// With what the old one has.
    Delta,
    /// Over the old one.
    InPlace,
    /// After the end of the old one.
    Append,
}

/// What differs between the two entries. Bits; what a person sees of a step is made of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Differences(pub u16);

impl Differences {
    /// There is no old entry.
    pub const NEW: Self = Self(1);
    /// Content, or may be.
    pub const CONTENT: Self = Self(2);
    /// Size.
    pub const SIZE: Self = Self(4);
    /// Time of last change.
    pub const TIME: Self = Self(8);
    /// Mode.
    pub const MODE: Self = Self(16);
    /// Owner.
    pub const OWNER: Self = Self(32);
    /// Group.
    pub const GROUP: Self = Self(64);
    /// Time of last reading.
    pub const ATIME: Self = Self(128);
    /// ACLs.
    pub const ACL: Self = Self(256);
    /// Extended attributes.
    pub const XATTR: Self = Self(512);
    /// The old entry is of another kind.
    pub const KIND: Self = Self(1024);

    /// Whether it has all of these.
    #[must_use]
    pub fn contains(self, what: Self) -> bool {
        self.0 & what.0 == what.0
    }

    /// Whether nothing differs.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// With these too.
    #[must_use]
    pub fn union(self, what: Self) -> Self {
        Self(self.0 | what.0)
    }

    /// With these too, if the condition holds.
    #[must_use]
    pub fn union_if(self, what: Self, condition: bool) -> Self {
        if condition { self.union(what) } else { self }
    }
}

/// One step of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SyncStep {
    /// When.
    pub phase: StepPhase,
    /// What.
    pub action: StepAction,
    /// Why.
    pub what: Differences,
    /// The source's entry; None for what is deleted.
    pub source: Option<ListingEntryId>,
    /// The destination's entry of the same path (of a rename: of the old path); None if there is none.
    pub old: Option<ListingEntryId>,
    /// Of a link: the source's entry whose file it becomes a name of.
    pub other: Option<ListingEntryId>,
}

/// How much there is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepCounts {
    /// Entries of the source, without the root.
    pub entries: u64,
    /// Files of the source.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Entries that are made.
    pub made: u64,
    /// Files whose content is written over an old one.
    pub updated: u64,
    /// Entries of which only attributes are set.
    pub attributes: u64,
    /// Entries that are deleted.
    pub deleted: u64,
    /// Entries that are renamed.
    pub renamed: u64,
    /// Files whose content is written.
    pub writes: u64,
    /// Bytes of them.
    pub write_bytes: u64,
}
