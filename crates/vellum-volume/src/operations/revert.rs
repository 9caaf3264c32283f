//! Taking operations back, and carrying them out once more.
//!
//! A plan is made from the record of an operation: what it changed goes back to what the record says was there before. Each
//! step is a compare-and-swap against what the record says was there afterwards, so that nothing is taken back that somebody
//! changed since. What is done is recorded as an operation that names the one that it takes back.
//!
//! Invariants: a plan is refused as a whole before its first step; counters of refs only rise; nothing is removed from the
//! store. The files of a worktree are for the caller, who has them: [`RevertPlan::head`] says what becomes of them.

mod apply;
mod error;
mod group;
mod plan;
mod recover;
mod value;

use std::collections::HashMap;

use vellum_types::SnapshotId;

pub use self::error::RevertError;
use self::group::EarlierChanges;
use super::chain::ListedOperation;
use super::command::CommandId;
use super::log::ChainName;
use super::record::{
    OperationEffect, OperationLink, OperationRecord, RefEffect, RevertDirection, RevertedOperation,
};
use super::timeline::{ChainedOperation, Timeline};
use crate::error::Result;
use crate::refs::{RefKind, WorktreeHead, WorktreeQuota};
use crate::volume::Volume;

/// Operations of each chain that are read at first, and then: most often, the last one is meant.
const READ_AT_FIRST: usize = 16;
const READ_THEN: usize = 1024;

/// Which operation is to be taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperationChoice {
    /// The last one that was carried out from this worktree and changed something.
    Last,
    /// One of the chain of a worktree.
    Numbered {
        /// The worktree.
        worktree: String,
        /// Its place in the chain.
        number: u64,
    },
}

/// What becomes of the worktree that the user stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadChange {
    /// It stands on another snapshot, and its files stay as they are.
    Move {
        /// On which it stands.
        from: Option<SnapshotId>,
        /// On which it is to stand.
        target: Option<SnapshotId>,
    },
    /// Its files become those of a snapshot. What no snapshot holds is to be saved before.
    Restore {
        /// On which it stands.
        from: Option<SnapshotId>,
        /// Which one.
        target: SnapshotId,
    },
}

/// One thing that is done to take an operation back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RevertStep {
    /// Forgotten snapshots are brought into the history again.
    Recover(Vec<SnapshotId>),
    /// Snapshots are forgotten.
    Forget(Vec<SnapshotId>),
    /// The snapshot that the operation made is forgotten, unless something has come to need it.
    ForgetMade(SnapshotId),
    /// The limits of a worktree change.
    SetLimits {
        /// Its name.
        worktree: String,
        /// How much it may hold.
        quota: WorktreeQuota,
        /// Days that its trash keeps what is deleted.
        trash_days: u32,
    },
    /// A worktree is taken off the list; its files stay.
    RemoveWorktree {
        /// Its name.
        name: String,
        /// What its ref says.
        from: Box<WorktreeHead>,
    },
    /// A worktree is put on the list again.
    AddWorktree {
        /// Its name.
        name: String,
        /// What its ref is to say.
        head: Box<WorktreeHead>,
    },
    /// A tag, a pin, a note or the settings of the volume get the value that they had.
    SetValue {
        /// Of which kind.
        kind: RefKind,
        /// The name of the ref.
        name: String,
        /// What it says; empty if it is not there.
        from: Vec<u8>,
        /// What it is to say; empty if it is to be removed.
        to: Vec<u8>,
    },
}

/// A snapshot that the operation made, and that stays in the history because something needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptSnapshot {
    /// Its id.
    pub id: SnapshotId,
    /// What needs it.
    pub reason: String,
}

/// How an operation is taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevertPlan {
    /// The operation, and which way it is taken.
    pub reverted: RevertedOperation,
    /// Its record.
    pub operation: ListedOperation,
    /// The run of the command that it is a part of, or, if it is carried out once more, of the one that took it back.
    pub command: Option<CommandId>,
    /// What is done first.
    pub before: Vec<RevertStep>,
    /// What becomes of this worktree.
    pub head: Option<HeadChange>,
    /// What is done then.
    pub after: Vec<RevertStep>,
    /// Snapshots that stay.
    pub kept: Vec<KeptSnapshot>,
}

