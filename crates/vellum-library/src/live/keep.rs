//! Turns the changes that were not published when another process took a worktree over into a worktree.
//!
//! The directory is moved first, then the new worktree is entered: after a crash, running it again continues.

use std::fs;

use vellum_host::process::host_name;
use vellum_volume::Volume;
use vellum_volume::lease::Lease;
use vellum_volume::refs::{UnsnapshottedTree, WorktreeHead};

use super::tokens::TokenFile;
use super::{LiveStateClaim, OpenError, Result, live_state_dir};

/// Creates the worktree `new` from the changes of `worktree` that were not published here before another process took
/// it over.
pub fn keep_unpublished(volume: &Volume, worktree: &str, new: &str) -> Result<()> {
    vellum_volume::refs::check_ref_name(new)?;
    let old = live_state_dir(volume, worktree);
    let dir = live_state_dir(volume, new);
    let claim = LiveStateClaim::acquire(volume, worktree, None)?;
    let tokens = TokenFile::in_dir(claim.dir()).load_tokens()?;
    let head = volume.read_worktree_head(worktree)?;
    let current = head.and_then(|head| head.lease).map(|lease| lease.token);
    // The worktree has another token only if another process has changed it since. While it has one of these, the
    // changes are published from here as usual, and nothing was left behind.
    let is_behind = current.is_none_or(|token| !tokens.contains(&token));
    if !tokens.is_empty() && is_behind && claim.has_unpublished_state()? {
        if volume.read_worktree_head(new)?.is_some() || !TokenFile::in_dir(&dir).load_tokens()?.is_empty() {
            return Err(vellum_volume::VolumeError::Exists { kind: "worktree", name: new.into() }.into());
        }
        // No worktree has this name, and there are no tokens: it is what a failed opening left.
        if dir.exists() {
            fs::remove_dir_all(&dir).map_err(OpenError::io_error("replace", &dir))?;
        }
        fs::rename(&old, &dir).map_err(OpenError::io_error("move", &old))?;
        // Before the ref: after a power cut it must not name a directory that has its old name again.
        dir.parent().map_or(Ok(()), super::sync_directory)?;
    }
    // The lock file has moved with the directory: it is taken below, under the new name.
    drop(claim);
    register_worktree(volume, worktree, new)?;
    Ok(volume.release_live_states(worktree, &tokens)?)
}

/// Enters the worktree whose live state already exists.
fn register_worktree(volume: &Volume, worktree: &str, new: &str) -> Result<()> {
    let nothing = || OpenError::NothingLeft { name: worktree.into() };
    let claim = LiveStateClaim::acquire(volume, new, None)?;
    let token = TokenFile::in_dir(claim.dir()).load_tokens()?.into_iter().next_back().ok_or_else(nothing)?;
    let head = claim.read_head()?.ok_or_else(nothing)?;
    let live = UnsnapshottedTree { root: head.state.base, counted: head.state.counted };
    let published = head.snapshot.map(|last| last.id).filter(|id| volume.catalog.get_record(id).is_ok());
    let place = claim.dir().display().to_string();
    let lease = Some(Lease::new_ended(token));
    let made =
        WorktreeHead { head: published, live: Some(live), lease, ..WorktreeHead::new(host_name(), place) };
    Ok(volume.register_worktree(new, &made)?)
}
