//! Two-way synchronisation: what changed on one side since both last agreed is copied to the other.
//!
//! | module | owns |
//! |---|---|
//! | `archive`, `codec`, `store` | the state both sides agreed on: in memory, encoded, in its file |
//! | `state` | the recorded state of an entry, and the extent of a change |
//! | `merge` | the archive and both listings merged into one tree |
//! | `decide` | what happens to each entry; `rule` resolves conflicts |
//! | `plan` | two plans, with the steps of each direction |
//! | `rename` | the names of versions that are kept beside the winning ones |
//! | `far` | a directory of another host as a side |
//! | `record` | the archive after a run |
//! | `run` | the steps of a run, in their order |
//!
//! Invariant: content of one side is removed only because the other side changed the same entry and won, in which case
//! the content is kept (under another name, or in the trash), or because the other side deleted an entry that both had
//! agreed on. A lost, damaged or foreign archive causes no deletion. Deliberately absent: how steps are carried out
//! (see `receive`).

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

/// One of the two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TwoWaySide {
    /// The side that was named first: the source of a one-way run.
    First,
    /// The other side.
    Second,
}

impl TwoWaySide {
    /// Both, in their order.
    pub const BOTH: [Self; 2] = [Self::First, Self::Second];

    /// The opposite side.
    #[must_use]
    pub fn opposite(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    /// This side's element of a pair.
    pub fn select_from<T>(self, both: &[T; 2]) -> &T {
        match self {
            Self::First => &both[0],
            Self::Second => &both[1],
        }
    }

    /// This side's element of a pair, mutable.
    pub fn select_from_mut<T>(self, both: &mut [T; 2]) -> &mut T {
        match self {
            Self::First => &mut both[0],
            Self::Second => &mut both[1],
        }
    }
}

/// The identity of a pair of ends, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TwoWayPair(pub [u8; 32]);

impl TwoWayPair {
    /// Computes the identity of two ends from their names; each is unique: a host and an absolute path.
    #[must_use]
    pub fn from_names(first: &[u8], second: &[u8]) -> Self {
        /// Separates this use of the hash from others.
        const CONTEXT: &str = "vellum 2026 sync pair";
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        for end in [first, second] {
            hasher.update(&(end.len() as u64).to_le_bytes());
            hasher.update(end);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// The base of its file names.
    #[must_use]
    pub fn archive_name(&self) -> String {
        /// Bytes of the hash in a name: enough that names of two pairs never collide.
        const SHOWN: usize = 16;
        self.0.iter().take(SHOWN).map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests;