/// How an operation is taken.
#[derive(Clone, Copy)]
struct Reversal<'a> {
    direction: RevertDirection,
    /// The record of the operation that took it back, if there is one.
    undoing: Option<&'a OperationRecord>,
    /// What other plans change before.
    earlier: Option<&'a EarlierChanges>,
}

impl<'a> Reversal<'a> {
    fn undo() -> Self {
        Self { direction: RevertDirection::Undo, undoing: None, earlier: None }
    }

    fn redo(undoing: &'a OperationRecord) -> Self {
        Self { direction: RevertDirection::Redo, undoing: Some(undoing), earlier: None }
    }
}

impl RevertPlan {
    /// Whether all is as it is to be.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.before.is_empty() && self.head.is_none() && self.after.is_empty()
    }
}

/// For each operation that was taken back, what was done with it last.
type LastDirections = HashMap<(Option<String>, OperationLink), RevertDirection>;

impl Volume {
    /// Says how an operation can be taken back; changes nothing. If it takes back another one itself, that one is carried out
    /// once more. Fails with a [`RevertError`] if it cannot be.
    pub fn plan_undo(&self, choice: &OperationChoice) -> Result<RevertPlan> {
        match choice {
            OperationChoice::Last => self.plan_last(RevertDirection::Undo),
            OperationChoice::Numbered { worktree, number } => self.plan_numbered(worktree, *number),
        }
    }

    /// Says how the last operation that was taken back can be carried out once more; changes nothing. Fails with
    /// [`RevertError::NothingToRedo`] if others came since.
    pub fn plan_redo(&self) -> Result<RevertPlan> {
        self.plan_last(RevertDirection::Redo)
    }

    fn plan_last(&self, direction: RevertDirection) -> Result<RevertPlan> {
        for limit in [READ_AT_FIRST, READ_THEN, usize::MAX] {
            let timeline = self.read_timeline(limit)?;
            let found = match direction {
                RevertDirection::Undo => self.find_undoable(&timeline)?,
                RevertDirection::Redo => self.find_redoable(&timeline)?,
            };
            match found {
                Some(plan) => return Ok(plan),
                // There is nothing older to read.
                None if timeline.is_whole => break,
                None => {}
            }
        }
        Err(match direction {
            RevertDirection::Undo => RevertError::NothingToUndo,
            RevertDirection::Redo => RevertError::NothingToRedo,
        }
        .into())
    }

    fn plan_numbered(&self, worktree: &str, number: u64) -> Result<RevertPlan> {
        let missing =
            |worktree: &str, number| RevertError::NoSuchOperation { worktree: worktree.into(), number };
        let found = self.find_operation(ChainName::of_worktree(worktree), number)?;
        let found = found.ok_or_else(|| missing(worktree, number))?;
        let mut undoing = None;
        let mut direction = RevertDirection::Undo;
        let operation = match found.record.reverted_operation().cloned() {
            None => found,
            Some(RevertedOperation { direction: before, worktree: of, link }) => {
                let target = self.find_operation(ChainName::of(of.as_deref()), link.sequence)?;
                // A number is not enough: another record may have come to have it in a store that was rolled back.
                let target = target.filter(|target| target.link == link);
                let of = of.as_deref().unwrap_or_default();
                direction = before.opposite();
                undoing = Some(found.record);
                target.ok_or_else(|| missing(of, link.sequence))?
            }
        };
        let reversal = Reversal { direction, undoing: undoing.as_ref(), earlier: None };
        let plan = self.plan_operation(&operation, reversal)?;
        match plan.is_empty() {
            true => Err(RevertError::NothingLeft { operation: operation.describe(), direction }.into()),
            false => Ok(plan),
        }
    }

    /// The newest operation that was not taken back, and changed something that is still to be seen.
    fn find_undoable(&self, timeline: &Timeline) -> Result<Option<RevertPlan>> {
        let mut last = LastDirections::new();
        // Unless it is named, what made this worktree is not meant: to take it back would take the worktree off the list.
        let creator = self.find_creator(timeline);
        for operation in &timeline.operations {
            if note_direction(&mut last, operation)
                || last.get(&key_of(operation)) == Some(&RevertDirection::Undo)
                || !self.is_undone_by_default(operation)
                || creator.is_some_and(|creator| creator == operation || is_same_command(creator, operation))
            {
                continue;
            }
            let plan = self.plan_operation(operation, Reversal::undo())?;
            // It may be as it was, because somebody did the reverse by hand.
            if !plan.is_empty() {
                return Ok(Some(plan));
            }
        }
        Ok(None)
    }

