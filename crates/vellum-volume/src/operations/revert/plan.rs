//! What has to be done to take an operation back: each of its effects is compared with what the store says now.

use std::collections::BTreeSet;

use vellum_types::SnapshotId;

use super::group::EarlierChanges;
use super::value::is_same_value;
use super::{HeadChange, KeptSnapshot, Reversal, RevertError, RevertPlan, RevertStep, is_same_command};
use crate::device::is_try_name;
use crate::error::{Result, VolumeError};
use crate::operations::chain::ListedOperation;
use crate::operations::record::{
    OperationEffect, OperationRecord, RefEffect, RevertDirection, RevertedOperation,
};
use crate::operations::timeline::ChainedOperation;
use crate::refs::{RefKind, WorktreeHead};
use crate::snapshot_pin::SnapshotPin;
use crate::volume::Volume;

/// Whether a change of a ref is one that can go back; what only says where a worktree is, is none. Forks of 'vellum try' come
/// and go with it: what it does to the worktree counts.
pub(super) fn is_revertible(effect: &RefEffect) -> bool {
    let RefEffect { kind, name, before, after, .. } = effect;
    // Both values are empty if a ref was removed that could not be read: nobody knows what to write back.
    if before.is_empty() && after.is_empty() || *kind == RefKind::Worktree && is_try_name(name) {
        return false;
    }
    match kind {
        RefKind::Chain => false,
        RefKind::Tag | RefKind::Pin | RefKind::Settings | RefKind::Annotation => true,
        RefKind::Worktree => match (WorktreeHead::decode(before), WorktreeHead::decode(after)) {
            (Ok(before), Ok(after)) => !has_same_state(&before, &after),
            // The value of a ref that is not there is empty, and does not decode: the worktree was made or removed.
            _ => true,
        },
    }
}

/// Whether two heads differ in nothing but the place of the worktree.
fn has_same_state(one: &WorktreeHead, other: &WorktreeHead) -> bool {
    one.head == other.head && one.quota == other.quota && one.trash.days == other.trash.days
}

impl Volume {
    /// Plans to take an operation back, or to carry it out once more.
    pub(super) fn plan_operation(
        &self,
        operation: &ChainedOperation,
        reversal: Reversal<'_>,
    ) -> Result<RevertPlan> {
        let Reversal { direction, undoing, earlier } = reversal;
        let plan = RevertPlan {
            reverted: RevertedOperation {
                direction,
                worktree: operation.chain.worktree().map(str::to_owned),
                link: operation.link,
            },
            operation: ListedOperation { link: operation.link, record: operation.record.clone() },
            command: undoing.unwrap_or(&operation.record).command_id,
            before: Vec::new(),
            head: None,
            after: Vec::new(),
            kept: Vec::new(),
        };
        let mut draft = PlanDraft {
            volume: self,
            operation,
            direction,
            undoing,
            earlier,
            plan,
            recovered: BTreeSet::new(),
            forgotten: BTreeSet::new(),
        };
        for effect in &operation.record.effects {
            draft.add_effect(effect)?;
        }
        draft.finish()
    }
}

/// A plan that is being made.
struct PlanDraft<'a> {
    volume: &'a Volume,
    operation: &'a ChainedOperation,
    direction: RevertDirection,
    undoing: Option<&'a OperationRecord>,
    earlier: Option<&'a EarlierChanges>,
    plan: RevertPlan,
    /// Snapshots that are to be in the history again.
    recovered: BTreeSet<SnapshotId>,
    /// Snapshots that are to be forgotten.
    forgotten: BTreeSet<SnapshotId>,
}

/// What a ref is to change from, and to.
struct ValueChange<'e> {
    effect: &'e RefEffect,
    from: &'e [u8],
    to: &'e [u8],
}

/// The heads of a worktree that is there before and afterwards.
struct HeadStates<'e> {
    effect: &'e RefEffect,
    from: WorktreeHead,
    to: WorktreeHead,
    current: WorktreeHead,
}

