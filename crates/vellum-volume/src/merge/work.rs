//! The state of a merge while it is made, and what all its steps ask for.

use std::collections::HashMap;

use vellum_chunker::Chunker;
use vellum_types::Ino;

use super::conflict::{ConflictKind, ConflictPolicies, ConflictPolicy, MergedFileKey};
use super::files::{FileId, FileLink, FileTable};
use super::side::SideName;
use crate::session::WriteSession;
use crate::volume::Volume;

/// Digits of a snapshot's id in names and markers.
const ID_DIGITS: usize = 8;

/// What a conflict says of the other version.
#[derive(Debug, Clone)]
pub(super) enum ConflictOther {
    None,
    /// It is another file of the result.
    File(FileId),
    /// It has this path on the other side.
    Path(Vec<u8>),
}

/// A conflict, before the paths of the result are known.
pub(super) struct FoundConflict {
    pub kind: ConflictKind,
    pub file: FileId,
    /// The file to decide on.
    pub key: MergedFileKey,
    pub other: ConflictOther,
}

/// A second version of a file, which gets a name beside it.
pub(super) struct VersionCopy {
    pub original: FileId,
    pub copy: FileId,
    pub side: SideName,
}

/// The names of inodes: each a directory and a name in it.
pub(super) type InodeNames = HashMap<Ino, Vec<(Ino, Vec<u8>)>>;

/// A merge.
pub(super) struct MergeWork<'a> {
    pub volume: &'a Volume,
    pub session: &'a WriteSession,
    pub policies: &'a ConflictPolicies,
    pub chunker: Chunker,
    pub table: FileTable,
    pub conflicts: Vec<FoundConflict>,
    pub copies: Vec<VersionCopy>,
    /// The names in the base of the files that lose one, once they were searched for.
    pub base_links: Option<InodeNames>,
    /// The highest number that was given to a name beside another, by the name without a number.
    pub taken_numbers: HashMap<FileLink, u64>,
}

impl MergeWork<'_> {
    /// The side that is to win a conflict over a file, if one is.
    pub fn preferred_side(&self, id: FileId) -> Option<SideName> {
        match self.policies.policy_for(self.table.get(id).key()) {
            ConflictPolicy::Prefer(snapshot) => {
                // Policies name a snapshot, since which side is the first depends on the ids.
                SideName::BOTH.into_iter().find(|side| self.table.sides.get(*side).id == snapshot)
            }
            ConflictPolicy::Report | ConflictPolicy::KeepBoth => None,
        }
    }

    pub fn is_preferred(&self, id: FileId, side: SideName) -> bool {
        self.preferred_side(id) == Some(side)
    }

    /// Lists a conflict, unless it was decided on beforehand.
    pub fn report_conflict(&mut self, kind: ConflictKind, file: FileId, other: ConflictOther) {
        let key = self.table.get(file).key();
        if self.policies.policy_for(key) == ConflictPolicy::Report {
            self.conflicts.push(FoundConflict { kind, file, key, other });
        }
    }

    /// What a side is called in names and markers.
    pub fn short_id(&self, side: SideName) -> String {
        self.table.sides.get(side).id.to_string().chars().take(ID_DIGITS).collect()
    }
}
