//! Conflicts of a merge as data: what they are, where, and how they are to be resolved.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vellum_types::{Ino, SnapshotId};

/// What two sides did that one result cannot hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConflictKind {
    /// Both changed the content of a file differently.
    Content,
    /// One changed what the other deleted.
    EditDelete,
    /// One renamed what the other deleted.
    RenameDelete,
    /// Both renamed a file differently.
    RenameRename,
    /// Both gave one name to different files.
    SameName,
    /// Both gave one name to files of different kinds.
    Kind,
    /// Each moved a directory into one that the other moved into it.
    Cycle,
    /// Both changed mode, owner or an extended attribute differently.
    Attribute,
}

impl ConflictKind {
    /// What it is called in lists.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Content => "content",
            Self::EditDelete => "edit-delete",
            Self::RenameDelete => "rename-delete",
            Self::RenameRename => "rename-rename",
            Self::SameName => "same-name",
            Self::Kind => "kind",
            Self::Cycle => "cycle",
            Self::Attribute => "attribute",
        }
    }
}

/// A file by its numbers in the three trees, which every merge of the same trees gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MergedFileKey {
    /// In the base.
    pub base: Option<Ino>,
    /// In the snapshot with the lower id.
    pub first: Option<Ino>,
    /// In the other one.
    pub second: Option<Ino>,
}

/// How conflicts are dealt with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ConflictPolicy {
    /// They are listed, and somebody has to look at them.
    #[default]
    Report,
    /// What this snapshot has is taken.
    Prefer(SnapshotId),
    /// Both versions are kept, and that is it.
    KeepBoth,
}

/// The policy of a merge, and of single files that were decided on.
#[derive(Debug, Clone, Default)]
pub struct ConflictPolicies {
    /// Of all files.
    pub general: ConflictPolicy,
    /// Of these.
    pub of_files: BTreeMap<MergedFileKey, ConflictPolicy>,
}

impl ConflictPolicies {
    pub(super) fn policy_for(&self, file: MergedFileKey) -> ConflictPolicy {
        self.of_files.get(&file).copied().unwrap_or(self.general)
    }
}

/// A conflict.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MergeConflict {
    /// Where the file is in the result.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: ConflictKind,
    /// Where the other version is in the result, or what the other side calls the file.
    pub other: Option<Vec<u8>>,
    /// The file.
    pub file: MergedFileKey,
}
