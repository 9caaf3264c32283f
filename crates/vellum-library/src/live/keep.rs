//! Turns the changes that were not published when another process took a worktree over into a worktree.
//!
//! The directory is moved first, then the new worktree is entered: after a crash, running it again continues.

use vellum_host::process::host_name;
use vellum_volume::Volume;
use vellum_volume::lease::Lease;
use vellum_volume::refs::{UnsnapshottedTree, WorktreeHead};

use super::tokens::TokenFile;
use super::{LEFT_FOLDER, LiveStateClaim, OpenError, Result};

/// Creates the worktree `new` from the changes of `worktree` that were not published here before another process took
/// it over.
pub fn keep_unpublished(volume: &Volume, worktree: &str, new: &str) -> Result<()> {
    vellum_volume::refs::check_ref_name(new)?;
    let claim = LiveStateClaim::acquire(volume, worktree, None)?;
    if claim.dir().join(LEFT_FOLDER).exists() {
        return keep_moved_aside(volume, &claim, new);
    }
    let tokens = TokenFile::in_dir(claim.dir()).load_tokens()?;
    let head = volume.read_worktree_head(worktree)?;
    let current = head.and_then(|head| head.lease).map(|lease| lease.token);
    // The worktree has another token only if another process has changed it since. While it has one of these, the
    // changes are published from here as usual, and nothing was left behind.
    let is_behind = current.is_none_or(|token| !tokens.contains(&token));
    if !tokens.is_empty() && is_behind && claim.has_unpublished_state()? {
        // Before the move, which replaces whatever directory has the new name.
        super::check_name_free(volume, new)?;
        super::move_live_state(volume, worktree, new)?;
    }
    // The lock file has moved with the directory: it is taken below, under the new name.
    drop(claim);
    // Also if nothing was moved now: an attempt that was interrupted after the move is continued here.
    register_worktree(volume, worktree, new)?;
    Ok(volume.release_live_states(worktree, &tokens)?)
}

/// The same with what was moved aside when this machine continued the worktree from its log.
fn keep_moved_aside(volume: &Volume, claim: &LiveStateClaim, new: &str) -> Result<()> {
    let left = claim.dir().join(LEFT_FOLDER);
    let tokens = TokenFile::in_dir(&left).load_tokens()?;
    super::check_name_free(volume, new)?;
    super::move_live_state_dir(&left, &super::live_state_dir(volume, new))?;
    register_worktree(volume, claim.worktree_name(), new)?;
    Ok(volume.release_live_states(claim.worktree_name(), &tokens)?)
}

/// Enters the worktree whose live state already exists.
fn register_worktree(volume: &Volume, worktree: &str, new: &str) -> Result<()> {
    let nothing = || OpenError::NothingLeft { name: worktree.into() };
    let claim = LiveStateClaim::acquire(volume, new, None)?;
    // Any of them will do: whoever opens the worktree claims it with all that are in the file.
    let token = TokenFile::in_dir(claim.dir()).load_tokens()?.into_iter().next_back().ok_or_else(nothing)?;
    let head = claim.read_head()?.ok_or_else(nothing)?;
    if claim.names_stored_chunks()? {
        // Before the session ends that keeps them while the live state is left behind.
        volume.hold_unpublished(new)?;
    }
    let live = UnsnapshottedTree { root: head.state.base, counted: head.state.counted };
    // The last snapshot may be one that was never published, and has no record then.
    let published = head.snapshot.map(|last| last.id).filter(|id| volume.catalog.get_record(id).is_ok());
    let place = claim.dir().display().to_string();
    let lease = Some(Lease::new_ended(token));
    let made =
        WorktreeHead { head: published, live: Some(live), lease, ..WorktreeHead::new(host_name(), place) };
    Ok(volume.register_worktree(new, &made)?)
}
