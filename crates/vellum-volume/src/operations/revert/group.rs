//! The operations of one command are taken back together.
//!
//! Invariant: all of them are planned before the first is carried out, each as if those before it had been: what cannot be
//! taken back whole is refused whole. Safety snapshots stay: they hold what was there before the command.

use std::collections::BTreeSet;

use vellum_types::SnapshotId;

use super::{
    LastDirections, READ_THEN, Reversal, RevertDirection, RevertPlan, RevertStep, key_of, note_direction,
};
use crate::error::Result;
use crate::operations::record::OperationEffect;
use crate::operations::timeline::ChainedOperation;
use crate::record::SnapshotOrigin;
use crate::refs::RefKind;
use crate::volume::Volume;

/// What plans change that are carried out before another one.
#[derive(Default)]
pub(super) struct EarlierChanges {
    removed: BTreeSet<(RefKind, String)>,
    recovered: BTreeSet<SnapshotId>,
}

impl EarlierChanges {
    fn add_plan(&mut self, plan: &RevertPlan) {
        for step in plan.before.iter().chain(&plan.after) {
            match step {
                RevertStep::Recover(ids) => self.recovered.extend(ids),
                RevertStep::RemoveWorktree { name, .. } => {
                    self.removed.insert((RefKind::Worktree, name.clone()));
                }
                RevertStep::SetValue { kind, name, to, .. } if to.is_empty() => {
                    self.removed.insert((*kind, name.clone()));
                }
                RevertStep::SetValue { .. }
                | RevertStep::Forget(_)
                | RevertStep::ForgetMade(_)
                | RevertStep::SetLimits { .. }
                | RevertStep::AddWorktree { .. } => {}
            }
        }
    }

    /// Whether a ref is not there any more by then.
    pub fn removes_ref(&self, kind: RefKind, name: &str) -> bool {
        self.removed.iter().any(|(removed, of)| *removed == kind && of == name)
    }

    /// Whether a snapshot is in the history again by then.
    pub fn recovers_snapshot(&self, id: &SnapshotId) -> bool {
        self.recovered.contains(id)
    }
}

impl Volume {
    /// Adds to the plan of an operation those of the others that belong to the same run of a command, in the order in which
    /// they are to be carried out. Fails with a [`RevertError`](super::RevertError) if one of them cannot be.
    pub fn plan_whole_command(&self, first: RevertPlan) -> Result<Vec<RevertPlan>> {
        let Some(command) = first.command else { return Ok(vec![first]) };
        let direction = first.reverted.direction;
        let mut last = LastDirections::new();
        let mut earlier = EarlierChanges::default();
        earlier.add_plan(&first);
        let mut plans = vec![first];
        for operation in &self.read_timeline(READ_THEN)?.operations {
            let is_reversal = note_direction(&mut last, operation);
            if operation.record.command_id != Some(command) {
                continue;
            }
            let mut reversal = Reversal { direction, undoing: None, earlier: Some(&earlier) };
            let target = match direction {
                RevertDirection::Undo => {
                    let is_undone = last.get(&key_of(operation)) == Some(&RevertDirection::Undo);
                    let is_meant = !is_reversal && !is_undone && self.is_undone_by_default(operation);
                    Some(operation.clone()).filter(|operation| is_meant && !self.saves_changes(operation))
                }
                RevertDirection::Redo => {
                    reversal.undoing = Some(&operation.record);
                    self.find_undone_target(operation, &last)?
                }
            };
            let is_planned = |target: &ChainedOperation| {
                let same = |plan: &RevertPlan| {
                    plan.reverted.link == target.link
                        && plan.reverted.worktree.as_deref() == target.chain.worktree()
                };
                plans.iter().any(same)
            };
            let Some(target) = target.filter(|target| !is_planned(target)) else { continue };
            let plan = self.plan_operation(&target, reversal)?;
            if !plan.is_empty() {
                earlier.add_plan(&plan);
                plans.push(plan);
            }
        }
        Ok(plans)
    }

    /// Whether an operation made a snapshot of what no other held.
    fn saves_changes(&self, operation: &ChainedOperation) -> bool {
        operation.record.effects.iter().any(|effect| match effect {
            OperationEffect::Made(id) => {
                // One that cannot be read is taken back like any other, or refused.
                self.catalog.get_record(id).is_ok_and(|record| record.origin == SnapshotOrigin::Safety)
            }
            OperationEffect::Ref(_)
            | OperationEffect::Forgotten(_)
            | OperationEffect::Recovered(_)
            | OperationEffect::Discarded(_)
            | OperationEffect::Thinned(_)
            | OperationEffect::Collected { .. }
            | OperationEffect::Key(..)
            | OperationEffect::Reverted(_) => false,
        })
    }
}
