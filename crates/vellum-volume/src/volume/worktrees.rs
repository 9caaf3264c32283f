//! The worktrees of a volume: their heads, and how they are added, renamed and removed.

use std::path::Path;

use vellum_host::process::host_name;
use vellum_store::join_requests;
use vellum_types::SnapshotId;

use super::Volume;
use crate::error::{Result, VolumeError};
use crate::lease::{LeaseToken, is_lease_over, leased_error};
use crate::refs::{RefKind, StoredRef, WorktreeHead, recorded_value};
use crate::state::{DirectoryIdentity, STATE_DIR, StateDir, WorktreeFile};

impl Volume {
    /// The snapshot that this worktree stands on; none before the first.
    pub fn read_head(&self) -> Result<Option<SnapshotId>> {
        Ok(self.read_own_head()?.head)
    }

    /// What the ref of a worktree says, if there is one.
    pub fn read_worktree_head(&self, name: &str) -> Result<Option<WorktreeHead>> {
        self.refs.get_ref(RefKind::Worktree, name)?.map(|found| decode_worktree_head(&found)).transpose()
    }

    /// What the ref of a worktree says; fails with [`VolumeError::NoSuchRef`] if there is none.
    pub fn require_worktree_head(&self, name: &str) -> Result<WorktreeHead> {
        self.read_worktree_head(name)?.ok_or_else(|| VolumeError::no_worktree(name))
    }

    /// All worktrees of the volume, by name.
    pub fn list_worktrees(&self) -> Result<Vec<(String, WorktreeHead)>> {
        let refs = self.refs.list_refs(RefKind::Worktree)?;
        refs.iter().map(|found| Ok((found.name.clone(), decode_worktree_head(found)?))).collect()
    }

    /// Lets this worktree stand on another snapshot.
    pub fn set_head(&self, head: SnapshotId) -> Result<()> {
        self.update_worktree_ref(&self.worktree.worktree, |old| old.head = Some(head))
    }

    /// Changes what the ref of a worktree says, unless somebody has its lease.
    pub fn update_worktree_ref(&self, name: &str, change: impl Fn(&mut WorktreeHead)) -> Result<()> {
        self.refs.update_ref(RefKind::Worktree, name, |old| self.change_free_head(name, old, &change))
    }

    /// The value of a worktree's ref after a change, unless somebody has its lease.
    pub(crate) fn change_free_head(
        &self,
        name: &str,
        old: Option<&StoredRef>,
        change: impl Fn(&mut WorktreeHead),
    ) -> Result<Option<Vec<u8>>> {
        let missing = || VolumeError::no_worktree(name);
        let mut head = decode_worktree_head(old.ok_or_else(missing)?)?;
        // Inside of the swap: what is checked is the very value that is replaced.
        self.check_lease(name, &head)?;
        self.check_worktree_mark(name, &head)?;
        change(&mut head);
        Ok(Some(head.encode()))
    }

