//! What refs are for.

use vellum_types::{DecodeError, SnapshotId};

use super::check_ref_name;
use crate::error::{Result, VolumeError};

/// What a ref is for; each kind has a folder of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RefKind {
    /// The head of a worktree.
    Worktree,
    /// A name for a snapshot.
    Tag,
    /// What keeps a snapshot; its name is the snapshot's id.
    Pin,
    /// The settings of the volume; there is one.
    Settings,
    /// What was said about a snapshot after it was made; its name is the snapshot's id.
    Annotation,
    /// The last operation of a chain that is no worktree's.
    Chain,
}

/// The name of the ref that has the settings of the volume.
pub(crate) const VOLUME_SETTINGS: &str = "volume";

impl RefKind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Worktree, Self::Tag, Self::Pin, Self::Settings, Self::Annotation, Self::Chain];

    pub(crate) fn folder_name(self) -> &'static str {
        match self {
            Self::Worktree => "worktree",
            Self::Tag => "tag",
            Self::Pin => "pin",
            Self::Settings => "settings",
            Self::Annotation => "annotation",
            Self::Chain => "chain",
        }
    }

    /// The byte that stands for it in records of operations.
    pub(crate) fn stored_byte(self) -> u8 {
        // These numbers are in stored records, and are never given to another kind.
        match self {
            Self::Worktree => 1,
            Self::Tag => 2,
            Self::Chain => 3,
            Self::Pin => 4,
            Self::Settings => 5,
            Self::Annotation => 6,
        }
    }

    pub(crate) fn from_stored_byte(byte: u8) -> Result<Self, DecodeError> {
        let kind = Self::ALL.into_iter().find(|kind| kind.stored_byte() == byte);
        kind.ok_or(DecodeError::Invalid("kind of a ref"))
    }

    /// What messages call it.
    #[must_use]
    pub fn display_name(self) -> &'static str {
        match self {
            Self::Worktree => "worktree",
            Self::Tag => "tag",
            Self::Pin => "pin",
            Self::Settings => "settings",
            Self::Annotation => "note",
            Self::Chain => "chain of operations",
        }
    }

    /// Refuses names that no ref of this kind has.
    pub(super) fn check_name(self, name: &str) -> Result<()> {
        match self {
            Self::Worktree | Self::Tag | Self::Settings | Self::Chain => check_ref_name(name),
            Self::Pin | Self::Annotation if name.parse::<SnapshotId>().is_ok() => Ok(()),
            Self::Pin | Self::Annotation => Err(VolumeError::BadName {
                name: name.escape_debug().to_string(),
                reason: "it is no id of a snapshot",
            }),
        }
    }
}

/// The kinds of refs that users name, and that go from store to store on request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NamedRefKind {
    /// The head of a worktree.
    Worktree,
    /// A name for a snapshot.
    Tag,
}

impl NamedRefKind {
    /// What messages call it.
    #[must_use]
    pub fn display_name(self) -> &'static str {
        RefKind::from(self).display_name()
    }
}

impl From<NamedRefKind> for RefKind {
    fn from(kind: NamedRefKind) -> Self {
        match kind {
            NamedRefKind::Worktree => Self::Worktree,
            NamedRefKind::Tag => Self::Tag,
        }
    }
}