    /// The operation that was taken back last, if nothing else was done since.
    fn find_redoable(&self, timeline: &Timeline) -> Result<Option<RevertPlan>> {
        let mut last = LastDirections::new();
        for operation in &timeline.operations {
            if !note_direction(&mut last, operation) {
                // Whatever was taken back before it is cut off.
                if self.is_undone_by_default(operation) {
                    return Err(RevertError::NothingToRedo.into());
                }
                continue;
            }
            let Some(target) = self.find_undone_target(operation, &last)? else { continue };
            let plan = self.plan_operation(&target, Reversal::redo(&operation.record))?;
            if !plan.is_empty() {
                return Ok(Some(plan));
            }
        }
        Ok(None)
    }

    /// The operation that another one took back, if that is still in force.
    fn find_undone_target(
        &self,
        operation: &ChainedOperation,
        last: &LastDirections,
    ) -> Result<Option<ChainedOperation>> {
        let Some(RevertedOperation { direction, worktree, link }) = operation.record.reverted_operation()
        else {
            return Ok(None);
        };
        let is_in_force = last.get(&(worktree.clone(), *link)) == Some(&RevertDirection::Undo);
        // What was redone already is not redone again, and neither is an undo that was itself taken back.
        if *direction == RevertDirection::Redo || !is_in_force {
            return Ok(None);
        }
        let target = self.find_operation(ChainName::of(worktree.as_deref()), link.sequence)?;
        // As in `plan_numbered`, the number alone does not tell that it is the same record.
        Ok(target.filter(|target| target.link == *link))
    }

    /// The operation that made this worktree, if it is among these.
    fn find_creator<'t>(&self, timeline: &'t Timeline) -> Option<&'t ChainedOperation> {
        let own = &self.worktree.worktree;
        timeline.operations.iter().find(|operation| {
            operation.record.effects.iter().any(|effect| {
                matches!(effect, OperationEffect::Ref(RefEffect { kind: RefKind::Worktree, name, before, .. })
                    if name == own && before.is_empty())
            })
        })
    }

    /// Whether an operation is one of those that users think of: it changed something that can go back to what it was.
    fn is_undone_by_default(&self, operation: &ChainedOperation) -> bool {
        operation.record.effects.iter().any(|effect| match effect {
            OperationEffect::Ref(effect) => plan::is_revertible(effect),
            OperationEffect::Forgotten(_) | OperationEffect::Recovered(_) => true,
            OperationEffect::Made(_) => operation.record.outside_snapshot().is_some(),
            // None of these can be taken back by itself. What takes another operation back is sorted out before this is asked.
            OperationEffect::Collected { .. }
            | OperationEffect::Key(..)
            | OperationEffect::Discarded(_)
            | OperationEffect::Thinned(_)
            | OperationEffect::Reverted(_) => false,
        })
    }
}

/// Notes which operation another one takes back; returns whether it does. The newest counts, which is noted first.
fn note_direction(last: &mut LastDirections, operation: &ChainedOperation) -> bool {
    let Some(RevertedOperation { direction, worktree, link }) = operation.record.reverted_operation() else {
        return false;
    };
    last.entry((worktree.clone(), *link)).or_insert(*direction);
    true
}

fn key_of(operation: &ChainedOperation) -> (Option<String>, OperationLink) {
    (operation.chain.worktree().map(str::to_owned), operation.link)
}

/// Whether one process did both for one command. A program of its own, which has none, does whatever it does.
fn is_same_command(one: &ChainedOperation, other: &ChainedOperation) -> bool {
    let one = &one.record;
    let other = &other.record;
    match (one.command_id, other.command_id) {
        (Some(one), Some(other)) => one == other,
        // Early versions recorded none.
        (None, _) | (_, None) => {
            let is_same_process = one.host == other.host && one.pid == other.pid;
            !one.command.is_empty() && is_same_process && one.command == other.command
        }
    }
}
