//! The receiving side.
//!
//! Invariant: a file has its old content or its new one, unless it is written in place on request; nothing is written
//! through a symlink, or outside of the destination's root. Deliberately absent: where content comes from, and the
//! order in which steps are carried out (see `transfer`).

mod attributes;
mod bandwidth;
mod basis;
mod content;
mod default_acl;
mod delayed;
mod elsewhere;
mod file;
mod filling;
mod in_place;
mod keep;
mod moved;
mod partial;
mod ranges;
mod resume;
mod small;
mod staging;
mod times;

use serde::{Deserialize, Serialize};
use vellum_host::ProgressMeter;

use attributes::PreviousOccupant;
pub use attributes::read_umask;
pub(crate) use content::{
    PositionedReader, SMALL, TransferControl, check_unchanged, hash_zeros, map_short_read,
};
pub(crate) use delayed::DelayedNames;
pub(crate) use file::{EntryDestination, EntryWriter, hash_file, map_name_conflict};
pub(crate) use keep::BackupKeeper;
pub(crate) use partial::partial_file_name as partial_name;
pub(crate) use ranges::{IdleWorkers, RANGE};
pub use staging::StagingDirectories;

use crate::ends::{SourceEnd, SyncEnd};
use crate::error::Result;
use crate::model::listing::TreeListing;
use crate::model::options::SyncOptions;
use crate::plan::SyncPlan;

/// A plan with everything that is needed to carry it out.
pub struct SyncJob<'a> {
    /// The plan.
    pub plan: &'a SyncPlan,
    /// The end that content is read from.
    pub source: &'a dyn SourceEnd,
    /// The source's listing.
    pub from: &'a TreeListing,
    /// The destination's listing.
    pub to: &'a TreeListing,
    /// The options.
    pub options: &'a SyncOptions,
}

/// An end that entries are written to.
pub trait DestinationEnd: SyncEnd {
    /// Carries out exactly the steps of a plan; a failure of one entry is reported and does not end the run.
    fn execute_plan(&self, job: &SyncJob<'_>, meter: &ProgressMeter) -> Result<SyncReport>;
}

/// The result of a plan. It is a message of the protocol, too: a new field needs a default, for servers that do not
/// send it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncReport {
    /// Steps that were carried out.
    pub steps: u64,
    /// Bytes of data written.
    pub written: u64,
    /// Bytes that did not have to be written: blocks shared with the source, or with the old file.
    pub spared: u64,
    /// The failures of single entries.
    pub problems: Vec<SyncProblem>,
    /// It was stopped before the end.
    pub stopped: bool,
    /// Everything was tried, and all written data is on the disk; only determined if entries are moved.
    #[serde(default)]
    pub durable: bool,
    /// Entries that were removed at the source.
    #[serde(default)]
    pub taken: u64,
    /// Further names of files that are separate copies, because the destination could not link them.
    #[serde(default)]
    pub unlinked: u64,
    /// Those of them that needed no step, because an earlier run has made the copies.
    #[serde(default)]
    pub unchanged: u64,
}

/// The failure of a single entry, also as it is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncProblem {
    /// The path from the root.
    pub path: Vec<u8>,
    /// The error.
    pub message: String,
    /// The source's file vanished, which is no failure of the run.
    pub vanished: bool,
}

impl SyncProblem {
    /// The deletions of a plan were left out after a failure. `nouns` name what is deleted, one and several.
    pub(crate) fn for_kept_entries(count: usize, nouns: [&str; 2]) -> Self {
        let [one, several] = nouns;
        let kept = if count == 1 { format!("1 {one} stays") } else { format!("{count} {several} stay") };
        let message = format!("not everything was written, so nothing was deleted; {kept}");
        Self { path: Vec::new(), message, vanished: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_entry_stays_and_several_stay() {
        let message = |count| SyncProblem::for_kept_entries(count, ["object", "objects"]).message;
        assert!(message(1).ends_with("; 1 object stays"), "{}", message(1));
        assert!(message(2).ends_with("; 2 objects stay"), "{}", message(2));
    }
}
