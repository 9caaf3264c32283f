//! The receiving side.
//!
//! Invariant: a file has its old content or its new one, unless it was asked to be written in place; nothing is written
//! through a symlink, and nothing outside of the destination's root. Deliberately absent: where content comes from, and
//! in which order the steps of a plan are carried out (see `transfer`).

mod attributes;
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

use vellum_host::ProgressMeter;

use attributes::PreviousOccupant;
pub use attributes::read_umask;
pub(crate) use content::{SMALL, TransferControl, check_unchanged, hash_zeros, map_short_read};
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

/// A plan with all that is needed to carry it out.
pub struct SyncJob<'a> {
    /// What is to be done.
    pub plan: &'a SyncPlan,
    /// Where content comes from.
    pub source: &'a dyn SourceEnd,
    /// What is there.
    pub from: &'a TreeListing,
    /// What is at the destination.
    pub to: &'a TreeListing,
    /// What was asked for.
    pub options: &'a SyncOptions,
}

/// The end where entries go.
pub trait DestinationEnd: SyncEnd {
    /// Carries out a plan, exactly; goes on after the failure of one entry, and tells it.
    fn execute_plan(&self, job: &SyncJob<'_>, meter: &ProgressMeter) -> Result<SyncReport>;
}

/// What became of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// Steps that were carried out.
    pub steps: u64,
    /// Bytes of data written.
    pub written: u64,
    /// Bytes that needed not be written: blocks shared with the source, or of the old file.
    pub spared: u64,
    /// What could not be done.
    pub problems: Vec<SyncProblem>,
    /// It was stopped before it was done.
    pub stopped: bool,
    /// Everything was tried, and what was written is on the disk; looked at if entries are moved.
    pub durable: bool,
    /// Entries that were taken away at the source.
    pub taken: u64,
    /// Further names of files that are files of their own, since the destination could not link them.
    pub unlinked: u64,
    /// Those among them that had nothing to be done about: an earlier run made them what they are. They are not among
    /// the steps.
    pub unchanged: u64,
}

/// Something that could not be done, while all else was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncProblem {
    /// The path from the root.
    pub path: Vec<u8>,
    /// What happened.
    pub message: String,
    /// The source's file vanished: no harm.
    pub vanished: bool,
}
