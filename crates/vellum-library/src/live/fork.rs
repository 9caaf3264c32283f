//! Forks of a live worktree: a new worktree with everything that this one contains, published or not.
//!
//! The live state is made first, then the worktree is entered: what a crash leaves in between belongs to no worktree,
//! and is removed when the same fork is made again.

use vellum_fs::history::fork::LiveStateFolders;
use vellum_fs::{FsError, LiveFilesystem};
use vellum_host::process::host_name;
use vellum_volume::VolumeError;
use vellum_volume::lease::{Lease, LeaseToken};
use vellum_volume::refs::{READING_MAX, UnsnapshottedTree, WorktreeHead, check_ref_name};

use super::tokens::TokenFile;
use super::{LOG_FOLDER, LiveStateClaim, META_FOLDER, Result};

/// Creates the worktree `new` with the current content of the live worktree.
pub fn fork_live_worktree(fs: &LiveFilesystem, new: &str) -> Result<()> {
    let volume = fs.volume();
    check_ref_name(new)?;
    if volume.read_worktree_head(new)?.is_some() {
        return Err(VolumeError::Exists { kind: "worktree", name: new.into() }.into());
    }
    // Claimed before the worktree exists: from the moment it does, any process may open it.
    let claim = LiveStateClaim::acquire(volume, new, None)?;
    // A fork that crashed before it was entered may have left these.
    claim.remove_live_state()?;
    let token = LeaseToken::generate();
    // Before the ref names it: the first process that opens the worktree has to find its own token, or it would take
    // this live state for one that fell behind.
    TokenFile::in_dir(claim.dir()).save_tokens(&[token])?;
    let meta = claim.dir().join(META_FOLDER);
    let log = claim.dir().join(LOG_FOLDER);
    let place = claim.dir().display().to_string();
    fs.fork_into(LiveStateFolders { meta: &meta, log: &log }, |head| {
        if fs.names_stored_chunks()? {
            // Before this worktree publishes them, and nothing protects them for the fork, whose layers name them, too.
            volume.hold_unpublished(new)?;
        }
        let published = volume.read_worktree_head(fs.worktree_name())?.and_then(|this| this.head);
        let live = Some(UnsnapshottedTree { root: head.state.base, counted: head.state.counted });
        // An ended lease with this token makes the fork's live state the one that changed the worktree last, and lets
        // anybody take it at once.
        let lease = Some(Lease::new_ended(token));
        // The fork has the same layers: the trees from which these took content must be kept for it, too.
        let reading = fs.base_roots()?.into_iter().take(READING_MAX).collect();
        let made =
            WorktreeHead { head: published, live, lease, reading, ..WorktreeHead::new(host_name(), place) };
        Ok::<_, FsError>(volume.register_worktree(new, &made)?)
    })?;
    Ok(())
}