impl PlanDraft<'_> {
    fn finish(mut self) -> Result<RevertPlan> {
        if !self.recovered.is_empty() {
            // Before all else: refs, and files of the worktree, are then set to these snapshots.
            let recovered = Vec::from_iter(self.recovered);
            self.volume.check_recoverable(&recovered)?;
            self.plan.before.insert(0, RevertStep::Recover(recovered));
        }
        if !self.forgotten.is_empty() {
            // After all else: until then, refs and the head of the worktree may still name them.
            let forgotten = Vec::from_iter(self.forgotten);
            self.volume.check_forgettable(&forgotten)?;
            self.plan.after.push(RevertStep::Forget(forgotten));
        }
        Ok(self.plan)
    }

    fn add_effect(&mut self, effect: &OperationEffect) -> Result<()> {
        match effect {
            OperationEffect::Ref(effect) => self.add_ref(effect),
            OperationEffect::Forgotten(id) => self.add_presence(*id, self.direction == RevertDirection::Undo),
            OperationEffect::Recovered(id) => self.add_presence(*id, self.direction == RevertDirection::Redo),
            OperationEffect::Collected { .. } => self.refuse("what a collection has deleted is gone"),
            OperationEffect::Key(..) => {
                self.refuse("keys are changed by 'vellum key' and 'vellum device' only")
            }
            OperationEffect::Thinned(_) => self.refuse("old records of operations are gone"),
            OperationEffect::Discarded(_) => self.refuse("it is the end of a merge; undo the merge itself"),
            // In the line of a worktree, a snapshot goes with the change of the head that came to name it.
            OperationEffect::Made(id) => match self.operation.record.outside_snapshot() {
                Some(_) => self.add_outside_snapshot(*id),
                None => Ok(()),
            },
            OperationEffect::Reverted(_) => Ok(()),
        }
    }

    /// A snapshot in a line that no worktree has goes, or is there again. No file and no head is concerned.
    fn add_outside_snapshot(&mut self, id: SnapshotId) -> Result<()> {
        if self.direction == RevertDirection::Redo {
            return self.add_presence(id, true);
        }
        // It was forgotten since, by hand or by rules: nothing is left to take back.
        if !self.volume.catalog.has_snapshot(&id)? {
            return Ok(());
        }
        if let Some(reason) = self.volume.find_snapshot_user(&id, self.earlier)? {
            return self.refuse(format!("snapshot {id} is still needed: {reason}"));
        }
        self.plan.after.push(RevertStep::ForgetMade(id));
        Ok(())
    }

    fn refuse<T>(&self, reason: impl Into<String>) -> Result<T> {
        let operation = self.operation.describe();
        Err(RevertError::Impossible { operation, reason: reason.into() }.into())
    }

    /// An error that names who changed a ref since.
    fn refuse_changed<T>(&self, effect: &RefEffect) -> Result<T> {
        let RefEffect { kind, name, counter, .. } = effect;
        let later = self.volume.list_operations_after(*kind, name, *counter)?;
        // Those of the command itself, and what was taken back and done again, do not tell who it was.
        let is_other = |later: &&ChainedOperation| {
            later.record.reverted_operation().is_none() && !is_same_command(self.operation, later)
        };
        let later = later.iter().find(is_other).or(later.first());
        let subject = match kind {
            RefKind::Worktree | RefKind::Tag => format!("the {} '{name}'", kind.display_name()),
            RefKind::Pin | RefKind::Annotation => format!("the {} of snapshot {name}", kind.display_name()),
            RefKind::Settings | RefKind::Chain => format!("the {} of the volume", kind.display_name()),
        };
        Err(RevertError::ChangedSince {
            operation: self.operation.describe(),
            subject,
            later: later.map(|later| later.describe()),
        }
        .into())
    }

    fn add_presence(&mut self, id: SnapshotId, is_wanted: bool) -> Result<()> {
        // Several effects may be about one snapshot: a head that names it, and that it was forgotten.
        let is_recovered = self.earlier.is_some_and(|earlier| earlier.recovers_snapshot(&id));
        match (is_wanted, is_recovered || self.volume.catalog.has_snapshot(&id)?) {
            (true, false) => drop(self.recovered.insert(id)),
            (false, true) => drop(self.forgotten.insert(id)),
            (true, true) | (false, false) => {}
        }
        Ok(())
    }

    /// What is to name a snapshot needs it in the history.
    fn require_snapshot(&mut self, id: Option<SnapshotId>) -> Result<()> {
        id.map_or(Ok(()), |id| self.add_presence(id, true))
    }

    fn add_ref(&mut self, effect: &RefEffect) -> Result<()> {
        let RefEffect { kind, before, after, .. } = effect;
        if before.is_empty() && after.is_empty() {
            return self.refuse("it removed a ref that could not be read");
        }
        let change = match self.direction {
            RevertDirection::Undo => ValueChange { effect, from: after, to: before },
            RevertDirection::Redo => ValueChange { effect, from: before, to: after },
        };
        match kind {
            RefKind::Worktree => self.add_worktree(&change),
            RefKind::Tag | RefKind::Pin | RefKind::Settings | RefKind::Annotation => self.add_value(&change),
            RefKind::Chain => self.refuse("it changed a chain of operations"),
        }
    }

    fn add_value(&mut self, change: &ValueChange<'_>) -> Result<()> {
        let ValueChange { effect, from, to } = *change;
        let RefEffect { kind, name, .. } = effect;
        let present = self.volume.refs.get_ref(*kind, name)?.map(|found| found.value).unwrap_or_default();
        // Done already, by hand or by an attempt that was interrupted: what is left of the plan can still be carried
        // out.
        if is_same_value(*kind, &present, to) {
            return Ok(());
        }
        if !is_same_value(*kind, &present, from) {
            return self.refuse_changed(effect);
        }
        match kind {
            RefKind::Tag => {
                if present.is_empty() {
                    self.volume.check_new_tag(name)?;
                }
                self.require_snapshot(SnapshotId::from_slice(to))?;
            }
            // What says that nothing is pinned needs no snapshot.
            RefKind::Pin if SnapshotPin::decode(to).is_ok_and(|pin| pin.is_pinned) => {
                self.require_snapshot(name.parse().ok())?;
            }
            RefKind::Pin | RefKind::Settings | RefKind::Annotation | RefKind::Worktree | RefKind::Chain => {}
        }
        self.plan.after.push(RevertStep::SetValue {
            kind: *kind,
            name: name.clone(),
            from: present,
            to: to.to_vec(),
        });
        Ok(())
    }

    fn add_worktree(&mut self, change: &ValueChange<'_>) -> Result<()> {
        let ValueChange { effect, from, to } = *change;
        let decode = |value: &[u8]| match value {
            [] => Ok(None),
            value => WorktreeHead::decode(value)
                .map(Some)
                .map_err(VolumeError::wrap_decode_error(format!("the head of worktree '{}'", effect.name))),
        };
        let current = self.volume.read_worktree_head(&effect.name)?;
        let states = (decode(from)?, decode(to)?);
        // The directory, or the state of a mount, has the new name, too, which only the command can change.
        if let ((None, Some(_)) | (Some(_), None), Some((old, new))) = (&states, self.find_rename()) {
            return self
                .refuse(format!("'vellum worktree rename {new} {old}' gives the worktree its name back"));
        }
        match states {
            (None, None) => Ok(()),
            (None, Some(to)) => {
                // What it said when it was taken off the list: the command that made it went on after it was made.
                let removed = self.find_removed_value(effect).map(decode).transpose()?.flatten();
                self.add_creation(effect, removed.unwrap_or(to), current)
            }
            (Some(from), None) => self.add_removal(effect, &from, current),
            (Some(from), Some(to)) => {
                let Some(current) = current else { return self.refuse_changed(effect) };
                let states = HeadStates { effect, from, to, current };
                self.add_head(&states)?;
                self.add_limits(&states)
            }
        }
    }

    /// The old and the new name, if the operation is a part of a renaming.
    fn find_rename(&self) -> Option<(&str, &str)> {
        // A renaming is recorded as two changes of refs. Only the words of its command say that they belong together.
        let words = &self.operation.record.command;
        let command = words.windows(2).position(|pair| pair == ["worktree", "rename"])?;
        let mut names = words.get(command + 2..)?.iter().filter(|word| !word.starts_with('-'));
        Some((names.next()?, names.next()?))
    }

    /// What the ref said before the undo that removed it.
    fn find_removed_value(&self, effect: &RefEffect) -> Option<&[u8]> {
        self.undoing?.effects.iter().find_map(|undone| match undone {
            OperationEffect::Ref(undone) => {
                let is_same = undone.kind == effect.kind && undone.name == effect.name;
                (is_same && undone.after.is_empty()).then_some(undone.before.as_slice())
            }
            OperationEffect::Forgotten(_)
            | OperationEffect::Recovered(_)
            | OperationEffect::Discarded(_)
            | OperationEffect::Thinned(_)
            | OperationEffect::Collected { .. }
            | OperationEffect::Key(..)
            | OperationEffect::Made(_)
            | OperationEffect::Reverted(_) => None,
        })
    }

    fn add_creation(
        &mut self,
        effect: &RefEffect,
        to: WorktreeHead,
        current: Option<WorktreeHead>,
    ) -> Result<()> {
        match current {
            Some(current) if current.recorded_part() == to => Ok(()),
            Some(_) => self.refuse_changed(effect),
            None => {
                self.volume.check_new_worktree(&effect.name)?;
                self.require_snapshot(to.head)?;
                let name = effect.name.clone();
                self.plan.after.push(RevertStep::AddWorktree { name, head: Box::new(to) });
                Ok(())
            }
        }
    }

    fn add_removal(
        &mut self,
        effect: &RefEffect,
        from: &WorktreeHead,
        current: Option<WorktreeHead>,
    ) -> Result<()> {
        let Some(current) = current else { return Ok(()) };
        if effect.name == self.volume.worktree.worktree {
            return self.refuse("the worktree that you stand in would be taken off the list");
        }
        if current.recorded_part() != *from && !self.is_changed_by_its_maker()? {
            return self.refuse_changed(effect);
        }
        self.volume.check_lease_free(&effect.name)?;
        let name = effect.name.clone();
        self.plan.after.push(RevertStep::RemoveWorktree { name, from: Box::new(current.recorded_part()) });
        Ok(())
    }

    /// Whether all that came after the operation in its chain belongs to the same command.
    fn is_changed_by_its_maker(&self) -> Result<bool> {
        let ChainedOperation { chain, link, .. } = self.operation;
        let Some(found) = self.volume.find_chain(chain.clone())? else { return Ok(false) };
        let Some(end) = found.end else { return Ok(false) };
        // Numbers may be left out, but none occurs twice: there are no more later ones than this.
        let limit = usize::try_from(end.sequence.saturating_sub(link.sequence)).unwrap_or(usize::MAX);
        let later = self.volume.read_chain(&found, limit)?.operations.into_iter();
        Ok(later
            .filter(|later| later.link.sequence > link.sequence)
            .all(|later| is_same_command(self.operation, &ChainedOperation::new(chain, later))))
    }

    fn add_head(&mut self, states: &HeadStates<'_>) -> Result<()> {
        let HeadStates { effect, from, to, current } = states;
        if from.head == to.head {
            return Ok(());
        }
        let made = self.find_made_snapshot();
        let parents = match made {
            Some(made) => self.volume.catalog.get_record(&made)?.parents.clone(),
            None => Vec::new(),
        };
        // Before a merge with conflicts was finished, the worktree stood on a snapshot that went with it.
        let ours = parents.first().copied().filter(|_| parents.len() > 1);
        let mut from_head = from.head;
        let mut to_head = to.head;
        match self.direction {
            RevertDirection::Undo => to_head = ours.or(to_head),
            RevertDirection::Redo => from_head = ours.or(from_head),
        }
        // Done already, as in `add_value`: what is left of the plan can still be carried out.
        if current.head == to_head {
            return Ok(());
        }
        if current.head != from_head {
            return self.refuse_changed(effect);
        }
        // A head goes back together with the files of its directory, which only a command there changes.
        if effect.name != self.volume.worktree.worktree {
            return self.refuse(format!("it changed worktree '{}'; run 'vellum undo' there", effect.name));
        }
        match (made, ours) {
            // A snapshot changed no file.
            (Some(made), None) => {
                match self.direction {
                    RevertDirection::Undo => self.forget_made(made)?,
                    RevertDirection::Redo => self.add_presence(made, true)?,
                }
                self.require_snapshot(to_head)?;
                self.plan.head = Some(HeadChange::Move { from: from_head, target: to_head });
                Ok(())
            }
            (Some(_), Some(_)) | (None, _) => self.add_restore(from_head, to_head),
        }
    }

    /// The snapshot that the operation made, if it made one.
    fn find_made_snapshot(&self) -> Option<SnapshotId> {
        self.operation.record.effects.iter().find_map(|effect| match effect {
            OperationEffect::Made(id) => Some(*id),
            OperationEffect::Ref(_)
            | OperationEffect::Forgotten(_)
            | OperationEffect::Recovered(_)
            | OperationEffect::Discarded(_)
            | OperationEffect::Thinned(_)
            | OperationEffect::Collected { .. }
            | OperationEffect::Key(..)
            | OperationEffect::Reverted(_) => None,
        })
    }

    fn add_restore(&mut self, from: Option<SnapshotId>, target: Option<SnapshotId>) -> Result<()> {
        let Some(target) = target else {
            return self.refuse("the worktree stood on no snapshot before");
        };
        self.add_presence(target, true)?;
        self.plan.head = Some(HeadChange::Restore { from, target });
        Ok(())
    }

    /// The snapshot that the operation made goes with it, unless something needs it.
    fn forget_made(&mut self, made: SnapshotId) -> Result<()> {
        match self.volume.find_snapshot_user(&made, self.earlier)? {
            Some(reason) => self.plan.kept.push(KeptSnapshot { id: made, reason }),
            None => self.plan.after.push(RevertStep::ForgetMade(made)),
        }
        Ok(())
    }

    fn add_limits(&mut self, states: &HeadStates<'_>) -> Result<()> {
        let HeadStates { effect, from, to, current } = states;
        let mut quota = current.quota;
        let mut trash_days = current.trash.days;
        // Each limit for itself: what somebody has changed since must not keep the other from going back.
        if from.quota != to.quota && quota != to.quota {
            if quota != from.quota {
                return self.refuse_changed(effect);
            }
            quota = to.quota;
        }
        if from.trash.days != to.trash.days && trash_days != to.trash.days {
            if trash_days != from.trash.days {
                return self.refuse_changed(effect);
            }
            trash_days = to.trash.days;
        }
        if quota != current.quota || trash_days != current.trash.days {
            let worktree = effect.name.clone();
            self.plan.after.push(RevertStep::SetLimits { worktree, quota, trash_days });
        }
        Ok(())
    }
}

