//! What a run will do: a pure function of two listings and the options.
//!
//! Invariant: a dry run prints the plan that a run carries out, step by step. Steps stand in the order of their phases;
//! those of one phase that concern one directory stand together. Deliberately absent: how steps are carried out.

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

/// What a run will do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SyncPlan {
    /// All steps, in the order in which they are carried out.
    pub steps: Vec<SyncStep>,
    /// Why none of it may be carried out.
    pub refusal: Option<PlanRefusal>,
    /// What a person should know.
    pub remarks: Vec<PlanRemark>,
    /// How much there is to do.
    pub counts: StepCounts,
    /// Entries of the source that the destination has once all is done, and that are to be taken away then.
    pub moved: Vec<ListingEntryId>,
}

impl SyncPlan {
    /// What makes the destination what the source is, as far as the options go.
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

    /// The same; what stands at the paths of `missing`, which were asked for and are not at the source, is deleted.
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
