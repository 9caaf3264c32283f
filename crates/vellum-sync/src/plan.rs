//! The plan of a run: a pure function of two listings and the options.
//!
//! Invariant: a dry run prints the plan that a run carries out, step by step. Steps are in the order of their phases;
//! within a phase, the steps of one directory are contiguous. Deliberately absent: how steps are carried out.

mod basis;
mod compare;
mod delete;
mod dir_links;
mod links;
mod refusal;
mod rename;
mod step;
mod walk;
mod wanted;

pub(crate) use compare::compare_content;
pub use compare::{compare_attributes, find_undecided_files, find_undecided_in_basis};
pub(crate) use delete::DeletionCounts;
pub use dir_links::find_dir_links;
pub use refusal::{PlanRefusal, PlanRemark};
pub use step::{Differences, StepAction, StepCounts, StepPhase, SyncStep, WriteMethod};
pub use wanted::WantedAttributes;

use crate::model::listing::{ListingEntryId, TreeListing};
use crate::model::options::SyncOptions;

/// The plan of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SyncPlan {
    /// All steps, in the order in which they are carried out.
    pub steps: Vec<SyncStep>,
    /// Why the plan may not be carried out.
    pub refusal: Option<PlanRefusal>,
    /// Remarks for the user.
    pub remarks: Vec<PlanRemark>,
    /// The amount of work.
    pub counts: StepCounts,
    /// Entries of the source that are to be removed there, once the destination has them.
    pub moved: Vec<ListingEntryId>,
}

impl SyncPlan {
    /// Plans the steps that make the destination equal to the source, as far as the options require.
    #[must_use]
    pub fn new(source: &TreeListing, destination: &TreeListing, options: &SyncOptions) -> Self {
        Self::with_basis(source, destination, &[], options)
    }

    /// The same, with listings of the basis directories in the order of the options.
    #[must_use]
    pub fn with_basis(
        source: &TreeListing,
        destination: &TreeListing,
        basis: &[TreeListing],
        options: &SyncOptions,
    ) -> Self {
        walk::SyncPlanner::new(source, destination, options).with_basis(basis).build_plan()
    }

    /// The same; the destination's entries at the paths of `missing`, which were named and do not exist at the source,
    /// are deleted.
    #[must_use]
    pub fn without_missing(
        source: &TreeListing,
        destination: &TreeListing,
        basis: &[TreeListing],
        missing: &[Vec<u8>],
        options: &SyncOptions,
    ) -> Self {
        walk::SyncPlanner::new(source, destination, options)
            .with_basis(basis)
            .with_missing(missing)
            .build_plan()
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The steps of a phase.
    #[must_use]
    pub fn phase_steps(&self, phase: StepPhase) -> &[SyncStep] {
        // Steps are sorted by phase, so a phase is one slice.
        let start = self.steps.partition_point(|step| step.phase < phase);
        let end = self.steps.partition_point(|step| step.phase <= phase);
        self.steps.get(start..end).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