impl Volume {
    /// What needs a snapshot beside this worktree, if anything does after earlier changes.
    fn find_snapshot_user(
        &self,
        id: &SnapshotId,
        earlier: Option<&EarlierChanges>,
    ) -> Result<Option<String>> {
        let own = &self.worktree.worktree;
        let stays = |kind, name: &str| !earlier.is_some_and(|earlier| earlier.removes_ref(kind, name));
        let worktree = self
            .list_worktrees()?
            .into_iter()
            .find(|(name, head)| name != own && head.head == Some(*id) && stays(RefKind::Worktree, name));
        if let Some((name, _)) = worktree {
            return Ok(Some(format!("the worktree '{name}' stands on it")));
        }
        if let Some((name, _)) =
            self.list_tags()?.into_iter().find(|(name, target)| target == id && stays(RefKind::Tag, name))
        {
            return Ok(Some(format!("the tag '{name}' names it")));
        }
        if self.find_pinned_snapshots(crate::session::current_time())?.contains_key(id) {
            return Ok(Some("it is pinned".into()));
        }
        let records = self.catalog.read_all_records()?.sound;
        let child = records.into_iter().find(|(_, record)| record.parents.contains(id));
        Ok(child.map(|(child, _)| format!("snapshot {child} descends from it")))
    }
}