    /// An error if somebody has the lease of a worktree of which the ref says this.
    fn check_lease(&self, name: &str, head: &WorktreeHead) -> Result<()> {
        match &head.lease {
            Some(lease)
                if !is_lease_over(self, &self.refs.ref_object_key(RefKind::Worktree, name)?, lease)? =>
            {
                Err(leased_error(name, lease, head))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn new_head(&self) -> WorktreeHead {
        let root = self.state.root();
        // Without symlinks, as the same directory may be reached by several of them.
        let place = root.canonicalize().unwrap_or_else(|_| root.into());
        WorktreeHead::new(host_name(), place.display().to_string())
    }

    pub(super) fn add_worktree_ref(&self, name: &str) -> Result<()> {
        // What the ref says is remembered, and spares a request below.
        let (checked, found) = join_requests(
            &*self.objects,
            || self.check_new_worktree(name),
            || self.refs.get_ref(RefKind::Worktree, name),
        );
        checked?;
        found?;
        let mark = self.worktree.identity.as_ref().and_then(DirectoryIdentity::mark);
        let new = WorktreeHead { mark, ..self.new_head() };
        self.refs.update_ref(RefKind::Worktree, name, |old| match old {
            None => Ok(Some(new.encode())),
            Some(old) => {
                let old_head = decode_worktree_head(old)?;
                let is_here = old_head.place == new.place && old_head.host == new.host;
                let is_mounted = old_head.lease.is_some() || old_head.live.is_some();
                match is_here {
                    // A crash between this ref and the local file leaves the ref of this very place: take it over.
                    true if old_head.head.is_none() => Ok(Some(WorktreeHead { mark, ..old_head }.encode())),
                    // The state directory was made just now: the one with the worktree that was here is gone. Should it
                    // come back, the mark tells that it is not this worktree.
                    true if !is_mounted => Ok(Some(new.encode())),
                    true | false => Err(self.taken_name_error(name, &old_head)),
                }
            }
        })
    }

    /// The live states that had these tokens do not come back: what is kept for them is kept no longer.
    pub fn release_live_states(&self, name: &str, tokens: &[LeaseToken]) -> Result<()> {
        self.refs.update_ref(RefKind::Worktree, name, |old| {
            // The lease is not looked at: its holder does not need what is kept for others.
            let Some(old) = old else { return Ok(None) };
            let mut head = decode_worktree_head(old)?;
            head.left.retain(|(token, _)| !tokens.contains(token));
            Ok(Some(head.encode()))
        })?;
        self.release_left_unpublished(tokens)
    }

    /// Adds a worktree that stands on a snapshot, or on none, and is kept in `place` by whoever asks.
    pub fn add_worktree(&self, name: &str, head: Option<SnapshotId>, place: &str) -> Result<()> {
        self.register_worktree(name, &WorktreeHead { head, place: place.into(), ..self.new_head() })
    }

    /// Adds a worktree of which the ref says this.
    pub fn register_worktree(&self, name: &str, head: &WorktreeHead) -> Result<()> {
        self.check_new_worktree(name)?;
        let new = head.encode();
        self.refs.update_ref(RefKind::Worktree, name, |old| match old {
            None => Ok(Some(new.clone())),
            Some(_) => Err(VolumeError::Exists { kind: "worktree", name: name.into() }),
        })
    }

    /// An error if somebody has the lease of a worktree.
    pub fn check_lease_free(&self, name: &str) -> Result<()> {
        self.read_worktree_head(name)?.map_or(Ok(()), |head| self.check_lease(name, &head))
    }

    /// Gives a worktree another name; this one's own file follows.
    pub fn rename_worktree(&self, old: &str, new: &str) -> Result<()> {
        self.move_worktree(old, new, None)
    }

    /// Gives a worktree another name, and says that it is in another place if it moved with that.
    pub fn move_worktree(&self, old: &str, new: &str, place: Option<&str>) -> Result<()> {
        self.check_new_worktree(new)?;
        let mut head = self.require_worktree_head(old)?;
        if old == new {
            return Err(VolumeError::Exists { kind: "worktree", name: new.into() });
        }
        self.check_lease(old, &head)?;
        let state = self.find_worktree_state(old, &head)?;
        if let Some(place) = place {
            head.place = place.into();
        }
        let value = head.encode();
        let recorded = head.recorded_part().encode();
        // The new ref before the old one is removed: if this is killed in between, both lead to the worktree, and the
        // same command finishes the move.
        self.refs.update_ref(RefKind::Worktree, new, |there| match there {
            None => Ok(Some(value.clone())),
            // Put by an attempt of this command that was killed.
            Some(same) if recorded_value(RefKind::Worktree, &same.value) == recorded => {
                Ok(Some(value.clone()))
            }
            Some(_) => Err(VolumeError::Exists { kind: "worktree", name: new.into() }),
        })?;
        // The directory's own file before the old ref is removed: a directory whose worktree has no ref could not be used.
        if let Some(state) = state {
            let file = WorktreeFile { worktree: new.into(), ..state.read_worktree_file()? };
            state.write_worktree_file(&file)?;
        }
        self.refs.update_ref(RefKind::Worktree, old, |_| Ok(None))
    }

    /// Takes a worktree off the volume's list. Its snapshots stay, and so do its files.
    pub fn remove_worktree(&self, name: &str) -> Result<WorktreeHead> {
        let head = self.require_worktree_head(name)?;
        self.check_lease(name, &head)?;
        // A removal is how room is made on a full disk, so it may use the reserve.
        self.release_reserves();
        self.refs.update_ref(RefKind::Worktree, name, |_| Ok(None))?;
        // Nothing names any more what clients stored for it.
        self.release_unpublished(name)?;
        Ok(head)
    }

    /// The state directory of the worktree `name`, if it is on this machine and still that worktree.
    pub fn find_worktree_state(&self, name: &str, head: &WorktreeHead) -> Result<Option<StateDir>> {
        if name == self.worktree.worktree {
            return Ok(Some(self.state.clone()));
        }
        let place = Path::new(&head.place);
        // The same path on another machine is another directory.
        if head.host != host_name() || !place.join(STATE_DIR).exists() {
            return Ok(None);
        }
        let state = StateDir::find_enclosing(place)?;
        let file = state.read_worktree_file()?;
        // Another worktree may have been made in that place since.
        let same = file.volume == self.worktree.volume && file.worktree == name && state.root() == place;
        Ok(same.then_some(state))
    }
}

pub(crate) fn decode_worktree_head(found: &StoredRef) -> Result<WorktreeHead> {
    WorktreeHead::decode(&found.value)
        .map_err(VolumeError::wrap_decode_error(format!("the head of worktree '{}'", found.name)))
}
