//! Carrying out what is planned, but for the files of a worktree.

use vellum_types::SnapshotId;

use super::value::{is_same_value, renew_value};
use super::{KeptSnapshot, RevertStep};
use crate::error::{Result, VolumeError};
use crate::refs::RefKind;
use crate::volume::{Volume, decode_worktree_head};

impl Volume {
    /// Carries out a step of a plan. The caller has entered the [`RevertScope`](super::super::RevertScope) of the plan. Fails
    /// with [`VolumeError::Raced`] if somebody changed the same since the plan was made. Returns the snapshot that was to be
    /// forgotten, and that something has come to need.
    pub fn apply_revert_step(&self, step: &RevertStep) -> Result<Option<KeptSnapshot>> {
        match step {
            RevertStep::Recover(ids) => self.recover_snapshots(ids)?,
            RevertStep::Forget(ids) => drop(self.forget_snapshots(ids)?),
            RevertStep::ForgetMade(id) => return self.forget_made_snapshot(*id),
            RevertStep::SetLimits { worktree, quota, trash_days } => {
                self.update_worktree_ref(worktree, |head| {
                    head.quota = *quota;
                    head.trash.days = *trash_days;
                    // A tree that the ref names is kept by every collection, although nothing shows it any more.
                    if *trash_days == 0 {
                        head.trash.tree = None;
                    }
                })?;
            }
            RevertStep::RemoveWorktree { name, from } => {
                self.check_lease_free(name)?;
                self.refs.update_ref(RefKind::Worktree, name, |old| {
                    let head = old.map(decode_worktree_head).transpose()?;
                    // Compared in the swap: a worktree that somebody has used since the plan was made stays.
                    match head.is_some_and(|head| head.recorded_part() == **from) {
                        true => Ok(None),
                        false => Err(raced(RefKind::Worktree, name)),
                    }
                })?;
            }
            RevertStep::AddWorktree { name, head } => self.register_worktree(name, head)?,
            RevertStep::SetValue { kind, name, from, to } => {
                let new = renew_value(*kind, from, to)?;
                self.refs.update_ref(*kind, name, |old| {
                    let present = old.map(|old| old.value.as_slice()).unwrap_or_default();
                    match is_same_value(*kind, present, from) {
                        // An empty value stands for a ref that was not there: it is removed.
                        true => Ok(Some(new.clone()).filter(|new| !new.is_empty())),
                        false => Err(raced(*kind, name)),
                    }
                })?;
            }
        }
        Ok(None)
    }

    /// Lets this worktree stand on another snapshot, or on none, if it stands on `from`. Its files stay as they are.
    pub fn move_head(&self, from: Option<SnapshotId>, target: Option<SnapshotId>) -> Result<()> {
        let name = &self.worktree.worktree;
        self.refs.update_ref(RefKind::Worktree, name, |old| {
            let head = old.map(decode_worktree_head).transpose()?;
            // Compared in the swap: the head may have moved since the plan was made.
            match head.is_some_and(|head| head.head == from) {
                true => self.change_free_head(name, old, |head| head.head = target),
                false => Err(raced(RefKind::Worktree, name)),
            }
        })
    }

    fn forget_made_snapshot(&self, id: SnapshotId) -> Result<Option<KeptSnapshot>> {
        match self.forget_snapshot(&id) {
            Ok(()) | Err(VolumeError::MissingRecord(_)) => Ok(None),
            // Since the plan was made, somebody has tagged it or stands on it.
            Err(VolumeError::InUse { reason, .. }) => Ok(Some(KeptSnapshot { id, reason })),
            Err(error) => Err(error),
        }
    }
}

fn raced(kind: RefKind, name: &str) -> VolumeError {
    VolumeError::Raced(format!("the {} '{name}'", kind.display_name()))
}
