//! Synchronising both ways: what changed on one side since both last agreed goes to the other.
//!
//! | module | owns |
//! |---|---|
//! | `archive`, `codec`, `store` | what both sides agreed on: in memory, as bytes, in its file |
//! | `state` | what an entry looked like, and how much it has changed |
//! | `merge` | the archive and both listings walked as one tree |
//! | `decide` | what is to become of each entry; `rule` who wins a conflict |
//! | `plan` | two plans of the one-way sort, with the steps of each direction |
//! | `rename` | the names of versions that are kept beside others |
//! | `far` | a directory of another host as a side |
//! | `record` | the archive that a run leaves |
//! | `run` | all of it, in its order |
//!
//! Invariant: content that one side has goes only because the other side changed the same entry and won, and then it is
//! kept (under another name, or in the trash), or because the other side deleted what both had agreed on. A lost,
//! damaged or foreign archive deletes nothing. Deliberately absent: how steps are carried out (see `receive`).

mod archive;
mod codec;
mod decide;
mod far;
mod merge;
mod plan;
mod record;
mod rename;
mod rule;
mod run;
mod state;
mod store;

pub use archive::{AgreedEntry, TwoWayArchive};
pub use codec::ArchiveError;
pub use decide::{EntryConflict, EntryCourse};
pub use far::FarDirectory;
pub use plan::{TwoWayPlan, TwoWayRequest, find_maybe_hidden, find_undecided_versions};
pub use rename::{RenameError, VersionRename, VersionRenames};
pub use rule::{ConflictAnswer, ConflictAnswers, ConflictEnding, ConflictRule};
pub use run::{ConnectionHealth, TwoWayEnd, TwoWayListings, TwoWayReport, TwoWaySync};
pub use state::{ChangeExtent, EntryFacts, EntryState};
pub use store::{ArchiveStoreError, FoundArchive, LockedArchive};

/// Which of the two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TwoWaySide {
    /// The one that was named first: the source of a one-way run.
    First,
    /// The other.
    Second,
}

impl TwoWaySide {
    /// Both, in their order.
    pub const BOTH: [Self; 2] = [Self::First, Self::Second];

    /// The other one.
    #[must_use]
    pub fn opposite(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    /// What this side has of two things.
    pub fn select_from<T>(self, both: &[T; 2]) -> &T {
        match self {
            Self::First => &both[0],
            Self::Second => &both[1],
        }
    }

    /// What this side has of two things, to be changed.
    pub fn select_from_mut<T>(self, both: &mut [T; 2]) -> &mut T {
        match self {
            Self::First => &mut both[0],
            Self::Second => &mut both[1],
        }
    }
}

/// The identity of two ends, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TwoWayPair(pub [u8; 32]);

impl TwoWayPair {
    /// Of two ends, each named so that no other end has its name: a host and an absolute path.
    #[must_use]
    pub fn from_names(first: &[u8], second: &[u8]) -> Self {
        /// Tells this hash from others.
        const CONTEXT: &str = "vellum 2026 sync pair";
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        for end in [first, second] {
            hasher.update(&(end.len() as u64).to_le_bytes());
            hasher.update(end);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// What its files are called.
    #[must_use]
    pub fn archive_name(&self) -> String {
        /// Bytes of the hash in a name: enough that two pairs never meet.
        const SHOWN: usize = 16;
        self.0.iter().take(SHOWN).map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests;
