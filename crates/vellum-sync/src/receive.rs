//! The receiving side.
//!
//! Invariant: a file has its old content or its new one, unless it was asked to be written in place; nothing is written
//! through a symlink, and nothing outside of the destination's root. Deliberately absent: where content comes from, and
//! in which order the steps of a plan are carried out (see `transfer`).

mod attributes;
mod basis;
mod content;
mod default_acl;
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
mod times;

use vellum_volume::Meter;

use attributes::Newcomer;
pub use attributes::umask;
pub(crate) use content::{Flow, SMALL, hash_zeros};
pub(crate) use file::{Home, Receiver, hash, taken};
pub(crate) use keep::Keeper;
pub(crate) use partial::name_for as partial_name;
pub(crate) use ranges::{Hands, RANGE};

use crate::error::Result;
use crate::listing::Listing;
use crate::options::Options;
use crate::plan::Plan;
use crate::source::{End, Source};

/// A plan with all that is needed to carry it out.
pub struct Job<'a> {
    /// What is to be done.
    pub plan: &'a Plan,
    /// Where content comes from.
    pub source: &'a dyn Source,
    /// What is there.
    pub from: &'a Listing,
    /// What is at the destination.
    pub to: &'a Listing,
    /// What was asked for.
    pub options: &'a Options,
}

/// The end where entries go.
pub trait Destination: End {
    /// Carries out a plan, exactly; goes on after the failure of one entry, and tells it.
    fn carry_out(&self, job: &Job<'_>, meter: &Meter) -> Result<Report>;
}

/// What became of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Steps that were carried out.
    pub steps: u64,
    /// Bytes of data written.
    pub written: u64,
    /// Bytes that needed not be written: blocks shared with the source, or of the old file.
    pub spared: u64,
    /// What could not be done.
    pub problems: Vec<Problem>,
    /// It was stopped before it was done.
    pub stopped: bool,
    /// Everything was tried, and what was written is on the disk; looked at if entries are moved.
    pub durable: bool,
    /// Entries that were taken away at the source.
    pub taken: u64,
}

/// Something that could not be done, while all else was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The path from the root.
    pub path: Vec<u8>,
    /// What happened.
    pub message: String,
    /// The source's file vanished: no harm.
    pub vanished: bool,
}
