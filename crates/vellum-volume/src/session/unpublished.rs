//! Content that clients of a mounted worktree have stored, and that only the worktree's live state names: no tree in the store
//! does yet.
//!
//! Protocol: such a session is put before the live state names the content, and removed after a tree names it. It is that of no
//! process: the live state survives its process, also one that was lost with its machine, and the content must, too. A live
//! state that was left on another machine, when this one took the worktree over, has a session of its own, until that state is
//! kept as a worktree or given up there.
//! Deliberately absent: which content. The collector deletes nothing while there is such a session.

use vellum_store::{ObjectKey, StoreError};
use vellum_types::BlobKind;

use super::{OBJECT_MAX, PREFIX, SessionObject, seal_session};
use crate::error::Result;
use crate::lease::LeaseToken;
use crate::refs::WorktreeHead;
use crate::volume::Volume;

/// The live state whose content a session stands for.
#[derive(Debug, Clone, Copy)]
enum UnpublishedState<'a> {
    /// That of a worktree, wherever it is.
    Worktree(&'a str),
    /// One that was left behind, by the token of its last lease.
    Left(LeaseToken),
}

impl Volume {
    /// Keeps the collector from deleting anything, until [`Volume::release_unpublished`] is called for this worktree. The caller
    /// reads the index afterwards, before it relies on stored content.
    pub fn hold_unpublished(&self, worktree: &str) -> Result<()> {
        self.put_unpublished(UnpublishedState::Worktree(worktree), worktree)
    }

    /// Ends that: a tree names everything that was stored for this worktree, or nothing does. Does nothing if there is nothing
    /// to end.
    pub fn release_unpublished(&self, worktree: &str) -> Result<()> {
        self.remove_unpublished(UnpublishedState::Worktree(worktree))
    }

    /// The same for a worktree whose present live state names no such content. A live state that was left on another machine may
    /// name some: then the session becomes one of that state.
    pub fn release_or_leave_unpublished(&self, worktree: &str) -> Result<()> {
        if !self.holds_unpublished(worktree)? {
            return Ok(());
        }
        // Of a worktree with a shared log, all that was acknowledged is in the log, and so in the present live state.
        let head = self.read_worktree_head(worktree)?.filter(|head| head.log.is_none());
        // The newest is the first.
        if let Some((token, _)) = head.and_then(|head| head.left.first().copied()) {
            self.put_unpublished(UnpublishedState::Left(token), worktree)?;
        }
        self.release_unpublished(worktree)
    }

    /// Ends the sessions of live states that were left behind, and do not come back.
    pub(crate) fn release_left_unpublished(&self, tokens: &[LeaseToken]) -> Result<()> {
        tokens.iter().try_for_each(|token| self.remove_unpublished(UnpublishedState::Left(*token)))
    }

    /// Whether a worktree has such content.
    pub fn holds_unpublished(&self, worktree: &str) -> Result<bool> {
        match self
            .objects
            .get_object(&self.unpublished_key(UnpublishedState::Worktree(worktree))?, OBJECT_MAX)
        {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The name of the session that [`Volume::hold_unpublished`] puts, for commands that end sessions.
    pub fn unpublished_session_name(&self, worktree: &str) -> Result<String> {
        Ok(self.unpublished_key(UnpublishedState::Worktree(worktree))?.name().to_owned())
    }

    /// Of which worktree a session stands for the live state, and whether that state was left behind; None: of none that there
    /// is.
    pub(crate) fn find_unpublished_owner<'h>(
        &self,
        session: &ObjectKey,
        heads: &'h [(String, WorktreeHead)],
    ) -> Result<Option<(&'h (String, WorktreeHead), bool)>> {
        for found in heads {
            let (name, head) = found;
            if self.unpublished_key(UnpublishedState::Worktree(name))? == *session {
                return Ok(Some((found, false)));
            }
            for (token, _) in &head.left {
                if self.unpublished_key(UnpublishedState::Left(*token))? == *session {
                    return Ok(Some((found, true)));
                }
            }
        }
        Ok(None)
    }

    fn put_unpublished(&self, state: UnpublishedState<'_>, worktree: &str) -> Result<()> {
        let key = self.unpublished_key(state)?;
        let session =
            SessionObject { unpublished: Some(worktree.into()), ..SessionObject::for_current_process() };
        let sealed = seal_session(&self.keys, &key, &session);
        let mut before: Option<Vec<u8>> = None;
        loop {
            match self.objects.swap_ref(&key, before.as_deref(), Some(&sealed)) {
                Ok(()) => return Ok(()),
                // Put by an earlier process, or by a machine that had the worktree before: it stands for the same. It is put
                // anew all the same, so that nobody removes it who has judged the one that was there.
                Err(StoreError::Changed { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            before = match self.objects.get_object(&key, OBJECT_MAX) {
                Ok(stored) => Some(stored),
                Err(StoreError::NotFound { .. }) => None,
                Err(error) => return Err(error.into()),
            };
        }
    }

    fn remove_unpublished(&self, state: UnpublishedState<'_>) -> Result<()> {
        let key = self.unpublished_key(state)?;
        match self.objects.get_object(&key, OBJECT_MAX) {
            Ok(stored) => match self.objects.swap_ref(&key, Some(&stored), None) {
                Ok(()) | Err(StoreError::Changed { .. }) => Ok(()),
                Err(error) => Err(error.into()),
            },
            Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// One object for each live state, so that whoever has the worktree next finds it.
    fn unpublished_key(&self, state: UnpublishedState<'_>) -> Result<ObjectKey> {
        // By a keyed hash: a name may be long, or secret.
        let id = match state {
            UnpublishedState::Worktree(name) => self.keys.compute_blob_id(BlobKind::Node, name.as_bytes()),
            // A token is told apart from a name by its first byte, which no name has.
            UnpublishedState::Left(LeaseToken(token)) => {
                self.keys.compute_blob_id(BlobKind::Node, &[&[0][..], &token].concat())
            }
        };
        Ok(ObjectKey::new(format!("{PREFIX}unpublished-{id}"))?)
    }
}
